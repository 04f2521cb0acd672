"""The format of a page's data: its numbers, and docs/page_format.md, which names all that is written."""

from __future__ import annotations

import ast
import inspect
import json
import re
import zlib
from typing import Any, NotRequired, get_origin

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load
from typing_extensions import get_type_hints

import regard
from helpers.explore.page_cases import PRECISION, decimals, long_weights, one_layer, random_weights
from helpers.explore.page_reader import dequantize, integers, read_layer, read_page
from regard.explore import page_format
from regard.explore.html_page import static, to_html, write_html
from regard.explore.pack import pack
from regard.explore.page_format import (
    FORMAT_VERSION,
    MASKED_CODE,
    byte_planes,
    quantize,
    quantize_thumbnail,
    write_block,
)
from regard.ops import GradientMatrix
from regard.recordings.recording import Recording

HEADERS = ("PageHeader", "SequenceHeader", "LayerHeader", "SegmentHeader", "Opening", "Alignment")


def stored(weights: torch.Tensor) -> np.ndarray:
    return dequantize(quantize(weights).numpy())


# Codes.


def boundaries() -> torch.Tensor:
    """Float32 numbers around every number at which the third decimal changes, up to 1.01."""
    exact = np.float32((2 * np.arange(1010) + 1) / 2000)
    numbers = [exact]
    for direction in (0, 2):
        number = exact
        for _ in range(4):
            number = np.nextafter(number, np.float32(direction))
            numbers.append(number)
    return torch.from_numpy(np.concatenate(numbers))


SIXTEENTHS = torch.arange(17) / 16  # the only float32 numbers with a tie in the fourth decimal
RANDOM = torch.rand(100_000, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "weights",
    [boundaries(), SIXTEENTHS, RANDOM, RANDOM**4, 1 + 1e-3 * RANDOM, torch.arange(3001) / 3000],
    ids=["boundaries", "sixteenths", "random", "small", "above 1", "codes"],
)
def test_a_stored_weight_has_the_three_decimals_of_the_exact_one(weights):
    assert decimals(stored(weights)) == decimals(weights)
    assert decimals(stored(weights).astype(np.float32)) == decimals(weights)  # as the page reads it
    assert np.abs(stored(weights) - weights.double().numpy()).max() <= PRECISION + 1e-15


@given(st.floats(0, 1.0009765625, width=32))
def test_a_stored_weight_has_the_three_decimals_of_any_float(weight):
    assert decimals(stored(torch.tensor(weight))) == decimals(weight)
    assert abs(stored(torch.tensor(weight)) - weight) <= PRECISION + 1e-15


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=9))
def test_stored_weights_keep_their_order(weights):
    assert (np.diff(stored(torch.tensor(sorted(weights)))) >= 0).all()


def test_masked_cells_have_a_code_of_their_own_and_rounding_below_zero_is_zero():
    weights = torch.tensor([[0.25, 0.5], [0.75, 1.0]])
    codes = quantize(weights, torch.tensor([[True], [False]]))
    assert codes.tolist() == [[750, 1500], [MASKED_CODE, MASKED_CODE]]
    np.testing.assert_equal(dequantize(codes.numpy()), [[0.25, 0.5], [np.nan, np.nan]])
    assert quantize(torch.tensor([-1e-4, -0.0, 1e-9])).tolist() == [0, 0, 0]
    assert quantize(torch.tensor([2.0])).item() < MASKED_CODE


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_any_dtype_are_rounded_to_float32_first(dtype):
    weights = RANDOM[:1000].to(dtype)
    before = weights.clone()
    assert decimals(stored(weights)) == decimals(weights.float())
    assert torch.equal(weights, before)


def test_a_thumbnail_is_within_half_a_step_of_the_square_root():
    weights, allowed = RANDOM.reshape(1, 100, 1000), torch.ones(1, 100, 1000, dtype=torch.bool)
    allowed[0, 7] = False
    codes = quantize_thumbnail(weights, allowed)
    assert (codes.dtype, set(codes[0, 7])) == (np.uint8, {255})
    assert np.delete(codes, 7, 1).max() <= 254
    exact = weights[0, 8:].sqrt().numpy()
    assert np.abs(codes[0, 8:] / 254 - exact).max() <= 0.5 / 254 + 1e-6
    assert quantize_thumbnail(torch.tensor([[[1.001, -0.001]]]), torch.tensor([[[True]]])).tolist() == [[[254, 0]]]


