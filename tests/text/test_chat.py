"""The turns of chat templates, as the tokenizers of their models spell them."""

from __future__ import annotations

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers

from regard.text.chat import chat_turns

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}"
    "<|eot_id|>{% endfor %}"
)
GEMMA = "<bos>{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
MISTRAL = (
    "<s>{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
    "{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
SPECIAL = [
    *("<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<bos>", "<start_of_turn>", "<end_of_turn>", "<s>", "</s>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]"),
    *("[/INST]", "<｜User｜>", "<｜Assistant｜>"),
]
SYSTEM = {"role": "system", "content": "Be nice."}
USER, MORE = {"role": "user", "content": "What is 猫?"}, {"role": "user", "content": "I <b>see</b>\n\nfoo: bar"}
ANSWER = {"role": "assistant", "content": "A cat.\nOr not."}


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level tokenizer with an entry for each byte, and special tokens."""
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize("template", [CHATML, LLAMA, GEMMA, MISTRAL])
@pytest.mark.parametrize("chat", [[USER], [SYSTEM, USER, ANSWER], [SYSTEM, USER, ANSWER, MORE]])
def test_turns_are_those_of_the_template(tokenizer, template, chat):
    ids = tokenizer.apply_chat_template(chat, chat_template=template, return_dict=False)
    turns = chat_turns(tokenizer.convert_ids_to_tokens(ids))
    several = sum(turn is USER or turn is MORE for turn in chat) > 1
    numbers = {USER["content"]: " 1", MORE["content"]: " 2"} if several else {}
    names = [turn["role"] + numbers.get(turn["content"], "") for turn in chat]
    if template is MISTRAL and chat == [USER]:
        names.append("assistant")  # of which [/INST] is the start
    if template is MISTRAL and chat[-1] is MORE:
        names = ["system", "user 1", "assistant 1", "user 2", "assistant 2"]
    assert list(turns) == names
    positions = [position for turn in turns.values() for position in turn]
    assert positions == list(range(positions[0], len(ids)))
    for name, turn in zip(turns, chat, strict=False):
        assert turn["content"] in tokenizer.decode([ids[position] for position in turns[name]])
        assert tokenizer.convert_ids_to_tokens(ids[turns[name][0]]) in SPECIAL


def test_a_prompt_for_an_answer_ends_with_its_turn(tokenizer):
    ids = tokenizer.apply_chat_template([USER], chat_template=CHATML, add_generation_prompt=True, return_dict=False)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    for cut in (tokens, tokens[:-1]):  # a generation does not read the last token
        assert list(chat_turns(cut)) == ["user", "assistant"]


def test_deepseek():
    tokens = ["<｜begin▁of▁sentence｜>", "Be", "Ġnice", "<｜User｜>", "Hi", "<｜Assistant｜>", "Yes"]
    assert chat_turns(tokens) == {"user": range(3, 5), "assistant": range(5, 7)}


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        ["<s>", "▁[", "INST", "]", "▁Hi"],
        ["<|im_start|>", "Ċ", "Hi"],
        ["<|im_start|>", "This", "Ġis", "Ġnot", "Ġa", "Ġrole", "Ċ"],
        ["<|im_start|>"],
        ["<|im_start|>", "user", "Ċ", "Hi", "<|im_end|>", "<|im_start|>", "<|im_end|>"],
    ],
)
def test_what_is_not_a_chat_has_no_turns(tokens):
    assert chat_turns(tokens) == {}
