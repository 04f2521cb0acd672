"""How the passes are divided on each architecture: no search in the first call of a user."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor


class Tiles(NamedTuple):
    """How a pass is divided.

    Args:
        queries: Queries of a tile.
        keys: Keys of a tile.
        warps: Warps of a program.
        stages: Tiles that are loaded ahead.
    """

    queries: int
    keys: int
    warps: int
    stages: int

    def options(self) -> dict[str, int]:
        """As a kernel takes them."""
        return {
            "QUERIES": self.queries,
            "KEYS": self.keys,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


SHARED_MEMORY: Mapping[str, int] = MappingProxyType(
    {"sm_80": 101376, "sm_90": 232448, "sm_100": 232448, "gfx942": 65536}
)
"""Bytes that a program may use for its tiles; of sm_80, on the consumer GPUs of later 8.x and 12.x."""

PASSES = "forward", "rows", "topk", "columns", "backward queries", "backward keys", "biases", "pooling"

LOADS = 2, 5
"""With how many things to do with a weight a pass gets smaller tiles, and with how many again smaller ones."""

WIDTHS = 64, 128, 256
"""Of head_dim and value_dim, the larger one, padded."""

CANDIDATES: Mapping[str, tuple[Tiles, ...]] = MappingProxyType(
    {
        "forward": (
            Tiles(128, 128, 8, 2), Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(64, 64, 8, 2),
            Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 1), Tiles(16, 32, 4, 1),
        ),
        "rows": (
            Tiles(128, 128, 8, 2), Tiles(128, 64, 8, 2), Tiles(64, 64, 4, 2), Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2),
            Tiles(32, 32, 4, 1), Tiles(16, 32, 4, 1), Tiles(16, 16, 4, 1),
        ),
        "topk": (
            Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 2), Tiles(32, 32, 4, 2), Tiles(16, 32, 4, 1), Tiles(16, 16, 4, 1),
        ),
        "columns": (
            Tiles(128, 128, 8, 2), Tiles(64, 128, 8, 2), Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 2), Tiles(32, 32, 4, 2),
            Tiles(32, 32, 4, 1), Tiles(32, 16, 4, 1), Tiles(16, 16, 4, 1),
        ),
        "backward queries": (
            Tiles(128, 64, 8, 2), Tiles(128, 32, 8, 2), Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 1), Tiles(64, 32, 4, 2),
            Tiles(64, 32, 4, 1), Tiles(32, 32, 4, 1), Tiles(16, 32, 4, 1), Tiles(16, 16, 4, 1),
            Tiles(16, 16, 8, 1),
        ),
        "backward keys": (
            Tiles(64, 128, 8, 2), Tiles(32, 128, 8, 2), Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 1), Tiles(32, 64, 4, 2),
            Tiles(32, 64, 4, 1), Tiles(32, 32, 4, 1), Tiles(32, 16, 4, 1), Tiles(16, 16, 4, 1),
        ),
        "biases": (
            Tiles(64, 64, 8, 1), Tiles(64, 32, 8, 1), Tiles(32, 32, 8, 1), Tiles(16, 32, 4, 1), Tiles(16, 16, 4, 1),
        ),
        "pooling": (Tiles(64, 64, 8, 1), Tiles(32, 64, 8, 1), Tiles(32, 32, 8, 1), Tiles(16, 16, 4, 1)),
    }
)  # fmt: skip
"""What `benchmarks/gpu_tune.py` tries, the likely best first."""

TABLE: Mapping[str, Mapping[str, tuple[tuple[str, ...], ...]]] = MappingProxyType(
    {
        "sm_80": {
            "half": (
                ("11000120", "24110121", "24117622"),
                ("11101620", "34321641", "34327742"),
                ("54215721", "56336743", "67347843"),
            ),
            "float": (
                ("11101620", "24113731", "26117732"),
                ("52225621", "54335741", "66347842"),
                ("64346731", "76457842", "77469843"),
            ),
        },
        "sm_90": {
            "half": (
                ("11000020", "14010121", "14017632"),
                ("11000120", "24011631", "24017732"),
                ("31001621", "44012732", "44017733"),
            ),
            "float": (
                ("11000120", "24011631", "24017732"),
                ("21001621", "34416631", "64419732"),
                ("64346731", "76457832", "77469843"),
            ),
        },
        "sm_100": {
            "half": (
                ("11010020", "24110221", "34117622"),
                ("11010020", "34241731", "34248732"),
                ("31011621", "44242732", "44248733"),
            ),
            "float": (
                ("11010120", "24011631", "24117732"),
                ("21011621", "34416631", "64419732"),
                ("64346731", "76457832", "77469843"),
            ),
        },
        "gfx942": {
            "half": (
                ("21004520", "52014521", "56015732"),
                ("21004520", "52014521", "56015732"),
                ("54226621", "65236732", "67247833"),
            ),
            "float": (
                ("32114520", "54224621", "56235732"),
                ("54236622", "65247732", "67257833"),
                ("64347732", "76457832", "77467843"),
            ),
        },
    }
)
"""By architecture and kind of dtype, for each of `WIDTHS` and load: which of `CANDIDATES` each of `PASSES` gets.

