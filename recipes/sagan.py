"""A self-attention GAN, with and without its attention: how far are its images from real ones?

Run: ``python recipes/sagan.py`` trains on scikit-learn's digits (8 × 8; ``pip install scikit-learn``), some minutes for
each of three seeds, with attention and without. Another set of images, as CIFAR-10, is one file:

    python recipes/sagan.py --images cifar10.npz --width 64 --attention-size 16 --steps 100000 --device cuda

with ``images`` (count, size, size) or (count, size, size, channels) from 0 to 255 and ``labels`` (count,).

The training is that of Zhang et al. 2019: hinge loss, spectral norm in both networks, attention that begins with γ = 0,
Adam with β = (0, 0.9), a learning rate of 0.0001 for the generator and 0.0004 for its critic, a step of each in turn.
The distance is Fréchet's (Heusel et al. 2017), in the features of a small classifier that is trained on the same images
first: Inception's mean nothing on digits. A training that has finished is not done again; one that was stopped goes on.
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
from regard.models import SaganConfig, SaganCritic, SaganGenerator
from regard.models.sagan import critic_loss, generator_loss

SAVE_EVERY = 500
app = typer.Typer(pretty_exceptions_enable=False)


class Images(NamedTuple):
    """Images (count, channels, size, size) from −1 to 1, and what each shows (count,)."""

    images: Tensor
    labels: Tensor


@app.command()
def main(
    images: Annotated[str, typer.Option(help="digits, or an .npz with images and labels.")] = "digits",
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 3000,
    seeds: Annotated[int, typer.Option(min=1, help="How many trainings with attention, and without.")] = 3,
    batch: Annotated[int, typer.Option(min=2, help="Images of a step.")] = 32,
    width: Annotated[int, typer.Option(min=8, help="Channels of the largest feature maps.")] = 32,
    made: Annotated[int, typer.Option(min=100, help="How many made images are compared with the real ones.")] = 10_000,
    attention_size: Annotated[int, typer.Option(help="Size of the feature maps with attention: 4, 8, ... image.")] = 8,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    run: Annotated[Path, typer.Option(help="Where trainings are kept.")] = Path("runs/sagan"),
    output: Annotated[Path, typer.Option(help="Where result and picture go.")] = Path("docs/results/sagan.json"),
) -> None:
    """Train with and without attention, and write the Fréchet distances and a picture of attention maps."""
    data = Images(*(part.to(device) for part in load(images)))
    config = SaganConfig(
        image_size=data.images.shape[2],
        image_channels=data.images.shape[1],
        num_classes=int(data.labels.max()) + 1,
        width=width,
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
                distances[name].append(distance(generator, data, features, made))
                progress.print(f"{name} attention, seed {seed}: {distances[name][-1]:.2f}")
                if name == "with" and seed == 0:
                    draw(generator, output.with_suffix(".png"))
    told = [f"{spread(values, 2)} {name} attention" for name, values in distances.items()]
    split = torch.randperm(len(data.images), generator=torch.Generator().manual_seed(0)).to(device)
    halves = [Images(data.images[half], data.labels[half]) for half in split.chunk(2)]
    floor = fid(features, halves[0].images, halves[1].images)
    times = f"{seeds} seed{'s' if seeds > 1 else ''}"
    write_result(
        output,
        f"SAGAN on {Path(images).stem}, Fréchet distance in a classifier's features, {steps:,} steps, {times}",
        ", ".join(told),
        f"none; two halves of the real images: {floor:.2f}",
        command(
            "sagan.py",
            images=None if images == "digits" else Path(images).name,
            steps=steps,
            seeds=seeds,
            batch=batch,
            width=width,
            attention_size=attention_size,
            made=made,
        ),
        values=distances,
    )
    print(", ".join(told), f"({floor:.2f} between two halves of the real images)")


def load(images: str) -> Images:
    """Read the images, gray or in colours."""
    if images == "digits":
        from sklearn.datasets import load_digits

        found = load_digits()
        pixels, labels = found.images / 16, found.target
    else:
        with np.load(images) as stored:
            missing = [name for name in ("images", "labels") if name not in stored]
            if missing:
                sys.exit(f"sagan: {images} holds no {' and no '.join(missing)}, but {', '.join(stored) or 'nothing'}")
            pixels, labels = stored["images"] / 255, stored["labels"]
        if pixels.ndim not in (3, 4) or labels.shape != pixels.shape[:1]:
            shapes = f"images {pixels.shape} and labels {labels.shape}"
            sys.exit(f"sagan: expected images (count, size, size[, channels]) and labels (count,), got {shapes}")
    pixels = torch.as_tensor(pixels, dtype=torch.float32)
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels.movedim(3, 1)
    return Images(pixels * 2 - 1, torch.as_tensor(labels, dtype=torch.int64))


def train(
    data: Images, config: SaganConfig, seed: int, steps: int, batch: int, path: Path, progress: Progress, task: int
) -> SaganGenerator:
    """Train a generator and its critic in turn, from where the last saved state stands."""
    device = data.images.device
    torch.manual_seed(seed)
    generator, critic = SaganGenerator(config).to(device), SaganCritic(config).to(device)
    optimizers = [
        torch.optim.Adam(model.parameters(), lr=rate, betas=(0.0, 0.9))
        for model, rate in ((generator, 1e-4), (critic, 4e-4))
    ]
    draws = torch.Generator(device).manual_seed(seed)
    parts = {"generator": generator, "critic": critic, "of_generator": optimizers[0], "of_critic": optimizers[1]}
    begun = 0
    settled = {"config": vars(config), "batch": batch, "data": digest(data)}
    if path.is_file():
        state = torch.load(path, map_location=device, weights_only=True)
        changed = [name for name, value in settled.items() if state[name] != value]
        if changed or state["step"] > steps:
            why = f"another {' and '.join(changed)}" if changed else f"{state['step']} steps, more than {steps}"
            sys.exit(f"sagan: {path} is a training of {why}: name another folder by --run")
        begun = state["step"]
        draws.set_state(state["draws"].cpu())
        for name, part in parts.items():
            part.load_state_dict(state[name])
    for step in range(begun + 1, steps + 1):
        chosen = torch.randint(len(data.images), (batch,), generator=draws, device=device)
        labels = data.labels[chosen]
        with torch.no_grad():
            made = generator.draw(labels, draws).images
        scores = critic(torch.cat([data.images[chosen], made]), labels.repeat(2)).scores
        _descend(optimizers[1], critic_loss(*scores.chunk(2)))
        labels = data.labels[torch.randint(len(data.images), (batch,), generator=draws, device=device)]
        _descend(optimizers[0], generator_loss(critic(generator.draw(labels, draws).images, labels).scores))
        progress.update(task, completed=step)
        if step % SAVE_EVERY == 0 or step == steps:
            path.parent.mkdir(parents=True, exist_ok=True)
            state = {name: part.state_dict() for name, part in parts.items()}
            with atomic_write(path) as file:
                torch.save(state | settled | {"step": step, "draws": draws.get_state()}, file)
    progress.update(task, completed=steps)
    return generator.eval()


def digest(data: Images) -> str:
    """What tells one set of images from another."""
    return hashlib.sha256(b"".join(part.cpu().numpy().tobytes() for part in data)).hexdigest()


def _descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train_features(data: Images, epochs: int = 20) -> nn.Module:
    """A classifier of the images without its last layer: what it makes of them, (batch, 64)."""
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
    """The Fréchet distance of made images, of classes as often as among the real ones, to these."""
    draws = torch.Generator(data.images.device).manual_seed(1)
    device = data.images.device
    chosen = torch.randint(len(data.labels), (count,), generator=draws, device=device)
    made = torch.cat([generator.draw(data.labels[part], draws).images for part in chosen.split(500)])
    return fid(features, data.images, made)


def fid(features: nn.Module, real: Tensor, made: Tensor) -> float:
    """The Fréchet distance of two sets of images in these features."""
    features.num_features = 64  # what torchmetrics asks of a network that is not Inception
    metric = FrechetInceptionDistance(feature=features).to(real.device)
    for images, is_real in ((real, True), (made, False)):
        for part in images.split(500):
            metric.update(part, real=is_real)
    return float(metric.compute())


@torch.no_grad()
def draw(generator: SaganGenerator, path: Path) -> None:
    """Draw one image of each class, and over it, one below the other, where three of its places look."""
    classes = min(generator.config.num_classes, 10)
    labels = torch.arange(classes, device=next(generator.parameters()).device)
    output = generator.draw(labels, torch.Generator(labels.device).manual_seed(2))
    assert output.attention is not None
    size, scale = generator.config.attention_size or 1, generator.config.image_size
    asked = [size // 4 * size + size // 2, size // 2 * size + size // 4, (size - size // 4) * size + size // 2]
    figure, rows = plt.subplots(1 + len(asked), classes, figsize=(classes, 1 + len(asked)), squeeze=False)
    for column in range(classes):
        picture = (output.images[column] / 2 + 0.5).clamp(0, 1).movedim(0, 2).cpu()
        for axes in rows[:, column]:
            axes.imshow(picture, cmap="gray", extent=(0, scale, scale, 0))
        for number, place in enumerate(asked):
            seen = output.attention.weights[column, 0, place].view(size, size).cpu()
            across, down = (place % size + 0.5) * scale / size, (place // size + 0.5) * scale / size
            shown = {"cmap": "viridis", "alpha": (seen / seen.max()).sqrt() * 0.8, "extent": (0, scale, scale, 0)}
            rows[1 + number, column].imshow(seen, **shown)
            for axes in (rows[0, column], rows[1 + number, column]):
                axes.plot(across, down, "o", color=f"C{number + 1}", markersize=4, markeredgecolor="white")
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
