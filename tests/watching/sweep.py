"""What comes of watching a model of transformers: exactly its weights, or a reason why not."""

from __future__ import annotations

import argparse
import copy
import re
import sys
import time
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
from regard.errors import RegardError
from watching import tiny
from watching.tiny_inputs import inputs_of

Place = tuple[str, int]
"""A module by name, and which of its calls in one pass it was."""


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Args:
        kind: Every weight was the one of dense attention; or watching was refused, or transformers builds no such one.
        said: Why.
    """

    kind: Literal["exact", "refused"]
    said: str = ""


UNBUILT = [
    (r"requires the (\w+) library", r"it needs the package \1, which is not installed"),
    (
        r"^Gemma4(Unified)?Assistant.*: The set of layer types producing a cache is different",
        "transformers itself builds no model whose layers all take their keys from another",
    ),
]
"""Why transformers refuses to build a model, by patterns of its name and what is said."""


def outcome(kind: type[PreTrainedModel]) -> Outcome:
    """What comes of watching a tiny model.

    Raises:
        AssertionError: If outputs change, or if weights are missing or wrong.
    """
    try:
        model = tiny.built(kind)
    except (ImportError, ValueError) as error:
        said = f"{kind.__name__}: {error}"
        for pattern, why in UNBUILT:
            found = re.search(pattern, said)
            if found is not None:
                return Outcome("refused", found.expand(why))
        raise
    given, expected = _accepted(model)
    try:
        with regard.watch(model) as seen:
            found = _run(model, given)
    except RegardError as error:
        return Outcome("refused", str(error))
    changed = [
        number
        for number, (one, other) in enumerate(zip(_tensors(found), _tensors(expected), strict=True))
        if not _same(one, other)
    ]
    assert not changed, f"outputs {changed} changed"
    watched = {_place(layer.name): layer.weights.dense() for layer in seen.layers}
    dense = copy.deepcopy(model)
    if kind._can_set_attn_implementation():
        dense.set_attn_implementation("eager")
    with Truth(dense) as truth:
        try:
            alike = all(map(_close, _tensors(_run(dense, given)), _tensors(expected)))
        except KeyError:  # of a model that looks for fused attention alone
            alike = False
    if not alike:  # as where a mask is missing, which fused attention takes to be causal
        with Truth(model) as truth:
            _run(model, given)
    _compare(watched, truth.weights)
    told = {module for module, _ in truth.weights}
    unseen = {kind for module, kind in truth.softmaxes if module not in told}
    own = sorted(kind for kind in unseen if re.search("attention|attn", kind, re.IGNORECASE))
    assert not own, f"{own} compute weights that are not seen"
    return Outcome("exact")


def _close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, atol=1e-4, rtol=1e-3, equal_nan=True)


def _place(name: str) -> Place:
    module, _, entry = name.partition("#")
    return module, int(entry or 1)


def _accepted(model: PreTrainedModel) -> tuple[dict[str, Any], Any]:
    """The first inputs that a model takes, and what it makes of them."""
    errors = []
    for given in inputs_of(model):
        try:
            return given, _run(model, given)
        except Exception as error:  # noqa: BLE001 (whatever it says of what does not fit)
            errors.append(error)
    raise errors[0] if errors else ValueError("no input is known")


def _run(model: PreTrainedModel, given: Mapping[str, Any]) -> Any:
    torch.manual_seed(2)
    with torch.no_grad():
        return model(**copy.deepcopy(dict(given)))  # some write into what they are given


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for name, each in output.items():
            if "attentions" not in name:  # which fused attention does not give
                yield from _tensors(each)
    elif isinstance(output, (tuple, list)):
        for each in output:
            yield from _tensors(each)


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def _compare(found: Mapping[Place, Tensor], truth: Mapping[Place, list[Tensor]]) -> None:
    assert truth, "dense attention gives no weights"
    assert set(found) >= set(truth), f"not seen: {sorted(set(truth) - set(found))}, seen: {sorted(found)}"
    assert set(truth) >= set(found), f"seen, but not there: {sorted(set(found) - set(truth))}, there: {sorted(truth)}"
    for place, parts in truth.items():
        weights = found[place]
        if (
            len(parts) > 1 and sum(part.shape[-1] for part in parts) == weights.shape[-1]
        ):  # chunks, each of its own keys
            expected = weights.new_zeros(weights.shape)
            row = column = 0
            for part in parts:
                expected[..., row : row + part.shape[-2], column : column + part.shape[-1]] = part
                row, column = row + part.shape[-2], column + part.shape[-1]
        else:
            expected = torch.cat(parts, -2)
        assert weights.shape == expected.shape, f"{place}: {tuple(weights.shape)}, not {tuple(expected.shape)}"
        error = float((weights - expected).abs().max())
        assert error <= 1e-5, f"{place}: weights are off by {error:.1e}"


class Truth(TorchFunctionMode):
    """The weights of all attention that is computed while it is on, by an independent route.

    Transformers' dense attention returns them; so does `nn.MultiheadAttention` if it is asked; those of torch's fused
    attention are computed here.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.weights: dict[Place, list[Tensor]] = defaultdict(list)
        self.softmaxes: set[tuple[str, str]] = set()
        """The modules that compute one themselves: their names, and those of their classes."""
        self._names = {module: name for name, module in model.named_modules()}
        self._entries: Counter[nn.Module] = Counter()
        self._inside: list[nn.Module] = []
        self._within = False

    def __enter__(self) -> Any:
        self._stack = ExitStack()
        for module in self._names:
            for handle in (module.register_forward_pre_hook(self._enter), module.register_forward_hook(self._leave)):
                self._stack.callback(handle.remove)
        for file in {sys.modules[base.__module__] for module in self._names for base in type(module).__mro__}:
            for name, function in list(vars(file).items()):
                if name.endswith("eager_attention_forward"):
                    self._stack.enter_context(mock.patch.object(file, name, self._telling(function)))
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        self._stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def _enter(self, module: nn.Module, given: object) -> None:
        self._inside.append(module)
        self._entries[module] += 1

    def _leave(self, *given: object) -> None:
        self._inside.pop()

    def _tell(self, module: nn.Module, weights: Tensor, mask: Tensor | None = None) -> None:
        """Take up weights; rows that the model's own mask leaves no key are 0, not uniform."""
        if mask is not None and mask.ndim == weights.ndim:
            empty = ~_allowed(mask[..., : weights.shape[-1]]).any(-1, keepdim=True)
            weights = weights.masked_fill(empty, 0)
        self.weights[self._names[module], max(self._entries[module], 1)].append(weights.nan_to_num())

    def _telling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def attention(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            before, self._within = self._within, True
            output, weights = function(module, *arguments, **options)
            self._within = before
            mask = arguments[3] if len(arguments) > 3 else options.get("attention_mask")
            told = weights if options.get("s_aux") is None else _with_sinks(weights, output, arguments[2])
            self._tell(module, told, mask)
            return output, weights

        return attention

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._within:
            return func(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            output, weights = func(*args, **{**kwargs, "need_weights": True, "average_attn_weights": False})
            self._tell(self._inside[-1], weights if weights.ndim == 4 else weights[None])
            return output, weights
        found = func(*args, **kwargs)
        if func is functional.scaled_dot_product_attention:
            weights = _weights_of_fused(*args, **kwargs)
            axes = weights.ndim
            self._tell(self._inside[-1], weights.flatten(0, -4) if axes > 4 else weights[(None,) * (4 - axes)])
        elif getattr(func, "__name__", "") == "softmax" and found.ndim > 2:
            self.softmaxes.add((self._names[self._inside[-1]], type(self._inside[-1]).__name__))
        return found


def _with_sinks(weights: Tensor, output: Tensor, value: Tensor) -> Tensor:
    """The weights that gave an output: some families scale it by a sink's share instead of its rows."""
    value = value.repeat_interleave(weights.shape[1] // value.shape[1], 1)
    given, plain = output.transpose(1, 2), weights @ value
    return weights * ((given * plain).sum(-1, keepdim=True) / plain.square().sum(-1, keepdim=True))


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
    (r", an? (?P<more>\w+), computes attention in its own way", "computes attention in its own way"),
    (r"it has no attention$", "no attention"),
    (r"it has no attention, or", "no attention, or in its own way"),
    (r"(?P<more>\w+) gives its attention (?P<argument>\w+)", "an argument that is not known here"),
    (r"(?P<more>\w+) attends to keys that it chooses itself", "attends to keys that it chooses itself"),
]
"""Reasons in a few words, by patterns of what is said, and what more there is to say of a model."""


def short(said: str) -> tuple[str, str]:
    """A reason in a few words, and what more there is to say."""
    for pattern, reason in SHORT:
        found = re.search(pattern, said)
        if found is not None:
            return reason, " ".join(f"`{more}`" for more in found.groupdict().values())
    return said, ""


def versions() -> str:
    """Of what a sweep is made, as far as it is installed."""
    found = []
    for name in ("torch", "transformers", "timm"):
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return f"{', '.join(found[:-1])} and {found[-1]}"


def table(outcomes: Mapping[str, Outcome], settable: Collection[str]) -> str:
    """What came of each model, in Markdown: how many are exact, and why each other one is not.

    Args:
        outcomes: By the names of models.
        settable: Those whose attention can be set, which is where transformers' interface is used.
    """
    lines = [
        "# What can be watched",
        "",
        "Of each configuration class of transformers one model was made tiny, run and watched, and all weights were",
        "compared with those of dense attention. `python -m watching.sweep` (in `tests`) writes this page; it was made",
        f"with {versions()}. A model can set its attention where it says so by",
        "`_can_set_attn_implementation()`.",
        "",
        "| | can set its attention | cannot | all |",
        "|---|---|---|---|",
    ]
    for kind in ("exact", "refused"):
        names = [name for name, each in outcomes.items() if each.kind == kind]
        can = sum(name in settable for name in names)
        lines.append(f"| {kind} | {can} | {len(names) - can} | {len(names)} |")
    groups: dict[str, list[str]] = defaultdict(list)
    for name, each in sorted(outcomes.items()):
        if each.kind == "refused":
            reason, more = short(each.said)
            groups[reason].append(f"`{name}` ({more})" if more else f"`{name}`")
    lines += ["", "## Refused, because"]
    for reason, models in sorted(groups.items(), key=lambda group: -len(group[1])):
        lines += ["", f"**{reason}** ({len(models)}): " + ", ".join(models) + "."]
    exact = [f"`{name}`" for name, each in sorted(outcomes.items()) if each.kind == "exact"]
    lines += ["", "## Exact", "", ", ".join(exact) + "."]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Sweep, and write the page if each is exact or refused, in time; timm is needed for those that are built on it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=9.5, help="how long it may take")
    parser.add_argument("--page", type=Path, default=Path(__file__).parents[2] / "docs" / "watching.md")
    options = parser.parse_args()
    tiny.quiet()
    torch.set_num_threads(1)
    stop = time.monotonic() + 60 * options.minutes
    kinds, outcomes, failed = tiny.classes(), dict[str, Outcome](), []
    for number, (name, kind) in enumerate(kinds.items(), 1):
        if time.monotonic() > stop:
            sys.exit(f"{number - 1} of {len(kinds)} models in {options.minutes:g} minutes: give --minutes more")
        try:
            found = outcome(kind)
        except Exception as error:  # noqa: BLE001 (to be told with all others)
            failed.append(name)
            print(f"{number}/{len(kinds)} {name}: FAILED: {type(error).__name__}: {error}"[:500], flush=True)
        else:
            outcomes[name] = found
            print(f"{number}/{len(kinds)} {name}: {found.kind}", flush=True)
    if failed:
        sys.exit(f"{len(failed)} failed: {', '.join(failed)}")
    settable = {name for name, kind in kinds.items() if kind._can_set_attn_implementation()}
    options.page.write_text(table(outcomes, settable))


if __name__ == "__main__":
    main()
