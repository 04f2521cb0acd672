"""Tokenizers that are SentencePiece models: with ids of their own, as older Llama checkpoints have them."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import Self

from regard.errors import InvalidFile, MissingExtra, raise_problems
from regard.files import atomic_write
from regard.text.validation import check_texts

FILE = "tokenizer.model"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json")


class SentencePieceFiles:
    """A tokenizer that is files of others, which it writes as it has read them.

    Args:
        files: What the folder holds, by name.
    """

    needed: ClassVar[tuple[str, ...]]
    """The files that decide which ids a text gets."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides which ids a text gets."""
        return hashlib.sha256(b"\n".join(self._files[name] for name in self.needed)).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write all files into a folder, as they were read.

        Raises:
            InvalidFile: If one cannot be written.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in self._files.items():
            with atomic_write(Path(folder) / name) as file:
                file.write(content)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read the files that it needs, and those that belong to them, from a folder.

        Raises:
            InvalidFile: If a file is missing or damaged.
            MissingExtra: If sentencepiece is not installed.
        """
        folder = Path(folder)
        raise_problems(
            [f"{folder / name}: no such file" for name in cls.needed if not (folder / name).is_file()], InvalidFile
        )
        try:
            names = [*cls.needed, *(name for name in BESIDE if (folder / name).is_file())]
            return cls({name: (folder / name).read_bytes() for name in names})
        except InvalidFile as error:
            raise InvalidFile(f"{folder}/{error}") from error


class SentencePieceTokenizer(SentencePieceFiles):
    """Text to the ids of SentencePiece's pieces.

    Args:
        files: What the folder holds, by name.

    Raises:
        InvalidFile: If the model is damaged.
        MissingExtra: If sentencepiece is not installed.

    Reference: Kudo and Richardson 2018, "SentencePiece".
    """

    needed = (FILE,)
    documents = None

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self._backend = processor(files[FILE], FILE)
        self.pad_id = max(self._backend.pad_id(), 0)
        self.bos_id, self.eos_id = (
            None if each < 0 else each for each in (self._backend.bos_id(), self._backend.eos_id())
        )
        self.mask_id = None

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return self._backend.get_piece_size()

    @property
    def regular_token_ids(self) -> list[int]:
        """The ids of what is text, and no special token."""
        tests = self._backend.is_control, self._backend.is_unknown, self._backend.is_unused
        return [index for index in range(self.vocab_size) if not any(test(index) for test in tests)]

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, split_special_tokens: bool = True
    ) -> list[list[int]]:
        """Encode each text.

        Args:
            texts: The texts.
            add_special_tokens: Whether to add the tokens that begin and end a text.
            split_special_tokens: Has no effect: SentencePiece always splits them.

        Raises:
            InvalidType: If texts are not a sequence of str.
            InvalidArgument: If a text has lone surrogates.
        """
        check_texts(texts)
        before = [self.bos_id] if add_special_tokens and self.bos_id is not None else []
        after = [self.eos_id] if add_special_tokens and self.eos_id is not None else []
        return [[*before, *self._backend.encode(text), *after] for text in texts]

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode the beginnings of texts: after the token that begins a text, without one that ends it.

        Raises:
            InvalidType, InvalidArgument: As :meth:`encode`.
        """
        before = [] if self.bos_id is None else [self.bos_id]
        return [before + ids for ids in self.encode(texts)]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Give the text of each sequence of ids; special tokens are left out."""
        specials = {self.bos_id, self.eos_id, self._backend.pad_id()}
        return [self._backend.decode([index for index in ids if index not in specials]) for ids in sequences]

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Give each piece, ``▁`` for the space before a word."""
        return [self._backend.id_to_piece(index) for index in ids]


def processor(content: bytes, name: str) -> Any:
    """What cuts text into the pieces of a SentencePiece model.

    Raises:
        InvalidFile: If the model is damaged.
        MissingExtra: If sentencepiece is not installed.
    """
    try:
        sentencepiece = importlib.import_module("sentencepiece")
    except ModuleNotFoundError:
        raise MissingExtra(f"{name} needs sentencepiece: install it with `pip install 'regard[hf]'`") from None
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=content)
    except RuntimeError as error:
        raise InvalidFile(f"{name}: is no SentencePiece model: {error}") from error
