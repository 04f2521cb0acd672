"""Watched generations: the same tokens, and one matrix of all steps."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.model_zoo.families import FAMILIES, LENGTH, attentions, built, eager, padding, sound
from regard.errors import InvalidArgument

transformers = pytest.importorskip("transformers")
WRITERS = [name for name, family in FAMILIES.items() if family.writes]
NEW = 9
CASES = [
    (name, side, how)
    for name in WRITERS
    for side in ("none", "left")
    for how in ("greedy", "sampled", *(["static"] * (not FAMILIES[name].both)))
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "side", "how"), CASES)
def test_generated_tokens_are_unchanged_and_all_steps_are_one_matrix(name, side, how):
    family, model = FAMILIES[name], built(name)
    torch.manual_seed(1)
    ids, mask = torch.randint(3, 90, (2, LENGTH)), padding(side)
    options = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": NEW, "do_sample": how == "sampled"}
    options |= {"cache_implementation": "static"} if how == "static" else {}
    torch.manual_seed(3)
    expected = model.generate(**options)
    torch.manual_seed(3)
    with regard.watch(model, ["entropy", "received"]) as result:
        actual = model.generate(**options)
    assert torch.equal(actual, expected)
    assert len(result.recordings) == 1
    with torch.no_grad():
        if family.both:
            output = eager(model)(
                input_ids=ids, attention_mask=mask, decoder_input_ids=actual[:, :-1], output_attentions=True
            )
        else:
            read = torch.cat([mask, torch.ones(2, NEW - 1, dtype=mask.dtype)], 1)
            positions = (read.cumsum(1) - 1).clamp(min=0)
            output = eager(model)(
                input_ids=actual[:, :-1], attention_mask=read, position_ids=positions, output_attentions=True
            )
    for layer, reference in zip(result.layers, attentions(output), strict=True):
        weights = layer.weights.dense()
        reference = reference * (weights.sum(-1, keepdim=True) > 0)
        torch.testing.assert_close(weights, reference, atol=1e-5, rtol=0)
        torch.testing.assert_close(layer.measured["entropy"], layer.weights.entropy(), atol=1e-5, rtol=1e-5)
        real = None if layer.weights.valid_queries is None else layer.weights.valid_queries[:, None]
        received = layer.measured["received"]
        torch.testing.assert_close(
            received[:, :, : reference.shape[3]], layer.weights.received(real), atol=1e-5, rtol=1e-5
        )
        assert not received[:, :, reference.shape[3] :].any()  # a static cache is padded at the end


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("side", ["none", "left"])
@pytest.mark.parametrize("name", ["gpt2", "mistral", "t5", "bart"])
def test_selected_beams_are_one_matrix_for_each_text(name, side):
    family, model = FAMILIES[name], built(name)
    torch.manual_seed(1)
    ids, mask = torch.randint(3, 90, (2, LENGTH)), padding(side)
    options = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": NEW, "do_sample": False, "num_beams": 4}
    options |= {"num_return_sequences": 2, "return_dict_in_generate": True, "output_scores": True}
    expected = model.generate(**options)
    with regard.watch(model, ["entropy", "received"]) as result:
        output = model.generate(**options)
    assert torch.equal(output.sequences, expected.sequences)
    with pytest.raises(InvalidArgument, match=r"beam search reordered the batch .* result\.select_beams\("):
        assert result.layers.decoder[-1].weights
    with pytest.raises(
        InvalidArgument, match=r"beam_indices: expected at most 9 steps, .*, got 18; without a KV cache"
    ):
        result.select_beams(output.beam_indices.repeat(1, 2))
    with pytest.raises(InvalidArgument, match=r"beam_indices: expected .* from -1 to 7, got \(4, 9\) from 8 to"):
        result.select_beams(output.beam_indices + 8)
    texts = result.select_beams(output.beam_indices)
    mask, read = mask.repeat_interleave(2, 0), output.sequences[:, :-1]
    with torch.no_grad():
        if family.both:
            inputs = {"input_ids": ids.repeat_interleave(2, 0), "attention_mask": mask, "decoder_input_ids": read}
        else:
            mask = torch.cat([mask, torch.ones(4, NEW - 1, dtype=mask.dtype)], 1)
            inputs = {"input_ids": read, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
        dense = attentions(eager(model)(**inputs, output_attentions=True))
    for layer, reference in zip(texts.layers, dense, strict=True):
        weights = layer.weights.dense()
        reference = reference * (weights.sum(-1, keepdim=True) > 0)
        torch.testing.assert_close(weights, reference, atol=1e-5, rtol=0)
        torch.testing.assert_close(
            layer.measured["entropy"], torch.special.entr(reference).sum(-1), atol=1e-5, rtol=1e-5
        )


def beams(ids, **options):
    """A GPT-2, and the options of a beam search, whose beams are another in each step."""
    torch.manual_seed(5)
    config = transformers.GPT2Config(vocab_size=12, n_embd=32, n_layer=2, n_head=4, initializer_range=0.4)
    model = transformers.GPT2LMHeadModel(config).eval()
    options = {"max_new_tokens": NEW, "do_sample": False, "num_beams": 3, "pad_token_id": 0} | options
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids), "return_dict_in_generate": True} | options


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ends", [[6, 3], [1, 3], [6]], ids=str)
def test_texts_that_all_ended_before_the_search_did(ends):
    """Their beam indices have fewer steps than the model took."""
    ids = torch.randint(6, 12, (2, 5), generator=torch.Generator().manual_seed(0))
    model, options = beams(ids, eos_token_id=ends, early_stopping="never")
    with regard.watch(model, ["entropy"]) as result:
        output = model.generate(**options)
    steps = output.beam_indices.shape[1]
    assert (steps < NEW) == (len(ends) > 1)
    texts = result.select_beams(output.beam_indices)
    with torch.no_grad():
        expected = eager(model)(output.sequences, output_attentions=True).attentions
    for layer, reference in zip(texts.layers, expected, strict=True):
        weights = layer.weights.dense()
        assert weights.shape[2] == 4 + NEW
        for text, indices in enumerate(output.beam_indices):
            read = 4 + int((indices >= 0).sum())  # the last token of a text is not read
            torch.testing.assert_close(
                weights[text, :, :read, :read], reference[text, :, :read, :read], atol=1e-5, rtol=0
            )
            assert not weights[text, :, read:].any()


@pytest.mark.filterwarnings("ignore")
def test_beams_of_a_prompt_in_chunks():
    ids = torch.randint(6, 12, (2, 5), generator=torch.Generator().manual_seed(0))
    model, options = beams(ids, eos_token_id=None, prefill_chunk_size=3)
    with regard.watch(model) as result:
        output = model.generate(**options)
    with torch.no_grad():
        expected = eager(model)(output.sequences[:, :-1], output_attentions=True).attentions
    for layer, reference in zip(result.select_beams(output.beam_indices).layers, expected, strict=True):
        torch.testing.assert_close(layer.weights.dense(), reference, atol=1e-5, rtol=0)
    with regard.watch(model) as result:
        output = model.generate(**options | {"prefill_chunk_size": 2})
    with pytest.raises(InvalidArgument, match=r"beam_indices: .* not known which of the first calls read the prompt"):
        result.select_beams(output.beam_indices)


@pytest.mark.filterwarnings("ignore")
def test_beams_without_a_cache_are_taken_step_by_step():
    ids = torch.randint(6, 12, (2, 5), generator=torch.Generator().manual_seed(0))
    model, options = beams(ids, eos_token_id=None, use_cache=False)
    with regard.watch(model) as result:
        output = model.generate(**options)
    with pytest.raises(InvalidArgument, match=rf"beam_indices: expected at most 1 steps, .*, got {NEW}; without"):
        result.select_beams(output.beam_indices)
    with torch.no_grad():
        expected = eager(model)(output.sequences[:1, :-1], output_attentions=True).attentions
    text = result.recordings[NEW - 1].select(int(output.beam_indices[0, NEW - 1]))
    for layer, reference in zip(text.layers, expected, strict=True):
        torch.testing.assert_close(layer.weights.dense(), reference, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("memory", [True, False])
def test_each_step_of_xlnet_is_a_recording(memory):
    """It reads the last two tokens again in each step, and they may attend to the next one: steps are no rows."""
    torch.manual_seed(0)
    config = transformers.XLNetConfig(vocab_size=60, d_model=32, n_layer=2, n_head=4, d_inner=32)
    model, ids, expected = transformers.XLNetLMHeadModel(config).eval(), torch.randint(4, 60, (2, 6)), []
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "pad_token_id": 5, "use_mems": memory}
    forward = model.forward

    def with_attentions(*args, **kwargs):
        output = forward(*args, **kwargs | {"output_attentions": True})
        expected.append([stream for layer in output.attentions for stream in layer])
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", with_attentions)
        tokens = model.generate(ids, **options)
    with regard.watch(model) as result:
        assert torch.equal(model.generate(ids, **options), tokens)
    assert len(result.recordings) == len(expected) == 4
    for recording, step in zip(result.recordings, expected, strict=True):
        for layer, reference in zip(recording.layers, step, strict=True):
            torch.testing.assert_close(layer.weights.dense(), reference, atol=1e-6, rtol=0)


def test_a_generation_is_saved_and_opened_again_without_its_model(tmp_path):
    model = built("mistral")
    ids, mask = torch.randint(3, 90, (2, LENGTH)), padding("left")
    with regard.watch(model, ["entropy", "received"]) as result:
        model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)
    with pytest.raises(InvalidArgument, match="sequence: expected an index from 0 to 1, because there are 2"):
        result.recording.select().save(tmp_path / "a.regard")
    tokens = [f"token {number}" for number in range(LENGTH + NEW - 1)]
    with pytest.raises(InvalidArgument, match=r"tokens: expected 19 tokens for .*self_attn, got 18"):
        result.recording.select(1, tokens=tokens[1:]).save(tmp_path / "a.regard")
    assert list(tmp_path.iterdir()) == []
    result.recording.select(1, tokens=tokens).save(tmp_path / "a.regard")
    loaded = regard.load(tmp_path / "a.regard")
    assert loaded.model_name == "MistralForCausalLM"
    for layer, expected in zip(loaded.layers.decoder, result.layers.decoder, strict=True):
        assert list(layer.key_tokens) == tokens
        torch.testing.assert_close(layer.weights.dense(), expected.weights.dense()[1:])
        assert torch.equal(layer.measured["received"], expected.measured["received"][1:])


def test_measures_of_whole_matrices_are_refused_in_a_generation():
    model, ids = built("gpt2"), torch.randint(3, 90, (1, LENGTH))
    result = regard.watch(model, regard.BlockMean(4))
    message = "measure 'block_mean': needs the whole matrix, but transformer.h.0.attn is computed in several calls"
    with pytest.raises(InvalidArgument, match=message), result:
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False)


def test_whispers_alignment_heads_give_tokens_by_frames():
    """The weights from which Whisper computes time stamps: (tokens, frames) of chosen heads."""
    model, inputs = built("whisper"), sound()
    words = inputs["decoder_input_ids"]
    layers = ["model.decoder.layers.0.encoder_attn", "model.decoder.layers.1.encoder_attn"]
    with regard.watch(model) as result, torch.no_grad():
        model(**inputs)
    reference = eager(model)(**inputs, output_attentions=True).cross_attentions
    recording = result.recording.select(1, target_tokens=words[1].tolist())
    alignment = regard.analysis.align(recording, {layers[0]: [2], layers[1]: [0, 3]}, merge_subwords=False)
    expected = torch.stack([reference[0][1, 2], reference[1][1, 0], reference[1][1, 3]]).mean(0)
    assert torch.allclose(alignment.weights, expected, atol=1e-5)
    assert alignment.target == tuple(map(str, words[1].tolist()))
    assert alignment.weights.shape == (words.shape[1], 15)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_cross_attention_is_the_same_with_and_without_other_layers(name):
    family, model = FAMILIES[name], built(name)
    torch.manual_seed(2)
    ids, mask = torch.randint(3, 90, (2, LENGTH)), padding("left")
    options = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": NEW, "do_sample": False, "num_beams": 1}
    with regard.watch(model, ["received"]) as result:
        model.generate(**options)
    expected = result.layers.cross
    with regard.watch(model, ["received"], layers=[layer.name for layer in expected]) as alone:
        model.generate(**options)
    assert len(alone.recordings) == 1
    for layer, other in zip(alone.layers, expected, strict=True):
        assert torch.equal(layer.weights.dense(), other.weights.dense())
        assert torch.equal(layer.measured["received"], other.measured["received"])
    # teacher forcing: the padding of the decoder's queries comes from its self-attention, which is not recorded
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids.flip(0)}
    inputs["decoder_attention_mask"] = padding("right")
    with regard.watch(model, ["received"], layers=[layer.name for layer in expected]) as alone, torch.no_grad():
        model(**inputs)
    counts = inputs["decoder_attention_mask"].sum(1)
    for layer in alone.layers:
        torch.testing.assert_close(layer.measured["received"].sum(-1), counts[:, None].expand(-1, 4).float())
    assert family.both


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_knockout_of_cross_attention_affects_one_step(name):
    model = built(name)
    torch.manual_seed(3)
    options = {"input_ids": torch.randint(3, 90, (1, LENGTH)), "max_new_tokens": NEW, "do_sample": False}
    with regard.watch(model) as result:
        model.generate(**options)
    layer = result.layers.cross[0].name
    with regard.watch(model, knockout={layer: [(2, 1)]}) as result:
        model.generate(**options)
    weights = result.layers[layer].weights.dense()
    assert (weights == 0).nonzero()[:, 2:].unique(dim=0).tolist() == [[2, 1]]
