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

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True
