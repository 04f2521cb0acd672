"""Checkpoints of transformers: equal outputs there and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    MarianMTModel,
    PegasusForConditionalGeneration,
    PreTrainedModel,
)

from helpers.transformers_models import (
    BERTS,
    ROBERTAS,
    VOCAB,
    WORDS,
    bert,
    gemma,
    gpt2,
    llama,
    marian,
    mistral,
    pegasus,
    qwen2,
    roberta,
)
from regard.errors import InvalidCheckpoint
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig, load_model, save_model
from regard.models.huggingface import CONVERTERS

LENGTHS = torch.tensor([9, 5, 2])
REAL = (torch.arange(9) < LENGTHS[:, None]).long()


def loads_whole(kind: type[PreTrainedModel], folder: Path) -> PreTrainedModel:
    """Load a folder by transformers; no weight may be missing or unexpected."""
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("head", BERTS)
@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu_new", "num_labels": 3, "layer_norm_eps": 1e-3}])
def test_berts(tmp_path, head, changes):
    reference = bert(BERTS[head], **changes)
    reference.save_pretrained(tmp_path / "original")
    model = load_model(tmp_path / "original")
    types = torch.randint(2, WORDS.shape)
    expected = reference(WORDS, attention_mask=REAL, token_type_ids=types, output_hidden_states=True)
    actual = model(WORDS, LENGTHS, types, output_attentions=True)
    expected_output = expected[0] if head != "pre-training" else expected.prediction_logits
    real = REAL.bool() if expected_output.ndim == 3 else slice(None)
    output = actual.last_hidden_state if actual.logits is None else actual.logits
    torch.testing.assert_close(output[real], expected_output[real], rtol=0, atol=1e-5)
    save_model(tmp_path / "saved", model, format="transformers")
    if head != "pre-training":  # the head for next-sentence prediction is dropped
        again = loads_whole(BERTS[head], tmp_path / "saved")(WORDS, attention_mask=REAL, token_type_ids=types)[0]
        torch.testing.assert_close(again, expected[0], rtol=0, atol=1e-6)
        assert {*load_file(tmp_path / "saved/model.safetensors")} == {
            *load_file(tmp_path / "original/model.safetensors")
        }
    reference.set_attn_implementation("eager")
    weights = reference(WORDS, attention_mask=REAL, token_type_ids=types, output_attentions=True).attentions
    for layer, expected_weights in zip(actual.attentions, weights, strict=True):
        torch.testing.assert_close(layer.weights.dense(), expected_weights, rtol=0, atol=1e-5)


SCALED = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8}  # fmt: skip
GPTS = {
    "gpt2": (gpt2, {}),
    "gpt2, other sizes": (gpt2, {"n_inner": 20, "activation_function": "relu", "layer_norm_epsilon": 1e-3}),
    "llama": (llama, {}),
    "llama, tied": (llama, {"tie_word_embeddings": True, "num_key_value_heads": 4, "rms_norm_eps": 1e-3}),
    "llama, biased": (llama, {"attention_bias": True, "mlp_bias": True, "head_dim": 6}),
    "llama, linear": (llama, {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0}}),
    "llama 3": (llama, {"rope_parameters": SCALED, "eos_token_id": [2, 5]}),
    "mistral": (mistral, {"sliding_window": 7}),
    "qwen2": (qwen2, {"eos_token_id": 2}),
    "gemma": (gemma, {}),
    "gemma, biased": (gemma, {"attention_bias": True, "tie_word_embeddings": False, "num_key_value_heads": 1}),
    "gpt2, untied": (gpt2, {"tie_word_embeddings": False}),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", GPTS)
def test_gpts(tmp_path, kind):
    make, changes = GPTS[kind]
    reference = make(**changes)
    reference.save_pretrained(tmp_path / "original")
    model = load_model(tmp_path / "original")
    words = torch.randint(3, 60, (2, 37))
    expected = reference(words).logits
    torch.testing.assert_close(model(words).logits, expected, rtol=0, atol=1e-5)
    starts = torch.tensor([0, 30])
    padded = reference(words, attention_mask=(torch.arange(37) >= starts[:, None]).long(),
                    position_ids=(torch.arange(37) - starts[:, None]).clamp(min=0)).logits  # fmt: skip
    output = model(words, starts).logits
    torch.testing.assert_close(output[0], padded[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(output[1, 30:], padded[1, 30:], rtol=0, atol=1e-5)
    torch.testing.assert_close(output[1, 30:], model(words[1:, 30:]).logits[0], rtol=0, atol=1e-5)
    save_model(tmp_path / "saved", model, format="transformers")
    again = loads_whole(type(reference), tmp_path / "saved")
    torch.testing.assert_close(again(words).logits, expected, rtol=0, atol=1e-6)
    assert {*load_file(tmp_path / "saved/model.safetensors")} == {*load_file(tmp_path / "original/model.safetensors")}
    loaded = load_model(tmp_path / "saved")
    assert loaded.config == model.config
    assert torch.equal(loaded(words).logits, model(words).logits)
    assert type(again.config) is type(reference.config)
    assert again.get_input_embeddings().padding_idx == reference.get_input_embeddings().padding_idx


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("pad", [None, 2, 5])
def test_the_padding_token_is_kept(tmp_path, make, pad):
    make(pad_token_id=pad, eos_token_id=2).save_pretrained(tmp_path / "original")
    save_model(tmp_path / "saved", load_model(tmp_path / "original"), format="transformers")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "saved" / name).read_text())["pad_token_id"] == (5 if pad == 5 else None)
    assert load_model(tmp_path / "saved").config == load_model(tmp_path / "original").config


MARIANS = {
    "as opus-mt": (marian, {}),
    "pegasus": (pegasus, {}),
    "pegasus, others": (pegasus, {"scale_embedding": False, "activation_function": "gelu"}),
    "others": (marian, {"scale_embedding": False, "activation_function": "relu", "decoder_start_token_id": 3}),
    "two vocabularies": (marian, {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 61}),
    "nothing tied": (marian, {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", MARIANS)
def test_marians(tmp_path, kind):
    make, changes = MARIANS[kind]
    reference = make(**changes)
    reference.save_pretrained(tmp_path / "original")
    model, tgt = load_model(tmp_path / "original"), torch.randint(3, 60, (3, 7))
    expected = reference(WORDS, attention_mask=REAL, decoder_input_ids=tgt).logits
    torch.testing.assert_close(model(WORDS, tgt, LENGTHS).logits, expected, rtol=0, atol=1e-5)
    save_model(tmp_path / "saved", model, format="transformers")
    again = loads_whole(type(reference), tmp_path / "saved")
    torch.testing.assert_close(
        again(WORDS, attention_mask=REAL, decoder_input_ids=tgt).logits, expected, rtol=0, atol=1e-6
    )
    assert load_model(tmp_path / "saved").config == model.config


@torch.no_grad()
def test_a_marian_with_other_tables_of_positions_keeps_them(tmp_path):
    reference, tgt = marian(), torch.randint(3, 60, (3, 7))
    reference.save_pretrained(tmp_path / "original")
    tensors = load_file(tmp_path / "original/model.safetensors")
    for side in ("encoder", "decoder"):
        table = torch.randn(40, 32)
        tensors[f"model.{side}.embed_positions.weight"] = table
        reference.get_parameter(f"model.{side}.embed_positions.weight").data = table
    save_file(tensors, tmp_path / "original/model.safetensors")
    model = load_model(tmp_path / "original")
    assert model.config.positions == "learned"
    expected = reference(WORDS, attention_mask=REAL, decoder_input_ids=tgt).logits
    torch.testing.assert_close(model(WORDS, tgt, LENGTHS).logits, expected, rtol=0, atol=1e-5)
    save_model(tmp_path / "saved", model, format="transformers")
    again = loads_whole(MarianMTModel, tmp_path / "saved")
    torch.testing.assert_close(
        again(WORDS, attention_mask=REAL, decoder_input_ids=tgt).logits, expected, rtol=0, atol=1e-6
    )


@torch.no_grad()
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_is_saved_as_a_marian_or_a_pegasus(tmp_path, norm_first):
    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_heads": 4, "num_encoder_layers": 2, "num_decoder_layers": 1, "d_ff": 48}
    config = TransformerConfig(VOCAB, norm_first=norm_first, **sizes)
    model, tgt = Transformer(config).eval(), torch.randint(3, 60, (3, 7))
    save_model(tmp_path, model, format="transformers")
    reference = loads_whole(PegasusForConditionalGeneration if norm_first else MarianMTModel, tmp_path)
    assert reference.generation_config.max_length == config.max_seq_len
    output = reference(WORDS, attention_mask=REAL, decoder_input_ids=tgt).logits
    torch.testing.assert_close(output, model(WORDS, tgt, LENGTHS).logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(load_model(tmp_path)(WORDS, tgt, LENGTHS).logits, output, rtol=0, atol=1e-5)


@torch.no_grad()
def test_parts_old_names_and_torch_s_own_files(tmp_path):
    reference = bert(BERTS["masked_lm"])
    expected = reference(WORDS).logits
    reference.save_pretrained(tmp_path / "parts", max_shard_size="10kB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    torch.testing.assert_close(load_model(tmp_path / "parts")(WORDS).logits, expected, rtol=0, atol=1e-5)
    reference.save_pretrained(tmp_path / "old")
    tensors = load_file(tmp_path / "old/model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
           for name, tensor in tensors.items()}  # fmt: skip
    (tmp_path / "old/model.safetensors").unlink()
    for old_zip in (True, False):
        torch.save(old, tmp_path / "old/pytorch_model.bin", _use_new_zipfile_serialization=old_zip)
        torch.testing.assert_close(load_model(tmp_path / "old")(WORDS).logits, expected, rtol=0, atol=1e-5)
    index, half = {}, len(old) // 2
    for number, names in enumerate((list(old)[:half], list(old)[half:]), start=1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: old[name] for name in names}, tmp_path / "old" / file)
        index |= dict.fromkeys(names, file)
    (tmp_path / "old/pytorch_model.bin").unlink()
    (tmp_path / "old/pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    torch.testing.assert_close(load_model(tmp_path / "old")(WORDS).logits, expected, rtol=0, atol=1e-5)
    model = llama()
    model.save_pretrained(tmp_path / "llama", max_shard_size="10kB")
    assert (tmp_path / "llama/model.safetensors.index.json").is_file()
    torch.testing.assert_close(load_model(tmp_path / "llama")(WORDS).logits, model(WORDS).logits, rtol=0, atol=1e-5)
    model = gpt2()
    model.transformer.save_pretrained(tmp_path / "bare")  # whose names have no prefix
    torch.testing.assert_close(load_model(tmp_path / "bare")(WORDS).logits, model(WORDS).logits, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "name"), [(llama, "LLaMAForCausalLM"), (llama, "Vicuna"), (gpt2, "GPT2Model"), (gpt2, "GPT2LMHeadModel")]
)
def test_alternative_class_names(tmp_path, make, name):
    reference = make()
    reference.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
    torch.testing.assert_close(load_model(tmp_path)(WORDS).logits, reference(WORDS).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", CONVERTERS)
def test_missing_keys_have_the_defaults_of_transformers(kind):
    converter = CONVERTERS[kind]
    empty, full = (
        converter.write_config(converter.read_config(values, {}))
        for values in ({}, AutoConfig.for_model(kind).to_dict())
    )
    assert empty == full


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "aliases"),
    [
        (gpt2, {"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}),
        (marian, {"d_model": "hidden_size", "encoder_attention_heads": "num_attention_heads"}),
    ],
)
def test_alternative_names_of_keys(tmp_path, make, aliases):
    make().save_pretrained(tmp_path)
    expected = load_model(tmp_path).config
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({aliases.get(key, key): value for key, value in values.items()}))
    assert load_model(tmp_path).config == expected


def test_a_save_leaves_nothing_of_another_model(tmp_path):
    small = {"d_model": 32, "num_heads": 4, "num_layers": 1, "d_ff": 48}
    embedding = Bert(BertConfig(VOCAB, head="sentence_embedding", **small))
    save_model(tmp_path, embedding, format="transformers")
    assert (tmp_path / "1_Pooling/config.json").is_file()
    classifier = embedding.with_head("sequence_classification", ("bad", "good"))
    save_model(tmp_path, classifier, format="transformers")
    assert load_model(tmp_path).config == replace(classifier.config, pooler=True)
    for ends in ((2, 5), (7,)):
        save_model(tmp_path, GPT(GPTConfig.llama(VOCAB, eos_ids=ends, **small)), format="transformers")
        assert load_model(tmp_path).config.eos_ids == ends


@torch.no_grad()
def test_a_tied_weight_may_be_stored_twice(tmp_path):
    for number, make in enumerate((gpt2, llama)):
        folder = tmp_path / str(number)
        reference = make(tie_word_embeddings=True)
        reference.save_pretrained(folder)
        (folder / "model.safetensors").unlink()
        torch.save(reference.state_dict(), folder / "pytorch_model.bin")
        torch.testing.assert_close(load_model(folder)(WORDS).logits, reference(WORDS).logits, rtol=0, atol=1e-5)


@torch.no_grad()
def test_sentence_embeddings_keep_their_pooling(tmp_path):
    torch.manual_seed(0)
    for pooling, normalize in (("mean", True), ("cls", False)):
        config = BertConfig(VOCAB, d_model=32, num_heads=4, num_layers=2, d_ff=48, max_seq_len=40,
                            head="sentence_embedding", truncation_length=7 if normalize else None, pooling=pooling,
                            normalize_embeddings=normalize)  # fmt: skip
        model = Bert(config).eval()
        save_model(tmp_path / pooling, model, format="transformers")
        loaded = load_model(tmp_path / pooling)
        assert loaded.config == replace(config, pooler=True)  # transformers' has one that nothing reads
        output = loaded(WORDS, LENGTHS).embeddings
        torch.testing.assert_close(output, model(WORDS, LENGTHS).embeddings)
        hidden = loads_whole(AutoModel, tmp_path / pooling)(WORDS, attention_mask=REAL).last_hidden_state
        mean = (hidden * REAL[..., None]).sum(1) / LENGTHS[:, None]
        expected = torch.nn.functional.normalize(mean) if normalize else hidden[:, 0]
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_gpt2_whose_special_tokens_lie_outside_its_vocabulary_is_read_with_a_warning(tmp_path):
    reference = gpt2(bos_token_id=50256, eos_token_id=50256)  # as `GPT2Config(vocab_size=61)` has them
    reference.save_pretrained(tmp_path)
    with (
        pytest.warns(UserWarning, match="bos_id: .*"),
        pytest.warns(UserWarning, match=r"eos_ids: \[50256\] is outside the vocabulary of 61 tokens and is ignored"),
    ):
        model = load_model(tmp_path)
    assert (model.config.pad_id, model.config.bos_id, model.config.eos_ids) == (0, None, ())
    torch.testing.assert_close(model(WORDS).logits, reference(WORDS).logits, rtol=0, atol=1e-5)


def test_a_llama_is_saved_whatever_its_dropout(tmp_path):
    model = GPT(GPTConfig.llama(61, d_model=16, num_heads=4, num_layers=1, d_ff=32, dropout=0.1)).eval()
    save_model(tmp_path, model, format="transformers")
    assert torch.equal(load_model(tmp_path)(WORDS).logits, model(WORDS).logits)


@torch.no_grad()
@pytest.mark.parametrize("head", ROBERTAS)
@pytest.mark.parametrize("changes", [{}, {"type_vocab_size": 1, "layer_norm_eps": 1e-3, "pad_token_id": 5}])
def test_robertas(tmp_path, head, changes):
    pad = changes.get("pad_token_id", 1)
    reference = roberta(ROBERTAS[head], num_labels=3, **changes)
    reference.save_pretrained(tmp_path / "original")
    model = load_model(tmp_path / "original")
    words = torch.where(REAL.bool(), WORDS.where(pad != WORDS, 7), pad)
    expected = reference(words, attention_mask=REAL)[0]
    output = model.forward_head(model(words, LENGTHS).last_hidden_state)
    if head != "sequence_classification":
        output, expected = (each[REAL.bool()] for each in (output, expected))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)
    assert model.config.max_seq_len == 39 - pad
    save_model(tmp_path / "saved", model, format="transformers")
    again = load_model(tmp_path / "saved")
    outputs = [each.forward_head(each(words, LENGTHS).last_hidden_state) for each in (again, model)]
    assert torch.equal(*outputs)
    assert again.config == model.config
    assert {*load_file(tmp_path / "saved/model.safetensors")} == {*load_file(tmp_path / "original/model.safetensors")}
    saved = loads_whole(ROBERTAS[head], tmp_path / "saved")(words, attention_mask=REAL)[0]
    if head != "sequence_classification":
        saved = saved[REAL.bool()]
    torch.testing.assert_close(saved, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_window_holds_in_a_generation_too(tmp_path):
    reference = mistral(sliding_window=7)
    reference.save_pretrained(tmp_path)
    model, words = load_model(tmp_path), torch.randint(3, 60, (2, 20))
    cache, expected = model.new_cache(), reference(words).logits
    steps = [model.lm_head(model.forward_features(part, cache=cache)[0]) for part in words.split([9, 1, 1, 5, 4], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=0, atol=1e-5)


def test_a_mistral_without_a_window_is_a_llama(tmp_path):
    reference = mistral(sliding_window=None)
    reference.save_pretrained(tmp_path / "original")
    save_model(tmp_path / "saved", load_model(tmp_path / "original"), format="transformers")
    assert json.loads((tmp_path / "saved/config.json").read_text())["model_type"] == "llama"
    assert torch.equal(load_model(tmp_path / "saved")(WORDS).logits, load_model(tmp_path / "original")(WORDS).logits)


def test_a_window_in_some_layers_only_is_refused(tmp_path):
    qwen2(use_sliding_window=True).save_pretrained(tmp_path)
    with pytest.raises(InvalidCheckpoint, match="use_sliding_window: expected False, got True"):
        load_model(tmp_path)


@torch.no_grad()
@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 2.0}, {"rope_type": "default"}, None])
def test_rope_scaling_is_preferred_to_rope_parameters(tmp_path, scaling):
    llama(rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}).save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {"rope_scaling": scaling}))
    reference = loads_whole(AutoModelForCausalLM, tmp_path)
    torch.testing.assert_close(load_model(tmp_path)(WORDS).logits, reference(WORDS).logits, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("head", ROBERTAS)
def test_robertas_with_another_activation(tmp_path, head):
    reference = roberta(ROBERTAS[head], num_labels=3, hidden_act="relu")
    reference.save_pretrained(tmp_path)
    if head == "masked_lm":  # whose head has gelu always
        with pytest.raises(InvalidCheckpoint, match=r"hidden_act: expected 'gelu', which the head of .* got 'relu'"):
            load_model(tmp_path)
        return
    model, words = load_model(tmp_path), torch.where(REAL.bool(), WORDS, 1)  # 1 is padding
    output = model.forward_head(model(words, LENGTHS).last_hidden_state)
    expected = reference(words, attention_mask=REAL)[0]
    if head != "sequence_classification":
        output, expected = output[REAL.bool()], expected[REAL.bool()]
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_roberta_with_another_activation_in_its_head_is_saved_as_a_bert(tmp_path):
    config = BertConfig(VOCAB, d_model=32, num_heads=4, num_layers=1, d_ff=48, head="masked_lm", activation="relu",
                        model_type="roberta")  # fmt: skip
    model = Bert(config).eval()
    save_model(tmp_path, model, format="transformers")
    output = loads_whole(BERTS["masked_lm"], tmp_path)(WORDS).logits
    torch.testing.assert_close(output, model(WORDS).logits, rtol=0, atol=1e-5)
