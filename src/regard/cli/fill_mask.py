"""``regard fill-mask``: the most probable tokens at masked positions, by a masked language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import ExactDtype, dtype_of, require_model
from regard.cli.show import sentence_objections
from regard.errors import raise_problems


def fill_mask(
    text: Annotated[
        str, typer.Argument(help="A text with the model's mask token, such as `[MASK]` or `<mask>`, in quotes.")
    ],
    *,
    model: Annotated[Path, typer.Option(help="Model folder: a run's, or a BERT or RoBERTa checkpoint.")],
    top_k: Annotated[int, typer.Option(min=1, help="Number of tokens for each mask.")] = 5,
    dtype: ExactDtype = "float32",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object: text, and for each mask the tokens with probabilities."),
    ] = False,
) -> None:
    """Predict masked tokens: the most probable ones at each mask, with their probabilities.

        regard fill-mask "Paris is the [MASK] of France." --model bert-base-uncased/ --top-k 3

    The mask token of models that `regard train` makes is `<mask>`. In a WordPiece vocabulary, `##ing` continues a word.
    """
    raise_problems(sentence_objections("TEXT", text))
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from regard.models import Bert
    from regard.pipelines.text_encoder import TextEncoder

    require_model(model, Bert)
    predictions = TextEncoder.load(model, dtype=dtype_of(dtype)).fill_mask(text, top_k)
    if as_json:
        masks = [prediction.probabilities for prediction in predictions]
        print(json.dumps({"text": text, "masks": masks}, ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("mask", "token", "probability"):
        table.add_column(heading, justify="left" if heading == "token" else "right")
    for number, prediction in enumerate(predictions):
        for rank, (token, probability) in enumerate(prediction.probabilities.items()):
            table.add_row(str(number) if rank == 0 else "", Text(token), f"{probability:.4f}")
    Console().print(table)
