"""Compare the Triton kernel, run by Triton's interpreter on a CPU, with the definition; print what differs.

Run with ``TRITON_INTERPRET=1``, which must be set before Triton is imported. bfloat16 is left out: the interpreter
gets its products wrong. Arguments are parts of the names of the checks to run. With ``--all``, masks, scores, shapes
and so on are combined in pairs; else each occurs. All tensors are embedded in NaN, and each address is checked.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

import regard
from helpers.ops.cases import masks_of, scores_of
from helpers.ops.triton_memory import CheckedLauncher, embedded
from helpers.pairwise import each_value, pairwise
from ops.kernels.test_conformance import OFFSETS, SCALES, compare
from regard.diagnostics.calls import difference, parts_of
from regard.diagnostics.cases import SHAPES
from regard.ops.kernels.base import KernelInputs, RunOptions
from regard.ops.kernels.reference import Reference
from regard.ops.kernels.triton.backward import Backward
from regard.ops.kernels.triton.calls import run_forward
from regard.ops.kernels.triton.kernel import Triton
from regard.ops.measures.base import as_measures
from regard.ops.request import make_request
from regard.ops.tree import map_tensors


def call(function, *arguments, **options):
    """Call a function from a kernel; the interpreter would patch all of Triton's language each time."""
    languages = {id(tl): tl, id(tl.core): tl.core}
    seen = [languages[id(each)] for each in function.fn.__globals__.values() if id(each) in languages]
    if any(tl.core.is_builtin(language.load) for language in seen):
        interpreter._patch_lang(function.fn)
    return function.rewrite()(*arguments, **options)


interpreter.InterpretedFunction.__call__ = call

is_all = "--all" in sys.argv


class Interpreted(Triton):
    """The kernel on a CPU."""

    devices = ("cpu",)
    dtypes = (torch.float32, torch.float16)

    def __init__(self):
        super().__init__()
        self._launcher = CheckedLauncher()

    def unavailable_reason(self):
        return None

    def forward(self, inputs, options):
        return super().forward(map_tensors(inputs, embedded), options)

    def backward(self, inputs, options, needed, gradients, saved):
        gradients = [each if each is None else embedded(each) for each in gradients]
        return super().backward(map_tensors(inputs, embedded), options, needed, gradients, saved)


KERNEL = Interpreted()


def conformance():
    """Masks, scores and shapes, with all measures and all gradients."""
    shapes = list(SHAPES)
    if not is_all:  # a program takes a second per sequence and head, and `sizes` has several blocks
        shapes = [name for name in SHAPES if SHAPES[name].keys < 100]
        for name in shapes:
            shape = SHAPES[name]
            group = shape.heads // shape.kv_heads
            kv_heads = min(shape.kv_heads, 2)
            SHAPES[name] = shape._replace(batch=min(shape.batch, 2), heads=kv_heads * group, kv_heads=kv_heads)
    axes = masks_of(KERNEL), shapes, scores_of(KERNEL), list(OFFSETS), list(SCALES), KERNEL.dtypes
    for case in (pairwise if is_all else each_value)(*axes):
        mask, shape, score, offset, scale, dtype = case
        yield case, lambda case=(shape, mask, score, offset, scale, dtype): compare(KERNEL, *case)


def assert_close(actual, expected, limit=2e-5):
    for name, right in expected.items():
        assert difference(actual[name], right) <= limit, (name, difference(actual[name], right))


