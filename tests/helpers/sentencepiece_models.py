"""SentencePiece models of a few sentences, as OPUS-MT and Llama have them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

ENGLISH = ["the cat sat on the mat", "where is the station?", "the station is near the mat", "a cat is a cat"]
GERMAN = ["die Katze saß auf der Matte", "wo ist der Bahnhof?", "der Bahnhof ist bei der Matte", "eine Katze"]


def train(sentences: list[str], **options) -> bytes:
    """A SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=model, minloglevel=2, hard_vocab_limit=False, **options
    )
    return model.getvalue()


def write_marian(folder: Path, first: Sequence[str] = ("</s>", "<unk>", ">>deu<<"), most: int = 100) -> int:
    """The files of a Marian tokenizer, with these words before all others; gives the number of its words."""
    models = train(ENGLISH, vocab_size=60), train(GERMAN, vocab_size=60)
    pieces = list(first)
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces += [processor.id_to_piece(index) for index in range(3, processor.get_piece_size())]
    pieces = list(dict.fromkeys(pieces))[:most]
    pieces += [] if "<pad>" in pieces else ["<pad>"]
    (folder / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(pieces)}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"})
    )
    return len(pieces)


def write_llama(folder: Path) -> int:
    """The SentencePiece model of a Llama; gives the number of its words."""
    model = train(ENGLISH, vocab_size=330, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                  remove_extra_whitespaces=False)  # fmt: skip
    (folder / "tokenizer.model").write_bytes(model)
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
