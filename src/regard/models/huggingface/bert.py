"""BERT and RoBERTa in transformers, with their heads; sentence embeddings in sentence-transformers, with pooling."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidCheckpoint, short_repr
from regard.input_files import exists, read_json
from regard.models.bert import CLASSIFIERS, BertConfig, Pooling
from regard.models.huggingface.converter import (
    OPTIONAL_BIASES,
    POSITION_TABLES,
    UNUSED_WITHOUT_ROTARY,
    VASWANI_LAYER,
    CheckpointConverter,
    require_objects,
    require_values,
)
from regard.models.weights import WeightSource

_TYPE_VOCAB_SIZE = 2  # transformers' default, for pairs of texts
MODULES_FILE, POOLING_FILE, SENTENCE_FILE = "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"


class _Bert(CheckpointConverter):
    name = "BERT"
    model_type = "bert"
    config_type = BertConfig
    prefix = "bert."
    ignored_weights = re.compile(r"position_ids$|^cls\.seq_relationship\.")
    architectures: ClassVar = {
        "BertModel": "none",
        "BertForMaskedLM": "masked_lm",
        "BertForPreTraining": "masked_lm",
        "BertForSequenceClassification": "sequence_classification",
        "BertForTokenClassification": "token_classification",
    }
    aliases: ClassVar = {
        "bert.embeddings.word_embeddings.weight": ("cls.predictions.decoder.weight",),
        "cls.predictions.bias": ("cls.predictions.decoder.bias",),
    }
    config_keys: ClassVar = {
        "vocab_size": ("vocab_size", 30522),
        "d_model": ("hidden_size", 768),
        "num_heads": ("num_attention_heads", 12),
        "num_layers": ("num_hidden_layers", 12),
        "d_ff": ("intermediate_size", 3072),
        "activation": ("hidden_act", "gelu"),
        "norm_eps": ("layer_norm_eps", 1e-12),
        "max_seq_len": ("max_position_embeddings", 512),
        "type_vocab_size": ("type_vocab_size", 2),
        "dropout": ("hidden_dropout_prob", 0.1),
        "attention_dropout": ("attention_probs_dropout_prob", 0.1),
        "truncation_length": ("truncation_length", None),  # transformers ignores it
        "pad_id": ("pad_token_id", 0),
    }
    fixed_fields: ClassVar = {**VASWANI_LAYER, "norm_first": False, "positions": "learned", "model_type": "bert"}
    equivalent_values: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **OPTIONAL_BIASES,
        "positions": POSITION_TABLES[1:],
        "model_type": ("roberta",),
    }
    computed_fields = ("head", "labels", "pooler", "pooling", "normalize_embeddings")
    unsaved_fields = ("activation_dropout", *UNUSED_WITHOUT_ROTARY)

    def read_config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> BertConfig:
        allowed = {
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
            "tie_word_embeddings": (True,),
        }
        with Checks() as checks:
            head = self.read_head(values, checks)
            if head == "sequence_classification":
                allowed["problem_type"] = (None, "single_label_classification")
            require_values(checks, values, allowed)
            require_objects(checks, values, "id2label")
            checks.that(values.get("type_vocab_size") != 0, "type_vocab_size: expected an int of at least 1, got 0")
            fields = self.read_fields(values, checks)
        labels = values.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        fields |= {
            "head": head,
            "labels": tuple(str(labels[index]) for index in sorted(labels, key=int)) if head in CLASSIFIERS else (),
            "pooler": any(name.endswith("pooler.dense.weight") for name in tensors),
            "pad_id": fields["pad_id"] or 0,
            "model_type": self.model_type,
        }
        return BertConfig(**fields)

    def read_extra_files(self, config: BertConfig, folder: Path) -> BertConfig:
        """The configuration, with the pooling of sentence-transformers if the folder has its modules."""
        return _with_pooling(config, folder) if exists(folder / MODULES_FILE) else config

    def write_config(self, config: BertConfig) -> dict[str, Any]:
        head = "none" if config.head == "sentence_embedding" else config.head
        architecture = next(name for name, each in self.architectures.items() if each == head)
        values = super().write_config(config) | {"architectures": [architecture]}
        if config.labels:
            values["id2label"] = {str(index): label for index, label in enumerate(config.labels)}
            values["label2id"] = {label: index for index, label in enumerate(config.labels)}
        return values

    def equivalent_config(self, config: BertConfig) -> BertConfig:
        """Without token types there are two of zeros; a model without a head has a pooler."""
        has_pooler = config.pooler or config.head in ("none", "sentence_embedding")
        types = config.type_vocab_size or _TYPE_VOCAB_SIZE
        return replace(super().equivalent_config(config), type_vocab_size=types, pooler=has_pooler)

    def missing_weight(self, config: BertConfig, name: str, shape: tuple[int, ...]) -> Tensor:
        return torch.eye(*shape) if name == "pooler.weight" else super().missing_weight(config, name, shape)

    def modules(self, config: BertConfig) -> dict[str, str | tuple[str, ...]]:
        embeddings, layer = f"{self.prefix}embeddings", f"{self.prefix}encoder.layer.{{}}"
        return {
            "token_embedding": f"{embeddings}.word_embeddings",
            "positions": f"{embeddings}.position_embeddings",
            "token_type_embedding": f"{embeddings}.token_type_embeddings",
            "embedding_norm": f"{embeddings}.LayerNorm",
            "encoder.layers.{}.self_attention.in_proj": (
                f"{layer}.attention.self.query",
                f"{layer}.attention.self.key",
                f"{layer}.attention.self.value",
            ),
            "encoder.layers.{}.self_attention.out_proj": f"{layer}.attention.output.dense",
            "encoder.layers.{}.self_attention_residual.norm": f"{layer}.attention.output.LayerNorm",
            "encoder.layers.{}.feed_forward.fc1": f"{layer}.intermediate.dense",
            "encoder.layers.{}.feed_forward.fc2": f"{layer}.output.dense",
            "encoder.layers.{}.feed_forward_residual.norm": f"{layer}.output.LayerNorm",
            "pooler": f"{self.prefix}pooler.dense",
            "mlm_head.dense": "cls.predictions.transform.dense",
            "mlm_head.norm": "cls.predictions.transform.LayerNorm",
            "mlm_head.decoder": "cls.predictions",
            "classifier": "classifier",
        }

    def export_weights(self, config: BertConfig, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors to store; those of a model without a head have no prefix."""
        weights = super().export_weights(config, parameters)
        if config.head not in ("none", "sentence_embedding"):
            return weights
        return {name.removeprefix(self.prefix): tensor for name, tensor in weights.items()}

    def extra_files(self, config: BertConfig) -> dict[str, Any]:
        """The modules of sentence-transformers, for a sentence embedding."""
        if config.head != "sentence_embedding":
            return {}
        kinds = ["Transformer", "Pooling", *(["Normalize"] if config.normalize_embeddings else [])]
        paths = ["", "1_Pooling", "2_Normalize"]
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(zip(kinds, paths, strict=False))
        ]
        pooling = {
            "word_embedding_dimension": config.d_model,
            "pooling_mode_cls_token": config.pooling == "cls",
            "pooling_mode_mean_tokens": config.pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        }
        return {
            MODULES_FILE: modules,
            POOLING_FILE: pooling,
            SENTENCE_FILE: {"max_seq_length": config.truncation_length},
        }


