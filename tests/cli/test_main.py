"""How every command ends: refusals, Ctrl-C, closed pipes and full disks are each told in one line, or not at all."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from functools import partial

import pytest
from typer.main import get_command

import regard as package
from helpers.pairwise import everything
from regard.cli.main import app
from regard.errors import InvalidArgument, MissingExtra


def start(*arguments: object, env: dict[str, str] | None = None, **streams) -> subprocess.Popen[bytes]:
    """The command as a process of its own, with the buffered output that a shell gives it."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "", **(env or {})}
    command = [sys.executable, "-m", "regard", *map(str, arguments)]
    heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # which a shell's background jobs ignore
    return subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, preexec_fn=heeding, **streams)


@pytest.mark.parametrize("verb", list(get_command(app).commands))
def test_each_help_has_examples_on_lines_of_their_own(regard, verb):
    done = regard(verb, "--help")
    assert done.code == 0
    text = done.out.partition("╭")[0].partition("Usage:")[2].partition("\n")[2]
    examples = re.findall(r"^ +(?:echo .* \| )?regard ([a-z-]+)", text, re.MULTILINE)
    assert verb in examples
    assert len(examples) >= 2 or verb == "info"


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
    "arguments", [["translat"], ["translate", "--beam", "0"], ["translate", "--beam", "x"], ["show"]]
)
def test_wrong_usage_is_code_2(regard, arguments):
    done = regard(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err


def test_ctrl_c_is_130_and_silent():
    process = start("evaluate", "-", stdin=subprocess.PIPE)
    process.stdin.write(b"a\tb\n" * 100_000)  # more than a pipe holds: returns when the command reads
    process.stdin.flush()
    for _ in range(12):  # Python loses a signal that comes just before it waits for a file
        process.send_signal(signal.SIGINT)
        try:
            _, said = process.communicate(timeout=5)
            break
        except subprocess.TimeoutExpired:
            continue
    else:
        process.kill()
        _, said = process.communicate()
    assert (process.returncode, said) == (130, b"")


def test_a_closed_pipe_is_silent():
    reading, writing = os.pipe()
    os.close(reading)
    process = start("info", "--json", stdout=writing)
    os.close(writing)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full disk to try")
def test_a_full_disk_is_told():
    with open("/dev/full", "wb") as full:
        process = start("info", "--json", stdout=full)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said == b"regard: No space left on device\n"


def closed(arguments: str, closing: str, model) -> subprocess.CompletedProcess[bytes]:
    line = f"{sys.executable} -m regard {arguments} {closing}"
    return subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "MODEL": str(model)},
        input=b"the cat\n",
        capture_output=True,
        check=False,
    )


CLOSED = [">&-", "2>&-", ">&- 2>&-"]


@pytest.mark.parametrize(
    ("arguments", "closing"),
    [
        *(("--version", closing) for closing in CLOSED),
        *(('translate --model "$MODEL" --beam 1', closing) for closing in CLOSED[0 if everything() else 2 :]),
    ],
)
def test_output_that_is_closed_is_no_fault(arguments, closing, model):
    done = closed(arguments, closing, model)
    assert (done.returncode, re.sub(rb"note: cut .*\n", b"", done.stderr)) == (0, b"")
    assert len(done.stdout.splitlines()) == (closing == "2>&-")


CLOSED_INPUT = [("<&-", b"regard: standard input: could not be read: it is closed\n"), ("<&- 2>&-", b"")]


@pytest.mark.parametrize(("closing", "said"), CLOSED_INPUT if everything() else CLOSED_INPUT[:1])
def test_input_that_is_closed_is_refused_where_it_is_needed(closing, said, model):
    done = closed('translate --model "$MODEL"', closing, model)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", said)
    assert closed("--version", closing, model).returncode == 0


def test_the_page_is_there_though_nobody_reads_what_is_printed(model, tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    process = start("show", "the cat", "--model", model, "-o", tmp_path / "a.html", stdout=writing)
    os.close(writing)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, b"")
    assert (tmp_path / "a.html").read_text(encoding="utf-8").endswith("</html>\n")


def test_lines_are_utf8_whatever_the_locale(model):
    narrow = {"PYTHONIOENCODING": "ascii:strict"}
    process = start("translate", "--model", model, "--json", stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=narrow)
    told, said = process.communicate("Grüße ☃\n".encode(), timeout=60)
    assert (process.returncode, re.sub(rb"note: cut .*\n", b"", said)) == (0, b"")
    assert '"source": "Grüße ☃"' in told.decode("utf-8")


def test_a_picture_survives_a_narrow_terminal(model, tmp_path):
    process = start(
        *("show", "the ☃", "--target", "der ☃", "--model", model, "-o", tmp_path / "a.html"),
        stdout=subprocess.PIPE,
        env={"PYTHONIOENCODING": "latin-1:strict"},
    )
    told, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")
    assert told.startswith(b"der ?\n")


def test_someone_who_waits_sees_a_bar_and_a_file_does_not(model, tmp_path):
    (tmp_path / "in").write_text("the cat\n" * 3)
    screen, stderr = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "translate", "--model", model, tmp_path / "in", "-o", tmp_path / "out"],
        stderr=stderr,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(stderr)
    shown = b""
    try:
        while part := os.read(screen, 4096):
            shown += part
    except OSError:  # Linux says so when the last writer has gone
        pass
    os.close(screen)
    assert process.wait(timeout=60) == 0
    assert b"translating" in shown
    assert b"/3" in shown
    assert (tmp_path / "out").read_text(encoding="utf-8").count("\n") == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "a", "--model", "x", "--max-new-tokens", "0"], "than or equal to 1, got '0'"),
        (
            ["show", "a", "--dtype", "half"],
            "Invalid value for '--dtype': 'half' is not one of 'float32', 'bfloat16', 'float",
        ),
    ],
)
def test_a_value_that_an_option_does_not_take_is_shown(regard, arguments, message):
    done = regard(*arguments)
    assert done.code == 2
    assert message in " ".join(done.err.replace("│", "").split())
    assert "Value error" not in done.err
