"""Which head and which query a page follows."""

from __future__ import annotations

import pytest
import torch

import regard
from regard.errors import InvalidArgument, InvalidType
from regard.explore.trace_selection import find_query, select
from regard.tracing.trace import Trace, TraceBuilder

TOKENS = ["[CLS]", "▁The", "▁an", "imal", "▁slept", ".", "[SEP]"]


def trace_of(weights, queries=TOKENS, keys=TOKENS, axis="token") -> Trace:
    """A trace with an input and these weights only."""
    builder = TraceBuilder(query=queries, key=keys, token=keys)
    builder.add("input", "X", f"{axis} feature", torch.zeros(len(queries), 2))
    builder.add("weights", "P", "head query key", torch.as_tensor(weights))
    return Trace("a title", tuple(builder.steps))


def uniform(heads, queries=7, keys=7):
    return torch.full((heads, queries, keys), 1 / keys)


def test_the_head_is_that_with_the_lowest_entropy_over_words():
    weights = uniform(3)
    weights[0, [0, 3, 5, 6]] = torch.eye(7)[0]  # sharp where no word begins
    weights[2, [1, 2, 4]] = torch.tensor([0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    actual = select(trace_of(weights))
    assert actual.head == 2
    entropy = -(0.4 * torch.tensor(0.4).log() + 0.6 * torch.tensor(0.1).log())
    assert f"head 2 has the lowest entropy of the 3 heads ({entropy:.2f} nats" in actual.reason


def test_the_query_is_the_word_with_the_largest_weight_on_another_word():
    weights = uniform(1)
    weights[0, 0, 4] = weights[0, 3, 4] = weights[0, 5, 4] = 0.95  # special, inside a word, punctuation
    weights[0, 1, 0] = weights[0, 1, 3] = weights[0, 1, 5] = 0.9  # on what is not a word
    weights[0, 1, 1] = 0.9  # itself
    weights[0, 4, 2] = 0.6
    actual = select(trace_of(weights))
    assert actual.query == 4
    assert actual.reason == "“slept” has the largest weight of a word on another word (0.60 on “an”)"


def test_what_the_caller_chooses_stays():
    weights = uniform(2)
    weights[1] = torch.eye(7)
    assert select(trace_of(weights), head=0).head == 0
    assert "lowest entropy" not in select(trace_of(weights), head=0).reason
    actual = select(trace_of(weights), head=0, query="slept")
    assert (actual.head, actual.query, actual.reason) == (0, 4, "")


def test_in_cross_attention_a_word_may_attend_to_the_same_word():
    weights = uniform(1)
    weights[0, 1, 1] = 0.9
    assert select(trace_of(weights, axis="query")).query == 1


def test_a_text_without_words_has_a_query_too():
    tokens = ["<s>", ".", "</s>"]
    assert select(trace_of(uniform(1, 3, 3), tokens, tokens)).query in range(3)
    assert select(trace_of(uniform(1, 1, 1), ["<s>"], ["<s>"])).query == 0
    assert select(regard.trace([[1.0, 2.0], [0.0, 1.0]])).head == 0


@pytest.mark.parametrize(("query", "index"), [(2, 2), ("2", 2), ("slept", 4), ("▁slept", 4), ("imal", 3), ("[SEP]", 6)])
def test_a_query_is_an_index_or_a_token(query, index):
    assert find_query(trace_of(uniform(1)), query) == index


def test_the_first_of_equal_tokens_is_taken_and_digits_are_an_index():
    tokens = ["▁a", "▁1", "▁a"]
    assert find_query(trace_of(uniform(1, 3, 3), tokens, tokens), "a") == 0
    assert find_query(trace_of(uniform(1, 3, 3), tokens, tokens), "1") == 1
    assert find_query(trace_of(uniform(1, 3, 3), ["▁1", "▁b", "▁0"], tokens), "0") == 0


def test_what_is_not_there_is_an_error():
    trace = trace_of(uniform(2))
    with pytest.raises(InvalidArgument, match="query: expected 0 to 6, the last query of the layer, got 7"):
        find_query(trace, 7)
    with pytest.raises(InvalidArgument, match=r"or one of the tokens \[CLS\], The, an, .*; got 'dog'"):
        find_query(trace, "dog")
    with pytest.raises(InvalidType, match=r"query: expected an index or the text of a token, got 1\.5"):
        find_query(trace, 1.5)
    with pytest.raises(InvalidArgument, match=r"head: .* got 2"):
        select(trace, head=2)
    with pytest.raises(InvalidType, match="head: "):
        select(trace, head="2")
