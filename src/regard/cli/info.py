"""``regard info``: versions, devices, and the registered kernels, masks, scores and measures."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from regard.cli.options import JsonOption

if TYPE_CHECKING:
    from regard.ops.rules import Rule

PACKAGES = (
    "torch",
    "tokenizers",
    "safetensors",
    "sacrebleu",
    "numpy",
    "lightning-fabric",
    "pydantic",
    "transformers",
)
HEADINGS = {
    "kernels": "kernels, in the order in which they are tried",
    "scores": "scores, with their names",
    "measures": "measures, with their names",
    "models": "bundled models",
}

Facts = dict[str, str | None]
"""Facts by name; None for a package that is not installed."""


def info(as_json: JsonOption = False) -> None:
    """Show versions, devices, kernels, masks, scores, measures and the bundled model.

    A kernel that is not available is listed with the reason. Paste the output into a bug report:

        regard info
    """
    facts = gather()
    if as_json:
        print(json.dumps(facts, ensure_ascii=False, indent=2))
    else:
        print_facts(facts)


def print_facts(facts: dict[str, Facts]) -> None:
    """Print a table of facts below each heading."""
    from rich.console import Console
    from rich.text import Text

    from regard.explore.terminal import plain_table

    console = Console()
    for title, rows in facts.items():
        console.print(Text(HEADINGS.get(title, title), style="bold"))
        table = plain_table(gap=2, has_header=False)
        table.add_column(no_wrap=True)
        for name, text in rows.items():  # Text, because square brackets are markup in a str
            table.add_row(Text(f"  {name}"), Text("not installed", style="dim") if text is None else Text(text))
        console.print(table)


def gather() -> dict[str, Facts]:
    """All facts, by heading."""
    from regard.ops.masks import Mask
    from regard.ops.measures import Measure
    from regard.ops.scores import Score

    return {
        **gather_machine(),
        "masks": _rules(Mask, with_names=False),
        "scores": _rules(Score),
        "measures": _rules(Measure),
        "models": _bundled_models(),
    }


def gather_machine() -> dict[str, Facts]:
    """Versions, devices and kernels, by heading."""
    import platform

    import regard

    versions = {"regard": regard.__version__, "python": platform.python_version()}
    return {
        "versions": {**versions, **{name: _installed_version(name) for name in PACKAGES}},
        "devices": _devices(),
        "kernels": _kernels(),
    }


def _kernels() -> Facts:
    """The description of each kernel, or why it is not available; the name includes the variant that runs here."""
    from regard.ops.kernels.dispatch import KERNELS

    facts: Facts = {}
    for kernel in KERNELS:
        reason, variant = kernel.unavailable_reason(), kernel.variant()
        name = f"{kernel.name} ({variant})" if variant else kernel.name
        facts[name] = kernel.description if reason is None else f"not available: {reason}"
    return facts


def _rules(base: type[Rule], with_names: bool = True) -> Facts:
    """The first sentence of the docstring of each registered class."""
    from regard.ops.rules import registered

    return {
        f"{cls.__name__} ({name!r})" if with_names else cls.__name__: _first_sentence(cls.__doc__ or "")
        for name, cls in registered(base).items()
    }


def _first_sentence(text: str) -> str:
    return re.split(r"(?<!\.)\.(?:\s|$)", " ".join(text.replace("`", "").split()), maxsplit=1)[0]


def _installed_version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> Facts:
    import os
    import platform

    import torch

    threads, capability = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    devices: Facts = {"cpu": f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, {capability}"}
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        memory = f"{card.total_memory / 2**30:.0f} GiB"
        devices[f"cuda:{index}"] = f"{card.name}, {memory}, compute capability {card.major}.{card.minor}"
    if torch.backends.mps.is_available():
        devices["mps"] = "Apple GPU"
    return devices


def _bundled_models() -> Facts:
    from importlib import resources
    from pathlib import Path

    models: Facts = {}
    for path in sorted(Path(str(resources.files("regard"))).glob("bundled/*/config.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        layers = f"{config['num_encoder_layers']} + {config['num_decoder_layers']} layers"
        size = (path.parent / "model.safetensors").stat().st_size / 1e6
        models[path.parent.name] = (
            f"{config['architecture']}, d_model {config['d_model']}, {layers}, {config['vocab_size']:,} subwords, "
            f"{size:.1f} MB"
        )
    return models
