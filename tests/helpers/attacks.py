"""How often an attack is tried, and with which seed."""

from __future__ import annotations

import os


def number_of_tries(quick: int, all_: int) -> int:
    """The number of tries in an ordinary run, or in one with ``--all``; REGARD_ATTACK_TRIES sets another."""
    return int(os.environ.get("REGARD_ATTACK_TRIES") or (all_ if os.environ.get("REGARD_TEST_ALL") == "1" else quick))


def seed() -> int:
    """The seed of all tries; REGARD_ATTACK_SEED sets another."""
    return int(os.environ.get("REGARD_ATTACK_SEED", "0"))
