"""In the context of regard.jobs.word_timestamps, Whisper finds transformers' times without eager attention."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    BertConfig,
    BertModel,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
    pipeline,
)
from transformers.models.whisper import modeling_whisper

from regard.errors import InvalidArgument, InvalidType
from regard.jobs import word_timestamps
from regard.ops import WeightMatrix

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__ must accept")  # of torch's tensors, by transformers

FRAMES = 100


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=1700,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        num_mel_bins=8,
        max_source_positions=FRAMES // 2,
        max_target_positions=40,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        init_std=0.3,
    )
    model = WhisperForConditionalGeneration(config).eval()
    settings = model.generation_config
    settings.alignment_heads = [[0, 1], [1, 0], [1, 3]]
    settings.no_timestamps_token_id, settings.suppress_tokens, settings.begin_suppress_tokens = 150, None, None
    return model


CALLS = {
    "greedy": {"max_new_tokens": 12},
    "beams": {"max_new_tokens": 12, "num_beams": 3},
    "long audio": {"max_new_tokens": 12, "return_timestamps": True, "return_segments": True},
    "temperatures": {
        "max_new_tokens": 12,
        "return_timestamps": True,
        "temperature": (0.0, 0.4),
        "logprob_threshold": 0.0,
    },
}


def times(model, call):
    """The times of each token that `generate` finds; 250 frames are long audio, of three segments."""
    frames = 250 if "return_timestamps" in call else FRAMES
    torch.manual_seed(1)
    features, mask = torch.randn(2, 8, frames), torch.ones(2, frames).long()
    mask[1, frames - 30 :] = 0
    output = model.generate(features, attention_mask=mask, return_token_timestamps=True, **call)
    if "segments" in output:
        return [segment["token_timestamps"] for audio in output["segments"] for segment in audio]
    return list(output["token_timestamps"])


@pytest.mark.parametrize("name", CALLS)
def test_times_are_those_of_transformers(model, name, monkeypatch):
    expected = times(deepcopy(model), CALLS[name])
    assert len(torch.cat(expected).unique()) >= 5
    monkeypatch.setattr(modeling_whisper, "eager_attention_forward", lambda *_: pytest.fail("eager attention ran"))
    with word_timestamps(model):
        actual = times(model, CALLS[name])
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)


def test_words_of_the_pipeline_are_those_of_transformers(model):
    """With a tokenizer whose words are bytes."""
    tokenizer = WhisperTokenizer(vocab={byte: i for i, byte in enumerate(sorted(ByteLevel.alphabet()))}, merges=[])
    names = ["startoftranscript", "en", "translate", "transcribe", "startoflm", "startofprev", "nospeech"]
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in [*names, "notimestamps"]]})
    tokenizer.add_tokens([f"<|{0.02 * step:.2f}|>" for step in range(FRAMES // 2 + 1)])
    model.generation_config.no_timestamps_token_id = tokenizer.convert_tokens_to_ids("<|notimestamps|>")
    audio = torch.randn(16000, generator=torch.Generator().manual_seed(0)).numpy()

    def words(model):
        extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=1)
        recognizer = pipeline("automatic-speech-recognition", model, tokenizer=tokenizer, feature_extractor=extractor)
        return recognizer(audio.copy(), return_timestamps="word", generate_kwargs={"max_new_tokens": 20})

    expected = words(deepcopy(model))
    with word_timestamps(model):
        actual = words(model)
    assert actual == expected
    assert len({chunk["timestamp"] for chunk in expected["chunks"]}) >= 2


def test_only_the_alignment_heads_are_computed(model, monkeypatch):
    computed, dense = [], WeightMatrix.dense
    monkeypatch.setattr(WeightMatrix, "dense", lambda self: computed.append(self.shape) or dense(self))
    with word_timestamps(model):
        times(model, CALLS["greedy"])
    assert computed == [(2, 1, 13, FRAMES // 2)] * 3  # a prompt of two tokens, and all but the last of the others


def test_the_model_is_what_it_was_before(model):
    config, inner = model.config, model.model.config
    with pytest.raises(ValueError, match="max_new_tokens"), word_timestamps(model):
        times(model, {"max_new_tokens": 100})
    assert (model.config, model.model.config) == (config, inner)
    assert model.config is model.model.config
    assert {module.config._attn_implementation for module in model.modules() if hasattr(module, "config")} == {"sdpa"}


def test_a_context_within_another_changes_nothing(model):
    with word_timestamps(model):
        with word_timestamps(model):
            one = times(model, CALLS["greedy"])
        other = times(model, CALLS["greedy"])
    assert all(map(torch.equal, one, other))
    assert model.config._attn_implementation == "sdpa"


def test_other_heads_must_be_set_before(model):
    model.generation_config.alignment_heads = [[0, 1]]
    with word_timestamps(model):
        model.generation_config.alignment_heads = [[1, 0]]
        with pytest.raises(InvalidArgument, match=r"alignment_heads: expected those of model\.generation_config when "):
            times(model, CALLS["greedy"])


def test_another_model_is_refused():
    bert = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9))
    with (
        pytest.raises(InvalidType, match="model: expected a WhisperForConditionalGeneration, got BertModel"),
        word_timestamps(bert),
    ):
        pass
