"""Layers made from torch's, against torch: output, weights and gradients of every option, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from regard.errors import InvalidArgument, InvalidType
from regard.nn import AlibiPositions, MultiHeadAttention, TransformerLayer

QUERIES, KEYS, NUM_HEADS = 5, 7, 4

pytestmark = pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask and attn_mask")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def draw_mask(kind: str | None, keys: int) -> torch.Tensor | None:
    """A mask in torch's sense that leaves the last key to every query."""
    shape = (3 * NUM_HEADS, QUERIES, keys) if kind and kind.endswith("per head") else (QUERIES, keys)
    forbidden = torch.rand(shape) < 0.4
    forbidden[..., -1] = False
    if kind is None:
        return None
    if kind.startswith("bool"):
        return forbidden
    return torch.randn(shape).masked_fill(forbidden, -torch.inf)


def draw_padding(kind: str | None, keys: int) -> torch.Tensor | None:
    if kind is None:
        return None
    padding = torch.arange(keys) < torch.tensor([[0], [2], [1]])  # the last key is allowed
    return padding if kind == "bool" else torch.randn(3, keys).masked_fill(padding, -torch.inf)


def randomize(module: nn.Module) -> nn.Module:
    """With biases and norms that are not 0 and 1, so that one left out shows."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


def check_gradients(output, expected, inputs, layer, module, names):
    """Gradients of inputs and of all parameters; names maps each of the layer's to its name in torch."""
    weight = torch.randn_like(expected)
    parameters = dict(module.named_parameters())
    assert set(names.values()) == set(parameters)
    own = torch.autograd.grad((output * weight).sum(), [*inputs, *(p for _, p in layer.named_parameters())])
    leaves = [*inputs, *(parameters[names[name]] for name, _ in layer.named_parameters())]
    torch.testing.assert_close(own, torch.autograd.grad((expected * weight).sum(), leaves), rtol=1e-4, atol=1e-4)


ATTENTION_NAMES = {
    "in_proj.weight": "in_proj_weight",
    "in_proj.bias": "in_proj_bias",
    "out_proj.weight": "out_proj.weight",
    "out_proj.bias": "out_proj.bias",
}


