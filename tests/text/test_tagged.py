"""Files of tagged sentences: columns as of CoNLL-2003, and JSON Lines as of Hugging Face's datasets."""

from __future__ import annotations

import gzip

import pytest

from regard.errors import InvalidFile, InvalidType
from regard.text.tagged import TaggedSentence, read_tagged_sentences

CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

Peter NNP B-NP B-PER
# # O O

"""


def read(path, text):
    path.write_text(text, encoding="utf-8")
    return [(sentence.words, sentence.tags) for sentence in read_tagged_sentences([path])]


def test_the_first_column_is_the_word_and_the_last_the_tag(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text(CONLL_2003)
    first = TaggedSentence(f"{path}, line 3", ("EU", "rejects"), ("B-ORG", "O"))
    second = TaggedSentence(f"{path}, line 6", ("Peter", "#"), ("B-PER", "O"))
    assert list(read_tagged_sentences([path])) == [first, second]
    (tmp_path / "a.conll.gz").write_bytes(gzip.compress(CONLL_2003.rstrip().encode()))
    both = list(read_tagged_sentences([path, tmp_path / "a.conll.gz"]))
    assert [sentence.words for sentence in both] == [first.words, second.words] * 2


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("New York\tB-LOC\n is \tO\n", [(("New York", "is"), ("B-LOC", "O"))]),
        ("a O\r\nb O\r\n\r\n \r\nc  O\r\n", [(("a", "b"), ("O", "O")), (("c",), ("O",))]),
        ("", []),
        ("\n\n", []),
    ],
)
def test_tabs_white_space_and_line_ends(tmp_path, text, sentences):
    assert read(tmp_path / "a.txt", text) == sentences


@pytest.mark.parametrize("field", ["tags", "ner_tags"])
def test_json_lines_have_tokens_and_tags(tmp_path, field):
    text = f'{{"id": 1, "tokens": ["a", "b c"], "{field}": ["O", "B-X"]}}\n\n{{"tokens": [], "{field}": []}}\n'
    assert read(tmp_path / "a.jsonl", text) == [(("a", "b c"), ("O", "B-X"))]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "a O\nb\n", "a.txt, line 2: expected word and tag in two or more columns, or an empty line, got 'b'"),
        ("a.txt", "a\t\n", "a.txt, line 1: expected word and tag in two or more columns, or an empty line, got 'a"),
        ("a.txt", "a X O\n\n# id = 1 2\n", "a.txt, line 3: expected 3 columns as in the lines before, got 5 in '# id"),
        ("a.jsonl", '{"tokens": ["a"]}\n', "a.jsonl, line 1: expected an object with the lists of str 'tokens' and 't"),
        ("a.jsonl", '{"tokens": "a", "tags": "O"}\n', "a.jsonl, line 1: expected an object with the lists of str"),
        ("a.jsonl", "[1]\n", "a.jsonl, line 1: expected an object with the lists of str 'tokens' and 'tags' or"),
        ("a.jsonl", '{"tokens": ["a"], "ner_tags": [3]}\n', "; write the names of the tags"),
        ("a.jsonl", '{"tokens": ["a"], "tags": []}\n', "a.jsonl, line 1: expected as many tags as tokens, 1, got 0"),
        ("a.jsonl", '{"tokens": [" "], "tags": ["O"]}\n', "line 1: expected tokens and tags that are not empty, got"),
        ("a.jsonl", "{\n", "a.jsonl, line 1: "),
    ],
)
def test_lines_of_another_form_are_named(tmp_path, name, text, message):
    with pytest.raises(InvalidFile) as error:
        read(tmp_path / name, text)
    assert message in str(error.value)


def test_files_are_a_sequence(tmp_path):
    with pytest.raises(InvalidType, match="files: expected a sequence of paths, got str; pass a list"):
        list(read_tagged_sentences("a.txt"))
