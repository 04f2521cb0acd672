"""The data of a recipe: the vocabulary and the tokenised corpora, made once, and the batches of each process."""

from __future__ import annotations

import json
import logging

import lightning as L

from regard.errors import InvalidFile, InvalidRecipe, refuse
from regard.text.batches import BatchLoader, padding_share
from regard.text.corpus import Corpus, build_corpus, digest
from regard.text.lines import read_pairs, references_by_source
from regard.text.tokenizer import FILE, Tokenizer
from regard.training.recipe import Recipe
from regard.training.storage import FILE as STATE

log = logging.getLogger("regard.training")
_DIGESTS = "files.json"


class TranslationData(L.LightningDataModule):
    """Makes what a recipe's ``data`` and ``vocabulary`` ask for.

    The first process trains the tokenizer and tokenises, into ``data/`` in the run folder; all map the same Arrow
    files. After :meth:`setup` there are ``tokenizer``, ``train``, ``valid`` (pairs) and ``sentences``: the sources to
    translate in validation, each with all its references.

    Args:
        recipe: The recipe.
    """

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.prepare_data_per_node = False  # all machines see the run folder
        self.recipe = recipe
        self.folder = recipe.run / "data"
        self.train_files = [recipe.data.folder / path for path in recipe.data.train]
        self.valid_files = [recipe.data.folder / path for path in recipe.data.valid or ()]
        alignment = recipe.attention.alignment
        self.alignments = recipe.data.folder / alignment.file if alignment.weight and alignment.file else None

    def prepare_data(self) -> None:
        """Make tokenizer and corpora where they are not there yet (on one process).

        Raises:
            InvalidRecipe: If a training is to go on with other data than it began with.
        """
        resumed = (self.recipe.run / STATE).is_file()
        digests = {"data.train": digest(self.train_files), "data.valid": digest(self.valid_files)}
        if self.alignments is not None:
            digests["attention.alignment.file"] = digest([self.alignments])
        if resumed and (self.folder / _DIGESTS).is_file():
            _check_same(json.loads((self.folder / _DIGESTS).read_text()), digests)
        # what a training that never saved a state has left may be of other data
        if not resumed or not (self.folder / FILE).is_file():
            texts = (text for pair in read_pairs(self.train_files) for text in pair)
            Tokenizer.train(texts, self.recipe.vocabulary.size).save(self.folder)
        tokenizer = Tokenizer.load(self.folder)
        self._corpora(tokenizer)
        if not resumed or not (self.folder / _DIGESTS).is_file():
            (self.folder / _DIGESTS).write_text(json.dumps(digests))

    def _corpora(self, tokenizer: Tokenizer) -> tuple[Corpus, Corpus | None]:
        longest = self.recipe.data.max_length
        train = build_corpus(self.train_files, tokenizer, self.folder, max_length=longest, alignments=self.alignments)
        # a validation set is measured whole; only what fits no batch or no position is left out
        limit = min(self.recipe.data.batch_tokens, self.recipe.positions) - 1
        valid = build_corpus(self.valid_files, tokenizer, self.folder, max_length=limit) if self.valid_files else None
        return train, valid

    def setup(self, stage: str) -> None:
        """Map the corpora into memory (on every process)."""
        self.tokenizer = Tokenizer.load(self.folder)
        self.train, self.valid = self._corpora(self.tokenizer)
        translated = self.valid is not None and self.recipe.validation.sentences
        grouped = references_by_source(read_pairs(self.valid_files)) if translated else {}
        lengths = map(len, self.tokenizer.encode(list(grouped)))
        fitting = [
            item for item, length in zip(grouped.items(), lengths, strict=True) if length < self.recipe.positions
        ]
        self.too_long = len(grouped) - len(fitting)
        if grouped and not fitting:
            raise InvalidFile(f"{self.valid_files[0]}: every sentence is longer than the model takes")
        # spread over the file, which may be sorted
        step = max(1, len(fitting) // max(1, self.recipe.validation.sentences))
        self.sentences = fitting[::step][: self.recipe.validation.sentences]

    def train_dataloader(self) -> BatchLoader:
        """Give this process its endless training batches."""
        assert self.trainer is not None
        loader = BatchLoader(
            self.train,
            self.recipe.data.batch_tokens,
            seed=self.recipe.seed,
            rank=self.trainer.global_rank,
            world=self.trainer.world_size,
        )
        self._tell(loader)
        return loader

    def val_dataloader(self) -> BatchLoader | list[object]:
        """Give this process its validation batches."""
        assert self.trainer is not None
        if self.valid is None:
            return []
        world = self.trainer.world_size
        if len(self.valid) < world:
            raise InvalidFile(
                f"{self.valid_files[0]}: has {len(self.valid)} pairs, fewer than the {world} processes that validate"
            )
        return BatchLoader(self.valid, self.recipe.data.batch_tokens, rank=self.trainer.global_rank, world=world)

    def _tell(self, loader: BatchLoader) -> None:
        plan = loader.plan(loader.epoch)
        share = padding_share(loader.src_lengths, loader.tgt_lengths, plan)
        log.info("vocabulary: %d subwords", self.tokenizer.vocab_size)
        for name, corpus in (("training", self.train), ("validation", self.valid)):
            if corpus is not None:
                log.info(
                    "%s: %d pairs (skipped: %d empty, %d too long)", name, len(corpus), corpus.empty, corpus.too_long
                )
        if self.too_long:
            log.info("validation: not translated: %d sentences that are longer than the model takes", self.too_long)
        log.info("batches: %d an epoch; %.1f %% of their tokens are padding", len(plan), 100 * share)


def _check_same(then: dict[str, str], now: dict[str, str]) -> None:
    objections = [
        f"{key}: the files hold other data than when the run began; it can go on with the same data only"
        for key in now
        if now[key] != then.get(key)
    ]
    refuse(objections, InvalidRecipe)
