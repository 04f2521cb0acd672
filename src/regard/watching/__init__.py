"""Watching what models attend to, whoever wrote them."""

from __future__ import annotations

from regard.watching.callbacks import lightning_callback, trainer_callback
from regard.watching.checkpoint import Checkpoint
from regard.watching.effects import Effect, effect
from regard.watching.listening import Watch
from regard.watching.seen import Pass, Seen
from regard.watching.watch import watch

__all__ = ["Checkpoint", "Effect", "Pass", "Seen", "Watch", "effect", "lightning_callback", "trainer_callback", "watch"]
