"""Pass everything that the Triton kernel launches through the front end of Triton's compiler, without a GPU.

The interpreter takes programs that the compiler refuses: numbers of another type, numbers that are 1 and so constants.
Each mask occurs, each score, each measure forward and backward, all reads, and a part of a matrix; also with sizes and
strides of 1. With ``--all``, all masks; else a few.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import triton.compiler
from triton._C.libtriton import ir
from triton.compiler.compiler import make_backend
from triton_cases import Compiler

import regard
from helpers.ops.cases import SCORES, masks, masks_of, measures, scores_of
from helpers.pairwise import each_value
from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.triton.calls import run_forward
from regard.ops.kernels.triton.kernel import Triton
from regard.ops.kernels.triton.launch import COMPILER_OPTIONS, resolved
from regard.ops.request import make_request
from regard.ops.tree import map_tensors

META = torch.device("meta")


def to_ir(source, target=None, options=None, _env_vars=None):
    """In place of `triton.compile`."""
    backend = make_backend(target)
    options = backend.parse_options(dict(options or {}))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    parts = backend.get_codegen_implementation(options), backend.get_module_map()
    return source.make_ir(target, options, *parts, context)


class FrontEnd(Compiler):
    """Compiles kernels to the first representation."""

    def needs(self, kernel, args, options):
        constants = {name: resolved(each) for name, each in options.items()}
        kernel.warmup(*args, grid=(1,), **constants, **COMPILER_OPTIONS)
        return {}


class OnMeta(Triton):
    """The kernel on the meta device, whose launches are compiled."""

    devices = ("meta",)

    def __init__(self, launch):
        super().__init__()
        self._launcher = launch

    def unavailable_reason(self):
        return None

    def run(self, inputs):
        return self.run_eager(inputs)


def compile_calls(kernel, mask, score, shape, widths, dtype, dropout):
    """A call with all measures and gradients, and what is read from its weights."""
    batch, heads, queries, keys = shape
    kv_heads = min(heads, 2)

    def on_meta(rule):
        return map_tensors(rule, lambda tensor: tensor.to(META))

    rule, parts = on_meta(masks(*shape)[mask]), SCORES[score].tensors(heads, queries, keys, widths[0])
    tensors = {name: each.to(META, torch.float32).requires_grad_() for name, each in parts.items()}
    requested = {name: each for name, each in measures(queries, keys).items() if kernel.supports(type(each))}
    requested = {name: on_meta(each) for name, each in requested.items()}
    del requested["group_pool"]  # which reads its groups
    shapes = (batch, heads, queries, widths[0]), (batch, kv_heads, keys, widths[0]), (batch, kv_heads, keys, widths[1])
    leaves = [torch.empty(each, device=META, dtype=dtype, requires_grad=True) for each in shapes]
    rules = {"mask": rule, "score": SCORES[score].rule(tensors)}
    att = regard.attend(*leaves, **rules, measure=requested, dropout=dropout, kernel=kernel)
    results = [part for each in att.measured.values() for part in (each if isinstance(each, tuple) else (each,))]
    results = [att.output, *(part for part in results if part.is_floating_point())]
    torch.autograd.grad(results, [*leaves, *tensors.values()], [*map(torch.ones_like, results)], allow_unused=True)
    W = regard.weights(*leaves[:2], **rules, kernel=kernel)
    W.dense(), W[:, 0, :2], W @ leaves[2], W.mT @ leaves[0]
    W.measure({"divergence": regard.KLDivergence(regard.weights(*leaves[:2]))})
    selected = make_request(*leaves[:2], **rules).at(heads=torch.zeros(2, dtype=torch.int64, device=META))
    del requested["received of some"], requested["block_mean"]
    run_forward(KernelInputs(None, selected, requested), RunOptions(), kernel._launcher)


def main():
    triton.compiler.compile = to_ir
    launch = FrontEnd("sm_90")
    kernel, failures = OnMeta(launch), 0
    scores = [name for name in scores_of(kernel) if name not in ("bias of keys alone", "relative of heads")]
    cases = each_value(masks_of(kernel), scores)
    calls = {
        "usual": ((2, 4, 31, 37), (8, 5), torch.bfloat16, 0.1),
        "one": ((1, 1, 1, 1), (1, 1), torch.float32, 2.0**-32),
    }
    for name, options in calls.items():
        for mask, score in cases if "--all" in sys.argv else cases[:: len(cases) - 1]:
            try:
                compile_calls(kernel, mask, score, *options)
            except Exception:  # noqa: BLE001 - every failure is listed
                failures += 1
                print(f"{name}, {mask}, {score}:", *traceback.format_exc().splitlines()[-12:], sep="\n  ", flush=True)
    print(f"{len(launch.found)} kernels, {failures} calls failed")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
