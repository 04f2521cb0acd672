"""Show a recording: as a page in the browser or a notebook, on a local server, and in the terminal.

The public names are listed in ``__init__.pyi`` and loaded when they are first used.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
# `from regard.explore import *` must work where the extra of serve is not installed.
__all__.remove("serve")  # pyright: ignore[reportUnsupportedDunderAll]
