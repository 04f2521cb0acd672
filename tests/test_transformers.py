"""Models of transformers with attn_implementation="regard" compute what they compute with "sdpa" and "eager"."""

from __future__ import annotations

import pytest
import torch

import regard
from helpers.model_zoo.families import FAMILIES, LENGTH, attentions, built
from helpers.model_zoo.variants import close, fused, inputs_of, variant
from regard.errors import InvalidArgument

transformers = pytest.importorskip("transformers")
import regard.transformers  # noqa: E402
from helpers.model_zoo import build  # noqa: E402
from regard.watching.spans_tensor import SpansTensor  # noqa: E402

CASES = [(name, side) for name, family in FAMILIES.items() for side in ("none", *(["left", "right"] * family.padded))]


@pytest.fixture
def spans(monkeypatch):
    """Masks are ranges of keys, however small they are."""
    monkeypatch.setattr(regard.transformers, "MAX_DENSE_CELLS", 0)


@pytest.fixture(params=["dense", "spans"])
def masks(request):
    """Both forms of masks."""
    return request.getfixturevalue("spans") if request.param == "spans" else None


@pytest.mark.parametrize(("name", "side"), CASES)
def test_output_and_attentions(name, side, masks):
    model, inputs = built(name), inputs_of(name, side)
    with torch.no_grad():
        expected = variant(model, fused(name))(**inputs)[0]
        dense = variant(model, "eager")(**inputs, output_attentions=True)
        actual = variant(model, "regard")(**inputs, output_attentions=True)
    mask = inputs.get("attention_mask", torch.ones(0, 0))  # where a query may have no key
    real = mask.bool() if mask.shape == expected.shape[:2] else ...
    close(actual[0][real], expected[real])
    for matrix, weights in zip(attentions(actual), attentions(dense), strict=True):
        assert type(matrix) is regard.WeightMatrix
        rows = matrix.dense().transpose(1, 2), weights.transpose(1, 2)
        if weights.shape[:3:2] == mask.shape:
            rows = rows[0][mask.bool()], rows[1][mask.bool()]
        close(*rows)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["bert", "mistral", "gemma2", "gpt_oss", "t5"])
def test_half_precision(name, dtype, masks):
    model, inputs = built(name), inputs_of(name, "right")
    real = inputs["attention_mask"].bool() if name != "t5" else ...
    with torch.no_grad():
        exact = variant(model, fused(name))(**inputs)[0][real]
        peer, actual = (variant(model.to(dtype), each)(**inputs)[0][real] for each in (fused(name), "regard"))
    assert actual.dtype == dtype
    assert float((actual - exact).abs().max()) <= 1.5 * float((peer - exact).abs().max())


@pytest.mark.parametrize("name", ["bert", "mistral", "t5"])
def test_double_precision(name, masks):
    model, inputs = built(name).double(), inputs_of(name)
    with torch.no_grad():
        expected, actual = (variant(model, each)(**inputs)[0] for each in ("sdpa", "regard"))
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual, expected, atol=1e-11, rtol=0)


def test_autocast():
    model, inputs = built("bert"), inputs_of("bert")
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, actual = (variant(model, each)(**inputs) for each in ("sdpa", "regard"))
        attention = variant(model, "regard")(**inputs, output_attentions=True).attentions[0]
    assert actual[0].dtype == expected[0].dtype
    torch.testing.assert_close(actual[0], expected[0], atol=0.05, rtol=0.05)
    assert attention.request.query.dtype == torch.bfloat16


def _custom_masks():
    allowed = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril() & (torch.rand(2, 1, LENGTH, LENGTH) > 0.3)
    allowed |= torch.eye(LENGTH, dtype=torch.bool)
    added = torch.zeros(allowed.shape)
    return {
        "bool": {"attention_mask": allowed},
        "-inf": {"attention_mask": added.masked_fill(~allowed, -torch.inf)},
        "smallest": {"attention_mask": added.masked_fill(~allowed, torch.finfo(torch.float32).min)},
        "bias": {"attention_mask": torch.randn(2, 1, LENGTH, LENGTH)},
        "of one sequence": {"attention_mask": allowed[:1]},
        "packed": {"position_ids": torch.tensor([[*range(4), *range(5), *range(2)]]).expand(2, -1)},
        "none": {},
    }


