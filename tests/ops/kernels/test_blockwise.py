"""Row blocks: gradients, what is skipped, threads, dropout, and errors."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from itertools import chain, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.ops.cases import SCORES, masks, measures
from helpers.pairwise import each_value
from regard.errors import InvalidArgument, StaleView
from regard.ops import attend, weights
from regard.ops.kernels import threads
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.blocks import CPU, partition
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.kernels.threads import run_parallel
from regard.ops.masks import Causal, Padding, Window
from regard.ops.measures import BlockMean, LogSumExp, Measure
from regard.ops.request import make_request
from regard.ops.scores import Score
from regard.ops.weight_matrix import WeightMatrix

ON_THREADS = Blockwise(min_multiply_adds=0)


def tensors(batch=1, heads=2, kv_heads=1, queries=7, keys=6, dim=3, dtype=torch.float64):
    random = torch.Generator().manual_seed(2)
    shapes = (batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim + 1)
    return [torch.randn(shape, generator=random, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(
    ("mask", "score", "name"), each_value(list(masks(1, 2, 7, 6)), list(SCORES), list(measures(7, 6)))
)
def test_gradients_equal_finite_differences(mask, score, name):
    query, key, value = tensors()
    rule, measure, case = masks(1, 2, 7, 6)[mask], measures(7, 6)[name], SCORES[score]
    learned = {name: tensor.requires_grad_() for name, tensor in case.tensors(2, 7, 6, 3).items()}

    def function(query, key, value, *score_tensors):
        score = case.rule(dict(zip(learned, score_tensors, strict=True)))
        att = attend(query, key, value, mask=rule, score=score, measure={"x": measure}, kernel="blockwise")
        result = att.measured["x"]
        results = result[:1] if name == "topk" else result if isinstance(result, tuple) else (result,)
        return att.output, *(result.masked_fill(result == -torch.inf, 0.0) for result in results)

    leaves = [tensor for tensor in learned.values() if tensor.isfinite().all()]
    if len(leaves) == len(learned):
        assert torch.autograd.gradcheck(function, (query, key, value, *leaves), fast_mode=True)
    else:  # differences cannot be taken at a bias of −∞
        fixed = [tensor.detach() for tensor in learned.values()]
        inputs = query, key, value
        assert torch.autograd.gradcheck(lambda *leaves: function(*leaves, *fixed), inputs, fast_mode=True)


def test_a_tensor_of_a_measure_has_a_gradient():
    query, key, _ = tensors()
    row_weights = torch.rand(7, dtype=torch.float64, requires_grad=True)

    def function(row_weights):
        return weights(query, key).received(row_weights)

    assert torch.autograd.gradcheck(function, (row_weights,))


@given(
    rows=st.integers(1, 40),
    cells=st.integers(1, 4000),
    mask=st.sampled_from(list(masks(2, 4, 1, 1))),
    kv_heads=st.sampled_from([1, 2, 4]),
)
def test_results_do_not_depend_on_the_size_of_blocks(rows, cells, mask, kv_heads):
    query, key, value = tensors(2, 4, kv_heads, 31, 37)
    rule = masks(2, 4, 31, 37)[mask]

    def everything(sizes=None):
        att = attend(query, key, value, mask=rule, measure=measures(31, 37), kernel=Blockwise(sizes))
        results = [each[0] if isinstance(each, tuple) else each for each in att.measured.values()]
        loss = sum(x.masked_fill(x == -torch.inf, 0.0).square().sum() for x in (att.output, *results))
        return [att.output, *results, *torch.autograd.grad(loss, (query, key, value))]

    for one, other in zip(everything(), everything(replace(CPU, rows=rows, elements=cells)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def cells_computed(mask, queries, keys, batch=1, heads=2):
    request = make_request(torch.zeros(batch, heads, queries, 4), torch.zeros(batch, heads, keys, 4), mask=mask)
    count = 0
    for location in chain(*partition(request, CPU, 4, heads)):
        sizes = [part.stop - part.start for part in location.index]
        count += sizes[0] * sizes[1] * sizes[2] * sizes[3]
    return count / (batch * heads)


def test_keys_that_no_query_may_see_are_not_computed():
    n = 4096
    assert cells_computed(Causal(), n, n) < 0.52 * n * n
    assert cells_computed(Window(256, 0), n, n) < n * (256 + 2 * 128)
    assert cells_computed(Window(256, 0) & Causal(), n, n) < n * (256 + 2 * 128)
    assert cells_computed(Padding(torch.tensor([n // 4])), n, n) == n * n / 4
    assert cells_computed(None, n, n) == n * n


def test_each_row_is_in_one_block():
    request = make_request(torch.zeros(3, 6, 300, 4), torch.zeros(3, 2, 500, 4))
    visited = torch.zeros(3, 6, 300)
    for location in chain(*partition(request, CPU, 4, 2, 3)):
        visited[location.index[:3]] += 1
        assert location.heads.stop - location.heads.start == 1  # 3 heads share keys, and 2 share values
    assert (visited == 1).all()


@pytest.mark.parametrize("n", [40, 1000])
def test_streams_share_no_head_of_keys_or_values(n, subtests):
    all_heads = (8, [8]), (8, [2]), (6, [2, 3]), (5, [1]), (1, [1]), (12, [4, 12])
    for (heads, shared), parts in product(all_heads, (1, 2, 3, 8, 64)):
        with subtests.test(heads=heads, shared=shared, parts=parts):
            check_streams(n, heads, shared, parts)


def check_streams(n, heads, shared, parts):
    request = make_request(torch.zeros(3, heads, n, 4), torch.zeros(3, shared[0], n, 4), mask=Causal())
    owner, rows = {}, torch.zeros(3, heads, n)
    cut = [list(stream) for stream in partition(request, CPU, parts, *shared)]
    for number, locations in enumerate(cut):
        for location in locations:
            rows[location.index[:3]] += 1
            for count in shared:
                used = range(location.heads.start * count // heads, (location.heads.stop - 1) * count // heads + 1)
                for at in product(range(location.batch.start, location.batch.stop), [count], used):
                    assert owner.setdefault(at, number) == number
    assert (rows == 1).all()
    if n == 1000 and shared == [8]:
        assert len(cut) >= min(parts, 3 * 8)


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
@pytest.mark.parametrize("mask", [None, Causal()], ids=["all", "causal"])
def test_several_threads_compute_what_one_computes(kv_heads, mask):
    query, key, value = (  # in float64, because sums over other blocks round differently
        torch.randn(2, heads, 700, 8, dtype=torch.float64, requires_grad=True) for heads in (8, kv_heads, kv_heads)
    )
    before, results = torch.get_num_threads(), []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            torch.manual_seed(0)
            requested = ["entropy", "received", "max", BlockMean(64)]
            att = attend(query, key, value, mask=mask, measure=requested, kernel=ON_THREADS)
            parts = [part for each in att.measured.values() for part in (each if isinstance(each, tuple) else (each,))]
            loss = sum(part.square().sum() for part in (att.output, *parts))
            results.append([att.output, *parts, *torch.autograd.grad(loss, (query, key, value))])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*results)


def test_dropout_is_replayed_with_the_number_of_threads_of_the_forward_pass():
    query, key, value = (torch.randn(2, 8, 700, 8, requires_grad=True) for _ in range(3))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        output = attend(query, key, value, dropout=0.3, kernel=ON_THREADS).output
        torch.set_num_threads(1)
        (gradient,) = torch.autograd.grad(output.sum(), value)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close((gradient * value).sum(), output.sum(), rtol=1e-3, atol=1e-2)


def test_an_error_in_a_thread_is_raised_and_ends_the_others():
    completed = []

    def work(blocks):
        for block in blocks:
            time.sleep(0.002)
            if block == 1000:
                raise InvalidArgument("block 1000")
            completed.append(block)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(InvalidArgument, match="block 1000"):
            run_parallel(work, [range(1000), range(1000, 2000), range(1000)], 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    count = len(completed)
    assert count < 1000
    time.sleep(0.01)
    assert len(completed) == count  # the others have ended


def test_the_threads_of_a_call_share_the_cores():
    """If each thread used all cores, they would compete for them and wait."""
    counts = []

    def work(stream):
        torch.ones(10**6).exp().sum()  # a thread's first operation determines how many cores it uses
        counts.append(torch.get_num_threads())

    before = torch.get_num_threads()
    try:
        for cores, workers in ((2, 2), (3, 3), (4, 2)):
            torch.set_num_threads(cores)
            threads._pools.pop((workers, cores), None)
            run_parallel(work, [range(1)] * 4, workers)
            assert counts == [cores // workers] * 4
            counts.clear()
    finally:
        torch.set_num_threads(before)


def test_small_calls_use_one_thread():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        kernel = Blockwise(min_multiply_adds=2 * 5 * 4 * 5)
        for queries, expected in ((4, 1), (5, 3)):
            query, key = torch.zeros(1, 2, queries, 4), torch.zeros(1, 2, 5, 4)
            assert kernel.streams(KernelInputs(None, make_request(query, key), {}))[1] == expected
    finally:
        torch.set_num_threads(before)


def test_threads_work_in_inference_mode_and_in_a_forked_process():
    query = torch.randn(2, 8, 700, 8)
    expected = attend(query, query, query, measure="entropy", kernel=ON_THREADS).output
    with torch.inference_mode():
        assert torch.equal(attend(query, query, query, measure="entropy", kernel=ON_THREADS).output, expected)
    script = """
