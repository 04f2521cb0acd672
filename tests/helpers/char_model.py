"""A language model of characters that is trained on one line until it repeats it."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import torch

from regard.models import GPT, GPTConfig
from regard.nn import linear_cross_entropy
from regard.pipelines import TextGenerator
from regard.text.tokenizer import train_char

LINE = "abcdefghijklmnopqrstuvwxyz .\n"


def trained_writer() -> TextGenerator:
    """A copy of the model, which a test may change."""
    return deepcopy(_train())


@cache
def _train() -> TextGenerator:
    tokenizer = train_char([LINE])
    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_heads": 2, "num_layers": 1, "d_ff": 32, "max_seq_len": 60, "dropout": 0.0}
    model = GPT(GPTConfig(tokenizer.vocab_size, bos_id=1, positions="alibi", attention_dropout=0.0, **sizes))
    (ids,) = tokenizer.encode([LINE * 4])
    words = torch.tensor([ids[start : start + 50] for start in range(29)])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(80):
        hidden = model.forward_features(words[:, :-1])[0].flatten(0, 1)
        loss = linear_cross_entropy(hidden, model.lm_head.weight, words[:, 1:].flatten()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return TextGenerator(model, tokenizer)
