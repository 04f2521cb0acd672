"""Translation: pairs of sentences, an encoder-decoder, and losses on its attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from regard.models import RNNSearchConfig, TransformerConfig
from regard.training.recipe import Recipe, by_architecture
from regard.training.sections import Count, Data, Folder, Numbers, Section, Validation, model_section, several

if TYPE_CHECKING:
    from regard.training.translation.data import TranslationData
    from regard.training.translation.module import TranslationModule


def _pairs(value: object) -> object:
    files = several(value)
    if not isinstance(files, (list, tuple)) or not 1 <= len(files) <= 2:
        raise ValueError("one TSV or a list of two line-aligned files")
    return files


Pairs = Annotated[tuple[Folder, ...], BeforeValidator(_pairs)]


class PairData(Data):
    """Which pairs, and how many at a time."""

    train: Pairs
    """One TSV (source, tab, target) or two line-aligned files, plain or .gz."""
    valid: Pairs | None = None
    """The same for validation; none: nothing is validated, and ``best`` is not written."""
    max_length: Count = 128
    """Training pairs with more tokens on a side are skipped, and counted."""
    max_tokens_per_batch: Count = 8000
    """The most tokens of a batch on the larger of its two sides, padding counted."""


class Vocabulary(Section):
    """The subwords."""

    vocab_size: Annotated[int, Field(ge=259)] = 8000
    """Entries of the joint BPE vocabulary; 3 special tokens and 256 bytes are among them."""


class TranslationValidation(Validation):
    """What is measured while training, and when it is good enough."""

    bleu_sentences: Annotated[int, Field(ge=0)] = 500
    """Different source sentences that are translated (greedily) for BLEU and chrF; 0: none."""
    monitor: Literal["bleu", "chrf", "loss"] = "bleu"
    """What decides which weights are best."""


class LayersLoss(Section):
    """A loss on attention: how much it counts, and which layers and heads it is the mean over."""

    weight: Annotated[float, Field(ge=0)] = 0.0
    """How much it counts beside the loss of the translation; 0: not at all."""
    kind: Literal["encoder", "decoder", "cross"] = "cross"
    """Self-attention of the encoder or the decoder, or attention from target to source."""
    layers: Numbers | None = None
    """Their numbers, from 0; -1 is the last. Default: all."""
    heads: Numbers | None = None
    """Their numbers, from 0. Default: all."""


class EntropyLoss(LayersLoss):
    """Keeps the entropy of rows within bounds: :func:`regard.nn.entropy_loss`."""

    floor: float | None = None
    """In nats."""
    ceiling: float | None = None
    """In nats."""


class CoverageLoss(LayersLoss):
    """Makes each key receive about as much: :func:`regard.nn.coverage_loss`."""


class AlignmentLoss(LayersLoss):
    """Teaches heads of the cross-attention which words belong together: :func:`regard.nn.alignment_loss`."""

    kind: Literal["cross"] = "cross"
    """Attention from target to source."""
    layers: Numbers | None = (-1,)
    """Their numbers, from 0; -1 is the last."""
    heads: Numbers | None = (0,)
    """Their numbers, from 0."""
    file: Folder | None = None
    """A line for each training pair, ``0-0 1-2``: numbers of source word and target word, as parted by white space, as
    word aligners write it; a relative path begins at data.folder."""


class KLDivergenceLoss(LayersLoss):
    """Makes attend as another model does: :func:`regard.nn.kl_divergence_loss`."""

    layers: Numbers | None = (-1,)
    """Their numbers, from 0; -1 is the last; the same in both models."""
    teacher: Folder | None = None
    """The folder of a trained model with the same vocabulary and as many heads."""


class Attention(Section):
    """Losses on attention, beside that of the translation."""

    entropy: EntropyLoss = EntropyLoss()
    """How spread rows are."""
    alignment: AlignmentLoss = AlignmentLoss()
    """Which words belong together."""
    coverage: CoverageLoss = CoverageLoss()
    """How evenly keys are attended to."""
    kl_divergence: KLDivergenceLoss = KLDivergenceLoss()
    """What another model attends to."""

    @property
    def losses(self) -> dict[str, LayersLoss]:
        """Those that count, by name."""
        return {name: keys for name, keys in self if keys.weight}


DECIDED = (
    "vocab_size",
    "tgt_vocab_size",
    "pad_id",
    "bos_id",
    "eos_id",
    "scale_embeddings",
    "interleaved_sinusoids",
    "output_bias",
)  # by the vocabulary, or as the paper has them
Model = model_section("Model", "transformer", TransformerConfig, DECIDED)
RNNModel = model_section("RNNModel", "rnn_search", RNNSearchConfig, DECIDED)


class TranslationRecipe(Recipe):
    """A translator.

    Args:
        task: ``"translation"``, which is what a recipe is about that names none.
        data: See :class:`PairData`.
        tokenizer: See :class:`Vocabulary`.
        model: The keys of :class:`regard.models.TransformerConfig`; with ``architecture: rnn_search`` those of
            :class:`regard.models.RNNSearchConfig`.
        attention_loss: See :class:`Attention`.
        validation: See :class:`TranslationValidation`.
    """

    task: Literal["translation"] = "translation"
    data: PairData
    tokenizer: Vocabulary = Vocabulary()
    model: Model = Model()  # pyright: ignore[reportInvalidTypeForm] - built from the fields of TransformerConfig
    attention_loss: Attention = Attention()
    validation: TranslationValidation = TranslationValidation()

    @classmethod
    def variant(cls, keys: Mapping[str, Any]) -> type[Recipe]:
        return by_architecture(keys, {"transformer": TranslationRecipe, "rnn_search": RNNRecipe})

    def config(self, vocab_size: int) -> TransformerConfig | RNNSearchConfig:
        """Give the architecture for a vocabulary."""
        return TransformerConfig(vocab_size, **self.model.model_dump(exclude={"architecture"}))

    @property
    def positions(self) -> int:
        """The most tokens, the special ones counted, that the model has positions for."""
        return self.model.max_seq_len if self.model.positions == "learned" else 2**31

    @property
    def losses(self) -> list[str]:
        return ["loss", *(f"{name}_loss" for name in self.attention_loss.losses)]

    @property
    def columns(self) -> list[str]:
        return ["valid_loss", "bleu", "chrf", *(f"{name}_loss" for name in Attention.model_fields)]

    def parts(self) -> tuple[TranslationData, TranslationModule]:
        from regard.training.translation.data import TranslationData
        from regard.training.translation.module import TranslationModule

        return TranslationData(self), TranslationModule(self)

    def absolute(self, keys: dict[str, Any]) -> dict[str, Any]:
        if teacher := self.attention_loss.kl_divergence.teacher:
            keys["attention_loss"]["kl_divergence"]["teacher"] = str(teacher.absolute())
        return super().absolute(keys)

    def conflicts(self) -> list[str]:
        self.config(self.tokenizer.vocab_size)
        conflicts = []
        most = min(self.data.max_tokens_per_batch, self.positions) - 1
        if self.data.max_length > most:
            conflicts.append(
                f"data.max_length: should be at most {most}, so that the longest pair fits data.max_tokens_per_batch "
                f"and, where positions are learned, model.max_seq_len, but is {self.data.max_length}"
            )
        conflicts += _attention_conflicts(self)
        if self.validation.monitor != "loss" and not self.validation.bleu_sentences:
            conflicts.append(
                f"validation.bleu_sentences: is 0, but validation.monitor is {self.validation.monitor!r}, which needs "
                "translations; monitor 'loss', or translate some"
            )
        return conflicts


class RNNRecipe(TranslationRecipe):
    """A recurrent translator."""

    model: RNNModel = RNNModel()  # pyright: ignore[reportInvalidTypeForm] - built from the fields of RNNSearchConfig

    def config(self, vocab_size: int) -> RNNSearchConfig:
        return RNNSearchConfig(vocab_size, **self.model.model_dump(exclude={"architecture"}))

    @property
    def positions(self) -> int:
        return 2**31


def _attention_conflicts(recipe: TranslationRecipe) -> list[str]:
    conflicts = []
    for name, loss in recipe.attention_loss.losses.items():
        key = f"attention_loss.{name}"
        layers, heads = recipe.config(recipe.tokenizer.vocab_size).num_layers_and_heads(loss.kind)
        if not layers:
            conflicts.append(f"{key}.kind: the {recipe.model.architecture} has no such layers as {loss.kind!r}")
            continue
        for kind, numbers, size in (("layers", loss.layers, layers), ("heads", loss.heads, heads)):
            wrong = [number for number in numbers or () if not -size <= number < size]
            conflicts += [f"{key}.{kind}: there are {size}, numbered from 0, but no {number}" for number in wrong]
            if numbers == ():
                conflicts.append(f"{key}.{kind}: names none; leave it out for all")
        for needed in ("file", "teacher"):
            if getattr(loss, needed, "") is None:
                conflicts.append(f"{key}.{needed}: is missing, but {key}.weight is {loss.weight}")
    entropy = recipe.attention_loss.entropy
    if entropy.weight and entropy.floor is None and entropy.ceiling is None:
        conflicts.append("attention_loss.entropy: has a weight, but neither floor nor ceiling")
    if entropy.floor is not None and entropy.ceiling is not None and entropy.floor > entropy.ceiling:
        conflicts.append(
            f"attention_loss.entropy.floor: should be at most the ceiling, {entropy.ceiling}, but is {entropy.floor}"
        )
    return conflicts
