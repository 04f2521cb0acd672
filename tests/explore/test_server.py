"""The server: it answers what the tensors say, to who knows its token, on this machine alone."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import regard
from regard.analysis.recording import Layer, Recording
from regard.errors import InvalidArgument
from regard.explore.answers import Answers
from regard.explore.codes import decode
from regard.explore.server import listening

TOKENS = tuple(f"▁word{number}" for number in range(600))
SHORT = TOKENS[:5]


def recording_of() -> Recording:
    """Layers that are asked for piece by piece, and one that is sent whole."""
    torch.manual_seed(0)
    long = regard.weights(3 * torch.randn(1, 4, 600, 8), torch.randn(1, 2, 600, 8), mask=regard.Causal())
    second = regard.weights(torch.randn(1, 2, 600, 8), torch.randn(1, 2, 600, 8), mask=regard.Causal())
    small = regard.weights(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))
    return Recording(
        "A long text",
        "a model",
        (
            Layer("long", "decoder", long, TOKENS, TOKENS),
            Layer("small", "encoder", small, SHORT, SHORT),
            Layer("second", "decoder", second, TOKENS, TOKENS),
        ),
    )


@pytest.fixture(scope="module")
def long_recording() -> Recording:
    return recording_of()


@pytest.fixture(scope="module")
def address(long_recording) -> Iterator[str]:
    with listening(long_recording) as (server, found):
        server.install_signal_handlers = lambda: None
        thread = threading.Thread(target=server.run, kwargs={"sockets": [server.bound]})
        thread.start()
        yield found
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        return error.code, error.read(), {name.lower(): value for name, value in error.headers.items()}


def codes_of(content: bytes, *shape: int) -> np.ndarray:
    """Codes of two bytes, the lowest of all first."""
    low, high = np.frombuffer(zlib.decompress(content), np.uint8).reshape(2, -1).astype(int)
    return (low + 256 * high).reshape(shape)


def test_a_row_is_what_the_matrix_says(address, long_recording):
    status, content, _ = get(f"{address}row/0/3/400")
    row = np.frombuffer(content, "<f4")
    weights = long_recording.layers[0].weights
    assert status == 200
    np.testing.assert_allclose(row[:401], weights[0, 3, 400, :401].numpy(), rtol=1e-5)
    assert np.isnan(row[401:]).all()


def test_a_column_is_what_the_matrix_says(address, long_recording):
    column = np.frombuffer(get(f"{address}column/0/1/77")[1], "<f4")
    np.testing.assert_allclose(column[77:], long_recording.layers[0].weights[0, 1, 77:, 77].numpy(), rtol=1e-5)
    assert np.isnan(column[:77]).all()


def test_vectors_are_those_of_the_head(address, long_recording):
    request = long_recording.layers[0].weights.request
    exact = [tensor[0, 2 * tensor.shape[1] // 4] for tensor in (request.query, request.key)]
    found = np.frombuffer(get(f"{address}vectors/0/2")[1], "<f4")
    np.testing.assert_array_equal(found, np.concatenate([tensor.numpy().ravel() for tensor in exact]))


@pytest.mark.parametrize(
    ("size", "row", "column", "shape"), [(4, 0, 0, (150, 150)), (1, 1, 0, (256, 256)), (1, 2, 2, (88, 88))]
)
def test_squares_are_means_of_rows_and_sums_of_keys(address, long_recording, size, row, column, shape):
    found = decode(codes_of(get(f"{address}squares/0/2/{size}/{row}/{column}")[1], *shape))
    dense = long_recording.layers[0].weights[0, 2].double()
    part = dense[row * 256 * size : (row + 1) * 256 * size, column * 256 * size : (column + 1) * 256 * size]
    expected = part.unflatten(0, (-1, size)).mean(1).unflatten(1, (-1, size)).sum(2).numpy()
    rows, keys = np.indices(expected.shape)
    masked = (column * 256 + keys) * size > (row * 256 + rows + 1) * size - 1
    assert (np.isnan(found) == masked).all()
    assert (np.abs(found - expected)[~masked] <= np.maximum(0.01 * expected, 1e-4)[~masked] * 1.001).all()


def test_what_is_small_is_sent_whole(address, long_recording):
    content = zlib.decompress(get(f"{address}block/1")[1])
    low, high = np.frombuffer(content[:100], np.uint8).reshape(2, -1).astype(int)
    found = decode((low + 256 * high).reshape(2, 5, 5))
    np.testing.assert_allclose(found, long_recording.layers[1].weights.dense()[0].numpy(), rtol=0.0101, atol=1e-4)


def test_thumbnails_and_scores(address, long_recording):
    thumbnail = decode(codes_of(get(f"{address}thumbnail/0/0")[1], 32, 32))
    assert np.nansum(thumbnail[-1]) == pytest.approx(1, abs=0.02)
    scores = json.loads(get(f"{address}scores")[1])
    expected = long_recording.heads()
    assert scores["long"]["entropy"] == pytest.approx(expected["entropy"][:4], abs=1e-4)


@pytest.mark.parametrize(
    "path",
    [
        "row/0/4/0", "row/3/0/0", "row/0/0/600", "row/0/0/-1", "row/0/0/1.5", "row/0/0/", "row/0/0/x", "column/0/0/600",
        "squares/0/0/2/0/0", "squares/0/0/4/1/0", "squares/1/0/1/0/0", "block/0", "block/7", "thumbnail/0",
        "..%2f..%2fetc%2fpasswd", "row/0/0/99999999999999999999999", "scores/1", "static/main.js", "etc/passwd",
    ],
)  # fmt: skip
def test_what_is_not_there_is_404_and_no_traceback(address, path):
    status, content, headers = get(address + path)
    assert status == 404
    assert b"Traceback" not in content
    assert b".py" not in content
    assert headers["content-type"].startswith("text/plain")


def test_only_who_knows_the_token_is_answered(address):
    root, token = re.fullmatch(r"(http://127\.0\.0\.1:\d+/)([\w-]{32})/", address).groups()
    wrong = token[:-1] + ("B" if token.endswith("A") else "A")
    for path in ("", "scores", f"{wrong}/", f"{token.lower()}/row/0/0/0", "x" * 32 + "/", f"?token={token}"):
        assert get(root + path)[0] == 404


def test_only_this_machine_is_heard_and_answered(address, long_recording):
    with listening(long_recording) as (server, _):
        assert server.bound.getsockname()[0] == "127.0.0.1"
    assert get(address, Host="evil.example")[0] == 403
    assert get(address, Host="localhost:1")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_is_taken(address, method):
    assert get(address, method)[0] == 405


def test_the_page_is_kept_by_nobody_and_tells_nobody_its_address(address):
    status, content, headers = get(address)
    assert status == 200
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"
    assert b"connect-src 'self'" in content


@pytest.fixture
def open_served(browser, address) -> Iterator:
    """The served page, which may ask this server alone and does nothing wrong."""
    complaints: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    root = address.rpartition("/")[0]

    def open_it(fragment: str = ""):
        page = context.new_page()
        page.set_default_timeout(30_000)
        context.route(lambda url: not url.startswith((root, "data:", "blob:")), lambda route: route.abort())
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address + fragment)
        page.wait_for_selector("#matrix canvas[data-cell]")
        return page

    yield open_it
    context.close()
    assert complaints == []


def test_a_cell_of_the_served_page_has_the_exact_weight(open_served, long_recording):
    page = open_served("#layer=long&head=1&views=matrix&zoom=300,290,20")
    canvas = page.locator("#matrix canvas")
    place = {name: float(value) for name, value in canvas.evaluate("node => ({...node.dataset})").items()}
    query, key = 300, 291
    x = place["left"] + (key + 0.5 - place["column"]) * place["cell"]
    y = place["top"] + (query + 0.5 - place["row"]) * place["cell"]
    canvas.hover(position={"x": x, "y": y})
    page.locator(".tip .rank", has_text="rank").wait_for()  # its row has come
    weight = float(long_recording.layers[0].weights[0, 1, query, key])
    assert float(page.locator(".tip .value").inner_text()) == pytest.approx(weight, abs=6e-4 if weight >= 0.1 else 6e-5)
    rank = 1 + int((long_recording.layers[0].weights[0, 1, query] > weight).sum())
    assert page.locator(".tip .rank").inner_text().startswith(f"rank {rank} ")


def test_the_readout_of_a_served_token_is_exact(open_served, long_recording):
    page = open_served("#layer=long&head=2&token=source.500")
    page.wait_for_selector(".panel li")
    best = long_recording.layers[0].weights[0, 2, 500].max()
    assert float(page.locator(".panel .value").first.inner_text()) == pytest.approx(float(best), abs=6e-4)
    assert "does not name" not in page.locator("#readout").inner_text()


def test_the_calculation_of_a_served_token_begins_with_its_vectors(open_served, long_recording):
    page = open_served("#layer=long&head=2&token=source.500&views=matrix,calculation")
    softmax = page.get_by_role("region", name="Softmax")
    softmax.wait_for()
    weights = long_recording.layers[0].weights[0, 2, 500]
    lines = softmax.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [row.dataset.key, ...[...row.children].slice(-2).map(cell => cell.textContent)])"
    )
    assert [int(key) for key, *_ in lines] == weights.topk(12).indices.tolist()
    for key, computed, told in lines:
        assert float(computed) == pytest.approx(float(weights[int(key)]), abs=6e-5)
        assert float(told) == pytest.approx(float(weights[int(key)]), abs=6e-5)


def test_the_maps_of_every_layer_come(open_served):
    page = open_served()
    page.locator(".thumbnail canvas.drawn").nth(4 + 2 + 2 - 1).wait_for()
    assert page.locator(".thumbnail canvas:not(.drawn)").count() == 0


def test_the_graph_of_a_served_text_is_that_of_rollout(open_served, long_recording):
    page = open_served("#layer=long&head=0&token=source.599&views=matrix,graph")
    page.locator("#graph .shares li").first.wait_for()
    shares = torch.zeros(150)
    shares[-1] = 1.0
    for index in (2, 0):  # in blocks of four tokens
        heads = long_recording.layers[index].weights.dense()[0].mean(0)
        blocks = heads.unflatten(0, (150, 4)).mean(1).unflatten(1, (150, 4)).sum(2)
        shares = 0.5 * shares + 0.5 * shares @ blocks
    told = [float(text) for text in page.locator("#graph .shares .value").all_inner_texts()]
    assert told == pytest.approx(shares.topk(len(told)).values.tolist(), rel=0.02, abs=1e-4)


def test_the_sum_of_a_region_is_exact(open_served, long_recording):
    page = open_served("#layer=long&head=1&region=300.304.200.204&views=matrix")
    page.locator(".panel", has_text="Sum of its weights").wait_for()
    exact = long_recording.layers[0].weights[0, 1, 300:305].double()[:, 200:205].sum()
    assert float(page.locator(".panel .value").first.inner_text()) == pytest.approx(float(exact), abs=6e-4)


def saved(page) -> list[list[str]]:
    with page.expect_download() as coming:
        page.locator("section.view:has(#matrix)").get_by_role("button", name="as CSV").click()
    return list(csv.reader(io.StringIO(coming.value.path().read_text(encoding="utf-8-sig"), newline="")))[1:]


@pytest.mark.parametrize("heads", [[1], [0, 3]])
def test_a_region_is_saved_whole(open_served, long_recording, heads):
    page = open_served(f"#layer=long&head={','.join(map(str, heads))}&region=300.330.290.310&views=matrix")
    exact = long_recording.layers[0].weights[0, heads].mean(0)
    found = {(int(query), int(key)): float(weight) for query, _, key, _, weight in saved(page)}
    assert set(found) == {(query, key) for query in range(300, 331) for key in range(290, 311) if key <= query}
    for (query, key), weight in found.items():
        assert weight == pytest.approx(float(exact[query, key]), rel=1e-4, abs=1e-9)


def test_held_tokens_are_saved_whole(open_served, long_recording):
    page = open_served("#layer=long&head=1&token=source.500&views=matrix")
    rows = saved(page)
    assert len([row for row in rows if row[0] == "500"]) == 501
    assert len([row for row in rows if row[2] == "500"]) == 100


def test_what_is_too_large_for_a_file_is_not_saved_but_said(open_served):
    page = open_served("#layer=long&head=1&views=matrix")
    group = page.get_by_role("group", name="Save: Matrix")
    group.get_by_role("button", name="as CSV").click()
    group.get_by_text("mark a region, or hold tokens").wait_for()


@pytest.mark.parametrize("path", ["sum/0/0/5/4/0/1", "sum/0/0/4/5/1/0"])
def test_a_region_that_ends_before_it_begins_is_refused(address, path):
    assert get(address + path)[0] == 400


def test_a_page_whose_server_has_ended_says_so_once(browser, long_recording):
    asked: list[str] = []
    with listening(long_recording) as (server, found):
        server.install_signal_handlers = lambda: None
        thread = threading.Thread(target=server.run, kwargs={"sockets": [server.bound]})
        thread.start()
        page = browser.new_page()
        page.goto(found + "#layer=long&head=1&views=matrix")
        page.locator(".thumbnail canvas.drawn").nth(7).wait_for()
        assert page.get_by_role("alert").count() == 0
        server.should_exit = True
        thread.join(10)
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("location.hash = '#layer=long&head=3&zoom=300,290,20&views=matrix&token=source.500'")
    page.get_by_role("alert").wait_for()
    page.wait_for_timeout(1000)
    assert 0 < len(asked) < 8
    assert "attends to nothing" not in page.locator("#readout").text_content()
    page.close()


def run(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "regard", "serve", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_command_tells_its_address_and_ends_by_ctrl_c(long_recording, tmp_path):
    long_recording.save(tmp_path / "long.regard")
    process = run(str(tmp_path / "long.regard"), "--no-open")
    try:
        address = process.stdout.readline().strip()
        status, content, _ = get(address)
        assert status == 200
        assert b"A long text" in content
    finally:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    assert process.returncode in (0, 130)


def test_a_file_that_is_no_recording_is_one_sentence(tmp_path):
    (tmp_path / "a.regard").write_bytes(b"nothing")
    process = run(str(tmp_path / "a.regard"))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "Traceback" not in errors
    assert "a.regard" in errors


def test_a_port_that_is_taken_is_named(long_recording):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(InvalidArgument, match=f"--port: {port} cannot be listened on"),
            listening(long_recording, port),
        ):
            time.sleep(0)


@pytest.mark.parametrize("score", ["sinks", "softcap", "bias"])
def test_rows_and_columns_follow_any_rule(score):
    torch.manual_seed(1)
    query, key = torch.randn(1, 4, 300, 8), torch.randn(1, 2, 300, 8)
    rule = {
        "sinks": regard.Sinks(regard.ScaledDot(), torch.randn(4)),
        "softcap": regard.SoftCap(regard.ScaledDot(), 2.0),
        "bias": regard.ScaledDot() + regard.Alibi.of_heads(4) + regard.Bias(torch.randn(1, 4, 300, 300)),
    }[score]
    weights = regard.weights(query, key, mask=regard.Window(40, 3), score=rule)
    tokens = tuple(map(str, range(300)))
    answers = Answers(Recording("", "", (Layer("a", "encoder", weights, tokens, tokens),)))
    exact = weights.dense()[0, 3]
    exact = exact.masked_fill(weights.scores.dense()[0, 3] == -torch.inf, torch.nan)
    row, column = (np.frombuffer(found, "<f4") for found in (answers.row(0, 3, 77), answers.column(0, 3, 77)))
    np.testing.assert_allclose(row, exact[77].numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(column, exact[:, 77].numpy(), rtol=1e-5, atol=1e-7)
