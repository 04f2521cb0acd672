"""Lines that people write for a tensor of weights give the same for a matrix that is computed on demand."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.errors import InvalidArgument, StaleView
from regard.ops import ScoreMatrix, WeightMatrix, tensor_functions, weights
from regard.ops.masks import Causal, Padding
from regard.ops.matrix import Matrix
from regard.ops.matrix_stack import MatrixStack
from regard.ops.tensor_functions import TensorFunctions

B, H, Q, K, D = 2, 4, 7, 7, 8
MASK = torch.tensor([5, 7])

LINES = {
    # rollout (Abnar and Zuidema) and its many versions
    "mean over heads": lambda a: a.mean(1),
    "mean by name": lambda a: a.mean(dim=1),
    "mean that keeps the axis": lambda a: torch.mean(a, dim=1, keepdim=True),
    "max over heads": lambda a: a.max(dim=1)[0],
    "min over heads": lambda a: a.min(axis=1)[0] if isinstance(a, Tensor) else a.min(1)[0],
    "amax over heads": lambda a: a.amax(1),
    "amin": lambda a: torch.amin(a, (1, 2)),
    "with the residual": lambda a: 0.5 * a.mean(1) + 0.5 * torch.eye(Q),
    "normalized": lambda a: a / a.sum(-1, keepdim=True),
    "residual added first": lambda a: (a + torch.eye(Q)) / 2,
    "product with itself": lambda a: a @ a,
    "matmul": lambda a: torch.matmul(a, a.transpose(-1, -2)),
    "bmm": lambda a: torch.bmm(a[0], a[0]),
    "flat and sorted": lambda a: a.flatten(2).sort(-1).values,
    "discarded": lambda a: a.masked_fill(a < 0.1, 0),
    # statistics
    "sum over keys": lambda a: a.sum(-1),
    "sum over queries": lambda a: a.sum(dim=-2),
    "sum of all": lambda a: a.sum(),
    "mean of all": lambda a: torch.mean(a),
    "mean of batch and heads": lambda a: a.mean(dim=(0, 1)),
    "mean of queries and keys": lambda a: a.mean((2, 3)),
    "sum of heads and keys": lambda a: a.sum((1, 3)),
    "sum of heads and queries": lambda a: a.sum([1, 2], keepdim=True),
    "std": lambda a: a.std(-1),
    "var": lambda a: torch.var(a, dim=-1),
    "largest": lambda a: a.max(),
    "smallest": lambda a: float(a.min()),
    "argmax": lambda a: a.argmax(-1),
    "argmax of all": lambda a: a.argmax(),
    "strongest": lambda a: torch.max(a, dim=-1),
    "topk": lambda a: a.topk(3).values,
    "topk indices": lambda a: torch.topk(a + 1e-3 * torch.arange(K), 3, dim=-1).indices,
    "topk of queries": lambda a: a.topk(2, dim=2).values,
    "least": lambda a: a.topk(2, largest=False).values,
    "norm": lambda a: a.norm(dim=-1),
    "entropy by hand": lambda a: -(a * torch.log(a + 1e-9)).sum(-1),
    "quantile": lambda a: a.quantile(0.5),
    "cumulative": lambda a: a.cumsum(-1),
    "count": lambda a: (a > 0.2).sum(),
    "edges": lambda a: (a > 0.2).nonzero(),
    "edges by axis": lambda a: torch.gt(a, 0.2).nonzero(as_tuple=True),
    "edges of torch": lambda a: torch.nonzero(a >= 0.15),
    "edges of a head": lambda a: (a > 0.1)[0, 3].nonzero(),
    "degree": lambda a: (a > 0.1).sum(-2),
    "any": lambda a: (a > 0.3).any(dim=-1),
    "all": lambda a: (a <= 1).all(),
    "few": lambda a: torch.count_nonzero(a < 0.05, dim=(1, 3)),
    "strong ones": lambda a: a * (a > 0.2),
    "list of strong ones": lambda a: a[a > 0.2],
    "scores of strong ones": lambda a: (2 * a)[(a > 0.2).nonzero(as_tuple=True)],
    "kinds of numbers": lambda a: [
        each.is_floating_point() for each in (a, a > 0.2, a * a, (a > 0.1) * (a < 0.2), a * (a > 0.2))
    ],
    "outside": lambda a: (~(a > 0.2)).float().mean(),
    "filled": lambda a: a.masked_fill(a < 0.2, 0.0),
    "where": lambda a: torch.where(a > 0.2, a, torch.zeros(())),
    "greater": lambda a: torch.gt(a, 0.1),
    "equal": lambda a: (a == 0).sum(),
    "not equal": lambda a: a != a[0, 0, 0, 0],
    "no diagonal": lambda a: a.diagonal(9, 2, 3),
    "an axis of numpy": lambda a: a.sum(int(np.int64(-1))),
    "range test": lambda a: ((a >= 0) & (a <= 1)).all(),
    # shapes
    "size": lambda a: a.size(),
    "size of an axis": lambda a: a.size(-1),
    "dim": lambda a: (a.dim(), a.ndim, a.numel(), len(a), len(a.shape)),
    "unpacked": lambda a: [*a.shape],
    "squeeze": lambda a: a[:1].squeeze(0),
    "unsqueeze": lambda a: a.unsqueeze(1),
    "permute": lambda a: a.permute(0, 2, 3, 1),
    "permute to the transpose": lambda a: a.permute(0, 1, 3, 2).sum(-1),
    "transpose": lambda a: a.transpose(1, 2),
    "reshape": lambda a: a.reshape(B * H, Q, K),
    "view": lambda a: a.view(-1, K),
    "flatten": lambda a: torch.flatten(a, 0, 1),
    "heads of a group": lambda a: a.unflatten(1, (2, 2)).mean(2),
    "repeat": lambda a: a.repeat(1, 2, 1, 1),
    "chunk": lambda a: a.chunk(2, 1)[1],
    "unbind": lambda a: a.unbind(1)[2],
    "diagonal": lambda a: a.diagonal(dim1=-2, dim2=-1),
    "previous token": lambda a: torch.diagonal(a, -1, 2, 3),
    "trace": lambda a: torch.diagonal(a, dim1=-2, dim2=-1).sum(-1),
    "diagonal of others": lambda a: a.diagonal(0, 0, 1),
    "lower triangle": lambda a: a.tril(),
    # indexing
    "head": lambda a: a[0, 3],
    "first token left out": lambda a: a[:, :, 0, 1:],
    "columns": lambda a: a[..., 0],
    "heads in turn": lambda a: [head.sum() for head in a[0]],
    "batch in turn": lambda a: [each.shape for each in a],
    "index select": lambda a: a.index_select(1, torch.tensor([1, 3])),
    "gather": lambda a: a.gather(-1, torch.zeros(B, H, Q, 1, dtype=torch.long)),
    "mask of padding": lambda a: a * (torch.arange(K) < MASK[:, None])[:, None, None],
    # other dtypes, devices, libraries
    "to the cpu": lambda a: a.cpu()[0],
    "to numpy": lambda a: a.detach().cpu().numpy(),
    "asarray": lambda a: np.asarray(a),
    "as_tensor": lambda a: torch.as_tensor(a),
    "from_dlpack": lambda a: torch.from_dlpack(a),
    "numpy's mean": lambda a: np.asarray(a).mean((0, 1)),
    "float": lambda a: a.float()[1],
    "half": lambda a: a.half(),
    "double": lambda a: a.double(),
    "to a dtype": lambda a: a.to(torch.bfloat16),
    "as another": lambda a: a.type_as(torch.zeros(1, dtype=torch.float64)),
    "list": lambda a: a.tolist(),
    "clone": lambda a: a.clone().mul_(2),
    "contiguous": lambda a: a.contiguous()[0],
    "dtype and device": lambda a: (a.dtype, a.device, a.is_cuda, a.requires_grad, a.is_floating_point()),
    "zeros like it": lambda a: torch.zeros_like(a),
    "new zeros": lambda a: a.new_zeros(3),
    # arithmetic
    "scaled": lambda a: 2 * a,
    "difference": lambda a: a - a.mean(-1, keepdim=True),
    "from one": lambda a: 1 - a,
    "log": lambda a: a.log(),
    "log of torch": lambda a: torch.log(a),
    "square": lambda a: (a**2).sum(),
    "divided by": lambda a: torch.ones(K) / (a + 1),
    "negative": lambda a: (-a).abs(),
    "a tensor on the left": lambda a: torch.ones(Q, K) * a,
    "layer norm": lambda a: nn.functional.layer_norm(a, (K,)),
    "max pool": lambda a: nn.functional.max_pool2d(a, 2),
    "interpolate": lambda a: nn.functional.interpolate(a, scale_factor=2),
    # products with values
    "output": lambda a: a @ torch.arange(K * D * 1.0).view(K, D),
    "output of heads": lambda a: torch.matmul(a, VALUE),
    "einsum": lambda a: torch.einsum("bhqk,bhkd->bhqd", a, VALUE),
    "einsum of a mean": lambda a: torch.einsum("bhqk,bkd->bqd", a, VALUE[:, 0]),
    "einsum with a vector": lambda a: torch.einsum("b h i j, j -> b h i", a, torch.arange(K * 1.0)),
    "einsum over queries": lambda a: torch.einsum("bhqk,bhqd->bhkd", a, VALUE),
    "einsum of both": lambda a: torch.einsum("bhqk,bhqk->bh", a, torch.ones(B, H, Q, K)),
    "einsum of two": lambda a: torch.einsum("bhij,bhjk->bhik", a, a),
    "a vector on the left": lambda a: torch.arange(Q * 1.0) @ a,
    "a matrix on the left": lambda a: torch.ones(3, Q) @ a,
    # all layers
    "stack": lambda a: torch.stack([a, a]),
    "stack of layers": lambda a: torch.stack((a, a, a), dim=1).sum(-1),
    "mean of layers": lambda a: torch.stack([a, a]).mean((0, 2)),
    "layer of a stack": lambda a: torch.stack([a, a])[1, 0],
    "head of all layers": lambda a: torch.stack([a, a])[:, 0, 3],
    "some layers": lambda a: torch.stack([a, a, a])[1:].amax(0),
    "list of a stack": lambda a: torch.stack([a, a])[[1, 0], :, :, 2],
    "cat": lambda a: torch.cat([a, a], dim=1),
    "mean of a cat": lambda a: torch.cat([a, a], 1).mean(1),
    "sum of a cat": lambda a: torch.cat([a, a], -1).sum(-2),
    "cat with another": lambda a: torch.cat([a, torch.zeros(B, 1, Q, K)], 1),
    "stack of squeezed": lambda a: torch.stack([each[0].squeeze(0) for each in (a, a)]),
    "stack of stacks": lambda a: torch.stack([torch.stack([a, a]), torch.stack([a, a])], dim=1)[1, 0, 1],
    "stack with an axis": lambda a: torch.stack([a, a], axis=2).sum(-1),
    "pointwise after a stack": lambda a: torch.stack([a, a]) * 2,
}
VALUE = torch.randn(B, H, K, D, generator=torch.Generator().manual_seed(1))


def matrices() -> dict[str, TensorFunctions]:
    random = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, B, H, Q, D, generator=random)
    W = weights(query, key)
    causal = weights(query, key[:, :2], mask=Causal() & Padding(MASK))
    return {
        "weights": W,
        "causal, with padding": WeightMatrix(causal.request, torch.arange(Q) < MASK[:, None]),
        "scores": W.scores,
        "transposed": W.mT,
    }


def assert_same(actual, expected):
    if isinstance(expected, (list, tuple)) and not isinstance(expected, torch.Size):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, (Tensor, np.ndarray)):
        actual = actual.dense() if isinstance(actual, TensorFunctions) else actual
        assert actual.dtype == expected.dtype
        tolerance = 1e-2 if expected.dtype in (torch.bfloat16, torch.float16) else 3e-5
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-5, abs=1e-6)
    else:
        assert actual == expected


@contextmanager
def naming(line):
    """Name the line in an error."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the line {line!r}")
        raise


