"""Serve a recording of any length on this machine: a page that loads what it shows, computed when it is shown."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from regard.errors import InvalidArgument, MissingExtra
from regard.explore.gradients import WITH_GRADIENT
from regard.explore.html_page import render_html
from regard.explore.recording_service import RecordingService

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.convertors import IntegerConvertor, StringConvertor, register_url_convertor
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    from regard.explore.http_protocol import LimitedProtocol
except ImportError as error:
    raise MissingExtra(f"the server needs {error.name}: install it with `pip install 'regard[serve]'`") from None

if TYPE_CHECKING:
    from regard.recordings.recording import Recording

HOST = "127.0.0.1"
ALLOWED_HOSTS = (HOST, "localhost")
"""Host names of requests that are answered: a page elsewhere could point its own name here (DNS rebinding)."""
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the URL holds the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every response, errors included."""


def serve(recording: Recording, port: int = 0, on_ready: Callable[[str], object] = print) -> None:
    """Serve a recording of any length on this machine until Ctrl-C.

    Args:
        recording: A recording of one sequence. What the page shows is computed from its queries and keys.
        port: The port; 0 is any free one.
        on_ready: Called with the URL, which holds a secret token, when the server accepts connections.

    Raises:
        InvalidType: If it is not a recording.
        InvalidArgument: If the recording cannot be shown, or the port is taken.
        MissingExtra: If starlette or uvicorn is not installed.
    """
    with bind(recording, port) as (server, listener, url):
        on_ready(url)
        with suppress(KeyboardInterrupt):  # uvicorn shuts down, then raises it again
            server.run([listener])


@contextmanager
def bind(recording: Recording, port: int = 0) -> Iterator[tuple[uvicorn.Server, socket.socket, str]]:
    """A server whose port is bound, so that its URL is known before it runs.

    Args:
        recording: As for `serve`.
        port: The port; 0 is any free one.

    Yields:
        The server, its socket and its URL: ``server.run([listener])`` serves until ``server.should_exit`` is set.

    Raises:
        InvalidType: If it is not a recording.
        InvalidArgument: If the recording cannot be shown, or the port is taken.
    """
    token = secrets.token_urlsafe(24)
    config = uvicorn.Config(
        create_app(recording, token),
        http=LimitedProtocol,
        ws="none",
        log_level="error",  # a warning says that a request is malformed, or advises to install other packages
        access_log=False,
        lifespan="off",
        server_header=False,
        headers=list(HEADERS.items()),  # not in the app: its middleware adds none to errors (500) and the parser's
    )
    # With the protocol named, asyncio sets TCP_NODELAY: a body does not wait for the receipt of its head.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidArgument(f"port: expected a free port, got {port} ({reason}); 0 is any free one") from None
        listener.listen()  # connections wait until the server runs
        yield uvicorn.Server(config), listener, f"http://{HOST}:{listener.getsockname()[1]}/{token}/"


def create_app(recording: Recording, token: str) -> Starlette:
    """The app of a recording; `bind` adds `HEADERS` to its responses.

    Every path starts with the token, and requests to other hosts than `ALLOWED_HOSTS` are rejected.

    Args:
        recording: As for `serve`.
        token: A secret of characters that need no quoting in a URL.

    Raises:
        InvalidType: If it is not a recording.
        InvalidArgument: If the recording cannot be shown, with every reason.
    """
    service = RecordingService(recording)

    def whole_layer(layer: int) -> bytes:
        if service.levels(layer):
            raise HTTPException(404, f"layer {layer} is too large to be sent whole")
        return service.layer(layer)

    register_url_convertor("index", IndexConvertor())
    head = "{layer:index}/{head:index}"
    register_url_convertor("shown", ShownConvertor())
    paths: dict[str, Callable[..., Any]] = {
        "block/{layer:index}": whole_layer,
        "segments/{layer:index}": service.segments,
        f"thumbnail/{head}": service.thumbnail,
        f"scores/{head}": service.head_scores,
        f"qkv/{head}": service.qkv,
        f"{{show:shown}}/largest/{head}": service.largest,
    }
    parts = {
        f"row/{head}/{{query:index}}": service.row,
        f"column/{head}/{{key:index}}": service.column,
        f"tile/{head}/{{size:index}}/{{row:index}}/{{column:index}}": service.tile,
    }
    paths |= parts | {f"{{show:shown}}/{path}": compute for path, compute in parts.items()}
    region = f"region/{head}/{{top:index}}/{{bottom:index}}/{{left:index}}/{{right:index}}"

    def page(request: Request) -> Response:
        return HTMLResponse(render_html(service.header, [], "'self'").encode("utf-8", "xmlcharrefreplace"))

    def respond_with(compute: Callable[..., Any]) -> Callable[[Request], Response]:
        def respond(request: Request) -> Response:
            check_path(service, request.path_params)
            result = compute(**request.path_params)
            if isinstance(result, bytes):
                return Response(result, media_type="application/octet-stream")
            return JSONResponse(result)

        return respond

    def sum_region(request: Request) -> Response:
        check_path(service, request.path_params)
        hidden = request.query_params.get("hidden", "")
        if not re.fullmatch(r"(\d{1,9}(,\d{1,9})*)?", hidden):
            raise HTTPException(400, "hidden: expected indices of keys, separated by commas")
        rows = service.region(**request.path_params, hidden=[int(key) for key in hidden.split(",") if key])
        return Response(rows, media_type="application/octet-stream")

    regions = {region: sum_region, f"{{show:shown}}/{region}": sum_region}
    endpoints = {"": page, **regions, **{path: respond_with(compute) for path, compute in paths.items()}}
    return Starlette(
        routes=[Route(f"/{token}/{path}", endpoint, methods=["GET"]) for path, endpoint in endpoints.items()],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=ALLOWED_HOSTS, www_redirect=False)],
    )


class IndexConvertor(IntegerConvertor):
    """An index in a path. Starlette's `int` takes any number of digits, but Python's int() refuses over 4,300."""

    regex = "[0-9]{1,9}"


class ShownConvertor(StringConvertor):
    """What is shown instead of the weights."""

    regex = "|".join(WITH_GRADIENT)


def check_path(service: RecordingService, path: Mapping[str, Any]) -> None:
    """Respond with 404 to an index that the recording does not have, and with 400 to an empty region."""
    layers, layer = service.recording.layers, path["layer"]
    if layer >= len(layers):
        raise HTTPException(404, f"layer: expected an index below {len(layers)}, got {layer}")
    if "show" in path and not service.header["layers"][layer].get("has_gradient"):
        raise HTTPException(404, f"layer {layer} has no gradient")
    levels = service.levels(layer)
    if "size" in path and path["size"] not in levels:
        raise HTTPException(404, f"size: expected one of {levels} for layer {layer}, got {path['size']}")
    _, heads, queries, keys = layers[layer].weights.shape
    limits = {"head": heads, "query": queries, "key": keys}
    limits |= {"top": queries, "bottom": queries, "left": keys, "right": keys}
    limits["row"], limits["column"] = service.tile_count(layer, path.get("size", 1))
    for name, index in path.items():
        if name in limits and index >= limits[name]:
            raise HTTPException(404, f"{name}: expected an index below {limits[name]}, got {index}")
    if "top" in path and (path["top"] > path["bottom"] or path["left"] > path["right"]):
        raise HTTPException(400, f"expected top <= bottom and left <= right, got {dict(path)}")
