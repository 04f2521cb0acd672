"""How layers compute in training: compiled, and once more for their gradients instead of storing what these need."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import InvalidRecipe
from regard.nn.feed_forward import FeedForward
from regard.nn.transformer_layer import Residual, TransformerStack
from regard.training.recipe_sections import TrainerConfig


def prepare_layers(model: nn.Module, config: TrainerConfig) -> None:
    """Set how the layers of a model compute, in place.

    Compiled are feed-forward networks and residual connections with their norms and dropout. Attention stays as it is:
    its kernels are faster than compiled ones, and other masks would compile it again.
    """
    for module in model.modules():
        if isinstance(module, TransformerStack):
            module.activation_checkpointing = config.activation_checkpointing
        elif config.compile and isinstance(module, FeedForward):
            module.forward = _compiled(module.forward)
        elif config.compile and isinstance(module, Residual):
            module.add_and_norm = _compiled(module.add_and_norm)


def check_compiler(device: str) -> None:
    """Check that there is a compiler for ``trainer.compile``.

    Args:
        device: ``"cpu"``, or the kind of GPU.

    Raises:
        InvalidRecipe: If there is none.
    """
    from torch._inductor.cpp_builder import get_cpp_compiler  # takes a second to load
    from torch._inductor.exc import InvalidCxxCompiler

    missing = ""
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        missing = "a C++ compiler; install g++, or set CXX"
    if device != "cpu" and importlib.util.find_spec("triton") is None:
        missing = "Triton; install triton"
    if missing:
        raise InvalidRecipe(f"trainer.compile: expected False without {missing}, got True")


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a function of tensors (..., d_model) once for all sizes.

    From the first call on, so that a resumed run computes with the same code, whatever the size of its first batch.
    """
    compiled = torch.compile(function)

    def call(*inputs: Tensor) -> Any:
        for x in inputs:
            torch._dynamo.maybe_mark_dynamic(x, list(range(x.ndim - 1)))
        return compiled(*inputs)

    return call
