"""Whole weights and states of a model that processes divide among themselves."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from regard.models.architectures import Model, model_from_config
from regard.models.weights import assign_weights, init_empty_weights
from regard.nn.tensor_parallel import row_orders


def gather_weights(model: nn.Module, *, everywhere: bool = False) -> dict[str, Tensor]:
    """The whole weights of a model that processes divide, by the names of its parameters.

    All processes must call it.

    Args:
        model: The model.
        everywhere: Whether all processes get them, on their devices. Default: rank 0 gets them, on the CPU; the others
            get none.
    """
    orders, weights = row_orders(model), {}
    for name, parameter in model.named_parameters():
        weight = _gather(parameter, orders.get(name))
        if everywhere:
            weights[name] = weight
        elif torch.distributed.get_rank() == 0:
            weights[name] = weight.cpu()
    return weights


def whole_model(model: Model, *, everywhere: bool = False) -> Model:
    """A model that one process can use alone: the model itself, or a copy with the weights of all processes.

    All processes must call it. Options are those of `gather_weights`; where weights are missing, the copy has none.
    """
    if not is_divided(model):
        return model
    weights = gather_weights(model, everywhere=everywhere)
    with init_empty_weights():
        copy = model_from_config(model.config)
    if weights:
        assign_weights(copy, weights)
        copy.to(next(iter(weights.values())).device)  # buffers, too
    return copy.train(model.training)


def training_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The weights and the state of the optimizer by name: to be saved, or to be loaded in place.

    Those of a sharded model are DTensors. Where tensor parallelism has reordered rows, they are copies of whole tensors
    in the order of the undivided model, so that other processes can continue; see `set_reordered`. An optimizer that
    has taken no step gets its state, of zeros. All processes must call it.
    """
    orders, tensors = row_orders(model), _tensors(model, optimizer)
    return {key: _gather(tensor, orders[name]) if name in orders else tensor for key, (name, tensor) in tensors.items()}


def set_reordered(model: nn.Module, optimizer: torch.optim.Optimizer, values: Mapping[str, Tensor]) -> None:
    """Set the tensors of which `training_tensors` returned copies, from such copies."""
    orders = row_orders(model)
    for key, (name, tensor) in _tensors(model, optimizer).items():
        if name in orders:
            assert isinstance(tensor, DTensor)
            shape, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            part = tuple(slice(first, first + size) for first, size in zip(start, shape, strict=True))
            tensor.to_local().copy_(values[key][orders[name]][part])


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, tuple[str, Tensor]]:
    """The tensors of `training_tensors` themselves, each with the name of its parameter where it has its shape."""
    names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}  # tied weights once
    tensors = {f"model.{name}": (name, tensor) for name, tensor in model.state_dict().items() if name in names}
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    for key, value in get_optimizer_state_dict(model, optimizer, options=options).items():
        if isinstance(value, Tensor):
            name = key.removeprefix("state.").rpartition(".")[0]
            tensors[f"optimizer.{key}"] = name if value.ndim else "", value
    return tensors


def is_divided(model: nn.Module) -> bool:
    """Whether processes have parts of the weights."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def _gather(tensor: Tensor, order: Tensor | None) -> Tensor:
    tensor = tensor.detach()
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor if order is None else _in_model_order(tensor, order)


def _in_model_order(tensor: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(tensor).index_copy_(0, order.to(tensor.device), tensor)
