"""The modules of a model, in torch's order."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from helpers.model_zoo.families import FAMILIES, built
from regard.watching.module_inspection import modules_by_name


class Nested(nn.Module):
    """Modules that are used twice, one below the other, and one that is missing."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.Linear(2, 2)
        self.first = nn.Sequential(nn.ReLU(), inner)
        self.inner, self.missing = inner, None
        self.register_module("none", None)
        self.layers = nn.ModuleDict({"a": nn.ModuleList([inner, nn.Tanh()]), "b": self.first})

    def forward(self, x):
        return self.first(x)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(nn.ReLU(), id="leaf"),
        pytest.param(Nested(), id="nested"),
        pytest.param(nn.TransformerDecoderLayer(8, 2, 8), id="layer"),
    ],
)
def test_modules_are_those_of_torch_in_its_order(model):
    assert list(modules_by_name(model).items()) == list(model.named_modules())


@pytest.mark.parametrize("name", FAMILIES)
def test_modules_of_models_of_transformers_are_those_of_torch(name):
    model = built(name)
    assert list(modules_by_name(model).items()) == list(model.named_modules())


def test_layers_that_were_added_or_replaced_between_two_watches_are_recorded():
    model = nn.Sequential(nn.Linear(8, 8), nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)).eval()

    def recorded() -> list[str]:
        with regard.watch(model) as result:
            model(torch.randn(1, 3, 8))
        return [layer.name for layer in result.layers]

    assert recorded() == ["1.self_attn"]
    model[0] = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval()
    assert recorded() == ["0.self_attn", "1.self_attn"]
    model.append(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval())
    del model[1]
    assert recorded() == ["0.self_attn", "1.self_attn"]
