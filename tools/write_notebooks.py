"""Write the lessons in docs/learn as notebooks into a folder: ``python tools/write_notebooks.py build/notebooks``."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LESSONS = sorted((ROOT / "docs" / "learn").glob("*.md"))


def notebook(text: str) -> dict[str, Any]:
    """A notebook of a page: its Python blocks are cells, and the outputs in their comments are left for the reader."""
    cells: list[dict[str, Any]] = []
    for number, part in enumerate(re.split(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)):
        cell = {"id": f"cell-{number}", "metadata": {}, "source": part.strip()}
        if number % 2:
            code = re.sub(r"^( *print\(.+\))  # .+$", r"\1", part.strip(), flags=re.MULTILINE)
            cells.append(cell | {"cell_type": "code", "source": code, "execution_count": None, "outputs": []})
        elif part.strip():
            cells.append(cell | {"cell_type": "markdown"})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in LESSONS:
        path = folder / f"{lesson.stem}.ipynb"
        path.write_text(json.dumps(notebook(lesson.read_text("utf-8")), indent=1, ensure_ascii=False), "utf-8")
        print(path)


if __name__ == "__main__":
    main()
