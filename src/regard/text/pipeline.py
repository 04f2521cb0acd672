"""Any tokenizer that a ``tokenizer.json`` describes: of a checkpoint, or trained here for language models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import InvalidArgument, InvalidFile
from regard.text.backends import CONFIG, config_file, learn_bpe, read_backend, write_backend
from regard.text.validation import check_texts
from regard.text.words import BYTE_DECODER, readable

# What checkpoints keep beside it; it is written again as it was read.
BESIDE = (CONFIG, "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json")
SPECIALS = ("<pad>", "<s>", "</s>", "<mask>")
Documents = Literal["file", "line"]
# What stands around a text: of a model that reads it whole; of a language model whose texts are files, of which hardly
# one begins or ends where it reads; of one whose texts are lines, each of which begins where another has ended.
_AROUND: dict[Documents | None, str] = {None: "<s> $A </s>", "file": "$A", "line": "</s> $A"}
_NAMES = {  # where no configuration says what a special token is called
    "pad": ("<pad>", "[PAD]"),
    "bos": ("<s>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
}
# As GPT-2 cuts text, but for digits, of which each is a piece of its own.
_PIECES = r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"


class PipelineTokenizer:
    r"""Text to ids and back, as a pipeline of ``tokenizers`` says.

    Args:
        backend: The pipeline; what it says of padding and truncation is left aside.
        beside: Further files that belong to it, by name.

    Example:
        >>> tokenizer = PipelineTokenizer.train(["the cat sat", "the cat ran"], vocab_size=270)
        >>> tokenizer.decode(tokenizer.encode(["the cat\n ☃"]))
        ['the cat\n ☃']
    """

    def __init__(self, backend: tokenizers.Tokenizer, beside: dict[str, bytes] | None = None) -> None:
        self._backend, self._beside = backend, beside or {}
        backend.no_padding()
        backend.no_truncation()
        self._vocab_size = max(backend.get_vocab().values(), default=-1) + 1  # ids can have gaps
        given = {name: _content(value) for name, value in self._config().items() if name.endswith("_token")}
        self._specials: dict[str, int | None] = {}
        for kind, names in _NAMES.items():
            named = [given[f"{kind}_token"]] if f"{kind}_token" in given else names
            ids = [backend.token_to_id(name) for name in named if name]
            self._specials[kind] = next((each for each in ids if each is not None), None)

    def _config(self) -> dict[str, Any]:
        try:
            found = json.loads(self._beside.get(CONFIG, b"{}"))
        except ValueError as error:
            raise InvalidFile(f"{CONFIG} is not valid JSON: {error}") from error
        if not isinstance(found, dict):
            raise InvalidFile(f"{CONFIG} must hold an object, but holds {type(found).__name__}")
        return found

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, documents: Documents | None = None) -> PipelineTokenizer:
        """Learn a byte-level BPE vocabulary that keeps text as it is, white space too.

        Args:
            texts: They are read once.
            vocab_size: Entries, the four special tokens and the 256 bytes included; fewer where the text has no more.
            documents: What a text is to a language model. Default: it is for a model that reads texts whole.

        Raises:
            InvalidArgument: If the vocabulary cannot hold the special tokens and the bytes.
        """
        backend = learn_bpe(texts, vocab_size, specials=SPECIALS, pieces=_PIECES, normalizer=normalizers.NFC())
        return cls._around(backend, documents)

    @classmethod
    def of_characters(cls, texts: Iterable[str], documents: Documents | None = None) -> PipelineTokenizer:
        """The characters of texts as a vocabulary, behind the special tokens; others are refused later.

        Args:
            texts: They are read once.
            documents: As for :meth:`train`.

        Example:
            >>> tokenizer = PipelineTokenizer.of_characters(["to be"])
            >>> tokenizer.vocab_size, tokenizer.encode(["bot"])
            (9, [[5, 7, 8]])
        """
        characters = sorted({character for text in texts for character in text})
        vocabulary = {token: index for index, token in enumerate([*SPECIALS, *characters])}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        backend.add_special_tokens(list(SPECIALS))
        backend.normalizer = normalizers.NFC()  # as files are read
        backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        backend.decoder = decoders.Fuse()
        return cls._around(backend, documents)

    @classmethod
    def _around(cls, backend: tokenizers.Tokenizer, documents: Documents | None) -> PipelineTokenizer:
        """Put the special tokens around a text that begin and end it, and note for transformers what they are."""
        ends = [(token, backend.token_to_id(token)) for token in SPECIALS[1:3]]
        backend.post_processor = processors.TemplateProcessing(single=_AROUND[documents], special_tokens=ends)
        pad, _, end, mask = SPECIALS
        begin = _AROUND[documents].partition("$A")[0].strip() or None
        named = {"pad_token": pad, "bos_token": begin, "eos_token": end, "mask_token": mask}
        told = {} if documents is None else {"documents": documents}
        return cls(backend, config_file(**named, **told))

    @property
    def vocab_size(self) -> int:
        """The largest id, plus one."""
        return self._vocab_size

    @property
    def regular_token_ids(self) -> list[int]:
        """The ids of what is text, and no special token."""
        marks = self._backend.get_added_tokens_decoder()
        return sorted(index for index in self._backend.get_vocab().values() if index not in marks)

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides which ids a text gets."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    @property
    def documents(self) -> Documents | None:
        """What a text is to the language model that was trained with it here; None of others."""
        return self._config().get("documents")

    @property
    def pad_id(self) -> int:
        """The id that fills up sequences; 0 where the vocabulary has none."""
        return self._specials["pad"] or 0

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text."""
        return self._specials["bos"]

    @property
    def eos_id(self) -> int | None:
        """The id that ends a text."""
        return self._specials["eos"]

    @property
    def mask_id(self) -> int | None:
        """The id that hides a word."""
        return self._specials["mask"]

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, split_special_tokens: bool = True
    ) -> list[list[int]]:
        """Encode each text.

        Args:
            texts: The texts.
            add_special_tokens: Whether to add the special tokens that begin and end a text.
            split_special_tokens: Whether ``[MASK]`` in a text is text. Default: it is.

        Raises:
            InvalidType: If texts are not a sequence of str.
            InvalidArgument: If a text has characters that the vocabulary lacks, or lone surrogates.
        """
        return self._encode(texts, around=add_special_tokens, literal=split_special_tokens)

    def encode_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of the beginnings of texts: what stands before a text, and no end.

        Raises:
            InvalidType, InvalidArgument: As :meth:`encode`.
        """
        found = self._encode(texts, around=True, literal=self.documents is not None)  # as it was when the model learned
        return [ids[:-1] if ids[-1:] == [self.eos_id] != [self.bos_id] else ids for ids in found]

    def _encode(self, texts: Sequence[str], *, around: bool, literal: bool) -> list[list[int]]:
        check_texts(texts)
        self._backend.encode_special_tokens = literal
        try:
            found = self._backend.encode_batch_fast(list(texts), add_special_tokens=around)
            return [encoding.ids for encoding in found]
        except Exception as error:  # the bindings raise no narrower one
            missing = [letter for letter in sorted({*"".join(texts)}) if not self._can_encode(letter)]
            lacking = f"texts hold what the vocabulary lacks: {', '.join(map(repr, missing[:10]))}"
            raise InvalidArgument(lacking if missing else f"texts: could not be encoded: {error}") from error

    def _can_encode(self, text: str) -> bool:
        try:
            self._backend.encode(text)
        except Exception:  # noqa: BLE001 - the bindings raise no narrower one
            return False
        return True

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Give the text of each sequence of ids; special tokens are left out."""
        return self._backend.decode_batch([list(ids) for ids in sequences], skip_special_tokens=True)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Give each piece as readable text, ``▁`` for the space before a word."""
        return [readable_piece(self._backend, index) for index in ids]

    def unique_token_names(self, ids: Sequence[int]) -> list[str]:
        """Give different pieces different names: words without the space before them, ``##ing`` where it is WordPiece.

        Of several that read alike, the first has the plain name.
        """
        found: dict[str, None] = {}
        own = isinstance(self._backend.decoder, tokenizers.decoders.WordPiece)
        for index, token in zip(ids, self.convert_ids_to_tokens(ids), strict=True):
            piece, word = self._backend.id_to_token(index) or f"[{index}]", token.removeprefix("▁") or token
            names = (piece, f"[{index}]") if own else (word, token, f"##{word}", piece, f"[{index}]")
            found[next(name for name in names if name not in found)] = None
        return list(found)

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` and what belongs to it into a folder.

        Raises:
            InvalidFile: If it cannot be written.
        """
        specials = {
            f"{kind}_token": self._backend.id_to_token(index)
            for kind, index in self._specials.items()
            if index is not None
        }
        write_backend(self._backend, Path(folder), self._beside or config_file(**specials))

    @classmethod
    def load(cls, folder: str | Path) -> PipelineTokenizer:
        """Read ``tokenizer.json`` and what belongs to it from a folder.

        Raises:
            InvalidFile: If it is missing or unreadable.
        """
        folder = Path(folder)
        backend = read_backend(folder)
        try:
            beside = {name: (folder / name).read_bytes() for name in BESIDE if (folder / name).is_file()}
        except OSError as error:
            raise InvalidFile(f"{folder}: what belongs to its tokenizer cannot be read: {error}") from error
        try:
            return cls(backend, beside)
        except InvalidFile as error:
            raise InvalidFile(f"{folder}: {error}") from error


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def readable_piece(backend: tokenizers.Tokenizer, index: int) -> str:
    """A piece as readable text, ``▁`` for the space before a word."""
    piece = backend.id_to_token(index) or ""
    added = backend.get_added_tokens_decoder()
    if index in added or backend.decoder is None:
        return piece
    text = backend.decode([index], skip_special_tokens=False)
    if "\ufffd" in text and all(letter in BYTE_DECODER for letter in piece):
        return readable(bytes(BYTE_DECODER[letter] for letter in piece))
    if piece.startswith(("Ġ", "▁", " ")):
        return "▁" + text.lstrip(" ")
    if isinstance(backend.decoder, tokenizers.decoders.WordPiece):
        begins = not piece.startswith(backend.decoder.prefix)
        return "▁" + piece if begins else piece.removeprefix(backend.decoder.prefix)
    return piece if "\ufffd" in text else text
