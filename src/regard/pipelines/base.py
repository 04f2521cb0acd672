"""Base of the pipelines: loading, device, dtype, batches, recordings and traces."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor

from regard.analysis.head_scores import repeated_random_tokens
from regard.checks import Checks, as_device, describe
from regard.data.batching import pad_batch
from regard.errors import InvalidArgument, short_repr
from regard.generation.sampling import SEED_RANGE
from regard.models import GPT, Bert
from regard.models.architectures import model_noun
from regard.models.checkpoint import load_model
from regard.models.encoder_decoder import EncoderDecoder
from regard.pipelines.batching import batches_by_length
from regard.pipelines.recording import record_forward
from regard.pipelines.tracing import trace_forward
from regard.recordings.layer import AttentionKind
from regard.recordings.recording import Recording
from regard.text.base import BaseTokenizer
from regard.text.tokenizer import check_vocab_size, load_tokenizer
from regard.tracing.trace import Trace

ModelT = TypeVar("ModelT", bound=EncoderDecoder | GPT | Bert)
SelfAttentionT = TypeVar("SelfAttentionT", bound=GPT | Bert)
Result = TypeVar("Result")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Pipeline(ABC, Generic[ModelT]):
    """A model with its tokenizer.

    Args:
        model: Put into evaluation mode.
        tokenizer: The tokenizer that the model was trained with.
        name: Name of the model in recordings and error messages.

    Raises:
        InvalidType: If the model is of another kind, or the tokenizer is not one of this library.
        InvalidArgument: If the tokenizer has ids that the model does not have.
    """

    model_type: ClassVar[type[Any]]
    max_batch_tokens: ClassVar[int]
    """Maximum number of tokens in a batch, with padding."""

    def __init__(self, model: ModelT, tokenizer: BaseTokenizer, name: str = "model") -> None:
        with Checks() as checks:
            if not isinstance(model, self.model_type):
                checks.fail_type(
                    f"model: expected {model_noun(self.model_type)} of this library, got {describe(model)}"
                )
            if not isinstance(tokenizer, BaseTokenizer):
                checks.fail_type(f"tokenizer: expected a tokenizer of this library, got {describe(tokenizer)}")
        config = model.config
        check_vocab_size(
            tokenizer, min(config.vocab_size, getattr(config, "decoder_vocab_size", config.vocab_size)), name
        )
        model.eval()
        self.model, self.tokenizer, self.name = model, tokenizer, name

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Self:
        """Load a model and its tokenizer from a folder.

        Args:
            folder: As `regard.models.save_model` writes it, or a checkpoint of Hugging Face's transformers.
            dtype: Compute dtype: float32, bfloat16, float16 or float64. `regard.pipelines.fastest_dtype` can
                be faster than float32.
            device: Device of the model, such as ``"cuda"``.

        Raises:
            InvalidType: If the folder is not a path.
            InvalidFile: If a file is missing, damaged, or does not fit the others.
            InvalidArgument: If models cannot compute in the dtype, or the device is not available.
        """
        check_dtype(dtype)
        device = available_device(device)
        model, path = load_model(folder, expected=cls.model_type).to(device, dtype), Path(folder)
        return cls(model, cls._load_tokenizer(path), name=path.resolve().name)

    @classmethod
    def _load_tokenizer(cls, folder: Path) -> BaseTokenizer:
        return load_tokenizer(folder)

    @property
    def device(self) -> torch.device:
        """Device of the model's weights."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the model's weights."""
        return next(self.model.parameters()).dtype

    @abstractmethod
    def record(self, text: str) -> Recording:
        """Record what every layer and head attends to in a text."""

    @abstractmethod
    def trace(self, text: str, layer: str | None = None) -> Trace:
        """Trace the computation of one attention layer on a text, step by step."""

    def _run_batched(
        self, sequences: Sequence[list[int]], run: Callable[[list[list[int]]], Iterable[Result]], extra: int = 0
    ) -> list[Result]:
        """Run a function on batches of sequences of similar length, and return its results in the original order.

        Args:
            sequences: Token ids.
            run: Returns one result for each sequence of a batch.
            extra: Number of tokens to add to each length, as for `batches_by_length`.
        """
        results: dict[int, Result] = {}
        for indices in batches_by_length([len(ids) for ids in sequences], self.max_batch_tokens, extra):
            results |= zip(indices, run([sequences[index] for index in indices]), strict=True)
        return [results[index] for index in range(len(sequences))]

    def _pad(self, sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids (batch, tokens), padded on the right, and lengths (batch,), on the model's device."""
        input_ids, lengths = pad_batch(sequences, self.model.config.pad_id)
        return input_ids.to(self.device), lengths.to(self.device)


