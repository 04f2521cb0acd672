"""What `regard check` measures; no assertion depends on how fast this machine is."""

from __future__ import annotations

import pytest
import torch

from regard.diagnostics import speed
from regard.diagnostics.speed import Speeds, choose_sizes, count_timings, measure_peaks, measure_speed

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _once(monkeypatch):
    monkeypatch.setattr(speed, "MIN_SECONDS", 0.0)


def test_each_combination_is_measured():
    timings = list(measure_speed(CPU, [(2, 16), (1, 40)]))
    assert len(timings) == count_timings([(2, 16), (1, 40)]) == 16
    assert len({(each.tokens, each.dtype, each.backward, each.results) for each in timings}) == 16
    for each in timings:
        assert each.milliseconds > 0
        assert each.sdpa_milliseconds > 0
        products = 7 if each.backward else 2
        flops = products * 2 * each.batch * 8 * each.tokens**2 * 64
        assert each.gflops == pytest.approx(flops / each.milliseconds / 1e6)
    assert {each.kernel for each in timings if each.results == "output"} == {"sdpa"}  # small
    assert timings[0].as_dict()["kernel"] == "sdpa"


def test_the_peak_of_bfloat16_is_at_least_that_of_float32():
    peaks = measure_peaks(CPU)
    assert list(peaks) == ["float32", "bfloat16"]
    assert peaks["bfloat16"] >= peaks["float32"] > 0


def test_a_slow_machine_leaves_out_sizes():
    assert choose_sizes({"float32": 1e3}) == list(speed.SIZES)
    assert choose_sizes({"float32": 10.0}) == [(8, 64), (1, 512)]
    timings = list(measure_speed(CPU, [(8, 64)]))
    assert Speeds({"float32": 10.0, "bfloat16": 10.0}, timings).left_out == "512 tokens, 4,096 tokens"
