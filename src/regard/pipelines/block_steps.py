"""The steps of a trace after the attention: residuals, the feed-forward network, and the words that come next."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from regard.models import Bert
from regard.nn.feed_forward import FeedForward
from regard.nn.transformer_layer import Residual, TransformerLayer, TransformerStack
from regard.pipelines.embedding_steps import add_norm
from regard.tracing.trace import TraceBuilder

ROWS = "query feature"
TOP = 3
"""How many words are shown for each position."""

Names = Callable[[Sequence[int]], Sequence[str]]
"""The tokens of some ids."""


def add_block(builder: TraceBuilder, model: nn.Module, name: str, hidden: Tensor, output: Tensor, names: Names) -> None:
    """Add the steps from the output of an attention layer to that of its block, and after the last block to words.

    Args:
        builder: Collects the steps.
        model: A Transformer, a Bert or a GPT.
        name: Name of the attention layer.
        hidden: (queries, features), what the residual connection adds to its output.
        output: (queries, features), the output of the attention, in float64.
        names: The tokens of some ids.
    """
    kind, number = name.split(".")
    stack: TransformerStack = getattr(model, "encoder" if kind == "encoder" else "decoder")
    own = stack.layers[int(number)]
    assert isinstance(own, TransformerLayer)
    layer = copy.deepcopy(own).double().cpu().eval()
    residual = layer.cross_attention_residual if kind == "cross" else layer.self_attention_residual
    why = (
        "What came in is added to what the attention found: a layer changes the vector of a token, and keeps the rest."
    )
    with torch.no_grad():
        hidden = _add_residual(builder, residual, (hidden, output), ("attention", "attention result"), why)
        if kind == "decoder" and layer.cross_attention is not None:
            return  # the cross-attention is next, which is another layer
        last = int(number) == len(stack.layers) - 1
        where = (
            "which is the last" if last else f"and the input of {kind.replace('cross', 'decoder')}.{int(number) + 1}"
        )
        hidden = _add_feed_forward(builder, layer, hidden, f"This is the output of the block, {where}.")
        if last:
            _add_words(builder, model, stack, hidden, names)


def _add_residual(
    builder: TraceBuilder, residual: Residual, terms: tuple[Tensor, Tensor], names: tuple[str, str], why: str
) -> Tensor:
    """Add the sum of x and of the output of its sublayer, and the norm of this if it is not before the sublayer."""
    (part, result), total = names, terms[0].cpu().double() + terms[1]
    added = "output" if part == "attention" else "feed-forward output"
    if residual.norm_first:
        return builder.add(result, f"x + {added}", ROWS, total, why)
    builder.add(f"{part} sum", f"x + {added}", ROWS, total, why)
    assert isinstance(residual.norm, (nn.LayerNorm, nn.RMSNorm))
    formula = add_norm(builder, residual.norm, total, "query", f"{part} ")
    return builder.add(result, formula, ROWS, residual.norm(total), "The result of the norm goes on.")


def _add_feed_forward(builder: TraceBuilder, layer: TransformerLayer, hidden: Tensor, why: str) -> Tensor:
    residual, network, x, letter = layer.feed_forward_residual, layer.feed_forward, hidden, "x"
    if residual.norm_first:
        assert isinstance(residual.norm, (nn.LayerNorm, nn.RMSNorm))
        formula, letter = add_norm(builder, residual.norm, hidden, "query", "feed-forward "), "y"
        x = residual.norm(hidden)
        builder.add("feed-forward input", formula, ROWS, x, "The result of the norm is the input of the network.")
    units = list[Tensor]()
    handle = network.fc2.register_forward_pre_hook(lambda _, arguments: units.append(arguments[0]))
    output = network(x)
    handle.remove()
    about = (
        f"Each of {network.fc2.weight.shape[1]:,} units is a weighted sum of the features of one token, and "
        f"{network.activation} then decides how much of it goes on: this is the part that looks at no other token."
    )
    builder.add("hidden units", _units_formula(network, letter), "query unit", units[0], about)
    plus = "" if network.fc2.bias is None else " + b₂"
    about = f"The units are mapped back to the {network.d_model} features of the model."
    builder.add("feed-forward output", f"hidden units W₂{plus}", ROWS, output, about)
    return _add_residual(builder, residual, (hidden, output), ("block", "block output"), why)


def _units_formula(network: FeedForward, x: str) -> str:
    first, third = (f"{x} W{letter}" + ("" if network.fc1.bias is None else f" + b{letter}") for letter in "₁₃")
    return f"{network.activation}({first})" + (f" ∘ ({third})" if network.gated else "")


def _add_words(builder: TraceBuilder, model: nn.Module, stack: TransformerStack, hidden: Tensor, names: Names) -> None:
    """Add the last norm, and logits and probabilities of the words that are most probable somewhere."""
    head = (
        model.mlm_head
        if isinstance(model, Bert)
        else None
        if stack is not getattr(model, "decoder", None)
        else model.lm_head
    )
    norm = stack.norm
    if isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
        formula = add_norm(builder, norm, hidden, "query", "final ")
        hidden = copy.deepcopy(norm).double().cpu()(hidden)
        builder.add("final output", formula, ROWS, hidden, "After the last block comes one more norm.")
    if not isinstance(head, nn.Module):
        return
    weight = next(head.parameters())
    logits = head(hidden.to(weight.device, weight.dtype)).cpu().double()
    probabilities = logits.softmax(-1)
    ids = probabilities.topk(min(TOP, logits.shape[1])).indices.flatten().unique()
    ids = ids[probabilities[:, ids].amax(0).argsort(descending=True)]
    builder.name("word", names(ids.tolist()))
    place = "that is at this place" if isinstance(model, Bert) else "that comes next"
    why = (
        f"Each of {logits.shape[1]:,} tokens gets a score, the product of its own vector with that of the position. "
        f"Shown are those that are among the {TOP} most probable somewhere."
    )
    builder.add("logits", "a score for each token of the vocabulary", "query word", logits[:, ids], why)
    why = f"The softmax makes probabilities of the scores of all tokens: which one is the word {place}?"
    builder.add("probabilities", "softmax of all logits", "query word", probabilities[:, ids], why)