def _with_pooling(config: BertConfig, folder: Path) -> BertConfig:
    """The configuration of the sentence embedding in a folder of sentence-transformers."""
    kinds = [str(module["type"]).rpartition(".")[2] for module in read_json(folder / MODULES_FILE, InvalidCheckpoint)]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InvalidArgument(
            f"{MODULES_FILE}: expected Transformer, Pooling and optionally Normalize, got {short_repr(kinds)}"
        )
    pooling = read_json(folder / POOLING_FILE, InvalidCheckpoint)
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode") and on is True}
    options = read_json(folder / SENTENCE_FILE, InvalidCheckpoint) if exists(folder / SENTENCE_FILE) else {}
    supported: dict[str, Pooling] = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    with Checks() as checks:
        if len(modes) != 1 or not modes <= supported.keys():
            got = ", ".join(sorted(modes)) or "none"
            checks.fail(f"{POOLING_FILE}: expected one of {', '.join(supported)}, got {got}")
        if options.get("do_lower_case") not in (False, None):
            checks.fail(f"{SENTENCE_FILE}: do_lower_case: expected False, got {short_repr(options['do_lower_case'])}")
    max_length = options.get("max_seq_length")
    return replace(
        config,
        head="sentence_embedding",
        pooling=supported[modes.pop()],
        normalize_embeddings=len(kinds) == 3,
        truncation_length=min(max_length, config.max_seq_len) if isinstance(max_length, int) else max_length,
    )


