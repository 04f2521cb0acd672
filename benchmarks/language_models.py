"""GPT and BERT compared with transformers' with the same weights: training speed, and generation with a cache.

training: 6 layers of 384, AdamW, dropout 0.1 and bfloat16 autocast; transformers uses SDPA. Both train on the same
batches of texts of one length. Of a step of our GPT on one thread, matrix products take about three quarters and
attention 14 %: all else together could save about a tenth.

compiled: the same, transformers with ``torch.compile``, ours as with ``trainer.compile``.

loop: tokens a second, without padding, in training as in transformers' ``Trainer``, with its collator, its loss and
clipped gradients. GPT has texts cut into blocks on both sides. BERT has texts of different lengths: ours come in
batches of similar length, as in ``regard train``, those of transformers are shuffled and padded to the longest of a
batch.

generation: GPT-2 small with random weights, greedy, all texts of the same length; transformers uses its dynamic cache.
With one text, the lower bound is the time to read all weights once per token, measured as a sum over as many bytes.

Run: ``python benchmarks/language_models.py [training|compiled|loop|generation]``
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from timing import Run, report, seconds, speedup
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import (
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    GenerationConfig,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from regard.data.batching import pad_batch, split, token_budget_batches
from regard.data.masking import mask_tokens
from regard.generation import greedy
from regard.models import GPT, Bert, BertConfig, GPTConfig, save_model
from regard.pipelines.base import fastest_dtype
from regard.training.layers import prepare_layers
from regard.training.recipe_sections import TrainerConfig
from training import train_steps

SEED, ROUNDS = 0, 5
VOCAB, SIZES = 8000, {"d_model": 384, "num_heads": 6, "num_layers": 6, "d_ff": 1536}
ROWS, TOKENS, STEPS = 16, 256, 2
TEXTS, MIN_LENGTH, LOOP_STEPS, MASK = 2000, 32, 4, 4
PROMPT, NEW = 32, 64


def in_transformers(model: nn.Module, kind: type[PreTrainedModel], **options: Any) -> PreTrainedModel:
    """The same model in transformers."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, model, format="transformers")
        return kind.from_pretrained(folder, attn_implementation="sdpa", **options)


def same_loss(
    ours: nn.Module, theirs: nn.Module, our_loss: Callable[[], Tensor], their_loss: Callable[[], Tensor]
) -> None:
    """Check that both models compute the same before they are timed."""
    ours.eval(), theirs.eval()
    with torch.no_grad():
        torch.testing.assert_close(our_loss(), their_loss(), rtol=1e-4, atol=1e-4)


def models() -> tuple[GPT, GPT2LMHeadModel, Bert, BertForMaskedLM]:
    """Ours, each followed by the same in transformers."""
    gpt = GPT(GPTConfig(VOCAB, max_seq_len=TOKENS, **SIZES))
    bert = Bert(BertConfig(VOCAB, max_seq_len=TOKENS, head="masked_lm", **SIZES))
    return gpt, in_transformers(gpt, GPT2LMHeadModel), bert, in_transformers(bert, BertForMaskedLM)


def training(is_compiled: bool = False) -> None:
    input_ids = torch.randint(5, VOCAB, (ROWS, TOKENS + 1))
    inputs = input_ids[:, :-1]
    is_target = torch.rand(ROWS, TOKENS) < 0.15
    masked, labels = inputs.masked_fill(is_target, MASK), inputs.masked_fill(~is_target, -100)
    gpt, gpt2, bert, hf_bert = models()

    def gpt_loss() -> Tensor:
        return gpt.loss(inputs, input_ids[:, 1:]).loss

    def gpt2_loss() -> Tensor:
        logits = gpt2(inputs).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), input_ids[:, 1:].flatten())

    def bert_loss() -> Tensor:
        return bert.loss(masked, None, labels).loss

    def hf_bert_loss() -> Tensor:
        return hf_bert(masked, labels=labels).loss

    def train(model: nn.Module, loss: Callable[[], Tensor]) -> Run:
        return train_steps([loss] * STEPS, torch.optim.AdamW(model.train().parameters(), lr=1e-4, fused=True))

    same_loss(gpt, gpt2, gpt_loss, gpt2_loss)
    same_loss(bert, hf_bert, bert_loss, hf_bert_loss)
    if is_compiled:
        for ours, theirs in ((gpt, gpt2), (bert, hf_bert)):
            prepare_layers(ours, TrainerConfig(max_steps=1, compile=True))
            theirs.compile()
    ratios = {}
    for name, ours, theirs in (
        ("GPT", train(gpt, gpt_loss), train(gpt2, gpt2_loss)),
        ("BERT", train(bert, bert_loss), train(hf_bert, hf_bert_loss)),
    ):
        subject = f"{name}, both compiled" if is_compiled else name
        ratios[f"speedup over transformers: training, {subject}"] = speedup(ours, theirs, ROUNDS)
    section = "compiled" if is_compiled else "training"
    report("language_models", ratios, SEED, section=section, vocab=VOCAB, rows=ROWS, tokens=TOKENS, **SIZES)


