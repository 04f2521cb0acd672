"""Tokenizers in a playground: what the page needs of a ``tokenizer.json``, and why it cannot run one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenizers import pre_tokenizers

from regard.text.tokenizer import Tokenizer

_STEPS = {"NFC": "nfc", "Strip": "strip", "Prepend": "prepend", "Replace": "replace"}
_UNKNOWN_SYNTAX = re.compile(r"\(\?(?![:=!]|<[=!])|[*+?}]\+|\\[bBdDhHGKRwWX]|\[\[:|&&")
"""Of regular expressions of Oniguruma, which means something else in JavaScript, or nothing."""
_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What ByteLevel splits by, where there is no other pattern."""


def tokenizer_problems(tokenizer: object, *, reads_special: bool = False) -> list[str]:
    """Why the page cannot run a tokenizer; empty if it can.

    Args:
        tokenizer: The tokenizer of a pipeline.
        reads_special: Whether a text may name special tokens.
    """
    if not isinstance(tokenizer, Tokenizer):
        return [f"tokenizer: expected a tokenizer.json, got a {type(tokenizer).__name__}, which the page cannot run"]
    parts = tokenizer.parts()
    found = _wordpiece_conditions(parts) if parts["model"]["type"] == "WordPiece" else _bpe_conditions(parts)
    if reads_special:
        found["special tokens that are found before normalization, with spaces only before them"] = not any(
            token["normalized"] or token["single_word"] or token["rstrip"] for token in parts["added_tokens"]
        )
    return [
        f"tokenizer: expected {what}, got another, which the page cannot run"
        for what, holds in found.items()
        if not holds
    ]


def _wordpiece_conditions(parts: Mapping[str, Any]) -> dict[str, bool]:
    normalizer, splitter = parts["normalizer"] or {}, parts["pre_tokenizer"] or {}
    return {
        "BertNormalizer as normalizer": normalizer.get("type") == "BertNormalizer",
        "BertPreTokenizer as pre-tokenizer": splitter.get("type") == "BertPreTokenizer",
        "WordPiece as decoder": (parts["decoder"] or {}) == {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "an entry for unknown words": parts["model"]["unk_token"] in parts["model"]["vocab"],
    }


def _bpe_conditions(parts: Mapping[str, Any]) -> dict[str, bool]:
    model, pattern = parts["model"], _split_pattern(parts)
    options = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
    found = {
        "a byte-level BPE or WordPiece": model["type"] == "BPE" and not any(model.get(name) for name in options),
        "a Split by a regular expression and ByteLevel as pre-tokenizer": pattern is not None,
        f"only {', '.join(_STEPS)} as normalizers": all(map(_is_known_step, _steps(parts["normalizer"]))),
        "ByteLevel and Replace as decoder": all(
            step["type"] == "ByteLevel" or _is_known_step(step) for step in _steps(parts["decoder"], "decoders")
        ),
    }
    if found["a byte-level BPE or WordPiece"]:
        found["an entry for each byte"] = set(pre_tokenizers.ByteLevel.alphabet()) <= set(model["vocab"])
    if pattern is not None:
        found["a regular expression that JavaScript has, too"] = not _UNKNOWN_SYNTAX.search(pattern)
    return found


def _is_known_step(step: Mapping[str, Any]) -> bool:
    pattern = step.get("pattern", {"Regex": ""})
    is_whole = step["type"] != "Strip" or (step["strip_left"] and step["strip_right"])
    return step["type"] in _STEPS and is_whole and "Regex" in pattern and not _UNKNOWN_SYNTAX.search(pattern["Regex"])


def _split_pattern(parts: Mapping[str, Any]) -> str | None:
    """The regular expression by which a text is split; None if it is split in another way."""
    steps = _steps(parts["pre_tokenizer"], "pretokenizers")
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"] and steps[0]["use_regex"] and not steps[0]["add_prefix_space"]:
        return _GPT2_SPLIT
    if kinds != ["Split", "ByteLevel"] or steps[1]["add_prefix_space"] or steps[1]["use_regex"]:
        return None
    is_isolated = steps[0]["behavior"] == "Isolated" and not steps[0]["invert"]
    return steps[0]["pattern"].get("Regex") if is_isolated else None


def _steps(part: Mapping[str, Any] | None, name: str = "normalizers") -> list[Mapping[str, Any]]:
    """The steps of a part of a tokenizer."""
    if part is None:
        return []
    return part[name] if part["type"] == "Sequence" else [part]


def tokenizer_header(tokenizer: Tokenizer, *, reads_special: bool = False) -> dict[str, Any]:
    """What the page needs of a tokenizer without `tokenizer_problems`; arguments are the same."""
    parts = tokenizer.parts()
    model = parts["model"]
    vocab = model["vocab"] | {each["content"]: each["id"] for each in parts["added_tokens"]}
    entries = [""] * (max(vocab.values()) + 1)
    for entry, index in vocab.items():
        entries[index] = entry
    added = [{name: token[name] for name in ("content", "id", "lstrip")} for token in parts["added_tokens"]]
    special = [token["id"] for token in parts["added_tokens"] if token["special"]]
    shared = {"vocab": entries, "added": added if reads_special else [], "special": special}
    if model["type"] == "WordPiece":
        normalizer = parts["normalizer"]
        accents = normalizer["strip_accents"]
        return {
            **shared,
            "type": "wordpiece",
            "unknown": model["vocab"][model["unk_token"]],
            "prefix": model["continuing_subword_prefix"],
            "longest": model["max_input_chars_per_word"],
            "clean": normalizer["clean_text"],
            "chinese": normalizer["handle_chinese_chars"],
            "accents": not (normalizer["lowercase"] if accents is None else accents),
            "lowercase": normalizer["lowercase"],
        }
    return {
        **shared,
        "type": "bpe",
        "normalizer": [
            {
                "type": _STEPS[step["type"]],
                "pattern": step.get("pattern", {}).get("Regex"),
                "content": step.get("content", step.get("prepend", "")),
            }
            for step in _steps(parts["normalizer"])
        ],
        "split": _split_pattern(parts),
        "merges": [each if isinstance(each, list) else each.split(" ") for each in model["merges"]],
        "trims": [
            step["pattern"]["Regex"] for step in _steps(parts["decoder"], "decoders") if step["type"] == "Replace"
        ],
    }
