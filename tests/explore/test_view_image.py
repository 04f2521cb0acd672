"""The patches of an image: in files, and in a real Chromium."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import regard
from helpers.explore.displayed_weights import assert_printed
from helpers.explore.page_actions import point_at, settle
from helpers.explore.page_cases import NOT_COMPUTED
from helpers.explore.serving import served
from regard.errors import InvalidArgument, InvalidFile
from regard.recordings.layer import Layer
from regard.recordings.recording import MAX_IMAGE_BYTES, Recording
from regard.recordings.recording_file import checksum

ROWS, COLUMNS = 3, 4


def png(width: int, height: int) -> bytes:
    """A picture that is red above and green below."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, :, 0] = pixels[height // 2 :, :, 1] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def of_image(
    rows=ROWS, columns=COLUMNS, heads=2, marks=("[CLS]",), picture: bytes | None = None, **options
) -> Recording:
    generator = torch.Generator().manual_seed(rows)
    tokens = (*marks, *(f"{row},{column}" for row in range(rows) for column in range(columns)))
    query, key = (torch.randn(1, heads, len(tokens), 8, generator=generator) for _ in range(2))
    layer = Layer("layers.0", "encoder", regard.weights(2 * query, key, **options), tokens, tokens)
    return Recording("cat.png", "a model", (layer,), {"image": "cat.png"}, picture)


@pytest.fixture(scope="module")
def image() -> Recording:
    return of_image(picture=png(4 * 16, 3 * 16))


# In files


def test_a_picture_is_saved_and_read_back(tmp_path, image):
    image.save(tmp_path / "a.regard")
    again = regard.load(tmp_path / "a.regard")
    assert again.image == image.image
    assert again.texts == image.texts
    image.replace(image=None).save(tmp_path / "b.regard")
    assert regard.load(tmp_path / "b.regard").image is None


def huge() -> bytes:
    """A small file whose header declares 50,000 × 50,000 pixels."""
    data = bytearray(png(8, 8))
    data[16:24] = (50_000).to_bytes(4, "big") * 2
    return bytes(data)


WRONG = {
    "script": (b"<svg onload=alert(1)>", "expected the bytes of a PNG"),
    "empty": (b"", "expected the bytes of a PNG"),
    "cut": (b"\x89PNG\r\n\x1a\n", "expected the bytes of a PNG"),
    "many bytes": (png(8, 8) + bytes(MAX_IMAGE_BYTES), "expected at most 4,194,304 bytes"),
    "many pixels": (huge(), "expected 1 to 512 pixels a side, got 50000 × 50000"),
    "wide": (png(513, 8), "expected 1 to 512 pixels a side, got 513 × 8"),
}


def rewrite(path: Path, picture: Any) -> None:
    """Put other bytes, or another node, where the picture is described in a file; the checksum fits."""
    tensors = load_file(path)
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(json.loads(file.read(size))["__metadata__"]["regard"])
    if isinstance(picture, bytes):
        tensors[header["image"]["bytes"]["tensor"]] = torch.from_numpy(np.array(bytearray(picture), np.uint8))
    else:
        header["image"] = picture
    text = json.dumps(header)
    save_file(tensors, path, {"regard": text, "checksum": checksum(text, tensors)})


@pytest.mark.parametrize("name", WRONG)
def test_invalid_pictures_are_refused(tmp_path, image, name):
    data, message = WRONG[name]
    with pytest.raises(InvalidArgument, match=message):
        image.replace(image=data)
    image.save(tmp_path / "a.regard")
    rewrite(tmp_path / "a.regard", data)
    with pytest.raises(InvalidFile, match=message):
        regard.load(tmp_path / "a.regard")


@pytest.mark.parametrize(
    "picture", ["data:image/png", 3, ["a"], {"by name": {}}, {"bytes": "png"}, {"bytes": {"tensor": "9"}}]
)
def test_a_picture_of_another_kind_is_refused(tmp_path, image, picture):
    path = tmp_path / "a.regard"
    image.save(path)
    rewrite(path, picture)
    with pytest.raises(InvalidFile, match="expected a recording, got a damaged file or one of another kind"):
        regard.load(path)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("size", "shape"), [((16, 16), (16, 16)), ((600, 300), (512, 256))])
