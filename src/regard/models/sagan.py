"""SAGAN (Zhang et al. 2019): a generator of images and its critic, each with self-attention over a feature map."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from regard.checks import Checks
from regard.models.config import Size, check_config, validate
from regard.models.inputs import INDICES, check_integers
from regard.nn.self_attention_2d import SelfAttention2d
from regard.ops import AttentionOutput

SMALLEST = 4  # a generator begins with so many rows and columns, where its critic ends
WIDEST = 16  # times the width: the most channels of a feature map


@dataclass(frozen=True)
class SaganConfig:
    """What a generator and its critic are built from; the defaults are the sizes of the paper for ImageNet.

    Args:
        image_size: Height and width of an image: 8, 16, 32 and so on.
        image_channels: Of an image: 1 for gray, 3 for colours.
        num_classes: What kinds of images there are.
        d_latent: Width of the random vector that an image is made of.
        width: Channels of a feature map as large as the image. One of half its size has twice as many, up to 16 times.
        attention_size: Height and width of the feature maps with self-attention; the paper's is 32. Default: none have
            it.

    Raises:
        InvalidArgument: With everything that does not fit.

    Example:
        >>> SaganConfig(image_size=32, num_classes=10, attention_size=16).sizes
        (4, 8, 16, 32)
    """

    image_size: Size = 128
    image_channels: Size = 3
    num_classes: Size = 1000
    d_latent: Size = 128
    width: Size = 64
    attention_size: Size | None = None

    def __post_init__(self) -> None:
        with Checks() as checks:
            validate(self, checks)
        size, divisor = self.attention_size, SelfAttention2d.REDUCTION
        with Checks() as checks:
            if self.image_size not in self.sizes[1:]:
                checks.fail(f"image_size: expected 8, 16, 32 and so on, each twice the last, got {self.image_size}")
            elif size is not None and size not in self.sizes:
                checks.fail(f"attention_size: expected one of {', '.join(map(str, self.sizes))}, or None, got {size}")
            elif size is not None and self.channels(size) % divisor:
                channels = self.channels(size)
                checks.fail(f"width: expected channels that {divisor} divides where attention is, got {channels}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of feature maps, from 4 to that of the image."""
        return tuple(SMALLEST * 2**power for power in range(max(1, (self.image_size // SMALLEST).bit_length())))

    def channels(self, size: int) -> int:
        """Channels of the feature maps of a size."""
        return self.width * min(self.image_size // size, WIDEST)


class GeneratorOutput(NamedTuple):
    """What a generator gives."""

    images: Tensor
    """(batch, image_channels, image_size, image_size), from −1 to 1"""
    attention: AttentionOutput | None
    """What each place of the feature map attended to, where the model has attention."""


class CriticOutput(NamedTuple):
    """What a critic gives."""

    scores: Tensor
    """(batch,): large for what it holds for real"""
    attention: AttentionOutput | None
    """What each place of the feature map attended to, where the model has attention."""


class SaganGenerator(nn.Module):
    """Makes an image of a class from a random vector.

    A linear map, then residual blocks that each double height and width, then tanh. Batch normalisation takes scale and
    shift from the class; every convolution and linear map has spectral norm 1.

    Args:
        config: Sizes.

    Reference: Zhang, Goodfellow, Metaxas, Odena 2019, "Self-Attention Generative Adversarial Networks", sections 3, 4;
    de Vries et al. 2017, "Modulating early visual processing by language" (normalisation by class).

    Example:
        >>> import torch
        >>> config = SaganConfig(image_size=8, image_channels=1, num_classes=10, width=8, attention_size=8)
        >>> output = SaganGenerator(config)(torch.randn(2, 128), torch.tensor([3, 7]))
        >>> output.images.shape, output.attention.weights.shape
        (torch.Size([2, 1, 8, 8]), torch.Size([2, 1, 64, 64]))
    """

    def __init__(self, config: SaganConfig) -> None:
        super().__init__()
        self.config = check_config(config, SaganConfig)
        channels = [config.channels(size) for size in config.sizes]
        self.begin = _normed(nn.Linear(config.d_latent, channels[0] * SMALLEST**2))
        self.blocks = nn.ModuleList(
            _Up(inner, outer, config.num_classes) for inner, outer in itertools.pairwise(channels)
        )
        self.attention = _attention(config)
        self.norm = nn.BatchNorm2d(channels[-1])
        self.end = _normed(nn.Conv2d(channels[-1], config.image_channels, 3, padding=1))

    def forward(self, latent: Tensor, labels: Tensor) -> GeneratorOutput:
        """Make images.

        Args:
            latent: (batch, d_latent), drawn from N(0, 1).
            labels: (batch,), the class of each.

        Returns:
            GeneratorOutput: ``images`` and ``attention``.

        Raises:
            InvalidArgument: If shapes or classes do not fit.
        """
        config = self.config
        _check_batch("latent", latent, "(batch, d_latent)", (config.d_latent,), labels, config.num_classes)
        x = self.begin(latent).unflatten(1, (-1, SMALLEST, SMALLEST))
        x, attended = _attend(self.attention, self.config, x)
        for block in self.blocks:
            x, found = _attend(self.attention, self.config, block(x, labels))
            attended = attended or found
        return GeneratorOutput(torch.tanh(self.end(functional.relu(self.norm(x)))), attended)

    def draw(self, labels: Tensor, generator: torch.Generator | None = None) -> GeneratorOutput:
        """Make an image of each of these classes from a new random vector."""
        shape = (len(labels), self.config.d_latent)
        return self(torch.randn(shape, generator=generator, device=labels.device), labels)


class SaganCritic(nn.Module):
    """Tells real images of a class from made ones: the discriminator.

    A convolution, residual blocks that each halve height and width, one that does not, then score = v · Φ + e_class · Φ
    where Φ is the sum over all places. Every convolution, linear map and embedding has spectral norm 1.

    Args:
        config: Sizes.

    Reference: Zhang et al. 2019, as for :class:`SaganGenerator`; Miyato et al. 2018, "Spectral normalization for
    generative adversarial networks"; Miyato and Koyama 2018, "cGANs with projection discriminator".

    Example:
        >>> import torch
        >>> config = SaganConfig(image_size=8, image_channels=1, num_classes=10, width=8, attention_size=8)
        >>> SaganCritic(config)(torch.randn(2, 1, 8, 8), torch.tensor([3, 7])).scores.shape
        torch.Size([2])
    """

    def __init__(self, config: SaganConfig) -> None:
        super().__init__()
        self.config = check_config(config, SaganConfig)
        channels = [config.channels(size) for size in config.sizes[::-1]]
        self.begin = _normed(nn.Conv2d(config.image_channels, channels[0], 3, padding=1))
        self.blocks = nn.ModuleList(_Down(inner, outer) for inner, outer in itertools.pairwise(channels))
        self.attention = _attention(config)
        self.last = _Down(channels[-1], channels[-1], halved=False)
        self.end = _normed(nn.Linear(channels[-1], 1))
        self.of_class = _normed(nn.Embedding(config.num_classes, channels[-1]))

    def forward(self, images: Tensor, labels: Tensor) -> CriticOutput:
        """Judge images.

        Args:
            images: (batch, image_channels, image_size, image_size), from −1 to 1.
            labels: (batch,), the class of each.

        Returns:
            CriticOutput: ``scores`` and ``attention``.

        Raises:
            InvalidArgument: If shapes or classes do not fit.
        """
        shape = self.config.image_channels, self.config.image_size, self.config.image_size
        axes = "(batch, image_channels, image_size, image_size)"
        _check_batch("images", images, axes, shape, labels, self.config.num_classes)
        x, attended = _attend(self.attention, self.config, self.begin(images))
        for block in self.blocks:
            x, found = _attend(self.attention, self.config, block(x))
            attended = attended or found
        summed = functional.relu(self.last(x)).sum((2, 3))  # (batch, channels)
        return CriticOutput(self.end(summed)[:, 0] + (self.of_class(labels) * summed).sum(1), attended)


def critic_loss(real: Tensor, made: Tensor) -> Tensor:
    """The hinge loss of the critic's scores, mean max(0, 1 − real) + mean max(0, 1 + made): equation 4 of SAGAN."""
    return functional.relu(1 - real).mean() + functional.relu(1 + made).mean()


def generator_loss(made: Tensor) -> Tensor:
    """What the generator makes small of the critic's scores of its images: −mean made."""
    return -made.mean()


class _Up(nn.Module):
    """x → conv(relu(norm(conv(up(relu(norm(x))))))) + conv₁ₓ₁(up(x)), twice as high and wide."""

    def __init__(self, inner: int, outer: int, num_classes: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _ClassNorm(inner, num_classes), _ClassNorm(outer, num_classes)
        self.conv1 = _normed(nn.Conv2d(inner, outer, 3, padding=1))
        self.conv2 = _normed(nn.Conv2d(outer, outer, 3, padding=1))
        self.shortcut = _normed(nn.Conv2d(inner, outer, 1))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        y = self.conv1(_doubled(functional.relu(self.norm1(x, labels))))
        return self.conv2(functional.relu(self.norm2(y, labels))) + self.shortcut(_doubled(x))


class _Down(nn.Module):
    """x → pool(conv(relu(conv(relu(x))))) + pool(conv₁ₓ₁(x)), half as high and wide."""

    def __init__(self, inner: int, outer: int, *, halved: bool = True) -> None:
        super().__init__()
        self.conv1 = _normed(nn.Conv2d(inner, outer, 3, padding=1))
        self.conv2 = _normed(nn.Conv2d(outer, outer, 3, padding=1))
        self.shortcut = _normed(nn.Conv2d(inner, outer, 1))
        self.pool: Callable[[Tensor], Tensor] = nn.AvgPool2d(2) if halved else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(functional.relu(self.conv1(functional.relu(x))))
        return self.pool(y + self.shortcut(x))


class _ClassNorm(nn.Module):
    """Batch normalisation whose scale and shift depend on the class."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.scale, self.shift = nn.Embedding(num_classes, channels), nn.Embedding(num_classes, channels)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.norm(x) * self.scale(labels)[:, :, None, None] + self.shift(labels)[:, :, None, None]


def _normed(module: nn.Module) -> nn.Module:
    """The module with Xavier's uniform weights, biases of 0, and its largest singular value held at 1."""
    for name, parameter in module.named_parameters():
        nn.init.zeros_(parameter) if name == "bias" else nn.init.xavier_uniform_(parameter)
    return spectral_norm(module)


def _attention(config: SaganConfig) -> SelfAttention2d | None:
    size = config.attention_size
    return None if size is None else SelfAttention2d(config.channels(size), spectral_norm=True)


def _attend(attention: nn.Module | None, config: SaganConfig, x: Tensor) -> tuple[Tensor, AttentionOutput | None]:
    """The feature map with what it attended to, if it has the size for it."""
    if attention is None or x.shape[2] != config.attention_size:
        return x, None
    attended = attention(x)
    return attended.output, attended


def _doubled(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2)


def _check_batch(name: str, batch: Tensor, axes: str, shape: tuple[int, ...], labels: Tensor, num_classes: int) -> None:
    """Check a batch of this shape, which messages call `axes`, and the label of each entry."""
    with Checks() as checks:
        if checks.tensor(name, batch) and checks.tensor(name, batch, shapes={axes: (*batch.shape[:1], *shape)}):
            last = num_classes - 1
            check_integers(checks, "labels", labels, len(batch), 0, last, f"num_classes - 1 = {last}", INDICES)
