"""Tensor parallelism: processes divide the heads of attention and the hidden features of feed-forward networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from regard.errors import InvalidArgument
from regard.native.linear import Linear, linear
from regard.nn.feed_forward import FeedForward
from regard.nn.multi_head_attention import MultiHeadAttention
from regard.nn.relative_positions import AttentionPositions


def shard_heads(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the attention and feed-forward modules of a model among the processes of a mesh, in place.

    Each process computes num_heads / processes heads and d_ff / processes hidden features; the output projections add
    up their parts. All other modules, such as norms and embeddings, compute the same on each process. What a module
    needs for this is known from its class, so any model of these modules can be divided.

    Dropout of attention weights and of hidden features draws other random numbers on each process, all other dropout
    the same, if the processes have the same seed.

    Args:
        model: The model, with the same weights on each process.
        mesh: A mesh of one axis.

    Raises:
        InvalidArgument: If heads or hidden features cannot be divided equally, or the class of positions in
            self-attention does not say which of its tensors have an axis of heads.

    Reference: Shoeybi et al. 2019, "Megatron-LM", section 3.
    """
    for module in list(model.modules()):
        if isinstance(module, MultiHeadAttention):
            _shard_attention(module, mesh)
        elif isinstance(module, FeedForward):
            _shard_feed_forward(module, mesh)
        elif isinstance(module, AttentionPositions):
            _shard_positions(module, mesh)


def row_orders(model: nn.Module) -> dict[str, Tensor]:
    """For each parameter whose rows `shard_heads` has reordered: the place of each row in the undivided model.

    The rows of a process are neighbors, while a matrix of several projections has all rows of one before the next:
    ``weight[order[i]]`` of the undivided model is row i of the divided one.
    """
    return {
        f"{name}.{kind}": module.row_order
        for name, module in model.named_modules()
        if isinstance(module, ColumnParallelLinear)
        for kind, _ in module.named_parameters(recurse=False)
    }


class ColumnParallelLinear(Linear):
    """A `Linear` of which each process has some output features; the parameters are distributed tensors."""

    mesh: DeviceMesh
    row_order: Tensor

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Map the same (..., in_features) on each process to its own (..., out_features / processes)."""
        return self.forward_rows(x, None)

    def forward_rows(self, x: Tensor, rows: slice | None) -> Tensor:
        weight, bias = _local(self.weight), None if self.bias is None else _local(self.bias)
        if rows is not None:
            weight, bias = weight[rows], None if bias is None else bias[rows]
        return linear(_sum_gradients(x, self.mesh), weight, bias)


class RowParallelLinear(Linear):
    """A `Linear` of which each process has some input features; the weight is a distributed tensor."""

    mesh: DeviceMesh

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Map own features (..., in_features / processes) to the sum over processes, (..., out_features)."""
        part = DTensor.from_local(linear(x, _local(self.weight), None), self.mesh, [Partial()], run_check=False)
        y = part.redistribute(placements=[Replicate()]).to_local()
        return y if self.bias is None else y + self.bias.to(y.dtype)


def _shard_attention(attention: MultiHeadAttention, mesh: DeviceMesh) -> None:
    _check_divides("num_heads", attention.num_heads, mesh)
    _check_divides("num_kv_heads", attention.num_kv_heads, mesh)
    _shard_rows(attention.in_proj, attention.projection_sizes, mesh)
    _shard_columns(attention.out_proj, mesh)
    attention.num_heads //= mesh.size()
    attention.num_kv_heads //= mesh.size()
    if attention.dropout:
        _draw_own_numbers(attention, mesh)


def _shard_feed_forward(feed_forward: FeedForward, mesh: DeviceMesh) -> None:
    d_ff = feed_forward.fc2.in_features
    _check_divides("d_ff", d_ff, mesh)
    _shard_rows(feed_forward.fc1, (d_ff, d_ff) if feed_forward.gated else (d_ff,), mesh)
    _shard_columns(feed_forward.fc2, mesh)
    if feed_forward.dropout.p:
        _draw_own_numbers(feed_forward, mesh)


def _shard_positions(positions: AttentionPositions, mesh: DeviceMesh) -> None:
    axes = positions.head_axes
    if axes is None:
        raise InvalidArgument(
            f"{type(positions).__name__}: expected head_axes, which says which of its tensors have an axis of heads, "
            "got None; set it, or use one process per model"
        )
    for name, parameter in positions.named_parameters(recurse=False):
        placement = Shard(axes[name]) if name in axes else Replicate()
        setattr(positions, name, _distribute(parameter, parameter, placement, mesh))
    positions.local = _local
    for name, buffer in positions.named_buffers(recurse=False):
        if name in axes:
            setattr(positions, name, buffer.chunk(mesh.size(), axes[name])[mesh.get_local_rank()].clone())


def _shard_rows(layer: Linear, sizes: tuple[int, ...], mesh: DeviceMesh) -> None:
    """Give each process its part of each of several projections, which one matrix holds."""
    parts = [rows.chunk(mesh.size()) for rows in torch.arange(sum(sizes)).split(list(sizes))]
    order = torch.cat([part for parts_of_process in zip(*parts, strict=True) for part in parts_of_process])
    for name, parameter in layer.named_parameters(recurse=False):
        setattr(layer, name, _distribute(parameter, parameter[order.to(parameter.device)], Shard(0), mesh))
    layer.__class__ = ColumnParallelLinear
    assert isinstance(layer, ColumnParallelLinear)
    layer.mesh, layer.row_order = mesh, order


def _shard_columns(layer: Linear, mesh: DeviceMesh) -> None:
    layer.weight = _distribute(layer.weight, layer.weight, Shard(1), mesh)
    layer.__class__ = RowParallelLinear
    assert isinstance(layer, RowParallelLinear)
    layer.mesh = mesh


def _distribute(parameter: Tensor, values: Tensor, placement: Shard | Replicate, mesh: DeviceMesh) -> nn.Parameter:
    """A parameter with these values, which are the same on each process; each keeps its part."""
    part = distribute_tensor(values.detach(), mesh, [placement], src_data_rank=None)
    return nn.Parameter(part, requires_grad=parameter.requires_grad)


def _local(parameter: Any) -> Tensor:
    """What this process computes with; if that is all of a tensor, its gradients are added up over the processes."""
    placements = [Partial() if placement.is_replicate() else placement for placement in parameter.placements]
    return parameter.redistribute(placements=parameter.placements).to_local(grad_placements=placements)


def _sum_gradients(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return x, which is the same on each process; its gradients are added up over the processes."""
    return _local(DTensor.from_local(x, mesh, [Replicate()], run_check=False))


def _draw_own_numbers(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let a module draw other random numbers on each process, while the generators outside it stay the same."""
    forward: Callable[..., Any] = module.forward

    def forward_with_own_numbers(*inputs: Any, **options: Any) -> Any:
        if not module.training:
            return forward(*inputs, **options)
        seed = int(torch.randint(2**62, ())) + mesh.get_local_rank()
        with torch.random.fork_rng([torch.cuda.current_device()] if mesh.device_type == "cuda" else []):
            torch.manual_seed(seed)
            return forward(*inputs, **options)

    module.forward = forward_with_own_numbers


def _check_divides(name: str, size: int, mesh: DeviceMesh) -> None:
    if size % mesh.size():
        raise InvalidArgument(f"{name}: expected a multiple of {mesh.size()}, the number of processes, got {size}")
