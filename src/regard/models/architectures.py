"""The architectures of our own format: for each its configuration and its model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from regard.models.bert import Bert, BertConfig
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.gpt import GPT, GPTConfig
from regard.models.rnn_search import RNNSearch, RNNSearchConfig
from regard.models.transformer import Transformer, TransformerConfig

ARCHITECTURES: Mapping[str, tuple[type[Any], type[Any]]] = MappingProxyType(
    {
        "transformer": (TransformerConfig, Transformer),
        "bert": (BertConfig, Bert),
        "gpt": (GPTConfig, GPT),
        "rnn_search": (RNNSearchConfig, RNNSearch),
    }
)
Model = EncoderDecoder | Bert | GPT


def model_noun(model: type[Any]) -> str:
    """What messages call a model of a class, with its article.

    Examples:
        >>> model_noun(Transformer)
        'an encoder-decoder'
    """
    kinds = {RNNSearch: "an RNNsearch", EncoderDecoder: "an encoder-decoder", GPT: "a GPT", Bert: "a BERT"}
    return next(kind for each, kind in kinds.items() if issubclass(model, each))


def model_for(config_type: type[Any]) -> type[Any]:
    """The class of the models with a class of configurations."""
    return next(model for each, model in ARCHITECTURES.values() if each is config_type)


def model_from_config(config: Any) -> Any:
    """Build the model of a configuration, with new weights."""
    return model_for(type(config))(config)
