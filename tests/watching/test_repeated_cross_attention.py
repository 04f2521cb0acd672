"""Cross-attention that runs several times in each step of a hand-written KV cache."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from regard.errors import InvalidArgument

TOKENS, STEPS = 8, [5, 1, 2]


class Attention(nn.Module):
    def forward(self, query, key, mask=None):
        return functional.scaled_dot_product_attention(query, key, key, attn_mask=mask)


class Block(nn.Module):
    """Self-attention to a cache, and cross-attention of one module to one or two sources, one after the other."""

    def __init__(self, cross, has_cache=True):
        super().__init__()
        self.attention, self.cross, self.has_cache = Attention(), cross, has_cache
        self.reset()

    def reset(self):
        self.keys = torch.zeros(1, 2, 0, 4)

    def forward(self, x, sources):
        self.keys = torch.cat([self.keys, x], 2) if self.has_cache else x
        mask = torch.ones(x.shape[2], self.keys.shape[2]).tril(self.keys.shape[2] - x.shape[2]) > 0
        x = x + self.attention(x, self.keys, mask)
        for source in sources:
            x = x + self.cross(x, source)
        return x


class Decoder(nn.Module):
    """Blocks with cross-attention of their own, or all with the same."""

    def __init__(self, is_shared=False, has_cache=True):
        super().__init__()
        shared = Attention()
        self.blocks = nn.ModuleList([Block(shared if is_shared else Attention(), has_cache) for _ in range(2)])

    def forward(self, x, sources, sizes):
        parts = []
        for part in x.split(sizes, 2):
            for block in self.blocks:
                part = block(part, sources)
            parts.append(part)
        return torch.cat(parts, 2)


def sources(case):
    torch.manual_seed(0)
    source = torch.randn(1, 2, 6, 4)
    return {"one": [source] * 2, "two": [source, source + 1], "two sizes": [source, torch.randn(1, 2, 7, 4)]}[case]


@pytest.mark.parametrize("in_one_forward", [False, True])
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("case", ["one", "two", "two sizes"])
def test_each_run_in_a_step_is_a_layer(case, is_shared, in_one_forward):
    x, model, whole = torch.randn(1, 2, TOKENS, 4), Decoder(is_shared), Decoder(is_shared, has_cache=False)
    with regard.watch(whole, ["entropy"]) as expected:
        output = whole(x, sources(case), TOKENS)
    with regard.watch(model, ["entropy"], positions="last") as result:
        if in_one_forward:
            actual = model(x, sources(case), STEPS)
        else:
            actual = torch.cat([model(part, sources(case), TOKENS) for part in x.split(STEPS, 2)], 2)
    torch.testing.assert_close(actual, output)
    assert len(result.recordings) == 1
    assert len(result.layers) == len(expected.layers) == 6
    for layer, other in zip(result.layers, expected.layers, strict=True):
        assert layer.name == other.name
        assert (layer.kind == "cross") == ("cross" in layer.name)
        torch.testing.assert_close(layer.weights.dense(), other.weights.dense())
        torch.testing.assert_close(layer.measured["entropy"], other.measured["entropy"])


@pytest.mark.parametrize("num_sources", [1, 2])
def test_steps_without_attention_of_tokens_to_themselves(num_sources):
    """As of a recurrent network that attends to sources, which an encoder reads in the same forward pass."""

    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.cross = Attention(), Attention()

        def forward(self, x, sources):
            self.sources = [self.encoder(source, source) for source in sources]
            return torch.cat([sum(self.cross(step, each) for each in self.sources) for step in x.split(1, 2)], 2)

    model, x = Recurrent(), torch.randn(1, 2, TOKENS, 4)
    with regard.watch(model, positions="last") as result:
        model(x, sources("two sizes")[:num_sources])
    layers = [layer for layer in result.layers if layer.name.startswith("cross")]
    assert len(layers) == num_sources
    for layer, source in zip(layers, model.sources, strict=True):
        torch.testing.assert_close(layer.weights.dense(), (x @ source.mT / 2).softmax(-1))


@pytest.mark.parametrize("in_one_forward", [False, True])
def test_two_runs_before_the_tokens_attend_to_themselves_are_refused(in_one_forward):
    """Nothing says then whether the second is a layer, or the next step."""

    class CrossFirst(Block):
        def forward(self, x, sources):
            for source in sources:
                x = x + self.cross(x, source)
            return super().forward(x, [])

    model = Decoder()
    model.blocks = nn.ModuleList([CrossFirst(Attention())])
    x = torch.randn(1, 2, TOKENS, 4)
    with regard.watch(model, ["entropy"], positions="last") as result:
        for part in [x] if in_one_forward else x.split(STEPS, 2):
            model(part, sources("one"), STEPS if in_one_forward else TOKENS)
    [own] = [layer for layer in result.layers if layer.kind != "cross"]
    torch.testing.assert_close(own.measured["entropy"], own.weights.measure("entropy")["entropy"])
    assert own.weights.shape[-2:] == (TOKENS, TOKENS)
    for layer in result.layers:
        if layer is not own:
            for read in ("weights", "measured"):
                with pytest.raises(InvalidArgument, match=r"cross(#2)?: it attended to the same keys more often than "):
                    getattr(layer, read)
