"""The tokenizer of OPUS-MT's translators: SentencePiece for each side, and one vocabulary for both."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from regard.errors import InvalidFile
from regard.text.sentencepiece import SentencePieceFiles, processor
from regard.text.validation import check_texts

SOURCE, TARGET, VOCABULARY = "source.spm", "target.spm", "vocab.json"
SPACE = "\u2581"


class MarianTokenizer(SentencePieceFiles):
    """Text to ids of one vocabulary by the pieces of SentencePiece, of the source or of the target.

    A text may begin with the language that it is to become, ``>>deu<<``, where the vocabulary knows it.

    Args:
        files: What the folder holds, by name.

    Raises:
        InvalidFile: If a file is damaged.
        MissingExtra: If sentencepiece is not installed.

    Reference: Junczys-Dowmunt et al. 2018, "Marian: Fast Neural Machine Translation in C++"; Tiedemann and Thottingal
    2020, "OPUS-MT".
    """

    needed = (SOURCE, TARGET, VOCABULARY)

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self._source, self._target = (processor(files[name], name) for name in (SOURCE, TARGET))
        try:
            vocabulary = json.loads(files[VOCABULARY])
            self._ids: dict[str, int] = {str(piece): int(index) for piece, index in vocabulary.items()}
            unknown, end, pad = (self._ids[name] for name in ("<unk>", "</s>", "<pad>"))
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            why = f"expected ids by pieces, <unk>, </s> and <pad> among them: {error!r}"
            raise InvalidFile(f"{VOCABULARY}: {why}") from error
        self._unknown, self.eos_id, self.pad_id = unknown, end, pad
        self._pieces = {index: piece for piece, index in self._ids.items()}
        self._specials = {unknown, end, pad}

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return max(self._pieces) + 1

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, split_special_tokens: bool = True
    ) -> list[list[int]]:
        """Encode each source text.

        Args:
            texts: The texts.
            add_special_tokens: Whether to add the token that ends a text.
            split_special_tokens: Has no effect: SentencePiece always splits them.

        Raises:
            InvalidType: If texts are not a sequence of str.
            InvalidArgument: If a text has lone surrogates.
        """
        after = [self.eos_id] if add_special_tokens else []
        return [ids + after for ids in self._encode(self._source, texts)]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of each target text, without special tokens.

        Raises:
            InvalidType: If texts are no sequence of str.
            InvalidArgument: If a text holds what is no character.
        """
        return self._encode(self._target, texts)

    def _encode(self, pieces_of: Any, texts: Sequence[str]) -> list[list[int]]:
        check_texts(texts)
        found = []
        for text in texts:
            language, mark, rest = text.partition("<<")
            language = [f"{language}<<"] if mark and text.startswith(">>") else []
            pieces = language + pieces_of.encode(rest if language else text, out_type=str)
            found.append([self._ids.get(piece, self._unknown) for piece in pieces])
        return found

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Give the text of each sequence of ids; special tokens are left out."""
        return [
            self._target.decode_pieces([self._pieces.get(index, "") for index in ids if index not in self._specials])
            .replace(SPACE, " ")
            .strip()
            for ids in sequences
        ]

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Give each piece, ``▁`` for the space before a word."""
        return [self._pieces.get(index, "<unk>") for index in ids]
