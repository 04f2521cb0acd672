"""What a module is: its kind of attention and, from its bytecode, whether it computes attention in its own code."""

from __future__ import annotations

import dis
import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from types import CodeType
from typing import Any

import torch
from torch import nn

from regard.nn import AdditiveAttention, GraphAttention, MultiHeadAttention, SelfAttention, SelfAttention2d
from regard.recordings.layer import AttentionKind

LIBRARY_MODULES = ("torch.", "transformers.modeling_utils", "transformers.generation")
"""Python modules whose classes do not belong to one model."""

MATRIX_PRODUCTS = {"matmul", "bmm", "baddbmm", "einsum", "rmatmul"}
"""Functions that multiply matrices, as @ does."""

REGARD_LAYERS = (MultiHeadAttention, SelfAttention, AdditiveAttention, GraphAttention, SelfAttention2d)
"""The layers of this library, whose output has the weights."""

ATTENTION_NAME = re.compile("attention|attn", re.IGNORECASE)
CROSS_NAME = re.compile(r"cross_?att|encoder_?attn|enc_?dec_?att|encoder_decoder_?att", re.IGNORECASE)
SELF_NAME = re.compile(r"self_?att", re.IGNORECASE)


def attention_kind(name: str, module: nn.Module, module_stack: Sequence[nn.Module]) -> AttentionKind | None:
    """The kind of an attention layer, from its attributes and its name; None if they do not decide.

    Args:
        name: Its dotted name in the model.
        module: The layer.
        module_stack: The modules that are running, the layer last.
    """
    parent = module_stack[-2] if len(module_stack) > 1 else None
    if isinstance(parent, nn.TransformerDecoderLayer):
        return "cross" if module is parent.multihead_attn else "decoder"
    named = _kind_in_name(name)
    if named == "cross" or getattr(module, "is_cross_attention", False):
        return "cross"
    if named == "decoder" or getattr(module, "is_decoder", False):
        return "decoder"
    if named is not None:
        return named
    is_decoder = getattr(module, "is_decoder", getattr(module, "is_causal", None))
    return None if is_decoder is None else "decoder" if is_decoder else "encoder"


@lru_cache(maxsize=1024)
def _kind_in_name(name: str) -> AttentionKind | None:
    """The kind that a dotted name says.

    Only its last two parts can say that it is cross-attention: a container may be called ``cross_encoder``.
    """
    name = name.lower()
    last = [part for part in name.split(".") if not part.isdigit()][-2:]
    if any(map(CROSS_NAME.search, last)) and not SELF_NAME.search(last[-1]):
        return "cross"
    return "decoder" if "decoder" in name else "encoder" if "encoder" in name else None


@cache
def calls_sdpa(cls: type[nn.Module]) -> bool:
    """Whether a class calls one of torch's attention functions itself."""
    names = {"scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"}
    return issubclass(cls, nn.MultiheadAttention) or not _names_in_methods(cls).isdisjoint(names)


@cache
def computes_own_softmax(cls: type[nn.Module]) -> bool:
    """Whether a class that is named like attention computes a softmax, unless it calls a function that is recorded."""
    names = {"softmax", "Softmax", "eager_attention_forward"}
    return is_named_attention(cls) and not _names_in_methods(cls).isdisjoint(names)


@cache
def calls_kernels(cls: type[nn.Module]) -> bool:
    """Whether a class may compute attention by other functions than a softmax, such as a fused kernel."""
    words = "flash", "flex", "xformers", "memory_efficient", "scaled_dot_product", "attention_forward"
    return any(word in name.lower() for name in _names_in_methods(cls) for word in words)


@cache
def may_attend(cls: type[nn.Module]) -> bool:
    """Whether a class calls transformers' attention interface or is named like attention."""
    return is_named_attention(cls) or "ALL_ATTENTION_FUNCTIONS" in _names_in_methods(cls)


def around_attention(modules: Mapping[str, nn.Module]) -> set[str]:
    """The names of a model, of the modules in it that may attend, and of all modules around these."""
    classes = set(map(type, modules.values()))
    attending = {cls for cls in classes if issubclass(cls, REGARD_LAYERS) or may_attend(cls)}
    names = {""}
    for name, module in modules.items():
        if type(module) in attending:
            while name not in names:
                names.add(name)
                name = name.rpartition(".")[0]
    return names


@cache
def may_compute_weights(cls: type[nn.Module]) -> bool:
    """Whether a class has a softmax and two matrix products: of query and key, and of weights and value.

    If it is attention, a product takes the result of the softmax; that is seen when it runs (`SdpaInterceptor`).
    """
    if cls.__module__.startswith(LIBRARY_MODULES) or _names_in_methods(cls).isdisjoint({"softmax", "Softmax"}):
        return False
    return sum(map(_count_products, _code_of_methods(cls))) >= 2


