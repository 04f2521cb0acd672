"""Weights from a file: all are loaded, or each that does not fit is named."""

from __future__ import annotations

import dataclasses
import math
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.errors import InvalidCheckpoint
from regard.models import Bert, BertConfig, Transformer, TransformerConfig, load_model, save_model
from regard.models.weights import init_empty_weights
from regard.nn import position_classes

CONFIG = TransformerConfig(60, d_model=32, num_heads=4, num_encoder_layers=1, num_decoder_layers=1, d_ff=48)
POSITIONS = sorted(position_classes())
SOME = "encoder.layers.0.feed_forward.fc1.weight"


def make_model(**changes) -> Transformer:
    torch.manual_seed(0)
    return Transformer(dataclasses.replace(CONFIG, **changes)).eval()


def change(folder: Path, **tensors: torch.Tensor) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, **tensors}, folder / "model.safetensors")


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_loaded_model_is_the_one_that_was_saved(tmp_path, tying, positions):
    model = make_model(tie_embeddings=tying, positions=positions)
    save_model(tmp_path, model)
    loaded = load_model(tmp_path)
    assert [name for name, _ in loaded.named_parameters()] == [name for name, _ in model.named_parameters()]
    embeddings = [loaded.src_embedding.weight, loaded.tgt_embedding.weight, loaded.lm_head.weight]
    assert len({id(weight) for weight in embeddings}) == {"all": 1, "decoder": 2, "none": 3}[tying]
    assert all(parameter.requires_grad and parameter.device.type == "cpu" for parameter in loaded.parameters())
    for (name, actual), (other, reference) in zip(model.named_buffers(), loaded.named_buffers(), strict=True):
        assert name == other
        assert torch.equal(actual, reference)
    src, tgt = torch.randint(3, 60, (2, 7)), torch.randint(3, 60, (2, 600))  # past the first table of sinusoids
    assert torch.equal(loaded(src, tgt).logits, model(src, tgt).logits)


def test_no_random_number_is_drawn(tmp_path):
    save_model(tmp_path, make_model(positions="learned", tie_embeddings="none"))
    before = torch.get_rng_state()
    load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_model_without_weights_has_no_memory_and_imports_no_compiler():
    for positions in POSITIONS:
        model = make_model(positions=positions)
        with init_empty_weights():
            empty = make_model(positions=positions)
        for tensors, expected in ((empty.parameters(), model.parameters()), (empty.buffers(), model.buffers())):
            for tensor, exact in zip(tensors, expected, strict=True):
                assert (tensor.is_meta, tensor.shape, tensor.dtype) == (True, exact.shape, exact.dtype)
    code = (
        "import sys; from regard.models import Transformer, TransformerConfig\n"
        "from regard.models.weights import init_empty_weights\n"
        "before = 'sympy' in sys.modules  # torch 2.14 imports it itself\n"
        f"for positions in {POSITIONS}:\n"
        "    with init_empty_weights(): Transformer(TransformerConfig(60, positions=positions))\n"
        "assert 'torch._dynamo' not in sys.modules and ('sympy' in sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_every_floating_dtype_becomes_float32(tmp_path, dtype):
    model = make_model()
    save_model(tmp_path, model, dtype=dtype)
    for actual, loaded in zip(model.parameters(), load_model(tmp_path).parameters(), strict=True):
        assert loaded.dtype == torch.float32
        assert torch.equal(loaded, actual.to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.complex64])
def test_weights_of_another_kind_are_named(tmp_path, dtype):
    save_model(tmp_path, make_model())
    change(tmp_path, **{SOME: torch.zeros(48, 32, dtype=dtype)})
    with pytest.raises(InvalidCheckpoint) as caught:
        load_model(tmp_path)
    expected = f"{SOME}: expected a floating-point dtype, got {dtype}"
    assert str(caught.value) == f"{tmp_path / 'model.safetensors'}: {expected}"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_weights_that_are_not_finite_are_named(tmp_path, value):
    save_model(tmp_path, make_model())
    weight = torch.zeros(48, 32, dtype=torch.float64)
    weight[7, 5] = value
    change(tmp_path, **{SOME: weight, "something.else": torch.zeros(1)})
    with pytest.raises(InvalidCheckpoint) as caught:
        load_model(tmp_path)
    assert f"{tmp_path / 'model.safetensors'}: {SOME}: expected finite float32 numbers, got NaN or infinity" in str(
        caught.value
    )
    assert "something.else: unexpected tensor of shape (1,), not part of the model" in str(caught.value)


def test_a_loaded_model_keeps_nothing_of_the_file(tmp_path):
    model = make_model()
    save_model(tmp_path, model)
    loaded = load_model(tmp_path)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:  # in place, where a mapped file would change with it
        file.write(bytes(path.stat().st_size))
    for actual, reference in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(actual, reference)


def test_damaged_pickles_and_sparse_tensors_are_refused(tmp_path):
    model = Bert(BertConfig(9, d_model=8, num_heads=2, num_layers=1, d_ff=8))
    save_model(tmp_path, model, format="transformers")
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    file, draw = tmp_path / "pytorch_model.bin", random.Random(0)
    for zipped in (True, False):
        torch.save(weights, file, _use_new_zipfile_serialization=zipped)
        data = file.read_bytes()
        for size in (1, 10, 1000, len(data) - 1):
            file.write_bytes(data[:size])
            with pytest.raises(InvalidCheckpoint):
                load_model(tmp_path)
        for _ in range(60):
            damaged = bytearray(data)
            for _ in range(3):
                damaged[draw.randrange(min(len(data), 2000))] = draw.randrange(256)
            file.write_bytes(damaged)
            with suppress(InvalidCheckpoint):  # some bytes do not matter
                load_model(tmp_path)
    name = "encoder.layer.0.intermediate.dense.weight"
    torch.save({**weights, name: weights[name].to_sparse()}, file)
    with pytest.raises(InvalidCheckpoint, match=f"{name}: expected a dense tensor, got torch.sparse_coo"):
        load_model(tmp_path)
