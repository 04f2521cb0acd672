"""``regard.ops`` is imported on first use: the modes and transforms at that point must not affect it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, json, os, sys
import jaxtyping, torch, torch._dynamo, torch.library, torch.nn.attention.flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
import regard

torch.compile(torch.sin, backend="aot_eager")(torch.ones(2, requires_grad=True)).sum().backward()  # loads the compiler

def inference_mode(x):
    with torch.inference_mode():
        regard.attend(x, x, x)

def grad(x):
    torch.func.grad(lambda x: regard.attend(x, x, x).output.sum())(x)

def vmap(x):
    torch.vmap(lambda x: regard.attend(x, x, x, kernel="reference").output)(x[None])

def program(*inputs):
    att = regard.attend(*inputs, mask=regard.Causal(), measure="entropy", kernel="blockwise")
    return att.output.square().sum() + att.measured["entropy"].sum()

def gradients(function, inputs):
    return [part.flatten().tolist() for part in torch.autograd.grad(function(*inputs), inputs)]

def first_used_in(context):
    context(torch.randn(1, 2, 6, 4))
    inputs = [torch.randn(1, 2, 6, 4).requires_grad_() for _ in range(3)]
    compiled = torch.compile(program, backend="aot_eager")
    return {"eager": gradients(program, inputs), "compiled": gradients(compiled, inputs)}

opened, sizes, started = [], [], []

STARTS = "ctypes.dlopen", "subprocess.Popen", "os.system", "os.posix_spawn"

class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes.extend(each.untyped_storage().nbytes() for each in [result] if isinstance(each, torch.Tensor))
        return result

def watched():
    torch.backends.cpu.get_cpu_capability = lambda: "AVX512"  # for which the manufacturer of the processor matters
    torch.backends.mkldnn.is_available = torch.backends.mkl.is_available = lambda: True
    sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
    sys.addaudithook(lambda event, args: started.append(event) if event in STARTS else None)
    with Watch():
        import regard.ops
        torch.ones(3)
    by_import = list(started)
    ctypes.CDLL(None)
    return {"opened": opened, "sizes": sizes, "started": by_import, "all_started": started}

contexts = (inference_mode, grad, vmap)
children = {context.__name__: lambda context=context: first_used_in(context) for context in contexts}
for name, run in {**children, "watched": watched}.items():
    if not os.fork():
        assert "regard.ops" not in sys.modules
        try:
            report = run()
        except BaseException as error:
            report = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"name": name, **report}), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def reports():
    """The reports of processes that each import regard.ops first; they are forked after the import of torch."""
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return {each["name"]: each for each in map(json.loads, completed.stdout.splitlines())}


@pytest.mark.parametrize("context", ["inference_mode", "grad", "vmap"])
def test_compiled_gradients_are_right_wherever_the_library_was_first_imported(reports, context):
    assert "error" not in reports[context], reports[context]["error"]
    for eager, compiled in zip(reports[context]["eager"], reports[context]["compiled"], strict=True):
        assert compiled == pytest.approx(eager, rel=1e-5, abs=1e-6)
        assert any(abs(number) > 0.01 for number in compiled)


def test_the_import_reads_nothing_of_the_machine_and_makes_no_large_tensor(reports):
    actual = reports["watched"]
    assert any("regard" in name for name in actual["opened"])
    assert not [name for name in actual["opened"] if name.startswith("/proc/")]
    assert 12 in actual["sizes"]  # that of three numbers was seen
    assert max(actual["sizes"]) <= 2**20


def test_the_import_loads_no_library_and_starts_no_compiler(reports):
    assert reports["watched"]["all_started"] == ["ctypes.dlopen"]  # the test's own
    assert reports["watched"]["started"] == []
