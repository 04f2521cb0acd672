"""Train a recipe, evaluate the model and write the result: the commands of docs/results.md.

    python experiments/reproduce.py multi30k DATA --variant relative
    python experiments/reproduce.py shakespeare DATA
    python experiments/reproduce.py rnn-search DATA
    python experiments/reproduce.py polarity DATA MINILM

DATA is the folder that the recipe describes. Trainings are stored in ``runs``: interrupted ones resume, finished ones
are only evaluated.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from results import FOLDER, cached, command, commit, effort, spread, write_page, write_result

from regard.errors import RegardError
from regard.metrics.translation import corpus_scores
from regard.pipelines import TextEncoder, TextGenerator, Translator, fastest_dtype
from regard.text.lines import read_lines
from regard.text.readers import group_references, read_labeled_texts, read_pairs
from regard.training import TrainResult, load_recipe, train
from regard.training.state import has_state

COMMIT = "commit"  # file in a run folder: the commit at which its training started
app = typer.Typer(help=__doc__.partition("\n")[0], pretty_exceptions_enable=False)
Data = Annotated[Path, typer.Argument(help="Folder with the files named above.", file_okay=False, exists=True)]
Output = Annotated[Path, typer.Option(help="Folder of the results and their table.", show_default="docs/results")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Train with this seed; repeat for more.")]
Steps = Annotated[int | None, typer.Option(help="Stop after this many steps.", show_default="the recipe's")]

MULTI30K = {
    "sinusoidal": ("sinusoidal positions", []),
    "relative": ("relative positions (Shaw et al. 2018, k = 16)", ["--model.positions", "relative"]),
    "relative-0": ("Shaw's k = 0", ["--model.positions", "relative", "--model.max_distance", "0"]),
    "learned": ("learned positions", ["--model.positions", "learned"]),
    "one-head": ("1 head", ["--model.num_heads", "1"]),
    "no-smoothing": ("no label smoothing", ["--loss.label_smoothing", "0"]),
}
PUBLISHED = {
    "sinusoidal": "41.02 BLEU, Wu et al. 2021, table 2",
    "relative": "+0.3 BLEU on WMT 2014 En–De, base model, Shaw et al. 2018, table 1",
    "relative-0": "−13 BLEU on the development set, Shaw et al. 2018, table 2",
    "learned": "−0.1 BLEU on newstest2013, Vaswani et al. 2017, table 3 (E)",
    "one-head": "−0.9 BLEU on newstest2013, Vaswani et al. 2017, table 3 (A)",
    "no-smoothing": "−0.5 BLEU on newstest2013, Vaswani et al. 2017, table 3 (D)",
}


@app.command()
def multi30k(
    data: Data,
    variant: Annotated[str, typer.Option(help=", ".join(MULTI30K))] = "sinusoidal",
    seed: Seeds = None,
    steps: Steps = None,
    output: Output = FOLDER,
) -> None:
    """BLEU of the Transformer-Tiny on Multi30k: the recipe multi30k-en-de.

    DATA holds train, val and test_2016_flickr, each .lc.norm.tok.en.gz and .lc.norm.tok.de.gz: the lower-cased,
    tokenized text of https://github.com/multi30k/dataset.
    """
    if variant not in MULTI30K:
        raise typer.BadParameter(f"expected one of {', '.join(MULTI30K)}, got {variant!r}")
    what, overrides = MULTI30K[variant]
    what, name, stop = shortened(f"Multi30k En→De, Transformer-Tiny, {what}", f"multi30k-{variant}", steps)
    test = [list(read_lines(data / f"test_2016_flickr.lc.norm.tok.{side}.gz")) for side in ("en", "de")]
    scores: dict[int, dict[str, float]] = {}
    runs = {}
    for number in seed or [1]:
        run = runs[number] = trained("multi30k-en-de", f"{name}-{number}", data, number, [*overrides, *stop])
        lines = translated(Translator.load(averaged(run), dtype=torch.float32), test[0])
        references = [[line] for line in test[1]]
        scores[number] = {
            tokenize: corpus_scores(lines, references, ["bleu"], tokenize=tokenize)["bleu"].score
            for tokenize in ("none", "13a")
        }
    bleu, other = ([each[tokenize] for each in scores.values()] for tokenize in ("none", "13a"))
    lengths = sorted({run.step for run in runs.values()})
    after = f"{lengths[0]} steps" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]} steps"
    reached = f"{spread(bleu, 2)} BLEU ({seeds(scores)}, after {after}; with sacreBLEU's 13a {spread(other, 2)})"
    by = command("reproduce.py multi30k DATA", variant=variant, steps=steps, seed=list(scores))
    title = f"{what}, BLEU on test2016"
    finish(output, name, title, reached, PUBLISHED[variant], by, values=scores, trainings=origins(runs))


@app.command()
def shakespeare(
    data: Data,
    positions: Annotated[str, typer.Option(help="As in the recipe.")] = "learned",
    seed: Seeds = None,
    steps: Steps = None,
    output: Output = FOLDER,
) -> None:
    """Validation loss of nanoGPT's CPU recipe, next to transformers' GPT-2: the recipe shakespeare-characters.

    DATA holds input.txt, the tiny Shakespeare of char-rnn, of which the last tenth is the validation text.
    """
    text = (data / "input.txt").read_text(encoding="utf-8")
    valid = text[len(text) - len(text) // 10 :]
    what, name, stop = shortened(
        f"tiny Shakespeare, nanoGPT's recipe for a CPU, {positions} positions", f"shakespeare-{positions}", steps
    )
    _, peer, _ = shortened("", "shakespeare-gpt2", steps)
    runs, ours, theirs = {}, {}, {}
    guesses: list[float] = []
    for number in seed or [1]:
        options = ["--model.positions", positions, *stop]
        run = runs[number] = trained("shakespeare-characters", f"{name}-{number}", data, number, options)
        generator = TextGenerator.load(run.output_dir / "last", dtype=torch.float32)
        likelihood = generator.likelihood(valid)
        ours[number] = likelihood.nll / likelihood.num_tokens
        guesses += estimates(generator, valid)
        path = Path("runs") / f"{peer}-{number}.json"
        theirs[number] = cached(path, lambda number=number: gpt2_loss(data, text, valid, number, stop))
    published = (
        f"1.88, nanoGPT's readme, by that estimate; {spread(list(theirs.values()), 3)}, transformers' GPT-2 with the "
        f"same settings and seeds (learned positions)"
    )
    reached = f"{spread(list(ours.values()), 3)} ({seeds(ours)}); estimated from 20 random batches {spread(guesses, 3)}"
    values = {"ours": ours, "estimates": guesses, "theirs": theirs, "trainings": origins(runs)}
    by = command("reproduce.py shakespeare DATA", positions=positions, steps=steps, seed=list(ours))
    finish(output, name, f"{what}, validation loss", reached, published, by, **values)


@torch.no_grad()
def estimates(generator: TextGenerator, text: str, count: int = 20) -> list[float]:
    """Estimates of the loss as nanoGPT computes them, each from 20 batches of 12 random blocks of 64 characters."""
    rows = torch.tensor(generator.tokenizer.encode([text])[0]).unfold(0, 65, 1)
    torch.manual_seed(0)
    losses = []
    for _ in range(count):
        chosen = rows[torch.randint(len(rows), (20 * 12,))]
        logits = generator.model(chosen[:, :-1]).logits.flatten(0, 1)
        losses.append(float(torch.nn.functional.cross_entropy(logits, chosen[:, 1:].flatten())))
    return losses


def gpt2_loss(data: Path, text: str, valid: str, seed: int, options: Sequence[str]) -> float:
    """Validation loss of transformers' GPT-2, trained with the recipe's settings on random blocks, as in nanoGPT."""
    from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_with_min_lr_schedule_with_warmup

    recipe = load_recipe("shakespeare-characters", ["--data.folder", str(data), *options])
    shape, block, characters = recipe.model, recipe.data.block_size, sorted(set(text))
    ids, valid_ids = (torch.tensor([characters.index(char) for char in part]) for part in (text[: -len(valid)], valid))
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(characters),
        n_positions=block,
        n_embd=shape.d_model,
        n_layer=shape.num_layers,
        n_head=shape.num_heads,
        n_inner=shape.d_ff,
        activation_function="gelu",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    )
    model = GPT2LMHeadModel(config)
    weights = {name: parameter for name, parameter in model.named_parameters() if not name.endswith(".bias")}
    model.requires_grad_(False)  # biases stay zero
    for parameter in weights.values():
        parameter.requires_grad_()
    groups = [
        {"params": [each for each in weights.values() if each.ndim > 1], "weight_decay": recipe.optimizer.weight_decay},
        {"params": [each for each in weights.values() if each.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, recipe.optimizer.learning_rate, betas=recipe.optimizer.betas)
    steps = recipe.trainer.max_steps
    schedule = get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, recipe.optimizer.warmup_steps, steps, min_lr_rate=recipe.optimizer.min_lr_ratio
    )

    def loss(rows: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
        logits = model(rows[:, :-1]).logits.flatten(0, 1)
        return torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten(), reduction=reduction)

    for _ in range(steps):
        starts = torch.randint(len(ids) - block, (recipe.data.batch_size, 1))
        optimizer.zero_grad()
        loss(ids[starts + torch.arange(block + 1)]).backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), recipe.optimizer.max_grad_norm)
        optimizer.step()
        schedule.step()
    with torch.no_grad():  # in consecutive blocks, as ours
        starts = range(0, len(valid_ids) - 1, block)
        total = sum(float(loss(valid_ids[None, start : start + block + 1], "sum")) for start in starts)
    return total / (len(valid_ids) - 1)


@app.command()
def rnn_search(data: Data, steps: Steps = None, output: Output = FOLDER) -> None:
    """RNNsearch next to the bundled Transformer of the same size and vocabulary: the recipe tatoeba-rnn-search.

    DATA holds train.tsv.gz, valid.tsv.gz and test.tsv.gz: source, tab, target, the data of the bundled model.
    """
    grouped = group_references(read_pairs([data / "test.tsv.gz"]))
    what = "RNNsearch with additive attention, Tatoeba En→De, as large as the bundled Transformer, beam 5"
    what, name, stop = shortened(what, "rnn-search", steps)
    run = trained("tatoeba-rnn-search", f"tatoeba-{name}", data, 1, stop)
    translators = {
        "RNNsearch": Translator.load(averaged(run), dtype=fastest_dtype()),
        "the Transformer": Translator.load(dtype=fastest_dtype()),
    }
    bleu, times = {}, dict.fromkeys(translators, 0.0)
    lines: dict[str, list[str]] = {name: [] for name in translators}
    sources = iter(list(grouped))
    for model, translator in translators.items():
        translator.translate([model])  # warm-up, not timed
    while chunk := list(islice(sources, 500)):  # in turn, so that other load on the machine affects both
        for model, translator in translators.items():
            start = time.perf_counter()
            lines[model] += translated(translator, chunk)
            times[model] += time.perf_counter() - start
    for model in translators:
        bleu[model] = corpus_scores(lines[model], list(grouped.values()), ["bleu"])["bleu"].score
    tokens, seconds = effort(run.output_dir)
    ratio = times["RNNsearch"] / times["the Transformer"]
    spent = f"{tokens / 1e6:.0f} million target tokens, {seconds / 3600:.1f} hours"
    reached = f"{bleu['RNNsearch']:.1f} BLEU after {spent}; its translations take {ratio:.2f} times as long"
    published = f"{bleu['the Transformer']:.1f} BLEU of the bundled Transformer after 111 million, 5.6 hours"
    by = command("reproduce.py rnn-search DATA", steps=steps)
    finish(output, name, what, reached, published, by, values=bleu, seconds=times, trainings=origins({1: run}))


@app.command()
def polarity(
    data: Data,
    minilm: Annotated[Path, typer.Argument(help="Folder with a BERT such as all-MiniLM-L6-v2.")],
    seed: Seeds = None,
    steps: Steps = None,
    output: Output = FOLDER,
) -> None:
    """Test accuracy of a fine-tuned MiniLM, next to transformers' Trainer: the recipe polarity.

    DATA holds train.tsv.gz, valid.tsv.gz and test.tsv.gz: a sentence, tab, its class. The Trainer needs accelerate:
    pip install accelerate.
    """
    if importlib.util.find_spec("accelerate") is None:
        sys.exit("reproduce: transformers' Trainer needs accelerate: pip install accelerate")
    test = [(text, label) for _, text, label in read_labeled_texts([data / "test.tsv.gz"])]
    what, name, stop = shortened("sentence polarity, MiniLM fine-tuned", "polarity", steps)
    runs, ours, theirs = {}, {}, {}
    options = ["--model.checkpoint", str(minilm), *stop]
    for number in seed or range(1, 7):
        run = runs[number] = trained("polarity", f"{name}-{number}", data, number, options)
        predictions = TextEncoder.load(run.output_dir / "last", dtype=torch.float32).classify(
            [text for text, _ in test]
        )
        ours[number] = accuracy([each.label for each in predictions], [label for _, label in test])
        peer = run.output_dir / "trainer-labels.json"
        labels = cached(peer, lambda number=number: trainer_labels(data, number, options, test))
        theirs[number] = accuracy(labels, [label for _, label in test])
    reached = f"{spread(list(ours.values()), 2)} % ({seeds(ours)}{first_three(ours)})"
    peer = "transformers' Trainer with the same settings and seeds"
    published = f"{spread(list(theirs.values()), 2)} %, {peer}{first_three(theirs)}"
    by = command("reproduce.py polarity DATA MINILM", steps=steps, seed=list(ours))
    values = {"ours": ours, "theirs": theirs, "trainings": origins(runs)}
    finish(output, name, f"{what}, test accuracy", reached, published, by, **values)


def trainer_labels(data: Path, seed: int, options: Sequence[str], test: Sequence[tuple[str, str]]) -> list[str]:
    """Labels of the test sentences as predicted by a model of transformers' Trainer with the recipe's settings."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    recipe = load_recipe("polarity", ["--data.folder", str(data), *options])
    minilm = recipe.model.checkpoint
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    set_seed(seed)
    classes = sorted({label for _, label in test})
    model = AutoModelForSequenceClassification.from_pretrained(minilm, num_labels=len(classes))

    def encoded(pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        texts = tokenizer([text for text, _ in pairs], truncation=True, max_length=recipe.data.max_length)["input_ids"]
        return [
            {"input_ids": ids, "labels": classes.index(label)} for ids, (_, label) in zip(texts, pairs, strict=True)
        ]

    pairs = [(text, label) for _, text, label in read_labeled_texts([data / "train.tsv.gz"])]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            seed=seed,
            max_steps=recipe.trainer.max_steps,
            per_device_train_batch_size=recipe.data.batch_size,
            per_device_eval_batch_size=64,
            learning_rate=recipe.optimizer.learning_rate,
            lr_scheduler_type="linear",
            weight_decay=recipe.optimizer.weight_decay,
            adam_beta2=recipe.optimizer.betas[1],
            adam_epsilon=recipe.optimizer.eps,
            max_grad_norm=recipe.optimizer.max_grad_norm,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, DataCollatorWithPadding(tokenizer), train_dataset=encoded(pairs))
        trainer.train()
        predictions = trainer.predict(encoded(test)).predictions.argmax(-1).tolist()
    return [classes[each] for each in predictions]


