"""Small models, trained enough to generate EOS but not so much that all beams agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from regard.models import EncoderDecoder, RNNSearchConfig, Transformer, TransformerConfig
from regard.models.architectures import model_from_config
from regard.nn import linear_cross_entropy

VOCAB_SIZE = 30
SMALL = TransformerConfig(
    VOCAB_SIZE,
    d_model=32,
    num_heads=4,
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_ff=48,
    max_seq_len=64,
    dropout=0.0,
)
KINDS = {
    "plain": SMALL,
    "other": dataclasses.replace(SMALL, norm_first=True, num_kv_heads=2, positions="learned"),
    "recurrent": RNNSearchConfig(VOCAB_SIZE, d_model=24, hidden_size=32, tie_embeddings="all", max_seq_len=64),
}


def draw_sources(sentences: int, longest: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sources of different lengths, and these lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (sentences,), generator=generator)
    lengths[0] = longest
    src = torch.randint(3, VOCAB_SIZE, (sentences, longest), generator=generator)
    return src.masked_fill_(torch.arange(longest) >= lengths[:, None], 0), lengths


def train(model: EncoderDecoder, steps: int = 120) -> EncoderDecoder:
    """Train it to copy the source with each token at random once or twice."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        src, lengths = draw_sources(48, 7, seed=step)
        generator = torch.Generator().manual_seed(step)
        tgt = torch.zeros(48, 17, dtype=torch.int64)
        for row, length in enumerate(lengths.tolist()):
            copied = src[row, :length].repeat_interleave(torch.randint(1, 3, (length,), generator=generator))
            tgt[row, : len(copied) + 2] = torch.cat([torch.tensor([1]), copied, torch.tensor([2])])
        hidden = model.forward_features(src, tgt[:, :-1], lengths)[0].flatten(0, 1)
        loss = linear_cross_entropy(hidden, model.lm_head.weight, tgt[:, 1:].flatten(), ignore_index=0).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


class TrainedModels(dict[str, EncoderDecoder]):
    """One model of each kind, trained when it is first used."""

    def __missing__(self, kind: str) -> EncoderDecoder:
        torch.manual_seed(3)
        self[kind] = train(model_from_config(KINDS[kind]))
        return self[kind]


MODELS = TrainedModels()  # of all folders of tests, each of which has fixtures of its own


@pytest.fixture(scope="session")
def models() -> TrainedModels:
    """One model of each kind."""
    return MODELS


@pytest.fixture
def model(models) -> Transformer:
    return models["plain"]


@pytest.fixture
def sources() -> tuple[Tensor, Tensor]:
    """Nine sources of different lengths, and these lengths."""
    return draw_sources(9, 8, seed=1000)


@pytest.fixture
def fresh() -> Callable[..., Transformer]:
    """Makes models with random weights."""

    def make(**changes) -> Transformer:
        torch.manual_seed(0)
        return Transformer(dataclasses.replace(SMALL, **changes)).eval()

    return make