import os, sys, torch, regard
from regard.ops.kernels.blockwise import Blockwise
kernel = Blockwise(min_multiply_adds=0)
torch.set_num_threads(2)
query = torch.randn(2, 8, 700, 8)
regard.attend(query, query, query, measure="entropy", kernel=kernel)
child = os.fork() if hasattr(os, "fork") else 0
if child == 0:
    torch.set_num_threads(1)  # OpenMP has lost its threads, too
    regard.attend(query, query, query, measure="entropy", kernel=kernel)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_dropout_drops_its_share_and_is_replayed_backwards():
    query, key = torch.randn(2, 1, 2, 300, 8).unbind(0)
    value = torch.eye(64).expand(1, 2, 64, 64).repeat(1, 1, 5, 1)[:, :, :300].requires_grad_()
    torch.manual_seed(3)
    att = attend(query, key, value, dropout=0.25, kernel="blockwise", measure="entropy")
    plain = attend(query, key, value, kernel="blockwise", measure="entropy")
    assert torch.equal(att.measured["entropy"], plain.measured["entropy"])  # measured before dropout
    assert abs(att.output.mean() / plain.output.mean() - 1) < 0.02
    # The output is linear in value: if the backward pass drops the same weights, gradient · value is the output's sum.
    gradient = torch.autograd.grad(att.output.sum(), value)[0]
    torch.testing.assert_close((gradient * value).sum(), att.output.sum())
    assert not torch.allclose(gradient, torch.autograd.grad(plain.output.sum(), value)[0])


