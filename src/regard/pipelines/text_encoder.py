"""What a BERT makes of texts: their classes, their embeddings, the words that are hidden in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.analysis.head_scores import repeated_random_tokens
from regard.analysis.recording import Recording
from regard.analysis.trace import Trace
from regard.data.batching import pad_batch
from regard.data.masking import IGNORE_INDEX, mask_tokens
from regard.errors import InvalidArgument, count_problems, raise_problems
from regard.metrics.classification import perplexity
from regard.models.bert import Bert, Head
from regard.pipelines.base import Pipeline
from regard.pipelines.packing import batches_by_length
from regard.pipelines.tracing import read_once, trace_once
from regard.text.pipeline import PipelineTokenizer
from regard.text.validation import check_texts

BATCH_WORDS = 4096  # of texts that are read together


class Prediction(NamedTuple):
    """What a model takes a text, or a hidden word, for.

    Args:
        label: The likeliest class, or word.
        probabilities: Of all classes by their names, or of the likeliest words.
    """

    label: str
    probabilities: dict[str, float]


class TokenPrediction(NamedTuple):
    """What a model takes a word of a text for.

    Args:
        token: The word as the vocabulary has it.
        label: The likeliest class.
        probabilities: Of all classes by their names.
    """

    token: str
    label: str
    probabilities: dict[str, float]


class MaskedLMScore(NamedTuple):
    """How well masked tokens are predicted.

    Args:
        nll: Their negative log-likelihood, in nats.
        num_tokens: Number of masked tokens.
        num_correct: Number of masked tokens that are predicted correctly.
    """

    nll: float
    num_tokens: int
    num_correct: int

    @property
    def perplexity(self) -> float:
        """Perplexity: e to the mean loss per masked token."""
        return perplexity(self.nll / self.num_tokens)


class TextEncoder(Pipeline[Bert, PipelineTokenizer]):
    """A BERT with its tokenizer, also of Hugging Face's transformers or sentence-transformers.

    See `Pipeline` for the arguments and for ``load``.
    """

    model_type = Bert
    tokenizer_types = (PipelineTokenizer,)

    def embed(self, texts: Sequence[str]) -> Tensor:
        """One vector for each text, (texts, d_model), float32; texts that are too long are cut.

        Raises:
            InvalidType: If texts are no sequence of str.
            InvalidArgument: If the model has another head, or a text is none.
        """
        self._check("sentence_embedding")
        return self._outputs(texts).clone()  # made outside inference mode, it can be learned from

    def classify(self, texts: Sequence[str]) -> list[Prediction]:
        """The class of each text; texts that are too long are cut.

        Raises:
            InvalidType: If texts are no sequence of str.
            InvalidArgument: If the model has another head, or a text is none.
        """
        self._check("sequence_classification")
        labels = self.model.config.labels
        rows = self._outputs(texts).softmax(-1).tolist()
        return [Prediction(labels[row.index(max(row))], dict(zip(labels, row, strict=True))) for row in rows]

    def tag(self, texts: Sequence[str]) -> list[list[TokenPrediction]]:
        """The class of each word of each text, special tokens left out; texts that are too long are cut.

        Raises:
            InvalidType: If texts are no sequence of str.
            InvalidArgument: If the model has another head, or a text is none.
        """
        self._check("token_classification")
        labels = self.model.config.labels
        read = self._read(texts)
        first = len(self._around[:1])
        last = len(self._around[1:])
        found: list[list[TokenPrediction]] = [[] for _ in read]
        for place, logits in self._in_batches(read):
            ids = read[place]
            rows = logits[first : len(ids) - last].softmax(-1).tolist()
            told = zip(self.tokenizer.convert_ids_to_tokens(ids[first : len(ids) - last]), rows, strict=True)
            found[place] = [
                TokenPrediction(token, labels[row.index(max(row))], dict(zip(labels, row, strict=True)))
                for token, row in told
            ]
        return found

    def masked_lm_score(self, texts: Sequence[str], *, mlm_probability: float = 0.15, seed: int = 0) -> MaskedLMScore:
        """Hide words as in training, and measure how well the model tells them; texts that are too long are cut.

        Args:
            texts: At least one.
            mlm_probability: Fraction of the tokens to mask; see `regard.data.masking.mask_tokens`.
            seed: Of the draw.

        Raises:
            InvalidType: If texts are no sequence of str.
            InvalidArgument: If the model has another head, its vocabulary no word that hides another, a text is none,
                or mlm_probability is not above 0 and at most 1.
        """
        self._check("masked_lm")
        if not 0 < mlm_probability <= 1:
            raise InvalidArgument(f"mlm_probability: expected a number above 0 and at most 1, got {mlm_probability}")
        if self.tokenizer.mask_id is None:
            raise InvalidArgument("the vocabulary has no word that hides another, [MASK]")
        read = self._read(texts)
        raise_problems([] if read else ["texts must be at least one, but there is none"])
        head = self.model.mlm_head
        assert head is not None
        known = {
            "mlm_probability": mlm_probability,
            "mask_id": self.tokenizer.mask_id,
            "vocab_size": self.tokenizer.vocab_size,
        }
        rng, nll, words, right = np.random.default_rng(seed), 0.0, 0, 0
        for places in batches_by_length([len(ids) for ids in read], BATCH_WORDS):
            input_ids, lengths = pad_batch([read[place] for place in places], self.model.config.pad_id)
            hidden, labels = mask_tokens(input_ids, lengths, rng, **known)
            told = labels != IGNORE_INDEX
            wanted = labels[told].to(self.device)
            with torch.inference_mode():
                states, _ = self.model.forward_features(hidden.to(self.device), lengths.to(self.device))
                logits = head(states[told.to(self.device)]).float()
            nll += float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
            words, right = words + len(wanted), right + int((logits.argmax(-1) == wanted).sum())
        return MaskedLMScore(nll, words, right)

    def fill_mask(self, text: str, top_k: int = 5) -> list[Prediction]:
        """The words that are likeliest where ``[MASK]``, or what the vocabulary calls it, stands.

        Args:
            text: With at least one hidden word.
            top_k: Number of tokens to return for each mask, at most the vocabulary.

        Returns:
            One for each hidden word; in a vocabulary of WordPiece, ``##ing`` goes on with a word.

        Raises:
            InvalidType: If the text is no str.
            InvalidArgument: If the model has another head, nothing is hidden, the text is longer than what the model
                reads, or top_k does not fit.
        """
        self._check("masked_lm")
        raise_problems(count_problems(top_k=top_k))
        words = self.model.config.vocab_size
        if top_k > words:
            raise InvalidArgument(f"top_k: expected at most {words}, the size of the vocabulary, got {top_k}")
        (ids,) = self._read([text], whole=True)
        places = [place for place, word in enumerate(ids) if word == self.tokenizer.mask_id]
        if not places:
            name = self.tokenizer.convert_ids_to_tokens([self.tokenizer.mask_id or 0])[0]
            raise InvalidArgument(f"text must hide a word as {name}, but it is {text[:60]!r}")
        with torch.inference_mode():
            hidden, _ = self.model.forward_features(torch.tensor([ids], device=self.device))
            likely = self.model.forward_head(hidden[0, places]).float().softmax(-1).topk(top_k)
        found = []
        for row, places in zip(likely.values.tolist(), likely.indices.tolist(), strict=True):
            named = self.tokenizer.unique_token_names(places)
            found.append(Prediction(named[0], dict(zip(named, row, strict=True))))
        return found

    def record_repeated_tokens(self, length: int = 50, seed: int = 0) -> Recording:
        """Read random words of the vocabulary twice; see `Generator.record_repeated_tokens`."""
        raise_problems(count_problems(length=length))
        around = self._around
        length = min(length, (self.model.config.max_seq_len - len(around)) // 2)
        ids = repeated_random_tokens(self.tokenizer.regular_token_ids, length, seed)
        return self._record([*around[:1], *ids, *around[1:]], "random tokens, twice")

    def record(self, text: str) -> Recording:
        """Read a text, and keep what every layer and head attended to.

        Raises:
            InvalidType: If the text is no str.
            InvalidArgument: If the text is too long.
        """
        return self._record(self._read([text], whole=True)[0], text)

    def _record(self, ids: list[int], text: str) -> Recording:
        return read_once(self.model, "encoder", ids, self.tokenizer.convert_ids_to_tokens(ids), text, self.name)

    def trace(self, text: str, layer: str | None = None) -> Trace:
        """Read a text, and keep every number of one attention layer's calculation.

        Args:
            text: A few words, if one is to look at it.
            layer: ``"encoder.0"`` and so on. Default: the first.

        Returns:
            Trace: As `regard.trace` gives it, with an axis of heads.

        Raises:
            InvalidType: If the text is no str.
            InvalidArgument: If the text is too long, or there is no such layer.
        """
        (ids,) = self._read([text], whole=True)
        return trace_once(self.model, "encoder", ids, self.tokenizer.convert_ids_to_tokens(ids), text, layer)

    @property
    def _around(self) -> list[int]:
        """The special tokens around a text: one before it, the others behind."""
        return self.tokenizer.encode([""], add_special_tokens=True, split_special_tokens=False)[0]

    def _check(self, head: Head) -> None:
        if self.model.config.head == head:
            return
        files = ": modules.json and 1_Pooling/config.json configure the pooling"
        how = files if head == "sentence_embedding" else ""
        raise InvalidArgument(f"this needs a model with the head {head!r}, but it has {self.model.config.head!r}{how}")

    def _read(self, texts: Sequence[str], *, whole: bool = False) -> list[list[int]]:
        """The ids of each text, cut to what the model has positions for, or refused where they are to be whole."""
        check_texts(texts, names=["text"] if whole else None)
        config = self.model.config
        longest = config.max_seq_len if whole or config.truncation_length is None else config.truncation_length
        found = self.tokenizer.encode(texts, add_special_tokens=True, split_special_tokens=False)
        if whole:
            came = [
                f"text {number} has {len(ids)} subwords" for number, ids in enumerate(found, 1) if len(ids) > longest
            ]
            raise_problems([f"{each}, but the model takes at most {longest} at once: shorten it" for each in came])
        return [ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]] for ids in found]

    @torch.inference_mode()
    def _outputs(self, texts: Sequence[str]) -> Tensor:
        """What the head makes of each text, (texts, width)."""
        found = dict(self._in_batches(self._read(texts)))
        return (
            torch.stack([found[place] for place in range(len(found))])
            if found
            else torch.empty(0, self.model.config.d_model)
        )

    def _in_batches(self, read: list[list[int]]) -> Iterator[tuple[int, Tensor]]:
        for places in batches_by_length([len(ids) for ids in read], BATCH_WORDS):
            padded = pad_batch([read[place] for place in places], self.model.config.pad_id)
            words, lengths = (tensor.to(self.device) for tensor in padded)
            with torch.inference_mode():
                hidden, _ = self.model.forward_features(words, lengths)
                outputs = self.model.forward_head(hidden, lengths).float().cpu()
            yield from zip(places, outputs, strict=True)
