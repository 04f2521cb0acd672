"""``regard generate``: text from a prompt, streamed as it is generated."""

from __future__ import annotations

import json
from itertools import chain
from typing import Annotated

import typer

from regard.cli.models import load_pipeline
from regard.cli.options import (
    AutoDtypeOption,
    DeviceOption,
    JsonOption,
    OutputOption,
    RequiredModelOption,
    reject_options,
)
from regard.cli.output import open_output
from regard.cli.texts import reject_recording
from regard.text.lines import read_lines


def generate(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="Start of the text; `-` reads it from standard input.")] = "",
    *,
    model: RequiredModelOption,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens to generate.")] = 200,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature; 0 is greedy.")] = 0.8,
    top_k: Annotated[int | None, typer.Option(min=1, help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the most likely tokens of total probability p.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the samples; equal seeds give equal texts.")] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam search of this size instead of sampling.")] = None,
    num_samples: Annotated[int, typer.Option(min=1, help="Number of texts, separated by a line ---.")] = 1,
    as_json: JsonOption = False,
    output: OutputOption = None,
    dtype: AutoDtypeOption = "auto",
    device: DeviceOption = "cpu",
) -> None:
    """Generate text from a prompt, streaming tokens as they are produced.

    Prints the prompt and its continuation; `--json` prints one object per text: prompt and text.

        regard generate "ROMEO:" --model runs/shakespeare/best
        regard generate "Once upon a time" --model gpt2/ --temperature 0 --max-new-tokens 40

    Takes models that `regard train` makes from causal_lm recipes, and GPT-2, Llama, Mistral, Qwen2 and Gemma
    checkpoints.
    """
    if beam is not None:
        drawing = ("temperature", "top_k", "top_p", "seed", "num_samples")
        reject_options(context, drawing, "not used with --beam, which searches for one text")
    elif temperature == 0:
        drawing = ("top_k", "top_p", "seed", "num_samples")
        reject_options(context, drawing, "not used with --temperature 0, which always generates the same text")
    reject_recording("prompt", prompt, "a model continues it")
    if prompt == "-":
        prompt = "\n".join(read_lines("-"))
    from regard.generation.sampling import SamplingParams

    sampling = SamplingParams(temperature, top_k, top_p, seed) if beam is None and temperature else None
    generator = load_pipeline(model, "generate", dtype=dtype, device=device)
    sampling = None if sampling is None else sampling.with_generator(generator.device)  # one generator for all texts
    with open_output(output) as file:
        for number in range(num_samples):
            if beam is not None:
                parts = iter(generator.generate([prompt], beam=beam, max_new_tokens=max_new_tokens))
            else:
                parts = generator.stream(prompt, max_new_tokens=max_new_tokens, sampling=sampling)
            if as_json:
                file.write(json.dumps({"prompt": prompt, "text": "".join(parts)}, ensure_ascii=False) + "\n")
                continue
            first = next(parts, "")  # a prompt that is too long is refused before anything is written
            file.write("---\n" * (number > 0) + prompt)
            for part in chain([first], parts):
                file.write(part)
                file.flush()
            file.write("\n")
