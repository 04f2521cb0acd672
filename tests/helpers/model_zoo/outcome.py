"""Watches a model of transformers: the result is exactly its weights or the reason of a refusal."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

import regard
from helpers.model_zoo import build
from helpers.model_zoo.dense_weights import compare_dense
from helpers.model_zoo.inputs import inputs_of
from helpers.model_zoo.intercepted_calls import InterceptedCalls, Place
from regard.errors import RegardError


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
