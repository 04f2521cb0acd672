"""The generated part of the page of supported models: the outcome of each, and short reasons of refusals."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib import metadata

from helpers.model_zoo.outcome import Outcome

SHORT = [
    (r"needs the package (?P<more>\w+)", "needs a package that is not installed"),
    (r"^transformers itself builds no", "transformers itself does not build it"),
    (r"^transformers itself does not run it", "transformers itself does not run it"),
    (
        r"\((?P<more>\w+)\) computes attention in its own code, which cannot be recorded: it (?P<what>[^;]+);",
        "its own code",
    ),
    (
        r"\((?P<more>\w+)\) computes attention in its own code, which cannot be recorded; ",
        "its own code has no product of softmax and values",
    ),
    (r"no attention was found in its code$", "no attention"),
    (r"it has no attention, or", "no attention, or in its own code"),
    (r"(?P<more>\w+) passes (?P<argument>\w+) to its attention function", "passes an argument that is not known"),
    (r"(?P<more>\w+) selects the keys that it attends to", "selects the keys that it attends to"),
]
"""Short reasons by patterns of messages; a group holds details of the model."""


def short(message: str) -> tuple[str, str]:
    """A short reason, and details of the model."""
    for pattern, reason in SHORT:
        match = re.search(pattern, message)
        if match is not None:
            groups = match.groupdict()
            what = groups.pop("what", None)
            return f"{reason} {what}" if what else reason, " ".join(f"`{more}`" for more in groups.values())
    return message, ""


def versions() -> str:
    """Versions of the installed packages that a sweep uses."""
    parts = []
    for name in ("torch", "transformers", "timm"):
        with suppress(metadata.PackageNotFoundError):
            parts.append(f"{name} {metadata.version(name)}")
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


HEADING = "## Models of transformers"
"""Where the generated part of the page begins."""


def table(outcomes: Mapping[str, Outcome], settable: Collection[str]) -> str:
    """The outcome of each model as Markdown.

    Args:
        outcomes: By the names of models.
        settable: Those whose attention implementation can be set, so that they use transformers' interface.
    """
    lines = [
        HEADING,
        "",
        "`python -m helpers.model_zoo.sweep` (in `tests`) writes this part of the page. It makes a tiny model of each",
        "configuration class, runs it with and without a watch, and compares all weights with those of each attention",
        "call that it intercepts in the unwatched run. A *dense* model has layers whose scores were captured at a",
        "softmax in its own code: their weights are exact, too, but take memory of queries × keys. This table was made",
        f"with {versions()}. *Settable* means that `_can_set_attn_implementation()` is true.",
        "",
        "| | settable | not settable | all |",
        "|---|---|---|---|",
    ]
    groups = {kind: [name for name, each in outcomes.items() if each.kind == kind] for kind in ("exact", "dense")}
    rest = {name: short(each.reason)[0] for name, each in outcomes.items() if each.kind == "refused"}
    groups["refused, no attention"] = [name for name, reason in rest.items() if reason.startswith("no attention")]
    groups["refused"] = [name for name in rest if name not in groups["refused, no attention"]]
    for kind, names in groups.items():
        can = sum(name in settable for name in names)
        lines.append(f"| {kind} | {can} | {len(names) - can} | {len(names)} |")
    lines += ["", "| model | status | reason |", "|---|---|---|"]
    for name, each in sorted(outcomes.items()):
        reason, part = short(each.reason) if each.kind == "refused" else ("", f"`{each.reason}`" if each.reason else "")
        if each.reason.startswith("not recorded: "):
            reason, part = "named in a warning", each.reason
        elif each.kind == "dense":
            reason = "captured at the softmax"
        lines.append(f"| `{name}` | {each.kind} | {f'{reason}: {part}' if part else reason} |")
    return "\n".join(lines) + "\n"
