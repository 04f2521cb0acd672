"""`watch`: record what a model attends to. Its arguments are checked here, before the model is touched."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from torch import nn

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, did_you_mean, short_repr
from regard.ops.measures import MeasureLike, as_measures
from regard.watching.adapted_module import check_adapters
from regard.watching.adapters.inputs import Adapters
from regard.watching.interventions import Interventions, Pairs
from regard.watching.listener import Listener
from regard.watching.registry import active_listeners, remove_leftovers
from regard.watching.result import WatchResult
from regard.watching.retention import Retention


def watch(
    model: nn.Module,
    measure: MeasureLike = (),
    *,
    layers: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    positions: Literal["last"] | Mapping[str, Literal["last"]] | None = None,
    keep_qk: bool = True,
    keep_values: bool = False,
    offload: str | os.PathLike[str] | None = None,
    max_bytes: int | None = None,
    exact_output: bool = True,
    ablate: Mapping[str, Sequence[int]] | None = None,
    knockout: Mapping[str, Pairs] | None = None,
    weight_gradients: bool = False,
    adapters: Adapters | None = None,
    batch_axis: int | None = None,
) -> AbstractContextManager[WatchResult]:
    """Record what a model attends to while it runs, with the kernels that it uses anyway and the same output.

    Args:
        model: A model of Hugging Face transformers, of torch (`nn.MultiheadAttention`, `nn.Transformer`, calls of
            `scaled_dot_product_attention` or `flex_attention`), or of this library. Of modules that compute
            ``softmax(scores) @ value`` themselves the scores are captured, in memory of queries × keys
            (`Layer.is_dense`).
        measure: What to compute about the weights while the model runs, as for `regard.attend`. The results have
            gradients. Queries that are padding do not count in `Received`.
        layers: Names of the modules to record; the name of a part of the model means all attention in it. Default: all.
        heads: Indices of the heads to record. Default: all.
        positions: ``"last"`` joins the steps of a hand-written KV cache into one matrix, as those of ``generate`` are:
            a call of torch's attention adds rows to the module's call before if its keys, without the last as many as
            it has queries, are all or the last of the keys of that call, which are copied to compare them. A dict, as
            ``{"decoder": "last"}``, means only these modules, or all attention in these parts of the model. Default:
            each call of torch's attention is a matrix of its own.
        keep_qk: Whether to keep query and key of each layer, so that anything about the weights can be computed later.
            False keeps only the measures and, during a generation, the model's cache.
        keep_values: Whether to keep values with them, where the output of a head is a weighted sum of values.
        offload: Where to copy queries and keys: ``"cpu"``, or a folder for unnamed files, which disappear with them.
            Offloaded tensors have no gradients. Default: no copies, except of what is written in place already, as a
            static cache; if the model changes another tensor after the call, reading the weights raises `StaleView`.
        max_bytes: Largest number of bytes to keep, in all forward passes. Default: no limit but 2**28 captured scores.
        exact_output: Whether the model computes its output itself, the same to the last bit, and the measures take a
            pass of their own. False takes the output ``softmax(mask(score(query, key))) @ value`` from the pass that
            computes the measures, equal to rounding, where that is possible: in models of transformers with the
            implementation ``"sdpa"``, without dropout, with measures that the kernel for this device has, without
            `heads`, and except for the later steps of a generation. All other calls stay exact. A query that may attend
            to no key has output 0.
        ablate: Heads whose output is set to 0, by module name. For attention that transformers' interface computes.
        knockout: Pairs of positions (query, key) that may not attend to each other, by module name. For the same.
        weight_gradients: Whether to record the gradient of each layer's weights in backward passes through the model's
            output: ``layer.weights.grad`` then is a `GradientMatrix`. It keeps the values, too, and the gradient of
            each layer's output. Several backward passes add up, as in autograd.
        adapters: Functions that state what modules with a softmax of their own compute, by class; subclasses have them,
            too. Called after the forward of such a module, as ``adapter(module, arguments, output)``, one returns a
            `regard.watching.adapters.AttentionInputs`, or a list of them. It is not called where calls inside the
            module were recorded. Default: those for known classes of transformers and PyTorch Geometric, which are
            always there, and give way to yours.
        batch_axis: The axis of the model's first input that counts the sequences: 1 for an input (tokens, batch) or
            (tokens, batch, width). It tells `Recording.select` whether the batch of a layer is that of the model.
            Default: the first axis, unless its size could be the number of blocks of tokens of an input (tokens,
            batch); for modules of torch what their `batch_first` says.

    Returns:
        A context manager that yields a `WatchResult`: ``result.layers`` has the layers of the last forward pass,
        ``result.recordings`` a recording of each. All steps of a generation are one recording.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If a layer is unknown or another argument is wrong; on entering, if the model is already being
            watched; on leaving, if nothing was recorded or an intervention had no effect; while the model runs, if
            `max_bytes` would be exceeded, attention cannot be recorded, or the first input has no `batch_axis`.

    Memory:
        O(tokens * d_model) per layer with ``keep_qk=True``, and that of the measures. Captured scores are O(tokens²).

    **Limitations**

    - The output is the same to the last bit unless ``exact_output=False``, with one exception: a watch disables torch's
      fast path for `nn.TransformerEncoder` and `nn.MultiheadAttention` without gradients. Outputs at real tokens then
      agree to rounding (about 1e-7 in float32), and outputs at padding are no longer 0.
    - A model is called from one thread at a time, and each sequence with a KV cache of its own has its own watch.
    - Rows of `weights` that may attend to no key are 0, where SDPA and dense attention may return uniform weights. Rows
      of a layer with attention sinks sum to less than 1.
    - `torch.compile` is disabled in the whole process while a watch is open.
    - With gradient checkpointing, run the backward pass inside the ``with`` block. Reentrant checkpointing builds no
      graph, so measures have no gradients.
    - Assisted generation and prompt lookup discard tokens, which starts a new recording. A generation of n tokens has
      n − 1 more rows than the prompt, because the last token is written but not read.

    Examples:
        >>> import regard, torch, transformers
        >>> config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99)
        >>> model = transformers.BertModel(config).eval()
        >>> with regard.watch(model, ["entropy"]) as result:
        ...     output = model(torch.randint(99, (1, 10)))
        >>> [layer.name for layer in result.layers]
        ['encoder.layer.0.attention.self', 'encoder.layer.1.attention.self']
        >>> result.layers.encoder[0].weights.shape, result.layers[1].measured["entropy"].shape
        (torch.Size([1, 4, 10, 10]), torch.Size([1, 4, 10]))
    """
    model = getattr(model, "_orig_mod", model)  # of a compiled model
    if not isinstance(model, nn.Module):
        raise InvalidType(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    retention = Retention(keep_qk, keep_values or (weight_gradients and keep_qk), offload, max_bytes)
    interventions = None if ablate is None and knockout is None else Interventions(ablate, knockout)
    names: list[str] = []
    if layers is not None or positions is not None or interventions is not None:
        names = [name for name, _ in model.named_modules()]
    layer_names = None if layers is None else _as_tuple("layers", [layers] if isinstance(layers, str) else layers, str)
    head_indices = None if heads is None else _as_tuple("heads", heads, int)
    with Checks() as checks:
        measures = as_measures(measure, checks)
        retention.check(checks)
        if not isinstance(weight_gradients, bool):
            checks.fail_type(f"weight_gradients: expected True or False, got {short_repr(weight_gradients)}")
        elif weight_gradients and keep_qk is False:
            checks.fail("weight_gradients: they are kept with queries and keys only; pass keep_qk=True")
        for name in layer_names or ():
            checks.that(name in names, f"layers: unknown module {short_repr(name)}{did_you_mean(name, names)}")
        for head in head_indices or ():
            checks.that(head >= 0, f"heads: expected indices from 0, got {head}")
        if head_indices and len(set(head_indices)) < len(head_indices):
            checks.fail(f"heads: expected different indices, got {head_indices}")
        if retention.keep_qk is False and not measures:
            checks.fail("keep_qk: False keeps only measures; pass measure=['entropy', 'received']")
        joined = _joined_modules(checks, positions, names)
        if not isinstance(exact_output, bool):
            checks.fail_type(f"exact_output: expected True or False, got {short_repr(exact_output)}")
        if interventions is not None:
            interventions.check(checks, names)
        checks.integer("batch_axis", batch_axis, low=0, optional=True)
        if adapters is not None:
            check_adapters(checks, adapters, model)
    if layer_names is not None:  # and all modules below them
        layer_names = _within(layer_names, names)
    return Listener(
        model,
        measures,
        layer_names,
        head_indices,
        retention,
        interventions,
        joined,
        not exact_output,
        weight_gradients,
        adapters,
        batch_axis,
    )


def end_all() -> None:
    """End all open watches, such as one that a notebook lost: models, torch and transformers are as before.

    What was recorded stays in the results. A block that still runs records nothing more.

    Examples:
        >>> import regard, torch
        >>> model = torch.nn.MultiheadAttention(8, 2)
        >>> lost = regard.watch(model)
        >>> result = lost.__enter__()
        >>> regard.watching.end_all()
        >>> len(model._forward_hooks)
        0
    """
    for listener in active_listeners():
        listener.end()
    remove_leftovers()


def _as_tuple(argument: str, values: Any, kind: type) -> tuple[Any, ...]:
    """Several values of one type."""
    listed = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        raise InvalidType(f"{argument}: expected a list of {kind.__name__}, got {short_repr(values)}")
    result = tuple(listed)
    wrong = [value for value in result if isinstance(value, bool) or not isinstance(value, kind)]
    if wrong:
        raise InvalidType(f"{argument}: expected a list of {kind.__name__}, got {short_repr(wrong[0])}")
    if not result:
        raise InvalidArgument(f"{argument}: expected at least one; leave it out for all")
    return result


def _within(parts: Collection[str], names: Sequence[str]) -> list[str]:
    """The names of modules that are, or are in, some parts of a model."""
    return [name for name in names if any(not part or f"{name}.".startswith(f"{part}.") for part in parts)]


def _joined_modules(checks: Checks, positions: Any, names: Sequence[str]) -> Collection[str]:
    """The names of the modules whose steps are to be joined."""
    if positions is None or (isinstance(positions, str) and positions == "last"):
        return () if positions is None else names
    expected = f"positions: expected 'last', a dict of module names, or None, got {short_repr(positions)}"
    if not isinstance(positions, Mapping):
        problem = f"{expected}; leave it out to record each call of torch's attention by itself"
        checks.fail(problem) if isinstance(positions, str) else checks.fail_type(problem)
        return ()
    for name, value in positions.items():
        checks.that(name in names, f"positions: unknown module {short_repr(name)}{did_you_mean(name, names)}")
        checks.that(value == "last", f"positions: expected 'last' for {name}, got {short_repr(value)}")
    checks.that(len(positions) > 0, "positions: expected at least one module, got {}; leave it out for none")
    return _within(positions, names)
