"""The native kernel among threads, forks and signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from helpers.ops.native_library import python
from regard.native.library import library
from regard.ops import attend
from regard.ops.masks import Causal, Padding, Window

pytestmark = pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}")
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither fork nor POSIX signals")


def call(seed, tokens=300):
    random = torch.Generator().manual_seed(seed)
    query, key, value = torch.randn(3, 2, 4, tokens, 16, generator=random).unbind()
    mask = (None, Causal(), Window(40, 0), Padding(torch.tensor([tokens, 7])))[seed % 4]
    att = attend(query, key, value, mask=mask, measure=["entropy", "lse", "received"], kernel="native")
    return [att.output, *att.measured.values()]


@pytest.mark.parametrize("threads", [1, 2])
def test_callers_in_many_threads_get_the_same_bits(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        serial = [call(seed) for seed in range(8)]
        start = threading.Barrier(8)

        def calls(seed):
            start.wait()
            return [call((seed + step) % 8) for step in range(16)]

        with ThreadPoolExecutor(8) as pool:
            actual = list(pool.map(calls, range(8)))
    finally:
        torch.set_num_threads(before)
    for seed, results in enumerate(actual):
        for step, parts in enumerate(results):
            for result, reference in zip(parts, serial[(seed + step) % 8], strict=True):
                assert torch.equal(result, reference)


FORK = """
import os, resource, sys, torch, warnings
from regard.ops import attend

warnings.simplefilter("ignore", ResourceWarning)
torch.set_num_threads(2)
query, key, value = torch.randn(3, 2, 4, 400, 32).unbind()

def call():
    return attend(query, key, value, measure=["entropy", "received"], kernel="native")

before = call() if {calls_first} else None
child = os.fork()
if not child:
    if {limited}:  # to less than the stack of a thread; a few stacks are left from the parent's threads
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 5 * 2**20,) * 2)
    torch.set_num_threads(6)
    here = call()
    torch.set_num_threads(1)  # torch's own operations hang after a fork of a process with OpenMP's threads
    other = before or call()
    same = torch.equal(here.output, other.output) and torch.equal(here.measured["received"], other.measured["received"])
    os._exit(0 if same else 3)
_, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@posix
@pytest.mark.skipif(sys.platform != "linux", reason="other systems forbid threads in a fork, or limit no memory")
@pytest.mark.parametrize(("calls_first", "limited"), [(True, False), (False, False), (True, True)])
def test_a_fork_can_call_too(calls_first, limited):
    code = FORK.format(calls_first=calls_first, limited=limited)
    completed = subprocess.run(python("-c", code), capture_output=True, text=True, timeout=60, check=False)
    assert (completed.returncode, completed.stderr) == (0, "")


LONG = """
import time, torch
from regard.ops import attend

query, key, value = torch.randn(3, 32, 8, 4096, 64).unbind()
attend(query[:1, :1], key[:1, :1], value[:1, :1], measure="entropy", kernel="native")
print("starts", flush=True)
try:
    attend(query, key, value, measure="entropy", kernel="native")
    print("finished")
except KeyboardInterrupt:
    print("interrupted")
att = attend(query[:1, :1], key[:1, :1], value[:1, :1], measure="entropy", kernel="native")
print(bool(att.output.isfinite().all()))
"""


@posix
def test_ctrl_c_ends_a_long_call():
    heeding = partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(python("-c", LONG), stdout=subprocess.PIPE, text=True, preexec_fn=heeding)
    assert process.stdout is not None
    assert process.stdout.readline() == "starts\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)  # the call takes longer than that on one core
    assert (process.returncode, out) == (0, "interrupted\nTrue\n")
