"""TextEncoder: classes, tags, embeddings and masked tokens from a BERT."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.checks import Checks
from regard.data.masking import IGNORE_INDEX, mask_tokens
from regard.data.texts import truncate
from regard.errors import InvalidArgument, short_repr
from regard.metrics.classification import perplexity
from regard.models.bert import Bert, Head
from regard.pipelines.base import SelfAttentionPipeline, check_token_counts
from regard.pipelines.batching import batches_by_length
from regard.text.tokenizer import Tokenizer
from regard.text.validation import check_texts
from regard.text.words import split_words


class Prediction(NamedTuple):
    """Prediction for a text or for a masked token.

    Args:
        label: The most probable class or token.
        probabilities: Probability of each class, or of the most probable tokens, by name.
    """

    label: str
    probabilities: dict[str, float]


class WordPrediction(NamedTuple):
    """Prediction for a word of a text.

    Args:
        word: The word.
        label: The most probable tag.
        probabilities: Probability of each tag by name; empty if the tokenizer leaves nothing of the word, such as of
            invisible characters. The tag is then ``O``, or the model's first.
    """

    word: str
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
        """Perplexity per masked token."""
        return perplexity(self.nll / self.num_tokens)


class _Window(NamedTuple):
    """A part of a text: token ids, and the position of the first token of each word by the word's index."""

    text: int
    ids: list[int]
    firsts: dict[int, int]


