"""Examples run, and print what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

import regard

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout


def test_singular_values():
    lines = run("singular_values.py", "--tokens", "300", "--count", "3").splitlines()
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 300, 64)
    for line, mask in zip(lines, (None, regard.Window(63, 0)), strict=True):
        dense = regard.weights(query, key, mask=mask).dense()[0, 0]
        expected = torch.linalg.svdvals(dense)[:3]
        np.testing.assert_allclose([float(value) for value in line.split()[-5:-2]], expected, atol=2e-3)


def test_a_loss_on_attention_aligns_a_head_and_helps():
    whole = os.environ.get("REGARD_TEST_ALL") == "1"  # only after some minutes the translations are better, too
    lines = run("aligned_heads.py", *([] if whole else ["--steps", "240"])).splitlines()
    (bleu, aligned), (bleu_taught, aligned_taught) = (
        [float(x.rstrip("%")) for x in line.split()[1:]] for line in lines[1:]
    )
    assert aligned_taught > aligned + 5
    assert not whole or bleu_taught > bleu
