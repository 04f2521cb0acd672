"""Configurations as data: strict, frozen, and with every problem in one sentence."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Annotated, Literal

import pytest
import torch
from pydantic import BaseModel, Field, Strict, ValidationError

from regard.checks import Checks
from regard.errors import InvalidArgument
from regard.models import (
    GPT,
    BertConfig,
    GATConfig,
    GPTConfig,
    RNNSearchConfig,
    SaganConfig,
    TransformerConfig,
)
from regard.pipelines.confidence import ConfidenceModel
from regard.validation import Config, config_class, describe, fields_of, inconsistent

CONFIGS = [
    BertConfig(9),
    GATConfig(9, 3),
    GPTConfig(9, rotary_scaling={"factor": 2.0}),
    RNNSearchConfig(9),
    SaganConfig(),
    TransformerConfig(9),
    ConfidenceModel(intercept=1.0, log_prob_weight=2.0, length_weight=0.5, threshold=0.5),
]
IDS = [type(config).__name__ for config in CONFIGS]


@config_class
class Box(Config):
    width: Annotated[int, Strict(), Field(ge=1, lt=2**40)] = field(kw_only=False)
    weight: Annotated[float, Strict(), Field(gt=0)] | None = None
    sizes: tuple[Annotated[int, Strict(), Field(ge=0)], ...] = ()
    kind: Literal["small", "large"] = "small"

    def check(self, checks: Checks) -> None:
        checks.that(self.width != 13, "width: expected another number than 13, got 13")
        checks.that(self.width != 13 or not self.sizes, f"sizes: expected none for width=13, got {self.sizes}")


@pytest.mark.parametrize(
    ("arguments", "values", "problems"),
    [
        ((), {}, ["width: expected a value, got none"]),
        ((0,), {}, ["width: expected an int of at least 1 and below 2**40, got 0"]),
        ((1.0,), {}, ["width: expected an int of at least 1 and below 2**40, got 1.0"]),
        ((True,), {}, ["width: expected an int of at least 1 and below 2**40, got True"]),
        ((1,), {"weight": "2"}, ["weight: expected a finite number above 0, or None, got '2'"]),
        ((1,), {"weight": float("nan")}, ["weight: expected a finite number above 0, or None, got nan"]),
        ((1,), {"sizes": (1, -1)}, ["sizes[1]: expected an int of at least 0, got -1"]),
        ((1,), {"sizes": 3}, ["sizes: expected a sequence, each entry an int of at least 0, got 3"]),
        ((1,), {"kind": "larger"}, ["kind: expected one of small, large, got 'larger', did you mean 'large'?"]),
        ((1,), {"widthh": 3}, ["widthh: no such field, did you mean 'width'?"]),
        ((1, 2), {}, ["arguments: expected the field once and with its name, got 2"]),
        ((1,), {"width": 2}, ["width: expected the field once and with its name, got 2"]),
        ((13,), {}, ["width: expected another number than 13, got 13"]),
        (
            (13,),
            {"sizes": (1,)},
            ["width: expected another number than 13, got 13", "sizes: expected none for width=13, got (1,)"],
        ),
        (
            (0,),
            {"kind": 3, "self": 1, "__dataclass_self__": 1},
            [
                "width: expected an int of at least 1 and below 2**40, got 0",
                "kind: expected one of small, large, got 3",
                "self: no such field",
                "__dataclass_self__: no such field",
            ],
        ),
    ],
)
def test_all_problems_are_in_one_error(arguments, values, problems):
    expected = problems[0] if len(problems) == 1 else "\n  - ".join([f"{len(problems)} problems:", *problems])
    with pytest.raises(InvalidArgument) as error:
        Box(*arguments, **values)
    assert str(error.value) == expected
    if len(arguments) < 2 and not (arguments and "width" in values):
        with pytest.raises(InvalidArgument) as error:
            Box.from_dict({**dict(zip(["width"], arguments, strict=False)), **values})
        assert str(error.value) == expected


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_every_field_refuses_values_of_another_type(config):
    for each in fields(config):
        other = 1 if "Bool" in str(each.type) else True
        for value in ("3", b"3", other, object(), {3: 4}, {"a"}):
            problem = rf"(^|\n  - ){each.name}\b.*: expected"
            with pytest.raises(InvalidArgument, match=problem):
                type(config)(**{**asdict(config), each.name: value})


@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
def test_configurations_are_values(config):
    copies = [copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config)), replace(config)]
    copies.append(type(config).from_dict(asdict(config)))
    assert set(copies) == {config}
    name = fields(config)[0].name
    with pytest.raises(FrozenInstanceError):
        setattr(config, name, 3)
    with pytest.raises(InvalidArgument, match=f"{name}: expected"):
        replace(config, **{name: "x"})


def test_a_subclass_is_checked_with_the_checks_of_its_base():
    @config_class
    class Crate(Box):
        label: str = "crate"

    assert (Crate(1).label, Crate(1, label="x").width) == ("crate", 1)
    with pytest.raises(InvalidArgument, match=r"^width: expected another number than 13, got 13$"):
        Crate(13)
    with pytest.raises(InvalidArgument, match=r"^label: expected a str, got 3$"):
        Crate(1, label=3)


def test_errors_in_a_pydantic_model_are_described_with_their_place():
    class Outer(BaseModel):
        box: Box

    assert Outer(box={"width": 3}).box == Box(3)
    with pytest.raises(ValidationError) as error:
        Outer(box={"width": 13})
    (details,) = error.value.errors()
    assert describe(details, "box") == ["box.width: expected another number than 13, got 13"]
    assert inconsistent(["a: b"]).context == {"problems": ["a: b"]}


def test_the_fields_are_those_of_the_constructor():
    @config_class
    class Fixed(Box):
        width: int = Field(3, init=False)

    assert list(fields_of(Fixed)) == ["weight", "sizes", "kind"]
    assert Fixed().width == 3
    with pytest.raises(InvalidArgument, match="width: no such field"):
        Fixed(width=3)


def test_a_model_with_its_configuration_compiles_and_copies():
    config = GPTConfig(9, d_model=16, num_heads=2, num_layers=1, d_ff=16, scale_embeddings=True)
    torch.manual_seed(0)
    model = GPT(config).eval()
    ids = torch.randint(9, (2, 5))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids).logits, model(ids).logits)
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert copied.config == config
            assert torch.equal(copied(ids).logits, model(ids).logits)
