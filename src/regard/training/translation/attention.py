"""The losses on attention that a recipe gives a weight, beside that of the translation."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.data.pairs import PairBatch
from regard.errors import InvalidRecipe, raise_problems
from regard.models import Attentions, EncoderDecoder, RNNSearchConfig, TransformerConfig
from regard.models.checkpoint import load_model
from regard.nn.attention_losses import alignment_loss, coverage_loss, entropy_loss, kl_divergence_loss
from regard.ops import WeightMatrix
from regard.text.tokenizer import PAD_ID, Tokenizer
from regard.training.translation.recipe import (
    AlignmentLoss,
    EntropyLoss,
    KLDivergenceLoss,
    LayersLoss,
    TranslationRecipe,
)


class AttentionLosses:
    """What the recipe's ``attention`` section asks for, as numbers for a batch.

    Args:
        recipe: The recipe.
        tokenizer: The vocabulary of the model, which that of a teacher must be.

    Raises:
        InvalidRecipe: If a teacher has another vocabulary, other heads, or too few layers.
        InvalidCheckpoint: If a teacher's folder holds no model.
    """

    def __init__(self, recipe: TranslationRecipe, tokenizer: Tokenizer) -> None:
        self.losses = recipe.attention_loss.losses
        self.teacher: EncoderDecoder | None = None
        divergence = recipe.attention_loss.kl_divergence
        if divergence.weight and divergence.teacher is not None:
            self.teacher = teacher = load_model(divergence.teacher, expected=EncoderDecoder)
            same = Tokenizer.load(divergence.teacher).fingerprint == tokenizer.fingerprint
            _check(recipe, teacher.config, same)

    def __call__(self, attentions: Attentions, batch: PairBatch) -> dict[str, Tensor]:
        """The value of each loss, a mean over its layers."""
        if not self.losses:
            return {}
        sides = {
            "src": torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device) < batch.lengths[:, None],
            "tgt": batch.labels != PAD_ID,
        }
        taught = self._taught(batch)
        found = {}
        for name, keys in self.losses.items():
            rows = sides["src" if keys.kind == "encoder" else "tgt"][:, None]
            columns = sides["tgt" if keys.kind == "decoder" else "src"][:, None]
            layers = list(zip(_chosen(attentions, keys), _chosen(taught or attentions, keys), strict=True))
            values = [_loss(keys, weights, teachers, batch, rows, columns) for weights, teachers in layers]
            found[name] = torch.stack(values).mean()
        return found

    def _taught(self, batch: PairBatch) -> Attentions | None:
        if self.teacher is None:
            return None
        with torch.no_grad():
            teacher = self.teacher.to(batch.input_ids.device)
            return teacher.forward_features(batch.input_ids, batch.decoder_input_ids, batch.lengths)[1]


def _loss(
    keys: LayersLoss, weights: WeightMatrix, teachers: WeightMatrix, batch: PairBatch, rows: Tensor, columns: Tensor
) -> Tensor:
    if isinstance(keys, EntropyLoss):
        return entropy_loss(weights, floor=keys.floor, ceiling=keys.ceiling, row_weights=rows)
    if isinstance(keys, AlignmentLoss):
        assert batch.alignment is not None
        return alignment_loss(weights, batch.alignment, row_weights=rows)
    if isinstance(keys, KLDivergenceLoss):
        return kl_divergence_loss(teachers, weights, row_weights=rows)
    return coverage_loss(weights, row_weights=rows, key_weights=columns)


def _chosen(attentions: Attentions, keys: LayersLoss) -> list[WeightMatrix]:
    """The weights that a loss is about, a matrix for each layer."""
    layers = [attended.weights for attended in getattr(attentions, keys.kind)]
    layers = layers if keys.layers is None else [layers[number] for number in keys.layers]
    return layers if keys.heads is None else [weights.at(heads=list(keys.heads)) for weights in layers]


def _check(recipe: TranslationRecipe, theirs: TransformerConfig | RNNSearchConfig, same_vocabulary: bool) -> None:
    keys, ours = recipe.attention_loss.kl_divergence, recipe.config(recipe.tokenizer.vocab_size)
    objections = [] if same_vocabulary else ["has another vocabulary: train both on the same data"]
    (layers, heads), (own_layers, own_heads) = (config.num_layers_and_heads(keys.kind) for config in (theirs, ours))
    if heads != own_heads:
        objections.append(f"has {heads} heads, but the model {own_heads}")
    if keys.layers is None and layers != own_layers:
        named = "name some in attention_loss.kl_divergence.layers"
        objections.append(f"has {layers} {keys.kind} layers, but the model {own_layers}: {named}")
    missing = [number for number in keys.layers or () if not -layers <= number < layers]
    objections += [f"has {layers} {keys.kind} layers, but no layer {number}" for number in missing]
    raise_problems(
        [f"attention_loss.kl_divergence.teacher: {keys.teacher} {objection}" for objection in objections], InvalidRecipe
    )
