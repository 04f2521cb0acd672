"""The definition: dense, readable, in any dtype. It is the oracle of the other kernels' tests."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops.kernels.base import Kernel, KernelInputs, Measured
from regard.ops.measures import FORBIDDEN, Block, sunk


class Reference(Kernel):
    """score → scale → mask → softmax → dropout → value, with the whole matrix in memory."""

    name = "reference"
    about = "the definition: dense and readable, O(queries · keys) memory"

    def run(self, job: KernelInputs) -> tuple[Tensor | None, Measured]:
        request = job.request
        shape = batch, heads, queries, keys = request.shape
        whole = slice(0, batch), slice(0, heads), slice(0, queries), slice(0, keys)
        cells = request.cells(*whole[:3])
        with torch.autocast(request.query.device.type, enabled=False):
            query, key = request.query.to(request.dtype), request.key.to(request.dtype)
            scores = request.scores(query, key.repeat_interleave(heads // key.shape[1], 1), cells)
            scores = scores.expand(shape).clamp(min=FORBIDDEN)  # −∞ forbids too
            if request.mask is not None:
                scores = scores.masked_fill(~request.allowed(cells), FORBIDDEN)
            seen = (scores > FORBIDDEN).any(-1)  # rows with a key
            weights, lse = scores.softmax(-1) * seen[..., None], None
            if request.score.sinks is not None:
                weights, lse = sunk(scores, weights, request.score.sinks[cells.heads])
            block = Block(weights, scores, cells, whole, shape, lse)
            measured: Measured = {name: measure.of(block) for name, measure in job.measures.items()}
            if job.value is None:
                return None, measured
            value = job.value.to(request.dtype).repeat_interleave(heads // job.value.shape[1], 1)
            output = torch.dropout(weights, job.dropout, train=True) @ value
        return output.to(job.value.dtype), measured
