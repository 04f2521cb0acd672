"""Write docs/performance.md from benchmarks/results.

Run: ``python benchmarks/write_performance_page.py``
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks/results", ROOT / "docs/performance.md"
RELATIVE, SPEEDUP = "time relative to ", "speedup over "

TEXT = """# What measures cost

Figures are median ratios, measured on two CPU cores with {capability}. Unless a section says otherwise, they are for 8
heads of 64, 4,096 queries and keys, float32, and both functions run alternately in one process.
`python benchmarks/attention_measures.py` repeats the measurement, `python benchmarks/write_performance_page.py` writes
this page, and `benchmarks/results` has the ratio of every round.

## By length and dtype

On CPUs, the kernel `native` computes output and measures in C++. Time relative to SDPA's output alone (lower is
better), 8 heads of 64; "measures" is the output with entropy and received, "causal" the same relative to causal SDPA.
GFLOP/s are those of "measures". Their share is relative to PyTorch's best matrix product in the same dtype, {peaks}
GFLOP/s, which is not the processor's limit, so that it can be above 100 % ({cpu}, instruction set
{instruction_set}; `python benchmarks/native.py`).

| dtype | batch × tokens | output | measures | causal | with backward | measures with backward | GFLOP/s | share |
|---|---|---|---|---|---|---|---|---|
{lengths}

The same with AVX2, for SDPA, too, except for its matrix products (`REGARD_ISA=avx2 ATEN_CPU_CAPABILITY=avx2`):

| dtype | batch × tokens | output | measures | causal | with backward | measures with backward | GFLOP/s | share |
|---|---|---|---|---|---|---|---|---|
{avx2_lengths}

On two cores of an Intel Xeon with AMX (PyTorch 2.11), the output with entropy and received in bfloat16 takes 1.3 times
as long as SDPA's output at 512 tokens, 1.0 times at 1,024 and 1.1 times at 4,096. SDPA computes the output alone there.

With a causal mask, 4,096 tokens take {causal:.2f} times as long as without one. Four measures in float32 take
{four:.2f} times as long as SDPA, with the 8 strongest keys of each query {top:.2f} times. One query
with 4,096 keys (32 heads on 8 heads of keys, head_dim 128) and the weights that keys receive takes {decode}. The
smallest call, 4 tokens with two measures, takes {smallest:.0f} µs, SDPA
{smallest_sdpa:.0f} µs, and dense PyTorch {smallest_dense:.0f} µs.

## Measures in one pass with the output

SDPA (`scaled_dot_product_attention`) computes only the output. Dense PyTorch computes scores, softmax, output and the
same measures, and holds the matrix of 537 MB. "Four" is entropy, received, max and mean_distance in one pass.

| measure | time relative to SDPA (lower is better) | speedup over dense PyTorch (higher is better) |
|---|---|---|
{measures}

## Masks, gradients, graphs

| | compared with | relative time (lower is better) |
|---|---|---|
{relative}

A window computes twice as many cells for twice as many keys: here it took at most {window:.2f} times as long.

| | compared with | speedup (higher is better) |
|---|---|---|
{speedup}

## Models

Models in Regard compared with the same models elsewhere, on a CPU. GPT and BERT of 6 layers and a translator of 3 + 3
layers are trained in bfloat16 (`python benchmarks/training.py`, `language_models.py`). Speedup (higher is better), in
parentheses with AVX2 in the kernels of torch and Regard; products of oneDNN and MKL stay as they are:

| | compared with | same batches | both compiled, with AVX-512 | corpus |
|---|---|---|---|---|
{training}

"Corpus" compares tokens a second, without padding, with what users of the other library write. Regard's translator and
BERT get batches of sentences of similar length, theirs are shuffled and padded to the longest of a batch, with as many
sentences on average. For GPT both have full blocks, and transformers its collator, its loss and clipped gradients, as
in its `Trainer`.

GPT-2 small continues prompts of {prompt} tokens, and a Marian base translates {sentences} sentences with beam {beam}.
Regard's default dtype here is {dtype} (`python benchmarks/language_models.py`, `translation.py`).

| | compared with | speedup (higher is better) |
|---|---|---|
{models}

Generation has to read all weights for each token. With one prompt, adding up numbers of as many bytes would take
{float32_limit:.2f} of GPT-2's time in float32 and {default_limit:.2f} in {dtype}.

## Watching a model

Time relative to the same model without a watch, with SDPA (lower is better), in float32 with random weights
(`python benchmarks/watching.py`):

| model | | tokens | relative time |
|---|---|---|---|
{watching}

## In transformers

Models of transformers with [`attn_implementation="regard"`](how_to/attn_implementation.md), in float32. Time relative
to `"sdpa"` (lower is better); "weights" is with `output_attentions=True`, a `WeightMatrix` for each layer or the dense
weights of `"eager"`; in parentheses with AVX2 (`python benchmarks/attn_implementation.py`):

