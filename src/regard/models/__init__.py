"""Whole models: one file a paper."""

from __future__ import annotations

from regard.models.bert import Bert, BertConfig, BertOutput
from regard.models.checkpoint import load_model, save_model
from regard.models.encoder_decoder import Attentions, EncoderDecoder, EncoderDecoderOutput
from regard.models.gat import Gat, GatConfig, GatOutput
from regard.models.gpt import Gpt, GptConfig, GptOutput
from regard.models.rnn_search import RnnSearch, RnnSearchConfig
from regard.models.sagan import SaganConfig, SaganCritic, SaganGenerator
from regard.models.transformer import Transformer, TransformerConfig

__all__ = [
    "Attentions",
    "Bert",
    "BertConfig",
    "BertOutput",
    "EncoderDecoder",
    "EncoderDecoderOutput",
    "Gat",
    "GatConfig",
    "GatOutput",
    "Gpt",
    "GptConfig",
    "GptOutput",
    "RnnSearch",
    "RnnSearchConfig",
    "SaganConfig",
    "SaganCritic",
    "SaganGenerator",
    "Transformer",
    "TransformerConfig",
    "load_model",
    "save_model",
]
