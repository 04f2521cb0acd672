"""A small model on several processes, replicated or sharded, whose training state is saved and continued."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


class TiedModel(nn.Module):
    """Sizes that 2 and 4 do not divide, a tied weight and a persistent buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.down(self.up(self.embedding(ids)).relu())))


def wrap(model: TiedModel, strategy: str) -> nn.Module:
    """A model for the processes of the default group."""
    if strategy == "ddp":
        return DistributedDataParallel(model)
    if strategy == "fsdp":
        for layer in (model.up, model.down):
            fully_shard(layer)
        return fully_shard(model)
    mesh = init_device_mesh("cpu", (distributed.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parallelize_module(model, mesh["tensor"], plan)  # pyright: ignore[reportArgumentType]
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


def train_sharded(strategy: str, run: str, result: str, num_steps: int) -> None:
    """Continue the state of a run, if there is one, for some steps; save it and, on process 0, the whole weights."""
    from regard.training.divided_model import training_tensors
    from regard.training.state import check_shards, find_state, load_tensors, save_state

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if strategy != "none":
        distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = TiedModel()
    wrapped = model if strategy == "none" else wrap(model, strategy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=strategy in ("none", "ddp"))
    state = find_state(Path(run))
    step = 0
    if state is not None:
        check_shards(state, rank, world_size)
        load_tensors(state.folder, training_tensors(model, optimizer))
        step = state.step
    for _ in range(num_steps):
        step += 1
        ids = torch.arange(step, step + 8).remainder(11)
        nn.functional.cross_entropy(wrapped(ids), ids.roll(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    fields = {"step": step, "num_processes": world_size, "loader": {}, "best": None, "num_worse": 0}
    own = {f"process.{rank}.random": torch.full((3,), rank)}
    group = None if strategy == "none" else distributed.new_group(backend="gloo")
    save_state(Path(run), fields, {**training_tensors(model, optimizer), **own}, group)
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if rank == 0:
        torch.save(whole, result)
    if strategy != "none":
        distributed.barrier()
        distributed.destroy_process_group()
