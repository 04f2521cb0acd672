"""A notebook displays figures and recordings once, whatever was imported before."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

NOTEBOOK = """
import json, sys
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

class Shell(InteractiveShell):
    def enable_gui(self, gui=None):  # a Jupyter kernel needs none
        pass

shell, shown = Shell.instance(), []
shell.display_pub = CapturingDisplayPublisher(shell=shell)
shell.displayhook.write_format_data = lambda data, metadata=None: shown.append(data)
for cell in json.loads(sys.argv[1]):
    shell.run_cell(cell).raise_error()
shown += [each["data"] for each in shell.display_pub.outputs]
print("SHOWN", json.dumps([{kind: str(content)[:30] for kind, content in each.items()} for each in shown]))
"""
RECORDING = """
import torch
import regard
from regard.analysis import plot_weights
from regard.recordings import Layer, Recording
query, key = torch.randn(2, 1, 2, 5, 4)
layer = Layer("encoder.0", "encoder", regard.weights(query, key))
recording = Recording("five tokens", "none", [layer])
"""
PREPARED = {
    "fresh": [],
    "pyplot": ["import matplotlib.pyplot as plt"],
    "pyplot and a backend": ["%matplotlib inline", "import matplotlib.pyplot as plt"],
}


def run(*cells: str) -> list[dict[str, str]]:
    """Output of a notebook with these cells, by content type."""
    command = [sys.executable, "-c", NOTEBOOK, json.dumps([RECORDING, *cells])]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout.rpartition("SHOWN ")[2])


@pytest.mark.parametrize("prepared", PREPARED)
def test_a_figure_is_displayed_once(prepared, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")  # as kernels of Jupyter do
    (shown,) = run(*PREPARED[prepared], "plot_weights(layer)")
    assert shown["image/png"].startswith(("b'\\x89PNG", "iVBOR"))  # bytes, or in base64


def test_a_recording_is_displayed_before_the_explorer_was_imported():
    (shown,) = run("assert 'regard.explore' not in __import__('sys').modules", "recording")
    assert shown["text/html"].startswith("<iframe")
