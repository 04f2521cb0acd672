"""What measures, masks, gradients and layers cost on CPU, compared with SDPA and with dense PyTorch.

If x-transformers is installed, layers are also compared with it.

Run: ``python benchmarks/attention_measures.py``, or some of its sections: ``... masks gradients``; for a quick check:
``--keys 128 --nodes 1000``.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence

import torch
from attention import DENSE_MEASURES, HEAD_DIM, HEADS, MEASURES, SEED, DenseMeasure, call, dense, qkv, sdpa
from memory import in_subprocess, peak_megabytes
from timing import relative_time, report, speedup
from torch import Tensor, nn

import regard
from regard.nn import MultiHeadAttention
from regard.ops.masks import Causal, Neighbors, Window
from regard.ops.measures import BlockMean, Diagonal, DistanceHistogram, GroupPool, TopK

ROUNDS, GROUP, DEGREE = 7, 8, 10
SLOW_ROUNDS = 3  # for baselines that compute the whole matrix
Ratios = dict[str, list[float]]


def all_measures(n: int) -> dict[str, tuple[object, DenseMeasure]]:
    """Each measure, and the same from dense scores and weights in plain PyTorch."""
    positions, groups = torch.arange(n), torch.arange(n) // GROUP
    distance = positions - positions[:, None]
    pool = GROUP * torch.nn.functional.one_hot(groups).float()
    return {
        "entropy": ("entropy", DENSE_MEASURES["entropy"]),
        "lse": ("lse", lambda scores, weights: scores.logsumexp(-1)),
        "received": ("received", DENSE_MEASURES["received"]),
        "max": ("max", lambda scores, weights: (weights.amax(-1), scores.amax(-1))),
        "topk(8)": (TopK(8), lambda scores, weights: weights.topk(8, -1)),
        "mean_distance": ("mean_distance", lambda scores, weights: (weights * distance.abs()).sum(-1)),
        "block_mean(64)": (
            BlockMean(64),
            lambda scores, weights: weights.unflatten(3, (-1, 64)).unflatten(2, (-1, 64)).mean((3, 5)),
        ),
        "diagonal(-1)": (Diagonal(-1), lambda scores, weights: weights.diagonal(-1, 2, 3)),
        "group_pool": (GroupPool(groups, groups), lambda scores, weights: pool.mT @ weights @ pool),
        "distance_histogram(16)": (
            DistanceHistogram(16),
            lambda scores, weights: weights.new_zeros(*weights.shape[:3], 33).scatter_add(
                3, (distance.clamp(-16, 16) + 16).expand_as(weights), weights
            ),
        ),
    }


def measures(n: int) -> Ratios:
    """Each measure in one pass with the output, compared with SDPA's output alone and with dense PyTorch."""
    inputs, known, ratios = qkv(n), all_measures(n), {}
    four = ["entropy", "received", "max", "mean_distance"]
    combinations = {**{name: [name] for name in known}, "four": four, "four and topk(8)": [*four, "topk(8)"]}
    for name, names in combinations.items():
        ours = call(regard.attend, inputs, measure=[known[measure][0] for measure in names])
        ratios[f"time relative to SDPA: {name}"] = relative_time(ours, call(sdpa, inputs), ROUNDS)
        baseline = call(dense, inputs, measures=[known[measure][1] for measure in names])
        ratios[f"speedup over dense PyTorch: {name}"] = speedup(ours, baseline, SLOW_ROUNDS)
    inputs = [tensor.bfloat16() for tensor in inputs]
    ours = call(regard.attend, inputs, measure=four)
    ratios["time relative to SDPA in bfloat16: four in bfloat16"] = relative_time(ours, call(sdpa, inputs), ROUNDS)
    return ratios


