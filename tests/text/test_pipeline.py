"""Tokenizers read from tokenizer.json."""

from __future__ import annotations

import pytest
import tokenizers

from regard.errors import InvalidArgument
from regard.text.load import check_vocab_size
from regard.text.pipeline import PipelineTokenizer


def test_ids_with_gaps():
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 5}, unk_token="<unk>"))
    backend.add_special_tokens(["<unk>"])
    tokenizer = PipelineTokenizer(backend)
    assert (tokenizer.vocab_size, tokenizer.regular_token_ids) == (6, [1, 5])
    with pytest.raises(InvalidArgument, match="the tokenizer has 6 words, but the model 5"):
        check_vocab_size(tokenizer, 5, "model")
