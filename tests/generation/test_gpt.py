"""Greedy, beam search and sampling from prompts against transformers' generate with the same weights."""

from __future__ import annotations

import pytest
import torch

from models.huggingface.theirs import gpt2, llama
from regard.errors import InvalidArgument, InvalidType
from regard.generation import beam_search, greedy, sample
from regard.models import GPT, Bert, BertConfig, GPTConfig, load_model

MAKERS = {
    "gpt2": gpt2,
    "llama": llama,
    "llama, several ends": lambda: llama(eos_token_id=[2, 5, 7, 11], tie_word_embeddings=True),
}
SMALL = {"d_model": 32, "num_heads": 4, "num_layers": 2, "d_ff": 48, "max_seq_len": 40, "eos_ids": (2,)}


@pytest.fixture(scope="module", params=MAKERS)
def pair(request, tmp_path_factory):
    """A model of transformers, sure of some words so that it ends, and ours with its weights."""
    folder, theirs = tmp_path_factory.mktemp("model"), MAKERS[request.param]()
    with torch.no_grad():
        theirs.get_input_embeddings().weight.mul_(3)
    theirs.save_pretrained(folder)
    return theirs, load_model(folder)


@pytest.fixture
def prompts():
    """Six prompts of different lengths, and these lengths."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([9, 1, 5, 7, 9, 2])
    return torch.randint(12, 60, (6, 9), generator=generator), lengths


def generate(theirs, prompts, lengths, **options):
    """What transformers generates: without the prompts, ends and what fills up."""
    padded = torch.stack([row.roll(len(row) - int(count)) for row, count in zip(prompts, lengths, strict=True)])
    real = (torch.arange(prompts.shape[1]) >= prompts.shape[1] - lengths[:, None]).long()
    found = theirs.generate(padded, attention_mask=real, pad_token_id=0, do_sample=False, **options)
    ends = theirs.config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    texts = []
    for row in found[:, prompts.shape[1] :].tolist():
        end = next((place for place, word in enumerate(row) if word in ends), len(row))
        texts.append(row[:end])
    return texts


@torch.no_grad()
def test_greedy_equals_transformers(pair, prompts):
    theirs, ours = pair
    found = greedy(ours, *prompts, max_length=20)
    assert [hypothesis.tokens for hypothesis in found] == generate(theirs, *prompts, max_new_tokens=20)
    for hypothesis, prompt, length in zip(found, *prompts, strict=True):
        whole = torch.cat([prompt[:length], torch.tensor(hypothesis.tokens, dtype=torch.int64)])
        told = ours(whole[None]).logits[0].log_softmax(-1)
        words = [*hypothesis.tokens, *([2] if hypothesis.finished else [])]
        places = range(int(length) - 1, int(length) - 1 + len(words))
        if not hypothesis.finished or len(ours.config.eos_ids) == 1:
            score = sum(float(told[place, word]) for place, word in zip(places, words, strict=True))
            assert hypothesis.score == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize("beam", [2, 4])
def test_beam_search_equals_transformers(pair, prompts, beam):
    theirs, ours = pair
    found = beam_search(ours, *prompts, beam=beam, max_length=12)
    options = {"num_beams": beam, "max_new_tokens": 12, "length_penalty": 1.0, "early_stopping": False}
    assert [best[0].tokens for best in found] == generate(theirs, *prompts, **options)


@pytest.mark.parametrize("beam", [2, 4])
def test_every_row_of_a_beam_may_end_in_several_ways(tmp_path, beam):
    ends = [2, 5, 7, 11]
    theirs = llama(eos_token_id=ends)
    with torch.no_grad():
        theirs.get_input_embeddings().weight.mul_(3)
        near = 0.02 * torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
        theirs.lm_head.weight[ends] = 1.6 * theirs.lm_head.weight[2] + near  # all come together, or none does
    theirs.save_pretrained(tmp_path)
    prompts = torch.randint(12, 60, (40, 5), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((40,), 5)
    found = beam_search(load_model(tmp_path), prompts, lengths, beam=beam, max_length=12, length_penalty=2)
    options = {"num_beams": beam, "max_new_tokens": 12, "length_penalty": 2.0, "early_stopping": False}
    assert [best[0].tokens for best in found] == generate(theirs, prompts, lengths, **options)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_lengths_in_few_bits_are_the_same_lengths(prompts, dtype):
    torch.manual_seed(0)
    model = GPT(GPTConfig(61, **{**SMALL, "max_seq_len": 300, "positions": "sinusoidal", "eos_ids": ()})).eval()
    words, lengths = prompts
    assert greedy(model, words, lengths.to(dtype)) == greedy(model, words, lengths)


def test_models_that_do_not_write_are_refused(prompts):
    model = Bert(BertConfig(61, d_model=32, num_heads=4, num_layers=1, d_ff=48)).eval()
    with pytest.raises(InvalidType, match="model must be a GPT or a translator, which write, but is a Bert"):
        greedy(model, *prompts)
    with pytest.raises(InvalidType, match=r"prompts: expected a tensor, got list"):
        sample(GPT(GPTConfig(61, **SMALL)).eval(), [[1, 2]])


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "relative", "rotary", "alibi", "t5", "none"])
@pytest.mark.parametrize("search", [greedy, beam_search])
def test_a_batch_with_a_cache_equals_each_prompt_without(prompts, positions, search):
    torch.manual_seed(0)
    model = GPT(GPTConfig(61, positions=positions, **SMALL)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    found = search(model, *prompts, max_length=10)
    for number, hypothesis in enumerate(found):
        alone = search(model, prompts[0][number : number + 1, : prompts[1][number]], max_length=10, cache=False)[0]
        mine, other = (each if search is beam_search else [each] for each in (hypothesis, alone))
        assert [each.tokens for each in mine] == [each.tokens for each in other]
        assert [each.score for each in mine] == pytest.approx([each.score for each in other], abs=1e-4)


def test_a_text_goes_on_until_the_positions_end(prompts):
    model = GPT(GPTConfig(61, **{**SMALL, "eos_ids": ()})).eval()
    found = greedy(model, *prompts)
    assert [len(hypothesis.tokens) for hypothesis in found] == [40 - length for length in prompts[1].tolist()]
    assert not any(hypothesis.finished for hypothesis in found)
    drawn = [sample(model, *prompts, seed=seed, max_length=6) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("shape", "lengths", "words"),
    [
        ((1, 40), None, "a prompt has 40 words, but must leave room within the model's max_seq_len 40"),
        ((2, 3), [3, 0], "lengths must be at least 1, but a prompt is empty"),
        ((2, 3), [3, 4], "lengths: expected values from 0 to the 3 tokens of prompts, got 4"),
    ],
)
def test_prompts_that_do_not_fit_are_refused(shape, lengths, words):
    model = GPT(GPTConfig(61, **SMALL)).eval()
    with pytest.raises(InvalidArgument, match=words):
        greedy(model, torch.ones(shape, dtype=torch.int64), None if lengths is None else torch.tensor(lengths))
    with pytest.raises(InvalidArgument, match="prompts: expected values from 0 to vocab_size - 1 = 60, got 61"):
        greedy(model, torch.tensor([[61]]))


@torch.no_grad()
@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
def test_generation_beyond_the_context_reads_its_end_as_nanogpt_does(prompts, positions):
    torch.manual_seed(0)
    model = GPT(GPTConfig(61, **{**SMALL, "max_seq_len": 12, "positions": positions, "eos_ids": ()})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch, lengths = prompts
    found = greedy(model, batch, lengths, max_length=30)
    for row, length, hypothesis in zip(batch, lengths, found, strict=True):
        ids = row[:length]
        for _ in range(30):
            logits = model(ids[None, -12:]).logits[0, -1]
            ids = torch.cat([ids, logits.argmax()[None]])
        assert hypothesis.tokens == ids[length:].tolist()
    assert len({tuple(hypothesis.tokens) for hypothesis in found}) > 1
    (best,) = beam_search(model, batch[:1], lengths[:1], beam=3, max_length=20)[0]
    assert len(best.tokens) == 20
