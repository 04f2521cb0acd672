"""`watch`: record what a model attends to. Its arguments are checked here, before the model is touched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from torch import nn

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, did_you_mean, short_repr
from regard.ops.measures import MeasureLike, as_measures
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
    positions: Literal["last"] | None = None,
    keep_qk: bool = True,
    keep_values: bool = False,
    offload: str | os.PathLike[str] | None = None,
    max_bytes: int | None = None,
    exact_output: bool = True,
    ablate: Mapping[str, Sequence[int]] | None = None,
    knockout: Mapping[str, Pairs] | None = None,
) -> AbstractContextManager[WatchResult]:
    """Record what a model attends to while it runs, with the kernels that it uses anyway and the same output.

    Args:
        model: A model of Hugging Face transformers, of torch (`nn.MultiheadAttention`, `nn.Transformer`, calls of
            `scaled_dot_product_attention`), or of this library.
        measure: What to compute about the weights while the model runs, as for `regard.attend`. The results have
            gradients. Queries that are padding do not count in `Received`.
        layers: Names of the modules to record; the name of a part of the model means all attention in it. Default: all.
        heads: Indices of the heads to record. Default: all.
        positions: ``"last"`` joins the steps of a hand-written KV cache into one matrix, as those of ``generate`` are:
            a call of torch's attention whose keys begin with those of the module's call before adds rows to it.
            Default: each call of torch's attention is a matrix of its own.
        keep_qk: Whether to keep query and key of each layer, so that anything about the weights can be computed later.
            False keeps only the measures and, during a generation, the model's cache.
        keep_values: Whether to keep values with them, where the output of a head is a weighted sum of values.
        offload: Where to copy queries and keys: ``"cpu"``, or a folder for unnamed files, which disappear with them.
            Offloaded tensors have no gradients. Default: no copies, except of what is written in place already, as a
            static cache; if the model changes another tensor after the call, reading the weights raises `StaleView`.
        max_bytes: Largest number of bytes to keep, in all forward passes. Default: no limit.
        exact_output: Whether the model computes its output itself, the same to the last bit, and the measures take a
            pass of their own. False takes the output ``softmax(mask(score(query, key))) @ value`` from the pass that
            computes the measures, equal to rounding, where that is possible: in models of transformers with the
            implementation ``"sdpa"``, without dropout, with measures that the kernel for this device has, without
            `heads`, and except for the later steps of a generation. All other calls stay exact. A query that may attend
            to no key has output 0.
        ablate: Heads whose output is set to 0, by module name. For models of transformers.
        knockout: Pairs of positions (query, key) that may not attend to each other, by module name. For models of
            transformers.

    Returns:
        A context manager that yields a `WatchResult`: ``result.layers`` has the layers of the last forward pass,
        ``result.recordings`` a recording of each. All steps of a generation are one recording.

    Raises:
        InvalidType: If an argument has a wrong type.
        InvalidArgument: If a layer is unknown or another argument is wrong; on entering, if the model is already being
            watched; on leaving, if nothing was recorded or an intervention had no effect; while the model runs, if
            `max_bytes` would be exceeded, or attention cannot be recorded.

    Memory:
        O(tokens * d_model) per layer with ``keep_qk=True``, and that of the measures; nothing of the size tokens².

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
    retention = Retention(keep_qk, keep_values, offload, max_bytes)
    interventions = None if ablate is None and knockout is None else Interventions(ablate, knockout)
    names: list[str] = []
    if layers is not None or interventions is not None:
        names = [name for name, _ in model.named_modules()]
    layer_names = None if layers is None else _as_tuple("layers", [layers] if isinstance(layers, str) else layers, str)
    head_indices = None if heads is None else _as_tuple("heads", heads, int)
    with Checks() as checks:
        measures = as_measures(measure, checks)
        retention.check(checks)
        for name in layer_names or ():
            checks.that(name in names, f"layers: unknown module {short_repr(name)}{did_you_mean(name, names)}")
        for head in head_indices or ():
            checks.that(head >= 0, f"heads: expected indices from 0, got {head}")
        if head_indices and len(set(head_indices)) < len(head_indices):
            checks.fail(f"heads: expected different indices, got {head_indices}")
        if retention.keep_qk is False and not measures:
            checks.fail("keep_qk: False keeps only measures; pass measure=['entropy', 'received']")
        if positions is not None and positions != "last":
            hint = "leave it out to record each call of torch's attention by itself"
            checks.fail(f"positions: expected 'last' or None, got {short_repr(positions)}; {hint}")
        if not isinstance(exact_output, bool):
            checks.fail_type(f"exact_output: expected True or False, got {short_repr(exact_output)}")
        if interventions is not None:
            interventions.check(checks, names)
    if layer_names is not None:  # and all modules below them
        layer_names = [
            name for name in names if any(not top or f"{name}.".startswith(f"{top}.") for top in layer_names)
        ]
    joins_steps, fuses_output = positions == "last", not exact_output
    return Listener(model, measures, layer_names, head_indices, retention, interventions, joins_steps, fuses_output)


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
