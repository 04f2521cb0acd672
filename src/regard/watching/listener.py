"""Listener: hooks into a model, follows its forward passes, and records the attention calls of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from regard.checks import warn
from regard.errors import InvalidArgument, raise_problems
from regard.ops import AttentionOutput, WeightMatrix
from regard.ops.measures import Measure
from regard.recordings.layer import AttentionKind
from regard.watching.block import WatchBlock
from regard.watching.call import AttentionCall, CallIdentity, Continuation
from regard.watching.forward_pass import ForwardPass
from regard.watching.interventions import Interventions
from regard.watching.layer_recorder import LayerRecorder
from regard.watching.module_inspection import (
    REGARD_LAYERS,
    around_attention,
    attention_kind,
    batch_sizes,
    computes_own_softmax,
    is_of_transformers,
    uses_only_attention_interface,
)
from regard.watching.result import LayerKey, Recorders, WatchResult
from regard.watching.retention import Retention
from regard.watching.torch_attention import SdpaInterceptor, check_inputs
from regard.watching.transformers_masks import MaskOrigins
from regard.watching.unsupported import OWN_CODE, label, remedy, why_no_attention


class Listener(WatchBlock):
    """Records what a model attends to, as a context manager; see `watch`.

    Args:
        model: The model.
        measures: What to measure in each layer, by name.
        layers: The names of the modules to record; None for all.
        heads: The heads to record; None for all.
        retention: What to keep.
        interventions: What to change in the model, if anything.
        joins_steps: Whether calls of torch's attention that continue the keys of the last one are further rows of it.
        fuses_output: Whether the output may come from the pass that computes the measures.
    """

    def __init__(
        self,
        model: nn.Module,
        measures: Mapping[str, Measure],
        layers: Sequence[str] | None,
        heads: tuple[int, ...] | None,
        retention: Retention,
        interventions: Interventions | None,
        joins_steps: bool = False,
        fuses_output: bool = False,
    ) -> None:
        super().__init__(model)
        self.interventions = interventions
        self.fuses_output = fuses_output and bool(measures) and heads is None
        self.masks = MaskOrigins()
        self._measures, self._retention = measures, retention
        self._layer_names, self._heads, self._joins_steps = layers, heads, joins_steps
        self._kinds: dict[int, AttentionKind] = {}
        self.forward = ForwardPass()

    def _open(self) -> None:
        modules = dict(self.model.named_modules())
        self.module_names = {id(module): name for name, module in modules.items()}
        self.config_ids = {id(vars(module)["config"]) for module in modules.values() if "config" in vars(module)}
        self.classes = set(map(type, modules.values()))
        self._only_interface = is_of_transformers(self.model) and uses_only_attention_interface(self.classes)
        self.result = WatchResult(self.model)
        self._recordings = self.result._recordings
        if self.interventions is not None:
            self.interventions.reset()
        self.forward = ForwardPass()
        self._modules_run: set[int] = set()
        self._not_recorded: dict[str, nn.Module] = {}
        self._ran_backward = False
        # Hooks take time; where SDPA is intercepted, any module may call it.
        names = around_attention(modules) if self._only_interface else modules
        mode = None if self._only_interface else SdpaInterceptor(self)
        hooked = [modules[name] for name in names]
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
        if self._not_recorded:
            classes = ", ".join(sorted({type(module).__name__ for module in self._not_recorded.values()}))
            warn(
                f"{name}: not recorded, because they multiply by a softmax in their own code ({classes}): "
                f"{', '.join(self._not_recorded)}; to record only the others, pass layers=[...]"
            )

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
                "interventions need a model of transformers"
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
            if self._recordings and not in_backward:
                next(reversed(self._recordings[-1].values())).repeat()
            return call.weights, None
        index = max(forward.entries[id(module)], 1)
        joined = self._find_step_before(name, call) if self._joins_steps else None
        while separate_layers and joined is None and (name, index) in forward.recorded:
            index += 1
        key = joined or (name, index)
        if self._heads is not None:
            count = call.query.shape[1]
            unknown = [head for head in self._heads if head >= count]
            raise_problems([f"heads: expected indices below {count}, the heads of {name}, got {h}" for h in unknown])
            if not self._retention.keep_values:
                call.value = None
            call = call.select_heads(self._heads)
        if in_backward:
            self._ran_backward = True
            weights = call.weights  # checkpointing counts the tensors that this and the measures save
            return weights, call.measure(self._measures, call.value if fuses_output else None)[1]
        is_known = key in forward.recorded or forward.is_continuation_decided
        recorders = self._recordings[-1] if is_known else self._recorders_for(key, call, kind)
        continuation: Continuation | None = None
        if key not in recorders:
            name = name if key[1] == 1 else f"{name}#{key[1]}"
            recorders[key] = LayerRecorder(name, kind, self._measures, self._retention, self._heads)
        elif key in forward.recorded and joined is None:
            continuation = "chunk"
        else:
            continuation = "new_queries" if kind == "cross" else "new_tokens"
        forward.recorded[key] = None
        return recorders[key].add(call, continuation, fuses_output=fuses_output)

    def _find_step_before(self, name: str, call: AttentionCall) -> LayerKey | None:
        """The layer of this forward pass that a call of torch's attention continues, if steps are to be joined."""
        if not call.has_assumed_positions:
            return None
        keys = [key for key in self.forward.recorded if key[0] == name]
        return next((key for key in keys if self._recordings[-1][key].is_continued_by(call)), None)

    def before_forward(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        forward = self.forward
        if forward.modules:
            if forward.thread != get_ident():
                raise InvalidArgument(
                    f"{type(self.model).__name__} is being watched and runs in two threads at once; call it from one"
                )
        else:
            if torch.compiler.is_exporting():
                raise InvalidArgument(f"{type(self.model).__name__} is being watched; export it after the watch")
            self.masks.on_forward_start()
            forward = self.forward = ForwardPass(forward.self_attention if _in_backward() else None)
            if not self._only_interface:
                self._attached.enter_mode()
        forward.modules.append(module)
        forward.num_calls_at_entry.append(forward.num_calls)
        forward.entries[id(module)] += 1
        if isinstance(module, nn.MultiheadAttention):
            check_inputs(type(module).__name__, *args)

    def after_forward(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        forward = self.forward
        if not forward.modules or forward.thread != get_ident():  # the watch ended meanwhile, or two threads
            return
        try:
            if output is not None:  # it is None if forward raised
                if id(module) in self._inspected or forward.softmax_products:
                    self._record_output(module, args, kwargs, output)
                if len(forward.modules) == 1:
                    self._compare_batches(module, args, kwargs, output)
        finally:
            forward.modules.pop()
            forward.num_calls_at_entry.pop()
            if not forward.modules:
                self._end_forward()

    def _record_output(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Record a module as a whole, or notice that it computed attention which was not recorded."""
        if isinstance(module, REGARD_LAYERS) and isinstance(output, AttentionOutput):
            self.record_unchangeable(module, _call_from_regard(output), None)
        if self._layer_names is not None:
            return
        name = self.module_names[id(module)]
        if id(module) in self.forward.softmax_products:
            self._not_recorded[name] = module
        has_called = self.forward.num_calls > self.forward.num_calls_at_entry[-1]
        if not has_called and computes_own_softmax(type(module)):
            raise InvalidArgument(f"{label(name, module)}: {OWN_CODE}{remedy(self.model, type(module), kwargs)}")

    def _compare_batches(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Notice layers whose batch is not that of the model's inputs: windows of an image, or several images."""
        sizes = batch_sizes(module, args, kwargs, output)
        for key in self.forward.recorded:
            recorder = self._recordings[-1][key]
            recorder.has_own_batch = bool(sizes) and recorder.batch_size not in sizes | {1}

    def _why_nothing(self) -> str:
        """Why nothing was recorded, as far as can be known."""
        if not self._modules_run and not isinstance(self.model, torch.jit.ScriptModule):
            return "the model was not called, or only a part of it without attention"
        if self._layer_names is not None:
            return "the modules in layers=[...] did not compute attention"
        for name, module in self._not_recorded.items():
            return f"{label(name, module)} {OWN_CODE}"
        return why_no_attention(self.model, self._modules_run)

    def _abort_forward(self) -> None:
        if self.forward.modules:  # torch calls no hooks after Ctrl-C
            self.forward.modules.clear()
            self._end_forward()

    def _end_forward(self) -> None:
        self.masks.on_forward_end()
        self._modules_run |= self.forward.entries.keys()
        self.forward.last_call = None
        if not self._only_interface:
            self._attached.leave_mode()

    def _recorders_for(self, key: LayerKey, call: AttentionCall, kind: AttentionKind) -> Recorders:
        """The recorders of the forward pass or generation that a call belongs to.

        The first call of a forward pass decides whether the recording continues: it does if its query offset is the
        number of tokens recorded for that layer, because the KV cache grew. If another recording has as many tokens,
        the keys must be the same, too. A call whose offset is only assumed continues it if steps are to be joined. If
        that layer is missing from the recording, as with LayerDrop, a new one starts when the whole model is running
        and layers of the same kind were recorded; otherwise the next layer decides.
        """
        if not self._recordings:
            self._recordings.append({})
        recorders, forward = self._recordings[-1], self.forward
        if key in recorders:
            forward.is_continuation_decided = True
            is_ambiguous = any(each[key].is_continued_by(call) for each in self._recordings[:-1] if key in each)
            continues = recorders[key].is_continued_by(call, compare_keys=is_ambiguous)
            continues &= self._joins_steps or not call.has_assumed_positions
        else:
            is_whole = not forward.recorded and forward.modules[:1] == [self.model]
            continues = not (is_whole and any(recorder.kind == kind for recorder in recorders.values()))
        if not continues:
            for recorder in recorders.values():
                recorder.flush()
            self._recordings.append({each: recorders.pop(each) for each in forward.recorded})
        return self._recordings[-1]


def _in_backward() -> bool:
    """Whether a backward pass is running, in which a checkpointed layer computes again."""
    return torch._C._current_graph_task_id() != -1


def _call_from_regard(output: AttentionOutput) -> AttentionCall:
    request = output.weights.request
    return AttentionCall(request, request.offset, value=output.value)
