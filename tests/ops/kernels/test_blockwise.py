"""Row blocks: gradients, what is skipped, dropout, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import chain, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad

from ops.rules import SCORES, masks, measures
from pairwise import pairwise
from regard.errors import InvalidArgument, StaleView
from regard.ops import BlockMean, Causal, Measure, Padding, Score, Window, attend, weights
from regard.ops.kernels import blocks, threads
from regard.ops.kernels.blocks import streams
from regard.ops.kernels.threads import run_all
from regard.ops.request import make_request


def tensors(batch=1, heads=2, kv_heads=1, queries=7, keys=6, dim=3, dtype=torch.float64):
    random = torch.Generator().manual_seed(2)
    shapes = (batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim + 1)
    return [torch.randn(shape, generator=random, dtype=dtype).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(
    ("mask", "score", "name"), pairwise(list(masks(1, 2, 7, 6)), list(SCORES), list(measures(7, 6)))
)
def test_gradients_are_those_of_finite_differences(mask, score, name):
    query, key, value = tensors()
    rule, measure, case = masks(1, 2, 7, 6)[mask], measures(7, 6)[name], SCORES[score]
    held = {name: tensor.requires_grad_() for name, tensor in case.tensors(2, 7, 6, 3).items()}

    def function(query, key, value, *given):
        score = case.rule(dict(zip(held, given, strict=True)))
        att = attend(query, key, value, mask=rule, score=score, measure={"x": measure}, kernel="blockwise")
        answer = att.measured["x"]
        answers = answer[:1] if name == "topk" else answer if isinstance(answer, tuple) else (answer,)
        return att.output, *(answer.masked_fill(answer == -torch.inf, 0.0) for answer in answers)

    leaves = [tensor for tensor in held.values() if tensor.isfinite().all()]
    if len(leaves) == len(held):
        assert torch.autograd.gradcheck(function, (query, key, value, *leaves))
    else:  # a bias of −∞ has no neighbours to take differences with
        fixed = [tensor.detach() for tensor in held.values()]
        assert torch.autograd.gradcheck(lambda *given: function(*given, *fixed), (query, key, value))


def test_a_tensor_in_a_measure_has_a_gradient():
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
def test_the_size_of_blocks_does_not_matter(rows, cells, mask, kv_heads):
    query, key, value = tensors(2, 4, kv_heads, 31, 37)
    rule = masks(2, 4, 31, 37)[mask]

    def everything():
        att = attend(query, key, value, mask=rule, measure=measures(31, 37), kernel="blockwise")
        answers = [a[0] if isinstance(a, tuple) else a for a in att.measured.values()]
        loss = sum(x.masked_fill(x == -torch.inf, 0.0).square().sum() for x in (att.output, *answers))
        return [att.output, *answers, *torch.autograd.grad(loss, (query, key, value))]

    whole = everything()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(blocks.ROWS, "cpu", rows)
        patch.setitem(blocks.CELLS, "cpu", cells)
        cut = everything()
    for one, other in zip(whole, cut, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def cells_computed(mask, queries, keys, batch=1, heads=2):
    request = make_request(torch.zeros(batch, heads, queries, 4), torch.zeros(batch, heads, keys, 4), mask=mask)
    count = 0
    for place in chain(*streams(request, 4, heads)):
        sizes = [part.stop - part.start for part in (place.batch, place.heads, place.rows, place.keys)]
        count += sizes[0] * sizes[1] * sizes[2] * sizes[3]
    return count / (batch * heads)


def test_what_no_query_may_see_is_not_computed():
    n = 4096
    assert cells_computed(Causal(), n, n) < 0.52 * n * n
    assert cells_computed(Window(256, 0), n, n) < n * (256 + 2 * 128)
    assert cells_computed(Window(256, 0) & Causal(), n, n) < n * (256 + 2 * 128)
    assert cells_computed(Padding(torch.tensor([n // 4])), n, n) == n * n / 4
    assert cells_computed(None, n, n) == n * n


def test_each_row_is_in_one_block():
    request = make_request(torch.zeros(3, 6, 300, 4), torch.zeros(3, 2, 500, 4))
    seen = torch.zeros(3, 6, 300)
    for place in chain(*streams(request, 4, 2, 3)):
        seen[place.index[:3]] += 1
        assert place.heads.stop - place.heads.start == 1  # shared by 3 for the keys and by 2 for the values
    assert (seen == 1).all()


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 64])
@pytest.mark.parametrize(("heads", "shared"), [(8, [8]), (8, [2]), (6, [2, 3]), (5, [1]), (1, [1]), (12, [4, 12])])
@pytest.mark.parametrize("n", [40, 1000])
def test_streams_share_no_head_of_keys_or_values(n, heads, shared, parts):
    request = make_request(torch.zeros(3, heads, n, 4), torch.zeros(3, shared[0], n, 4), mask=Causal())
    owner, rows = {}, torch.zeros(3, heads, n)
    cut = [list(stream) for stream in streams(request, parts, *shared)]
    for number, places in enumerate(cut):
        for place in places:
            rows[place.index[:3]] += 1
            for count in shared:
                used = range(place.heads.start * count // heads, (place.heads.stop - 1) * count // heads + 1)
                for at in product(range(place.batch.start, place.batch.stop), [count], used):
                    assert owner.setdefault(at, number) == number
    assert (rows == 1).all()
    if n == 1000 and shared == [8]:
        assert len(cut) >= min(parts, 3 * 8)


@pytest.mark.parametrize("kv_heads", [8, 2, 1])
@pytest.mark.parametrize("mask", [None, Causal()], ids=["all", "causal"])
def test_several_threads_give_what_one_gives(kv_heads, mask, monkeypatch):
    monkeypatch.setattr(threads, "WORTH", 0)
    query, key, value = (  # in float64, since a sum over other blocks rounds otherwise
        torch.randn(2, heads, 700, 8, dtype=torch.float64, requires_grad=True) for heads in (8, kv_heads, kv_heads)
    )
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            torch.manual_seed(0)
            asked = ["entropy", "received", "max", BlockMean(64)]
            att = attend(query, key, value, mask=mask, measure=asked, kernel="blockwise")
            answers = [
                part for each in att.measured.values() for part in (each if isinstance(each, tuple) else (each,))
            ]
            loss = sum(part.square().sum() for part in (att.output, *answers))
            found.append([att.output, *answers, *torch.autograd.grad(loss, (query, key, value))])
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*found)


def test_dropout_is_replayed_on_as_many_threads_as_there_were(monkeypatch):
    monkeypatch.setattr(threads, "WORTH", 0)
    query, key, value = (torch.randn(2, 8, 700, 8, requires_grad=True) for _ in range(3))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        output = attend(query, key, value, dropout=0.3, kernel="blockwise").output
        torch.set_num_threads(1)
        (gradient,) = torch.autograd.grad(output.sum(), value)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close((gradient * value).sum(), output.sum(), rtol=1e-3, atol=1e-2)


def test_an_error_in_a_thread_is_the_caller_s_and_ends_the_others():
    done = []

    def work(number, blocks):
        for block in blocks:
            time.sleep(0.002)
            if number == 1:
                raise InvalidArgument("number 1")
            done.append(block)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(InvalidArgument, match="number 1"):
            run_all(work, [range(1000)] * 3, 2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    count = len(done)
    assert count < 1000
    time.sleep(0.01)
    assert len(done) == count  # and they have ended


def test_the_threads_of_a_call_share_the_cores():
    """Cores that each thread wanted for itself would be wanted several times over, and all would wait."""
    found = []

    def work(stream, some):
        torch.ones(10**6).exp().sum()  # the first operation of a thread settles how many cores it uses
        found.append(torch.get_num_threads())

    before = torch.get_num_threads()
    try:
        for cores, workers in ((2, 2), (3, 3), (4, 2)):
            torch.set_num_threads(cores)
            threads._pools.pop((workers, cores), None)
            run_all(work, [range(1)] * 4, workers)
            assert found == [cores // workers] * 4
            found.clear()
    finally:
        torch.set_num_threads(before)


def test_small_jobs_have_no_threads_of_their_own():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert [threads.most_threads(count) for count in (0, threads.WORTH - 1, threads.WORTH)] == [1, 1, 3]
    finally:
        torch.set_num_threads(before)


def test_inference_mode_and_a_forked_process_have_their_threads(monkeypatch):
    monkeypatch.setattr(threads, "WORTH", 0)
    query = torch.randn(2, 8, 700, 8)
    expected = attend(query, query, query, measure="entropy").output
    with torch.inference_mode():
        assert torch.equal(attend(query, query, query, measure="entropy").output, expected)
    script = """
