"""KV caches that a model keeps itself: the joined matrix is that of the forward pass without a cache."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import regard
from regard.errors import InvalidArgument, InvalidType

WIDTH, HEADS, LAYERS, VOCAB, LONGEST = 16, 2, 3, 29, 24


class SelfAttention(nn.Module):
    """Causal self-attention with a cache: tensors that grow, a buffer that is filled, or a window that rolls."""

    def __init__(self, cache="grows", window=None):
        super().__init__()
        self.qkv, self.cache, self.window, self.dtype = nn.Linear(WIDTH, 3 * WIDTH), cache, window, torch.float32
        self.reset()

    def reset(self):
        self.key = self.value = None
        self.start = 0

    def forward(self, x):
        tokens = x.shape[1]
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.cache == "buffer":
            if self.key is None:
                self.key, self.value = (x.new_zeros(len(x), HEADS, LONGEST, WIDTH // HEADS) for _ in range(2))
            place = slice(self.start, self.start + tokens)
            self.key[:, :, place], self.value[:, :, place] = key, value
            key, value = (part[:, :, : self.start + tokens] for part in (self.key, self.value))
        elif self.cache != "none":
            if self.key is not None:
                key, value = torch.cat([self.key, key], 2), torch.cat([self.value, value], 2)
            if self.window is not None:
                key, value = key[:, :, -self.window - tokens + 1 :], value[:, :, -self.window - tokens + 1 :]
            self.key, self.value = key, value
        self.start += tokens
        position = torch.arange(tokens)[:, None] + key.shape[2] - tokens
        near = self.window or LONGEST
        mask = (torch.arange(key.shape[2]) <= position) & (torch.arange(key.shape[2]) > position - near)
        output = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return output.transpose(1, 2).flatten(2)


class Memory(nn.Module):
    """Attention to the source, whatever its name is."""

    def __init__(self):
        super().__init__()
        self.query, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x, source):
        query = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = self.kv(source).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self, name, is_first, **options):
        super().__init__()
        self.attn, self.is_first = SelfAttention(**options), is_first
        self.other = name
        if name:
            self.add_module(name, Memory())

    def forward(self, x, source):
        parts = [lambda x: self.attn(x)]
        if self.other:
            parts.insert(0 if self.is_first else 1, lambda x: self.get_submodule(self.other)(x, source))
        for part in parts:
            x = x + part(functional.layer_norm(x, (WIDTH,)))
        return x


class Decoder(nn.Module):
    def __init__(self, other="", is_first=False, **options):
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.ModuleList(Block(other, is_first, **options) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCAB)
        self.eval()

    @property
    def start(self):
        return self.blocks[0].attn.start

    def reset(self):
        for block in self.blocks:
            block.attn.reset()

    def without_cache(self):
        other = Decoder(self.blocks[0].other, self.blocks[0].is_first, cache="none", window=self.blocks[0].attn.window)
        other.load_state_dict(self.state_dict())
        return other

    def forward(self, ids, source=None):
        x = self.tokens(ids) + self.places(torch.arange(self.start, self.start + ids.shape[1]))
        for block in self.blocks:
            x = block(x, source)
        return self.head(x)


class Calls(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *inputs, **options):
        return self.call(*inputs, **options)


IDS = torch.randint(VOCAB, (2, 12), generator=torch.Generator().manual_seed(1))
SOURCE = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(2))
MEASURES = ["entropy", "received", "mean_distance"]


def run(model, ids, sizes, source=None):
    with torch.no_grad():
        return torch.cat([model(part, source) for part in ids.split(sizes, 1)], 1)


def assert_whole(layers, model, ids, source=None, measured=True):
    """The layers are those of a forward pass without a cache."""
    whole = model.without_cache()
    with regard.watch(whole, MEASURES) as expected, torch.no_grad():
        whole(ids, source)
    assert [layer.name for layer in layers] == [layer.name for layer in expected.layers]
    for layer, other in zip(layers, expected.layers, strict=True):
        torch.testing.assert_close(layer.weights.dense(), other.weights.dense(), atol=1e-5, rtol=1e-5)
        for name in MEASURES if measured and layer.measured else ():
            if name != "mean_distance" or layer.name.endswith("attn"):  # other keys have no common positions
                torch.testing.assert_close(layer.measured[name], other.measured[name], atol=1e-5, rtol=1e-5)


STEPS = {"tokens": [1] * 12, "a prompt": [5] + [1] * 7, "chunks": [4, 3, 1, 4]}


@pytest.mark.parametrize("keep_qk", [True, False])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("cache", ["grows", "buffer"])
def test_steps_are_one_matrix(cache, steps, keep_qk):
    model = Decoder(cache=cache)
    with regard.watch(model, MEASURES, positions="last", keep_qk=keep_qk) as result:
        output = run(model, IDS, STEPS[steps])
    torch.testing.assert_close(output, run(model.without_cache(), IDS, 12), atol=1e-5, rtol=1e-5)
    assert len(result.recordings) == 1
    if keep_qk:
        assert_whole(result.layers, model, IDS)
    whole = model.without_cache()
    with regard.watch(whole, MEASURES) as expected:
        run(whole, IDS, 12)
    for layer, other in zip(result.layers, expected.layers, strict=True):
        for name in MEASURES:
            torch.testing.assert_close(layer.measured[name], other.measured[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", ["last", "named"])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", ["cross_attention", "memory"])
def test_attention_to_a_source_next_to_it(name, steps, is_first, positions):
    model = Decoder(name, is_first)
    hint = "last" if positions == "last" else {f"blocks.{number}.attn": "last" for number in range(LAYERS)}
    with regard.watch(model, MEASURES, positions=hint) as result:
        run(model, IDS, STEPS[steps], SOURCE)
        model.reset()
        run(model, IDS.flip(1), STEPS[steps], SOURCE)
    assert len(result.recordings) == 2
    assert_whole(result.recordings[0].layers, model, IDS, SOURCE)
    assert_whole(result.recordings[1].layers, model, IDS.flip(1), SOURCE)
    assert [layer.kind for layer in result.layers if not layer.name.endswith("attn")] == ["cross"] * LAYERS


def test_chosen_heads_and_layers():
    model = Decoder()
    with regard.watch(model, positions="last", heads=[1], layers=["blocks.0", "blocks.2"]) as result:
        run(model, IDS, STEPS["a prompt"])
    whole = model.without_cache()
    with regard.watch(whole, heads=[1], layers=["blocks.0", "blocks.2"]) as expected:
        run(whole, IDS, 12)
    for layer, other in zip(result.layers, expected.layers, strict=True):
        torch.testing.assert_close(layer.weights.dense(), other.weights.dense(), atol=1e-5, rtol=1e-5)


def test_steps_and_a_source_within_one_forward():
    model, loop = Decoder("cross_attention"), nn.Module()
    loop.decoder = model
    loop.forward = lambda ids: torch.cat([model(part, SOURCE) for part in ids.split([3, 1, 2, 6], 1)], 1)
    with regard.watch(loop, positions={"decoder": "last"}) as result, torch.no_grad():
        loop(IDS)
    whole = model.without_cache()
    with regard.watch(whole) as expected:
        run(whole, IDS, 12, SOURCE)
    assert [layer.name for layer in result.layers] == [f"decoder.{layer.name}" for layer in expected.layers]
    for layer, other in zip(result.layers, expected.layers, strict=True):
        torch.testing.assert_close(layer.weights.dense(), other.weights.dense(), atol=1e-5, rtol=1e-5)


class Watched(nn.Module):
    """A decoder with an encoder of its own that runs at each step."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = SelfAttention(cache="none"), Decoder("memory")

    def forward(self, ids, image):
        self.encoder.reset()
        return self.decoder(ids, self.encoder(image))


