"""All positions in all models: a class says all that models need, and what it forgets is found."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import Tensor, nn

import regard
from helpers.positions import MODELS, difference, difference_after_saving, make
from regard.errors import InvalidArgument, InvalidCheckpoint, InvalidType
from regard.models import GPTConfig, TransformerConfig, load_model, save_model
from regard.nn import (
    AbsolutePositions,
    AttentionPositions,
    DecoderCache,
    Positions,
    RotaryPositions,
    SharedBeamCache,
    position_classes,
    rotary_frequencies,
)
from regard.ops.scores import Alibi

BUILTIN = sorted(position_classes())


@pytest.fixture(autouse=True)
def _classes_of_tests_are_gone():
    yield
    gc.collect()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("positions", BUILTIN)
def test_a_cache_beams_padding_and_a_save_change_nothing(tmp_path, kind, positions):
    model = make(kind, positions)
    assert difference(model) < 1e-5
    assert difference_after_saving(model, tmp_path) < 1e-6


@pytest.mark.parametrize("positions", BUILTIN)
def test_built_in_positions_are_public_and_describe_themselves(positions):
    cls = position_classes()[positions]
    assert getattr(regard.nn, cls.__name__) is cls
    assert cls.describe is not Positions.describe or cls is regard.nn.NoPositions


def test_parameters_that_nothing_sets_are_refused():
    class Forgetful(AttentionPositions, name="forgetful"):
        def __init__(self, num_heads: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((num_heads,), 0.5))  # which the model's initialization would change

        @classmethod
        def from_config(cls, config, *, causal):
            return cls(config.num_heads)

        def score_bias(self) -> Alibi:
            return Alibi(self.weight)

    with pytest.raises(InvalidArgument, match=r"Forgetful: expected reset_parameters\(\), which sets its parameters"):
        make("gpt", "forgetful")


def kerple() -> type[AttentionPositions]:
    """Positions of Chi et al. 2022 (logarithmic), in one class."""

    class KerplePositions(AttentionPositions, name="kerple"):
        def __init__(self, num_heads: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(num_heads))
            self.reset_parameters()

        @classmethod
        def from_config(cls, config, *, causal):
            return cls(config.num_heads)

        def reset_parameters(self) -> None:
            nn.init.ones_(self.weight)

        def score_bias(self) -> Alibi:
            return Alibi(self.weight.abs())

    return KerplePositions


@pytest.mark.parametrize("kind", MODELS)
def test_a_class_of_the_user_is_all_that_new_positions_need(tmp_path, kind):
    classes = [kerple()]
    model = make(kind, "kerple")
    assert difference(model) < 1e-5
    assert difference_after_saving(model, tmp_path) < 1e-6
    model.reset_parameters()
    modules = [module for module in model.modules() if type(module) is classes[0]]
    assert modules
    assert all(torch.equal(module.weight, torch.ones(4)) for module in modules)
    if kind == "transformer":
        assert type(model.new_cache()) is DecoderCache
        assert type(make(kind, "learned").new_cache()) is SharedBeamCache


def test_a_name_that_no_class_has_is_refused_with_the_known_ones(tmp_path):
    classes = [kerple()]
    save_model(tmp_path, make("gpt", "kerple"))
    classes.clear()
    gc.collect()
    known = "expected one of sinusoidal, learned, none, relative, alibi, t5, rotary"
    with pytest.raises(InvalidCheckpoint, match=f"positions: {known}, got 'kerple'"):
        load_model(tmp_path)
    with pytest.raises(InvalidArgument, match=f"positions: {known}, got 'alibbi', did you mean 'alibi'"):
        GPTConfig(9, positions="alibbi")


@pytest.mark.parametrize("kind", ["transformer", "gpt"])
def test_positions_that_forget_the_offset_of_cached_keys_are_found(kind):
    class Forgetful(RotaryPositions, name="forgetful"):
        @classmethod
        def from_config(cls, config, *, causal):
            return cls(rotary_frequencies(config.resolved_head_dim))

        def rotate(self, heads: Tensor, offset: int) -> Tensor:
            return super().rotate(heads, 0)

    assert difference(make(kind, "forgetful")) > 1e-2


def test_a_cache_that_mixes_the_tokens_of_beams_is_found(monkeypatch):
    monkeypatch.setattr("regard.models.transformer.DecoderCache", SharedBeamCache)
    assert difference(make("transformer", "alibi")) > 1e-2


@pytest.mark.parametrize("kind", ["transformer", "gpt"])
def test_positions_that_forget_the_offset_of_embeddings_are_found(kind, monkeypatch):
    forward = AbsolutePositions.forward
    monkeypatch.setattr(AbsolutePositions, "forward", lambda self, x, offset=0: forward(self, x))
    assert difference(make(kind, "learned")) > 1e-2


@pytest.mark.parametrize("kind", MODELS)
def test_a_buffer_that_no_method_computes_again_is_found_when_a_model_is_loaded(tmp_path, kind):
    class Forgetful(AttentionPositions, name="forgetful"):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("slopes", Alibi.for_heads(4).slopes, persistent=False)

        @classmethod
        def from_config(cls, config, *, causal):
            return cls()

        def score_bias(self) -> Alibi:
            return Alibi(self.slopes)

    message = (
        "Forgetful: expected a method reset_buffers that computes slopes, which checkpoints do not store, got none"
    )
    with pytest.raises(InvalidType, match=message):
        difference_after_saving(make(kind, "forgetful"), tmp_path)


def test_a_named_class_without_from_config_and_a_name_that_is_taken_are_refused():
    message = r"Nameless: expected a classmethod from_config\(config, \*, causal\), got none"
    with pytest.raises(InvalidType, match=message):
        type("Nameless", (AttentionPositions,), {}, name="nameless")
    with pytest.raises(InvalidArgument, match="name: expected another name than that of AlibiPositions, got 'alibi'"):
        type("Other", (RotaryPositions,), {}, name="alibi")


@pytest.mark.parametrize(
    ("positions", "distance", "expected"),
    [
        ("relative", -1, "an int of at least 0"),
        ("t5", 16, "an int of at least 17 and at most"),
        ("alibi", 4, "None for alibi positions, got 4; leave it out"),
        ("learned", 4, "None for learned positions, got 4; leave it out"),
    ],
)
def test_distances_that_positions_do_not_have_are_refused(positions, distance, expected):
    with pytest.raises(InvalidArgument, match=f"max_distance: expected {expected}"):
        TransformerConfig(9, positions=positions, max_distance=distance)


@pytest.mark.parametrize("kind", MODELS)
def test_positions_of_embeddings_need_no_base_class_of_tables(tmp_path, kind):
    class Ramp(Positions, name="ramp"):
        """Adds a number that grows with the position to all features."""

        @classmethod
        def from_config(cls, config, *, causal):
            return cls()

        def forward(self, x: Tensor, offset: int | Tensor = 0) -> Tensor:
            first = offset[:, None] if isinstance(offset, Tensor) else offset
            return x + 0.1 * (first + torch.arange(x.shape[1])).clamp(min=0)[..., None] * torch.arange(x.shape[2])

    model = make(kind, "ramp")
    assert difference(model) < 1e-4
    assert difference_after_saving(model, tmp_path) < 1e-6
    ids = torch.arange(3, 9)[None]
    output, other = (
        each(ids, ids)[0] if kind == "transformer" else each(ids)[0] for each in (model, make(kind, "none"))
    )
    assert not torch.allclose(output, other, atol=1e-3)
