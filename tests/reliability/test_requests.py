"""The server under attack: no request makes it hang, exit, print a traceback, or respond without its token."""

from __future__ import annotations

import random
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from helpers.attacks import number_of_tries, seed
from helpers.explore.serving import recording_of
from regard.explore.server import HEADERS

TIMEOUT = 30.0
SLOW = 12
"""Connections that send a byte now and then, in addition to the other requests."""
GOOD = ("", "row/0/3/400", "column/2/1/77", "scores/0/0", "thumbnail/0/0", "block/1", "tile/0/2/4/0/0", "segments/0")
REJECTED = (
    "row/0/9/0",
    "row/9/0/0",
    "row/0/0/-1",
    f"row/0/0/{'9' * 5000}",
    "region/0/0/5/4/0/1",
    "row/0/0/%D9%A3",
    "..",
    "%2e%2e/%2e%2e/etc/passwd",
    "block/0",
    "region/0/0/4/5/0/1?hidden=" + "1," * 999,
    "static/main.js",
    "\x7f",
)
HOSTS = ("evil.example", "127.0.0.1.evil.example", "127.0.0.1@evil", "[::1]", "0.0.0.0", "", "a b", "localhost\tx")
METHODS = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "X" * 5000)


class Client:
    """Requests to one server, each over a connection of its own."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname == "127.0.0.1"
        assert parts.port is not None
        self.port, self.path = parts.port, parts.path
        self.token = parts.path.strip("/")

    def request(self, path: str, *, method: str = "GET", host: str = "127.0.0.1", close: bool = True) -> bytes:
        end = "Connection: close\r\n\r\n" if close else "\r\n"
        return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{end}".encode("latin-1", "replace")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)

    def send(self, data: bytes, *, is_complete: bool) -> list[tuple[int, bytes, bytes]]:
        """Send bytes; return status, head and body of each response."""
        with self.connect() as connection:
            received = b""
            try:
                connection.sendall(data)
                if not is_complete:
                    connection.settimeout(0.1)
                    with suppress(TimeoutError):
                        received = connection.recv(2**16)
                    connection.settimeout(TIMEOUT)
                    connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(2**20):
                    received += part
            except TimeoutError:
                raise AssertionError(f"the server hangs: {data[:1000]!r}") from None
            except OSError:  # reset, in one of several ways
                pass
        return parse(received)


def parse(data: bytes) -> list[tuple[int, bytes, bytes]]:
    responses = []
    while data:
        head, separator, rest = data.partition(b"\r\n\r\n")
        if not separator:
            break  # cut off by a reset
        status = int(re.match(rb"HTTP/1\.1 (\d{3}) ", head)[1])
        match = re.search(rb"(?im)^content-length: (\d+)", head)
        length = int(match[1]) if match else len(rest)
        responses.append((status, head, rest[:length]))
        data = rest[length:]
    return responses


def check(client: Client, responses: list[tuple[int, bytes, bytes]], *, knows_token: bool) -> None:
    """Check a response to any request."""
    for status, head, body in responses:
        assert status in ((200, 307, 400, 404, 405) if knows_token else (400, 404, 405)), (status, head)
        lines = head.decode("latin-1").lower().split("\r\n")
        for name, value in HEADERS.items():
            assert f"{name}: {value}".lower() in lines, head
        assert not [line for line in lines if line.startswith("server:")]
        assert b"Traceback" not in body
        if status != 200:
            assert b".py" not in body
        if not knows_token:
            assert client.token.encode() not in head + body


def valid(client: Client, draw: random.Random) -> None:
    path = draw.choice(GOOD)
    responses = client.send(client.request(client.path + path), is_complete=True)
    check(client, responses, knows_token=True)
    assert [response[0] for response in responses] == [200], path


def rejected(client: Client, draw: random.Random) -> None:
    path = draw.choice(REJECTED)
    responses = client.send(client.request(client.path + path), is_complete=True)
    check(client, responses, knows_token=True)
    assert [response[0] for response in responses] in ([404], [400]), path


def odd_numbers(client: Client, draw: random.Random) -> None:
    """Any indices in a path of the server, and anything for the hidden keys."""
    path = draw.choice([*GOOD, "qkv/0/0", "region/0/0/1/5/2/9?hidden=1,2"])
    numbers = (
        "0",
        "1",
        "2",
        "4",
        "16",
        "599",
        "600",
        "00",
        "999999999",
        "1000000000",
        "-1",
        "1.5",
        "1e3",
        "",
        "x",
        "+1",
    )
    path = re.sub(r"\d+", lambda _: draw.choice(numbers) if draw.random() < 0.7 else str(draw.randrange(600)), path)
    path += draw.choice(["", "", "", "/", "?", "?hidden=0&hidden=1", "?hidden=%2C", "?hidden=9999999999", "#a"])
    responses = client.send(client.request(client.path + path), is_complete=True)
    check(client, responses, knows_token=True)
    assert len(responses) == 1, path


def wrong_token(client: Client, draw: random.Random) -> None:
    position = draw.randrange(len(client.token))
    other = draw.choice([letter for letter in "abcXYZ019-_" if letter != client.token[position]])
    token = draw.choice(
        [
            client.token[:position] + other + client.token[position + 1 :],
            client.token[:position],
            client.token.swapcase(),
            client.token[::-1],
            "",
            "%00",
            "..",
            "*",
            f"?{'a' * 32}",
        ]
    )
    path = f"/{token}/{draw.choice(GOOD)}"
    responses = client.send(client.request(path), is_complete=True)
    check(client, responses, knows_token=False)
    assert [response[0] for response in responses] in ([404], [400]), path


def wrong_host(client: Client, draw: random.Random) -> None:
    host = draw.choice(HOSTS)
    responses = client.send(client.request(client.path + draw.choice(GOOD), host=host), is_complete=True)
    check(client, responses, knows_token=True)
    assert [response[0] for response in responses] == [400], host


def wrong_method(client: Client, draw: random.Random) -> None:
    data = client.request(client.path + draw.choice(GOOD), method=draw.choice(METHODS))
    if draw.random() < 0.3:
        data = data.replace(b"\r\n\r\n", b"\r\nContent-Length: 1000000000000\r\n\r\n" + b"x" * draw.randrange(10**5))
    responses = client.send(data, is_complete=False)
    check(client, responses, knows_token=True)
    assert {response[0] for response in responses} <= {400, 405}


def mutated(client: Client, draw: random.Random) -> None:
    """A request without the token, with bytes changed, inserted, removed, repeated or cut off."""
    data = bytearray(client.request(f"/{'a' * 32}/{draw.choice(GOOD)}"))
    for _ in range(draw.randint(1, 6)):
        position = draw.randrange(len(data) + 1)
        piece = draw.choice(
            [bytes([draw.randrange(256)]), b"\r\n", b"\0", b"\x80", b": ", b"\r\n\r\n", draw.randbytes(9)]
        )
        kind = draw.randrange(5)
        if kind == 0:
            data[position : position + len(piece)] = piece
        elif kind == 1:
            data[position:position] = piece
        elif kind == 2:
            del data[position : position + draw.randint(1, 9)]
        elif kind == 3:
            data[position:position] = data[position : position + draw.randint(1, 40)] * draw.randint(1, 20)
        else:
            del data[position:]
    check(client, client.send(bytes(data), is_complete=False), knows_token=False)


def framed(client: Client, draw: random.Random) -> None:
    """Bodies whose lengths contradict each other, as in request smuggling."""
    lines = draw.choices(
        [
            "Content-Length: 5",
            "Content-Length: 0",
            "Content-Length: -1",
            "Content-Length: 1e3",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: gzip",
            "Transfer-Encoding: xchunked",
            "Expect: 100-continue",
            "Upgrade: h2c",
            "Connection: upgrade",
            "Upgrade: websocket",
            "Content-Length : 5",
            " folded",
            "X-Forwarded-For: 127.0.0.1",
            "Range: bytes=0-",
        ],
        k=draw.randint(1, 4),
    )
    body = draw.choice(
        [b"", b"0\r\n\r\n", b"5\r\nhello\r\n", b"zz\r\n", b"fffffffffffffffff\r\n", b"hello", draw.randbytes(50)]
    )
    hidden = client.request(f"/{'b' * 32}/", close=False)
    data = f"{draw.choice(['GET', 'POST'])} / HTTP/1.1\r\nHost: localhost\r\n".encode()
    data += "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body + hidden * draw.randrange(2)
    check(client, [each for each in client.send(data, is_complete=False) if each[0] != 100], knows_token=False)


def oversized(client: Client, draw: random.Random) -> None:
    size = draw.choice([2**16, 2**17, 2**20])
    data = draw.choice(
        [
            client.request("/" + "a" * size),
            client.request("/", host="a" * size),
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (size // 6) + b"\r\n",
            b"A" * size,
            b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1;" + b"x" * size + b"\r\n",
        ]
    )
    responses = client.send(data, is_complete=False)
    check(client, responses, knows_token=False)


def pipelined(client: Client, draw: random.Random) -> None:
    expected = [draw.choice([200, 404]) for _ in range(draw.randint(2, 12))]
    paths = [
        f"{client.path if status == 200 else '/' + 'c' * 32 + '/'}row/0/0/{draw.randrange(600)}" for status in expected
    ]
    data = b"".join(client.request(path, close=number == len(paths) - 1) for number, path in enumerate(paths))
    responses = client.send(data, is_complete=True)
    check(client, responses, knows_token=True)
    assert [response[0] for response in responses] == expected


def aborted(client: Client, draw: random.Random) -> None:
    """The client disappears before, within or after its request."""
    data = client.request(client.path + draw.choice(GOOD), close=False) * draw.randint(1, 5)
    with client.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(data[: draw.randrange(len(data) + 1)])
        if draw.random() < 0.5:
            time.sleep(draw.uniform(0, 0.01))


def noise(client: Client, draw: random.Random) -> None:
    check(client, client.send(draw.randbytes(draw.randrange(3000)), is_complete=False), knows_token=False)


KINDS: tuple[Callable[[Client, random.Random], None], ...] = (
    valid,
    rejected,
    odd_numbers,
    wrong_token,
    wrong_host,
    wrong_method,
    mutated,
    mutated,
    framed,
    oversized,
    pipelined,
    aborted,
    noise,
)


def drip(client: Client, draw: random.Random) -> float:
    """Send a request slowly, until the server ends the connection; the seconds that it lasted."""
    data = draw.choice(
        [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 99, client.request("/", close=False) * 99]
    )
    start = time.monotonic()
    with client.connect() as connection:
        connection.settimeout(draw.uniform(0.5, 2))
        for number in range(1000):
            try:
                connection.sendall(data[number : number + 1])
                if connection.recv(2**16) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
    return time.monotonic() - start


@pytest.fixture
def server(tmp_path):
    recording_of().save(tmp_path / "long.regard")
    command = [sys.executable, "-m", "regard", "serve", str(tmp_path / "long.regard"), "--no-open"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def test_requests(server, tmp_path: Path):
    tries = number_of_tries(300, 10_000)
    client = Client(server.stdout.readline().strip())
    counts = Counter()

    def attack(number: int) -> None:
        draw = random.Random(f"{seed()} {number}")
        kind = draw.choice(KINDS)
        kind(client, draw)
        counts[kind.__name__] += 1

    with ThreadPoolExecutor(SLOW) as slow, ThreadPoolExecutor(8) as pool:
        slow_ones = [slow.submit(drip, client, random.Random(f"{seed()} slow {number}")) for number in range(SLOW)]
        for _ in pool.map(attack, range(tries)):
            pass
        assert max(each.result() for each in slow_ones) < 25
    valid(client, random.Random(0))
    assert server.poll() is None
    server.send_signal(signal.SIGINT)
    assert server.wait(20) in (0, 130)
    log = (tmp_path / "log").read_text()
    assert client.token not in log
    assert [line for line in log.splitlines() if line != "Press Ctrl-C to stop."] == []
    assert sum(counts.values()) == tries
    print(dict(counts), f"and {SLOW} slow ones")
