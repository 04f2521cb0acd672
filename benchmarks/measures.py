"""What answers about the weights cost on the CPU, beside SDPA's output alone and beside the dense ways to the same.

Run: ``python benchmarks/measures.py``, or some of its sections: ``python benchmarks/measures.py masks gradients``.
Where x-transformers is installed, it is compared with, too.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch
from attention import DIM, HEADS, SEED, peak, peer, tensors
from side_by_side import ratios, report, seconds
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import regard
from regard.nn import MultiHeadAttention
from regard.ops.masks import Causal, Neighbours, Window
from regard.ops.measures import BlockMean, Diagonal, DistanceHistogram, GroupPool, TopK

N, ROUNDS, GROUP = 4096, 7, 8
FOUR = "entropy", "received", "max", "mean_distance"


def answers(n: int) -> dict[str, tuple[object, Callable[[Tensor, Tensor], object]]]:
    """Each measure, and the same of dense scores and weights in plain torch."""
    here, groups = torch.arange(n), torch.arange(n) // GROUP
    distance = here - here[:, None]
    square = GROUP * torch.nn.functional.one_hot(groups).float()
    return {
        "entropy": ("entropy", lambda scores, weights: torch.special.entr(weights).sum(-1)),
        "lse": ("lse", lambda scores, weights: scores.logsumexp(-1)),
        "received": ("received", lambda scores, weights: weights.sum(-2)),
        "max": ("max", lambda scores, weights: (weights.amax(-1), scores.amax(-1))),
        "topk(8)": (TopK(8), lambda scores, weights: weights.topk(8, -1)),
        "mean_distance": ("mean_distance", lambda scores, weights: (weights * distance.abs()).sum(-1)),
        "block_mean(64)": (
            BlockMean(64),
            lambda scores, weights: weights.unflatten(3, (-1, 64)).unflatten(2, (-1, 64)).mean((3, 5)),
        ),
        "diagonal(-1)": (Diagonal(-1), lambda scores, weights: weights.diagonal(-1, 2, 3)),
        "group_pool": (GroupPool(groups, groups), lambda scores, weights: square.mT @ weights @ square),
        "distance_histogram(16)": (
            DistanceHistogram(16),
            lambda scores, weights: weights.new_zeros(*weights.shape[:3], 33).scatter_add(
                3, (distance.clamp(-16, 16) + 16).expand_as(weights), weights
            ),
        ),
    }


def ours(given: list[Tensor], **rules: object) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return regard.attend(*given, **rules)

    return run


def dense(given: list[Tensor], asked: list[Callable[[Tensor, Tensor], object]]) -> Callable[[], object]:
    query, key, value = given

    def run() -> object:
        with torch.no_grad():
            scores = query @ key.mT * DIM**-0.5
            weights = scores.softmax(-1)
            return weights @ value, [of(scores, weights) for of in asked]

    return run


def times(one: Callable[[], object], other: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """How many times longer the one takes than the other."""
    return ratios(other, one, rounds * 10 if seconds(other) < 0.03 else rounds)


def costs() -> dict[str, list[float]]:
    """Every answer beside the output alone, and the same answers the dense way beside ours."""
    given, known = tensors(N), answers(N)
    bare, found = peer(N, sdpa), {}
    several = {"four": list(FOUR), "four and topk(8)": [*FOUR, "topk(8)"]}
    for name, names in {**{name: [name] for name in known}, **several}.items():
        run = ours(given, measure=[known[each][0] for each in names], kernel="blockwise")
        found[f"{name} in times of SDPA's output"] = times(run, bare)
        found[f"{name}, dense, in times of ours"] = times(dense(given, [known[each][1] for each in names]), run, 3)
    halves = [tensor.bfloat16() for tensor in given]
    run = ours(halves, measure=list(FOUR))
    found["four in bfloat16 in times of SDPA's output in bfloat16"] = times(run, peer_of(halves))
    return found


def peer_of(given: list[Tensor], **rules: Any) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            query, key, value = given
            return sdpa(query, key, value, **rules)

    return run


def masks() -> dict[str, list[float]]:
    """What a mask leaves out is not computed."""
    found = {}
    for n in (1024, N):
        causal = ours(tensors(n), mask=Causal(), measure=["entropy", "received"])
        found[f"causal with entropy and received in times of causal SDPA, {n}"] = times(
            causal, peer_of(tensors(n), is_causal=True)
        )
    n = 16384
    here = torch.arange(n)
    band = (here <= here[:, None]) & (here >= here[:, None] - 256)
    window = ours(tensors(n), mask=Window(256, 0), measure=["entropy", "received"])
    found["SDPA with the dense mask in times of Window(256, 0), 16384"] = times(
        peer_of(tensors(n), attn_mask=band), window, 3
    )
    del band
    for n in (8192, 16384, 32768, 65536):
        long, short = (ours(tensors(size), mask=Window(256, 0), measure=["entropy"]) for size in (n, n // 2))
        found[f"Window(256, 0), {n} in times of {n // 2}"] = times(long, short, 3)
    return found


def gradients() -> dict[str, list[float]]:
    """Forward and backward, with a gradient through output, entropy and received."""
    given = [tensor.requires_grad_() for tensor in tensors(N)]
    random = torch.randn(HEADS, N)

    def loss(output: Tensor, entropy: Tensor, received: Tensor) -> Tensor:
        return output.sum() + (entropy * random).sum() + (received * random).sum()

    def measured() -> object:
        att = regard.attend(*given, measure=["entropy", "received"])
        return torch.autograd.grad(loss(att.output, att.measured["entropy"], att.measured["received"]), given)

    def plain() -> object:
        query, key, value = given
        weights = (query @ key.mT * DIM**-0.5).softmax(-1)
        return torch.autograd.grad(loss(weights @ value, torch.special.entr(weights).sum(-1), weights.sum(-2)), given)

    def bare() -> object:
        query, key, value = given
        return torch.autograd.grad(sdpa(query, key, value).sum(), given)

    return {
        "forward and backward with entropy and received in times of SDPA's": times(measured, bare),
        "forward and backward with entropy and received, dense, in times of ours": times(plain, measured, 3),
    }


def layers() -> dict[str, list[float]]:
    """Whole layers, with their projections, that give entropy and received of every head."""
    width, x = HEADS * DIM, torch.randn(1, N, HEADS * DIM)
    layer, stock = MultiHeadAttention(width, HEADS), nn.MultiheadAttention(width, HEADS, batch_first=True)

    def mine() -> object:
        with torch.no_grad():
            return layer(x, measure=["entropy", "received"])

    def theirs() -> object:
        with torch.no_grad():
            output, weights = stock(x, x, x, need_weights=True, average_attn_weights=False)
            return output, torch.special.entr(weights).sum(-1), weights.sum(-2)

    found = {"nn.MultiheadAttention(need_weights=True) in times of our layer": times(theirs, mine, 3)}
    if importlib.util.find_spec("x_transformers"):
        from x_transformers.attend import Attend  # pyright: ignore[reportMissingImports]

        given, attend = tensors(N), Attend(heads=HEADS, flash=False)

        def other() -> object:
            with torch.no_grad():
                output, between = attend(*given)
                weights = between.post_softmax_attn
                return output, torch.special.entr(weights).sum(-1), weights.sum(-2)

        run = ours(given, measure=["entropy", "received"])
        found["x-transformers' Attend in times of ours"] = times(other, run, 3)
    return found


def graphs() -> dict[str, list[float]]:
    """A graph of 100,000 nodes with 10 edges each, against softmax over edges by scattering."""
    nodes, degree = 100_000, 10
    edges = torch.stack((torch.arange(nodes).repeat_interleave(degree), torch.randint(nodes, (nodes * degree,))))
    mask, found = Neighbours(*edges), {}

    def scattered(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, columns = mask.query_idx, mask.key_idx
        scores = (query[0, 0, rows] * key[0, 0, columns]).sum(-1) * DIM**-0.5
        highest = scores.new_full((nodes,), -torch.inf).scatter_reduce(0, rows, scores, "amax")
        exp = (scores - highest[rows]).exp()
        weights = exp / exp.new_zeros(nodes).index_add(0, rows, exp)[rows]
        return value.new_zeros(nodes, DIM).index_add(0, rows, weights[:, None] * value[0, 0, columns])

    for name, learns in (("forward", False), ("forward and backward", True)):
        given = [torch.randn(1, 1, nodes, DIM).requires_grad_(learns) for _ in range(3)]

        def run(given: list[Tensor] = given) -> object:
            output = regard.attend(*given, mask=mask).output
            return torch.autograd.grad(output.sum(), given) if output.requires_grad else output

        def plain(given: list[Tensor] = given) -> object:
            output = scattered(*given)
            return torch.autograd.grad(output.sum(), given) if output.requires_grad else output

        found[f"Neighbours in times of scatter-softmax, {name}"] = times(run, plain, 5)
    return found


def memory_of(n: int, learns: bool) -> float:
    """Megabytes above the inputs, in a process of its own."""
    given = [tensor.requires_grad_(learns) for tensor in tensors(n)]

    def run() -> object:
        att = regard.attend(*given, measure=["entropy", "received"])
        if not learns:
            return att
        return torch.autograd.grad(att.output.sum() + att.measured["entropy"].sum(), given)

    with torch.set_grad_enabled(learns):
        return round(peak(run), 1)


def memory(longest: int) -> dict[str, dict[str, float]]:
    """Peak memory by the number of keys; four times as many keys take eight times as long with a gradient."""
    sizes = [n for n in (4096, 8192, 16384, 32768, 65536) if n <= longest]
    jobs = [(n, learns) for n in sizes for learns in (False, True) if n <= 32768 or not learns]
    found: dict[str, dict[str, float]] = {"forward": {}, "forward and backward": {}}
    for n, learns in jobs:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
            found["forward and backward" if learns else "forward"][str(n)] = alone.submit(memory_of, n, learns).result()
    return found


SECTIONS = {"answers": costs, "masks": masks, "gradients": gradients, "layers": layers, "graphs": graphs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"{', '.join(SECTIONS)} or memory; default: all")
    parser.add_argument("--longest", type=int, default=65536, help="the most keys of the table of memory")
    arguments = parser.parse_args()
    for name in arguments.sections or [*SECTIONS, "memory"]:
        torch.manual_seed(SEED)
        settings = {"megabytes": memory(arguments.longest)} if name == "memory" else {}
        report(name, SECTIONS[name]() if name in SECTIONS else {}, SEED, heads=HEADS, head_dim=DIM, keys=N, **settings)


if __name__ == "__main__":
    main()
