"""Jobs whose rules no operator knows, in compiled code: they break the graph and run in Python.

A module of its own, because saying so loads torch's compiler, which takes a second.
"""

from __future__ import annotations

from typing import Any

import torch

from regard.ops.kernels.blockwise import run_here

run_uncompiled: Any = torch.compiler.disable(run_here)
