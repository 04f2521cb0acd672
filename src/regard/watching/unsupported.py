"""Why attention was not recorded, and what to do, in the words of error messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn

from regard.watching.module_inspection import calls_sdpa, is_named_attention, is_of_transformers, mentions_attention

OWN_CODE = "computes attention in its own code, which cannot be recorded"


def label(name: str, module: nn.Module) -> str:
    """A module by name and class."""
    return f"{name} ({type(module).__name__})" if name else type(module).__name__


def remedy(model: nn.Module, cls: type[nn.Module], options: Mapping[str, Any]) -> str:
    """What to do if the attention of a module of a class, called with keyword arguments, was not recorded."""
    if options.get("output_attentions"):
        return " with output_attentions=True; leave that out, because the watch gives the weights"
    if calls_sdpa(cls) and is_of_transformers(model):
        return '; watch it after model.set_attn_implementation("sdpa"), or exclude it by passing layers=[...]'
    return "; exclude it by passing layers=[...]"


def why_no_attention(model: nn.Module, modules_run: Collection[int]) -> str:
    """Why nothing was recorded in a model, as far as its code shows it.

    Args:
        model: The model.
        modules_run: The ids of the modules that ran.
    """
    if isinstance(model, torch.jit.ScriptModule):
        return "it is a ScriptModule, which takes no hooks; watch the module that it was made from"
    if not any(mentions_attention(type(module)) for module in model.modules()):
        return "no attention was found in its code"
    attention = {name: module for name, module in model.named_modules() if is_named_attention(type(module))}
    if attention and not any(id(module) in modules_run for module in attention.values()):
        return f"its attention was not called ({', '.join(list(attention)[:3])})"
    for name, module in attention.items():
        if not any(is_named_attention(type(part)) for part in module.modules() if part is not module):
            return f"{label(name, module)} {OWN_CODE}"
    return "it has no attention, or computes it in its own code"
