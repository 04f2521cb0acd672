"""The form of all scores: a number with its label."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Score:
    """A number with its label.

    Args:
        score: The number; nan if it is not defined for these texts.
        label: What reports call it, with its unit: ``"accuracy (%)"``.
        signature: Versions and settings that it was computed with, as sacreBLEU writes them; scores with equal
            signatures are comparable. Empty if there are none to choose.
    """

    score: float
    label: str
    signature: str = ""
