"""Inputs of some tiny models of transformers that do not follow from the names of their arguments."""

from __future__ import annotations

from functools import partial

import torch

from helpers.model_zoo.config_sizes import LENGTH, SIDE, TARGETS, WIDTH, WORDS
from helpers.model_zoo.input_values import PROTEINS, Maker, of_main, of_proteins, padded, session, words

_TEXT: dict[str, Maker] = {"input_ids": lambda of: words(of, WORDS), "attention_mask": lambda of: padded(WORDS)}
_AUDIO: dict[str, Maker] = {"input_values": lambda of: torch.randn(2, 1, 3840)}
_VIDEO: dict[str, Maker] = {
    "pixel_values_videos": lambda of: torch.randn(2, 4, 3, SIDE, SIDE),
    "padding_mask_videos": lambda of: padded(4),
}


def _words_and_images(parts: int, *size: int) -> dict[str, Maker]:
    """Words after an image of so many parts."""
    return {
        "input_ids": lambda of: torch.cat([torch.full((2, parts), of.config.image_token_id), words(of, WORDS)], 1),
        "attention_mask": lambda of: padded(parts + WORDS),
        "pixel_values": lambda of: torch.randn(2, *size),
    }


SPECIAL_INPUTS: list[tuple[str, dict[str, Maker]]] = [
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
            "input_ids": lambda of: words(of, WORDS),
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
            "attention_mask": lambda of: padded(WORDS),
        },
    ),
    (
        r"^FunAsrNanoEncoder",
        {
            "input_features": lambda of: torch.randn(2, WORDS, of(80, "num_mel_bins") * of(7, "num_stacked_frames")),
            "input_features_mask": lambda of: padded(WORDS),
        },
    ),
    (
        r"^ClvpModelFor",
        {
            "input_ids": lambda of: words(of, WORDS),
            "input_features": lambda of: torch.randn(2, of(80, "feature_size"), LENGTH),
        },
    ),
    (
        r"^AlignModel",
        {
            "input_ids": lambda of: words(of, WORDS),
            "attention_mask": lambda of: padded(WORDS),
            "pixel_values": lambda of: torch.randn(2, 3, 64, 64),
        },
    ),
    (
        r"^Kosmos2Model",
        {
            "input_ids": lambda of: words(of, WORDS),
            "attention_mask": lambda of: padded(WORDS),
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
            "attention_mask": lambda of: padded(LENGTH),
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
            "qformer_input_ids": lambda of: words(of, TARGETS),
            "input_ids": lambda of: torch.cat([torch.full((2, 64), 150), words(of, WORDS)], 1),
        },
    ),
    (
        r"^Jev",
        {
            "input_ids": lambda of: words(of, WORDS)[:1],
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
            "input_ids": lambda of: words(of, of(8, "num_codebooks")),
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
            "decoder_input_ids": lambda of: words(of, TARGETS),
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
            "text_mask": lambda of: padded(WORDS).bool(),
        },
    ),
    (
        r"^Sam3\w*DetrDecoder",
        {
            "vision_features": lambda of: torch.randn(2, 16, WIDTH),
            "text_features": lambda of: torch.randn(2, WORDS, WIDTH),
            "vision_pos_encoding": lambda of: torch.randn(2, 16, WIDTH),
            "text_mask": lambda of: padded(WORDS).bool(),
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
            "prompt_mask": lambda of: padded(WORDS).bool(),
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
            "input_ids": lambda of: words(of, WORDS),
            "attention_mask": lambda of: padded(WORDS),
            "context_input_ids": lambda of: words(of, WORDS).repeat(of(5, "n_docs"), 1),
            "context_attention_mask": lambda of: padded(WORDS).repeat(of(5, "n_docs"), 1),
            "doc_scores": lambda of: torch.randn(2, of(5, "n_docs")),
            "decoder_input_ids": lambda of: words(of, TARGETS),
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
            "input_ids": lambda of: words(of, WORDS)[:1],
            "attention_mask": lambda of: padded(WORDS)[1:],
            "pixel_values": lambda of: torch.randn(1, of(2, "num_frames"), 3, 64, 64),
        },
    ),
    (r"^VitMatte", {"pixel_values": lambda of: torch.randn(2, 4, 64, 64)}),
    (
        r"^VoxtralRealtimeText",
        {
            "input_ids": lambda of: words(of, WORDS),
            "attention_mask": lambda of: padded(WORDS),
            "t_cond": lambda of: torch.randn(1, 1, WIDTH),
        },
    ),
    (
        r"^VoxtralRealtimeModel",
        {
            "input_ids": lambda of: words(of, LENGTH // 8),
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
            "quantized_code": lambda of: words(of, 8),
            "time_step": lambda of: torch.tensor(0.5),
        },
    ),
    (
        r"^Qwen2_5OmniToken2WavModel",
        {
            "code": lambda of: words(of, 8)[:1],
            "conditioning": lambda of: torch.randn(1, of(128, "enc_emb_dim")),
            "reference_mel": lambda of: torch.randn(1, 16, of(80, "mel_dim")),
            "num_steps": lambda of: 2,
        },
    ),
    (
        r"^Gemma4(Unified)?Assistant",
        {
            "inputs_embeds": lambda of: of_main(of)[0],
            "position_ids": lambda of: torch.full((1, 1), WORDS - 1),
            "attention_mask": lambda of: padded(WORDS).flip(1),
            "shared_kv_states": lambda of: of_main(of)[1],
        },
    ),
    (r"^EsmFold2", {name: partial(of_proteins, name) for name in PROTEINS}),
    (r"^FastVlm", _words_and_images(4, 3, 128, 128)),
    (r"^PerceptionLM", _words_and_images(16, 1, 3, SIDE, SIDE)),
    (r"^Gemma3nModel", _words_and_images(256, 3, 64, 64)),
    (r"^EdgeTam(Vision)?Model", {"pixel_values": lambda of: torch.randn(2, 3, 64, 64)}),
    (r"^PeVideoEncoder", _VIDEO),
    (r"^PeVideoModel", _VIDEO | _TEXT),
    (r"^PeAudioVideoEncoder", _VIDEO | _AUDIO),
    (r"^PeAudioVideoModel", _VIDEO | _AUDIO | _TEXT),
    (r"^Sam2VideoModel", {"inference_session": lambda of: session(of, "sam2_video"), "frame_idx": lambda of: 0}),
    (
        r"^Sam3TrackerVideo",
        {
            "inference_session": lambda of: session(of, "sam3_tracker_video"),
            "frame_idx": lambda of: 0,
        },
    ),
    (r"^Sam3VideoModel", {"inference_session": lambda of: session(of, "sam3_video"), "frame_idx": lambda of: 0}),
    (r"^EdgeTamVideo", {"inference_session": lambda of: session(of, "edgetam_video"), "frame_idx": lambda of: 0}),
    (
        r"^OmDetTurbo",
        {
            "pixel_values": lambda of: torch.randn(2, 3, 64, 64),
            "classes_input_ids": lambda of: words(of, WORDS).repeat(2, 1),
            "classes_attention_mask": lambda of: padded(WORDS).repeat(2, 1),
            "tasks_input_ids": lambda of: words(of, WORDS),
            "tasks_attention_mask": lambda of: padded(WORDS),
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
            "input_ids": lambda of: words(of, WORDS),
            "attention_mask": lambda of: padded(WORDS),
            "input_features": lambda of: torch.randn(2, 1, 256, 64),
        },
    ),
]
"""Complete inputs of some models."""