def test_the_picture_is_what_the_model_saw(tmp_path, size, shape):
    hf = pytest.importorskip("transformers")
    from regard.watching import TransformersModel

    model = hf.ViTModel(
        hf.ViTConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            intermediate_size=8,
            image_size=(size[1], size[0]),
            patch_size=(size[1] // 2, size[0] // 2),
        )
    )
    processor = hf.ViTImageProcessor(size={"width": size[0], "height": size[1]})
    Image.open(io.BytesIO(png(20, 30))).save(tmp_path / "a.png")
    actual = TransformersModel(model, None, processor).record(tmp_path / "a.png")
    assert actual.layers[0].key_tokens == ("[CLS]", "0,0", "0,1", "1,0", "1,1")
    picture = Image.open(io.BytesIO(actual.image))
    assert (picture.format, picture.size) == ("PNG", shape)
    assert picture.getpixel((1, 1)) == (255, 0, 0)
    assert picture.getpixel((shape[0] - 2, shape[1] - 2)) == (0, 255, 0)


# In the page

FLOAT32 = 2e-6


def patch(page, row: int, column: int) -> dict[str, float]:
    """The middle of a patch, from the canvas's corner."""
    canvas = page.locator(".image-frame canvas")
    canvas.scroll_into_view_if_needed()
    box, count = canvas.bounding_box(), canvas.evaluate("node => [node.dataset.rows, node.dataset.columns].map(Number)")
    return {"x": (column + 0.5) * box["width"] / count[1], "y": (row + 0.5) * box["height"] / count[0]}


def hover(page, row: int, column: int):
    page.locator(".image-frame canvas").hover(position=patch(page, row, column))
    settle(page)
    return page.locator(".image-frame .tip")


def color(page, row: int, column: int) -> list[int]:
    """The pixel a quarter into a patch, where no outline is."""
    settle(page)
    return page.locator(".image-frame canvas").evaluate(
        """(node, [row, column]) => {
            const copy = new OffscreenCanvas(node.width, node.height).getContext("2d");
            copy.drawImage(node, 0, 0);
            const [width, height] = [node.width / node.dataset.columns, node.height / node.dataset.rows];
            return [...copy.getImageData((column + 0.25) * width, (row + 0.25) * height, 1, 1).data];
        }""",
        [row, column],
    )


def colors(page, row: int, column: int) -> int:
    """How many colors a patch has, without its outline: one, unless it is hatched or dotted."""
    settle(page)
    return page.locator(".image-frame canvas").evaluate(
        """(node, [row, column]) => {
            const copy = new OffscreenCanvas(node.width, node.height).getContext("2d");
            copy.drawImage(node, 0, 0);
            const [width, height] = [node.width / node.dataset.columns, node.height / node.dataset.rows];
            const box = [(column + 0.2) * width, (row + 0.2) * height, 0.6 * width, 0.6 * height].map(Math.round);
            return new Set(new Uint32Array(copy.getImageData(...box).data.buffer)).size;
        }""",
        [row, column],
    )


def note(page) -> str:
    settle(page)
    return page.locator(".image-note").text_content()


def shades(page) -> str:
    """Whose attention is shown, once it is drawn."""
    return note(page).removeprefix("Shades: ").split(", ")[0]


@pytest.mark.browser
@pytest.mark.parametrize("direction", ["from", "to"])
@pytest.mark.parametrize("selected", [0, 6])
def test_pointing_at_a_patch_shows_its_weight(open_page, image, direction, selected):
    token = f"&token=source.{selected}" if selected else ""
    page = open_page(image, f"#views=image&head=1&direction={direction}{token}")
    weights = image.layers[0].weights[0, 1]
    line = weights[selected] if direction == "from" else weights[:, selected]
    for row, column in ((0, 0), (1, 2), (2, 3)):
        tip = hover(page, row, column)
        assert tip.locator("b").text_content() == f"patch {row},{column}"
        exact = line[1 + row * COLUMNS + column].item()
        assert_printed(tip.locator(".value").text_content(), exact, FLOAT32)
    name = {0: "[CLS]", 6: "patch 1,1"}[selected]
    expected = {"from": f"how much {name} attends to each patch", "to": f"how much each patch attends to {name}"}
    assert shades(page) == expected[direction]
    label = page.locator(".image-frame canvas").get_attribute("aria-label")
    assert label.startswith(f"3 × 4 patches, shaded by {expected[direction]}.")
    assert_printed(page.locator(".image-tokens .value").text_content(), line[0].item(), FLOAT32)
    largest, together = note(page).split("largest weight, ")[1].removesuffix(".").split(". All patches together: ")
    assert_printed(largest, line[1:].max().item(), FLOAT32)
    assert_printed(together, line[1:].sum().item(), FLOAT32)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_shades_follow_the_weights_and_the_opacity_lets_the_image_through(open_page, image, scheme):
    page = open_page(image, "#views=image&head=0&opacity=1&layer=layers.0&token=source.0", color_scheme=scheme)
    weights = image.layers[0].weights[0, 0, 0, 1:].reshape(ROWS, COLUMNS)
    places = [(row, column) for row in range(ROWS) for column in range(COLUMNS)]
    page.wait_for_function("() => document.querySelector('.image-frame canvas').width > 300")
    page.wait_for_timeout(200)
    light = {path: sum(color(page, *path)[:3]) * (1 if scheme == "light" else -1) for path in places}
    order = sorted(places, key=lambda path: -weights[path].item())
    assert sorted(light.values()) == [light[path] for path in order]  # the strongest is furthest from the page
    slider = page.get_by_label("Opacity")
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_function("() => location.hash.includes('opacity=0')")
    assert color(page, 0, 1) == [255, 0, 0, 255]
    assert color(page, 2, 2) == [0, 255, 0, 255]


