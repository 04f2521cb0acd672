"""The patches of an image over its picture: in files, and in a real Chromium."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import regard
from explore.opened import as_shown, number_of, point_at, settle
from regard.analysis.layer import Layer
from regard.analysis.recording import MAX_IMAGE_BYTES, Recording
from regard.analysis.recording_file import checksum
from regard.errors import InvalidArgument, InvalidFile

ROWS, COLUMNS = 3, 4


def png(width: int, height: int) -> bytes:
    """A picture that is red above and green below."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, :, 0] = pixels[height // 2 :, :, 1] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def of_image(rows=ROWS, columns=COLUMNS, heads=2, marks=("[CLS]",), picture: bytes | None = None) -> Recording:
    generator = torch.Generator().manual_seed(rows)
    tokens = (*marks, *(f"{row},{column}" for row in range(rows) for column in range(columns)))
    query, key = (torch.randn(1, heads, len(tokens), 8, generator=generator) for _ in range(2))
    layer = Layer("layers.0", "encoder", regard.weights(2 * query, key), tokens, tokens)
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
    """A small file that says it has 50,000 × 50,000 pixels."""
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
def test_what_is_no_such_picture_is_refused(tmp_path, image, name):
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
    place = tmp_path / "a.regard"
    image.save(place)
    rewrite(place, picture)
    with pytest.raises(InvalidFile, match="expected a recording, got a damaged file or one of another kind"):
        regard.load(place)


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
    found = TransformersModel(model, None, processor).record(tmp_path / "a.png")
    assert found.layers[0].key_tokens == ("[CLS]", "0,0", "0,1", "1,0", "1,1")
    picture = Image.open(io.BytesIO(found.image))
    assert (picture.format, picture.size) == ("PNG", shape)
    assert picture.getpixel((1, 1)) == (255, 0, 0)
    assert picture.getpixel((shape[0] - 2, shape[1] - 2)) == (0, 255, 0)


# In the page


def patch(page, row: int, column: int) -> dict[str, float]:
    """The middle of a patch, from the canvas's corner."""
    canvas = page.locator(".picture-frame canvas")
    canvas.scroll_into_view_if_needed()
    box, count = canvas.bounding_box(), canvas.evaluate("node => [node.dataset.rows, node.dataset.columns].map(Number)")
    return {"x": (column + 0.5) * box["width"] / count[1], "y": (row + 0.5) * box["height"] / count[0]}


def hover(page, row: int, column: int):
    page.locator(".picture-frame canvas").hover(position=patch(page, row, column))
    settle(page)
    return page.locator(".picture-frame .tip")


def colour(page, row: int, column: int) -> list[int]:
    """The pixel a quarter into a patch, where no outline is."""
    settle(page)
    return page.locator(".picture-frame canvas").evaluate(
        """(node, [row, column]) => {
            const copy = new OffscreenCanvas(node.width, node.height).getContext("2d");
            copy.drawImage(node, 0, 0);
            const [wide, high] = [node.width / node.dataset.columns, node.height / node.dataset.rows];
            return [...copy.getImageData((column + 0.25) * wide, (row + 0.25) * high, 1, 1).data];
        }""",
        [row, column],
    )


def label(page) -> str:
    return page.locator(".picture-frame canvas").get_attribute("aria-label")


def shown(page) -> str:
    """Whose attention is shown, once it is drawn."""
    settle(page)
    return page.locator(".image .told").text_content().split(", from 0")[0]


def close(value: float, exact: float) -> bool:
    return value == as_shown(exact)


