"""What our tokenizers share: a byte-level BPE vocabulary that is learned, and ``tokenizer.json`` on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import InvalidArgument, InvalidFile
from regard.files import atomic_write

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"


def learn_bpe(
    texts: Iterable[str], vocab_size: int, *, specials: Sequence[str], pieces: str, normalizer: normalizers.Normalizer
) -> tokenizers.Tokenizer:
    """Learn a byte-level BPE vocabulary.

    Args:
        texts: They are read once.
        vocab_size: Entries, the special tokens and the 256 bytes included; fewer where the texts have no more.
        specials: The special tokens, which get the first ids.
        pieces: What no entry reaches beyond, a regular expression.
        normalizer: What texts go through first.

    Raises:
        InvalidArgument: If the vocabulary cannot hold the special tokens and the bytes.
    """
    smallest = len(specials) + 256
    if vocab_size < smallest:
        raise InvalidArgument(
            f"vocab_size is {vocab_size}, but {len(specials)} special tokens and 256 bytes need {smallest}"
        )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def config_file(**told: Any) -> dict[str, bytes]:
    """What transformers wants to know beside ``tokenizer.json``, by the name of its file."""
    values = {"tokenizer_class": "PreTrainedTokenizerFast", **told}
    return {CONFIG: (json.dumps(values, indent=2) + "\n").encode()}


def write_backend(backend: tokenizers.Tokenizer, folder: Path, beside: Mapping[str, bytes]) -> None:
    """Write ``tokenizer.json`` and the files beside it into a folder, which is made; each older one is replaced whole.

    Raises:
        InvalidFile: If it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / FILE, text=True) as file:
        file.write(backend.to_str())
    for name, content in beside.items():
        with atomic_write(folder / name) as file:
            file.write(content)


def read_backend(folder: Path) -> tokenizers.Tokenizer:
    """Read ``tokenizer.json`` from a folder.

    Raises:
        InvalidFile: If it is missing, unreadable or no tokenizer.
    """
    path = folder / FILE
    try:
        text = path.read_text(encoding="utf-8")
        json.loads(text)
    except FileNotFoundError:
        raise InvalidFile(f"{path}: no such file; a model folder has its tokenizer beside its weights") from None
    except (OSError, ValueError) as error:
        raise InvalidFile(f"{path}: cannot be read as a tokenizer: {error}") from error
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the bindings raise no narrower one; its text is the reason
        raise InvalidFile(f"{path}: cannot be read as a tokenizer: {error}") from error