@pytest.mark.parametrize("positions", ["last", {"decoder": "last"}])
def test_an_encoder_that_runs_at_each_step(positions):
    model = Watched()
    with regard.watch(model, positions=positions) as result:
        run(model, IDS, STEPS["a prompt"], SOURCE)
    if positions == "last":  # the encoder's call is the first, and continues nothing
        assert len(result.recordings) == 8
        assert [layer.weights.shape[2:] for layer in result.layers][:2] == [(5, 5), (1, 12)]
        return
    assert len(result.recordings) == 1
    own = [layer for layer in result.layers if layer.name.startswith("encoder")]
    assert [layer.name for layer in own] == ["encoder", *(f"encoder#{number}" for number in range(2, 9))]
    assert all(torch.equal(layer.weights.dense(), own[0].weights.dense()) for layer in own)
    whole = model.decoder.without_cache()
    with regard.watch(whole) as expected, torch.no_grad():
        whole(IDS, model.encoder(SOURCE))
    joined = [layer for layer in result.layers if layer.name.startswith("decoder")]
    for layer, other in zip(joined, expected.layers, strict=True):
        torch.testing.assert_close(layer.weights.dense(), other.weights.dense(), atol=1e-5, rtol=1e-5)


def test_the_whole_buffer_with_a_mask_is_a_matrix_for_each_step():
    """Its queries are not the last of its keys."""
    model, query, buffer = Calls(functional.scaled_dot_product_attention), *torch.randn(2, 1, 2, 6, 4).unbind()
    key = torch.zeros(1, 2, 6, 4)
    with regard.watch(model, positions="last") as result, torch.no_grad():
        for step in range(6):
            key[:, :, step] = buffer[:, :, step]
            mask = torch.arange(6) <= step
            model(query[:, :, step : step + 1], key, key, attn_mask=mask[None])
    assert len(result.recordings) == 6
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    expected = (query @ buffer.mT / 2).masked_fill(~causal, -torch.inf).softmax(-1)
    rows = torch.cat([recording.layers[0].weights.dense() for recording in result.recordings], 2)
    torch.testing.assert_close(rows, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("prompt", [1, 4])
@pytest.mark.parametrize("cache", ["grows", "buffer"])
def test_a_cache_that_is_reset_starts_another_recording(cache, prompt):
    model, texts = Decoder(cache=cache), (IDS, IDS.roll(1, 1), IDS)
    with regard.watch(model, positions="last") as result:
        for ids in texts:
            run(model, ids, [prompt] + [1] * (12 - prompt))
            model.reset()
    assert len(result.recordings) == 3
    for recording, ids in zip(result.recordings, texts, strict=True):
        assert_whole(recording.layers, model, ids)


def test_a_text_that_was_begun_before_the_watch_does_not_join_another():
    """Its first layer has the key of the last token in common, which depends on token and position alone."""
    model, other = Decoder(), IDS.clone()
    other[:, :5] = (other[:, :5] + 1) % VOCAB
    begun = Decoder()
    begun.load_state_dict(model.state_dict())
    run(begun, other[:, :6], [6])
    caches = [(block.attn.key, block.attn.value) for block in begun.blocks]
    with regard.watch(model, positions="last") as result:
        run(model, IDS[:, :6], [6])
        for block, (key, value) in zip(model.blocks, caches, strict=True):
            block.attn.key, block.attn.value = key, value
        run(model, other[:, 6:], [1] * 6)
    assert len(result.recordings) == 2
    assert_whole(result.recordings[0].layers, model, IDS[:, :6])
    whole = model.without_cache()
    with regard.watch(whole) as expected:
        run(whole, other, 12)
    for layer, full in zip(result.recordings[1].layers, expected.layers, strict=True):
        torch.testing.assert_close(layer.weights.dense(), full.weights.dense()[:, :, 6:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("keep_qk", [True, False])
@pytest.mark.parametrize("steps", [[1] * 12, [3] + [1] * 9, [7] + [1] * 5])
def test_a_window_that_drops_keys(steps, keep_qk):
    model = Decoder(window=5)
    with regard.watch(model, MEASURES, positions="last", keep_qk=keep_qk) as result:
        run(model, IDS, steps)
    assert len(result.recordings) == 1
    if keep_qk:
        assert_whole(result.layers, model, IDS)
    else:
        assert result.layers[2].measured["entropy"].shape == (2, HEADS, 12)


def test_speculative_decoding_that_goes_back_starts_another_recording():
    model = Decoder()
    with regard.watch(model, positions="last") as result, torch.no_grad():
        model(IDS[:, :5])
        model(IDS[:, 5:9])  # of which two are rejected
        for block in model.blocks:
            block.attn.key, block.attn.value = block.attn.key[:, :, :7], block.attn.value[:, :, :7]
            block.attn.start = 7
        other = torch.cat([IDS[:, :7], IDS[:, :5]], 1)
        model(other[:, 7:8])
        model(other[:, 8:10])
    assert [tuple(each.layers[0].weights.shape[2:]) for each in result.recordings] == [(9, 9), (3, 10)]
    assert_whole(result.recordings[0].layers, model, IDS[:, :9])
    whole = model.without_cache()
    with regard.watch(whole) as expected:
        run(whole, other[:, :10], 10)
    for layer, full in zip(result.recordings[1].layers, expected.layers, strict=True):
        torch.testing.assert_close(layer.weights.dense(), full.weights.dense()[:, :, 7:], atol=1e-5, rtol=1e-5)


def test_a_bias_that_is_zero_in_the_first_step():
    """As the distances of ALiBi are for one token."""
    model, query, key = Calls(functional.scaled_dot_product_attention), *torch.randn(2, 1, 2, 6, 4).unbind()
    bias = -(torch.arange(6)[:, None] - torch.arange(6)).abs() * torch.tensor([0.5, 0.25])[:, None, None]
    bias = bias.masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -torch.inf)[None]
    with regard.watch(model, "entropy", positions="last") as result, torch.no_grad():
        for stop in range(1, 7):
            last = slice(stop - 1, stop)
            model(query[:, :, last], key[:, :, :stop], key[:, :, :stop], attn_mask=bias[:, :, last, :stop])
    expected = (query @ key.mT / 2 + bias).softmax(-1)
    torch.testing.assert_close(result.layers[0].weights.dense(), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(
        result.layers[0].measured["entropy"], torch.special.entr(expected).sum(-1), atol=1e-5, rtol=1e-5
    )


def test_a_bias_only_in_the_first_step_and_for_all_heads():
    model, query, key = Calls(functional.scaled_dot_product_attention), *torch.randn(2, 3, 2, 6, 4).unbind()
    first, last = torch.randn(3, 1, 4, 4), torch.randn(1, 2, 1, 6)
    with regard.watch(model, positions="last") as result, torch.no_grad():
        model(query[:, :, :4], key[:, :, :4], key[:, :, :4], attn_mask=first)
        model(query[:, :, 4:5], key[:, :, :5], key[:, :, :5])
        model(query[:, :, 5:], key, key, attn_mask=last)
    weights = result.layers[0].weights.dense()
    expected = (query @ key.mT / 2)[:, :, :4, :4] + first
    torch.testing.assert_close(weights[:, :, :4, :4], expected.softmax(-1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(weights[:, :, 5:], ((query @ key.mT / 2)[:, :, 5:] + last).softmax(-1))


def test_steps_with_another_scale_do_not_join():
    model, query, key = Calls(functional.scaled_dot_product_attention), *torch.randn(2, 1, 2, 6, 4).unbind()
    with regard.watch(model, positions="last") as result, torch.no_grad():
        model(query[:, :, :5], key[:, :, :5], key[:, :, :5])
        output = model(query[:, :, 5:], key, torch.eye(6).expand(1, 2, 6, 6), scale=2.0)
    assert len(result.recordings) == 2
    torch.testing.assert_close(result.layers[0].weights.dense(), output)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("has_score", [False, True])
def test_steps_of_flex_attention(has_score):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    model, query, key = Calls(flex_attention), *torch.randn(2, 1, 2, 6, 4).unbind()
    options = {"score_mod": lambda score, b, h, q_idx, kv_idx: score + q_idx} if has_score else {}
    with torch.no_grad(), regard.watch(model, positions="last") as result:
        mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, 5, 5, device="cpu")
        model(query[:, :, :5], key[:, :, :5], key[:, :, :5], block_mask=mask, **options)
        if has_score:
            with pytest.raises(InvalidArgument, match="positions: the model calls flex_attention with a score_mod"):
                model(query[:, :, 5:], key, key, **options)
            return
        model(query[:, :, 5:], key, key)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    expected = (query @ key.mT / 2).masked_fill(~causal, -torch.inf).softmax(-1)
    torch.testing.assert_close(result.layers[0].weights.dense(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_steps_of_cross_attention_with_a_score_mod_are_refused():
    from torch.nn.attention.flex_attention import flex_attention

    cross_attention = Calls(lambda *inputs: flex_attention(*inputs, lambda score, b, h, q_idx, kv_idx: score + q_idx))
    model, query, key = nn.Module(), *torch.randn(2, 1, 2, 6, 4).unbind()
    model.cross_attention = cross_attention
    model.forward = lambda *inputs: cross_attention(*inputs)
    with torch.no_grad(), regard.watch(model, positions="last"):
        model(query[:, :, :5], key, key)
        with pytest.raises(InvalidArgument, match="positions: cross_attention calls flex_attention with a score_mod"):
            model(query[:, :, 5:], key, key)


@pytest.mark.parametrize(
    ("positions", "kind", "message"),
    [
        ("first", InvalidArgument, "positions: expected 'last', a dict of module names, or None, got 'first'"),
        ({"block": "last"}, InvalidArgument, "positions: unknown module 'block', did you mean 'blocks'"),
        ({"blocks": "first"}, InvalidArgument, "positions: expected 'last' for blocks, got 'first'"),
        ({}, InvalidArgument, "positions: expected at least one module"),
        (["blocks"], InvalidType, "positions: expected 'last', a dict of module names, or None, got"),
    ],
)
def test_hints_are_checked(positions, kind, message):
    with pytest.raises(kind, match=message):
        regard.watch(Decoder(), positions=positions)
