"""Temporary stand-in until generation.greedy is there."""
from __future__ import annotations
from types import SimpleNamespace
import torch

def greedy(model, src, src_lengths, *, max_length):
    memory = model.encode(src, src_lengths)
    cache = model.new_cache()
    tgt = torch.full((len(src), 1), model.config.bos_id, dtype=torch.long)
    done = torch.zeros(len(src), dtype=torch.bool)
    out = []
    for _ in range(max_length):
        logits = model.project(model.decode(tgt, memory, src_lengths, cache=cache)[:, -1:])
        tgt = logits.argmax(-1)
        out.append(tgt)
        done |= tgt[:, 0] == model.config.eos_id
        if done.all():
            break
    rows = torch.cat(out, 1).tolist()
    eos = model.config.eos_id
    return [SimpleNamespace(tokens=row[: row.index(eos)] if eos in row else row) for row in rows]