| model | `"regard"` | `"regard"`, weights | `"eager"`, weights |
|---|---|---|---|
{implementation}

Peak memory of BERT base that reads {implementation_tokens} tokens, above that of the model:
{implementation_memory}.

## Memory

Peak memory above the inputs in MB (lower is better), for the output with entropy and received of 8 heads. The last
column is the size of the weight matrix, which is not stored.

| keys | forward | forward and backward | weight matrix |
|---|---|---|---|
{memory}

## On a GPU

`attend` without measures is SDPA. In bfloat16 and float16, [kernels in Triton](concepts/costs.md) compute measures and
gradients. Their backward pass, most of their rules and decoding are not measured yet: the figures are those of an
earlier version, which had the most common measures of an unmasked, causal, windowed or padded matrix without gradients.
There, forward and backward with entropy and received in bfloat16 at 4,096 keys took
{gpu_backward} times as long as SDPA's.

Time relative to SDPA's output alone (lower is better), {gpu}, batch 1, {gpu_heads} heads of {gpu_head_dim}:

| dtype | keys | output | output, entropy and received | dense PyTorch, the same results |
|---|---|---|---|---|
{gpu_attend}

| dtype | keys | peak MB: output, entropy and received | peak MB: dense PyTorch |
|---|---|---|---|
{gpu_memory}

BERT base, batch 8, time relative to the unwatched model with SDPA (lower is better):

| dtype | tokens | watched, no measures | watched, entropy and received | eager, `output_attentions=True` |
|---|---|---|---|---|
{gpu_watch}

Results differ from float64 on the CPU by at most {gpu_errors}, relative to the largest entry
(`python benchmarks/gpu.py`).

## The explorer

12 layers of 12 heads in headless Chromium on two CPU cores with AVX-512, in milliseconds (lower is better): time until
the first matrix is drawn, response time when the pointer moves to a cell, and time per frame during zooming
(`python benchmarks/explorer.py`). BertViz shows the same weights in the same browser. Its pages normally load libraries
from the network; here they load from disk.

| tokens | | MB | first picture | pointer | frame |
|---|---|---|---|---|---|
{explorer}

