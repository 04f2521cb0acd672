"""A recording on a local web server: the page asks for what is too large for a file, and it is computed then."""

from __future__ import annotations

import json
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from regard.errors import InvalidArgument, MissingExtra
from regard.explore.answers import Answers
from regard.explore.page import document

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

    from regard.analysis.recording import Recording

HOST = "127.0.0.1"
"""The server is heard on this machine alone."""
OWN = re.compile(rf"({re.escape(HOST)}|localhost)(:[0-9]{{1,5}})?")
"""What this machine is called in a request."""
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def application(recording: Recording, token: str) -> Starlette:
    """The server's answers: to who knows the token, and to nobody else.

    Every path begins with the token; without it, there is nothing. A request of another host's name is refused, as a
    page elsewhere could otherwise have its own name point here.

    Args:
        recording: What is shown.
        token: A secret, of letters that stand in an address.

    Raises:
        InvalidArgument: If the recording cannot be shown, with every reason.
        MissingExtra: If starlette is not installed.
    """
    try:
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.responses import PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise MissingExtra("the server needs starlette and uvicorn: `pip install 'regard[serve]'`") from None
    answers = Answers(recording)
    layers = recording.layers

    def bounded(request: Request, name: str, count: int) -> int:
        """A number of the path, which stands for one of `count` things."""
        number = whole(request, name)
        if number >= count:
            raise HTTPException(404, f"there is no {name} {number}: there are {count}, numbered from 0")
        return number

    def whole(request: Request, name: str) -> int:
        text = request.path_params[name]
        if not re.fullmatch("[0-9]{1,15}", text):  # int() reads more than that, and refuses very long ones
            raise HTTPException(404, f"{name}: expected a whole number, got {text!r:.40}")
        return int(text)

    def of_head(request: Request) -> tuple[int, int]:
        layer = bounded(request, "layer", len(layers))
        return layer, bounded(request, "head", layers[layer].weights.shape[1])

    def page(request: Request) -> Response:
        return Response(
            document(answers.header, [], "'self'").encode("utf-8", "xmlcharrefreplace"), media_type="text/html"
        )

    def scores(request: Request) -> Response:
        return Response(json.dumps(answers.scores(*of_head(request))), media_type="application/json")

    def block(request: Request) -> Response:
        layer = bounded(request, "layer", len(layers))
        if answers.header["layers"][layer]["form"] != "whole":
            raise HTTPException(404, f"layer {layer} is too large to be sent whole")
        return data(answers.block(layer))

    def thumbnail(request: Request) -> Response:
        return data(answers.thumbnail(*of_head(request)))

    def squares(request: Request) -> Response:
        layer, head = of_head(request)
        told = answers.header["layers"][layer]
        size = whole(request, "size")
        if told["form"] != "remote" or size not in answers.sizes(layer):
            raise HTTPException(404, f"layer {layer} has no squares of {size}")
        rows, columns = answers.tiles(layer, size)
        return data(
            answers.squares(layer, head, size, bounded(request, "row", rows), bounded(request, "column", columns))
        )

    def row(request: Request) -> Response:
        layer, head = of_head(request)
        return data(answers.row(layer, head, bounded(request, "query", layers[layer].weights.shape[2])))

    def column(request: Request) -> Response:
        layer, head = of_head(request)
        return data(answers.column(layer, head, bounded(request, "key", layers[layer].weights.shape[3])))

    def region(request: Request) -> Response:
        layer, head = of_head(request)
        rows, columns = layers[layer].weights.shape[2:]
        top, bottom = bounded(request, "top", rows), bounded(request, "bottom", rows)
        left, right = bounded(request, "left", columns), bounded(request, "right", columns)
        if top > bottom or left > right:
            raise HTTPException(400, "expected a region from its first to its last query, and key")
        return data(answers.sum(layer, head, (top, bottom), (left, right)))

    def vectors(request: Request) -> Response:
        return data(answers.vectors(*of_head(request)))

    def data(content: bytes) -> Response:
        return Response(content, media_type="application/octet-stream")

    async def told(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return PlainTextResponse(error.detail, error.status_code, headers=HEADERS)

    async def failed(request: Request, error: Exception) -> Response:
        return PlainTextResponse("this could not be computed", 500, headers=HEADERS)

    paths: dict[str, Callable[[Request], Response]] = {
        "": page,
        "scores/{layer}/{head}": scores,
        "block/{layer}": block,
        "thumbnail/{layer}/{head}": thumbnail,
        "squares/{layer}/{head}/{size}/{row}/{column}": squares,
        "row/{layer}/{head}/{query}": row,
        "column/{layer}/{head}/{key}": column,
        "sum/{layer}/{head}/{top}/{bottom}/{left}/{right}": region,
        "vectors/{layer}/{head}": vectors,
    }
    routes = [Route(f"/{token}/{path}", guarded(answer), methods=["GET"]) for path, answer in paths.items()]
    return Starlette(routes=routes, exception_handlers={HTTPException: told, Exception: failed})


def guarded(answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
    """An answer to requests of this machine's name alone."""

    def guarded_answer(request: Request) -> Response:
        from starlette.exceptions import HTTPException

        if not OWN.fullmatch(request.headers.get("host", "")):
            raise HTTPException(403, "only this machine is answered")
        response = answer(request)
        response.headers.update(HEADERS)
        return response

    return guarded_answer


@contextmanager
def listening(recording: Recording, port: int = 0) -> Iterator[tuple[Any, str]]:
    """A server that has its port, and its address.

    Args:
        recording: What is shown.
        port: Where to listen; 0 takes one that is free.

    Yields:
        What ``run(sockets=[...])`` starts, with its socket as ``bound``; and the address, with its token.

    Raises:
        InvalidArgument: If the port is taken, or none.
    """
    token = secrets.token_urlsafe(24)
    app = application(recording, token)
    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("the server needs starlette and uvicorn: `pip install 'regard[serve]'`") from None
    # By its protocol asyncio knows that it must not wait for a receipt between the head of an answer and its body.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((HOST, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InvalidArgument(f"port: expected a free port, got {port} ({reason}); 0 is any free one") from None
        bound.listen()  # whoever opens the address at once is kept waiting, and not refused
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", server_header=False)
        server = uvicorn.Server(config)
        server.bound = bound  # pyright: ignore[reportAttributeAccessIssue]
        yield server, f"http://{HOST}:{bound.getsockname()[1]}/{token}/"
    finally:
        bound.close()


def serve(recording: Recording, port: int = 0, ready: Callable[[str], None] = print) -> None:
    """Show a recording on this machine, until Ctrl-C.

    Args:
        recording: What to show, of any length: what is looked at is computed from its queries and keys.
        port: Where to listen; 0 takes one that is free.
        ready: Is told the address.

    Raises:
        InvalidArgument: If the recording cannot be shown, or the port is taken.
        MissingExtra: If starlette or uvicorn is not installed.
    """
    with listening(recording, port) as (server, address):
        ready(address)
        with suppress(KeyboardInterrupt):  # which ends it as it should
            server.run(sockets=[server.bound])