@cache
def mentions_attention(cls: type[nn.Module]) -> bool:
    """Whether anything in a class names attention or a softmax."""
    return (
        is_named_attention(cls)
        or "softmax" in cls.__name__.lower()
        or any(
            word in name.lower()
            for name in _names_in_methods(cls)
            for word in ("softmax", "attention_forward", "flex_attention")
        )
        or calls_sdpa(cls)
    )


def is_named_attention(cls: type[nn.Module]) -> bool:
    """Whether a class is named like attention and has a forward, or is a subclass of torch's attention."""
    is_named = ATTENTION_NAME.search(cls.__name__) is not None or issubclass(cls, nn.MultiheadAttention)
    return is_named and cls.forward is not nn.Module.forward


def _names_in_methods(cls: type[nn.Module]) -> frozenset[str]:
    """All names in the code of a class and its bases, without those of libraries."""
    return frozenset(name for code in _code_of_methods(cls) for name in code.co_names)


def _code_of_methods(cls: type[nn.Module]) -> Iterator[CodeType]:
    for base in cls.__mro__:
        if issubclass(base, nn.Module) and not base.__module__.startswith(LIBRARY_MODULES):
            for method in vars(base).values():
                if inspect.isfunction(method):
                    yield from _nested_code(inspect.unwrap(method).__code__)


def _nested_code(code: CodeType) -> Iterator[CodeType]:
    """A code object and those of the functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _nested_code(inner)


def _count_products(code: CodeType) -> int:
    """The number of matrix products in a code object."""
    return sum(
        each.argval in MATRIX_PRODUCTS
        or (each.opname.startswith("BINARY") and each.argrepr.startswith("@"))
        or each.opname == "BINARY_MATRIX_MULTIPLY"
        for each in dis.get_instructions(code)
    )


def uses_only_attention_interface(classes: Collection[type[nn.Module]]) -> bool:
    """Whether all attention of a model with modules of these classes goes through transformers' interface.

    Then SDPA need not be intercepted.
    """
    from transformers import PreTrainedModel

    models = [cls for cls in classes if issubclass(cls, PreTrainedModel)]
    return not any(map(_may_bypass_interface, classes)) and all(cls._can_set_attn_implementation() for cls in models)


@cache
def _may_bypass_interface(cls: type[nn.Module]) -> bool:
    """Whether a class may compute attention that does not go through transformers' interface.

    One that is named like attention and does both, as GPT-2's with scores in float32, is refused if it did not.
    """
    if calls_sdpa(cls):
        return True
    if is_named_attention(cls):
        names = _names_in_methods(cls)
        if "eager_attention_forward" in names and "get_interface" not in names:  # perhaps called without the interface
            return True
        return not names.isdisjoint({"softmax", "Softmax"}) and "ALL_ATTENTION_FUNCTIONS" not in names
    return may_compute_weights(cls)


def is_causal_without_mask(module: nn.Module, is_causal: bool | None) -> bool:
    """Whether a call of a function like transformers' SDPA function, without a mask, is causal.

    A model that does not support SDPA says by masks alone that it is causal, whatever its modules say.

    Args:
        module: The module that calls it.
        is_causal: The argument of the call.
    """
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    return bool(is_causal) and supports_sdpa(type(getattr(module, "config", None)))


@torch.compiler.assume_constant_result
def supports_sdpa(config: type) -> bool:
    """Whether a model of a class of configurations supports SDPA, as far as is known."""
    return _inspect_models(config)[0]


@torch.compiler.assume_constant_result
def computes_with_masks(config: type) -> bool:
    """Whether the models of a class of configurations support dense attention only: they add masks to their scores."""
    return _inspect_models(config)[1]


@torch.compiler.assume_constant_result
def ignores_attention_interface(config: type) -> str:
    """The name of a model, if no model of a class of configurations uses transformers' attention interface."""
    return _inspect_models(config)[2]


@lru_cache(maxsize=1024)  # in a function of its own: a compiler traces cached functions, but not constant results
def _inspect_models(config: type) -> tuple[bool, bool, str]:
    models = _models_of(config)
    if not models:
        return True, False, ""
    sdpa = any(model._supports_sdpa for model in models)
    dense = not sdpa and not any(model._supports_flex_attn for model in models)
    return sdpa, dense, "" if any(map(_can_set_attention, models)) else models[0].__name__


def _can_set_attention(model: Any) -> bool:
    return model._can_set_attn_implementation()


def _models_of(config: type) -> list[Any]:
    """The classes of models of a class of configurations."""
    if not sys.modules.get("transformers"):
        return []
    from transformers import PreTrainedModel

    return [model for model in _subclasses(PreTrainedModel) if model.config_class is config]


def _subclasses(cls: type) -> Iterator[Any]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def is_of_transformers(model: nn.Module) -> bool:
    """Whether a model is a `PreTrainedModel`; without importing transformers."""
    if not sys.modules.get("transformers"):
        return False
    from transformers import PreTrainedModel

    return isinstance(model, PreTrainedModel)