@pytest.mark.parametrize("kind", list(_custom_masks()))
@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_masks_that_a_user_makes(name, kind, masks):
    torch.manual_seed(3)
    model, inputs = built(name), {"input_ids": inputs_of(name)["input_ids"]} | _custom_masks()[kind]
    if name == "gemma3" and kind != "packed":
        inputs["attention_mask"] = dict.fromkeys(("full_attention", "sliding_attention"), inputs.get("attention_mask"))
    with torch.no_grad():
        expected, actual = (variant(model, each)(**inputs)[0] for each in ("sdpa", "regard"))
    close(actual, expected)


@pytest.mark.parametrize("name", ["Llama4ForCausalLM", "MistralForCausalLM"])
def test_masks_of_many_tokens_stay_rules(name):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 48, "intermediate_size_mlp": 48, "vocab_size": 99, "head_dim": 8, "pad_token_id": 0}
    sizes |= {"sliding_window": 300, "attention_chunk_size": 300, "num_local_experts": 2}
    config = getattr(transformers, {"Llama4ForCausalLM": "Llama4TextConfig"}.get(name, "MistralConfig"))(**sizes)
    model = getattr(transformers, name)(config).eval()
    ids, valid = torch.randint(3, 99, (2, 1100)), torch.ones(2, 1100, dtype=torch.int64)
    valid[0, :200] = valid[1, -100:] = 0
    with torch.no_grad():
        expected = variant(model, "sdpa")(ids, attention_mask=valid)[0]
        actual = variant(model, "regard")(ids, attention_mask=valid, output_attentions=True)
    close(actual[0][valid.bool()], expected[valid.bool()])
    for weights in actual.attentions:
        assert type(weights.request.mask).__name__ == "Spans"
        assert weights.nbytes < 4 * 2**20


def test_a_mask_with_many_ranges_is_dense():
    from transformers.masking_utils import causal_mask_function

    def every_second(batch, head, query, key):
        return (key % 2 == 0) & causal_mask_function(batch, head, query, key)

    options = {"batch_size": 1, "q_length": 1500, "kv_length": 1500, "q_offset": 0, "kv_offset": 0}
    options |= {"config": transformers.LlamaConfig(), "dtype": torch.float32, "device": torch.device("cpu")}
    mask = regard.transformers.make_mask(**options, mask_function=every_second, local_size=0)
    assert type(mask) is torch.Tensor
    assert torch.equal(mask[0, 0], torch.ones(1500, 1500, dtype=torch.bool).tril() & (torch.arange(1500) % 2 == 0))
    padded = torch.arange(1500)[None] < 1400
    mask = regard.transformers.make_mask(**options, mask_function=causal_mask_function, attention_mask=padded)
    assert isinstance(mask, SpansTensor)
    assert torch.equal(mask.dense()[0, 0], torch.ones(1500, 1500, dtype=torch.bool).tril() & padded)


@pytest.mark.parametrize("checkpointing", [None, False, True], ids=["plain", "checkpointing", "reentrant"])
@pytest.mark.parametrize("name", ["bert", "mistral", "gemma2", "t5", "vit"])
def test_gradients(name, checkpointing, masks):
    results = []
    for implementation in (fused(name), "regard"):
        model = variant(built(name), implementation).train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.config.attention_dropout = model.config.attention_probs_dropout_prob = 0.0
        for module in model.modules():
            for attribute in ("attention_dropout", "dropout_prob", "dropout"):
                if isinstance(getattr(module, attribute, None), float):
                    setattr(module, attribute, 0.0)
        if checkpointing is not None:
            model.activation_checkpointing_enable({"use_reentrant": checkpointing})
        inputs = inputs_of(name, "right")
        output = model(**inputs)[0]
        output = output if name in ("t5", "vit") else output[inputs["attention_mask"].bool()]
        output.square().mean().backward()
        results.append([parameter.grad for parameter in model.parameters()])
    for actual, expected in zip(results[1], results[0], strict=True):
        assert (actual is None) == (expected is None)
        if actual is not None:
            close(actual, expected)


def test_dropout_is_drawn_again_alike():
    gradients = []
    for checkpointing in (False, True):
        model = variant(built("mistral"), "regard", attention_dropout=0.5).train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(5)
        first = model(**inputs_of("mistral"))[0]
        torch.manual_seed(5)
        second = model(**inputs_of("mistral"))[0]
        assert torch.equal(first, second)
        second.square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    with torch.no_grad():
        model = variant(built("mistral"), "regard", attention_dropout=0.5)
        assert not torch.allclose(model.train()(**inputs_of("mistral"))[0], model.eval()(**inputs_of("mistral"))[0])
    for actual, expected in zip(gradients[1], gradients[0], strict=True):
        close(actual, expected)


