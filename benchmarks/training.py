"""Training tokens a second against stock ``torch.nn.Transformer`` of the same sizes, on the same batches.

Both train with the same dropout, bfloat16 autocast and Adam. Stock is what one writes with torch alone: embeddings
times √d_model plus sinusoids, ``nn.Transformer``, a linear map and ``F.cross_entropy`` with label smoothing.
Run: ``python benchmarks/training.py``
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from side_by_side import ratios, report
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models import Transformer, TransformerConfig
from regard.nn.absolute_positions import sinusoids

SEED, ROUNDS, STEPS = 0, 5, 2
VOCAB, D_MODEL, HEADS, LAYERS, D_FF, DROPOUT, SMOOTHING = 8000, 256, 8, 3, 1024, 0.1, 0.1
TOKENS, SHORTEST, LONGEST, PAD = 8000, 8, 30, 0

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""src (batch, source), its lengths (batch,), tgt (batch, target), the words to be told (batch, target)."""


def make_batches(count: int) -> list[Batch]:
    """Batches of about 8,000 source and target tokens in all, sorted into buckets of like length as in training."""
    batches = []
    for _ in range(count):
        length = int(torch.randint(SHORTEST, LONGEST - 2, ()))
        sentences = TOKENS // (2 * (length + 2))
        src_lengths, tgt_lengths = (torch.randint(length, length + 3, (sentences,)) for _ in range(2))
        src, words = (
            torch.randint(3, VOCAB, (sentences, int(lengths.max()))).masked_fill_(
                torch.arange(int(lengths.max())) >= lengths[:, None], PAD
            )
            for lengths in (src_lengths, tgt_lengths)
        )
        tgt = torch.cat([torch.ones(sentences, 1, dtype=torch.int64), words[:, :-1]], dim=1)
        batches.append((src, src_lengths, tgt, words))
    return batches


class Stock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, D_MODEL, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=D_MODEL**-0.5)
        self.register_buffer("positions", sinusoids(512, D_MODEL))
        self.dropout = nn.Dropout(DROPOUT)
        self.transformer = nn.Transformer(D_MODEL, HEADS, LAYERS, LAYERS, D_FF, DROPOUT, batch_first=True)
        self.lm_head = nn.Linear(D_MODEL, VOCAB, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, src: Tensor, src_lengths: Tensor, tgt: Tensor) -> Tensor:
        padding = torch.arange(src.shape[1]) >= src_lengths[:, None]
        future = torch.ones(tgt.shape[1], tgt.shape[1], dtype=torch.bool).triu(1)
        hidden = self.transformer(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return self.lm_head(hidden)

    def embed(self, words: Tensor) -> Tensor:
        return self.dropout(self.embedding(words) * math.sqrt(D_MODEL) + self.positions[: words.shape[1]])


def stock_loss(model: nn.Module, batch: Batch) -> Tensor:
    src, src_lengths, tgt, words = batch
    logits = model(src, src_lengths, tgt)
    return F.cross_entropy(logits.flatten(0, 1), words.flatten(), label_smoothing=SMOOTHING, ignore_index=PAD)


def our_loss(model: Transformer, batch: Batch) -> Tensor:
    src, src_lengths, tgt, words = batch
    hidden, _ = model.forward_features(src, tgt, src_lengths)
    return model.lm_head.loss(hidden, words, label_smoothing=SMOOTHING, ignore_index=PAD).loss


def trainer(model: nn.Module, loss_of: Callable[..., Tensor], batches: list[Batch]) -> Callable[[], None]:
    """A function that trains for some steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)

    def train() -> None:
        for batch in batches:
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return train


def main() -> None:
    torch.manual_seed(SEED)
    batches = make_batches(STEPS)
    config = TransformerConfig(
        VOCAB,
        d_model=D_MODEL,
        num_heads=HEADS,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        d_ff=D_FF,
        dropout=DROPOUT,
        attention_dropout=DROPOUT,
        activation_dropout=DROPOUT,
    )
    ours = trainer(Transformer(config), our_loss, batches)
    theirs = trainer(Stock(), stock_loss, batches)
    found = {"tokens a second, ours to torch.nn.Transformer's": ratios(ours, theirs, ROUNDS)}
    report("training", found, SEED, vocab=VOCAB, d_model=D_MODEL, layers=LAYERS, dropout=DROPOUT, tokens=TOKENS)


if __name__ == "__main__":
    main()
