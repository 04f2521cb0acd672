"""What a watched model attends to: its calls of attention, kept apart by pass and by layer."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.analysis.recording import Kind
from regard.errors import InvalidArgument, raise_problems
from regard.nn import AdditiveAttention, GraphAttention, MultiHeadAttention, SelfAttention, SelfAttention2d
from regard.ops import AttentionOutput, WeightMatrix
from regard.ops.measures import Measure
from regard.watching.calls import Call
from regard.watching.given import MASKS
from regard.watching.hugging_face import EARS, WATCHES
from regard.watching.interventions import Interventions
from regard.watching.keeping import Keeping
from regard.watching.kinds import kind_of
from regard.watching.names import calls_torch, has_weights, may_attend, may_have_weights, names_attention
from regard.watching.passes import Passes
from regard.watching.seen import Pass, Seen
from regard.watching.shared import Shared
from regard.watching.torch_functions import Listening, call_of_module, refuse_nested

OWN = (MultiHeadAttention, SelfAttention, AdditiveAttention, GraphAttention, SelfAttention2d)
"""The layers of this library, which give a view of their weights."""

UNCOMPILED = Shared(lambda: torch.compiler.set_stance("force_eager"))
"""What is compiled has no place for ears."""

OWN_WAY = "computes attention in its own way, by no function that can be heard"


class Watch(Passes):
    """What a model attends to while it is watched; see `watch`."""

    def __init__(
        self,
        model: nn.Module,
        measures: Mapping[str, Measure],
        layers: Sequence[str] | None,
        heads: tuple[int, ...] | None,
        keeping: Keeping,
        interventions: Interventions,
    ) -> None:
        super().__init__(type(model).__name__, measures, keeping)
        self.model, self.interventions = model, interventions
        self._chosen, self._heads = layers, heads
        self.ends_for_another = False
        """Whether another watch of the model ends this one, and is not refused."""
        self._names = {id(module): name for name, module in model.named_modules()}
        self._kinds: dict[int, Kind] = {}
        self._mode = None if _tells_all(model) else Listening(self)
        self._inside: list[nn.Module] = []
        self._told, self._told_before = 0, list[int]()
        self._deaf = False
        self._entries: Counter[int] = Counter()
        self._ran: set[int] = set()
        self._own_weights: set[int] = set()
        self._unheard: dict[str, nn.Module] = {}
        self._called: set[tuple[str, int]] = set()
        self._decided = False
        self._last: tuple[nn.Module, Tensor, Tensor] | None = None
        self._real: Tensor | None = None
        self._was_called, self._is_on = False, False

    def __enter__(self) -> Watch:
        for module in self.model.modules():
            other = WATCHES.get(id(module))
            if other is not None and other.ends_for_another:
                other.__exit__(InterruptedError)
        taken = next((module for module in self.model.modules() if id(module) in WATCHES), None)
        if taken is not None:
            by = WATCHES[id(taken)].model
            part = "" if by is self.model else f", in a watch of {type(by).__name__}"
            raise InvalidArgument(f"{type(taken).__name__} is being watched already{part}: end that watch first")
        self.interventions.forget()
        with ExitStack() as stack:  # which is undone where it fails half way
            stack.enter_context(UNCOMPILED.open())
            if sys.modules.get("transformers"):  # what is not loaded has no models
                stack.enter_context(EARS.open())
            for module in self.model.modules():
                WATCHES[id(module)] = self
                stack.callback(WATCHES.pop, id(module))
                if isinstance(module, torch.jit.ScriptModule):
                    continue  # which takes no hooks
                if self._mode is None and next(module.children(), None) is None and not isinstance(module, OWN):
                    continue  # what attends in transformers' models has parts; most have none, and hooks take time
                stack.callback(module.register_forward_pre_hook(self._enter).remove)
                leave = module.register_forward_hook(self._leave, with_kwargs=True, always_call=True)
                stack.callback(leave.remove)
            self._stack, self._is_on = stack.pop_all(), True
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self._is_on = False
        if self._inside:  # Ctrl-C has ended a computation, after which torch calls no hooks
            self._inside.clear()
            self._told_before.clear()
            self._has_computed()
        if error[0] is not None:
            return
        self._settle()
        raise_problems(self.interventions.unreached([layer.name for each in self.passes for layer in each]))
        if not any(each.layers for each in self.passes):
            raise InvalidArgument(f"{type(self.model).__name__}: nothing was seen: {self._why_nothing()}")
        if self._unheard:
            classes = ", ".join(sorted({type(module).__name__ for module in self._unheard.values()}))
            warnings.warn(
                f"{type(self.model).__name__}: not recorded, because they multiply by a softmax in code of their own "
                f"({classes}): {', '.join(self._unheard)}; choose the others by layers=[...]",
                stacklevel=2,
            )

    def _why_nothing(self) -> str:
        """Why nothing was seen, as far as can be known."""
        if not self._was_called:
            return "it was not called"
        if self._chosen is not None:
            return "the modules that were chosen by layers=[...] did not attend"
        for name, module in self._unheard.items():
            return f"{name}, a {type(module).__name__}, {OWN_WAY}"
        if not any(may_attend(type(module)) for module in self.model.modules()):
            return "it has no attention"
        attention = {name: module for name, module in self.model.named_modules() if names_attention(type(module))}
        if attention and not any(id(module) in self._ran for module in attention.values()):
            return f"its attention was not called ({', '.join(list(attention)[:3])})"
        for name, module in attention.items():
            if not any(names_attention(type(part)) for part in module.modules() if part is not module):
                return f"{name}, a {type(module).__name__}, {OWN_WAY}"
        return "it has no attention, or computes it in its own way"

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._is_on:  # the hooks of the model hold it
            raise InvalidArgument(f"{type(self.model).__name__} is being watched: copy or save it after the watch")
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        kept = f"{self.nbytes / 2**20:,.1f} MiB"
        return f"Watch({type(self.model).__name__}: {len(self.passes)} passes, {len(self)} layers in the last, {kept})"

    def _settle(self) -> None:
        """Measure what waits in the last pass, as nothing goes on from there."""
        if self.passes:
            self.passes[-1].settle()

    def _enter(self, module: nn.Module, given: object) -> None:
        if not self._inside:
            self._was_called = True
            MASKS.enter()
            self._entries.clear()
            self._own_weights.clear()
            self._called.clear()
            self._decided, self._real = False, None
            if self._mode is not None:
                self._mode.__enter__()
        self._inside.append(module)
        self._entries[id(module)] += 1
        self._ran.add(id(module))
        self._told_before.append(self._told)
        if isinstance(module, nn.MultiheadAttention) and isinstance(given, tuple):
            refuse_nested(type(module).__name__, *given)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not self._inside:  # the watch was ended within the computation
            return
        try:
            if isinstance(module, OWN) and isinstance(output, AttentionOutput):
                self.heard(module, call_of(output))
            elif isinstance(module, nn.MultiheadAttention) and output is not None:
                self.heard(module, call_of_module(module, args, kwargs))
            tells_nothing = output is not None and self._told == self._told_before[-1] and self._chosen is None
            if tells_nothing and id(module) in self._own_weights:
                self._unheard[self._names[id(module)]] = module
            if tells_nothing and has_weights(type(module)):
                name, remedy = self._names[id(module)], self._remedy(type(module), kwargs)
                raise InvalidArgument(f"{name}, a {type(module).__name__}, {OWN_WAY}{remedy}")
        finally:
            self._inside.pop()
            self._told_before.pop()
            if not self._inside:
                self._has_computed()

    def _remedy(self, kind: type[nn.Module], options: Mapping[str, Any]) -> str:
        """What to do where a module's attention was not heard."""
        if options.get("output_attentions"):
            return " with output_attentions=True: leave that out, as the watch gives the weights"
        if calls_torch(kind) and _is_of_transformers(self.model):
            return (
                ' here: watch it after model.set_attn_implementation("sdpa"), or choose other modules by layers=[...]'
            )
        return ": choose other modules by layers=[...]"

    def _has_computed(self) -> None:
        MASKS.leave()
        self._last = None
        if self._mode is not None:
            self._mode.__exit__(None, None, None)

    def computes_weights(self) -> None:
        """The module that is computing multiplies by what a softmax gave."""
        if self.listens and self._inside:
            self._own_weights.add(id(self._inside[-1]))

    @property
    def innermost(self) -> nn.Module:
        """The module that is computing."""
        return self._inside[-1]

    @property
    def listens(self) -> bool:
        """Whether calls of torch's attention are to be told: not those within what tells itself."""
        own = (nn.MultiheadAttention, *OWN)
        return not self._deaf and not any(isinstance(module, own) for module in self._inside)

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """Where calls of torch's attention are not to be told."""
        before, self._deaf = self._deaf, True
        try:
            yield
        finally:
            self._deaf = before

    def name_of(self, module: nn.Module) -> str:
        """What a module of the model is called."""
        return self._names[id(module)]

    def kind_of(self, module: nn.Module, is_causal: bool = False) -> Kind:
        """What a layer is; where nothing says it, whether it is causal does."""
        if id(module) not in self._kinds:
            self._kinds[id(module)] = kind_of(self._names[id(module)], module, self._inside, is_causal)
        return self._kinds[id(module)]

    def heard(self, module: nn.Module, call: Call, *, alone: bool = False) -> None:
        """Take up a call whose module cannot be changed on the way.

        Args:
            module: Which computes it.
            call: What it was given.
            alone: Whether a module that calls more than once has several layers, and not one in pieces.
        """
        name = self.name_of(module)
        if self.interventions.touch(name):
            raise InvalidArgument(
                f"ablate and knockout: {name} is a {type(module).__name__}, which can be watched, but not changed: "
                "that takes a model of transformers"
            )
        self.tell(module, self.kind_of(module), call, alone=alone)

    def tell(self, module: nn.Module, kind: Kind, call: Call, *, alone: bool = False) -> WeightMatrix | None:
        """Take up a call of a module, and give a view of its weights."""
        self._told += 1
        in_backward = torch._C._current_graph_task_id() != -1  # a checkpointed layer runs again
        name = self._names[id(module)]
        if not self.keeping.values:
            call.value = None
        if self._chosen is not None and name not in self._chosen:
            return None
        entry = max(self._entries[id(module)], 1)
        if (
            self._last is not None
            and self._last[0] is module
            and _is_same_memory(self._last[1:], (call.query, call.key))
        ):
            layer = next(reversed(self.passes[-1].places.values())) if self.passes else None
            if layer is not None and not in_backward:
                layer.repeat()
            return call.weights
        self._last = module, call.query, call.key
        while alone and (name, entry) in self._called:
            entry += 1
        place = name, entry
        if self._heads is not None:
            heads = call.query.shape[1]
            beyond = [head for head in self._heads if head >= heads]
            raise_problems([f"heads: {name} has {heads} heads, numbered from 0; got {head}" for head in beyond])
            call = call.of_heads(self._heads)
        if kind == "cross":
            real = self._real_before(place) if in_backward else self._real
            call.real = None if real is None or real.shape[1] != call.query.shape[2] else real
        else:
            self._real = call.real
        if in_backward:
            call.measure(self._measures)  # which its saved tensors are counted of, too
            return call.weights
        layers, how = self._layers_for(place, call, kind), None
        if place not in layers:
            layers[place] = Seen(name if entry == 1 else f"{name}#{entry}", kind, self._heads)
        elif place in self._called:
            how = "chunk"
        else:
            how = "queries" if kind == "cross" else "tokens"
        self._called.add(place)
        return layers[place].add(call, how, self._measures, self.keeping)

    def _real_before(self, place: tuple[str, int]) -> Tensor | None:
        """Which queries of a cross-attention were real before: the decoder's own layer may not run again."""
        layer = self.passes[-1].places.get(place) if self.passes else None
        return None if layer is None else layer.real

    def _layers_for(self, place: tuple[str, int], call: Call, kind: Kind) -> dict[tuple[str, int], Seen]:
        """Those of the pass that a call belongs to.

        Since the model was entered the first call decides whether a pass goes on. Where its layer was left out of that
        pass, as layers are dropped in training, a new one begins if the whole model computes, and its pass had others
        of the kind; else the first of a layer that was not left out decides.
        """
        if not self.passes:
            self.passes.append(Pass())
        places = self.passes[-1].places
        if place in self._called or self._decided:
            return places
        if place in places:
            self._decided = kind != "cross"
            goes_on = places[place].continues(call)
        else:
            whole = not self._called and self._inside[0] is self.model
            goes_on = not (whole and any(seen.kind == kind for seen in places.values()))
        if not goes_on:
            self._settle()
            self.passes.append(Pass({each: places.pop(each) for each in self._called}))
        return self.passes[-1].places


def _is_same_memory(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether tensors of two calls are the same, both still there: attention with the same weights."""
    return all(
        a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
        for a, b in zip(one, other, strict=True)
    )


def call_of(attended: AttentionOutput) -> Call:
    """The call of a layer of this library."""
    asked = attended.weights.request
    return Call(asked.query, asked.key, asked.mask, asked.score, None, asked.scale, asked.offset, value=attended.value)


def _tells_all(model: nn.Module) -> bool:
    """Whether all attention of a model passes through transformers' interface, so that torch need not be heard."""
    if not _is_of_transformers(model):
        return False
    from transformers import PreTrainedModel

    return not any(
        calls_torch(type(module))
        or may_have_weights(type(module))
        or (isinstance(module, PreTrainedModel) and not module._can_set_attn_implementation())
        for module in model.modules()
    )


def _is_of_transformers(model: nn.Module) -> bool:
    if not sys.modules.get("transformers"):  # what is not loaded has no models
        return False
    from transformers import PreTrainedModel

    return isinstance(model, PreTrainedModel)
