"""Watches a tiny model of each class of transformers, and writes the page of supported models."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from helpers.model_zoo import build
from helpers.model_zoo.outcome import Outcome, outcome
from helpers.model_zoo.supported_models import HEADING, table


def main() -> None:
    """Sweep, and write the page if each is exact or refused, in time; timm is needed for those that are built on it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=9.5, help="how long it may take")
    parser.add_argument("--page", type=Path, default=Path(__file__).parents[3] / "docs" / "supported_models.md")
    options = parser.parse_args()
    build.quiet()
    torch.set_num_threads(1)
    stop = time.monotonic() + 60 * options.minutes
    kinds, outcomes, failed = build.classes(), dict[str, Outcome](), []
    for number, (name, kind) in enumerate(kinds.items(), 1):
        if time.monotonic() > stop:
            sys.exit(f"{number - 1} of {len(kinds)} models in {options.minutes:g} minutes: give --minutes more")
        try:
            result = outcome(kind)
        except Exception as error:  # noqa: BLE001 (reported with all others)
            failed.append(name)
            print(f"{number}/{len(kinds)} {name}: FAILED: {type(error).__name__}: {error}"[:500], flush=True)
        else:
            outcomes[name] = result
            print(f"{number}/{len(kinds)} {name}: {result.kind}", flush=True)
    if failed:
        sys.exit(f"{len(failed)} failed: {', '.join(failed)}")
    settable = {name for name, kind in kinds.items() if kind._can_set_attn_implementation()}
    before, _, _ = options.page.read_text().partition(HEADING) if options.page.exists() else ("", "", "")
    options.page.write_text(before + table(outcomes, settable))


if __name__ == "__main__":
    main()
