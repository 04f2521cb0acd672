"""Options and weights of Regard's layers from torch's: ``nn.MultiheadAttention`` and Transformer layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checks import Checks, describe
from regard.errors import InvalidType, short_repr
from regard.nn.feed_forward import ACTIVATIONS

State = Mapping[str, Tensor]
TorchLayer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer
Layer = TypeVar("Layer", bound=nn.Module)

_FUNCTIONS: dict[Any, str] = {
    functional.relu: "relu",
    torch.relu: "relu",
    functional.gelu: "gelu",
    functional.silu: "silu",
}
_DROPOUTS = ("dropout", "dropout1", "dropout2", "dropout3")
_METHODS = ("forward", "_sa_block", "_mha_block", "_ff_block")
_UNSUPPORTED = {
    "bias_k": "add_bias_kv: expected False, got True; Regard's layers append no learned key and value",
    "q_proj_weight": "kdim, vdim: expected the size of the query for both; Regard's layers have one size for all three",
}


class TorchParts(NamedTuple):
    """Arguments of the parts of a `TransformerLayer`, its own options, and the names of its parameters in torch."""

    self_attention: dict[str, Any]
    cross_attention: dict[str, Any] | None
    feed_forward: dict[str, Any]
    options: dict[str, Any]
    names: dict[str, str]


def attention_names(state: State, torch_prefix: str = "", prefix: str = "") -> dict[str, str]:
    """Regard's names of the parameters of an attention and torch's, with a bias if the state dict has one."""
    kinds = ("weight", "bias") if f"{torch_prefix}in_proj_bias" in state else ("weight",)
    return {f"{prefix}in_proj.{kind}": f"{torch_prefix}in_proj_{kind}" for kind in kinds} | {
        f"{prefix}out_proj.{kind}": f"{torch_prefix}out_proj.{kind}" for kind in kinds
    }


def attention_options(
    source: nn.MultiheadAttention | State, num_heads: int | None, dropout: float | None
) -> tuple[dict[str, Any], State]:
    """Arguments of the `MultiHeadAttention` that equals an ``nn.MultiheadAttention``, and the state dict of that."""
    with Checks() as checks:
        if isinstance(source, nn.MultiheadAttention):
            _check_unset(checks, num_heads=num_heads, dropout=dropout)
            _check_attention(checks, source)
            num_heads, dropout = source.num_heads, source.dropout
        elif isinstance(source, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            checks.integer("num_heads", num_heads, low=1)
        else:
            checks.fail_type(f"source: expected an nn.MultiheadAttention or its state dict, got {describe(source)}")
    state = source.state_dict(keep_vars=True) if isinstance(source, nn.Module) else source
    check_names(state, attention_names(state))
    return _attention_options(state, "", num_heads, dropout), state


def layer_options(source: TorchLayer | State, **given: Any) -> tuple[TorchParts, State]:
    """The parts of the `TransformerLayer` that equals a torch layer, and the state dict of that."""
    if isinstance(source, TorchLayer):
        with Checks() as checks:
            _check_unset(checks, **given)
            options = _options_of(checks, source)
        state: State = source.state_dict(keep_vars=True)
    elif isinstance(source, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        defaults: dict[str, Any] = {"dropout": 0.0, "activation": "relu", "norm_first": False, "layer_norm_eps": 1e-5}
        options: dict[str, Any] = {
            name: defaults.get(name) if value is None else value for name, value in given.items()
        }
        with Checks() as checks:
            checks.integer("num_heads", options["num_heads"], low=1)
            checks.number("layer_norm_eps", options["layer_norm_eps"], above=0)
        state = source
    else:
        expected = "an nn.TransformerEncoderLayer, an nn.TransformerDecoderLayer or the state dict of one"
        raise InvalidType(f"source: expected {expected}, got {describe(source)}")
    is_decoder = any(name.startswith("multihead_attn.") for name in state)
    attentions = {"self_attention": "self_attn"} | ({"cross_attention": "multihead_attn"} if is_decoder else {})
    residuals = [f"{part}_residual.norm" for part in (*attentions, "feed_forward")]
    modules = {"feed_forward.fc1": "linear1", "feed_forward.fc2": "linear2"}
    modules |= {own: f"norm{number}" for number, own in enumerate(residuals, start=1)}
    has_bias = "linear1.bias" in state
    names = {
        f"{own}.{kind}": f"{name}.{kind}"
        for own, name in modules.items()
        for kind in (("weight", "bias") if has_bias else ("weight",))
    }
    for own, name in attentions.items():
        names |= attention_names(state, f"{name}.", f"{own}.")
    check_names(state, names)
    sizes = options["num_heads"], options["dropout"]
    parts = {own: _attention_options(state, f"{name}.", *sizes) for own, name in attentions.items()}
    d_ff, d_model = _sizes(state, "linear1.weight")
    norm_layer = partial(nn.LayerNorm, eps=options["layer_norm_eps"], bias=has_bias)
    return TorchParts(
        self_attention=parts["self_attention"],
        cross_attention=parts.get("cross_attention"),
        feed_forward={
            "d_model": d_model,
            "d_ff": d_ff,
            "activation": options["activation"],
            "dropout": options["dropout"],
            "bias": has_bias,
        },
        options={"norm_first": options["norm_first"], "dropout": options["dropout"], "norm_layer": norm_layer},
        names=names,
    ), state


def with_weights(make: Callable[[], Layer], state: State, names: Mapping[str, str]) -> Layer:
    """Make a layer with copies of the parameters of a state dict, in their dtype, on their device, frozen like them.

    Raises:
        InvalidArgument: If a shape is wrong.
    """
    with torch.device("meta"):  # neither memory nor random numbers for weights that are replaced
        layer = make()
    own = layer.state_dict()
    with Checks() as checks:
        for name, torch_name in names.items():
            shape, expected = tuple(state[torch_name].shape), tuple(own[name].shape)
            checks.that(shape == expected, f"{torch_name}: expected shape {expected}, got {shape}")
    layer.load_state_dict({name: state[names[name]].detach().clone() for name in own}, assign=True)
    for name, parameter in layer.named_parameters():
        source = state[names[name]]
        parameter.requires_grad_(source.requires_grad or not isinstance(source, nn.Parameter))
    return layer


def check_names(state: State, names: Mapping[str, str]) -> None:
    """Check that a state dict has exactly these parameters.

    Raises:
        InvalidArgument: If one is missing, or belongs to an option that Regard's layers do not have.
    """
    needed = set(names.values())
    with Checks() as checks:
        rest = set(state) - needed
        problems = {text for name, text in _UNSUPPORTED.items() if any(key.rpartition(".")[2] == name for key in rest)}
        for problem in sorted(problems):
            checks.fail(problem)
        if not problems:
            for name in sorted(needed - set(state)):
                checks.fail(f"source: expected a parameter {name}, got none")
            for name in sorted(rest):
                checks.fail(f"source: expected no parameter {name}; the layer has no place for it")


def _attention_options(state: State, prefix: str, num_heads: int | None, dropout: float | None) -> dict[str, Any]:
    _, d_model = _sizes(state, f"{prefix}in_proj_weight")
    has_bias = f"{prefix}in_proj_bias" in state
    return {"d_model": d_model, "num_heads": num_heads, "bias": has_bias, "dropout": dropout or 0.0}


def _sizes(state: State, name: str) -> tuple[int, int]:
    """Rows and columns of a matrix."""
    with Checks() as checks:
        matrix = state[name]
        if checks.tensor(name, matrix, "floating-point"):
            checks.that(matrix.ndim == 2, f"{name}: expected a matrix, got shape {tuple(matrix.shape)}")
    return matrix.shape[0], matrix.shape[1]


def _check_unset(checks: Checks, **options: Any) -> None:
    for name, value in options.items():
        checks.that(value is None, f"{name}: expected None with a module, which has it, got {short_repr(value)}")


def _check_methods(checks: Checks, name: str, module: nn.Module, base: type[nn.Module]) -> None:
    """Refuse a subclass that computes something else, which its parameters do not show."""
    for method in _METHODS:
        if getattr(type(module), method, None) is not getattr(base, method, None):
            checks.fail_type(f"{name}: expected {base.__name__}.{method}, got that of {type(module).__name__}")


def _check_attention(checks: Checks, module: nn.MultiheadAttention, prefix: str = "") -> None:
    _check_methods(checks, prefix.rstrip(".") or "source", module, nn.MultiheadAttention)
    if not module.batch_first:
        advice = "set batch_first = True on the module and pass (batch, tokens, d_model)"
        checks.fail(f"{prefix}batch_first: expected True, as in Regard's layers, got False; {advice}")
    if module.add_zero_attn:
        checks.fail(f"{prefix}add_zero_attn: expected False, got True; Regard's layers append no key of zeros")


def _options_of(checks: Checks, source: TorchLayer) -> dict[str, Any]:
    is_decoder = isinstance(source, nn.TransformerDecoderLayer)
    _check_methods(checks, "source", source, nn.TransformerDecoderLayer if is_decoder else nn.TransformerEncoderLayer)
    attentions = {"self_attn": source.self_attn}
    if isinstance(source, nn.TransformerDecoderLayer):
        attentions["multihead_attn"] = source.multihead_attn
    for name, attention in attentions.items():
        if isinstance(attention, nn.MultiheadAttention):  # pyright: ignore[reportUnnecessaryIsInstance]
            _check_attention(checks, attention, f"{name}.")
        else:
            checks.fail_type(f"{name}: expected an nn.MultiheadAttention, got {describe(attention)}")
    dropouts = {name: getattr(source, name) for name in _DROPOUTS if hasattr(source, name)}
    norms = {name: module for name, module in source.named_children() if name.startswith("norm")}
    for name, module in (dropouts | norms).items():
        expected = nn.Dropout if name in dropouts else nn.LayerNorm
        if not isinstance(module, expected):
            checks.fail_type(f"{name}: expected an nn.{expected.__name__}, got {describe(module)}")
    checks.raise_problems()
    rates = {name: module.p for name, module in dropouts.items()}
    rates |= {f"{name}.dropout": attention.dropout for name, attention in attentions.items()}
    return {
        "num_heads": _same(checks, {f"{name}.num_heads": each.num_heads for name, each in attentions.items()}),
        "dropout": _same(checks, rates),
        "activation": _activation(checks, source.activation),
        "norm_first": source.norm_first,
        "layer_norm_eps": _same(checks, {f"{name}.eps": module.eps for name, module in norms.items()}),
    }


def _same(checks: Checks, values: Mapping[str, Any]) -> Any:
    """The one value that all parts have."""
    (first_name, first), *others = values.items()
    for name, value in others:
        checks.that(value == first, f"{name}: expected {first}, as {first_name} is, got {value}")
    return first


def _activation(checks: Checks, activation: Any) -> str:
    if isinstance(activation, nn.GELU):
        return "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    modules = {nn.ReLU: "relu", nn.SiLU: "silu"}
    name = modules.get(type(activation)) or _FUNCTIONS.get(activation)
    if name is None:
        label = getattr(activation, "__name__", None) or describe(activation)
        checks.fail(f"activation: expected one of {', '.join(ACTIVATIONS)}, got {label}")
    return name or "relu"