class SelfAttentionPipeline(Pipeline[SelfAttentionT]):
    """A model with self-attention only, and its tokenizer."""

    layer_kind: ClassVar[AttentionKind]

    @abstractmethod
    def _encode_text(self, text: str) -> list[int]:
        """Token ids of one text, with special tokens; an error if it is too long for the model."""

    @property
    @abstractmethod
    def _special_tokens(self) -> tuple[list[int], list[int]]:
        """Token ids before and after a text."""

    def record(self, text: str) -> Recording:
        """Record what every layer and head attends to in a text.

        Raises:
            InvalidType: If the text is not a str.
            InvalidArgument: If the text is too long.
        """
        return self._record(self._encode_text(text), text)

    def trace(self, text: str, layer: str | None = None) -> Trace:
        """Trace the computation of one attention layer on a text, step by step.

        Args:
            text: A few words, for a readable trace.
            layer: Name of the layer, such as ``"encoder.0"`` of a BERT or ``"decoder.0"`` of a GPT. Default: the first.

        Returns:
            Trace: As from `regard.trace`, with an axis of heads. It begins with the token ids in the first layer,
            in others with the output of the layer below, and ends with the output of the block, in the last with the
            probabilities of tokens.

        Raises:
            InvalidType: If the text is not a str.
            InvalidArgument: If the text is too long, or there is no such layer.
        """
        ids = self._encode_text(text)
        names = self.tokenizer.convert_ids_to_tokens
        return trace_forward(self.model, self.layer_kind, ids, names(ids), text, layer, names)

    def record_repeated_tokens(self, length: int = 50, seed: int = 0) -> Recording:
        """Record the model on random tokens followed by the same tokens, on which induction heads stand out.

        Args:
            length: Number of random tokens; fewer if the model's max_seq_len is too small.
            seed: Seed of the random tokens.

        Raises:
            InvalidType: If an argument is not an int.
            InvalidArgument: If the length is not positive, or torch does not take the seed.

        Reference:
            Olsson et al. 2022, "In-context Learning and Induction Heads".
        """
        with Checks() as checks:
            checks.integer("length", length, low=1)
            checks.integer("seed", seed, low=SEED_RANGE.start, below=SEED_RANGE.stop)
        before, after = self._special_tokens
        length = min(length, (self.model.config.max_seq_len - len(before) - len(after)) // 2)
        ids = repeated_random_tokens(self.tokenizer.non_special_ids, length, seed)
        return self._record([*before, *ids, *after], "random tokens, twice")

    def _record(self, ids: list[int], title: str) -> Recording:
        tokens = self.tokenizer.convert_ids_to_tokens(ids)
        return record_forward(self.model, self.layer_kind, ids, tokens, title, self.name)


def check_token_counts(named: Iterable[tuple[str, Sequence[int]]], limit: int) -> None:
    """Check that texts are not too long for a model.

    Args:
        named: The name of each text in error messages, and its token ids.
        limit: Maximum number of tokens.

    Raises:
        InvalidArgument: If some are longer; all are named.
    """
    with Checks() as checks:
        for name, ids in named:
            checks.that(len(ids) <= limit, f"{name}: expected at most {limit} tokens, got {len(ids)}; shorten it")


def check_dtype(dtype: torch.dtype) -> None:
    """Check that models can compute in a dtype.

    Raises:
        InvalidArgument: If they cannot.
    """
    if dtype not in DTYPES:
        raise InvalidArgument(f"dtype: expected one of {', '.join(map(str, DTYPES))}, got {short_repr(dtype)}")


def available_device(device: str | torch.device) -> torch.device:
    """The device that an argument names, if tensors can be computed on it.

    Raises:
        InvalidType: If the argument is not a device.
        InvalidArgument: If torch does not know the device, or it is not available.
    """
    device = as_device(device)
    try:
        torch.zeros(1, device=device).item()
    except (AssertionError, RuntimeError) as error:  # NotImplementedError is a RuntimeError
        reason = str(error).strip().partition("\n")[0][:100]
        raise InvalidArgument(
            f"device: expected an available device such as 'cpu', got '{device}' ({reason}); `regard info` lists them"
        ) from None
    return device


def fastest_dtype() -> torch.dtype:
    """The fastest dtype for translation and generation on this CPU.

    Returns:
        ``torch.bfloat16`` if the CPU has instructions for its products, which halve the time of a translation; else
        ``torch.float32``. Attention weights in bfloat16 can be off by 0.03.
    """
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return torch.bfloat16 if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else torch.float32
