"""Autograd, `vmap` and `torch.compile` for kernels that consist of a forward and a backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter, is_
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from regard.errors import KernelNotSupported
from regard.ops.autograd import (
    AutogradFunction,
    check_forward_mode,
    has_no_memory,
    is_traced,
    vmap_by_loop,
    without_autocast,
)
from regard.ops.dropout import draw_seed
from regard.ops.kernels.base import Kernel, KernelInputs, Measured, RunOptions, are_builtin
from regard.ops.kernels.custom_op import call_operator
from regard.ops.kernels.derivatives import Derivative, Differentiate, keep, reverse
from regard.ops.kernels.derivatives import forward as forward_mode
from regard.ops.kernels.results import Layouts, MeasureResults, unflatten
from regard.ops.measures.base import Spec
from regard.ops.tree import TensorVersions, map_tensors, tensors_in, walk


class ForwardResult(NamedTuple):
    """What a forward pass returns.

    Args:
        output: (batch, heads, queries, value_dim); None if there is no value.
        results: The results of the measures.
        saved: What the backward pass needs; see `DifferentiableKernel.saved_specs`.
    """

    output: Tensor | None
    results: MeasureResults
    saved: tuple[Tensor, ...] = ()


class PreparedPasses(Protocol):
    """Both passes of a call without other tensors than value, query and key, packed once for many calls."""

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The output, if there is a value, the tensors of the results, and what the backward pass needs."""
        ...

    def backward(
        self, needed: Sequence[bool], gradients: Sequence[Tensor | None], tensors: Sequence[Tensor], lse: Tensor
    ) -> tuple[Tensor, ...] | None:
        """As `DifferentiableKernel.gradients`; None for a pass that is not prepared."""
        ...


class DifferentiableKernel(Kernel):
    """Base of kernels that are a forward and a backward pass below autograd.

    Attributes:
        fallback: The kernel that computes the gradients that this one has not, and calls of a compiled program on a
            machine without this one; None if there is no such case.
        saves_first_result: Whether the backward pass gets the output, or without a value the first result, before what
            the forward pass saved.
    """

    fallback: ClassVar[DifferentiableKernel | None] = None
    saves_first_result: ClassVar[bool] = False

    def saved_specs(self, inputs: KernelInputs) -> Sequence[Spec]:
        """Shapes and dtypes of the tensors that a forward pass leaves to the backward pass."""
        return ()

    def has_gradients(self, inputs: KernelInputs, needed: Sequence[bool]) -> bool:
        """Whether `backward` can compute the gradients that are needed; else `fallback` does."""
        return True

    def forward(self, inputs: KernelInputs, options: RunOptions) -> ForwardResult:
        """The output, if there is a value, the results of the measures and, if `options.saves`, what is saved."""
        raise NotImplementedError

    def backward(
        self,
        inputs: KernelInputs,
        options: RunOptions,
        needed: Sequence[bool],
        gradients: Sequence[Tensor | None],
        saved: Sequence[Tensor],
    ) -> list[Tensor]:
        """The gradients of the tensors that need one.

        Args:
            inputs: As in the forward pass.
            options: As in the forward pass.
            needed: For each tensor of `tensors_in(inputs)`, whether it needs a gradient.
            gradients: For the output, if there is a value, and each tensor of the results; None for zero.
            saved: Of the forward pass; before it the first result, if `saves_first_result`.
        """
        raise NotImplementedError

    def gradients(
        self,
        inputs: KernelInputs,
        options: RunOptions,
        needed: Sequence[bool],
        incoming: Sequence[Tensor | None],
        saved: Sequence[Tensor],
    ) -> list[Tensor]:
        """What `backward` returns, in the dtypes of the tensors: sums are rounded once, at the end."""
        rules = needed[2:] if inputs.value is None else needed[3:]
        wide = inputs.with_wide_rules() if any(rules) else inputs
        kernel = self if self.fallback is None or self.has_gradients(wide, needed) else self.fallback
        tensors = [tensor for tensor, need in zip(tensors_in(inputs), needed, strict=True) if need]
        sums = kernel.backward(wide, options, needed, incoming, saved)
        return [total.to(tensor.dtype) for total, tensor in zip(sums, tensors, strict=True)]

    def derivative(
        self, inputs: KernelInputs, options: RunOptions, which: Derivative, tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        """Second and higher derivatives, and forward mode: those of `fallback`, for there a rule needs no code for it.

        Args:
            inputs: As in the forward pass.
            options: As in the forward pass.
            which: The derivative.
            tensors: Those that follow the tensors of the inputs; see `Derivative`.

        Raises:
            KernelNotSupported: If there is no fallback.
        """
        if self.fallback is None:
            raise KernelNotSupported(
                f"second derivative: kernel '{self.name}' has none and names no fallback; use kernel='blockwise'"
            )
        return self.fallback.derivative(inputs, options, which, tensors)

    def run(self, inputs: KernelInputs) -> tuple[Tensor | None, Measured]:
        """Where torch traces it, one operator, or for a user's rules or kernel what torch can trace; else `run_eager`.

        On the meta device it is the operator, too: it gives shapes without computing.

        Raises:
            KernelNotSupported: In `torch.jit.trace`, whose programs have no operators with lists of numbers.
        """
        if not is_traced() and not has_no_memory(inputs.request.query):
            return self.run_eager(inputs)
        is_compiling = torch.compiler.is_compiling()
        if not is_compiling and torch._C._is_tracing():  # pyright: ignore[reportPrivateUsage]
            raise KernelNotSupported(
                f"kernel: torch.jit.trace cannot record {self.name!r}; use torch.export.export, or kernel='reference'"
            )
        if inputs.is_builtin and self is self.registered.get(self.name):
            return call_operator(self.name, inputs, len(self.saved_specs(inputs)))
        if not is_compiling:
            return (self.fallback or self).run_eager(inputs)
        from regard.ops.graph_break import call  # loads torch's compiler, which takes a second

        return call(self.run_eager, inputs)

    def run_eager(self, inputs: KernelInputs) -> tuple[Tensor | None, Measured]:
        """Run now, as one autograd function where a gradient or a transform needs it."""
        tensors, trees = walk(inputs)
        is_tracked = torch.is_grad_enabled() and any(map(_requires_grad, tensors))
        is_transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]
        seed = draw_seed(inputs.request.query.device) if inputs.dropout else None
        checks_untracked = torch.is_grad_enabled() and not are_builtin(trees)
        options = RunOptions(seed, is_tracked or is_transformed, checks_untracked)
        return DifferentiableCall(self, inputs, options, tensors).run(tensors)

    def differentiable_gradients(
        self, inputs: KernelInputs, needed: Sequence[bool], gradient: Tensor
    ) -> tuple[Tensor, ...]:
        """The gradients of the tensors that need one, from that of the output alone, as a step of autograd."""
        tensors = tensors_in(inputs)
        needed = [*needed, *[False] * (len(tensors) - len(needed))]
        return _Backward.apply(
            DifferentiableCall(self, inputs, RunOptions(), tensors), needed, [True], *tensors, gradient
        )


