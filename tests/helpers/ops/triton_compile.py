"""Compile what the Triton kernel launches for an architecture, without a GPU; print what does not fit.

Run: ``python triton_compile.py sm_90``, or with gfx942. With ``--all``, all configurations are compiled, else a few.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import torch
from triton_cases import CASES, SAMPLE, check

if __name__ == "__main__":
    torch.set_num_threads(1)
    failures = check(sys.argv[1], CASES if "--all" in sys.argv else SAMPLE)
    print("does not fit:", *failures or ["none"], sep="\n")
    sys.exit(bool(failures))
