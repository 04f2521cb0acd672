"""Generated text, at once and streamed, sampled and searched, equals that of transformers."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.char_model import LINE, trained_writer
from helpers.sentencepiece_models import ENGLISH, write_llama
from helpers.transformers_models import gpt2, llama
from regard.errors import InvalidArgument, InvalidFile, InvalidType, RegardError
from regard.generation import SamplingParams
from regard.models import GPT, GPTConfig, Transformer, TransformerConfig, save_model
from regard.pipelines import TextGenerator
from regard.text.tokenizer import train_bpe, train_char, train_translation_bpe

PROMPTS = ["the cat", "where is the", "", "a cat is a cat Ω"]


@pytest.fixture(scope="module")
def writer() -> TextGenerator:
    tokenizer = train_bpe(ENGLISH, 280)
    torch.manual_seed(0)
    config = GPTConfig(tokenizer.vocab_size, d_model=32, num_heads=4, num_layers=2, d_ff=48, max_seq_len=40,
                       bos_id=tokenizer.bos_id, eos_ids=(tokenizer.eos_id,))  # fmt: skip
    model = GPT(config)
    torch.nn.init.normal_(model.token_embedding.weight, std=0.5)
    return TextGenerator(model, tokenizer)


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("beam", [1, 3])
def test_texts_equal_those_of_transformers(tmp_path, make, beam):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if make is gpt2:
        tokenizer = train_bpe(ENGLISH, 280)
        words = tokenizer.vocab_size
        tokenizer.save(tmp_path)
    else:
        words = write_llama(tmp_path)
    model = make(vocab_size=words, bos_token_id=1, eos_token_id=2)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(3)
        if make is llama:  # of loose bytes transformers makes other text than SentencePiece
            model.lm_head.weight[:259] = 0
    model.save_pretrained(tmp_path)
    prompts = [prompt for prompt in PROMPTS if prompt]
    actual = TextGenerator.load(tmp_path, dtype=torch.float32).generate(prompts, max_new_tokens=12, beam=beam)
    reference, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for prompt, text in zip(prompts, actual, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        ids = ids[:, :-1] if ids[0, -1] == 2 else ids  # the vocabulary of this library ends texts
        options = {"max_new_tokens": 12, "num_beams": beam, "early_stopping": False, "pad_token_id": 0}
        full = reference.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **options)[0]
        before, after = (tokenizer.decode(each, skip_special_tokens=True) for each in (ids[0], full))
        assert text == after[len(before) :]


def test_generation_config_may_define_eos(tmp_path):
    from transformers import AutoModelForCausalLM, GenerationConfig

    tokenizer = train_bpe(ENGLISH, 280)
    tokenizer.save(tmp_path)
    model = llama(vocab_size=280, bos_token_id=1, eos_token_id=2)
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    (prompt,) = tokenizer.encode_prompts(["the cat"])
    generator = TextGenerator.load(tmp_path, dtype=torch.float32)

    def written(model):
        options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        return model.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()

    full = written(model)
    assert len(full) == 12
    end = next(word for word in full[3:] if word not in full[:3])
    GenerationConfig(eos_token_id=[2, end]).save_pretrained(tmp_path)
    cut = written(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert len(cut) < 12
    assert TextGenerator.load(tmp_path).model.config.eos_ids == (2, end)
    actual = TextGenerator.load(tmp_path, dtype=torch.float32).generate(["the cat"], max_new_tokens=12)
    assert actual == [generator._decode([*prompt, *cut[:-1]])[len(generator._decode(prompt)) :]]
    (tmp_path / "generation_config.json").write_text("x")
    with pytest.raises(InvalidFile, match=r"generation_config\.json: not valid JSON"):
        TextGenerator.load(tmp_path)


def test_only_predicted_tokens_count(writer):
    tokenizer = train_char([LINE])
    likelihood = trained_writer().likelihood("abc")
    assert (likelihood.num_tokens, likelihood.num_characters) == (3, 3)  # after the BOS token
    tokenizer._backend.post_processor = None
    actual = TextGenerator(trained_writer().model, tokenizer).likelihood("abc")
    assert (actual.num_tokens, actual.num_characters) == (2, 2)
    assert writer.likelihood("Ω").num_characters == 1  # of several bytes


@torch.no_grad()
def test_likelihoods_equal_those_of_transformers(tmp_path):
    """In words of several letters, and in blocks, as the text is longer than the model's positions."""
    tokenizer = train_bpe(ENGLISH, 400)
    reference = gpt2(vocab_size=tokenizer.vocab_size, bos_token_id=1, eos_token_id=2)
    reference.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    text = " ".join(ENGLISH * 6)
    actual = TextGenerator.load(tmp_path, dtype=torch.float32).likelihood(text)
    ids = tokenizer.encode([text], add_special_tokens=True, split_special_tokens=False)[0][
        :-1
    ]  # no EOS, because the text continues
    blocks = [torch.tensor(ids[start : start + 41]) for start in range(0, len(ids) - 1, 40)]
    assert len(blocks) > 2
    log_probs = [
        reference(block[None, :-1]).logits[0].log_softmax(-1)[range(len(block) - 1), block[1:]] for block in blocks
    ]
    nll = -float(torch.cat(log_probs).sum())
    assert (actual.num_tokens, actual.num_characters) == (len(ids) - 1, len(text))
    assert actual.num_tokens < actual.num_characters / 1.5
    assert actual.nll == pytest.approx(nll, rel=1e-5)
    assert actual.perplexity == pytest.approx(math.exp(nll / (len(ids) - 1)), rel=1e-5)
    assert actual.bits_per_character == pytest.approx(nll / math.log(2) / len(text), rel=1e-5)


