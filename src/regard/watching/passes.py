"""What was seen of a model, pass by pass, and what can be asked of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.analysis.alignment import Alignment, Heads
from regard.analysis.heads import Columns
from regard.analysis.recording import Layers, Recording
from regard.errors import InvalidArgument, InvalidType
from regard.ops.measures import Measure
from regard.watching.keeping import Keeping
from regard.watching.seen import Pass, Seen

if TYPE_CHECKING:
    from regard.explore.frame import Frame
    from regard.explore.widget import PageWidget


class Passes(Layers[Seen]):
    """The passes of a model: its layers are those of the last one, and so are the answers.

    Args:
        name: What the model is called.
        measures: What is measured of each layer, by name.
        keeping: What is kept of it.
    """

    def __init__(self, name: str, measures: Mapping[str, Measure], keeping: Keeping) -> None:
        self._name, self._measures = name, measures
        self.keeping = keeping
        self.passes: list[Pass] = []
        """All passes, in order."""

    def select(self, beam_indices: Tensor) -> Pass:
        """What the texts attended to that a beam search gave, in the last pass.

        Args:
            beam_indices: (texts, steps) integers: which row of the batch each text was in at each step, −1 where it had
                ended; as transformers' ``generate`` gives it with ``return_dict_in_generate=True``.

        Raises:
            InvalidArgument: If no steps were kept, or there are others.
        """
        if self.keeping.what != "matrix" or not self.passes:
            raise InvalidArgument("select: the steps were not kept: watch a generation with keep='matrix'")
        if not isinstance(beam_indices, (Tensor, Sequence)) or isinstance(beam_indices, str):
            raise InvalidType(f"beam_indices: expected a tensor (texts, steps), got {beam_indices!r:.80}")
        places = self.passes[-1].places
        batch, steps = (max(size[axis] for size in map(Seen.size, places.values())) for axis in (0, 1))
        rows = torch.as_tensor(beam_indices)
        if (
            not rows.numel()
            or rows.ndim != 2
            or rows.is_floating_point()
            or rows.shape[1] < steps
            or int(rows.max()) >= batch
            or int(rows.min()) < -1
        ):
            raise InvalidArgument(
                f"beam_indices: expected (texts, steps) integers below {batch}, of at least {steps} steps, got "
                f"{tuple(rows.shape)}" + (f" from {rows.min()} to {rows.max()}" if rows.numel() else "")
            )
        found = {}
        for place, seen in places.items():
            beams = batch // seen.size()[0]  # of an encoder, which read each text once
            found[place] = seen.select(torch.where(rows < 0, rows, rows // beams).to(seen.device), self._measures)
        return Pass(found)

    @property
    def _last_pass(self) -> Pass:
        if not self.passes:
            raise InvalidArgument("nothing was seen yet")
        return self.passes[-1]

    def recording(self, sequence: int | None = None, **about: Any) -> Recording:
        """What one sequence attended to in the last pass; see `Pass.recording`."""
        return self._last_pass.recording(sequence, **{"model": self._name, **about})

    def heads(self, tokens: Any = None, target: Any = None, **options: Any) -> Columns:
        """What each head did in the last pass; see `Pass.heads`."""
        return self._last_pass.heads(tokens, target, **options)

    def alignment(
        self, sequence: int | None = None, *, heads: Heads = "mean", count: int = 4, merge: bool = True, **about: Any
    ) -> Alignment:
        """Which words of a target belong to which of its source; see `regard.analysis.align`.

        Args:
            sequence: As for `Pass.recording`.
            heads: As for `regard.analysis.align`.
            count: How many heads are the best.
            merge: Whether pieces of words are merged.
            about: ``tokens``, those of the source, and ``target``, what each row of the decoder wrote.
        """
        return self.recording(sequence, **about).alignment(heads, count=count, merge=merge)

    def save(
        self,
        path: str | os.PathLike[str],
        sequence: int | None = None,
        *,
        dtype: torch.dtype | None = None,
        **about: Any,
    ) -> None:
        """Write what one sequence attended to as a file, for `regard.load`.

        Args:
            path: Where the file shall lie; mostly ``*.regard``.
            sequence: As for `Pass.recording`.
            dtype: As for `Recording.save`.
            about: As for `Pass.recording`: ``tokens``, ``target``, ``title``, ``model``.

        Raises:
            InvalidArgument: As `Pass.recording` and `Recording.save`.
            InvalidFile: If the file cannot be written.
        """
        self.recording(sequence, **about).save(path, dtype=dtype)

    def show(
        self,
        path: str | os.PathLike[str] | None = None,
        sequence: int | None = None,
        *,
        beside: Recording | None = None,
        **about: Any,
    ) -> Path | PageWidget | Frame:
        """Show what one sequence attended to: in a notebook below the cell, elsewhere as a page in the browser.

        Args:
            path: As for `Recording.show`.
            sequence: As for `Pass.recording`.
            beside: Another recording, as ``other.recording(0)`` gives it, with which this one is compared.
            about: As for `Pass.recording`: ``tokens``, ``target``, ``title``, ``model``.

        Returns:
            As `Recording.show`.

        Raises:
            InvalidArgument: As `Pass.recording` and `Recording.show`.
            InvalidFile: If the page cannot be written there.
        """
        return self.recording(sequence, **about).show(path, beside=beside)

    @property
    def layers(self) -> tuple[Seen, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.passes[-1].layers if self.passes else ()

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept, of all passes: queries, keys, values if they are, and answers."""
        return sum(each.nbytes for each in self.passes)
