"""Why the calls of a layer are not the rows of one matrix."""

from __future__ import annotations

from typing import Literal

Inconsistency = Literal["reordered", "changed keys", "compressed keys", "steps or layers"]

_REASONS: dict[Inconsistency, str] = {
    "reordered": "beam search reordered the batch between the steps; call result.select_beams(output.beam_indices)",
    "changed keys": "the cache changed the keys of earlier tokens between the steps, as a quantized cache does, so the "
    "steps are not rows of one matrix; read measured, or watch each step by itself",
    "compressed keys": "it attends to compressed keys, and later steps had more of them, so the steps are not rows of "
    "one matrix; watch each forward pass by itself",
    "steps or layers": "it attended to the same keys more often than the tokens of its steps attended to themselves, "
    "so its calls may be steps or layers of one step; leave positions out, and watch each step",
}


def why_inconsistent(name: str, inconsistency: Inconsistency, *, has_calls: bool) -> str:
    """What is wrong with a layer, and what to do.

    Args:
        name: The layer.
        inconsistency: What is wrong.
        has_calls: Whether its queries and keys were kept, by which beams can be told apart.
    """
    reason = _REASONS[inconsistency]
    if inconsistency == "reordered" and not has_calls:
        reason = reason.replace("; call", "; watch with keep_qk=True, and call")
    return f"{name}: {reason}"