@pytest.mark.browser
@pytest.mark.parametrize("facing", ["out", "in"])
@pytest.mark.parametrize("chosen", [0, 6])
def test_pointing_at_a_patch_tells_its_weight(open_page, image, facing, chosen):
    held = f"&token=source.{chosen}" if chosen else ""
    page = open_page(image, f"#views=image&head=1&facing={facing}{held}")
    weights = image.layers[0].weights[0, 1]
    for row, column in ((0, 0), (1, 2), (2, 3)):
        index = 1 + row * COLUMNS + column
        tip = hover(page, row, column)
        assert tip.locator("b").text_content() == f"{row},{column}"
        exact = weights[chosen, index] if facing == "out" else weights[index, chosen]
        assert close(number_of(tip.locator(".value").text_content()), exact.item())
    name = image.layers[0].key_tokens[chosen]
    assert (f"what {name} attends to" if facing == "out" else f"what attends to {name}") in label(page)
    exact = (weights[chosen, 0] if facing == "out" else weights[0, chosen]).item()
    assert close(number_of(page.locator(".marks .value").text_content()), exact)


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_shades_follow_the_weights_and_the_tint_lets_the_picture_through(open_page, image, scheme):
    page = open_page(image, "#views=image&head=0&tint=1&layer=layers.0", color_scheme=scheme)
    weights = image.layers[0].weights[0, 0, 0, 1:].reshape(ROWS, COLUMNS)
    places = [(row, column) for row in range(ROWS) for column in range(COLUMNS)]
    page.wait_for_function("() => document.querySelector('.picture-frame canvas').width > 300")
    page.wait_for_timeout(200)
    light = {place: sum(colour(page, *place)[:3]) * (1 if scheme == "light" else -1) for place in places}
    order = sorted(places, key=lambda place: -weights[place].item())
    assert sorted(light.values()) == [light[place] for place in order]  # the strongest is furthest from the page
    slider = page.get_by_label("Tint")
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_function("() => location.hash.includes('tint=0')")
    assert colour(page, 0, 1) == [255, 0, 0, 255]
    assert colour(page, 2, 2) == [0, 255, 0, 255]


@pytest.mark.browser
def test_holding_a_patch_shows_it_in_the_other_views(open_page, image):
    page = open_page(image, "#views=text,matrix,image&head=1")
    assert shown(page) == "Shades: what [CLS] gives to each patch"
    page.locator(".picture-frame canvas").click(position=patch(page, 1, 2))
    page.mouse.move(0, 0)
    assert shown(page) == "Shades: what 1,2 gives to each patch"
    assert page.locator('.token[aria-selected="true"]').all_text_contents() == ["1,2"]
    assert page.locator(".panel h3").all_text_contents() == ["1,2 attends to", "1,2 is attended by"]
    page.wait_for_function("() => location.hash.includes('token=source.7')")
    hover(page, 0, 3)
    exact = image.layers[0].weights[0, 1, 7, 4].item()
    assert close(number_of(page.locator("#matrix .tip .value").text_content()), exact)
    page.locator(".picture-frame canvas").click(position=patch(page, 1, 2))
    page.mouse.move(0, 0)
    assert shown(page) == "Shades: what [CLS] gives to each patch"


@pytest.mark.browser
def test_what_another_view_points_at_is_shown_here(open_page, image):
    page = open_page(image, "#views=text,matrix,image&head=1")
    page.locator(".token").nth(4).hover()
    assert shown(page) == "Shades: what 0,3 gives to each patch"
    point_at(page, 9, 6)
    assert shown(page) == "Shades: what 2,0 gives to each patch"
    tip = page.locator(".picture-frame .tip")
    assert tip.locator("b").text_content() == "1,1"
    assert close(number_of(tip.locator(".value").text_content()), image.layers[0].weights[0, 1, 9, 6].item())
    page.locator(".token").nth(2).click()
    page.locator(".token").nth(4).click(modifiers=["Control"])
    page.mouse.move(0, 0)
    assert shown(page) == "Shades: what 0,1 and 0,3 gives to each patch"
    exact = image.layers[0].weights[0, 1, [2, 4], 12].mean().item()
    assert close(number_of(hover(page, 2, 3).locator(".value").text_content()), exact)


