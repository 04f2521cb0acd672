"""A call like the last ones takes over what was packed for them, and computes the same bits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import regard
from helpers.ops import cases
from helpers.ops.plain_calls import MEASURES, PLAIN_MASKS, PLAIN_SCORES, tensors
from regard.diagnostics.cases import SHAPES, Shape
from regard.native.library import library
from regard.ops import attend, weights
from regard.ops.kernels import dispatch
from regard.ops.kernels.native.prepared import PreparedCall
from regard.ops.masks import Causal, Mask, Padding, Window
from regard.ops.measures import KLDivergence, TopK
from regard.ops.scores import ScaledDotProduct, SoftCap

pytestmark = pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}")


@pytest.fixture
def runs(monkeypatch):
    """The prepared calls that ran; there are none before."""
    ran = []
    run = PreparedCall.run
    monkeypatch.setattr(PreparedCall, "run", lambda self, inputs: ran.append(self) or run(self, inputs))
    dispatch._preparation_of.cache_clear()
    yield ran
    dispatch._preparation_of.cache_clear()


def flat(att):
    return [
        att.output,
        *(part for each in att.measured.values() for part in (each if type(each) is not torch.Tensor else [each])),
    ]


def assert_same_bits(actual, expected):
    for one, other in zip(flat(actual), flat(expected), strict=True):
        assert torch.equal(one, other)
        assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())


@pytest.mark.parametrize("shapes", [[*SHAPES][::2], [*SHAPES][1::2]])
def test_later_calls_compute_what_the_kernel_computes(shapes, runs):
    for size, name in product(map(SHAPES.__getitem__, shapes), cases.MASKS):
        for score in PLAIN_SCORES.values():
            runs.clear()
            mask = cases.mask(name, *size.matrix)
            inputs = [tensors(size, seed) for seed in range(4)]
            results = [attend(*each, mask=mask, score=score, measure=MEASURES) for each in inputs]
            assert len(runs) == (2 if name in PLAIN_MASKS else 0), name
            for each, result in zip(inputs, results, strict=True):  # after all, which must not share memory
                dispatch._preparation_of.cache_clear()
                assert_same_bits(result, attend(*each, mask=mask, score=score, measure=MEASURES))


def test_dtypes(runs):
    for dtype, seed in product((torch.float32, torch.bfloat16, torch.float16), range(4)):
        inputs = tensors(SHAPES["blocks"], seed, dtype)
        result = attend(*inputs, mask=Causal(), measure=MEASURES)
        assert_same_bits(result, attend(*inputs, mask=Causal(), measure=MEASURES, kernel="native"))
    assert len(runs) == 2 * 3


def test_the_output_is_that_of_sdpa(runs):
    for seed in range(4):
        query, key, value = tensors(Shape(2, 4, 4, 300, 300, 32, 32), seed)
        output = attend(query, key, value, mask=Causal(), measure="entropy").output
        torch.testing.assert_close(output, scaled_dot_product_attention(query, key, value, is_causal=True))
    assert len(runs) == 2


def test_sdpa_is_selected_once(runs, monkeypatch):
    selected = []
    select = dispatch.select_kernel
    monkeypatch.setattr(dispatch, "select_kernel", lambda *call: selected.append(call) or select(*call))
    shape = Shape(1, 2, 2, 5, 5, 16, 16)
    for seed in range(3):
        query, key, value = tensors(shape, seed)
        for causal in (False, True):
            output = attend(query, key, value, mask=Causal() if causal else None).output
            torch.testing.assert_close(output, scaled_dot_product_attention(query, key, value, is_causal=causal))
    assert len(selected) == 2
    query.requires_grad_()
    attend(query, key, value).output.sum().backward()
    attend(query.detach(), key, value, dropout=0.5)
    assert query.grad is not None
    assert len(selected) == 4
    assert not runs


def test_whatever_a_call_follows_from_is_compared(runs):
    """Each of these is prepared and then differs in one thing from the next."""
    query, key, value = tensors(SHAPES["square"], 0)
    strided = torch.randn(2, 4, 33, 9)[..., :8]
    calls = [
        {},
        {"mask": Window(3, 0)},
        {"mask": Window(2, 0)},
        {"mask": Window(2, 1)},
        {"score": SoftCap(ScaledDotProduct(), 1.0)},
        {"score": SoftCap(ScaledDotProduct(), 2.0)},
        {"scale": 0.5},
        {"offset": 3, "mask": Causal()},
        {"offset": 4, "mask": Causal()},
        {"measure": TopK(2)},
        {"measure": {"first": TopK(2)}},
        {"measure": ("entropy", TopK(4))},
        {"measure": (TopK(4), "entropy")},
        {"value": value[..., :5]},
        {"query": strided},
        {"key": strided},
    ]
    for options in calls * 4:
        arguments = {"query": query, "key": key, "value": value, "measure": "received"} | options
        result, expected = attend(**arguments), attend(**arguments, kernel="native")
        assert list(result.measured) == list(expected.measured)
        assert_same_bits(result, expected)
    assert len(runs) == 2 * len(calls)


def test_measures_of_a_matrix_and_its_rows(runs):
    for seed in range(4):
        query, key, _ = tensors(SHAPES["blocks"], seed)
        W, expected = weights(query, key), weights(query, key, kernel="native")
        for name, result in W.measure("entropy", "received").items():
            assert torch.equal(result, expected.measure(name)[name])
        assert torch.equal(W[0, 1, 12], expected[0, 1, 12])
        assert torch.equal(W[:, :, 3:9, 4:7], expected[:, :, 3:9, 4:7])
    assert len(runs) == 2 * 3


class EverySecond(Mask):
    """A user's mask, whose steps can follow from anything."""

    def steps(self, place):
        return Window(2, 0).steps(place)

    def allowed(self, tile):
        return Window(2, 0).allowed(tile)


