"""GPT and BERT compared with transformers' with the same weights: training speed, and generation with a cache.

training: 6 layers of 384, AdamW, dropout 0.1 and bfloat16 autocast; transformers uses SDPA.

generation: GPT-2 small with random weights, greedy, all texts of the same length; transformers uses its dynamic cache.
With one text, the lower bound is the time to read all weights once per token, measured as a sum over as many bytes.

Run: ``python benchmarks/language_models.py [training|generation]``
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from timing import Run, report, seconds, speedup
from torch import Tensor, nn
from transformers import BertForMaskedLM, GenerationConfig, GPT2LMHeadModel, PreTrainedModel

from regard.generation import greedy
from regard.models import GPT, Bert, BertConfig, GPTConfig, save_model
from regard.pipelines.base import fastest_dtype
from training import train_steps

SEED, ROUNDS = 0, 5
VOCAB, SIZES = 8000, {"d_model": 384, "num_heads": 6, "num_layers": 6, "d_ff": 1536}
ROWS, TOKENS, STEPS = 16, 256, 2
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


def training() -> None:
    input_ids = torch.randint(3, VOCAB, (ROWS, TOKENS + 1))
    inputs = input_ids[:, :-1]
    gpt = GPT(GPTConfig(VOCAB, max_seq_len=TOKENS, **SIZES))
    gpt2 = in_transformers(gpt, GPT2LMHeadModel)

    def gpt_loss() -> Tensor:
        hidden, _ = gpt.forward_features(inputs)
        return gpt.lm_head.loss(hidden, input_ids[:, 1:]).loss

    def gpt2_loss() -> Tensor:
        logits = gpt2(inputs).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), input_ids[:, 1:].flatten())

    is_target = torch.rand(ROWS, TOKENS) < 0.15
    masked, labels = inputs.masked_fill(is_target, 4), inputs.masked_fill(~is_target, -100)
    bert = Bert(BertConfig(VOCAB, max_seq_len=TOKENS, head="masked_lm", **SIZES))
    hf_bert = in_transformers(bert, BertForMaskedLM)

    def bert_loss() -> Tensor:
        return bert.masked_lm_loss(masked, None, labels).loss

    def hf_bert_loss() -> Tensor:
        return hf_bert(masked, labels=labels).loss

    def train(model: nn.Module, loss: Callable[[], Tensor]) -> Run:
        return train_steps([loss] * STEPS, torch.optim.AdamW(model.train().parameters(), lr=1e-4, fused=True))

    ratios = {}
    for name, ours, theirs, our_loss, their_loss in (
        ("GPT", gpt, gpt2, gpt_loss, gpt2_loss),
        ("BERT", bert, hf_bert, bert_loss, hf_bert_loss),
    ):
        same_loss(ours, theirs, our_loss, their_loss)
        ratios[f"speedup over transformers: training, {name}"] = speedup(
            train(ours, our_loss), train(theirs, their_loss), ROUNDS
        )
    report("language_models", ratios, SEED, section="training", vocab=VOCAB, rows=ROWS, tokens=TOKENS, **SIZES)


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
    sections = {"training": training, "generation": generation}
    for name in sys.argv[1:] or sections:
        sections[name]()


if __name__ == "__main__":
    main()