def test_dropout_follows_the_seed():
    query, key, value = torch.randn(3, 1, 2, 50, 8).unbind(0)
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(attend(query, key, value, dropout=0.5, kernel="blockwise").output)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_sums_stay_in_float32_under_autocast():
    query, key, value = torch.randn(3, 1, 2, 200, 8).unbind(0)
    plain = attend(query, key, value, measure="entropy", kernel="blockwise")
    with torch.autocast("cpu", torch.bfloat16):
        cast = attend(query, key, value, measure="entropy", kernel="blockwise")
    assert torch.equal(plain.measured["entropy"], cast.measured["entropy"])


def test_masked_scores_get_no_gradient_from_a_measure():
    class Sum(type(measures(3, 3)["total"])):
        def compute(self, block):
            return block.scores.clamp(min=-5).sum((-1, -2))

    query, key, _ = tensors()
    mask = Causal()
    (actual,) = torch.autograd.grad(weights(query, key, mask=mask).measure({"x": Sum()})["x"].sum(), query)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key.expand(1, 2, 6, 3)) * 3**-0.5
    below = torch.arange(6) <= torch.arange(7)[:, None] - 1
    (expected,) = torch.autograd.grad(torch.where(below & (scores > -5), scores, 0.0).sum(), query)
    torch.testing.assert_close(actual, expected)


class Table(Score):
    """A user's score that returns its own table, or a tensor that its gradient needs."""

    table: torch.Tensor
    returns: str

    def __call__(self, query, key, scale, tile):
        scores = self.table[:, :, tile.rows, slice(*tile.keys)]
        if self.returns == "expanded":
            return scores.expand(-1, query.shape[1], -1, -1)
        return scores.tanh() if self.returns == "tanh" else scores


