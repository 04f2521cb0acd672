"""The processes of a run: their devices and precision, and how they divide a model and its data."""

from __future__ import annotations

import logging
import os
import warnings
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from lightning_fabric.strategies.strategy import Strategy
from lightning_fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from regard.errors import InvalidRecipe, short_repr
from regard.nn.relative_positions import AttentionPositions
from regard.nn.tensor_parallel import shard_heads
from regard.nn.transformer_layer import TransformerLayer
from regard.training.launch import machines_and_devices
from regard.training.layers import check_compiler
from regard.training.recipe import Recipe

log = logging.getLogger("regard.training")
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def make_fabric(recipe: Recipe) -> Fabric:
    """The processes, devices and precision of a recipe.

    Raises:
        InvalidRecipe: If a device is not available, or the processes cannot divide the model.
    """
    config = recipe.trainer
    is_cpu = config.accelerator == "cpu" or (config.accelerator == "auto" and not torch.accelerator.is_available())
    available = max(1, os.cpu_count() or 1)
    if is_cpu and config.devices != "auto" and config.devices > available:  # Lightning counts GPUs only
        expected = f"expected at most {available}, the number of CPUs of this machine"
        raise InvalidRecipe(f"trainer.devices: {expected}, got {config.devices}")
    num_nodes, devices = machines_and_devices(config)
    num_devices = devices if devices != "auto" else torch.cuda.device_count() if not is_cpu else 1
    num_processes = num_nodes * max(1, num_devices)
    if num_processes % config.tensor_parallel:
        expected = f"expected a divisor of {num_processes}, the number of processes"
        more = f"start {config.tensor_parallel} with torchrun, or pass --trainer.tensor_parallel 1"
        raise InvalidRecipe(f"trainer.tensor_parallel: {expected}, got {config.tensor_parallel}; {more}")
    if config.compile:
        check_compiler("cpu" if is_cpu else "gpu")
    try:
        return Fabric(
            accelerator=config.accelerator,
            devices=devices,
            num_nodes=num_nodes,
            strategy=_strategy(recipe, num_processes),
            precision=config.precision,
        )
    except (MisconfigurationException, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        got = f"{short_repr(config.accelerator)} with trainer.devices {short_repr(config.devices)}"
        raise InvalidRecipe(f"trainer.accelerator: expected an available device, got {got}: {reason}") from error


def _strategy(recipe: Recipe, num_processes: int) -> Strategy | Literal["auto"]:
    config = recipe.trainer
    if num_processes == 1:
        if config.strategy != "auto":
            log.info("trainer.strategy: one process stores the whole model, so %s changes nothing", config.strategy)
        return "auto"
    shards = config.strategy == "fsdp" or 1 < config.tensor_parallel < num_processes
    if shards or config.tensor_parallel > 1:
        return ModelParallelStrategy(
            partial(_divide, shards=shards),
            data_parallel_size=num_processes // config.tensor_parallel,
            tensor_parallel_size=config.tensor_parallel,
        )
    # buffers are tables of positions, as long as the longest sequence of a process
    return DDPStrategy(broadcast_buffers=False)


def _divide(module: ModuleT, mesh: DeviceMesh, *, shards: bool) -> ModuleT:
    """Divide heads by tensor parallelism, and shard what each process then has over those with other data."""
    if mesh["tensor_parallel"].size() > 1:
        shard_heads(module, mesh["tensor_parallel"])
    if shards:
        # the outputs of a layer's attention are views, which are not changed in place
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
        # norms and gathered weights take one collective for each axis of the mesh
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        # positions, which layers can share, are gathered once: attention weights are computed from them later, too
        for kind, is_freed in ((AttentionPositions, False), (TransformerLayer, True)):
            for part in [part for part in module.modules() if isinstance(part, kind)]:
                fully_shard(part, mesh=mesh["data_parallel"], reshard_after_forward=is_freed)
        fully_shard(module, mesh=mesh["data_parallel"])
    return module


class DataShare(NamedTuple):
    """Which part of the data a process has: those that compute one model by tensor parallelism have the same.

    Args:
        rank: Index of the part.
        size: Number of parts.
    """

    rank: int
    size: int


def data_share(fabric: Fabric) -> DataShare:
    """The part of the data that this process has."""
    strategy = fabric.strategy
    if isinstance(strategy, ModelParallelStrategy):
        mesh = strategy.device_mesh["data_parallel"]
        return DataShare(mesh.get_local_rank(), mesh.size())
    return DataShare(fabric.global_rank, fabric.world_size)


def sum_over_data(fabric: Fabric, values: Tensor) -> Tensor:
    """The sums of numbers over all parts of the data."""
    if data_share(fabric).size == 1:
        return values
    group = None
    if isinstance(fabric.strategy, ModelParallelStrategy):
        group = fabric.strategy.device_mesh["data_parallel"].get_group()
    total: Any = fabric.all_reduce(values, group=group, reduce_op="sum")
    return total
