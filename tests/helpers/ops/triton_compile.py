"""Compile what the Triton kernel launches for an architecture of NVIDIA, without a GPU; print the resources.

The environment variable ``ARCHITECTURE`` names it: 80, 86 or 90. With ``REGARD_TEST_ALL=1`` all configurations are
compiled, else a few.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.triton import kernel, passes
from regard.ops.kernels.triton.launch import Launcher
from regard.ops.masks import Causal, Padding, Window
from regard.ops.measures import Entropy, LogSumExp, Max, MeanDistance, Received
from regard.ops.request import make_request

ARCHITECTURE = int(os.environ["ARCHITECTURE"])
SHARED = {80: 166912, 86: 101376, 90: 232448}[ARCHITECTURE]
MAX_STACK = 64  # bytes of registers that do not fit, in half precision up to head_dim 128

MASKS = {
    "none": None,
    "causal": Causal(),
    "window": Window(20, 3),
    "padding": Padding(torch.empty(1, dtype=torch.int64, device="meta")),
}
MEASURES = {
    "received": {"received": Received()},
    "all": {
        "entropy": Entropy(),
        "lse": LogSumExp(),
        "max": Max(),
        "distance": MeanDistance(),
        "received": Received(),
        "weighted": Received(torch.empty(1, device="meta")),
    },
}
SAMPLE = [
    (torch.bfloat16, 128, 128, "causal", "all", 4096),
    (torch.float16, 80, 24, "padding", "received", 4096),
    (torch.float32, 64, 64, "window", "received", 1),
]
ALL = list(product(kernel.Triton.dtypes, (16, 64, 128, 256), (0, 128), MASKS, MEASURES, (1, 4096)))


class Compiler:
    """Stands for Triton's driver: it only states a target."""

    def get_current_target(self):
        return GPUTarget("cuda", ARCHITECTURE, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class Compiled:
    """Stands for a pass: instead of a launch, it is compiled, and its resources are checked."""

    def __init__(self, function, failures):
        self.function, self.failures = function, failures

    def __getitem__(self, grid):
        def compile_it(*args, **options):
            compiled = self.function.warmup(*args, grid=grid, **options)
            registers, stack = resources(compiled)
            line = f"{self.function.__name__}: registers {registers}, stack {stack}, shared {compiled.metadata.shared}"
            print(" ", line, flush=True)
            narrow = max(options["D_PAD"], options.get("V_PAD", 0)) <= 128 and args[0].dtype != torch.float32
            if compiled.metadata.shared > SHARED or (narrow and stack > MAX_STACK):
                self.failures.append(line)

        return compile_it


def resources(compiled):
    """Registers and bytes of stack, read from the binary."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(compiled.asm["cubin"])
        text = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK):(\d+)", text))
    return int(found["REG"]), int(found["STACK"])


def main():
    failures = []
    triton.runtime.driver.set_active(Compiler())
    kernel.shared_memory = lambda device: SHARED
    passes.rows, passes.columns = Compiled(passes.rows, failures), Compiled(passes.columns, failures)
    for case in ALL if os.environ.get("REGARD_TEST_ALL") == "1" else SAMPLE:
        dtype, head_dim, value_dim, mask, measures, queries = case
        query, key, value = (
            torch.empty(1, heads, tokens, width, dtype=dtype, device="meta")
            for heads, tokens, width in ((8, queries, head_dim), (2, 4096, head_dim), (2, 4096, value_dim))
        )
        print(*case)
        request = make_request(query, key, mask=MASKS[mask])
        kernel.launch(KernelInputs(value if value_dim else None, request, MEASURES[measures]), Launcher())
    print("failures:", failures or "none")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
