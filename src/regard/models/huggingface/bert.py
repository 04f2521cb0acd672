"""BERT as transformers keeps it, with its heads; an embedding as sentence-transformers does, which adds its pooling."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.errors import InvalidArgument, raise_problems
from regard.models.bert import CLASSIFIERS, BertConfig, Head, Pooling
from regard.models.huggingface.converter import (
    CheckpointConverter,
    architecture_name,
    require_fields,
    require_objects,
    require_values,
)
from regard.models.weights import WeightSource

MODULES_FILE, POOLING_FILE, SENTENCE_FILE = "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"
HEADS: dict[str, Head] = {
    "BertModel": "none",
    "BertForMaskedLM": "masked_lm",
    "BertForPreTraining": "masked_lm",
    "BertForSequenceClassification": "sequence_classification",
    "BertForTokenClassification": "token_classification",
}


class _Bert(CheckpointConverter):
    model_type = "bert"
    architecture = "bert"
    prefix = "bert."
    ignored_weights = re.compile(r"position_ids$|^cls\.seq_relationship\.")
    heads: ClassVar = HEADS
    word_head: ClassVar = {
        "transform": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "lm_head": "cls.predictions.decoder",
        "bias": "cls.predictions.bias",
    }
    """The names of the parts of the head that predicts words."""
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
        "pad_id": ("pad_token_id", 0),
    }

    def read_config(self, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> BertConfig:
        wanted = {
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
            "tie_word_embeddings": (True,),
        }
        name = architecture_name(values) or next(iter(self.heads))
        head = self.heads.get(name)
        if head == "sequence_classification":
            wanted["problem_type"] = (None, "single_label_classification")
        objections = require_values(values, wanted) + require_objects(values, "id2label")
        if head is None:
            objections.append(f"architectures must be one of {', '.join(self.heads)}, but is {name!r}")
        if values.get("type_vocab_size") == 0:
            objections.append("type_vocab_size must be at least 1, but is 0")
        raise_problems(objections)
        assert head is not None
        labels = values.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
        fields = self.read_fields(values)
        fields["pad_id"] = fields["pad_id"] or 0
        return BertConfig(
            **self.with_max_seq_len(fields),
            head=head,
            labels=tuple(str(labels[place]) for place in sorted(labels, key=int)) if head in CLASSIFIERS else (),
            pooler=any(name.endswith("pooler.dense.weight") for name in tensors),
        )

    def with_max_seq_len(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields of the configuration, with the number of positions that tokens can have."""
        return fields

    def skipped_positions(self, config: BertConfig) -> int:
        """The number of positions at the front that no token has."""
        return 0

    def classifier(self, config: BertConfig) -> dict[str, str]:
        """The names of the pooler and of the map to classes."""
        return {"pooler": f"{self.prefix}pooler.dense", "classifier": "classifier"}

    def write_config(self, config: BertConfig) -> dict[str, Any]:
        objections = require_fields(config, "BERT", norm_first=False, positions="learned")
        if not config.type_vocab_size:
            objections.append("type_vocab_size must be at least 1 in a checkpoint of BERT, but is 0")
        raise_problems(objections)
        head = "none" if config.head == "sentence_embedding" else config.head
        labels = {str(place): label for place, label in enumerate(config.labels)}
        return {
            "architectures": [next(name for name, each in HEADS.items() if each == head)],
            "model_type": "bert",
            **self.write_fields(config),
            **({"id2label": labels, "label2id": {label: int(at) for at, label in labels.items()}} if labels else {}),
        }

    def weight_map(self, config: BertConfig) -> dict[str, WeightSource]:
        embeddings, word_head, classifier = f"{self.prefix}embeddings", self.word_head, self.classifier(config)
        positions = WeightSource((f"{embeddings}.position_embeddings.weight",), skip=self.skipped_positions(config))
        found = {
            "token_embedding.weight": WeightSource(
                (f"{embeddings}.word_embeddings.weight",), aliases=(f"{word_head['lm_head']}.weight",)
            ),
            "positions.weight": positions,
            "token_type_embedding.weight": WeightSource((f"{embeddings}.token_type_embeddings.weight",)),
        }
        width = config.d_model
        for part in ("weight", "bias"):
            found[f"embedding_norm.{part}"] = WeightSource((f"{embeddings}.LayerNorm.{part}",))
            if config.pooler or config.head == "sequence_classification":
                found[f"pooler.{part}"] = WeightSource((f"{classifier['pooler']}.{part}",))
            if config.head in CLASSIFIERS:
                found[f"classifier.{part}"] = WeightSource((f"{classifier['classifier']}.{part}",))
            if config.head == "masked_lm":
                found[f"mlm_head.dense.{part}"] = WeightSource((f"{word_head['transform']}.{part}",))
                found[f"mlm_head.norm.{part}"] = WeightSource((f"{word_head['norm']}.{part}",))
            for number in range(config.num_layers):
                ours, layer = f"encoder.layers.{number}", f"{self.prefix}encoder.layer.{number}"
                inputs = tuple(f"{layer}.attention.self.{name}.{part}" for name in ("query", "key", "value"))
                found[f"{ours}.attention.in_proj.{part}"] = WeightSource(inputs, (width, width, width))
                for name, module in {
                    "attention.out_proj": "attention.output.dense",
                    "attention_residual.norm": "attention.output.LayerNorm",
                    "feed_forward.fc1": "intermediate.dense",
                    "feed_forward.fc2": "output.dense",
                    "feed_forward_residual.norm": "output.LayerNorm",
                }.items():
                    found[f"{ours}.{name}.{part}"] = WeightSource((f"{layer}.{module}.{part}",))
        if config.head == "masked_lm":
            older = (f"{word_head['lm_head']}.bias",)
            found["mlm_head.decoder.bias"] = WeightSource((word_head["bias"],), aliases=older)
        return found

    def export_weights(self, config: BertConfig, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file; a bare model's have no prefix, and always a pooler."""
        found = super().export_weights(config, parameters)
        if config.head not in ("none", "sentence_embedding"):
            return found
        unused = {} if config.pooler else {"weight": torch.eye(config.d_model), "bias": torch.zeros(config.d_model)}
        found |= {f"{self.prefix}pooler.dense.{part}": tensor for part, tensor in unused.items()}
        return {name.removeprefix(self.prefix): tensor for name, tensor in found.items()}

    def extra_files(self, config: BertConfig) -> dict[str, Any]:
        """What sentence-transformers wants to know of an embedding."""
        if config.head != "sentence_embedding":
            return {}
        kinds = ["Transformer", "Pooling", *(["Normalize"] if config.normalize_embeddings else [])]
        paths = ["", "1_Pooling", "2_Normalize"]
        modules = [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for at, (kind, path) in enumerate(zip(kinds, paths, strict=False))
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


def with_pooling(config: BertConfig, folder: Path) -> BertConfig:
    """The configuration of the embedding that a folder of sentence-transformers describes.

    Raises:
        InvalidArgument: If it pools in a way that is none of ours.
        OSError: If a file is missing.
        ValueError: If a file is no JSON.
    """
    kinds = [str(module["type"]).rpartition(".")[2] for module in json.loads((folder / MODULES_FILE).read_text())]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise InvalidArgument(f"{MODULES_FILE}: expected Transformer, Pooling and perhaps Normalize, got {kinds}")
    pooling = json.loads((folder / POOLING_FILE).read_text())
    modes = {name for name, on in pooling.items() if name.startswith("pooling_mode") and on is True}
    known: dict[str, Pooling] = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}
    if len(modes) != 1 or not modes <= known.keys():
        raise InvalidArgument(f"{POOLING_FILE}: expected one of {', '.join(known)}, got {', '.join(sorted(modes))}")
    said = json.loads((folder / SENTENCE_FILE).read_text()) if (folder / SENTENCE_FILE).is_file() else {}
    raise_problems([f"{SENTENCE_FILE}: {each}" for each in require_values(said, {"do_lower_case": (False, None)})])
    longest = said.get("max_seq_length")
    return replace(
        config,
        head="sentence_embedding",
        pooling=known[modes.pop()],
        normalize_embeddings=len(kinds) == 3,
        truncation_length=min(longest, config.max_seq_len) if isinstance(longest, int) else longest,
    )


class _Roberta(_Bert):
    """RoBERTa, a BERT whose positions begin behind that of padding. It is saved as a BERT."""

    model_type = "roberta"
    prefix = "roberta."
    ignored_weights = re.compile(r"position_ids$")
    heads: ClassVar = {
        "RobertaModel": "none",
        "RobertaForMaskedLM": "masked_lm",
        "RobertaForSequenceClassification": "sequence_classification",
        "RobertaForTokenClassification": "token_classification",
    }
    config_keys: ClassVar = {**_Bert.config_keys, "vocab_size": ("vocab_size", 50265), "pad_id": ("pad_token_id", 1)}
    word_head: ClassVar = {
        "transform": "lm_head.dense",
        "norm": "lm_head.layer_norm",
        "lm_head": "lm_head.decoder",
        "bias": "lm_head.bias",
    }

    def with_max_seq_len(self, fields: dict[str, Any]) -> dict[str, Any]:
        length, pad_id = fields["max_seq_len"], fields["pad_id"]
        if type(length) is not int or type(pad_id) is not int:
            return fields  # the configuration names what is wrong
        return fields | {"max_seq_len": length - pad_id - 1}

    def skipped_positions(self, config: BertConfig) -> int:
        return config.pad_id + 1

    def classifier(self, config: BertConfig) -> dict[str, str]:
        if config.head == "sequence_classification":
            return {"pooler": "classifier.dense", "classifier": "classifier.out_proj"}
        return super().classifier(config)


BERT, ROBERTA = _Bert(), _Roberta()
