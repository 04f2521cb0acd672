"""``python -m regard``: the same as the command ``regard``."""

from __future__ import annotations

from regard.cli.main import main

if __name__ == "__main__":
    main()
