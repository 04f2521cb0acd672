"""The tokenizer of a model folder, of whatever kind it is."""

from __future__ import annotations

import json
from pathlib import Path

from regard.errors import InvalidArgument, InvalidFile
from regard.text import marian
from regard.text.backends import FILE
from regard.text.marian import MarianTokenizer
from regard.text.pipeline import PipelineTokenizer
from regard.text.sentencepiece import FILE as PIECES
from regard.text.sentencepiece import SentencePieceTokenizer
from regard.text.tokenizer import SPECIALS, Tokenizer

AnyTokenizer = Tokenizer | PipelineTokenizer | MarianTokenizer | SentencePieceTokenizer


def load_tokenizer(folder: str | Path) -> AnyTokenizer:
    """Read the tokenizer of a model folder: our own, a checkpoint's ``tokenizer.json``, or SentencePiece.

    Raises:
        InvalidFile: If there is none, or it is damaged.
        MissingExtra: If it needs sentencepiece, which is not installed.
    """
    folder = Path(folder)
    if (folder / FILE).is_file():
        return Tokenizer.load(folder) if _is_ours(folder / FILE) else PipelineTokenizer.load(folder)
    if (folder / marian.SOURCE).is_file():
        return MarianTokenizer.load(folder)
    if (folder / PIECES).is_file():
        return SentencePieceTokenizer.load(folder)
    known = f"{FILE}, {PIECES}, or {marian.SOURCE} with {marian.TARGET} and {marian.VOCABULARY}"
    raise InvalidFile(f"{folder}: has no tokenizer; a model folder has one beside its weights: {known}")


def check_vocab_size(tokenizer: AnyTokenizer, vocab_size: int, name: str) -> None:
    """Refuse a tokenizer that knows words which a model does not.

    Args:
        tokenizer: The tokenizer.
        vocab_size: The words of the model.
        name: What the message calls the model.

    Raises:
        InvalidArgument: If it has more words than the model.
    """
    if tokenizer.vocab_size > vocab_size:
        came = f"{name}: the tokenizer has {tokenizer.vocab_size} words, but the model {vocab_size}"
        raise InvalidArgument(f"{came}: they do not belong together")


def _is_ours(path: Path) -> bool:
    """Whether a pipeline is one that :meth:`Tokenizer.train` makes: its special tokens, and one space for any run."""
    try:
        pipeline = json.loads(path.read_text(encoding="utf-8"))
        first = tuple(token["content"] for token in pipeline["added_tokens"])
        steps = [step["type"] for step in (pipeline["normalizer"] or {}).get("normalizers", [])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True  # whose errors say what is wrong
    return first == SPECIALS and "Prepend" in steps