@pytest.mark.parametrize("kind", matrices())
def test_lines_give_what_they_give_for_a_tensor(kind):
    matrix = matrices()[kind]
    assert len(LINES) >= 60
    for name, line in LINES.items():
        with naming(name):
            assert_same(line(matrix), line(matrix.dense().contiguous()))


CHEAP = {
    "sum over keys": lambda a, x: a.sum(-1),
    "sum over queries": lambda a, x: torch.sum(a, -2),
    "mean of all": lambda a, x: a.mean(),
    "largest": lambda a, x: a.max(),
    "largest of each row": lambda a, x: a.amax(-1),
    "strongest": lambda a, x: torch.max(a, -1).values,
    "topk": lambda a, x: torch.topk(a, 3).values,
    "diagonal": lambda a, x: a.diagonal(-1, dim1=-2, dim2=-1),
    "product": lambda a, x: torch.matmul(a, x),
    "product on the left": lambda a, x: x @ a,
    "einsum": lambda a, x: torch.einsum("bhqk,k->bq", a, x),
    "einsum over queries": lambda a, x: torch.einsum("bhij,id->bhjd", a, x[:, None]),
    "transposed": lambda a, x: a.transpose(2, 3).sum(-1),
    "permuted": lambda a, x: a.permute(0, 1, 3, 2).topk(2).values,
    "layers": lambda a, x: torch.stack([a, a]).sum((0, -1)),
    "layers in a row": lambda a, x: torch.cat([a, a], 1).mean((1, 2)),
    "strong ones": lambda a, x: (a * (a > 0.5)).sum(-1),
    "on the cpu": lambda a, x: a.cpu().float().contiguous().sum(2) if a.dtype != torch.float64 else a.cpu().sum(2),
}
"""From a matrix and a vector as long as its queries and its keys."""


