"""Whether a model with some positions computes the same with a cache and without, and after it was saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig, load_model, save_model

SMALL: dict[str, Any] = {"vocab_size": 30, "d_model": 16, "num_heads": 4, "d_ff": 32, "max_seq_len": 40}
MODELS = {
    "transformer": (Transformer, lambda **changes: TransformerConfig(**SMALL, num_decoder_layers=2, **changes)),
    "gpt": (GPT, lambda **changes: GPTConfig(**SMALL, num_layers=2, **changes)),
    "bert": (Bert, lambda **changes: BertConfig(**SMALL, num_layers=2, **changes)),
}


def make(kind: str, positions: str) -> Any:
    """A model with random weights, in which positions count."""
    torch.manual_seed(0)
    model_class, config = MODELS[kind]
    model = model_class(config(positions=positions)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@torch.no_grad()
def difference(model: Any) -> float:
    """The largest difference between outputs of one text and those with a cache, beams and padding."""
    if isinstance(model, Transformer):
        return _of_beams(model)
    return _of_prompts(model) if isinstance(model, GPT) else _of_padding(model)


@torch.no_grad()
def difference_after_saving(model: Any, folder: Path) -> float:
    """The largest difference between the outputs of a model and those of the model that is loaded again."""
    save_model(folder, model)
    again, ids = load_model(folder), torch.randint(3, 30, (2, 9))
    args = (ids, ids) if isinstance(model, Transformer) else (ids,)
    return _largest(model(*args)[0] - again(*args)[0])


def _of_beams(model: Transformer) -> float:
    """Two sentences with three beams each, which are reordered in each step, as beam search does."""
    src, lengths = torch.randint(3, 30, (2, 7)), torch.tensor([7, 4])
    memory, cache = model.encode(src, lengths), model.new_cache()
    model.decode(torch.full((2, 1), 1), memory, lengths, cache=cache)
    cache.batch_repeat_interleave(3)
    tokens, found = torch.full((6, 1), 1), 0.0
    for _ in range(20):
        tokens = torch.cat([tokens, torch.randint(3, 30, (6, 1))], 1)
        hidden = model.decode(tokens[:, -1:], memory, lengths, cache=cache)
        expected = model.decode(tokens, memory, lengths)[:, -1:]
        found = max(found, _largest(hidden - expected))
        rows = torch.cat([torch.randint(0, 3, (3,)), torch.randint(3, 6, (3,))])
        cache.reorder_cache(rows)
        tokens = tokens[rows]
    return found


def _of_prompts(model: GPT) -> float:
    """Prompts of different lengths, in steps of several tokens and of one."""
    ids, padding = torch.randint(3, 30, (3, 16)), torch.tensor([0, 3, 7])
    cache = model.new_cache()
    steps = [model.forward_features(part, padding, cache=cache)[0] for part in ids.split([9, 1, 1, 4, 1], 1)]
    hidden = torch.cat(steps, 1)
    alone = [model.forward_features(row[None, start:])[0][0] for row, start in zip(ids, padding.tolist(), strict=True)]
    return max(
        _largest(hidden[row, start:] - expected)
        for row, (start, expected) in enumerate(zip(padding.tolist(), alone, strict=True))
    )


def _of_padding(model: Bert) -> float:
    ids, lengths = torch.randint(3, 30, (2, 9)), torch.tensor([9, 5])
    hidden = model.forward_features(ids, lengths)[0]
    return _largest(hidden[1, :5] - model.forward_features(ids[1:, :5])[0][0])


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max())
