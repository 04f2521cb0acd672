"""The native CPU kernel compared with torch's SDPA, which computes the output alone: time, and share of the peak.

The peak is the best rate at which torch multiplies two matrices of 2,048 × 2,048 in the same dtype. An attention of n
queries and keys counts as 4 · n² · head_dim operations per head forward, 14 forward and backward, half if causal.

Run: ``python benchmarks/native.py``, or some of its sections: ``... forward decode``; for a quick check:
``--max-keys 512``.
``... choices`` measures where SDPA computes the output alone faster, and writes what it finds for this instruction set
and size of the second-level cache to the table in the package, by which `attend` chooses; what the table says about
another processor of this kind stays where SDPA was faster there. Measures have no other fast kernel to choose: SDPA
cannot compute them. Run it on a quiet machine.
``REGARD_ISA=avx2 ATEN_CPU_CAPABILITY=avx2`` measures another instruction set (matrix products of SDPA may still use the
processor's best); its results are in sections of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from timing import paired_times, report, seconds
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.native.cache_size import second_level_bytes
from regard.ops.kernels import dispatch
from regard.ops.kernels.native.choices import FILE, Steps
from regard.ops.kernels.native.kernel import Native

SEED, HEADS, HEAD_DIM, ROUNDS = 0, 8, 64, 5
SIZES = ((8, 64), (1, 128), (32, 128), (1, 512), (1, 1024), (1, 4096), (1, 16384))  # batch, tokens
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CHOICE_SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
MEASURES = ["entropy", "received"]
FOUR = [*MEASURES, "max", "mean_distance"]
Ratios = dict[str, list[float]]
Rates = dict[str, dict[str, float]]
Attention = Callable[..., torch.Tensor]


class Figures:
    """Ratios and rates by name."""

    def __init__(self) -> None:
        self.ratios: Ratios = {}
        self.rates: Rates = {}

    def compare(self, name: str, ours: Callable[[], object], baseline: Callable[[], object], operations: float) -> None:
        """Our time relative to the baseline's, and the rates of both in GFLOP/s."""
        times = paired_times(ours, baseline, ROUNDS)
        self.ratios[name] = [time / baseline_time for time, baseline_time in times]
        time, baseline_time = (statistics.median(column) for column in zip(*times, strict=True))
        self.rates[name] = {
            "gflops": round(operations / time / 1e9, 1),
            "sdpa_gflops": round(operations / baseline_time / 1e9, 1),
            "ms": round(time * 1e3, 3),
            "sdpa_ms": round(baseline_time * 1e3, 3),
        }


def inputs_of(batch: int, tokens: int, dtype: torch.dtype, heads: int = HEADS) -> list[torch.Tensor]:
    return [tensor.to(dtype) for tensor in torch.randn(3, batch, heads, tokens, HEAD_DIM)]


def label(dtype: torch.dtype, batch: int, tokens: int, what: str) -> str:
    return f"{str(dtype).removeprefix('torch.')}, {batch} x {tokens}: {what}"


def forward(max_keys: int) -> Figures:
    """The output alone, with two, four and five measures, and causal, relative to SDPA with the same mask."""
    figures = Figures()
    for dtype in DTYPES:
        for batch, tokens in SIZES:
            if tokens > max_keys:
                continue
            qkv = inputs_of(batch, tokens, dtype)
            operations = 4.0 * batch * HEADS * tokens**2 * HEAD_DIM
            runs = {"output": (), "entropy and received": MEASURES}
            if tokens == 4096:
                runs |= {"four measures": FOUR, "four measures and topk(8)": [*FOUR, regard.TopK(8)]}
            for what, measures in runs.items():
                figures.compare(
                    label(dtype, batch, tokens, what),
                    lambda qkv=qkv, measures=measures: regard.attend(*qkv, measure=measures),
                    lambda qkv=qkv: sdpa(*qkv),
                    operations,
                )
            figures.compare(
                label(dtype, batch, tokens, "causal, entropy and received"),
                lambda qkv=qkv: regard.attend(*qkv, mask=regard.Causal(), measure=MEASURES),
                lambda qkv=qkv: sdpa(*qkv, is_causal=True),
                operations / 2,
            )
            if tokens == 4096:
                figures.compare(
                    label(dtype, batch, tokens, "causal relative to all keys"),
                    lambda qkv=qkv: regard.attend(*qkv, mask=regard.Causal(), measure=MEASURES),
                    lambda qkv=qkv: regard.attend(*qkv, measure=MEASURES),
                    operations / 2,
                )
    return figures


def backward(max_keys: int) -> Figures:
    """Forward and backward, with gradients of the output alone, and of entropy and received."""
    figures = Figures()
    for dtype in DTYPES[:2]:
        for batch, tokens in SIZES[:-1]:
            if tokens > max_keys:
                continue
            qkv = [tensor.requires_grad_() for tensor in inputs_of(batch, tokens, dtype)]
            random = torch.randn(batch, HEADS, tokens)

            def ours(measures: list[str], qkv=qkv, random=random) -> object:
                att = regard.attend(*qkv, measure=measures)
                loss = att.output.sum() + sum((values * random).sum() for values in att.measured.values())
                return torch.autograd.grad(loss, qkv)

            for what, measures in (("output", []), ("entropy and received", MEASURES)):
                figures.compare(
                    label(dtype, batch, tokens, what),
                    lambda measures=measures, ours=ours: ours(measures),
                    lambda qkv=qkv: torch.autograd.grad(sdpa(*qkv).sum(), qkv),
                    14.0 * batch * HEADS * tokens**2 * HEAD_DIM,
                )
    return figures


