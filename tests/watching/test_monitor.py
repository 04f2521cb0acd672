"""What AttentionMonitor measures, against dense attention and autograd; and QK-clip, by the scores after it."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    BloomConfig,
    BloomModel,
    CodeGenConfig,
    CodeGenModel,
    DeepseekV3Config,
    DeepseekV3Model,
    DistilBertConfig,
    DistilBertModel,
    FalconConfig,
    FalconModel,
    GPT2Config,
    GPT2Model,
    GPTNeoXConfig,
    GPTNeoXModel,
    LlamaConfig,
    LlamaModel,
    MptConfig,
    MptModel,
    Phi3Config,
    Phi3Model,
    Qwen3Config,
    Qwen3Model,
    T5Config,
    T5EncoderModel,
)

import regard
from regard.errors import InvalidArgument, InvalidType
from regard.watching import AttentionMonitor, qk_clip

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
SIZES |= {"initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "attention_dropout": 0.0}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
LENGTHS = torch.tensor([9, 6, 4])


class Torch(nn.Module):
    """`nn.MultiheadAttention`, with one projection for all or with one for each."""

    def __init__(self, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True, **options)
        self.embedding = nn.Embedding(99, 32)

    def forward(self, ids):
        x = 2 * self.embedding(ids)
        key = x[..., : self.attention.kdim]
        return self.attention(x, key, key, need_weights=False)[0]


class Regard(nn.Module):
    """The attention of this library, with shared key heads."""

    def __init__(self):
        super().__init__()
        self.attention = regard.nn.MultiHeadAttention(32, num_heads=4, num_kv_heads=2)
        self.embedding = nn.Embedding(99, 32)

    def forward(self, ids):
        return self.attention(2 * self.embedding(ids)).output


MODELS = {
    "bert": lambda: BertModel(BertConfig(**SIZES, **PLAIN)),
    "distilbert": lambda: DistilBertModel(
        DistilBertConfig(dim=32, n_heads=4, n_layers=2, hidden_dim=32, vocab_size=99)
    ),
    "gpt2": lambda: GPT2Model(GPT2Config(**SIZES)),
    "gpt_neox": lambda: GPTNeoXModel(GPTNeoXConfig(**SIZES)),
    "llama": lambda: LlamaModel(LlamaConfig(**SIZES, num_key_value_heads=2, attention_bias=True)),
    "phi3": lambda: Phi3Model(Phi3Config(**SIZES, num_key_value_heads=2)),
    "deepseek_v3": lambda: DeepseekV3Model(
        DeepseekV3Config(**SIZES, **LATENT, num_key_value_heads=4, first_k_dense_replace=2)
    ),
    "torch": Torch,
    "torch, separate": lambda: Torch(kdim=16, vdim=16),
    "regard": Regard,
}


def make(name):
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    for parameter in model.parameters():  # biases that are not 0
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 1.0, 0.3)
    return model.double()


def ids():
    return torch.randint(3, 99, (3, 9), generator=torch.Generator().manual_seed(1))


def largest_scores(model):
    with regard.watch(model) as result, torch.no_grad():
        model(ids())
    return {layer.name: layer.weights.scores.dense().amax((0, 2, 3)) for layer in result.layers}


@pytest.mark.parametrize("name", MODELS)
def test_scores_after_a_clip_are_at_most_the_threshold(name):
    """Those of other heads of the first layer stay, also if they share a key head."""
    model = make(name)
    before = largest_scores(model)
    first = next(iter(before))
    threshold = float(before[first].sort().values[1:3].mean())  # two heads of the first layer exceed it
    assert threshold > 0
    factors = qk_clip(model, {first: before[first].float()}, threshold)
    after = largest_scores(model)
    expected = before[first].clamp(max=threshold)
    torch.testing.assert_close(after[first], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(factors[first].double(), expected / before[first], atol=1e-5, rtol=1e-5)
    assert (factors[first] < 1).sum() == 2
    again = deepcopy(model.state_dict())
    qk_clip(model, {first: after[first] - 1e-3}, threshold)
    assert all(torch.equal(value, again[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["llama", "torch"])
def test_a_clip_after_each_step(name):
    """The scores are those before the step, as in MuonClip."""
    model = make(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    threshold = 0.5 * float(min(each.max() for each in largest_scores(model).values()))
    monitor = AttentionMonitor(model, every_n_steps=2, clip_threshold=threshold)
    for step in range(3):
        before, copy = largest_scores(model), deepcopy(model)
        with monitor:
            output = model(ids())
            loss = (output if name == "torch" else output.last_hidden_state).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        copied = torch.optim.SGD(copy.parameters(), lr=1e-3)
        for theirs, ours in zip(copy.parameters(), model.parameters(), strict=True):
            theirs.grad = ours.grad
        copied.step()
        qk_clip(copy, before, threshold)
        for theirs, ours in zip(copy.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
        assert monitor.clipped.keys() == before.keys()
        assert any((factor < 1).any() for factor in monitor.clipped.values()) or step


def dense(model, mask):
    """Weights, largest scores, and gradients of the outputs of all heads, by eager attention and autograd."""
    eager = deepcopy(model)
    eager.set_attn_implementation("eager")
    outputs = []

    def keep(module, args, output):
        output[0].retain_grad()
        outputs.append(output[0])

    for layer in eager.encoder.layer:
        layer.attention.self.register_forward_hook(keep)
    output = eager(ids(), attention_mask=mask, output_attentions=True)
    output.last_hidden_state[mask.bool()].square().mean().backward()
    return [each.detach() for each in output.attentions], [each.grad.unflatten(2, (4, 8)) for each in outputs]


def test_statistics_are_those_of_dense_attention():
    """Of each head, without padding, on average over two forward passes."""
    model = make("bert")
    mask = (torch.arange(9) < LENGTHS[:, None]).long()
    weights, gradients = dense(model, mask)
    scores = largest = None
    with regard.watch(model) as result, torch.no_grad():
        model(ids(), attention_mask=mask)
    scores = [layer.weights.scores.dense() for layer in result.layers]
    monitor = AttentionMonitor(model, gradients=True)
    with monitor:
        for _ in range(2):
            output = model(ids(), attention_mask=mask).last_hidden_state
            output[mask.bool()].square().mean().backward()
    rows = mask[:, None, :, None]
    count = mask.sum()
    for number, (name, actual) in enumerate(monitor.heads.items()):
        P = weights[number] * rows
        largest = scores[number].masked_fill(rows == 0, -torch.inf).amax((0, 2, 3))
        torch.testing.assert_close(actual.max_logit, largest)
        torch.testing.assert_close(actual.entropy, torch.special.entr(P).sum((0, 2, 3)) / count)
        torch.testing.assert_close(actual.sink_mass, P[..., 0].sum((0, 2)) / count)
        shares = P.sum(2) / LENGTHS[:, None, None]
        torch.testing.assert_close(actual.max_received, shares.amax((0, 2)))
        norm = (2 * gradients[number].square().sum((0, 1, 3))).sqrt()
        torch.testing.assert_close(actual.gradient, norm)
        for field in ("max_logit", "max_received"):
            assert monitor.metrics[f"attention/{name}/{field}"] == pytest.approx(float(getattr(actual, field).max()))
        for field in ("entropy", "sink_mass", "gradient"):
            assert monitor.metrics[f"attention/{name}/{field}"] == pytest.approx(float(getattr(actual, field).mean()))
    assert len(monitor.heads) == 2


def test_the_sink_is_the_first_token_that_is_not_padding():
    model = make("llama")
    mask = (torch.arange(9) >= 9 - LENGTHS[:, None]).long()
    with regard.watch(model) as result, torch.no_grad():
        model(ids(), attention_mask=mask)
    P = [layer.weights.dense() * mask[:, None, :, None] for layer in result.layers]
    monitor = AttentionMonitor(model)
    with monitor, torch.no_grad():
        model(ids(), attention_mask=mask)
    for actual, weights in zip(monitor.heads.values(), P, strict=True):
        first = sum(weights[row, :, :, 9 - length].sum(1) for row, length in enumerate(LENGTHS.tolist()))
        torch.testing.assert_close(actual.sink_mass, first / LENGTHS.sum())
        assert actual.gradient is None


def test_other_steps_are_not_watched():
    model = make("torch")
    monitor, seen = AttentionMonitor(model, every_n_steps=3), []
    for _ in range(7):
        monitor.heads = {}
        with monitor:
            model(ids())
        seen.append(bool(monitor.heads))
    assert seen == [True, False, False, True, False, False, True]
    with pytest.raises(RuntimeError, match="of the loop"), AttentionMonitor(model):
        raise RuntimeError("of the loop")
    with regard.watch(model):  # the watch of the step has ended
        model(ids())


def test_clipping_waits_for_the_optimizer():
    model = make("torch")
    before = deepcopy(model.state_dict())
    (score,) = (float(each.max()) for each in largest_scores(model).values())
    monitor = AttentionMonitor(model, clip_threshold=score / 2)
    monitor.begin()
    model(ids())
    monitor.end(has_stepped=False)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    monitor.begin(False)
    with torch.no_grad():
        model(ids()[:1])
    monitor.end()
    assert float(largest_scores(model)["attention"].max()) == pytest.approx(score / 2, rel=1e-6)


def test_models_that_cannot_be_clipped_are_refused_and_stay():
    cases = {
        "normalizes by its q_norm, so that QK-clip would have no effect": Qwen3Model(
            Qwen3Config(**SIZES, num_key_value_heads=2)
        ),
        r"expected projections of queries and keys among q_proj/k_proj, .* got FalconAttention with": FalconModel(
            FalconConfig(**SIZES, alibi=False)
        ),
        r"got GPT2Attention with c_attn, q_attn, c_proj": GPT2Model(GPT2Config(**SIZES, add_cross_attention=True)),
        "CodeGenAttention has queries, keys and values in an order that QK-clip does not know": CodeGenModel(
            CodeGenConfig(vocab_size=9, n_embd=32, n_layer=1, n_head=4, n_positions=64, rotary_dim=4)
        ),
    }
    for message, model in cases.items():
        before = deepcopy(model.state_dict())
        names = [name for name, each in model.named_modules() if type(each).__name__.endswith("Attention")]
        name = next((name for name in names if "cross" in name), names[0])
        with pytest.raises(InvalidArgument, match=message):
            qk_clip(model, {name: torch.full((4,), 1e6)})
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    "model",
    [
        BloomModel(BloomConfig(vocab_size=9, hidden_size=32, n_layer=1, n_head=4)),
        MptModel(MptConfig(vocab_size=9, d_model=32, n_layers=1, n_heads=4)),
        T5EncoderModel(T5Config(vocab_size=9, d_model=32, d_kv=8, d_ff=8, num_layers=1, num_heads=4)),
    ],
    ids=lambda model: type(model).__name__,
)
def test_scores_with_a_bias_are_not_clipped(model):
    """No scale of queries and keys lowers what is added to their products, so each step would scale them again."""
    before = deepcopy(model.state_dict())
    monitor = AttentionMonitor(model, 1, clip_threshold=1e-6)
    monitor.begin()
    with torch.no_grad():
        model(torch.tensor([[3, 4, 5, 6]]))
    with pytest.raises(InvalidArgument, match=r"clip_threshold: the scores of .* may be more than products"):
        monitor.end()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    with AttentionMonitor(model, 1) as monitor, torch.no_grad():
        model(torch.tensor([[3, 4, 5, 6]]))
    assert monitor.heads


def test_no_scale_is_0():
    model = nn.Sequential(nn.MultiheadAttention(8, 2))
    factors = qk_clip(model, {"0": torch.tensor([5.0, 3e38])}, 1e-10)["0"]
    assert (factors > 0).all()
    assert model[0].in_proj_weight.isfinite().all()


def test_bad_arguments_are_named():
    model = make("torch")
    with pytest.raises(InvalidArgument, match="threshold: expected a finite number above 0, got 0"):
        qk_clip(model, {}, 0)
    with pytest.raises(
        InvalidArgument, match="max_logits: the model has no module 'attentio', did you mean 'attention'"
    ):
        qk_clip(model, {"attentio": torch.ones(4)})
    with pytest.raises(InvalidArgument, match=r"max_logits\['attention'\]: expected \(heads,\), got \(2, 4\)"):
        qk_clip(model, {"attention": torch.ones(2, 4)})
    with pytest.raises(InvalidArgument, match=r"max_logits\['attention'\]: expected \(heads,\), got \(0,\)"):
        qk_clip(model, {"attention": torch.ones(0)})
    with pytest.raises(InvalidArgument, match=r"attention: expected projections .* whose outputs 5 heads share"):
        qk_clip(model, {"attention": torch.ones(5)})
    with pytest.raises(InvalidType, match="max_logits: expected a dict of tensors by name, got float32"):
        qk_clip(model, torch.ones(4))
    with pytest.raises(InvalidType, match=r"max_logits\['attention'\]: expected a floating-point tensor, got list"):
        qk_clip(model, {"attention": [1.0]})
    for make_one in (
        lambda **options: AttentionMonitor(model, **options),
        regard.watching.trainer_callback,
        regard.watching.lightning_callback,
    ):
        with pytest.raises(InvalidArgument, match="every_n_steps: expected an int of at least 1, got 0"):
            make_one(every_n_steps=0)
        with pytest.raises(InvalidArgument, match="clip_threshold: expected a finite number above 0, or None, got -1"):
            make_one(clip_threshold=-1)
        with pytest.raises(InvalidType, match="gradients: expected True or False, got 1"):
            make_one(gradients=1)
