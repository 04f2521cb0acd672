"""Losses on the attention of a translation model: their recipe sections, and their values for a batch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from regard.checks import Checks
from regard.data.pairs import PairBatch
from regard.errors import InvalidRecipe, short_repr
from regard.models import Attentions, EncoderDecoder, load_model
from regard.nn.attention_losses import alignment_loss, coverage_loss, entropy_loss, kl_divergence_loss
from regard.ops import WeightMatrix
from regard.text.tokenizer import PAD_ID, Tokenizer
from regard.training.recipe_sections import DataPath, Folder, Section, as_list

Indices = Annotated[tuple[int, ...], BeforeValidator(as_list)]


class LossInputs(NamedTuple):
    """What a loss can use besides the attention weights.

    Args:
        queries: True for queries that are not padding (batch, 1, queries).
        keys: True for keys that are not padding (batch, 1, keys).
        teacher: Attention weights of the teacher.
        alignment: Source token of each target token, or -1 (batch, target).
    """

    queries: Tensor
    keys: Tensor
    teacher: WeightMatrix
    alignment: Tensor | None


class AttentionLossConfig(Section):
    """A loss on attention weights, a mean over layers and heads."""

    weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight relative to the translation loss; 0 disables it."""
    kind: Literal["encoder", "decoder", "cross"] = "cross"
    """Self-attention of the encoder or decoder, or cross-attention."""
    layers: Indices | None = None
    """Layer indices; negative ones count from the end. Default: all."""
    heads: Indices | None = None
    """Head indices. Default: all."""

    @abstractmethod
    def loss(self, weights: WeightMatrix, inputs: LossInputs) -> Tensor:
        """The loss of one layer."""

    def check(self, checks: Checks, name: str, num_layers: int, num_heads: int) -> None:
        """Check whether the model has the layers and heads."""
        if not checks.that(
            num_layers > 0, f"{name}.kind: expected attention that the model has, got {short_repr(self.kind)}"
        ):
            return
        for key, indices, size in (("layers", self.layers, num_layers), ("heads", self.heads, num_heads)):
            for index in indices or ():
                expected = f"expected indices from {-size} to {size - 1}"
                checks.that(-size <= index < size, f"{name}.{key}: {expected}, got {index}")
            checks.that(indices != (), f"{name}.{key}: expected at least one index, got none; leave it out for all")


class EntropyLossConfig(AttentionLossConfig):
    """Keeps the entropy of rows within bounds; see `regard.nn.entropy_loss`."""

    floor: float | None = None
    """Lower bound in nats."""
    ceiling: float | None = None
    """Upper bound in nats."""

    def loss(self, weights: WeightMatrix, inputs: LossInputs) -> Tensor:
        return entropy_loss(weights, floor=self.floor, ceiling=self.ceiling, row_weights=inputs.queries)

    def check(self, checks: Checks, name: str, num_layers: int, num_heads: int) -> None:
        super().check(checks, name, num_layers, num_heads)
        if self.floor is None and self.ceiling is None:
            checks.fail(f"{name}: expected floor or ceiling, got neither")
        elif self.floor is not None and self.ceiling is not None and self.floor > self.ceiling:
            checks.fail(f"{name}.floor: expected at most ceiling={self.ceiling}, got {self.floor}")


class CoverageLossConfig(AttentionLossConfig):
    """Makes keys receive equal attention; see `regard.nn.coverage_loss`."""

    def loss(self, weights: WeightMatrix, inputs: LossInputs) -> Tensor:
        return coverage_loss(weights, row_weights=inputs.queries, key_weights=inputs.keys)


class AlignmentLossConfig(AttentionLossConfig):
    """Teaches cross-attention heads the word alignment; see `regard.nn.alignment_loss`."""

    kind: Literal["cross"] = "cross"
    """Cross-attention."""
    layers: Indices | None = (-1,)
    """Layer indices; negative ones count from the end."""
    heads: Indices | None = (0,)
    """Head indices."""
    file: DataPath | None = None
    """A line for each training pair, such as ``0-0 1-2``: indices of a source word and a target word, which white space
    separates, as word aligners write them."""

    def loss(self, weights: WeightMatrix, inputs: LossInputs) -> Tensor:
        assert inputs.alignment is not None
        return alignment_loss(weights, inputs.alignment, row_weights=inputs.queries)

    def check(self, checks: Checks, name: str, num_layers: int, num_heads: int) -> None:
        super().check(checks, name, num_layers, num_heads)
        checks.that(self.file is not None, f"{name}.file: expected a path, got none")


