"""The playground: one HTML file with a model in it, which translates, continues or reads what the reader types."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import regard
from regard.analysis.head_scores import HEAD_SCORES
from regard.errors import InvalidArgument, raise_problems, short_repr
from regard.explore.html_page import render_html
from regard.explore.opening import opening_head
from regard.explore.pack import score_name
from regard.explore.page_format import byte_planes, float_array, write_block
from regard.explore.playground_tokenizer import tokenizer_header, tokenizer_problems
from regard.explore.static_files import module_scripts
from regard.explore.steps_page import step_headers
from regard.files import atomic_write
from regard.models import GPT, Bert, Transformer
from regard.nn.absolute_positions import AbsolutePositions, NoPositions
from regard.nn.relative_positions import AlibiPositions, AttentionPositions, T5Positions
from regard.nn.rotary_positions import RotaryPositions
from regard.pipelines.translator import BUNDLED_MODEL
from regard.text.display import display_tokens
from regard.text.tokenizer import Tokenizer
from regard.text.tokens import SPACE, is_special

if TYPE_CHECKING:
    from regard.pipelines import TextEncoder, TextGenerator, Translator

    AnyPipeline = Translator | TextGenerator | TextEncoder

EXAMPLE = "The animal didn't cross the street because it was too tired."
MAX_TOKENS = 100
"""Of a text; the rest is not read. Models are hardly trained on longer sentences."""
NEW_TOKENS = 20
"""That a language model writes."""
MAX_BYTES = 2**28
"""Of the weights of a model in a page, as float32."""
MAX_POSITIONS = 256
"""Of a text and of what is generated for it."""
BEAM = 5
_INSIDE = {RotaryPositions, AlibiPositions, T5Positions}
"""Positions in attention."""
_UNUSED = ("positions.", "src_positions.", "tgt_positions.", "token_type_embedding.", "pooler.", "classifier.")
_NAMES = {GPT: {"token_embedding": "tgt_embedding"}, Bert: {"token_embedding": "src_embedding"}, Transformer: {}}
"""How the page calls modules."""


def write_playground(
    pipeline: AnyPipeline,
    path: str | os.PathLike[str],
    *,
    example: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Path:
    """Write a model as one HTML file that runs it on what is typed, without a network.

    A translator translates, a language model continues the text, and a BERT shows its attention and, with the head
    ``masked_lm``, fills masks. The file has the weights without loss: bytes that are 0 in all numbers of a tensor, as
    in bfloat16, are left out. It is written whole or not at all.

    Args:
        pipeline: A pipeline whose model is a `regard.models.Transformer`, `GPT` or `Bert` without `RelativePositions`,
            and with a byte-level BPE or WordPiece.
        path: The file to write; an existing file is replaced.
        example: The text that the page opens with. Default: a sentence; for a BERT that fills masks, with one.
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


class _Task(NamedTuple):
    """What the page does with a text.

    Args:
        kind: The command that does the same.
        example: A text.
        before: Token ids before a text.
        after: Token ids after it.
        ends: Token ids that end a generated text.
        suppressed: Token ids that are never generated.
    """

    kind: str
    example: str
    before: list[int]
    after: list[int]
    ends: list[int]
    suppressed: list[int]


def _task(model: Transformer | GPT | Bert, tokenizer: Tokenizer) -> _Task:
    if isinstance(model, Transformer):
        config = model.config
        return _Task("translate", EXAMPLE, [], [config.eos_id], [config.eos_id], [config.pad_id, config.bos_id])
    if isinstance(model, GPT):
        (before,) = tokenizer.encode_prompts([""])
        return _Task("generate", "Once upon a time, there was", before, [], [*model.config.eos_ids], [])
    (around,) = tokenizer.encode([""], add_special_tokens=True)
    fills = model.mlm_head is not None and tokenizer.mask_id is not None
    mask = tokenizer.convert_ids_to_tokens([tokenizer.mask_id])[0] if fills else ""  # pyright: ignore[reportArgumentType]
    example = f"The cat sat on the {mask}." if fills else EXAMPLE
    return _Task("fill-mask", example, around[:1], around[1:], [], [])


