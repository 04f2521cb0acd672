"""Checkpoints of transformers: equal outputs there and back."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, MarianMTModel, PreTrainedModel

from models.hub.theirs import BERTS, VOCAB, bert, gpt2, llama, marian
from regard.errors import InvalidArgument, InvalidCheckpoint
from regard.models import Bert, BertConfig, Gpt, GptConfig, Transformer, TransformerConfig, load_model, save_model
from regard.models.hub import FORMATS

WORDS = torch.randint(3, 60, (3, 9), generator=torch.Generator().manual_seed(0))
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
    found = ours(WORDS, LENGTHS, types, attentions=True)
    answer = expected[0] if head != "pre-training" else expected.prediction_logits
    real = REAL.bool() if answer.ndim == 3 else slice(None)
    torch.testing.assert_close(found.output[real], answer[real], rtol=0, atol=1e-5)
    save_model(tmp_path / "ours", ours, layout="transformers")
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
    save_model(tmp_path / "ours", ours, layout="transformers")
    again = loads_whole(type(theirs), tmp_path / "ours")
    torch.testing.assert_close(again(words).logits, expected, rtol=0, atol=1e-6)
    assert {*load_file(tmp_path / "ours/model.safetensors")} == {*load_file(tmp_path / "theirs/model.safetensors")}
    assert load_model(tmp_path / "ours").config == ours.config
    assert again.get_input_embeddings().padding_idx == theirs.get_input_embeddings().padding_idx


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("pad", [None, 2, 5])
def test_the_word_that_fills_up_is_the_one_that_there_was(tmp_path, make, pad):
    make(pad_token_id=pad, eos_token_id=2).save_pretrained(tmp_path / "theirs")
    save_model(tmp_path / "ours", load_model(tmp_path / "theirs"), layout="transformers")
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
    save_model(tmp_path / "ours", ours, layout="transformers")
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
    save_model(tmp_path, ours, layout="transformers")
    theirs = loads_whole(MarianMTModel, tmp_path)
    found = theirs(WORDS, attention_mask=REAL, decoder_input_ids=tgt).logits
    torch.testing.assert_close(found, ours(WORDS, tgt, LENGTHS).logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(load_model(tmp_path)(WORDS, tgt, LENGTHS).logits, found, rtol=0, atol=1e-5)


@torch.no_grad()
def test_parts_old_names_and_torch_s_own_files(tmp_path):
    theirs = bert(BERTS["masked_words"])
    expected = theirs(WORDS).logits
    theirs.save_pretrained(tmp_path / "parts", max_shard_size="10kB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 2
    torch.testing.assert_close(load_model(tmp_path / "parts")(WORDS).output, expected, rtol=0, atol=1e-5)
    theirs.save_pretrained(tmp_path / "old")
    tensors = load_file(tmp_path / "old/model.safetensors")
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
           for name, tensor in tensors.items()}  # fmt: skip
    (tmp_path / "old/model.safetensors").unlink()
    for old_zip in (True, False):
        torch.save(old, tmp_path / "old/pytorch_model.bin", _use_new_zipfile_serialization=old_zip)
        torch.testing.assert_close(load_model(tmp_path / "old")(WORDS).output, expected, rtol=0, atol=1e-5)
    index, half = {}, len(old) // 2
    for number, names in enumerate((list(old)[:half], list(old)[half:]), start=1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: old[name] for name in names}, tmp_path / "old" / file)
        index |= dict.fromkeys(names, file)
    (tmp_path / "old/pytorch_model.bin").unlink()
    (tmp_path / "old/pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    torch.testing.assert_close(load_model(tmp_path / "old")(WORDS).output, expected, rtol=0, atol=1e-5)
    model = llama()
    model.save_pretrained(tmp_path / "llama", max_shard_size="10kB")
    assert (tmp_path / "llama/model.safetensors.index.json").is_file()
    torch.testing.assert_close(load_model(tmp_path / "llama")(WORDS).logits, model(WORDS).logits, rtol=0, atol=1e-5)
    model = gpt2()
    model.transformer.save_pretrained(tmp_path / "bare")  # whose names have no prefix
    torch.testing.assert_close(load_model(tmp_path / "bare")(WORDS).logits, model(WORDS).logits, rtol=0, atol=1e-5)


def test_a_file_that_could_run_code_is_refused(tmp_path):
    class Harmful:
        def __reduce__(self):
            return print, ("it ran",)

    bert().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"bert.pooler.dense.bias": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InvalidCheckpoint, match=r"pytorch_model\.bin is refused: it holds more than tensors"):
        load_model(tmp_path)
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    with pytest.raises(InvalidCheckpoint, match="must hold tensors by their names"):
        load_model(tmp_path)


def test_every_tensor_that_does_not_fit_is_named_as_the_file_does(tmp_path):
    llama().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"], tensors["lm_head.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(47, 32)
    tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(2)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint) as caught:
        load_model(tmp_path)
    for part in (
        "model.layers.1.self_attn.k_proj.weight is missing, expected with the shape (16, 32)",
        "lm_head.weight is missing, expected with the shape (61, 32)",
        "model.layers.0.mlp.up_proj.weight has the shape (47, 32), but the configuration gives (48, 32)",
        "model.layers.7.mlp.up_proj.weight (2,) is not part of the model",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (bert, {"position_embedding_type": "relative_key"}, "position_embedding_type must be 'absolute', which is"),
        (bert, {"architectures": ["BertForNextSentencePrediction"]}, "architectures must be one of BertModel, .* but"),
        (bert, {"architectures": "BertModel"}, "architectures must be a list of names, but is 'BertModel'"),
        (gpt2, {"architectures": ["GPT2DoubleHeadsModel"]}, "architectures must be 'GPT2LMHeadModel' or 'GPT2Model', "),
        (
            llama,
            {"architectures": ["LlamaForSequenceClassification"]},
            "architectures must be 'LlamaForCausalLM', which",
        ),
        (bert, {"hidden_act": "mish"}, "hidden_act must be one of 'gelu', .* but is 'mish'"),
        (bert, {"hidden_size": "many"}, "hidden_size must be an int, but is 'many'"),
        (bert, {"hidden_size": 30}, "num_attention_heads must divide hidden_size, but hidden_size is 30"),
        (gpt2, {"n_layer": 0}, "n_layer must be at least 1, but is 0"),
        (gpt2, {"pad_token_id": 61}, "pad_token_id must be from 0 to vocab_size - 1 = 60, but is 61"),
        (llama, {"num_key_value_heads": 3}, "num_key_value_heads must divide num_attention_heads, but"),
        (llama, {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters must have factor for the type 'linear'"),
        (llama, {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "must have low_freq_factor, high_freq_.*"),
        (llama, {"rope_parameters": [1]}, r"rope_parameters must be an object, but is \[1\]"),
        (llama, {"rope_scaling": "yarn"}, "rope_scaling must be an object, but is 'yarn'"),
        (lambda: bert(BERTS["classes"]), {"id2label": ["a", "b"]}, "id2label must be an object, but is "),
        (marian, {"decoder_layers": -1}, "decoder_layers must be at least 1, but is -1"),
        (bert, {"num_hidden_layers": 10**6}, r"asks for 1000000 layers, but .* holds 39 tensors"),
        (gpt2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx must be False"),
        (
            llama,
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10.0}},
            "must be 'default' or .* but is 'yarn'",
        ),
        (marian, {"decoder_attention_heads": 2}, "decoder_attention_heads must be 4, .* but is 2"),
        (bert, {"type_vocab_size": 0}, "type_vocab_size must be at least 1, but is 0"),
        (
            lambda: bert(BERTS["classes"]),
            {"problem_type": "multi_label_classification"},
            "problem_type must be None or 'single_label_classification', .* but is 'multi_label_classification'",
        ),
    ],
)
def test_what_a_model_cannot_do_is_refused(tmp_path, make, changes, words):
    make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(InvalidCheckpoint, match=words):
        load_model(tmp_path)


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


def test_what_is_wrong_with_generation_is_told_of_its_own_file(tmp_path):
    gpt2().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, "</s>"]}))
    with pytest.raises(InvalidCheckpoint, match=r"generation_config\.json: eos_token_id must be the id of a word, but"):
        load_model(tmp_path)


def test_weights_that_are_no_numbers_are_named_as_the_file_does(tmp_path):
    gpt2().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["transformer.h.0.mlp.c_fc.weight"][0, 0] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"transformer\.h\.0\.mlp\.c_fc\.weight holds NaN"):
        load_model(tmp_path)


def test_of_tensors_that_make_one_weight_the_one_at_fault_is_named(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path)
    tensors, name = load_file(tmp_path / "model.safetensors"), "model.layers.0.self_attn.k_proj.weight"
    for wrong, told in (
        (torch.full_like(tensors[name], torch.nan), "holds NaN"),
        (tensors[name].long(), r"has the dtype torch\.int64, but weights are floating-point numbers"),
    ):
        save_file({**tensors, name: wrong}, tmp_path / "model.safetensors")
        with pytest.raises(InvalidCheckpoint, match=rf"model\.safetensors: {re.escape(name)} {told}[^,]*$"):
            load_model(tmp_path)
    few_bits = tensors[name].to(torch.float8_e4m3fn)
    save_file({**tensors, name: few_bits}, tmp_path / "model.safetensors")
    model.get_parameter(name).data = few_bits.float()
    torch.testing.assert_close(load_model(tmp_path)(WORDS).logits, model(WORDS).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", FORMATS)
def test_what_a_configuration_leaves_out_is_as_there(kind):
    form = FORMATS[kind]
    empty, full = (form.values(form.config(values, {})) for values in ({}, AutoConfig.for_model(kind).to_dict()))
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


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (gpt2, "lm_head.weight"),
        (lambda: llama(tie_word_embeddings=True), "lm_head.weight"),
        (lambda: bert(BERTS["masked_words"]), "cls.predictions.decoder.weight"),
        (marian, "lm_head.weight"),
        (marian, "model.decoder.embed_tokens.weight"),
    ],
)
def test_copies_of_a_tied_weight_that_differ_are_refused(tmp_path, make, name):
    theirs = make()
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name] = theirs.state_dict()[name].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    load_model(tmp_path)
    tensors[name][5] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=f"{name} differs from .*, but in this model they are one"):
        load_model(tmp_path)


def test_a_save_leaves_nothing_of_another_model(tmp_path):
    small = {"d_model": 32, "num_heads": 4, "num_layers": 1, "d_ff": 48}
    embedding = Bert(BertConfig(VOCAB, head="embedding", **small))
    save_model(tmp_path, embedding, layout="transformers")
    assert (tmp_path / "1_Pooling/config.json").is_file()
    classifier = embedding.with_head("classes", ("bad", "good"))
    save_model(tmp_path, classifier, layout="transformers")
    assert load_model(tmp_path).config == replace(classifier.config, pooler=True)
    for ends in ((2, 5), (7,)):
        save_model(tmp_path, Gpt(GptConfig.llama(VOCAB, eos_ids=ends, **small)), layout="transformers")
        assert load_model(tmp_path).config.eos_ids == ends


def test_folders_of_sentence_transformers_that_do_not_fit_are_refused(tmp_path):
    small = {"d_model": 32, "num_heads": 4, "num_layers": 1, "d_ff": 48}
    save_model(tmp_path, Bert(BertConfig(VOCAB, head="embedding", **small)), layout="transformers")
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(InvalidCheckpoint, match=r"sentence_bert_config\.json: do_lower_case must be False"):
        load_model(tmp_path)
    (tmp_path / "1_Pooling/config.json").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"does not read as a bert: .*1_Pooling/config\.json"):
        load_model(tmp_path)


@torch.no_grad()
def test_a_tied_map_may_stand_in_the_file_twice(tmp_path):
    for number, make in enumerate((gpt2, llama)):
        folder = tmp_path / str(number)
        theirs = make(tie_word_embeddings=True)
        theirs.save_pretrained(folder)
        (folder / "model.safetensors").unlink()
        torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
        torch.testing.assert_close(load_model(folder)(WORDS).logits, theirs(WORDS).logits, rtol=0, atol=1e-5)


def test_an_index_that_leads_elsewhere_is_refused(tmp_path):
    bert().save_pretrained(tmp_path, max_shard_size="10kB")
    index = tmp_path / "model.safetensors.index.json"
    whole = index.read_text()
    index.write_text(whole.replace("model-00001-of", "../model-00001-of"))
    with pytest.raises(
        InvalidCheckpoint, match=r"names the file '\.\./model-00001-of-.*', which is none of its folder"
    ):
        load_model(tmp_path)
    index.write_text(whole.replace("model-00001-of", "model-0000x-of"))
    with pytest.raises(InvalidCheckpoint, match=r"model-0000x-of-.* is missing, which model\.safetensors\.index\.json"):
        load_model(tmp_path)
    index.write_text(whole.replace('"model-00001-of-', '5, "x": "model-00001-of-', 1))
    with pytest.raises(InvalidCheckpoint, match="names the file 5, which is none of its folder"):
        load_model(tmp_path)
    index.write_text("[]")
    with pytest.raises(InvalidCheckpoint, match="expected a weight_map"):
        load_model(tmp_path)


def test_what_transformers_cannot_tell_is_refused(tmp_path):
    small = {"d_model": 16, "num_heads": 2, "d_ff": 16}
    for model, words in (
        (
            Gpt(GptConfig(9, num_layers=1, positions="alibi", **small)),
            "positions must be 'learned' in a checkpoint of GPT",
        ),
        (Gpt(GptConfig.llama(9, num_layers=1, positions="t5", **small)), "positions must be 'rotary' .* of Llama"),
        (Bert(BertConfig(9, num_layers=1, norm="pre", **small)), "norm must be 'post' in a checkpoint of BERT"),
        (
            Transformer(TransformerConfig(9, positions="relative", **small)),
            "positions must be 'sinusoidal' .* of Marian",
        ),
    ):
        with pytest.raises(InvalidArgument, match=words):
            save_model(tmp_path / "model", model, layout="transformers")
        save_model(tmp_path / "own", model)
        assert load_model(tmp_path / "own").config == model.config
    assert not (tmp_path / "model").exists()
    with pytest.raises(InvalidArgument, match="layout must be one of 'regard', 'transformers', but is 'hf'"):
        save_model(tmp_path / "model", model, layout="hf")


@torch.no_grad()
def test_sentence_embeddings_keep_their_pooling(tmp_path):
    torch.manual_seed(0)
    for pooling, normalised in (("mean", True), ("first", False)):
        config = BertConfig(VOCAB, d_model=32, num_heads=4, num_layers=2, d_ff=48, max_length=40, head="embedding",
                            cut_length=7 if normalised else None, pooling=pooling, normalised=normalised)  # fmt: skip
        ours = Bert(config).eval()
        save_model(tmp_path / pooling, ours, layout="transformers")
        loaded = load_model(tmp_path / pooling)
        assert loaded.config == replace(config, pooler=True)  # transformers' has one that nothing reads
        found = loaded(WORDS, LENGTHS).output
        torch.testing.assert_close(found, ours(WORDS, LENGTHS).output)
        hidden = loads_whole(AutoModel, tmp_path / pooling)(WORDS, attention_mask=REAL).last_hidden_state
        mean = (hidden * REAL[..., None]).sum(1) / LENGTHS[:, None]
        expected = torch.nn.functional.normalize(mean) if normalised else hidden[:, 0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
