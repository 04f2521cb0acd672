"""Listener: hooks into a model, follows its forward passes, and records the attention calls of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from regard.checks import warn
from regard.errors import InvalidArgument, raise_problems
from regard.ops import AttentionOutput, WeightMatrix
from regard.ops.measures import Measure
from regard.recordings.layer import AttentionKind
from regard.watching.adapted_module import adapters_of, record_adapted_module
from regard.watching.adapters.inputs import Adapter, Adapters
from regard.watching.axis_rules import rules_of
from regard.watching.block import WatchBlock
from regard.watching.call import AttentionCall, CallIdentity, check_inputs
from regard.watching.forward_pass import ForwardPass, find_padding
from regard.watching.interventions import Interventions
from regard.watching.module_inspection import (
    REGARD_LAYERS,
    around_attention,
    attention_kind,
    calls_kernels,
    computes_own_softmax,
    is_named_attention,
    is_of_transformers,
    uses_only_attention_interface,
)
from regard.watching.num_sequences import check_batch_axis, num_sequences
from regard.watching.output_gradient import OutputGradient
from regard.watching.recording_list import LayerCall, RecordingList, make_recorder
from regard.watching.regard_layers import record_regard_layer
from regard.watching.result import LayerKey, WatchResult
from regard.watching.retention import Retention
from regard.watching.torch_attention import SdpaInterceptor
from regard.watching.transformers_masks import MaskOrigins
from regard.watching.unsupported import OwnSoftmaxes, why_no_attention, why_not_recorded


class Listener(WatchBlock):
    """Records what a model attends to, as a context manager; see `watch`.

    Args:
        model: The model.
        measures: What to measure in each layer, by name.
        layers: The names of the modules to record; None for all.
        heads: The heads to record; None for all.
        retention: What to keep.
        interventions: What to change in the model, if anything.
        joined: The names of the modules whose calls of torch's attention are further rows of the last one if they
            continue its keys.
        fuses_output: Whether the output may come from the pass that computes the measures.
        records_gradients: Whether the gradients of the weights are recorded.
        adapters: Adapters by class, beyond those that are shipped.
        batch_axis: The axis of the model's first input that counts the sequences; None if it follows from the call.
    """

    def __init__(
        self,
        model: nn.Module,
        measures: Mapping[str, Measure],
        layers: Sequence[str] | None,
        heads: tuple[int, ...] | None,
        retention: Retention,
        interventions: Interventions | None,
        joined: Collection[str] = (),
        fuses_output: bool = False,
        records_gradients: bool = False,
        adapters: Adapters | None = None,
        batch_axis: int | None = None,
    ) -> None:
        super().__init__(model)
        self.interventions = interventions
        self.fuses_output = fuses_output and bool(measures) and heads is None
        self.masks = MaskOrigins()
        self._measures, self._retention = measures, retention
        self._layer_names, self._heads, self._joined = layers, heads, joined
        self._records_gradients, self._adapters, self._batch_axis = records_gradients, adapters or {}, batch_axis
        self._adapter_of: dict[int, Adapter] = {}
        self._kinds: dict[int, AttentionKind] = {}
        self.forward = ForwardPass()

    def _open(self) -> None:
        modules = dict(self.model.named_modules())
        self.module_names = {id(module): name for name, module in modules.items()}
        self.config_ids = {id(vars(module)["config"]) for module in modules.values() if "config" in vars(module)}
        self.classes = set(map(type, modules.values()))
        self._adapter_of = adapters_of(modules.values(), self._adapters)
        only_interface = is_of_transformers(self.model) and uses_only_attention_interface(self.classes)
        self._only_interface = only_interface and not self._adapter_of
        self.result = WatchResult(self.model)
        self._recordings = self.result._recordings
        make = partial(make_recorder, self._measures, self._retention, self._heads, self._joined)
        self._list = RecordingList(self._recordings, self.model, make, frozenset(self._joined), self._kinds)
        if self.interventions is not None:
            self.interventions.reset()
        self.forward = ForwardPass()
        self._modules_run: set[int] = set()
        self._notes = OwnSoftmaxes()
        self._ran_backward = False
        # Hooks take time; where SDPA is intercepted, any module may call it.
        names = around_attention(modules) if self._only_interface else modules
        mode = self._mode = None if self._only_interface else SdpaInterceptor(self)
        hooked = [modules[name] for name in names]
        self._cutting = {id(module) for module in hooked if rules_of(type(module))}
        self._inspected = {
            id(module) for module in hooked if isinstance(module, REGARD_LAYERS) or computes_own_softmax(type(module))
        }
        self._attach(hooked, mode)

    def _finish(self) -> None:
        """Measure what was deferred, and say what was not recorded."""
        recorders = [recorder for each in self._recordings for recorder in each.values()]
        for recorder in recorders:
            recorder.flush()
        if self.interventions is not None:
            raise_problems(self.interventions.unapplied([recorder.name for recorder in recorders]))
        name = type(self.model).__name__
        if not recorders:
            raise InvalidArgument(f"{name}: nothing was recorded: {self._why_nothing()}")
        self._warn_of_checkpointing()
        self._notes.warn(name, is_kept=self._retention.keep_qk)

    def _warn_of_checkpointing(self) -> None:
        """Say that the backward pass belongs inside, before torch says that it saved other tensors in recomputation."""
        if not self.model.training or not self._measures or self._ran_backward:
            return
        if any(getattr(module, "gradient_checkpointing", False) for module in self.model.modules()):
            warn(
                f"{type(self.model).__name__} uses gradient checkpointing: run loss.backward() inside the with block, "
                "or it fails with a CheckpointError"
            )

    def attention_kind(
        self, module: nn.Module, is_causal: bool = False, shape: tuple[int, int] | None = None
    ) -> AttentionKind:
        """The kind of a layer.

        Args:
            module: The layer.
            is_causal: Whether it is called as a causal one, which decides where its name and attributes do not.
            shape: (queries, keys) A causal mask of this shape means the same.
        """
        kind = self._kinds.get(id(module))
        if kind is None:
            kind = attention_kind(self.module_names[id(module)], module, self.forward.modules)
            if kind is None:
                kind = "decoder" if is_causal or self.masks.is_causal(shape) else "encoder"
            self._kinds[id(module)] = kind
        return kind

    def ignores(self, module: nn.Module) -> bool:
        """Whether the attention of a module is neither recorded nor changed."""
        name = self.module_names[id(module)]
        return self._layer_names is not None and name not in self._layer_names and not self._is_changed(name)

    def captures_softmax(self, module: nn.Module) -> bool:
        """Whether the scores that go into the softmax of a module are recorded."""
        return self.forward.intercepts_sdpa and not self.ignores(module) and not self._is_in_adapted()

    def _is_changed(self, name: str) -> bool:
        return self.interventions is not None and self.interventions.applies_to(name)

    def set_kind(self, module: nn.Module, kind: AttentionKind) -> None:
        """Set the kind of a layer, whatever its name."""
        self._kinds[id(module)] = kind

    def record_unchangeable(
        self, module: nn.Module, call: AttentionCall, mask: Tensor | None, *, separate_layers: bool = False
    ) -> None:
        """Record a call of a module whose attention cannot be changed; see `record`.

        Raises:
            InvalidArgument: If an intervention is meant to change it.
        """
        name = self.module_names[id(module)]
        if self._is_changed(name):
            raise InvalidArgument(
                f"ablate and knockout: {name} is a {type(module).__name__}, which can be watched but not changed; "
                "interventions need attention that transformers' attention interface computes"
            )
        kind = self.attention_kind(module)
        self.forward.locate_queries(kind, call)
        self.record(module, kind, call, mask, separate_layers=separate_layers)

    def record(
        self,
        module: nn.Module,
        kind: AttentionKind,
        call: AttentionCall,
        mask: Tensor | None,
        *,
        separate_layers: bool = False,
        fuses_output: bool = False,
    ) -> tuple[WeightMatrix | None, Tensor | None]:
        """Record a call of a module.

        Args:
            module: The module.
            kind: Its kind.
            call: The call.
            mask: The mask that the attention function was called with.
            separate_layers: Whether several calls in one forward of the module are layers, not chunks of one.
            fuses_output: Whether to compute its output with the measures.

        Returns:
            The weight matrix of this call, or None if the module is not to be recorded; and its output, (batch, heads,
            queries, value_dim), or None if the model's own function must compute it.
        """
        forward, name = self.forward, self.module_names[id(module)]
        forward.num_calls += 1
        if self._layer_names is not None and name not in self._layer_names:
            return None, None
        in_backward, last = _in_backward(), forward.last_call
        identity = forward.last_call = CallIdentity(module, call.request, mask)
        if last is not None and last.rules[0] is module and identity == last:
            self.repeat()
            return call.weights, None
        if self._records_gradients:
            call.output_gradient = self._output_gradient(name, in_backward)
        if self._heads is not None:
            count = call.query.shape[1]
            unknown = [head for head in self._heads if head >= count]
            raise_problems([f"heads: expected indices below {count}, the heads of {name}, got {h}" for h in unknown])
            if not self._retention.keep_values and not call.is_dense:
                call.value = None
            call = call.select_heads(self._heads)
        if in_backward:
            self._ran_backward = True
            weights = call.weights  # checkpointing counts the tensors that this and the measures save
            if not self._measures:
                return weights, None
            return weights, call.measure(self._measures, call.value if fuses_output else None)[1]
        if call.is_dense:
            self._notes.dense[name] = module
        key = name, max(forward.entries[id(module)], 1)
        return self._list.add(forward, LayerCall(module, kind, key, call, separate_layers, fuses_output))

    def repeat(self, layer: LayerKey | None = None) -> None:
        """The weights of a layer are multiplied by another value, too. Default: those of the last call."""
        if not _in_backward():
            self._list.repeat(self.forward, layer)

    def _output_gradient(self, name: str, in_backward: bool) -> OutputGradient | None:
        """What takes the gradient of the output of a module.

        Raises:
            InvalidArgument: If the module computes again in a backward pass, and had no graph when it was recorded.
        """
        if not in_backward:
            return OutputGradient(self.forward.backward, partial(self._retention.store_gradient, name), self._heads)
        recorders = (recorder for each in self._recordings for key, recorder in each.items() if key[0] == name)
        gradients = [gradient for recorder in recorders for gradient in recorder.output_gradients]
        if not all(gradient.is_followed for gradient in gradients):
            raise InvalidArgument(
                f"weight_gradients: {name} is checkpointed in the reentrant way, in which its output has no gradient; "
                "checkpoint with use_reentrant=False"
            )
        return gradients[0] if gradients else None

    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        forward = self.forward
        if forward.modules:
            if forward.thread != get_ident():
                raise InvalidArgument(
                    f"{type(self.model).__name__} is being watched and runs in two threads at once; call it from one"
                )
        else:
            if torch.compiler.is_exporting():
                raise InvalidArgument(f"{type(self.model).__name__} is being watched; export it after the watch")
            if self._records_gradients and not torch.is_grad_enabled():
                raise InvalidArgument(
                    f"weight_gradients: {type(self.model).__name__} runs without gradients, as under torch.no_grad(), "
                    "torch.inference_mode() and in generate(); call it with gradients, or leave weight_gradients out"
                )
            if self._batch_axis is not None:
                check_batch_axis(self._batch_axis, args, kwargs)
            self.masks.on_forward_start()
            known = {} if self._only_interface else find_padding(kwargs)
            padding = forward.padding if _in_backward() else known
            forward = self.forward = ForwardPass(forward.self_attention if _in_backward() else None, padding)
            if not self._only_interface:
                self._attached.enter_mode()
        forward.modules.append(module)
        forward.inputs.append((*args, *kwargs.values()))
        forward.num_calls_at_entry.append(forward.num_calls)
        forward.num_softmaxes_at_entry.append(forward.num_softmaxes)
        forward.entries[id(module)] += 1
        if isinstance(module, nn.MultiheadAttention):
            check_inputs(type(module).__name__, *args)

    def after_forward(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        forward = self.forward
        if not forward.modules or forward.thread != get_ident():  # the watch ended meanwhile, or two threads
            return
        try:
            if output is not None:  # it is None if forward raised
                if self._adapter_of and self._is_in_adapted():
                    self._record_adapted(module, args, kwargs, output)
                elif id(module) in self._inspected or forward.problems or forward.doubts:
                    self._record_output(module, output)
                if len(forward.modules) == 1:
                    self._list.end_forward(forward)
                if forward.recorded and (id(module) in self._cutting or len(forward.modules) == 1):
                    self._follow_batches(module, args, kwargs, output)
        finally:
            forward.modules.pop()
            forward.inputs.pop()
            forward.num_calls_at_entry.pop()
            forward.num_softmaxes_at_entry.pop()
            if not forward.modules:
                self._end_forward()

    def _is_in_adapted(self) -> bool:
        """Whether a module that has an adapter is running."""
        return any(id(each) in self._adapter_of for each in self.forward.modules)

    def _record_adapted(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Record a module that has an adapter, unless calls in it were recorded; modules within it are parts of it."""
        has_called = self.forward.num_calls > self.forward.num_calls_at_entry[-1]
        if id(module) in self._adapter_of and not has_called and not self.ignores(module):
            record_adapted_module(self, module, self._adapter_of[id(module)], args, kwargs, output)

    def _record_output(self, module: nn.Module, output: Any) -> None:
        """Record a module as a whole, or notice that it computed attention which was not recorded."""
        if isinstance(module, REGARD_LAYERS) and isinstance(output, AttentionOutput):
            record_regard_layer(self, module, output)
        name, problem = self.module_names[id(module)], self.forward.problems.get(id(module))
        has_called = self.forward.num_calls > self.forward.num_calls_at_entry[-1]
        for reason, may_be_other in self.forward.take_doubts(module).items():
            if has_called and may_be_other:
                self._notes.partly_recorded[name] = module, reason
            else:
                problem = problem or reason
        has_softmax = self._mode is None or self.forward.num_softmaxes > self.forward.num_softmaxes_at_entry[-1]
        is_missing = not has_called and self._layer_names is None and (has_softmax or calls_kernels(type(module)))
        is_refused = is_named_attention(type(module)) if problem else is_missing and computes_own_softmax(type(module))
        if is_refused:
            raise InvalidArgument(why_not_recorded(self.model, name, module, problem))
        if problem:
            self._notes.not_recorded[name] = module, problem
            self._forget(name)

    def _forget(self, name: str) -> None:
        """Drop what was recorded of a module in this forward pass."""
        self._notes.dense.pop(name, None)
        for key in [key for key in self.forward.recorded if key[0] == name]:
            del self.forward.recorded[key]
            self._recordings[-1].pop(key, None)
        self.forward.waiting = [each for each in self.forward.waiting if each.key[0] != name]

    def _follow_batches(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Notice layers whose batch is not that of the model's inputs: windows of an image, or several images."""
        forward, recorders = self.forward, self._recordings[-1]
        if id(module) in self._cutting:
            forward.batch_axes.follow(module, self.module_names[id(module)], args, kwargs, forward.recorded, recorders)
        if len(forward.modules) == 1:
            counts = num_sequences(module, args, kwargs, output, self._batch_axis)
            forward.batch_axes.resolve(module, counts, forward.recorded, recorders)

    def _why_nothing(self) -> str:
        """Why nothing was recorded, as far as can be known."""
        if not self._modules_run and not isinstance(self.model, torch.jit.ScriptModule):
            return "the model was not called, or only a part of it without attention"
        if self._layer_names is not None:
            return "the modules in layers=[...] did not compute attention"
        for name, (module, problem) in self._notes.not_recorded.items():
            return why_not_recorded(self.model, name, module, problem)
        return why_no_attention(self.model, self._modules_run)

    def _abort_forward(self) -> None:
        if self.forward.modules:  # torch calls no hooks after Ctrl-C
            self.forward.modules.clear()
            self._end_forward()

    def _end_forward(self) -> None:
        self.masks.on_forward_end()
        if self._mode is not None:
            self._mode.dense_capture.clear()
        self._modules_run |= self.forward.entries.keys()
        self.forward.last_call = None
        if not self._only_interface:
            self._attached.leave_mode()


def _in_backward() -> bool:
    """Whether a backward pass is running, in which a checkpointed layer computes again."""
    return torch._C._current_graph_task_id() != -1