def masks(n: int) -> Ratios:
    """Masks whose excluded blocks are skipped."""
    ratios = {}
    for keys in (n // 4, n):
        inputs = qkv(keys)
        causal = call(regard.attend, inputs, mask=Causal(), measure=MEASURES)
        ratios[f"time relative to causal SDPA: causal, with entropy and received, {keys}"] = relative_time(
            causal, call(sdpa, inputs, is_causal=True), ROUNDS
        )
    keys, inputs = 4 * n, qkv(4 * n)
    positions = torch.arange(keys)
    band = (positions <= positions[:, None]) & (positions >= positions[:, None] - 256)
    ratios[f"speedup over SDPA with a dense mask: Window(256, 0), {keys}"] = speedup(
        call(regard.attend, inputs, mask=Window(256, 0), measure=MEASURES),
        call(sdpa, inputs, attn_mask=band),
        SLOW_ROUNDS,
    )
    del band, inputs
    for keys in (2 * n, 4 * n, 8 * n, 16 * n):
        long, short = (
            call(regard.attend, qkv(size), mask=Window(256, 0), measure=["entropy"]) for size in (keys, keys // 2)
        )
        ratios[f"time relative to half as many keys: Window(256, 0), {keys}"] = relative_time(long, short, SLOW_ROUNDS)
    return ratios


def gradients(n: int) -> Ratios:
    """Forward and backward, with gradients through output, entropy and received."""
    inputs = qkv(n, requires_grad=True)
    random = torch.randn(HEADS, n)

    def gradient(output: Tensor, *measured: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(output.sum() + sum((values * random).sum() for values in measured), inputs)

    def ours() -> object:
        att = regard.attend(*inputs, measure=MEASURES)
        return gradient(att.output, att.measured["entropy"], att.measured["received"])

    def dense_gradient() -> object:
        query, key, value = inputs
        weights = (query @ key.mT * HEAD_DIM**-0.5).softmax(-1)
        return gradient(weights @ value, torch.special.entr(weights).sum(-1), weights.sum(-2))

    def sdpa_gradient() -> object:
        return gradient(sdpa(*inputs))

    name = "forward and backward with entropy and received"
    return {
        f"time relative to SDPA: {name}": relative_time(ours, sdpa_gradient, ROUNDS),
        f"speedup over dense PyTorch: {name}": speedup(ours, dense_gradient, SLOW_ROUNDS),
    }


def layers(n: int) -> Ratios:
    """Layers with their projections that return entropy and received of each head."""
    x = torch.randn(1, n, HEADS * HEAD_DIM)
    layer = MultiHeadAttention(HEADS * HEAD_DIM, HEADS)
    torch_layer = nn.MultiheadAttention(HEADS * HEAD_DIM, HEADS, batch_first=True)

    def with_torch(x: Tensor) -> object:
        output, weights = torch_layer(x, x, x, need_weights=True, average_attn_weights=False)
        return output, torch.special.entr(weights).sum(-1), weights.sum(-2)

    ours, baseline = call(layer, [x], measure=MEASURES), call(with_torch, [x])
    name = "speedup over nn.MultiheadAttention(need_weights=True): MultiHeadAttention with entropy and received"
    ratios = {name: speedup(ours, baseline, SLOW_ROUNDS)}
    if importlib.util.find_spec("x_transformers"):
        from x_transformers.attend import Attend

        inputs, attend = qkv(n), Attend(heads=HEADS, flash=False)

        def with_x_transformers(*inputs: Tensor) -> object:
            output, intermediates = attend(*inputs)
            weights = intermediates.post_softmax_attn
            return output, torch.special.entr(weights).sum(-1), weights.sum(-2)

        ours, baseline = call(regard.attend, inputs, measure=MEASURES), call(with_x_transformers, inputs)
        name = "speedup over x-transformers' Attend: attend with entropy and received"
        ratios[name] = speedup(ours, baseline, SLOW_ROUNDS)
    return ratios


def graphs(nodes: int) -> Ratios:
    """A graph with 10 edges per node, compared with a softmax over edges by scatter operations."""
    edges = torch.stack((torch.arange(nodes).repeat_interleave(DEGREE), torch.randint(nodes, (nodes * DEGREE,))))
    mask, ratios = Neighbors(*edges), {}

    def scatter_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        rows, columns = mask.query_idx, mask.key_idx
        scores = (query[0, 0, rows] * key[0, 0, columns]).sum(-1) * HEAD_DIM**-0.5
        highest = scores.new_full((nodes,), -torch.inf).scatter_reduce(0, rows, scores, "amax")
        exp = (scores - highest[rows]).exp()
        weights = exp / exp.new_zeros(nodes).index_add(0, rows, exp)[rows]
        return value.new_zeros(nodes, HEAD_DIM).index_add(0, rows, weights[:, None] * value[0, 0, columns])

    for name, requires_grad in (("forward", False), ("forward and backward", True)):
        inputs = [torch.randn(1, 1, nodes, HEAD_DIM).requires_grad_(requires_grad) for _ in range(3)]

        def ours(inputs: list[Tensor] = inputs) -> object:
            output = regard.attend(*inputs, mask=mask).output
            return torch.autograd.grad(output.sum(), inputs) if output.requires_grad else output

        def baseline(inputs: list[Tensor] = inputs) -> object:
            output = scatter_softmax(*inputs)
            return torch.autograd.grad(output.sum(), inputs) if output.requires_grad else output

        ratios[f"time relative to scatter softmax: Neighbors, {name}"] = relative_time(ours, baseline, 5)
    return ratios


def memory_of(n: int, requires_grad: bool) -> float:
    """Peak memory above the inputs in MB."""
    inputs = qkv(n, requires_grad)

    def run() -> object:
        att = regard.attend(*inputs, measure=MEASURES)
        if not requires_grad:
            return att
        return torch.autograd.grad(att.output.sum() + att.measured["entropy"].sum(), inputs)

    with torch.set_grad_enabled(requires_grad):
        return round(peak_megabytes(run), 1)


def memory(n: int) -> dict[str, dict[str, float]]:
    """Peak memory by number of keys; the largest number only without gradients."""
    sizes = [n, 2 * n, 4 * n, 8 * n, 16 * n]
    return {
        "forward": {str(size): in_subprocess(memory_of, size, False) for size in sizes},
        "forward and backward": {str(size): in_subprocess(memory_of, size, True) for size in sizes[:-1]},
    }


SECTIONS = {"measures": measures, "masks": masks, "gradients": gradients, "layers": layers, "graphs": graphs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"{', '.join(SECTIONS)} or memory; default: all")
    parser.add_argument("--keys", type=int, default=4096)
    parser.add_argument("--nodes", type=int, default=100_000, help="of the graph")
    arguments = parser.parse_args()
    for name in arguments.sections or [*SECTIONS, "memory"]:
        torch.manual_seed(SEED)
        ratios, settings = {}, {"heads": HEADS, "head_dim": HEAD_DIM, "keys": arguments.keys}
        if name == "memory":
            settings["megabytes"] = memory(arguments.keys)
        else:
            ratios = SECTIONS[name](arguments.nodes if name == "graphs" else arguments.keys)
        report("attention_measures", ratios, SEED, section=name, **settings)


if __name__ == "__main__":
    main()
