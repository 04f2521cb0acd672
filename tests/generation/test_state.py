"""State of a batch during decoding."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InvalidArgument
from regard.generation import beam_search, greedy, sample
from regard.generation.model_states import start_decoding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_log_probabilities_are_those_of_the_model(fresh, sources, dtype):
    model, (src, lengths) = fresh().to(dtype), sources
    state = start_decoding(model, src, lengths, min_new_tokens=2)
    everything = torch.arange(len(src))
    for _ in range(4):
        log_probs = state.next_token_log_probs()
        logits = model(src, state.tokens, lengths).logits[:, -1].float()
        expected = logits.log_softmax(-1)
        expected[:, [0, 1] if state.num_new_tokens >= 2 else [0, 1, 2]] = -torch.inf
        assert log_probs.dtype == torch.float32
        torch.testing.assert_close(log_probs, expected, atol=1e-4 if dtype == torch.float32 else 0.1, rtol=0)
        state.append(log_probs.argmax(-1), everything, everything)


@torch.inference_mode()
def test_finished_sequences_are_removed_with_their_rows(fresh, sources):
    model, (src, lengths) = fresh(), sources
    state = start_decoding(model, src, lengths, num_beams=2)
    tokens = state.next_token_log_probs().argmax(-1)
    kept = torch.tensor([1, 4])
    rows = torch.tensor([2, 3, 8, 9])
    state.append(tokens[rows], rows, kept)
    expected = start_decoding(model, src[kept], lengths[kept], num_beams=2)
    expected.next_token_log_probs()
    expected.append(tokens[rows], torch.arange(4), torch.arange(2))
    torch.testing.assert_close(state.next_token_log_probs(), expected.next_token_log_probs(), atol=1e-4, rtol=0)
    assert state.sequence_ids.tolist() == [1, 4]


@pytest.mark.parametrize("search", ["greedy", "sample", "beam"])
def test_a_model_that_only_generates_eos_cannot_be_made_to_go_on(model, sources, search, monkeypatch):
    src, lengths = sources
    run = {"greedy": greedy, "sample": sample, "beam": beam_search}[search]
    original = model.lm_head.forward

    def only_eos(hidden):
        logits = torch.full_like(original(hidden), -torch.inf)
        logits[..., model.config.eos_id] = 0
        return logits

    monkeypatch.setattr(model.lm_head, "forward", only_eos)
    for hypotheses in run(model, src, lengths):
        (hypothesis, *others) = hypotheses if search == "beam" else [hypotheses]
        assert (hypothesis.tokens, hypothesis.score, hypothesis.finished, others) == ([], 0.0, True, [])
    words = r"min_new_tokens: expected a token other than EOS to have a probability above 0 as new token 1, got none"
    with pytest.raises(InvalidArgument, match=f"{words}; lower min_new_tokens=2"):
        run(model, src, lengths, min_new_tokens=2)


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_a_model_that_only_generates_padding_says_so(model, sources, search, monkeypatch):
    src, lengths = sources
    original = model.lm_head.forward

    def only_padding(hidden):
        logits = torch.full_like(original(hidden), -torch.inf)
        logits[..., model.config.pad_id] = 0
        return logits

    monkeypatch.setattr(model.lm_head, "forward", only_padding)
    words = "expected a token to have a probability above 0 as new token 1, got none but 0, 1, which are never"
    with pytest.raises(InvalidArgument, match=f"model: {words}"):
        {"greedy": greedy, "beam": beam_search}[search](model, src, lengths)