def decode(max_keys: int) -> Figures:
    """One query, 32 heads on 8 heads of keys, head_dim 128, with the received weights."""
    figures, keys = Figures(), min(4096, max_keys)
    for dtype in DTYPES[:2]:
        query = torch.randn(1, 32, 1, 128).to(dtype)
        key, value = torch.randn(2, 1, 8, keys, 128).to(dtype)
        figures.compare(
            label(dtype, 1, keys, "decode with received"),
            lambda query=query, key=key, value=value: regard.attend(query, key, value, measure="received"),
            lambda query=query, key=key, value=value: sdpa(query, key, value, enable_gqa=True),
            4.0 * 32 * keys * 128,
        )
    return figures


def smallest(max_keys: int) -> Figures:
    """4 tokens: what a call costs."""
    figures, qkv = Figures(), inputs_of(1, 4, torch.float32)

    def dense() -> object:
        weights = (qkv[0] @ qkv[1].mT * HEAD_DIM**-0.5).softmax(-1)
        return weights @ qkv[2], torch.special.entr(weights).sum(-1), weights.sum(-2)

    ours = lambda: regard.attend(*qkv, measure=MEASURES)  # noqa: E731
    figures.compare("float32, 1 x 4: entropy and received", ours, lambda: sdpa(*qkv), 4.0 * HEADS * 16 * HEAD_DIM)
    figures.rates["float32, 1 x 4: dense PyTorch"] = {"ms": round(1e3 * statistics.median(_times(dense)), 4)}
    return figures


def _times(run: Callable[[], object]) -> list[float]:
    return [seconds(run) for _ in range(200)][50:]


def peak(dtype: torch.dtype) -> float:
    """The best rate of a plain matrix product, GFLOP/s."""
    left, right = torch.randn(2, 2048, 2048).to(dtype)
    return 2 * 2048**3 / min(seconds(lambda: left @ right) for _ in range(8)) / 1e9


def choices(max_keys: int) -> Figures:
    """The output alone by the native kernel, relative to SDPA, without and with backward; and the table from it."""
    figures, found = Figures(), {}
    Native.is_slower_than_sdpa = lambda self, inputs: False  # so that repeated calls are prepared, as in programs
    dispatch._preparation_of.cache_clear()
    for dtype, passes in product(DTYPES, ("", ", backward")):
        if passes and dtype == torch.float16:
            continue
        ratios: list[tuple[float, float]] = []
        for tokens in CHOICE_SIZES:
            if tokens > max_keys:
                continue
            qkv = [
                tensor.requires_grad_(bool(passes)) for tensor in inputs_of(8 if tokens <= 128 else 1, tokens, dtype)
            ]
            gradient = torch.ones_like(qkv[0])

            def run(attention: Attention, qkv: list[torch.Tensor] = qkv, gradient: torch.Tensor = gradient) -> object:
                output = attention(*qkv)
                return torch.autograd.grad(output, qkv, gradient) if output.requires_grad else output

            name = label(dtype, len(qkv[0]), tokens, f"output by the native kernel{passes}")
            figures.compare(
                name,
                partial(run, lambda *each: regard.attend(*each).output),
                partial(run, sdpa),
                (14.0 if passes else 4.0) * len(qkv[0]) * HEADS * tokens**2 * HEAD_DIM,
            )
            ratios.append((2.0 * HEADS * tokens**2 * HEAD_DIM, statistics.median(figures.ratios[name])))
        found[str(dtype).removeprefix("torch.") + passes] = steps(ratios)
    table = json.loads(FILE.read_text(encoding="utf-8"))
    known = table.setdefault(Native().variant(), {}).setdefault(str(second_level_bytes()), {})
    known |= {dtype: combine(own, known.get(dtype, own)) for dtype, own in found.items()}
    lines = {
        level: {size: {dtype: json.dumps(own) for dtype, own in each.items()} for size, each in sizes.items()}
        for level, sizes in table.items()
    }
    text = json.dumps(lines, indent=2).replace('\\"', '"').replace('"[[', "[[").replace(']]"', "]]")
    FILE.write_text(text + "\n", encoding="utf-8")
    return figures


def steps(ratios: list[tuple[float, float]]) -> Steps:
    """From how much work on a kernel is faster: halfway, as a ratio, between two sizes of which each has another."""
    found: Steps = []
    for number, (work, ratio) in enumerate(ratios):
        kernel = "sdpa" if ratio > 1 else "native"
        if not found or found[-1][1] != kernel:
            start = 0 if number == 0 else round((work * ratios[number - 1][0]) ** 0.5)
            found.append((start, kernel))
    return found


def combine(first: Steps, second: Steps) -> Steps:
    """The native kernel only where it is faster on both of two processors: SDPA can be slow on one of them."""
    found: Steps = []
    for start in sorted({start for start, _ in (*first, *second)}):
        kernels = {[kernel for begin, kernel in steps if begin <= start][-1] for steps in (first, second)}
        kernel = "sdpa" if "sdpa" in kernels else "native"
        if not found or found[-1][1] != kernel:
            found.append((start, kernel))
    return found


SECTIONS = {"forward": forward, "backward": backward, "decode": decode, "smallest": smallest, "choices": choices}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"{', '.join(SECTIONS)}; default: all but choices")
    parser.add_argument("--max-keys", type=int, default=16384)
    arguments = parser.parse_args()
    peaks = {str(dtype).removeprefix("torch."): round(peak(dtype), 1) for dtype in DTYPES[:2]}
    for name in arguments.sections or [name for name in SECTIONS if name != "choices"]:
        torch.manual_seed(SEED)
        figures = SECTIONS[name](arguments.max_keys)
        settings = {"heads": HEADS, "head_dim": HEAD_DIM, "peak_gflops": peaks, "rates": figures.rates}
        report("native", figures.ratios, SEED, section=name, **settings)


if __name__ == "__main__":
    main()
