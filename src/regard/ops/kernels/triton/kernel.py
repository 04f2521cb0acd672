"""The Triton kernel: output and measures on GPUs; `blockwise` computes the gradients."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.differentiable import DifferentiableKernel, ForwardResult
from regard.ops.kernels.results import MeasureResults
from regard.ops.kernels.triton.launch import Launcher
from regard.ops.masks import Causal, Mask, Padding, Window
from regard.ops.measures import Entropy, LogSumExp, Max, MeanDistance, Measure, Received
from regard.ops.request import AttentionRequest
from regard.ops.scores import ScaledDotProduct

MIN_SCALE = 1e-30
"""Stands for a smaller scale: in the kernels, 0 · −∞ would be NaN."""

MIN_CAPABILITY = 8, 0
"""Oldest architecture of NVIDIA that the kernels are compiled for."""


class Tiles(NamedTuple):
    """How a pass is divided.

    Args:
        queries: Queries of a tile.
        keys: Keys of a tile.
        warps: Warps of a program.
        stages: Tiles that are loaded ahead.
    """

    queries: int
    keys: int
    warps: int
    stages: int

    def options(self) -> dict[str, int]:
        """As a kernel takes them."""
        return {
            "QUERIES": self.queries,
            "KEYS": self.keys,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


class Triton(DifferentiableKernel):
    """Output and measures in two passes in Triton, on a GPU."""

    name = "triton"
    description = "Triton for GPUs: output and measures of rows in one pass, sums over rows in a second one"
    devices = ("cuda",)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    masks = frozenset({Causal, Window, Padding})
    scores = frozenset({ScaledDotProduct})
    measures = frozenset({Entropy, LogSumExp, Max, MeanDistance, Received})
    max_width = 256
    needs_equal_dtypes = True
    has_dropout = False
    has_selections = False
    fuses_measures = True
    fallback = Blockwise()

    def __init__(self) -> None:
        self._launcher = Launcher()

    def unavailable_reason(self) -> str | None:
        return _unavailable_reason()

    def unsupported_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """Also: no GPU or no Triton, and padding that is not at the end."""
        mask = inputs.request.mask
        yield from super().unsupported_reasons(inputs)
        if type(mask) is Padding and not mask.has_lengths:
            yield "it supports Padding with lengths only"
        if not torch.compiler.is_compiling():  # a program that runs without Triton has the fallback
            reason = self.unavailable_reason()
            if reason is not None:
                yield reason

    def inefficient_reasons(self, inputs: KernelInputs) -> Iterator[str]:
        """Products in float32 without TF32, whose tiles are slower than the vendor's matrix products."""
        if _precision(inputs.request.query.dtype) == "ieee":
            yield "blocks of rows are faster in float32 without TF32"

    def has_gradients(self, inputs: KernelInputs, needed: Sequence[bool]) -> bool:
        return False

    def forward(self, inputs: KernelInputs, options: RunOptions) -> ForwardResult:
        from triton.runtime.errors import OutOfResources  # pyright: ignore[reportMissingImports, reportMissingTypeStubs]

        device = inputs.request.query.device
        is_current = device.type != "cuda" or device.index == torch.cuda.current_device()
        try:
            with nullcontext() if is_current else torch.cuda.device(device):
                return launch(inputs, self._launcher)
        except OutOfResources:  # tiles do not fit into the shared memory of this GPU
            assert self.fallback is not None
            return self.fallback.forward(inputs, options)


@lru_cache(maxsize=1)
def _unavailable_reason() -> str | None:
    if not torch.cuda.is_available():
        return "torch finds no CUDA or ROCm device"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; install it with: pip install triton"
    if torch.version.hip is None:
        capability = torch.cuda.get_device_capability()
        if capability < MIN_CAPABILITY:
            return f"it needs compute capability {_version(MIN_CAPABILITY)}, the GPU has {_version(capability)}"
    return None