def random(*shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def both(run, *tensors):
    """What the kernel gives in float32, and the definition in float64, each with gradients of the first tensors."""
    results = []
    for kernel, dtype in ((KERNEL, torch.float32), (Reference(), torch.float64)):
        own = [tensor.to(dtype).requires_grad_() for tensor in tensors]
        found = run(kernel, *own)
        finite = [part for part in found.values() if part.requires_grad and part.isfinite().all()]
        loss = sum(part.double().sin().sum() for part in finite)
        found |= {
            f"gradient {i}": part
            for i, part in enumerate(torch.autograd.grad(loss, own, materialize_grads=True, allow_unused=True))
        }
        results.append(found)
    assert_close(*results)


def reads():
    """Parts of a matrix: selections, single weights, products, the strongest keys."""
    query, key, x, y = random((2, 4, 37, 24), (2, 2, 70, 24), (70, 3), (37, 5))
    rules = {"mask": regard.Causal() & regard.Padding(torch.tensor([70, 30])), "offset": 20}
    rules["score"] = regard.ScaledDotProduct() + regard.Alibi(torch.tensor([0.1, 0.2, 0.3, 0.4]))

    def matrix(kernel, query, key):
        return regard.weights(query, key, **rules, kernel=kernel)

    def selected(W):
        return W.at(batch=[1, 0, 1], heads=[3, 0], queries=[5, 36, 0, 17])

    cases = {
        "rows": lambda W: {"rows": W[:, 2, 3:6]},
        "dense of a part": lambda W: {"dense": selected(W).dense()},
        "measures of a part": lambda W: selected(W).measure(
            ["entropy", "received", regard.MeanDistance(), regard.Mass(regard.Window(3, 0)), regard.Diagonal(-2)]
        ),
        "product": lambda W: {"product": W @ x.to(W.dtype)},
        "transposed product": lambda W: {"product": W.mT @ y.to(W.dtype)},
        "strongest keys": lambda W: parts_of({"topk": W.topk(5)}),
    }
    for name, read in cases.items():
        yield name, lambda read=read: both(lambda kernel, query, key: read(matrix(kernel, query, key)), query, key)


def dropout():
    """The same weights are dropped as by the definition, forward and backward."""
    tensors = random((2, 2, 40, 16), (2, 2, 70, 16), (2, 2, 70, 8))

    def run(kernel, *tensors):
        torch.manual_seed(3)
        att = regard.attend(
            *tensors, mask=regard.Window(30, 5), dropout=0.3, measure=["entropy", "received"], kernel=kernel
        )
        return {"output": att.output, **att.measured}

    yield "output and gradients", lambda: both(run, *tensors)


def sizes():
    """One less than a block, a block, and one more, in both directions; and one query of many blocks."""
    lengths = 63, 64, 65, 128
    masks = {
        "none": None,
        "causal": regard.Causal(),
        "window": regard.Window(5, 2),
        "prefix": regard.Prefix(3),
        "documents": regard.Documents(torch.arange(65) // 32),
    }
    cases = (pairwise if is_all else each_value)(masks, lengths, lengths, (15, 16, 17, 40))
    for mask, queries, keys, head_dim in [*cases, ("none", 1, 700, 8)]:
        rule = regard.Documents(torch.arange(keys) // 32) if mask == "documents" else masks[mask]
        tensors = random((1, 1, queries, head_dim), (1, 1, keys, head_dim), (1, 1, keys, 7))

        def run(kernel, *tensors, rule=rule):
            att = regard.attend(*tensors, mask=rule, measure=["received", "entropy"], kernel=kernel)
            return {"output": att.output, **att.measured}

        yield (mask, queries, keys, head_dim), lambda run=run, tensors=tensors: both(run, *tensors)


def undefined():
    """NaN and infinity in a key, which reach the rows that see it and no others."""
    measures = ["entropy", "lse", "max", "received", "mean_distance", regard.TopK(3), regard.DistanceHistogram(2)]
    for number in (torch.nan, torch.inf):
        for mask in (None, regard.Causal(), regard.Prefix(2)):
            query, key, value = random((1, 2, 40, 16), (1, 1, 70, 16), (1, 1, 70, 8))
            key[0, 0, 50] = number
            tensors = query.abs(), key.abs(), value

            def results(kernel, dtype, mask=mask, tensors=tensors):
                att = regard.attend(*(each.to(dtype) for each in tensors), mask=mask, measure=measures, kernel=kernel)
                return {"output": att.output, **parts_of(att.measured)}

            yield (
                (number, mask),
                lambda results=results: assert_close(
                    results(KERNEL, torch.float32), results(Reference(), torch.float64)
                ),
            )


def divergence():
    """From another matrix with a mask, a score and key heads of its own."""
    query, key, value, other_query, other_key = random(
        (1, 4, 40, 16), (1, 2, 70, 16), (1, 4, 70, 8), (1, 4, 40, 8), (1, 4, 70, 8)
    )
    slopes, logits = torch.rand(4), torch.rand(4)

    def run(kernel, query, key, *, mask, other_mask, score):
        other = regard.weights(
            other_query.to(query.dtype),
            other_key.to(query.dtype),
            mask=other_mask,
            score=regard.ScaledDotProduct() + regard.Alibi(slopes),
        )
        measure = {"divergence": regard.KLDivergence(other), "entropy": regard.Entropy()}
        att = regard.attend(query, key, value.to(query.dtype), mask=mask, score=score, measure=measure, kernel=kernel)
        finite = att.measured["divergence"].masked_fill(att.measured["divergence"].isinf(), 0.0)
        return {"output": att.output, **att.measured, "finite": finite}

    scores = {"plain": None, "sinks": regard.Sinks(regard.ScaledDotProduct(), logits)}
    for mask, other_mask in ((None, None), (regard.Causal(), regard.Causal()), (regard.Causal(), regard.Window(20, 0))):
        for name, score in scores.items():
            rules = {"mask": mask, "other_mask": other_mask, "score": score}
            yield (mask, other_mask, name), lambda rules=rules: both(partial(run, **rules), query, key)


def relative():
    """Tables of each sequence and head, and shared ones; a soft-cap after them, and parts of a matrix."""
    query, key, value = random((2, 2, 17, 16), (2, 1, 40, 16), (2, 1, 40, 8))

    def score(tables):
        return regard.ScaledDotProduct() + regard.RelativeQuery(tables[0]) + regard.RelativeKey(tables[1])

    def run(kernel, key, *tables):
        options = {"score": regard.SoftCap(score(tables), 3.0), "mask": regard.Window(30, 9), "scale": 0.2}
        own = query.to(key.dtype), key, value.to(key.dtype)
        att = regard.attend(*own, **options, measure=["entropy", "received"], kernel=kernel)
        return {"output": att.output, **att.measured}

    def part(kernel, key, tables):
        own = score([table.to(key.dtype) for table in tables])
        W = regard.weights(query.to(key.dtype), key, score=own, kernel=kernel)
        return {"part": W.at(batch=[1, 0], heads=[1], queries=[5, 16, 0]).dense()}

    for axes, reach in (((), 0), ((2,), 60), ((2, 2), 5)):
        tables = random((*axes, 2 * reach + 1, 16), (*axes, 3, 16))
        yield (axes, reach), lambda tables=tables: both(run, key, *tables)
        yield ("part", axes, reach), lambda tables=tables: both(partial(part, tables=tables), key)


def needed():
    """Gradients of one tensor alone, and without a gradient of the output."""
    tensors = random((1, 2, 20, 16), (1, 1, 30, 16), (1, 2, 30, 8))
    score = regard.ScaledDotProduct() + regard.RelativeKey(torch.randn(5, 16))
    for number in range(3):
        for result in ("output", "entropy"):

            def run(kernel, own, number=number, result=result):
                parts = [each.to(own.dtype) for each in tensors]
                parts[number] = own
                att = regard.attend(*parts, score=score, mask=regard.Causal(), measure="entropy", kernel=kernel)
                return {"output": att.output, **att.measured} if result == "output" else att.measured

            if (number, result) != (2, "entropy"):  # which does not depend on the value
                yield (number, result), lambda run=run, own=tensors[number]: both(run, own)


def offsets():
    """Elements beyond 2³¹ from the first one, with strides below: of a head, a row, and of the rules."""
    far = 2**30 + 48
    whole = torch.from_numpy(np.zeros(3 * far, dtype=np.float32))  # whose memory is not there until it is written

    def at_stride(tensor, axis):
        strides = [*tensor.contiguous().stride()]
        strides[axis] = far
        view = whole.as_strided(tensor.shape, strides)
        return view.copy_(tensor)

    tensors = random((1, 3, 3, 16), (1, 3, 20, 16), (1, 3, 20, 16), dtype=torch.float32)
    bias, gradient = random((3, 3, 20), (1, 3, 3, 16), dtype=torch.float32)
    few = [each[:, :, :3] for each in tensors]
    for name, axis, own in (("heads", 1, tensors), ("rows", 2, few)):

        def run(own=own, axis=axis):
            found = []
            for i in range(5):
                parts = [*own, bias[:, : own[0].shape[2], : own[1].shape[2]], gradient[:, :, : own[0].shape[2]]]
                expected = far_results(*parts)
                parts[i] = at_stride(parts[i], axis if parts[i].ndim == 4 else axis - 1)
                found.append((far_results(*parts), expected))
            for actual, expected in found:
                assert_close(actual, expected)

        yield name, run


def far_results(query, key, value, bias, gradient):
    """Output, a measure, and gradients of all tensors."""
    leaves = [each.detach().requires_grad_() for each in (query, key, value, bias)]
    inputs = KernelInputs(
        leaves[2],
        make_request(*leaves[:2], score=regard.ScaledDotProduct() + regard.Bias(leaves[3])),
        as_measures("received"),
    )
    launch = CheckedLauncher()
    with torch.no_grad():
        output, results, saved = run_forward(inputs, RunOptions(saves=True), launch)
        sums = Backward(inputs, RunOptions(), [True] * 4, [gradient, None], [output, *saved], launch).run()
    names = "gradient of value", "gradient of query", "gradient of key", "gradient of bias"
    return {"output": output, "received": results.whole("received")[0], **dict(zip(names, sums, strict=True))}


CHECKS = [conformance, reads, dropout, sizes, undefined, divergence, relative, needed, offsets]


def main():
    warnings.simplefilter("ignore")  # of NumPy, which computes logarithms of 0
    warnings.filterwarnings("error", "kernel 'triton' cannot")  # or the fallback would be tested
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # new tensors are filled with NaN: nothing may be left unwritten
    patterns = [argument for argument in sys.argv[1:] if argument != "--all"]
    failures, count, start = {}, 0, time.process_time()
    for check in CHECKS:
        for case, run in check():
            name = f"{check.__name__}: {case}"
            if patterns and not any(pattern in name for pattern in patterns):
                continue
            count += 1
            try:
                run()
            except Exception as error:  # noqa: BLE001 - every failure is listed
                failures[name] = f"{type(error).__name__}: {str(error)[:300]}"
                print(name, "->", failures[name], flush=True)
                if os.environ.get("TRACEBACK"):
                    traceback.print_exc()
                    sys.exit(1)
    print(f"{count} checks, {KERNEL._launcher.count} launches, {time.process_time() - start:.0f} s")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
