"""regard.jobs.EvictingCache keeps the keys of a dense reference; the model attends to these keys alone."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    BartConfig,
    BartForCausalLM,
    BloomConfig,
    BloomForCausalLM,
    DynamicCache,
    MarianConfig,
    MarianMTModel,
    MistralConfig,
)

import regard.transformers
from helpers.dense_eviction import HEADS, KV_HEADS, NEW, PROMPT, SHARED, make, read, reference, tokens
from regard.errors import InvalidArgument, InvalidType
from regard.jobs import EvictingCache

BUDGETS = {
    "keys": (10, lambda layer, length: [10] * KV_HEADS),
    "share": (0.5, lambda layer, length: [round(length / 2)] * KV_HEADS),
    "layers": ([7, 0.6], lambda layer, length: [[7, round(0.6 * length)][layer]] * KV_HEADS),
    "heads": ([[6, 11], [9, 4]], lambda layer, length: [[6, 11], [9, 4]][layer]),
}
POLICIES = ("h2o", "snapkv", "tova")


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(
    ("policy", "name"),
    [(policy, name) for policy in POLICIES for name in BUDGETS if (policy, name) != ("tova", "heads")],
)
def test_keys_and_logits_are_those_of_dense_attention(policy, name, padding):
    """After the prompt and each token; with shared key heads and rotary embeddings."""
    model, (ids, mask) = make(), tokens(padding=padding)
    budget, counts = BUDGETS[name]
    window = 4 if policy == "snapkv" else None
    expected, expected_kept = reference(model, ids, mask, policy, counts, window)
    logits, kept = read(model, EvictingCache(model, policy, budget, window=window), ids, mask)
    torch.testing.assert_close(logits[mask.bool()], expected[mask.bool()], atol=1e-4, rtol=1e-4)
    for ours, theirs in zip(kept, expected_kept, strict=True):
        for positions, alive in zip(ours, theirs, strict=True):
            for row in range(2):
                real = {place for place in range(alive.shape[2]) if mask[row, place]}
                for head in range(KV_HEADS):
                    assert set(positions[row, head].tolist()) & real == set(alive[row, head].nonzero()[:, 0].tolist())
    assert kept[0][0].shape[2] == max(counts(0, PROMPT))
    if policy != "snapkv":
        assert kept[-1][0].shape[2] == max(counts(0, PROMPT + NEW))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_in_chunks(policy):
    """With padding in front of the second one, except for SnapKV, which pools over neighbors."""
    model, (ids, mask) = make(), tokens()
    mask[0, 9:12] = int(policy == "snapkv")
    chunks, window = (9, 7, 4), 3 if policy == "snapkv" else None
    expected, _ = reference(model, ids, mask, policy, lambda layer, length: [6] * KV_HEADS, window, chunks)
    logits, _ = read(model, EvictingCache(model, policy, 6, window=window), ids, mask, chunks)
    torch.testing.assert_close(logits[mask.bool()], expected[mask.bool()], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("implementation", ["eager", "regard"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_attention_implementation_gives_the_same(policy, implementation):
    ids, mask = tokens(padding=True)
    results = []
    for each in ("sdpa", implementation):
        model = make(implementation=each)
        budget = [6, 11] if policy == "tova" else [[6, 11], [9, 4]]
        results.append(read(model, EvictingCache(model, policy, budget), ids, mask, (12, 8)))
    (one, kept), (other, other_kept) = results
    torch.testing.assert_close(one[mask.bool()], other[mask.bool()], atol=1e-4, rtol=1e-4)
    assert all(map(torch.equal, tree_leaves(kept), tree_leaves(other_kept)))


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "gpt_oss"])
def test_scores_of_other_models_are_those_of_eager_attention(name):
    """With learned positions; with soft-capped scores; with sinks."""
    model, (ids, _) = make(name, "eager"), tokens(length=PROMPT)
    with torch.no_grad():
        attentions = model(ids, output_attentions=True).attentions
    cache = EvictingCache(model, "h2o", 8)
    read(model, cache, ids)
    for layer, weights in zip(cache.layers, attentions, strict=True):
        kv_heads = layer.keys.shape[1]
        received = weights.sum(2).unflatten(1, (kv_heads, -1)).sum(2)
        older = received[..., : PROMPT - 4].topk(4).indices.sort().values
        recent = torch.arange(PROMPT - 4, PROMPT).expand(2, kv_heads, -1)
        assert torch.equal(layer.positions, torch.cat([older, recent], 2))


def test_queries_that_are_padding_do_not_count():
    """As between the prompts of a conversation."""
    model, (ids, mask) = make(implementation="eager"), tokens(length=PROMPT)
    mask[0, 9:12] = 0
    cache = EvictingCache(model, "h2o", 1.0)
    with torch.no_grad():
        model(ids, attention_mask=mask, past_key_values=cache)
        attentions = model(ids, attention_mask=mask, output_attentions=True).attentions
    for layer, weights in zip(cache.layers, attentions, strict=True):
        received = (weights * mask[:, None, :, None]).sum(2).unflatten(1, (KV_HEADS, -1)).sum(2)
        torch.testing.assert_close(layer.received, received)


CALLS = {
    "greedy": {"do_sample": False},
    "beams": {"num_beams": 3, "do_sample": False},
    "sampling": {"do_sample": True, "num_return_sequences": 2},
    "chunks": {"do_sample": False, "prefill_chunk_size": 7},
}


def generate(model, cache, call, padding=True):
    ids, mask = tokens(padding=padding, length=PROMPT)
    torch.manual_seed(2)
    return model.generate(
        ids,
        attention_mask=mask,
        past_key_values=cache,
        max_new_tokens=6,
        return_dict_in_generate=True,
        output_logits=True,
        **call,
    )


@pytest.mark.parametrize(
    ("name", "call"),
    [*[("llama", call) for call in CALLS], ("gpt2", "greedy"), ("gpt2", "chunks"), ("gemma3", "beams")],
)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_budget_of_all_keys_changes_no_bit(policy, name, call):
    model = make(name)
    model = model.bfloat16() if call == "sampling" else model
    expected = generate(model, DynamicCache(config=model.config), CALLS[call])
    actual = generate(model, EvictingCache(model, policy, 1.0), CALLS[call])
    assert torch.equal(actual.sequences, expected.sequences)
    assert all(map(torch.equal, actual.logits, expected.logits))


def test_a_large_number_of_keys_changes_no_bit():
    model = make()
    expected, actual = (generate(model, cache, {}, False).logits for cache in (None, EvictingCache(model, "h2o", 1000)))
    assert all(map(torch.equal, actual, expected))


@pytest.mark.parametrize("call", ["greedy", "beams"])
@pytest.mark.parametrize("policy", POLICIES)
def test_generated_tokens_follow_from_the_keys_that_are_left(policy, call):
    """The logits of `generate`, also of beams that change places, are those of passes over the same tokens."""
    model = make()
    output = generate(model, EvictingCache(model, policy, 8), CALLS[call], padding=False)
    assert output.sequences.shape[1] > PROMPT + 2
    for row, sequence in enumerate(output.sequences):
        logits, _ = read(model, EvictingCache(model, policy, 8), sequence[None])
        steps = range(PROMPT - 1, sequence.shape[0] - 1)
        if call == "greedy":
            actual = torch.stack([each[row] for each in output.logits])
        else:
            beams = output.beam_indices[row, : len(steps)]
            actual = torch.stack([each[beam] for each, beam in zip(output.logits, beams.tolist(), strict=False)])
        torch.testing.assert_close(actual, logits[0, steps.start : steps.stop], atol=1e-4, rtol=1e-4)


def test_a_conversation_continues_with_the_same_cache_or_a_copy():
    model, (ids, _) = make(), tokens(batch=1, length=PROMPT)
    cache = EvictingCache(model, "h2o", 8)
    one = model.generate(ids, past_key_values=cache, max_new_tokens=4, do_sample=False, eos_token_id=None)
    copy = deepcopy(cache)
    more = torch.cat([one, ids[:, :5]], 1)
    outputs = [
        model.generate(more, past_key_values=each, max_new_tokens=4, do_sample=False, eos_token_id=None)
        for each in (cache, copy)
    ]
    assert torch.equal(*outputs)
    expected, _ = read(model, EvictingCache(model, "h2o", 8), outputs[0], chunks=(PROMPT, 1, 1, 1, 6))
    assert torch.equal(outputs[0][0, -4:], expected[0].argmax(-1)[-5:-1])
    assert cache.get_seq_length() == outputs[0].shape[1] - 1
    assert cache.layers[0].keys.shape[2] == 8
    cache.reset()
    again = model.generate(ids, past_key_values=cache, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert torch.equal(again, one)


def test_sequences_can_be_selected_and_repeated():
    model, (ids, _) = make(), tokens()
    caches = [EvictingCache(model, "h2o", 8) for _ in range(2)]
    for cache in caches:
        read(model, cache, ids[:, :PROMPT])
    caches[0].batch_select_indices(torch.tensor([1]))
    caches[0].batch_repeat_interleave(2)
    caches[1].reorder_cache(torch.tensor([1, 1]))
    with torch.no_grad():
        one, other = (model(ids[1:, PROMPT:].repeat(2, 1), past_key_values=cache).logits for cache in caches)
    assert torch.equal(one, other)
    assert torch.equal(caches[0].layers[0].positions, caches[1].layers[0].positions)


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        self.size = max([self.size, *(each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor))])
        return result


@pytest.mark.parametrize("policy", POLICIES)
def test_no_matrix_is_made(policy):
    length = 600
    model, (ids, _) = make(), tokens(batch=1, length=length)
    with Largest() as largest, torch.no_grad():
        model(ids, past_key_values=EvictingCache(model, policy, 50), logits_to_keep=1)
    assert largest.size < length**2 / 2


def test_the_model_is_what_it_was_before():
    model, (ids, _) = make(), tokens(length=PROMPT)
    hooks = model._forward_pre_hooks, model._forward_hooks
    interface = AttentionInterface.get_interface
    caches = [EvictingCache(model, "tova", 5) for _ in range(2)]
    for cache in caches:
        read(model, cache, ids)
    with pytest.raises(IndexError):
        model(torch.full((1, 3), 10**6), past_key_values=EvictingCache(model, "tova", 5))
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    assert "get_interface" not in vars(ALL_ATTENTION_FUNCTIONS)
    assert ALL_ATTENTION_FUNCTIONS.get_interface.__func__ is interface
    del cache, caches
    gc.collect()
    assert not any(hooks)
    assert model.config._attn_implementation == "sdpa"


def test_threads_wait_for_one_another():
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    models, (ids, _) = [make(), make()], tokens(length=PROMPT)
    expected = read(models[0], EvictingCache(models[0], "tova", 5), ids)[0]
    caches = [(model, EvictingCache(model, "tova", 5)) for model in models * 6]  # hooks are added before models run
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(read, *pair, ids) for pair in caches]
    assert all(torch.equal(run.result()[0], expected) for run in runs)
    assert "get_interface" not in vars(ALL_ATTENTION_FUNCTIONS)


def test_a_watch_sees_the_keys_that_are_left():
    model, (ids, _) = make(), tokens(length=PROMPT)
    cache = EvictingCache(model, "snapkv", 8, window=4)
    read(model, cache, ids)
    with regard.watch(model) as result, torch.no_grad():
        model(ids[:, :1], past_key_values=cache)
    assert result.layers[0].weights.shape == (2, HEADS, 1, 9)


@pytest.mark.parametrize("name", ["snapkv", "tova", "h2o"])
def test_keys_are_those_of_kvpress(name):
    """Where it is installed; its observed attention needs eager attention and divides by the queries of each key."""
    presses = pytest.importorskip("kvpress")
    ids, _ = tokens(length=PROMPT)
    eager = make(implementation="eager")
    press = {
        "snapkv": partial(presses.SnapKVPress, window_size=4, kernel_size=5),
        "tova": presses.TOVAPress,
        "h2o": presses.ObservedAttentionPress,
    }[name](compression_ratio=0.5)
    scores = []

    def score(module, args, kwargs, output):  # the hook of kvpress needs arguments that transformers no longer passes
        layer = kwargs["past_key_values"].layers[module.layer_idx]
        scores.append(press.score(module, kwargs["hidden_states"], layer.keys, layer.values, output[1], kwargs))

    for layer in eager.model.layers:
        layer.self_attn.register_forward_hook(score, with_kwargs=True)
    with torch.no_grad():
        eager(ids, past_key_values=DynamicCache())
    model = make()
    cache = EvictingCache(model, name, 0.5, window={"snapkv": 4, "tova": None, "h2o": 1}[name])
    read(model, cache, ids)
    for layer, theirs in zip(cache.layers, scores, strict=True):
        if name == "h2o":  # sums instead of means, and the last key stays
            theirs = theirs * torch.arange(PROMPT, 0, -1)
            theirs[..., -1] = torch.inf
        expected = theirs.topk(PROMPT // 2).indices
        if name == "tova":  # the last key needs not stay
            expected = theirs[..., :-1].topk(PROMPT // 2 - 1).indices
        assert (layer.positions[..., None] == expected[:, :, None]).any(2).all()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"policy": "h20"},
            InvalidArgument,
            "policy: expected one of h2o, snapkv, tova, got 'h20', did you mean 'h2o'",
        ),
        ({"budget": 0}, InvalidArgument, "budget: expected a share above 0 and at most 1, or a number of keys of at "),
        ({"budget": 0.0}, InvalidArgument, r"got 0\.0"),
        ({"budget": 1.5}, InvalidArgument, r"got 1\.5"),
        ({"budget": float("nan")}, InvalidArgument, "got nan"),
        ({"budget": -3}, InvalidArgument, "got -3"),
        ({"budget": "half"}, InvalidType, "budget: .* got 'half'"),
        ({"budget": True}, InvalidType, "got True"),
        ({"budget": None}, InvalidType, "got None"),
        ({"budget": [0.5]}, InvalidArgument, "budget: expected one for each of 2 layers, got 1"),
        ({"budget": [0.5, [1, 2, 3]]}, InvalidArgument, r"budget\[1\]: expected one for each of 2 key heads, got 3"),
        ({"budget": torch.tensor([[0.5, 0.5], [0.5, 2.0]])}, InvalidArgument, r"got 2\.0"),
        ({"window": 0}, InvalidArgument, "window: expected an int of at least 1, or None, got 0"),
        (
            {"policy": "tova", "window": 4},
            InvalidArgument,
            "window: expected None for tova, which keeps no window, got 4",
        ),
        (
            {"policy": "tova", "budget": [0.5, [3, 4]]},
            InvalidArgument,
            r"budget\[1\]: expected one for all key heads, be",
        ),
        ({"kernel_size": 4}, InvalidArgument, "kernel_size: expected an odd number, got 4"),
        ({"kernel_size": 2.0}, InvalidType, r"kernel_size: expected an int of at least 1, got 2\.0"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        EvictingCache(make(), **options)


def test_models_that_cannot_evict_are_refused():
    with pytest.raises(InvalidType, match="model: expected a decoder of transformers, got Linear"):
        EvictingCache(nn.Linear(2, 2))
    small = {"vocab_size": 9, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
    small |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    marian = MarianMTModel(MarianConfig(**small, pad_token_id=0, decoder_start_token_id=0))
    with pytest.raises(InvalidArgument, match="model: expected a decoder without an encoder, got MarianMTModel"):
        EvictingCache(marian)
    bloom = BloomForCausalLM(BloomConfig(hidden_size=8, n_layer=1, n_head=2, vocab_size=9))
    with pytest.raises(
        InvalidArgument, match="model: expected one with transformers' attention interface, got BloomFo"
    ):
        EvictingCache(bloom)
    sliding = AutoModelForCausalLM.from_config(MistralConfig(**SHARED, sliding_window=8))
    with pytest.raises(InvalidArgument, match="model: expected layers of full attention, got MistralForCausalLM"):
        EvictingCache(sliding)
    model, (ids, _) = make(), tokens()
    with pytest.raises(
        InvalidArgument, match="model: expected positions in the keys, as rotary ones, got LlamaAttention"
    ):
        model(ids, past_key_values=EvictingCache(model), position_bias=torch.zeros(1, HEADS, *[ids.shape[1]] * 2))


def test_calls_that_cannot_evict_are_refused_before_the_model_runs():
    model, (ids, mask) = make(), tokens()
    cache = EvictingCache(model, "h2o", 8)
    with pytest.raises(
        InvalidArgument, match="past_key_values: expected a call of the LlamaForCausalLM that this cache"
    ):
        make()(ids, past_key_values=cache)
    with pytest.raises(InvalidArgument, match="got one of another model or of a part of it"):
        model.model(ids, past_key_values=cache)
    cache = EvictingCache(model, "h2o", 8)
    model.register_forward_hook(lambda *_: pytest.fail("the model ran"))
    with pytest.raises(
        InvalidArgument, match=r"attention_mask: expected shape \(batch, tokens\) = \(2, 25\), got \(2, 9\)"
    ):
        model(ids, attention_mask=mask[:, :9], past_key_values=cache)
    with pytest.raises(InvalidArgument, match=r"attention_mask: .* got \(2, 1, 25, 25\)"):
        model(ids, attention_mask=torch.ones(2, 1, 25, 25), past_key_values=cache)
    with pytest.raises(InvalidArgument, match="attention_mask: expected padding on the left, got a sequence that ends"):
        model(ids, attention_mask=tokens(padding=True)[1].flip(1), past_key_values=cache)
    with pytest.raises(InvalidType, match="attention_mask: expected a tensor, got dict"):
        model(ids, attention_mask={"full_attention": mask}, past_key_values=cache)
    with pytest.raises(
        InvalidArgument, match="past_key_values: expected a cache that can be cropped, as assisted gene"
    ):
        model.generate(ids, past_key_values=cache, prompt_lookup_num_tokens=2, max_new_tokens=4)
    model.set_attn_implementation("flex_attention")
    with pytest.raises(
        InvalidArgument, match="model: expected an attention implementation among sdpa, eager, regard, go"
    ):
        model(ids, past_key_values=cache)


def test_a_model_that_does_not_use_the_cache_is_noticed():
    config = BartConfig(d_model=8, decoder_layers=1, decoder_attention_heads=2, vocab_size=9, decoder_ffn_dim=8)
    model = BartForCausalLM(config).eval()
    cache = EvictingCache(model)
    original = model.forward
    model.forward = lambda input_ids, past_key_values: original(input_ids)
    with pytest.raises(
        InvalidArgument, match="model: expected one that attends to the keys that it caches, got BartFor"
    ):
        model(torch.ones(1, 4).long(), past_key_values=cache)
