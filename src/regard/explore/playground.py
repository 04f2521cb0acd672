"""The playground: one HTML file with a model in it, which translates what the reader types and shows its attention."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from regard.analysis.head_scores import HEAD_SCORES
from regard.errors import InvalidArgument, raise_problems, short_repr
from regard.explore.html_page import render_html
from regard.explore.opening import opening_head
from regard.explore.page_format import byte_planes, float_array, write_block
from regard.explore.static_files import module_scripts
from regard.files import atomic_write
from regard.models import Transformer
from regard.models.layers import has_attention_positions
from regard.nn.absolute_positions import AbsolutePositions, NoPositions
from regard.text.display import display_tokens
from regard.text.tokenizer import Tokenizer
from regard.text.tokens import SPACE, is_special

if TYPE_CHECKING:
    from regard.pipelines.translator import Translator

EXAMPLE = "The animal didn't cross the street because it was too tired."
MAX_TOKENS = 100
"""Of a text; the rest is not translated. Models are hardly trained on longer sentences."""
MAX_BYTES = 2**28
"""Of the weights of a model in a page, as float32."""
BEAM = 5
_STEPS = {"NFC": "nfc", "Strip": "strip", "Prepend": "prepend", "Replace": "replace"}


def write_playground(
    pipeline: Translator,
    path: str | os.PathLike[str],
    *,
    example: str = EXAMPLE,
    progress: Callable[[float], None] | None = None,
) -> Path:
    """Write a model as one HTML file that translates what is typed into it, without a network.

    The file has the weights without loss: bytes that are 0 in all numbers of a tensor, as in bfloat16, are left out.
    It is written whole or not at all.

    Args:
        pipeline: A translator whose model is a `regard.models.Transformer` with positions that are added to embeddings,
            and with a byte-level BPE, as `regard.text.train_translation_bpe` makes them.
        path: The file to write; an existing file is replaced.
        example: The text that the page opens with.
        progress: Called with the share of the weights that was packed since the last call.

    Returns:
        The path of the file.

    Raises:
        InvalidArgument: If the page cannot run the model, with every reason.
        InvalidFile: If the file cannot be written there.

    Memory:
        O(weights): three times the file.
    """
    header, block = pack_model(pipeline, example=example, progress=progress)
    worker = "\n".join(module_scripts("model/worker.js").values())
    content = render_html(header, [block], worker=worker)
    with atomic_write(path) as file:
        file.write(content.encode("utf-8", "xmlcharrefreplace"))
    return Path(path)


def pack_model(
    pipeline: Translator, *, example: str = EXAMPLE, progress: Callable[[float], None] | None = None
) -> tuple[dict[str, Any], bytes]:
    """The header, which JSON can hold, and the block of weights of a model; see `write_playground`."""
    raise_problems([*model_problems(pipeline.model), *tokenizer_problems(pipeline.tokenizer)], InvalidArgument)
    model, tokenizer, config = pipeline.model, pipeline.tokenizer, pipeline.model.config
    assert isinstance(model, Transformer)
    assert isinstance(tokenizer, Tokenizer)
    recording = pipeline.record(example)
    opening = opening_head(recording)
    layer = recording.layers[opening.layer].name
    reason = f"In the text that this page opens with, head {opening.head} of {layer} connects words most clearly."
    tokens = tokenizer.convert_ids_to_tokens(range(config.decoder_vocab_size))
    header = {
        "title": f"{pipeline.name}: playground",
        "name": pipeline.name,
        "model": pipeline.name,
        "config": {
            **asdict(config),
            "num_kv_heads": config.num_kv_heads or config.num_heads,
            "head_dim": config.resolved_head_dim,
        },
        "tokenizer": _tokenizer_header(tokenizer),
        "vocabulary": {
            "tokens": tokens,
            # beside a token with ▁, which says how the others are spelled
            "display": [display_tokens([SPACE, token])[1] for token in tokens],
            "special": [index for index, token in enumerate(tokens) if is_special(token)],
        },
        "tied": _tied(model),
        "scores": HEAD_SCORES,
        "max_tokens": min(MAX_TOKENS, config.max_seq_len - 1),
        "beam": BEAM,
        "example": example,
        "opening": {"layer": layer, "head": opening.head, "reason": reason},
    }
    return header, write_block(_planes(model, progress))


def model_problems(model: object) -> list[str]:
    """Why the page cannot run a model; empty if it can."""
    if not isinstance(model, Transformer):
        return [f"model: expected a Transformer that translates, got {type(model).__name__}, which the page cannot run"]
    problems = []
    if not isinstance(model.src_positions, (AbsolutePositions, NoPositions)) or has_attention_positions(model.config):
        positions = model.config.positions
        problems.append(
            f"model: expected positions that are added to embeddings, got {short_repr(positions)} in attention"
        )
    if model.config.vocab_size != model.config.decoder_vocab_size:
        sizes = f"{model.config.vocab_size} and {model.config.decoder_vocab_size}"
        problems.append(f"model: expected one vocabulary for source and target, got two, of {sizes} entries")
    count = 4 * sum(parameter.numel() for parameter in model.parameters())
    if count > MAX_BYTES:
        problems.append(
            f"model: expected weights of at most {MAX_BYTES >> 20} MiB in float32, as a browser's tab can hold, "
            f"got {count >> 20} MiB"
        )
    return problems


def tokenizer_problems(tokenizer: object) -> list[str]:
    """Why the page cannot run a tokenizer; empty if it can."""
    if not isinstance(tokenizer, Tokenizer):
        return [f"tokenizer: expected a tokenizer.json, got a {type(tokenizer).__name__}, which the page cannot run"]
    parts = tokenizer.parts()
    bpe = parts["model"]
    split = parts["pre_tokenizer"] or {}
    kinds = [each["type"] for each in split.get("pretokenizers", [])]
    found = {
        "a byte-level BPE": bpe["type"] == "BPE"
        and not any(
            bpe.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")
        ),
        "a Split by a regular expression and ByteLevel as pre-tokenizer": kinds == ["Split", "ByteLevel"]
        and "Regex" in split["pretokenizers"][0]["pattern"]
        and not split["pretokenizers"][1]["add_prefix_space"],
        f"only {', '.join(_STEPS)} as normalizers": all(step["type"] in _STEPS for step in _steps(parts["normalizer"])),
        "ByteLevel and Replace as decoder": all(
            step["type"] in ("ByteLevel", "Replace") for step in _steps(parts["decoder"], "decoders")
        ),
    }
    return [
        f"tokenizer: expected {what}, got another, which the page cannot run"
        for what, holds in found.items()
        if not holds
    ]


def _steps(part: Mapping[str, Any] | None, name: str = "normalizers") -> list[Mapping[str, Any]]:
    """The steps of a part of a tokenizer."""
    if part is None:
        return []
    return part[name] if part["type"] == "Sequence" else [part]


def _tokenizer_header(tokenizer: Tokenizer) -> dict[str, Any]:
    parts = tokenizer.parts()
    vocab = parts["model"]["vocab"] | {each["content"]: each["id"] for each in parts["added_tokens"]}
    entries = [""] * (max(vocab.values()) + 1)
    for entry, index in vocab.items():
        entries[index] = entry
    merges = [each if isinstance(each, list) else each.split(" ") for each in parts["model"]["merges"]]
    return {
        "normalizer": [
            {
                "type": _STEPS[step["type"]],
                "pattern": step.get("pattern", {}).get("Regex"),
                "content": step.get("content", step.get("prepend", "")),
            }
            for step in _steps(parts["normalizer"])
        ],
        "split": parts["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"],
        "vocab": entries,
        "merges": merges,
        "trims": [
            step["pattern"]["Regex"] for step in _steps(parts["decoder"], "decoders") if step["type"] == "Replace"
        ],
    }


def _tied(model: Transformer) -> dict[str, str]:
    """The name under which each tied parameter is stored."""
    first: dict[int, str] = {}
    return {
        name: stored
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if (stored := first.setdefault(id(parameter), name)) != name
    }


def _planes(model: Transformer, progress: Callable[[float], None] | None) -> dict[str, np.ndarray]:
    """The byte planes of each tensor as float32, without the lowest two if these are 0."""
    tensors: dict[str, Tensor] = {
        name: parameter for name, parameter in model.named_parameters() if "_positions." not in name
    }
    length = model.config.max_seq_len
    for side, positions in (("src", model.src_positions), ("tgt", model.tgt_positions)):
        if isinstance(positions, AbsolutePositions):
            tensors[f"{side}_positions"] = positions.table_for(length)[:length]
    total = sum(tensor.numel() for tensor in tensors.values())
    planes = {}
    for name, tensor in tensors.items():
        bits = float_array(tensor).view(np.uint32)
        planes[name] = byte_planes(bits, 4) if (bits & 0xFFFF).any() else byte_planes(bits >> 16, 2)
        if progress is not None:
            progress(tensor.numel() / total)
    return planes
