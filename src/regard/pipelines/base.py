"""What the pipelines share: loading, device and dtype."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from typing_extensions import Self

from regard.checks import as_device
from regard.errors import InvalidArgument
from regard.models import GPT, Bert
from regard.models.checkpoint import load_model
from regard.models.encoder_decoder import EncoderDecoder
from regard.text.base import BaseTokenizer
from regard.text.tokenizer import check_vocab_size, load_tokenizer

ModelT = TypeVar("ModelT", bound=EncoderDecoder | GPT | Bert)
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Pipeline(Generic[ModelT]):
    """A model with its tokenizer.

    Args:
        model: Put into evaluation mode.
        tokenizer: The tokenizer that the model was trained with.
        name: Name of the model in recordings and error messages.

    Raises:
        InvalidArgument: If the tokenizer has ids that the model does not have.
    """

    model_type: ClassVar[type[Any]]

    def __init__(self, model: ModelT, tokenizer: BaseTokenizer, name: str = "model") -> None:
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
            folder: As :func:`regard.models.save_model` writes it, or a checkpoint of Hugging Face's transformers.
            dtype: Compute dtype: float32, bfloat16, float16 or float64. :func:`regard.pipelines.fastest_dtype` can
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
        return cls(model, cls.load_tokenizer(path), name=path.resolve().name)

    @classmethod
    def load_tokenizer(cls, folder: Path) -> BaseTokenizer:
        """Load the tokenizer of a model folder.

        Raises:
            InvalidFile: If it is missing, damaged, or of another kind than the model needs.
        """
        return load_tokenizer(folder)

    @property
    def device(self) -> torch.device:
        """Device of the model's weights."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the model's weights."""
        return next(self.model.parameters()).dtype


def check_dtype(dtype: torch.dtype) -> None:
    """Check that models can compute in a dtype.

    Raises:
        InvalidArgument: If they cannot.
    """
    if dtype not in DTYPES:
        raise InvalidArgument(f"dtype: expected one of {', '.join(map(str, DTYPES))}, got {dtype!r}")


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
            f"device: expected an available device such as 'cpu', got '{device}' ({reason})"
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