class _Roberta(_Bert):
    """RoBERTa: a BERT whose positions start after the padding position, and with other names of the heads."""

    name = "RoBERTa"
    model_type = "roberta"
    prefix = "roberta."
    ignored_weights = re.compile(r"position_ids$")
    architectures: ClassVar = {
        "RobertaModel": "none",
        "RobertaForMaskedLM": "masked_lm",
        "RobertaForSequenceClassification": "sequence_classification",
        "RobertaForTokenClassification": "token_classification",
    }
    config_keys: ClassVar = {**_Bert.config_keys, "vocab_size": ("vocab_size", 50265), "pad_id": ("pad_token_id", 1)}
    fixed_fields: ClassVar = {**_Bert.fixed_fields, "model_type": "roberta"}
    equivalent_values: ClassVar = {**OPTIONAL_BIASES, "positions": POSITION_TABLES[1:]}
    aliases: ClassVar = {
        "roberta.embeddings.word_embeddings.weight": ("lm_head.decoder.weight",),
        "lm_head.bias": ("lm_head.decoder.bias",),
    }

    def read_fields(self, values: Mapping[str, Any], checks: Checks) -> dict[str, Any]:
        fields = super().read_fields(values, checks)
        length, pad_id = fields["max_seq_len"], fields["pad_id"] or 0
        if type(length) is int and type(pad_id) is int:  # else the configuration names the problem
            fields["max_seq_len"] = length - pad_id - 1
        if fields["activation"] != "gelu" and self.read_head(values, checks) == "masked_lm":
            checks.fail(
                f"hidden_act: expected 'gelu', which the head of RobertaForMaskedLM has always, got "
                f"{short_repr(values.get('hidden_act'))}"
            )
        return fields

    def check_config(self, config: BertConfig, checks: Checks) -> None:
        super().check_config(config, checks)
        if config.head == "masked_lm" and config.activation != "gelu":
            got = short_repr(config.activation)
            checks.fail(f"activation: expected 'gelu' in a checkpoint of RobertaForMaskedLM, got {got}")

    def write_config(self, config: BertConfig) -> dict[str, Any]:
        return super().write_config(config) | {"max_position_embeddings": config.max_seq_len + config.pad_id + 1}

    def modules(self, config: BertConfig) -> dict[str, str | tuple[str, ...]]:
        modules = super().modules(config) | {
            "mlm_head.dense": "lm_head.dense",
            "mlm_head.norm": "lm_head.layer_norm",
            "mlm_head.decoder": "lm_head",
        }
        if config.head == "sequence_classification":
            modules |= {"pooler": "classifier.dense", "classifier": "classifier.out_proj"}
        return modules

    def weight_map(self, config: BertConfig, parameters: Collection[str]) -> dict[str, WeightSource]:
        sources = super().weight_map(config, parameters)
        sources["positions.weight"] = replace(sources["positions.weight"], skip=config.pad_id + 1)
        return sources


BERT, ROBERTA = _Bert(), _Roberta()