@pytest.mark.parametrize("returns", ["table", "expanded", "tanh"])
def test_the_tensor_of_a_score_is_not_changed(returns):
    query, key, value = tensors()
    table = torch.randn(1, 1 if returns == "expanded" else 2, 7, 6, dtype=torch.float64, requires_grad=True)
    before = table.detach().clone()
    results = []
    for kernel in ("reference", "blockwise"):
        output = attend(query, key, value, score=Table(table, returns), mask=Causal(), kernel=kernel).output
        results.append((output, *torch.autograd.grad(output.square().sum(), (table, value))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(table, before)


def test_a_result_that_cannot_have_a_gradient_is_rejected_in_the_backward_pass():
    class Strong(Measure):
        def compute(self, block):
            return (block.weights > 0.1).double().sum(-1)

    query, key, _ = tensors()
    counted = weights(query, key).measure(Strong())["strong"]
    with pytest.raises(InvalidArgument, match="measure 'strong': its result does not follow"):
        counted.sum().backward()


def test_a_mask_that_is_changed_before_the_backward_pass_is_noticed():
    query, key, value = tensors()
    mask = torch.rand(7, 6) < 0.5
    output = attend(query, key, value, mask=mask, kernel="blockwise").output
    mask.fill_(True)
    with pytest.raises(StaleView, match=r"the mask .* \(7, 6\) was changed in place"):
        output.sum().backward()


@pytest.mark.parametrize(
    ("axis", "compute", "message"),
    [
        ("query", lambda block: block.lse, "expected axis 'queries', 'keys' or None, got 'query'"),
        ("queries", lambda block: 3, r"compute\(\) must return a tensor or a tuple of tensors, got int"),
        ("keys", lambda block: block.lse, r"start with \(batch, heads, keys\) = \(1, 2, 6\), got shape \(1, 2, 7\)"),
    ],
)
def test_invalid_results_of_a_user_s_measure_are_rejected(axis, compute, message):
    class Own(Measure):
        def compute(self, block):
            return compute(block)

    Own.axis = axis
    query, key, _ = tensors()
    with pytest.raises(InvalidArgument, match="measure 'own': .*" + message):
        weights(query, key).measure(Own())


def test_a_measure_may_return_a_plain_tuple():
    class Both(Measure):
        def compute(self, block):
            return block.lse, block.weights.amax(-1)

    query, key, _ = tensors()
    lse, largest = weights(query, key).measure(Both())["both"]
    assert torch.equal(lse, weights(query, key).lse())
    torch.testing.assert_close(largest, weights(query, key).topk(1).values[..., 0])


def test_only_autograd_holds_the_tensors_for_the_backward_pass():
    query, key, value = tensors(batch=2)
    offloaded = []

    def pack(tensor):
        offloaded.append(tensor.clone())
        return len(offloaded) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, offloaded.__getitem__):
        inner = query * 1.0
        stored = weakref.ref(inner)
        att = attend(inner, key, value, mask=Padding(torch.tensor([5, 4])), measure="entropy", kernel="blockwise")
        output, entropy = att.output, att.measured["entropy"]
        del att, inner
        gc.collect()
    assert stored() is None  # the hooks moved it elsewhere
    (output.sum() + entropy.sum()).backward()
    expected = query.detach().clone().requires_grad_()
    att = attend(expected, key, value, mask=Padding(torch.tensor([5, 4])), measure="entropy", kernel="reference")
    (att.output.sum() + att.measured["entropy"].sum()).backward()
    torch.testing.assert_close(query.grad, expected.grad)


def test_dropout_needs_the_same_randomness_for_all_of_a_vmap():
    query, key, value = tensors(batch=2)

    def run(query):
        return attend(query[None], key[:1], value[:1], dropout=0.5, kernel="blockwise").output

    with pytest.raises(InvalidArgument, match=r"dropout: expected torch\.vmap with randomness='same'"):
        torch.vmap(run, randomness="different")(query)
    assert torch.vmap(run, randomness="same")(query).shape == (2, 1, 2, 7, 4)


class SavesLse(Blockwise):
    """Blocks of rows whose forward pass leaves the log-sum-exp to the backward pass, where it must arrive."""

    name = "saves_lse"

    def saved_specs(self, inputs):
        return ((inputs.request.shape[:3], inputs.request.dtype),)

    def forward(self, inputs, options):
        result = super().forward(inputs, options)
        lse = Blockwise().forward(replace(inputs, value=None, measures={"lse": LogSumExp()}), options).results
        return result._replace(saved=tuple(lse.tensors()) if options.saves else ())

    def backward(self, inputs, options, needed, gradients, saved):
        (lse,) = saved
        torch.testing.assert_close(lse, WeightMatrix(inputs.request).lse())
        return super().backward(inputs, options, needed, gradients, ())


def gradients_with(kernel):
    inputs = [tensor.clone().requires_grad_() for tensor in torch.randn(3, 2, 4, 30, 8).unbind()]

    def loss(query, key, value):
        att = attend(query, key, value, measure=["entropy", "lse"], kernel=kernel)
        return att.output.square().sum() + att.measured["entropy"].sum() + att.measured["lse"].square().sum()

    def losses(*each):
        return loss(*(tensor[None] for tensor in each))

    gradient = torch.func.grad(losses, argnums=(0, 1, 2))
    return [
        torch.autograd.grad(loss(*inputs), inputs),
        torch.autograd.grad(torch.utils.checkpoint.checkpoint(loss, *inputs, use_reentrant=False), inputs),
        torch.func.vmap(gradient)(*(tensor.detach() for tensor in inputs)),
    ]


def test_what_the_forward_pass_saves_reaches_the_backward_pass():
    results = []
    for kernel in (SavesLse(), "blockwise"):
        torch.manual_seed(0)
        results.append(gradients_with(kernel))
    torch.testing.assert_close(*results)
    with torch.no_grad():
        x = torch.randn(1, 1, 4, 8)
        assert attend(x, x, x, kernel=SavesLse()).output.shape == x.shape
