"""Texts with their classes, and texts with masked tokens."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from regard.data.batching import BatchIndices
from regard.data.masking import IGNORE_INDEX, masked_lm_loader
from regard.data.texts import read_label_names, text_loader, tokenize_texts, truncate
from regard.errors import InvalidArgument, InvalidFile, InvalidType
from regard.text.tokenizer import train_bpe

TEXTS = ["a good film", "bad", "good, good and good", "it is bad , really bad"]


@pytest.fixture
def tokenizer():
    return train_bpe(TEXTS, 300)


@pytest.fixture
def labeled(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{text}\t{'no' if 'bad' in text else 'yes'}\tfurther\n" for text in TEXTS))
    return path


def test_texts_come_with_their_classes(tmp_path, tokenizer, labeled):
    labels = read_label_names([labeled])
    assert labels == ("no", "yes")
    corpus = tokenize_texts([labeled], tokenizer, tmp_path / "cache", max_length=50, labels=labels)
    assert [corpus.texts[row].tolist() for row in (2, 0, 3)] == tokenizer.encode(
        [TEXTS[2], TEXTS[0], TEXTS[3]], add_special_tokens=True, split_special_tokens=False
    )
    assert corpus.labels[[2, 0, 3]].tolist() == [1, 1, 0]
    (batch,) = text_loader(corpus, 4, pad_id=0)
    assert batch.lengths.tolist() == sorted(
        map(len, tokenizer.encode(TEXTS, add_special_tokens=True, split_special_tokens=False)), reverse=True
    )
    assert (batch.input_ids[1, batch.lengths[1] :] == 0).all()
    assert batch.num_targets == 4
    result = {tuple(row) for batch in text_loader(corpus, 1, pad_id=0) for row in batch.input_ids.tolist()}
    assert result == {
        tuple(each) for each in tokenizer.encode(TEXTS, add_special_tokens=True, split_special_tokens=False)
    }


def test_truncated_texts_keep_the_last_special_token(tmp_path, tokenizer, labeled):
    corpus = tokenize_texts([labeled], tokenizer, tmp_path / "cache", max_length=5, labels=("no", "yes"))
    full = tokenizer.encode(TEXTS, add_special_tokens=True, split_special_tokens=False)
    assert [ids.tolist() for ids in corpus.texts] == [[*each[:4], 2] if len(each) > 5 else each for each in full]
    assert corpus.num_truncated == sum(len(each) > 5 for each in full)


def test_masked_tokens_have_the_proportions_of_the_paper(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("\n\n".join([" ".join(TEXTS * 8)] * 60) + "\n")
    corpus = tokenize_texts([tmp_path / "a.txt"], tokenizer, tmp_path / "cache", max_length=60)
    assert (len(corpus), corpus.num_empty) == (60, 59)
    options = {"pad_id": 0, "mask_id": 3, "vocab_size": 300, "mlm_probability": 0.3}
    loader = masked_lm_loader(corpus, 600, seed=1, **options)
    num_selected = num_masked = num_kept = num_inner = 0
    for epoch in range(8):
        for rows in loader.sampler.plan(epoch):
            batch = loader.dataset[BatchIndices(rows, (epoch, int(rows[0])))]
            full = torch.stack([corpus.texts[row] for row in rows])
            at = batch.labels != IGNORE_INDEX
            assert (batch.labels[at] == full[at]).all()
            assert (batch.input_ids[~at] == full[~at]).all()
            assert not at[:, 0].any()
            assert not at[:, -1].any()
            assert batch.num_targets == int(at.sum())
            num_selected += int(at.sum())
            num_inner += 58 * len(rows)
            num_masked += int((batch.input_ids[at] == 3).sum())
            num_kept += int((batch.input_ids[at] == full[at]).sum())
    assert num_selected / num_inner == pytest.approx(0.3, abs=0.01)
    assert num_masked / num_selected == pytest.approx(0.8, abs=0.02)
    assert num_kept / num_selected == pytest.approx(0.1, abs=0.02)
    other = masked_lm_loader(corpus, 600, seed=1, **options)
    one = iter(masked_lm_loader(corpus, 600, seed=1, **options))
    assert next(one).input_ids.tolist() == next(iter(other)).input_ids.tolist()
    validation = [batch.labels.tolist() for batch in masked_lm_loader(corpus, 600, **options)]
    assert validation == [batch.labels.tolist() for batch in masked_lm_loader(corpus, 600, **options)]
    shares = [[batch.labels.tolist() for batch in masked_lm_loader(corpus, 600, rank=rank, world_size=2, **options)]
              for rank in range(2)]  # fmt: skip
    assert sorted(validation) == sorted(shares[0] + shares[1])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_loader_draws_the_same_masks(tmp_path, tokenizer, num_workers):
    (tmp_path / "a.txt").write_text("\n".join(TEXTS * 20))
    corpus = tokenize_texts([tmp_path / "a.txt"], tokenizer, tmp_path / "cache", max_length=60)
    options = {"pad_id": 0, "mask_id": 3, "vocab_size": 300, "seed": 1}
    loader = masked_lm_loader(corpus, 200, num_workers=num_workers, **options)
    batches, states = [], []
    for batch in islice(loader, 2 * len(loader.sampler.plan(0))):
        batches.append(batch.input_ids.tolist())
        states.append(loader.state_dict())
    resumed = masked_lm_loader(corpus, 200, **options)
    resumed.load_state_dict(states[4])
    assert [batch.input_ids.tolist() for batch in islice(resumed, len(batches) - 5)] == batches[5:]


def test_at_least_one_token_of_a_batch_is_predicted(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("a\n")
    corpus = tokenize_texts([tmp_path / "a.txt"], tokenizer, tmp_path / "cache", max_length=9)
    (batch,) = masked_lm_loader(corpus, 20, pad_id=0, mask_id=3, vocab_size=300, mlm_probability=1e-9)
    assert batch.num_targets == 1
    assert batch.labels[0, 1] != IGNORE_INDEX


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no tab here", "line 2: expected text, tab, class, got 'no tab here'"),
        ("\tyes", "line 2: expected text, tab, class"),
        ("text\t ", "line 2: expected text, tab, class"),
        ("text\tyess", "line 2: expected one of 'no', 'yes', got 'yess', did you mean 'yes'?"),
    ],
)
def test_bad_lines_are_named(tmp_path, tokenizer, line, message):
    (tmp_path / "a.tsv").write_text(f"fine\tyes\n{line}\n")
    with pytest.raises(InvalidFile, match=message.replace("?", r"\?")):
        tokenize_texts([tmp_path / "a.tsv"], tokenizer, tmp_path / "cache", max_length=9, labels=("no", "yes"))
    assert not list((tmp_path / "cache").glob("*"))


def test_one_class_or_no_text_is_refused(tmp_path, tokenizer):
    (tmp_path / "a.tsv").write_text("fine\tyes\n")
    with pytest.raises(InvalidFile, match="expected at least two labels, got only 'yes'"):
        read_label_names([tmp_path / "a.tsv"])
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(InvalidFile, match="expected at least one text, got none"):
        tokenize_texts([tmp_path / "a.txt"], tokenizer, tmp_path / "cache", max_length=9)


@pytest.mark.parametrize("max_length", [-3, 1, 2])
def test_max_length_leaves_room_for_text(tmp_path, tokenizer, labeled, max_length):
    with pytest.raises(InvalidArgument, match=f"max_length: expected an int of at least 3, got {max_length}"):
        tokenize_texts([labeled], tokenizer, tmp_path / "cache", max_length=max_length)


def test_without_a_last_special_token_the_end_is_truncated():
    class Plain:
        def encode(self, texts, add_special_tokens):
            return [[1] for _ in texts]  # begins texts

    assert truncate([[1, 5, 6, 7], [1, 5]], 3, Plain()) == [[1, 5, 6], [1, 5]]


def test_paths_may_be_str(tmp_path, tokenizer, labeled):
    assert len(tokenize_texts([str(labeled)], tokenizer, str(tmp_path / "cache"), max_length=9)) == len(TEXTS)


def test_impossible_batches_are_refused(tmp_path, tokenizer, labeled):
    corpus = tokenize_texts([labeled], tokenizer, tmp_path / "cache", max_length=9)
    with pytest.raises(InvalidArgument, match="batch_size: expected an int of at least 1, got 0"):
        text_loader(corpus, 0, pad_id=0)
    with pytest.raises(InvalidType, match=r"batch_size: expected an int of at least 1, got 1\.5"):
        text_loader(corpus, 1.5, pad_id=0)
    with pytest.raises(InvalidArgument, match="mlm_probability: expected at most 1, got 5"):
        masked_lm_loader(corpus, 20, pad_id=0, mask_id=3, vocab_size=300, mlm_probability=5)


def test_negative_rows_count_from_the_end(tmp_path, tokenizer, labeled):
    texts = tokenize_texts([labeled], tokenizer, tmp_path / "cache", max_length=9).texts
    assert torch.equal(texts[-1], texts[len(texts) - 1])
    with pytest.raises(IndexError):
        texts[len(texts)]
