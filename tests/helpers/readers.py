"""Everything that this library reads: for each reader files as they should be, and what it does with them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from PIL import Image

import regard
from helpers.corpora import write_rows
from helpers.model_zoo.families import IMAGE, SMALL
from helpers.sentencepiece_models import ENGLISH, train, write_marian
from helpers.transformers_models import bert, gpt2, llama, marian, tokenizer
from regard.data import tokenize_pairs, tokenize_stream
from regard.errors import InvalidArgument
from regard.models import Bert, BertConfig, Transformer, TransformerConfig, load_model, save_model
from regard.pipelines import TextEncoder, Translator
from regard.pipelines.confidence import ConfidenceModel
from regard.text import load_tokenizer, read_alignments, read_labeled_texts, read_lines, read_pairs, read_texts
from regard.text.tokenizer import train_bpe, train_translation_bpe
from regard.training import load_recipe
from regard.training.metrics_file import MetricsFile
from regard.training.state import check_shards, find_state, load_tensors, save_state
from regard.watching import TransformersModel

TEXT = "the cat sat on the mat"
SIZES: dict[str, Any] = {"d_model": 16, "num_heads": 2, "d_ff": 16}
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1, "max_seq_len": 32}


@dataclass(frozen=True)
class Reader:
    """Files, and what reads them.

    Args:
        write: Writes the files into a folder.
        kinds: The kind of each file that is damaged, as `mutate` takes it, by its path in the folder.
        read: Reads the folder.
        weight: How many files are damaged, relative to other readers; slow ones have less.
    """

    write: Callable[[Path], None]
    kinds: Mapping[str, str]
    read: Callable[[Path], object]
    weight: float = 1.0


def _use_tokenizer(folder: Path) -> None:
    loaded = load_tokenizer(folder)
    with suppress(InvalidArgument):  # of a vocabulary without these characters
        ids = loaded.encode([TEXT, ">>deu<< where is é?"], add_special_tokens=True)
        loaded.encode_prompts([TEXT])
        loaded.encode_targets([TEXT])
        loaded.decode(ids)
        loaded.convert_ids_to_tokens(ids[0])
        loaded.word_ids(ids[0])
    assert min([*loaded.non_special_ids, loaded.vocab_size]) >= 0


def _write_translator(folder: Path) -> None:
    words = train_translation_bpe(ENGLISH, vocab_size=270)
    torch.manual_seed(0)
    save_model(folder, Transformer(TransformerConfig(words.vocab_size, **SIZES, **LAYERS)), words)
    ConfidenceModel(intercept=2.8, log_prob_weight=9.0, length_weight=0.0, threshold=0.5).save(folder)


def _write_encoder(folder: Path) -> None:
    words = train_bpe(ENGLISH, vocab_size=270)
    torch.manual_seed(0)
    config = BertConfig(words.vocab_size, num_layers=1, max_seq_len=32, head="sentence_embedding", **SIZES)
    save_model(folder, Bert(config), words, format="transformers")


def _write_shards(folder: Path) -> None:
    gpt2().save_pretrained(folder, max_shard_size="20KB")
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for key, name in index["weight_map"].items():
        index["weight_map"][key] = short = f"{name.partition('-of')[0]}.safetensors"
        if (folder / name).exists():
            (folder / name).rename(folder / short)
    path.write_text(json.dumps(index))


def _write_pickled(folder: Path) -> None:
    model = bert()
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def _write_watched(folder: Path) -> None:
    torch.manual_seed(0)
    hf.ElectraModel(hf.ElectraConfig(**SMALL, embedding_size=16, max_position_embeddings=40)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def _write_vision(folder: Path) -> None:
    torch.manual_seed(0)
    hf.ViTModel(hf.ViTConfig(**IMAGE)).save_pretrained(folder)
    hf.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)
    Image.fromarray(np.arange(768, dtype=np.uint8).reshape(16, 16, 3)).save(folder / "image.png")


def _write_data(folder: Path) -> None:
    lines = [f"{text}\tTest {number}" for number, text in enumerate(ENGLISH)]
    (folder / "pairs.tsv").write_text("\n".join(lines))
    (folder / "lines.txt").write_text("\n".join(ENGLISH))
    (folder / "lines.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    (folder / "links.txt").write_text("0-0 1-1\n2-0\n\n1-1")
    (folder / "classes.tsv").write_text("good film\tpos\nbad film\tneg\n")
    rows = [{"text": text, "seed": 1} for text in ENGLISH]
    write_rows(folder / "texts.jsonl", rows)
    write_rows(folder / "texts.parquet", rows)


def _read_data(folder: Path) -> None:
    for read in (
        lambda: list(read_pairs([folder / "pairs.tsv"])),
        lambda: list(read_lines(folder / "lines.txt")),
        lambda: list(read_pairs([folder / "lines.txt.gz"])),
        lambda: list(read_alignments(folder / "links.txt")),
        lambda: list(read_labeled_texts([folder / "classes.tsv"])),
        lambda: list(read_texts(folder / "texts.jsonl")),
        lambda: list(read_texts(folder / "texts.parquet")),
    ):
        read()


def _write_recording(folder: Path) -> None:
    _write_translator(folder)
    recording = Translator.load(folder).record(TEXT)
    for path in folder.iterdir():
        path.unlink()
    recording.save(folder / "run.regard")


def _read_recording(folder: Path) -> None:
    for layer in regard.load(folder / "run.regard").layers:
        layer.weights.dense()


def _write_recipe(folder: Path) -> None:
    (folder / "train.tsv").write_text("a\tb\n")
    config = {
        "output_dir": "run",
        "seed": 1,
        "task": "translation",
        "data": {
            "folder": ".",
            "train": "train.tsv",
            "valid": ["valid.tsv"],
            "max_length": 20,
            "max_tokens_per_batch": 99,
        },
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 16, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "d_ff": 32},
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 20, "betas": [0.9, 0.98], "lr_schedule": "inverse_sqrt"},
        "attention_loss": {"entropy": {"weight": 0.1, "floor": 0.5, "layers": [0], "heads": [1], "kind": "cross"}},
        "trainer": {"max_steps": 30, "log_every_n_steps": 3, "accelerator": "cpu", "devices": "auto"},
        "validation": {"every_n_steps": 10, "monitor": "bleu", "patience": 3},
        "checkpoint": {"every_n_steps": 7, "average_last": 2, "snapshot_every_n_steps": 5},
    }
    (folder / "recipe.yaml").write_text(json.dumps(config, indent=1))


def _state_tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "model.weight": torch.randn(5, 4, generator=generator),
        "model.bias": torch.zeros(4),
        "optimizer.state.bias.exp_avg": torch.zeros(4),
        "process.0.random": torch.zeros(99, dtype=torch.uint8),
    }


def _write_state(folder: Path) -> None:
    fields = {"step": 7, "num_processes": 1, "loader": {"epoch": 0, "position": 7}, "best": 1.5, "num_worse": 0}
    save_state(folder, fields, _state_tensors())


def _read_state(folder: Path) -> None:
    """A state that is accepted is the one that was written."""
    state = find_state(folder)
    assert state is not None
    check_shards(state)
    assert (state.step, state.loader) == (7, {"epoch": 0, "position": 7})
    expected = _state_tensors()
    actual = {name: torch.ones_like(tensor) for name, tensor in expected.items()}
    load_tensors(state.folder, actual)
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def _write_metrics(folder: Path) -> None:
    rows = ["step,epoch,loss,learning_rate,tokens,tokens_per_second,valid_loss,bleu,chrf"]
    rows += [f"{step},0,{9 - step / 10},0.01,{step * 100},5000,,," for step in range(1, 20)]
    (folder / "metrics.csv").write_text("\r\n".join(rows) + "\r\n")


def _cache(folder: Path) -> tuple[Any, Any]:
    words, cache = train_translation_bpe(ENGLISH, vocab_size=270), folder / "cache"
    (folder / "pairs.tsv").write_text("\n".join(f"{text}\t{text}" for text in ENGLISH))
    pairs = tokenize_pairs([folder / "pairs.tsv"], words, cache)
    stream = tokenize_stream([folder / "pairs.tsv"], words, cache)
    return [row.tolist() for row in pairs.source] + [row.tolist() for row in pairs.target], stream.ids.tolist()


def _write_cache(folder: Path) -> None:
    expected = _cache(folder)
    folders = sorted((folder / "cache").iterdir(), key=lambda path: (path / "stream.bin").exists())
    for number, path in enumerate(folders):
        path.rename(folder / "cache" / f"{number}")
        (folder / f"{number}.name").write_text(path.name)
    (folder / "expected.json").write_text(json.dumps(expected))


def _read_cache(folder: Path) -> None:
    """A cache that is accepted is the one that was written. Its folders are named by hashes, here by numbers."""
    names = {number: (folder / f"{number}.name").read_text() for number in (0, 1)}
    for number, name in names.items():
        (folder / "cache" / str(number)).rename(folder / "cache" / name)
    try:
        assert json.loads(json.dumps(_cache(folder))) == json.loads((folder / "expected.json").read_text())
    finally:
        for number, name in names.items():
            (folder / "cache" / name).rename(folder / "cache" / str(number))


HF_TEXT = {"config.json": "json", "model.safetensors": "safetensors", "tokenizer.json": "json",
           "tokenizer_config.json": "json"}  # fmt: skip
READERS: dict[str, Reader] = {
    "translator": Reader(
        _write_translator,
        {**HF_TEXT, "confidence.json": "json"},
        lambda folder: Translator.load(folder).translate([TEXT], beam=1),
    ),
    "sentence encoder": Reader(
        _write_encoder,
        {**HF_TEXT, "modules.json": "json", "1_Pooling/config.json": "json", "sentence_bert_config.json": "json"},
        lambda folder: TextEncoder.load(folder).embed([TEXT]),
    ),
    "shards": Reader(
        _write_shards,
        {
            "config.json": "json",
            "generation_config.json": "json",
            "model.safetensors.index.json": "json",
            "model-00001.safetensors": "safetensors",
        },
        load_model,
    ),
    "llama": Reader(lambda folder: llama().save_pretrained(folder), {"config.json": "json"}, load_model),
    "marian": Reader(
        lambda folder: marian().save_pretrained(folder),
        {"config.json": "json", "generation_config.json": "json"},
        load_model,
    ),
    "pickled": Reader(_write_pickled, {"config.json": "json", "pytorch_model.bin": "torch"}, load_model),
    "tokenizer": Reader(
        lambda folder: train_bpe(ENGLISH, vocab_size=270).save(folder),
        {"tokenizer.json": "json", "tokenizer_config.json": "json"},
        _use_tokenizer,
    ),
    "marian tokenizer": Reader(
        lambda folder: bool(write_marian(folder)) or None,
        {"source.spm": "bytes", "target.spm": "bytes", "vocab.json": "json", "tokenizer_config.json": "json"},
        _use_tokenizer,
    ),
    "sentencepiece": Reader(
        lambda folder: (folder / "tokenizer.model").write_bytes(train(ENGLISH, vocab_size=60)) and None,
        {"tokenizer.model": "bytes"},
        _use_tokenizer,
    ),
    "watched text": Reader(_write_watched, HF_TEXT, lambda folder: TransformersModel.load(folder).record(TEXT), 0.3),
    "watched image": Reader(
        _write_vision,
        {"config.json": "json", "preprocessor_config.json": "json", "image.png": "bytes"},
        lambda folder: TransformersModel.load(folder).record(folder / "image.png"),
        0.3,
    ),
    "recipe": Reader(_write_recipe, {"recipe.yaml": "yaml"}, lambda folder: load_recipe(folder / "recipe.yaml")),
    "data": Reader(
        _write_data,
        {
            "pairs.tsv": "table",
            "lines.txt": "table",
            "lines.txt.gz": "gzip",
            "links.txt": "table",
            "classes.tsv": "table",
            "texts.jsonl": "bytes",
            "texts.parquet": "bytes",
        },
        _read_data,
    ),
    "recording": Reader(_write_recording, {"run.regard": "safetensors"}, _read_recording),
    "state": Reader(
        _write_state,
        {
            "state/step-000000007/state.json": "json",
            "state/step-000000007/shard-00001-of-00001.safetensors": "safetensors",
        },
        _read_state,
    ),
    "metrics": Reader(
        _write_metrics,
        {"metrics.csv": "table"},
        lambda folder: MetricsFile(folder, ["valid_loss", "bleu", "chrf"]).discard_after(15),
    ),
    "cache": Reader(
        _write_cache,
        {
            f"cache/{number}/{name}": kind
            for number, names in enumerate((("source", "target"), ("stream",)))
            for name, kind in {
                **{f"{each}.{end}": "bytes" for each in names for end in ("bin", "npy")},
                "counts.json": "json",
                "checksums.json": "json",
            }.items()
        },
        _read_cache,
    ),
}