class TextEncoder(SelfAttentionPipeline[Bert]):
    """A BERT with its tokenizer, also of Hugging Face's transformers or sentence-transformers.

    See `Pipeline` for the arguments and for ``load``. Texts that are too long are truncated, except where an error is
    documented.
    """

    model_type = Bert
    layer_kind = "encoder"
    max_batch_tokens = 4096

    @classmethod
    def _load_tokenizer(cls, folder: Path) -> Tokenizer:
        return Tokenizer.load(folder)  # a SentencePiece model has other ids than a BERT

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Sentence embeddings.

        Returns:
            (texts, d_model), float32, on the CPU.

        Raises:
            InvalidType: If texts are not a sequence of str.
            InvalidArgument: If the model does not have the head ``sentence_embedding``.
        """
        self.check_head("sentence_embedding")
        rows = self._run_batched(self._encode(texts), self._forward)
        return torch.stack(rows) if rows else torch.empty(0, self.model.config.d_model, device="cpu")

    def classify(self, texts: Sequence[str]) -> list[Prediction]:
        """Predict the class of each text.

        Raises:
            InvalidType: If texts are not a sequence of str.
            InvalidArgument: If the model does not have the head ``sequence_classification``.
        """
        self.check_head("sequence_classification")
        return [self._predict_class(logits) for logits in self._run_batched(self._encode(texts), self._forward)]

    def tag(self, texts: Sequence[str | Sequence[str]]) -> list[list[WordPrediction]]:
        """Predict the tag of each word of each text, from the first token of the word.

        Words of texts that are too long are read in parts of as many words as the model takes at once.

        Args:
            texts: Each is a text, which `regard.text.split_words` splits, or a sequence of words, which stay as they
                are. Split texts as the data that the model was trained on are split.

        Raises:
            InvalidType: If texts are not a sequence of str or of sequences of str.
            InvalidArgument: If the model does not have the head ``token_classification``, or its tokenizer is a
                SentencePiece model, which does not say where words begin.
        """
        self.check_head("token_classification")
        with Checks() as checks:
            checks.sequence("texts", texts, "texts, or of sequences of words")
        for index, text in enumerate(texts):
            check_texts([text] if isinstance(text, str) else text, f"texts[{index}]")
        words = [split_words(text) if isinstance(text, str) else list(text) for text in texts]
        if not isinstance(self.tokenizer, Tokenizer):
            expected = f"{self.name}: expected a tokenizer with a tokenizer.json to tag words"
            raise InvalidArgument(f"{expected}, got {type(self.tokenizer).__name__}")
        windows = [
            _Window(number, *window)
            for number, (ids, firsts) in enumerate(self.tokenizer.encode_words(words))
            for window in self._windows(ids, firsts)
        ]
        labels = self.model.config.labels
        missing = Prediction("O" if "O" in labels else labels[0], {})
        tags = [[WordPrediction(word, *missing) for word in each] for each in words]
        logits = self._run_batched([window.ids for window in windows], self._forward)
        for window, rows in zip(windows, logits, strict=True):
            for word, position in window.firsts.items():
                prediction = self._predict_class(rows[position])
                tags[window.text][word] = WordPrediction(words[window.text][word], *prediction)
        return tags

    def _windows(self, ids: list[int], firsts: list[int]) -> Iterator[tuple[list[int], dict[int, int]]]:
        """Parts of a text that the model can read: token ids, and the position of the first token of each word."""
        before, after = self._special_tokens
        room, end = self._max_length - len(before) - len(after), len(ids) - len(after)
        starts = {word: first for word, first in enumerate(firsts) if first >= 0}
        while starts:
            start = next(iter(starts.values()))
            ends = [*list(starts.values())[1:], end]  # of the words
            count = max(1, sum(stop - start <= room for stop in ends))  # a longer word is cut
            inner = ids[start : min(ends[count - 1], start + room)]
            offset = len(before) - start
            yield [*before, *inner, *after], {word: first + offset for word, first in list(starts.items())[:count]}
            starts = dict(list(starts.items())[count:])

    def masked_lm_score(self, texts: Sequence[str], *, mlm_probability: float = 0.15, seed: int = 0) -> MaskedLMScore:
        """Mask tokens as in training, and measure how well the model predicts them.

        Args:
            texts: At least one text.
            mlm_probability: Probability that a token is masked; see `regard.data.masking.mask_tokens`.
            seed: Seed of the masks.

        Raises:
            InvalidType: If texts are not a sequence of str, or an option has a wrong type.
            InvalidArgument: If the model does not have the head ``masked_lm``, its tokenizer has no mask token, there
                is no text, mlm_probability is not above 0 and at most 1, or the seed is negative.
        """
        self.check_head("masked_lm")
        encoded = self._encode(texts)
        with Checks() as checks:
            checks.number("mlm_probability", mlm_probability, above=0, high=1)
            checks.integer("seed", seed, low=0)
            checks.that(bool(texts), "texts: expected at least one text, got none")
        rng, nll, num_tokens, num_correct = np.random.default_rng(seed), 0.0, 0, 0
        for indices in batches_by_length([len(ids) for ids in encoded], self.max_batch_tokens):
            input_ids, lengths = self._pad([encoded[index] for index in indices])
            masked_ids, labels = mask_tokens(
                input_ids,
                lengths,
                rng,
                mlm_probability=mlm_probability,
                mask_id=self._mask_id,
                vocab_size=self.tokenizer.vocab_size,
            )
            with torch.inference_mode():
                loss = self.model.loss(masked_ids, lengths, labels, output_predictions=True)
            nll += float(loss.nll)
            num_tokens += int(loss.num_labels)
            num_correct += int((loss.predictions == labels[labels != IGNORE_INDEX]).sum())
        return MaskedLMScore(nll, num_tokens, num_correct)

    def fill_mask(self, text: str, top_k: int = 5) -> list[Prediction]:
        """Predict the masked tokens of a text.

        Args:
            text: A text with ``[MASK]``, or what the vocabulary calls it, in place of one or more tokens.
            top_k: Number of tokens to return for each, at most the size of the vocabulary.

        Returns:
            One prediction for each masked token; in a WordPiece vocabulary, ``##ing`` continues a word.

        Raises:
            InvalidType: If the text is not a str.
            InvalidArgument: If the model does not have the head ``masked_lm``, its tokenizer has no mask token, the
                text is too long or has no masked token, or top_k is out of range.
        """
        self.check_head("masked_lm")
        ids = self._encode_text(text)
        positions = [position for position, token in enumerate(ids) if token == self._mask_id]
        mask = self.tokenizer.convert_ids_to_tokens([self._mask_id])[0]
        with Checks() as checks:
            checks.integer("top_k", top_k, low=1, below=self.model.config.vocab_size + 1)
            checks.that(bool(positions), f"text: expected {mask} in place of a token, got {text[:60]!r}")
        with torch.inference_mode():
            hidden, _ = self.model.forward_features(torch.tensor([ids], device=self.device))
            top = self.model.forward_head(hidden[0, positions]).float().softmax(-1).topk(top_k)
        predictions = []
        for probabilities, tokens in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            names = self.tokenizer.unique_token_names(tokens)
            predictions.append(Prediction(names[0], dict(zip(names, probabilities, strict=True))))
        return predictions

    @property
    def _mask_id(self) -> int:
        if self.tokenizer.mask_id is None:
            raise InvalidArgument(f"{self.name}: expected a tokenizer with a mask token, got none")
        return self.tokenizer.mask_id

    @property
    def _special_tokens(self) -> tuple[list[int], list[int]]:
        (ids,) = self.tokenizer.encode([""], add_special_tokens=True)
        return ids[:1], ids[1:]

    def check_head(self, head: Head) -> None:
        """Raise `InvalidArgument` unless the model has this head."""
        if self.model.config.head != head:
            files = "; modules.json and 1_Pooling/config.json configure its pooling"
            hint = files if head == "sentence_embedding" else ""
            raise InvalidArgument(
                f"{self.name}: expected a model with the head {head!r}, got {self.model.config.head!r}{hint}"
            )

    @property
    def _max_length(self) -> int:
        """Tokens of a text that the model reads, special tokens included."""
        return self.model.config.truncation_length or self.model.config.max_seq_len

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, truncated to what the model can read."""
        check_texts(texts)
        encoded = self.tokenizer.encode(texts, add_special_tokens=True, split_special_tokens=False)
        with Checks() as checks:  # a tokenizer may add no special tokens
            for index, ids in enumerate(encoded):
                checks.that(
                    bool(ids), f"texts[{index}]: expected a text of at least one token, got {short_repr(texts[index])}"
                )
        return truncate(encoded, self._max_length, self.tokenizer)

    def _encode_text(self, text: str) -> list[int]:
        check_texts([text], names=["text"])
        (ids,) = self.tokenizer.encode([text], add_special_tokens=True, split_special_tokens=False)
        check_token_counts([("text", ids)], self.model.config.max_seq_len)
        return ids

    @torch.inference_mode()
    def _forward(self, sequences: list[list[int]]) -> Tensor:
        """Output of the head for a batch, (batch, ...), float32, on the CPU."""
        input_ids, lengths = self._pad(sequences)
        hidden, _ = self.model.forward_features(input_ids, lengths)
        return self.model.forward_head(hidden, lengths).float().cpu()

    def _predict_class(self, logits: Tensor) -> Prediction:
        labels, probabilities = self.model.config.labels, logits.softmax(-1).tolist()
        best = labels[probabilities.index(max(probabilities))]
        return Prediction(best, dict(zip(labels, probabilities, strict=True)))
