"""How small the models of transformers are made: by what a number is called, and by what single models need."""

from __future__ import annotations

from typing import Any

WORDS, TARGETS, SIDE, LENGTH, WIDTH = 11, 7, 32, 64, 64

RULES = [
    (r"codebook_size", 128),
    (r"vocab_size|^num_embeddings|_vocab$", 200),
    (r"feat_extract_layers|kernel|stride|stem_channels|^in_channels|^stage_", 9999),
    (r"image_size|crop_size|spec_size|img_size", SIDE),
    (r"patch_size", 8),
    (r"(key_value_heads|kv_heads|key_value_attention_heads|num_query_groups|num_key_heads)$", 2),
    (r"heads$|n_head$", 4),
    (r"qk_head_dim", 32),
    (r"image_embedding_size", 4),
    (r"num_pos_feats", WIDTH // 2),
    (r"adapter_input_size|mask_input_channels", WIDTH),
    (r"head_dim|head_size|d_kv|dim_head|d_head$|kv_channels", 16),
    (r"lora_rank|_rank$", 16),
    (r"(experts_per_tok(en)?|top_?k|moe_k)$", 2),
    (r"experts$|expert_num$", 4),
    (r"^(n_group|topk_group|num_expert_group)s?$", 1),
    (r"source_positions", LENGTH // 2),
    (r"rotary_dim$|num_filters|n_filters|base_channels", 8),
    (r"^window_size|window_size$", 4),
    (r"expand$", 1),
    (r"(upsample_groups|mamba_d_ssm)$", WIDTH),
    (r"n_positions|n_ctx|position_embeddings$|target_positions|max_seq_len", 128),
    (r"num_mel_bins|n_mels|mel_dim|n_mel_bins|model_in_dim", LENGTH),
    (r"sliding_window(_size)?$|local_attention$|chunk_size$", 4),
    (r"num_queries|num_denoising|num_proposals", 6),
    (r"num_frames", 2),
    (r"layers(_per_stack)?$|n_layer$|^depth$|(num|n)_blocks$|num_encoder_blocks$", 2),
    (
        (
            r"(hidden_sizes?|_hidden|d_model|n_embd|_dims?|^dim|_size_global|d_ff|dff|d_inner|_width|channels?|_units|_list|"
            r"(embedding|intermediate|projection|feature|output)_size|_filters|embedding_dimension)$"
        ),
        WIDTH,
    ),
]
"""The maximum of a number, by the first pattern that its name matches."""

OPEN = {
    "head_dim": 16,
    "prediction_length": 8,
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
}
"""What stands where a configuration leaves it open."""

STRIPES = {f"{name}_channel": [1, 1, 0] for name in ("reduce", "return")} | {
    f"{name}_{ratio}ratio": [size, 1, [each // 2 for each in size]]
    for ratio, side in (("long", 7), ("mid", 5), ("short", 3))
    for name, size in (
        ("vertical_long_to_small_conv", [side, 1]),
        ("horizontal_small_to_long_conv", [1, side]),
        ("symmetric_conv_long", [side, side]),
    )
}
"""The convolutions of some readers of text: of each kernel, stride and padding."""

OVERRIDES: list[tuple[str, dict[str, Any]]] = [
    (r"^Dbrx", {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0}),
    (
        r"^Apertus1p5Model",
        {"image_token_offset": 20, "audio_token_offset": 20 + 128, "text_config.vocab_size": 300, "base_channels": 32},
    ),
    (
        r"^Dory",
        {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            **dict.fromkeys(("n_input_layers", "n_recurrent_layers", "n_output_layers"), 1),
        },
    ),
    (r"^MoonshineStreaming", {".num_key_value_heads": 4}),
    (r"^Pix2StructText", {"initializer_range": 0.02}),
    (r"^Qwen3OmniMoeTalkerFor", {"text_config.shared_expert_intermediate_size": 64, ".spatial_merge_size": 2}),
    (r"^T5Gemma2(Decoder|Encoder|TextEncoder)", {"dropout_rate": 0.0}),
    (r"^Esm(Model)", {"vocab_size": 200, "pad_token_id": 1}),
    (r"^BltModel", {".num_hidden_layers": 2}),
    (r"^(Chameleon|Emu3)Model", {"vocabulary_map": {"<image>": 150}}),
    (r"^Llama4", {"intermediate_size_mlp": 64}),
    (r"^Zamba2", {"mamba_headdim": 16}),
    (r"^(BitModel)", {"num_groups": 4}),
    (r"^Reformer", {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [8, 16]}),
    (r"^Xmod", {"default_language": "en_XX"}),
    (r"^Ernie4_5_VLMoe", {"moe_intermediate_size": [64, 64], "moe_num_experts": 4, "moe_k": 2}),
    (r"^Glm5Next", {"index_topk": 16}),
    (r"^Longcat", {"qk_rope_head_dim": 16, "head_dim": 16}),
    (r"^(Jamba|RecurrentGemma)", {"num_hidden_layers": 6}),
    (r"^LiltModel", {"hidden_size": 96}),
    (r"^LayoutLMv3", {"coordinate_size": 11, "shape_size": 10}),
    (r"^MobileBert", {"true_hidden_size": 64, "use_bottleneck": False}),
    (r"^Swin2SR", {"embed_dim": 48}),
    (r"^Dac", {"encoder_hidden_size": 4, "decoder_hidden_size": 32, "hidden_size": 64}),
    (r"^(VibeVoice)", {"hidden_size": 64, "num_filters": 2}),
    (r"^LwDetr", {"num_windows": 4, "image_size": 64}),
    (r"^LED", {"attention_window": 8}),
    (r"Swin(?!2SR)|^Clap", {"image_size": 64, "spec_size": 64, "window_size": 2}),
    (r"^(Chameleon|Emu3|Janus)", {"base_channels": 32}),
    (r"^MuseGlimmerAssistant", {"target_layer_ids": [0]}),
    (
        r"^CohereCompass(Text)?Model",
        {
            "rope_parameters": {
                k: {"rope_type": "default", "rope_theta": 1e4} for k in ("full_attention", "sliding_attention")
            }
        },
    ),
    (r"^Nemotron(Model)", {"num_key_value_heads": 2}),
    (r"^Mistral4", {"head_dim": 32}),
    (
        r"^MistralLarge4",
        {"kv_source_layers": None, "num_hidden_layers": 4, "layer_types": None, "mlp_layer_types": None},
    ),
    (r"^Ernie4_5_VLMoeText", {"rope_parameters.mrope_section": [3, 3, 2]}),
    (r"^Ernie4_5_VLMoeModel", {"text_config.rope_parameters.mrope_section": [3, 3, 2]}),
    (r"^Zamba2", {"mamba_expand": 2, "n_mamba_heads": 8}),
    (r"^Bros", {"dim_bbox_projection": 16}),
    (r"^Mllama", {"intermediate_layers_indices": [0, 1]}),
    (r"^Llama4VisionModel", {"intermediate_size": 256}),
    (
        r"^Qwen4Exp",
        {
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 16,
            "indexer_budget": 8,
            "indexer_compress_ratio": 2,
        },
    ),
    (r"^DeepseekOcr2(Text)?Model", {"mlp_layer_types": ["dense", "sparse"], "n_group": 1, "topk_group": 1}),
    (r"^Lfm2MoeModel", {"num_hidden_layers": 2}),
    (r"^(Informer|Autoformer|TimeSeries)", {"context_length": 57, "num_time_features": 1}),
    (
        r"^Sam2HieraDet|^Sam2(Video|Vision)?Model|^EdgeTamVideo",
        {
            "embed_dim_per_stage": [16, 32, 48, 64],
            "num_attention_heads_per_stage": [1, 2, 3, 4],
            "backbone_channel_list": [64, 48, 32, 16],
        },
    ),
    (r"^Sam2HieraDet", {"hidden_size": 16}),
    (r"^Sam2VisionModel", {"backbone_config.hidden_size": 16}),
    (
        r"^Sam2(Video)?Model|^EdgeTamVideo",
        {
            "vision_config.backbone_config.hidden_size": 16,
            "image_size": 64,
            "prompt_encoder_config.patch_size": 16,
            "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
            "memory_attention_rope_feat_sizes": [4, 4],
        },
    ),
    (r"^T5Gemma2Encoder", {"text_config.dropout_rate": 0.0, "text_config.pad_token_id": 0}),
    (r"^PeAudio", {"encoder_hidden_size": 4, "hidden_size": 64}),
    (r"^FunAsrNanoModel", {"adaptor_config.intermediate_size": 16}),
    (
        r"^Gemma4(Unified)?Assistant",
        {
            "text_config.num_kv_shared_layers": 3,
            "text_config.num_hidden_layers": 3,
            "backbone_hidden_size": 64,
            "text_config.layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    (r"^Gemma4Assistant", {"text_config.hidden_size_per_layer_input": 0}),
    (r"^Molmo2Model", {"adapter_config.vision_feature_layer": [0, 1]}),
    (r"^VibeVoiceAsr", {"acoustic_tokenizer_chunk_size": 3200}),
    (r"^Muse(Glimmer|Spark)Vision", {}),
    (
        r"^EsmFold2",
        {
            "atom_encoder.head_dim": 32,
            "structure_head.diffusion_module.atom_encoder.head_dim": 32,
            "single_inputs_size": WIDTH + 67,
            "atom_feature_dim": 389,
            "num_loops": 1,
        },
    ),
    (r"Blip(2|Video)?Model", {".image_token_index": 150, ".image_token_id": 150}),
    (r"^LevitModel", {"patch_size": 16, "image_size": 64}),
    (r"^ClvpEncoder", {"num_attention_heads": 2}),
    (r"^Zamba2", {"attention_hidden_size": 128, "attention_head_dim": 32}),
    (r"^Dots3Note(Text)?Model", {"num_key_value_heads": 4, "num_attention_heads": 4}),
    (
        r"^Sam2",
        {
            "window_size_per_stage": [2, 2, 2, 2],
            "window_positional_embedding_background_size": [2, 2],
            "image_size": 64,
        },
    ),
    (r"^(Informer|Autoformer|TimeSeries)", {"feature_size": 10}),
    (r"^Qwen3ASR", {"n_window": 32}),
    (r"^Qwen3OmniMoeTalkerModel", {".shared_expert_intermediate_size": 64}),
    (r"^(Qwen2_5\w*|Exaone4_5_)Vision", {"window_size": 16}),
    (r"^Kosmos2Model", {"latent_query_num": 4}),
    (r"^Shield", {"yes_token_index": 5, "no_token_index": 6}),
    (r"^Pix2StructVision|^Pix2StructFor", {"patch_embed_hidden_size": 192}),
    (r"^Cvt", {"embed_dim": [16, 48, 96]}),
    (r"^BambaModel", {"attn_layer_indices": [1]}),
    (r"^GraniteMoeHybridModel", {"layer_types": ["mamba", "attention"]}),
    (r"^JambaModel", {"num_hidden_layers": 2, "attn_layer_offset": 1, "attn_layer_period": 2}),
    (r"^FalconH1", {"mamba_d_ssm": 64, "mamba_d_head": 16, "mamba_n_heads": 4}),
    (r"^MobileViTModel", {"hidden_sizes": [32, 48, 64], "image_size": 64}),
    (r"^MobileViTV2", {"image_size": 64}),
    (r"^DepthPro", {"patch_size": 8, "image_size": 32, "patch_model_config.image_size": 32}),
    (r"^Qwen3OmniMoeCode2WavTrans|^Qwen3OmniMoeTalkerCode", {}),
    (r"^Step3p7", {"sliding_window": 4}),
    (r"^Mgpstr", {"num_bpe_labels": 50, "num_wordpiece_labels": 50}),
    (r"^Perceiver", {"d_latents": 64, "num_latents": 8, "num_self_attends_per_block": 2}),
    (r"^FastSpeech2", {"encoder_linear_units": 64, "decoder_linear_units": 64}),
    (r"^Gemma3nAudio", {"input_feat_size": 64}),
    (r"^Phi4MultimodalAudio", {"input_size": 80}),
    (r"^AST", {"max_length": 64}),
    (r"^Dots1", {"first_k_dense_replace": 1, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}),
    (r"^Lfm2Moe", {"layer_types": ["conv", "full_attention"]}),
    (r"^(DeepseekOcr2|Qwen4Exp)", {"num_attention_heads": 4}),
    (r"^Levit", {"hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4]}),
    (
        r"^(Align(Vision)?|EfficientNet)Model",
        {
            "width_coefficient": 0.05,
            "depth_coefficient": 1.0,
            "projection_dim": 16,
            "out_channels": [16, 24, 40, 80, 112, 192, 320],
        },
    ),
    (r"^(DFine|Deimv2|PPDocLayout)", {"encoder_in_channels": [512, 1024, 2048]}),
    (r"^Clap(Audio)?Model", {"num_mel_bins": 64, "spec_size": 256, "num_channels": 1}),
    (
        r"^CohereCompassModel",
        {"vision_config.rope_parameters": {"rope_type": "axial", "rope_theta": 1e4}},
    ),
    (r"^DepthPro", {".patch_size": 32, "intermediate_hook_ids": [1, 0]}),
    (r"^EfficientLoFTR", {"hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 32}),
    (r"^TextNet", {"hidden_sizes": [64, 64, 128, 256, 512]}),
    (r"^Dots3NoteAudio", {"conv_output_size": 512 * 8 // 8}),
    (r"^ClapModel", {"projection_dim": 64, "patch_embeds_hidden_size": 8}),
    (r"^PPDocLayoutV3", {"x4_feat_dim": 128}),
    (r"^Super(Point|Glue)|^LightGlue", {"keypoint_decoder_dim": 65}),
    (r"^UVDoc", {"out_features": [f"stage{number}" for number in range(1, 7)], "out_indices": list(range(1, 7))}),
    (
        r"^PPOCRV6SmallDet",
        {
            "out_features": [f"stage{number}" for number in range(1, 5)],
            "out_indices": [1, 2, 3, 4],
            "layer_list_out_channels": [96, 96, 192, 384],
        },
    ),
    (r"^InstructBlipVideoModel", {".video_token_index": 150, ".video_token_id": 150}),
    (r"^Nemotron3_5Asr", {"default_prompt_id": 1}),
    (r"^Qwen3ASREncoder", {"n_window": 50}),
    (r"^MimiModel", {"vector_quantization_hidden_dimension": 64}),
    (r"^(NeuCodec|Xcodec2)", {"encoder_hidden_size": 4, "quantization_dim": 128}),
    (r"^Xcodec(Model)", {".codebook_dim": 128}),
    (
        r"^OmDetTurbo",
        {
            "apply_layernorm_after_vision_backbone": False,
            "backbone_config.out_indices": [2, 3, 4],
            "encoder_in_channels": [8, 16, 16],
            "class_embed_dim": 48,
            **dict.fromkeys(("text_config.hidden_size", "text_config.projection_dim", "text_projection_in_dim"), 48),
            "text_projection_out_dim": 48,
        },
    ),
    (r"^Pvt(Model)", {"num_encoder_blocks": 4}),
    (r"^Sam2(Video|Vision)?Model", {"window_size_per_stage": [4, 4, 4, 4]}),
    (r"^Sam3Tracker", {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}),
    (r"^SegGpt", {"image_size": [64, 32]}),
    (r"^Tvp", {"max_img_size": 64, "visual_prompt_size": 8}),
    (r"^VitMatte", {"patch_size": 16, "image_size": 64, "num_channels": 4}),
    (r"^Zamba2", {"hybrid_layer_ids": [2]}),
    (
        r"^Zamba(Model)",
        {
            "attention_hidden_size": 128,
            "attention_head_dim": 32,
            "num_hidden_layers": 5,
            "layers_block_type": ["linear_attention", "linear_attention", "hybrid", "linear_attention", "hybrid"],
        },
    ),
    (r"^ZoeDepth", {"bottleneck_features": 64}),
    (r"^LwDetrModel", {"projector_scale_factors": [1.0], "num_feature_levels": 1}),
    (r"^Dots3NoteModel", {"text_config.head_dim": 32}),
    (r"^Dots3NoteTextModel", {"head_dim": 32}),
    (r"^JanusVQVAE", {"num_patches": 2}),
    (
        r"^EdgeTamVideo",
        {
            "perceiver_resampler_attention_head_dim": 64,
            "perceiver_resampler_num_latents": 4,
            "perceiver_resampler_num_latents_2d": 4,
            "memory_attention_rope_k_sizes": [2, 2],
        },
    ),
    (
        r"^PPOCRV6(Medium|Small)Det",
        {
            "block_configs": [
                [[3, 96, 96, 1, True]],
                [[3, 96, 96, 2, False]],
                [[3, 96, 192, 2, False]],
                [[3, 192, 384, 2, False]],
            ]
        },
    ),
    (
        r"^PPOCRV(5Server|6Medium)Det",
        {
            ".kernel_list": [3, 2, 2],
            ".scale_factor_list": [1, 2, 4, 8],
            ".intraclass_block_config": STRIPES,
            "out_features": [f"stage{number}" for number in range(1, 5)],
            "out_indices": [1, 2, 3, 4],
        },
    ),
    (r"^Sam3LiteTextText", {"num_hidden_layers": 4}),
    (r"^PPDocLayoutV2Reading", {"pred_token_id": 3}),
    (r"^Qwen2_5OmniToken2Wav", {"enc_channels": [32, 32, 32, 32, 96]}),
    (r"^Gemma4AssistantFor", {"text_config.vocab_size_per_layer_input": 0}),
    (
        r"^ClvpModelFor",
        {
            "decoder_config.hidden_size": 64,
            "text_config.num_attention_heads": 2,
            "speech_config.num_attention_heads": 2,
        },
    ),
    (
        r"^Granite4VisionModel",
        {"downsample_rate": "1/2", "deepstack_layer_map": [[-1, 0]], "spatial_target_layers": [1]},
    ),
    (r"^TimmBackbone", {"backbone": "test_vit", "out_indices": [1]}),
    (r"^TimmWrapper", {"architecture": "test_vit", "model_args": {"img_size": SIDE, "patch_size": 8}}),
    (
        r"^(Pe(Audio)?Video|PerceptionLM)",
        {
            "architecture": "vit_pe_core_large_patch14_336",
            "model_args": {"img_size": SIDE, "patch_size": 8, "embed_dim": WIDTH, "depth": 2, "num_heads": 4},
        },
    ),
    (
        r"^FastVlm",
        {
            "vision_config.hidden_size": 2 * WIDTH,
            "model_args": {"inference_mode": True, "layers": [1] * 5, "embed_dims": [16, 32, 32, 64, WIDTH]},
        },
    ),
    (r"^Gemma3nModel", {"vision_config.hidden_size": 2048, "model_args": {"channel_multiplier": 0.05}}),
    (
        r"^EdgeTam(Vision)?Model",
        {
            "architecture": "repvit_m1",
            "backbone_channel_list": [384, 192, 96, 48],
            "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
        },
    ),
    (r"^EdgeTamModel", {"image_size": 64, "prompt_encoder_config.patch_size": 16}),
]
"""What is set beyond that in the configurations of some models, by patterns of their names: wherever the name stands,
or else on top; with dots where exactly."""
