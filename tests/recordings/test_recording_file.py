"""Recordings of user-defined masks, scores and measures, and of parts of a matrix that `at` selected."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import regard
from helpers.forked import run_code
from helpers.ops.cases import SCORES, masks
from helpers.recordings import changed, recorded, rules, same
from regard.errors import InvalidArgument, InvalidFile
from regard.ops.masks import Mask
from regard.ops.measures import Block, Measure
from regard.ops.rules import class_id
from regard.ops.scores import Bias, ScaledDotProduct, Score, Sinks
from regard.ops.tile import Tile
from regard.recordings import Layer, Recording

SHAPE = BATCH, HEADS, QUERIES, KEYS = 2, 4, 9, 12
PART = {"batch": 1, "heads": [3, 0], "queries": [7, 2, 4]}


class Striped(Mask):
    """Every second key, from another one in each head."""

    start: Tensor
    every: int = 2

    def allowed(self, tile: Tile) -> Tensor:
        return (tile.kv_idx + tile.q_pos + self.start[tile.heads][:, None, None]) % self.every == 0


class Faded(Score):
    """Another score, less with each key, by a rate for each batch entry and head."""

    score: Score
    rates: Tensor

    def __call__(self, query: Tensor, key: Tensor, scale: float, tile: Tile) -> Tensor:
        rates = tile.slice_rows(self.rates[:, :, None])[..., None]
        return self.score(query, key, scale, tile) - rates * tile.kv_idx

    def default_scale(self, head_dim: int) -> float | None:
        return self.score.default_scale(head_dim)


class Extremes(NamedTuple):
    largest: Tensor
    smallest: Tensor


class Range(Measure):
    """The largest and the smallest weight of each row, times a factor."""

    factor: float = 1.0
    result_type = Extremes

    def compute(self, block: Block) -> Extremes:
        return Extremes(block.weights.amax(-1) * self.factor, block.weights.amin(-1) * self.factor)


class Renamed(Mask):
    """A mask whose attribute is not named like its argument."""

    def __init__(self, every: int) -> None:
        self.stride = every

    def allowed(self, tile: Tile) -> Tensor:
        return tile.kv_idx % self.stride == 0


def matrix(batch=BATCH, **rules):
    torch.manual_seed(0)
    return regard.weights(torch.randn(batch, HEADS, QUERIES, 8), torch.randn(batch, 2, KEYS, 8), offset=1, **rules)


@pytest.fixture
def own(tmp_path):
    """A recording of user-defined rules, and the file that it was saved to."""
    score = Faded(ScaledDotProduct(), torch.rand(1, HEADS))
    W = matrix(1, mask=regard.Causal() | Striped(torch.arange(HEADS), every=3), score=score)
    made = recorded(W, **W.measure(Range(2.0)), by=Range(2.0))
    made.save(tmp_path / "own.regard")
    return made, tmp_path / "own.regard"


def test_user_defined_rules_are_saved_and_loaded(own):
    made, path = own
    loaded = regard.load(path)
    same(loaded, made)
    request, measured = loaded.layers[0].weights.request, loaded.layers[0].measured
    assert isinstance(request.mask.right, Striped)
    assert request.mask.right.every == 3
    assert type(request.score) is Faded
    assert isinstance(measured["range"], Extremes)
    for actual, expected in zip(measured["range"], made.layers[0].measured["range"], strict=True):
        assert torch.equal(actual, expected)
    assert type(measured["by"]) is Range
    assert measured["by"].factor == 2.0


def test_classes_that_the_process_does_not_define_are_named(own, tmp_path):
    _, path = own
    error = run_code(f"import regard; regard.load({str(path)!r})", folder=tmp_path).err
    assert "InvalidFile: 3 problems:" in error  # the measure's class is in the file twice
    for cls in (Striped, Faded, Range):
        name = class_id(cls)
        assert f"{path}: unknown class {name}; import the module that defines it before reading the file" in error


def test_an_unknown_class_is_an_error(own):
    changed(own[1], lambda about: rules(about).update(score={"rule": "os.system", "arguments": {"dict": {}}}))
    with pytest.raises(InvalidFile, match=r"own\.regard: unknown class os\.system; import the module that defines it"):
        regard.load(own[1])


def test_a_rule_must_hold_the_arguments_of_its_constructor(tmp_path):
    with pytest.raises(InvalidArgument, match=r"cannot save Renamed: .* got no every"):
        recorded(matrix(1, mask=Renamed(2))).save(tmp_path / "a.regard")
    assert not list(tmp_path.iterdir())


def saved_part(tmp_path, W, **part):
    selected = W.at(**part)
    layer = Layer("a", "cross", selected, *(tuple(map(str, range(size))) for size in selected.shape[2:]))
    Recording("", "", (layer,)).save(tmp_path / "a.regard")
    loaded = regard.load(tmp_path / "a.regard").layers[0].weights
    torch.testing.assert_close(loaded.dense(), selected.dense())  # by another kernel, if the mask was a function
    torch.testing.assert_close(loaded.lse(), selected.lse())
    torch.testing.assert_close(loaded.dense(), W.dense()[1:, part["heads"]][:, :, part["queries"]], atol=1e-6, rtol=0)
    return loaded


@pytest.mark.parametrize("name", masks(*SHAPE))
def test_a_part_has_its_own_mask(name, tmp_path):
    saved_part(tmp_path, matrix(mask=masks(*SHAPE)[name]), **PART)


@pytest.mark.parametrize("name", [name for name in SCORES if name != "function"])
def test_a_part_has_its_own_score(name, tmp_path):
    case = SCORES[name]
    rule = case.rule({name: each.float() for name, each in case.tensors(HEADS, QUERIES, KEYS, 8).items()})
    saved_part(tmp_path, matrix(score=rule, mask=regard.Causal()), **PART)


def test_a_score_that_is_a_function_is_not_saved(tmp_path):
    W = matrix(score=lambda score, b, h, i, j: score - j)
    with pytest.raises(InvalidArgument, match=r"cannot save function .*: a file holds data, not code"):
        Recording("", "", (Layer("a", "cross", W.at(batch=[0]), None, None),)).save(tmp_path / "a.regard")


def test_a_part_of_a_part_that_differs_by_head_and_batch(tmp_path):
    score = Faded(Sinks(ScaledDotProduct(), torch.randn(HEADS)), torch.rand(BATCH, HEADS)) + Bias(torch.randn(SHAPE))
    mask = Striped(torch.arange(HEADS)) | (torch.rand(SHAPE) < 0.5)
    W = matrix(mask=mask, score=score)
    loaded = saved_part(tmp_path, W, batch=[1], heads=[2, 2, 0], queries=[8, 1])
    again = Layer("a", "cross", loaded.at(heads=[2, 0], queries=[1]), ("q",), tuple(map(str, range(KEYS))))
    Recording("", "", (again,)).save(tmp_path / "b.regard")
    part = regard.load(tmp_path / "b.regard").layers[0].weights
    assert torch.equal(part.dense()[0, 0, 0], W[1, 0, 1])
    assert torch.equal(part.dense()[0, 1, 0], W[1, 2, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": None}, "heads: expected all 4 entries or their indices, got 2 without indices"),
        ({"rows": {"tensor": "0"}}, "rows: expected an integer tensor, got float32"),
        ({"full_shape": [2, 3, QUERIES, KEYS]}, "heads: expected indices from 0 to 2, got 3"),
        ({"full_shape": [2, 5, QUERIES, KEYS]}, r"Alibi\.slopes: .*5"),
        ({"full_shape": [2, 4, QUERIES, 13]}, r"full_shape: expected \(batch, heads, queries, 12\), got"),
        ({"full_shape": [2, 4]}, r"full_shape: expected \(batch, heads, queries, 12\), got"),
        ({"full_shape": None}, "expected a recording, got a damaged file or one of another kind$"),
        ({"mask": {"tensor": "0"}}, "mask: expected a bool tensor, True where a query may attend, got float32"),
        ({"score": {"rule": "Causal", "arguments": {"dict": {}}}}, "score: expected a name or a Score, got Causal"),
        ({"other": None}, "expected a recording, got a damaged file or one of another kind$"),
    ],
)
def test_a_part_that_does_not_fit_is_an_error(change, message, tmp_path):
    W = matrix(score=ScaledDotProduct() + regard.Alibi.for_heads(HEADS), mask=regard.Causal()).at(**PART)
    names = (tuple(map(str, range(size))) for size in W.shape[2:])
    Recording("", "", (Layer("a", "cross", W, *names),)).save(tmp_path / "a.regard")
    changed(tmp_path / "a.regard", lambda about: rules(about).update(change))
    with pytest.raises(InvalidFile, match=message):
        regard.load(tmp_path / "a.regard")


@pytest.mark.parametrize("how", ["truncated", "overwritten", "replaced", "removed"])
def test_a_file_that_changes_while_it_is_open_does_not_reach_the_reader(how, tmp_path):
    """In a process of its own, which would be killed by reading a mapped file beyond its new end."""
    W = regard.weights(torch.randn(1, 2, 3000, 64), torch.randn(1, 2, 3000, 64))
    names = tuple(map(str, range(3000)))
    Recording("one", "a model", (Layer("encoder.0", "encoder", W, names, names),)).save(tmp_path / "a.regard")
    program = f"""
