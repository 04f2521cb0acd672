"""The HTTP connections of the server, with time limits, and with the headers of all responses on parser errors too."""

from __future__ import annotations

import asyncio
import math

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""Time that a client has to send a request, from the moment it connects or the previous response is complete."""
RESPONSE_SECONDS = 60.0
"""Time that a client has to read what does not fit into the buffers of the connection."""
CONNECTION_SECONDS = 600.0
"""Age of a connection from which on the next response is its last."""
SHUTDOWN_SECONDS = 2.0
"""Time that clients have when the server ends."""

CLOSE_HEADER = (b"connection", b"close")


class LimitedProtocol(H11Protocol):
    """A connection that is closed when its client is too slow.

    A client that sends its request byte by byte, or that does not read the response, would otherwise hold a connection
    as long as it likes. The time that the server needs to compute a response is not limited.
    """

    _timer: asyncio.TimerHandle | None = None
    _connected_at = 0.0
    _ends_at = math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self._connected_at = self.loop.time()
        self._limit(REQUEST_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ends_at = math.inf
        self._limit(math.inf)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Parse what has arrived; when a request is complete, its response takes the time that it needs."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self._is_responding():
            self._limit(RESPONSE_SECONDS if self.flow.write_paused else math.inf)
            if self.loop.time() - self._connected_at > CONNECTION_SECONDS:
                self.cycle.default_headers = [*self.cycle.default_headers, CLOSE_HEADER]

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit(RESPONSE_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._limit(math.inf if self._is_responding() else REQUEST_SECONDS)

    def on_response_complete(self) -> None:
        self._limit(RESPONSE_SECONDS if self.flow.write_paused else REQUEST_SECONDS)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Respond to what is not HTTP, unless a response has begun."""
        if self._is_responding():
            self.cycle.disconnected = True  # so that it does not respond, too
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        headers = [(b"content-type", b"text/plain; charset=utf-8"), CLOSE_HEADER]
        headers = [*self.server_state.default_headers, *headers]
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for part in (response, h11.Data(msg.encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(part) or b"")
        self.transport.close()

    def shutdown(self) -> None:
        self._ends_at = self.loop.time() + SHUTDOWN_SECONDS
        self._limit(SHUTDOWN_SECONDS)
        super().shutdown()

    def _is_responding(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]

    def _limit(self, seconds: float) -> None:
        """Abort the connection after some seconds, unless another limit is set before."""
        if self._timer is not None:
            self._timer.cancel()
        moment = min(self.loop.time() + seconds, self._ends_at)
        self._timer = None if moment == math.inf else self.loop.call_at(moment, self.transport.abort)
