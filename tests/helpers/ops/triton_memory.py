"""What programs of a Triton kernel read and write in the interpreter, where a GPU would fail or programs would race.

The interpreter reads the neighbor's memory without an error, and runs one program after the other. Here each address
must be inside of an argument of the kernel, and no program may touch what another one writes. `embedded` places a
tensor in a larger one of NaN, so that an element outside of it changes the results.
"""

from __future__ import annotations

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder, interpreter_builder

from regard.ops.kernels.triton.launch import Launcher

load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store


class CheckedLauncher(Launcher):
    """Launches kernels in the interpreter, and checks their addresses.

    Attributes:
        count: How many launches were checked.
    """

    def __init__(self):
        super().__init__()
        self.count = 0

    def __call__(self, kernel, programs, args, options):
        memory = Memory(kernel.__name__, args)
        InterpreterBuilder.create_masked_load = memory.load
        InterpreterBuilder.create_masked_store = memory.store
        try:
            super().__call__(kernel, programs, args, options)
        finally:
            InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = load, store
        memory.check_programs()
        self.count += 1


class Memory:
    """The addresses of a launch."""

    def __init__(self, name, args):
        spans = sorted(map(span, tensors_of(args)))
        self.name = name
        self.starts, self.stops = np.array(spans, dtype=np.uint64).T
        self.stops = np.maximum.accumulate(self.stops)
        self.loads, self.stores = [], []

    @property
    def load(self):
        def checked(builder, ptrs, mask, other, *options):
            self.add(self.loads, "reads", ptrs, mask)
            return load(builder, ptrs, mask, other, *options)

        return checked

    @property
    def store(self):
        def checked(builder, ptrs, value, mask, *options):
            at = self.add(self.stores, "writes", ptrs, mask)
            assert len(np.unique(at)) == len(at), f"{self.name} writes to an address twice"
            return store(builder, ptrs, value, mask, *options)

        return checked

    def add(self, found, what, ptrs, mask):
        """Check addresses, and remember them with the program."""
        addresses = ptrs.data[mask.data.astype(bool)].astype(np.uint64)
        place = np.searchsorted(self.starts, addresses, "right")
        stops = np.concatenate((np.zeros(1, np.uint64), self.stops))[place]
        outside = addresses >= stops
        assert not outside.any(), f"{self.name} {what} {outside.sum()} of {len(outside)} elements outside of tensors"
        found.append((interpreter_builder.grid_idx[0], np.unique(addresses)))
        return addresses

    def check_programs(self):
        """No two programs write to an address, and none reads what another one writes."""
        if not self.stores:
            return
        written, writers = joined(self.stores)
        assert len(np.unique(written)) == len(written), f"{self.name}: two writes to one address"
        order = np.argsort(written)
        written, writers = written[order], writers[order]
        read, readers = joined(self.loads)
        place = np.searchsorted(written, read).clip(max=len(written) - 1)
        others = (written[place] == read) & (writers[place] != readers)
        assert not others.any(), f"{self.name}: a program reads what another one writes"


def joined(found):
    """Addresses, and the program of each."""
    programs = [np.full(len(addresses), program) for program, addresses in found]
    return np.concatenate([addresses for _, addresses in found]), np.concatenate(programs)


def tensors_of(value):
    """The tensors in nested tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors_of(part)


def span(tensor):
    """Where the elements of a tensor start and stop."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def embedded(tensor):
    """The tensor within NaN, or for others than floats within a large number, at an odd address with odd strides."""
    if tensor.ndim < 2 or tensor.dtype == torch.bool:
        return tensor
    outside = torch.nan if tensor.is_floating_point() else 2**40 if tensor.dtype == torch.int64 else 2**30
    whole = tensor.new_full([*(size + 1 for size in tensor.shape[:-1]), tensor.shape[-1] + 3], outside)
    part = whole[(*(slice(0, size) for size in tensor.shape[:-1]), slice(1, 1 + tensor.shape[-1]))]
    return part.copy_(tensor)