class KLDivergenceLossConfig(AttentionLossConfig):
    """Makes attention follow that of another model; see `regard.nn.kl_divergence_loss`."""

    layers: Indices | None = (-1,)
    """Layer indices, the same in both models; negative ones count from the end."""
    teacher: Folder | None = None
    """Folder of a trained model with the same tokenizer and number of heads."""

    def loss(self, weights: WeightMatrix, inputs: LossInputs) -> Tensor:
        return kl_divergence_loss(inputs.teacher, weights, row_weights=inputs.queries)

    def check(self, checks: Checks, name: str, num_layers: int, num_heads: int) -> None:
        super().check(checks, name, num_layers, num_heads)
        checks.that(self.teacher is not None, f"{name}.teacher: expected the folder of a model, got none")


class AttentionLossesConfig(Section):
    """Losses on attention that are added to the translation loss."""

    entropy: EntropyLossConfig = EntropyLossConfig()
    alignment: AlignmentLossConfig = AlignmentLossConfig()
    coverage: CoverageLossConfig = CoverageLossConfig()
    kl_divergence: KLDivergenceLossConfig = KLDivergenceLossConfig()

    @property
    def enabled(self) -> dict[str, AttentionLossConfig]:
        """The losses with a weight, by name."""
        return {name: loss for name, loss in self if loss.weight}


class AttentionLosses:
    """The attention losses of a recipe for a model with a config and a tokenizer, which a teacher must share.

    Raises:
        InvalidRecipe: If a teacher has another tokenizer, another number of heads, or too few layers.
        InvalidCheckpoint: If a teacher cannot be loaded.
    """

    def __init__(self, config: AttentionLossesConfig, model_config: Any, tokenizer: Tokenizer) -> None:
        self.configs: Mapping[str, AttentionLossConfig] = config.enabled
        self.teacher: EncoderDecoder | None = None
        if "kl_divergence" in self.configs and config.kl_divergence.teacher is not None:
            self.teacher = load_model(config.kl_divergence.teacher, expected=EncoderDecoder)
            _check_teacher(config.kl_divergence, self.teacher.config, model_config, tokenizer)

    def __call__(self, attentions: Attentions, batch: PairBatch) -> dict[str, Tensor]:
        """The value of each loss, a mean over its layers."""
        if not self.configs:
            return {}
        positions = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
        is_source = (positions < batch.lengths[:, None])[:, None]
        is_target = (batch.labels != PAD_ID)[:, None]
        teacher = self._teacher_attentions(batch) or attentions
        losses = {}
        for name, config in self.configs.items():
            queries = is_source if config.kind == "encoder" else is_target
            keys = is_target if config.kind == "decoder" else is_source
            pairs = zip(_select_weights(attentions, config), _select_weights(teacher, config), strict=True)
            inputs = [(own, LossInputs(queries, keys, other, batch.alignment)) for own, other in pairs]
            losses[f"{name}_loss"] = torch.stack([config.loss(*each) for each in inputs]).mean()
        return losses

    def _teacher_attentions(self, batch: PairBatch) -> Attentions | None:
        if self.teacher is None:
            return None
        teacher = self.teacher.to(batch.input_ids.device)
        with torch.no_grad():
            inputs = batch.input_ids, batch.decoder_input_ids, batch.lengths
            return teacher.forward_features(*inputs, output_attentions=True)[1]


def _select_weights(attentions: Attentions, config: AttentionLossConfig) -> list[WeightMatrix]:
    """The attention weights that a loss uses, one matrix for each layer."""
    layers = [output.weights for output in getattr(attentions, config.kind)]
    layers = layers if config.layers is None else [layers[index] for index in config.layers]
    return layers if config.heads is None else [weights.at(heads=list(config.heads)) for weights in layers]


def _check_teacher(config: KLDivergenceLossConfig, teacher: Any, student: Any, tokenizer: Tokenizer) -> None:
    name, kind = "attention_loss.kl_divergence.teacher", config.kind
    assert config.teacher is not None
    (layers, heads), (own_layers, own_heads) = (each.num_layers_and_heads(kind) for each in (teacher, student))
    with Checks() as checks:
        checks.error = InvalidRecipe
        if Tokenizer.load(config.teacher).fingerprint != tokenizer.fingerprint:
            checks.fail(f"{name}: expected the model's tokenizer, got another one; train both on the same data")
        checks.that(heads == own_heads, f"{name}: expected {own_heads} heads as in the model, got {heads}")
        if config.layers is None and layers != own_layers:
            hint = "name some in attention_loss.kl_divergence.layers"
            checks.fail(f"{name}: expected {own_layers} {kind} layers as in the model, got {layers}; {hint}")
        for index in config.layers or ():
            checks.that(-layers <= index < layers, f"{name}: expected a {kind} layer {index}, got {layers} layers")