@pytest.mark.browser
def test_everything_goes_by_keyboard(open_page, image):
    page = open_page(image, "#views=image&head=1")
    page.get_by_label("what it attends to").focus()
    page.keyboard.press("ArrowRight")
    assert shown(page) == "Shades: what each patch gives to [CLS]"
    for _ in range(3):  # the tint, the class token, the picture
        page.keyboard.press("Tab")
    tip = page.locator(".picture-frame .tip b")
    assert tip.text_content() == "0,0"
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
        page.wait_for_function("name => document.querySelector('.picture-frame .tip b').textContent === name", arg=name)
    page.keyboard.press("Enter")
    assert shown(page) == "Shades: what each patch gives to 1,0"
    page.keyboard.press("Escape")
    assert shown(page) == "Shades: what each patch gives to [CLS]"
    page.keyboard.press("Shift+Tab")
    assert page.locator(":focus").text_content().startswith("[CLS]")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash.includes('token=source.0') && location.hash.includes('facing=in')")


@pytest.mark.browser
def test_without_a_picture_the_patches_stand_alone(open_page):
    page = open_page(of_image())
    assert page.locator("section.view[aria-label=Image]").is_visible()  # and the text need not be
    assert page.get_by_label("Tint").count() == 0
    assert colour(page, 0, 0)[3] == 255
    box = page.locator(".picture-frame canvas").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(COLUMNS / ROWS, rel=0.01)


@pytest.mark.browser
def test_without_a_class_token_all_patches_look(open_page):
    image = of_image(marks=())
    page = open_page(image, "#views=image&head=0")
    assert shown(page) == "Shades: what a patch, on the mean of all, gives to each patch"
    exact = image.layers[0].weights[0, 0, :, 5].mean().item()
    assert close(number_of(hover(page, 1, 1).locator(".value").text_content()), exact)
    assert page.locator(".marks button").count() == 0


@pytest.mark.browser
def test_what_the_file_does_not_know_has_bounds(open_page):
    image = of_image(17, 17, heads=1)
    page = open_page(image, "#views=image")
    weights = image.layers[0].weights[0, 0, 0]
    assert "dotted" in page.locator(".image .told").text_content()
    unknown, known = weights[1:].argmin().item(), weights[1:].argmax().item()
    tip = hover(page, *divmod(unknown, 17))
    assert "not all of it is in this file" in tip.text_content()
    assert float(tip.locator(".rank").first.text_content().removeprefix("at most ")) >= weights[1 + unknown].item()
    assert close(number_of(hover(page, *divmod(known, 17)).locator(".value").text_content()), weights[1 + known].item())


@pytest.mark.browser
def test_bytes_that_no_browser_draws_leave_the_patches(open_page):
    damaged = bytearray(png(64, 48))
    damaged[40:] = b"<script>window.ran = 1</script>" * 3
    page = open_page(of_image(picture=bytes(damaged)), "#views=image")
    assert shown(page) == "Shades: what [CLS] gives to each patch"
    assert page.evaluate("window.ran === undefined")
    assert colour(page, 0, 0)[3] == 255


@pytest.mark.browser
def test_there_is_none_where_nothing_is_an_image(open_page, recording, image):
    assert open_page(recording).get_by_role("button", name="Image").count() == 0
    letters = tuple("abcdefghijklm")
    other = image.layers[0].replace(name="other", query_tokens=letters, key_tokens=letters)
    page = open_page(image.replace(layers=(*image.layers, other)), "#views=image&layer=other")
    assert page.locator(".image .told").text_content() == "The tokens of other are not the patches of the picture."
    assert page.locator(".picture-frame").is_hidden()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_page_holds_the_picture(open_page, image, scheme):
    page = open_page(image, "#views=image", width=400, color_scheme=scheme)
    hover(page, 1, 3)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.locator(".picture-frame canvas").bounding_box()["width"] > 300
