"""Connections end when their client is too slow, and every response has the headers."""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
import torch

import regard
from helpers.explore.serving import get, served
from regard.explore import http_protocol
from regard.explore.server import HEADERS, bind
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording


@pytest.fixture
def hasty(monkeypatch):
    """Time limits that a test can wait for."""
    for name, seconds in {"REQUEST": 1.0, "RESPONSE": 1.0, "CONNECTION": 1.5, "SHUTDOWN": 0.3}.items():
        monkeypatch.setattr(http_protocol, f"{name}_SECONDS", seconds)


def connected(address: str) -> tuple[socket.socket, str]:
    """A connection, and the path that has the token."""
    url = urlsplit(address)
    return socket.create_connection((url.hostname, url.port), timeout=20), url.path


def read_all(connection: socket.socket) -> bytes:
    """What is sent until the connection is closed."""
    data = b""
    try:
        while part := connection.recv(2**16):
            data += part
    except ConnectionResetError:
        pass
    return data


def drip(connection: socket.socket, data: bytes, seconds: float = 30.0) -> float:
    """Send a byte at a time until the connection is closed; the seconds that it lasted."""
    start = time.monotonic()
    connection.settimeout(0.05)
    for number in range(int(seconds / 0.05)):
        try:
            connection.sendall(data[number : number + 1] or b"x")
            if connection.recv(2**16) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - start


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_a_connection_without_a_whole_request_is_closed(hasty, address, sent):
    connection, _ = connected(address)
    with connection:
        connection.sendall(sent)
        start = time.monotonic()
        assert read_all(connection) == b""
        assert 0.5 < time.monotonic() - start < 10


@pytest.mark.parametrize(
    "head",
    [
        "GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
        "GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET {} HTTP/1.1\r\nX: ",  # the second request of a connection
        "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999\r\n\r\n",
    ],
)
def test_a_request_that_arrives_byte_by_byte_is_cut_off(hasty, address, head):
    connection, path = connected(address)
    with connection:
        connection.sendall(head.format(path, path).encode())
        assert drip(connection, b"slow" * 100) < 15


def test_a_response_that_is_not_read_is_cut_off(hasty):
    tokens = tuple(map(str, range(1500)))
    weights = regard.weights(*torch.randn(2, 1, 1, 1500, 64))
    with served(Recording("t", "m", (Layer("l", "encoder", weights, tokens, tokens),))) as address:
        connection, path = connected(address)
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            request = f"GET {path}qkv/0/0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
            connection.sendall(request * 50)  # pipelined: far more than fits into the buffers
            time.sleep(3)
            with pytest.raises(OSError, match=r"reset|Broken"):  # noqa: PT012 - it may arrive late
                while connection.recv(2**16):
                    connection.sendall(b"x")


def test_an_old_connection_is_closed_with_its_next_response(hasty, address, monkeypatch):
    monkeypatch.setattr(http_protocol, "REQUEST_SECONDS", 5)
    url = urlsplit(address)
    connection = HTTPConnection(url.hostname, url.port, timeout=20)
    closes = []
    with closing(connection):
        for _ in range(2):
            connection.request("GET", f"{url.path}row/0/0/7")
            response = connection.getresponse()
            assert (response.status, len(response.read())) == (200, 4 * 600)
            closes.append(response.will_close)
            time.sleep(2)
    assert closes == [False, True]


def test_a_response_may_take_longer_to_compute_than_all_limits(hasty, long_recording, monkeypatch):
    def slow(self, layer, head, query):
        time.sleep(3)
        return b"row"

    monkeypatch.setattr("regard.explore.recording_service.RecordingService.row", slow)
    with served(long_recording) as address:
        assert get(f"{address}row/0/0/7")[:2] == (200, b"row")


MALFORMED = {
    "not http": b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "bad header": b"GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
    "bad encoding": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip\r\n\r\n",
    "bad chunk": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "long line": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 50_000,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_parser_error_has_the_headers_of_all_responses(address, name, caplog):
    connection, path = connected(address)
    with connection, caplog.at_level(logging.DEBUG, "asyncio"):
        connection.sendall(MALFORMED[name])
        data = read_all(connection)
    head = data.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
    assert head[0] == "http/1.1 400 bad request"
    for header, value in HEADERS.items():
        assert f"{header}: {value}".lower() in head
    assert "connection: close" in head
    assert path.strip("/").encode() not in data
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_body_that_turns_out_to_be_malformed_ends_the_connection_without_a_traceback(address, caplog):
    connection, path = connected(address)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with connection, caplog.at_level(logging.DEBUG):
        connection.sendall(head)
        assert connection.recv(2**16).startswith(b"HTTP/1.1 405")
        connection.sendall(b"not a length\r\n")
        assert b"HTTP/1.1" not in read_all(connection)
    assert [record for record in caplog.records if record.exc_info] == []


def test_the_log_has_no_advice_about_other_packages(address, caplog, capfd):
    connection, path = connected(address)
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA=="
    with connection, caplog.at_level(logging.DEBUG):
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{upgrade}\r\n\r\n".encode())
        assert connection.recv(20).startswith(b"HTTP/1.1 200")
    assert not [record for record in caplog.records if "install" in record.getMessage()]
    assert "install" not in capfd.readouterr().err


def test_hanging_clients_do_not_delay_shutdown(hasty, long_recording):
    with bind(long_recording) as (server, listener, url):
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        connections = [connected(url)[0] for _ in range(3)]
        connections[0].sendall(b"GET / HT")
        path = urlsplit(url).path
        connections[1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connections[1].sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() * 60)
        time.sleep(0.3)
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()
        for connection in connections:
            connection.close()
