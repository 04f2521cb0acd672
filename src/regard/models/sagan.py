"""SAGAN (Zhang et al. 2019): an image generator and its discriminator, each with self-attention over a feature map."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from regard.checks import Checks
from regard.models.config import Size, check_config
from regard.models.inputs import INDICES, check_integers
from regard.nn.self_attention_2d import SelfAttention2d
from regard.ops import AttentionOutput
from regard.validation import Config, config_class

MIN_SIZE = 4  # height and width of the smallest feature maps: the generator's first, the discriminator's last
MAX_CHANNEL_FACTOR = 16  # a feature map has at most 16 · base_channels channels


@config_class
class SaganConfig(Config):
    """Sizes of a SAGAN's generator and discriminator; the defaults are the paper's for ImageNet.

    Args:
        image_size: Height and width of an image in pixels: a power of two, at least 8.
        image_channels: Channels of an image: 1 for grayscale, 3 for RGB.
        num_classes: Number of image classes.
        latent_dim: Size of the generator's random input vector.
        base_channels: Channels of the feature maps of image size. They double with each halving of the size, up to
            16 · base_channels.
        attention_size: Height and width of the feature maps with self-attention; 32 in the paper. Default: no
            self-attention.

    Raises:
        InvalidArgument: If a size is out of range or of the wrong type, image_size is not a power of two,
            attention_size is not the size of a feature map, or 8 does not divide the channels of that feature map.

    Examples:
        >>> SaganConfig(image_size=32, num_classes=10, attention_size=16).sizes
        (4, 8, 16, 32)
    """

    image_size: Size = 128
    image_channels: Size = 3
    num_classes: Size = 1000
    latent_dim: Size = 128
    base_channels: Size = 64
    attention_size: Size | None = None

    def check(self, checks: Checks) -> None:
        size, divisor = self.attention_size, SelfAttention2d.REDUCTION
        if self.image_size not in self.sizes[1:]:
            checks.fail(f"image_size: expected a power of two of at least 8, got {self.image_size}")
        elif size is not None and size not in self.sizes:
            checks.fail(f"attention_size: expected one of {', '.join(map(str, self.sizes))}, or None, got {size}")
        elif size is not None and self.channels(size) % divisor:
            expected = f"a multiple of {divisor} channels in the feature maps with attention"
            checks.fail(f"base_channels: expected {expected}, got {self.channels(size)}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Heights of the feature maps in ascending order, from 4 to image_size; their widths are the same."""
        return tuple(MIN_SIZE * 2**power for power in range(max(1, (self.image_size // MIN_SIZE).bit_length())))

    def channels(self, size: int) -> int:
        """Number of channels of the feature maps of this height."""
        return self.base_channels * min(self.image_size // size, MAX_CHANNEL_FACTOR)


class GeneratorOutput(NamedTuple):
    """Output of `SaganGenerator`."""

    images: Tensor
    """(batch, image_channels, image_size, image_size), from −1 to 1"""
    attention: AttentionOutput | None
    """None without self-attention"""


class DiscriminatorOutput(NamedTuple):
    """Output of `SaganDiscriminator`."""

    scores: Tensor
    """(batch,): unbounded, higher for images that look real"""
    attention: AttentionOutput | None
    """None without self-attention"""


class SaganGenerator(nn.Module):
    """Class-conditional image generator.

    A linear map, residual blocks that each double height and width, batch normalization, ReLU, a convolution and tanh.
    The batch normalization in the blocks has a scale and a shift per class. All convolutions and linear maps have
    spectral norm 1.

    Args:
        config: Sizes.

    Reference: Zhang et al. 2019, "Self-Attention Generative Adversarial Networks", sections 3, 4; de Vries et al. 2017,
    "Modulating early visual processing by language" (class-conditional batch normalization).

    Examples:
        >>> import torch
        >>> config = SaganConfig(image_size=8, image_channels=1, num_classes=10, base_channels=8, attention_size=8)
        >>> output = SaganGenerator(config)(torch.randn(2, 128), torch.tensor([3, 7]))
        >>> output.images.shape, output.attention.weights.shape
        (torch.Size([2, 1, 8, 8]), torch.Size([2, 1, 64, 64]))
    """

    def __init__(self, config: SaganConfig) -> None:
        super().__init__()
        self.config = check_config(config, SaganConfig)
        channels = [config.channels(size) for size in config.sizes]
        self.input = _with_spectral_norm(nn.Linear(config.latent_dim, channels[0] * MIN_SIZE**2))
        self.blocks = nn.ModuleList(
            _UpBlock(inner, outer, config.num_classes) for inner, outer in itertools.pairwise(channels)
        )
        self.attention = _attention(config)
        self.norm = nn.BatchNorm2d(channels[-1])
        self.output = _with_spectral_norm(nn.Conv2d(channels[-1], config.image_channels, 3, padding=1))

    def forward(self, latent: Tensor, labels: Tensor) -> GeneratorOutput:
        """Generate an image from each latent vector.

        Args:
            latent: (batch, latent_dim), samples from N(0, 1).
            labels: (batch,), class of each image: int64 or int32, from 0 to num_classes − 1.

        Raises:
            InvalidType: If an argument is not a tensor.
            InvalidArgument: If shapes, dtypes or classes do not fit.
        """
        config = self.config
        _check_batch("latent", latent, "(batch, latent_dim)", (config.latent_dim,), labels, config.num_classes)
        x = self.input(latent).unflatten(1, (-1, MIN_SIZE, MIN_SIZE))
        blocks = [partial(block, labels=labels) for block in self.blocks]
        x, attention = _apply_blocks(x, blocks, self.attention, config.attention_size)
        return GeneratorOutput(torch.tanh(self.output(functional.relu(self.norm(x)))), attention)

    def sample(self, labels: Tensor, generator: torch.Generator | None = None) -> GeneratorOutput:
        """Generate an image of each class from latent vectors drawn from N(0, 1).

        Args:
            labels: (batch,), as for `forward`, whose output and errors these are.
            generator: Random number generator on the labels' device. Default: torch's global one.
        """
        shape = (len(labels), self.config.latent_dim)
        return self(torch.randn(shape, generator=generator, device=labels.device), labels)


class SaganDiscriminator(nn.Module):
    """Class-conditional discriminator of real and generated images.

    A convolution, residual blocks that each halve height and width, and a last block that keeps them. With Φ the sum
    over all positions of the ReLU of the last feature map:

        score = v · Φ + b + e_class · Φ

    All convolutions, linear maps and embeddings have spectral norm 1.

    Args:
        config: Sizes.

    Reference: Zhang et al. 2019, as for `SaganGenerator`; Miyato et al. 2018, "Spectral normalization for
    generative adversarial networks"; Miyato and Koyama 2018, "cGANs with projection discriminator".

    Examples:
        >>> import torch
        >>> config = SaganConfig(image_size=8, image_channels=1, num_classes=10, base_channels=8, attention_size=8)
        >>> SaganDiscriminator(config)(torch.randn(2, 1, 8, 8), torch.tensor([3, 7])).scores.shape
        torch.Size([2])
    """

    def __init__(self, config: SaganConfig) -> None:
        super().__init__()
        self.config = check_config(config, SaganConfig)
        channels = [config.channels(size) for size in config.sizes[::-1]]
        self.input = _with_spectral_norm(nn.Conv2d(config.image_channels, channels[0], 3, padding=1))
        self.blocks = nn.ModuleList(_DownBlock(inner, outer) for inner, outer in itertools.pairwise(channels))
        self.attention = _attention(config)
        self.last_block = _DownBlock(channels[-1], channels[-1], pool=False)
        self.output = _with_spectral_norm(nn.Linear(channels[-1], 1))
        self.class_embedding = _with_spectral_norm(nn.Embedding(config.num_classes, channels[-1]))

    def forward(self, images: Tensor, labels: Tensor) -> DiscriminatorOutput:
        """Score images: high for real ones, low for generated ones.

        Args:
            images: (batch, image_channels, image_size, image_size), from −1 to 1.
            labels: (batch,), class of each image: int64 or int32, from 0 to num_classes − 1.

        Raises:
            InvalidType: If an argument is not a tensor.
            InvalidArgument: If shapes, dtypes or classes do not fit.
        """
        config = self.config
        shape = config.image_channels, config.image_size, config.image_size
        axes = "(batch, image_channels, image_size, image_size)"
        _check_batch("images", images, axes, shape, labels, config.num_classes)
        x, attention = _apply_blocks(self.input(images), self.blocks, self.attention, config.attention_size)
        features = functional.relu(self.last_block(x)).sum((2, 3))  # (batch, channels)
        scores = self.output(features)[:, 0] + (self.class_embedding(labels) * features).sum(1)
        return DiscriminatorOutput(scores, attention)


def discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Hinge loss of the discriminator, a scalar: mean max(0, 1 − real) + mean max(0, 1 + fake).

    Args:
        real: (batch,), the discriminator's scores of real images.
        fake: (batch,), its scores of generated images.

    Reference: Zhang et al. 2019, equation 4.
    """
    return functional.relu(1 - real).mean() + functional.relu(1 + fake).mean()


def generator_loss(fake: Tensor) -> Tensor:
    """Hinge loss of the generator, a scalar: −mean fake; arguments and reference as for `discriminator_loss`."""
    return -fake.mean()


class _UpBlock(nn.Module):
    """x → conv(relu(norm(conv(up(relu(norm(x))))))) + conv₁ₓ₁(up(x)), which doubles height and width."""

    def __init__(self, inner: int, outer: int, num_classes: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _ClassNorm(inner, num_classes), _ClassNorm(outer, num_classes)
        self.conv1 = _with_spectral_norm(nn.Conv2d(inner, outer, 3, padding=1))
        self.conv2 = _with_spectral_norm(nn.Conv2d(outer, outer, 3, padding=1))
        self.shortcut = _with_spectral_norm(nn.Conv2d(inner, outer, 1))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        y = functional.interpolate(functional.relu(self.norm1(x, labels)), scale_factor=2)
        y = self.conv2(functional.relu(self.norm2(self.conv1(y), labels)))
        return y + self.shortcut(functional.interpolate(x, scale_factor=2))


class _DownBlock(nn.Module):
    """x → pool(conv(relu(conv(relu(x))))) + pool(conv₁ₓ₁(x)), which halves height and width."""

    def __init__(self, inner: int, outer: int, *, pool: bool = True) -> None:
        super().__init__()
        self.conv1 = _with_spectral_norm(nn.Conv2d(inner, outer, 3, padding=1))
        self.conv2 = _with_spectral_norm(nn.Conv2d(outer, outer, 3, padding=1))
        self.shortcut = _with_spectral_norm(nn.Conv2d(inner, outer, 1))
        self.pool: Callable[[Tensor], Tensor] = nn.AvgPool2d(2) if pool else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(functional.relu(self.conv1(functional.relu(x))))
        return self.pool(y + self.shortcut(x))


class _ClassNorm(nn.Module):
    """Batch normalization with a scale and a shift per class."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels, affine=False)
        self.scale, self.shift = nn.Embedding(num_classes, channels), nn.Embedding(num_classes, channels)
        nn.init.ones_(self.scale.weight)
        nn.init.zeros_(self.shift.weight)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return self.norm(x) * self.scale(labels)[:, :, None, None] + self.shift(labels)[:, :, None, None]


def _with_spectral_norm(module: nn.Module) -> nn.Module:
    """Draw weights from Xavier's uniform distribution, set the bias to 0, and normalize the spectral norm to 1."""
    for name, parameter in module.named_parameters():
        nn.init.zeros_(parameter) if name == "bias" else nn.init.xavier_uniform_(parameter)
    return spectral_norm(module)


def _attention(config: SaganConfig) -> SelfAttention2d | None:
    size = config.attention_size
    return None if size is None else SelfAttention2d(config.channels(size), spectral_norm=True)


def _apply_blocks(
    x: Tensor, blocks: Iterable[Callable[[Tensor], Tensor]], attention: nn.Module | None, attention_size: int | None
) -> tuple[Tensor, AttentionOutput | None]:
    """Apply the blocks in turn, and self-attention to the feature map of height `attention_size`."""
    attended = None
    for block in (nn.Identity(), *blocks):
        x = block(x)
        if attention is not None and x.shape[2] == attention_size:
            attended = attention(x)
            x = attended.output
    return x, attended


def _check_batch(name: str, batch: Tensor, axes: str, shape: tuple[int, ...], labels: Tensor, num_classes: int) -> None:
    """Check that the batch has shape (batch, *shape), described in messages as `axes`, and one label for each entry."""
    with Checks() as checks:
        if checks.tensor(name, batch) and checks.tensor(name, batch, shapes={axes: (*batch.shape[:1], *shape)}):
            last = num_classes - 1
            check_integers(checks, "labels", labels, len(batch), 0, last, f"num_classes - 1 = {last}", INDICES)
