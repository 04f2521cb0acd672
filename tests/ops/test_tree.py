"""Tensors in rules are listed and replaced in one order, and the rest is encoded."""

from __future__ import annotations

from collections import defaultdict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType

import pytest
import torch
from torch import Tensor

from regard.errors import StaleView
from regard.ops.masks import Causal, Mask, Padding, Window
from regard.ops.measures import TopK
from regard.ops.scores import ScaledDotProduct, SoftCap
from regard.ops.tree import (
    TensorVersions,
    TreeEncoder,
    decode,
    map_float_tensors,
    map_tensors,
    structure,
    tensors_in,
)


@dataclass(frozen=True, eq=False)
class Node:
    first: Tensor
    name: str
    inner: object
    count: Tensor


Pair = namedtuple("Pair", ["left", "right"])


def test_tensors_are_found_in_order_and_nothing_else_changes():
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    mask = Causal()
    node = Node(one, "node", {"a": two, "b": Node(three, "inner", mask, torch.arange(4))}, torch.arange(2))
    assert [t.numel() for t in tensors_in(node)] == [1, 2, 3, 4, 2]
    doubled = map_float_tensors(node, lambda tensor: tensor * 2)
    assert [t.tolist() for t in tensors_in(doubled)] == [[2.0], [2.0, 2.0], [2.0, 2.0, 2.0], [0, 1, 2, 3], [0, 1]]
    assert doubled.inner["b"].inner is mask
    assert doubled.count is node.count
    assert tensors_in(node)[0] is one


def test_lists_tuples_named_tuples_and_mappings_are_trees():
    one, two, three, four = (torch.ones(size) for size in (1, 2, 3, 4))
    tree = [one, (two, "text"), Pair(three, None), MappingProxyType({"x": four})]
    assert [t.numel() for t in tensors_in(tree)] == [1, 2, 3, 4]
    doubled = map_tensors(tree, lambda tensor: tensor * 2)
    assert [t.numel() for t in tensors_in(doubled)] == [1, 2, 3, 4]
    assert all((t == 2).all() for t in tensors_in(doubled))
    assert (type(doubled), type(doubled[1]), type(doubled[2])) == (list, tuple, Pair)
    default = map_tensors(defaultdict(list, x=one), lambda tensor: tensor * 2)
    assert (type(default), default["x"].tolist(), default["y"]) == (defaultdict, [2.0], [])
    assert tensors_in({1, 2}) == tensors_in("text") == tensors_in(object()) == []


def test_a_rule_without_tensors_stays_the_same_object():
    mask = Causal()
    assert map_float_tensors(mask, lambda tensor: tensor * 2) is mask
    tree = {"mask": mask, "numbers": [1, 2]}
    assert map_tensors(tree, lambda tensor: tensor * 2) is tree


def test_trees_are_encoded_and_decoded():
    lengths = torch.tensor([1, 2])
    tree = {"rule": Padding(lengths) & Causal(), "rest": (None, True, "it's", 1.5, 7, slice(2, None), {})}
    encoder = TreeEncoder()
    text = encoder.encode(tree)
    assert encoder.tensors[0] is lengths
    assert encoder.lists[1:] == ([0, 7, 2], [1.5])  # the first is the causal window's right limit
    classes = {type(rule).__name__: type(rule) for rule in (tree["rule"], tree["rule"].left, tree["rule"].right)}
    decoded = decode(text, *encoder.lists, classes)
    assert decoded["rest"] == tree["rest"]
    assert repr(decoded["rule"]) == repr(tree["rule"])
    assert decoded["rule"].left.lengths_or_mask is lengths
    with pytest.raises(KeyError):
        decode(text, *encoder.lists, {})  # no other class is made


def test_equal_structures_are_trees_that_differ_in_no_number_name_or_class():
    makers = [
        lambda: None,
        lambda: Causal(),
        lambda: Window(3, 0),
        lambda: Window(3, 1),
        lambda: Window(3, 0) & Window(1, 2),
        lambda: Window(1, 2) & Window(3, 0),
        lambda: Window(3, 0) | Window(1, 2),
        lambda: SoftCap(ScaledDotProduct(), 1.5),
        lambda: {"first": TopK(2)},
        lambda: {"second": TopK(2)},
        lambda: {"first": TopK(3)},
        lambda: [slice(1, None)],
        lambda: [slice(None, 1)],
        lambda: (1, "it's"),
        lambda: [1, "it's"],
    ]
    assert [structure(make()) for make in makers] == [structure(make()) for make in makers]
    assert len({structure(make()) for make in makers}) == len(makers)


class EveryThird(Mask):
    """A user's mask, which may follow from anything."""

    def allowed(self, tile):
        return (tile.rows + tile.keys) % 3 == 0


@pytest.mark.parametrize(
    "held", [torch.tensor([2, 1]), EveryThird(), object(), {1, 2}, print], ids=lambda held: type(held).__name__
)
def test_what_may_follow_from_anything_else_has_no_structure(held):
    for tree in (held, [held], {"a": (held,)}, Padding(held) if isinstance(held, Tensor) else Causal() & EveryThird()):
        with pytest.raises(TypeError, match="expected built-in rules and plain data, got"):
            structure(tree)


def test_in_place_changes_are_noticed():
    lengths, inference = torch.tensor([1, 2]), None
    with torch.inference_mode():
        inference = torch.ones(2)
    versions = TensorVersions({"mask": Padding(lengths), "other": inference})
    versions.check("the mask")
    lengths[0] = 5
    with pytest.raises(StaleView, match=r"the mask: the tensor of shape \(2,\) was changed in place; compute"):
        versions.check("the mask")
