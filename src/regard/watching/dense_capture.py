"""Dense capture: the scores of attention that a module computes itself, taken where they go into its softmax.

Tensors that hold the result of a softmax are followed, through changes of their axes, dropout and factors, to the
matrix product that takes them. There it is known which axis is which: the product sums over the keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from regard.ops.request import DTYPES, make_request
from regard.ops.scores import Bias, ScaledDotProduct
from regard.watching.call import AttentionCall, check_inputs
from regard.watching.feature_axes import FeatureAxes
from regard.watching.matrix_products import OTHER_PRODUCTS, PRODUCTS, operands_of, terms_of
from regard.watching.module_inspection import is_named_attention, is_of_transformers
from regard.watching.score_axes import PERMUTATIONS, RESHAPES, moved_roles, roles_of_product
from regard.watching.softmax_product import HeadAxes, NotAttention, Product, read_product
from regard.watching.softmax_result import (
    FACTORS,
    MOVES,
    PARTS,
    SAME_ENTRIES,
    SIDE_RESULTS,
    Followed,
    Softmax,
    is_per_row,
    rearranged,
    tensors_in,
    version_of,
)

if TYPE_CHECKING:
    from regard.watching.listener import Listener

UNDERFLOW = 110.0
"""How far below the largest score of its row one has a weight of 0 in float32."""


class DenseCapture:
    """Records attention that is computed by a softmax and a matrix product in a module's own code."""

    def __init__(self) -> None:
        self._followed = WeakTensorKeyDictionary()  # each a Followed
        self._outputs = WeakTensorKeyDictionary()  # of recorded products; each a Followed whose keys are the queries
        self._roles = WeakTensorKeyDictionary()  # of the axes of scores
        self._features = FeatureAxes()

    def observe(self, listener: Listener, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> Any:
        """Look at a call of one of torch's functions, and return its result."""
        name = getattr(func, "__name__", "").strip("_")
        first = next((each for each in ("input", "self") if each in kwargs), None)
        if first is not None:  # as the functions that are called by position
            args = kwargs[first], *args
            kwargs = {each: value for each, value in kwargs.items() if each != first}
        if name not in PRODUCTS:
            self._features.follow(name, func, args, kwargs, result)
        if name in ("softmax", "special_softmax"):
            self._on_softmax(listener, args, kwargs, result)
            return result
        if name in RESHAPES and isinstance(result, Tensor) and args and isinstance(args[0], Tensor):
            listener.forward.note_merged_axes(args[0].shape, result.shape, self._features.of(args[0]))
        if name in PRODUCTS and listener.forward.modules and isinstance(result, Tensor):
            return self._on_product(listener, name, func, args, kwargs, result)
        if self._followed or self._outputs or self._roles:
            self._on_function(listener, name, func, args, kwargs, result)
        return result

    def clear(self) -> None:
        """Forget all tensors."""
        self._followed.clear()
        self._outputs.clear()
        self._roles.clear()
        self._features.clear()

    def _on_softmax(self, listener: Listener, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor) -> None:
        scores = args[0] if args else None
        if not isinstance(scores, Tensor) or not listener.forward.modules:
            return
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if dim is None:  # as torch.nn.functional.softmax chooses it
            dim = 0 if scores.ndim in (0, 1, 3) else 1
        listener.forward.num_softmaxes += 1
        running = listener.forward.modules
        module = next((each for each in reversed(running) if not _is_softmax(each)), running[-1])
        if result.is_nested:
            return
        if result.ndim > 2 or (result.ndim == 2 and is_named_attention(type(module))):
            softmax, keys, roles = Softmax(module, result.shape), int(dim) % scores.ndim, self._roles.get(scores)
            known = Followed(softmax, scores, keys, version_of(scores), roles=roles)
            is_overwritten = kwargs.get("out") is not None  # perhaps the scores
            self._remember(result, replace(known, is_changed=True) if is_overwritten else known)

    def _remember(self, tensor: Tensor, known: Followed) -> None:
        self._followed[tensor] = replace(known, own_version=version_of(tensor))

    def _on_function(
        self, listener: Listener, name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Follow tensors through a function that is no product of matrices, as far as it is known."""
        tensors = [*tensors_in((*args, *kwargs.values()))]
        first = next((each for each in tensors if each in self._followed), None)
        if first is not None:
            is_product = name in OTHER_PRODUCTS and any(
                each is not first and not isinstance(each, nn.Parameter) for each in tensors
            )
            if is_product and listener.forward.modules:
                self._doubt(listener, self._followed[first], f"multiplies its softmax by {name}")
            else:
                self._follow(name, func, args, kwargs, first, result)
            return
        results = [*tensors_in((result,))]
        if name in RESHAPES | PERMUTATIONS and args and isinstance(args[0], Tensor) and args[0] in self._outputs:
            self._outputs[result] = rearranged(name, func, args, kwargs, self._outputs[args[0]], result)
        scores = next((each for each in tensors if each in self._roles), None)
        if scores is not None and not SIDE_RESULTS.search(name):
            for part in results:
                if part is not scores:
                    self._roles[part] = moved_roles(name, func, args, kwargs, self._roles[scores], scores, part)

    def _follow(
        self, name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any], first: Tensor, result: Any
    ) -> None:
        """Follow the results of a function of a followed tensor."""
        known: Followed = self._followed[first]
        if result is first or (name == "setitem" and args[0] is first):
            version, before = version_of(first), known.own_version
            if name in RESHAPES | PERMUTATIONS and func.__name__ == f"{name}_":
                self._remember(first, replace(known, problem="changes the axes of its softmax in place"))
                return
            if version is None or before is None or version - before in (0, 1):  # this function alone has changed it
                self._remember(first, known if name in SAME_ENTRIES else self._changed(name, known, args, kwargs))
            return
        known, is_argument = self._as_it_is(known, first), bool(args) and first is args[0]
        is_data = getattr(func, "__self__", None) is Tensor.data
        for part in tensors_in((result,)):
            same = part.shape == first.shape
            moved = rearranged(name, func, args, kwargs, known, part) if is_argument else None
            if not part.is_floating_point() or part is first:
                continue
            if (name in SAME_ENTRIES or is_data) and same and is_argument:
                is_last = known.is_changed and known.entries is None
                self._remember(part, replace(known, entries=first) if is_last else known)
            elif moved is not None:
                self._remember(part, moved)
            elif SIDE_RESULTS.search(name):
                continue
            elif same and name not in PARTS | MOVES:
                self._remember(part, self._changed(name, known, args, kwargs))
            elif name in PARTS:
                self._remember(part, replace(known, problem=known.problem or "takes a part of its keys"))
            elif known.scores.shape[known.keys] in part.shape:
                self._remember(part, replace(known, problem=known.problem or f"changes its softmax by {name}"))

    @staticmethod
    def _as_it_is(known: Followed, tensor: Tensor) -> Followed:
        """What is known of a tensor, which may have been changed in place since it was followed."""
        return known if known.own_version == version_of(tensor) else replace(known, is_changed=True, entries=None)

    def _changed(self, name: str, known: Followed, args: Sequence[Any], kwargs: dict[str, Any]) -> Followed:
        """What is known of the result of a function that changes the entries."""
        others = [
            each for each in (*args, *kwargs.values()) if not isinstance(each, Tensor) or each not in self._followed
        ]
        is_scaled = name in FACTORS and not known.is_changed and len(others) == 1 and is_per_row(others[0], known)
        if is_scaled and not kwargs.get("rounding_mode") and ("mul" in name or others[0] is not args[0]):
            return replace(known, is_scaled=True)
        return replace(known, is_changed=True, entries=None)

    def _on_product(
        self, listener: Listener, name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Tensor
    ) -> Tensor:
        """Record a product of weights and values; note one that is something else."""
        operands = operands_of(name, args, kwargs)
        weights = [number for number, each in enumerate(operands) if each in self._followed]
        forward = listener.forward
        terms = terms_of(name, args, operands) if len(operands) == 2 else None
        if terms is not None:
            self._features.follow_product(name, terms, operands, result)
        if not weights:
            if any(each in self._followed for each in tensors_in(args)):  # what baddbmm adds to
                self._on_function(listener, name, func, args, kwargs, result)
            elif terms is not None:
                self._notice_chain(listener, operands, terms)
                if name != "linear" and not isinstance(operands[1], nn.Parameter):  # which projects
                    self._roles[result] = roles_of_product(terms, operands)
            return result
        known: Followed = self._as_it_is(self._followed[operands[weights[0]]], operands[weights[0]])
        softmax = known.softmax
        module = _module_of(listener, softmax)
        if not listener.captures_softmax(module):
            return result
        if name == "linear" and weights == [0] and known.keys != operands[0].ndim - 1:  # between heads, for example
            self._on_function(listener, "matmul", func, args, kwargs, result)
            return result
        count, total = operands[weights[0]].numel(), softmax.shape.numel()
        chained = [self._outputs[each] for each in operands if each in self._outputs]
        is_iterated = bool(chained) and all(each.softmax is softmax for each in chained)
        if len(weights) == 1 and softmax.recorded and (not known.is_changed or is_iterated):
            if known.problem:
                return result  # the weights are those that were recorded, whatever else is computed from them
            if min(count, softmax.recorded) < total:
                forward.note_problem(module, "multiplies parts of its softmax one by one")
            else:
                listener.repeat(softmax.layer)
            return result
        if len(operands) != 2 or len(weights) != 1 or chained:
            has_parts = any(self._followed[operands[number]].problem for number in weights)
            (self._doubt if has_parts else self._refuse)(listener, known, "multiplies several softmaxes")
            return result
        if known.problem:
            self._doubt(listener, known, known.problem)
            return result
        layer = listener.module_names[id(module)]
        shapes, known = forward.input_shapes, replace(known, features=self._features.of(operands[weights[0]]))
        product = read_product(known, weights[0], operands, terms, name == "einsum", module, layer, shapes)
        if isinstance(product, NotAttention):
            if product.reason:
                if product.is_certain:
                    self._refuse(listener, known, product.reason)
                else:
                    self._doubt(listener, known, product.reason, may_be_other=True)
            return result
        problem = self._problem_with(known, product, math.prod(shapes[0][:-1]) if shapes else None)
        scores = None if problem else _scores_of(known, operands[weights[0]], product)
        if scores is None:
            note = self._refuse if problem else self._doubt
            note(listener, known, problem or "changes its softmax so that rows do not sum to 1")
            return result
        softmax.recorded = count
        if product.queries is not None:
            output = torch.empty(result.shape, device="meta")  # which does not keep the result
            self._outputs[result] = Followed(softmax, output, product.queries, None)
        result = record(listener, module, scores, product, result)
        softmax.layer = None if forward.waiting else forward.last_key
        if known.is_scaled:  # the values are not those of the weights alone
            listener.repeat(softmax.layer)
        return result

    def _refuse(self, listener: Listener, known: Followed, reason: str) -> None:
        listener.forward.note_problem(_module_of(listener, known.softmax), reason)

    def _doubt(self, listener: Listener, known: Followed, reason: str, *, may_be_other: bool = False) -> None:
        module = _module_of(listener, known.softmax)
        if listener.captures_softmax(module):
            listener.forward.note_doubt(module, known.softmax, reason, may_be_other=may_be_other)

    def _notice_chain(self, listener: Listener, operands: Sequence[Tensor], terms: tuple[str, str, str]) -> None:
        """Notice linear attention: the result of a product over keys is multiplied by the queries."""
        for position, (one, other) in enumerate(zip(operands, reversed(operands), strict=True)):
            known: Followed | None = self._outputs.get(one)
            if known is None or all(each is not known.softmax.module for each in listener.forward.modules):
                continue
            is_summed = not known.problem and terms[position][known.keys] not in terms[2]
            if is_summed and other.ndim > 2 and not isinstance(other, nn.Parameter):
                listener.forward.note_problem(known.softmax.module, "multiplies queries by a product over keys")

    def _problem_with(self, known: Followed, product: Product, tokens: int | None) -> str:
        """Why the scores of a product are not those of all keys; empty if they are."""
        if known.is_overwritten:
            return "overwrites its scores after the softmax"
        queries, keys = product.arrange(known.scores).shape[-2:]
        shape = known.softmax.shape
        if len(shape) < 5 or queries == keys:
            return ""
        heads = product.heads if product.heads is not None and product.heads in shape else 1
        count = math.prod(shape) // queries // heads
        return "" if tokens is not None and count <= tokens else "attends to blocks of keys"


def record(listener: Listener, module: nn.Module, scores: Tensor, product: Product, output: Tensor) -> Tensor:
    """Record the scores of a module's attention, (*lead, queries, keys), and return its output."""
    check_inputs(type(module).__name__, scores, product.values)
    forward = listener.forward
    lead = torch.broadcast_shapes(scores.shape[:-2], product.values.shape[:-2])
    heads = HeadAxes.of(lead, module, forward.merged_axes.get(id(module), ()), product.features)
    scores, values = (heads.split(part.expand(*lead, *part.shape[-2:])) for part in (scores, product.values))
    batch, num_heads, queries, keys = scores.shape
    top = scores.detach().amax(-1, keepdim=True)
    empty = top <= torch.finfo(scores.dtype).min / 2
    if bool(empty.any()):
        scores = scores.masked_fill(empty, -torch.inf)
    shape, is_causal = (queries, keys), _is_causal(scores.detach(), top, empty)
    kind = listener.attention_kind(module, is_causal, shape)
    origin = listener.masks.of_shape(shape, kind)
    is_self, is_known = kind != "cross", any(map(is_of_transformers, forward.modules))
    q_offset, kv_offset = (origin.q_offset, origin.kv_offset) if is_self or not is_known else (0, 0)
    valid = origin.part_of_padding(q_offset, queries) if is_self else None
    if valid is None or valid.shape != (batch, queries):
        valid = forward.valid_queries(kind, scores.shape)
    if valid is None and is_self and queries == keys:
        valid = _valid_queries(scores.detach(), top, empty)
    zero = _zero(scores.dtype, scores.device, torch.is_inference_mode_enabled())
    call = AttentionCall(
        make_request(
            zero.expand(batch, num_heads, queries, 1),
            zero.expand(batch, 1, keys, 1),
            score=ScaledDotProduct() + Bias(scores),
            scale=1.0,
            offset=q_offset - kv_offset,
        ),
        q_offset,
        kv_offset,
        valid,
        value=values,
        has_assumed_positions=origin.is_unknown and not is_known,
        is_dense=True,
    )
    if not is_self and is_known:  # each step has the position of its row
        forward.locate_queries(kind, call)
        call.request = replace(call.request, offset=call.q_offset)
    listener.record_unchangeable(module, call, scores, separate_layers=True)
    if call.output_gradient is None:
        return output
    return call.output_gradient.follow(output, lambda gradient: heads.split(product.arrange_output(gradient)))


def _module_of(listener: Listener, softmax: Softmax) -> nn.Module:
    """The module that computed a softmax, if it is running; else the innermost one."""
    running = listener.forward.modules
    return softmax.module if any(each is softmax.module for each in running) else running[-1]


def _is_softmax(module: nn.Module) -> bool:
    """Whether a module is a softmax, whose result belongs to the module that calls it."""
    return type(module).__name__.lower().endswith("softmax") and not any(module.children())


@lru_cache(maxsize=64)
def _zero(dtype: torch.dtype, device: torch.device, _: bool) -> Tensor:
    """A query and key whose scores are 0. Calls share one, so that calls of the same scores are equal."""
    return torch.zeros(1, 1, 1, 1, dtype=dtype, device=device)


def _scores_of(known: Followed, weights: Tensor, product: Product) -> Tensor | None:
    """The scores, (*lead, queries, keys).

    Of weights that were changed after the softmax, their logarithm; None if they do not sum to 1 or 0 in each row.
    """
    if not known.is_changed:
        scores = product.arrange(known.scores)
        return scores if scores.dtype in DTYPES else scores.float()
    weights = product.arrange(weights if known.entries is None else known.entries)
    tolerance = 1e-2 if weights.dtype.itemsize < 4 else 2e-5
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    sums = weights.detach().sum(-1)
    is_weight = ((sums - 1).abs() <= tolerance) | (sums == 0)
    if not bool(is_weight.all()) or bool((weights.detach() < 0).any()):
        return None
    smallest = torch.finfo(weights.dtype).tiny
    return torch.where(weights > 0, weights.clamp(min=smallest).log(), -torch.inf)  # without an infinite gradient


def _is_causal(scores: Tensor, top: Tensor, empty: Tensor) -> bool:
    """Whether the query in the middle attends to no key after it, but to some key."""
    queries, keys = scores.shape[2:]
    middle = (queries - 1) // 2
    if queries != keys or queries < 2:
        return False
    after, is_empty = scores[:, :, middle, middle + 1 :], empty[:, :, middle]
    hidden = (after < top[:, :, middle] - UNDERFLOW) | is_empty
    return bool(hidden.all() & ~is_empty.all())


def _valid_queries(scores: Tensor, top: Tensor, empty: Tensor) -> Tensor | None:
    """Which tokens are not padding, (batch, queries); None if all are.

    Padding is what no query attends to, where the mask else is causal or none: other masks can leave out a token, too.
    """
    hidden = ((scores < top - UNDERFLOW) | empty).all(1)
    valid = ~hidden.all(1)
    if bool(valid.all()):
        return None
    rest = (hidden & valid[:, None])[valid]  # of tokens that may be attended to
    is_causal = torch.equal(rest, (hidden.new_ones(hidden.shape).triu(1) & valid[:, None])[valid])
    return valid if is_causal or not bool(rest.any()) else None
