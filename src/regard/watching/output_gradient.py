"""The gradient of the output of an attention call, from which that of its weights follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.ops import GradientMatrix


@dataclass(eq=False)
class BackwardState:
    """What is known of the backward passes of a forward pass: whether one has reached a recorded layer."""

    has_run: bool = False


@dataclass(eq=False)
class OutputGradient:
    """The gradient of the output of one attention call, the sum over all backward passes, as autograd adds them up.

    Args:
        state: That of the forward pass.
        keep: Returns a tensor where it is kept.
        heads: The heads that are recorded; None for all.
    """

    state: BackwardState
    keep: Callable[[Tensor], Tensor]
    heads: Sequence[int] | None = None
    total: Tensor | None = None
    """(batch, heads, queries, value_dim); None if no backward pass has reached the output."""
    is_followed: bool = False
    """Whether the output has a graph, which will give its gradient."""

    def follow(self, output: Tensor, to_heads: Callable[[Tensor], Tensor]) -> Tensor:
        """The same output, whose gradient is recorded.

        Where nothing that it was computed from requires a gradient, as in a frozen model, its graph begins here.

        Args:
            output: What the model goes on with.
            to_heads: Turns the gradient of it into (batch, heads, queries, value_dim).
        """
        if not output.requires_grad:
            if not torch.is_grad_enabled():
                return output
            output = output.detach().requires_grad_().clone()  # not a leaf, which could not be changed in place
        if not self.is_followed:  # else a checkpointed layer computes again
            self.is_followed = True
            output.register_hook(lambda gradient: self._add(to_heads(gradient.detach())))
        return output

    def _add(self, gradient: Tensor) -> None:
        gradient = gradient if self.heads is None else gradient[:, self.heads]
        gradient = gradient if self.total is None else gradient + self.total.to(gradient.device)
        self.total, self.state.has_run = self.keep(gradient), True


def gradient_of_weights(
    name: str, calls: Sequence[tuple[OutputGradient, int]], value: Tensor | None, valid_queries: Tensor | None
) -> GradientMatrix | str | None:
    """The gradient of the weights of several calls; None if there is none, or the sentence why not.

    Args:
        name: The layer.
        calls: The gradient of the output of each, and its number of queries.
        value: (batch or 1, kv_heads, keys, value_dim) Those of all calls.
        valid_queries: (batch, queries) False where a query is padding.
    """
    if value is None:
        return f"{name}: its output is not its weights times one value, so they have no gradient of this form"
    if not any(call.state.has_run for call, _ in calls):
        return (
            f"{name}: no backward pass has reached the recorded layers yet; call loss.backward() before you read grad"
        )
    known = next((call.total for call, _ in calls if call.total is not None), None)
    if known is None:
        return None
    parts = [known.new_zeros(*known.shape[:2], n, known.shape[3]) if c.total is None else c.total for c, n in calls]
    gradient, value = torch.cat(parts, 2), value.detach().expand(len(known), -1, -1, -1)
    dtype = torch.promote_types(gradient.dtype, value.dtype)
    return GradientMatrix.of(gradient.to(dtype), value.to(dtype), valid_queries)
