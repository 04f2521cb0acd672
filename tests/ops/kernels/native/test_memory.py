"""The native kernel touches no memory but that of its tensors: guard pages around them, and sanitizers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.forked import run_code, run_script
from helpers.ops.native_library import FLAGS, SOURCES, TESTS, copy_package, python
from helpers.pairwise import everything
from regard.native.library import LEVELS, Library, library

pytestmark = [
    pytest.mark.skipif(isinstance(library(), str), reason=f"native: {library()}"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the same memory protection and sanitizers"),
]
CALLS = "helpers.ops.native_calls"
BEST = library()
LIMIT = 3600 if everything() else 600


def run(*command: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=LIMIT, check=False, **options)


@pytest.mark.parametrize("level", [] if isinstance(BEST, str) else LEVELS[: LEVELS.index(BEST.level) + 1])
def test_nothing_outside_of_a_tensor_is_read_or_written(level, tmp_path):
    """Every call of a sample with the best instruction set, some with the others; with ``--all``, of ten samples."""
    part = ["0", "1", "10"] if everything() else ["0", "1" if level == BEST.level else "8", "1"]
    script = TESTS / "helpers/ops/native_calls.py"
    completed = run_script(script, "guarded", *part, folder=tmp_path, timeout=LIMIT, REGARD_ISA=level)
    assert completed.code == 0, completed.err[-3000:]
    assert completed.out.startswith("ran ")


@pytest.mark.parametrize(("at_end", "place"), [(True, 40), (False, -1)])
def test_a_guard_page_ends_the_process(at_end, place, tmp_path):
    code = (
        "import ctypes, torch; from helpers.ops.native_calls import guarded; "
        f"tensor = guarded(torch.ones(10), at_end={at_end}); assert tensor.sum() == 10; print('before', flush=True); "
        f"ctypes.string_at(tensor.data_ptr() + {place}, 1); print('after')"
    )
    completed = run_code(code, folder=tmp_path)
    assert (completed.code, completed.out) == (-11, "before\n"), completed.err


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """The library with sanitizers, in a copy of the package, and the environment of a process that loads it."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++")
    folder = tmp_path_factory.mktemp("sanitized")
    libraries, environment = copy_package(folder)
    libraries.mkdir()
    loaded = library()
    assert isinstance(loaded, Library)
    # A function that reads too far shows that the sanitizer would notice.
    overrun = folder / "overrun.cpp"
    overrun.write_text('extern "C" int overrun(int* x, int n) { return x[n]; }\n')
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [*map(str, sorted(SOURCES.glob("*.cpp"))), str(overrun)]
    path = libraries / f"{loaded.level}.so"
    flags = ["-std=c++17", "-g1", "-O1", "-fPIC", "-shared", "-pthread", *sanitizers, *FLAGS[loaded.level]]
    if loaded.level == "avx512bf16":  # a processor that can emulate AMX
        flags.append("-DREGARD_EMULATE_AMX")
    built = run(compiler, *flags, *sources, "-o", str(path))
    if built.returncode and "cannot find" in built.stderr:
        pytest.skip("the compiler has no sanitizers")
    assert built.returncode == 0, built.stderr
    if loaded.level != "baseline":  # the library that detects the features of the processor
        shutil.copy(path, libraries / "baseline.so")
    runtime = run(compiler, "-print-file-name=libasan.so").stdout.strip()
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "LD_PRELOAD": runtime}
    return path, environment | options | {"REGARD_ISA": loaded.level}


@pytest.mark.slow
def test_sanitizers_find_nothing(sanitized):
    path, environment = sanitized
    code = (
        f"from regard.native.library import library; assert library().level == {path.stem!r}; "
        f"assert {str(path)!r} in open('/proc/self/maps').read(); "
        f"import sys; sys.argv[1:] = ['plain', '0', '16', '1']; from {CALLS} import main; main()"
    )
    completed = run(*python("-c", code), env=environment)
    assert completed.returncode == 0, completed.stderr[-6000:]
    assert completed.stdout.startswith("ran ")


@pytest.mark.slow
def test_sanitizers_would_find_a_read_that_goes_too_far(sanitized):
    path, environment = sanitized
    code = (  # without torch, which takes seconds to import under a sanitizer
        "import ctypes; allocate = ctypes.CDLL(None).malloc; allocate.restype = ctypes.c_void_p; "
        "pointer = ctypes.c_void_p(allocate(16)); (ctypes.c_int * 4).from_address(pointer.value)[:] = [1] * 4; "
        f"read = ctypes.CDLL({str(path)!r}).overrun; "
        "print(read(pointer, 3), flush=True); print(read(pointer, 4), flush=True)"
    )
    completed = run(*python("-c", code), env=environment)
    assert completed.returncode != 0
    assert completed.stdout == "1\n"
    assert "AddressSanitizer: heap-buffer-overflow" in completed.stderr
