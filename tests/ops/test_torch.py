"""Transforms, checkpointing, autocast and threads of torch, compared with eager, dense attention."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call, grad, jacrev, jvp, vmap
from torch.utils.checkpoint import checkpoint

from helpers.ops.cases import masks
from helpers.ops.tiny_attention import TOKENS, Attention, tensors
from regard.ops import attend, weights
from regard.ops.kernels.base import Kernel, KernelInputs
from regard.ops.kernels.blockwise import Blockwise
from regard.ops.masks import Causal, Neighbors
from regard.ops.measures import Measure, TopK, as_measures
from regard.ops.request import make_request
from regard.ops.tree import TreeEncoder, tensors_in

GRAPH = Neighbors(*torch.stack((torch.arange(TOKENS), torch.arange(TOKENS).flip(0))))
KERNELS = {"blockwise": Causal(), "sparse": GRAPH, "sdpa": None, "reference": Causal()}


@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
@pytest.mark.parametrize("kernel", KERNELS)
def test_grad_vmap_and_jacrev(kernel):
    query, key, value = (tensor.detach() for tensor in tensors(torch.float64))
    mask = KERNELS[kernel]
    requested = as_measures(["entropy", "received", "lse", "max"])
    requested = {name: m for name, m in requested.items() if Kernel.registered[kernel].supports(type(m))}

    def loss(query, key, value, kernel=kernel):
        att = attend(query, key, value, mask=mask, measure=requested, kernel=kernel)
        parts = [part for each in att.measured.values() for part in (each if isinstance(each, tuple) else (each,))]
        return att.output.square().sum() + sum(part.square().sum() for part in parts)

    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    expected = torch.autograd.grad(loss(*leaves, kernel="reference"), leaves)
    torch.testing.assert_close(grad(loss, argnums=(0, 1, 2))(query, key, value), expected)
    several = torch.stack((query, query + 1, query - 1))
    vmap_by_loop = torch.stack([grad(loss)(each, key, value) for each in several])
    torch.testing.assert_close(vmap(grad(loss), (0, None, None))(several, key, value), vmap_by_loop)
    summed = torch.stack([loss(each, key, value) for each in several])
    torch.testing.assert_close(vmap(loss, (0, None, None))(several, key, value), summed)
    rows = jacrev(lambda query: attend(query, key, value, mask=mask, kernel=kernel).output[0, 0, 3])(query)
    assert rows.shape == (4, *query.shape)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch, which calls it
@pytest.mark.parametrize("kernel", KERNELS)
def test_forward_mode_is_right_or_rejected(kernel):
    query, key, value = (tensor.detach() for tensor in tensors(torch.float64))
    tangent = torch.randn_like(query)

    def output(query):
        return attend(query, key, value, mask=KERNELS[kernel], kernel=kernel).output

    try:
        _, actual = jvp(output, (query,), (tangent,))
    except (NotImplementedError, RuntimeError):
        assert kernel != "reference"
        return
    step = 1e-6
    expected = (output(query + step * tangent) - output(query - step * tangent)) / (2 * step)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-7)


def test_autocast_leaves_measures_in_float32():
    query, key, value = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        att = attend(query.bfloat16(), key.bfloat16(), value.bfloat16(), measure=["entropy"], kernel="blockwise")
        att.measured["entropy"].sum().backward()
    assert att.output.dtype == torch.bfloat16
    assert att.measured["entropy"].dtype == torch.float32
    exact = weights(query.bfloat16().double(), key.bfloat16().double()).entropy()
    torch.testing.assert_close(att.measured["entropy"].double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_activation_checkpointing_gives_the_same_gradients(reentrant, dropout):
    leaves = tensors()

    def loss(query, key, value):
        att = attend(query, key, value, mask=Causal(), dropout=dropout, measure=["entropy"], kernel="blockwise")
        return att.output.square().sum() + att.measured["entropy"].square().sum()

    gradients = []
    for checkpointed in (False, True):
        torch.manual_seed(3)
        total = checkpoint(loss, *leaves, use_reentrant=reentrant) if checkpointed else loss(*leaves)
        for leaf in leaves:
            leaf.grad = None
        total.backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(*gradients)


def test_functional_call():
    module = Attention()
    arguments = (*(tensor.detach() for tensor in tensors()), torch.tensor([12]))

    def loss(parameters):
        return functional_call(module, parameters, arguments)[0].square().sum()

    parameters = dict(module.named_parameters())
    gradients = grad(loss)({name: parameter.detach() for name, parameter in parameters.items()})
    (expected,) = torch.autograd.grad(loss(parameters), [module.sinks])
    torch.testing.assert_close(gradients["sinks"], expected)


@pytest.mark.parametrize("mask", ["none", "causal", "neighbors"])
def test_opcheck(mask):
    query, key, value = tensors()
    rule = masks(1, 2, TOKENS, TOKENS)[mask]
    encoder = TreeEncoder()
    text = encoder.encode(
        KernelInputs(value, make_request(query, key, mask=rule), as_measures(["entropy", "received", TopK(2)]))
    )
    flat, *numbers = encoder.lists
    kernel = "sparse" if mask == "neighbors" else "blockwise"
    seed = torch.zeros((), dtype=torch.int64)
    torch.library.opcheck(torch.ops.regard.attend.default, (flat, *numbers, text, kernel, seed, 0))
    plain = [tensor.detach() for tensor in flat]
    results = torch.ops.regard.attend(plain, *numbers, text, kernel, seed, 0)
    is_present = [part.is_floating_point() for part in results]
    gradients = [torch.ones_like(part) for part in results if part.is_floating_point()]
    needed = [tensor.is_floating_point() for tensor in flat]
    arguments = plain, *numbers, text, kernel, seed, 0, [], gradients, is_present, needed
    torch.library.opcheck(torch.ops.regard.attend_backward.default, arguments)


def test_a_user_s_measure_under_torch_func():
    class Peak(Measure):
        def compute(self, block):
            return block.weights.square().sum(-1)

    query, key, _ = (tensor.detach() for tensor in tensors(torch.float64))

    def loss(query, kernel):
        return attend(query, key, key, measure=Peak(), kernel=kernel).measured["peak"].sum()

    torch.testing.assert_close(grad(loss)(query, "blockwise"), grad(loss)(query, "reference"))


def test_transformed_and_compiled_programs_run_on_threads():
    query, key, value = torch.randn(3, 1, 2, 512, 2**13).unbind()  # so wide that it is worth it
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]

    def loss(query, key, value, kernel="blockwise"):
        att = attend(query, key, value, mask=Causal(), measure=["entropy", "received"], kernel=kernel)
        return att.output.square().sum() + sum(result.square().sum() for result in att.measured.values())

    expected = torch.autograd.grad(loss(*leaves, kernel="reference"), leaves)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert Blockwise().streams(KernelInputs(None, make_request(query, key), {}))[1] == 2
        gradients = [
            grad(loss, argnums=(0, 1, 2))(query, key, value),
            torch.autograd.grad(torch.compile(loss, backend="aot_eager", fullgraph=True)(*leaves), leaves),
            torch.autograd.grad(checkpoint(loss, *leaves, use_reentrant=False), leaves),
        ]
    finally:
        torch.set_num_threads(before)
    for each in gradients:
        torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-4)


def test_a_meta_device_gives_the_shapes_of_measures_and_gradients():
    real = tensors()
    meta = [tensor.detach().to("meta").requires_grad_() for tensor in real]
    results = [attend(*each, mask=Causal(), measure=["entropy", "received", TopK(3)]) for each in (real, meta)]
    (expected, actual) = ([each.output, *tensors_in(each.measured)] for each in results)
    assert [(x.shape, x.dtype) for x in actual] == [(x.shape, x.dtype) for x in expected]
    assert all(x.device.type == "meta" for x in (*actual, results[1].weights.dense()))
    results[1].measured["entropy"].sum().backward()
    assert meta[0].grad.shape == real[0].shape
