"""Checks of the strings that tokenizers encode."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from regard.checks import Checks


def check_texts(texts: Sequence[str], argument: str = "texts", names: Sequence[str] | None = None) -> None:
    """Refuse what a tokenizer cannot encode.

    Args:
        texts: The texts.
        argument: What messages call the sequence.
        names: What messages call each text. Default: ``texts[0]``, ``texts[1]`` and so on.

    Raises:
        InvalidType: If it is not a sequence of str.
        InvalidArgument: If texts have lone surrogates; all such texts are named.
    """
    with Checks() as checks:
        if not checks.sequence(argument, texts, "str"):
            return
        names = [f"{argument}[{index}]" for index in range(len(texts))] if names is None else names
        named = list(zip(names, texts, strict=True))
        for name, text in named:
            if not isinstance(text, str):
                checks.fail_type(f"{name}: expected a str, got {type(text).__name__}")
        for problem in surrogate_errors((name, text) for name, text in named if isinstance(text, str)):
            checks.fail(problem)


def surrogate_errors(named: Iterable[tuple[str, str]]) -> list[str]:
    r"""One message for each text with a lone surrogate, which bytes become when they are decoded wrongly.

    Example:
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
