"""``regard generate``: how a text goes on, as a language model writes it."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from regard.cli.options import FastestDtype, dtype_of, require_model
from regard.cli.output import writing
from regard.errors import InvalidArgument
from regard.text.readers import read_lines


def generate(
    prompt: Annotated[
        str, typer.Argument(help="How the text begins; `-` reads it from standard input.", show_default="nothing")
    ] = "",
    *,
    model: Annotated[
        Path, typer.Option(help="The folder of a model: a run's, or a GPT-2, Llama, Mistral or Qwen2 checkpoint.")
    ],
    dtype: FastestDtype = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Number of tokens to generate at most.", show_default="200"),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Below 1 keeps to likely words; 0 takes the likeliest.", show_default="0.8")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k likeliest words.", show_default="all")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the likeliest words that make up p.", show_default="all")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed writes the same text.")] = None,
    beam: Annotated[
        int | None, typer.Option(min=1, help="Search with so many hypotheses, and draw nothing.", show_default="no")
    ] = None,
    num_samples: Annotated[int, typer.Option(min=1, help="Number of texts, with a line of --- between them.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a text: prompt and text.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file.")] = None,
) -> None:
    """Write how a text goes on, word by word as it is made.

        regard generate "ROMEO:" --model runs/shakespeare/best

    The likeliest words, or the best of a search, in place of a draw:

        regard generate "Once upon a time" --model gpt2/ --temperature 0
        regard generate "Once upon a time" --model gpt2/ --beam 4 --max-new-tokens 40
    """
    idle = [name for name, value in (("--temperature", temperature), ("--top-k", top_k), ("--top-p", top_p),
                                     ("--seed", seed)) if value is not None]  # fmt: skip
    if beam is not None and idle:
        raise InvalidArgument(f"{', '.join(idle)}: says how to draw, but `--beam` searches; leave one of them out")
    if beam is not None and num_samples > 1:
        raise InvalidArgument("`--num-samples`: a search finds one text; leave out `--beam`, or write one")
    if temperature is not None and temperature < 0:
        raise InvalidArgument(
            f"`--temperature` must be at least 0, which takes the likeliest word, but is {temperature}"
        )
    if temperature == 0 and (top_k, top_p, seed) != (None, None, None):
        raise InvalidArgument("`--temperature 0` takes the likeliest word and draws nothing: leave out what draws")
    if temperature == 0 and num_samples > 1:
        raise InvalidArgument("`--num-samples`: `--temperature 0` always writes the same text; leave one of them out")
    if prompt == "-":
        prompt = "\n".join(read_lines("-"))
    from regard.generation.sampling import SamplingParams
    from regard.models import GPT
    from regard.pipelines.generator import Generator

    require_model(model, GPT)
    sampling = None
    if beam is None and temperature != 0:
        sampling = SamplingParams(0.8 if temperature is None else temperature, top_k, top_p, seed)
    writer = Generator.load(model, dtype=dtype_of(dtype))
    most = 200 if max_new_tokens is None else max_new_tokens
    sampling = None if sampling is None else sampling.with_generator(writer.device)
    with writing(output) as file:
        for number in range(num_samples):
            if beam is not None:
                parts = iter(writer.generate([prompt], beam=beam, max_new_tokens=most))
            else:
                parts = writer.stream(prompt, max_new_tokens=most, sampling=sampling)
            if as_json:
                file.write(json.dumps({"prompt": prompt, "text": "".join(parts)}, ensure_ascii=False) + "\n")
                continue
            first = next(parts, "")  # what does not fit is refused before anything is written
            file.write("---\n" * (number > 0) + prompt)
            for part in chain([first], parts):
                file.write(part)
                file.flush()
            file.write("\n")
