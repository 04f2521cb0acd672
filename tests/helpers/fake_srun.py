"""Start the tasks of a job as Slurm's srun does, on this machine; print their output and exit with the largest code."""

from __future__ import annotations

import os
import subprocess
import sys

OPTIONS = ("--kill-on-bad-exit=", "--cpus-per-task=")


def main() -> int:
    """Start SLURM_NTASKS_PER_NODE tasks on each of SLURM_NNODES nodes."""
    command = sys.argv[1:]
    while command[0].startswith("-"):
        assert command.pop(0).startswith(OPTIONS)
    num_nodes, per_node = (int(os.environ[f"SLURM_{name}"]) for name in ("NNODES", "NTASKS_PER_NODE"))
    tasks: list[subprocess.Popen[bytes]] = []
    for rank in range(num_nodes * per_node):
        node, local = divmod(rank, per_node)
        variables = {"STEP_ID": 0, "PROCID": rank, "NODEID": node, "LOCALID": local}
        environment = os.environ | {f"SLURM_{name}": str(value) for name, value in variables.items()}
        tasks.append(subprocess.Popen(command, env=environment))
    return max(task.wait() for task in tasks)


if __name__ == "__main__":
    sys.exit(main())
