"""The native kernel's numbers: for every size around its blocks, for extreme values, and bit for bit the same."""

from __future__ import annotations

import math
from itertools import product
from math import inf, nan

import pytest
import torch

from regard.errors import InvalidArgument
from regard.native.library import library
from regard.ops import attend, weights
from regard.ops.kernels.native.kernel import Native
from regard.ops.masks import Causal, DenseMask, Documents, Padding, Spans, Window
from regard.ops.measures import KLDivergence, Mass, Received
from regard.ops.scores import Alibi, Bias, ScaledDotProduct, Sinks, SoftCap

pytestmark = pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}")

MEASURES = {"entropy": "entropy", "lse": "lse", "received": "received"}
SIZES = (1, 2, 5, 6, 7, 8, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129, 255, 256, 257, 600)
I64 = torch.iinfo(torch.int64)


def tensors(queries, keys, head_dim=8, value_dim=8, batch=1, heads=2, kv_heads=1, dtype=torch.float32):
    random = torch.Generator().manual_seed(0)
    shapes = (batch, heads, queries, head_dim), (batch, kv_heads, keys, head_dim), (batch, kv_heads, keys, value_dim)
    return [torch.randn(shape, generator=random).to(dtype) for shape in shapes]


def run(inputs, kernel="native", **rules):
    att = attend(*inputs, measure=MEASURES, kernel=kernel, **rules)
    return {"output": att.output, **att.measured}


def assert_exact(inputs, rtol=2e-6, **rules):
    """The same as the definition in float64, relative to the largest entry or 1; infinities in the same places."""
    exact = run([tensor.double() for tensor in inputs], "reference", **rules)
    for name, actual in run(inputs, **rules).items():
        expected = exact[name]
        finite = expected.isfinite()
        assert torch.equal(actual.double()[~finite], expected[~finite]), name
        largest = max(1.0, expected[finite].abs().max().item()) if finite.any() else 1.0
        # a half value is rounded once, at the end
        tolerance = max(rtol, torch.finfo(actual.dtype).eps) * largest
        torch.testing.assert_close(actual.double()[finite], expected[finite], rtol=0, atol=tolerance, msg=name)


def assert_same(actual, others):
    for name, result in actual.items():
        assert torch.equal(result, others[name]), name