import os, sys, torch, regard
from regard.ops.kernels import threads
threads.WORTH = 0
torch.set_num_threads(2)
query = torch.randn(2, 8, 700, 8)
regard.attend(query, query, query, measure="entropy")
child = os.fork() if hasattr(os, "fork") else 0
if child == 0:
    torch.set_num_threads(1)  # OpenMP, too, has lost its threads
    regard.attend(query, query, query, measure="entropy")
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_dropout_drops_that_share_and_replays_it_backwards():
    query, key = torch.randn(2, 1, 2, 300, 8).unbind(0)
    value = torch.eye(64).expand(1, 2, 64, 64).repeat(1, 1, 5, 1)[:, :, :300].requires_grad_()
    torch.manual_seed(3)
    att = attend(query, key, value, dropout=0.25, kernel="blockwise", measure="entropy")
    plain = attend(query, key, value, kernel="blockwise", measure="entropy")
    assert torch.equal(att.measured["entropy"], plain.measured["entropy"])  # told before dropout
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


@pytest.mark.parametrize("kernel", ["blockwise", "short"])
def test_a_second_derivative_is_refused_and_not_zero(kernel):
    query, key, value = tensors()
    output = attend(query, key, value, kernel=kernel).output
    (first,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    for again in (query, key, value):
        with pytest.raises(InvalidArgument, match=r"kernel=.reference. has second derivatives"):
            torch.autograd.grad(first.sum() + query.sum() + key.sum() + value.sum(), again, retain_graph=True)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, on first use
def test_forward_mode_is_refused_and_not_zero():
    query, key, value = (x.detach() for x in tensors())
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="jvp"):
        attend(forward_ad.make_dual(query, query), key, value, kernel="blockwise")