def shortened(what: str, name: str, steps: int | None) -> tuple[str, str, list[str]]:
    """Title and file name of a result, and options of its training; both names include `steps` if set."""
    if steps is None:
        return what, name, []
    return f"{what}, {steps} steps", f"{name}-{steps}", ["--trainer.max_steps", str(steps)]


def trained(recipe: str, run: str, data: Path, seed: int, overrides: Sequence[str]) -> TrainResult:
    """Start a training, or resume it if it has started before; return its result."""
    folder = Path("runs") / run
    options = ["--output_dir", str(folder), "--data.folder", str(data), "--seed", str(seed), *overrides]
    resume = has_state(folder)
    if not resume:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / COMMIT).write_text(commit(), encoding="utf-8")
    result = train(load_recipe(recipe, options), resume=resume)
    if result.signal is not None:
        raise typer.Exit(130)
    return result


def averaged(run: TrainResult) -> Path:
    """The folder of the averaged weights, or of the last ones if the training was too short to average."""
    folder = run.output_dir / "averaged"
    return folder if folder.is_dir() else run.output_dir / "last"


def origins(runs: dict[int, TrainResult]) -> dict[int, dict[str, Any]]:
    """Steps of each training, and the commit at which it started, if known."""
    files = {number: run.output_dir / COMMIT for number, run in runs.items()}
    return {
        number: {"steps": runs[number].step, "commit": path.read_text(encoding="utf-8") if path.is_file() else None}
        for number, path in files.items()
    }


