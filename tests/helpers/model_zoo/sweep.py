"""Watches a model of transformers: the result is exactly its weights or the reason of a refusal."""

from __future__ import annotations

import argparse
import copy
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

import regard
from helpers.model_zoo import build
from helpers.model_zoo.dense_weights import compare_dense
from helpers.model_zoo.inputs import inputs_of
from regard.errors import RegardError
from regard.watching.adapters.shipped import shipped_adapter

Place = tuple[str, int]
"""A module by name, and which of its calls in one pass it was."""


@dataclass(frozen=True)
class Outcome:
    """Result of watching one model.

    Args:
        kind: Every weight was that of the unwatched model, from queries and keys; or some of them were captured at a
            softmax; or watching was refused, or transformers builds no such one.
        reason: Why it was refused, or a note on what was not recorded.
    """

    kind: Literal["exact", "dense", "refused"]
    reason: str = ""


UNBUILT = [
    (r"requires the (\w+) library", r"it needs the package \1, which is not installed"),
    (
        r"^Gemma4(Unified)?Assistant.*: The set of layer types producing a cache is different",
        "transformers itself builds no model whose layers all take their keys from another",
    ),
]
"""Why transformers refuses to build a model, by patterns of its name and error message."""


UNRUN = r"^Llama4ForConditionalGeneration: .* no attribute 'image_outputs'"
"""The error of a model that transformers 5.24 cannot run."""


def outcome(kind: type[PreTrainedModel]) -> Outcome:
    """Watch a tiny model.

    Raises:
        AssertionError: If outputs change, or if weights are missing or wrong.
    """
    try:
        model = build.built(kind)
    except (ImportError, ValueError) as error:
        message = f"{kind.__name__}: {error}"
        for pattern, why in UNBUILT:
            found = re.search(pattern, message)
            if found is not None:
                return Outcome("refused", found.expand(why))
        raise
    try:
        inputs, expected = accepted(model)
    except AttributeError as error:
        if re.search(UNRUN, f"{kind.__name__}: {error}"):
            return Outcome("refused", "transformers itself does not run it")
        raise
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with regard.watch(model) as result:
                outputs = run(model, inputs)
    except RegardError as error:
        return Outcome("refused", str(error))
    changed = [
        number
        for number, (one, other) in enumerate(zip(tensors(outputs), tensors(expected), strict=True))
        if not _same(one, other)
    ]
    assert not changed, f"outputs {changed} changed"
    watched = {_place(layer.name): _as_the_model_has_it(layer) for layer in result.layers if not layer.is_dense}
    dense = {_place(layer.name): layer.weights.dense() for layer in result.layers if layer.is_dense}
    with InterceptedCalls(model) as reference:
        run(model, inputs)
    expected_layers = reference.layers()
    for module, entry in dense:  # dense attention of transformers' form that was called without the interface
        if (module, entry) in expected_layers:
            reference.softmaxes[module, ""].append(expected_layers.pop((module, entry)))
    if watched or not dense:
        _compare(watched, expected_layers)
    recorded = {module for module, _ in reference.calls} | {module for module, _ in dense}
    kinds = {module: kind for module, kind in reference.softmaxes if module not in recorded}
    missed = sorted(kind for kind in kinds.values() if re.search("attention|attn", kind, re.IGNORECASE))
    assert not missed, f"{missed} compute weights that are not recorded"
    compare_dense(dense, reference.softmaxes, returned_attentions(model, inputs) if dense else [])
    text = " ".join(str(warning.message) for warning in caught)
    named = re.search(r"not recorded: [^()]+ \(([^()]+)\)", text)
    of_dense = re.search(r"recorded at the softmax of [^()]+ \(([^()]+)\)", text)
    assert (of_dense is not None) == bool(dense), "no warning names the modules that were recorded densely"
    if named:
        return Outcome("dense" if dense else "exact", f"not recorded: {named[1]}")
    return Outcome("dense", of_dense[1]) if of_dense else Outcome("exact")


def returned_attentions(model: PreTrainedModel, inputs: Mapping[str, Any]) -> list[Tensor]:
    """All weights that a model returns itself; none if it takes no ``output_attentions=True``."""
    try:
        output = run(model, {**inputs, "output_attentions": True})
    except Exception:  # noqa: BLE001 (the model does not support it)
        return []
    found = [each for name, each in output.items() if "attentions" in name] if isinstance(output, Mapping) else []
    return [each for each in tensors(found) if each.ndim == 4 and bool(((each.sum(-1) - 1).abs() < 1e-4).all())]


