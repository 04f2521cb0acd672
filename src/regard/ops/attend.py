"""The operation: make the request, choose a kernel, run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard.errors import InvalidArgument, InvalidType, raise_problems
from regard.ops.kernels.base import KernelInputs
from regard.ops.kernels.dispatch import choose
from regard.ops.masks import MaskLike
from regard.ops.measures import MeasureLike, as_measures
from regard.ops.request import make_request
from regard.ops.scores import Score
from regard.ops.tree import describe_tensor
from regard.ops.weight_matrix import WeightMatrix


@dataclass(frozen=True, eq=False)
class AttentionOutput:
    """What attention gives.

    Args:
        output: (batch, heads, queries, value_dim) from `attend`; (batch, queries, d_model) from an attention layer,
            (nodes, width) on a graph.
        weights: A view of the weights, (batch, heads, queries, keys); it holds query and key, and computes what it is
            asked.
        measured: The answers to `measure`, by name.
        value: What the weights are weights of, (batch, value_heads, keys, value_dim); None where the output of a head
            is not their weighted sum alone.
    """

    output: Float[Tensor, "*batch queries width"]
    weights: WeightMatrix
    measured: Mapping[str, Any]
    value: Float[Tensor, "batch value_heads keys value_dim"] | None = None

    def __repr__(self) -> str:
        answers = ", ".join(f"{name!r}: {describe_tensor(answer)}" for name, answer in self.measured.items())
        return (
            f"AttentionOutput(output={describe_tensor(self.output)}, weights={self.weights!r}, measured={{{answers}}})"
        )


def attend(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch value_heads keys value_dim"],
    *,
    mask: MaskLike | None = None,
    score: Score | str | None = None,
    scale: float | None = None,
    offset: int | None = None,
    dropout: float = 0.0,
    measure: MeasureLike = (),
    kernel: str | None = None,
) -> AttentionOutput:
    """Attend: ``output = dropout(softmax(mask(score(query, key)))) · value``, with answers about the weights.

    Args:
        query: (batch, heads, queries, head_dim), float64, float32, bfloat16 or float16.
        key: (batch, kv_heads, keys, head_dim); kv_heads divides heads.
        value: (batch, value_heads, keys, value_dim); value_heads divides heads, and mostly is kv_heads.
        mask: A rule (`Causal`, `Padding`, `Window`, `Prefix`, `Documents`, `Neighbours`; combined with ``&``, ``|``,
            ``~``), a function ``(batch, head, query, key) -> bool``, FlexAttention's BlockMask, or a bool tensor that
            broadcasts to (batch, heads, queries, keys). True means may attend. None lets every query see every key.
        score: The rule for scores; None is the scaled dot product.
        scale: What scores are multiplied with; None is the rule's own, 1/√head_dim.
        offset: Query i stands at position i + offset; None is keys − queries, so that the queries are the last ones.
        dropout: The probability with which a weight that makes the output is dropped. Answers are before dropout.
        measure: What to ask of the weights: names (``"entropy"``, ``"received"``, ``"lse"``), measures (``TopK(8)``),
            several of these, or a dict that names them.
        kernel: Force a kernel by name (`regard info` lists them); None takes the first that can.

    Returns:
        AttentionOutput: The output, (batch, heads, queries, value_dim), in the dtype of value; a view of the weights; the
            answers, from the same pass, in float32 (float64 for float64). A row that may see no key has output 0.

    Raises:
        InvalidArgument: If shapes, dtypes, devices or head counts do not fit, or a name is unknown; all objections at
            once.
        InvalidType: If an argument is of the wrong type.
        KernelNotSupported: If the forced kernel cannot serve the call; its reasons are given.

    Gradients are exact and of the first order, by `torch.func` too; second derivatives and forward mode want
    ``kernel="reference"``. Autocast changes nothing: what is given says the dtype. A NaN or an infinity reaches the
    rows that may see it, measures included; in a value that a mask forbids it may reach other rows, and in ``fused``
    it is what torch makes of it. Under `torch.compile` and `torch.export` a call is one operator, for every length by
    ``dynamic=True``; so are the measures and `dense` of its weights. A mask, score or measure of one's own in Python
    breaks the graph, and so do an index and a product, ``W[0, 3]`` and ``W @ x``; ``fullgraph=True`` refuses them.

    Memory:
        O(queries + keys), forward and backward. Only the kernel ``reference`` holds the matrix; ``short`` keeps up to
        128 × 128 weights of each head for the backward pass, and ``fused`` may hold 2²² cells.

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    Example:
        >>> import regard, torch
        >>> query, key, value = torch.randn(3, 1, 8, 100, 64).unbind(0)
        >>> att = regard.attend(query, key, value, mask=regard.Causal(), measure=["entropy", regard.TopK(4)])
        >>> att.output.shape, att.weights.shape
        (torch.Size([1, 8, 100, 64]), torch.Size([1, 8, 100, 100]))
        >>> att.measured["entropy"].shape, att.measured["topk"].indices.shape
        (torch.Size([1, 8, 100]), torch.Size([1, 8, 100, 4]))
    """
    request = make_request(query, key, value=value, mask=mask, score=score, scale=scale, offset=offset)
    measures = as_measures(measure)
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)):
        raise InvalidType(f"dropout: expected a probability, got {dropout!r}")
    objections = [] if 0 <= dropout < 1 else [f"dropout: expected a probability from 0 to below 1, got {dropout}"]
    for each in measures.values():
        objections += each.objections(request.shape, query.device)
    raise_problems(objections, InvalidArgument)
    job = KernelInputs(request, value, measures, dropout)
    output, measured = choose(job, kernel).run(job)
    assert output is not None
    return AttentionOutput(output, WeightMatrix(request), measured, value)


def weights(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    *,
    mask: MaskLike | None = None,
    score: Score | str | None = None,
    scale: float | None = None,
    offset: int | None = None,
) -> WeightMatrix:
    """The weight matrix of query and key, as a view: nothing is computed until it is asked.

    Args:
        query: As in `attend`.
        key: As in `attend`.
        mask: As in `attend`.
        score: As in `attend`.
        scale: As in `attend`.
        offset: As in `attend`.

    Returns:
        WeightMatrix: (batch, heads, queries, keys).

    Raises:
        InvalidArgument: If shapes, dtypes, devices or head counts do not fit; all objections at once.
        InvalidType: If an argument is of the wrong type.

    Example:
        >>> import regard, torch
        >>> W = regard.weights(torch.randn(1, 8, 5000, 64), torch.randn(1, 8, 5000, 64))
        >>> W[0, 3, 120].shape, W.entropy().shape
        (torch.Size([5000]), torch.Size([1, 8, 5000]))
    """
    return WeightMatrix(make_request(query, key, mask=mask, score=score, scale=scale, offset=offset))
