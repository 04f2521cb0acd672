"""Translation: sentence pairs, an encoder-decoder, and losses on its attention."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag
from torch import Tensor, distributed

from regard.checks import Checks
from regard.data.batching import ResumableLoader, padding_fraction
from regard.data.pairs import PairBatch, PairDataset, collate_sources, pair_loader, stream_pairs, tokenize_pairs
from regard.data.streaming import FilePart, StreamLoader
from regard.errors import InvalidArgument, InvalidFile, short_repr
from regard.generation.greedy import greedy
from regard.metrics.translation import corpus_scores
from regard.models import EncoderDecoder, RNNSearchConfig, Transformer, TransformerConfig, load_model
from regard.models.architectures import model_from_config
from regard.text.numerals import LanguageCode
from regard.text.readers import check_pair_files, group_references, read_pairs
from regard.text.tables import is_table
from regard.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer, check_vocab_size, train_translation_bpe
from regard.training.recipe import VALID_LOSS, Metric, Recipe
from regard.training.recipe_sections import (
    Column,
    Count,
    DataPath,
    ModelSection,
    PretrainedSection,
    StreamedDataConfig,
    ValidationConfig,
    get_key,
    sequence_of,
)
from regard.training.tasks.attention_losses import AttentionLosses, AttentionLossesConfig
from regard.training.tasks.base import Split, Task
from regard.validation import config_class

log = logging.getLogger("regard.training")
TOKENIZER_FIELDS = "vocab_size", "tgt_vocab_size", "pad_id", "bos_id", "eos_id"
FIXED_FIELDS = "scale_embeddings", "interleaved_sinusoids", "output_bias"  # as in the papers
DERIVED_FIELDS = (*TOKENIZER_FIELDS, *FIXED_FIELDS)
ALIGNMENT_KEY = "attention_loss.alignment.file"
BLEU_BATCH_SIZE = 64


PairPaths = Annotated[
    tuple[DataPath, ...], sequence_of("one TSV, a list of two line-aligned files, or Parquet or JSON Lines files")
]


@config_class
class TransformerSection(ModelSection, TransformerConfig, derived=DERIVED_FIELDS):
    """A Transformer."""

    architecture: Literal["transformer"] = "transformer"


class PretrainedTransformerSection(PretrainedSection):
    """A pretrained Transformer; only its dropout rates can be changed."""

    new_section = TransformerSection
    architecture: Literal["transformer"] = "transformer"


@config_class
class RNNSearchSection(ModelSection, RNNSearchConfig, derived=TOKENIZER_FIELDS):
    """An RNNsearch."""

    architecture: Literal["rnn_search"] = "rnn_search"


class PairDataConfig(StreamedDataConfig):
    """The sentence pairs."""

    train: PairPaths
    """One TSV (source, tab, target) or two line-aligned files, plain or .gz; or .parquet, .jsonl or .json files."""
    valid: PairPaths | None = None
    """The same for validation; without it there is no validation and no ``best`` model."""
    source_column: Column = "source"
    """Column of the sources in Parquet and JSON Lines; ``translation.en`` is ``en`` in the column ``translation``."""
    target_column: Column = "target"
    """Column of the targets."""
    max_length: Count = 128
    """Training pairs with more tokens on a side are skipped; their number is logged."""
    max_tokens_per_batch: Count = 8000
    """Maximum size of a batch on its larger side in tokens, with padding."""
    substitutions: Annotated[float, Field(ge=0)] = 0.0
    """Number of derived pairs relative to that of the training pairs: the same number, date or name on both sides of a
    pair is replaced by another, so that the model learns to copy. They are derived once, in memory."""
    languages: Annotated[
        tuple[LanguageCode, LanguageCode],
        sequence_of("[en, de] or [de, en]", 2, 2),
    ] = ("en", "de")
    """Languages of sources and targets, whose numbers and dates substitutions write: ``[en, de]`` or ``[de, en]``."""


class TranslationValidationConfig(ValidationConfig):
    """Validation during training."""

    bleu_sentences: Annotated[int, Field(ge=0)] = 500
    """Number of different source sentences that are translated greedily for BLEU and chrF; 0 for none."""
    monitor: Literal["bleu", "chrf", "valid_loss"] = "bleu"
    """Metric that selects the best weights."""


def _model_tag(model: Any) -> str:
    return "pretrained" if get_key(model, "checkpoint") is not None else get_key(model, "architecture", "transformer")


class TranslationRecipe(Recipe):
    """The recipe of a translation model: a Transformer, or with ``architecture: rnn_search`` an RNNsearch."""

    metrics = (
        VALID_LOSS,
        Metric("bleu", "max"),
        Metric("chrf", "max"),
        *(Metric(f"{name}_loss", "min") for name in AttentionLossesConfig.model_fields),
    )

    task: Literal["translation"] = "translation"
    data: PairDataConfig
    model: Annotated[
        Annotated[TransformerSection, Tag("transformer")]
        | Annotated[RNNSearchSection, Tag("rnn_search")]
        | Annotated[PretrainedTransformerSection, Tag("pretrained")],
        Discriminator(_model_tag),
    ] = TransformerSection.from_dict({})
    attention_loss: AttentionLossesConfig = AttentionLossesConfig()
    validation: TranslationValidationConfig = TranslationValidationConfig()

    @property
    def files(self) -> dict[str, list[Path]]:
        alignment = self.attention_loss.alignment
        paths = self.data.paths([alignment.file] if alignment.weight and alignment.file else None)
        return {**super().files, **({ALIGNMENT_KEY: paths} if paths else {})}

    @property
    def loss_weights(self) -> dict[str, float]:
        return {f"{name}_loss": loss.weight for name, loss in self.attention_loss.enabled.items()}

    @property
    def placeholder_config(self) -> TransformerConfig | RNNSearchConfig:
        if isinstance(self.model, PretrainedTransformerSection):
            return self.model.load_config(Transformer)
        return self.model.build_config(self.tokenizer.vocab_size)

    def build_task(self) -> TranslationTask:
        return TranslationTask(self)

    def check(self, checks: Checks) -> None:
        super().check(checks)
        for key, paths in [(key, paths) for key, paths in super().files.items() if paths]:
            try:
                check_pair_files(paths)
            except InvalidArgument as error:
                checks.fail(str(error).replace("files", key, 1))
        if self.is_streamed:
            self._check_streamed(checks)
        if self.data.substitutions:
            self._check_substitutions(checks)
        config = self.placeholder_config
        self._check_special_tokens(checks, config)
        length, max_tokens = self.data.max_length, self.data.max_tokens_per_batch
        is_pretrained = isinstance(self.model, PretrainedTransformerSection)
        seq_len_key = "the checkpoint's max_seq_len" if is_pretrained else "model.max_seq_len"
        for name, limit in (("data.max_tokens_per_batch", max_tokens), (seq_len_key, config.max_seq_len)):
            expected = f"expected at most {limit - 1}, which leaves room for the end token in {name}={limit}"
            checks.that(length < limit, f"data.max_length: {expected}, got {length}")
        for name, loss in self.attention_loss.enabled.items():
            loss.check(checks, f"attention_loss.{name}", *config.num_layers_and_heads(loss.kind))
        monitor = self.validation.monitor
        if monitor != "valid_loss" and not self.validation.bleu_sentences:
            expected = f"expected at least 1 for the monitor {short_repr(monitor)}"
            checks.fail(f"validation.bleu_sentences: {expected}, got 0; or monitor 'valid_loss'")

    def _check_special_tokens(self, checks: Checks, config: TransformerConfig | RNNSearchConfig) -> None:
        """Batches have the special tokens of vocabularies that are trained here."""
        ids = {"pad_id": PAD_ID, "bos_id": BOS_ID, "eos_id": EOS_ID}
        expected, got = (
            ", ".join(f"{name}={value}" for name, value in each.items())
            for each in (ids, {name: getattr(config, name) for name in ids})
        )
        checks.that(
            expected == got, f"model.checkpoint: expected a model with the special tokens {expected}, got {got}"
        )

    def _check_substitutions(self, checks: Checks) -> None:
        for key, is_used in (("data.streaming", self.is_streamed), (ALIGNMENT_KEY, ALIGNMENT_KEY in self.files)):
            if is_used:
                checks.fail(f"data.substitutions: expected 0 with {key}, got {self.data.substitutions}; leave one out")
        if len(set(self.data.languages)) == 1:
            checks.fail(f"data.languages: expected [en, de] or [de, en], got {list(self.data.languages)}")

    def _check_streamed(self, checks: Checks) -> None:
        if len(self.data.train) > 1 and not any(map(is_table, self.data.train)):
            example = " ".join(map(str, self.data.train[:2]))
            checks.fail(
                "data.streaming: expected False with two line-aligned files, as parts of them are not aligned, got "
                f"True; join them: `paste {example} > train.tsv`"
            )
        if ALIGNMENT_KEY in self.files:
            expected = "expected none with data.streaming, which does not read pairs in the order of its lines"
            checks.fail(f"{ALIGNMENT_KEY}: {expected}, got {self.attention_loss.alignment.file}")


class TranslationTask(Task):
    """Trains a translation model."""

    recipe: TranslationRecipe
    train_data: PairDataset
    valid_data: PairDataset | None

    def __init__(self, recipe: TranslationRecipe) -> None:
        super().__init__(recipe)
        self.alignments = next(iter(recipe.files.get(ALIGNMENT_KEY, [])), None)
        self._logged_signatures = False

    def train_tokenizer(self) -> Tokenizer:
        model = self.recipe.model
        if isinstance(model, PretrainedTransformerSection):
            return Tokenizer.load(model.checkpoint)
        texts = (text for pair in read_pairs(self.train_files, **self.recipe.data.columns) for text in pair)
        return train_translation_bpe(self.tokenizer_texts(texts), self.recipe.tokenizer.vocab_size)

    def tokenize(self, files: Sequence[Path], split: Split, cache: Path) -> PairDataset:
        data = self.recipe.data
        if split == "train":
            max_length, alignments, substitutions = data.max_length, self.alignments, data.substitutions
        else:  # only pairs that fit no batch or not the model are skipped
            limits = data.max_tokens_per_batch, self._max_source_tokens + 1
            max_length, alignments, substitutions = min(limits) - 1, None, 0.0
        options = {
            "max_length": max_length,
            "alignments": alignments,
            "hashes": self.hashes,
            "substitutions": substitutions,
            "languages": data.languages,
            "seed": self.recipe.seed,
            **data.columns,
        }
        return tokenize_pairs(files, self.tokenizer, cache, **options)

    def describe(self, dataset: PairDataset) -> str:
        return f"{len(dataset)} pairs (skipped: {dataset.num_empty} empty, {dataset.num_too_long} too long)"

    def statistics(self, loader: ResumableLoader) -> list[str]:
        batches = loader.sampler.plan(loader.sampler.epoch)
        padding = padding_fraction(self.train_data.source.lengths, self.train_data.target.lengths, batches)
        lines = [f"padding: {padding:.1%} of the tokens in batches"]
        if num_with := self.train_data.num_with:
            found = ", ".join(f"{count} with {kind}" for kind, count in num_with.items())
            lines.append(f"substitutions: {self.train_data.num_derived} pairs, derived from {found}")
            lines.extend(
                f"substitutions: no pair has {kind} that are the same on both sides, so none are derived"
                for kind, count in num_with.items()
                if not count
            )
        if num_too_long := self._bleu_references[1]:
            lines.append(
                f"BLEU: {num_too_long} validation sentences of more than {self._max_source_tokens} tokens skipped"
            )
        return lines

    @property
    def _max_source_tokens(self) -> int:
        """As in `Translator`: the end token counts, too."""
        return self.recipe.placeholder_config.max_seq_len - 1

    @cached_property
    def _bleu_references(self) -> tuple[dict[str, list[str]], int]:
        """Source sentences to translate, with their references, and the number of those that are too long."""
        count = self.recipe.validation.bleu_sentences
        pairs = read_pairs(self.valid_files, **self.recipe.data.columns) if self.valid_files and count else ()
        references = group_references(pairs)
        ids = self.tokenizer.encode(list(references))
        limit = self._max_source_tokens
        fitting = [item for item, row in zip(references.items(), ids, strict=True) if len(row) <= limit]
        if references and not fitting:
            raise InvalidFile(f"{self.valid_files[0]}: expected sentences of at most {limit} tokens, got longer ones")
        step = max(1, len(fitting) // max(1, count))  # spread over the file, which may be sorted
        return dict(fitting[::step][:count]), len(references) - len(fitting)

    def loader(self, dataset: PairDataset, **options: Any) -> ResumableLoader:
        return pair_loader(dataset, self.recipe.data.max_tokens_per_batch, **options)

    def stream(self, parts: Sequence[FilePart], **options: Any) -> StreamLoader:
        data = self.recipe.data
        limits = {"max_length": data.max_length, "buffer_size": data.buffer_size}
        return stream_pairs(parts, self.tokenizer, data.max_tokens_per_batch, **limits, **data.columns, **options)

    def build_model(self) -> EncoderDecoder:
        model, config = self.recipe.model, self.recipe.placeholder_config
        if isinstance(model, PretrainedTransformerSection):
            check_vocab_size(self.tokenizer, config.vocab_size, str(model.checkpoint))
        else:
            config = model.build_config(self.tokenizer.vocab_size)
        self.attention_losses = AttentionLosses(self.recipe.attention_loss, config, self.tokenizer)
        new = model_from_config(config)
        if isinstance(model, PretrainedTransformerSection):
            new.load_state_dict(load_model(model.checkpoint, expected=Transformer).state_dict())
        return new

    def losses(self, model: EncoderDecoder, batch: PairBatch) -> dict[str, Tensor]:
        smoothing, keep = self.recipe.loss.label_smoothing, bool(self.attention_losses.configs)
        loss, attentions = model.loss(*_inputs(batch), label_smoothing=smoothing, output_attentions=keep)
        return {"loss": loss.loss, **self.attention_losses(attentions, batch)}

    def validation_sums(self, model: EncoderDecoder, batch: PairBatch) -> Sequence[Tensor]:
        loss, _ = model.loss(*_inputs(batch))
        return loss.nll, loss.num_tokens

    def compute_metrics(self, model: EncoderDecoder, sums: Sequence[float]) -> dict[str, float]:
        nll, num_tokens = sums
        metrics = {"valid_loss": nll / num_tokens}
        references, _ = self._bleu_references
        if references:
            translations = self._translate(model, list(references))
            scores = corpus_scores(translations, list(references.values()), ["bleu", "chrf"])
            metrics |= {name: score.score for name, score in scores.items()}
            if not self._logged_signatures:
                self._logged_signatures = True
                log.debug("metrics: %s", ", ".join(f"{name} {score.signature}" for name, score in scores.items()))
        return metrics

    def _translate(self, model: EncoderDecoder, sources: list[str]) -> list[str]:
        """Greedy translations; every process computes a part and receives all."""
        is_parallel = distributed.is_available() and distributed.is_initialized()
        rank, world_size = (distributed.get_rank(), distributed.get_world_size()) if is_parallel else (0, 1)
        from regard.training.divided_model import whole_model  # loads torch's checkpoints, which takes a second

        whole: Any = whole_model(model, everywhere=True)
        device = next(model.parameters()).device
        ids = self.tokenizer.encode(sources)
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        batches = [order[start : start + BLEU_BATCH_SIZE] for start in range(0, len(order), BLEU_BATCH_SIZE)]
        tokens: dict[int, list[int]] = {}
        for indices in batches[rank::world_size]:
            input_ids, lengths = collate_sources([ids[index] for index in indices])
            hypotheses = greedy(whole, input_ids.to(device), lengths.to(device))
            tokens |= {index: hypothesis.tokens for index, hypothesis in zip(indices, hypotheses, strict=True)}
        if world_size > 1:
            parts: list[Any] = [None] * world_size
            distributed.all_gather_object(parts, tokens)
            tokens = {index: row for part in parts for index, row in part.items()}
        return self.tokenizer.decode([tokens[index] for index in range(len(ids))])


def _inputs(batch: PairBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return batch.input_ids, batch.decoder_input_ids, batch.lengths, batch.labels
