"""A recording on a server, and requests to it."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import torch

import regard
from regard.explore.server import bind
from regard.recordings.layer import Layer
from regard.recordings.recording import Recording

TOKENS = tuple(f"▁word{number}" for number in range(600))
SHORT = TOKENS[:5]


def recording_of() -> Recording:
    """Layers that are requested in parts, and one that is sent completely."""
    torch.manual_seed(0)
    long = regard.weights(3 * torch.randn(1, 4, 600, 8), torch.randn(1, 2, 600, 8), mask=regard.Causal())
    second = regard.weights(torch.randn(1, 2, 600, 8), torch.randn(1, 2, 600, 8), mask=regard.Causal())
    small = regard.weights(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))
    return Recording(
        "A long text",
        "a model",
        (
            Layer("long", "decoder", long, TOKENS, TOKENS),
            Layer("small", "encoder", small, SHORT, SHORT),
            Layer("second", "decoder", second, TOKENS, TOKENS),
        ),
    )


@contextmanager
def served(recording: Recording) -> Iterator[str]:
    """The address at which a recording is served until the end of the block."""
    with bind(recording) as (server, listener, url):
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join(10)
        assert not thread.is_alive()


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read(), {name.lower(): value for name, value in response.headers.items()}
    except urllib.error.HTTPError as error:
        return error.code, error.read(), {name.lower(): value for name, value in error.headers.items()}