@pytest.mark.parametrize("source", ["module", "state dict"])
@pytest.mark.parametrize("padding", [None, "bool", "float"])
@pytest.mark.parametrize("mask", [None, "bool", "float", "bool per head", "float per head"])
@pytest.mark.parametrize("kind", ["self", "cross", "values"])
@pytest.mark.parametrize("bias", [True, False])
def test_attention_equals_torchs(bias, kind, mask, padding, source):
    module = randomize(nn.MultiheadAttention(16, NUM_HEADS, bias=bias, batch_first=True))
    layer = (
        MultiHeadAttention.from_torch(module)
        if source == "module"
        else MultiHeadAttention.from_torch(module.state_dict(), num_heads=NUM_HEADS)
    )
    keys = QUERIES if kind == "self" else KEYS
    query = torch.randn(3, QUERIES, 16, requires_grad=True)
    key, value = (torch.randn(3, keys, 16, requires_grad=True) for _ in range(2))
    inputs = {"self": (query,), "cross": (query, key), "values": (query, key, value)}[kind]
    full = {"self": (query,) * 3, "cross": (query, key, key), "values": (query, key, value)}[kind]
    masks = {"attn_mask": draw_mask(mask, keys), "key_padding_mask": draw_padding(padding, keys)}
    expected, weights = module(*full, **masks, average_attn_weights=False)
    attended = layer(*inputs, **masks)
    torch.testing.assert_close(attended.output, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(attended.weights.dense(), weights, rtol=0, atol=1e-5)
    names = {own: name for own, name in ATTENTION_NAMES.items() if bias or not own.endswith("bias")}
    check_gradients(attended.output, expected, inputs, layer, module, names)


def test_a_float_mask_gets_its_gradient():
    module = nn.MultiheadAttention(16, NUM_HEADS, batch_first=True)
    x, mask = torch.randn(2, QUERIES, 16), torch.randn(QUERIES, QUERIES, requires_grad=True)
    own = MultiHeadAttention.from_torch(module)(x, attn_mask=mask).output
    expected = module(x, x, x, attn_mask=mask)[0]
    gradients = [torch.autograd.grad(output.square().sum(), mask)[0] for output in (own, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_masks_of_both_meanings_are_combined():
    layer, x = MultiHeadAttention(16, NUM_HEADS), torch.randn(2, QUERIES, 16)
    allowed, forbidden = torch.rand(QUERIES, QUERIES) < 0.8, torch.rand(QUERIES, QUERIES) < 0.3
    padding = torch.tensor([[False] * 4 + [True]] * 2)
    both = layer(x, mask=allowed, attn_mask=forbidden, key_padding_mask=padding).output
    torch.testing.assert_close(both, layer(x, mask=allowed & ~forbidden & ~padding[0]).output)


def test_torchs_masks_work_with_positions_if_they_are_bool():
    layer, x = MultiHeadAttention(16, NUM_HEADS, positions=AlibiPositions(NUM_HEADS)), torch.randn(2, QUERIES, 16)
    forbidden = torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1)
    torch.testing.assert_close(layer(x, attn_mask=forbidden).output, layer(x, mask=~forbidden).output)
    words = "attn_mask, key_padding_mask: expected bool masks with AlibiPositions, got a float mask"
    with pytest.raises(InvalidArgument, match=words):
        layer(x, attn_mask=torch.zeros(QUERIES, QUERIES))


@pytest.mark.parametrize(
    ("masks", "error", "words"),
    [
        (
            {"attn_mask": torch.zeros(5, 6, dtype=torch.bool)},
            InvalidArgument,
            r"attn_mask: expected shape \(queries, keys\) = \(5, 5\) or .* = \(8, 5, 5\), got \(5, 6\)",
        ),
        (
            {"key_padding_mask": torch.zeros(5, 2)},
            InvalidArgument,
            r"key_padding_mask: expected shape \(batch, keys\) = \(2, 5\), got \(5, 2\)",
        ),
        (
            {"attn_mask": torch.zeros(5, 5, dtype=torch.uint8)},
            InvalidType,
            r"attn_mask: expected a bool or floating-point tensor, got uint8 \(5, 5\)",
        ),
    ],
)
def test_wrong_masks_are_refused(masks, error, words):
    with pytest.raises(error, match=words):
        MultiHeadAttention(16, NUM_HEADS)(torch.zeros(2, 5, 16), **masks)


def test_dtype_mode_dropout_and_frozen_weights_are_those_of_the_module():
    module = nn.MultiheadAttention(16, NUM_HEADS, dropout=0.3, batch_first=True).double().eval()
    module.out_proj.requires_grad_(False)
    state = torch.random.get_rng_state()
    layer = MultiHeadAttention.from_torch(module)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert layer.dropout == 0.3
    assert not layer.training
    assert {name for name, p in layer.named_parameters() if not p.requires_grad} == {"out_proj.weight", "out_proj.bias"}
    assert layer.in_proj.weight.dtype == torch.float64
    with torch.no_grad():
        layer.in_proj.weight.zero_()
    assert module.in_proj_weight.any()  # a copy


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"batch_first": False},
            "batch_first: expected True, as in Regard's layers, got False; set batch_first = True",
        ),
        ({"add_bias_kv": True}, "add_bias_kv: expected False, got True"),
        ({"add_zero_attn": True}, "add_zero_attn: expected False, got True"),
        ({"kdim": 8}, "kdim, vdim: expected the size of the query for both"),
        ({"vdim": 8}, "kdim, vdim: expected the size of the query for both"),
        ({"dropout": 1.0}, r"dropout: expected a finite number of at least 0 and below 1, got 1\.0"),
    ],
)
def test_options_that_attention_lacks_are_named(options, words):
    module = nn.MultiheadAttention(16, NUM_HEADS, **{"batch_first": True, **options})
    with pytest.raises(InvalidArgument, match=words):
        MultiHeadAttention.from_torch(module)


def test_sizes_of_key_and_value_that_are_the_querys_are_taken():
    module, x = nn.MultiheadAttention(16, NUM_HEADS, kdim=16, vdim=16, batch_first=True), torch.randn(2, 5, 16)
    torch.testing.assert_close(MultiHeadAttention.from_torch(module)(x).output, module(x, x, x)[0])


