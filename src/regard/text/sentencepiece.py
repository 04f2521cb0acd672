"""SentencePiece models with ids of their own, as older Llama checkpoints have them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from regard.errors import InvalidFile, refuse
from regard.files import whole_file
from regard.text.lines import letter_objections
from regard.text.marian import processor

FILE = "tokenizer.model"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json")


class PiecesTokenizer:
    """Text to the ids of SentencePiece's pieces.

    Args:
        files: What the folder holds, by name.

    Raises:
        InvalidFile: If the model is damaged.
        MissingExtra: If sentencepiece is not installed.

    Reference: Kudo and Richardson 2018, "SentencePiece".
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files, self._backend = files, processor(files[FILE], FILE)
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
    def fingerprint(self) -> str:
        """A digest of all that decides which ids a text gets."""
        return hashlib.sha256(self._files[FILE]).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of each text, without special tokens.

        Raises:
            InvalidArgument: If a text holds what is no character.
        """
        refuse(letter_objections((f"texts[{place}]", text) for place, text in enumerate(texts)))
        return [self._backend.encode(text) for text in texts]

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of the beginnings of texts, behind the one that begins a text.

        Raises:
            InvalidArgument: As :meth:`encode`.
        """
        before = [] if self.bos_id is None else [self.bos_id]
        return [before + ids for ids in self.encode(texts)]

    def encode_whole(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of each text between those that begin and end one.

        Raises:
            InvalidArgument: As :meth:`encode`.
        """
        after = [] if self.eos_id is None else [self.eos_id]
        return [ids + after for ids in self.encode_prompts(texts)]

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Give the text of each sequence of ids; special tokens are left out."""
        specials = {self.bos_id, self.eos_id, self._backend.pad_id()}
        return [self._backend.decode([index for index in ids if index not in specials]) for ids in sequences]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Give each piece, ``▁`` for the space before a word."""
        return [self._backend.id_to_piece(index) for index in ids]

    def save(self, folder: str | Path) -> None:
        """Write all files into a folder, as they were read.

        Raises:
            InvalidFile: If one cannot be written.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in self._files.items():
            with whole_file(Path(folder) / name) as file:
                file.write(content)

    @classmethod
    def load(cls, folder: str | Path) -> PiecesTokenizer:
        """Read ``tokenizer.model`` and what belongs to it from a folder.

        Raises:
            InvalidFile: If it is missing or damaged.
            MissingExtra: If sentencepiece is not installed.
        """
        folder = Path(folder)
        if not (folder / FILE).is_file():
            raise InvalidFile(f"{folder / FILE}: no such file")
        names = [FILE, *(name for name in BESIDE if (folder / name).is_file())]
        try:
            return cls({name: (folder / name).read_bytes() for name in names})
        except InvalidFile as error:
            raise InvalidFile(f"{folder}/{error}") from error
