"""The end of a training that gets no better."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch import callbacks


class EarlyStopping(callbacks.EarlyStopping):
    """Ends a training whose validations got no better for a while.

    One that ended so is done when it is resumed, too, unless the recipe has more patience by then.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True