@pytest.mark.browser
def test_selecting_a_patch_selects_it_in_the_other_views(open_page, image):
    page = open_page(image, "#views=text,matrix,image&head=1&token=source.0")
    assert shades(page) == "how much [CLS] attends to each patch"
    page.locator(".image-frame canvas").click(position=patch(page, 1, 2))
    page.mouse.move(0, 0)
    assert shades(page) == "how much patch 1,2 attends to each patch"
    assert page.locator('.token[aria-selected="true"]').all_text_contents() == ["1,2"]
    page.wait_for_function("() => location.hash.includes('token=source.7')")
    hover(page, 0, 3)
    exact = image.layers[0].weights[0, 1, 7, 4].item()
    assert_printed(page.locator("#matrix .tip .value").text_content(), exact, FLOAT32)
    page.locator(".image-frame canvas").click(position=patch(page, 1, 2))
    page.mouse.move(0, 0)
    page.wait_for_function("() => !location.hash.includes('token')")


@pytest.mark.browser
def test_what_another_view_points_at_is_shown_here(open_page, image):
    page = open_page(image, "#views=text,matrix,image&head=1")
    page.locator(".token").nth(4).hover()
    assert shades(page) == "how much patch 0,3 attends to each patch"
    point_at(page, 9, 6)
    assert shades(page) == "how much patch 2,0 attends to each patch"
    tip = page.locator(".image-frame .tip")
    assert tip.locator("b").text_content() == "patch 1,1"
    assert_printed(tip.locator(".value").text_content(), image.layers[0].weights[0, 1, 9, 6].item(), FLOAT32)
    page.locator(".token").nth(2).click()
    page.locator(".token").nth(4).click(modifiers=["Control"])
    page.mouse.move(0, 0)
    assert shades(page) == "how much patch 0,1 and patch 0,3 attend to each patch on average"
    exact = image.layers[0].weights[0, 1, [2, 4], 12].mean().item()
    assert_printed(hover(page, 2, 3).locator(".value").text_content(), exact, FLOAT32)
    page.get_by_label("what attends to it").check()
    assert shades(page) == "how much each patch attends to patch 0,1 and patch 0,3 together"
    exact = image.layers[0].weights[0, 1, 12, [2, 4]].sum().item()
    assert_printed(hover(page, 2, 3).locator(".value").text_content(), exact, FLOAT32)


