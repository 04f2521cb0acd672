"""Subwords: one byte-level BPE vocabulary for both languages, so that no input is unknown."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, normalizers, processors

from regard.errors import InvalidFile
from regard.text.backends import FILE, config_file, learn_bpe, read_backend, write_backend
from regard.text.validation import check_texts
from regard.text.words import BYTE_DECODER, readable

SPECIALS = ("<pad>", "<s>", "</s>")
# Contractions stay readable ("didn", "'t"), every digit is a piece of its own (numbers are copied, not memorised),
# and the space belongs to the word that it stands before.
_PIECES = r"['’](?:[sdmt]|ll|ve|re)(?![\p{L}\p{M}])| ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+"


class Tokenizer:
    """Text to subword ids and back, by byte-level BPE (through ``tokenizers``).

    Text is brought to NFC, and any run of white space to one space; that is all that is lost:
    ``decode(encode([x])) == [normalize(x)]`` for every string. Text that spells a special token is encoded as text.

    Reference:
        Sennrich, Haddow, Birch 2016, "Neural Machine Translation of Rare Words with Subword Units".

    Example:
        >>> tokenizer = Tokenizer.train(["the cat sat", "the cat ran"], vocab_size=270)
        >>> tokenizer.decode(tokenizer.encode(["the cat </s> ☃"]))
        ['the cat </s> ☃']
    """

    pad_id, bos_id, eos_id = range(3)

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        backend.encode_special_tokens = True  # "</s>" in a text is text; the attribute is not part of the file
        # What only transformers reads: where a source ends, and that no space begins a text.
        end = [(SPECIALS[self.eos_id], self.eos_id)]
        backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=end)
        backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        self._bytes: list[bytes] = []
        for index in range(backend.get_vocab_size()):
            piece = backend.id_to_token(index) or ""
            special = index < len(SPECIALS)
            self._bytes.append(piece.encode() if special else bytes(BYTE_DECODER[letter] for letter in piece))

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        """Learn a vocabulary from texts of all languages together.

        Args:
            texts: Sentences; they are read once.
            vocab_size: Entries, the three special tokens and the 256 bytes included; fewer where the text has no more.

        Returns:
            The tokenizer.

        Raises:
            InvalidArgument: If the vocabulary cannot hold the special tokens and the bytes.
        """
        normalizer = normalizers.Sequence(
            [
                normalizers.NFC(),
                normalizers.Replace(Regex(r"\s+"), " "),
                normalizers.Strip(),
                normalizers.Prepend(" "),  # the first word of a line is the same piece as anywhere else
            ]
        )
        return cls(learn_bpe(texts, vocab_size, specials=SPECIALS, pieces=_PIECES, normalizer=normalizer))

    @property
    def vocab_size(self) -> int:
        """The number of ids."""
        return len(self._bytes)

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides which ids a text gets."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    def normalize(self, text: str) -> str:
        """Give the text as ``decode(encode(...))`` would: NFC, white space as single spaces."""
        return self._backend.normalizer.normalize_str(text).strip(" ")

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, split_special_tokens: bool = True
    ) -> list[list[int]]:
        """Encode each text; the arguments are those of `PipelineTokenizer.encode`.

        Raises:
            InvalidType: If texts are no sequence of str.
            InvalidArgument: If texts have surrogates, which are no characters; all such texts are named.
        """
        check_texts(texts)
        self._backend.encode_special_tokens = split_special_tokens
        return [
            each.ids for each in self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        ]

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of each target text, as :meth:`encode`: both languages have one vocabulary."""
        return self.encode(texts)

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Give the text of each sequence of ids; special tokens are left out."""
        return [self._text(ids).decode("utf-8", errors="replace").strip(" ") for ids in sequences]

    def _text(self, ids: Sequence[int]) -> bytes:
        return b"".join(self._bytes[index] for index in ids if index >= len(SPECIALS))

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Give each piece as readable text: ``▁`` is the space before a word, ``<0xC3>`` a byte of a cut letter."""
        return [readable(self._bytes[index]) for index in ids]

    def word_ids(self, ids: Sequence[int]) -> list[int]:
        """Give the word that each piece is of, from 0; words are what white space parts."""
        starts = (index >= len(SPECIALS) and self._bytes[index].startswith(b" ") for index in ids)
        return [number - 1 for number in itertools.accumulate(starts)]

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` into a folder, and what transformers' ``AutoTokenizer`` wants to know beside it.

        Each older file is replaced only by the whole new one.

        Raises:
            InvalidFile: If it cannot be written.
        """
        pad, _, end = SPECIALS
        write_backend(self._backend, Path(folder), config_file(pad_token=pad, eos_token=end))

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read ``tokenizer.json`` from a folder.

        Raises:
            InvalidFile: If it is missing, unreadable or no tokenizer of this kind.
        """
        backend = read_backend(Path(folder))
        found = tuple(backend.id_to_token(index) for index in range(len(SPECIALS)))
        if found != SPECIALS:
            raise InvalidFile(f"{Path(folder) / FILE}: the first entries should be {SPECIALS}, but are {found}")
        return cls(backend)
