"""BaseTokenizer: what every tokenizer can do, and its files in a model folder."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from regard.errors import InvalidFile
from regard.files import as_path, atomic_write
from regard.input_files import exists, read_file
from regard.text.words import white_space_word_indices

CONFIG_FILE = "tokenizer_config.json"


class BaseTokenizer(ABC):
    """Text to token ids and back. Methods have the names of transformers.

    Args:
        files: The content of the tokenizer's files, by name; `save` writes them unchanged.
    """

    required_files: ClassVar[tuple[str, ...]]
    """Files that determine the ids of a text."""
    optional_files: ClassVar[tuple[str, ...]] = (CONFIG_FILE, "special_tokens_map.json", "chat_template.jinja")

    pad_id: int = 0
    """Padding token id; 0 if the vocabulary has none."""
    bos_id: int | None = None
    """Token id at the beginning of a text."""
    eos_id: int | None = None
    """Token id at the end of a text."""
    mask_id: int | None = None
    """Token id that masks another."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        if missing := [name for name in self.required_files if name not in files]:
            raise InvalidFile(f"{', '.join(missing)}: no such file; a model folder has its tokenizer with its weights")
        self._files = dict(files)

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The largest id plus one."""

    @property
    @abstractmethod
    def non_special_ids(self) -> list[int]:
        """The ids of all tokens that are not special."""

    @property
    def fingerprint(self) -> str:
        """A digest of what determines the ids of a text: files, and the ids of special tokens, which others can set."""
        special = repr((self.pad_id, self.bos_id, self.eos_id, self.mask_id)).encode()
        return hashlib.sha256(b"\n".join([*(self._files[name] for name in self.required_files), special])).hexdigest()

    @abstractmethod
    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, split_special_tokens: bool = True
    ) -> list[list[int]]:
        """Token ids of each text.

        Args:
            texts: The texts.
            add_special_tokens: Whether to add the special tokens that begin and end a text.
            split_special_tokens: Whether ``[MASK]`` and the like in a text are text. If False, they become special
                tokens, except in SentencePiece models.

        Raises:
            InvalidType: If texts are not a sequence of str.
            InvalidArgument: If a text has lone surrogates, or characters that the vocabulary lacks.
        """

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each target text of a translation, without special tokens; errors are those of `encode`."""
        return self.encode(texts)

    def encode_prompts(self, texts: Sequence[str], *, split_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text with the special tokens that begin a text, but without those that end it.

        Arguments and errors are those of `encode`.
        """
        encoded = self.encode(texts, add_special_tokens=True, split_special_tokens=split_special_tokens)
        (added,) = self.encode([""], add_special_tokens=True)  # an EOS may also be in the text
        return [ids[:-1] for ids in encoded] if added[-1:] == [self.eos_id] != [self.bos_id] else encoded

    @abstractmethod
    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """The text of each sequence of token ids, without special tokens.

        Args:
            sequences: Lists or tensors of token ids.

        Raises:
            InvalidType: If they are not sequences of ints.
            InvalidArgument: If an id is negative.
        """

    @abstractmethod
    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Each token as readable text: ``▁`` is a space, ``<0xC3>`` one byte of a split character.

        Errors are those of `decode`.
        """

    def word_ids(self, ids: Sequence[int]) -> list[int]:
        """The index of each token's word, from 0, or -1 for special tokens that begin, end or pad a text.

        White space separates words and belongs to the word after it. WordPiece vocabularies do not keep it: there,
        punctuation, a mask and an unknown word are words of their own.
        """
        return white_space_word_indices(self.convert_ids_to_tokens(ids))

    def unique_token_names(self, ids: Sequence[int]) -> list[str]:
        """A different name for each of several different tokens, without the space before a word.

        Of tokens that look alike, the first has the plain name. Tokens that continue a word in WordPiece are ``##ing``.
        """
        names: dict[str, None] = {}
        for index, token, entry in zip(ids, self.convert_ids_to_tokens(ids), self._entries(ids), strict=True):
            word = token.removeprefix("▁") or token
            candidates = (entry if entry.startswith("##") else word, token, f"##{word}", entry, f"[{index}]")
            names[next(name for name in candidates if name not in names)] = None
        return list(names)

    def _entries(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it."""
        return self.convert_ids_to_tokens(ids)

    def save(self, folder: str | Path) -> None:
        """Write all files into a folder, which is created if it is missing; each is replaced atomically.

        Raises:
            InvalidType: If the folder is not a path.
            InvalidFile: If a file cannot be written.
        """
        folder = as_path(folder, "folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidFile(f"{folder}: cannot be created: {error.strerror or error}") from error
        for name, content in self._files.items():
            with atomic_write(folder / name) as file:
                file.write(content)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a tokenizer from a model folder.

        Raises:
            InvalidType: If the folder is not a path.
            InvalidFile: If a file is missing or damaged.
            MissingExtra: If sentencepiece is needed and not installed.
        """
        folder = as_path(folder, "folder")
        paths = [folder / name for name in (*cls.required_files, *cls.optional_files)]
        files = {path.name: read_file(path) for path in paths if exists(path)}
        try:
            return cls(files)
        except InvalidFile as error:
            raise InvalidFile(f"{folder}/{error}") from error
