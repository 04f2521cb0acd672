"""Singular values and eigenvalues of lazy matrices, compared with torch.linalg of the dense ones in float64."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import torch

from regard.errors import InvalidArgument, InvalidType
from regard.ops import WeightMatrix, spectra, weights
from regard.ops.masks import Causal, Documents, Window

B, H, N = 16, 4, 48
EMPTY_ROWS = (torch.arange(N) % 5 != 1)[:, None]
HALVES = torch.arange(N) // (N // 2)


def matrix(mask=None, *, keys=N, queries=N, batch=B, rank_one=False, repeated=False, dtype=torch.float64):
    random = torch.Generator().manual_seed(3)
    query = torch.randn(batch, H, queries, 6, generator=random, dtype=dtype)
    key = torch.randn(batch, H // 2, keys, 6, generator=random, dtype=dtype)
    if rank_one:
        query = query[:, :, :1].repeat(1, 1, queries, 1)
    if repeated:  # two equal blocks
        query, key = (torch.cat([x[:, :, : N // 2]] * 2, 2) for x in (query, key))
    leaves = [(2 * query).requires_grad_(), key.requires_grad_()]
    return weights(*leaves, mask=mask), leaves


CASES = {
    "full": {},
    "causal": {"mask": Causal()},
    "window": {"mask": Window(9, 3)},
    "empty rows": {"mask": EMPTY_ROWS},
    "nothing": {"mask": torch.zeros(N, N, dtype=torch.bool), "batch": 1},
    "rank one": {"rank_one": True},
    "repeated": {"mask": Documents(HALVES), "repeated": True},
    "wide": {"keys": 90, "queries": 37},
    "tall": {"keys": 21, "queries": 80, "mask": Causal()},
}
"""Of 64 matrices each."""


@pytest.fixture(params=["krylov", "dense"])
def method(request, monkeypatch):
    monkeypatch.setattr(spectra, "DENSE_CELLS", 0 if request.param == "krylov" else 2**18)
    return request.param


@pytest.mark.parametrize("case", CASES)
def test_singular_values_and_their_gradients(case, method):
    W, leaves = matrix(**CASES[case])
    exact = torch.linalg.svdvals(W.dense())[..., :4]
    values = W.singular_values(4, tol=1e-12)
    assert values.shape == (*W.shape[:2], 4)
    torch.testing.assert_close(values, exact, atol=1e-10, rtol=0)
    if case in ("rank one", "nothing", "repeated"):  # a gradient of each value alone is not defined
        torch.testing.assert_close(*(gradients(each[..., :2].square().sum(), leaves) for each in (values, exact)))
        return
    factors = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
    torch.testing.assert_close(
        *(gradients((each * factors).sum(), leaves) for each in (values, exact)), atol=1e-8, rtol=0
    )


def gradients(loss, leaves):
    return torch.autograd.grad(loss, leaves, retain_graph=True)


@pytest.mark.parametrize("case", CASES)
def test_singular_vectors(case, method):
    W, _ = matrix(**{**CASES[case], "batch": 4})
    with torch.no_grad():
        U, S, V, residuals = W.svd(4, tol=1e-6)
        dense = W.dense()
    one = torch.eye(4, dtype=torch.float64).expand(*W.shape[:2], -1, -1)
    torch.testing.assert_close(U.mT @ U, one)
    torch.testing.assert_close(V.mT @ V, one)
    torch.testing.assert_close(dense @ V, U * S[..., None, :])
    torch.testing.assert_close((dense.mT @ U - V * S[..., None, :]).norm(dim=-2), residuals, atol=1e-12, rtol=1e-5)
    assert (residuals <= 1e-6 * S[..., :1] + 1e-12).all()


@pytest.mark.parametrize("case", ["full", "causal", "window", "wide", "tall"])
def test_gradients_of_singular_vectors(case, method):
    W, leaves = matrix(**CASES[case], batch=4)
    rows, columns = W.shape[2:]
    a, b = torch.randn(rows, 1, dtype=torch.float64), torch.randn(columns, 1, dtype=torch.float64)

    def loss(U, S, V):
        left, right = U.mT @ a, V.mT @ b  # (batch, heads, k, 1); each sign occurs twice
        return (left * right).sum() + (S * left.square()[..., 0]).sum()

    u, s, vh = torch.linalg.svd(W.dense(), full_matrices=False)
    expected = gradients(loss(u[..., :3], s[..., :3], vh.mT[..., :3]), leaves)
    U, S, V, _ = W.svd(3, tol=1e-12)
    torch.testing.assert_close(gradients(loss(U, S, V), leaves), expected, atol=1e-8, rtol=1e-8)


def test_all_values_and_a_tensor_like_call():
    W, _ = matrix(keys=30, queries=20, batch=2)
    U, S, V, _ = W.svd()
    torch.testing.assert_close(U @ S.diag_embed() @ V.mT, W.dense())
    torch.testing.assert_close(W.mT.singular_values(), torch.linalg.svdvals(W.dense()))
    torch.testing.assert_close(W.scores.singular_values(2), torch.linalg.svdvals(W.scores.dense())[..., :2])
    torch.testing.assert_close((W * W).singular_values(2), torch.linalg.svdvals(W.dense().square())[..., :2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(dtype, method):
    W, leaves = matrix(Causal(), dtype=dtype, batch=2)
    values = W.singular_values(3)
    exact = torch.linalg.svdvals(W.dense())[..., :3]
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, exact, atol=1e-4, rtol=0)
    for one, other in zip(*(gradients(each.sum(), leaves) for each in (values, exact)), strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one, other, atol=1e-4 if dtype == torch.float32 else 2e-2, rtol=1e-2)


def test_a_second_derivative_is_refused(method):
    W, leaves = matrix(batch=1)
    for result in (W.singular_values(2), W.svd(2).V[..., 0, :], W.symmetric_part.eigenvalues(2)):
        (first,) = torch.autograd.grad(result.square().sum(), leaves[:1], create_graph=True)
        with pytest.raises(InvalidArgument, match="second derivative"):
            (first.square().sum() + leaves[0].sum()).backward()


def sorted_values(values):
    """By magnitude, real part and imaginary part, rounded so that pairs with the same magnitude are ordered."""
    values = np.asarray(values)
    order = np.lexsort((values.imag.round(6), values.real.round(6), -np.abs(values).round(6)))
    return np.take_along_axis(values, order, -1)


def by_row(values, expected):
    for one, other in zip(values.flatten(0, 1), expected.flatten(0, 1), strict=True):
        np.testing.assert_allclose(sorted_values(one.detach()), sorted_values(other.detach()), atol=1e-9)


@pytest.mark.parametrize("case", ["full", "window", "empty rows", "nothing", "rank one", "repeated"])
def test_eigenvalues(case, method):
    W, _ = matrix(**{**CASES[case], "batch": 4})
    with torch.no_grad():
        values, vectors, residuals = W.eig(N, tol=1e-11)
        dense = W.dense()
    by_row(values, torch.from_numpy(np.linalg.eigvals(dense.numpy())))  # torch's fails for those of rank one
    few = W.detach().eigenvalues(3, tol=1e-11)
    torch.testing.assert_close(few.abs(), values.abs()[..., :3], atol=1e-9, rtol=0)
    error = dense.to(vectors.dtype) @ vectors - vectors * values[..., None, :]
    assert (error.norm(dim=-2) <= residuals + 1e-9).all()


@pytest.mark.parametrize("mask", [Causal(), Window(7, 0), Causal() & EMPTY_ROWS], ids=["causal", "window", "and"])
def test_eigenvalues_of_a_triangular_matrix_are_its_diagonal(mask):
    W, leaves = matrix(mask, batch=1)
    assert W.is_triangular
    values = W.eigenvalues(N)
    diagonal = W.dense().diagonal(dim1=2, dim2=3)
    torch.testing.assert_close(values.real, diagonal.sort(-1, descending=True).values)
    torch.testing.assert_close(*(gradients(each.square().sum(), leaves) for each in (values.real, diagonal)))
    in_degree = W.laplacian("in_degree")
    exact = torch.linalg.eigvals(in_degree.dense()).abs().sort(-1, descending=True).values
    torch.testing.assert_close(in_degree.eigenvalues(5).real, exact[..., :5])
    torch.testing.assert_close(W.mT.eigenvalues(N), values)
    torch.testing.assert_close(W.mT.diagonal(2, -2, -1), W.dense().mT.diagonal(2, -2, -1))
    assert not W.at(queries=[*reversed(range(N))]).is_triangular
    assert not W.symmetric_part.is_triangular


def test_gradients_of_eigenvalues(method):
    W, leaves = matrix(batch=2)
    exact = torch.linalg.eigvals(W.dense())
    exact = exact.gather(-1, exact.abs().argsort(-1, descending=True)[..., :2])
    values = W.eigenvalues(2, tol=1e-12)
    expected, actual = (gradients(each.abs().square().sum() + each.real.sum(), leaves) for each in (exact, values))
    torch.testing.assert_close(actual, expected, atol=1e-8, rtol=1e-8)


PARTS = {
    "symmetric": (lambda W: W.symmetric_part, lambda P: (P + P.mT) / 2),
    "antisymmetric": (lambda W: W.antisymmetric_part, lambda P: (P - P.mT) / 2),
    "undirected": (lambda W: W.laplacian(), lambda P: laplacian((P + P.mT) / 2)),
    "normalized": (lambda W: W.laplacian("normalized"), lambda P: normalized((P + P.mT) / 2)),
    "in degree": (lambda W: W.laplacian("in_degree"), lambda P: P.sum(-2).diag_embed() - P),
    "out degree": (lambda W: W.laplacian("out_degree"), lambda P: P.sum(-1).diag_embed() - P),
}


def laplacian(S):
    return S.sum(-1).diag_embed() - S


def normalized(S):
    root = S.sum(-1).rsqrt()
    return torch.eye(S.shape[-1], dtype=S.dtype) - root[..., None] * S * root[..., None, :]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("case", ["full", "causal"])
def test_parts_of_a_matrix(case, part, method):
    W, leaves = matrix(**{**CASES[case], "batch": 4})
    make, define = PARTS[part]
    M, dense = make(W), define(W.dense())
    x = torch.randn(N, 2, dtype=torch.float64)
    for lazy, exact in ((M, dense), (M.mT, dense.mT)):
        torch.testing.assert_close(lazy @ x, exact @ x)
        torch.testing.assert_close(lazy @ x[:, 0], exact @ x[:, 0])
        torch.testing.assert_close(lazy.dense(), exact)
    torch.testing.assert_close(M.diagonal(0, 2, 3), dense.diagonal(dim1=2, dim2=3))
    torch.testing.assert_close(M.mean(-1), dense.mean(-1))
    values, exact = M.singular_values(3, tol=1e-12), torch.linalg.svdvals(dense)[..., :3]
    torch.testing.assert_close(values, exact, atol=1e-10, rtol=0)
    torch.testing.assert_close(
        *(gradients(each.square().sum(), leaves) for each in (values[..., :2], exact[..., :2])), atol=1e-8, rtol=0
    )
    if M.is_symmetric:
        exact = torch.linalg.eigvalsh(dense)
        least, most = M.eigenvalues(3, largest=False, tol=1e-10), M.eigenvalues(3, tol=1e-10)
        torch.testing.assert_close(least, exact[..., :3], atol=1e-10, rtol=0)
        torch.testing.assert_close(most.abs(), exact.abs().sort(-1, descending=True).values[..., :3])
        torch.testing.assert_close(*(gradients(each[..., :3].sum(), leaves) for each in (least, exact)))


def test_a_laplacian_is_that_of_networkx():
    W, _ = matrix(batch=1)
    S = W.symmetric_part.dense()[0, 0].detach().numpy()
    graph = networkx.from_numpy_array(S)
    for kind, define in (
        ("undirected", networkx.laplacian_spectrum),
        ("normalized", networkx.normalized_laplacian_spectrum),
    ):
        # networkx counts a self-loop once in a degree, as a row sum does
        expected = np.sort(define(graph))[:3]
        actual = W.laplacian(kind).eigenvalues(3, largest=False)[0, 0].detach()
        np.testing.assert_allclose(actual, expected, atol=1e-9)


def test_entropy_rank_and_gap(method):
    W, leaves = matrix(Window(9, 3), batch=2)
    exact = torch.linalg.svdvals(W.dense())
    for k in (None, 5):
        shares = exact[..., :k] / exact[..., :k].sum(-1, keepdim=True)
        expected = torch.special.entr(shares).sum(-1)
        actual = W.spectral_entropy(k, tol=1e-11)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(W.effective_rank(k, tol=1e-11), expected.exp())
        torch.testing.assert_close(*(gradients(each.sum(), leaves) for each in (actual, expected)))
    sizes = torch.linalg.eigvals(W.dense()).abs().sort(-1, descending=True).values
    torch.testing.assert_close(W.detach().spectral_gap(tol=1e-11), (sizes[..., 0] - sizes[..., 1]).detach())


def test_a_matrix_of_rank_one_has_effective_rank_one():
    W, leaves = matrix(rank_one=True, batch=1)
    rank = W.effective_rank()
    torch.testing.assert_close(rank, torch.ones_like(rank))
    assert all(part.isfinite().all() for part in gradients(rank.sum(), leaves))
    nothing = matrix(torch.zeros(N, N, dtype=torch.bool), batch=1)[0]
    assert (nothing.spectral_entropy() == 0).all()


def test_padding_does_not_count(method):
    valid = torch.arange(N) < 30
    padded, _ = matrix(valid, batch=1)
    inside = padded.at(queries=slice(30))
    whole = WeightMatrix(padded.request, valid[None])
    alone = inside.dense()[..., :30]
    exact = torch.linalg.svdvals(alone)[..., :4]
    shares = exact / exact.sum(-1, keepdim=True)
    torch.testing.assert_close(whole.spectral_entropy(4, tol=1e-11), torch.special.entr(shares).sum(-1))
    torch.testing.assert_close(whole.mT.spectral_entropy(4, tol=1e-11), torch.special.entr(shares).sum(-1))
    sizes = torch.linalg.eigvals(alone).abs().sort(-1, descending=True).values
    torch.testing.assert_close(whole.detach().spectral_gap(tol=1e-11), (sizes[..., 0] - sizes[..., 1]).detach())
    for part in PARTS.values():
        if part not in (PARTS["symmetric"], PARTS["antisymmetric"]):
            dense = part[0](whole).dense()
            torch.testing.assert_close(dense[..., :30, :30], part[1](alone))
            assert not dense[..., 30:, :].any()
            assert not dense[..., 30:].any()


def test_nothing_of_the_size_of_the_matrix_is_computed(monkeypatch):
    query, key = torch.randn(2, 1, 2, 1000, 16, generator=torch.Generator().manual_seed(0)).unbind()
    W = weights(2 * query.requires_grad_(), key)
    exact = torch.linalg.svdvals(W.detach().dense())[..., :2]
    monkeypatch.setattr(WeightMatrix, "dense", None)
    values = W.singular_values(2)
    torch.testing.assert_close(values.detach(), exact, atol=1e-4, rtol=0)
    values.sum().backward()
    assert query.grad is not None


def test_bad_input():
    W, _ = matrix(keys=30, queries=20, batch=1)
    with pytest.raises(InvalidArgument, match="k: expected at most 20 values of a matrix 20 × 30, got 21"):
        W.svd(21)
    with pytest.raises(InvalidArgument, match="k: expected an int of at least 1, or None, got 0"):
        W.singular_values(0)
    with pytest.raises(InvalidType, match=r"k: expected an int of at least 1, or None, got 2\.5"):
        W.singular_values(2.5)
    with pytest.raises(InvalidArgument, match="tol: expected a finite number above 0, or None, got -1"):
        W.svd(2, tol=-1)
    for read in (W.eig, W.eigenvalues, lambda k: W.laplacian(), lambda k: W.symmetric_part, lambda k: W.spectral_gap()):
        with pytest.raises(InvalidArgument, match="expected as many queries as keys, got 20 and 30"):
            read(2)
    square, _ = matrix(batch=1)
    with pytest.raises(InvalidArgument, match="largest: expected True, got False, which only a symmetric matrix"):
        square.eigenvalues(2, largest=False)
    with pytest.raises(InvalidArgument, match=r"kind: expected one of undirected, .* got 'random'"):
        square.laplacian("random")
    with pytest.raises(InvalidArgument, match="finite numbers, got NaN or infinite ones"):
        matrix(Causal(), batch=1)[0].scores.singular_values(2)


def test_what_does_not_converge_is_named_with_numbers(monkeypatch):
    monkeypatch.setattr(spectra, "DENSE_CELLS", 0)
    W, _ = matrix(Window(9, 3), batch=1)
    message = r"max_passes: 4 singular values did not converge in 2 passes .* residual is \d\.\de-\d\d times .*1\.5e-08"
    with pytest.raises(InvalidArgument, match=message):
        W.svd(4, max_passes=2)
    with pytest.raises(InvalidArgument, match=r"max_passes: 2 eigenvalues did not converge in 2 passes"):
        W.eigenvalues(2, max_passes=2)


def test_a_vector_has_a_gradient_where_its_own_value_has_a_gap(method):
    random = torch.Generator().manual_seed(0)
    scores = torch.full((N, N), -60.0, dtype=torch.float64)
    scores[:16, 0] = 0.0  # the first singular value is 4
    scores[16:32, 16:32] = scores[32:, 32:] = torch.randn(16, 16, generator=random, dtype=torch.float64)
    scores.requires_grad_()
    W = weights(scores[None, None], torch.eye(N, dtype=torch.float64)[None, None], scale=1.0)
    x = torch.randn(N, generator=random, dtype=torch.float64)
    P, vector = W.dense()[0, 0], torch.ones(N, dtype=torch.float64)
    for _ in range(30):  # power iteration: torch's gradient is NaN where other values are equal
        vector = P.mT @ (P @ vector)
        vector = vector / vector.norm()
    results = W.svd(2).V[0, 0, :, 0] @ x, vector @ x
    torch.testing.assert_close(*(torch.autograd.grad(each.square(), scores, retain_graph=True) for each in results))


def test_functional_gradients():
    W, (query, key) = matrix(batch=1)
    (expected,) = torch.autograd.grad(torch.linalg.svdvals(W.dense())[..., :2].sum(), query)
    query, key = query.detach(), key.detach()
    actual = torch.func.grad(lambda query: weights(query, key).singular_values(2).sum())(query)
    torch.testing.assert_close(actual, expected)


def test_a_gap_that_is_too_small_for_a_gradient_is_named(method):
    W, leaves = matrix(**{**CASES["repeated"], "batch": 1})
    U, S, _, _ = W.svd(2)
    message = (
        r"vectors of singular value 0 of batch 0, head 0 have no gradient, because the gap between 1\.\d+ and .* is \d"
    )
    with pytest.raises(InvalidArgument, match=message):
        U.square().sum().backward()
    torch.autograd.grad(S.sum(), leaves)
    with pytest.raises(InvalidArgument, match=r"eigenvalue \d of batch 0, head 0 has no gradient, because the gap"):
        W.eigenvalues(2)