def test_what_is_not_plain_data_is_packed_each_time(runs):
    query, key, value = tensors(SHAPES["square"], 0)
    lengths, divergence = torch.tensor([20, 33]), KLDivergence(weights(query, key))
    for length in (5, 6, 7, 8):
        lengths[0] = length  # in place: the tensor is the same
        result = attend(query, key, value, mask=Padding(lengths), measure="received")
        assert (result.measured["received"][0, :, length:] == 0).all()
        assert (result.measured["received"][0, :, :length] > 0).all()
        attend(query, key, value, mask=EverySecond(), measure="entropy")
        attend(query, key, value, measure=divergence)
        attend(query, key, value, measure="entropy", dropout=0.5)
        weights(query, key, mask=Causal())[[0, 1], :, [3, 5]]
    assert not runs


def test_gradients_follow_calls_without_them(runs):
    inputs = tensors(SHAPES["square"], 0)
    for _ in range(3):
        attend(*inputs, measure="entropy")
    assert len(runs) == 1
    leaves = [each.clone().requires_grad_() for each in inputs]
    result = attend(*leaves, measure="entropy")
    (result.output.sum() + result.measured["entropy"].sum()).backward()
    doubles = [each.double().detach().requires_grad_() for each in inputs]
    expected = attend(*doubles, measure="entropy", kernel="reference")
    (expected.output.sum() + expected.measured["entropy"].sum()).backward()
    for leaf, double in zip(leaves, doubles, strict=True):
        torch.testing.assert_close(leaf.grad.double(), double.grad, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        attend(*leaves, measure="entropy")
    assert len(runs) == 2
    by_vmap = torch.vmap(lambda *each: attend(*(part[None] for part in each), measure="entropy").output[0])(*inputs)
    assert torch.equal(by_vmap, attend(*inputs, measure="entropy", kernel="native").output)


def test_threads_run_the_same_call(runs):
    inputs = [tensors(SHAPES["blocks"], seed) for seed in range(40)]
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda each: attend(*each, measure=MEASURES), inputs))
    assert len(runs) >= 30
    for each, result in zip(inputs, results, strict=True):
        assert_same_bits(result, attend(*each, measure=MEASURES, kernel="native"))


def test_large_tables_are_not_kept(runs, monkeypatch):
    monkeypatch.setattr(dispatch, "MAX_KEPT_BYTES", -1)
    for seed in range(4):
        attend(*tensors(SHAPES["square"], seed), measure="entropy")
    assert not runs


def test_no_tensors_are_kept(runs):
    import gc
    import weakref

    held = []
    for seed in range(4):
        inputs = tensors(SHAPES["blocks"], seed)
        result = attend(*inputs, measure=MEASURES)
        held += [weakref.ref(each) for each in [*inputs, *flat(result)]]
    del inputs, result
    gc.collect()
    assert runs
    assert not any(each() is not None for each in held)


def test_layers_of_a_model_share_one_call(runs):
    config = regard.models.BertConfig(vocab_size=50, d_model=16, num_layers=5, num_heads=2, d_ff=32)
    model, ids = regard.models.Bert(config).eval(), torch.arange(24).view(2, 12)
    with torch.no_grad(), regard.watch(model, measure="entropy") as result:
        model(ids)
    for layer in result.layers:
        assert torch.equal(layer.measured["entropy"], layer.weights.entropy())
