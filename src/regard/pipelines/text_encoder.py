"""TextEncoder: classes, embeddings and masked tokens from a BERT."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.checks import Checks
from regard.data.masking import mask_tokens
from regard.data.texts import truncate
from regard.errors import InvalidArgument, short_repr
from regard.metrics.classification import perplexity
from regard.models.bert import Bert, Head
from regard.pipelines.base import SelfAttentionPipeline, check_token_counts
from regard.pipelines.packing import batches_by_length
from regard.text.tokenizer import Tokenizer
from regard.text.validation import check_texts


class Prediction(NamedTuple):
    """Prediction for a text or for a masked token.

    Args:
        label: The most probable class or token.
        probabilities: Probability of each class, or of the most probable tokens, by name.
    """

    label: str
    probabilities: dict[str, float]


class TokenPrediction(NamedTuple):
    """Prediction for a token of a text.

    Args:
        token: The token as readable text: ``▁`` is a space, so that a word starts with it.
        label: The most probable class.
        probabilities: Probability of each class by name.
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
        """Perplexity per masked token."""
        return perplexity(self.nll / self.num_tokens)


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
        return torch.stack(rows) if rows else torch.empty(0, self.model.config.d_model)

    def classify(self, texts: Sequence[str]) -> list[Prediction]:
        """Predict the class of each text.

        Raises:
            InvalidType: If texts are not a sequence of str.
            InvalidArgument: If the model does not have the head ``sequence_classification``.
        """
        self.check_head("sequence_classification")
        return [self._predict_class(logits) for logits in self._run_batched(self._encode(texts), self._forward)]

    def tag(self, texts: Sequence[str]) -> list[list[TokenPrediction]]:
        """Predict the class of each token of each text, without special tokens.

        Raises:
            InvalidType: If texts are not a sequence of str.
            InvalidArgument: If the model does not have the head ``token_classification``.
        """
        self.check_head("token_classification")
        before, after = map(len, self._special_tokens)
        encoded = self._encode(texts)
        tags = []
        for ids, logits in zip(encoded, self._run_batched(encoded, self._forward), strict=True):
            inner = slice(before, len(ids) - after)
            tokens = self.tokenizer.convert_ids_to_tokens(ids[inner])
            rows = zip(tokens, logits[inner], strict=True)
            tags.append([TokenPrediction(token, *self._predict_class(row)) for token, row in rows])
        return tags

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
                loss = self.model.masked_lm_loss(masked_ids, lengths, labels, count_correct=True)
            nll += float(loss.nll)
            num_tokens += int(loss.num_tokens)
            num_correct += int(loss.num_correct or 0)
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

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, truncated to what the model can read."""
        check_texts(texts)
        limit = self.model.config.truncation_length or self.model.config.max_seq_len
        encoded = self.tokenizer.encode(texts, add_special_tokens=True, split_special_tokens=False)
        with Checks() as checks:  # a tokenizer may add no special tokens
            for index, ids in enumerate(encoded):
                checks.that(
                    bool(ids), f"texts[{index}]: expected a text of at least one token, got {short_repr(texts[index])}"
                )
        return truncate(encoded, limit, self.tokenizer)

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
