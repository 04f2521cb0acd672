"""Translation compared with transformers and CTranslate2, with the same weights, of the size of OPUS-MT.

A Marian base (6 + 6 layers of 512, 58,101 tokens) with random weights, beam 5; all translations have the same forced
length, so that all do the same work. CTranslate2 is an inference engine with kernels of its own.

Run: ``pip install ctranslate2``, then ``python benchmarks/translation.py``
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ctranslate2
import sentencepiece
import torch
from timing import report, speedup
from torch import Tensor
from transformers import GenerationConfig, MarianMTModel

from regard.generation import beam_search
from regard.models import Transformer, TransformerConfig, save_model
from regard.pipelines.base import fastest_dtype

SEED, ROUNDS = 0, 5
VOCAB, D_MODEL, HEADS, LAYERS, D_FF = 58101, 512, 8, 6, 2048
SENTENCES, SOURCE, LENGTH, BEAM = 16, 20, 32, 5
PAD, EOS = VOCAB - 1, 0


def make_model() -> Transformer:
    config = TransformerConfig(
        VOCAB,
        d_model=D_MODEL,
        num_heads=HEADS,
        num_encoder_layers=LAYERS,
        num_decoder_layers=LAYERS,
        d_ff=D_FF,
        activation="silu",
        interleaved_sinusoids=False,
        output_bias=True,
        max_seq_len=512,
        pad_id=PAD,
        bos_id=PAD,
        eos_id=EOS,
    )
    return Transformer(config).eval()


def write_tokenizer(folder: Path) -> list[str]:
    """Write the files that CTranslate2's converter needs; returns the vocabulary."""
    options = {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2}
    for side in ("source", "target"):
        with (folder / f"{side}.spm").open("wb") as file:
            sentences = iter(["the cat sat on the mat", "where is the station"])
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=file, **options)
    vocabulary = ["</s>", "<unk>", *(f"w{token_id}" for token_id in range(2, PAD)), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({token: token_id for token_id, token in enumerate(vocabulary)}))
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return vocabulary


def translate(model: Transformer, src: Tensor, cache: bool = True) -> Callable[[], Any]:
    return lambda: beam_search(model, src, beam=BEAM, min_new_tokens=LENGTH, max_new_tokens=LENGTH, cache=cache)


def translate_with_marian(model: MarianMTModel, src: Tensor) -> Callable[[], Any]:
    def run() -> object:
        with torch.inference_mode():
            mask = torch.ones_like(src)
            return model.generate(
                src, attention_mask=mask, num_beams=BEAM, min_new_tokens=LENGTH, max_new_tokens=LENGTH
            )

    return run


def translate_with_ctranslate2(folder: Path, compute_type: str, tokens: list[list[str]]) -> Callable[[], Any]:
    translator = ctranslate2.Translator(
        str(folder), compute_type=compute_type, inter_threads=1, intra_threads=torch.get_num_threads()
    )
    lengths = {"min_decoding_length": LENGTH, "max_decoding_length": LENGTH}
    return lambda: translator.translate_batch(tokens, beam_size=BEAM, **lengths)


def main() -> None:
    torch.manual_seed(SEED)
    src = torch.randint(2, PAD, (SENTENCES, SOURCE))
    src[:, -1] = EOS
    dtype = fastest_dtype()  # the fastest of `Translator` on this machine; transformers' default is float32
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model()
        save_model(folder, model, format="transformers")
        vocabulary = write_tokenizer(folder)
        marian = MarianMTModel.from_pretrained(folder).eval()
        marian.generation_config = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(folder / "ct2"))
        tokens = [[vocabulary[token_id] for token_id in row] for row in src.tolist()]
        theirs = translate_with_marian(marian, src)
        peers = {dtype: translate_with_ctranslate2(folder / "ct2", dtype, tokens) for dtype in ("float32", "int8")}
        ours = translate(model, src)
        translations = [hypotheses[0].tokens for hypotheses in ours()]
        check_equal(translations, [row[1:] for row in theirs().tolist()])
        ids = {token: token_id for token_id, token in enumerate(vocabulary)}
        check_equal(translations, [[ids[token] for token in result.hypotheses[0]] for result in peers["float32"]()])
        ratios = {
            "speedup over transformers: both in float32": speedup(ours, theirs, ROUNDS),
            "speedup over CTranslate2: both in float32": speedup(ours, peers["float32"], ROUNDS),
        }
        ours = translate(model.to(dtype), src)
        ratios["speedup over transformers: each in its default dtype"] = speedup(ours, theirs, ROUNDS)
        for peer_dtype, peer in peers.items():
            name = f"speedup over CTranslate2 in {peer_dtype}: ours in {str(dtype).removeprefix('torch.')}"
            ratios[name] = speedup(ours, peer, ROUNDS)
        uncached = translate(model, src, cache=False)
        ratios["speedup over decoding without a cache: decoding with a cache"] = speedup(ours, uncached, 3)
    report(
        "translation",
        ratios,
        SEED,
        dtype=str(dtype),
        sentences=SENTENCES,
        source=SOURCE,
        length=LENGTH,
        beam=BEAM,
        vocab=VOCAB,
    )


def check_equal(ours: list[list[int]], theirs: list[list[int]]) -> None:
    """Check that both return the same translations; with random weights, rounding may change some."""
    equal = sum(list(tokens) == expected for tokens, expected in zip(ours, theirs, strict=True))
    assert equal >= len(ours) // 2, f"only {equal} of {len(ours)} translations are equal"


if __name__ == "__main__":
    main()
