"""`watch`: what is asked of a watch, checked before anything is done."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from torch import nn

from regard.errors import InvalidArgument, InvalidType, did_you_mean, raise_problems
from regard.ops.measures import MeasureLike, as_measures
from regard.watching.interventions import Interventions
from regard.watching.keeping import Keep, Keeping
from regard.watching.listening import Watch

Thing = TypeVar("Thing")


def watch(
    model: nn.Module,
    measure: MeasureLike = (),
    *,
    layers: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    keep: Keep = "matrix",
    values: bool = False,
    offload: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    ablate: Mapping[str, Sequence[int]] | None = None,
    knockout: Mapping[str, Sequence[tuple[int, int]]] | None = None,
) -> Watch:
    """Watch what a model attends to, while it computes as ever: by the same kernels, to the last bit.

    Args:
        model: A model of Hugging Face's transformers, of torch (`nn.MultiheadAttention`, `nn.Transformer` and their
            like, plain calls of `scaled_dot_product_attention`), or of this library.
        measure: What to ask of the weights as they pass by, as for `regard.attend`. The answers have gradients; what
            `Received` sums up leaves out queries that are padding.
        layers: The modules to watch, by name. Default: all that attend.
        heads: The heads to watch, by number. Default: all.
        keep: ``"matrix"`` holds query and key of each layer, of which everything can be asked later; ``"measures"``
            holds nothing but the answers, and while a generation goes on its cache.
        values: Keep the values, too, where the output of a head is their weighted sum.
        offload: Where queries and keys are kept: ``"cpu"``, or a folder for files without a name, which are gone when
            nobody can ask any more. What is kept so has no gradients. Default: where they are.
        limit: The most bytes to keep, of all passes. Default: no limit.
        ablate: Heads to silence, by the names of modules: their output is 0. In models of transformers.
        knockout: Pairs of positions, (query, key), that may not see each other, by the names of modules. In models of
            transformers.

    Returns:
        Watch: To be entered by ``with``. It has the layers of the last pass, by name (``seen["encoder.layer.0..."]``),
            in the order in which they were computed (``seen.layers``), and by kind (``seen.encoder``, ``seen.decoder``,
            ``seen.cross``); ``seen.passes`` has all passes. All steps of a generation are one pass.

    Raises:
        InvalidType: If the model is no module.
        InvalidArgument: If a layer is unknown, or an option is none; when it is entered, if the model is being watched
            already; when it is left, if nothing was seen. While the model computes: if the
            limit would be passed.

    Memory: O(tokens · width) a layer with ``"matrix"``, and what the answers take with ``"measures"``; the matrix of
        tokens × tokens is not made.

    A model that is compiled runs uncompiled while it is watched, and `nn.TransformerEncoder` in evaluation without
    torch's fast path, which leaves rows of padding 0: the same function for all tokens that are real, if not to the
    last bit. With gradient checkpointing the backward pass belongs into the ``with``, too, and the reentrant kind
    computes without a graph: the answers have no gradients then. A generation that takes tokens back, as with an
    assistant or by looking up the prompt, comes in several passes.

    Example:
        >>> import regard, torch, transformers
        >>> config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=99)
        >>> model = transformers.BertModel(config).eval()
        >>> with regard.watch(model, ["entropy"]) as seen:
        ...     output = model(torch.randint(99, (1, 10)))
        >>> [layer.name for layer in seen.layers]
        ['encoder.layer.0.attention.self', 'encoder.layer.1.attention.self']
        >>> seen.encoder[0].weights.shape, seen.encoder[1].measured["entropy"].shape
        (torch.Size([1, 4, 10, 10]), torch.Size([1, 4, 10]))
    """
    model = getattr(model, "_orig_mod", model)  # of what torch.compile gave
    if not isinstance(model, nn.Module):
        raise InvalidType(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    names = [name for name, _ in model.named_modules()]
    layers = None if layers is None else _all_of("layers", [layers] if isinstance(layers, str) else layers, str)
    heads = None if heads is None else _all_of("heads", heads, int)
    raise_problems(
        [f"layers: unknown module {name!r}{did_you_mean(name, names)}" for name in layers or () if name not in names]
    )
    keeping = Keeping(keep, values, offload, limit)
    raise_problems([f"heads: expected numbers from 0, got {head}" for head in heads or () if head < 0])
    raise_problems(["heads: a number comes twice"] if heads and len(set(heads)) < len(heads) else [])
    measures = as_measures(measure)
    if keep == "measures" and not measures:
        raise InvalidArgument("keep: 'measures' needs something to measure: measure=['entropy', 'received']")
    interventions = Interventions(ablate or {}, knockout or {})
    raise_problems(interventions.objections(names))
    return Watch(model, measures, layers, heads, keeping, interventions)


def _all_of(name: str, given: Any, kind: type[Thing]) -> tuple[Thing, ...]:
    """What an argument lists, of which all is of one kind."""
    found = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise InvalidType(f"{name}: expected several of {kind.__name__}, got {given!r:.80}")
    listed = tuple(found)
    wrong = [each for each in listed if isinstance(each, bool) or not isinstance(each, kind)]
    if wrong:
        raise InvalidType(f"{name}: expected several of {kind.__name__}, got {wrong[0]!r:.80}")
    raise_problems([] if listed else [f"{name}: expected at least one; leave it out for all"])
    return listed
