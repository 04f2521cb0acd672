"""The same model with several attention implementations of transformers, and what they have in common."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from helpers.model_zoo import build
from helpers.model_zoo.families import FAMILIES, padding
from helpers.model_zoo.outcome import Outcome, accepted, run, tensors
from regard.errors import InvalidArgument


def variant(model: Any, implementation: str, **changes: Any) -> Any:
    """The same model with another attention implementation, in evaluation."""
    config = copy.deepcopy(model.config)
    config._attn_implementation = implementation
    for name, value in changes.items():
        setattr(config, name, value)
    other = type(model)(config).eval()
    other.load_state_dict(model.state_dict())
    other.generation_config = copy.deepcopy(getattr(model, "generation_config", None))
    return other.to(model.dtype)


def inputs_of(name: str, side: str = "none") -> dict[str, Tensor]:
    """Inputs of a family, with padding on a side where it takes padding."""
    torch.manual_seed(1)
    inputs = FAMILIES[name].inputs()
    return inputs | ({"attention_mask": padding(side)} if FAMILIES[name].padded else {})


def fused(name: str) -> str:
    """The implementation to compare outputs with."""
    return "sdpa" if FAMILIES[name].fused else "eager"


def close(actual: Tensor, expected: Tensor) -> None:
    """Whether results agree to rounding."""
    torch.testing.assert_close(actual, expected, atol=2e-5 * float(expected.abs().max().clamp(min=1)), rtol=0)


def drop_in_outcome(kind: type[PreTrainedModel]) -> Outcome:
    """Run a tiny model with ``attn_implementation="regard"``.

    Returns:
        Outcome: Exact if its outputs are those of ``"sdpa"`` or of ``"eager"``, which differ where a query may attend
        to no key; refused if the model, or `regard.transformers`, raises an error.

    Raises:
        AssertionError: If its outputs are neither.
    """
    try:
        model = build.built(kind)
        inputs, expected = accepted(model)
    except (ImportError, ValueError, AttributeError) as error:
        return Outcome("refused", f"transformers itself does not run it: {error}")
    try:
        actual = run(variant(model, "regard"), inputs)
    except (InvalidArgument, KeyError) as error:
        return Outcome("refused", str(error))
    if not _are_close(actual, expected):
        assert _are_close(actual, run(variant(model, "eager"), inputs)), f"{kind.__name__}: other outputs"
    return Outcome("exact")


def _are_close(actual: Any, expected: Any) -> bool:
    return all(
        one.shape == other.shape and torch.allclose(one, other, atol=2e-5, rtol=1e-4, equal_nan=True)
        for one, other in zip(tensors(actual), tensors(expected), strict=True)
    )