@pytest.mark.browser
def test_everything_works_by_keyboard(open_page, image):
    page = open_page(image, "#views=image&head=1&token=source.0")
    page.get_by_label("what it attends to").focus()
    page.keyboard.press("ArrowRight")
    assert shades(page) == "how much each patch attends to [CLS]"
    for _ in range(3):  # the opacity, the class token, the image
        page.keyboard.press("Tab")
    tip = page.locator(".image-frame .tip b")
    assert tip.text_content() == "patch 0,0"
    for key, name in (
        ("ArrowRight", "0,1"),
        ("ArrowDown", "1,1"),
        ("End", "1,3"),
        ("ArrowRight", "1,3"),
        ("PageDown", "2,3"),
        ("Home", "2,0"),
        ("ArrowLeft", "2,0"),
        ("PageUp", "0,0"),
        ("ArrowDown", "1,0"),
    ):
        page.keyboard.press(key)
        page.wait_for_function(
            "name => document.querySelector('.image-frame .tip b').textContent === `patch ${name}`", arg=name
        )
    weight = image.layers[0].weights[0, 1, 5, 0].item()
    spoken = page.locator(".image [aria-live]").text_content()
    assert spoken.startswith("patch 1,0: ")
    assert_printed(spoken.split(": ")[1], weight, FLOAT32)
    page.keyboard.press("Enter")
    assert shades(page) == "how much each patch attends to patch 1,0"
    page.keyboard.press("Escape")
    assert shades(page) == "how much each patch attends to [CLS]"
    page.keyboard.press("Shift+Tab")
    assert page.locator(":focus").text_content().startswith("[CLS]")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('token=source.0') && location.hash.includes('direction=to')")


@pytest.mark.browser
def test_hidden_tokens_have_no_shade(open_page, image):
    weights = image.layers[0].weights[0, 1]
    page = open_page(image, "#views=image&head=1&hide=first&rescale=1&token=source.6")
    assert page.locator(".image-tokens .value").text_content() == "hidden"
    exact = weights[6] / (1 - weights[6, 0])
    assert_printed(hover(page, 1, 2).locator(".value").text_content(), exact[7].item(), FLOAT32)
    page.mouse.move(0, 0)
    assert_printed(note(page).rsplit(": ", 1)[1].removesuffix("."), 1.0)
    page.get_by_label("what attends to it").check()  # the token is not hidden, but its column is rescaled
    exact = weights[7, 6] / (1 - weights[7, 0])
    assert_printed(hover(page, 1, 2).locator(".value").text_content(), exact.item(), FLOAT32)
    page = open_page(image, "#views=image&head=1&hide=first&direction=to&token=source.0")
    assert note(page) == "Shades: how much each patch attends to [CLS], all hidden."
    assert hover(page, 1, 2).text_content() == "patch 1,2hidden"


@pytest.mark.browser
def test_hidden_and_masked_patches_are_hatched(open_page):
    tokens = tuple(f"{row},{column}" for row in range(3) for column in range(3))
    weights = regard.weights(torch.randn(1, 1, 9, 8), torch.randn(1, 1, 9, 8), mask=regard.Causal())
    layer = Layer("layers.0", "encoder", weights, tokens, tokens)
    page = open_page(
        Recording("cat.png", "m", (layer,), {"image": "cat.png"}), "#views=image&hide=first&token=source.6"
    )
    assert [colors(page, *divmod(index, 3)) > 1 for index in range(9)] == [True, *[False] * 6, True, True]
    assert hover(page, 0, 0).text_content() == "patch 0,0hidden"
    assert hover(page, 2, 1).text_content() == "patch 2,1masked"
    exact = weights[0, 0, 6, 1:].sum().item()
    page.mouse.move(0, 0)
    assert_printed(note(page).rsplit(": ", 1)[1].removesuffix("."), exact, FLOAT32)


@pytest.mark.browser
def test_several_heads_are_combined_as_everywhere(open_page, image):
    page = open_page(image, "#views=image&head=0,1&token=source.6")
    exact = image.layers[0].weights[0, :, 6, 7].mean().item()
    assert_printed(hover(page, 1, 2).locator(".value").text_content(), exact, FLOAT32)
    page = open_page(image, "#views=image&head=0,1&reduce=sum&token=source.6")
    assert_printed(hover(page, 1, 2).locator(".value").text_content(), 2 * exact, FLOAT32)


@pytest.mark.browser
def test_without_an_image_the_patches_stand_alone(open_page):
    page = open_page(of_image())
    assert page.locator("section.view[aria-label=Image]").is_visible()
    assert page.get_by_label("Opacity").count() == 0
    assert color(page, 0, 0)[3] == 255
    box = page.locator(".image-frame canvas").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(COLUMNS / ROWS, rel=0.01)


@pytest.mark.browser
def test_without_a_class_token_all_patches_are_averaged(open_page):
    image = of_image(marks=())
    page = open_page(image, "#views=image&head=0")
    assert shades(page) == "how much the average patch attends to each patch"
    exact = image.layers[0].weights[0, 0, :, 5].mean().item()
    assert_printed(hover(page, 1, 1).locator(".value").text_content(), exact, FLOAT32)
    assert page.locator(".image-tokens button").count() == 0