def test_a_stream_gives_a_piece_before_the_next_is_computed(writer):
    passes = []
    hook = writer.model.decoder.layers[0].register_forward_hook(lambda *_: passes.append(1))
    stream = writer.stream("the cat", max_new_tokens=30)
    counts = [len(passes) for _ in stream]
    hook.remove()
    assert counts == sorted(set(counts))
    assert counts[0] < 5 < 20 < len(passes)


@pytest.mark.parametrize(
    "sampling", [None, SamplingParams(seed=1), SamplingParams(temperature=2.0, top_k=20, top_p=0.9, seed=2)]
)
def test_the_pieces_of_a_stream_are_the_text(writer, sampling):
    for prompt in PROMPTS:
        pieces = list(writer.stream(prompt, max_new_tokens=30, sampling=sampling))
        assert "".join(pieces) == writer.generate([prompt], max_new_tokens=30, sampling=sampling)[0]
        assert all(pieces)


def test_a_trained_model_writes_its_line_by_characters():
    writer = trained_writer()
    assert list(writer.stream("xyz", max_new_tokens=6)) == list(" .\nabc")
    assert writer.generate(["fgh", "a"], max_new_tokens=5) == ["ijklm", "bcdef"]
    assert "defghij" in "".join(writer.stream("", max_new_tokens=50))


def test_a_stream_leaves_the_callers_mode_alone(writer):
    for _ in writer.stream("the cat", max_new_tokens=3):
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()


def test_eos_ends_a_text(writer):
    with torch.no_grad():
        before = writer.model.decoder.norm.bias.clone()
        writer.model.decoder.norm.bias.copy_(writer.model.token_embedding.weight[2] * 9)
        assert writer.generate(["the cat"]) == [""]
        assert list(writer.stream("the cat")) == []
        assert writer.generate(["the cat"], min_new_tokens=3, max_new_tokens=5) != [""]
        writer.model.decoder.norm.bias.copy_(before)


def test_a_batch_gets_what_each_prompt_gets_alone(writer):
    together = writer.generate(PROMPTS, max_new_tokens=10)
    assert together == [writer.generate([prompt], max_new_tokens=10)[0] for prompt in PROMPTS]


def test_a_recording_has_the_tokens_that_were_read(writer):
    recording = writer.record("the cat sat")
    assert [layer.name for layer in recording.layers] == ["decoder.0", "decoder.1"]
    layer = recording.layers[0]
    assert layer.key_tokens == layer.query_tokens
    assert layer.weights.dense()[0].tril().sum() == pytest.approx(layer.weights.shape[1] * layer.weights.shape[2])


