"""Screenshots of each view of the explorer.

The models are the bundled translator, MiniLM, and a Vision Transformer that is trained here, in seconds, on
scikit-learn's digits.

Run: ``make screenshots`` for the pictures of the documentation, 1280 pixels wide; ``tools/screenshots.py --all FOLDER``
for all views in light and dark, 400, 1280 and 2560 pixels wide.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.progress import track
from sklearn.datasets import load_digits
from torch.nn import functional

from regard.cli.models import load_any
from regard.explore.html_page import write_html
from regard.explore.steps_page import write_steps_html
from regard.recordings.recording import Recording
from regard.watching import TransformersModel

FOLDER = Path(__file__).parents[1] / "docs" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome")
SIZES = {400: 860, 1280: 860, 2560: 1440}
"""Height of the window by its width."""
STEPS, MARGIN = 1000, 24
TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
ADDRESS = (  # Abraham Lincoln, Gettysburg, 19 November 1863
    "Four score and seven years ago our fathers brought forth on this continent, a new nation, conceived in Liberty, "
    "and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war, testing "
    "whether that nation, or any nation so conceived and so dedicated, can long endure. We are met on a great "
    "battle-field of that war. We have come to dedicate a portion of that field, as a final resting place for those "
    "who here gave their lives that that nation might live. It is altogether fitting and proper that we should do "
    "this. But, in a larger sense, we can not dedicate -- we can not consecrate -- we can not hallow -- this ground. "
    "The brave men, living and dead, who struggled here, have consecrated it, far above our poor power to add or "
    "detract. The world will little note, nor long remember what we say here, but it can never forget what they did "
    "here. It is for us the living, rather, to be dedicated here to the unfinished work which they who fought here "
    "have thus far so nobly advanced. It is rather for us to be here dedicated to the great task remaining before us "
    "-- that from these honored dead we take increased devotion to that cause for which they gave the last full "
    "measure of devotion -- that we here highly resolve that these dead shall not have died in vain -- that this "
    "nation, under God, shall have a new birth of freedom -- and that government of the people, by the people, for the "
    "people, shall not perish from the earth."
)


@dataclass(frozen=True)
class Shot:
    """A picture of a recording's page: at which fragment, and which part; None for what is in the window."""

    recording: str
    fragment: str
    part: str | None


SHOTS = {
    "page": Shot("translation", "", None),
    "overview": Shot("speech", "", "main > .overview"),
    "text": Shot("speech", "views=text&layer=encoder.2&token=source.165&unit=words", None),
    "matrix": Shot("speech", "views=matrix&layer=encoder.2", None),
    "translation": Shot("translation", "views=translation&align_by=all", None),
    "generation": Shot("translation", "views=generation&layer=decoder.2&step=9", None),
    "graph": Shot("sentence", "views=graph&layer=encoder.3&head=1&token=source.10", None),
    "segments": Shot("speech", "views=segments&layer=encoder.2&head=1", None),
    "calculation": Shot(
        "sentence", "views=calculation&layer=encoder.3&head=1&token=source.10&calculation=scores", None
    ),
    "compare": Shot("pair", "views=compare&layer=encoder.2", None),
    "image": Shot("image", "views=image", None),
    "steps": Shot("trace", "softmax", None),
}


@cache
def translator() -> Any:
    return load_any(None)


@cache
def minilm() -> Any:
    return load_any(Path("minilm"))


def digit() -> Recording:
    """A digit, as seen by a Vision Transformer that is trained for a moment on 1,500 digits."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    pictures, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(pictures, dtype=torch.float32).reshape(-1, 1, 8, 8).expand(-1, 3, -1, -1) / 8 - 1
    digits = torch.tensor(labels)
    config = ViTConfig(
        image_size=16,
        patch_size=2,
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        num_labels=10,
    )
    model = ViTForImageClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    large = functional.interpolate(pixels, 16)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, STEPS)
    for _ in track(range(STEPS), description="Training on digits"):
        batch = torch.randint(1500, (64,))
        loss = model(pixel_values=large[batch], labels=digits[batch]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    with torch.no_grad():
        right = model(pixel_values=large[1500:]).logits.argmax(-1) == digits[1500:]
    print(f"{100 * right.float().mean():.0f} % of 297 other digits are classified correctly")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digit.png"
        array = (16 * pictures[1502].reshape(8, 8)).clip(max=255).astype("uint8")
        Image.fromarray(array).resize((256, 256), Image.Resampling.NEAREST).save(path)
        processor = ViTImageProcessor(size={"height": 16, "width": 16})
        return TransformersModel(model, processor=processor, name="digits").record(path)


def recordings() -> dict[str, tuple[Recording, Recording | None]]:
    """Each with what it is compared with."""
    return {
        "translation": (translator().record(TIRED), None),
        "sentence": (minilm().record(TIRED), None),
        "speech": (minilm().record(ADDRESS), None),
        "pair": (translator().record(TIRED), translator().record(WIDE)),
        "image": (digit(), None),
    }


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, NAMES)), playwright.chromium.executable_path)
        yield playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])


def take(page: Any, address: str, shot: Shot) -> Image.Image:
    """A picture of a page, or of a part of it."""
    page.goto("about:blank")
    page.goto(f"{address}#{shot.fragment}")
    page.wait_for_timeout(1500)
    part = shot.part or ("main > .head" if "views=" in shot.fragment else None)
    clip = None
    if part:
        box = page.locator(part).bounding_box()
        left, top = max(box["x"] - MARGIN, 0), box["y"] - MARGIN
        right = min(box["x"] + box["width"] + MARGIN, page.viewport_size["width"])
        top += page.evaluate("scrollY")
        bottom = page.evaluate("scrollY") + box["y"] + box["height"] + MARGIN
        clip = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    data = page.screenshot(clip=clip, full_page=part is not None)
    return Image.open(io.BytesIO(data)).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="write all themes and widths to this folder")
    target = parser.parse_args().all
    themes, widths = (("light",), (1280,)) if target is None else (("light", "dark"), tuple(SIZES))
    if target is None:
        shutil.rmtree(FOLDER, ignore_errors=True)
        target = FOLDER
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser() as chromium:
        addresses = {}
        for name, (recording, other) in recordings().items():
            write_html(recording, Path(folder) / f"{name}.html", compare_with=other)
            addresses[name] = (Path(folder) / f"{name}.html").as_uri()
        trace = translator().trace(TIRED)
        addresses["trace"] = write_steps_html(trace, Path(folder) / "trace.html", head=2, query="it").as_uri()
        shots = [(theme, width, name) for theme in themes for width in widths for name in SHOTS]
        for theme, width, name in track(shots, description="Taking pictures"):
            page = chromium.new_page(viewport={"width": width, "height": SIZES[width]}, color_scheme=theme)
            picture = take(page, addresses[SHOTS[name].recording], SHOTS[name])
            picture.save(target / f"{name}-{theme}-{width}.webp", lossless=True, method=6)
            page.close()


if __name__ == "__main__":
    main()