@pytest.mark.browser
def test_what_is_not_stored_has_bounds(open_page):
    image = of_image(17, 17, heads=1, score=NOT_COMPUTED)
    page = open_page(image, "#views=image&token=source.0")
    weights = image.layers[0].weights[0, 0, 0]
    assert note(page).endswith(
        " A dotted patch has weights that are not stored in this file: point at it for its bounds."
    )
    unknown, known = divmod(weights[1:].argmin().item(), 17), divmod(weights[1:].argmax().item(), 17)
    assert (colors(page, *unknown), colors(page, *known)) == (3, 1)
    tip = hover(page, *unknown)
    assert "not fully stored in this file" in tip.text_content()
    bound = float(tip.locator(".rank").first.text_content().removeprefix("at most "))
    assert weights.min().item() <= bound <= weights.topk(16).values[-1].item() + 2 / 6000
    value = hover(page, *known).locator(".value").text_content()
    assert_printed(value, weights.max().item())
    assert len(value) == 5  # three decimals
    stored = weights.topk(16)
    patches = sum(weight for weight, key in zip(*map(torch.Tensor.tolist, stored), strict=True) if key > 0)
    page.mouse.move(0, 0)
    known_together = re.search(r"The known weights together: ((?:≈ )?[\d.]+)\.", note(page))[1]
    assert_printed(known_together, patches, 1e-6)


@pytest.mark.browser
def test_a_served_image_is_exact(take_page):
    image = of_image(27, 27, heads=1, marks=())  # more rows than a page keeps
    with served(image) as address:
        page = take_page()
        page.goto(f"{address}#views=image")
        page.locator(".image-note", has_text="Shades").wait_for()
        assert shades(page) == "how much patch 13,13 attends to each patch"
        exact = image.layers[0].weights[0, 0, 364]
        assert_printed(hover(page, 3, 20).locator(".value").text_content(), exact[101].item(), FLOAT32)
        page.mouse.move(0, 0)
        page.get_by_label("what attends to it").check()
        page.locator(".image-note", has_text="each patch attends to").wait_for()
        exact = image.layers[0].weights[0, 0, :, 364]
        assert_printed(hover(page, 3, 20).locator(".value").text_content(), exact[101].item(), FLOAT32)
        page.mouse.move(0, 0)
        assert_printed(note(page).rsplit(": ", 1)[1].removesuffix("."), exact.sum().item(), 1e-4)


@pytest.mark.browser
def test_bytes_that_no_browser_draws_leave_the_patches(open_page):
    damaged = bytearray(png(64, 48))
    damaged[40:] = b"<script>window.ran = 1</script>" * 3
    page = open_page(of_image(picture=bytes(damaged)), "#views=image&token=source.0")
    assert shades(page) == "how much [CLS] attends to each patch"
    assert page.evaluate("window.ran === undefined")
    assert color(page, 0, 0)[3] == 255


@pytest.mark.browser
def test_there_is_none_without_patches(open_page, recording, image):
    assert open_page(recording).get_by_role("button", name="Image").count() == 0
    letters = tuple("abcdefghijklm")
    other = image.layers[0].replace(name="other", query_tokens=letters, key_tokens=letters)
    page = open_page(image.replace(layers=(*image.layers, other)), "#views=image&layer=other")
    assert note(page) == "The tokens of other are not the patches of the image."
    assert page.locator(".image-frame").is_hidden()
    page = open_page(Recording("t", "m", (other,), {"image": "cat.png"}), "#views=image,text")
    assert page.get_by_role("button", name="Image").count() == 0


@pytest.mark.browser
def test_a_tap_selects_a_patch(open_page, image):
    page = open_page(image, "#views=image&head=1&token=source.0", has_touch=True)
    settle(page)
    page.locator(".image-frame canvas").tap(position=patch(page, 1, 2))
    page.wait_for_function("() => location.hash.includes('token=source.7')")
    assert page.locator(".image-frame .tip b").text_content() == "patch 1,2"


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_page_holds_the_image(open_page, image, scheme):
    page = open_page(image, "#views=image", width=400, color_scheme=scheme)
    hover(page, 1, 3)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.locator(".image-frame canvas").bounding_box()["width"] > 300


# Patches that are tokens of a text


