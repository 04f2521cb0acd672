"""Which axes are heads, channels and tokens, where their sizes are equal: what projections made says it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.own_softmax import HEADS, WIDTH, Outer, inputs, watched
from regard.errors import InvalidArgument

pytestmark = pytest.mark.filterwarnings("ignore:.*dense weights were recorded at the softmax")


class Projected(nn.Module):
    """Calls a function of query, key and value, (batch, tokens, heads, width), as a linear layer projects them."""

    num_heads = HEADS

    def __init__(self, call, project=None):
        super().__init__()
        self.qkv, self.call = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH), call
        self.project = project or (lambda self, x: self.qkv(x).chunk(3, -1))

    def forward(self, x):
        parts = [part.unflatten(2, (HEADS, -1)) for part in self.project(self, x)]
        output, self.weights = self.call(*parts)
        return output


class ProjectedAttention(Projected):
    pass


def weights_of(query, key):
    return (query @ key.mT / WIDTH**0.5).softmax(-1)


def heads_attend(query, key, value):
    return (weights_of(query, key) @ value).flatten(2), None


def heads_attend_by_einsum(query, key, value):
    weights = torch.einsum("bthd,btgd->btgh", query, key).softmax(2)
    return torch.einsum("btgh,btgd->bthd", weights, value).flatten(2), None


def heads_attend_in_one_batch(query, key, value):
    batch, tokens = query.shape[:2]
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))
    return torch.bmm(weights_of(query, key), value).view(batch, tokens, -1), None


def channels_attend(query, key, value):
    """El-Nouby et al. 2021, equation 3."""
    query, key, value = (part.permute(0, 2, 3, 1) for part in (query, key, value))
    return (weights_of(query, key) @ value).permute(0, 3, 1, 2).flatten(2), None


@pytest.mark.parametrize("cls", [Projected, ProjectedAttention])
@pytest.mark.parametrize(
    "call", [heads_attend, heads_attend_by_einsum, heads_attend_in_one_batch, channels_attend], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("tokens", [HEADS, WIDTH])
@pytest.mark.parametrize("batch", [1, HEADS])
def test_attention_over_heads_or_channels_is_no_layer(cls, call, tokens, batch):
    with pytest.raises(InvalidArgument, match=r"over heads or channels, not over keys"):
        watched(Outer(cls(call)), inputs(batch, tokens, HEADS * WIDTH))


def test_channels_of_a_convolution():
    """Fu et al. 2019 (DANet): attention between the channels of an image of as many places."""

    class ChannelAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            states = self.conv(x).flatten(2)  # (batch, channels, places)
            return (torch.bmm(states, states.mT).softmax(-1) @ states).view_as(x)

    with pytest.raises(InvalidArgument, match="over heads or channels, not over keys"):
        watched(ChannelAttention(), inputs(2, 4, 2, 2))


def test_places_of_a_convolution():
    """Zhang et al. 2019 (SAGAN): the same between places, of which there are as many."""

    class PlaceAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x):
            states = self.conv(x).flatten(2)
            self.weights = (states.mT @ states).softmax(-1)
            return torch.bmm(states, self.weights.mT).view_as(x)

    module = PlaceAttention()
    (layer,) = watched(module, inputs(2, 4, 2, 2)).layers
    torch.testing.assert_close(layer.weights.dense()[:, 0], module.weights)


def merged(query, key, value, order, is_contiguous):
    """One axis of batch and heads, in either order."""
    parts = [part.permute(*order, 1, 3) for part in (query, key, value)]
    parts = [part.contiguous() if is_contiguous else part for part in parts]
    query, key, value = (part.reshape(-1, *part.shape[2:]) for part in parts)
    weights = weights_of(query, key)
    heads_first = order[0] == 2
    weights_by_head = weights.unflatten(0, (HEADS, -1) if heads_first else (-1, HEADS))
    output = (weights @ value).view(*parts[0].shape).permute(*((1, 2, 0, 3) if heads_first else (0, 2, 1, 3)))
    return output.flatten(2), weights_by_head.transpose(0, 1) if heads_first else weights_by_head


@pytest.mark.parametrize("order", [(0, 2), (2, 0)], ids=["batch first", "heads first"])
@pytest.mark.parametrize("is_contiguous", [True, False])
@pytest.mark.parametrize("batch", [HEADS, 2])
@pytest.mark.parametrize("tokens", [HEADS, WIDTH])
def test_batch_and_heads_in_one_axis(order, is_contiguous, batch, tokens):
    module = Projected(lambda *parts: merged(*parts, order, is_contiguous))
    result = watched(Outer(module), inputs(batch, tokens, HEADS * WIDTH))
    (layer,) = result.layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


def test_heads_before_the_batch():
    def call(query, key, value):
        weights = torch.einsum("bqhd,bkhd->hbqk", query, key).softmax(-1)
        return torch.einsum("hbqk,bkhd->bqhd", weights, value).flatten(2), weights.transpose(0, 1)

    module = Projected(call)
    (layer,) = watched(module, inputs(HEADS, 5, HEADS * WIDTH)).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


def test_groups_of_heads_with_as_many_queries():
    def call(query, key, value):
        key, value = key[:, None, :, 0], value[:, None, :, 0]
        weights = torch.einsum("bqhd,bgkd->bghqk", query, key).softmax(-1)
        return torch.einsum("bghqk,bgkd->bqghd", weights, value).flatten(2), weights[:, 0]

    module = Projected(call)
    (layer,) = watched(module, inputs(2, HEADS, HEADS * WIDTH)).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


@pytest.mark.parametrize("batch", [1, 2, HEADS])
def test_sequences_one_by_one(batch):
    """Heads are not taken for sequences where there are equally many."""

    def call(query, key, value):
        parts = [part.transpose(1, 2) for part in (query, key, value)]
        weights = [weights_of(each, other) for each, other in zip(parts[0], parts[1], strict=True)]
        output = torch.stack([each @ other for each, other in zip(weights, parts[2], strict=True)])
        return output.transpose(1, 2).flatten(2), torch.stack(weights)

    module = Projected(call)
    result = watched(module, inputs(batch, 5, HEADS * WIDTH))
    assert [layer.weights.shape for layer in result.layers] == [(1, HEADS, 5, 5)] * batch
    for layer, expected in zip(result.layers, module.weights, strict=True):
        torch.testing.assert_close(layer.weights.dense()[0], expected)
    if batch > 1:
        with pytest.raises(InvalidArgument, match="it is not known which sequence"):
            result.recording.select(0)


PROJECTIONS = {
    "one linear layer": lambda self, x: self.qkv(x).chunk(3, -1),
    "as timm": lambda self, x: (
        self.qkv(x).reshape(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 1, 3, 4).flatten(3).unbind(0)
    ),
    "items": lambda self, x: [self.qkv(x).view(*x.shape[:2], 3, -1)[:, :, place] for place in range(3)],
    "slices": lambda self, x: [self.qkv(x)[..., place : place + HEADS * WIDTH] for place in (0, 12, 24)],
    "matrix": lambda self, x: (x @ self.qkv.weight.T).split(HEADS * WIDTH, 2),
    "einsum": lambda self, x: torch.einsum("btw,vw->btv", x, self.qkv.weight).split(HEADS * WIDTH, 2),
    "addmm": lambda self, x: (
        torch.addmm(self.qkv.bias, x.flatten(0, 1), self.qkv.weight.T).view(*x.shape[:2], -1).chunk(3, -1)
    ),
    "norm and factor": lambda self, x: [functional.normalize(part, dim=-1) * 2 for part in self.qkv(x).chunk(3, -1)],
    "conv": lambda self, x: functional.conv1d(x.mT, self.qkv.weight[..., None]).mT.chunk(3, -1),
    "a residual": lambda self, x: [x + part for part in self.qkv(x).chunk(3, -1)],
}


@pytest.mark.parametrize("how", PROJECTIONS)
def test_projections(how):
    """Tokens are told apart from heads, however query, key and value are projected."""

    def call(query, key, value):
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        weights = weights_of(query, key)
        return (weights @ value).transpose(1, 2).flatten(2), weights

    module = ProjectedAttention(call, PROJECTIONS[how])
    (layer,) = watched(Outer(module), inputs(HEADS, HEADS, HEADS * WIDTH)).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)
    with pytest.raises(InvalidArgument, match="heads or channels"):
        watched(ProjectedAttention(heads_attend, PROJECTIONS[how]), inputs(HEADS, HEADS, HEADS * WIDTH))


def test_keys_from_a_buffer():
    """Those of a static KV cache: nothing is known of them, but of the queries."""

    def call(query, key, value):
        buffer = torch.zeros(2, HEADS, 9, HEADS, WIDTH)
        for place, part in enumerate((key, value)):
            buffer[place, :, :HEADS] = part
        return merged(query, *buffer[:, :, :HEADS], (0, 2), True)

    module = Projected(call)
    (layer,) = watched(Outer(module), inputs(HEADS, HEADS, HEADS * WIDTH)).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


def test_as_many_heads_as_tokens_without_a_projection_are_refused():
    class OwnAttention(nn.Module):
        num_heads = 4

        def forward(self, x, axes):
            states = x.unflatten(2, (4, -1)).transpose(*axes)
            return (states @ states.mT).softmax(-1) @ states

    for axes in ((1, 2), (0, 0)):  # over tokens, and over heads
        with pytest.raises(InvalidArgument, match="it has as many heads as tokens, so that its axes do not tell"):
            watched(OwnAttention(), inputs(2, 4, 16), axes)


class Gate(nn.Module):
    """A router of tokens, or of whole sequences, to experts."""

    def __init__(self, of_sequences=False, num_experts=5):
        super().__init__()
        self.gate, self.of_sequences = nn.Linear(8, num_experts), of_sequences
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(num_experts)])

    def forward(self, x):
        outputs = torch.stack([each(x) for each in self.experts], -2)  # (batch, tokens, experts, width)
        if self.of_sequences:
            gates = self.gate(x.mean(1)).softmax(-1)
            return torch.einsum("be,bted->btd", gates, outputs)
        return (self.gate(x).softmax(-1).unsqueeze(-2) @ outputs).squeeze(-2)


class GatedAttention(Gate):
    pass


class Kernel(nn.Module):
    """Wu et al. 2019: a convolution whose kernel is a softmax that follows from the token."""

    def __init__(self, num_heads):
        super().__init__()
        self.num_heads, self.kernel = num_heads, nn.Linear(8, 3 * num_heads)

    def forward(self, x):
        kernel = self.kernel(x).reshape(-1, 3, 1).softmax(1)
        windows = functional.pad(x, (0, 0, 2, 0)).unfold(1, 3, 1).reshape(len(kernel), -1, 3)
        return torch.bmm(windows, kernel).view_as(x)


class KernelAttention(Kernel):
    pass


@pytest.mark.parametrize(
    "module",
    [Gate(), GatedAttention(), GatedAttention(of_sequences=True), Kernel(2), KernelAttention(1), KernelAttention(2)],
    ids=lambda module: type(module).__name__,
)
@pytest.mark.parametrize("shape", [(1, 1, 8), (2, 1, 8), (2, 2, 8), (1, 3, 8), (5, 1, 8)])
def test_gates_and_kernels_are_no_layers_however_many_tokens(module, shape):
    with pytest.raises(InvalidArgument, match=r"nothing was recorded|cannot be recorded"):
        watched(Outer(module), inputs(*shape))


@pytest.mark.parametrize("cached", [False, True])
def test_additive_attention_of_one_query(cached):
    """Bahdanau et al. 2015: the scores are no product, and the keys are those of another input or of a cache."""

    class AdditiveAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.vector = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
            self.memory = inputs(2, 6, 8)

        def forward(self, x, memory=None):
            memory = self.memory if memory is None else memory
            self.weights = self.vector((self.query(x) + self.key(memory)).tanh()).softmax(1).mT
            return self.weights @ memory

    module = AdditiveAttention()
    (layer,) = watched(module, inputs(2, 1, 8), *(() if cached else (module.memory,))).layers
    torch.testing.assert_close(layer.weights.dense()[:, 0], module.weights)


def test_attention_by_location():
    """As in PyTorch's tutorial on translation: a linear layer gives a score for each place of the source."""

    class LocationAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.scores = nn.Linear(8, 6)

        def forward(self, hidden, encoded):
            self.weights = self.scores(hidden).softmax(1)
            return torch.bmm(self.weights.unsqueeze(0), encoded.unsqueeze(0))

    module = LocationAttention()
    (layer,) = watched(module, inputs(1, 8), inputs(6, 8)).layers
    torch.testing.assert_close(layer.weights.dense()[0, 0], module.weights)


def test_values_of_width_one_in_any_memory():
    """As the expectation of bins, whose values are a column."""

    class BinAttention(nn.Module):
        def forward(self, x):
            values = torch.arange(12.0).view(6, 2)[:, :1]
            self.weights = (x @ x.mT).softmax(-1)
            return self.weights @ values

    module = BinAttention()
    (layer,) = watched(module, inputs(1, 6, 8)).layers
    torch.testing.assert_close(layer.weights.dense()[:, 0], module.weights)
