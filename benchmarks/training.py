"""Training speed of a translator compared with ``torch.nn.Transformer`` of the same sizes.

Both train with the same dropout, bfloat16 autocast and Adam. The baseline is plain PyTorch: embeddings times √d_model
plus sinusoids, ``nn.Transformer``, a linear layer and ``F.cross_entropy`` with label smoothing.

training: both on the same batches, of sentences of similar length.

compiled: the same, the baseline with ``torch.compile``, ours as with ``trainer.compile``.

loop: tokens a second, without padding, in training on a corpus of sentences as long as image captions. Ours come in
batches of similar length, as in ``regard train``, the baseline's are shuffled and padded to the longest of a batch.
Batches have equally many sentences on average.

Run: ``python benchmarks/training.py [training|compiled|loop]``; with ``REGARD_ISA=avx2 ATEN_CPU_CAPABILITY=avx2`` for
another instruction set (matrix products may still use the wider one)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from timing import Run, report, speedup
from torch import Tensor, nn
from torch.nn import functional as F

from regard.data.batching import split, token_budget_batches
from regard.models import Transformer, TransformerConfig
from regard.nn.absolute_positions import sinusoids
from regard.training.layers import prepare_layers
from regard.training.recipe_sections import TrainerConfig

SEED, ROUNDS, STEPS = 0, 5, 2
VOCAB, D_MODEL, HEADS, LAYERS, D_FF, DROPOUT, SMOOTHING = 8000, 256, 8, 3, 1024, 0.1, 0.1
TOKENS, MIN_LENGTH, MAX_LENGTH, PAD = 8000, 8, 30, 0
SENTENCES, MEAN_LENGTH, LENGTH_STD, PAIR_STD, LOOP_STEPS = 20_000, 13.0, 4.0, 2.0, 4

Batch = tuple[Tensor, Tensor, Tensor, Tensor]
"""src (batch, source), its lengths (batch,), tgt (batch, target), labels (batch, target)."""


def make_batches(count: int) -> list[Batch]:
    """Batches of about 8,000 source and target tokens, each of similar lengths."""
    batches = []
    for _ in range(count):
        length = int(torch.randint(MIN_LENGTH, MAX_LENGTH - 2, ()))
        sentences = TOKENS // (2 * (length + 2))
        batches.append(random_batch(*(torch.randint(length, length + 3, (sentences,)) for _ in range(2))))
    return batches


def random_batch(src_lengths: Tensor, tgt_lengths: Tensor) -> Batch:
    """Random tokens, padded to the longest sentence."""
    src, labels = (
        torch.randint(3, VOCAB, (len(lengths), int(lengths.max()))).masked_fill_(
            torch.arange(int(lengths.max())) >= lengths[:, None], PAD
        )
        for lengths in (src_lengths, tgt_lengths)
    )
    tgt = torch.cat([torch.ones(len(labels), 1, dtype=torch.int64), labels[:, :-1]], dim=1)
    return src, src_lengths, tgt, labels


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
    return model.loss(src, tgt, src_lengths, labels, label_smoothing=SMOOTHING)[0].loss


def train_steps(losses: list[Callable[[], Tensor]], optimizer: torch.optim.Optimizer, max_norm: float = 0) -> Run:
    """One optimizer step on each loss, with bfloat16 autocast; gradients are clipped to a norm, unless it is 0."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def run() -> None:
        for loss_of in losses:
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of()
            optimizer.zero_grad()
            loss.backward()
            if max_norm:
                nn.utils.clip_grad_norm_(parameters, max_norm)
            optimizer.step()

    return run


def our_model() -> Transformer:
    return Transformer(
        TransformerConfig(
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
    )


def train(model: nn.Module, loss: Callable[..., Tensor], batches: list[Batch]) -> Run:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), fused=True)
    return train_steps([partial(loss, model, batch) for batch in batches], optimizer)


def training() -> list[float]:
    batches = make_batches(STEPS)
    return speedup(train(our_model(), our_loss, batches), train(PlainTransformer(), plain_loss, batches), ROUNDS)


def compiled() -> list[float]:
    batches, ours, baseline = make_batches(STEPS), our_model(), PlainTransformer()
    prepare_layers(ours, TrainerConfig(max_steps=1, compile=True))
    baseline.compile()
    runs = train(ours, our_loss, batches), train(baseline, plain_loss, batches)
    for run in runs:  # compiles again for a second size
        run()
    return speedup(*runs, ROUNDS)


def loop() -> list[float]:
    rng = np.random.default_rng(SEED)
    source = np.clip(rng.normal(MEAN_LENGTH, LENGTH_STD, SENTENCES).round(), 3, 40).astype(np.int64)
    target = np.clip(source + rng.normal(0, PAIR_STD, SENTENCES).round(), 3, 40).astype(np.int64)
    similar = token_budget_batches(source, target, TOKENS // 2, rng)
    shuffled = split(rng.permutation(SENTENCES), SENTENCES // len(similar))
    parts = [rows[:LOOP_STEPS] for rows in (similar, shuffled)]
    ours, theirs = ([random_batch(*map(torch.from_numpy, (source[r], target[r]))) for r in rows] for rows in parts)
    tokens, their_tokens = (sum(int((source[r] + target[r]).sum()) for r in rows) for rows in parts)
    ratios = speedup(train(our_model(), our_loss, ours), train(PlainTransformer(), plain_loss, theirs), ROUNDS)
    return [ratio * tokens / their_tokens for ratio in ratios]


def main() -> None:
    sections = {
        "training": (training, "training"),
        "compiled": (compiled, "training, both compiled"),
        "loop": (loop, "training, tokens a second of a corpus"),
    }
    for name in sys.argv[1:] or sections:
        torch.manual_seed(SEED)
        measure, subject = sections[name]
        ratios = {f"speedup over torch.nn.Transformer: {subject}": measure()}
        settings = {"vocab": VOCAB, "d_model": D_MODEL, "layers": LAYERS, "dropout": DROPOUT, "tokens": TOKENS}
        report("training", ratios, SEED, section=name, **settings)


if __name__ == "__main__":
    main()
