"""Second derivatives on CPU: time compared with first-order steps and with the dense definition, and peak memory.

A first-order step is the gradient of a loss; a Hessian-vector product is the gradient of that gradient's product with
a vector. Run: ``python benchmarks/second_order.py``; for a quick check: ``--tokens 128``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from attention import HEAD_DIM, HEADS, SEED, qkv
from memory import in_subprocess, peak_megabytes
from timing import Run, relative_time, report, speedup
from torch import Tensor

import regard

ROUNDS = 5
DENSE_TOKENS = 1024
"""Where the definition fits, whose matrices of all derivatives are in memory at once."""
LOSSES: dict[str, Callable[..., Tensor]] = {
    "entropy": lambda att: att.measured["entropy"].square().sum(),
    "output": lambda att: att.output.square().sum(),
}


def loss_of(name: str, inputs: list[Tensor], kernel: str | None) -> Tensor:
    measure = ["entropy"] if name == "entropy" else []
    return LOSSES[name](regard.attend(*inputs, measure=measure, kernel=kernel))


def first_order(name: str, inputs: list[Tensor], kernel: str | None = None) -> Run:
    """The gradients of a loss for query and key."""
    return lambda: torch.autograd.grad(loss_of(name, inputs, kernel), inputs[:2])


def hessian_vector(name: str, inputs: list[Tensor], kernel: str | None = None) -> Run:
    """The product of a vector and the Hessian of a loss in query and key."""
    vector = [torch.randn_like(tensor) for tensor in inputs[:2]]

    def run() -> object:
        gradients = torch.autograd.grad(loss_of(name, inputs, kernel), inputs[:2], create_graph=True)
        return torch.autograd.grad(gradients, inputs[:2], vector)

    return run


def memory_of(tokens: int, name: str) -> float:
    """Peak memory of a Hessian-vector product above the inputs, in MB."""
    return round(peak_megabytes(hessian_vector(name, qkv(tokens, requires_grad=True))), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    tokens = parser.parse_args().tokens
    torch.manual_seed(SEED)
    ratios = {}
    for name in LOSSES:
        inputs = qkv(tokens, requires_grad=True)
        for kernel in (None, "blockwise"):
            label = f"time relative to a first-order step{'' if kernel is None else f' of {kernel}'}: {name}"
            ratios[label] = relative_time(hessian_vector(name, inputs), first_order(name, inputs, kernel), ROUNDS)
        inputs = qkv(min(tokens, DENSE_TOKENS), requires_grad=True)
        ratios[f"speedup over the dense definition: {name}, {min(tokens, DENSE_TOKENS)} tokens"] = speedup(
            hessian_vector(name, inputs), hessian_vector(name, inputs, "reference"), ROUNDS
        )
    megabytes = {
        name: {str(size): in_subprocess(memory_of, size, name) for size in (tokens // 2, tokens)} for name in LOSSES
    }
    print(f"second_order: peak megabytes: {megabytes}")
    report("second_order", ratios, SEED, heads=HEADS, head_dim=HEAD_DIM, tokens=tokens, megabytes=megabytes)


if __name__ == "__main__":
    main()
