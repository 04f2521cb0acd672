"""A batch on its way."""

from __future__ import annotations

import pytest
import torch

from regard.generation.model_states import EncoderDecoderState


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_log_probabilities_are_those_of_the_model(fresh, sources, dtype):
    model, (src, lengths) = fresh().to(dtype), sources
    decoding = EncoderDecoderState(model, src, lengths, min_length=2)
    for _ in range(4):
        likely = decoding.next_words()
        logits = model(src, decoding.words, lengths).logits[:, -1].float()
        expected = logits.log_softmax(-1)
        expected[:, [0, 1] if decoding.length >= 2 else [0, 1, 2]] = -torch.inf
        assert likely.dtype == torch.float32
        torch.testing.assert_close(likely, expected, atol=1e-4 if dtype == torch.float32 else 0.1, rtol=0)
        decoding.go_on(likely.argmax(-1))


@torch.inference_mode()
def test_sentences_that_leave_take_their_rows_along(fresh, sources):
    model, (src, lengths) = fresh(), sources
    decoding = EncoderDecoderState(model, src, lengths, beams=2)
    words = decoding.next_words().argmax(-1)
    staying = torch.tensor([1, 4])
    rows = torch.tensor([2, 3, 8, 9])
    decoding.go_on(words[rows], rows, staying)
    expected = EncoderDecoderState(model, src[staying], lengths[staying], beams=2)
    expected.next_words()
    expected.go_on(words[rows])
    torch.testing.assert_close(decoding.next_words(), expected.next_words(), atol=1e-4, rtol=0)
    assert decoding.numbers.tolist() == [1, 4]
