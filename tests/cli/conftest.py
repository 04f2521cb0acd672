"""A real, tiny translator in a folder, and a fixture that runs the command in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from regard.cli.main import main

SENTENCES = ["the cat sat on the mat", "die Katze saß auf der Matte", "where is the station?", "wo ist der Bahnhof?"]


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    """A folder with a model with random weights, whose output is meaningless but well-formed."""
    import torch

    from regard.models import Transformer, TransformerConfig
    from regard.models.checkpoint import save_model
    from regard.text.tokenizer import train_translation_bpe

    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_translation_bpe(SENTENCES, vocab_size=300)
    torch.manual_seed(1)
    config = TransformerConfig(
        tokenizer.vocab_size,
        d_model=16,
        num_heads=2,
        num_encoder_layers=2,
        num_decoder_layers=2,
        d_ff=32,
        max_seq_len=32,
    )
    save_model(folder, Transformer(config), tokenizer)
    return folder


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def regard(monkeypatch, capsys) -> Callable[..., CommandResult]:
    """``regard("translate", "--beam", 1, stdin="text")``: runs the command in this process."""

    def run(*arguments: object, stdin: str | bytes = "") -> CommandResult:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        written = capsys.readouterr()
        return CommandResult(int(end.value.code or 0), written.out, written.err)

    return run
