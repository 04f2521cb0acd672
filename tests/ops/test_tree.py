"""Tensors in rules are found and replaced in one order."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.ops.masks import Causal
from regard.ops.tree import map_float_tensors, tensors_in


@dataclass(frozen=True, eq=False)
class Rule:
    first: Tensor
    name: str
    inner: object
    count: Tensor


def test_floating_tensors_are_found_in_order_and_nothing_else_changes():
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    mask = Causal()
    rule = Rule(one, "rule", {"a": two, "b": Rule(three, "inner", mask, torch.arange(4))}, torch.arange(2))
    assert [t.numel() for t in tensors_in(rule)] == [1, 2, 3, 4, 2]
    doubled = map_float_tensors(rule, lambda tensor: tensor * 2)
    assert [t.tolist() for t in tensors_in(doubled)] == [[2.0], [2.0, 2.0], [2.0, 2.0, 2.0], [0, 1, 2, 3], [0, 1]]
    assert doubled.inner["b"].inner is mask
    assert doubled.count is rule.count
    assert tensors_in(rule)[0] is one


def test_a_rule_without_tensors_stays_itself():
    mask = Causal()
    assert map_float_tensors(mask, lambda tensor: tensor * 2) is mask