@pytest.mark.parametrize(("width", "largest"), [(1, 2**8 - 1), (2, 2**16 - 1), (4, 2**32 - 1)])
def test_byte_planes_have_the_lowest_bytes_first(width, largest):
    numbers = np.array([[0, 1, largest // 3], [largest - 1, largest, 7]])
    planes = byte_planes(numbers, width)
    assert (planes.dtype, planes.shape) == (np.uint8, (width, 2, 3))
    np.testing.assert_array_equal(integers(planes, 2, 3), numbers)
    little_endian = planes.reshape(width, -1).T.copy().view(f"<u{width}").reshape(2, 3)
    np.testing.assert_array_equal(little_endian, numbers)


def test_a_block_is_a_deflated_safetensors_file():
    tensors = {"a": np.arange(6, dtype=np.uint8).reshape(2, 3).T, "b": np.float32([0.5])}
    again = load(zlib.decompress(write_block(tensors)))
    assert again.keys() == tensors.keys()
    np.testing.assert_array_equal(again["a"], tensors["a"])
    np.testing.assert_array_equal(again["b"], tensors["b"])


# The document.


@pytest.fixture
def document(root) -> str:
    return (root / "docs/page_format.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def written() -> list[tuple[dict[str, Any], list[bytes]]]:
    """Pages that together have everything which a page may hold."""
    sinks = regard.Sinks(regard.ScaledDotProduct(), torch.zeros(2))
    dense = one_layer(random_weights(5, 7), value=torch.randn(1, 2, 7, 8))
    sketch = long_weights(mask=regard.Causal())
    gradient = GradientMatrix.of(torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 8))
    graded = one_layer(random_weights(6, 6).with_gradient(gradient))
    computed = long_weights(mask=regard.Causal(), score=None)
    pages = [one_layer(sketch), one_layer(computed), graded]
    return [pack(dense, one_layer(random_weights(4, 4, score=sinks))), *map(pack, pages)]


def tables(document: str, first_column: str) -> list[list[list[str]]]:
    """The rows of each table whose first column has this title, without the title."""
    rows = r"\| " + first_column + r" \|.*\n\|[-|]+\n((?:\|.*\n)+)"
    return [
        [re.split(r"(?<!\\) ?\| ?", line.strip())[1:-1] for line in table.splitlines()]
        for table in re.findall(rows, document)
    ]


def header_rows(name: str) -> list[list[str]]:
    """The rows of a table of a header's fields, from its types and docstrings."""
    (definition,) = ast.parse(inspect.getsource(getattr(page_format, name))).body
    assert isinstance(definition, ast.ClassDef)
    rows = []
    for field, docstring in zip(definition.body[1::2], definition.body[2::2], strict=True):
        assert isinstance(field, ast.AnnAssign)
        assert isinstance(docstring, ast.Expr), f"{ast.unparse(field)} has no docstring"
        kind, optional = re.fullmatch(r"NotRequired\[(.*)\]()|(.*)", ast.unparse(field.annotation)).group(1, 3)
        kind = (kind or optional).replace("'", '"').replace("|", r"\|")
        meaning = " ".join(ast.literal_eval(docstring.value).split()).replace("``", "`").removesuffix(".")
        rows.append([f"`{ast.unparse(field.target)}`", f"`{kind}`" + ("" if optional else ", optional"), meaning])
    return rows


def test_the_tables_of_the_header_are_its_types_and_their_docstrings(document):
    expected = list(map(header_rows, HEADERS))
    assert tables(document, "field") == expected, "\n\n".join(
        "\n".join(f"| {' | '.join(row)} |" for row in rows) for rows in expected
    )


def test_every_header_type_is_in_the_document(document):
    types = [name for name in vars(page_format) if re.search("Header$|Opening$|Alignment$", name)]
    assert sorted(types) == sorted(HEADERS)
    assert all(f"`{name}`:" in document or f"`{name}`." in document for name in types)


def test_what_is_written_has_the_fields_of_the_types(written):
    def check(value: dict[str, Any], name: str) -> None:
        types = get_type_hints(getattr(page_format, name), include_extras=True)
        required = {field for field, kind in types.items() if get_origin(kind) is not NotRequired}
        assert required <= value.keys() <= types.keys()

    headers = [header for header, _ in written]
    for header in [*headers, headers[0]["compare_with"]]:
        check(header, "PageHeader")
        check(header["opening"], "Opening")
        for alignment in header.get("alignments", []):
            check(alignment, "Alignment")
        for sequence in header["sequences"]:
            check(sequence, "SequenceHeader")
        for layer in header["layers"]:
            check(layer, "LayerHeader")
            missing = get_type_hints(page_format.LayerHeader).keys() - layer.keys()
            assert missing == {
                *(["mask"] if layer["storage"] == "dense" else []),
                *([] if layer["has_gradient"] else ["relevance"]),
                *([] if layer.get("omits_gradient") else ["omits_gradient"]),
            }
    assert headers[0]["compare_with"]["alignments"]
    assert {layer["storage"] for header in headers for layer in header["layers"]} == {"dense", "computed", "sketch"}


def test_the_tables_of_tensors_are_what_is_written(document, written):
    rows = {row[0].strip("`"): row[1:3] for table in tables(document, "tensor") for row in table}
    thumbnails = rows.pop("0`, `1`, ...")
    actual = set()
    for header, blocks in written:
        first_block = 0
        for side in (header, header.get("compare_with")):
            if side is None:
                continue
            for name, tensor in load(zlib.decompress(blocks[first_block])).items():
                layer = side["layers"][int(name)]
                assert tensor.dtype == thumbnails[0]
                assert tensor.shape == (len(layer["heads"]), *layer["thumbnail"])
            for layer, block in zip(side["layers"], blocks[first_block + 1 :], strict=False):
                sizes = {"H": len(layer["heads"])}
                sizes |= {
                    axis[0].upper(): len(side["sequences"][layer[axis]]["tokens"]) for axis in ("queries", "keys")
                }
                for name, tensor in load(zlib.decompress(block)).items():
                    row = re.sub(r"^blocks_\d+$", "blocks_N", name)
                    actual.add(row)
                    dtype, shape = rows[row]
                    assert tensor.dtype == dtype, name
                    for axis, size in zip(shape.split(", "), tensor.shape, strict=True):
                        assert size == sizes.get(axis, int(axis) if axis.isdigit() else size), name
            first_block += 1 + len(side["layers"])
        assert first_block == len(blocks)
    assert actual == set(rows)


def test_the_paths_of_a_served_page_are_those_that_it_requests(document):
    requested = set(re.findall(r"[`\"}]([a-z]+)/\$\{", static("data/remote.js")))
    requested |= {"row", "column"}  # `${kind}/...`
    assert {row[0].strip("`").partition("/")[0] for row in tables(document, "path")[0]} == requested


def test_the_document_names_the_version_that_is_written(document, written):
    assert f"version {FORMAT_VERSION} of the format" in " ".join(document.split())
    assert {header["format_version"] for header, _ in written} == {FORMAT_VERSION}
    assert ["`format_version`", "`int`", f"The number {FORMAT_VERSION}"] in tables(document, "field")[0]


def test_the_limits_in_the_document_are_those_of_the_code(document):
    from regard.explore.pack import MAX_LONG_QKV_BYTES, MAX_QKV_BYTES
    from regard.explore.sketch import MAX_RUNS_PER_ROW, MAX_TOP_K, NUM_RANKED, THUMBNAIL

    text = " ".join(document.split())
    assert f"at most {MAX_QKV_BYTES // 2**20} MiB" in text
    assert f"{MAX_LONG_QKV_BYTES // 2**20} MiB if a layer" in text
    assert f"at most {MAX_RUNS_PER_ROW} runs" in text
    assert f"k is at most {MAX_TOP_K}" in text
    assert f"R is {NUM_RANKED}" in text
    assert f"at most {THUMBNAIL} × {THUMBNAIL}" in text
    assert f"{MASKED_CODE} is a cell" in text
    assert f"within 1/{1 / page_format.PRECISION:.0f}" in text


def test_the_example_reads_a_page(document, recording, tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", document, flags=re.DOTALL)
    assert len(example.splitlines()) <= 15
    write_html(recording, tmp_path / "attention.html")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/page_format.md", "exec"), names)
    first = recording.layers[0]
    exact = first.weights.dense()[0]
    assert decimals(names["weights"]) == decimals(exact)
    key = first.key_tokens[exact[0, 0].argmax()]
    assert capsys.readouterr().out == f"encoder.0 (3, 8, 8) ▁The attends most to {key}\n"


def test_a_page_holds_what_was_packed(recording, make_recording):
    other = make_recording(decoders=0, source=("▁a", "</s>"))
    header, blocks = pack(recording, other)
    assert read_page(to_html(recording, compare_with=other)) == (json.loads(json.dumps(header)), blocks)
    for number in range(len(recording.layers)):
        read_layer(header, blocks, number)
    read_layer(header["compare_with"], blocks[1 + len(recording.layers) :])


def test_a_recording_is_packed_the_same_way_each_time(recording: Recording):
    assert pack(recording) == pack(recording)
