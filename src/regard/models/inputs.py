"""What can be wrong with the words that a model is given, and the dtype that their embeddings go on in."""

from __future__ import annotations

import torch
from torch import Tensor

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def type_objections(name: str, value: object, *, optional: bool = False) -> list[str]:
    """Say that a value is no tensor, and, if it may be left out, not None either."""
    if isinstance(value, Tensor) or (optional and value is None):
        return []
    return [f"{name} must be a torch.Tensor, but is a {type(value).__name__}: make one with torch.tensor"]


def word_objections(name: str, words: Tensor, vocab_size: int, limit: str = "vocab_size") -> list[str]:
    """Say what is wrong with a batch of words.

    Values are looked at on a CPU only, where no device has to wait for the answer.
    """
    if words.ndim != 2 or words.shape[1] == 0:
        return [f"{name} must be (batch, tokens) with at least one token, but has the shape {tuple(words.shape)}"]
    if words.shape[0] == 0:
        return [f"{name} must hold at least one sequence, but its batch is empty: its shape is {tuple(words.shape)}"]
    if words.dtype not in (torch.int64, torch.int32):
        return [f"{name} must have the dtype torch.int64 or torch.int32, but has {words.dtype}"]
    if words.device.type == "cpu" and words.numel():
        smallest, largest = (int(bound) for bound in words.aminmax())
        if smallest < 0 or largest >= vocab_size:
            wrong = smallest if smallest < 0 else largest
            return [f"{name} must hold words from 0 to {limit} - 1 = {vocab_size - 1}, but holds {wrong}"]
    return []


def length_objections(
    lengths: Tensor | None, shape: torch.Size, *, name: str = "src_lengths", of: str = "src", least: int = 0
) -> list[str]:
    """Say what is wrong with the lengths of sequences of a shape (batch, tokens, ...); values on a CPU only."""
    if lengths is None or len(shape) < 2:
        return []
    if lengths.shape != shape[:1] or lengths.dtype not in INTEGERS:
        came = f"the shape {tuple(lengths.shape)} and the dtype {lengths.dtype}"
        return [f"{name} must be {shape[0]} integers (batch,), but has {came}"]
    if lengths.device.type == "cpu" and lengths.numel():
        smallest, largest = (int(bound) for bound in lengths.aminmax())
        if smallest < least or largest > shape[1]:
            wrong = smallest if smallest < least else largest
            return [f"{name} must be from {least} to the {shape[1]} tokens of {of}, but holds {wrong}"]
    return []


def memory_objections(tgt: Tensor, memory: Tensor, width: int, src_lengths: Tensor | None) -> list[str]:
    """Say what is wrong with what an encoder gave, for target words of a shape (rows, target)."""
    if memory.ndim != 3 or memory.shape[2] != width:
        return [f"memory must be (sentences, source, {width}), as encode gives it, but has {tuple(memory.shape)}"]
    if memory.shape[0] == 0:
        return [f"memory must hold at least one sentence, but its batch is empty: its shape is {tuple(memory.shape)}"]
    if tgt.ndim and tgt.shape[0] % memory.shape[0]:
        return [f"tgt must have a multiple of memory's {memory.shape[0]} sentences as rows, but has {tgt.shape[0]}"]
    return length_objections(src_lengths, memory.shape)


def start_objections(starts: Tensor | None, shape: torch.Size, keys: int) -> list[str]:
    """Say what is wrong with the beginnings of sequences of a shape (batch, tokens) that see so many keys."""
    if starts is None or len(shape) != 2:
        return []
    if starts.shape != shape[:1] or starts.dtype not in INTEGERS:
        came = f"the shape {tuple(starts.shape)} and the dtype {starts.dtype}"
        return [f"starts must be {shape[0]} integers (batch,), but has {came}"]
    if starts.device.type == "cpu" and starts.numel():
        smallest, largest = (int(bound) for bound in starts.aminmax())
        if smallest < 0 or largest >= keys:
            wrong = smallest if smallest < 0 else largest
            return [f"starts must be from 0 to the last place, {keys - 1}, but holds {wrong}"]
    return []


def in_compute_dtype(embedded: Tensor) -> Tensor:
    """Embeddings, under autocast in its dtype, as all that follows."""
    if torch.is_autocast_enabled(embedded.device.type):
        return embedded.to(torch.get_autocast_dtype(embedded.device.type))
    return embedded
