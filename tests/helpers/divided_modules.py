"""Modules that processes divide by tensor parallelism, compared with whole ones in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from regard.models import Bert, BertConfig
from regard.nn import AlibiPositions, FeedForward, MultiHeadAttention, RelativePositions, RotaryPositions, T5Positions
from regard.nn.rotary_positions import rotary_frequencies
from regard.nn.tensor_parallel import row_orders, shard_heads
from regard.ops.masks import Causal

SELF: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "alibi": lambda: AlibiPositions(4),
    "t5": lambda: T5Positions(4, bidirectional=False),
    "relative": lambda: RelativePositions(4, max_distance=3),
    "rotary": lambda: RotaryPositions(rotary_frequencies(4)),
}


def compare_with_whole() -> None:
    """Outputs and gradients of divided modules are those of whole ones."""
    mesh = _start()
    x, memory = torch.randn(3, 7, 16, dtype=torch.float64), torch.randn(3, 5, 16, dtype=torch.float64)
    for positions in SELF.values():
        for options in ({}, {"num_kv_heads": 2}, {"bias": False, "out_bias": True}):
            attention = MultiHeadAttention(16, 4, positions=positions(), **options).double()
            _compare(attention, mesh, lambda module, x: module(x, mask=Causal()).output, x)
    cross = MultiHeadAttention(16, 4, num_kv_heads=2).double()
    _compare(cross, mesh, lambda module, x, memory: module(x, memory).output, x, memory)
    _compare(cross, mesh, lambda module, x, memory: module(x, memory, memory * 2).output, x, memory)
    for gated in (False, True):
        _compare(FeedForward(16, 24, gated=gated, activation="silu").double(), mesh, lambda module, x: module(x), x)
    distributed.destroy_process_group()


def compare_dropout() -> None:
    """What processes divide is dropped differently on each, all else alike."""
    mesh = _start()
    for module in (FeedForward(8, 64, dropout=0.5), MultiHeadAttention(8, 4, dropout=0.5)):
        for parameter in module.parameters():
            nn.init.ones_(parameter)  # so that heads and features are the same, but for dropout
        shard_heads(module, mesh)
        inputs: list[Tensor] = []
        last = module.fc2 if isinstance(module, FeedForward) else module.out_proj
        last.register_forward_pre_hook(lambda layer, given, inputs=inputs: inputs.append(given[0]))
        output = module(torch.ones(2, 5, 8))
        assert not _is_same_everywhere(inputs[0])
        assert _is_same_everywhere(output if isinstance(output, Tensor) else output.output)
    assert _is_same_everywhere(torch.rand(4))  # the generator outside the module
    config = BertConfig(50, d_model=16, num_heads=4, num_layers=2, d_ff=32, attention_dropout=0.5, dropout=0.3)
    model = Bert(config)
    shard_heads(model, mesh)
    output = model(torch.arange(20).view(2, 10)).last_hidden_state
    assert _is_same_everywhere(output)
    model.eval()
    assert torch.equal(model(torch.arange(20).view(2, 10)).last_hidden_state, model(torch.arange(20).view(2, 10))[0])
    distributed.destroy_process_group()


def _start() -> Any:
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    return init_device_mesh("cpu", (distributed.get_world_size(),))


def _compare(module: nn.Module, mesh: Any, call: Callable[..., Tensor], *inputs: Tensor) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    module.zero_grad()
    divided = copy.deepcopy(module)
    shard_heads(divided, mesh)
    results = []
    for each in (module, divided):
        own = [x.clone().requires_grad_() for x in inputs]
        output = call(each, *own)
        (output * torch.arange(output.numel(), dtype=output.dtype).view_as(output).cos()).sum().backward()
        results.append([output, *(x.grad for x in own)])
    orders, parameters = row_orders(divided), dict(module.named_parameters())
    for name, parameter in divided.named_parameters():
        gradient: Any = parameter.grad
        gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        expected: Any = parameters[name].grad
        results[0].append(expected[orders[name]] if name in orders else expected)
        results[1].append(gradient)
        assert parameter.numel() == parameters[name].numel()
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


def _is_same_everywhere(tensor: Tensor) -> bool:
    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, tensor.detach().contiguous())
    return all(torch.equal(part, parts[0]) for part in parts)