def translated(translator: Translator, lines: Sequence[str]) -> list[str]:
    """The best translation of each line."""
    return [best[0].text for best in translator.translate(lines)]


def accuracy(predictions: Sequence[str], labels: Sequence[str]) -> float:
    """Percentage of correct predictions."""
    return 100 * statistics.mean(a == b for a, b in zip(predictions, labels, strict=True))


def seeds(values: dict[int, Any]) -> str:
    """The seeds of a result: "seeds 1, 2, 3"."""
    return f"seed{'s' if len(values) > 1 else ''} {', '.join(map(str, values))}"


def first_three(values: dict[int, float]) -> str:
    """The mean of the first three seeds, if there are more."""
    return f"; of the first three alone {statistics.mean(list(values.values())[:3]):.2f}" if len(values) > 3 else ""


def finish(folder: Path, name: str, what: str, reached: str, published: str, by: str, **details: Any) -> None:
    """Write a result and print it."""
    write_result(folder / f"{name}.json", what, reached, published, by, **details)
    if folder.resolve() != FOLDER:
        write_page(folder, folder / "results.md")
    print(f"{what}: {reached}; published or a peer's: {published}")


if __name__ == "__main__":
    try:
        app()
    except (RegardError, OSError) as error:
        sys.exit(f"reproduce: {error}")
