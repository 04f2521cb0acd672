"""Model folders of transformers that would run their own code, which writes a file: one for each part of a model."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from helpers.model_zoo.families import GROUPED, IMAGE, SMALL
from helpers.transformers_models import bert, tokenizer

CODE = """
from pathlib import Path
from transformers import BertConfig, BertModel, BertTokenizer, ViTImageProcessor

Path({path!r}).touch()

class OwnConfig(BertConfig):
    model_type = "own-kind"

class OwnModel(BertModel):
    config_class = OwnConfig

class OwnTokenizer(BertTokenizer):
    pass

class OwnProcessor(ViTImageProcessor):
    pass

def generate(model, *args, **options):
    return model
"""
CLASSES = {
    "AutoConfig": "canary.OwnConfig",
    "AutoModel": "canary.OwnModel",
    "AutoModelForMaskedLM": "canary.OwnModel",
    "AutoTokenizer": ["canary.OwnTokenizer", "canary.OwnTokenizer"],
    "AutoImageProcessor": "canary.OwnProcessor",
}


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))


def _text_model(folder: Path) -> None:
    bert().save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def config(folder: Path, canary: Path) -> None:
    """A configuration class defined by the folder's code."""
    _text_model(folder)
    _change(folder / "config.json", model_type="own-kind", architectures=["OwnModel"], auto_map=CLASSES)


def model(folder: Path, canary: Path) -> None:
    """A configuration of transformers, which has no model for it."""
    _text_model(folder)
    parts = {"encoder": {"model_type": "bert"}, "decoder": {"model_type": "bert"}}
    kind = {"model_type": "encoder-decoder", "architectures": ["OwnModel"]}
    _change(folder / "config.json", **kind, auto_map=CLASSES, **parts)


def tokens(folder: Path, canary: Path) -> None:
    """A model of transformers, which has no tokenizer for it, with a tokenizer of the folder's code."""
    hf.BloomModel(hf.BloomConfig(vocab_size=99, hidden_size=32, n_layer=2, n_head=4)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    _change(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map=CLASSES)


def images(folder: Path, canary: Path) -> None:
    """A model of transformers with an image processor of the folder's code."""
    hf.ViTModel(hf.ViTConfig(**IMAGE)).save_pretrained(folder)
    _change(folder / "preprocessor_config.json", image_processor_type="OwnProcessor", auto_map=CLASSES)


def generation(folder: Path, canary: Path) -> None:
    """A model of transformers with a search of the folder's code."""
    hf.MistralForCausalLM(hf.MistralConfig(**GROUPED, max_position_embeddings=40)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    _change(folder / "generation_config.json", custom_generate="custom_generate")
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(CODE.format(path=str(canary)))


def weights(folder: Path, canary: Path) -> None:
    """Weights whose pickle calls a function."""
    _text_model(folder)
    (folder / "model.safetensors").unlink()
    torch.save({"a": _Touch(canary)}, folder / "pytorch_model.bin", pickle_protocol=pickle.DEFAULT_PROTOCOL)


def known(folder: Path, canary: Path) -> None:
    """A model of transformers with code that it does not need."""
    hf.ElectraModel(hf.ElectraConfig(**SMALL, embedding_size=16, max_position_embeddings=40)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    _change(folder / "config.json", auto_map=CLASSES)


KINDS = {each.__name__: each for each in (config, model, tokens, images, generation, weights, known)}
REFUSED = ("config", "model", "tokens", "images")
"""The folders for which transformers asks whether to run their code."""


def write(kind: str, folder: Path, canary: Path) -> Path:
    """Write a folder whose code creates the file ``canary``."""
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    KINDS[kind](folder, canary)
    (folder / "canary.py").write_text(CODE.format(path=str(canary)))
    return folder
