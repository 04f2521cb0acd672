"""GPT and BERT beside transformers' with the same weights: training tokens a second, and generation with a cache.

Training: 6 layers of 384, both with AdamW, dropout 0.1 everywhere and bfloat16 autocast; transformers' attention is
SDPA. Generation: GPT-2 small with random weights, greedy, every text as long; transformers' `generate` with its dynamic
cache. With one text the floor is the time that reading all weights once takes, measured by a sum over as many bytes.
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
from side_by_side import ratios, report, seconds
from torch import Tensor, nn
from transformers import BertForMaskedLM, GenerationConfig, GPT2LMHeadModel, PreTrainedModel

from regard.generation import greedy
from regard.models import GPT, Bert, BertConfig, GPTConfig, save_model
from regard.pipelines.base import fastest_dtype

SEED, ROUNDS = 0, 5
VOCAB, SIZES = 8000, {"d_model": 384, "num_heads": 6, "num_layers": 6, "d_ff": 1536}
ROWS, TOKENS, STEPS = 16, 256, 2
PROMPT, NEW = 32, 64


def theirs_of(model: nn.Module, kind: type[PreTrainedModel], **options: Any) -> PreTrainedModel:
    """The same model as transformers has it."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, model, format="transformers")  # pyright: ignore[reportArgumentType]
        return kind.from_pretrained(folder, attn_implementation="sdpa", **options)


def trainer(model: nn.Module, loss_of: Callable[[], Tensor]) -> Callable[[], None]:
    """A function that trains for some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    model.train()

    def train() -> None:
        for _ in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return train


def same_loss(
    ours: nn.Module, theirs: nn.Module, our_loss: Callable[[], Tensor], their_loss: Callable[[], Tensor]
) -> None:
    """Refuse to time two models that do not compute the same."""
    ours.eval(), theirs.eval()
    with torch.no_grad():
        torch.testing.assert_close(our_loss(), their_loss(), rtol=1e-4, atol=1e-4)


def training() -> None:
    words = torch.randint(3, VOCAB, (ROWS, TOKENS + 1))
    gpt = GPT(GPTConfig(VOCAB, max_seq_len=TOKENS, **SIZES))
    gpt2 = theirs_of(gpt, GPT2LMHeadModel)

    def gpt_loss() -> Tensor:
        hidden, _ = gpt.forward_features(words[:, :-1])
        return gpt.lm_head.loss(hidden, words[:, 1:]).loss

    def gpt2_loss() -> Tensor:
        logits = gpt2(words[:, :-1]).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())

    told = torch.rand(ROWS, TOKENS) < 0.15
    read, labels = words[:, :-1].masked_fill(told, 4), words[:, :-1].masked_fill(~told, -100)
    bert = Bert(BertConfig(VOCAB, max_seq_len=TOKENS, head="masked_lm", **SIZES))
    hf_bert = theirs_of(bert, BertForMaskedLM)

    def bert_loss() -> Tensor:
        assert bert.mlm_head is not None
        hidden, _ = bert.forward_features(read)
        return bert.mlm_head.loss(hidden[told], words[:, :-1][told]).loss

    def hf_bert_loss() -> Tensor:
        return hf_bert(read, labels=labels).loss

    found = {}
    for name, ours, theirs, our_loss, their_loss in (
        ("GPT", gpt, gpt2, gpt_loss, gpt2_loss),
        ("BERT", bert, hf_bert, bert_loss, hf_bert_loss),
    ):
        same_loss(ours, theirs, our_loss, their_loss)
        both = trainer(ours, our_loss), trainer(theirs, their_loss)
        found[f"training tokens a second, our {name} to transformers'"] = ratios(*both, ROUNDS)
    report("language-model-training", found, SEED, vocab=VOCAB, rows=ROWS, tokens=TOKENS, **SIZES)


def generation() -> None:
    gpt = GPT(GPTConfig(50257, max_seq_len=1024)).eval()
    found, dtypes = {}, {"float32": (torch.float32, torch.float32), "default": (fastest_dtype(), torch.float32)}
    floors = {}
    for name, (our_dtype, their_dtype) in dtypes.items():
        ours = GPT(gpt.config).eval()
        ours.load_state_dict(gpt.state_dict())
        ours.to(our_dtype)
        theirs = theirs_of(gpt, GPT2LMHeadModel, dtype=their_dtype).eval()
        theirs.generation_config = GenerationConfig(pad_token_id=0)
        told = "both in float32" if name == "float32" else "each in its default dtype"
        for rows in (8, 1):
            prompts = torch.randint(3, 50257, (rows, PROMPT))
            both = generate(ours, prompts), generate_with_transformers(theirs, prompts)
            if name == "float32":
                alike = [hypothesis.tokens for hypothesis in both[0]()] == both[1]()[:, PROMPT:].tolist()
                assert alike, "the two generate different words"
            found[f"GPT-2 small, batch {rows}, generation against transformers', {told}"] = ratios(*both, ROUNDS)
            if rows == 1:
                floors[name] = floor_share(ours, both[0])
    told = {f"share of the floor, batch 1, {name}": round(share, 2) for name, share in floors.items()}
    print(told)
    report("generation", found, SEED, prompt=PROMPT, new=NEW, dtype=str(fastest_dtype()), **told)


def generate(model: GPT, prompts: Tensor) -> Callable[[], Any]:
    return lambda: greedy(model, prompts, max_new_tokens=NEW, min_new_tokens=NEW)


def generate_with_transformers(model: PreTrainedModel, prompts: Tensor) -> Callable[[], Any]:
    def run() -> Any:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            real = torch.ones_like(prompts)
            return model.generate(prompts, attention_mask=real, do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW)

    return run


def floor_share(model: GPT, work: Callable[[], object]) -> float:
    """How large a part of the time it takes to read all weights for each word is of the time that generation takes."""
    parameters = list(model.parameters())  # a tied weight counts once: it is read once for all words of the vocabulary
    embeddings = (
        {id(model.token_embedding.weight)} if model.lm_head.weight is not model.token_embedding.weight else set()
    )
    size = sum(each.numel() * each.element_size() for each in parameters if id(each) not in embeddings)
    block = torch.zeros(size // 4)

    def read() -> None:
        for _ in range(NEW):
            block.sum()

    work()
    return statistics.median(seconds(read) / seconds(work) for _ in range(ROUNDS))


def main() -> None:
    torch.manual_seed(SEED)
    sections = {"training": training, "generation": generation}
    for name in sys.argv[1:] or sections:
        sections[name]()


if __name__ == "__main__":
    main()
