"""Tokenizers of SentencePiece models: older checkpoints of Llama, and the translators of OPUS-MT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.errors import InvalidFile, raise_problems, require, short_repr
from regard.input_files import parse_json
from regard.text.base import BaseTokenizer
from regard.text.validation import as_ids, as_sequences, check_texts

SPM_FILE = "tokenizer.model"
MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")
MARIAN_SPECIAL = ("<unk>", "</s>", "<pad>")


class SentencePieceTokenizer(BaseTokenizer):
    """Text to the ids of a SentencePiece model, which never reads special tokens in a text.

    Args:
        files: ``tokenizer.model`` and its optional files, by name.

    Raises:
        InvalidFile: If the model is damaged.
        MissingExtra: If sentencepiece is not installed.

    Reference: Kudo and Richardson 2018, "SentencePiece".
    """

    required_files = (SPM_FILE,)

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(files)
        self._model = _read_model(files, SPM_FILE)
        pad, bos, eos = self._model.pad_id(), self._model.bos_id(), self._model.eos_id()  # -1: none
        self._special_ids = {pad, bos, eos}
        self.pad_id = max(pad, 0)
        self.bos_id, self.eos_id = (None if index < 0 else index for index in (bos, eos))

    @property
    def vocab_size(self) -> int:
        return self._model.get_piece_size()

    @property
    def non_special_ids(self) -> list[int]:
        special = self._model.is_control, self._model.is_unknown, self._model.is_unused
        return [index for index in range(self.vocab_size) if not any(test(index) for test in special)]

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, split_special_tokens: bool = True
    ) -> list[list[int]]:
        check_texts(texts)
        add_bos, add_eos = (add_special_tokens and index is not None for index in (self.bos_id, self.eos_id))
        return self._model.encode(list(texts), add_bos=add_bos, add_eos=add_eos)

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        size, special = self.vocab_size, self._special_ids
        regular = ([index for index in ids if index < size and index not in special] for ids in as_sequences(sequences))
        return [self._model.decode(ids) for ids in regular]

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        size = self.vocab_size
        return [self._model.id_to_piece(index) if index < size else "<unk>" for index in as_ids(ids)]


class MarianTokenizer(BaseTokenizer):
    """Text to ids of one vocabulary, split by a SentencePiece model for sources and another one for targets.

    A source can begin with its target language, such as ``>>deu<<``, if the vocabulary has it.

    Args:
        files: ``source.spm``, ``target.spm``, ``vocab.json`` and the optional files, by name.

    Raises:
        InvalidFile: If a file is damaged.
        MissingExtra: If sentencepiece is not installed.

    Reference: Junczys-Dowmunt et al. 2018, "Marian: Fast Neural Machine Translation in C++"; Tiedemann and Thottingal
    2020, "OPUS-MT".
    """

    required_files = MARIAN_FILES

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(files)
        source, target, vocabulary = MARIAN_FILES
        self._source, self._target = _read_model(files, source), _read_model(files, target)
        self._ids: dict[str, int] = _check_vocabulary(parse_json(files[vocabulary], vocabulary), vocabulary)
        self._unk_id, self.eos_id, self.pad_id = (self._ids[token] for token in MARIAN_SPECIAL)
        self._tokens = {index: token for token, index in self._ids.items()}
        self._special_ids = {self._unk_id, self.eos_id, self.pad_id}

    @property
    def vocab_size(self) -> int:
        return max(self._tokens) + 1

    @property
    def non_special_ids(self) -> list[int]:
        return sorted(self._tokens.keys() - self._special_ids)

    def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, split_special_tokens: bool = True
    ) -> list[list[int]]:
        encoded = self._encode(self._source, texts)
        return [[*ids, self._ids["</s>"]] for ids in encoded] if add_special_tokens else encoded

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(self._target, texts)

    def _encode(self, model: Any, texts: Sequence[str]) -> list[list[int]]:
        check_texts(texts)
        encoded = []
        for text in texts:
            language, mark, rest = text.partition("<<")
            prefix = [f"{language}<<"] if mark and text.startswith(">>") else []
            tokens = prefix + model.encode(rest if prefix else text, out_type=str)
            encoded.append([self._ids.get(token, self._unk_id) for token in tokens])
        return encoded

    def decode(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        texts = []
        for ids in as_sequences(sequences):
            tokens = [self._tokens.get(index, "") for index in ids if index not in self._special_ids]
            texts.append(self._target.decode_pieces(tokens).replace("▁", " ").strip())
        return texts

    def convert_ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self._tokens.get(index, "<unk>") for index in as_ids(ids)]


def _check_vocabulary(ids: Any, name: str) -> Any:
    """The ids of tokens in a file, if they are ids."""
    expected = f"{name}: expected an object of token ids with {', '.join(MARIAN_SPECIAL)}"
    if not isinstance(ids, dict):
        raise InvalidFile(f"{expected}, got {type(ids).__name__}")
    problems = [
        f"{expected} from 0, got {short_repr(index)} for {short_repr(token)}"
        for token, index in ids.items()
        if type(index) is not int or index < 0
    ]
    problems += [f"{expected}, got none for {token}" for token in MARIAN_SPECIAL if token not in ids]
    raise_problems(problems, InvalidFile)
    return ids


def _read_model(files: Mapping[str, bytes], name: str) -> Any:
    """A SentencePieceProcessor for one of the files."""
    sentencepiece = require("sentencepiece", extra="hf", needed_by=name)
    if not files[name]:
        raise InvalidFile(f"{name}: expected a SentencePiece model, got an empty file")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=files[name])
    except RuntimeError as error:
        raise InvalidFile(f"{name}: expected a SentencePiece model: {error}") from error
