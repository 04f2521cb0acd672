"""The kernels on this machine: compared and measured; what is wrong gives exit code 1 and a report."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from helpers.ops.cases import CPU_KERNELS
from regard.diagnostics import cases, speed
from regard.diagnostics.cases import CASES
from regard.ops.kernels.dispatch import KERNELS
from regard.ops.kernels.sdpa import Sdpa


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    few = [case for case in cases.CASES if case.name in ("causal, square", "grouped")]
    monkeypatch.setattr(cases, "CASES", few)
    monkeypatch.setattr(speed, "SIZES", ((2, 16),))
    monkeypatch.setattr(speed, "MIN_SECONDS", 0.0)
    monkeypatch.setattr(speed, "PEAK_SIZES", {"cpu": (64, 128)})


@pytest.fixture
def _broken(monkeypatch):
    run = Sdpa.run
    monkeypatch.setattr(Sdpa, "run", lambda self, inputs: (run(self, inputs)[0] * 1.25, {}))


def test_all_kernels_pass(regard):
    result = regard("check", "--no-speed")
    assert (result.code, result.err) == (0, "")
    assert re.search(rf"torch +{re.escape(torch.__version__)}\s", result.out)
    assert all(f" {kernel.name} " in result.out for kernel in CPU_KERNELS)
    assert "results, all as exact as their dtype allows" in result.out
    assert "GFLOP/s" not in result.out


def test_a_kernel_that_is_not_available_is_named_as_not_checked(regard, monkeypatch):
    monkeypatch.setattr(Sdpa, "unavailable_reason", lambda self: "not today")
    result = regard("check", "--no-speed")
    assert result.code == 0
    names = [kernel.name for kernel in KERNELS if kernel.unavailable_reason()]
    assert "sdpa" in names
    assert result.out.rstrip().endswith(
        f"as their dtype allows; not checked, because not available: {', '.join(names)}"
    )


def test_the_speed_has_a_line_for_each_measurement(regard):
    result = regard("check")
    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines() if line.startswith((" float32 ", " bfloat16 "))]
    assert len(rows) == 8
    assert all(row[-1].endswith("%") for row in rows)
    assert "Peak is the fastest matrix product of torch" in result.out
    assert "Left out" not in result.out


def test_json_has_the_same(regard):
    report = json.loads(regard("check", "--json").out)
    assert report["versions"]["torch"] == torch.__version__
    assert report["device"] == "cpu"
    assert report["num_results"] > 100
    assert report["wrong"] == []
    assert list(report["largest_differences"]["reference"]) == ["float64", "float32", "bfloat16", "float16"]
    assert set(report["peak_gflops"]) == {"float32", "bfloat16"}
    assert len(report["speed"]) == 8
    assert "speed" not in json.loads(regard("check", "--json", "--no-speed").out)


def test_each_kernel_is_compared_and_the_cases_that_do_not_fit_the_time_are_named(regard, monkeypatch):
    names = "causal, square", "grouped", "mask neighbors", "score alibi"
    monkeypatch.setattr(cases, "CASES", [case for case in CASES if case.name in names])
    result = regard("check", "--no-speed", "--minutes", "0")
    assert (result.code, result.err) == (0, "")
    assert all(f" {kernel.name} " in result.out for kernel in CPU_KERNELS)
    assert result.out.endswith(" Left out for lack of time (--minutes 0): causal, square; score alibi\n")
    report = json.loads(regard("check", "--no-speed", "--minutes", "0", "--json").out)
    assert report["cases_left_out"] == ["causal, square", "score alibi"]
    assert set(report["largest_differences"]) == {kernel.name for kernel in CPU_KERNELS}
    report = json.loads(regard("check", "--no-speed", "--minutes", "5", "--json").out)
    assert report["cases_left_out"] == []


def test_time_for_the_speed_is_left(regard):
    report = json.loads(regard("check", "--minutes", "0", "--json").out)
    assert report["speed"] == []
    assert report["num_results"] > 0


@pytest.mark.parametrize("minutes", ["-1", "nan", "soon"])
def test_minutes_that_are_none_are_refused(regard, minutes):
    result = regard("check", "--minutes", minutes)
    assert (result.code, result.out) == (2, "")
    assert "--minutes" in result.err
    assert minutes in result.err


@pytest.mark.usefixtures("_broken")
def test_a_broken_kernel_is_reported_with_code_1(regard):
    result = regard("check", "--no-speed")
    assert (result.code, result.err) == (1, "")
    lines = [line for line in result.out.splitlines() if line.startswith(" kernel sdpa, case ")]
    assert len(lines) == 2 * 4  # cases, dtypes
    assert lines[1].startswith(" kernel sdpa, case 'grouped', float32: ")
    assert " differs by 2.5e-01, tolerance 2e-05" in lines[1]
    assert "kernel reference" not in result.out
    assert " results are wrong" in result.out
    assert "Paste this report into a bug report." in result.out
    assert re.search(rf"torch +{re.escape(torch.__version__)}\s", result.out)


@pytest.mark.usefixtures("_broken")
def test_json_lists_every_failure(regard):
    result = regard("check", "--no-speed", "--json")
    assert result.code == 1
    wrong = json.loads(result.out)["wrong"]
    assert {each["kernel"] for each in wrong} == {"sdpa"}
    assert {each["result"] for each in wrong} == {"output", *(f"gradient of {x}" for x in ("query", "key", "value"))}
    assert all(each["difference"] > each["tolerance"] for each in wrong)


@pytest.mark.usefixtures("_broken")
def test_a_long_list_is_cut(regard, monkeypatch):
    monkeypatch.setattr("regard.cli.check.MAX_LISTED", 2)
    result = regard("check", "--no-speed")
    assert result.out.count("kernel sdpa") == 2
    assert "more calls; --json lists all results" in result.out


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("gpu", ["expected a device", "got 'gpu'"]),
        ("cuda:99", ["expected an available device such as 'cpu', got 'cuda:99'", "; `regard info` lists them\n"]),
    ],
)
def test_a_device_that_is_not_there_is_refused(regard, device, words):
    result = regard("check", "--device", device)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("regard: --device: expected ")
    assert all(each in result.err for each in words)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends Ctrl-C to a group of processes")
def test_ctrl_c_ends_it(tmp_path):
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    log = tmp_path / "log"
    code = (
        "from regard.diagnostics import comparison as c; run = c.compare\n"
        f"def compare(*a): open({str(log)!r}, 'a').close(); return run(*a)\n"
        "c.compare = compare\nfrom regard.__main__ import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "check"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=heeding,
    )
    for _ in range(600):
        if log.exists():
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, b"", b"")
