"""Show a recording: as a page in the browser or a notebook, on a local server, and in the terminal.

The public names are listed in ``__init__.pyi`` and loaded when they are first used.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, _names = lazy_loader.attach_stub(__name__, __file__)
__all__ = [name for name in _names if name != "serve"]  # for `import *` where its extra is not installed
