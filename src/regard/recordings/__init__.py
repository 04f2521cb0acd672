"""Recordings: the attention of a forward pass or a generation, layer by layer, in memory and as a file."""

from __future__ import annotations

from regard.recordings.batch_axis import BatchAxis, Windows
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording
from regard.recordings.recording_file import load

__all__ = ["BatchAxis", "Layer", "Recording", "Windows", "load"]
