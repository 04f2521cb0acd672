"""Attention on the CPU: the kernels beside torch's SDPA and beside the dense way, in time and in memory.

Run: ``python benchmarks/attention.py``
"""

from __future__ import annotations

import argparse
import gc
import threading
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from side_by_side import ratios, report, seconds
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.ops import matmul

SEED, ROUNDS, HEADS, DIM = 0, 15, 8, 64


def tensors(n: int, gradient: bool = False) -> list[Tensor]:
    return [torch.randn(1, HEADS, n, DIM).requires_grad_(gradient) for _ in range(3)]


def dense(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weights = (query @ key.mT * DIM**-0.5).softmax(-1)
    return weights @ value, weights.sum(-2), torch.special.entr(weights).sum(-1)


def forward(n: int, **options: object) -> Callable[[], object]:
    query, key, value = tensors(n)

    def run() -> object:
        with torch.no_grad():
            return regard.attend(query, key, value, **options)

    return run


def by_mkl(run: Callable[[], object]) -> Callable[[], object]:
    """The same call without oneDNN's matrix products, as on a processor on which they are not faster."""

    def run_by_mkl() -> object:
        with mock.patch.object(matmul, "is_onednn_faster", return_value=False):
            return run()

    return run_by_mkl


def peer(n: int, function: Callable[..., object], **options: object) -> Callable[[], object]:
    query, key, value = tensors(n)

    def run() -> object:
        with torch.no_grad():
            return function(query, key, value, **options)

    return run


def with_gradient(n: int, measure: str | None) -> Callable[[], object]:
    inputs = tensors(n, gradient=True)

    def run() -> object:
        if measure is None:
            loss = sdpa(*inputs).sum()
        else:
            att = regard.attend(*inputs, measure=measure)
            loss = att.output.sum() + att.measured[measure].sum()
        return torch.autograd.grad(loss, inputs)

    return run


def peak(run: Callable[[], object]) -> float:
    """Megabytes that a call needs above what was held before, the results included."""
    gc.collect()
    before, most, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = run()  # held, so that its memory counts
    most = max(most, resident())
    done.set()
    watcher.join()
    del result
    return (most - before) / 1e6


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def times(one: Callable[[], object], other: Callable[[], object]) -> list[float]:
    """Time of the first divided by time of the second, for each round."""
    return ratios(other, one, 200 if seconds(other) < 0.02 else ROUNDS)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.manual_seed(SEED)
    memory = {
        "forward, 16,384 keys": peak(forward(16384, measure=["entropy", "received"])),
        "forward and backward, 16,384 keys": peak(with_gradient(16384, "entropy")),
    }
    measures = {"measure": ["entropy", "received"]}
    found = {f"output in times of SDPA, {n}": times(forward(n), peer(n, sdpa)) for n in (128, 512, 4096)}
    measured, causal = forward(4096, **measures), forward(4096, mask=regard.Causal(), **measures)
    found |= {
        "output, entropy and received in times of SDPA, 4096": times(measured, peer(4096, sdpa)),
        "the same with MKL's products in times of SDPA, 4096": times(by_mkl(measured), peer(4096, sdpa)),
        "dense torch in times of attend with the same measures, 4096": times(peer(4096, dense), measured),
        "output of kernel 'blockwise' in times of SDPA, 4096": times(
            forward(4096, kernel="blockwise"), peer(4096, sdpa)
        ),
        "causal with entropy and received in times of causal SDPA, 4096": times(
            causal, peer(4096, sdpa, is_causal=True)
        ),
        "forward and backward with entropy in times of SDPA, 4096": times(
            with_gradient(4096, "entropy"), with_gradient(4096, None)
        ),
    }
    report("attention", found, SEED, heads=HEADS, head_dim=DIM, peak_megabytes=memory)


if __name__ == "__main__":
    main()
