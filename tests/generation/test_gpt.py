"""Greedy, beam search and sampling from prompts against transformers' generate with the same weights."""

from __future__ import annotations

import pytest
import torch

from helpers.transformers_models import gpt2, llama
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
    """A model of transformers, biased towards some tokens so that it ends, and it as a model of this library."""
    folder, reference = tmp_path_factory.mktemp("model"), MAKERS[request.param]()
    with torch.no_grad():
        reference.get_input_embeddings().weight.mul_(3)
    reference.save_pretrained(folder)
    return reference, load_model(folder)


@pytest.fixture
def prompts():
    """Six prompts of different lengths, and these lengths."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([9, 1, 5, 7, 9, 2])
    return torch.randint(12, 60, (6, 9), generator=generator), lengths


def generate(reference, prompts, lengths, **options):
    """Tokens that transformers generates, without prompts, EOS and padding."""
    padded = torch.stack([row.roll(len(row) - int(count)) for row, count in zip(prompts, lengths, strict=True)])
    real = (torch.arange(prompts.shape[1]) >= prompts.shape[1] - lengths[:, None]).long()
    results = reference.generate(padded, attention_mask=real, pad_token_id=0, do_sample=False, **options)
    ends = reference.config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    texts = []
    for row in results[:, prompts.shape[1] :].tolist():
        end = next((index for index, token in enumerate(row) if token in ends), len(row))
        texts.append(row[:end])
    return texts


@torch.no_grad()
def test_greedy_equals_transformers(pair, prompts):
    reference, model = pair
    results = greedy(model, *prompts, max_new_tokens=20)
    assert [hypothesis.tokens for hypothesis in results] == generate(reference, *prompts, max_new_tokens=20)
    for hypothesis, prompt, length in zip(results, *prompts, strict=True):
        sequence = torch.cat([prompt[:length], torch.tensor(hypothesis.tokens, dtype=torch.int64)])
        log_probs = model(sequence[None]).logits[0].log_softmax(-1)
        tokens = [*hypothesis.tokens, *([2] if hypothesis.finished else [])]
        positions = range(int(length) - 1, int(length) - 1 + len(tokens))
        if not hypothesis.finished or len(model.config.eos_ids) == 1:
            score = sum(float(log_probs[position, token]) for position, token in zip(positions, tokens, strict=True))
            assert hypothesis.score == pytest.approx(score, abs=1e-3)


@pytest.mark.parametrize("beam", [2, 4])
def test_beam_search_equals_transformers(pair, prompts, beam):
    reference, model = pair
    results = beam_search(model, *prompts, beam=beam, max_new_tokens=12)
    options = {"num_beams": beam, "max_new_tokens": 12, "length_penalty": 1.0, "early_stopping": False}
    assert [best[0].tokens for best in results] == generate(reference, *prompts, **options)


@pytest.mark.parametrize("beam", [2, 4])
def test_every_row_of_a_beam_may_end_in_several_ways(tmp_path, beam):
    ends = [2, 5, 7, 11]
    reference = llama(eos_token_id=ends)
    with torch.no_grad():
        reference.get_input_embeddings().weight.mul_(3)
        near = 0.02 * torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
        reference.lm_head.weight[ends] = 1.6 * reference.lm_head.weight[2] + near  # they compete for the same beams
    reference.save_pretrained(tmp_path)
    prompts = torch.randint(12, 60, (40, 5), generator=torch.Generator().manual_seed(0))
    lengths = torch.full((40,), 5)
    results = beam_search(load_model(tmp_path), prompts, lengths, beam=beam, max_new_tokens=12, length_penalty=2)
    options = {"num_beams": beam, "max_new_tokens": 12, "length_penalty": 2.0, "early_stopping": False}
    assert [best[0].tokens for best in results] == generate(reference, prompts, lengths, **options)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_lengths_in_few_bits_are_the_same_lengths(prompts, dtype):
    torch.manual_seed(0)
    model = GPT(GPTConfig(61, **{**SMALL, "max_seq_len": 300, "positions": "sinusoidal", "eos_ids": ()})).eval()
    input_ids, lengths = prompts
    assert greedy(model, input_ids, lengths.to(dtype)) == greedy(model, input_ids, lengths)


def test_models_that_do_not_generate_are_refused(prompts):
    model = Bert(BertConfig(61, d_model=32, num_heads=4, num_layers=1, d_ff=48)).eval()
    with pytest.raises(InvalidType, match="model: expected a GPT or an encoder-decoder, got Bert"):
        greedy(model, *prompts)
    with pytest.raises(InvalidType, match=r"input_ids: expected a tensor, got list"):
        sample(GPT(GPTConfig(61, **SMALL)).eval(), [[1, 2]])


@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "relative", "rotary", "alibi", "t5", "none"])
@pytest.mark.parametrize("search", [greedy, beam_search])
def test_a_batch_with_a_cache_equals_each_prompt_without(prompts, positions, search):
    torch.manual_seed(0)
    model = GPT(GPTConfig(61, positions=positions, **SMALL)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    results = search(model, *prompts, max_new_tokens=10)
    for index, hypothesis in enumerate(results):
        alone = search(model, prompts[0][index : index + 1, : prompts[1][index]], max_new_tokens=10, cache=False)[0]
        actual, other = (each if search is beam_search else [each] for each in (hypothesis, alone))
        assert [each.tokens for each in actual] == [each.tokens for each in other]
        assert [each.score for each in actual] == pytest.approx([each.score for each in other], abs=1e-4)


def test_generation_continues_until_max_seq_len(prompts):
    model = GPT(GPTConfig(61, **{**SMALL, "eos_ids": ()})).eval()
    results = greedy(model, *prompts)
    assert [len(hypothesis.tokens) for hypothesis in results] == [40 - length for length in prompts[1].tolist()]
    assert not any(hypothesis.finished for hypothesis in results)
    drawn = [sample(model, *prompts, seed=seed, max_new_tokens=6) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("shape", "lengths", "message"),
    [
        ((1, 40), None, "input_ids: expected prompts shorter than the model's max_seq_len 40, got one of 40 tokens"),
        ((2, 3), [3, 0], "lengths: expected values from 1 to the 3 tokens of input_ids, got 0"),
        ((2, 3), [3, 4], "lengths: expected values from 1 to the 3 tokens of input_ids, got 4"),
    ],
)
def test_invalid_prompts_are_refused(shape, lengths, message):
    model = GPT(GPTConfig(61, **SMALL)).eval()
    with pytest.raises(InvalidArgument, match=message):
        greedy(model, torch.ones(shape, dtype=torch.int64), None if lengths is None else torch.tensor(lengths))
    expected = "min_new_tokens: expected at most the 37 tokens that a prompt of 3 leaves of the model's max_seq_len"
    with pytest.raises(InvalidArgument, match=f"{expected}, got 39; pass max_new_tokens"):
        greedy(model, torch.ones(1, 3, dtype=torch.int64), min_new_tokens=39)
    with pytest.raises(InvalidArgument, match="input_ids: expected values from 0 to vocab_size - 1 = 60, got 61"):
        greedy(model, torch.tensor([[61]]))


@torch.no_grad()
@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi"])
def test_generation_beyond_the_context_reads_its_end_as_nanogpt_does(prompts, positions):
    torch.manual_seed(0)
    model = GPT(GPTConfig(61, **{**SMALL, "max_seq_len": 12, "positions": positions, "eos_ids": ()})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    batch, lengths = prompts
    results = greedy(model, batch, lengths, max_new_tokens=30)
    for row, length, hypothesis in zip(batch, lengths, results, strict=True):
        ids = row[:length]
        for _ in range(30):
            logits = model(ids[None, -12:]).logits[0, -1]
            ids = torch.cat([ids, logits.argmax()[None]])
        assert hypothesis.tokens == ids[length:].tolist()
    assert len({tuple(hypothesis.tokens) for hypothesis in results}) > 1
    (best,) = beam_search(model, batch[:1], lengths[:1], beam=3, max_new_tokens=20)[0]
    assert len(best.tokens) == 20


def test_lengths_in_few_bits_of_long_prompts_are_the_same_lengths():
    torch.manual_seed(0)
    model = GPT(GPTConfig(61, **{**SMALL, "max_seq_len": 320})).eval()
    prompts, lengths = torch.randint(3, 61, (2, 261)), torch.tensor([200, 7])  # 261 is 5 in 8 bits
    expected = greedy(model, prompts, lengths, max_new_tokens=4)
    assert greedy(model, prompts, lengths.to(torch.uint8), max_new_tokens=4) == expected