def test_the_last_token_was_read_if_eos_followed():
    tokenizer = train_bpe(ENGLISH, 280)
    ids = {"bos_id": tokenizer.bos_id, "eos_ids": (tokenizer.eos_id,)}
    model = GPT(GPTConfig(tokenizer.vocab_size, d_model=32, num_heads=4, num_layers=1, d_ff=48, **ids))
    with torch.no_grad():  # which ends every text
        model.decoder.norm.bias.copy_(10 * model.token_embedding.weight[tokenizer.eos_id].sign())
    ends = TextGenerator(model, tokenizer)
    (read,) = ends.encode_prompts(["the cat"])
    layer = ends.record("the cat", max_new_tokens=3).layers[0]
    assert layer.query_tokens == layer.key_tokens == tuple(tokenizer.convert_ids_to_tokens(read))
    assert len(ends.record("", max_new_tokens=3).layers[0].query_tokens) == 1


def test_invalid_arguments_are_refused(writer, tmp_path):
    with pytest.raises(InvalidType, match="prompts: expected a sequence of str, got str; pass a list"):
        writer.generate("the cat")
    with pytest.raises(InvalidType, match=r"prompts\[1\]: expected a str, got int"):
        writer.generate(["the cat", 5])
    with pytest.raises(InvalidArgument, match=r"prompts\[0\]: expected at most 39 tokens, got 4\d; shorten it"):
        writer.generate(["Ω" * 20])
    with pytest.raises(InvalidArgument, match="beam: expected 1 with sampling, got 2"):
        writer.generate(["x"], beam=2, sampling=SamplingParams())
    with pytest.raises(InvalidArgument, match=r"expected a tokenizer with at most 9 tokens as in the model, got 280"):
        TextGenerator(GPT(GPTConfig(9, d_model=8, num_heads=2, num_layers=1, d_ff=8)), writer.tokenizer)
    with pytest.raises(InvalidType, match="sampling: expected a SamplingParams or None, got int"):
        writer.generate(["x"], sampling=5)
    with pytest.raises(InvalidType, match=r"max_new_tokens: expected an int of at least 1, got 2\.5"):
        writer.generate(["x"], max_new_tokens=2.5)
    with pytest.raises(InvalidType, match="text: expected a str, got NoneType"):
        writer.likelihood(None)
    for options in ({"beam": True}, {"beam": "4"}, {"length_penalty": "x"}, {"min_new_tokens": "x"}):
        with pytest.raises(InvalidType, match=f"{next(iter(options))}: expected"):
            writer.generate([], **options)
    with pytest.raises(InvalidArgument, match=r"length_penalty: expected 1 with sampling, got 2\.0"):
        writer.generate(["x"], length_penalty=2.0, sampling=SamplingParams())
    with pytest.raises(InvalidType, match="prompt: expected a str, got int"):
        writer.stream(5)
    (ids,) = writer.encode_prompts(["the cat"])
    longest = 41 - len(ids)
    writer.record("the cat", max_new_tokens=longest)
    with pytest.raises(InvalidArgument, match=f"max_new_tokens: expected an int .* below {longest + 1}, got 100"):
        writer.record("the cat", max_new_tokens=100)
    with pytest.raises(InvalidType, match=r"seed: expected an int .*, got 'a'"):
        writer.record_repeated_tokens(seed="a")
    for length, words in (("x", "an int of at least 1, got 'x'"), (-3, "an int of at least 1, got -3")):
        with pytest.raises(RegardError, match=f"length: expected {words}"):
            writer.record_repeated_tokens(length)
    nothing = GPT(GPTConfig(280, d_model=8, num_heads=2, num_layers=1, d_ff=8))
    tokenizer = train_char(["abc"])
    tokenizer._backend.post_processor = None
    with pytest.raises(InvalidArgument, match=r"prompts\[0\]: expected a text, got an empty one"):
        TextGenerator(nothing, tokenizer).generate([""])
    own = train_translation_bpe(ENGLISH, 280)
    save_model(tmp_path / "other", Transformer(TransformerConfig(280, d_model=8, num_heads=2, d_ff=8)), own)
    with pytest.raises(InvalidFile, match="folder: expected a GPT, got an encoder-decoder in "):
        TextGenerator.load(tmp_path / "other")
