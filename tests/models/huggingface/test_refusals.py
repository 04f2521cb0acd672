"""Invalid checkpoints of transformers: each is refused with all problems, by the names in its files."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.transformers_models import BERTS, VOCAB, WORDS, bert, gpt2, llama, marian
from regard.errors import InvalidArgument, InvalidCheckpoint
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig, load_model, save_model


def test_a_file_that_could_run_code_is_refused(tmp_path):
    class Harmful:
        def __reduce__(self):
            return print, ("it ran",)

    bert().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"bert.pooler.dense.bias": Harmful()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(
        InvalidCheckpoint,
        match=r"pytorch_model\.bin: expected a dict of tensors, got other objects, which could run code",
    ):
        load_model(tmp_path)
    torch.save([1, 2], tmp_path / "pytorch_model.bin")
    with pytest.raises(InvalidCheckpoint, match="expected a dict of tensors, got something else"):
        load_model(tmp_path)


def test_every_invalid_tensor_is_named_as_in_the_file(tmp_path):
    llama().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"], tensors["lm_head.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(47, 32)
    tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(2)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint) as caught:
        load_model(tmp_path)
    for part in (
        "model.layers.1.self_attn.k_proj.weight: expected a tensor of shape (16, 32), got none",
        "lm_head.weight: expected a tensor of shape (61, 32), got none",
        "model.layers.0.mlp.up_proj.weight: expected shape (48, 32), got (47, 32)",
        "model.layers.7.mlp.up_proj.weight: unexpected tensor of shape (2,), not part of the model",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (bert, {"position_embedding_type": "relative_key"}, "position_embedding_type: expected 'absolute', got 'rel"),
        (
            bert,
            {"architectures": ["BertForNextSentencePrediction"]},
            "architectures: expected one of BertModel, .*, got",
        ),
        (bert, {"architectures": "BertModel"}, "architectures: expected a list of class names, got 'BertModel'"),
        (
            gpt2,
            {"architectures": ["GPT2DoubleHeadsModel"]},
            "architectures: expected one of GPT2LMHeadModel, GPT2Model, got",
        ),
        (
            llama,
            {"architectures": ["LlamaForSequenceClassification"]},
            "architectures: expected one of LlamaForCausalLM, LlamaModel, got",
        ),
        (bert, {"hidden_act": "mish"}, "hidden_act: expected one of gelu, .*, got 'mish'"),
        (bert, {"hidden_size": "many"}, "hidden_size: expected an int of at least 1 and at most 268435456, got 'many'"),
        (bert, {"hidden_size": 30}, "num_attention_heads: expected a divisor of hidden_size=30, got 4"),
        (gpt2, {"n_layer": 0}, "n_layer: expected an int of at least 1 and at most 268435456, got 0"),
        (gpt2, {"pad_token_id": -1}, "pad_token_id: expected an int of at least 0 .*, got -1"),
        (llama, {"num_key_value_heads": 3}, "num_key_value_heads: expected a divisor of num_attention_heads=4, got 3"),
        (
            llama,
            {"rope_parameters": {"rope_type": "linear"}},
            "rope_parameters: expected factor for rope_type 'linear'",
        ),
        (
            llama,
            {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}},
            "rope_parameters: expected low_freq_factor, high_freq_.* for rope_type 'llama3'",
        ),
        (llama, {"rope_parameters": [1]}, r"rope_parameters: expected an object, got \[1\]"),
        (llama, {"rope_scaling": "yarn"}, "rope_scaling: expected an object, got 'yarn'"),
        (
            lambda: bert(BERTS["sequence_classification"]),
            {"id2label": ["a", "b"]},
            "id2label: expected an object, got ",
        ),
        (marian, {"decoder_layers": -1}, "decoder_layers: expected an int of at least 1 and at most 268435456, got -1"),
        (
            bert,
            {"num_hidden_layers": 10**6},
            r"num_hidden_layers: expected at most 39, the number of tensors, got 1000000",
        ),
        (gpt2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: expected False, got True"),
        (
            llama,
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10.0}},
            "rope_type: expected 'default' or .*, got 'yarn'",
        ),
        (
            marian,
            {"decoder_attention_heads": 2},
            "decoder_attention_heads: expected encoder_attention_heads=4, got 2",
        ),
        (bert, {"type_vocab_size": 0}, "type_vocab_size: expected an int of at least 1, got 0"),
        (
            lambda: bert(BERTS["sequence_classification"]),
            {"problem_type": "multi_label_classification"},
            "problem_type: expected None or 'single_label_classification', got 'multi_label_classification'",
        ),
    ],
)
def test_unsupported_options_are_refused(tmp_path, make, changes, words):
    make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(InvalidCheckpoint, match=words):
        load_model(tmp_path)


def test_problems_of_generation_config_name_its_file(tmp_path):
    gpt2().save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, "</s>"]}))
    with pytest.raises(InvalidCheckpoint, match=r"generation_config\.json: eos_token_id: expected a token id, got"):
        load_model(tmp_path)


def test_nan_weights_are_named_as_in_the_file(tmp_path):
    gpt2().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["transformer.h.0.mlp.c_fc.weight"][0, 0] = torch.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        InvalidCheckpoint, match=r"transformer\.h\.0\.mlp\.c_fc\.weight: expected finite float32 numbers, got NaN"
    ):
        load_model(tmp_path)


def test_the_invalid_part_of_a_merged_weight_is_named(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path)
    tensors, name = load_file(tmp_path / "model.safetensors"), "model.layers.0.self_attn.k_proj.weight"
    for wrong, message in (
        (torch.full_like(tensors[name], torch.nan), "expected finite float32 numbers, got NaN or infinity"),
        (tensors[name].long(), r"expected a floating-point dtype, got torch\.int64"),
    ):
        save_file({**tensors, name: wrong}, tmp_path / "model.safetensors")
        with pytest.raises(InvalidCheckpoint, match=rf"model\.safetensors: {re.escape(name)}: {message}$"):
            load_model(tmp_path)
    few_bits = tensors[name].to(torch.float8_e4m3fn)
    save_file({**tensors, name: few_bits}, tmp_path / "model.safetensors")
    model.get_parameter(name).data = few_bits.float()
    torch.testing.assert_close(load_model(tmp_path)(WORDS).logits, model(WORDS).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (gpt2, "lm_head.weight"),
        (lambda: llama(tie_word_embeddings=True), "lm_head.weight"),
        (lambda: bert(BERTS["masked_lm"]), "cls.predictions.decoder.weight"),
        (marian, "lm_head.weight"),
        (marian, "model.decoder.embed_tokens.weight"),
    ],
)
def test_copies_of_a_tied_weight_that_differ_are_refused(tmp_path, make, name):
    reference = make()
    reference.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[name] = reference.state_dict()[name].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    load_model(tmp_path)
    tensors[name][5] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=f"{name}: expected the values of .*, to which it is tied, got others"):
        load_model(tmp_path)


def test_folders_of_sentence_transformers_that_do_not_fit_are_refused(tmp_path):
    small = {"d_model": 32, "num_heads": 4, "num_layers": 1, "d_ff": 48}
    save_model(tmp_path, Bert(BertConfig(VOCAB, head="sentence_embedding", **small)), format="transformers")
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(InvalidCheckpoint, match=r"sentence_bert_config\.json: do_lower_case: expected False, got True"):
        load_model(tmp_path)
    (tmp_path / "1_Pooling/config.json").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"1_Pooling/config\.json: no such file"):
        load_model(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(InvalidCheckpoint, match=r"config\.json: no such file$"):  # 1_Pooling is not a model
        load_model(tmp_path)


def test_an_index_that_leads_elsewhere_is_refused(tmp_path):
    bert().save_pretrained(tmp_path, max_shard_size="10kB")
    index = tmp_path / "model.safetensors.index.json"
    original = index.read_text()
    index.write_text(original.replace("model-00001-of", "../model-00001-of"))
    with pytest.raises(
        InvalidCheckpoint, match=r"weight_map: expected names of files in its folder, got '\.\./model-00001-of-"
    ):
        load_model(tmp_path)
    index.write_text(original.replace("model-00001-of", "model-0000x-of"))
    with pytest.raises(
        InvalidCheckpoint, match=r"model-0000x-of-.*: no such file, but model\.safetensors\.index\.json lists it"
    ):
        load_model(tmp_path)
    index.write_text(original.replace('"model-00001-of-', '5, "x": "model-00001-of-', 1))
    with pytest.raises(InvalidCheckpoint, match="weight_map: expected names of files in its folder, got 5"):
        load_model(tmp_path)
    index.write_text("[]")
    with pytest.raises(InvalidCheckpoint, match="weight_map: expected a file name for each tensor"):
        load_model(tmp_path)


def test_configs_that_transformers_cannot_express_are_refused(tmp_path):
    small = {"d_model": 16, "num_heads": 2, "d_ff": 16}
    for model, words in (
        (
            GPT(GPTConfig(9, num_layers=1, positions="alibi", **small)),
            "positions: expected 'learned' or 'sinusoidal' or 'none' in a checkpoint of GPT-2, got 'alibi'",
        ),
        (
            GPT(GPTConfig.llama(9, num_layers=1, positions="t5", **small)),
            "positions: expected 'rotary' in a checkpoint of Llama",
        ),
        (
            Bert(BertConfig(9, num_layers=1, norm_first=True, **small)),
            "norm_first: expected False in a checkpoint of BERT",
        ),
        (
            Transformer(TransformerConfig(9, positions="relative", **small)),
            "positions: expected 'learned' or 'sinusoidal' or 'none' in a checkpoint of Marian, got 'relative'",
        ),
        (
            Bert(BertConfig(9, num_layers=1, model_type="roberta", norm_first=True, **small)),
            "norm_first: expected False in a checkpoint of RoBERTa",
        ),
    ):
        with pytest.raises(InvalidArgument, match=words):
            save_model(tmp_path / "model", model, format="transformers")
        save_model(tmp_path / "own", model)
        assert load_model(tmp_path / "own").config == model.config
    assert not (tmp_path / "model").exists()
    with pytest.raises(InvalidArgument, match="format: expected one of regard, transformers, got 'hf'"):
        save_model(tmp_path / "model", model, format="hf")
