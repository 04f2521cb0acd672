"""Whole models: one file a paper."""

from __future__ import annotations

from regard.models.bert import Bert as Bert
from regard.models.bert import BertConfig as BertConfig
from regard.models.bert import BertOutput as BertOutput
from regard.models.checkpoint import load_config as load_config
from regard.models.checkpoint import load_model as load_model
from regard.models.checkpoint import save_model as save_model
from regard.models.config import TransformerLayerConfig as TransformerLayerConfig
from regard.models.encoder_decoder import Attentions as Attentions
from regard.models.encoder_decoder import EncoderDecoder as EncoderDecoder
from regard.models.encoder_decoder import EncoderDecoderOutput as EncoderDecoderOutput
from regard.models.gat import GAT as GAT
from regard.models.gat import GATConfig as GATConfig
from regard.models.gat import GATOutput as GATOutput
from regard.models.gpt import GPT as GPT
from regard.models.gpt import GPTConfig as GPTConfig
from regard.models.gpt import GPTOutput as GPTOutput
from regard.models.rnn_search import RNNSearch as RNNSearch
from regard.models.rnn_search import RNNSearchConfig as RNNSearchConfig
from regard.models.sagan import SaganConfig as SaganConfig
from regard.models.sagan import SaganDiscriminator as SaganDiscriminator
from regard.models.sagan import SaganGenerator as SaganGenerator
from regard.models.transformer import Transformer as Transformer
from regard.models.transformer import TransformerConfig as TransformerConfig
