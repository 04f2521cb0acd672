"""The adapters that a watch uses without being given any, by the module and name of the class they are for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from torch import nn

from regard.watching.adapters.bart import bart
from regard.watching.adapters.bert import bert
from regard.watching.adapters.blip import blip
from regard.watching.adapters.bloom import bloom
from regard.watching.adapters.deberta import deberta, deberta_v2
from regard.watching.adapters.falcon import falcon
from regard.watching.adapters.gpt_neo import gpt_neo
from regard.watching.adapters.gptj import gptj
from regard.watching.adapters.graphs import gat_conv, gatv2_conv, transformer_conv
from regard.watching.adapters.inputs import Adapter
from regard.watching.adapters.mpnet import mpnet
from regard.watching.adapters.mpt import mpt
from regard.watching.adapters.xlnet import xlnet

SHIPPED: Mapping[str, Adapter] = MappingProxyType(
    {
        "torch_geometric.nn.conv.gat_conv.GATConv": gat_conv,
        "torch_geometric.nn.conv.gatv2_conv.GATv2Conv": gatv2_conv,
        "torch_geometric.nn.conv.transformer_conv.TransformerConv": transformer_conv,
        "transformers.models.blip.modeling_blip.BlipAttention": blip,
        "transformers.models.blip.modeling_blip_text.BlipTextSelfAttention": bert,
        "transformers.models.bloom.modeling_bloom.BloomAttention": bloom,
        "transformers.models.deberta.modeling_deberta.DisentangledSelfAttention": deberta,
        "transformers.models.deberta_v2.modeling_deberta_v2.DisentangledSelfAttention": deberta_v2,
        "transformers.models.falcon.modeling_falcon.FalconAttention": falcon,
        "transformers.models.flava.modeling_flava.FlavaSelfAttention": bert,
        "transformers.models.gpt_neo.modeling_gpt_neo.GPTNeoSelfAttention": gpt_neo,
        "transformers.models.gptj.modeling_gptj.GPTJAttention": gptj,
        "transformers.models.megatron_bert.modeling_megatron_bert.MegatronBertSelfAttention": bert,
        "transformers.models.mpnet.modeling_mpnet.MPNetSelfAttention": mpnet,
        "transformers.models.mpt.modeling_mpt.MptAttention": mpt,
        "transformers.models.rembert.modeling_rembert.RemBertSelfAttention": bert,
        "transformers.models.tapas.modeling_tapas.TapasSelfAttention": bert,
        "transformers.models.trocr.modeling_trocr.TrOCRAttention": bart,
        "transformers.models.vilt.modeling_vilt.ViltSelfAttention": bert,
        "transformers.models.visual_bert.modeling_visual_bert.VisualBertSelfAttention": bert,
        "transformers.models.xglm.modeling_xglm.XGLMAttention": bart,
        "transformers.models.xlnet.modeling_xlnet.XLNetRelativeAttention": xlnet,
    }
)


@lru_cache(maxsize=1024)
def shipped_adapter(cls: type[nn.Module]) -> Adapter | None:
    """The adapter for a class; None if there is none, or a subclass has changed a method of the class."""
    for number, base in enumerate(cls.__mro__):
        adapter = SHIPPED.get(f"{base.__module__}.{base.__qualname__}")
        if adapter is not None:
            methods = {name for name, each in vars(base).items() if inspect.isfunction(each)} - {"__init__"}
            changed = {name for subclass in cls.__mro__[:number] for name in vars(subclass)}
            return None if methods & changed else adapter
    return None
