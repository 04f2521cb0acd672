"""Models of transformers with attn_implementation="regard" generate the tokens that they generate with "sdpa"."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.model_zoo.families import FAMILIES, LENGTH, built, padding
from helpers.model_zoo.variants import close, fused, inputs_of, variant

transformers = pytest.importorskip("transformers")
import regard.transformers  # noqa: E402

WRITERS = [name for name, family in FAMILIES.items() if family.writes]
GREEDY = {"max_new_tokens": 6, "do_sample": False}
MODES = {
    "greedy": GREEDY,
    "sample": {"max_new_tokens": 6, "do_sample": True, "top_k": 20},
    "beam": GREEDY | {"num_beams": 3, "num_return_sequences": 2},
    "no cache": GREEDY | {"use_cache": False},
    "static": GREEDY | {"cache_implementation": "static", "disable_compile": True},
    "chunks": GREEDY | {"prefill_chunk_size": 4},
}
CASES = [(name, mode) for name in WRITERS for mode in MODES if mode != "chunks" or not FAMILIES[name].both]


def generate(model, inputs, **options):
    torch.manual_seed(4)
    return model.generate(**inputs, **options)


def prompt(name: str):
    inputs = inputs_of(name, "left")
    inputs.pop("decoder_input_ids", None)
    return inputs


@pytest.fixture(autouse=True)
def spans(monkeypatch):
    """Masks are ranges of keys, however small they are."""
    monkeypatch.setattr(regard.transformers, "MAX_DENSE_CELLS", 0)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_tokens(name, mode):
    model, inputs = built(name), prompt(name)
    expected, actual = (generate(variant(model, each), inputs, **MODES[mode]) for each in (fused(name), "regard"))
    assert torch.equal(actual, expected)


class Stream:
    """In place of a stream of a GPU, on which transformers copies an offloaded cache."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def wait_stream(self, other):
        pass


CACHES = {
    "offloaded": {"cache_implementation": "offloaded"},
    "offloaded static": {"cache_implementation": "offloaded_static", "disable_compile": True},
    "sliding window": {"cache_implementation": "sliding_window", "disable_compile": True},
    "hybrid": {"cache_implementation": "hybrid", "disable_compile": True},
    "quantized": {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}},
}
CACHED = ["gpt2", "llama", "mistral", "gemma3", "gpt_oss", "t5", "bart"]
UNCACHED = {  # by transformers itself
    "quantized": {"mistral", "gemma3", "gpt_oss", "t5", "bart"},
    "offloaded static": {"mistral", "gemma3"},  # all of whose layers slide
}