def test_wrong_sources_of_attention_are_refused():
    module = nn.MultiheadAttention(16, NUM_HEADS, batch_first=True)
    state = module.state_dict()
    rest = {name: tensor for name, tensor in state.items() if name != "out_proj.bias"}
    for source, options, error, words in (
        (module, {"num_heads": 4}, InvalidArgument, "num_heads: expected None with a module, which has it, got 4"),
        (state, {}, InvalidType, "num_heads: expected an int of at least 1, got None"),
        (state, {"num_heads": 3}, InvalidArgument, "num_heads: expected a divisor of d_model=16, got 3"),
        (rest, {"num_heads": 4}, InvalidArgument, r"source: expected a parameter out_proj\.bias, got none"),
        (nn.Linear(3, 4), {}, InvalidType, "source: expected an nn.MultiheadAttention or its state dict, got Linear"),
        (
            state | {"out_proj.weight": torch.zeros(8, 16)},
            {"num_heads": 4},
            InvalidArgument,
            r"out_proj\.weight: expected shape \(16, 16\), got \(8, 16\)",
        ),
        (
            state | {"gate": torch.zeros(1)},
            {"num_heads": 4},
            InvalidArgument,
            "source: expected no parameter gate; the layer has no place for it",
        ),
    ):
        with pytest.raises(error, match=words):
            MultiHeadAttention.from_torch(source, **options)


def test_a_subclass_with_its_own_forward_is_refused():
    class Other(nn.MultiheadAttention):
        def forward(self, query):
            return query

    with pytest.raises(InvalidType, match=r"source: expected MultiheadAttention\.forward, got that of Other"):
        MultiHeadAttention.from_torch(Other(16, NUM_HEADS, batch_first=True))


ENCODER_NAMES = {f"self_attention.{own}": f"self_attn.{name}" for own, name in ATTENTION_NAMES.items()} | {
    f"{own}.{kind}": f"{name}.{kind}"
    for own, name in {
        "feed_forward.fc1": "linear1",
        "feed_forward.fc2": "linear2",
        "self_attention_residual.norm": "norm1",
        "feed_forward_residual.norm": "norm2",
    }.items()
    for kind in ("weight", "bias")
}
DECODER_NAMES = {
    **ENCODER_NAMES,
    **{f"cross_attention.{own}": f"multihead_attn.{name}" for own, name in ATTENTION_NAMES.items()},
    **{f"cross_attention_residual.norm.{kind}": f"norm2.{kind}" for kind in ("weight", "bias")},
    **{f"feed_forward_residual.norm.{kind}": f"norm3.{kind}" for kind in ("weight", "bias")},
}
LAYER_OPTIONS = [
    {},
    {"norm_first": True},
    {"bias": False},
    {"bias": False, "norm_first": True},
    {"layer_norm_eps": 0.5},
    {"activation": "gelu"},
    {"activation": functional.silu},
    {"activation": nn.GELU("tanh")},
    {"dropout": 0.2},
]


def make_torch_layer(kind: type[nn.Module], **options) -> nn.Module:
    layer = kind(16, NUM_HEADS, 24, **{"dropout": 0.0, "batch_first": True, **options})
    return randomize(layer).train(not options.get("dropout"))


def from_state_dict(layer: nn.Module, options: dict) -> TransformerLayer:
    named = {functional.silu: "silu", "gelu": "gelu"}
    given = {name: value for name, value in options.items() if name != "bias"}
    if "activation" in given:
        given["activation"] = named.get(given["activation"], "gelu_tanh")
    made = TransformerLayer.from_torch(layer.state_dict(), num_heads=NUM_HEADS, **given)
    return made.train(layer.training)


def option_names(options):
    """The same in every process, which the address of a function is not."""
    values = (getattr(value, "__name__", value) for value in options.values())
    return ", ".join(f"{name}={value}" for name, value in zip(options, values, strict=True)) or "defaults"


@pytest.mark.parametrize("source", ["layer", "state dict"])
@pytest.mark.parametrize("masks", [None, "bool", "float"])
@pytest.mark.parametrize("options", LAYER_OPTIONS, ids=option_names)
def test_an_encoder_layer_equals_torchs(options, masks, source):
    torch_layer = make_torch_layer(nn.TransformerEncoderLayer, **options)
    from_torch = TransformerLayer.from_torch
    layer = from_torch(torch_layer) if source == "layer" else from_state_dict(torch_layer, options)
    x = torch.randn(3, QUERIES, 16, requires_grad=True)
    mask, padding = draw_mask(masks, QUERIES), draw_padding(masks, QUERIES)
    expected = torch_layer(x, src_mask=mask, src_key_padding_mask=padding)
    hidden, _, cross_attention = layer(x, attn_mask=mask, key_padding_mask=padding)
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5)
    assert cross_attention is None
    names = {own: name for own, name in ENCODER_NAMES.items() if options.get("bias", True) or "bias" not in own}
    check_gradients(hidden, expected, [x], layer, torch_layer, names)


