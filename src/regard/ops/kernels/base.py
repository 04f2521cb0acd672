"""What a kernel is: its limits as data, the sentences why it cannot serve a request, and how it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.ops.measures import Measure
from regard.ops.request import DTYPES, AttentionRequest
from regard.ops.scores import Score

Measured = dict[str, Any]
"""Answers by name: a tensor, or a named tuple of tensors."""


@dataclass(eq=False)
class KernelInputs:
    """One call of a kernel: a request, and what is wanted of it.

    Args:
        request: The weight matrix.
        value: (batch, value_heads, keys, value_dim) to multiply it with; None where only measures are wanted.
            value_heads divides heads.
        measures: What is asked of the weights, by name.
        dropout: The probability with which a weight that makes the output is dropped.
    """

    request: AttentionRequest
    value: Tensor | None
    measures: Mapping[str, Measure]
    dropout: float = 0.0


class Kernel:
    """Base of all kernels.

    Attributes:
        name: What `kernel=` takes.
        about: One line for a person.
        devices: Device types that it runs on; None is any.
        dtypes: Dtypes of query, key and value.
        scores: Score rules that it knows; None is any.
        measures: Measures that it can take; None is any.
        tolerance: The largest error in float32, relative to the largest entry, that its tests allow.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    devices: ClassVar[tuple[str, ...] | None] = None
    dtypes: ClassVar[tuple[torch.dtype, ...]] = DTYPES
    scores: ClassVar[tuple[type[Score], ...] | None] = None
    measures: ClassVar[tuple[type[Measure], ...] | None] = None
    tolerance: ClassVar[float] = 1e-5

    def why_not(self, job: KernelInputs) -> Iterator[str]:
        """The reasons why this kernel cannot serve the job, each found when it is asked for; none if it can."""
        request = job.request
        if self.devices is not None and request.query.device.type not in self.devices:
            yield f"it runs on {', '.join(self.devices)}, the tensors lie on {request.query.device.type}"
        if request.query.dtype not in self.dtypes:
            yield f"it does not take {request.query.dtype}"
        if self.scores is not None and type(request.score) not in self.scores:
            yield f"it does not know the score {type(request.score).__name__}"
        if self.measures is not None and job.measures:
            unknown = [name for name, measure in job.measures.items() if type(measure) not in self.measures]
            if unknown:
                yield f"it cannot measure {', '.join(unknown)}"

    def run(self, job: KernelInputs) -> tuple[Tensor | None, Measured]:
        """The output, (batch, heads, queries, value_dim), and the answers by name."""
        raise NotImplementedError
