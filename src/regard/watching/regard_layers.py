"""Record the layers of this library, whose output has the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from regard.errors import InvalidArgument
from regard.ops import AttentionOutput
from regard.watching.call import AttentionCall
from regard.watching.unsupported import label

if TYPE_CHECKING:
    from regard.watching.listener import Listener


def record_regard_layer(listener: Listener, module: nn.Module, output: AttentionOutput) -> None:
    """Record a call of a layer.

    Raises:
        InvalidArgument: If gradients of weights are recorded, and nothing that the layer computed from requires one.
    """
    request = output.weights.request
    call = AttentionCall(request, request.offset, value=output.value)
    listener.record_unchangeable(module, call, None)
    heads = output.head_output
    if call.output_gradient is None or heads is None:
        return
    if torch.is_grad_enabled() and not heads.requires_grad:  # too late to start a graph: the projection is computed
        raise InvalidArgument(
            f"weight_gradients: {label(listener.module_names[id(module)], module)} has neither parameters nor inputs "
            "that require a gradient; call model.requires_grad_(), or pass inputs that require one"
        )
    call.output_gradient.follow(heads, lambda gradient: gradient)
