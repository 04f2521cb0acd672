"""ForwardPass: what a watch knows of the forward pass that is running, and forgets when the next one starts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any

from torch import Size, Tensor, nn

from regard.recordings.layer import AttentionKind
from regard.watching.batch_axes import BatchAxes
from regard.watching.call import AttentionCall, CallIdentity
from regard.watching.module_inspection import REGARD_LAYERS
from regard.watching.output_gradient import BackwardState
from regard.watching.result import LayerKey
from regard.watching.softmax_product import MergedAxes, input_shapes, merged_axes
from regard.watching.softmax_result import Softmax

MASKS: dict[str, tuple[AttentionKind, ...]] = {
    "attention_mask": ("encoder", "decoder"),
    "decoder_attention_mask": ("decoder",),
}
"""Arguments of models that are 1 or True where a token is not padding, and the self-attention that they are for."""


def find_padding(options: Mapping[str, Any]) -> dict[AttentionKind, Tensor]:
    """The masks of padding among the keyword arguments of a model, as `ForwardPass.padding`."""
    found: dict[AttentionKind, Tensor] = {}
    has_decoder = any(name.startswith("decoder_") for name in options)
    for name, kinds in MASKS.items():
        mask = options.get(name)
        if isinstance(mask, Tensor) and mask.ndim == 2 and (not mask.is_floating_point() or bool((mask >= 0).all())):
            found |= {
                kind: mask > 0 for kind in kinds if kind == "encoder" or not has_decoder or name != "attention_mask"
            }
    return found


if TYPE_CHECKING:
    from regard.watching.recording_list import LayerCall


@dataclass(eq=False)
class ForwardPass:
    """One forward pass of a model, or of a checkpointed layer in a backward pass.

    Args:
        self_attention: The number of queries, the offset and the valid queries of the last self-attention; of the
            forward pass before, if a checkpointed layer computes again.
        padding: Masks of padding that the model was called with, (batch, tokens), by the kind of self-attention.

    Attributes:
        modules: The modules that are running, the innermost last.
        num_calls_at_entry: The number of attention calls when each of these began.
        num_softmaxes_at_entry: The number of softmaxes when each of these began.
        entries: How often each module was entered, by id.
        recorded: The layers that were recorded, in order, and the number of calls of each.
        num_calls: The number of attention calls.
        waiting: The calls that are recorded when it is known which recording the forward pass belongs to.
        num_softmaxes: The number of softmaxes, where torch's functions are intercepted.
        last_call: What the last call was, while the model runs.
        last_key: The layer that it was recorded in.
        is_continuation_decided: Whether it is known which recording the forward pass belongs to.
        thread: The thread that it runs in.
        inputs: The arguments of the modules that are running.
        problems: Why modules that multiply by the result of a softmax are not recorded, by id.
        doubts: Why products of theirs are not recorded, with the softmax, by id.
        merged_axes: The axes that modules merged into one, as batch and heads, by id.
        backward: Whether a backward pass has reached it.
        is_sdpa_suspended: Whether calls of SDPA are not recorded, as within a function that is.
        batch_axes: What the batch of each recorded layer is made of.
    """

    self_attention: tuple[int, int, Tensor | None] | None = None
    padding: Mapping[AttentionKind, Tensor] = field(default_factory=dict[AttentionKind, Tensor])
    modules: list[nn.Module] = field(default_factory=list[nn.Module])
    entries: Counter[int] = field(default_factory=Counter[int])
    recorded: dict[LayerKey, int] = field(default_factory=dict[LayerKey, int])
    num_calls: int = 0
    waiting: list[LayerCall] = field(default_factory=list["LayerCall"])
    num_softmaxes: int = 0
    last_call: CallIdentity | None = None
    last_key: LayerKey | None = None
    is_continuation_decided: bool = False
    inputs: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    problems: dict[int, str] = field(default_factory=dict[int, str])
    doubts: dict[int, list[tuple[Softmax, str, bool]]] = field(default_factory=lambda: defaultdict(list))
    merged_axes: dict[int, list[MergedAxes]] = field(default_factory=dict[int, list[MergedAxes]])
    is_sdpa_suspended: bool = False
    num_calls_at_entry: list[int] = field(default_factory=list[int])
    num_softmaxes_at_entry: list[int] = field(default_factory=list[int])
    thread: int = field(default_factory=get_ident)
    backward: BackwardState = field(default_factory=BackwardState)
    batch_axes: BatchAxes = field(default_factory=BatchAxes)

    @property
    def intercepts_sdpa(self) -> bool:
        """Whether calls of SDPA are to be recorded: not those within a module that is recorded as a whole."""
        return not self.is_sdpa_suspended and not any(isinstance(module, REGARD_LAYERS) for module in self.modules)

    @property
    def input_shapes(self) -> list[Size]:
        """The shapes of the inputs of the innermost module that may hold the states of tokens."""
        return input_shapes(self.inputs[-1])

    def note_problem(self, module: nn.Module, reason: str) -> None:
        """A module multiplies by the result of a softmax in a way that cannot be recorded."""
        self.problems.setdefault(id(module), reason)

    def note_doubt(self, module: nn.Module, softmax: Softmax, reason: str, *, may_be_other: bool) -> None:
        """A module multiplies by the result of a softmax in a way that matters if no product of it is recorded.

        Args:
            module: The module.
            softmax: The softmax.
            reason: What it does.
            may_be_other: Whether it may be something else than attention, so that other attention can be recorded.
        """
        self.doubts[id(module)].append((softmax, reason, may_be_other))

    def take_doubts(self, module: nn.Module) -> dict[str, bool]:
        """Those that a module that ends leaves: whether it may be something else than attention, by their reason."""
        left = self.doubts.pop(id(module), ())
        return {reason: may_be_other for softmax, reason, may_be_other in left if not softmax.recorded}

    def note_merged_axes(self, before: Size, after: Size, features: str | None) -> None:
        """The innermost module changes the shape of a tensor."""
        merged = merged_axes(before, after, features)
        if merged is not None and self.modules:
            known = self.merged_axes.setdefault(id(self.modules[-1]), [])
            if merged not in known:
                known.append(merged)

    def valid_queries(self, kind: AttentionKind, shape: Size) -> Tensor | None:
        """Which queries of a self-attention are not padding, (batch, queries); None if the model was not called so.

        Args:
            kind: Its kind.
            shape: (batch, heads, queries, keys) of its weights; the queries are the last keys.
        """
        batch, _, queries, keys = shape
        padding = self.padding.get(kind)
        if padding is None or padding.shape != (batch, keys):
            return None
        return padding[:, keys - queries :]

    def locate_queries(self, kind: AttentionKind, call: AttentionCall) -> None:
        """Give the queries of cross-attention the positions and the padding that they had in self-attention."""
        count = call.request.query.shape[2]
        if kind != "cross":
            self.self_attention = count, call.q_offset, call.valid_queries
        elif self.self_attention is not None and self.self_attention[0] == count:
            _, call.q_offset, call.valid_queries = self.self_attention
