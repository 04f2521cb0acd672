"""The definition: dense, readable, in any dtype. Tests compare the other kernels with it."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.ops.dropout import draw_seed, dropped_weights
from regard.ops.kernels.base import Kernel, KernelInputs, Measured
from regard.ops.measures.base import Block, apply_sinks, lowest


class Reference(Kernel):
    """score → scale → mask → softmax → dropout → value, with the whole matrix in memory."""

    name = "reference"
    description = "the definition: dense and readable, O(queries × keys) memory"

    def run(self, inputs: KernelInputs) -> tuple[Tensor | None, Measured]:
        inputs = inputs.with_wide_rules()
        request = inputs.request
        shape = batch, heads, queries, keys = request.shape
        whole = slice(0, batch), slice(0, heads), slice(0, queries), slice(0, keys)
        tile = request.tile(*whole[:3])
        with torch.autocast(request.query.device.type, enabled=False):
            query, key = request.query.to(request.dtype), request.key.to(request.dtype)
            scores = request.masked_scores(query, key.repeat_interleave(heads // key.shape[1], 1), tile).expand(shape)
            masked = scores == -torch.inf
            scores = scores.masked_fill(masked, lowest(scores.dtype))
            weights, lse = scores.softmax(-1), None
            weights = weights.masked_fill(masked, 0.0)
            if request.score.sinks is not None:
                weights, lse = apply_sinks(scores, weights, request.score.sinks[tile.heads])
                weights = weights.masked_fill(masked, 0.0)  # a measure may give it an infinite gradient there
            block = Block(weights, scores, tile, whole, shape, lse)
            measured: Measured = {name: measure.compute(block) for name, measure in inputs.measures.items()}
            if inputs.value is None:
                return None, measured
            value = inputs.value.to(request.dtype).repeat_interleave(heads // inputs.value.shape[1], 1)
            if inputs.dropout:
                seed = draw_seed(request.query.device)
                dropped, factor = dropped_weights(inputs.dropout, seed, shape, *whole[:3], tile.kv_idx)
                weights = weights.masked_fill(dropped, 0.0) * factor
            output = weights @ value
        return output.to(inputs.value.dtype), measured