def test_cheap_forms_hold_no_matrix(monkeypatch):
    random = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 1, 3_000, 4, generator=random)
    for module in ("matrix", "matrix_stack", "row_blocks", "tensor_functions", "weight_matrix"):
        monkeypatch.setattr(f"regard.ops.{module}.DENSE_LIMIT", 2**22)  # of 9 million cells
    for cls in (Matrix, MatrixStack):
        monkeypatch.setattr(cls, "dense", lambda *arguments: pytest.fail("the dense matrix is computed"))
    for name, line in CHEAP.items():
        with naming(name):
            result = line(weights(query, key, mask=Causal()), torch.randn(3_000, generator=random))
            assert torch.isfinite(result).all()
            assert result.numel() <= 12_000


def test_cheap_forms_have_gradients():
    random = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 2, 3, 9, 4, generator=random, dtype=torch.float64).requires_grad_().unbind(0)
    x = torch.randn(9, generator=random, dtype=torch.float64)
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    dense = torch.softmax((query @ key.mT / 2).masked_fill(future, -torch.inf), -1)
    for name, line in CHEAP.items():
        found = []
        for matrix in (weights(query, key, mask=Causal()), dense):
            result = line(matrix, x)
            factor = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).view(result.shape)
            found.append(torch.autograd.grad((result * factor).sum(), (query, key), retain_graph=True))
        with naming(name):
            torch.testing.assert_close(*found)


