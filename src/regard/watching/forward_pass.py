"""ForwardPass: what a watch knows of the forward pass that is running, and forgets when the next one starts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from threading import get_ident

from torch import Tensor, nn

from regard.recordings.layer import AttentionKind
from regard.watching.call import AttentionCall, CallIdentity
from regard.watching.module_inspection import REGARD_LAYERS
from regard.watching.result import LayerKey


@dataclass(eq=False)
class ForwardPass:
    """One forward pass of a model, or of a checkpointed layer in a backward pass.

    Args:
        self_attention: The number of queries, the offset and the valid queries of the last self-attention; of the
            forward pass before, if a checkpointed layer computes again.

    Attributes:
        modules: The modules that are running, the innermost last.
        num_calls_at_entry: The number of attention calls when each of these began.
        entries: How often each module was entered, by id.
        recorded: The layers that were recorded, in order.
        num_calls: The number of attention calls.
        last_call: What the last call was, while the model runs.
        is_continuation_decided: Whether it is known which recording the forward pass belongs to.
        thread: The thread that it runs in.
        softmax_products: The ids of modules that multiply by the result of a softmax.
        is_sdpa_suspended: Whether calls of SDPA are not recorded, as within a function that is.
    """

    self_attention: tuple[int, int, Tensor | None] | None = None
    modules: list[nn.Module] = field(default_factory=list[nn.Module])
    entries: Counter[int] = field(default_factory=Counter[int])
    recorded: dict[LayerKey, None] = field(default_factory=dict[LayerKey, None])
    num_calls: int = 0
    last_call: CallIdentity | None = None
    is_continuation_decided: bool = False
    softmax_products: set[int] = field(default_factory=set[int])
    is_sdpa_suspended: bool = False
    num_calls_at_entry: list[int] = field(default_factory=list[int])
    thread: int = field(default_factory=get_ident)

    @property
    def intercepts_sdpa(self) -> bool:
        """Whether calls of SDPA are to be recorded: not those within a module that is recorded as a whole."""
        return not self.is_sdpa_suspended and not any(isinstance(module, REGARD_LAYERS) for module in self.modules)

    def note_softmax_product(self) -> None:
        """The innermost module multiplies by the result of a softmax."""
        if self.modules and self.intercepts_sdpa:
            self.softmax_products.add(id(self.modules[-1]))

    def locate_queries(self, kind: AttentionKind, call: AttentionCall) -> None:
        """Give the queries of cross-attention the positions and the padding that they had in self-attention."""
        count = call.request.query.shape[2]
        if kind != "cross":
            self.self_attention = count, call.q_offset, call.valid_queries
        elif self.self_attention is not None and self.self_attention[0] == count:
            _, call.q_offset, call.valid_queries = self.self_attention