@pytest.mark.parametrize("kind", range(4), ids=["none", "causal", "window", "padding"])
def test_every_size_around_a_block(kind, subtests):
    for queries, keys in product(SIZES, SIZES):
        if (queries + keys) % 4 == kind:
            with subtests.test(queries=queries, keys=keys):
                mask = (None, Causal(), Window(70, 1), Padding(torch.tensor([keys - 1])))[kind]
                assert_exact(tensors(queries, keys), mask=mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_head_dim(dtype, subtests):
    dims = 1, 3, 7, 8, 15, 16, 17, 40, 64, 65, 80, 128, 256
    for dim, sizes in product(dims, ((5, 9), (70, 130))):
        with subtests.test(dim=dim, sizes=sizes):
            assert_exact(tensors(*sizes, head_dim=dim, value_dim=19, dtype=dtype))
            assert_exact(tensors(*sizes, head_dim=19, value_dim=dim, dtype=dtype))


@pytest.mark.parametrize("empty", ["query", "key"])
def test_no_queries_or_no_keys_are_refused(empty):
    with pytest.raises(InvalidArgument, match=f"{empty}: expected no empty axis"):
        run(tensors(0 if empty == "query" else 3, 0 if empty == "key" else 3))


NUMBERS = {
    "denormal": [1e-45, 1e-40, -1e-39, 0.0, 1e-38],
    "1e4": [1e4, -1e4, 9999.0, 0.0, 1e4],
    "1e30": [1e30, -1e30, 1e30, 0.0, -1e30],
    "lowest": [-3.4e38, -3.4e38, -3.3e38, -3.4e38, -3e38],
    "from lowest to highest": [-3.4e38, 3.4e38, 0.0, 1e-40, -1.0],
    "forbidden by -inf": [-inf, 0.0, -inf, 1e30, 1e4],
    "all forbidden but the lowest": [-inf, -3.4e38, -inf, -inf, -inf],
    "all forbidden": [-inf] * 5,
}


@pytest.mark.parametrize("numbers", NUMBERS)
def test_extreme_scores(numbers, subtests):
    for sinks in (None, (0.0, -1e4), (1e4, 1e30), (-1e30, 3.4e38), (-inf, -inf)):
        with subtests.test(sinks=sinks):
            check_extreme_scores(numbers, sinks)


def check_extreme_scores(numbers, sinks):
    query, key, value = tensors(9, 130)
    table = torch.tensor(NUMBERS[numbers]).repeat(26).roll(3)
    score = ScaledDotProduct() + Bias(torch.stack([table.roll(shift) for shift in range(9)]))
    score = score if sinks is None else Sinks(score, torch.tensor(sinks))
    assert_exact((query * 0, key, value), score=score, mask=Window(100, 1))
    # as scores of query and key
    if inf not in map(abs, NUMBERS[numbers]):
        score = ScaledDotProduct() if sinks is None else Sinks(ScaledDotProduct(), torch.tensor(sinks))
        query, key = torch.ones(1, 2, 9, 1), table[None, None, :, None]
        assert_exact((query, key, value), score=score, scale=1.0)


@pytest.mark.parametrize("number", [1e-45, 1e-39, 1e4, 1e30, 1e36])
def test_extreme_values_of_value(number):
    query, key, value = tensors(20, 130)
    value = value.sign() * number
    exact = attend(query.double(), key.double(), value.double(), kernel="reference").output
    actual = attend(query, key, value, kernel="native").output
    assert (actual - exact).abs().max() <= max(2e-6 * number, 1e-44)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_rounded_to_the_nearest(dtype):
    largest, tiny = torch.finfo(dtype).max, [1e-45, 1e-40]
    has_bf16 = Native().variant() in ("avx512bf16", "amx")
    if dtype == torch.bfloat16 and has_bf16:  # whose products take denormal numbers for 0
        tiny = [0.0, torch.finfo(dtype).tiny]
    numbers = torch.cat([torch.randn(3000), torch.tensor([*tiny, 6e-8, 65504.0, largest, -largest, 1 + 2**-9])])
    value = numbers.to(dtype)[None, None, :, None]
    one = torch.ones(1, 1, len(numbers), 1, dtype=dtype)
    own = DenseMask(torch.eye(len(numbers), dtype=torch.bool))
    assert torch.equal(attend(one, one, value, mask=own, kernel="native").output, value)
    pairs = torch.stack([numbers[:3000], numbers[1:3001]], -1).to(dtype).reshape(1, 1, -1, 1)
    two = torch.arange(3000)[:, None] == torch.arange(6000) // 2
    actual = attend(one[:, :, :3000], torch.ones_like(pairs), pairs, mask=two, kernel="native").output
    assert torch.equal(actual, pairs.double().view(1, 1, 3000, 2).mean(-1, keepdim=True).to(dtype))


@pytest.mark.parametrize("where", ["query", "key"])
@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_nan_and_infinity_reach_the_rows_that_may_attend_to_them(number, where):
    query, key, value = tensors(70, 200, heads=1)
    query, key = query.abs(), key.abs()
    clean = run((query, key, value), mask=Window(20, 3))
    (query[:, :, 33] if where == "query" else key[:, :, 140])[..., 2] = number
    at_key = DenseMask(torch.arange(200) == 140)
    actual = run((query, key, value), mask=Window(20, 3))
    position = torch.arange(70) + 130
    reached = torch.arange(70) == 33 if where == "query" else (position + 3 >= 140) & (position - 20 <= 140)
    assert 0 < reached.sum() < 70
    if number != -inf:
        for name in ("output", "entropy", "lse"):
            assert actual[name][0, 0, reached].isnan().all()
    elif where == "query":  # every score of the row is −∞: it may attend to no key
        assert (actual["output"][0, 0, 33] == 0).all()
        assert (actual["entropy"][0, 0, 33], actual["lse"][0, 0, 33]) == (0, -inf)
    else:
        without = run((query, key, value), mask=Window(20, 3) & ~at_key)
        assert_same(actual, without)
    for name in ("output", "entropy", "lse"):
        assert torch.equal(actual[name][0, 0, ~reached], clean[name][0, 0, ~reached]), name


def test_ranges_and_windows_at_the_ends_of_int64():
    query, key, value = tensors(10, 300)
    starts, stops = torch.zeros(1, 1, 10, 1, dtype=torch.int64), torch.full((1, 1, 10, 1), 300)
    for row, (start, stop) in enumerate([(0, I64.min), (I64.min, 5), (I64.min, I64.max), (I64.max, I64.min)]):
        starts[..., row, 0], stops[..., row, 0] = start, stop
    assert_exact((query, key, value), mask=Spans(starts, stops))
    most = 2**62 - 1
    for window in (
        Window(None, most),
        Window(-most, None),
        Window(most, most),
        Window(-most, most),
        Window(most, -most),
    ):
        for offset in (None, most, most - 5, -most, 5 - most):
            assert_exact((query, key, value), mask=window, offset=offset)


RULES = {
    "no mask": {},
    "causal, bias": {"mask": Causal(), "score": ScaledDotProduct() + Bias(torch.linspace(-1, 1, 400))},
    "window, soft-cap, sinks": {"mask": Window(90, 5), "score": Sinks(SoftCap(ScaledDotProduct(), 2.0), torch.ones(4))},
    "padding, ALiBi": {"mask": Padding(torch.tensor([400, 1, 250])), "score": ScaledDotProduct() + Alibi.for_heads(4)},
}


@pytest.fixture
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rules", RULES)
def test_the_number_of_threads_changes_no_bit_nor_does_another_run(rules, dtype):
    inputs = tensors(400, 400, 16, 16, batch=3, heads=4, kv_heads=2, dtype=dtype)
    torch.set_num_threads(1)
    once = run(inputs, **RULES[rules])
    for threads in (1, 2, 3, 8):
        torch.set_num_threads(threads)
        for _ in range(3):
            assert_same(run(inputs, **RULES[rules]), once)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rules", ["no mask", "causal, bias"])
def test_a_row_is_the_same_alone_and_in_a_larger_batch(rules, dtype):
    inputs = tensors(400, 400, 16, 16, batch=3, heads=4, kv_heads=2, dtype=dtype)
    full = run(inputs, **RULES[rules])
    for b in range(3):
        alone = run([tensor[b : b + 1] for tensor in inputs], **RULES[rules])
        assert_same(alone, {name: result[b : b + 1] for name, result in full.items()})
    for kv_head in range(2):  # a group of heads alone
        query, key, value = inputs
        heads = slice(2 * kv_head, 2 * kv_head + 2)
        alone = run((query[:, heads], *(x[:, kv_head : kv_head + 1] for x in (key, value))), **RULES[rules])
        assert_same(alone, {name: result[:, heads] for name, result in full.items()})
    for rows in (slice(0, 1), slice(0, 7), slice(5, 6), slice(90, 230), slice(399, 400)):
        alone = run((inputs[0][:, :, rows], *inputs[1:]), offset=rows.start, **RULES[rules])
        del alone["received"]  # a sum over other rows
        assert_same(alone, {name: result[:, :, rows] for name, result in full.items()})


def with_gradients(inputs, **rules):
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    results = run(leaves, **rules)
    weights = {name: torch.linspace(-1, 1, x[0].numel()).view(x[0].shape).to(x.dtype) for name, x in results.items()}
    loss = sum((weights[name] * x).float().sum() for name, x in results.items())
    return dict(zip(("query", "key", "value"), torch.autograd.grad(loss, leaves), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_depend_neither_on_the_threads_nor_on_the_batch(dtype):
    inputs = tensors(2100, 300, 16, 16, batch=3, heads=4, kv_heads=2, dtype=dtype)
    torch.set_num_threads(1)
    once = with_gradients(inputs, mask=Causal())
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        assert_same(with_gradients(inputs, mask=Causal()), once)
    for b in range(3):
        alone = with_gradients([tensor[b : b + 1] for tensor in inputs], mask=Causal())
        assert_same(alone, {name: gradient[b : b + 1] for name, gradient in once.items()})


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("shape", [(4, 70, 90), (3, 1, 70, 90), (70, 90)], ids=["texts", "heads", "both"])
def test_gradients_of_a_bias_that_texts_or_heads_share(shape):
    class WithoutFallback(Native):
        def has_gradients(self, inputs, needed):
            assert super().has_gradients(inputs, needed)
            return True

    inputs = tensors(70, 90, batch=3, heads=4, kv_heads=2)
    shared, own = torch.linspace(-2, 2, math.prod(shape)).view(shape), torch.linspace(1, -1, 3 * 4 * 70 * 90)
    leaves = [*inputs, shared, own.view(3, 4, 70, 90)]

    def gradients(dtype, kernel):
        query, key, value, *biases = copies = [leaf.to(dtype).requires_grad_() for leaf in leaves]
        score = ScaledDotProduct() + Bias(biases[0]) + Bias(biases[1])
        results = run((query, key, value), kernel, mask=Causal(), score=score)
        loss = sum((torch.linspace(-1, 1, x.numel(), dtype=dtype).view(x.shape) * x).sum() for x in results.values())
        return torch.autograd.grad(loss, copies)

    exact = gradients(torch.float64, "reference")
    torch.set_num_threads(1)
    once = gradients(torch.float32, WithoutFallback())
    for actual, expected in zip(once, exact, strict=True):
        assert (actual - expected).abs().max() <= 2e-6 * expected.abs().max()
    torch.set_num_threads(3)
    assert all(map(torch.equal, gradients(torch.float32, WithoutFallback()), once))


def test_keys_that_a_mask_hides_change_no_bit():
    query, key, value = tensors(20, 300, batch=2)
    hidden = run((query, key, value), mask=Padding(torch.tensor([130, 130])))
    key[:, :, 130:], value[:, :, 130:] = 1e30, 7.0
    assert_same(run((query, key, value), mask=Padding(torch.tensor([130, 130]))), hidden)


def test_row_weights_of_received_may_be_extreme():
    inputs = tensors(300, 70)
    row_weights = torch.linspace(-1, 1, 300).double()
    row_weights[7], row_weights[8] = 1e30, 0.0
    actual = [
        attend(*(tensor.to(dtype) for tensor in inputs), measure=Received(row_weights), kernel=kernel).measured
        for kernel, dtype in (("native", torch.float32), ("reference", torch.float64))
    ]
    result, exact = (each["received"].double() for each in actual)
    assert (result - exact).abs().max() <= 2e-6 * exact.abs().max()


@pytest.mark.parametrize("mask", [Documents(torch.arange(12) // 3), Window(1, 0), Padding(torch.tensor([7]))])
def test_the_mass_of_selected_rows_is_that_of_their_positions(mask):
    query, key, _ = tensors(12, 12)
    full, rows = weights(query, key), [5, 9, 10]
    expected = full.measure(Mass(mask))["mass"][:, :, rows]
    torch.testing.assert_close(full.at(queries=rows).measure(Mass(mask))["mass"], expected)


def test_gradients_of_a_key_that_a_divergence_compares_with():
    query, key, value = tensors(48, 48, 16, 16)

    def gradient(dtype, kernel):
        own, other = key.to(dtype).requires_grad_(), query.flip(2).to(dtype)
        with torch.no_grad():
            divergence = KLDivergence(weights(other, own))
        measured = attend(query.to(dtype), own, value.to(dtype), measure=divergence, kernel=kernel).measured
        return torch.autograd.grad(measured["kl_divergence"].sum(), own)[0]

    exact = gradient(torch.float64, "reference")
    assert (gradient(torch.float32, "native") - exact).abs().max() <= 1e-5 * exact.abs().max()


@pytest.mark.parametrize("name", ["query", "key", "value", "bias", "gradient"])
def test_views_with_the_sign_of_a_conjugate(name):
    inputs = dict(zip(("query", "key", "value"), tensors(40, 60), strict=True))
    inputs |= {
        "bias": torch.linspace(-2, 2, 2400).view(40, 60),
        "gradient": torch.linspace(-1, 1, 640).view(1, 2, 40, 8),
    }

    def results(**tensors):
        query, key, value = leaves = [tensors[each].detach().requires_grad_() for each in ("query", "key", "value")]
        score = ScaledDotProduct() + Bias(tensors["bias"])
        output = attend(query, key, value, score=score, measure="entropy", kernel="native").output
        return output, *torch.autograd.grad(output, leaves, tensors["gradient"])

    negated = torch.complex(torch.zeros_like(inputs[name]), -inputs[name]).conj().imag
    assert negated.is_neg()
    assert torch.equal(negated, inputs[name])
    assert all(map(torch.equal, results(**inputs | {name: negated}), results(**inputs)))
