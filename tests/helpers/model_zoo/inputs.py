"""What to give a tiny model of transformers: it follows from the names of its arguments (`INPUTS`).

`special_inputs.SPECIAL_INPUTS` has what some models take besides.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PreTrainedModel

from helpers.model_zoo.config_sizes import LENGTH, TARGETS, WIDTH, WORDS
from helpers.model_zoo.input_values import Maker, Numbers, padded, words
from helpers.model_zoo.special_inputs import SPECIAL_INPUTS

INPUTS: list[tuple[str, list[Maker]]] = [
    (r"^task_inputs$", [lambda of: torch.randint(3, 90, (2, 77))]),
    (r"^image_attention_mask$", [lambda of: torch.ones(2, WORDS, 2, dtype=torch.int64)]),
    (r"^image_embeds_position_mask$", [lambda of: (torch.arange(WORDS) < 4).expand(2, -1)]),
    (r"^decoder_input_ids$", [lambda of: words(of, TARGETS), lambda of: words(of, TARGETS).repeat(4, 1)]),
    (
        r"input_ids$|^codes?$",
        [
            lambda of: words(of, WORDS),
            lambda of: words(of, WORDS).repeat(4, 1),
            lambda of: words(of, WORDS)[:, :, None].expand(
                -1, -1, of(9, "num_codebooks", "num_channels", "n_codes_total")
            ),
            lambda of: words(of, WORDS)[:, None].expand(-1, of(9, "num_quantizers", "num_code_groups"), -1),
        ],
    ),
    (r"^attention_mask$", [lambda of: padded(WORDS)]),
    (r"^(bbox|boxes)$", [lambda of: (torch.arange(4) * 10).expand(2, WORDS, 4)]),
    (r"grid_thw$", [lambda of: torch.tensor([[1, 4, 4], [1, 4, 4]])]),
    (r"^(target_sizes|spatial_shapes)$", [lambda of: torch.tensor([[4, 4], [4, 4]])]),
    (r"^merge_sizes$", [lambda of: torch.tensor([1, 1])]),
    (r"^feature_lens$|^aftercnn_lens$", [lambda of: torch.tensor([LENGTH, LENGTH])]),
    (r"^pixel_position_ids$", [lambda of: torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(2, 16, 2)]),
    (r"^aspect_ratio_ids$", [lambda of: torch.ones(2, 1, dtype=torch.int64)]),
    (r"^aspect_ratio_mask$", [lambda of: torch.ones(2, 1, 4, dtype=torch.int64)]),
    (r"^codebook_idx$", [lambda of: 1]),
    (r"^freq$", [lambda of: torch.zeros(2, 1, dtype=torch.int64)]),
    (r"^visual_pos$", [lambda of: torch.rand(2, 5, 4)]),
    (r"^visual_feats$", [lambda of: torch.randn(2, 5, of(WIDTH, "visual_feat_dim"))]),
    (r"^pixel_attention_mask$", [lambda of: torch.ones(2, 16, dtype=torch.int64)]),
    (r"^audio_mel_mask$", [lambda of: torch.zeros(2, LENGTH, dtype=torch.bool)]),
    (
        r"mask$",
        [lambda of: torch.ones(2, LENGTH, dtype=torch.int64), lambda of: torch.ones(2, LENGTH, dtype=torch.bool)],
    ),
    (r"^past_time_features$", [lambda of: torch.rand(2, 64, 1)]),
    (
        r"^past_\w+padding$",
        [
            lambda of: (torch.arange(of(64, "context_length")) < 8).float()[:, None].expand(2, -1, 1),
            lambda of: (torch.arange(of(64, "context_length")) < 8).float().expand(2, -1),
        ],
    ),
    (
        r"^past_(values|observed_mask)$",
        [
            lambda of: torch.rand(
                2, of(64, "context_length") + max(of([0], "lags_sequence")), of(1, "num_input_channels")
            ),
            lambda of: torch.rand(2, of(64, "context_length") + max(of([0], "lags_sequence"))),
        ],
    ),
    (r"^decoder_input_values$", [lambda of: torch.randn(2, TARGETS, of(LENGTH, "num_mel_bins"))]),
    (
        r"(embeds|encoder_hidden_states|context)$",
        [lambda of: torch.randn(2, WORDS, of(WIDTH, "hidden_size", "d_model")), lambda of: torch.randn(2, 1, 3840)],
    ),
    (r"^flattened_patches$", [lambda of: torch.randint(1, 9, (2, 16, of.patches + 2)).float()]),
    (
        r"^(pixel_values.*|images?|inputs|latents|\w*(hidden_states|embeds|features|values|spectrogram)|audio_\w+)$",
        [
            lambda of: (
                torch.randn(32, of.patches * of(1, "temporal_patch_size", "patch_temporal"))
                if of.grids
                else torch.randn(2, *of.image)
            ),
            lambda of: torch.randn(2, of(LENGTH, "num_mel_bins", "n_mels"), LENGTH),
            lambda of: torch.randn(2, 3200),
            lambda of: torch.randn(2, WORDS, of(WIDTH, "hidden_size", "d_model")),
            lambda of: torch.randn(2, 1, 3840),
            lambda of: torch.randn(2, of(2, "num_frames"), *of.image),
            lambda of: torch.randn(2, 16, of.patches),
            lambda of: torch.randn(LENGTH, 2 * LENGTH),
            lambda of: torch.randn(1, 32, of(3, "num_channels"), of(8, "patch_size"), of(8, "patch_size")),
            lambda of: torch.randn(2, 2, *of.image),
            lambda of: torch.randn(32, of(3, "num_channels"), of(8, "patch_size"), of(8, "patch_size")),
            lambda of: torch.randn(2, 1, 4, *of.image),
        ],
    ),
]
"""Candidates for an argument, by the first pattern that its name matches; the first that fits is used."""

IMAGES = (
    r"^(pixel_values|spatial_shapes|target_sizes|(pixel_attention|image_(attention|embeds_position))_mask)$|grid_thw$"
)
"""What a picture comes as."""

MOST = 40
"""How many combinations are tried."""


def inputs_of(model: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """Candidate inputs of a model, the most likely first: required arguments, then more and more optional ones."""
    arguments = inspect.signature(model.forward).parameters
    of = Numbers(model.config, any(name.endswith("grid_thw") for name in arguments))
    special = next((makers for pattern, makers in SPECIAL_INPUTS if re.search(pattern, type(model).__name__)), None)
    if special is not None:
        torch.manual_seed(1)
        yield {name: make(of) for name, make in special.items()}
        return
    needed = {
        each.name
        for each in arguments.values()
        if each.default is each.empty and each.kind == each.POSITIONAL_OR_KEYWORD
    }
    main: Any = model.main_input_name
    needed |= {*([main] if isinstance(main, str) else main)} & set(arguments)
    if "input_ids" in needed:
        needed |= {"attention_mask"} & set(arguments)
    both = needed | {
        "decoder_input_ids",
        "bbox",
        "visual_feats",
        "visual_pos",
        "encoder_hidden_states",
        "decoder_input_values",
    } & set(arguments)
    images = both | {name for name in arguments if re.search(IMAGES, name)}
    sounds = both | {"input_features", "input_values", "input_features_mask", "feature_lens"} & set(arguments)
    text = {"input_ids", "attention_mask", "qformer_input_ids"} & set(arguments)
    sets = (
        both,
        images,
        sounds,
        images | text,
        needed,
        needed - {"attention_mask"},
        both - {"input_ids"} | {"inputs_embeds"} & set(arguments),
    )
    for names in dict.fromkeys(map(frozenset, sets)):
        choices = [[(name, make) for make in _makers(name)] for name in sorted(names)]
        for choice in itertools.islice(itertools.product(*choices), MOST):
            torch.manual_seed(1)
            with contextlib.suppress(ArithmeticError, TypeError, RuntimeError):
                yield {name: make(of) for name, make in choice}


def _makers(name: str) -> list[Maker]:
    return next((makers for pattern, makers in INPUTS if re.search(pattern, name)), [])
