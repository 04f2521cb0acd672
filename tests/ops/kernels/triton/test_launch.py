"""Launches that skip what is known, with a kernel that records what it is launched with."""

from __future__ import annotations

import pytest
import torch

from regard.ops.kernels.triton.launch import COMPILER_OPTIONS, Launcher

TENSOR = torch.zeros(64)


class Compiled:
    def __init__(self, calls):
        self.calls = calls

    def __getitem__(self, grid):
        return lambda *args: self.calls.append((grid, args))


class Kernel:
    """Takes a tensor, a number and a tuple, and has two constants."""

    arg_names = ("tensor", "number", "numbers", "RULES", "WIDTH")

    def __init__(self):
        self.compiled, self.launched = [], []

    def __getitem__(self, grid):
        def run(*args, **options):
            self.compiled.append((grid, args, options))
            return Compiled(self.launched)

        return run


def options(width=16, rules=(print, len)):
    return {"WIDTH": width, "num_warps": 4, "RULES": rules}


def test_the_second_launch_uses_what_the_first_one_compiled():
    kernel, launch = Kernel(), Launcher()
    launch(kernel, 3, (TENSOR, 5, (32, None)), options())
    launch(kernel, 4, (TENSOR, 7, (48, None)), options(rules=(print, len)))
    assert kernel.compiled == [((3,), (TENSOR, 5, (32, None)), options() | COMPILER_OPTIONS)]
    assert kernel.launched == [((4, 1, 1), (TENSOR, 7, (48, None), (print, len), 16))]


@pytest.mark.parametrize(
    "args",
    [
        (TENSOR.half(), 5, (32, None)),
        (TENSOR[1:], 5, (32, None)),  # not aligned to 16 bytes
        (TENSOR, 1, (32, None)),
        (TENSOR, 16, (32, None)),
        (TENSOR, 2**31 + 1, (32, None)),
        (TENSOR, 5, (33, None)),
        (TENSOR, 5, (32, TENSOR)),
        (TENSOR, 5, (32,)),
    ],
    ids=["dtype", "alignment", "one", "divisible", "wide", "in a tuple", "tensor for None", "length"],
)
def test_another_specialization_is_compiled(args):
    kernel, launch = Kernel(), Launcher()
    launch(kernel, 3, (TENSOR, 5, (32, None)), options())
    launch(kernel, 3, args, options())
    assert len(kernel.compiled) == 2


@pytest.mark.parametrize("other", [options(width=32), options(rules=(print, print)), options() | {"num_warps": 8}])
def test_other_constants_are_compiled(other):
    kernel, launch = Kernel(), Launcher()
    launch(kernel, 3, (TENSOR, 5, (32, None)), options())
    launch(kernel, 3, (TENSOR, 5, (32, None)), other)
    assert len(kernel.compiled) == 2