import regard, shutil, torch
from pathlib import Path
path = Path({str(tmp_path)!r}) / "a.regard"
recording = regard.load(path)
before = recording.layers[0].weights[0, 1, 2999].clone()
if {how!r} == "truncated":
    with open(path, "r+b") as file:
        file.truncate(100)
elif {how!r} == "overwritten":
    with open(path, "r+b") as file:
        file.write(bytes(path.stat().st_size))
elif {how!r} == "replaced":
    path.with_suffix(".new").write_bytes(b"x")
    path.with_suffix(".new").replace(path)
else:
    path.unlink()
assert torch.equal(recording.layers[0].weights[0, 1, 2999], before)
try:
    regard.load(path)
except regard.errors.InvalidFile:
    print("unchanged")
"""
    done = run_code(program, folder=tmp_path)
    assert (done.code, done.out) == (0, "unchanged\n"), done.err


def test_values_are_written_in_the_dtype_too(tmp_path):
    layer = Layer(
        "encoder.0", "encoder", matrix(1), *(tuple(map(str, range(n))) for n in (9, 12)), value=torch.randn(1, 2, 12, 8)
    )
    Recording("", "m", (layer,)).save(tmp_path / "a.regard", dtype=torch.float16)
    loaded = regard.load(tmp_path / "a.regard").layers[0]
    assert {loaded.value.dtype, loaded.weights.request.query.dtype} == {torch.float16}