def pack_model(
    pipeline: AnyPipeline, *, example: str | None = None, progress: Callable[[float], None] | None = None
) -> tuple[dict[str, Any], bytes]:
    """The header, which JSON can hold, and the block of weights of a model; see `write_playground`."""
    model, tokenizer = pipeline.model, pipeline.tokenizer
    # whether a text may name special tokens; of a GPT, as `TextGenerator` decides
    reads_special = isinstance(model, Bert) or (isinstance(model, GPT) and model.config.sample_by is None)
    problems = [*model_problems(model), *tokenizer_problems(tokenizer, reads_special=reads_special)]
    raise_problems(problems, InvalidArgument)
    assert isinstance(model, Transformer | GPT | Bert)
    assert isinstance(tokenizer, Tokenizer)
    config, task = model.config, _task(model, tokenizer)
    limit = config.max_seq_len - len(task.before) - len(task.after) - (task.kind == "generate")
    example = _beginning(task.example, tokenizer, limit) if example is None else example
    recording = pipeline.record(example)
    opening = opening_head(recording)
    layer = recording.layers[opening.layer].name
    reason = f"In the text that this page opens with, head {opening.head} of {layer} connects words most clearly."
    tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    tokens += [f"[{index}]" for index in range(len(tokens), config.vocab_size)]
    header = {
        "title": f"{pipeline.name}: playground",
        "name": pipeline.name,
        "model": pipeline.name,
        "kind": task.kind,
        "config": _config(model),
        "tokenizer": tokenizer_header(tokenizer, reads_special=reads_special),
        "vocabulary": {
            "tokens": tokens,
            # beside a token with ▁, which says how the others are spelled
            "display": [display_tokens([SPACE, token])[1] for token in tokens],
            "special": [index for index, token in enumerate(tokens) if is_special(token)],
        },
        "tied": _tied(model),
        "scores": HEAD_SCORES,
        "score_names": {each.name: score_name(each.weights.request.score) for each in recording.layers},
        "before": task.before,
        "after": task.after,
        "ends": task.ends,
        "suppressed": task.suppressed,
        "mask": tokenizer.mask_id if isinstance(model, Bert) and model.mlm_head is not None else None,
        "max_tokens": min(MAX_TOKENS, limit),
        "new_tokens": NEW_TOKENS,
        "beam": BEAM,
        "example": example,
        "opening": {"layer": layer, "head": opening.head, "reason": reason},
        "has_stops": pipeline.name == Path(BUNDLED_MODEL).name,  # they speak of what this model does
        "steps": _steps(pipeline, _beginning(example, tokenizer, 1)),
    }
    return header, write_block(_planes(model, progress))


def _steps(pipeline: AnyPipeline, text: str) -> dict[str, list[dict[str, Any]]]:
    """What the page says of the steps of each layer, which it computes for any text."""
    layers = pipeline.model.attention_layers
    target = {"target": text} if isinstance(pipeline.model, Transformer) else {}  # so that nothing is searched for
    return {layer: step_headers(pipeline.trace(text, layer, **target)) for layer in layers}


def _beginning(text: str, tokenizer: Tokenizer, limit: int) -> str:
    """The words of a text that have at most some number of tokens; at least one word."""
    words = text.split()
    while len(words) > 1 and len(tokenizer.encode([" ".join(words)])[0]) > limit:
        words.pop()
    return " ".join(words)


def _config(model: Transformer | GPT | Bert) -> dict[str, Any]:
    """The configuration as that of a `Transformer`, of which a BERT has no decoder and a GPT no encoder."""
    config = model.config
    layers = (
        {}
        if isinstance(model, Transformer)
        else {
            "num_encoder_layers": 0 if isinstance(model, GPT) else model.config.num_layers,
            "num_decoder_layers": model.config.num_layers if isinstance(model, GPT) else 0,
        }
    )
    return {
        "scale_embeddings": False,  # unless it says so
        **asdict(config),
        **layers,
        "num_kv_heads": config.num_kv_heads or config.num_heads,
        "head_dim": config.resolved_head_dim,
    }


