"""Training speed compared with ``torch.nn.Transformer`` of the same sizes on the same batches.

Both train with the same dropout, bfloat16 autocast and Adam. The baseline is plain PyTorch: embeddings times √d_model
plus sinusoids, ``nn.Transformer``, a linear layer and ``F.cross_entropy`` with label smoothing.

Run: ``python benchmarks/training.py``
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from timing import Run, report, speedup
from torch import Tensor, nn
from torch.nn import functional as F

from regard.models import Transformer, TransformerConfig
from regard.nn.absolute_positions import sinusoids

SEED, ROUNDS, STEPS = 0, 5, 2
VOCAB, D_MODEL, HEADS, LAYERS, D_FF, DROPOUT, SMOOTHING = 8000, 256, 8, 3, 1024, 0.1, 0.1
TOKENS, MIN_LENGTH, MAX_LENGTH, PAD = 8000, 8, 30, 0

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""src (batch, source), its lengths (batch,), tgt (batch, target), labels (batch, target)."""


def make_batches(count: int) -> list[Batch]:
    """Batches of about 8,000 source and target tokens, each of similar lengths."""
    batches = []
    for _ in range(count):
        length = int(torch.randint(MIN_LENGTH, MAX_LENGTH - 2, ()))
        sentences = TOKENS // (2 * (length + 2))
        src_lengths, tgt_lengths = (torch.randint(length, length + 3, (sentences,)) for _ in range(2))
        src, labels = (
            torch.randint(3, VOCAB, (sentences, int(lengths.max()))).masked_fill_(
                torch.arange(int(lengths.max())) >= lengths[:, None], PAD
            )
            for lengths in (src_lengths, tgt_lengths)
        )
        tgt = torch.cat([torch.ones(sentences, 1, dtype=torch.int64), labels[:, :-1]], dim=1)
        batches.append((src, src_lengths, tgt, labels))
    return batches


class PlainTransformer(nn.Module):
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

    def embed(self, tokens: Tensor) -> Tensor:
        return self.dropout(self.embedding(tokens) * math.sqrt(D_MODEL) + self.positions[: tokens.shape[1]])


def plain_loss(model: nn.Module, batch: Batch) -> Tensor:
    src, src_lengths, tgt, labels = batch
    logits = model(src, src_lengths, tgt)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=SMOOTHING, ignore_index=PAD)


def our_loss(model: Transformer, batch: Batch) -> Tensor:
    src, src_lengths, tgt, labels = batch
    hidden, _ = model.forward_features(src, tgt, src_lengths)
    return model.lm_head.loss(hidden, labels, label_smoothing=SMOOTHING, ignore_index=PAD).loss


def train_steps(losses: list[Callable[[], Tensor]], optimizer: torch.optim.Optimizer) -> Run:
    """One optimizer step on each loss, with bfloat16 autocast."""

    def run() -> None:
        for loss_of in losses:
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


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

    def train(model: nn.Module, loss: Callable[..., Tensor]) -> Run:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
        return train_steps([partial(loss, model, batch) for batch in batches], optimizer)

    ours, baseline = train(Transformer(config), our_loss), train(PlainTransformer(), plain_loss)
    ratios = {"speedup over torch.nn.Transformer: training": speedup(ours, baseline, ROUNDS)}
    report("training", ratios, SEED, vocab=VOCAB, d_model=D_MODEL, layers=LAYERS, dropout=DROPOUT, tokens=TOKENS)


if __name__ == "__main__":
    main()
