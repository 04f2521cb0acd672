"""Print the exact versions of all that a development install needs, as this environment holds them."""

from __future__ import annotations

import sys
from email.message import Message
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

HEADER = """\
# What development installs: `pip install -c constraints.txt -e ".[all,dev]"`.
# Written by `make pins`. Where a release needs a newer Python, an older one takes what pyproject.toml allows."""


def closure(root: Requirement) -> dict[str, Message]:
    """The metadata of everything that is needed, by canonical name."""
    distributions: dict[str, Message] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(root.name, extra) for extra in ["", *root.extras]]
    while waiting:
        name, extra = waiting.pop()
        name = canonicalize_name(name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        distribution = metadata.distribution(name)
        distributions[name] = distribution.metadata
        for line in distribution.requires or []:
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": extra}):
                waiting += [(need.name, required) for required in ["", *need.extras]]
    return distributions


def pin(name: str, about: Message) -> str:
    """One line: the public version, and from which Python on it holds."""
    pinned = f"{name}=={Version(about['Version']).public}"
    allowed = SpecifierSet(about["Requires-Python"] or "")
    newest_left_out = [minor for minor in range(10, sys.version_info.minor) if f"3.{minor}.99" not in allowed]
    return f'{pinned}; python_version >= "3.{max(newest_left_out) + 1}"' if newest_left_out else pinned


if __name__ == "__main__":
    needed = closure(Requirement("regard[all,dev]"))
    print(HEADER, *(pin(name, about) for name, about in sorted(needed.items()) if name != "regard"), sep="\n")