Writing the page of 4,096 tokens takes {writing:.1f} times as long as the forward pass of BERT base. Its peak memory
above the recording is {writing_memory} tokens.
"""


def page() -> str:
    """The page, from the result files."""
    explorer = _read("explorer")
    sections = _read("attention_measures")
    measures = sections["measures"]["median_ratio"]
    names = [name.removeprefix(f"{SPEEDUP}dense PyTorch: ") for name in measures if name.startswith(SPEEDUP)]
    rows = [
        f"| {name} | {measures[f'{RELATIVE}SDPA: {name}']:.2f} | {measures[f'{SPEEDUP}dense PyTorch: {name}']:.2f} |"
        for name in names
    ]
    others = {name: ratio for name, ratio in measures.items() if name.split(": ", 1)[1] not in names}
    for section in ("masks", "gradients", "layers", "graphs"):
        others |= sections[section]["median_ratio"]
    megabytes = sections["memory"]["settings"]["megabytes"]
    backward = megabytes["forward and backward"]
    memory = [
        f"| {int(keys):,} | {forward:.0f} | {f'{backward[keys]:.0f}' if keys in backward else ''} | "
        f"{8 * int(keys) ** 2 * 4 / 1e6:,.0f} |"
        for keys, forward in megabytes["forward"].items()
    ]
    writing_memory = explorer["settings"]["memory"].items()
    gpu = _read("gpu")
    native = _read("native")
    return TEXT.format(
        **_native_figures(native),
        gpu=gpu["settings"]["gpu"],
        gpu_heads=gpu["settings"]["heads"],
        gpu_head_dim=gpu["settings"]["head_dim"],
        **_gpu_tables(gpu),
        watching=_watching_rows(_read("watching")["time"]["median_ratio"]),
        **_implementation_figures(),
        capability={"AVX512": "AVX-512"}.get(sections["measures"]["capability"], sections["measures"]["capability"]),
        measures="\n".join(rows),
        relative=_compared(others, RELATIVE),
        speedup=_compared(others, SPEEDUP),
        window=max(ratio for name, ratio in others.items() if "half as many keys" in name),
        memory="\n".join(memory),
        **_model_figures(),
        explorer="\n".join(_explorer_rows(explorer["settings"])),
        writing=explorer["median_ratio"]["time relative to the forward pass: writing the page, 4096"],
        writing_memory=", ".join(f"{size:.0f} MB at {int(tokens):,}" for tokens, size in writing_memory),
    )


def _model_figures() -> dict[str, Any]:
    language_models, training, translation = map(_read, ("language_models", "training", "translation"))
    settings = language_models["generation"]["settings"]
    limit = "fraction of the memory bandwidth limit, batch 1, "
    ratios = language_models["generation"]["median_ratio"]
    ratios |= {name.replace(": ", ": translation, "): ratio for name, ratio in translation["median_ratio"].items()}
    trained = (("GPT", "transformers", language_models), ("BERT", "transformers", language_models))
    return {
        "training": "\n".join(
            _training_row(*model) for model in (*trained, ("translator", "`torch.nn.Transformer`", training))
        ),
        "models": _compared(ratios, SPEEDUP),
        "float32_limit": settings[f"{limit}float32"],
        "default_limit": settings[f"{limit}default"],
        "prompt": settings["prompt"],
        "dtype": settings["dtype"].removeprefix("torch."),
        **{name: translation["settings"][name] for name in ("sentences", "beam")},
    }


def _training_row(model: str, baseline: str, results: dict[str, Any]) -> str:
    """The ratios of a model on the same batches, also compiled, and on a corpus."""
    cells = [f"training, {model}", baseline]
    for section in ("training", "compiled", "loop"):
        ratios = results[section]["median_ratio"]
        avx2 = results[f"{section}, avx2"]["median_ratio"] if section != "compiled" else {}
        names = [name for name in ratios if len(ratios) == 1 or f" {model}" in name]
        cells += [f"{ratios[name]:.2f}" + (f" ({avx2[name]:.2f})" if name in avx2 else "") for name in names]
    return f"| {' | '.join(cells)} |"


def _native_figures(native: dict[str, Any]) -> dict[str, Any]:
    """The table of lengths and dtypes, and the figures in the text below it."""
    forward, peaks = native["forward"]["median_ratio"], native["forward"]["settings"]["peak_gflops"]
    decode = native["decode"]["median_ratio"].items()
    smallest = native["smallest"]["settings"]["rates"]
    both = smallest["float32, 1 x 4: entropy and received"]
    return {
        "lengths": _length_rows(native["forward"], native["backward"]),
        "avx2_lengths": _length_rows(native["forward, avx2"], native["backward, avx2"], dtypes=("float32",)),
        "causal": forward["float32, 1 x 4096: causal relative to all keys"],
        "peaks": " and ".join(f"{gflops:.0f} in {dtype}" for dtype, gflops in peaks.items()),
        "cpu": native["forward"]["cpu"],
        "instruction_set": native["forward"]["instruction_set"],
        "four": forward["float32, 1 x 4096: four measures"],
        "top": forward["float32, 1 x 4096: four measures and topk(8)"],
        "decode": " and ".join(f"{ratio:.2f} times as long in {name.split(', ')[0]}" for name, ratio in decode),
        "smallest": 1e3 * both["ms"],
        "smallest_sdpa": 1e3 * both["sdpa_ms"],
        "smallest_dense": 1e3 * smallest["float32, 1 x 4: dense PyTorch"]["ms"],
    }


def _length_rows(
    forward: dict[str, Any], backward: dict[str, Any], dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
) -> str:
    """One row for each dtype and size."""
    ratios, peaks, rows = forward["median_ratio"], forward["settings"]["peak_gflops"], []
    for name in ratios:
        size, _, what = name.partition(": ")
        dtype, tokens = size.split(", ")
        if what != "entropy and received" or dtype not in dtypes:
            continue
        values = [ratios[f"{size}: {each}"] for each in ("output", what, f"causal, {what}")]
        values += [backward["median_ratio"].get(f"{size}: {each}") for each in ("output", what)]
        cells = " | ".join("" if value is None else f"{value:.2f}" for value in values)
        gflops = forward["settings"]["rates"][name]["gflops"]
        share = f"{100 * gflops / peaks[dtype]:.0f} %" if dtype in peaks else ""
        rows.append(f"| {dtype} | {tokens.replace('x', '×')} | {cells} | {gflops:.0f} | {share} |")
    return "\n".join(rows)


def _compared(ratios: dict[str, float], metric: str) -> str:
    """The rows of a metric: what was measured, its baseline and the ratio."""
    rows = []
    for name, ratio in ratios.items():
        if name.startswith(metric):
            baseline, subject = name.removeprefix(metric).split(": ", 1)
            rows.append(f"| {subject} | {baseline} | {ratio:.2f} |")
    return "\n".join(rows)


def _watching_rows(ratios: dict[str, float]) -> str:
    """One row for each model, number of tokens and kind of watch."""
    rows = []
    for name, ratio in ratios.items():
        model, *what = name.removeprefix(f"{RELATIVE}the unwatched model: ").split(", ")
        tokens, kind = what if what[0].startswith("generation") else reversed(what)
        names = {
            "eager attention with output_attentions=True": "eager, `output_attentions=True`",
            "entropy and received with exact_output=False": "watched, entropy and received, `exact_output=False`",
        }
        kind = names.get(kind, f"watched, {kind}")
        rows.append(f"| {model} | {kind} | {tokens if tokens[0] == 'g' else f'{int(tokens):,}'} | {ratio:.2f} |")
    return "\n".join(rows)


def _implementation_figures() -> dict[str, Any]:
    """What transformers takes with the attention implementation of this library."""
    results = _read("attn_implementation")
    rows: dict[str, list[str]] = {}
    for name, ratio in results["time"]["median_ratio"].items():
        model = name.removeprefix(f"{RELATIVE}sdpa: ").rpartition(", ")[0]
        rows.setdefault(model, []).append(f"{ratio:.2f} ({results['time, avx2']['median_ratio'][name]:.2f})")
    settings = results["memory"]["settings"]
    megabytes = settings["megabytes"]
    eager = "eager with output_attentions=True"
    names = {"sdpa": "`sdpa`", "regard": "`regard`", "regard with output_attentions=True": "`regard` and weights"}
    parts = [f"{megabytes[name]:,.0f} MB with {text}" for name, text in names.items()]
    return {
        "implementation": "\n".join(f"| {model} | {' | '.join(ratios)} |" for model, ratios in rows.items()),
        "implementation_tokens": f"{settings['tokens']:,}",
        "implementation_memory": f"{', '.join(parts)}, and {megabytes[eager]:,.0f} MB with `eager` and weights",
    }


def _gpu_tables(gpu: dict[str, Any]) -> dict[str, str]:
    """The rows of the tables of a GPU: for each dtype and number of keys."""
    ratios, megabytes = gpu["median_ratio"], gpu["settings"]["megabytes"]
    answers = "output, entropy and received"
    attend, memory, watch = [], [], []
    for dtype in ("bfloat16", "float32"):
        sizes = [int(name.rpartition(", ")[2]) for name in megabytes if name.startswith(f"{answers}, {dtype}")]
        for n in sizes:
            dense = f"{RELATIVE}SDPA: dense PyTorch, the same answers, {dtype}, {n}"
            times = [ratios[f"{RELATIVE}SDPA: {what}, {dtype}, {n}"] for what in ("output", answers)]
            last = f"{ratios[dense]:.1f}" if dense in ratios else ""
            attend.append(f"| {dtype} | {n:,} | {times[0]:.1f} | {times[1]:.1f} | {last} |")
            whole = megabytes.get(f"dense PyTorch, {dtype}, {n}")
            size = megabytes[f"{answers}, {dtype}, {n}"]
            memory.append(f"| {dtype} | {n:,} | {size:,.0f} | {'' if whole is None else f'{whole:,.0f}'} |")
        for n in (512, 2048):
            cases = ("no measures", "entropy and received", "eager attention with output_attentions=True")
            title = f"{RELATIVE}the unwatched model: BERT base, batch 8"
            values = " | ".join(f"{ratios[f'{title}, {case}, {dtype}, {n}']:.1f}" for case in cases)
            watch.append(f"| {dtype} | {n:,} | {values} |")
    errors = ", ".join(f"{error:.0e} in {dtype}" for dtype, error in gpu["settings"]["errors"].items())
    tables = {"attend": attend, "memory": memory, "watch": watch}
    backward = ratios[f"{RELATIVE}SDPA: forward and backward with entropy and received, bfloat16, 4096"]
    return {"gpu_errors": errors, "gpu_backward": f"{backward:.0f}"} | {
        f"gpu_{name}": "\n".join(rows) for name, rows in tables.items()
    }


def _explorer_rows(settings: dict[str, Any]) -> list[str]:
    """One row for each page, sorted by the number of tokens."""
    rows = []
    for name, times in settings["milliseconds"].items():
        kind, tokens = name.split(", ")
        size = f"{settings['megabytes'][tokens]:.1f}" if kind == "file" else ""
        page_name = "a file" if kind == "file" else "from `regard serve`"
        milliseconds = [f"{times[what]:.0f}" for what in ("first picture", "hover", "frame")]
        rows.append((int(tokens), f"| {int(tokens):,} | {page_name} | {size} | {' | '.join(milliseconds)} |"))
    for tokens, views in settings["bertviz"].items():
        for view, times in views.items():
            hover = f"{times['hover']:.0f}" if "hover" in times else ""
            first = "over one minute" if times["first picture"] is None else f"{times['first picture']:.0f}"
            size = f"{times['megabytes']:.1f}"
            rows.append((int(tokens), f"| {int(tokens):,} | BertViz, {view} | {size} | {first} | {hover} | |"))
    return [row for _, row in sorted(rows, key=lambda row: row[0])]


def _read(script: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{script}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