def of_text(order: list[int] | None = None) -> Recording:
    """A decoder that reads an image of 2 × 3 patches between words, as LLaVA does; its patches in any order."""
    generator = torch.Generator().manual_seed(1)
    patches = [f"{row},{column}" for row in range(2) for column in range(3)]
    patches = [patches[place] for place in order or range(6)]
    tokens = ("<s>", "▁See", *patches, "▁What", "▁is", "▁it", "?")
    query, key = (torch.randn(1, 2, len(tokens), 8, generator=generator) for _ in range(2))
    layer = Layer("layers.0", "decoder", regard.weights(2 * query, key, mask=regard.Causal()), tokens, tokens)
    texts = {"text": "See What is it?", "image": "cat.png"}
    return Recording("cat.png", "a model", (layer,), texts, png(6 * 8, 4 * 8))


@pytest.mark.browser
@pytest.mark.parametrize("order", [None, [3, 0, 5, 1, 2, 4]])
def test_patches_in_a_text_are_shown_on_the_image(open_page, order):
    recording = of_text(order)
    tokens, weights = recording.layers[0].key_tokens, recording.layers[0].weights[0, 1]
    page = open_page(recording, "#views=text,image&head=1")
    assert shades(page) == "how much ? attends to each patch"  # the last token, which can attend to all of them
    for row, column in ((0, 0), (1, 1), (1, 2)):
        tip = hover(page, row, column)
        assert tip.locator("b").text_content() == f"patch {row},{column}"
        exact = weights[-1, tokens.index(f"{row},{column}")].item()
        assert_printed(tip.locator(".value").text_content(), exact, FLOAT32)
    others = page.locator(".image-tokens button")
    assert others.count() == 6
    assert_printed(others.nth(2).locator(".value").text_content(), weights[-1, 8].item(), FLOAT32)
    others.nth(2).click()  # "What"
    page.mouse.move(0, 0)
    assert shades(page) == "how much What attends to each patch"
    assert_printed(hover(page, 1, 0).locator(".value").text_content(), weights[8, tokens.index("1,0")].item(), FLOAT32)
    page.locator(".image-frame canvas").click(position=patch(page, 0, 1))
    page.mouse.move(0, 0)
    selected = page.locator('.token[aria-selected="true"]').all_text_contents()
    assert [text.strip() for text in selected] == ["0,1"]
    page.get_by_label("what attends to it").check()
    assert shades(page) == "how much each patch attends to patch 0,1"
    together = sum(
        weights[tokens.index(f"{row},{column}"), tokens.index("0,1")] for row in (0, 1) for column in range(3)
    )
    assert_printed(note(page).rsplit(": ", 1)[1].removesuffix("."), together.item(), 6 * FLOAT32)


@pytest.mark.browser
@pytest.mark.parametrize("name", ["0,0", "2,0", "0,7"])
def test_a_patch_that_is_missing_or_twice_is_no_grid(open_page, name):
    recording = of_text()
    tokens = list(recording.layers[0].key_tokens)
    tokens[tokens.index("1,1")] = name
    layer = recording.layers[0].replace(query_tokens=tuple(tokens), key_tokens=tuple(tokens))
    page = open_page(recording.replace(layers=[layer]), "#views=text")
    assert page.locator(".image-frame").count() == 0


@pytest.mark.browser
@pytest.mark.filterwarnings("ignore")
def test_a_model_of_images_and_texts_has_a_grid_for_each(open_page):
    """The vision model has more patches than the text has tokens of them, as where several are joined to one."""
    recording, generator = of_text(), torch.Generator().manual_seed(2)
    tokens = ("[CLS]", *(f"{row},{column}" for row in range(4) for column in range(6)))
    query, key = (torch.randn(1, 2, len(tokens), 8, generator=generator) for _ in range(2))
    vision = Layer("vision.layers.0", "encoder", regard.weights(query, key), tokens, tokens)
    recording = recording.replace(layers=[vision, *recording.layers])
    page = open_page(recording, "#views=text,matrix,image,graph&layer=vision.layers.0&head=0")
    assert shades(page) == "how much [CLS] attends to each patch"
    exact = vision.weights[0, 0, 0, tokens.index("3,5")].item()
    assert_printed(hover(page, 3, 5).locator(".value").text_content(), exact, FLOAT32)
    page = open_page(recording, "#views=text,matrix,image,graph&layer=layers.0&head=0")
    assert shades(page) == "how much ? attends to each patch"
    label = page.locator(".image-frame canvas").get_attribute("aria-label")
    assert label.startswith("2 × 3 patches, shaded by")
