"""``regard fill-mask``: the most probable tokens at masked positions, by a masked language model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from regard.cli.models import load_pipeline
from regard.cli.options import DeviceOption, DtypeOption, JsonOption, RequiredModelOption
from regard.cli.texts import check_texts, reject_recording


def fill_mask(
    text: Annotated[
        str, typer.Argument(help="Text with the model's mask token, such as `[MASK]` or `<mask>`, in quotes.")
    ],
    *,
    model: RequiredModelOption,
    top_k: Annotated[int, typer.Option(min=1, help="Number of tokens for each mask.")] = 5,
    as_json: JsonOption = False,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
) -> None:
    """Predict masked tokens: the most probable tokens at each mask, with their probabilities.

    Prints a table; `--json` prints one object: text, and masks with the probability of each token.

        regard fill-mask "Paris is the [MASK] of France." --model bert-base-uncased/
        regard fill-mask "The cat <mask> on the <mask>." --model runs/tatoeba-masked-lm/best --top-k 3

    Takes models that `regard train` makes from masked_lm recipes (their mask token is `<mask>`), and BERT or RoBERTa
    checkpoints. In a WordPiece vocabulary, `##ing` continues a word.
    """
    check_texts({"text": text})
    reject_recording("text", text, "a model fills its masks")
    from rich.console import Console
    from rich.text import Text

    from regard.explore.terminal import plain_table

    predictions = load_pipeline(model, "fill-mask", dtype=dtype, device=device).fill_mask(text, top_k)
    if as_json:
        masks = [prediction.probabilities for prediction in predictions]
        print(json.dumps({"text": text, "masks": masks}, ensure_ascii=False))
        return
    table = plain_table()
    for heading in ("mask", "token", "probability"):
        table.add_column(heading, justify="left" if heading == "token" else "right")
    for number, prediction in enumerate(predictions):
        for rank, (token, probability) in enumerate(prediction.probabilities.items()):
            table.add_row(str(number) if rank == 0 else "", Text(token), f"{probability:.4f}")
    Console().print(table)
