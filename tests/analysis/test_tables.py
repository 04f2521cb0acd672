"""Numbers as tables, and tables as files and figures."""

from __future__ import annotations

import csv
from typing import NamedTuple

import numpy as np
import pytest
import torch
from matplotlib import pyplot
from pyarrow import parquet

import regard
from regard.analysis import edge_table, head_scores, plot_head_scores, plot_weights, row_table, save_table
from regard.errors import InvalidArgument, InvalidType
from regard.ops.measures import Measure
from regard.recordings import Layer, Recording


@pytest.fixture(scope="module")
def made() -> Recording:
    torch.manual_seed(0)
    tokens = ("▁a", '▁"b', "▁,c", "▁$d$", "é☃")
    query, key = torch.randn(2, 1, 2, 5, 4)
    weights = regard.weights(query, key, mask=regard.Causal())
    return Recording(
        "",
        "",
        (
            Layer("first", "decoder", weights, tokens, tokens),
            Layer("second", "encoder", regard.weights(query, key), tokens, tokens),
        ),
    )


def test_edges_are_the_strongest_weights(made):
    actual = edge_table(made, k=3)
    rows = list(zip(*actual.values(), strict=True))
    assert len(rows) == 2 * (1 + 2 + 3 + 3 + 3) + 2 * 15  # a causal row sees no more
    for layer, kind, head, query, key, query_token, key_token, weight in rows:
        held = made.layers[layer]
        assert (kind, query_token, key_token) == (held.kind, held.query_tokens[query], held.key_tokens[key])
        assert weight == pytest.approx(held.weights[0, head, query, key].item(), abs=1e-6)
    best = {(row[0], row[2], row[3]): row[4] for row in reversed(rows)}
    assert all(best[name, h, q] == int(made.layers[name].weights[0, h, q].argmax()) for name, h, q in best)


def test_rows_have_their_measures(made):
    actual = row_table(made, ["entropy", "max", regard.DistanceHistogram(1)])
    distances = [f"distance_histogram_{number}" for number in range(3)]
    assert list(actual)[5:] == ["entropy", "max_weight", "max_score", *distances]
    assert len({len(column) for column in actual.values()}) == 1
    at = [(a, b, c) for a, b, c in zip(actual["layer"], actual["head"], actual["query"], strict=True)].index(
        ("second", 1, 3)
    )
    weights = made.layers["second"].weights
    assert actual["token"][at] == "▁$d$"
    assert actual["entropy"][at] == pytest.approx(weights.entropy()[0, 1, 3].item(), abs=1e-6)
    assert actual["distance_histogram_1"][at] == pytest.approx(weights[0, 1, 3, 3].item(), abs=1e-6)
    with pytest.raises(InvalidArgument, match="'received' is not of queries"):
        row_table(made, "received")


class Parts(NamedTuple):
    most: torch.Tensor
    all: torch.Tensor


class Both(Measure):
    """The largest weight of a row, and the sum of its weights."""

    axis = "queries"

    def compute(self, block):
        return Parts(block.weights.amax(-1), block.weights.sum(-1))


def test_a_measure_with_several_parts_has_a_column_of_each(made):
    actual = row_table(made, {"both": Both()})
    assert list(actual)[5:] == ["both_most", "both_all"]
    assert len({len(column) for column in actual.values()}) == 1
    assert actual["both_all"] == pytest.approx([1.0] * 20)


def test_files_equal_the_table(made, tmp_path):
    table = edge_table(made, k=2)
    for ending in ("csv", "parquet"):
        save_table(table, tmp_path / f"edges.{ending}")
    with (tmp_path / "edges.csv").open(encoding="utf-8", newline="") as file:
        read = list(csv.DictReader(file))
    assert [row["key_token"] for row in read] == table["key_token"]
    assert [float(row["weight"]) for row in read] == table["weight"]
    save_table({"a": torch.arange(3), "b": np.ones(3)}, tmp_path / "arrays.csv")
    assert (tmp_path / "arrays.csv").read_text() == "a,b\n0,1.0\n1,1.0\n2,1.0\n"
    assert parquet.read_table(tmp_path / "edges.parquet").to_pydict() == table


def test_other_files_and_uneven_columns_are_refused(tmp_path):
    with pytest.raises(InvalidArgument, match=r"expected \*\.csv or \*\.parquet, got 'a\.xlsx'"):
        save_table({"a": [1]}, tmp_path / "a.xlsx")
    with pytest.raises(InvalidArgument, match="equal lengths, got 1, 2"):
        save_table({"a": [1], "b": [1, 2]}, tmp_path / "a.csv")
    with pytest.raises(InvalidType, match="columns: expected a dict of lists"):
        save_table([("a", 1)], tmp_path / "a.csv")
    assert not list(tmp_path.iterdir())


