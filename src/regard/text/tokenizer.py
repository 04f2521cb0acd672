"""Tokenizer: text to token ids by a ``tokenizer.json``, trained here or from a checkpoint."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidFile, short_repr
from regard.files import as_path
from regard.input_files import exists, parse_json
from regard.text.backend import TOKENIZER_FILE, panics_as_errors, readable_tokens
from regard.text.base import CONFIG_FILE, BaseTokenizer
from regard.text.sentencepiece import MARIAN_FILES, SPM_FILE, MarianTokenizer, SentencePieceTokenizer
from regard.text.validation import as_ids, as_sequences, check_texts, checked_texts
from regard.text.words import first_tokens

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>", "<mask>")
PAD_ID, BOS_ID, EOS_ID = range(3)
"""Ids of special tokens in vocabularies that are trained here; only those of translators have no mask token."""

SampleBy = Literal["document", "line"]
TEMPLATES: Mapping[SampleBy | None, str] = {None: "{bos} $A {eos}", "document": "$A", "line": "{eos} $A"}
"""Special tokens around a text. Encoders: both. Language models trained on whole documents: none, because blocks rarely
start at the beginning of a document. Language models trained on lines: the end of the line before."""

# As in GPT-2, but each digit is a token.
SPLIT_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
# Contractions stay readable ("didn", "'t"), each digit is a token (numbers are copied, not memorized), and a space
# belongs to the word after it.
TRANSLATION_SPLIT_PATTERN = (
    r"['’](?:[sdmt]|ll|ve|re)(?![\p{L}\p{M}])| ?[\p{L}\p{M}]+| ?\p{N}| ?[^\s\p{L}\p{M}\p{N}]+|\s+"
)

# Where tokenizer_config.json does not name a special token, the first of these in the vocabulary is it.
_DEFAULT_NAMES = {
    "pad": ("<pad>", "[PAD]"),
    "bos": ("<s>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("</s>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
}


class Tokenizer(BaseTokenizer):
    r"""Text to token ids by a ``tokenizer.json`` of Hugging Face's ``tokenizers``.

    Truncation and padding that the file configures are not applied.

    Args:
        files: ``tokenizer.json`` and its optional files, by name; see `train_bpe`, `train_char` and
            `train_translation_bpe` for new vocabularies.

    Raises:
        InvalidFile: If a file is damaged.

    Examples:
        >>> tokenizer = train_bpe(["the cat sat", "the cat ran"], vocab_size=270)
        >>> tokenizer.decode(tokenizer.encode(["the cat\n ☃"]))
        ['the cat\n ☃']
    """

    required_files = (TOKENIZER_FILE,)
    optional_files = (*BaseTokenizer.optional_files, "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json")

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(files)
        self._backend = _read_backend(files)
        with panics_as_errors():
            self._vocab_size = max(self._backend.get_vocab().values(), default=-1) + 1  # ids can have gaps
        config = _read_config(files)
        ids = {kind: self._special_id(config, kind) for kind in _DEFAULT_NAMES}
        self.pad_id, self.bos_id, self.eos_id, self.mask_id = ids["pad"] or 0, ids["bos"], ids["eos"], ids["mask"]

    def _special_id(self, config: Mapping[str, Any], kind: str) -> int | None:
        names = _DEFAULT_NAMES[kind]
        if f"{kind}_token" in config:
            token = config[f"{kind}_token"]
            names = (token.get("content") if isinstance(token, dict) else token,)
        ids = (self._backend.token_to_id(name) for name in names if isinstance(name, str))
        return next((index for index in ids if index is not None), None)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def non_special_ids(self) -> list[int]:
        added = self._backend.get_added_tokens_decoder()
        return sorted(index for index in self._backend.get_vocab().values() if index not in added)

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, split_special_tokens: bool = True
    ) -> list[list[int]]:
        check_texts(texts)
        backend = self._splitting_backend if split_special_tokens else self._backend
        with self._missing_characters_as_errors(texts):
            encodings = backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], list[int]]]:
        """Token ids of sentences of words, with special tokens, and where each word begins.

        The words are joined by spaces. ``[MASK]`` and the like are text.

        Args:
            sentences: The words of each sentence.

        Returns:
            For each sentence the token ids and, for each word, the position of its first token; -1 for a word of which
            the tokenizer leaves nothing, such as one of invisible characters.

        Raises:
            InvalidType: If a sentence is not a sequence of str.
            InvalidArgument: If a word has lone surrogates, or characters that the vocabulary lacks.

        Examples:
            >>> ids, firsts = train_bpe(["the cat sat"] * 9, vocab_size=270).encode_words([["the", "cats"]])[0]
            >>> len(ids), firsts
            (5, [1, 2])
        """
        for index, words in enumerate(sentences):
            check_texts(words, f"sentences[{index}]")
        texts = [" ".join(words) for words in sentences]
        with self._missing_characters_as_errors(texts):  # the fast encoding has no offsets
            encodings = self._splitting_backend.encode_batch(texts, add_special_tokens=True)
        pairs = zip(encodings, sentences, strict=True)
        return [(encoding.ids, first_tokens(words, encoding.offsets)) for encoding, words in pairs]

    @contextmanager
    def _missing_characters_as_errors(self, texts: Sequence[str]) -> Iterator[None]:
        try:
            with panics_as_errors():
                yield
        except InvalidFile:
            raise
        except Exception as error:  # the bindings raise no narrower one
            normalizer = self._backend.normalizer
            characters = {*"".join(normalizer.normalize_str(text) if normalizer else text for text in texts)}
            missing = [repr(character) for character in sorted(characters) if not self._can_encode(character)]
            reason = f"expected characters of the vocabulary, got {', '.join(missing[:10])}" if missing else error
            raise InvalidArgument(f"texts: {reason}") from error

    def parts(self) -> dict[str, Any]:
        """The content of ``tokenizer.json``: ``normalizer``, ``pre_tokenizer``, ``model``, ``decoder`` and others."""
        return json.loads(self._backend.to_str())

    @cached_property
    def _splitting_backend(self) -> tokenizers.Tokenizer:
        """A copy that reads special tokens as text: to switch the backend itself would not be thread-safe."""
        try:
            with panics_as_errors():
                backend = copy.deepcopy(self._backend)
        except InvalidFile:
            raise
        except Exception as error:  # it reads what the bindings wrote, of a vocabulary that does not fit its merges
            raise InvalidFile(f"{TOKENIZER_FILE}: cannot be used as a tokenizer: {error}") from error
        backend.encode_special_tokens = True
        return backend

    def _can_encode(self, text: str) -> bool:
        try:
            with panics_as_errors():
                self._backend.encode(text)
        except Exception:  # noqa: BLE001 - the bindings raise no narrower one
            return False
        return True

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        with panics_as_errors():
            return self._backend.decode_batch(as_sequences(sequences), skip_special_tokens=True)

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return readable_tokens(self._backend, as_ids(ids))

    def _entries(self, ids: Sequence[int]) -> list[str]:
        return [self._backend.id_to_token(index) or f"[{index}]" for index in ids]


def train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    sample_by: SampleBy | None = None,
    split_pattern: str = SPLIT_PATTERN,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
) -> Tokenizer:
    """Train a byte-level BPE vocabulary that keeps text as it is in NFC, including white space.

    Args:
        texts: Read once.
        vocab_size: Number of entries, including the special tokens and the 256 bytes; fewer if the texts have no more.
        sample_by: What a language model is trained on, which decides its `TEMPLATES`. Default: the tokenizer is for an
            encoder.
        split_pattern: Regular expression of the spans that no entry crosses.
        special_tokens: Four: the padding, BOS, EOS and mask token; they get the first ids.

    Raises:
        InvalidType: If texts are not an iterable of str, or vocab_size is not an int.
        InvalidArgument: If the vocabulary has no room for the special tokens and the bytes, a text has lone surrogates,
            or another argument is invalid.

    Reference:
        Sennrich, Haddow, Birch 2016, "Neural Machine Translation of Rare Words with Subword Units"; Radford et al.
        2019, "Language models are unsupervised multitask learners", section 2.2 (bytes).
    """
    with Checks() as checks:
        _check_sample_by(checks, sample_by)
        if checks.strings("special_tokens", special_tokens):
            four = len(special_tokens) == len(set(special_tokens)) == 4
            checks.that(four, f"special_tokens: expected four different tokens, got {short_repr(special_tokens)}")
    backend = _train_bpe(texts, vocab_size, split_pattern, special_tokens, normalizers.NFC())
    return _complete(backend, TEMPLATES[sample_by], special_tokens)


def train_translation_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train one byte-level BPE vocabulary for both languages of a translator.

    Text comes back in NFC, with single spaces and none around it. Sources end with ``</s>``.

    Args:
        texts: Sentences of both languages; read once.
        vocab_size: Number of entries, including 3 special tokens and the 256 bytes; fewer if the texts have no more.

    Raises:
        InvalidType: If texts are not an iterable of str, or vocab_size is not an int.
        InvalidArgument: If the vocabulary has no room for the special tokens and the bytes, or a text has lone
            surrogates.

    Reference:
        Sennrich, Haddow, Birch 2016, "Neural Machine Translation of Rare Words with Subword Units".

    Examples:
        >>> tokenizer = train_translation_bpe(["the cat sat", "die Katze saß"], vocab_size=270)
        >>> tokenizer.decode(tokenizer.encode(["the  cat </s> ☃ "]))
        ['the cat </s> ☃']
    """
    single_spaces = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    # the space before the first word makes it the same token as elsewhere; decoding removes it
    normalizer = normalizers.Sequence([*single_spaces, normalizers.Prepend(" ")])
    special_tokens = SPECIAL_TOKENS[:3]
    backend = _train_bpe(texts, vocab_size, TRANSLATION_SPLIT_PATTERN, special_tokens, normalizer)
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace(Regex(r"\A +| +\z"), "")])
    return _complete(backend, "$A {eos}", special_tokens, bos_token="<s>")


