"""``regard info``: what is installed here, on which devices, and the known kernels, masks, scores and measures."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.ops.rules import Rule

PACKAGES = (
    "torch",
    "tokenizers",
    "safetensors",
    "sacrebleu",
    "numpy",
    "lightning",
    "datasets",
    "pydantic",
    "transformers",
)


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show versions, devices, kernels, masks, scores, measures and the bundled model.

    Put its output into a bug report:

        regard info
    """
    facts = gather()
    if as_json:
        print(json.dumps(facts, ensure_ascii=False, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    headings = {
        "kernels": "kernels, in the order in which they are tried",
        "scores": "scores, with their names",
        "measures": "measures, with their names",
        "models": "bundled models",
    }
    console = Console()
    for title, rows in facts.items():
        console.print(Text(headings.get(title, title), style="bold"))
        table = Table(box=None, show_header=False)
        table.add_column(no_wrap=True)
        for name, text in rows.items():
            # as Text, for which square brackets are no markup
            table.add_row(Text(f" {name}"), Text("not installed", style="dim") if text is None else Text(text))
        console.print(table)


def gather() -> dict[str, dict[str, str | None]]:
    """All facts, by heading and name; None where a package is not installed."""
    import platform

    import regard
    from regard.ops.kernels.dispatch import KERNELS
    from regard.ops.masks import Mask
    from regard.ops.measures import Measure
    from regard.ops.scores import Score

    return {
        "versions": {"regard": regard.__version__, "python": platform.python_version(), **_packages()},
        "devices": _devices(),
        "kernels": {kernel.name: kernel.description for kernel in KERNELS},
        "masks": _rules(Mask),
        "scores": _rules(Score),
        "measures": _rules(Measure),
        "models": _bundled_models(),
    }


def _rules(base: type[Rule]) -> dict[str, str | None]:
    """The first sentence about each registered class, by the class's name and, except for masks, its string name."""
    from regard.ops.masks import Mask
    from regard.ops.rules import registered

    return {
        cls.__name__ if base is Mask else f"{cls.__name__} ({name!r})": _first_sentence(cls.__doc__ or "")
        for name, cls in registered(base).items()
    }


def _first_sentence(text: str) -> str:
    return re.split(r"(?<!\.)\.(?:\s|$)", " ".join(text.split()), maxsplit=1)[0]


def _packages() -> dict[str, str | None]:
    from importlib import metadata

    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None  # an extra that is not installed
    return versions


def _devices() -> dict[str, str | None]:
    import os
    import platform

    import torch

    devices: dict[str, str | None] = {
        "cpu": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads, "
        f"{torch.backends.cpu.get_cpu_capability()}"
    }
    for index in range(torch.cuda.device_count()):
        card: Any = torch.cuda.get_device_properties(index)
        devices[f"cuda:{index}"] = (
            f"{card.name}, {card.total_memory / 2**30:.0f} GiB, compute capability {card.major}.{card.minor}"
        )
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    return devices


def _bundled_models() -> dict[str, str | None]:
    from importlib import resources

    found: dict[str, str | None] = {}
    folder = resources.files("regard") / "bundled"
    for model in sorted(folder.iterdir(), key=lambda entry: entry.name) if folder.is_dir() else []:
        config, weights = model / "config.json", model / "model.safetensors"
        if config.is_file() and weights.is_file():
            kind = json.loads(config.read_text(encoding="utf-8"))
            with resources.as_file(weights) as path:
                size = path.stat().st_size / 1e6
            found[model.name] = (
                f"{kind['architecture']}, d_model {kind['d_model']}, {kind['num_encoder_layers']} + "
                f"{kind['num_decoder_layers']} layers, {kind['vocab_size']:,} subwords, {size:.1f} MB"
            )
    return found or {"none": "give `--model`"}
