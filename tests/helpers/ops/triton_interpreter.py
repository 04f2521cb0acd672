"""Compare the Triton kernel, run by Triton's interpreter on a CPU, with the definition; print what differs.

Run with ``TRITON_INTERPRET=1``, which must be set before Triton is imported. bfloat16 is left out: the interpreter
gets its products wrong.
"""

from __future__ import annotations

import sys
import warnings
from math import inf, nan
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch

from helpers.pairwise import pairwise
from regard.diagnostics.calls import TOLERANCES, difference, parts_of
from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.reference import Reference
from regard.ops.kernels.triton.kernel import Triton
from regard.ops.masks import Causal, Padding, Window
from regard.ops.measures import Entropy, LogSumExp, Max, MeanDistance, Received
from regard.ops.request import make_request

SHAPES = {  # batch, heads, key heads, value heads, queries, keys, head_dim, value_dim
    "equal": (1, 2, 2, 2, 70, 70, 16, 16),
    "blocks without rest": (1, 1, 1, 1, 128, 128, 64, 64),
    "several blocks": (1, 1, 1, 1, 150, 290, 24, 7),
    "grouped": (2, 4, 2, 1, 20, 33, 7, 24),
    "one query": (2, 2, 1, 2, 1, 130, 40, 16),
    "more queries": (1, 2, 2, 1, 140, 13, 3, 80),
    "one key": (2, 1, 1, 1, 5, 1, 1, 1),
}
MASKS = {
    "none": lambda batch, keys: None,
    "causal": lambda batch, keys: Causal(),
    "window": lambda batch, keys: Window(20, 3),
    "far window": lambda batch, keys: Window(-2, 70),
    "before": lambda batch, keys: Window(None, -1),
    "after": lambda batch, keys: Window(2, None),
    "padding": lambda batch, keys: Padding(torch.arange(batch) * keys // 2),
    "short padding": lambda batch, keys: Padding(torch.full((batch,), keys - keys // 3)),
}
MEASURES = {
    "none": lambda queries: {},
    "received": lambda queries: {"received": Received()},
    "rows": lambda queries: {"entropy": Entropy(), "lse": LogSumExp()},
    "all": lambda queries: {
        "distance": MeanDistance(),
        "max": Max(),
        "weighted": Received(torch.linspace(-1, 1, queries)),
        "entropy": Entropy(),
        "first": Received(torch.arange(queries) < 3),
        "lse": LogSumExp(),
    },
}
LAYOUTS = {
    "contiguous": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.transpose(1, 2).contiguous().transpose(1, 2),
    "features first": lambda tensor: tensor.mT.contiguous().mT,
}
NUMBERS = {
    "random": lambda tensor: tensor,
    "large": lambda tensor: tensor * 300,
    "with NaN": lambda tensor: tensor.index_fill(2, torch.tensor([tensor.shape[2] // 2]), nan),
    "with infinity": lambda tensor: tensor.index_fill(2, torch.tensor([tensor.shape[2] // 2]), inf).abs(),
}


def results(inputs, run):
    """Output and measures by name."""
    output, measured = run(inputs)
    return parts_of(({} if output is None else {"output": output}) | measured)


def check(shape, mask, measures, layout, numbers, dtype, scale, offset, has_value):
    batch, heads, key_heads, value_heads, queries, keys, head_dim, value_dim = SHAPES[shape]
    random = torch.Generator().manual_seed(0)
    if numbers == "with infinity" and scale == 0:  # 0 · ∞
        scale = None

    def tensor(heads, length, width):
        return LAYOUTS[layout](torch.randn(batch, heads, length, width, generator=random).to(dtype))

    query, key = tensor(heads, queries, head_dim), tensor(key_heads, keys, head_dim)
    query = NUMBERS[numbers](query) if numbers == "large" else query
    key = key if numbers == "large" else NUMBERS[numbers](key)
    value = tensor(value_heads, keys, value_dim) if has_value else None

    def inputs(convert):
        rules = {"mask": MASKS[mask](batch, keys), "scale": scale, "offset": offset}
        request = make_request(convert(query), convert(key), **rules)
        return KernelInputs(None if value is None else convert(value), request, MEASURES[measures](queries))

    ours = inputs(lambda tensor: tensor)
    assert not [
        reason for reason in Triton().unsupported_reasons(ours) if "device" not in reason and "cpu" not in reason
    ]
    found = results(ours, run)
    exact = results(inputs(torch.Tensor.double), Reference().run)
    limit = TOLERANCES[dtype] * (10 if numbers == "large" else 1)
    return {name: error for name, truth in exact.items() if not (error := difference(found[name], truth)) <= limit}


def run(call):
    from regard.ops.kernels.results import unflatten

    output, measured, _ = Triton().forward(call, RunOptions())
    return output, unflatten(call.measures, measured.layouts, measured.tensors())


def main():
    warnings.simplefilter("ignore")  # of NumPy, which computes logarithms of 0
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # new tensors are filled with NaN: nothing may be left unwritten
    axes = list(SHAPES), list(MASKS), list(MEASURES), list(LAYOUTS), list(NUMBERS)
    cases = pairwise(*axes, [torch.float32, torch.float16], [None, -0.4, 0.0], [None, -4, 9, 2**40], [True, False])
    failures = {str(case): wrong for case in cases if (wrong := check(*case))}
    print(len(cases), "cases")
    for case, wrong in failures.items():
        print(case, wrong)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