def _version(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def launch(inputs: KernelInputs, run: Launcher) -> ForwardResult:
    """Launch the passes that a call needs."""
    from regard.ops.kernels.triton import passes, rules

    request, value, results = inputs.request, inputs.value, MeasureResults(inputs)
    batch, heads, queries, keys = request.shape
    query, key = _with_dense_features(request.query), _with_dense_features(request.key)
    output = None if value is None else value.new_empty(batch, heads, queries, value.shape[3])
    mask, mask_args = _mask(rules, request)
    row_rules, row_args, row_results = _row_measures(rules, inputs.measures, results, request.offset)
    received = {name: measure for name, measure in inputs.measures.items() if isinstance(measure, Received)}
    head_dim = query.shape[3]
    options: dict[str, Any] = {
        "MASK": mask,
        "NEGATE": request.scale < 0,  # so that the maximum of products is that of scores
        "D": head_dim,
        "D_PAD": _padded(head_dim),
        "PRECISION": _precision(query.dtype),
    }
    scale = max(abs(float(request.scale)), MIN_SCALE)
    maximum = norm = None
    if received:
        maximum, norm = query.new_empty(2, batch, heads, queries, dtype=torch.float32).unbind()
        row_rules, row_args = (*row_rules, rules.MAXIMUM, rules.NORM), (*row_args, (), ())
        row_results = (*row_results, maximum, norm)
    if output is not None or row_rules:
        value_dim = 0 if value is None else value.shape[3]
        value = None if value is None else _with_dense_features(value)
        tiles = row_tiles(query.dtype, _padded(head_dim), _padded(value_dim), queries, shared_memory(query.device))
        args = (
            query, key, value, output, row_results, queries, keys, heads, heads // key.shape[1],
            1 if value is None else heads // value.shape[1], query.stride()[:3], key.stride()[:3],
            (0, 0, 0) if value is None else value.stride()[:3], scale, mask_args, row_args,
        )  # fmt: skip
        constants = {
            "HAS_START": type(request.mask) is Window,
            "MEASURES": row_rules,
            "V": value_dim,
            "V_PAD": _padded(value_dim),
        }
        run(passes.rows, -(-queries // tiles.queries) * batch * heads, args, options | constants | tiles.options())
    if received:
        tiles = column_tiles(query.dtype, _padded(head_dim), queries, shared_memory(query.device))
        factors = tuple([_row_factors(measure, request) for measure in received.values()])
        sums = tuple([results.whole(name)[0] for name in received])
        args = (
            query, key, maximum, norm, sums, queries, keys, heads, heads // key.shape[1], query.stride()[:3],
            key.stride()[:3], scale, mask_args, factors,
        )  # fmt: skip
        options |= {"SUMS": len(sums)} | tiles.options()
        run(passes.columns, -(-keys // tiles.keys) * batch * heads, args, options)
    return ForwardResult(output, results)


def _with_dense_features(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def _mask(rules: Any, request: AttentionRequest) -> tuple[Any, tuple[Any, ...]]:
    """The rule of a mask, and its arguments."""
    mask: Mask | None = request.mask
    if mask is None:
        return rules.ALL, ()
    if isinstance(mask, Padding):
        return rules.PADDING, (mask.lengths_or_mask.contiguous(),)
    assert isinstance(mask, Window)
    _, _, queries, keys = request.shape
    low = -queries if mask.left is None else request.offset - mask.left
    high = keys if mask.right is None else request.offset + mask.right
    return rules.WINDOW, tuple([min(max(limit, -queries), keys) for limit in (low, high)])  # beyond, nothing changes


def _row_measures(
    rules: Any, measures: Mapping[str, Measure], results: MeasureResults, offset: int
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Tensor, ...]]:
    """Rules of measures of rows, their arguments, and where their results go."""
    known: dict[type[Measure], tuple[Any, ...]] = {
        Entropy: (rules.ENTROPY,),
        LogSumExp: (rules.LOG_SUM_EXP,),
        Max: (rules.LARGEST_WEIGHT, rules.HIGHEST_SCORE),
        MeanDistance: (rules.MEAN_DISTANCE,),
    }
    found: list[tuple[Any, Any, Tensor]] = []
    for name, measure in measures.items():
        for rule, result in zip(known.get(type(measure), ()), results.whole(name), strict=False):
            found.append((rule, (offset,) if type(measure) is MeanDistance else (), result))
    parts = tuple(zip(*found, strict=True))
    return parts if parts else ((), (), ())  # pyright: ignore[reportReturnType]


def _row_factors(measure: Received, request: AttentionRequest) -> tuple[Any, ...]:
    """The weights of rows as a tensor with its strides; empty if all are 1."""
    if measure.row_weights is None:
        return ()
    factors = measure.row_weights.float().expand(request.shape[:3])
    return factors, *factors.stride()


def _padded(width: int) -> int:
    """The next power of two, at least 16; 0 for 0."""
    return max(16, 1 << (width - 1).bit_length()) if width else 0


def _precision(dtype: torch.dtype) -> str:
    """How float32 is multiplied, as in torch's matrix products."""
    is_exact = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision != "tf32"
    return "ieee" if is_exact else "tf32"


@lru_cache(maxsize=64)
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may use for its tiles."""
    if device.type != "cuda":  # in the interpreter
        return 2**16
    properties = torch.cuda.get_device_properties(device)
    return getattr(properties, "shared_memory_per_block_optin", 2**16)  # which ROCm does not have


def row_tiles(dtype: torch.dtype, head_dim: int, value_dim: int, queries: int, limit: int) -> Tiles:
    """The tiles of the pass by rows, for padded widths, a number of queries and a limit of shared memory."""
    width = max(head_dim, value_dim)
    if dtype == torch.float32:
        tiles = Tiles(64 if width <= 128 else 32, 32 if width <= 64 else 16, 8, 2)
    else:
        tiles = Tiles(128, 64, 8, 3 if width <= 128 else 2)
    if queries <= 64:
        tiles = tiles._replace(queries=16 if queries <= 16 else min(64, tiles.queries), warps=4)
    return _fitted(tiles, tiles.queries * head_dim, tiles.keys * (head_dim + value_dim), dtype, limit)


def column_tiles(dtype: torch.dtype, head_dim: int, queries: int, limit: int) -> Tiles:
    """The tiles of the pass by columns."""
    if dtype == torch.float32:
        tiles = Tiles(32, 64 if head_dim <= 128 else 32, 4, 2)
    else:
        tiles = Tiles(64, 128, 8 if head_dim > 64 else 4, 3)
    if queries <= 16:
        tiles = tiles._replace(queries=16)
    return _fitted(tiles, tiles.keys * head_dim, tiles.queries * head_dim, dtype, limit)


def _fitted(tiles: Tiles, held: int, streamed: int, dtype: torch.dtype, limit: int) -> Tiles:
    """As many stages as shared memory has room for, at least one; sizes are in elements."""
    stages = tiles.stages
    while stages > 1 and (held + stages * streamed) * dtype.itemsize > limit:
        stages -= 1
    return tiles._replace(stages=stages)
