"""Scores of heads against loops over the whole matrix."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import regard
from helpers import transformers_models
from regard.analysis import HEAD_SCORES, SPECTRAL_SCORES, as_score_tensors, head_scores, rank_heads
from regard.analysis.head_scores import HeadScoreAccumulator
from regard.errors import InvalidArgument, InvalidType
from regard.recordings import Layer, Recording


def recording(words: str, kind: str = "decoder", heads: int = 3, seed: int = 0) -> Recording:
    torch.manual_seed(seed)
    tokens = tuple(words.split())
    query, key = torch.randn(2, 1, heads, len(tokens), 4)
    weights = regard.weights(query, key, mask=regard.Causal() if kind == "decoder" else None)
    return Recording("", "random", (Layer("a.0", kind, weights, tokens, tokens),))


def by_hand(weights: Tensor, tokens: tuple[str, ...], kind: str) -> dict[str, float]:
    """The scores of one head, (tokens, tokens)."""
    size, P = len(tokens), weights.double()
    rows: dict[str, list[float]] = {score: [] for score in HEAD_SCORES}
    for i in range(size):
        others = [j for j in range(size) if tokens[j] == tokens[i] and (j < i if kind == "decoder" else j != i)]
        after = [j + 1 for j in others if j + 1 < size]
        rows["first_token"].append(P[i, 0])
        rows["self"].append(P[i, i])
        rows["separator"].append(sum(P[i, j] for j in range(size) if tokens[j] == "[SEP]"))
        rows["entropy"].append(-sum(p * math.log(p) for p in P[i] if p > 0))
        rows["mean_distance"].append(sum(P[i, j] * abs(i - j) for j in range(size)))
        keys_of = {"previous_token": [i - 1], "next_token": [i + 1], "duplicate_token": others, "induction": after}
        for name, keys in keys_of.items():
            if keys and all(0 <= j < size for j in keys):
                rows[name].append(sum(P[i, j] for j in keys))
    return {name: float(sum(values) / len(values)) if values else math.nan for name, values in rows.items()}


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize("words", ["a b c [SEP] a b d a [SEP]", "a a a b", "x y z"])
def test_each_score_equals_a_loop(kind, words):
    made = recording(words, kind)
    layer = made.layers[0]
    actual = head_scores(made)
    for head in range(3):
        assert {name: actual[name][head] for name in HEAD_SCORES} == pytest.approx(
            by_hand(layer.weights.dense()[0, head], layer.key_tokens, kind), abs=1e-6, nan_ok=True
        )


def test_several_texts_are_one_mean_over_all_rows():
    texts = [recording("a b a b a", seed=1), recording("c d e c d f g", seed=2)]
    actual = head_scores(texts)
    for name, rows in (("self", (5, 7)), ("duplicate_token", (3, 2)), ("previous_token", (4, 6))):
        parts = [head_scores(text)[name] for text in texts]
        mean = [(a * rows[0] + b * rows[1]) / sum(rows) for a, b in zip(*parts, strict=True)]
        assert actual[name] == pytest.approx(mean, abs=1e-6)


def test_padding_is_ignored():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 2, 9, 4)
    tokens = list("abcabxbca")
    alone, padded = HeadScoreAccumulator(["x"]), HeadScoreAccumulator(["x"])
    alone.add("a", "encoder", regard.weights(query, key), [tokens])
    for before, after in ((3, 0), (0, 3), (2, 2)):
        padded = HeadScoreAccumulator(["x"])
        rows, keys = (torch.nn.functional.pad(part, (0, 0, before, after), value=9.0) for part in (query, key))
        real = torch.nn.functional.pad(torch.ones(1, 9, dtype=torch.bool), (before, after))
        more = ["a"] * before + tokens + ["a"] * after
        request = regard.weights(rows, keys, mask=regard.Padding(real)).request
        padded.add("a", "encoder", regard.WeightMatrix(request, real), [more])
        actual, expected = alone.means(), padded.means()
        assert all(actual[name] == pytest.approx(expected[name], abs=1e-6) for name in HEAD_SCORES), (before, after)


def test_scores_of_cross_attention():
    weights = regard.weights(torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4))
    cross = Recording("", "", (Layer("c", "cross", weights, tuple("abc"), ("a", "b", "a", "b", "</s>")),))
    actual = head_scores(cross)
    available = {name for name in HEAD_SCORES if not math.isnan(actual[name][0])}
    assert available == {"first_token", "separator", "entropy"}
    spectral = head_scores(cross, spectral=True)
    assert {name for name in SPECTRAL_SCORES if not math.isnan(spectral[name][0])} == {"effective_rank"}
    assert actual["separator"] == pytest.approx(weights.dense()[0, ..., 4].mean(1).tolist(), abs=1e-6)


def test_an_induction_head_is_found_on_tokens_that_come_twice():
    """A head built by hand: it attends to the token after the last occurrence of the current one."""
    tokens = [f"t{number}" for number in torch.randperm(50).tolist()] * 2
    scores = torch.full((100, 100), -20.0)
    for i in range(100):
        scores[i, i - 49 if i >= 50 else i] = 20.0
    weights = regard.weights(scores[None, None], torch.eye(100)[None, None], scale=1.0)
    actual = head_scores(Recording("", "", (Layer("a", "decoder", weights, tuple(tokens), tuple(tokens)),)))
    assert actual["induction"] == pytest.approx([1.0], abs=1e-5)
    assert actual["duplicate_token"] == pytest.approx([0.0], abs=1e-5)


def test_repeated_tokens_replace_the_scores_of_repetition():
    text, repeated = recording("x y z x"), recording("a b a b", seed=1)
    scores, alone = head_scores(text, repeated_tokens=repeated), head_scores(repeated)
    for name in ("duplicate_token", "induction"):
        assert scores[name] == alone[name] != head_scores(text)[name]
    assert scores["entropy"] == head_scores(text)["entropy"]


def test_spectral_scores_are_means_over_sequences():
    texts = [recording("a b a b a", seed=1), recording("c d e c d f g", seed=2)]
    scores = head_scores(texts, spectral=True)
    assert list(scores) == ["layer", "kind", "head", *HEAD_SCORES, *SPECTRAL_SCORES]
    dense = [text.layers[0].weights.dense()[0].double() for text in texts]
    values = [torch.linalg.svdvals(P) for P in dense]
    ranks = [torch.special.entr(s / s.sum(-1, keepdim=True)).sum(-1).exp() for s in values]
    assert scores["effective_rank"] == pytest.approx(torch.stack(ranks).mean(0).tolist(), abs=1e-5)
    asymmetry = [((P - P.mT) / 2).norm(dim=(1, 2)) / P.norm(dim=(1, 2)) for P in dense]
    for text, expected in zip(texts, asymmetry, strict=True):
        alone = head_scores(text, spectral=True)
        parts = (torch.tensor(alone[name]) for name in ("hodge_gradient", "hodge_curl"))
        torch.testing.assert_close(torch.hypot(*parts).double(), expected, atol=1e-5, rtol=0)
    assert as_score_tensors(scores)["hodge_curl"].shape == (1, 3)
    strongest = rank_heads(scores, "effective_rank")[0]
    assert scores["effective_rank"][strongest] == max(scores["effective_rank"])


def test_heads_are_ranked_by_a_score():
    scores = {"entropy": [0.5, math.nan, 2.0, 1.0]}
    assert rank_heads(scores, "entropy") == [2, 3, 0]


def test_what_is_not_a_recording_is_refused():
    with pytest.raises(InvalidType, match="expected a Recording or several, got Tensor"):
        head_scores(torch.ones(2))  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgument, match="recordings: expected at least one"):
        head_scores([])
    with pytest.raises(InvalidArgument, match=r"tokens: expected 1 x 3 .* for a, got 1 x 2"):
        HeadScoreAccumulator().add("a", "encoder", recording("a b c", "encoder").layers[0].weights, [["a", "b"]])


def test_recordings_of_different_models_are_refused():
    one, other = (recording("a b").replace(model_name=name) for name in ("bert", "gpt2"))
    with pytest.raises(InvalidArgument, match="recordings: expected those of one model, got bert, gpt2"):
        head_scores([one, other])


def test_scores_as_tensors():
    scores = head_scores([recording("a [SEP] b", heads=2), recording("c [SEP] d", heads=2, seed=1)])
    tensors = as_score_tensors(scores)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == dict.fromkeys(HEAD_SCORES, (1, 2))
    for name, tensor in tensors.items():
        assert tensor.flatten().tolist() == pytest.approx(scores[name], nan_ok=True)


def test_separators_of_a_tokenizer_end_or_separate_texts():
    bert = transformers_models.tokenizer()
    words = ["[CLS]", "the", "cat", "[SEP]", "a", "dog", "[SEP]"]
    text, ids = recording(" ".join(words)), [bert.convert_tokens_to_ids(words)]
    expected = text.layers[0].weights.dense()[0, ..., [3, 6]].sum(-1).mean(1).tolist()
    named, by_id = head_scores(text, tokenizer=bert), head_scores(text, tokens=ids, tokenizer=bert)
    for scores in (head_scores(text), named, by_id, head_scores(text, tokens=ids, separator_tokens=[2])):
        assert scores["separator"] == pytest.approx(expected, abs=1e-6)
    assert math.isnan(head_scores(text, tokens=ids)["separator"][0])
    with pytest.raises(InvalidType, match="separator_tokens: expected a list of tokens, got 3"):
        head_scores(text, tokenizer=bert, separator_tokens=3)  # pyright: ignore[reportArgumentType]


def test_a_separator_of_a_tokenizer_has_any_name():
    tokenizer = transformers_models.tokenizer()
    tokenizer.sep_token = "dog"
    text = recording("the cat dog a")
    expected = text.layers[0].weights.dense()[0, ..., 2].mean(1).tolist()
    assert head_scores(text, tokenizer=tokenizer)["separator"] == pytest.approx(expected, abs=1e-6)