def _as_the_model_has_it(layer: Any) -> Tensor:
    """The weights with prefix keys after those of the sequence."""
    return layer.weights.dense().roll(-layer._recorder._num_prefix, 3)


def _place(name: str) -> Place:
    module, _, entry = name.partition("#")
    return module, int(entry or 1)


def accepted(model: PreTrainedModel) -> tuple[dict[str, Any], Any]:
    """The first inputs that a model accepts, and its outputs."""
    errors = []
    for inputs in inputs_of(model):
        try:
            return inputs, run(model, inputs)
        except Exception as error:  # noqa: BLE001 (any error means that these inputs do not fit)
            errors.append(error)
    raise errors[0] if errors else ValueError("no input is known")


def run(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Any:
    torch.manual_seed(2)
    with torch.no_grad():
        return model(**copy.deepcopy(dict(inputs)))  # some models modify their inputs


def tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for name, each in output.items():
            if "attentions" not in name:  # which fused attention does not give
                yield from tensors(each)
    elif isinstance(output, (tuple, list)):
        for each in output:
            yield from tensors(each)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _compare(actual: Mapping[Place, Tensor], reference: Mapping[Place, Tensor]) -> None:
    assert reference, "no weights were intercepted"
    assert set(actual) >= set(reference), f"missing: {sorted(set(reference) - set(actual))}, recorded: {sorted(actual)}"
    assert set(reference) >= set(actual), (
        f"unexpected: {sorted(set(actual) - set(reference))}, expected: {sorted(reference)}"
    )
    for call, expected in reference.items():
        weights = actual[call]
        if weights.shape != expected.shape and weights.numel() == expected.numel():  # heads that share keys as rows
            expected = expected.reshape(weights.shape)
        assert weights.shape == expected.shape, f"{call}: {tuple(weights.shape)}, not {tuple(expected.shape)}"
        error = float((weights - expected).abs().max())
        assert error <= 1e-5, f"{call}: weights are off by {error:.1e}"


@dataclass
class Intercepted:
    """One call of attention in an unwatched run.

    Args:
        weights: (batch, heads, queries, keys).
        query: What was passed as the query.
        key: What was passed as the key.
        tokens: How many tokens the module that called had been given.
    """

    weights: Tensor
    query: Tensor
    key: Tensor
    tokens: int


def _one_layer(calls: list[Intercepted]) -> list[Tensor]:
    """The layers that the calls of a module are, in one run of its forward.

    Calls with the same query and key have the same weights, and are one layer. Others are chunks of one sequence if the
    module was given as many tokens as they have rows in all; else each is a layer.
    """
    different = [
        call
        for number, call in enumerate(calls)
        if not any(
            one.query.shape == call.query.shape
            and one.key.shape == call.key.shape
            and torch.equal(one.query, call.query)
            and torch.equal(one.key, call.key)
            and one.query.data_ptr() == call.query.data_ptr()
            for one in calls[:number]
        )
    ]
    parts = [call.weights for call in different]
    rows = sum(part.shape[2] for part in parts)
    if len(parts) == 1 or rows not in (calls[0].tokens, calls[0].tokens * parts[0].shape[0]):
        return parts
    if all(part.shape[3] == parts[0].shape[3] == rows for part in parts):  # several queries of the same keys
        return [torch.cat(parts, 2)]
    weights = parts[0].new_zeros(*parts[0].shape[:2], rows, sum(part.shape[3] for part in parts))
    row = column = 0
    for part in parts:
        weights[..., row : row + part.shape[2], column : column + part.shape[3]] = part
        row, column = row + part.shape[2], column + part.shape[3]
    return [weights]


class InterceptedCalls(TorchFunctionMode):
    """Intercepts each call of attention in a run that is not watched, with its weights by an independent route.

    Dense attention of transformers and `nn.MultiheadAttention` return them; those of torch's fused attention are
    computed here from what it is passed. Those of classes with an adapter are the result of their softmax.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.calls: dict[Place, list[Intercepted]] = defaultdict(list)
        self.softmaxes: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
        """The results of softmax, by the names of their modules and classes; rows whose keys are all masked are 0."""
        self._names = {module: name for name, module in model.named_modules()}
        self._entries: Counter[nn.Module] = Counter()
        self._tokens: dict[nn.Module, int] = {}
        self._inside: list[nn.Module] = []
        self._within = False

    def __enter__(self) -> Any:
        self._stack = ExitStack()
        for module in self._names:
            enter = module.register_forward_pre_hook(self._enter, with_kwargs=True)
            for handle in (enter, module.register_forward_hook(self._leave)):
                self._stack.callback(handle.remove)
        for file in {sys.modules[base.__module__] for module in self._names for base in type(module).__mro__}:
            for name, function in list(vars(file).items()):
                if name.endswith("eager_attention_forward"):
                    self._stack.enter_context(mock.patch.object(file, name, self._intercept(function)))
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        self._stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._inside.append(module)
        self._entries[module] += 1
        states = [part for part in (*args, *kwargs.values()) if isinstance(part, Tensor) and part.is_floating_point()]
        self._tokens[module] = states[0].shape[-2] if states and states[0].ndim > 1 else 0

    def _leave(self, *args: object) -> None:
        self._inside.pop()

    def layers(self) -> dict[Place, Tensor]:
        """The weights of each layer."""
        layers = {}
        for (name, entry), calls in self.calls.items():
            for number, weights in enumerate(_one_layer(calls)):
                layers[name, entry + number] = weights
        return layers

    def _take(self, module: nn.Module, weights: Tensor, query: Tensor, key: Tensor, mask: Tensor | None = None) -> None:
        """Record a call; rows that the model's own mask leaves no key are 0, not uniform."""
        if mask is not None and mask.ndim == weights.ndim:
            empty = ~_allowed(mask[..., : weights.shape[-1]]).any(-1, keepdim=True)
            weights = weights.masked_fill(empty, 0)
        call = Intercepted(weights.nan_to_num(), query, key, self._tokens.get(module, 0))
        self.calls[self._names[module], max(self._entries[module], 1)].append(call)

    def _intercept(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def attention(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            before, self._within = self._within, True
            output, weights = function(module, *arguments, **options)
            self._within = before
            mask = arguments[3] if len(arguments) > 3 else options.get("attention_mask")
            weights_with_sinks = weights
            if options.get("s_aux") is not None:
                weights_with_sinks = _with_sinks(weights, output, arguments[2])
            self._take(module, weights_with_sinks, arguments[0], arguments[1], mask)
            return output, weights

        return attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._within:
            return func(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            output, weights = func(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})
            self._take(self._inside[-1], weights if weights.ndim == 4 else weights[None], args[0], args[1])
            return output, weights
        actual = func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            weights = _weights_of_fused(*args, **kwargs)
            axes = weights.ndim
            weights = weights.flatten(0, -4) if axes > 4 else weights[(None,) * (4 - axes)]
            query, key = (args[i] if len(args) > i else kwargs[name] for i, name in enumerate(("query", "key")))
            self._take(self._inside[-1], weights, query, key)
        elif getattr(func, "__name__", "") == "softmax" and actual.ndim > 2:
            module = next(each for each in reversed(self._inside) if not type(each).__name__.endswith("Softmax"))
            if shipped_adapter(type(module)) is not None:
                self._take(module, actual, args[0], args[0], args[0])
            top = args[0].amax(-1, keepdim=True)
            weights = actual.masked_fill(top <= torch.finfo(args[0].dtype).min / 2, 0)
            self.softmaxes[self._names[module], type(module).__name__].append(weights)
        return actual


def _with_sinks(weights: Tensor, output: Tensor, value: Tensor) -> Tensor:
    """The weights that gave an output: some families scale it by a sink's share instead of its rows."""
    value = value.repeat_interleave(weights.shape[1] // value.shape[1], 1)
    inputs, plain = output.transpose(1, 2), weights @ value
    return weights * ((inputs * plain).sum(-1, keepdim=True) / plain.square().sum(-1, keepdim=True))


def _weights_of_fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        if attn_mask.dtype != torch.bool:
            scores = scores + attn_mask
        scores = scores.masked_fill(~_allowed(attn_mask), -torch.inf)
    return scores.softmax(-1).nan_to_num()


def _allowed(mask: Tensor) -> Tensor:
    """Which keys a mask lets be seen."""
    return mask > torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else mask.bool()


SHORT = [
    (r"needs the package (?P<more>\w+)", "needs a package that is not installed"),
    (r"^transformers itself builds no", "transformers itself does not build it"),
    (r"^transformers itself does not run it", "transformers itself does not run it"),
    (
        r"\((?P<more>\w+)\) computes attention in its own code, which cannot be recorded: it (?P<what>[^;]+);",
        "its own code",
    ),
    (
        r"\((?P<more>\w+)\) computes attention in its own code, which cannot be recorded; ",
        "its own code has no product of softmax and values",
    ),
    (r"no attention was found in its code$", "no attention"),
    (r"it has no attention, or", "no attention, or in its own code"),
    (r"(?P<more>\w+) passes (?P<argument>\w+) to its attention function", "passes an argument that is not known"),
    (r"(?P<more>\w+) selects the keys that it attends to", "selects the keys that it attends to"),
]
"""Short reasons by patterns of messages; a group holds details of the model."""


def short(message: str) -> tuple[str, str]:
    """A short reason, and details of the model."""
    for pattern, reason in SHORT:
        match = re.search(pattern, message)
        if match is not None:
            groups = match.groupdict()
            what = groups.pop("what", None)
            return f"{reason} {what}" if what else reason, " ".join(f"`{more}`" for more in groups.values())
    return message, ""


def versions() -> str:
    """Versions of the installed packages that a sweep uses."""
    parts = []
    for name in ("torch", "transformers", "timm"):
        with suppress(metadata.PackageNotFoundError):
            parts.append(f"{name} {metadata.version(name)}")
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


HEADING = "## Models of transformers"
"""Where the generated part of the page begins."""


def table(outcomes: Mapping[str, Outcome], settable: Collection[str]) -> str:
    """The outcome of each model as Markdown.

    Args:
        outcomes: By the names of models.
        settable: Those whose attention implementation can be set, so that they use transformers' interface.
    """
    lines = [
        HEADING,
        "",
        "`python -m helpers.model_zoo.sweep` (in `tests`) writes this part of the page. It makes a tiny model of each",
        "configuration class, runs it with and without a watch, and compares all weights with those of each attention",
        "call that it intercepts in the unwatched run. A *dense* model has layers whose scores were captured at a",
        "softmax in its own code: their weights are exact, too, but take memory of queries × keys. This table was made",
        f"with {versions()}. *Settable* means that `_can_set_attn_implementation()` is true.",
        "",
        "| | settable | not settable | all |",
        "|---|---|---|---|",
    ]
    groups = {kind: [name for name, each in outcomes.items() if each.kind == kind] for kind in ("exact", "dense")}
    rest = {name: short(each.reason)[0] for name, each in outcomes.items() if each.kind == "refused"}
    groups["refused, no attention"] = [name for name, reason in rest.items() if reason.startswith("no attention")]
    groups["refused"] = [name for name in rest if name not in groups["refused, no attention"]]
    for kind, names in groups.items():
        can = sum(name in settable for name in names)
        lines.append(f"| {kind} | {can} | {len(names) - can} | {len(names)} |")
    lines += ["", "| model | status | reason |", "|---|---|---|"]
    for name, each in sorted(outcomes.items()):
        reason, part = short(each.reason) if each.kind == "refused" else ("", f"`{each.reason}`" if each.reason else "")
        if each.reason.startswith("not recorded: "):
            reason, part = "named in a warning", each.reason
        elif each.kind == "dense":
            reason = "captured at the softmax"
        lines.append(f"| `{name}` | {each.kind} | {f'{reason}: {part}' if part else reason} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Sweep, and write the page if each is exact or refused, in time; timm is needed for those that are built on it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=9.5, help="how long it may take")
    parser.add_argument("--page", type=Path, default=Path(__file__).parents[3] / "docs" / "supported_models.md")
    options = parser.parse_args()
    build.quiet()
    torch.set_num_threads(1)
    stop = time.monotonic() + 60 * options.minutes
    kinds, outcomes, failed = build.classes(), dict[str, Outcome](), []
    for number, (name, kind) in enumerate(kinds.items(), 1):
        if time.monotonic() > stop:
            sys.exit(f"{number - 1} of {len(kinds)} models in {options.minutes:g} minutes: give --minutes more")
        try:
            result = outcome(kind)
        except Exception as error:  # noqa: BLE001 (reported with all others)
            failed.append(name)
            print(f"{number}/{len(kinds)} {name}: FAILED: {type(error).__name__}: {error}"[:500], flush=True)
        else:
            outcomes[name] = result
            print(f"{number}/{len(kinds)} {name}: {result.kind}", flush=True)
    if failed:
        sys.exit(f"{len(failed)} failed: {', '.join(failed)}")
    settable = {name for name, kind in kinds.items() if kind._can_set_attn_implementation()}
    before, _, _ = options.page.read_text().partition(HEADING) if options.page.exists() else ("", "", "")
    options.page.write_text(before + table(outcomes, settable))


if __name__ == "__main__":
    main()
