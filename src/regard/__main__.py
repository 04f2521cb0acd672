"""The command ``regard``, also as ``python -m regard``: small, so that Ctrl-C is quiet while the rest is imported."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from regard.cli.main import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
