"""Pages of one browser that tests use in turn: opening a page takes as long as loading a recording in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

MAX_CONTEXTS = 8
"""More would take memory."""


class BrowserPages:
    """Pages by the options of their context; what a test changes of a page is set again before the next test."""

    def __init__(self, browser, empty: Path) -> None:
        empty.write_text("<!doctype html><title>Empty</title>", encoding="utf-8")
        self._browser, self._empty = browser, empty.as_uri()
        self._contexts: dict[str, Any] = {}
        self._idle: dict[str, list[Any]] = {}

    @contextmanager
    def borrow(self) -> Iterator[Callable]:
        """A function that returns pages, which are idle again at the end of the block."""
        taken: list[tuple[str, Any]] = []

        def take(
            offline: bool = False,
            *,
            width: int = 1280,
            height: int = 900,
            color_scheme: str = "light",
            reduced_motion: str = "reduce",  # no animation is in progress when a test looks
            forced_colors: str = "none",
            **options: Any,
        ):
            key = json.dumps([offline, options], sort_keys=True)
            context = self._context(key, offline, options, in_use={key for key, _ in taken})
            page = self._idle[key].pop() if self._idle[key] else context.new_page()
            taken.append((key, page))
            page.bring_to_front()  # a page in the background gets few animation frames
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=color_scheme, reduced_motion=reduced_motion, forced_colors=forced_colors)
            page.set_default_timeout(30_000)
            page.mouse.move(-1, -1)  # outside of the page
            return page

        yield take
        for key, page in taken:
            if not page.is_closed():
                self._idle[key].append(page)

    def _context(self, key: str, offline: bool, options: dict[str, Any], in_use: set[str]):
        """A context with a page that stays open, whose process the other pages share."""
        if key not in self._contexts:
            unused = [old for old in self._contexts if old not in in_use]
            for old in unused[: len(self._contexts) + 1 - MAX_CONTEXTS]:
                self._contexts.pop(old).close()
            self._contexts[key], self._idle[key] = self._browser.new_context(**options), []
            if offline:
                self._contexts[key].set_offline(True)
                self._contexts[key].route(lambda url: urlsplit(url).scheme != "file", lambda route: route.abort())
                self._contexts[key].new_page().goto(self._empty)
        self._contexts[key] = self._contexts.pop(key)  # the one whose use is longest ago is closed first
        return self._contexts[key]

    def close(self) -> None:
        for context in self._contexts.values():
            context.close()


def in_tokens(fragment: str) -> str:
    """A fragment with a unit; without one, a page opens in words if its text has subwords."""
    return fragment if "unit=" in fragment else f"{fragment or '#'}&unit=tokens"


def load(page, url: str) -> None:
    """Load a URL from the start, even if it differs only in its fragment from that of the page."""
    if page.url.partition("#")[0] == url.partition("#")[0]:
        page.goto("about:blank")
    page.goto(url)


@contextmanager
def pages_of(take_page: Callable, address: str) -> Iterator[Callable]:
    """Yields a function that opens pages of a server at a fragment.

    No page may request anything elsewhere, log anything or raise an error.
    """
    complaints: list[str] = []
    requests: list[str] = []
    listeners = {
        "request": lambda request: requests.append(request.url),
        "console": lambda message: complaints.append(message.text),
        "pageerror": lambda error: complaints.append(str(error)),
    }
    with ExitStack() as stack:

        def open_it(fragment: str = ""):
            page = take_page()
            page.goto("about:blank")  # the document of the test before must not request anything more
            stack.enter_context(listening(page, **listeners))
            page.goto(address + fragment)
            page.wait_for_selector("section.view:visible")
            return page

        yield open_it
    assert complaints == []
    root = address.rpartition("/")[0]
    assert [url for url in requests if not url.startswith((root, "data:", "blob:"))] == []


@contextmanager
def listening(page, **listeners: Callable) -> Iterator[None]:
    """Call functions with the events of a page until the end of the block."""
    for event, listener in listeners.items():
        page.on(event, listener)
    try:
        yield
    finally:
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
