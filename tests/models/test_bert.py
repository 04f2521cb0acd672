"""The loss of masked tokens against torch's cross-entropy of all logits."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from regard.errors import InvalidArgument
from regard.models import Bert, BertConfig

SIZES = {"d_model": 16, "num_heads": 2, "num_layers": 1, "d_ff": 32}


def test_masked_lm_loss_is_the_cross_entropy_of_labeled_tokens() -> None:
    torch.manual_seed(0)
    model = Bert(BertConfig(50, head="masked_lm", **SIZES)).eval()
    input_ids, lengths = torch.randint(1, 50, (3, 8)), torch.tensor([8, 5, 3])
    labels = torch.where(torch.rand(3, 8) < 0.4, torch.randint(1, 50, (3, 8)), -100)
    logits = model(input_ids, lengths).logits
    loss = model.masked_lm_loss(input_ids, lengths, labels, label_smoothing=0.1, count_correct=True)
    expected = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss.loss, expected)
    nll = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    torch.testing.assert_close(loss.nll, nll)
    assert loss.num_tokens == (labels != -100).sum()
    assert loss.num_correct == (logits.argmax(-1) == labels).sum()
    assert model.masked_lm_loss(input_ids, None, labels).num_correct is None


def test_masked_lm_loss_needs_the_head() -> None:
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(InvalidArgument, match="head: expected 'masked_lm', got 'none'"):
        Bert(BertConfig(50, **SIZES)).masked_lm_loss(ids, None, ids)