Where it was not measured, it is the first one that compiles without spilling registers; see `benchmarks/gpu_tune.py`.
"""


@lru_cache(maxsize=64)
def architecture(device: torch.device) -> str:
    """Which table a device has: that of its architecture, or of the one before it."""
    if device.type != "cuda":  # in the interpreter
        return "sm_90"
    if torch.version.hip is not None:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability(device)
    return "sm_100" if major == 10 else "sm_90" if major == 9 else "sm_80"


@lru_cache(maxsize=64)
def has_tf32(device: torch.device) -> bool:
    """Whether Triton multiplies in TF32 there; of AMD's GPUs, on one architecture."""
    if device.type != "cuda" or torch.version.hip is None:
        return True
    return torch.cuda.get_device_properties(device).gcnArchName.startswith("gfx942")


def tiles(name: str, query: Tensor, value_dim: int, load: int) -> Tiles:
    """The tiles of a pass.

    Args:
        name: One of `PASSES`.
        query: (batch, heads, queries, head_dim).
        value_dim: 0 without a value.
        load: How many things a pass does with a weight besides multiplying it.
    """
    kind = "float" if query.dtype == torch.float32 else "half"
    width = bisect_left(WIDTHS, max(query.shape[3], value_dim))
    row = TABLE[architecture(query.device)][kind][width][bisect_left(LOADS, load)]
    place = PASSES.index(name)
    return for_queries(CANDIDATES[name][int(row[place])], name, query.shape[2])


def for_queries(found: Tiles, name: str, queries: int) -> Tiles:
    """The tiles of a pass, with fewer rows for few queries; passes with wide sums keep their warps."""
    if queries > 16:
        return found
    if name in ("columns", "backward queries", "backward keys"):
        return found._replace(queries=16)
    return found._replace(queries=16, warps=2 if name == "topk" else 4)


def next_power_of_two(number: int) -> int:
    """The smallest one that is not below a number above 0."""
    return 1 << (number - 1).bit_length()


MAX_SPLIT_QUERIES = 16

SPLITS = 64, 16, 4, 1
"""Into how many parts the keys of few queries are split; few numbers, because each is another kernel."""


def num_splits(matrices: int, queries: int, keys: int, sizes: Tiles, device: torch.device) -> int:
    """How many programs share the keys of a block of queries: enough for all processors, with two tiles each."""
    if queries > MAX_SPLIT_QUERIES:
        return 1
    limit = min(2 * _num_processors(device) // matrices, keys // (2 * sizes.keys))
    return next((splits for splits in SPLITS if splits <= limit), 1)


@lru_cache(maxsize=64)
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return 132
    return torch.cuda.get_device_properties(device).multi_processor_count


def num_pool_splits(programs: int, queries: int, device: torch.device) -> int:
    """How many programs share the queries of a tile of groups."""
    limit = min(2 * _num_processors(device) // programs, queries // 64)
    return next((splits for splits in SPLITS if splits <= limit), 1)
