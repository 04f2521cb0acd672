"""Train SAGAN with and without self-attention, and compare the Fréchet distances of generated to real images.

``python experiments/sagan.py`` trains on scikit-learn's digits (8 × 8; ``pip install scikit-learn``) with three seeds,
with and without attention; each training takes some minutes. Other images, such as CIFAR-10, are read from one file:

    python experiments/sagan.py --images cifar10.npz --base-channels 64 --attention-size 16 --steps 100000 --device cuda

with ``images`` (count, size, size) or (count, size, size, channels) from 0 to 255 and ``labels`` (count,).

The training follows Zhang et al. 2019: hinge loss, spectral normalization of both networks, attention initialized with
γ = 0, Adam with β = (0, 0.9), learning rates of 0.0001 for the generator and 0.0004 for the discriminator, which take
steps in turn. The Fréchet distance (Heusel et al. 2017) is computed in the features of a small classifier of the same
images, because Inception's features are not meaningful for digits. Interrupted trainings resume; finished ones are not
repeated.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Annotated, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
import typer
from results import command, spread, write_result
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.image.fid import FrechetInceptionDistance

from regard.errors import RegardError
from regard.files import atomic_write
from regard.models import SaganConfig, SaganDiscriminator, SaganGenerator
from regard.models.sagan import discriminator_loss, generator_loss

SAVE_EVERY = 500
OUTPUT = Path("docs/results/sagan.json")
app = typer.Typer(pretty_exceptions_enable=False)


class Images(NamedTuple):
    """Images (count, channels, size, size) from −1 to 1, and the class of each (count,)."""

    images: Tensor
    labels: Tensor


@app.command()
def main(
    images: Annotated[str, typer.Option(help="digits, or an .npz file with images and labels.")] = "digits",
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 3000,
    seeds: Annotated[int, typer.Option(min=1, help="Number of trainings with attention, and without.")] = 3,
    batch: Annotated[int, typer.Option(min=2, help="Batch size.")] = 32,
    base_channels: Annotated[int, typer.Option(min=8, help="Channels of the largest feature maps.")] = 32,
    samples: Annotated[int, typer.Option(min=100, help="Number of generated images for the distance.")] = 10_000,
    attention_size: Annotated[int, typer.Option(help="Height and width of the maps with attention: 4, 8, ...")] = 8,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    run: Annotated[Path, typer.Option(help="Folder of the training states.")] = Path("runs/sagan"),
    output: Annotated[Path, typer.Option(help="Result file; the figure goes into the same folder.")] = OUTPUT,
) -> None:
    """Train with and without attention, and write the Fréchet distances and a figure of attention maps."""
    data = Images(*(part.to(device) for part in load(images)))
    config = SaganConfig(
        image_size=data.images.shape[2],
        image_channels=data.images.shape[1],
        num_classes=int(data.labels.max()) + 1,
        base_channels=base_channels,
        attention_size=attention_size,
    )
    plain = SaganConfig(**{**vars(config), "attention_size": None})
    features = train_features(data)
    distances: dict[str, list[float]] = {"with": [], "without": []}
    with Progress() as progress:
        for seed in range(seeds):
            for name, each in (("with", config), ("without", plain)):
                task = progress.add_task(f"{name} attention, seed {seed}", total=steps)
                generator = train(data, each, seed, steps, batch, run / f"{name}-{seed}.pt", progress, task)
                distances[name].append(distance(generator, data, features, samples))
                progress.print(f"{name} attention, seed {seed}: {distances[name][-1]:.2f}")
                if name == "with" and seed == 0:
                    plot(generator, output.with_suffix(".png"))
    reached = [f"{spread(values, 2)} {name} attention" for name, values in distances.items()]
    split = torch.randperm(len(data.images), generator=torch.Generator().manual_seed(0)).to(device)
    halves = [Images(data.images[half], data.labels[half]) for half in split.chunk(2)]
    floor = fid(features, halves[0].images, halves[1].images)
    times = f"{seeds} seed{'s' if seeds > 1 else ''}"
    write_result(
        output,
        f"SAGAN on {Path(images).stem}, Fréchet distance in a classifier's features, {steps:,} steps, {times}",
        ", ".join(reached),
        f"none; two halves of the real images: {floor:.2f}",
        command(
            "sagan.py",
            images=None if images == "digits" else Path(images).name,
            steps=steps,
            seeds=seeds,
            batch=batch,
            base_channels=base_channels,
            attention_size=attention_size,
            samples=samples,
        ),
        values=distances,
    )
    print(", ".join(reached), f"({floor:.2f} between two halves of the real images)")


def load(images: str) -> Images:
    """Read grayscale or RGB images."""
    if images == "digits":
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels, labels = digits.images / 16, digits.target
    else:
        with np.load(images) as stored:
            missing = [name for name in ("images", "labels") if name not in stored]
            if missing:
                sys.exit(f"sagan: {images}: expected the arrays images and labels, got {', '.join(stored) or 'none'}")
            pixels, labels = stored["images"] / 255, stored["labels"]
        if pixels.ndim not in (3, 4) or labels.shape != pixels.shape[:1]:
            shapes = f"images {pixels.shape} and labels {labels.shape}"
            sys.exit(f"sagan: {images}: expected images (count, size, size[, channels]), labels (count,), got {shapes}")
    pixels = torch.as_tensor(pixels, dtype=torch.float32)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.movedim(3, 1)
    return Images(pixels * 2 - 1, torch.as_tensor(labels, dtype=torch.int64))


def train(
    data: Images, config: SaganConfig, seed: int, steps: int, batch: int, path: Path, progress: Progress, task: int
) -> SaganGenerator:
    """Train a generator and its discriminator; resume from the last saved state."""
    device = data.images.device
    torch.manual_seed(seed)
    generator, discriminator = SaganGenerator(config).to(device), SaganDiscriminator(config).to(device)
    optimizers = [
        torch.optim.Adam(model.parameters(), lr=rate, betas=(0.0, 0.9))
        for model, rate in ((generator, 1e-4), (discriminator, 4e-4))
    ]
    rng = torch.Generator(device).manual_seed(seed)
    parts = {
        "generator": generator,
        "discriminator": discriminator,
        "generator_optimizer": optimizers[0],
        "discriminator_optimizer": optimizers[1],
    }
    first_step = 1
    settings = {"config": vars(config), "batch": batch, "data": digest(data)}
    if path.is_file():
        state = torch.load(path, map_location=device, weights_only=True)
        changed = [name for name, value in settings.items() if state[name] != value]
        if changed or state["step"] > steps:
            difference = f"another {' and '.join(changed)}" if changed else f"{state['step']} steps, more than {steps}"
            sys.exit(f"sagan: {path}: a training with {difference}; choose another folder with --run")
        first_step = state["step"] + 1
        rng.set_state(state["rng"].cpu())
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for step in range(first_step, steps + 1):
        chosen = torch.randint(len(data.images), (batch,), generator=rng, device=device)
        labels = data.labels[chosen]
        with torch.no_grad():
            fake = generator.sample(labels, rng).images
        scores = discriminator(torch.cat([data.images[chosen], fake]), labels.repeat(2)).scores
        _descend(optimizers[1], discriminator_loss(*scores.chunk(2)))
        labels = data.labels[torch.randint(len(data.images), (batch,), generator=rng, device=device)]
        scores = discriminator(generator.sample(labels, rng).images, labels).scores
        _descend(optimizers[0], generator_loss(scores))
        progress.update(task, completed=step)
        if step % SAVE_EVERY == 0 or step == steps:
            path.parent.mkdir(parents=True, exist_ok=True)
            state = {name: part.state_dict() for name, part in parts.items()}
            with atomic_write(path) as file:
                torch.save(state | settings | {"step": step, "rng": rng.get_state()}, file)
    progress.update(task, completed=steps)
    return generator.eval()


def digest(data: Images) -> str:
    """SHA-256 of the images and labels."""
    return hashlib.sha256(b"".join(part.cpu().numpy().tobytes() for part in data)).hexdigest()


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train_features(data: Images, epochs: int = 20) -> nn.Module:
    """Train a classifier of the images; return it without its last layer, with features (batch, 64)."""
    torch.manual_seed(0)
    device, classes = data.images.device, int(data.labels.max()) + 1
    layers = [nn.Conv2d(data.images.shape[1], 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()]
    features = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(256, 64)).to(device)
    classifier = nn.Sequential(nn.ReLU(), nn.Linear(64, classes)).to(device)
    optimizer = torch.optim.Adam([*features.parameters(), *classifier.parameters()], lr=1e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(data.images), device=device).split(64):
            logits = classifier(features(data.images[chosen]))
            _descend(optimizer, functional.cross_entropy(logits, data.labels[chosen]))
    return features.eval().requires_grad_(False)


@torch.no_grad()
def distance(generator: SaganGenerator, data: Images, features: nn.Module, count: int) -> float:
    """Fréchet distance of `count` generated images, with the class frequencies of the real ones, to the real ones."""
    device = data.images.device
    rng = torch.Generator(device).manual_seed(1)
    chosen = torch.randint(len(data.labels), (count,), generator=rng, device=device)
    fake = torch.cat([generator.sample(data.labels[part], rng).images for part in chosen.split(500)])
    return fid(features, data.images, fake)


def fid(features: nn.Module, real: Tensor, fake: Tensor) -> float:
    """Fréchet distance of two sets of images in these features."""
    features.num_features = 64  # torchmetrics reads it from any network but Inception
    metric = FrechetInceptionDistance(feature=features).to(real.device)
    for images, is_real in ((real, True), (fake, False)):
        for part in images.split(500):
            metric.update(part, real=is_real)
    return float(metric.compute())


@torch.no_grad()
def plot(generator: SaganGenerator, path: Path) -> None:
    """Plot one image per class; below it, the attention of three of its positions."""
    classes = min(generator.config.num_classes, 10)
    labels = torch.arange(classes, device=next(generator.parameters()).device)
    output = generator.sample(labels, torch.Generator(labels.device).manual_seed(2))
    assert output.attention is not None
    size, scale = generator.config.attention_size or 1, generator.config.image_size
    positions = [size // 4 * size + size // 2, size // 2 * size + size // 4, (size - size // 4) * size + size // 2]
    figure, rows = plt.subplots(1 + len(positions), classes, figsize=(classes, 1 + len(positions)), squeeze=False)
    for column in range(classes):
        image = (output.images[column] / 2 + 0.5).clamp(0, 1).movedim(0, 2).cpu()
        for axes in rows[:, column]:
            axes.imshow(image, cmap="gray", extent=(0, scale, scale, 0))
        for number, position in enumerate(positions):
            weights = output.attention.weights[column, 0, position].view(size, size).cpu()
            x, y = (position % size + 0.5) * scale / size, (position // size + 0.5) * scale / size
            alpha = (weights / weights.max()).sqrt() * 0.8
            rows[1 + number, column].imshow(weights, cmap="viridis", alpha=alpha, extent=(0, scale, scale, 0))
            for axes in (rows[0, column], rows[1 + number, column]):
                axes.plot(x, y, "o", color=f"C{number + 1}", markersize=4, markeredgecolor="white")
    for axes in rows.flat:
        axes.set_axis_off()
    figure.tight_layout(pad=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    try:
        app()
    except (RegardError, OSError) as error:
        sys.exit(f"sagan: {error}")
