"""Watch what any model attends to."""

from __future__ import annotations

from regard.watching.callbacks import lightning_callback, trainer_callback
from regard.watching.intervention_effect import InterventionEffect, intervention_effect
from regard.watching.monitor import AttentionMonitor, HeadStatistics
from regard.watching.qk_clip import qk_clip
from regard.watching.result import WatchResult
from regard.watching.transformers_model import TransformersModel
from regard.watching.watch import end_all, watch

__all__ = [
    "AttentionMonitor",
    "HeadStatistics",
    "InterventionEffect",
    "TransformersModel",
    "WatchResult",
    "end_all",
    "intervention_effect",
    "lightning_callback",
    "qk_clip",
    "trainer_callback",
    "watch",
]
