"""Checkpoints of transformers: equal outputs there and back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, MarianMTModel, PreTrainedModel

from helpers.transformers_models import (
    BERTS,
    ROBERTAS,
    VOCAB,
    WORDS,
    bert,
    gpt2,
    llama,
    marian,
    mistral,
    qwen2,
    roberta,
)
from regard.errors import InvalidCheckpoint
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig, load_model, save_model
from regard.models.huggingface import CONVERTERS

LENGTHS = torch.tensor([9, 5, 2])
REAL = (torch.arange(9) < LENGTHS[:, None]).long()


def loads_whole(kind: type[PreTrainedModel], folder: Path) -> PreTrainedModel:
    """What transformers makes of a folder, in which nothing may be missing or unexpected."""
    model, told = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("head", BERTS)
@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu_new", "num_labels": 3, "layer_norm_eps": 1e-3}])
def test_berts(tmp_path, head, changes):
    theirs = bert(BERTS[head], **changes)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    types = torch.randint(2, WORDS.shape)
    expected = theirs(WORDS, attention_mask=REAL, token_type_ids=types, output_hidden_states=True)
    found = ours(WORDS, LENGTHS, types, output_attentions=True)
    answer = expected[0] if head != "pre-training" else expected.prediction_logits
    real = REAL.bool() if answer.ndim == 3 else slice(None)
    output = found.last_hidden_state if found.logits is None else found.logits
    torch.testing.assert_close(output[real], answer[real], rtol=0, atol=1e-5)
    save_model(tmp_path / "ours", ours, format="transformers")
    if head != "pre-training":  # of which the task of next sentences is left behind
        again = loads_whole(BERTS[head], tmp_path / "ours")(WORDS, attention_mask=REAL, token_type_ids=types)[0]
        torch.testing.assert_close(again, expected[0], rtol=0, atol=1e-6)
        assert {*load_file(tmp_path / "ours/model.safetensors")} == {*load_file(tmp_path / "theirs/model.safetensors")}
    theirs.set_attn_implementation("eager")
    weights = theirs(WORDS, attention_mask=REAL, token_type_ids=types, output_attentions=True).attentions
    for layer, expected_weights in zip(found.attentions, weights, strict=True):
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
}


@torch.no_grad()
@pytest.mark.parametrize("kind", GPTS)
def test_gpts(tmp_path, kind):
    make, changes = GPTS[kind]
    theirs = make(**changes)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    words = torch.randint(3, 60, (2, 37))
    expected = theirs(words).logits
    torch.testing.assert_close(ours(words).logits, expected, rtol=0, atol=1e-5)
    starts = torch.tensor([0, 30])
    padded = theirs(words, attention_mask=(torch.arange(37) >= starts[:, None]).long(),
                    position_ids=(torch.arange(37) - starts[:, None]).clamp(min=0)).logits  # fmt: skip
    found = ours(words, starts).logits
    torch.testing.assert_close(found[0], padded[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1, 30:], padded[1, 30:], rtol=0, atol=1e-5)
    torch.testing.assert_close(found[1, 30:], ours(words[1:, 30:]).logits[0], rtol=0, atol=1e-5)
    save_model(tmp_path / "ours", ours, format="transformers")
    again = loads_whole(type(theirs), tmp_path / "ours")
    torch.testing.assert_close(again(words).logits, expected, rtol=0, atol=1e-6)
    assert {*load_file(tmp_path / "ours/model.safetensors")} == {*load_file(tmp_path / "theirs/model.safetensors")}
    assert load_model(tmp_path / "ours").config == ours.config
    assert again.get_input_embeddings().padding_idx == theirs.get_input_embeddings().padding_idx


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("pad", [None, 2, 5])
def test_the_word_that_fills_up_is_the_one_that_there_was(tmp_path, make, pad):
    make(pad_token_id=pad, eos_token_id=2).save_pretrained(tmp_path / "theirs")
    save_model(tmp_path / "ours", load_model(tmp_path / "theirs"), format="transformers")
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "ours" / name).read_text())["pad_token_id"] == (5 if pad == 5 else None)
    assert load_model(tmp_path / "ours").config == load_model(tmp_path / "theirs").config


MARIANS = {
    "as opus-mt": {},
    "others": {"scale_embedding": False, "activation_function": "relu", "decoder_start_token_id": 3},
    "two vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 61},
    "nothing tied": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False},
}


@torch.no_grad()
@pytest.mark.parametrize("kind", MARIANS)
def test_marians(tmp_path, kind):
    theirs = marian(**MARIANS[kind])
    theirs.save_pretrained(tmp_path / "theirs")
    ours, tgt = load_model(tmp_path / "theirs"), torch.randint(3, 60, (3, 7))
    expected = theirs(WORDS, attention_mask=REAL, decoder_input_ids=tgt).logits
    torch.testing.assert_close(ours(WORDS, tgt, LENGTHS).logits, expected, rtol=0, atol=1e-5)
    save_model(tmp_path / "ours", ours, format="transformers")
    again = loads_whole(type(theirs), tmp_path / "ours")
    torch.testing.assert_close(
        again(WORDS, attention_mask=REAL, decoder_input_ids=tgt).logits, expected, rtol=0, atol=1e-6
    )
    assert load_model(tmp_path / "ours").config == ours.config


@torch.no_grad()
def test_our_own_translator_becomes_a_marian(tmp_path):
    torch.manual_seed(0)
    config = TransformerConfig(VOCAB, d_model=32, num_heads=4, num_encoder_layers=2, num_decoder_layers=1, d_ff=48)
    ours, tgt = Transformer(config).eval(), torch.randint(3, 60, (3, 7))
    save_model(tmp_path, ours, format="transformers")
    theirs = loads_whole(MarianMTModel, tmp_path)
    assert theirs.generation_config.max_length == config.max_seq_len
    found = theirs(WORDS, attention_mask=REAL, decoder_input_ids=tgt).logits
    torch.testing.assert_close(found, ours(WORDS, tgt, LENGTHS).logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(load_model(tmp_path)(WORDS, tgt, LENGTHS).logits, found, rtol=0, atol=1e-5)


@torch.no_grad()
def test_parts_old_names_and_torch_s_own_files(tmp_path):
    theirs = bert(BERTS["masked_lm"])
    expected = theirs(WORDS).logits
    theirs.save_pretrained(tmp_path / "parts", max_shard_size="10kB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    torch.testing.assert_close(load_model(tmp_path / "parts")(WORDS).logits, expected, rtol=0, atol=1e-5)
    theirs.save_pretrained(tmp_path / "old")
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
def test_a_class_may_be_spelt_in_more_than_one_way(tmp_path, make, name):
    theirs = make()
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [name]}))
    torch.testing.assert_close(load_model(tmp_path)(WORDS).logits, theirs(WORDS).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", CONVERTERS)
def test_what_a_configuration_leaves_out_is_as_there(kind):
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
def test_keys_have_the_other_names_that_transformers_takes(tmp_path, make, aliases):
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
def test_a_tied_map_may_stand_in_the_file_twice(tmp_path):
    for number, make in enumerate((gpt2, llama)):
        folder = tmp_path / str(number)
        theirs = make(tie_word_embeddings=True)
        theirs.save_pretrained(folder)
        (folder / "model.safetensors").unlink()
        torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
        torch.testing.assert_close(load_model(folder)(WORDS).logits, theirs(WORDS).logits, rtol=0, atol=1e-5)


@torch.no_grad()
def test_sentence_embeddings_keep_their_pooling(tmp_path):
    torch.manual_seed(0)
    for pooling, normalize in (("mean", True), ("cls", False)):
        config = BertConfig(VOCAB, d_model=32, num_heads=4, num_layers=2, d_ff=48, max_seq_len=40,
                            head="sentence_embedding", truncation_length=7 if normalize else None, pooling=pooling,
                            normalize_embeddings=normalize)  # fmt: skip
        ours = Bert(config).eval()
        save_model(tmp_path / pooling, ours, format="transformers")
        loaded = load_model(tmp_path / pooling)
        assert loaded.config == replace(config, pooler=True)  # transformers' has one that nothing reads
        found = loaded(WORDS, LENGTHS).embeddings
        torch.testing.assert_close(found, ours(WORDS, LENGTHS).embeddings)
        hidden = loads_whole(AutoModel, tmp_path / pooling)(WORDS, attention_mask=REAL).last_hidden_state
        mean = (hidden * REAL[..., None]).sum(1) / LENGTHS[:, None]
        expected = torch.nn.functional.normalize(mean) if normalize else hidden[:, 0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_gpt2_whose_special_tokens_lie_outside_its_vocabulary_is_read_with_a_warning(tmp_path):
    theirs = gpt2(bos_token_id=50256, eos_token_id=50256)  # as `GPT2Config(vocab_size=61)` has them
    theirs.save_pretrained(tmp_path)
    with (
        pytest.warns(UserWarning, match="bos_id: .*"),
        pytest.warns(UserWarning, match=r"eos_ids: \[50256\] is outside the vocabulary of 61 tokens and is ignored"),
    ):
        ours = load_model(tmp_path)
    assert (ours.config.pad_id, ours.config.bos_id, ours.config.eos_ids) == (0, None, ())
    torch.testing.assert_close(ours(WORDS).logits, theirs(WORDS).logits, rtol=0, atol=1e-5)


def test_a_llama_is_saved_whatever_its_dropout(tmp_path):
    model = GPT(GPTConfig.llama(61, d_model=16, num_heads=4, num_layers=1, d_ff=32, dropout=0.1)).eval()
    save_model(tmp_path, model, format="transformers")
    assert torch.equal(load_model(tmp_path)(WORDS).logits, model(WORDS).logits)


@torch.no_grad()
@pytest.mark.parametrize("head", ROBERTAS)
def test_robertas_are_read_and_saved_as_berts(tmp_path, head):
    theirs = roberta(ROBERTAS[head], num_labels=3)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    words = torch.where(REAL.bool(), WORDS, 1)  # 1 is padding
    expected = theirs(words, attention_mask=REAL)[0]
    found = ours.forward_head(ours(words, LENGTHS).last_hidden_state)
    if head != "sequence_classification":
        found, expected = (each[REAL.bool()] for each in (found, expected))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert ours.config.max_seq_len == 38
    save_model(tmp_path / "ours", ours, format="transformers")
    again = load_model(tmp_path / "ours")
    outputs = [each.forward_head(each(words, LENGTHS).last_hidden_state) for each in (again, ours)]
    assert torch.equal(*outputs)
    kind = BERTS[head]
    saved = loads_whole(kind, tmp_path / "ours")(words, attention_mask=REAL)[0]
    if head != "sequence_classification":
        saved = saved[REAL.bool()]
    torch.testing.assert_close(saved, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_window_holds_in_a_generation_too(tmp_path):
    theirs = mistral(sliding_window=7)
    theirs.save_pretrained(tmp_path)
    ours, words = load_model(tmp_path), torch.randint(3, 60, (2, 20))
    cache, expected = ours.new_cache(), theirs(words).logits
    steps = [ours.lm_head(ours.forward_features(part, cache=cache)[0]) for part in words.split([9, 1, 1, 5, 4], 1)]
    torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=0, atol=1e-5)


def test_a_mistral_without_a_window_is_a_llama(tmp_path):
    theirs = mistral(sliding_window=None)
    theirs.save_pretrained(tmp_path / "theirs")
    save_model(tmp_path / "ours", load_model(tmp_path / "theirs"), format="transformers")
    assert json.loads((tmp_path / "ours/config.json").read_text())["model_type"] == "llama"
    assert torch.equal(load_model(tmp_path / "ours")(WORDS).logits, load_model(tmp_path / "theirs")(WORDS).logits)


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
    theirs = loads_whole(AutoModelForCausalLM, tmp_path)
    torch.testing.assert_close(load_model(tmp_path)(WORDS).logits, theirs(WORDS).logits, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("head", ROBERTAS)
def test_robertas_with_another_activation(tmp_path, head):
    theirs = roberta(ROBERTAS[head], num_labels=3, hidden_act="relu")
    theirs.save_pretrained(tmp_path)
    if head == "masked_lm":  # whose head has gelu always
        with pytest.raises(InvalidCheckpoint, match=r"hidden_act: expected 'gelu', which the head of .* got 'relu'"):
            load_model(tmp_path)
        return
    ours, words = load_model(tmp_path), torch.where(REAL.bool(), WORDS, 1)  # 1 is padding
    found = ours.forward_head(ours(words, LENGTHS).last_hidden_state)
    expected = theirs(words, attention_mask=REAL)[0]
    if head != "sequence_classification":
        found, expected = found[REAL.bool()], expected[REAL.bool()]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
