"""The confidence of translations: high for everyday sentences, low for others, and read from the model's folder."""

from __future__ import annotations

import math

import pytest

from regard.errors import InvalidFile
from regard.generation.sampling import SamplingParams
from regard.pipelines import Translator
from regard.pipelines.confidence import CONFIDENCE_FILE, ConfidenceModel

EVERYDAY = (
    "Where is the train station?",
    "How much does this cost?",
    "My brother lives in Berlin.",
    "She doesn't like fish.",
    "I forgot my keys at home.",
    "The dog is sleeping under the table.",
)
OUT_OF_DOMAIN = (
    "The central bank raised interest rates by a quarter of a percentage point on Thursday.",
    "The function returns a tensor of shape batch by sequence length.",
    "The patient was admitted with acute inflammation of the appendix.",
    "Encryption keys are stored in a secure hardware module.",
    "Negotiators reached a provisional agreement on trade tariffs.",
    "The algorithm sorts the array in linearithmic time.",
)


@pytest.fixture(scope="module")
def bundled() -> Translator:
    return Translator.load()


def test_everyday_sentences_are_reliable_and_others_are_not(bundled):
    translations = [best for (best,) in bundled.translate([*EVERYDAY, *OUT_OF_DOMAIN])]
    confidences = [translation.confidence for translation in translations]
    assert min(confidences[: len(EVERYDAY)]) > 0.7
    assert max(confidences[len(EVERYDAY) :]) < 0.3
    assert [each.is_reliable for each in translations] == [True] * len(EVERYDAY) + [False] * len(OUT_OF_DOMAIN)


def test_a_line_in_parts_has_the_smallest_confidence_of_its_parts(bundled, monkeypatch):
    sentences = [EVERYDAY[0], *OUT_OF_DOMAIN[:2], EVERYDAY[1]]
    separate = [best.confidence for (best,) in bundled.translate(sentences)]
    monkeypatch.setattr("regard.pipelines.translator.MAX_SOURCE_TOKENS", 8)  # no two of them fit
    ((line,),) = bundled.translate([" ".join(sentences)])
    assert line.confidence == pytest.approx(min(separate), abs=1e-5)
    assert line.is_reliable is False


def test_the_length_penalty_does_not_change_the_confidence_of_a_translation(bundled):
    plain, other = (bundled.translate([EVERYDAY[0]], length_penalty=penalty)[0][0] for penalty in (1, 0))
    assert other.text == plain.text
    assert other.score != plain.score
    assert other.confidence == pytest.approx(plain.confidence, abs=1e-5)


def test_each_of_several_translations_has_its_own(bundled):
    confidences = [each.confidence for each in bundled.translate([EVERYDAY[1]], nbest=3)[0]]
    assert confidences == sorted(confidences, reverse=True)
    assert len(set(confidences)) == 3


def test_sampled_and_empty_translations_have_none(bundled):
    (sampled,), (empty,) = bundled.translate(["Hello."], sampling=SamplingParams(seed=1))[0], bundled.translate([""])[0]
    for translation in (sampled, empty):
        assert (translation.confidence, translation.is_reliable) == (None, None)


def test_it_is_read_from_the_folder(tmp_path):
    confidence = ConfidenceModel(intercept=1.0, log_prob_weight=2.0, length_weight=-0.5, threshold=0.25)
    assert ConfidenceModel.load(tmp_path) is None
    confidence.save(tmp_path)
    assert ConfidenceModel.load(tmp_path) == confidence
    assert confidence(-3.0, 2) == pytest.approx(1 / (1 + math.exp(3)))
    assert confidence(-1e6, 2) == pytest.approx(0)


NAN = '{"intercept": NaN, "log_prob_weight": 1, "length_weight": 0, "threshold": 0.5}'


@pytest.mark.parametrize("text", ["", "[]", '{"intercept": 1}', '{"intercept": null, "log_prob_weight": 1}', "1", NAN])
def test_a_damaged_file_is_reported(tmp_path, text):
    (tmp_path / CONFIDENCE_FILE).write_text(text)
    reasons = r"not valid JSON|expected a JSON object, got|(.|\n)*(intercept|threshold): expected a "
    with pytest.raises(InvalidFile, match=rf"confidence\.json: ({reasons})"):
        ConfidenceModel.load(tmp_path)
