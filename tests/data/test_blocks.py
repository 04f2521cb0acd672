"""Running text as token ids, and its blocks."""

from __future__ import annotations

import numpy as np
import pytest

from regard.data.batching import BatchIndices
from regard.data.blocks import TokenStream, block_loader, read_text, tokenize_stream
from regard.errors import InvalidArgument, InvalidFile, InvalidType
from regard.text.tokenizer import train_bpe, train_char


def test_a_fraction_is_of_the_characters(tmp_path):
    text = "one line\nanother, longer line\n\nthe end\n"
    (tmp_path / "a.txt").write_text(text)
    cut = int(0.6 * len(text))
    train, valid = ("".join(*read_text([tmp_path / "a.txt"], part)) for part in ((0.0, 0.6), (0.6, 1.0)))
    assert (train, valid) == (text[:cut], text[cut:])
    assert [len([*lines]) for lines in read_text([tmp_path / "a.txt"] * 2)] == [4, 4]


@pytest.mark.parametrize("sample_by", ["document", "line"])
def test_each_document_ends_with_eos(tmp_path, sample_by):
    (tmp_path / "a.txt").write_text("ab\n\nba\n")
    (tmp_path / "b.txt").write_text("b\n")
    tokenizer = train_char(["ab\n"])
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    stream = tokenize_stream(files, tokenizer, tmp_path / "cache", sample_by=sample_by)
    newline, a, b, end = 4, 5, 6, 2
    full = [a, b, newline, newline, b, a, newline, end, b, newline, end]
    assert stream.ids.tolist() == (full if sample_by == "document" else [a, b, end, b, a, end, b, end])
    assert stream.num_characters == (9 if sample_by == "document" else 5)
    again = tokenize_stream(files, tokenizer, tmp_path / "cache", sample_by=sample_by)
    assert again.ids.tolist() == stream.ids.tolist()
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_training_predicts_nearly_every_token_once_per_epoch_and_validation_all():
    stream = TokenStream(np.arange(100), 100)
    loader = block_loader(stream, block_size=7, batch_size=3, seed=1)
    for epoch in (0, 1):
        batches = [loader.dataset[BatchIndices(rows, ())] for rows in loader.sampler.plan(epoch)]
        predicted = [label for batch in batches for label in batch.labels.flatten().tolist()]
        assert len(set(predicted)) == len(predicted) >= 100 - 1 - 7 - 3 * 7
    assert loader.sampler.plan(0)[0].tolist() != loader.sampler.plan(1)[0].tolist()
    batch = next(iter(loader))
    assert (batch.labels == batch.input_ids + 1).all()
    full = [label for batch in block_loader(stream, 7, 3) for label in batch.labels.flatten().tolist()]
    assert sorted(full) == list(range(1, 100))
    assert sum(batch.num_targets for batch in block_loader(stream, 7, 3)) == 99


def test_a_loader_resumes_at_the_state_of_another():
    stream = TokenStream(np.arange(50), 50)
    one, other = (block_loader(stream, 4, 2, seed=3) for _ in range(2))
    batches = iter(one)
    for _ in range(9):  # into the second epoch
        next(batches)
    other.load_state_dict(one.state_dict())
    assert next(iter(other)).input_ids.tolist() == next(batches).input_ids.tolist()


def test_processes_share_the_blocks():
    stream = TokenStream(np.arange(50), 50)
    plans = [block_loader(stream, 4, 2, rank=rank, world_size=2) for rank in (0, 1)]
    predicted = sorted(label for loader in plans for batch in loader for label in batch.labels.flatten().tolist())
    assert predicted == list(range(1, 50))


def test_too_little_text_is_refused(tmp_path):
    with pytest.raises(
        InvalidFile, match="block_size: expected a text of at least 9 tokens, a block and the next token, got 5"
    ):
        block_loader(TokenStream(np.arange(5), 5), 8, 1, seed=1)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(InvalidFile, match="expected at least two tokens, got 1"):
        tokenize_stream([tmp_path / "a.txt"], train_char(["a"]), tmp_path / "cache")


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_processes_predict_every_token_of_the_validation_text_once(world_size):
    stream = TokenStream(np.arange(17), 17)
    loaders = [
        block_loader(stream, block_size=3, batch_size=5, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    predicted = [batch.labels.flatten().tolist() for loader in loaders for batch in loader]
    assert sorted(label for labels in predicted for label in labels) == list(range(1, 17))
    assert all(len(loader) for loader in loaders)


def test_text_that_spells_a_special_token_stays_text(tmp_path):
    (tmp_path / "a.txt").write_text("<s>b</s>\n")
    tokenizer = train_char(["<s>b</s>\n"], sample_by="line")
    ids = tokenize_stream([tmp_path / "a.txt"], tokenizer, tmp_path / "cache", sample_by="line").ids.tolist()
    assert ids.count(tokenizer.eos_id) == 1
    assert tokenizer.decode([ids]) == ["<s>b</s>"]


def test_sizes_are_positive_ints():
    with pytest.raises(InvalidArgument, match=r"(?s)block_size: expected .*1, got 0.*batch_size: expected .*1, got -1"):
        block_loader(TokenStream(np.arange(9), 9), 0, -1)
    with pytest.raises(InvalidType, match=r"batch_size: expected an int of at least 1, got 1\.5"):
        block_loader(TokenStream(np.arange(9), 9), 3, 1.5)


def test_paths_may_be_str_but_not_one_alone(tmp_path):
    (tmp_path / "a.txt").write_text("abc")
    assert len(tokenize_stream([str(tmp_path / "a.txt")], train_char(["abc\n"]), str(tmp_path / "cache"))) >= 3
    with pytest.raises(InvalidType, match="files: expected a sequence of paths, got str; pass a list"):
        tokenize_stream(str(tmp_path / "a.txt"), train_char(["abc"]), tmp_path / "cache")


def test_long_documents_are_tokenized_in_pieces(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("one\ntwo words\n\nthree\n")
    tokenizer = train_bpe(["a"], 260)
    calls = []

    def encode(texts):
        calls.extend(texts)
        return type(tokenizer).encode(tokenizer, texts)

    monkeypatch.setattr(tokenizer, "encode", encode)
    monkeypatch.setattr("regard.data.blocks._PIECE_SIZE", 10)
    stream = tokenize_stream([tmp_path / "a.txt"], tokenizer, tmp_path / "cache")
    assert calls == ["one\ntwo words\n", "\nthree\n"]
    assert tokenizer.decode([stream.ids.tolist()]) == ["one\ntwo words\n\nthree\n"]
    assert stream.num_characters == 21


def test_a_misspelt_sample_by_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("ab\nba\n")
    with pytest.raises(InvalidArgument, match="sample_by: expected one of document, line, got 'lines', did you mean"):
        tokenize_stream([tmp_path / "a.txt"], train_char(["ab\n"]), tmp_path / "cache", sample_by="lines")
