"""How every command ends: refusals, Ctrl-C, closed pipes and full disks are each told in one line, or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

import regard as package
from regard.errors import InvalidArgument, MissingExtra


def start(*arguments: object, **streams) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "regard", *map(str, arguments)], stderr=subprocess.PIPE, **streams)


@pytest.mark.parametrize("verb", [[], ["look"], ["translate"], ["evaluate"], ["train"], ["info"]])
def test_each_help_has_an_example(regard, verb):
    done = regard(*verb, "--help")
    assert done.code == 0
    assert (
        f"regard {verb[0] if verb else 'look'} "
        in done.out.partition("Options")[0].partition("Usage:")[2].partition("\n")[2]
    )


def test_the_version_is_told(regard):
    assert regard("--version").out == f"regard {package.__version__}\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidArgument("beam must be at least 1, but is 0"), "regard: beam must be at least 1, but is 0\n"),
        (MissingExtra("install it"), "regard: install it\n"),
        (OSError(errno.ENOSPC, "No space left on device", "out.txt"), "regard: out.txt: No space left on device\n"),
        (OSError("bad descriptor"), "regard: bad descriptor\n"),
    ],
)
def test_a_refusal_is_one_message_and_code_2(regard, monkeypatch, error, said):
    def refusal():
        raise error

    monkeypatch.setattr("regard.cli.info.gather", refusal)
    done = regard("info")
    assert (done.code, done.out, done.err) == (2, "", said)


def test_a_fault_of_our_own_is_not_dressed_up(regard, monkeypatch):
    monkeypatch.setattr("regard.cli.info.gather", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        regard("info")


@pytest.mark.parametrize(
    "arguments", [["translat"], ["translate", "--beam", "0"], ["translate", "--beam", "x"], ["look"]]
)
def test_wrong_usage_is_code_2(regard, arguments):
    done = regard(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err


def test_ctrl_c_is_130_and_silent(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = start("evaluate", fifo)
    with fifo.open("wb"):  # opens when the command reads
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"")


def test_a_closed_pipe_is_silent():
    process = start("info", "--json", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full disk to try")
def test_a_full_disk_is_told():
    with open("/dev/full", "wb") as full:
        process = start("info", "--json", stdout=full)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said == b"regard: No space left on device\n"
