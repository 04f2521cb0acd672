"""The server sends the numbers of the tensors, only to clients on this machine that know its token."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest
import safetensors.numpy
import torch

import regard
from helpers.explore.serving import get, served
from regard.analysis.head_scores import HEAD_SCORES, head_scores
from regard.errors import InvalidArgument
from regard.explore.server import bind
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording


def floats(content: bytes, *shape: int) -> np.ndarray:
    return np.frombuffer(content, "<f4").reshape(shape)


def test_a_row_is_what_the_matrix_says(address, long_recording):
    status, content, _ = get(f"{address}row/0/3/400")
    row = np.frombuffer(content, "<f4")
    weights = long_recording.layers[0].weights
    assert status == 200
    np.testing.assert_allclose(row[:401], weights[0, 3, 400, :401].numpy(), rtol=1e-5)
    assert np.isnan(row[401:]).all()


def test_a_column_is_what_the_matrix_says(address, long_recording):
    column = np.frombuffer(get(f"{address}column/0/1/77")[1], "<f4")
    np.testing.assert_allclose(column[77:], long_recording.layers[0].weights[0, 1, 77:, 77].numpy(), rtol=1e-5)
    assert np.isnan(column[:77]).all()


def test_vectors_are_those_of_the_head(address, long_recording):
    request = long_recording.layers[0].weights.request
    exact = [tensor[0, 2 * tensor.shape[1] // 4] for tensor in (request.query, request.key)]
    actual = np.frombuffer(get(f"{address}qkv/0/2")[1], "<f4")
    np.testing.assert_array_equal(actual, np.concatenate([tensor.numpy().ravel() for tensor in exact]))


@pytest.mark.parametrize(
    ("size", "row", "column", "shape"), [(4, 0, 0, (150, 150)), (1, 1, 0, (256, 256)), (1, 2, 2, (88, 88))]
)
def test_squares_are_means_of_rows_and_sums_of_keys(address, long_recording, size, row, column, shape):
    actual = floats(get(f"{address}tile/0/2/{size}/{row}/{column}")[1], *shape)
    dense = long_recording.layers[0].weights[0, 2].double()
    part = dense[row * 256 * size : (row + 1) * 256 * size, column * 256 * size : (column + 1) * 256 * size]
    expected = part.unflatten(0, (-1, size)).mean(1).unflatten(1, (-1, size)).sum(2).numpy()
    rows, keys = np.indices(expected.shape)
    masked = (column * 256 + keys) * size > (row * 256 + rows + 1) * size - 1
    assert (np.isnan(actual) == masked).all()
    np.testing.assert_allclose(actual[~masked], expected[~masked], rtol=1e-5, atol=1e-8)


def test_small_layers_are_sent_completely(address, long_recording):
    tensors = safetensors.numpy.load(zlib.decompress(get(f"{address}block/1")[1]))
    np.testing.assert_array_equal(tensors["weights"], long_recording.layers[1].weights.dense()[0].numpy())
    assert set(tensors) == {"key", "query", "weights"}


def test_thumbnails_and_scores(address, long_recording):
    thumbnail = floats(get(f"{address}thumbnail/0/0")[1], 30, 30)
    assert np.nansum(thumbnail[-1]) == pytest.approx(1, abs=1e-5)
    expected = head_scores(long_recording)
    row = expected["layer"].index("long") + 2
    scores = json.loads(get(f"{address}scores/0/2")[1])
    assert list(scores) == list(HEAD_SCORES)
    assert scores["duplicate_token"] is None  # no word comes twice
    known = {name: score for name, score in scores.items() if score is not None}
    assert known == pytest.approx({name: expected[name][row] for name in known}, abs=1e-4)


@pytest.mark.parametrize(
    "path",
    [
        "row/0/4/0", "row/3/0/0", "row/0/0/600", "row/0/0/-1", "row/0/0/1.5", "row/0/0/", "row/0/0/x", "column/0/0/600",
        "tile/0/0/2/0/0", "tile/0/0/4/1/0", "tile/1/0/1/0/0", "block/0", "block/7", "thumbnail/0",
        "..%2f..%2fetc%2fpasswd", "row/0/0/99999999999999999999999",
        f"row/0/0/{'9' * 5000}", f"tile/0/0/{'9' * 5000}/0/0", "row/0/0/%D9%A3",
        "scores", "scores/0/4", "static/main.js",
        "etc/passwd",
    ],
)  # fmt: skip
def test_what_is_not_there_is_404_and_no_traceback(address, path):
    status, content, headers = get(address + path)
    assert status == 404
    assert b"Traceback" not in content
    assert b".py" not in content
    assert headers["content-type"].startswith("text/plain")


def test_requests_without_the_token_are_404(address):
    root, token = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)([\w-]{32})/", address).groups()
    wrong = token[:-1] + ("B" if token.endswith("A") else "A")
    for path in ("", "scores/0/0", f"{wrong}/", f"{token.lower()}/row/0/0/0", "x" * 32 + "/", f"?token={token}"):
        assert get(root + path)[0] == 404


def test_only_requests_from_this_machine_are_accepted(address, long_recording):
    with bind(long_recording) as (_, listener, _):
        assert listener.getsockname()[0] == "127.0.0.1"
    for name in (
        "evil.example",
        "127.0.0.1@evil.example",
        "a b",
        "[",
        "localhost.evil.example",
        "[::1]",
        "[::1]:80",
        "",
    ):
        assert get(address, Host=name)[0] == 400
    assert get(address, Host="localhost:1")[0] == 200


def test_a_request_without_a_host_is_rejected(address):
    url = urlsplit(address)
    with socket.create_connection((url.hostname, url.port), timeout=60) as connection:
        connection.sendall(f"GET {url.path} HTTP/1.0\r\n\r\n".encode())
        assert connection.makefile("rb").readline().split()[1] == b"400"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_other_methods_are_refused(address, method):
    assert get(address, method)[0] == 405


def test_the_page_may_connect_to_its_server_alone(address):
    status, content, headers = get(address)
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert b"connect-src 'self'" in content


@pytest.mark.parametrize(
    ("path", "options", "expected"),
    [
        ("", {}, 200),
        ("row/0/0/7", {}, 200),
        ("", {"Host": "evil.example"}, 400),
        ("region/0/0/5/4/0/1", {}, 400),
        ("region/0/0/4/5/0/1?hidden=1,x", {}, 400),
        ("row/0/0/600", {}, 404),
        ("nowhere", {}, 404),
        ("", {"method": "POST"}, 405),
    ],
)
def test_no_response_is_cached_or_sends_a_referrer(address, path, options, expected):
    status, _, headers = get(address + path, **options)
    assert status == expected
    require_safe(headers)


def require_safe(headers: dict[str, str]) -> None:
    assert headers["cache-control"] == "no-store"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers


def test_an_error_while_computing_is_500_without_its_message():
    query, key = torch.randn(2, 1, 2, 5, 8)
    weights = regard.weights(query, key)
    recording = Recording("", "", (Layer("a", "encoder", weights),))
    with served(recording) as address:
        assert get(f"{address}row/0/0/0")[0] == 200
        query.add_(1)  # so that `weights` is stale
        status, content, headers = get(f"{address}row/0/1/0")
    assert status == 500
    assert content == b"Internal Server Error"
    require_safe(headers)


@pytest.mark.parametrize("path", ["region/0/0/5/4/0/1", "region/0/0/4/5/1/0"])
def test_a_region_that_ends_before_it_begins_is_refused(address, path):
    assert get(address + path)[0] == 400


def run(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "regard", "serve", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_command_prints_its_address_and_ends_by_ctrl_c(long_recording, tmp_path):
    long_recording.save(tmp_path / "long.regard")
    process = run(str(tmp_path / "long.regard"), "--no-open")
    try:
        address = process.stdout.readline().strip()
        status, content, _ = get(address)
        assert status == 200
        assert b"A long text" in content
    finally:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    assert process.returncode in (0, 130)


BROWSER = """#!/bin/sh
printf '%s\\n' "$@" > "$ARGUMENTS.part"
ps -eo args > "$ARGUMENTS.ps" 2>/dev/null || true
mv "$ARGUMENTS.part" "$ARGUMENTS"
"""


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="a browser that is a script of the shell")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_browser_gets_a_private_file_instead_of_the_token(long_recording, tmp_path, monkeypatch, number):
    """Other users see the arguments of programs, so the token must not be one."""
    long_recording.save(tmp_path / "long.regard")
    (tmp_path / "browser").write_text(BROWSER)
    (tmp_path / "browser").chmod(0o755)
    (tmp_path / "temporary").mkdir()
    arguments = tmp_path / "arguments"
    for name, value in {"BROWSER": "browser", "ARGUMENTS": "arguments", "TMPDIR": "temporary"}.items():
        monkeypatch.setenv(name, f"{tmp_path / value}")
    process = run(str(tmp_path / "long.regard"))
    try:
        url = process.stdout.readline().strip()
        deadline = time.monotonic() + 60
        while not arguments.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        token = urlsplit(url).path.strip("/")
        assert len(token) == 32
        assert token not in (tmp_path / "arguments.ps").read_text()
        (opened,) = arguments.read_text().splitlines()
        file = Path(url2pathname(urlsplit(opened).path))
        assert urlsplit(opened).scheme == "file"
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert f'content="0; url={url}"' in file.read_text()
    finally:
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    assert list((tmp_path / "temporary").iterdir()) == []


def test_an_invalid_file_is_refused_with_one_message(tmp_path):
    (tmp_path / "a.regard").write_bytes(b"nothing")
    process = run(str(tmp_path / "a.regard"))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Traceback" not in errors
    assert "a.regard" in errors


def test_a_port_in_use_is_named(long_recording):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(InvalidArgument, match=f"port: expected a free port, got {port} "),
            bind(long_recording, port),
        ):
            time.sleep(0)
