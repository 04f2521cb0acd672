"""The files of the guide for many machines, run as far as one machine allows: with network namespaces as machines.

Whatever starts two processes, they train the same weights.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.machines import Machine, run_on, two_machines
from helpers.training_machines import MAX_STEPS, RUN, free_port, train_two, working_directory
from helpers.training_runs import bytes_of, rows

FILES = Path(__file__).parents[2] / "docs/how_to/many_machines"
IS_ALL = os.environ.get("REGARD_TEST_ALL") == "1"
SCRIPTS = ["two_machines", "rendezvous"] if IS_ALL else ["two_machines"]
SUBMISSIONS = [6, MAX_STEPS] if IS_ALL else [MAX_STEPS]
TASKS_PER_NODE = [1, 2] if IS_ALL else [1]
MANIFESTS = ["jobset", "pytorchjob"] if IS_ALL else ["jobset"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The weights of two processes on one machine."""
    folder = working_directory(tmp_path_factory.mktemp("one") / "machine")
    assert train_two(folder, folder) == ["", ""]
    return bytes_of(folder / RUN)


def run(machines: Sequence[Machine], *commands: Sequence[str], **environment: str) -> list[str]:
    """Run a command on each machine, which must not fail."""
    results = run_on(machines, commands, **environment)
    for code, output in results:
        assert code == 0, output
    return [output for _, output in results]


@pytest.mark.parametrize("script", SCRIPTS)
def test_torchrun_on_two_machines(tmp_path: Path, expected: dict[str, bytes], script: str) -> None:
    is_shared = script == "rendezvous"
    folders = [working_directory(tmp_path / name) for name in (("shared",) if is_shared else ("first", "second"))]
    first, second = folders[0], folders[-1]
    with two_machines(first, second) as machines:
        address, port, command = machines[0].address, free_port(), str(FILES / f"{script}.sh")
        commands: list[list[str]] = []
        for number, machine in enumerate(machines):
            if is_shared:  # torchrun cannot find out which address it has, as the machines have no names
                settings = [f"PET_LOCAL_ADDR={machine.address}", f"PET_RDZV_CONF=is_host={number == 0}"]
                commands.append(["env", *settings, command, "recipe.yaml"])
            else:
                commands.append([command, str(number), "recipe.yaml"])
        variables = {"MASTER_ADDR": address, "MASTER_PORT": port, "RENDEZVOUS": f"{address}:{port}"}
        outputs = run(machines, *commands, **variables, PROCESSES="1")
    assert sum(f"finished at step {MAX_STEPS}" in output for output in outputs) == 1
    assert bytes_of(first / RUN) == expected
    if not is_shared:
        assert "step" not in outputs[1]
        assert [path.name for path in (second / RUN).iterdir()] == ["data"]


def submit(folder: Path, bin_folder: Path, *options: str) -> str:
    """Run ``train.sbatch`` as Slurm does, on one machine that stands for all nodes."""
    text = (FILES / "train.sbatch").read_text("utf-8")
    given = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.MULTILINE))
    given |= dict(option.removeprefix("--").split("=") for option in options)
    assert given["job-name"] not in ("bash", "interactive")  # which Lightning does not take for a job
    num_nodes, per_node = int(given["nodes"]), int(given["ntasks-per-node"])
    variables = {
        "JOB_NAME": given["job-name"],
        "JOB_ID": free_port(),  # its last four digits decide the port
        "NNODES": num_nodes,
        "NTASKS": num_nodes * per_node,
        "NTASKS_PER_NODE": per_node,
        "CPUS_PER_TASK": given["cpus-per-task"],
        "NODELIST": "127.0.0.[1-2]",
        "PROCID": 0,
    }
    environment = {f"SLURM_{name}": str(value) for name, value in variables.items()}
    environment["PATH"] = f"{bin_folder}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    (output,) = run([Machine(folder)], ["bash", str(FILES / "train.sbatch"), "recipe.yaml", RUN], **environment)
    return output


@pytest.mark.slow
@pytest.mark.parametrize("per_node", TASKS_PER_NODE)
def test_tasks_of_slurm(tmp_path: Path, expected: dict[str, bytes], per_node: int) -> None:
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\nexec {sys.executable} {Path(__file__).parents[1] / "helpers/fake_srun.py"} "$@"\n')
    srun.chmod(0o755)
    folder = working_directory(tmp_path / "job")
    recipe = folder / "recipe.yaml"
    text = recipe.read_text()
    for steps in SUBMISSIONS:  # each but the last ends as if its time were over
        recipe.write_text(text.replace(f"max_steps: {MAX_STEPS}", f"max_steps: {steps}"))
        options = ["--nodes=2", f"--ntasks-per-node={per_node}", "--cpus-per-task=1"]
        assert f"finished at step {steps}" in submit(folder, tmp_path / "bin", *options)
    if per_node == 1:
        assert bytes_of(folder / RUN) == expected
    tokens = [float(row["tokens"]) for row in rows(folder / RUN) if row["tokens"]]
    assert len(tokens) == MAX_STEPS // 3
    assert min(tokens) > 3 * 40 * 2 * per_node  # the batches of all processes


def pods(name: str, address: str) -> list[dict[str, Any]]:
    """The containers of a manifest for two pods, with the environment that its controller gives them."""
    manifest = yaml.safe_load((FILES / f"{name}.yaml").read_text("utf-8"))
    spec = manifest["spec"]
    if name == "jobset":
        (job,) = spec["replicatedJobs"]
        pod = job["template"]["spec"]["template"]["spec"]
        assert job["template"]["spec"]["completions"] == job["template"]["spec"]["parallelism"] == 2
        (container,) = pod["containers"]
        host = f"{manifest['metadata']['name']}-{job['name']}-0-0.{manifest['metadata']['name']}"
        index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
        assert {"name": "MASTER_ADDR", "value": host} in container["env"]
        assert {"name": "NODE_RANK", "valueFrom": index} in container["env"]
        containers, added = [container, container], [{"NODE_RANK": str(rank)} for rank in range(2)]
    else:
        assert [spec["pytorchReplicaSpecs"][kind]["replicas"] for kind in ("Master", "Worker")] == [1, 1]
        pods = [spec["pytorchReplicaSpecs"][kind]["template"]["spec"] for kind in ("Master", "Worker")]
        containers = [container for pod in pods for container in pod["containers"]]
        assert [container["name"] for container in containers] == ["pytorch", "pytorch"]
        shared = {"WORLD_SIZE": "2", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto"}
        added = [{**shared, "RANK": str(rank), "PET_NODE_RANK": str(rank)} for rank in range(2)]
    port = {"MASTER_ADDR": address, "MASTER_PORT": free_port(), "PROCESSES": "1"}  # a machine without GPUs
    return [{**container, "environment": each | port} for container, each in zip(containers, added, strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("name", MANIFESTS)
def test_pods_of_kubernetes(tmp_path: Path, expected: dict[str, bytes], name: str) -> None:
    folder = working_directory(tmp_path / "shared")
    with two_machines(folder, folder) as machines:
        containers = pods(name, machines[0].address)
        for container in containers:
            assert container["workingDir"] in [mount["mountPath"] for mount in container["volumeMounts"]]
        commands = [
            ["env", *(f"{key}={value}" for key, value in container["environment"].items()), *container["command"]]
            + container["args"]
            for container in containers
        ]
        run(machines, *commands)
        assert bytes_of(folder / RUN) == expected
