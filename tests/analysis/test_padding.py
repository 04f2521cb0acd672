"""Every analysis of a padded text is that of the text alone."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from helpers.pairwise import sampled
from regard import analysis
from regard.analysis import plots
from regard.analysis.padding import valid_keys, valid_queries
from regard.explore import opening
from regard.explore.opening import opening_head, opening_token
from regard.recordings import Layer, Recording

transformers = pytest.importorskip("transformers")

SOURCE = ("▁The", "▁c", "at", "▁the", "▁c", "at", "▁sleeps", "</s>")
TARGET = ("▁Die", "▁Kat", "ze", "▁die", "▁Kat", "ze", "</s>")
PADDING = 3
SIDES = ("left", "right")


@dataclass
class Text:
    """A recording of a text, and how many tokens of padding precede its source and its target."""

    recording: Recording
    source: int = 0
    target: int = 0

    def axes(self, layer):
        """The tokens of the text among the queries and the keys of a layer."""
        source, target = slice(self.source, self.source + len(SOURCE)), slice(self.target, self.target + len(TARGET))
        has_target = bool(self.recording.layers.cross)
        queries = source if layer.kind == "encoder" or not has_target else target
        return queries, target if layer.kind == "decoder" and has_target else source

    @property
    def own_layers(self):
        return [layer for layer in self.recording.layers if layer.kind != "cross"]


def _pad(names, side):
    padding = ["▁padding"] * PADDING
    return [*padding, *names] if side == "left" else [*names, *padding]


def _inputs(names, side):
    """Ids, mask and positions of a batch: another text of the padded length, and this text."""
    length = len(names) + PADDING
    words = list(dict.fromkeys((*SOURCE, *TARGET)))
    ids, positions = (
        [3 + words.index(name) for name in names],
        slice(PADDING, None) if side == "left" else slice(len(names)),
    )
    batch = torch.arange(20, 20 + length).repeat(2, 1)
    batch[1], mask = 0, torch.ones(2, length, dtype=torch.int64)
    batch[1, positions], mask[1] = torch.tensor(ids), 0
    mask[1, positions] = 1
    return batch, mask, (mask.cumsum(1) - 1).clamp(min=0), batch[1:, positions]


SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@cache
def _model(name):
    torch.manual_seed(0)
    if name == "bert":
        return transformers.BertModel(transformers.BertConfig(**SIZES)).eval()
    if name == "llama":
        return transformers.LlamaModel(transformers.LlamaConfig(**SIZES)).eval()
    if name == "t5":
        sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        return transformers.T5Model(transformers.T5Config(**sizes, pad_token_id=0)).eval()
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def _self_attention(name, side):
    ids, mask, positions, alone = _inputs(SOURCE, side)
    model, texts = _model(name), []
    for batch, own_mask, own_positions in ((ids, mask, positions), (alone, None, None)):
        with regard.watch(model, keep_values=True) as result, torch.no_grad():
            if name == "torch":
                embedded = torch.eye(40)[batch] @ torch.randn(40, 16, generator=torch.Generator().manual_seed(0))
                model(embedded, src_key_padding_mask=None if own_mask is None else own_mask == 0)
            else:
                model(batch, attention_mask=own_mask, position_ids=own_positions)
        names = SOURCE if own_mask is None else _pad(SOURCE, side)
        recording = result.recording.select(len(batch) - 1, tokens=names)
        texts.append(Text(recording, PADDING if own_mask is not None and side == "left" else 0))
    return texts


def _encoder_decoder(source_side, target_side):
    source, source_mask, _, source_alone = _inputs(SOURCE, source_side)
    target, target_mask, _, target_alone = _inputs(TARGET, target_side)
    model = _model("t5")
    with regard.watch(model) as padded, torch.no_grad():
        model(source, source_mask, decoder_input_ids=target, decoder_attention_mask=target_mask)
    with regard.watch(model) as alone, torch.no_grad():
        model(source_alone, decoder_input_ids=target_alone)
    names = {"tokens": _pad(SOURCE, source_side), "target_tokens": _pad(TARGET, target_side)}
    shifts = [PADDING if side == "left" else 0 for side in (source_side, target_side)]
    recording = padded.recording.select(1, **names)
    return Text(recording, *shifts), Text(alone.recording.select(tokens=SOURCE, target_tokens=TARGET))


def _regard_translator():
    torch.manual_seed(0)
    config = regard.models.TransformerConfig(
        40, d_model=16, num_heads=2, num_encoder_layers=2, num_decoder_layers=2, d_ff=32
    )
    model = regard.models.Transformer(config).eval()
    source, mask, _, source_alone = _inputs(SOURCE, "right")
    target_alone = _inputs(TARGET, "right")[3]
    with regard.watch(model) as padded, torch.no_grad():
        model(source, target_alone.expand(2, -1), mask.sum(1))
    with regard.watch(model) as alone, torch.no_grad():
        model(source_alone, target_alone)
    recording = padded.recording.select(1, tokens=_pad(SOURCE, "right"), target_tokens=TARGET)
    return Text(recording), Text(alone.recording.select(tokens=SOURCE, target_tokens=TARGET))


class Plain(nn.Module):
    """Self-attention by torch's function, with a mask of keys."""

    def forward(self, x, mask=None):
        return functional.scaled_dot_product_attention(x, x, x, mask)


