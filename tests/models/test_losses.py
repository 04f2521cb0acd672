"""The loss of each model against torch's cross-entropy of all its logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from regard.errors import InvalidArgument
from regard.models import GPT, Bert, BertConfig, GPTConfig, RNNSearch, RNNSearchConfig, Transformer, TransformerConfig

SIZES = {"d_model": 16, "num_heads": 2, "num_layers": 1, "d_ff": 32}
LENGTHS = torch.tensor([8, 5, 3])


def random_labels(*shape: int, size: int, share: float = 0.4) -> Tensor:
    return torch.where(torch.rand(*shape) < share, torch.randint(1, size, shape), -100)


def check(loss: Any, logits: Tensor, labels: Tensor, num_labels: Tensor) -> None:
    flat = logits.flatten(0, -2), labels.flatten()
    torch.testing.assert_close(loss.loss, functional.cross_entropy(*flat, label_smoothing=0.1))
    torch.testing.assert_close(loss.nll, functional.cross_entropy(*flat, reduction="sum"))
    assert num_labels == (labels != -100).sum()


@pytest.mark.parametrize("head", ["masked_lm", "sequence_classification", "token_classification"])
def test_the_loss_of_bert(head: Any) -> None:
    torch.manual_seed(0)
    names = () if head == "masked_lm" else ("a", "b", "c")
    model = Bert(BertConfig(50, head=head, labels=names, **SIZES)).eval()
    input_ids = torch.randint(1, 50, (3, 8))
    shape = (3,) if head == "sequence_classification" else (3, 8)
    labels = random_labels(*shape, size=len(names) or 50, share=0.7)
    logits = model(input_ids, LENGTHS).logits
    loss = model.loss(input_ids, LENGTHS, labels, label_smoothing=0.1, output_predictions=True)
    check(loss, logits, labels, loss.num_labels)
    assert loss.predictions is not None
    assert loss.predictions.equal(logits.argmax(-1)[labels != -100])
    assert model.loss(input_ids, None, labels).predictions is None
    torch.testing.assert_close(*(gradients(model, value) for value in (loss.loss, reference(logits, labels))))


def reference(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=0.1)


def gradients(model: torch.nn.Module, loss: Tensor) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, retain_graph=True))


def test_the_loss_of_a_gpt() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(50, **SIZES)).eval()
    input_ids, labels = torch.randint(1, 50, (3, 8)), random_labels(3, 8, size=50)
    loss = model.loss(input_ids, labels, label_smoothing=0.1)
    check(loss, model(input_ids).logits, labels, loss.num_tokens)


@pytest.mark.parametrize("cls", [Transformer, RNNSearch])
def test_the_loss_of_an_encoder_decoder(cls: Any) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 32}
    model = cls(
        TransformerConfig(50, pad_id=3, **sizes) if cls is Transformer else RNNSearchConfig(50, pad_id=3)
    ).eval()
    source, target = torch.randint(4, 50, (3, 8)), torch.randint(4, 50, (3, 6))
    labels = torch.where(torch.rand(3, 6) < 0.6, torch.randint(4, 50, (3, 6)), 3)
    output = model(source, target, LENGTHS, output_attentions=True)
    loss, attentions = model.loss(source, target, LENGTHS, labels, label_smoothing=0.1, output_attentions=True)
    check(loss, output.logits, labels.masked_fill(labels == 3, -100), loss.num_tokens)
    assert len(attentions.cross) == len(output.attentions.cross) == 1
    assert not model.loss(source, target, LENGTHS, labels)[1].cross


@pytest.mark.parametrize(
    ("head", "labels", "message"),
    [
        ("none", [[1, 1, 1]], "head: expected 'masked_lm' or a classifier, got 'none'"),
        ("masked_lm", [1], "labels: expected shape of the positions = (1, 3), got (1,)"),
        ("token_classification", [[0, 2, -100]], "labels: expected values from 0 to 1, or -100, got 2"),
        ("sequence_classification", [-1], "labels: expected values from 0 to 1, or -100, got -1"),
    ],
)
def test_labels_that_do_not_fit(head: Any, labels: list[Any], message: str) -> None:
    names = ("a", "b") if "classification" in head else ()
    model = Bert(BertConfig(50, head=head, labels=names, **SIZES))
    with pytest.raises(InvalidArgument) as error:
        model.loss(torch.ones(1, 3, dtype=torch.long), None, torch.tensor(labels))
    assert str(error.value) == message


def test_labels_are_int64() -> None:
    model = Bert(BertConfig(50, head="masked_lm", **SIZES))
    ids = torch.ones(1, 3, dtype=torch.int32)
    with pytest.raises(
        InvalidArgument, match=r"^labels: expected the dtype int64, got .*; convert them with .long\(\)$"
    ):
        model.loss(ids, None, ids)
