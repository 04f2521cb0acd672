"""The arguments with which torch's SDPA is called."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.flex_attention import and_masks, noop_mask
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import KernelNotSupported
from regard.ops import attend
from regard.ops.kernels import sdpa
from regard.ops.kernels.base import KernelInputs
from regard.ops.masks import Causal, Padding, Window, to_dense
from regard.ops.measures import TopK
from regard.ops.request import make_request


def tensors(queries=20, keys=20, kv_heads=4):
    return torch.randn(2, 4, queries, 8), torch.randn(2, kv_heads, keys, 8), torch.randn(2, kv_heads, keys, 8)


@pytest.fixture
def calls(monkeypatch):
    """The keyword arguments of each call of SDPA."""
    calls = []
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", lambda *args, **kwargs: calls.append(kwargs) or args[0])
    return calls


def test_the_output_is_that_of_sdpa():
    query, key, value = tensors()
    assert torch.equal(attend(query, key, value).output, scaled_dot_product_attention(query, key, value))
    causal = scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(attend(query, key, value, mask=Causal()).output, causal)
    scaled = scaled_dot_product_attention(query, key, value, scale=0.3)
    assert torch.equal(attend(query, key, value, scale=0.3).output, scaled)


@pytest.mark.parametrize("step", [0, 1, 2, 7])
@pytest.mark.parametrize("which", ["query", "key", "value"])
def test_vectors_of_a_sliding_view_overlap(which, step):
    qkv = dict(zip(("query", "key", "value"), tensors(queries=5, keys=5), strict=True))
    qkv[which] = torch.randn(500).as_strided((2, 4, 5, 8), (100, 50, step, 1))
    actual = attend(**qkv, kernel="sdpa").output
    qkv[which] = qkv[which].contiguous()
    torch.testing.assert_close(actual, attend(**qkv, kernel="reference").output)


def test_a_mask_function_may_return_one_bool_for_all_cells():
    query, key, value = tensors()
    expected = scaled_dot_product_attention(query, key, value)
    for mask in (noop_mask, and_masks(noop_mask, noop_mask)):
        assert torch.equal(attend(query, key, value, mask=mask).output, expected)


@pytest.mark.parametrize("mask", [None, Causal(), Window(3, 0)])
def test_a_meta_device_gives_the_shape(mask):
    query, key, value = (tensor.to("meta") for tensor in tensors(queries=7))
    output = attend(query, key, value, mask=mask).output
    assert (output.shape, output.device.type) == ((2, 4, 7, 8), "meta")


def test_the_last_query_of_a_causal_decoder_needs_no_mask(calls):
    query, key, value = tensors(queries=1)
    attend(query, key, value, mask=Causal())
    assert calls[0]["attn_mask"] is None
    assert not calls[0]["is_causal"]


def test_padding_is_passed_as_one_row_of_keys(calls):
    query, key, value = tensors()
    attend(query, key, value, mask=Padding(torch.tensor([20, 3])))
    assert calls[0]["attn_mask"].shape == (2, 1, 1, 20)


def test_unsupported_calls_are_rejected_with_their_reasons():
    query, key, value = tensors()
    reasons = "it does not support the measure Entropy; it does not support the measure TopK"
    with pytest.raises(KernelNotSupported, match=f"kernel 'sdpa' cannot compute this call: {reasons}"):
        attend(query, key, value, measure=["entropy", TopK(2)], kernel="sdpa")


def test_a_large_mask_is_dense_only_on_request(calls):
    long = torch.zeros(1, 1, 3000, 4)
    request = make_request(long, long, mask=Window(9, None))
    (reason,) = sdpa.Sdpa().inefficient_reasons(KernelInputs(long, request, {}))
    assert reason.startswith("the mask would need a dense (1, 1, 3000, 3000) tensor")
    attend(long, long, long, mask=Window(9, None))
    assert calls == []
    attend(long, long, long, mask=Window(9, None), kernel="sdpa")
    assert torch.equal(calls[0]["attn_mask"], to_dense(Window(9, None), (1, 1, 3000, 3000)))


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_causal_scale_that_is_not_positive_gives_no_nan(scale):
    query, key, value = torch.randn(3, 1, 1, 200, 8).unbind()
    actual, expected = (
        attend(query, key, value, mask=Causal(), scale=scale, kernel=kernel).output for kernel in (None, "reference")
    )
    torch.testing.assert_close(actual, expected)


def test_a_subclass_of_causal_is_another_mask():
    class Strict(Causal):
        def allowed(self, tile):
            return tile.kv_idx < tile.q_pos

    query, key, value = tensors(queries=1, keys=5)
    actual, expected = (
        attend(query, key, value, mask=Strict(), kernel=kernel).output for kernel in (None, "reference")
    )
    torch.testing.assert_close(actual, expected)