def test_gradients_through_the_weights():
    gradients = []
    for implementation in ("eager", "regard"):
        model = variant(built("llama"), implementation)
        weights = model(**inputs_of("llama"), output_attentions=True).attentions[1]
        entropy = (
            -(weights * weights.clamp(min=1e-30).log()).sum(-1) if implementation == "eager" else weights.entropy()
        )
        entropy.mean().backward()
        gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad)
    close(gradients[1], gradients[0])
    assert float(gradients[0].abs().max()) > 1e-5


@pytest.mark.parametrize("name", ["bert", "llama", "vit"])
def test_a_compiled_model(name):
    model, inputs = variant(built(name), "regard"), inputs_of(name, "right")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        expected, actual = model(**inputs)[0], compiled(**inputs)[0]
    real = inputs["attention_mask"].bool() if name != "vit" else ...
    close(actual[real], expected[real])


def test_compiled_layers(spans):
    model, inputs = variant(built("mistral"), "regard"), inputs_of("mistral", "left")
    with torch.no_grad():
        expected = model(**inputs)[0]
        for layer in model.model.layers:
            layer.compile(backend="aot_eager")
        actual = model(**inputs)[0]
    real = inputs["attention_mask"].bool()
    close(actual[real], expected[real])


def test_the_name_is_chosen_like_any_other(tmp_path):
    built("bert").save_pretrained(tmp_path)
    model = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="regard").eval()
    plain = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert (model.config._attn_implementation, plain.config._attn_implementation) == ("regard", "sdpa")
    ids = torch.randint(3, 90, (1, 9))
    with torch.no_grad():
        close(model(ids)[0], plain(ids)[0])
        plain.set_attn_implementation("regard")
        assert isinstance(plain(ids, output_attentions=True).attentions[0], regard.WeightMatrix)
    model.save_pretrained(tmp_path / "again")
    again = transformers.AutoModel.from_pretrained(tmp_path / "again")
    assert again.config._attn_implementation == "sdpa"
    both = built("clip")
    both.set_attn_implementation({"text_config": "regard"})
    assert both.config.text_config._attn_implementation == "regard"
    assert both.config.vision_config._attn_implementation == "sdpa"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BloomModel", "computes attention in its own code, which attn_implementation='regard' cannot replace"),
        ("DeepseekV32Model", "DeepseekV32Attention passes indices to its attention function"),
        ("Inkling2TextModel", "Inkling2SlidingAttention passes sinks to its attention function"),
    ],
)
def test_models_with_other_attention_are_refused(name, message):
    build.quiet()
    model = variant(build.built(build.named(name)), "regard")
    with pytest.raises(InvalidArgument, match=message):
        model(torch.randint(3, 90, (2, 11)))


@pytest.mark.parametrize("name", ["bert", "llama", "mistral", "t5"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_watch_records_what_it_records_with_sdpa(name, exact, masks):
    model, inputs = built(name), inputs_of(name, "left")
    layers = []
    for implementation in ("sdpa", "regard"):
        with regard.watch(variant(model, implementation), ["received"], exact_output=exact) as result, torch.no_grad():
            result.model(**inputs)
        layers.append(result.layers)
    for actual, expected in zip(layers[1], layers[0], strict=True):
        assert (actual.name, actual.kind) == (expected.name, expected.kind)
        close(actual.weights.dense(), expected.weights.dense())
        close(actual.measured["received"], expected.measured["received"])


@pytest.mark.parametrize("implementation", ["regard", "sdpa"])
def test_weights_that_a_watched_model_returns_have_their_gradient(implementation):
    config = transformers.GPT2Config(n_embd=16, n_head=2, n_layer=2, vocab_size=30, attn_implementation=implementation)
    model = transformers.GPT2LMHeadModel(config).eval()
    with regard.watch(model, weight_gradients=True) as result:
        output = model(torch.randint(30, (2, 7)), output_attentions=True)
        output.logits[:, -1, 3].sum().backward()
    for weights, layer in zip(output.attentions, result.layers, strict=True):
        assert torch.equal(weights.grad.dense(), layer.weights.grad.dense())
        assert torch.equal(weights.dense(), layer.weights.dense())
