"""What `regard check` measures; no assertion depends on how fast this machine is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from regard.diagnostics import speed
from regard.diagnostics.speed import Speeds, count_timings, measure_peaks, measure_speed

CPU = torch.device("cpu")
FAST = {torch.float32: 200e9, torch.bfloat16: 400e9}
WITHOUT_BFLOAT16 = {torch.float32: 17e9, torch.bfloat16: 0.1e9}
SLOW = {torch.float32: 1e9, torch.bfloat16: 0.1e9}


@pytest.fixture
def _once(monkeypatch):
    monkeypatch.setattr(speed, "MIN_SECONDS", 0.0)


@pytest.fixture
def machine(monkeypatch):
    """Replaces the processor by one of given operations per second, whose clock runs only while it computes."""
    clock = SimpleNamespace(seconds=0.0, rates={}, products=[])

    def matmul(a, b):
        clock.products.append((a.dtype, len(a)))
        clock.seconds += 2 * len(a) ** 3 / clock.rates[a.dtype]
        return a

    def attention(query, key, value, **_):
        batch, heads, tokens, features = query.shape
        products = 7 if query.requires_grad else 2
        clock.seconds += products * 2 * batch * heads * tokens**2 * features / clock.rates[query.dtype]
        return query + key + value

    monkeypatch.setattr(speed, "perf_counter", lambda: clock.seconds)
    monkeypatch.setattr(speed, "matmul", matmul)
    monkeypatch.setattr(speed, "scaled_dot_product_attention", attention)
    monkeypatch.setattr(speed, "attend", lambda *a, **k: SimpleNamespace(output=attention(*a), measured={}))
    return clock


@pytest.mark.usefixtures("_once")
def test_each_combination_is_measured(monkeypatch):
    monkeypatch.setattr(speed, "SIZES", ((2, 16), (1, 40)))
    steps: list[int] = []
    timings = measure_speed(CPU, steps.append)
    assert len(timings) == sum(steps) == count_timings() == 16
    assert len({(each.tokens, each.dtype, each.backward, each.results) for each in timings}) == 16
    for each in timings:
        assert each.milliseconds > 0
        assert each.sdpa_milliseconds > 0
        products = 7 if each.backward else 2
        flops = products * 2 * each.batch * 8 * each.tokens**2 * 64
        assert each.gflops == pytest.approx(flops / each.milliseconds / 1e6)
    assert timings[0].as_dict()["kernel"] == timings[0].kernel
    assert Speeds({}, timings).left_out == ""


@pytest.mark.usefixtures("_once")
def test_the_peak_of_bfloat16_is_at_least_that_of_float32(monkeypatch):
    monkeypatch.setattr(speed, "PEAK_SIZES", {"cpu": (64, 128)})
    peaks = measure_peaks(CPU)
    assert list(peaks) == ["float32", "bfloat16"]
    assert peaks["bfloat16"] >= peaks["float32"] > 0


@pytest.mark.parametrize("rates", [FAST, WITHOUT_BFLOAT16, SLOW], ids=["fast", "without bfloat16", "slow"])
def test_the_speed_table_takes_less_than_a_minute(machine, rates):
    machine.rates = rates
    steps: list[int] = []
    peaks, timings = measure_peaks(CPU), measure_speed(CPU, steps.append)
    measure_peaks(CPU)
    assert machine.seconds < 45  # the comparison with the definition takes the rest of the minute
    assert sum(steps) == count_timings()
    assert peaks["float32"] == pytest.approx(rates[torch.float32] / 1e9)
    assert {(each.dtype, each.backward) for each in timings} == {
        (dtype, backward) for dtype in ("float32", "bfloat16") for backward in (False, True)
    }


def test_no_measurement_begins_after_the_time_is_over(machine):
    machine.rates = SLOW
    timings = measure_speed(CPU, max_seconds=2.0)
    assert 2 <= machine.seconds < 2 + 4 * speed.MAX_SECONDS
    assert 0 < len(timings) < count_timings()
    assert "bfloat16 8 × 64" in Speeds({}, timings).left_out


def test_a_fast_machine_measures_everything(machine):
    machine.rates = FAST
    measure_peaks(CPU)
    assert {size for _, size in machine.products} == {128, 256, 512, 1024, 2048}
    timings = measure_speed(CPU)
    assert len(timings) == count_timings()
    assert Speeds({}, timings).left_out == ""


def test_without_bfloat16_products_of_bfloat16_stay_small(machine):
    machine.rates = WITHOUT_BFLOAT16
    measure_peaks(CPU)
    assert max(size for dtype, size in machine.products if dtype == torch.bfloat16) == 256
    assert max(size for dtype, size in machine.products if dtype == torch.float32) == 1024
    assert Speeds({}, measure_speed(CPU)).left_out == (
        "float32 1 × 4,096, float32 1 × 4,096 with backward, bfloat16 1 × 512, bfloat16 1 × 512 with backward, "
        "bfloat16 1 × 4,096, bfloat16 1 × 4,096 with backward"
    )