def train_char(texts: Iterable[str], *, sample_by: SampleBy | None = None) -> Tokenizer:
    """Make a vocabulary of the special tokens and all characters in NFC of some texts; it cannot encode others.

    Args:
        texts: Read once.
        sample_by: As for `train_bpe`.

    Raises:
        InvalidType: If texts are not an iterable of str.
        InvalidArgument: If a text has lone surrogates, or ``sample_by`` is unknown.

    Examples:
        >>> tokenizer = train_char(["to be"])
        >>> tokenizer.vocab_size, tokenizer.encode(["bot"])
        (9, [[5, 7, 8]])
    """
    with Checks() as checks:
        _check_sample_by(checks, sample_by)
    normalizer = normalizers.NFC()  # as files are read
    characters = sorted({character for text in checked_texts(texts) for character in normalizer.normalize_str(text)})
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *characters])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return _complete(backend, TEMPLATES[sample_by], SPECIAL_TOKENS)


def _check_sample_by(checks: Checks, sample_by: str | None) -> None:
    if sample_by is not None:
        checks.choice("sample_by", sample_by, get_args(SampleBy))


def _train_bpe(
    texts: Iterable[str],
    vocab_size: int,
    split_pattern: str,
    special_tokens: Sequence[str],
    normalizer: normalizers.Normalizer,
) -> tokenizers.Tokenizer:
    with Checks() as checks:
        if checks.integer("vocab_size", vocab_size):
            least = f"{len(special_tokens) + 256} for {len(special_tokens)} special tokens and 256 bytes"
            fits = vocab_size >= len(special_tokens) + 256
            checks.that(fits, f"vocab_size: expected at least {least}, got {vocab_size}")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizer
    try:
        split = pre_tokenizers.Split(Regex(split_pattern), "isolated")
    except Exception as error:  # the bindings raise no narrower one
        expected = "expected a regular expression"
        raise InvalidArgument(f"split_pattern: {expected}, got {short_repr(split_pattern)}: {error}") from error
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    # A mask includes the space before it, as the words that it replaces do (as in RoBERTa).
    added = [AddedToken(token, special=True, lstrip=index == 3) for index, token in enumerate(special_tokens)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=added,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(checked_texts(texts), trainer)
    return backend


def load_tokenizer(folder: str | Path) -> BaseTokenizer:
    """Read the tokenizer of a model folder: a ``tokenizer.json`` or SentencePiece models.

    Raises:
        InvalidType: If the folder is not a path.
        InvalidFile: If there is none, or it is damaged.
        MissingExtra: If it needs sentencepiece, which is not installed.
    """
    folder = as_path(folder, "folder")
    for tokenizer in (Tokenizer, MarianTokenizer, SentencePieceTokenizer):
        if exists(folder / tokenizer.required_files[0]):
            return tokenizer.load(folder)
    expected = f"{TOKENIZER_FILE}, {SPM_FILE}, or {' with '.join(MARIAN_FILES)}"
    raise InvalidFile(f"{folder}: expected a tokenizer with the model's weights ({expected}), got none")


def check_vocab_size(tokenizer: BaseTokenizer, vocab_size: int, name: str) -> None:
    """Raise `InvalidArgument` if a tokenizer has ids that a model, which the message calls ``name``, does not have."""
    if tokenizer.vocab_size > vocab_size:
        expected = f"expected a tokenizer with at most {vocab_size} tokens as in the model"
        raise InvalidArgument(f"{name}: {expected}, got {tokenizer.vocab_size}; use the model's own tokenizer")


def _complete(
    backend: tokenizers.Tokenizer, template: str, special_tokens: Sequence[str], bos_token: str | None = None
) -> Tokenizer:
    """The tokenizer with a template, and with the file that names its special tokens for transformers."""
    bos, eos = special_tokens[1:3]
    template = template.format(bos=bos, eos=eos)
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, backend.token_to_id(token)) for token in (bos, eos)]
    )
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= dict(zip(("pad_token", "bos_token", "eos_token", "mask_token"), special_tokens, strict=False))
    config["bos_token"] = bos_token or template.partition("$A")[0].strip() or None
    return Tokenizer(
        {TOKENIZER_FILE: backend.to_str().encode(), CONFIG_FILE: (json.dumps(config, indent=2) + "\n").encode()}
    )


def _read_backend(files: Mapping[str, bytes]) -> tokenizers.Tokenizer:
    try:
        with panics_as_errors():
            backend = tokenizers.Tokenizer.from_str(files[TOKENIZER_FILE].decode())
    except Exception as error:  # the bindings raise no narrower one
        raise InvalidFile(f"{TOKENIZER_FILE}: cannot be read as a tokenizer: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    return backend


def _read_config(files: Mapping[str, bytes]) -> dict[str, Any]:
    config = parse_json(files.get(CONFIG_FILE, b"{}"), CONFIG_FILE)
    if not isinstance(config, dict):
        raise InvalidFile(f"{CONFIG_FILE}: expected a JSON object, got {type(config).__name__}")
    return config