def _plain_call(side):
    ids, mask, _, alone = _inputs(SOURCE, side)
    table = torch.randn(40, 2, 8, generator=torch.Generator().manual_seed(0))
    model = Plain()
    with regard.watch(model) as padded:
        model(table[ids].transpose(1, 2), mask[:, None, None].bool())
    with regard.watch(model) as one:
        model(table[alone].transpose(1, 2))
    padded = padded.recording.select(1, tokens=_pad(SOURCE, side))
    return Text(padded, PADDING if side == "left" else 0), Text(one.recording.select(tokens=SOURCE))


CASES = {
    **{(name, side): (_self_attention, name, side) for name in ("bert", "llama", "torch") for side in SIDES},
    **{("t5", source, target): (_encoder_decoder, source, target) for source in SIDES for target in SIDES},
    **{("plain call", side): (_plain_call, side) for side in SIDES},
    ("translator", "right"): (_regard_translator,),
}


@cache
def _texts(case):
    make, *arguments = CASES[case]
    return make(*arguments)


def _matrices(compute, text):
    """A result (batch, heads, tokens, ...) or (batch, tokens, tokens) of each layer of self-attention, of the text."""
    return [compute(layer, text.axes(layer)[0]) for layer in text.own_layers]


def _table(columns, text):
    """The rows of a table of queries and keys, in any order, by positions in the text."""
    kinds = {layer.name: text.axes(layer) for layer in text.recording.layers}
    rows = {}
    for number, name in enumerate(columns["layer"]):
        row = {key: values[number] for key, values in columns.items()}
        if row["kind"] == "cross":
            row.pop("mean_distance", None)  # of positions in two texts, which are those of the matrix
        cell = [name, row["head"], row["query"] - kinds[name][0].start]
        if "key" in row:
            cell.append(row["key"] - kinds[name][1].start)
        rows[tuple(cell)] = [value for key, value in sorted(row.items()) if key not in ("query", "key")]
    assert len(rows) == len(columns["layer"])
    return rows


def _graph(text):
    results = []
    for layer in text.own_layers:
        start = text.axes(layer)[0].start
        graph = analysis.to_networkx(layer.weights.at(heads=1), 0.05, layer.query_tokens)
        nodes = {node - start: [data["token"], data["dropped_mass"]] for node, data in graph.nodes(data=True)}
        results.append((nodes, {(one - start, two - start): w for one, two, w in graph.edges(data="weight")}))
    return results


def _sparse(text):
    results = []
    for layer in text.recording.layers:
        rows, keys = text.axes(layer)
        sparse = analysis.to_csr(layer.weights.at(heads=0), 0.05)
        dense, dropped = torch.tensor(sparse.matrix.toarray()), sparse.dropped_mass
        if layer.weights.valid_queries is not None:  # it cannot know what a matrix of a mask of keys is
            inside = torch.zeros_like(dense, dtype=torch.bool)
            inside[rows, keys] = True
            assert not dense[~inside].any()
            assert not dropped[~inside.any(1)].any()
        results.append((dense[rows, keys], dropped[rows]))
    return results


def _images(text):
    results = []
    for layer in text.recording.layers:
        panels = [axis for axis in analysis.plot_weights(layer).axes if axis.get_title()]
        ticks = [[[str(label.get_text()) for label in side] for side in _ticks(panel)] for panel in panels]
        results += [ticks, *(np.asarray(panel.images[0].get_array()) for panel in panels)]
    return results


def _ticks(panel):
    is_named = panel.get_xlabel() == "key"
    return (panel.get_xticklabels(), panel.get_yticklabels()) if is_named else ()


def _segments(text):
    recording = text.recording
    named = [{"cat": "The cat"}] if not recording.layers.cross else [{"cat": "The cat"}, {"Katze": "Die Katze"}]
    tables = [analysis.segment_attention(recording)]
    tables += [analysis.segment_attention(recording, segments) for segments in named]
    tables += [analysis.segment_attention(recording, queries="cat" if not recording.layers.cross else "Katze")]
    if not recording.layers.cross:
        start = text.source
        tables += [analysis.segment_attention(recording, {"all": range(start, start + 4)}, queries=[start + 5])]
    return tables


def _words(text):
    names = [None, *(layer.name for layer in text.recording.layers)]
    results = [analysis.word_weights(text.recording, name, merge=merge) for name in names for merge in (False, True)]
    return [(words.query_words, words.key_words, words.weights, words.columns()) for words in results]


def _alignments(text):
    if not text.recording.layers.cross:
        return []
    options = [(heads, merge) for heads in ("mean", "most_informative") for merge in (False, True)]
    results = [analysis.align(text.recording, heads, num_heads=2, merge_subwords=merge) for heads, merge in options]
    return [(each.target, each.source, each.weights, each.heads, each.pairs) for each in results]


