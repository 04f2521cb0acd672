"""The processes of a training on one machine or many: how many a launcher has started."""

from __future__ import annotations

import os
from typing import Literal, NamedTuple

from regard.errors import InvalidRecipe
from regard.training.recipe_sections import TrainerConfig


class Launched(NamedTuple):
    """What a launcher has started.

    Args:
        launcher: Its name.
        num_nodes: Number of machines.
        per_node: Number of processes on each machine.
        rank: The number of this process.
    """

    launcher: str
    num_nodes: int
    per_node: int
    rank: int

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.num_nodes * self.per_node


def machines_and_devices(config: TrainerConfig) -> tuple[int, int | Literal["auto"]]:
    """The number of machines, and of devices on each.

    Raises:
        InvalidRecipe: If a launcher has started other processes than the recipe says, or processes that cannot find one
            another.
    """
    launched = find_launched()
    if launched is None:
        num_nodes = 1 if config.num_nodes == "auto" else config.num_nodes
        if num_nodes > 1:
            raise InvalidRecipe(
                f"trainer.num_nodes: expected torchrun or srun on {num_nodes} machines, got a process without them; "
                "start `torchrun --nnodes ... -m regard train ...` on each machine, or set trainer.num_nodes to 1"
            )
        return num_nodes, config.devices
    num_nodes, per_node = launched.num_nodes, launched.per_node
    started = f"as {launched.launcher} started {num_nodes} x {per_node} processes"
    for key, got, number in (("num_nodes", config.num_nodes, num_nodes), ("devices", config.devices, per_node)):
        if got not in ("auto", number):
            raise InvalidRecipe(
                f"trainer.{key}: expected {number}, {started}, got {got}; leave it out, or start as many"
            )
    return num_nodes, per_node


def find_launched() -> Launched | None:
    """The processes that torchrun or Slurm has started, of which this is one; None without a launcher.

    Raises:
        InvalidRecipe: If this process alone stands for several that a launcher should have started.
    """
    environment = os.environ
    num_processes = int(environment.get("WORLD_SIZE", 1))
    if "LOCAL_WORLD_SIZE" in environment:
        local = int(environment["LOCAL_WORLD_SIZE"])
        return Launched("torchrun", num_processes // local, local, int(environment.get("RANK", 0)))
    if "SLURM_NTASKS" in environment and _is_in_slurm():
        num_tasks, num_nodes = int(environment["SLURM_NTASKS"]), int(environment.get("SLURM_NNODES", 1))
        if num_tasks > 1 and "SLURM_STEP_ID" not in environment:  # the batch script itself, which is not a task
            expected = f"expected the {num_tasks} tasks of the Slurm job, got one process"
            raise InvalidRecipe(f"trainer.devices: {expected}; start `srun regard train ...`")
        return Launched("srun", num_nodes, num_tasks // num_nodes, int(environment.get("SLURM_PROCID", 0)))
    if num_processes > 1 and "RANK" in environment and "LOCAL_RANK" not in environment:  # as in a pod of a PyTorchJob
        expected = f"expected {num_processes} processes that torchrun started, as WORLD_SIZE says, got one without it"
        raise InvalidRecipe(f"trainer.devices: {expected}; start `torchrun -m regard train ...`")
    return None


def meeting_address(launched: Launched) -> str:
    """The URL at which the processes of a launcher find one another."""
    if launched.launcher == "srun":
        from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

        environment = SLURMEnvironment()
        address = f"{environment.main_address}:{environment.main_port}"
        return f"tcp://{address}?rank={launched.rank}&world_size={launched.size}"
    return "env://"


def _is_in_slurm() -> bool:
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment  # takes seconds to load

    return SLURMEnvironment.detect()