_requires_grad = attrgetter("requires_grad")


def _without_negation(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Tensors whose memory has their numbers; that of the imaginary part of a conjugate has the other sign."""
    return [*map(Tensor.resolve_neg, tensors)] if any(map(Tensor.is_neg, tensors)) else tensors


@dataclass(eq=False)
class DifferentiableCall:
    """A call on its way through autograd, which sees its tensors only.

    Args:
        kernel: The kernel.
        inputs: What it computes.
        options: How.
        tensors: Those of the inputs.
        layouts: Of the results, after the forward pass.
        num_saved: How many tensors the forward pass leaves to the backward pass.
        prepared: What runs the passes instead of the kernel; without tensors, for it is the same for many calls.
    """

    kernel: DifferentiableKernel
    inputs: KernelInputs
    options: RunOptions
    tensors: list[Tensor]
    layouts: Layouts = field(default_factory=dict)
    num_saved: int = 0
    prepared: PreparedPasses | None = None

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor | None, Measured]:
        """The output, if there is a value, and the measures by name, as a step of autograd if anything is saved."""
        flat = _Forward.apply(self, *tensors) if self.options.saves else self.forward(tensors)
        output, results = (None, flat) if self.inputs.value is None else (flat[0], flat[1:])
        return output, unflatten(self.inputs.measures, self.layouts, results)

    def without_tensors(self) -> DifferentiableCall:
        """The call with placeholders: its tensors must be held by autograd alone, which frees or offloads them."""
        passes = getattr(getattr(self.inputs, "preparation", None), "passes", None)
        if passes is not None:  # the forward pass has prepared the backward pass, too
            return passes
        placeholder = torch.empty(0, device="cpu")
        tensors = [placeholder] * len(self.tensors)
        return replace(self, inputs=map_tensors(self.inputs, lambda _: placeholder), tensors=tensors)

    def with_tensors(self, tensors: Sequence[Tensor]) -> KernelInputs:
        """The inputs with other tensors, as `torch.func` passes them."""
        if all(map(is_, tensors, self.tensors)):
            return self.inputs
        rest = iter(tensors)
        return map_tensors(self.inputs, lambda _: next(rest))

    def forward(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The output, if there is a value, the tensors of the results, and those that are saved."""
        if self.prepared is not None:
            return self.prepared.forward(tensors)
        records = nullcontext()  # autograd has nothing to record, or `_Forward` disables it
        if self.options.checks_untracked_tensors:  # so what still requires grad was not found in the tree
            tensors, records = [tensor.detach() for tensor in tensors], torch.no_grad()
        inputs = self.with_tensors(_without_negation(tensors))
        with records, without_autocast(tensors[0].device.type):
            output, results, saved = self.kernel.forward(inputs, self.options)
        self.layouts.update(results.layouts)
        self.num_saved = len(saved)
        return *(() if output is None else (output,)), *results.tensors(), *saved

    def derivative(self, which: Derivative, tensors: Sequence[Tensor]) -> list[Tensor]:
        """A derivative in the dtypes of its tensors, of which the first are those of the inputs."""
        count = len(self.tensors)
        sums = self.kernel.derivative(self.with_tensors(tensors[:count]), self.options, which, tensors[count:])
        return [total.to(tensors[i].dtype) for total, i in zip(sums, which.results, strict=True)]


class _Forward(AutogradFunction):
    """A call as one step of autograd: tensors go in, output, results and what is saved come out."""

    @staticmethod
    def forward(call: DifferentiableCall, *tensors: Tensor) -> tuple[Tensor, ...]:
        return call.forward(tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, *tensors = inputs
        ctx.call = call if call.prepared is not None else call.without_tensors()
        ctx.versions = TensorVersions(call.inputs.request.mask)
        first_saved = len(output) - call.num_saved
        first_result = output[: int(call.kernel.saves_first_result)]
        ctx.save_for_backward(*tensors, *first_result, *output[first_saved:])
        ctx.save_for_forward(*tensors)
        ctx.layouts = [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in output]
        ctx.set_materialize_grads(False)
        constants = [tensor for i, tensor in enumerate(output) if i >= first_saved or not tensor.is_floating_point()]
        ctx.mark_non_differentiable(*constants)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.versions.check("the mask that the weights were computed with")
        tensors, needed, call = ctx.saved_tensors, ctx.needs_input_grad[1:], ctx.call
        gradients = gradients[: len(gradients) - call.num_saved]
        present = [gradient for gradient in gradients if gradient is not None]
        is_present = [gradient is not None for gradient in gradients]
        # With create_graph=True, or under a transform, the gradients are a step of autograd, too.
        is_tracked = torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]
        compute = _Backward.apply if is_tracked else _Backward.forward
        results = iter(compute(call, needed, is_present, *tensors, *present))
        return None, *(next(results) if need else None for need in needed)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        check_forward_mode()
        tensors, layouts = ctx.saved_tensors, ctx.layouts[: len(ctx.layouts) - ctx.call.num_saved]
        outputs = [i for i, (_, _, dtype) in enumerate(layouts) if dtype.is_floating_point]
        zeros = [tensors[0].new_zeros(layouts[i][0], dtype=layouts[i][2]) for i in outputs]
        moved = [(i, tangent) for i, tangent in enumerate(tangents) if tangent is not None]
        results = tuple(range(len(tensors), len(tensors) + len(outputs)))
        which = Derivative(tuple(outputs), (tuple([i for i, _ in moved]),), results)
        parts = Differentiate.apply(ctx.call, which, *tensors, *zeros, *(tangent for _, tangent in moved))
        flat: list[Tensor | None] = [None] * len(ctx.layouts)
        for i, part in zip(outputs, parts, strict=True):
            strides = layouts[i][1]  # of a tangent they must be the same
            order = sorted(range(part.ndim), key=lambda axis, strides=strides: -strides[axis])
            inverse = sorted(range(part.ndim), key=order.__getitem__)
            flat[i] = part.permute(order).contiguous().permute(inverse)
        return tuple(flat)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return vmap_by_loop(_Forward, info.batch_size, in_dims, inputs)


class _Backward(AutogradFunction):
    """The gradients that are needed, as a step of autograd; see `derivatives`."""

    @staticmethod
    def forward(
        call: DifferentiableCall, needed: Sequence[bool], is_present: Sequence[bool], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """`tensors` are those of the inputs, what was saved, and the gradients that are present."""
        rest = iter(_without_negation(tensors))
        num_saved = call.num_saved + int(call.kernel.saves_first_result)
        tensors, saved = tuple(islice(rest, len(needed))), tuple(islice(rest, num_saved))
        gradients = [next(rest) if each else None for each in is_present]
        if call.prepared is not None:
            results = call.prepared.backward(needed, gradients, tensors, saved[0])
            if results is not None:
                return results
        inputs = call.with_tensors(tensors)
        with without_autocast(tensors[0].device.type):
            return tuple(call.kernel.gradients(inputs, call.options, needed, gradients, saved))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, needed, is_present, *tensors = inputs
        count, num_present = len(needed), sum(is_present)
        outputs = tuple(i for i, each in enumerate(is_present) if each)
        which = Derivative(outputs, (), tuple(i for i, need in enumerate(needed) if need))
        keep(ctx, call, which, [*tensors[:count], *tensors[len(tensors) - num_present :]])
        ctx.count, ctx.num_saved = count, len(tensors) - count - num_present

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = _without_saved(ctx, ctx.needs_input_grad[3:])
        results = reverse(ctx, gradients, needed)
        return None, None, None, *results[: ctx.count], *[None] * ctx.num_saved, *results[ctx.count :]

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        return forward_mode(ctx, _without_saved(ctx, tangents[3:]))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        return vmap_by_loop(_Backward, info.batch_size, in_dims, inputs)


def _without_saved(ctx: Any, items: Sequence[Any]) -> list[Any]:
    """The items of the inputs' tensors and of the incoming gradients; those of what was saved follow from these."""
    return [*items[: ctx.count], *items[ctx.count + ctx.num_saved :]]
