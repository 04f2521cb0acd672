"""Attention layers and models compiled by Inductor, forward and backward. Eager is the oracle."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from helpers.pairwise import everything, sampled
from regard.models import GPT, Bert, BertConfig, GPTConfig, Transformer, TransformerConfig
from regard.nn import FeedForward, MultiHeadAttention, TransformerLayer
from regard.ops.masks import Causal, Padding
from regard.ops.measures import TopK

pytestmark = [  # of the compiler, about itself
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

MODE = "default" if everything() else "lite"
"""Mode "lite" generates no C++, which takes a second per kernel, but checks the layouts that operators return."""

ASKED = ["entropy", "received", "lse", "max", "mean_distance", TopK(3)]
PADDING = Padding(torch.tensor([11, 7]))


@pytest.fixture(autouse=True)
def _fresh_compiler(inductor):
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def inductor():
    """Inductor with its caches off, as their keys do not depend on our fake operators."""
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.utils import fresh_cache

    with (
        fresh_cache(),  # an empty TORCHINDUCTOR_CACHE_DIR
        torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield


class Layer(nn.Module):
    """An attention layer that returns its output and answers as a dict of tensors."""

    def __init__(self, **options):
        super().__init__()
        self.attention = MultiHeadAttention(16, 4, **options)

    def forward(self, *given, **options):
        attended = self.attention(*given, **options)
        answers = {"output": attended.output, **attended.measured}
        every = {name: answer if isinstance(answer, tuple) else (answer,) for name, answer in answers.items()}
        return {(name, i): part for name, parts in every.items() for i, part in enumerate(parts)}


def gradients(found, leaves):
    """The gradients of a number that depends on all results."""
    parts = [part for part in found.values() if part.is_floating_point()]
    loss = sum((part * torch.linspace(1, 2, part.numel()).view_as(part)).sum() for part in parts)
    return torch.autograd.grad(loss, leaves)


def compare(program, given, leaves, mode=MODE, **options):
    found = torch.compile(program, mode=mode)(*given, **options)
    expected = program(*given, **options)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, leaves), gradients(expected, leaves), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "options", "mode"),
    [(1, {"bias": False}, "default"), (1, {"num_kv_heads": 2}, MODE), (3, {"num_kv_heads": 1}, MODE)],
)
def test_a_compiled_layer_gives_the_same_output_answers_and_gradients(inputs, options, mode):
    layer = Layer(**options)
    given = [torch.randn(2, 11, 16, requires_grad=True) for _ in range(inputs)]
    mask = Causal() if inputs == 1 else PADDING
    compare(layer, given, [*given, *layer.parameters()], mode, mask=mask, measure=ASKED)


WORDS = torch.randint(1, 19, (2, 11), generator=torch.Generator().manual_seed(0))


def make_gpt(positions: str, **rates: float) -> GPT:
    sizes = {"d_model": 16, "num_heads": 4, "num_layers": 1, "d_ff": 16, "max_seq_len": 16}
    model = GPT(GPTConfig(19, positions=positions, **sizes, **{"dropout": 0.0, "attention_dropout": 0.0, **rates}))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("positions", sampled(["relative", "alibi", "t5", "rotary", "learned"], 2))
def test_a_compiled_gpt_gives_the_same_logits_and_gradients(positions):
    model = make_gpt(positions)
    compare(lambda words: {"logits": model(words).logits}, [WORDS], list(model.parameters()))


def test_a_compiled_gpt_drops_in_training_and_has_finite_gradients():
    model = make_gpt("relative", attention_dropout=0.3)
    compiled = torch.compile(model, mode=MODE)
    one, other = (compiled(WORDS).logits for _ in range(2))
    assert not torch.equal(one, other)
    for gradient in torch.autograd.grad(one.square().sum(), list(model.parameters())):
        assert gradient.isfinite().all()
        assert gradient.any()


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        ("aot_eager", torch.float32),
        pytest.param("aot_eager", torch.bfloat16, marks=pytest.mark.slow),
        pytest.param("inductor", torch.float32, marks=pytest.mark.slow),
    ],
)
def test_a_layer_with_dropout_is_trained_as_one_graph(backend, dtype):
    attention = MultiHeadAttention(16, 4, dropout=0.3)
    layer = TransformerLayer(attention, FeedForward(16, 32, dropout=0.3), norm_first=True, dropout=0.3).to(dtype)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    x = torch.randn(2, 5, 16, dtype=dtype, requires_grad=True)
    torch.manual_seed(1)
    one, other = compiled(x)[0], compiled(x)[0]
    torch.manual_seed(1)
    assert torch.equal(compiled(x)[0], one)
    assert not torch.equal(one, other)
    for gradient in torch.autograd.grad(one.float().square().sum(), [x, *layer.parameters()]):
        assert gradient.isfinite().all()
        assert gradient.any()


def test_compiled_dropout_has_the_rate_and_scale_of_eager():
    layer, x = FeedForward(16, 4096, dropout=0.3), torch.ones(1, 16)
    with torch.no_grad():
        layer.fc1.weight.zero_()
        layer.fc1.bias.fill_(1)
        layer.fc2.weight.fill_(1 / 4096)
        layer.fc2.bias.zero_()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert compiled(x).mean().item() == pytest.approx(1, abs=0.05)  # the mean of 4,096 kept numbers, 1 / (1 - p)
    assert layer(x).mean().item() == pytest.approx(1, abs=0.05)


SMALL = {"d_model": 16, "num_heads": 4, "d_ff": 16, "dropout": 0.1, "attention_dropout": 0.1}
MODELS = {
    "gpt": lambda: (GPT(GPTConfig(30, num_layers=1, max_seq_len=16, **SMALL)), 1),
    "bert": lambda: (Bert(BertConfig(30, num_layers=1, head="masked_lm", **SMALL)), 1),
    "transformer": lambda: (Transformer(TransformerConfig(30, num_encoder_layers=1, num_decoder_layers=1, **SMALL)), 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_with_dropout_is_trained_as_one_graph(name):
    model, inputs = MODELS[name]()
    logits = torch.compile(model, fullgraph=True, backend="aot_eager")(*[WORDS] * inputs).logits
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_bert_is_exported_and_compiled_as_one_graph():
    torch.manual_seed(0)
    model = Bert(BertConfig(30, d_model=16, num_heads=4, num_layers=1, d_ff=16, head="masked_lm")).eval()
    input_ids = torch.randint(30, (2, 5))
    expected = model(input_ids).logits
    exported = torch.export.export(model, (input_ids,)).module()
    torch.testing.assert_close(exported(input_ids).logits, expected)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(input_ids).logits, expected)
