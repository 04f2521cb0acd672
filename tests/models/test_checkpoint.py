"""Models are saved completely, and damaged ones are refused."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard import pipelines
from regard.errors import InvalidArgument, InvalidCheckpoint, InvalidFile, InvalidType
from regard.models import (
    GPT,
    Bert,
    BertConfig,
    EncoderDecoder,
    GPTConfig,
    Transformer,
    TransformerConfig,
    checkpoint,
    load_config,
    load_model,
    save_model,
)

CONFIG = TransformerConfig(60, d_model=32, num_heads=4, num_encoder_layers=1, num_decoder_layers=1, d_ff=48)
FORMAT = {"architecture": "transformer", "format_version": 1}
START = '{"architecture": "transformer", "format_version": 1, "vocab_size": 9'


def make_model(seed: int = 0, config: TransformerConfig = CONFIG) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(config)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("tying", ["all", "decoder", "none"])
def test_what_is_saved_is_loaded(tmp_path, tying):
    model = make_model(config=TransformerConfig(**{**vars(CONFIG), "tie_embeddings": tying}))
    save_model(tmp_path / "new" / "folder", model)
    loaded = load_model(tmp_path / "new" / "folder")
    assert loaded.config == model.config
    assert not loaded.training
    for (name, actual), (other_name, other) in zip(
        model.state_dict().items(), loaded.state_dict().items(), strict=True
    ):
        assert name == other_name
        assert torch.equal(actual, other)
    stored = load_file(tmp_path / "new" / "folder" / "model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == sum(p.numel() for p in model.parameters())


def test_half_the_size_in_bfloat16(tmp_path):
    model = make_model()
    save_model(tmp_path / "whole", model)
    save_model(tmp_path / "half", model, dtype=torch.bfloat16)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half")]
    assert sizes[1] < 0.55 * sizes[0]
    loaded = load_model(tmp_path / "half").src_embedding.weight
    assert loaded.dtype == torch.float32
    assert torch.equal(loaded, model.src_embedding.weight.bfloat16().float())


def test_a_tokenizer_is_saved_with_the_model(tmp_path):
    class Tokenizer:
        def save(self, folder):
            (Path(folder) / "tokenizer.json").write_text("{}")

    save_model(tmp_path, make_model(), Tokenizer())
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["save_file", "fsync"])
def test_a_failed_save_leaves_the_old_model_complete(tmp_path, monkeypatch, failure, where):
    save_model(tmp_path, make_model(0))
    before = contents(tmp_path)
    writes = []

    def fail(*arguments, **options):
        writes.append(arguments)
        if where == "save_file":
            Path(arguments[1]).write_bytes(b"half a file")
        if where == "save_file" or len(writes) == 2:  # the second file cannot be flushed
            raise failure

    monkeypatch.setattr(*((checkpoint, "save_file") if where == "save_file" else (os, "fsync")), fail)
    with pytest.raises(type(failure)):
        save_model(tmp_path, make_model(1, TransformerConfig(**{**vars(CONFIG), "d_ff": 50})))
    monkeypatch.undo()
    assert writes
    assert contents(tmp_path) == before
    assert torch.equal(load_model(tmp_path).src_embedding.weight, make_model(0).src_embedding.weight)


@pytest.mark.parametrize("size", [0, 5, 1000, -1])
def test_a_truncated_file_is_reported_as_truncated(tmp_path, size):
    save_model(tmp_path, make_model())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:size])
    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors: could not be read, it is damaged or truncated"):
        load_model(tmp_path)


def test_every_tensor_that_does_not_fit_is_named(tmp_path):
    save_model(tmp_path, make_model())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.layers.0.feed_forward.fc1.bias"], weights["src_embedding.weight"]
    weights["decoder.layers.0.feed_forward.fc2.weight"] = torch.zeros(32, 47)
    weights["something.else"] = torch.zeros(3)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint) as caught:
        load_model(tmp_path)
    for part in (
        "encoder.layers.0.feed_forward.fc1.bias: expected a tensor of shape (48,), got none",
        "src_embedding.weight: expected a tensor of shape (60, 32), got none",
        "decoder.layers.0.feed_forward.fc2.weight: expected shape (32, 48), got (32, 47)",
        "something.else: unexpected tensor of shape (3,), not part of the model",
    ):
        assert part in str(caught.value)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(InvalidCheckpoint, match=r"nowhere: expected a folder with config\.json .*, got no such folder"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(InvalidCheckpoint) as caught:
        load_model(tmp_path)
    assert "config.json: no such file" in str(caught.value)
    assert "model.safetensors: no such file" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", r"config\.json: not valid JSON"),
        ("[]", "expected a JSON object, got list"),
        (
            "{}",
            "architecture: expected one of transformer, .*, got None; a checkpoint of transformers needs model_type",
        ),
        (
            '{"model_type": "bloom"}',
            "model_type: expected one of bert, gemma, gpt2, llama, marian, mistral, pegasus, .*, got 'bloom'",
        ),
        ('{"architecture": "rnn"}', "got 'rnn'"),
        ("[" * 100_000, r"config\.json: not valid JSON"),
        ('{"architecture": []}', r"architecture: expected one of transformer, .*, got \[\]"),
        ('{"architecture": "transformer", "format_version": 2}', "format_version: expected 1, got 2; update regard"),
        ('{"architecture": "transformer", "format_version": true}', "format_version: expected 1, got True"),
        ('{"architecture": "transformer"}', "format_version: expected 1, got None; the model was saved by an older"),
        ('{"architecture": "transformer", "format_version": 1}', "vocab_size: expected a value, got none"),
        (f'{START}, "d_modle": 4}}', "d_modle: no such field, did you mean 'd_model'"),
        (
            f'{START}, "d_model": "x"}}',
            "d_model: expected an int of at least 1 and at most 268435456, got 'x'",
        ),
    ],
)
def test_an_invalid_config_file_is_refused_with_the_reason(tmp_path, text, words):
    save_model(tmp_path, make_model())
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InvalidCheckpoint, match=words) as caught:
        load_model(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 10**13}, f"vocab_size: expected an int of at least 1 and at most 268435456, got {10**13}"),
        ({"vocab_size": 10**30}, f"vocab_size: expected an int of at least 1 and at most 268435456, got {10**30}"),
        ({"d_model": 4e9}, r"d_model: expected an int of at least 1 and at most 268435456, got 4000000000\.0"),
        ({"d_model": 4 * 10**9}, "d_model: expected an int of at least 1 and at most 268435456, got 4000000000"),
        ({"d_ff": 10**12}, f"d_ff: expected an int of at least 1 and at most 268435456, got {10**12}"),
        ({"positions": ["learned"]}, r"positions: expected one of sinusoidal, .*, got \['learned'\]"),
        ({"num_kv_heads": 0}, "num_kv_heads: expected an int of at least 1 and at most 268435456, or None, got 0"),
        (
            {"num_encoder_layers": 10**8},
            r"num_encoder_layers \+ num_decoder_layers: expected at most 31, .* got 100000000 \+ 1",
        ),
    ],
)
def test_impossible_sizes_are_refused_with_the_reason(tmp_path, changes, words):
    save_model(tmp_path, make_model())
    (tmp_path / "config.json").write_text(json.dumps({**FORMAT, **vars(CONFIG), **changes}))
    with pytest.raises(InvalidCheckpoint, match=words) as caught:
        load_model(tmp_path)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_sizes_far_from_those_of_the_file_take_no_memory(tmp_path):
    save_model(tmp_path, make_model())
    sizes = {"vocab_size": 2**28, "d_model": 2**28, "d_ff": 2**28}
    (tmp_path / "config.json").write_text(json.dumps({**FORMAT, **vars(CONFIG), **sizes}))
    with pytest.raises(InvalidCheckpoint, match=r"expected shape \(268435456, 268435456\), got \(60, 32\)"):
        load_model(tmp_path)


def test_files_that_are_not_text_are_refused(tmp_path):
    save_model(tmp_path, make_model())
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidCheckpoint, match="not valid JSON"):
        load_model(tmp_path)


def test_the_config_is_saved_in_full(tmp_path):
    save_model(tmp_path, make_model())
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored == {**FORMAT, **vars(CONFIG)}
    assert list(stored)[:2] == ["architecture", "format_version"]


def test_a_dtype_must_be_floating(tmp_path):
    with pytest.raises(InvalidArgument, match=r"dtype: expected a floating-point dtype, got torch\.int8"):
        save_model(tmp_path, make_model(), dtype=torch.int8)
    with pytest.raises(InvalidArgument, match="dtype: expected a floating-point dtype, got 'float32'"):
        save_model(tmp_path, make_model(), dtype="float32")
    assert not list(tmp_path.iterdir())


def test_a_folder_must_be_a_path(tmp_path):
    with pytest.raises(InvalidType, match="folder: expected a path, got 5"):
        load_model(5)
    for load in (pipelines.Translator.load, pipelines.TextGenerator.load, pipelines.TextEncoder.load, pipelines.load):
        with pytest.raises(InvalidType, match="folder: expected a path, got 5"):
            load(5)
    with pytest.raises(InvalidType, match=r"tokenizer: expected an object with save\(folder\), got int"):
        save_model(tmp_path / "new", make_model(), 3)
    assert not (tmp_path / "new").exists()
    with pytest.raises(InvalidType, match="folder: expected a path, got None"):
        save_model(None, make_model())


@pytest.mark.parametrize("below", ["", "further"])
def test_a_file_in_place_of_the_folder_is_named(tmp_path, below):
    (tmp_path / "model").write_text("mine")
    with pytest.raises(InvalidFile, match=r"model.*: could not be written: (File exists|Not a directory)"):
        save_model(tmp_path / "model" / below, make_model())
    assert (tmp_path / "model").read_text() == "mine"


def test_the_weights_may_be_read_by_whom_the_umask_lets(tmp_path):
    before = os.umask(0o022)
    try:
        save_model(tmp_path, Transformer(TransformerConfig(20, d_model=8, num_heads=2, d_ff=8)))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o644


def test_the_error_for_a_run_folder_names_its_models(tmp_path):
    for name in ("best", "last"):
        save_model(tmp_path / name, Transformer(TransformerConfig(20, d_model=8, num_heads=2, d_ff=8)))
    with pytest.raises(
        InvalidCheckpoint, match=r"config\.json: no such file; load one of the models in its folders best, last"
    ):
        load_model(tmp_path)


@pytest.mark.parametrize("ends", [5, None, ["a"]])
def test_invalid_eos_ids_are_refused(tmp_path, ends):
    save_model(tmp_path, GPT(GPTConfig(9, d_model=16, num_heads=2, num_layers=1, d_ff=16)))
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "eos_ids": ends}))
    with pytest.raises(
        InvalidCheckpoint,
        match=r"eos_ids(\[0\]: expected|: expected a sequence, each entry) an int of at least 0 .*, got",
    ):
        load_model(tmp_path)


def test_a_model_of_another_class_than_expected_is_refused(tmp_path):
    save_model(tmp_path, make_model())
    assert checkpoint.model_class(tmp_path) is Transformer
    for expected in (Transformer, EncoderDecoder):
        assert isinstance(load_model(tmp_path, expected=expected), expected)
    for expected, kind in ((Bert, "a BERT"), (GPT, "a GPT")):
        with pytest.raises(InvalidCheckpoint) as caught:
            load_model(tmp_path, expected=expected)
        assert str(caught.value) == f"folder: expected {kind}, got an encoder-decoder in {tmp_path}"


def test_the_bundled_config_is_in_full():
    folder = Path(checkpoint.__file__).parents[1] / "bundled/tatoeba-en-de"
    stored = json.loads((folder / "config.json").read_text())
    assert stored == json.loads(json.dumps({**FORMAT, **vars(load_model(folder).config)}))


def test_a_config_is_loaded_without_weights(tmp_path):
    config = BertConfig(50, d_model=16, num_heads=2, num_layers=1, d_ff=32, max_seq_len=40)
    for format in ("regard", "transformers"):  # noqa: A001 - as the argument
        save_model(tmp_path / format, Bert(config), format=format)
        assert load_config(tmp_path / format).max_seq_len == 40
    (tmp_path / "regard" / "model.safetensors").write_bytes(b"damaged")
    assert load_config(tmp_path / "regard", expected=Bert) == config
    with pytest.raises(InvalidCheckpoint, match="folder: expected a GPT, got a BERT"):
        load_config(tmp_path / "regard", expected=GPT)
    with pytest.raises(InvalidCheckpoint, match="no such folder"):
        load_config(tmp_path / "missing")


def test_an_expected_class_must_be_a_model_class(tmp_path):
    with pytest.raises(InvalidType, match="expected: expected a class of models, such as Bert, got 'Bert'"):
        load_model(tmp_path, "Bert")
