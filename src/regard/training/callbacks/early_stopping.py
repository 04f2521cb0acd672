"""Early stopping that a resumed run continues."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch import callbacks


class EarlyStopping(callbacks.EarlyStopping):
    """Stops a training after ``patience`` validations without improvement.

    A run that stopped early stays stopped when it is resumed, unless ``patience`` has been raised.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})

    @property
    def has_stopped(self) -> bool:
        """Whether this is the reason that a run has ended."""
        return self.wait_count >= self.patience

    @property
    def reason(self) -> str:
        """Why the run ended."""
        validations = "validation" if self.patience == 1 else f"{self.patience} validations"
        best = f"{self.best_score.item():.4f}"
        return (
            f"{self.monitor} was not better than {best} in the last {validations}; validation.patience={self.patience}"
        )

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.has_stopped:
            trainer.should_stop = True