@pytest.mark.filterwarnings("ignore")  # of transformers, about names of caches
@pytest.mark.parametrize("mode", ["greedy", "beam", "sample"])
@pytest.mark.parametrize(
    ("name", "cache"), [(name, cache) for cache in CACHES for name in CACHED if name not in UNCACHED.get(cache, ())]
)
def test_caches(name, cache, mode, monkeypatch):
    monkeypatch.setattr(torch, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: Stream())
    model, inputs, options = built(name), prompt(name), MODES[mode] | CACHES[cache]
    expected, actual = (generate(variant(model, each), inputs, **options) for each in (fused(name), "regard"))
    assert torch.equal(actual, expected)
    if mode != "greedy" or cache == "quantized":  # whose keys differ if rounding does
        return
    options |= {"return_dict_in_generate": True, "output_attentions": True}
    expected, actual = (generate(variant(model, each), inputs, **options) for each in ("eager", "regard"))
    assert torch.equal(actual.sequences, expected.sequences)
    names = ["decoder_attentions", "cross_attentions"] if FAMILIES[name].both else ["attentions"]
    for each in names:
        for matrices, weights in zip(actual[each], expected[each], strict=True):
            for matrix, dense in zip(matrices, weights, strict=True):
                close(matrix.dense()[:, :, -1:], dense[:, :, -1:])


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_assisted_generation(name):
    model, inputs = built(name), {"input_ids": inputs_of(name)["input_ids"][:1]}
    tokens = []
    for implementation in ("sdpa", "regard"):
        assistant = variant(built(name), implementation)
        for parameter in assistant.parameters():
            parameter.data.mul_(1.02)
        tokens.append(generate(variant(model, implementation), inputs, assistant_model=assistant, **GREEDY))
        lookup = generate(variant(model, implementation), inputs, prompt_lookup_num_tokens=2, **GREEDY)
        assert torch.equal(lookup, tokens[-1])
    assert torch.equal(tokens[1], tokens[0])


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3", "bart"])
def test_attentions_of_every_step(name, cache, inference):
    options = GREEDY | {"return_dict_in_generate": True, "output_attentions": True}
    options |= {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    model, inputs = built(name), prompt(name)
    with torch.inference_mode(inference):
        expected, actual = (generate(variant(model, each), inputs, **options) for each in ("eager", "regard"))
    assert torch.equal(actual.sequences, expected.sequences)
    names = ["decoder_attentions", "cross_attentions"] if FAMILIES[name].both else ["attentions"]
    for each in names:
        for matrices, weights in zip(actual[each], expected[each], strict=True):
            for matrix, dense in zip(matrices, weights, strict=True):
                assert isinstance(matrix, regard.WeightMatrix)
                rows = slice(-1, None) if dense.shape[2] == LENGTH else slice(None)  # the first are padding
                close(matrix.dense()[:, :, rows], dense[:, :, rows])


def test_positions_in_a_static_cache():
    model, inputs = variant(built("llama"), "regard"), {"input_ids": inputs_of("llama")["input_ids"]}
    options = GREEDY | {"return_dict_in_generate": True, "output_attentions": True, "disable_compile": True}
    dynamic, static = (generate(model, inputs, **options, **more) for more in ({}, {"cache_implementation": "static"}))
    for one, other in zip(dynamic.attentions, static.attentions, strict=True):
        close(other[0].measure("mean_distance")["mean_distance"], one[0].measure("mean_distance")["mean_distance"])


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_prefill_in_chunks(name):
    model, ids, results = built(name), inputs_of(name)["input_ids"], []
    mask = padding("left")
    for implementation in ("sdpa", "regard"):
        model, outputs = variant(model, implementation), []
        cache = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            for first, stop in ((0, 4), (4, 9), (9, 10), (10, LENGTH)):
                step = model(ids[:, first:stop], attention_mask=mask[:, :stop], past_key_values=cache, use_cache=True)
                outputs.append(step.logits)
        results.append(torch.cat(outputs, 1)[mask.bool()])
    close(results[1], results[0])


def test_a_static_cache_in_compiled_code():
    model, inputs = variant(built("llama"), "regard"), prompt("llama")
    expected = generate(model, inputs, **GREEDY)
    model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=True)
    assert torch.equal(generate(model, inputs, **MODES["static"]), expected)


def test_attentions_of_a_static_cache_in_compiled_code():
    options = {**MODES["static"], "return_dict_in_generate": True, "output_attentions": True}
    model, inputs = built("llama"), {"input_ids": inputs_of("llama")["input_ids"]}
    expected, model = generate(variant(model, "eager"), inputs, **options), variant(model, "regard")
    model(**inputs, output_attentions=True)  # transformers installs hooks, which cannot be compiled
    model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=True)
    actual = generate(model, inputs, **options)
    for matrices, weights in zip(actual.attentions, expected.attentions, strict=True):
        for matrix, dense in zip(matrices, weights, strict=True):
            close(matrix.dense(), dense)


def test_a_watch_records_a_generation():
    model, inputs, layers = built("mistral"), prompt("mistral"), []
    for implementation in ("sdpa", "regard"):
        with regard.watch(variant(model, implementation)) as result:
            generate(result.model, inputs, **GREEDY)
        layers.append(result.layers)
    for actual, expected in zip(layers[1], layers[0], strict=True):
        close(actual.weights.dense(), expected.weights.dense())
