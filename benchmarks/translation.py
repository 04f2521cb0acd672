"""Translation, sentences a second: cached against uncached, and against transformers' Marian of the same shape.

All weights are random; beam 5, every sentence is forced to 64 words, so that all do the same work.
Run: ``python benchmarks/translation.py``
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from side_by_side import ratios, report
from torch import Tensor
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from regard.generation import beam_search
from regard.generation.dtypes import fastest_dtype
from regard.models import Transformer, TransformerConfig

SEED, ROUNDS = 0, 5
VOCAB, D_MODEL, HEADS, LAYERS, D_FF = 8000, 256, 8, 3, 1024
SENTENCES, SOURCE, LENGTH, BEAM = 32, 20, 64, 5


def make_ours(dtype: torch.dtype = torch.float32) -> Transformer:
    config = TransformerConfig(
        VOCAB,
        d_model=D_MODEL,
        num_heads=HEADS,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        d_ff=D_FF,
        max_length=128,
    )
    return Transformer(config).eval().to(dtype)


def make_marian(dtype: torch.dtype = torch.float32) -> MarianMTModel:
    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=D_MODEL,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=D_FF,
        decoder_ffn_dim=D_FF,
        activation_function="relu",
        max_position_embeddings=128,
        scale_embedding=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config).eval().to(dtype)
    model.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=2, decoder_start_token_id=1)
    return model


def translate(model: Transformer, src: Tensor, lengths: Tensor, cache: bool = True) -> Callable[[], object]:
    options = {"beam": BEAM, "min_length": LENGTH, "max_length": LENGTH, "cache": cache}
    return lambda: beam_search(model, src, lengths, **options)


def translate_with_marian(model: MarianMTModel, src: Tensor, lengths: Tensor) -> Callable[[], object]:
    real = (torch.arange(SOURCE) < lengths[:, None]).long()

    def run() -> object:
        with torch.inference_mode():
            return model.generate(
                src, attention_mask=real, num_beams=BEAM, min_new_tokens=LENGTH, max_new_tokens=LENGTH
            )

    return run


def main() -> None:
    torch.manual_seed(SEED)
    src = torch.randint(3, VOCAB, (SENTENCES, SOURCE))
    lengths = torch.randint(SOURCE // 2, SOURCE + 1, (SENTENCES,))
    dtype = fastest_dtype()  # what `Translator` computes in on this machine; transformers' default is float32
    ours = translate(make_ours(dtype), src, lengths)
    found = {
        f"sentences a second, ours to transformers' Marian's, both in {name}": ratios(
            translate(make_ours(same), src, lengths), translate_with_marian(make_marian(same), src, lengths), ROUNDS
        )
        for name, same in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
    }
    found["sentences a second, ours to transformers' Marian's, each in its default dtype"] = ratios(
        ours, translate_with_marian(make_marian(), src, lengths), ROUNDS
    )
    found["sentences a second, ours with a cache to ours without"] = ratios(
        ours, translate(make_ours(dtype), src, lengths, cache=False), 1 + ROUNDS // 2
    )
    report(
        "translation",
        found,
        SEED,
        dtype=str(dtype),
        sentences=SENTENCES,
        source=SOURCE,
        length=LENGTH,
        beam=BEAM,
        d_model=D_MODEL,
    )


if __name__ == "__main__":
    main()