def model_problems(model: object) -> list[str]:
    """Why the page cannot run a model; empty if it can."""
    if type(model) not in _NAMES or not isinstance(model, Transformer | GPT | Bert):  # a subclass may compute otherwise
        return [f"model: expected a Transformer, GPT or Bert, got {type(model).__name__}, which the page cannot run"]
    problems, config = [], model.config
    added = model.src_positions if isinstance(model, Transformer) else model.positions
    inside = [type(positions) for positions in _attention_positions(model).values()]
    if not isinstance(added, AbsolutePositions | NoPositions) or not set(inside) <= _INSIDE:
        known = "added to embeddings, 'rotary', 'alibi' or 't5'"
        problems.append(f"model: expected positions that are {known}, got {short_repr(config.positions)}")
    if isinstance(model, Transformer) and model.config.vocab_size != model.config.decoder_vocab_size:
        sizes = f"{model.config.vocab_size} and {model.config.decoder_vocab_size}"
        problems.append(f"model: expected one vocabulary for source and target, got two, of {sizes} entries")
    window, tokens = getattr(config, "sliding_window", None), MAX_TOKENS + NEW_TOKENS
    if window is not None and window < min(tokens, config.max_seq_len):
        problems.append(f"model: expected a sliding_window of at least {tokens} tokens, got {window}")
    count = 4 * sum(parameter.numel() for parameter in model.parameters())
    if count > MAX_BYTES:
        problems.append(
            f"model: expected weights of at most {MAX_BYTES >> 20} MiB in float32, as a browser's tab can hold, "
            f"got {count >> 20} MiB"
        )
    return problems


def _attention_positions(model: Transformer | GPT | Bert) -> dict[str, AttentionPositions]:
    """The positions in self-attention, by the name of the stack; those of the first layer, which all share."""
    stacks = {name: getattr(model, name, None) for name in ("encoder", "decoder")}
    first = {name: stack.layers[0].self_attention.positions for name, stack in stacks.items() if stack is not None}
    return {name: positions for name, positions in first.items() if positions is not None}


def _place_tensors(model: Transformer | GPT | Bert) -> dict[str, Tensor]:
    """Cosines and sines (2, positions, pairs), and what is added to scores at each distance (heads, distances)."""
    tensors, length = {}, min(model.config.max_seq_len, MAX_POSITIONS)
    for stack, positions in _attention_positions(model).items():
        if isinstance(positions, RotaryPositions):
            tensors["rotary"] = positions.table_for(length)[:, :length]
        else:
            zeros = torch.zeros(1, model.config.num_heads, length, 1, device="cpu")
            scores = regard.weights(zeros, zeros, score=positions.score_bias()).scores.dense()[0].detach()
            tensors[f"{stack}_bias"] = torch.cat([scores[:, -1], scores[:, 0, 1:]], dim=1)
    return tensors


def _tied(model: nn.Module) -> dict[str, str]:
    """The name under which each tied parameter is stored."""
    first: dict[int, str] = {}
    return {
        name: stored
        for name, parameter in _parameters(model)
        if (stored := first.setdefault(id(parameter), name)) != name
    }


def _parameters(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The parameters that the page needs, under its names; tied ones under each."""
    names = _NAMES[type(model)]
    found = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        module, _, rest = name.partition(".")
        if not name.startswith(_UNUSED) and ".positions." not in name:
            found.append((f"{names.get(module, module)}.{rest}", parameter))
    return found


def _planes(model: Transformer | GPT | Bert, progress: Callable[[float], None] | None) -> dict[str, np.ndarray]:
    """The byte planes of each tensor as float32, without the lowest two if these are 0."""
    tied = _tied(model)
    tensors = {name: parameter for name, parameter in _parameters(model) if name not in tied}
    length = model.config.max_seq_len
    if isinstance(model, Transformer):
        tables = {"src_positions": model.src_positions, "tgt_positions": model.tgt_positions}
    else:
        tables = {"tgt_positions" if isinstance(model, GPT) else "src_positions": model.positions}
    for name, positions in tables.items():
        if isinstance(positions, AbsolutePositions):
            tensors[name] = positions.table_for(length)[:length]
    tensors |= _place_tensors(model)
    if isinstance(model, Bert) and model.token_type_embedding is not None:
        tensors["token_type"] = model.token_type_embedding.weight[0]
    total = sum(tensor.numel() for tensor in tensors.values())
    planes = {}
    for name, tensor in tensors.items():
        bits = float_array(tensor).view(np.uint32)
        planes[name] = byte_planes(bits, 4) if (bits & 0xFFFF).any() else byte_planes(bits >> 16, 2)
        if progress is not None:
            progress(tensor.numel() / total)
    return planes
