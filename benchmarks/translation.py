"""Translation by a checkpoint as large as OPUS-MT's: beside transformers and CTranslate2 with the same weights.

A Marian base (6 + 6 layers of 512, 58,101 words) with random weights, beam 5, every sentence forced to as many words,
so that all do the same work. CTranslate2 is an engine for inference alone, with kernels of its own: how far is that
away? Run: ``pip install ctranslate2``, then ``python benchmarks/translation.py``
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
from side_by_side import ratios, report
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
    """The files that CTranslate2's converter asks for; gives the words of the vocabulary."""
    options = {"vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2}
    for side in ("source", "target"):
        with (folder / f"{side}.spm").open("wb") as file:
            sentences = iter(["the cat sat on the mat", "where is the station"])
            sentencepiece.SentencePieceTrainer.train(sentence_iterator=sentences, model_writer=file, **options)
    words = ["</s>", "<unk>", *(f"w{number}" for number in range(2, PAD)), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    config = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return words


def translate(model: Transformer, src: Tensor, cache: bool = True) -> Callable[[], Any]:
    return lambda: beam_search(model, src, beam=BEAM, min_new_tokens=LENGTH, max_new_tokens=LENGTH, cache=cache)


def translate_with_marian(model: MarianMTModel, src: Tensor) -> Callable[[], Any]:
    def run() -> object:
        with torch.inference_mode():
            real = torch.ones_like(src)
            return model.generate(
                src, attention_mask=real, num_beams=BEAM, min_new_tokens=LENGTH, max_new_tokens=LENGTH
            )

    return run


def translate_with_ctranslate2(folder: Path, kind: str, words: list[list[str]]) -> Callable[[], Any]:
    translator = ctranslate2.Translator(
        str(folder), compute_type=kind, inter_threads=1, intra_threads=torch.get_num_threads()
    )
    lengths = {"min_decoding_length": LENGTH, "max_decoding_length": LENGTH}
    return lambda: translator.translate_batch(words, beam_size=BEAM, **lengths)


def main() -> None:
    torch.manual_seed(SEED)
    src = torch.randint(2, PAD, (SENTENCES, SOURCE))
    src[:, -1] = EOS
    dtype = fastest_dtype()  # what `Translator` computes in on this machine; transformers' default is float32
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_model()
        save_model(folder, model, format="transformers")
        vocabulary = write_tokenizer(folder)
        marian = MarianMTModel.from_pretrained(folder).eval()
        marian.generation_config = GenerationConfig(pad_token_id=PAD, eos_token_id=EOS, decoder_start_token_id=PAD)
        ctranslate2.converters.TransformersConverter(str(folder)).convert(str(folder / "ct2"))
        words = [[vocabulary[word] for word in row] for row in src.tolist()]
        theirs = translate_with_marian(marian, src)
        peers = {kind: translate_with_ctranslate2(folder / "ct2", kind, words) for kind in ("float32", "int8")}
        ours = translate(model, src)
        written = [best[0].tokens for best in ours()]
        same_words(written, [row[1:] for row in theirs().tolist()])
        numbers = {word: number for number, word in enumerate(vocabulary)}
        same_words(written, [[numbers[word] for word in each.hypotheses[0]] for each in peers["float32"]()])
        found = {
            "sentences a second, ours to transformers', both in float32": ratios(ours, theirs, ROUNDS),
            "sentences a second, ours to CTranslate2's, both in float32": ratios(ours, peers["float32"], ROUNDS),
        }
        ours = translate(model.to(dtype), src)
        found["sentences a second, ours to transformers', each in its default dtype"] = ratios(ours, theirs, ROUNDS)
        for kind, peer in peers.items():
            told = f"sentences a second, ours ({str(dtype).removeprefix('torch.')}) to CTranslate2's ({kind})"
            found[told] = ratios(ours, peer, ROUNDS)
        uncached = translate(model, src, cache=False)
        found["sentences a second, ours with a cache to ours without"] = ratios(ours, uncached, 1 + ROUNDS // 2)
    report(
        "translation",
        found,
        SEED,
        dtype=str(dtype),
        sentences=SENTENCES,
        source=SOURCE,
        length=LENGTH,
        beam=BEAM,
        vocab=VOCAB,
    )


def same_words(ours: list[list[int]], theirs: list[list[int]]) -> None:
    """Refuse to time two that do not write the same: of random weights some rows may differ by rounding."""
    alike = sum(list(mine) == other for mine, other in zip(ours, theirs, strict=True))
    assert alike >= len(ours) // 2, f"only {alike} of {len(ours)} translations are the same"


if __name__ == "__main__":
    main()
