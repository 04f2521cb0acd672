"""The models of a playground in node, and what Python computes with the same weights."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from helpers.explore.javascript import HERE, missing
from regard.explore.playground import pack_model
from regard.models import GPT, Transformer
from regard.pipelines.recording import as_batch
from regard.text.display import display_tokens
from regard.text.words import group_into_words

Request = dict[str, Any]


def run_in_node(pipeline, requests: Sequence[Request], folder: Path, *, example: str = "a b", wasm: bool = True):
    """What the modules of the page compute in node: a result for each request, and all numbers, one after the other."""
    node = shutil.which("node")
    if node is None:
        missing("no node was found")
    header, block = pack_model(pipeline, example=example)
    (folder / "header.json").write_text(json.dumps(header), "utf-8")
    (folder / "requests.json").write_text(json.dumps(requests), "utf-8")
    (folder / "block").write_bytes(block)
    command = [node, HERE / "run_pipeline.js", folder, json.dumps(wasm)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert completed.returncode == 0, completed.stderr
    return json.loads((folder / "results.json").read_text("utf-8")), np.fromfile(folder / "numbers", np.float32)


def assert_same_numbers(model: nn.Module, results, numbers: np.ndarray, *, only_weights: bool = False) -> None:
    """Query, key, value and weights of each layer, and the logits, of each result; or only weights and logits."""
    start = 0
    for result in results:
        output = forward(model, result["sequences"])
        kinds = output.attentions if isinstance(model, Transformer) else [output.attentions]
        parts = []  # and whether they are compared
        for attention in (each for kind in kinds for each in kind):
            request, weights = attention.weights.request, attention.weights.dense()
            parts += [(each, not only_weights) for each in (request.query, request.key, attention.value)]
            if request.mask is not None:  # that of a decoder
                weights = weights.masked_fill(torch.ones_like(weights, dtype=torch.bool).triu(1), torch.nan)
            parts.append((weights, True))
        if isinstance(model, Transformer | GPT):
            parts.append((output.logits, True))
        for expected, is_compared in parts:
            actual = numbers[start : start + expected.numel()]
            if is_compared:
                np.testing.assert_allclose(actual, expected.detach().flatten().numpy(), rtol=0, atol=1e-4)
            start += expected.numel()
    assert start == len(numbers)


@torch.no_grad()
def forward(model: nn.Module, sequences: dict[str, list[int]]):
    inputs = [sequences["source"], *([sequences["read"]] if isinstance(model, Transformer) else [])]
    return model(*(as_batch(model, ids) for ids in inputs), output_attentions=True)


def assert_same_words(tokenizer, results) -> None:
    for result in results:
        for ids, sequence in zip(result["sequences"].values(), result["headers"], strict=True):
            tokens = tokenizer.convert_ids_to_tokens(ids)
            words = group_into_words(tokens)
            assert sequence["tokens"] == tokens
            assert sequence["display"] == display_tokens(tokens)
            assert sequence["word_texts"] == [text for text, _ in words]
            assert sequence["words"] == [index for index, (_, positions) in enumerate(words) for _ in positions]