def test_under_autocast_sums_stay_in_float32():
    query, key, value = torch.randn(3, 1, 2, 200, 8).unbind(0)
    plain = attend(query, key, value, measure="entropy", kernel="blockwise")
    with torch.autocast("cpu", torch.bfloat16):
        cast = attend(query, key, value, measure="entropy", kernel="blockwise")
    assert torch.equal(plain.measured["entropy"], cast.measured["entropy"])


def test_what_a_measure_hands_back_to_masked_scores_is_nothing():
    class Sum(type(measures(3, 3)["total"])):
        def of(self, block):
            return block.scores.clamp(min=-5).sum((-1, -2))

    query, key, _ = tensors()
    mask = Causal()
    (found,) = torch.autograd.grad(weights(query, key, mask=mask).measure({"x": Sum()})["x"].sum(), query)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key.expand(1, 2, 6, 3)) * 3**-0.5
    below = torch.arange(6) <= torch.arange(7)[:, None] - 1
    (right,) = torch.autograd.grad(torch.where(below & (scores > -5), scores, 0.0).sum(), query)
    torch.testing.assert_close(found, right)


@dataclass(frozen=True, eq=False)
class Table(Score):
    """A user's rule that hands out its own table, or something that its gradient needs."""

    table: torch.Tensor
    how: str

    def __call__(self, query, key, scale, cells):
        scores = self.table[:, :, cells.rows, slice(*cells.keys)]
        return (
            scores.expand(-1, query.shape[1], -1, -1)
            if self.how == "expanded"
            else scores.tanh()
            if self.how
            else scores
        )


@pytest.mark.parametrize("how", ["", "expanded", "tanh"])
def test_the_tensor_of_a_score_is_left_as_it_was(how):
    query, key, value = tensors()
    table = torch.randn(1, 1 if how == "expanded" else 2, 7, 6, dtype=torch.float64, requires_grad=True)
    before = table.detach().clone()
    found = []
    for kernel in ("reference", "blockwise"):
        output = attend(query, key, value, score=Table(table, how), mask=Causal(), kernel=kernel).output
        found.append((output, *torch.autograd.grad(output.square().sum(), (table, value))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)
    assert torch.equal(table, before)


def test_an_answer_that_cannot_have_a_gradient_says_so():
    class Strong(Measure):
        def of(self, block):
            return (block.weights > 0.1).double().sum(-1)

    query, key, _ = tensors()
    counted = weights(query, key).measure(Strong())["strong"]
    with pytest.raises(InvalidArgument, match="measure 'strong': its answer does not follow"):
        counted.sum().backward()


def test_a_mask_that_was_changed_before_the_backward_pass_is_noticed():
    query, key, value = tensors()
    mask = torch.rand(7, 6) < 0.5
    output = attend(query, key, value, mask=mask, kernel="blockwise").output
    mask.fill_(True)
    with pytest.raises(StaleView, match=r"the mask .* \(7, 6\) was changed in place"):
        output.sum().backward()


@pytest.mark.parametrize(
    ("axis", "answer", "said"),
    [
        ("query", lambda block: block.lse, "axis must be 'queries', 'keys' or None, but is 'query'"),
        ("queries", lambda block: 3, r"of\(\) must give a tensor or several, but gave int"),
        (
            "keys",
            lambda block: block.lse,
            r"start with the axes \(batch, heads, keys\) = \(1, 2, 6\), but has .* \(1, 2, 7\)",
        ),
    ],
)
def test_what_is_wrong_with_a_users_measure_is_said(axis, answer, said):
    class Own(Measure):
        def of(self, block):
            return answer(block)

    Own.axis = axis
    query, key, _ = tensors()
    with pytest.raises(InvalidArgument, match="measure 'own': .*" + said):
        weights(query, key).measure(Own())


def test_a_measure_may_give_a_plain_tuple():
    class Both(Measure):
        def of(self, block):
            return block.lse, block.weights.amax(-1)

    query, key, _ = tensors()
    lse, most = weights(query, key).measure(Both())["both"]
    assert torch.equal(lse, weights(query, key).lse())
    torch.testing.assert_close(most, weights(query, key).topk(1).values[..., 0])