def _layers_by_kind(text):
    recording = text.recording
    return [layers for kind in ("encoder", "decoder") if len(layers := recording.layers.by_kind(kind))]


def _rollouts(compute, text):
    results = []
    for layers in _layers_by_kind(text):
        positions = text.axes(layers[0])[0]
        full = compute(layers)
        outside = full.clone()
        outside[:, positions, positions] = 0
        assert not outside.any()
        results += [full[:, positions, positions], compute(layers, queries=[positions.start + 2])[:, :, positions]]
    return results


ANALYSES = {
    analysis.align: _alignments,
    analysis.mutual_information: lambda text: [analysis.mutual_information(layer) for layer in text.recording.layers],
    analysis.pagerank: lambda text: _matrices(
        lambda layer, tokens: analysis.pagerank(layer.weights)[:, :, tokens], text
    ),
    analysis.hodge: lambda text: _matrices(lambda layer, _: torch.stack(analysis.hodge(layer.weights)), text),
    analysis.to_csr: _sparse,
    analysis.to_networkx: _graph,
    analysis.head_scores: lambda text: analysis.head_scores(text.recording, spectral=True),
    analysis.plot_weights: _images,
    analysis.rollout: lambda text: [
        *_rollouts(analysis.rollout, text),
        *_rollouts(lambda layers, **options: analysis.rollout(layers, head_fusion="max", **options), text),
    ],
    analysis.flow: lambda text: _rollouts(analysis.flow, text),
    analysis.segment_attention: _segments,
    analysis.edge_table: lambda text: [
        _table(analysis.edge_table(text.recording, 3, by=by), text) for by in ("query", "key")
    ],
    analysis.row_table: lambda text: _table(analysis.row_table(text.recording), text),
    analysis.word_weights: _words,
    opening_head: lambda text: opening_head(text.recording),
    opening_token: lambda text: [opening_token(each, 0) - text.axes(each)[0].start for each in text.recording.layers],
}

OF_RESULTS = {analysis.as_score_tensors, analysis.rank_heads, analysis.plot_head_scores, analysis.save_table}
"""Functions that take the results of others."""
ELSEWHERE = {analysis.relevance, analysis.weighted_values}
"""The first needs gradients and is compared in test_relevance.py; the second is a matrix, as the weights are."""


def test_every_public_function_is_compared():
    public = [getattr(analysis, name) for name in analysis.__all__]
    public += [each for name, each in vars(opening).items() if name.startswith("opening_")]
    functions = {each for each in public if inspect.isfunction(each)}
    assert functions == {*ANALYSES, *OF_RESULTS, *ELSEWHERE}


def _assert_close(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), [other[key] for key in one]
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            _assert_close(*pair)
    elif isinstance(one, str):
        assert one == other
    elif isinstance(one, (float, torch.Tensor, np.ndarray)):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=2e-5, rtol=1e-3)
    else:
        assert one == other


@pytest.mark.parametrize(
    ("function", "case"),
    sampled([*product(ANALYSES, CASES)], 60),
    ids=lambda each: getattr(each, "__name__", None) or " ".join(each),
)
def test_padding_does_not_change_the_analyses(function, case):
    padded, alone = _texts(case)
    for one, other in zip(padded.recording.layers, alone.recording.layers, strict=True):  # the models agree
        torch.testing.assert_close(
            one.weights.dense()[(..., *padded.axes(one))], other.weights.dense(), atol=1e-5, rtol=0
        )
    _assert_close(ANALYSES[function](padded), ANALYSES[function](alone))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_plots_of_squares(case, monkeypatch):
    monkeypatch.setattr(plots, "MAX_PIXELS", 4)
    padded, alone = _texts(case)
    _assert_close(_images(padded), _images(alone))


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_which_tokens_are_padding(case):
    padded, _ = _texts(case)
    for layer in padded.recording.layers:
        for valid, positions in zip((valid_queries, valid_keys), padded.axes(layer), strict=True):
            actual = valid(layer.weights, is_self=layer.kind != "cross")[0]
            assert actual.nonzero().flatten().tolist() == [*range(len(actual))[positions]]


def test_a_recording_file_keeps_padding(tmp_path):
    padded, alone = _texts(("t5", "left", "right"))
    padded.recording.save(tmp_path / "padded.regard")
    loaded = Text(regard.load(tmp_path / "padded.regard"), padded.source, padded.target)
    for function in (analysis.mutual_information, analysis.head_scores, analysis.edge_table):
        _assert_close(ANALYSES[function](loaded), ANALYSES[function](alone))


def test_a_mask_that_hides_the_last_token_from_itself_is_not_padding():
    x = torch.randn(1, 2, 5, 4)
    weights = regard.weights(x, x, mask=regard.Window(None, -1))
    assert bool(valid_keys(weights, is_self=True).all())


def test_mutual_information_takes_one_sequence():
    layer = Layer("layer", "encoder", regard.weights(*torch.randn(2, 2, 1, 3, 4).unbind()))
    with pytest.raises(regard.errors.InvalidArgument, match="layer: expected one sequence, got a batch of 2"):
        analysis.mutual_information(layer)
