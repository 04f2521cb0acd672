"""Softmaxes whose first product does not say at once what they are: relative positions, gates, channels, iterations."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from helpers.own_softmax import BATCH, HEADS, TOKENS, WIDTH, Calls, Outer, SlowAttention, inputs, project, watched
from regard.errors import InvalidArgument

pytestmark = pytest.mark.filterwarnings("ignore:.*dense weights were recorded at the softmax")


class OwnAttention(Calls):
    pass


def parts_of(x):
    return (part.transpose(1, 2) for part in project(x))


def by_bmm(weights, relative):
    batch, heads, tokens, keys = weights.shape
    rows = weights.permute(2, 0, 1, 3).reshape(tokens, batch * heads, keys)
    return torch.bmm(rows, relative).view(tokens, batch, heads, -1).permute(1, 2, 0, 3)


RELATIVE = {
    "bmm": by_bmm,
    "einsum": lambda w, r: torch.einsum("bhlr,lrd->bhld", w, r),
    "matmul of rows": lambda w, r: (w.unsqueeze(-2) @ r).squeeze(-2),
    "matmul of rows with five axes": lambda w, r: (w.unsqueeze(-2) @ r[None, None]).squeeze(-2),
    "matmul of heads": lambda w, r: (w.transpose(1, 2) @ r).transpose(1, 2),
    "matmul of tokens": lambda w, r: (w.permute(2, 0, 1, 3) @ r[:, None]).permute(1, 2, 0, 3),
}


@pytest.mark.parametrize("cls", [Calls, OwnAttention])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("how", RELATIVE)
def test_values_of_relative_positions_are_not_the_values(how, is_first, cls):
    """Shaw et al. 2018, equation 3: the weights multiply the values, and an embedding of each distance."""

    def call(x):
        query, key, value = parts_of(x)
        tokens = x.shape[1]
        of_keys, of_values = torch.randn(2, tokens, tokens, WIDTH, generator=torch.Generator().manual_seed(0))
        scores = query @ key.mT + torch.einsum("bhld,lrd->bhlr", query, of_keys)
        weights = (scores / WIDTH**0.5).softmax(-1)
        if is_first:
            output = RELATIVE[how](weights, of_values)
            return output + weights @ value, weights
        output = weights @ value
        return output + RELATIVE[how](weights, of_values), weights

    for tokens in (TOKENS, BATCH * HEADS):
        module = cls(call)
        (layer,) = watched(module, inputs(BATCH, tokens, HEADS * WIDTH)).layers
        torch.testing.assert_close(layer.weights.dense(), module.weights)
        assert layer.batch_axis is None


def test_tokens_first_as_in_transformer_xl():
    def call(x):
        query, key, value = (part.transpose(0, 1) for part in project(x))
        weights = torch.einsum("ibnd,jbnd->ijbn", query, key).softmax(1)
        return torch.einsum("ijbn,jbnd->ibnd", weights, value), weights.permute(2, 3, 0, 1)

    module = Calls(call)
    (layer,) = watched(module, inputs()).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


def test_one_key_head_with_heads_after_the_queries():
    def call(x):
        query, key, value = project(x)
        weights = (query @ key[:, :, :1].permute(0, 2, 3, 1)).softmax(-1)  # (batch, queries, heads, keys)
        return weights @ value[:, :, 0, None].transpose(1, 2), weights.transpose(1, 2)

    module = Calls(call)
    (layer,) = watched(module, inputs()).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


def attended(x):
    query, key, value = parts_of(x)
    weights = (query @ key.mT).softmax(-1)
    return weights @ value, weights


def dynamic_kernel(x, output):
    """As in ConvBERT: a kernel of each token and head."""
    kernel = x[..., : HEADS * 3].reshape(-1, 3, 1).softmax(1)
    windows = functional.pad(x, (0, 0, 1, 1)).unfold(1, 3, 1).reshape(-1, WIDTH, 3)
    return torch.matmul(windows, kernel)


def kernel_of_a_linear_layer(x, output):
    kernel = functional.linear(x * 2, torch.ones(HEADS * 3, HEADS * WIDTH)).reshape(-1, 3, 1).softmax(1)
    return functional.pad(x, (0, 0, 1, 1)).unfold(1, 3, 1).reshape(-1, WIDTH, 3) @ kernel


def router_with_weights(x, output):
    gates = (x @ nn.Parameter(torch.ones(HEADS * WIDTH, 5))).softmax(-1)
    return gates[:, :, None] @ x[..., None].expand(-1, -1, -1, 5).mT


def router(x, output):
    gates = x[..., :5].softmax(-1)
    return gates[:, :, None] @ x[..., None].expand(-1, -1, -1, 5).mT


def router_einsum(x, output):
    return torch.einsum("bte,bted->btd", x[..., :5].softmax(-1), x[:, :, None].expand(-1, -1, 5, -1))


def router_of_flat_tokens(x, output):
    flat = x.flatten(0, 1)
    return torch.bmm(flat[:, None, :5].softmax(-1), flat[:, None].expand(-1, 5, -1))


def gate_over_heads(x, output):
    return torch.einsum("bth,bhtd->btd", x[..., :HEADS].softmax(-1), output)


def mixed_heads(x, output):
    return torch.einsum("hg,bgtd->bhtd", x[0, :HEADS, :HEADS].softmax(-1), output)


def heads_attend(x, output):
    states = output.transpose(1, 2)  # (batch, tokens, heads, width)
    return (states @ states.mT).softmax(-1) @ states


def channels_attend(x, output):
    return (output.mT @ output).softmax(-1) @ output.mT


NOT_OVER_KEYS = [
    *(dynamic_kernel, kernel_of_a_linear_layer, router, router_with_weights, router_einsum, router_of_flat_tokens),
    *(gate_over_heads, mixed_heads, heads_attend, channels_attend),
]


@pytest.mark.parametrize("call", NOT_OVER_KEYS, ids=lambda call: call.__name__)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_softmax_over_something_else_is_no_layer(call, is_first):
    def both(x):
        if is_first:
            call(x, x.unflatten(2, (HEADS, WIDTH)).transpose(1, 2))
        output, weights = attended(x)
        call(x, output * 2)
        return output, weights

    module = OwnAttention(both)
    with pytest.warns(UserWarning, match=r"not all is recorded of the model \(OwnAttention\): it"):
        (layer,) = watched(module, inputs()).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


@pytest.mark.parametrize("call", NOT_OVER_KEYS, ids=lambda call: call.__name__)
def test_a_class_named_attention_without_keys_is_refused(call):
    model = OwnAttention(lambda x: (call(x, x.unflatten(2, (HEADS, WIDTH)).transpose(1, 2)), None))
    with pytest.raises(InvalidArgument, match=r"OwnAttention computes .* cannot be recorded: it"):
        watched(model, inputs())


def pooled(x):
    """Additive attention with one query."""
    weights = x.mean(-1, keepdim=True).softmax(1)
    return weights.mT @ x, weights.mT[:, None]


def pooled_by_einsum(x):
    weights = x.mean(-1).softmax(-1)
    return torch.einsum("bt,btd->bd", weights, x), weights[:, None, None]


def pooled_heads(x):
    parts = x.unflatten(2, (HEADS, WIDTH)).transpose(1, 2)
    weights = parts.mean(-1).softmax(-1)
    return torch.einsum("bht,bhtd->bhd", weights, parts), weights.unsqueeze(2)


def pooled_merged_heads(x):
    parts = x.unflatten(2, (HEADS, WIDTH)).transpose(1, 2).reshape(-1, x.shape[1], WIDTH)
    weights = parts.mean(-1).unsqueeze(1).softmax(-1)
    return torch.bmm(weights, parts), weights.unflatten(0, (-1, HEADS))


@pytest.mark.parametrize("tokens", [TOKENS, HEADS])
@pytest.mark.parametrize("call", [pooled, pooled_by_einsum, pooled_heads, pooled_merged_heads])
def test_one_query_without_a_product_of_keys_is_attention(call, tokens):
    module = OwnAttention(call)
    (layer,) = watched(module, inputs(BATCH, tokens, HEADS * WIDTH)).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


PRODUCTS = {
    "bmm": lambda w, v: torch.bmm(w, mat2=v),
    "bmm by names": lambda w, v: torch.bmm(mat2=v, input=w),
    "bmm method": lambda w, v: w.bmm(mat2=v),
    "matmul": lambda w, v: torch.matmul(w, other=v),
    "matmul by names": lambda w, v: torch.matmul(other=v, input=w),
    "matmul method": lambda w, v: w.matmul(other=v),
    "linalg": lambda w, v: torch.linalg.matmul(w, v),
    "linalg by names": lambda w, v: torch.linalg.matmul(other=v, input=w),
    "baddbmm": lambda w, v: torch.baddbmm(torch.zeros(1), batch1=w, batch2=v, beta=0),
    "einsum": lambda w, v: torch.einsum("bij,bjd->bid", [w, v]),
    "einsum with spaces": lambda w, v: torch.einsum("b i j, b j d -> b i d", w, v),
    "einsum without arrow": lambda w, v: torch.einsum("...ij,...jz", w, v),
    "out": lambda w, v: torch.bmm(w, v, out=torch.empty(0)),
}
CHANGES_BY_NAME = {
    "dropout": lambda w: functional.dropout(input=w, p=0.0),
    "transpose": lambda w: torch.transpose(input=torch.transpose(w, dim0=1, dim1=2), dim0=1, dim1=2),
    "unsqueeze": lambda w: torch.squeeze(input=torch.unsqueeze(input=w, dim=1), dim=1),
    "mul": lambda w: torch.mul(input=w, other=1.0),
    "expand_as": lambda w: torch.Tensor.expand_as(w, other=w),
    "mH": lambda w: w.mH.adjoint(),
    "detach": lambda w: w.detach(),
    "data": lambda w: w.data,
}


@pytest.mark.parametrize("how", PRODUCTS)
def test_products_with_keywords(how):
    def call(x):
        weights = torch.softmax(input=x @ x.mT, dim=-1)
        with torch.no_grad():
            return PRODUCTS[how](weights, x), weights[:, None]

    module = Calls(call)
    (layer,) = watched(module, inputs()).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


@pytest.mark.parametrize("how", CHANGES_BY_NAME)
def test_changes_with_keywords(how):
    def call(x):
        weights = functional.softmax(input=x @ x.mT, dim=-1)
        return CHANGES_BY_NAME[how](weights) @ x, weights[:, None]

    module = Calls(call)
    (layer,) = watched(module, inputs()).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


ITERATED = {
    "twice": lambda w, v: w @ (w @ v),
    "three times": lambda w, v: w @ (w @ (w @ v)),
    "after dropout": lambda w, v: functional.dropout(w, 0.5) @ (functional.dropout(w, 0.5) @ v),
    "after a change": lambda w, v: (changed := w.clamp(min=1e-9)) @ (changed @ v),
    "with a rest": lambda w, v: w @ (0.5 * (w @ v) + v),
    "after a reshape": lambda w, v: w @ (w @ v).transpose(1, 2).flatten(2).unflatten(2, (HEADS, -1)).transpose(1, 2),
}


@pytest.mark.parametrize("cls", [Calls, OwnAttention])
@pytest.mark.parametrize("how", ITERATED)
def test_iterated_attention_is_one_layer(how, cls):
    def call(x):
        query, key, value = parts_of(x)
        weights = (query @ key.mT).softmax(-1)
        return ITERATED[how](weights, value), weights

    module = cls(call)
    (layer,) = watched(module, inputs(), keep_values=True).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)
    assert layer.value is None


class Projected(nn.Module):
    num_heads = HEADS

    def __init__(self, project):
        super().__init__()
        self.weight, self.project = nn.Parameter(torch.randn(HEADS, WIDTH, HEADS * WIDTH)), project

    def forward(self, x):
        output, self.weights = attended(x)
        return self.project(output, self.weight)


class ProjectedAttention(Projected):
    pass


@pytest.mark.parametrize("cls", [Projected, ProjectedAttention])
@pytest.mark.parametrize(
    "project",
    [
        lambda o, w: torch.einsum("bhqd,hde->bqe", o.double(), w.double()),
        lambda o, w: torch.einsum("bhqd,hde->bqe", o, w.to(torch.float64).float()),
        lambda o, w: (o @ (w * 2)).sum(1),
        lambda o, w: torch.einsum("bqhd,hde->bqe", o.transpose(1, 2), w.detach()),
        lambda o, w: o.transpose(1, 2).flatten(2) @ w.flatten(0, 1).expand(BATCH, -1, -1),
        lambda o, w: torch.bmm(o.transpose(1, 2).flatten(2), w.view(1, HEADS * WIDTH, -1).repeat(BATCH, 1, 1)),
    ],
)
def test_output_projections_are_no_linear_attention(project, cls):
    module = cls(project)
    (layer,) = watched(module, inputs()).layers
    torch.testing.assert_close(layer.weights.dense(), module.weights)


def with_slow_attention(call):
    model = Outer(Calls(call), SlowAttention())
    model.parts[1].forward = lambda _: SlowAttention.forward(model.parts[1], inputs())
    return model


CHANGED = {
    "tril": lambda w: w.tril(),
    "triu": lambda w: torch.triu(w),
    "pow": lambda w: w.pow(2),
    "**": lambda w: w**2,
    "lerp": lambda w: torch.lerp(w, torch.full_like(w, 1 / w.shape[-1]), 0.3),
    "lerp of another": lambda w: torch.lerp(torch.full_like(w, 1 / w.shape[-1]), w, 0.3),
    "cumsum": lambda w: w.cumsum(-1),
    "sqrt": lambda w: w.sqrt(),
    "maximum": lambda w: torch.maximum(torch.full_like(w, 0.1), w),
    "clip": lambda w: torch.clip(w, 0.05),
    "threshold": lambda w: functional.threshold(w, 0.1, 0.0),
    "addcmul": lambda w: torch.addcmul(w, w, w),
    "index_fill": lambda w: w.index_fill(-1, torch.tensor([2]), 0.0),
    "masked_scatter": lambda w: w.masked_scatter(w > 0.3, torch.zeros(w.numel())),
    "linear": lambda w: functional.linear(w.transpose(1, 3), torch.ones(HEADS, HEADS) / HEADS).transpose(1, 3),
    "square in a tuple": lambda w: torch.broadcast_tensors(w.square(), torch.zeros(1))[0],
}
NORMALIZE = lambda w: w / w.sum(-1, keepdim=True)  # noqa: E731


@pytest.mark.parametrize("cls", [Calls, OwnAttention])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("how", CHANGED)
def test_weights_that_any_function_changes_are_those_that_are_multiplied(how, mode, cls):
    def call(x):
        query, key, value = parts_of(x)
        weights = NORMALIZE(CHANGED[how]((query @ key.mT).softmax(-1)))
        return weights @ value, weights

    module = cls(call)
    with mode():
        (layer,) = watched(module, inputs()).layers
        torch.testing.assert_close(layer.weights.dense(), module.weights)


LOST = {
    "tril": lambda w, v: w.tril() @ v,
    "pow": lambda w, v: w.pow(2) @ v,
    "cumsum": lambda w, v: w.cumsum(-1) @ v,
    "layer_norm": lambda w, v: functional.layer_norm(w, w.shape[-1:]) @ v,
    "sort": lambda w, v: w.sort(-1).values @ v,
    "argsort and gather": lambda w, v: w.gather(-1, w.argsort(-1)) @ v,
    "flip": lambda w, v: w.flip(-1) @ v.flip(2),
    "roll": lambda w, v: w.roll(1, -1) @ v,
    "index": lambda w, v: w[..., torch.randperm(w.shape[-1])] @ v,
    "repeat": lambda w, v: w.repeat(1, 1, 1, 2) @ torch.cat([v, v], 2),
    "mean of heads": lambda w, v: w.mean(1, keepdim=True) @ v,
    "mean": lambda w, v: w.mean(1) @ v.mean(1),
    "tensordot": lambda w, v: torch.tensordot(w[0, 0], v[0, 0], 1),
    "mv": lambda w, v: torch.mv(w[0, 0], v[0, 0, :, 0]),
    "addbmm": lambda w, v: torch.addbmm(v[0, 0], w[0], v[0]),
    "part": lambda w, v: w[..., :3] @ v[:, :, :3],
    "stack": lambda w, v: torch.stack([w, w]) @ v,
    "axes in place": lambda w, v: w.transpose_(2, 3) @ v,
    "an axis in place": lambda w, v: w.unsqueeze_(0) @ v,
}


@pytest.mark.parametrize("how", LOST)
def test_what_cannot_be_recorded_is_named(how):
    def call(x):
        query, key, value = parts_of(x)
        return LOST[how]((query @ key.mT).softmax(-1), value), None

    with pytest.raises(InvalidArgument, match=r"OwnAttention computes attention in its own code.*: it"):
        watched(OwnAttention(call), inputs())
    model = with_slow_attention(call)
    with pytest.warns(UserWarning, match=r"not recorded: parts.0 \(Calls\)"):
        result = watched(model, inputs())
    assert [layer.name for layer in result.layers] == ["parts.1"]


@pytest.mark.parametrize(
    "use",
    [
        lambda w, v: w.mean(1) @ v.mean(1),
        lambda w, v: w.mean(1) @ w.mean(1),
        lambda w, v: w.sum(2).unsqueeze(2) @ v,
        lambda w, v: w.pow(2) @ v,
        lambda w, v: torch.special.entr(w) @ torch.ones_like(v),
        lambda w, v: torch.ones_like(w).tril() @ v,
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_computed_from_the_weights_besides_does_not_matter(use, is_first):
    def call(x):
        query, key, value = parts_of(x)
        weights = (query @ key.mT).softmax(-1)
        if is_first:
            use(weights, value)
        output = weights @ value
        use(weights, value)
        return output, weights

    for cls in (Calls, OwnAttention):
        module = cls(call)
        (layer,) = watched(module, inputs()).layers
        torch.testing.assert_close(layer.weights.dense(), module.weights)
