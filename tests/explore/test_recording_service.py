"""Parts of a recording on demand: equal to a softmax for every rule and dtype, and without waiting."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import regard
from regard.errors import InvalidArgument
from regard.explore import recording_service
from regard.explore.recording_service import RecordingService, single_threaded
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

SIZE = 600
"""Tokens: enough for two levels."""


def service_of(query: torch.Tensor, key: torch.Tensor, **rules) -> RecordingService:
    weights = regard.weights(query, key, **rules)
    return RecordingService(Recording("", "", (Layer("a", "encoder", weights),)))


def inputs(heads: int = 4, kv_heads: int = 2, tokens: int = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(1, heads, tokens, 8), torch.randn(1, kv_heads, tokens, 8)


def floats(content: bytes) -> np.ndarray:
    return np.frombuffer(content, "<f4")


def causal_softmax(query: torch.Tensor, key: torch.Tensor, head: int) -> torch.Tensor:
    """The weights of a head by torch, NaN where masked."""
    query, key = query[0, head].double(), key[0, head * key.shape[1] // query.shape[1]].double()
    future = torch.ones(len(query), len(key), dtype=torch.bool).triu(1)
    scores = (query @ key.mT / query.shape[1] ** 0.5).masked_fill(future, -torch.inf)
    return scores.softmax(-1).masked_fill(future, torch.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_rows_columns_and_sums_are_those_of_a_softmax(dtype):
    query, key = (tensor.to(dtype) for tensor in inputs())
    service, exact = service_of(query, key, mask=regard.Causal()), causal_softmax(query, key, 3)
    np.testing.assert_allclose(floats(service.row(0, 3, 77)), exact[77].numpy(), rtol=2e-6)
    np.testing.assert_allclose(floats(service.column(0, 3, 77)), exact[:, 77].numpy(), rtol=2e-6)
    region = exact[70:, 5:412].nan_to_num()
    rows = floats(service.region(0, 3, 70, 599, 5, 411))
    np.testing.assert_allclose(rows, region.sum(1).numpy(), rtol=2e-6)
    region[:, [0, 400]] = 0
    np.testing.assert_allclose(
        floats(service.region(0, 3, 70, 599, 5, 411, hidden=[5, 405, 599, 2])), region.sum(1).numpy(), rtol=2e-6
    )


@pytest.mark.parametrize("score", ["sinks", "softcap", "bias"])
def test_rows_and_columns_follow_any_rule(score):
    query, key = inputs(tokens=300)
    rule = {
        "sinks": regard.Sinks(regard.ScaledDotProduct(), torch.randn(4)),
        "softcap": regard.SoftCap(regard.ScaledDotProduct(), 2.0),
        "bias": regard.ScaledDotProduct() + regard.Alibi.for_heads(4) + regard.Bias(torch.randn(1, 4, 300, 300)),
    }[score]
    weights = regard.weights(query, key, mask=regard.Window(40, 3), score=rule)
    service = service_of(query, key, mask=regard.Window(40, 3), score=rule)
    exact = weights.dense()[0, 3]
    exact = exact.masked_fill(weights.scores.dense()[0, 3] == -torch.inf, torch.nan)
    np.testing.assert_allclose(floats(service.row(0, 3, 77)), exact[77].numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(floats(service.column(0, 3, 77)), exact[:, 77].numpy(), rtol=1e-5, atol=1e-7)


def test_large_scores_lose_no_digits():
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 50, 30, dtype=torch.float64) + 1000
    service = service_of(scores.float(), torch.eye(30).expand(1, 1, 30, 30), scale=1.0)
    exact = scores.float().double().softmax(-1)[0, 0]
    np.testing.assert_allclose(floats(service.row(0, 0, 7)), exact[7].numpy(), rtol=2e-6)
    np.testing.assert_allclose(floats(service.column(0, 0, 7)), exact[:, 7].numpy(), rtol=2e-6)


@pytest.mark.parametrize("cells", [1, 2**12, 2**18])
@pytest.mark.parametrize(("size", "row", "column"), [(1, 2, 0), (1, 1, 1), (1, 0, 2), (4, 0, 0)])
def test_tiles_are_means_over_queries_of_sums_over_keys(size, row, column, cells, monkeypatch):
    monkeypatch.setattr(recording_service, "CELLS_PER_STEP", cells)
    query, key = inputs()
    query, key = query[:, :, :599], key[:, :, :598]  # no multiple of 4
    service = service_of(query, key, mask=regard.Causal(), offset=0)
    assert service.levels(0) == [1, 4]
    part = causal_softmax(query, key, 2)[row * 256 * size :, column * 256 * size :][: 256 * size, : 256 * size]
    blocks = [rows.split(size, 1) for rows in part.split(size)]
    exact = torch.tensor([[block.nansum(1).mean() for block in rows] for rows in blocks]).numpy()
    masked = np.array([[bool(block.isnan().all()) for block in rows] for rows in blocks])
    actual = floats(service.tile(0, 2, size, row, column)).reshape(exact.shape)
    assert (np.isnan(actual) == masked).all()
    np.testing.assert_allclose(actual[~masked], exact[~masked], rtol=1e-5, atol=1e-8)


def test_a_weight_that_underflows_is_not_masked():
    query, key = torch.full((1, 1, SIZE, 1), 1e4), torch.zeros(1, 1, SIZE, 1)
    key[..., -1, 0] = 1.0
    service = service_of(query, key, scale=1.0)
    assert not np.isnan(floats(service.tile(0, 0, 1, 0, 0))).any()


def test_a_thumbnail_is_the_map_with_up_to_32_rows():
    query, key = inputs()
    service = service_of(query, key)
    rows, columns = service.header["layers"][0]["thumbnail"]
    assert (rows, columns) == (30, 30)  # of a map of 150 × 150
    exact = torch.einsum("qd,kd->qk", query[0, 1].double(), key[0, 0].double()).div(8**0.5).softmax(-1)
    exact = exact.view(30, 20, 30, 20).mean(1).sum(2).numpy()
    np.testing.assert_allclose(floats(service.thumbnail(0, 1)).reshape(rows, columns), exact, rtol=1e-5)


def test_one_pass_over_a_head_serves_its_maps_and_columns(monkeypatch):
    service = service_of(*inputs())
    compute, passes = service._compute_overview, []
    monkeypatch.setattr(service, "_compute_overview", lambda *head: passes.append(head) or compute(*head))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda call: call(0, 1), [service.thumbnail] * 2 + [service._overview] * 2))
    service.tile(0, 1, 4, 0, 0)
    service.tile(0, 1, 1, 2, 0)
    service.column(0, 1, 5)
    service.region(0, 1, 0, 1, 0, 1)
    assert passes == [(0, 1)]


def test_a_column_does_not_wait_for_scores(monkeypatch):
    service = service_of(*inputs())
    expected = service.column(0, 1, 5)
    started, proceed = threading.Event(), threading.Event()
    compute = recording_service.head_scores

    def wait(recording):
        started.set()
        assert proceed.wait(60)
        return compute(recording)

    monkeypatch.setattr(recording_service, "head_scores", wait)
    with ThreadPoolExecutor(3) as pool:
        try:
            scores = pool.submit(service.head_scores, 0, 2)
            assert started.wait(60)
            assert pool.submit(service.column, 0, 1, 5).result(60) == expected
            pool.submit(service.thumbnail, 0, 3).result(60)  # another head, whose overview is not there yet
            assert not scores.done()
        finally:
            proceed.set()
        assert scores.result(60)["entropy"] > 0


def test_a_pass_uses_all_threads_even_if_its_thread_starts_during_a_row(monkeypatch):
    torch.set_num_threads(2)
    try:
        service = service_of(*inputs())
        used = []
        measure = recording_service.WeightMatrix.measure
        monkeypatch.setattr(
            recording_service.WeightMatrix,
            "measure",
            lambda *arguments: used.append(torch.get_num_threads()) or measure(*arguments),
        )
        with single_threaded(2), ThreadPoolExecutor(1) as pool:
            pool.submit(torch.get_num_threads).result()  # takes over the number of the process, which is now 1
            pool.submit(service.thumbnail, 0, 0).result()
        assert used == [2]
        service.row(0, 0, 0)
        assert used == [2, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(("which", "value"), [("queries", torch.nan), ("keys", torch.inf)])
def test_values_that_are_not_finite_are_rejected(which, value):
    query, key = inputs()
    (query if which == "queries" else key)[0, 0, 2, 0] = value
    with pytest.raises(InvalidArgument, match=f"layer 'a': expected finite .* got NaN or infinity in its {which}"):
        service_of(query, key)
