"""What to give a tiny model of transformers: it follows from the names of its arguments (`INPUTS`).

`GIVEN` has what some models take besides.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from watching.tiny import LENGTH, SIDE, TARGETS, WIDTH, WORDS, configs


class Numbers:
    """Numbers of a configuration, wherever they stand in it."""

    def __init__(self, config: PreTrainedConfig, grids: bool) -> None:
        self.config, self.grids = config, grids

    def __call__(self, default: Any, *names: str) -> Any:
        for each in configs(self.config):
            for name in names:
                if getattr(each, name, None) is not None:
                    return getattr(each, name)
        return default

    @property
    def side(self) -> tuple[int, int]:
        size = self(SIDE, "image_size", "img_size", "input_size")
        if isinstance(size, dict):
            size = size.get("height"), size.get("width")
        return (size, size) if isinstance(size, int) else tuple(size)[-2:]

    @property
    def patches(self) -> int:
        """How many numbers a patch has."""
        return self(3, "num_channels", "in_channels", "in_chans") * self(8, "patch_size") ** 2

    @property
    def image(self) -> tuple[int, int, int]:
        return self(3, "num_channels", "in_channels", "in_chans"), *self.side


def _words(of: Numbers, count: int) -> Tensor:
    return torch.randint(3, min(90, of(99, "vocab_size") - 9), (2, count))


def _padded(count: int) -> Tensor:
    mask = torch.ones(2, count, dtype=torch.int64)
    mask[1, -2:] = 0  # fewer than a window is long, so that no row is empty
    return mask


Maker = Callable[[Numbers], Any]

INPUTS: list[tuple[str, list[Maker]]] = [
    (r"^task_inputs$", [lambda of: torch.randint(3, 90, (2, 77))]),
    (r"^image_attention_mask$", [lambda of: torch.ones(2, WORDS, 2, dtype=torch.int64)]),
    (r"^image_embeds_position_mask$", [lambda of: (torch.arange(WORDS) < 4).expand(2, -1)]),
    (r"^decoder_input_ids$", [lambda of: _words(of, TARGETS), lambda of: _words(of, TARGETS).repeat(4, 1)]),
    (
        r"input_ids$|^codes?$",
        [
            lambda of: _words(of, WORDS),
            lambda of: _words(of, WORDS).repeat(4, 1),
            lambda of: _words(of, WORDS)[:, :, None].expand(
                -1, -1, of(9, "num_codebooks", "num_channels", "n_codes_total")
            ),
            lambda of: _words(of, WORDS)[:, None].expand(-1, of(9, "num_quantizers", "num_code_groups"), -1),
        ],
    ),
    (r"^attention_mask$", [lambda of: _padded(WORDS)]),
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
"""What may be made for an argument, by the first pattern that is found in its name; the first that fits is taken."""


def _session(of: Numbers, model: str) -> Any:
    """A video with an object to be found in it."""
    kind = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), SESSIONS[model])
    side = of.side[0]
    session = kind(video=torch.randn(3, 3, side, side), video_height=side, video_width=side, dtype=torch.float32)
    if model == "sam3_video":
        prompt = session.add_prompt("an animal")
        session.prompt_input_ids[prompt] = _words(of, WORDS)[:1]
        session.prompt_attention_masks[prompt] = torch.ones(1, WORDS, dtype=torch.int64)
        return session
    place = torch.full((1, 1, 1, 2), side / 3)
    point = {"point_coords": place, "point_labels": torch.ones(1, 1, 1, dtype=torch.int32)}
    session.add_point_inputs(session.obj_id_to_idx(1), 0, point)
    session.obj_with_new_inputs = [1]
    return session


SESSIONS = {
    "sam2_video": "Sam2VideoInferenceSession",
    "sam3_tracker_video": "Sam3TrackerVideoInferenceSession",
    "edgetam_video": "EdgeTamVideoInferenceSession",
    "sam3_video": "Sam3VideoInferenceSession",
}
"""The classes of videos."""

_TEXT: dict[str, Maker] = {"input_ids": lambda of: _words(of, WORDS), "attention_mask": lambda of: _padded(WORDS)}
_AUDIO: dict[str, Maker] = {"input_values": lambda of: torch.randn(2, 1, 3840)}
_VIDEO: dict[str, Maker] = {
    "pixel_values_videos": lambda of: torch.randn(2, 4, 3, SIDE, SIDE),
    "padding_mask_videos": lambda of: _padded(4),
}


def _words_and_images(parts: int, *size: int) -> dict[str, Maker]:
    """Words after an image of so many parts."""
    return {
        "input_ids": lambda of: torch.cat([torch.full((2, parts), of.config.image_token_id), _words(of, WORDS)], 1),
        "attention_mask": lambda of: _padded(parts + WORDS),
        "pixel_values": lambda of: torch.randn(2, *size),
    }


def _of_main(of: Numbers) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """What an assistant is given of its main model: of the last token, its embedding and state; all keys and values."""
    own = of.config.get_text_config()
    kinds = ["sliding_attention", "full_attention"]
    shared = {"num_hidden_layers": 4, "layer_types": 2 * kinds, "num_kv_shared_layers": 2, "global_head_dim": 16}
    config = type(own)(**{**own.to_dict(), "per_layer_config": None, **shared})
    torch.manual_seed(3)
    main = AutoModel.from_config(config).eval()
    tokens = _words(of, WORDS)
    with torch.no_grad():
        options = {"output_hidden_states": True, "return_shared_kv_states": True}
        found = main(tokens, attention_mask=_padded(WORDS).flip(1), **options)
        last = main.get_input_embeddings()(tokens[:, -1:]), found.hidden_states[-1][:, -1:]
    return torch.cat(last, -1), dict(found.shared_kv_states)


def _of_proteins(name: str, of: Numbers) -> Any:
    """A feature of two proteins of equal length."""
    from transformers.models.esmfold2 import modeling_esmfold2, protein_utils

    if name == "atom_inputs":
        return modeling_esmfold2.EsmFold2AtomInputs(**{part: _of_proteins(part, of) for part in ATOMS})
    features = [protein_utils.prepare_protein_features(residues) for residues in ("MKTAYIAKQRQ", "GSHMWSLEVLF")]
    return torch.cat([each[name] for each in features])


PROTEINS = (
    *("token_index", "residue_index", "asym_id", "sym_id", "entity_id", "mol_type", "res_type", "token_bonds"),
    *("attention_mask", "deletion_mean", "msa", "has_deletion", "deletion_value", "msa_attention_mask", "input_ids"),
    "atom_inputs",
)
"""What a model that folds proteins takes."""

ATOMS = (
    *("ref_pos", "ref_charge", "ref_element", "ref_atom_name_chars", "ref_space_uid"),
    *("atom_attention_mask", "atom_to_token"),
)
"""What it takes of their atoms, as one."""

GIVEN: list[tuple[str, dict[str, Maker]]] = [
    (
        r"^BltLocalDecoder",
        {
            "inputs_embeds": lambda of: torch.randn(2, WORDS, WIDTH),
            "patch_embeds": lambda of: torch.randn(2, 4, of(WIDTH, "hidden_size_global")),
        },
    ),
    (
        r"^BltLocalEncoder",
        {
            "input_ids": lambda of: _words(of, WORDS),
            "num_patches": lambda of: 4,
            "patch_ids": lambda of: (torch.arange(WORDS) // 3).expand(2, -1),
        },
    ),
    (
        r"^DeepseekOcr2VisionEncoder",
        {"inputs_embeds": lambda of: torch.randn(2, WORDS, WIDTH), "num_patches": lambda of: 5},
    ),
    (
        r"^Dots3NoteAudio",
        {
            "input_features": lambda of: torch.randn(2, of(128, "feature_size"), 2 * LENGTH),
            "chunk_sample_lengths": lambda of: torch.tensor([2 * LENGTH, LENGTH]) * of(160, "hop_length"),
        },
    ),
    (
        r"^DecisionTransformer",
        {
            "states": lambda of: torch.randn(2, WORDS, of(17, "state_dim")),
            "actions": lambda of: torch.randn(2, WORDS, of(4, "act_dim")),
            "rewards": lambda of: torch.randn(2, WORDS, 1),
            "returns_to_go": lambda of: torch.randn(2, WORDS, 1),
            "timesteps": lambda of: torch.arange(WORDS).expand(2, -1),
            "attention_mask": lambda of: _padded(WORDS),
        },
    ),
    (
        r"^FunAsrNanoEncoder",
        {
            "input_features": lambda of: torch.randn(2, WORDS, of(80, "num_mel_bins") * of(7, "num_stacked_frames")),
            "input_features_mask": lambda of: _padded(WORDS),
        },
    ),
    (
        r"^ClvpModelFor",
        {
            "input_ids": lambda of: _words(of, WORDS),
            "input_features": lambda of: torch.randn(2, of(80, "feature_size"), LENGTH),
        },
    ),
    (
        r"^AlignModel",
        {
            "input_ids": lambda of: _words(of, WORDS),
            "attention_mask": lambda of: _padded(WORDS),
            "pixel_values": lambda of: torch.randn(2, 3, 64, 64),
        },
    ),
    (
        r"^Kosmos2Model",
        {
            "input_ids": lambda of: _words(of, WORDS),
            "attention_mask": lambda of: _padded(WORDS),
            "pixel_values": lambda of: torch.randn(2, 3, *of.side),
            "image_embeds_position_mask": lambda of: (torch.arange(WORDS) < 4).expand(2, -1),
        },
    ),
    (
        r"^(EfficientLoFTR|LightGlue|SuperGlue)",
        {"pixel_values": lambda of: torch.randn(1, 2, 3, 4 * SIDE, 4 * SIDE)},
    ),
    (r"^UVDocModel", {"pixel_values": lambda of: torch.randn(1, 3, 192, 192)}),
    (r"^SuperPoint", {"pixel_values": lambda of: torch.randn(2, 3, 64, 64)}),
    (
        r"^GraniteSpeech5",
        {
            "input_features": lambda of: torch.randn(2, LENGTH, 4 * of(LENGTH, "num_mel_bins")),
            "attention_mask": lambda of: _padded(LENGTH),
        },
    ),
    (r"^InklingVision", {"pixel_values": lambda of: torch.randn(4, 2, 40, 40, 3)}),
    (
        r"^Inkling2Vision",
        {
            "pixel_values": lambda of: torch.randn(32, 16, 16, 3),
            "image_grid_thw": lambda of: torch.tensor([[1, 4, 4], [1, 4, 4]]),
        },
    ),
    (
        r"^InstructBlipVideoModel",
        {
            "pixel_values": lambda of: torch.randn(2, 2, 3, SIDE, SIDE),
            "qformer_input_ids": lambda of: _words(of, TARGETS),
            "input_ids": lambda of: torch.cat([torch.full((2, 64), 150), _words(of, WORDS)], 1),
        },
    ),
    (
        r"^Jev",
        {
            "input_ids": lambda of: _words(of, WORDS)[:1],
            "marks": lambda of: torch.tensor([[4, 8]]),
            "num_options": lambda of: torch.tensor([[2, 2]]),
            "question_type_ids": lambda of: torch.tensor([[0, 1]]),
        },
    ),
    (r"^Molmo2Vision", {"pixel_values": lambda of: torch.randn(2, of(729, "num_position_embeddings"), of.patches)}),
    (
        r"^Molmo2Adapter",
        {
            "image_features": lambda of: torch.randn(2, 16, 2 * WIDTH),
            "pooled_patches_idx": lambda of: torch.arange(32).view(8, 4).clone(),
        },
    ),
    (
        r"^MoshiDepth",
        {
            "input_ids": lambda of: _words(of, of(8, "num_codebooks")),
            "last_hidden_state": lambda of: torch.randn(2, 1, of(4096, "input_size")),
        },
    ),
    (
        r"^MuseGlimmerAssistant",
        {
            "noise_embeds": lambda of: torch.randn(2, of(16, "block_size"), WIDTH),
            "context_hidden_states": lambda of: torch.randn(2, WORDS, WIDTH),
            "attention_mask": lambda of: torch.ones(2, WORDS + of(16, "block_size"), dtype=torch.int64),
        },
    ),
    (r"^MuseSparkAudio", {"input_values": lambda of: torch.randn(2, 3840)}),
    (
        r"^Nemotron3_5Asr",
        {
            "input_features": lambda of: torch.randn(2, 2 * LENGTH, of(80, "num_mel_bins")),
            "decoder_input_ids": lambda of: _words(of, TARGETS),
        },
    ),
    (
        r"^Qwen3ASREncoder",
        {
            "input_features": lambda of: torch.randn(2, of(128, "num_mel_bins"), 200),
            "input_features_mask": lambda of: torch.ones(2, 200, dtype=torch.int64),
        },
    ),
    (r"^(Mimi|Xcodec)Model", {"input_values": lambda of: torch.randn(2, 1, 3840)}),
    (
        r"^(NeuCodec|Xcodec2)",
        {
            "input_values": lambda of: torch.randn(2, 1, 3200),
            "input_features": lambda of: torch.randn(2, 10, of(160, "feature_projection_input_dim")),
        },
    ),
    (r"^LwDetrViTEncoder", {"hidden_states": lambda of: torch.randn(2 * of(16, "num_windows"), 16, WIDTH)}),
    (
        r"^Phi4MultimodalAudio",
        {
            "hidden_states": lambda of: torch.randn(2, 2 * LENGTH, of(80, "input_size")),
            "mask": lambda of: None,
        },
    ),
    (r"^UnlimitedOcrVisionEncoder", {"patch_embeds": lambda of: torch.randn(2, WIDTH, 4, 4)}),
    (
        r"^Sam3\w*DetrEncoder",
        {
            "vision_features": lambda of: [torch.randn(2, WIDTH, 4, 4)],
            "text_features": lambda of: torch.randn(2, WORDS, WIDTH),
            "vision_pos_embeds": lambda of: [torch.randn(2, WIDTH, 4, 4)],
            "text_mask": lambda of: _padded(WORDS).bool(),
        },
    ),
    (
        r"^Sam3\w*DetrDecoder",
        {
            "vision_features": lambda of: torch.randn(2, 16, WIDTH),
            "text_features": lambda of: torch.randn(2, WORDS, WIDTH),
            "vision_pos_encoding": lambda of: torch.randn(2, 16, WIDTH),
            "text_mask": lambda of: _padded(WORDS).bool(),
            "spatial_shapes": lambda of: torch.tensor([[4, 4]]),
        },
    ),
    (
        r"^Sam3\w*MaskDecoder",
        {
            "decoder_queries": lambda of: torch.randn(2, 6, WIDTH),
            "backbone_features": lambda of: [torch.randn(2, WIDTH, size, size) for size in (16, 8, 4)],
            "encoder_hidden_states": lambda of: torch.randn(2, 16, WIDTH),
            "prompt_features": lambda of: torch.randn(2, WORDS, WIDTH),
            "prompt_mask": lambda of: _padded(WORDS).bool(),
        },
    ),
    (r"^PPDocLayoutV2Hybrid", {"inputs_embeds": lambda of: [torch.randn(2, WIDTH, size, size) for size in (8, 4, 2)]}),
    (
        r"^PPDocLayoutV2Reading",
        {
            "boxes": lambda of: (torch.arange(4) * 10).expand(2, 6, 4),
            "labels": lambda of: torch.ones(2, 6, dtype=torch.int64),
            "mask": lambda of: torch.ones(2, 6, dtype=torch.bool),
        },
    ),
    (
        r"^Rag",
        {
            "input_ids": lambda of: _words(of, WORDS),
            "attention_mask": lambda of: _padded(WORDS),
            "context_input_ids": lambda of: _words(of, WORDS).repeat(of(5, "n_docs"), 1),
            "context_attention_mask": lambda of: _padded(WORDS).repeat(of(5, "n_docs"), 1),
            "doc_scores": lambda of: torch.randn(2, of(5, "n_docs")),
            "decoder_input_ids": lambda of: _words(of, TARGETS),
        },
    ),
    (
        r"^SegGpt",
        {
            "pixel_values": lambda of: torch.randn(2, 3, 32, 32),
            "prompt_pixel_values": lambda of: torch.randn(2, 3, 32, 32),
            "prompt_masks": lambda of: torch.randn(2, 3, 32, 32),
        },
    ),
    (
        r"^Tvp",
        {
            "input_ids": lambda of: _words(of, WORDS)[:1],
            "attention_mask": lambda of: _padded(WORDS)[1:],
            "pixel_values": lambda of: torch.randn(1, of(2, "num_frames"), 3, 64, 64),
        },
    ),
    (r"^VitMatte", {"pixel_values": lambda of: torch.randn(2, 4, 64, 64)}),
    (
        r"^VoxtralRealtimeText",
        {
            "input_ids": lambda of: _words(of, WORDS),
            "attention_mask": lambda of: _padded(WORDS),
            "t_cond": lambda of: torch.randn(1, 1, WIDTH),
        },
    ),
    (
        r"^VoxtralRealtimeModel",
        {
            "input_ids": lambda of: _words(of, LENGTH // 8),
            "input_features": lambda of: torch.randn(2, of(LENGTH, "num_mel_bins"), LENGTH),
        },
    ),
    (r"^DepthPro", {"pixel_values": lambda of: torch.randn(2, 3, 128, 128)}),
    (
        r"^Qwen2_5OmniToken2WavDiT",
        {
            "hidden_states": lambda of: torch.randn(2, 16, of(80, "mel_dim")),
            "condition_vector": lambda of: torch.randn(2, 16, of(80, "mel_dim")),
            "speaker_embedding": lambda of: torch.randn(2, 16, of(128, "enc_emb_dim")),
            "quantized_code": lambda of: _words(of, 8),
            "time_step": lambda of: torch.tensor(0.5),
        },
    ),
    (
        r"^Qwen2_5OmniToken2WavModel",
        {
            "code": lambda of: _words(of, 8)[:1],
            "conditioning": lambda of: torch.randn(1, of(128, "enc_emb_dim")),
            "reference_mel": lambda of: torch.randn(1, 16, of(80, "mel_dim")),
            "num_steps": lambda of: 2,
        },
    ),
    (
        r"^Gemma4(Unified)?Assistant",
        {
            "inputs_embeds": lambda of: _of_main(of)[0],
            "position_ids": lambda of: torch.full((1, 1), WORDS - 1),
            "attention_mask": lambda of: _padded(WORDS).flip(1),
            "shared_kv_states": lambda of: _of_main(of)[1],
        },
    ),
    (r"^EsmFold2", {name: partial(_of_proteins, name) for name in PROTEINS}),
    (r"^FastVlm", _words_and_images(4, 3, 128, 128)),
    (r"^PerceptionLM", _words_and_images(16, 1, 3, SIDE, SIDE)),
    (r"^Gemma3nModel", _words_and_images(256, 3, 64, 64)),
    (r"^EdgeTam(Vision)?Model", {"pixel_values": lambda of: torch.randn(2, 3, 64, 64)}),
    (r"^PeVideoEncoder", _VIDEO),
    (r"^PeVideoModel", _VIDEO | _TEXT),
    (r"^PeAudioVideoEncoder", _VIDEO | _AUDIO),
    (r"^PeAudioVideoModel", _VIDEO | _AUDIO | _TEXT),
    (r"^Sam2VideoModel", {"inference_session": lambda of: _session(of, "sam2_video"), "frame_idx": lambda of: 0}),
    (
        r"^Sam3TrackerVideo",
        {
            "inference_session": lambda of: _session(of, "sam3_tracker_video"),
            "frame_idx": lambda of: 0,
        },
    ),
    (r"^Sam3VideoModel", {"inference_session": lambda of: _session(of, "sam3_video"), "frame_idx": lambda of: 0}),
    (r"^EdgeTamVideo", {"inference_session": lambda of: _session(of, "edgetam_video"), "frame_idx": lambda of: 0}),
    (
        r"^OmDetTurbo",
        {
            "pixel_values": lambda of: torch.randn(2, 3, 64, 64),
            "classes_input_ids": lambda of: _words(of, WORDS).repeat(2, 1),
            "classes_attention_mask": lambda of: _padded(WORDS).repeat(2, 1),
            "tasks_input_ids": lambda of: _words(of, WORDS),
            "tasks_attention_mask": lambda of: _padded(WORDS),
            "classes_structure": lambda of: torch.tensor([2, 2]),
        },
    ),
    (r"^PPOCRV\d\w*Rec", {"pixel_values": lambda of: torch.randn(2, 3, 96, 160)}),
    (
        r"^ClapAudioModel",
        {"input_features": lambda of: torch.randn(2, 1, 256, 64)},
    ),
    (
        r"^ClapModel",
        {
            "input_ids": lambda of: _words(of, WORDS),
            "attention_mask": lambda of: _padded(WORDS),
            "input_features": lambda of: torch.randn(2, 1, 256, 64),
        },
    ),
]
"""What some models are given, of what they take, and nothing else."""

IMAGES = (
    r"^(pixel_values|spatial_shapes|target_sizes|(pixel_attention|image_(attention|embeds_position))_mask)$|grid_thw$"
)
"""What a picture comes as."""

MOST = 40
"""How many combinations are tried."""


def inputs_of(model: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """What a model may be given, the likeliest first: what it needs, and then more and more of what it takes."""
    arguments = inspect.signature(model.forward).parameters
    of = Numbers(model.config, any(name.endswith("grid_thw") for name in arguments))
    given = next((makers for pattern, makers in GIVEN if re.search(pattern, type(model).__name__)), None)
    if given is not None:
        torch.manual_seed(1)
        yield {name: make(of) for name, make in given.items()}
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
