"""Scores by name, and what a user may give for `score=`."""

from __future__ import annotations

from regard.errors import InvalidArgument, InvalidType, did_you_mean
from regard.ops.scores.additive import Additive
from regard.ops.scores.base import Score
from regard.ops.scores.bias import Alibi, Bias, T5RelativeBias
from regard.ops.scores.dot_product import Bilinear, ScaledDotProduct
from regard.ops.scores.modifiers import Sinks, SoftCap
from regard.ops.scores.relative_key import RelativeKey
from regard.ops.tree import tensors_out_of_reach

SCORES: dict[str, type[Score]] = {
    "additive": Additive,
    "alibi": Alibi,
    "bias": Bias,
    "buckets": T5RelativeBias,
    "general": Bilinear,
    "relative": RelativeKey,
    "scaled_dot": ScaledDotProduct,
    "sinks": Sinks,
    "soft_cap": SoftCap,
}
"""The rules by name."""

_EXAMPLES = {
    "additive": "Additive(vector)",
    "alibi": "ScaledDotProduct() + regard.Alibi.for_heads(8)",
    "bias": "ScaledDotProduct() + regard.Bias(tensor)",
    "buckets": "ScaledDotProduct() + regard.T5RelativeBias(table)",
    "general": "General(weight)",
    "relative": "ScaledDotProduct() + regard.RelativeKey(table)",
    "sinks": "Sinks(regard.ScaledDotProduct(), logits)",
    "soft_cap": "SoftCap(regard.ScaledDotProduct(), 50.0)",
}
"""Those that need to be told more than their name."""


def as_score(score: str | Score | None) -> Score:
    """A rule from what a user gave: a rule, the name of one, or None for the scaled dot product.

    Raises:
        InvalidArgument: If the name is unknown or needs an argument, or a tensor of the rule would get no gradient.
        InvalidType: If it is neither a rule nor a name.
    """
    if score is None:
        return ScaledDotProduct()
    if isinstance(score, str):
        if score in _EXAMPLES:
            raise InvalidArgument(f"score: '{score}' needs an argument: give regard.{_EXAMPLES[score]}")
        if score not in SCORES:
            raise InvalidArgument(
                f"score: unknown name '{score}'{did_you_mean(score, SCORES)} (known: {', '.join(sorted(SCORES))})"
            )
        return SCORES[score]()
    if isinstance(score, type) and issubclass(score, Score):
        raise InvalidType(f"score: got the class {score.__name__}; make one of it: {score.__name__}(...)")
    if not isinstance(score, Score):
        raise InvalidType(f"score: expected a rule such as regard.ScaledDotProduct(), got {type(score).__name__}")
    lost = tensors_out_of_reach(score)
    if lost:
        raise InvalidArgument(
            f"score: {type(score).__name__} holds {', '.join(lost)}, which would get no gradient: make the class a "
            "dataclass with such tensors as fields"
        )
    return score