def loop() -> None:
    rng = np.random.default_rng(SEED)
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": MASK} | {f"w{i}": i for i in range(5, VOCAB)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, "[UNK]")), pad_token="[PAD]", mask_token="[MASK]"
    )
    causal, masking = (DataCollatorForLanguageModeling(tokenizer, mlm=is_masked) for is_masked in (False, True))
    lengths = rng.integers(MIN_LENGTH, TOKENS + 1, TEXTS)
    texts = [rng.integers(5, VOCAB, length) for length in lengths]
    blocks = [rng.integers(5, VOCAB, TOKENS + 1) for _ in range(ROWS)]
    similar = token_budget_batches(lengths - 1, lengths - 1, ROWS * TOKENS, rng)
    shuffled = split(rng.permutation(TEXTS), TEXTS // len(similar))
    gpt, gpt2, bert, hf_bert = models()

    def gpt_loss() -> Tensor:
        rows, _ = pad_batch(blocks, 0)
        return gpt.loss(rows[:, :-1], rows[:, 1:]).loss

    def bert_loss(rows: np.ndarray) -> Tensor:
        ids, lengths = pad_batch([texts[row] for row in rows], 0)
        inputs, labels = mask_tokens(ids, lengths, rng, mlm_probability=0.15, mask_id=MASK, vocab_size=VOCAB)
        return bert.loss(inputs, lengths, labels).loss

    def their_loss(model: PreTrainedModel, collate: DataCollatorForLanguageModeling, rows: list[np.ndarray]) -> Tensor:
        return model(**collate([{"input_ids": row, "attention_mask": np.ones_like(row)} for row in rows])).loss

    def train(model: nn.Module, losses: list[Callable[[], Tensor]]) -> Run:
        return train_steps(losses, torch.optim.AdamW(model.train().parameters(), lr=1e-4, fused=True), max_norm=1.0)

    plans = similar[:LOOP_STEPS], shuffled[:LOOP_STEPS]
    tokens, their_tokens = (sum(int(lengths[rows].sum()) for rows in plan) for plan in plans)
    same_blocks = [block[:-1] for block in blocks]
    gpt_ratios = speedup(
        train(gpt, [gpt_loss] * STEPS), train(gpt2, [partial(their_loss, gpt2, causal, same_blocks)] * STEPS), ROUNDS
    )
    bert_ratios = speedup(
        train(bert, [partial(bert_loss, rows) for rows in plans[0]]),
        train(hf_bert, [partial(their_loss, hf_bert, masking, [texts[row] for row in rows]) for rows in plans[1]]),
        ROUNDS,
    )
    ratios = {
        "speedup over transformers: training, GPT, tokens a second of a corpus": gpt_ratios,
        "speedup over transformers: training, BERT, tokens a second of a corpus": [
            ratio * tokens / their_tokens for ratio in bert_ratios
        ],
    }
    settings = {"vocab": VOCAB, "rows": ROWS, "tokens": TOKENS, "shortest": MIN_LENGTH, **SIZES}
    report("language_models", ratios, SEED, section="loop", **settings)


def generation() -> None:
    gpt = GPT(GPTConfig(50257, max_seq_len=1024)).eval()
    ratios, dtypes = {}, {"float32": (torch.float32, torch.float32), "default": (fastest_dtype(), torch.float32)}
    bandwidth_fractions = {}
    for name, (our_dtype, their_dtype) in dtypes.items():
        ours = GPT(gpt.config).eval()
        ours.load_state_dict(gpt.state_dict())
        ours.to(our_dtype)
        theirs = in_transformers(gpt, GPT2LMHeadModel, dtype=their_dtype).eval()
        theirs.generation_config = GenerationConfig(pad_token_id=0)
        dtypes_used = "both in float32" if name == "float32" else "each in its default dtype"
        for rows in (8, 1):
            prompts = torch.randint(3, 50257, (rows, PROMPT))
            both = generate(ours, prompts), generate_with_transformers(theirs, prompts)
            if name == "float32":
                equal = [hypothesis.tokens for hypothesis in both[0]()] == both[1]()[:, PROMPT:].tolist()
                assert equal, "the two generate different tokens"
            ratios[f"speedup over transformers: generation, batch {rows}, {dtypes_used}"] = speedup(*both, ROUNDS)
            if rows == 1:
                bandwidth_fractions[name] = bandwidth_fraction(ours, both[0])
    settings = {
        f"fraction of the memory bandwidth limit, batch 1, {name}": round(fraction, 2)
        for name, fraction in bandwidth_fractions.items()
    }
    print(settings)
    settings |= {"prompt": PROMPT, "new": NEW, "dtype": str(fastest_dtype())}
    report("language_models", ratios, SEED, section="generation", **settings)


def generate(model: GPT, prompts: Tensor) -> Callable[[], Any]:
    return lambda: greedy(model, prompts, max_new_tokens=NEW, min_new_tokens=NEW)


def generate_with_transformers(model: PreTrainedModel, prompts: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mask = torch.ones_like(prompts)
            return model.generate(prompts, attention_mask=mask, do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW)

    return run


def bandwidth_fraction(model: GPT, generation: Run) -> float:
    """The time to read all weights once per token, as a fraction of the time of the generation."""
    parameters = set(model.parameters())  # tied weights count once
    if model.lm_head.weight is not model.token_embedding.weight:
        parameters.remove(model.token_embedding.weight)  # only one row per token is read
    # not zeros, which are one page of memory until they are written
    block = torch.ones(sum(parameter.numel() * parameter.element_size() for parameter in parameters) // 4)

    def read_weights() -> None:
        for _ in range(NEW):
            block.sum()

    generation()
    return statistics.median(seconds(read_weights) / seconds(generation) for _ in range(ROUNDS))


def main() -> None:
    torch.manual_seed(SEED)
    sections = {"training": training, "compiled": partial(training, True), "loop": loop, "generation": generation}
    for name in sys.argv[1:] or sections:
        sections[name]()


if __name__ == "__main__":
    main()