@pytest.mark.parametrize("source", ["layer", "state dict"])
@pytest.mark.parametrize("masks", [None, "bool", "float"])
@pytest.mark.parametrize("options", LAYER_OPTIONS, ids=option_names)
def test_a_decoder_layer_equals_torchs(options, masks, source):
    torch_layer = make_torch_layer(nn.TransformerDecoderLayer, **options)
    from_torch = TransformerLayer.from_torch
    layer = from_torch(torch_layer) if source == "layer" else from_state_dict(torch_layer, options)
    x, memory = torch.randn(3, QUERIES, 16, requires_grad=True), torch.randn(3, KEYS, 16, requires_grad=True)
    mask, padding = draw_mask(masks, QUERIES), draw_padding(masks, QUERIES)
    memory_mask, memory_padding = draw_mask(masks, KEYS), draw_padding(masks, KEYS)
    expected = torch_layer(
        x,
        memory,
        tgt_mask=mask,
        memory_mask=memory_mask,
        tgt_key_padding_mask=padding,
        memory_key_padding_mask=memory_padding,
    )
    hidden, _, _ = layer(
        x,
        memory,
        attn_mask=mask,
        key_padding_mask=padding,
        memory_attn_mask=memory_mask,
        memory_key_padding_mask=memory_padding,
    )
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5)
    names = {own: name for own, name in DECODER_NAMES.items() if options.get("bias", True) or "bias" not in own}
    check_gradients(hidden, expected, [x, memory], layer, torch_layer, names)


def test_dropout_of_a_layer_is_that_of_all_parts():
    layer = TransformerLayer.from_torch(nn.TransformerDecoderLayer(16, 4, 24, dropout=0.2, batch_first=True))
    assert layer.training
    rates = [module.p for module in layer.modules() if type(module).__name__ == "Dropout"]
    assert rates == [0.2] * 4
    assert [layer.self_attention.dropout, layer.cross_attention.dropout] == [0.2, 0.2]


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            lambda layer: setattr(layer.self_attn, "batch_first", False),
            InvalidArgument,
            r"self_attn\.batch_first: expected True, as in Regard's layers, got False",
        ),
        (
            lambda layer: setattr(layer, "activation", functional.tanh),
            InvalidArgument,
            "activation: expected one of relu, gelu, gelu_tanh, silu, got tanh",
        ),
        (
            lambda layer: setattr(layer.norm2, "eps", 0.1),
            InvalidArgument,
            r"norm2\.eps: expected 1e-05, as norm1\.eps is, got 0\.1",
        ),
        (
            lambda layer: setattr(layer.self_attn, "dropout", 0.3),
            InvalidArgument,
            r"self_attn\.dropout: expected 0\.1, as dropout is, got 0\.3",
        ),
        (
            lambda layer: setattr(layer, "norm1", nn.RMSNorm(16)),
            InvalidType,
            r"norm1: expected an nn\.LayerNorm, got RMSNorm",
        ),
        (
            lambda layer: setattr(layer, "__class__", type("Mine", (type(layer),), {"_ff_block": lambda self, x: x})),
            InvalidType,
            r"source: expected Transformer\w+\._ff_block, got that of Mine",
        ),
    ],
)
def test_what_a_layer_lacks_is_named(kind, change, error, words):
    layer = kind(16, NUM_HEADS, 24, batch_first=True)
    change(layer)
    with pytest.raises(error, match=words):
        TransformerLayer.from_torch(layer)


def test_wrong_sources_of_a_layer_are_refused():
    layer = nn.TransformerEncoderLayer(16, NUM_HEADS, 24, batch_first=True)
    state = layer.state_dict()
    for source, options, error, words in (
        (
            layer,
            {"norm_first": True},
            InvalidArgument,
            "norm_first: expected None with a module, which has it, got True",
        ),
        (state, {}, InvalidType, "num_heads: expected an int of at least 1, got None"),
        (state, {"num_heads": 4, "activation": "tanh"}, InvalidArgument, "activation: expected one of relu"),
        (nn.Linear(3, 4), {}, InvalidType, "source: expected an nn.TransformerEncoderLayer, an nn.TransformerDecoder"),
        ({"layers.0." + name: tensor for name, tensor in state.items()}, {"num_heads": 4}, InvalidArgument, "linear1"),
        (
            state | {"linear2.weight": torch.zeros(8, 24)},
            {"num_heads": 4},
            InvalidArgument,
            r"linear2\.weight: expected shape \(16, 24\), got \(8, 24\)",
        ),
    ):
        with pytest.raises(error, match=words):
            TransformerLayer.from_torch(source, **options)
