"""The turns of a chat, from the special tokens of its template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from regard.text.tokens import SPACE, is_special, normalize_tokens

_ROLE_FOLLOWS = {"<|im_start|>", "<start_of_turn>", "<|start_header_id|>", "<|start_of_role|>"}
"""Tokens before the name of a role: ChatML (Qwen), Gemma, Llama 3, Granite."""
_ROLES = {
    "[SYSTEM_PROMPT]": "system",
    "[INST]": "user",
    "[/INST]": "assistant",  # Mistral
    "<|system|>": "system",
    "<|user|>": "user",
    "<|assistant|>": "assistant",  # Phi 3
    "<｜User｜>": "user",
    "<｜Assistant｜>": "assistant",  # DeepSeek
}
"""Tokens that begin the turn of a role."""
_ROLE_NAME = re.compile(r"\w{1,20}", re.ASCII)
_MAX_ROLE_TOKENS = 24
"""More than a name can have: each token is at least a character."""


def chat_turns(tokens: Sequence[str]) -> dict[str, range]:
    r"""The turns of a chat by role, each from the special token that begins it up to the next turn.

    Args:
        tokens: Tokens of a chat template in order. Known are ChatML and the templates of Gemma, Llama 3, Granite,
            Mistral, Phi 3 and DeepSeek, if their marks are special tokens.

    Returns:
        The positions of each turn by its role; roles with several turns are numbered, ``user 1``, ``user 2``. Tokens
        before the first turn are in none. Empty if there is no turn, or a role has no name.

    Examples:
        >>> chat_turns(["<s>", "<|im_start|>", "user", "\n", "Hi", "<|im_end|>", "\n", "<|im_start|>", "assistant"])
        {'user': range(1, 7), 'assistant': range(7, 9)}
    """
    starts = list(_starts(tokens))
    if not all(role for _, role in starts):
        return {}
    counts, number = Counter(role for _, role in starts), Counter[str]()
    turns = {}
    for (start, role), (stop, _) in pairwise([*starts, (len(tokens), "")]):
        number[role] += 1
        turns[f"{role} {number[role]}" if counts[role] > 1 else role] = range(start, stop)
    return turns


def _starts(tokens: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The position and the role of the token that begins each turn."""
    for position, token in enumerate(tokens):
        if token in _ROLES:
            yield position, _ROLES[token]
        elif token in _ROLE_FOLLOWS:
            yield position, _role(tokens[position + 1 : position + 1 + _MAX_ROLE_TOKENS])


def _role(tokens: Sequence[str]) -> str:
    """The name of a role, which a line end, a special token or the end of the text ends; empty if it is not a word."""
    name = ""
    for token, spelled in zip(tokens, normalize_tokens(tokens), strict=True):
        if is_special(token) or "\n" in name:
            break
        name += spelled.replace(SPACE, " ").replace("<0x0A>", "\n")
    role = name.partition("\n")[0].strip()
    return role if _ROLE_NAME.fullmatch(role) else ""
