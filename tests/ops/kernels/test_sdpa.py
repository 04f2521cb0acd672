"""What SDPA is given."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from regard.errors import KernelNotSupported
from regard.ops import Causal, Padding, TopK, Window, attend
from regard.ops.kernels import sdpa


def tensors(queries=20, keys=20, kv_heads=4):
    return torch.randn(2, 4, queries, 8), torch.randn(2, kv_heads, keys, 8), torch.randn(2, kv_heads, keys, 8)


def test_it_is_sdpa():
    query, key, value = tensors()
    assert torch.equal(attend(query, key, value).output, scaled_dot_product_attention(query, key, value))
    causal = scaled_dot_product_attention(query, key, value, is_causal=True)
    assert torch.equal(attend(query, key, value, mask=Causal()).output, causal)
    scaled = scaled_dot_product_attention(query, key, value, scale=0.3)
    assert torch.equal(attend(query, key, value, scale=0.3).output, scaled)


def test_the_last_query_of_a_causal_decoder_needs_no_mask(monkeypatch):
    query, key, value = tensors(queries=1)
    seen = []
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", lambda *a, **k: seen.append(k) or a[0])
    attend(query, key, value, mask=Causal())
    assert seen[0]["attn_mask"] is None
    assert not seen[0]["is_causal"]


def test_padding_stays_a_row_of_keys(monkeypatch):
    query, key, value = tensors()
    seen = []
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", lambda *a, **k: seen.append(k) or a[0])
    attend(query, key, value, mask=Padding(torch.tensor([20, 3])))
    assert seen[0]["attn_mask"].shape == (2, 1, 1, 20)


def test_it_says_why_not():
    query, key, value = tensors()
    with pytest.raises(KernelNotSupported, match=r"'sdpa' cannot serve this: it cannot measure entropy, topk"):
        attend(query, key, value, measure=["entropy", TopK(2)], kernel="sdpa")
    long = torch.zeros(1, 1, 3000, 4)
    with pytest.raises(KernelNotSupported, match=r"1 × 1 × 3000 × 3000 cells .* and the mask would be written"):
        attend(long, long, long, mask=Window(9, None), kernel="sdpa")


@pytest.mark.parametrize("scale", [0.0, -1.0])
def test_a_causal_scale_that_is_not_positive_is_no_number_for_torch_alone(scale):
    query, key, value = torch.randn(3, 1, 1, 200, 8).unbind()
    found, expected = (
        attend(query, key, value, mask=Causal(), scale=scale, kernel=kernel).output for kernel in (None, "reference")
    )
    torch.testing.assert_close(found, expected)


def test_a_rule_that_is_made_of_another_is_its_own():
    class Strict(Causal):
        def allowed(self, cells):
            return cells.key < cells.position

    query, key, value = tensors(queries=1, keys=5)
    found, expected = (attend(query, key, value, mask=Strict(), kernel=kernel).output for kernel in (None, "reference"))
    torch.testing.assert_close(found, expected)