def test_figures_show_the_numbers(made, tmp_path):
    scores = head_scores(made)
    figure = plot_head_scores(scores, ["self", "entropy", "mean_distance"])
    panels = [axis for axis in figure.axes if axis.images]
    assert [panel.get_title() for panel in panels] == ["self", "entropy (nats)", "mean distance (tokens)"]
    assert panels[0].images[0].get_array().tolist() == np.array(scores["self"]).reshape(2, 2).tolist()
    maps = plot_weights(made.layers["first"], [1])
    (panel,) = [axis for axis in maps.axes if axis.images]
    assert np.allclose(panel.images[0].get_array(), made.layers["first"].weights[0, 1].numpy())
    assert [label.get_text() for label in panel.get_xticklabels()][3] == r"▁\$d\$"
    for name, drawn in (("heads.png", figure), ("layer.svg", maps)):
        drawn.savefig(tmp_path / name)
    long = Layer("long", "encoder", regard.weights(*torch.randn(2, 1, 1, 2100, 4)), ("x",) * 2100, ("x",) * 2100)
    (panel,) = [axis for axis in plot_weights(long).axes if axis.images]
    assert panel.images[0].get_array().shape == (700, 700)
    for wrong, error in (
        (lambda: plot_head_scores(scores, ["slef"]), "did you mean 'self'"),
        (lambda: plot_weights(made.layers["first"], [2]), "has the heads 0, 1, got 2"),
    ):
        with pytest.raises(InvalidArgument, match=error):
            wrong()
    for other, error in (
        (lambda: plot_head_scores([1]), "scores: expected what `head_scores` returns, got list"),
        (lambda: plot_head_scores({"layer": []}), "got dict without 'head'"),
        (lambda: plot_weights(made), "layer: expected a Layer of a recording, got Recording"),
    ):
        with pytest.raises(InvalidType, match=error):
            other()


def test_a_head_is_drawn_into_a_figure_of_a_paper(made, tmp_path):
    layer = made.layers["first"]
    special = Layer("s", "encoder", layer.weights, ("[CLS]", "a", "b", "c", "[SEP]"), ("[CLS]", "a", "b", "c", "[SEP]"))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(6, 3))
    assert plot_weights(special, [1], ax=right, cmap="magma", special_tokens=False, scale="linear") is figure
    assert not left.images
    (image,) = right.images
    assert np.allclose(image.get_array(), layer.weights.numpy()[0, 1, 1:4, 1:4])
    assert (image.get_cmap().name, image.norm.gamma, image.norm.vmax) == ("magma", 1, 1)
    assert (right.get_xlabel(), right.get_ylabel(), right.get_title()) == ("key", "query", "s, head 1")
    assert [label.get_text() for label in right.get_xticklabels()] == ["a", "b", "c"]
    pyplot.close(figure)
    own = plot_weights(special, figsize=(7, 2.5))
    assert tuple(own.get_size_inches()) == (7, 2.5)
    assert own.axes[0].images[0].norm.gamma == 0.5
    for name, start in (("a.pdf", b"%PDF"), ("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        own.savefig(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    only = Layer("s", "encoder", layer.weights, ("[CLS]",) * 5, ("[CLS]",) * 5)
    for call, error in (
        (lambda: plot_weights(special, ax=left), r"ax: expected one of the heads, as in heads=\[0\], got 2"),
        (lambda: plot_weights(special, [0], ax=left, figsize=(1, 1)), "figsize: expected None with ax"),
        (lambda: plot_weights(special, scale="log"), "scale: expected one of sqrt, linear, got 'log'"),
        (
            lambda: plot_weights(only, special_tokens=False),
            "special_tokens: expected True, got False, but there are no",
        ),
    ):
        with pytest.raises(InvalidArgument, match=error):
            call()


def test_edges_by_key_are_the_strongest_queries(made):
    table = edge_table(made, 2, by="key")
    for layer in made.layers:
        dense = layer.weights.dense()[0]
        for head in range(dense.shape[0]):
            rows = [n for n in range(len(table["head"])) if (table["layer"][n], table["head"][n]) == (layer.name, head)]
            for key in range(dense.shape[2]):
                actual = sorted((table["weight"][n] for n in rows if table["key"][n] == key), reverse=True)
                expected = dense[head, :, key].topk(min(2, dense.shape[1])).values
                assert actual == pytest.approx([each for each in expected.tolist() if each > 0])
    with pytest.raises(InvalidArgument, match="by: expected one of query, key, got 'row'"):
        edge_table(made, by="row")


def test_a_batch_is_refused():
    batch = Recording("", "", [Layer("a", "encoder", regard.weights(*torch.randn(2, 2, 1, 3, 4)))])
    for show in (edge_table, row_table, lambda recording: plot_weights(recording.layers[0])):
        with pytest.raises(InvalidArgument, match="expected one sequence, got a batch of 2"):
            show(batch)


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "\nx"]


def test_formulas_are_escaped_if_the_caller_wants_it_and_numbers_never(tmp_path):
    path, columns = tmp_path / "a.csv", {"=name": [*FORMULAS, "a=b", ""], "number": [-1, -0.5, 1, 2, 3, 4, 5, 6, 7]}
    for options, mark in (({}, ""), ({"escape_formulas": False}, ""), ({"escape_formulas": True}, "'")):
        save_table(columns, path, **options)
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        assert header == [f"{mark}=name", "number"]
        assert [row[0] for row in rows] == [*(mark + cell for cell in FORMULAS), "a=b", ""]
        assert [float(row[1]) for row in rows] == columns["number"]
