"""Checks of the strings that tokenizers encode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import index
from typing import Any

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, short_repr


def check_texts(texts: Sequence[str], argument: str = "texts", names: Sequence[str] | None = None) -> None:
    """Check that a tokenizer can encode texts; the error names all that it cannot encode.

    Args:
        texts: The texts.
        argument: What messages call the sequence.
        names: What messages call each text. Default: ``texts[0]``, ``texts[1]`` and so on.

    Raises:
        InvalidType: If it is not a sequence of str.
        InvalidArgument: If texts have lone surrogates.
    """
    with Checks() as checks:
        if checks.sequence(argument, texts, "str"):
            names = [f"{argument}[{index}]" for index in range(len(texts))] if names is None else names
            for name, text in zip(names, texts, strict=True):
                if isinstance(text, str):
                    checks.problems += surrogate_errors([(name, text)])
                else:
                    checks.fail_type(f"{name}: expected a str, got {type(text).__name__}")


def checked_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts that a tokenizer is trained on, each checked when it is read; errors are those of `check_texts`."""
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise InvalidType(f"texts: expected an iterable of str, got {type(texts).__name__}; pass a list")
    for number, text in enumerate(texts):
        check_texts([text], names=[f"texts[{number}]"])
        yield text


def as_ids(ids: Any, name: str = "ids") -> list[int]:
    """Token ids as ints; raises `InvalidType` for other types, `InvalidArgument` for ids that do not fit in 32 bits."""
    try:
        numbers = [index(each) for each in ids]
    except TypeError:
        raise InvalidType(f"{name}: expected a sequence of token ids, got {short_repr(ids)}") from None
    wrong = next((number for number in numbers if not 0 <= number < 1 << 32), None)
    if wrong is not None:
        raise InvalidArgument(f"{name}: expected token ids of at least 0 and below 2**32, got {wrong}")
    return numbers


def as_sequences(sequences: Any) -> list[list[int]]:
    """Sequences of token ids as lists of ints; errors are those of `as_ids`."""
    if not isinstance(sequences, Iterable):
        raise InvalidType(f"sequences: expected sequences of token ids, got {short_repr(sequences)}")
    return [as_ids(ids, f"sequences[{position}]") for position, ids in enumerate(sequences)]


def surrogate_errors(named: Iterable[tuple[str, str]]) -> list[str]:
    r"""One message for each text with a lone surrogate, which bytes become when they are decoded wrongly.

    Examples:
        >>> surrogate_errors([("line 1", "a\ud800")])
        ["line 1: expected Unicode text, got the lone surrogate '\\ud800' at character 2; decode its bytes again"]
    """
    errors = []
    for name, text in named:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            surrogate = f"the lone surrogate {text[error.start]!r} at character {error.start + 1}"
            errors.append(f"{name}: expected Unicode text, got {surrogate}; decode its bytes again")
    return errors
