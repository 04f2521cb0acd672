"""attend: validate the request, select a kernel, run it. weights: validate the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from regard.checks import Checks, describe
from regard.ops.kernels.base import Kernel, KernelInputs
from regard.ops.kernels.dispatch import as_kernel, prepare
from regard.ops.masks.base import MaskLike
from regard.ops.measures.base import MeasureLike, as_measures
from regard.ops.request import check_request, make_request
from regard.ops.scores.base import ScoreLike
from regard.ops.weight_matrix import WeightMatrix


@dataclass(frozen=True, eq=False)
class AttentionOutput:
    """The result of attention.

    Args:
        output: (batch, heads, queries, value_dim) from `attend`; (batch, queries, d_model) from an attention layer,
            (nodes, width) on a graph.
        weights: The weight matrix, (batch, heads, queries, keys), computed on demand from query and key.
        measured: The results of `measure`, by name.
        value: The value, (batch, value_heads, keys, value_dim); None where a head's output is not the weights times a
            value.
        head_output: The output of each head, (batch, heads, queries, value_dim), from which an attention layer computes
            its own.
    """

    output: Float[Tensor, "*batch queries width"]
    weights: WeightMatrix
    measured: Mapping[str, Any]
    value: Float[Tensor, "batch value_heads keys value_dim"] | None = None
    head_output: Float[Tensor, "batch heads tokens value_dim"] | None = None

    def __repr__(self) -> str:
        measured = ", ".join(f"{name!r}: {describe(result)}" for name, result in self.measured.items())
        return f"AttentionOutput(output={describe(self.output)}, weights={self.weights!r}, measured={{{measured}}})"


def attend(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    value: Float[Tensor, "batch value_heads keys value_dim"],
    *,
    mask: MaskLike | None = None,
    score: ScoreLike | None = None,
    scale: float | None = None,
    offset: int | None = None,
    dropout: float = 0.0,
    measure: MeasureLike = (),
    kernel: str | Kernel | None = None,
) -> AttentionOutput:
    """Attention with access to its weights: ``output = dropout(softmax(mask(score(query, key)))) @ value``.

    Args:
        query: (batch, heads, queries, head_dim), float64, float32, bfloat16 or float16.
        key: (batch, kv_heads, keys, head_dim); kv_heads divides heads.
        value: (batch, value_heads, keys, value_dim); value_heads divides heads, and usually equals kv_heads.
        mask: Which keys each query may attend to: `Causal`, `Padding`, `Window`, `Prefix`, `Documents`, `Neighbors`,
            combined by ``&``, ``|``, ``~``; a function ``(b, h, q_idx, kv_idx) -> bool``; FlexAttention's BlockMask; or
            a bool tensor broadcastable to (batch, heads, queries, keys), True where a query may attend. Default: all.
        score: Input of the softmax: a score, its name, or a function ``(score, b, h, q_idx, kv_idx) -> score`` that
            changes the scaled dot product, FlexAttention's `score_mod`; see `ScoreMod`. Default: the scaled dot
            product.
        scale: Factor of the scores, the same for all parts of a sum. Default: that of the score (of a sum, of its
            first part that defines `Score.default_scale`), 1 for `Bilinear` and `Additive`, 1/√head_dim for others.
        offset: Query i has position i + offset. Default: keys − queries, so that the queries are the last positions.
        dropout: Probability of dropping a weight from the output. Measures are computed before dropout.
        measure: What to compute about the weights in the same pass: names (``"entropy"``, ``"received"``, ``"lse"``),
            measures (``TopK(8)``), several of these, or a dict that names the results.
        kernel: Name of the kernel to use, or a kernel; `regard info` lists them. Default: the first suitable one.

    Returns:
        AttentionOutput: The output, (batch, heads, queries, value_dim) in the dtype of value; the weight matrix,
            computed on demand; the measures, in float32 (float64 for float64). A row that may attend to no key has
            output 0.

    Raises:
        InvalidArgument: If shapes, dtypes, devices or head counts do not fit, an axis is empty, or a name is unknown;
            every problem is in the message.
        InvalidType: If an argument has a wrong type.
        KernelNotSupported: If the named kernel cannot compute this call; the message says why.

    Gradients are exact, of any order, also in forward mode and under `torch.func`. Autocast has no effect: results
    follow the input dtypes. NaN and infinity propagate to every row that may attend to them; in masked values they can
    reach other rows. ``sdpa`` behaves as torch does. Under `torch.compile` and `torch.export` a call is one operator,
    Regard's or SDPA's, and so are measures and `dense` of its weights. Masks, scores and measures written in Python, a
    `Neighbors` made in compiled code, indexing (``W[0, 3]``, `columns`), products (``W @ x``) and ``W.mT.topk`` cause a
    graph break and stay correct; with ``fullgraph=True`` they raise.

    Memory:
        O(queries + keys), forward and backward. ``sdpa`` is only chosen if it holds at most 2**22 cells of a mask or
        matrix. If you name them, ``sdpa`` may hold more, and ``reference`` holds the whole matrix.

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need", equation 1.

    Examples:
        >>> import regard, torch
        >>> query, key, value = torch.randn(3, 1, 8, 100, 64).unbind(0)
        >>> att = regard.attend(query, key, value, mask=regard.Causal(), measure=["entropy", regard.TopK(4)])
        >>> att.output.shape, att.weights.shape
        (torch.Size([1, 8, 100, 64]), torch.Size([1, 8, 100, 100]))
        >>> att.measured["entropy"].shape, att.measured["topk"].indices.shape
        (torch.Size([1, 8, 100]), torch.Size([1, 8, 100, 4]))
    """
    checks = Checks()
    request = check_request(checks, {"query": query, "key": key, "value": value}, mask, score, scale, offset)
    if type(dropout) is not float or dropout:
        checks.number("dropout", dropout, low=0, below=1)
    has_measures = not isinstance(measure, tuple) or len(measure) > 0  # without any, no time is spent on them
    measures = as_measures(measure, checks) if has_measures else {}
    if request is not None:
        for each in measures.values():
            each.check(checks, request.shape, query.shape[3], query.device)
    checks.raise_problems()
    assert request is not None
    inputs = KernelInputs(value, request, measures, float(dropout))
    output, measured = prepare(inputs, kernel).run(inputs)
    assert output is not None
    return AttentionOutput(output, WeightMatrix(request), measured, value, output)


def weights(
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch kv_heads keys head_dim"],
    *,
    mask: MaskLike | None = None,
    score: ScoreLike | None = None,
    scale: float | None = None,
    offset: int | None = None,
    kernel: str | Kernel | None = None,
) -> WeightMatrix:
    """The weight matrix of query and key. Nothing is computed until it is used.

    Args:
        query: As in `attend`.
        key: As in `attend`.
        mask: As in `attend`.
        score: As in `attend`.
        scale: As in `attend`.
        offset: As in `attend`.
        kernel: Name of the kernel that computes what you read, or a kernel; one that cannot compute it then raises
            `KernelNotSupported`. Default: for each read, the first suitable one.

    Returns:
        WeightMatrix: (batch, heads, queries, keys).

    Raises:
        InvalidArgument: If there is no kernel of this name, or shapes, dtypes, devices or head counts do not fit; every
            problem is in the message.
        InvalidType: If an argument has a wrong type.

    Examples:
        >>> import regard, torch
        >>> W = regard.weights(torch.randn(1, 8, 5000, 64), torch.randn(1, 8, 5000, 64))
        >>> W[0, 3, 120].shape, W.entropy().shape
        (torch.Size([5000]), torch.Size([1, 8, 5000]))
    """
    chosen = None if kernel is None else as_kernel(kernel)
    request = make_request(query, key, mask=mask, score=score, scale=scale, offset=offset)
    return WeightMatrix(request, kernel=chosen)
