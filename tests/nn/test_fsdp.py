"""Layers whose parameters two processes share (FSDP2): gradients of output, measures and losses on weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import pathlib
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from regard.nn import MultiHeadAttention, entropy_loss
from regard.ops.masks import Causal

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([MultiHeadAttention(16, 4) for _ in range(2)])

    def forward(self, x):
        loss = 0.0
        for layer in self.layers:
            att = layer(x, mask=Causal(), measure="received")
            x = x + att.output
            # The weights are read after the layer has resharded its parameters.
            loss = loss + att.measured["received"].square().mean() + entropy_loss(att.weights, floor=2.0)
        return loss + x.square().mean()

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, mesh = distributed.get_rank(), init_device_mesh("cpu", (2,))
batches = torch.randn(2, 3, 300, 16, generator=torch.Generator().manual_seed(1))
alone, sharded = Model(), Model()
(sum(alone(x) for x in batches) / 2).backward()
for layer in (*sharded.layers, sharded):
    fully_shard(layer, mesh=mesh)
sharded(batches[rank]).backward()
for whole, part in zip(alone.parameters(), sharded.parameters(), strict=True):
    assert isinstance(part, DTensor)
    torch.testing.assert_close(part.grad.full_tensor(), whole.grad)
distributed.destroy_process_group()
pathlib.Path(f"same {rank}").touch()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="gloo cannot start two processes there")
def test_sharded_layers_have_the_gradients_of_unsharded_ones(tmp_path: Path):
    script = tmp_path / "sharded.py"
    script.write_text(SCRIPT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    completed = subprocess.run(launcher, capture_output=True, text=True, timeout=180, check=False, cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.glob("same *")) == ["same 0", "same 1"], completed.stderr[-3000:]