def test_a_detached_matrix_has_no_gradient():
    query, key = torch.randn(2, 1, 2, 5, 4).requires_grad_().unbind(0)
    W = weights(query, key)
    assert W.requires_grad
    assert W.mT.requires_grad
    assert torch.stack([W, W]).requires_grad
    for detached in (W.detach(), W.mT.detach(), torch.stack([W, W]).detach()):
        assert not detached.requires_grad
        assert not detached.sum().requires_grad


@pytest.mark.parametrize("name", ["retain_grad", "register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_for_a_gradient_that_no_graph_has_are_refused(name):
    query = torch.randn(1, 1, 5, 4, requires_grad=True)
    with pytest.raises(AttributeError, match=f"has no '{name}', .* of regard.watch\\(model, weight_gradients=True\\)"):
        getattr(weights(query, query), name)


def test_the_truth_of_a_matrix_is_that_of_its_only_cell():
    query = torch.randn(1, 1, 1, 4)
    assert weights(query, query)
    with pytest.raises(RuntimeError, match="of 2 cells is ambiguous"):
        bool(weights(query, query.repeat(1, 1, 2, 1)))


def test_what_needs_the_whole_matrix_says_how_large_it_is_and_what_to_call():
    W = weights(*torch.randn(2, 1, 2, 20_000, 4).unbind(0))
    conversions = (lambda: np.asarray(W), lambda: torch.as_tensor(W), lambda: W.tolist())
    for line in (lambda: W.std(), lambda: W * 2, lambda: torch.log(W), *conversions):
        with pytest.raises(InvalidArgument, match=r"^\w+: needs all 800,000,000 cells as a tensor, the limit is"):
            line()
    with pytest.raises(InvalidArgument, match=r"^sort: .*; use W.topk\(k\)"):
        W.sort()
    with pytest.raises(InvalidArgument, match="the result would hold 400,000,000 cells"):
        W.mean(1)


def test_a_view_cannot_be_changed():
    W = weights(*torch.randn(2, 1, 2, 5, 4).unbind(0))
    with pytest.raises(TypeError, match=r"a WeightMatrix is computed on demand and cannot be changed; change W.dense"):
        W[0, 0] = 0
    with pytest.raises(AttributeError, match=r"no 'mul_', because it is a view .*; call W.dense\(\).mul_"):
        W.mul_(2)
    before = W
    W *= 2
    assert type(W) is Tensor
    assert torch.equal(W, before.dense() * 2)


def test_layers_stay_lazy():
    layers = [weights(*torch.randn(2, 1, 2, 20_000, 4).unbind(0)) for _ in range(3)]
    stack = torch.stack(layers)
    assert repr(stack) == "MatrixStack(3 × WeightMatrix, shape=(3, 1, 2, 20000, 20000))"
    assert stack[1] is layers[1]
    assert [*stack] == layers
    assert stack[1:].matrices == layers[1:]
    assert isinstance(torch.cat(layers, 1), MatrixStack)
    assert isinstance(stack.detach().cpu().float(), MatrixStack)
    assert torch.equal(stack[2, 0, 1, 7], layers[2][0, 1, 7])
    assert torch.equal(stack[:, 0, 1, 7:9], torch.stack([layer[0, 1, 7:9] for layer in layers]))
    with pytest.raises(InvalidArgument, match="the result would hold 2,400,000,000 cells"):
        stack.dense()


def test_indices_of_layers():
    layers = [weights(*torch.randn(2, 2, 4, 6, 4).unbind(0)) for _ in range(3)]
    indices = [
        *(0, -1, (0, 1), (slice(None), 0), (..., 2), (1, ..., slice(1, 3)), ([0, 1],), (slice(0, 0),)),
        *((slice(None), 0, 1, 2, 1), (None, 1), (slice(None), [0, 1], 0)),
    ]
    for dim in range(5):
        stack, dense = torch.stack(layers, dim), torch.stack([layer.dense() for layer in layers], dim)
        assert (stack.shape, stack.dtype, stack.device) == (dense.shape, dense.dtype, dense.device)
        for index in indices:
            with naming((dim, index)):
                assert_same(stack[index], dense[index])


def test_every_method_of_a_tensor_is_there():
    """Or says why not: what changes a tensor in place."""
    W = weights(*torch.randn(2, 1, 2, 5, 4).unbind(0))
    for name in dir(Tensor):
        if name.startswith("_") or name in (
            "grad",
            "imag",
            "names",
            "H",
            "grad_fn",
            "volatile",
        ):  # of a real tensor, 4 axes
            continue
        if name.endswith("_") or name in tensor_functions.GRADIENT_HOOKS:
            assert not hasattr(W, name), name
        else:
            assert hasattr(W, name), name
    for name in tensor_functions.OWN_FUNCTIONS:
        assert hasattr(torch, name) or hasattr(Tensor, name), name
    assert issubclass(ScoreMatrix, TensorFunctions)


def test_what_torch_refuses_is_refused():
    W = weights(*torch.randn(2, 1, 2, 5, 4).unbind(0))
    for matrix in (W, W.scores, W.mT, torch.stack([W, W])):
        for dims in ((3, -matrix.ndim + 3), (2, 2)):
            with pytest.raises(RuntimeError, match="dim: expected each axis once"):
                matrix.mean(dims, True)
        for name, arguments in (("transpose", (2, 7)), ("diagonal", (0, 2, 7)), ("sum", (-6,))):
            with pytest.raises(IndexError):
                getattr(matrix, name)(*arguments)
        with pytest.raises(TypeError, match="keepdim: expected a bool, got 1"):
            matrix.sum(0, 1)
    with pytest.raises(IndexError, match="dim: expected -4 to 3, got 4"):
        W.sum(4)
    with pytest.raises(RuntimeError, match="einsum"):
        torch.einsum("bhqk,xyz->bh", W, torch.ones(2))
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        torch.cat([W, W.mT, torch.ones(2, 2, 5, 5)], -1)


def test_changes_in_place_are_noticed():
    for name, line in CHEAP.items():
        query, key = torch.randn(2, 1, 2, 9, 4).unbind(0)
        W = weights(query, key)
        key.mul_(3)
        with naming(name), pytest.raises(StaleView):
            line(W, torch.ones(9))


def test_matrices_are_compared_by_cell_and_hashed_by_identity():
    W = weights(*torch.randn(2, 1, 2, 5, 4).unbind(0))
    assert torch.equal(W.dense() == W, torch.ones(W.shape, dtype=torch.bool))
    assert not (W.dense() != W).any()
    assert (W == None) is False  # noqa: E711
    assert {W: 1}[W] == 1


def test_functions_of_numpy_and_ties():
    for matrix in matrices().values():
        array = matrix.numpy()
        for function in (np.sum, np.mean, np.max, np.min):
            for axis in (None, -1, (1, 2)):
                np.testing.assert_allclose(
                    function(matrix, axis=axis), function(array, axis=axis), rtol=1e-5, atol=1e-6
                )
    equal = weights(torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 40, 4))
    for matrix in (equal, equal.scores, equal.mT, torch.stack([equal, equal]), torch.cat([equal, equal], -1)):
        assert (matrix.argmax(-1) == 0).all()  # the first of several
        assert (matrix.max(-1).indices == 0).all()
