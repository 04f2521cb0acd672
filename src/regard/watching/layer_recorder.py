"""LayerRecorder: takes the calls of one attention layer in one forward pass or generation, and joins them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from regard.errors import InvalidArgument, StaleView, raise_problems
from regard.ops import GradientMatrix, WeightMatrix
from regard.ops.measures import Measure
from regard.ops.scores.base import has_bias
from regard.ops.tree import TensorVersions, tensors_in
from regard.recordings.batch_axis import BatchAxis
from regard.recordings.layer import AttentionKind
from regard.watching.axis_rules import Split
from regard.watching.call import AttentionCall, Continuation
from regard.watching.concatenate import concatenate_calls, concatenate_results, concatenate_valid
from regard.watching.held_keys import HeldKeys, fingerprint, is_same
from regard.watching.inconsistency import Inconsistency, why_inconsistent
from regard.watching.output_gradient import OutputGradient, gradient_of_weights
from regard.watching.pending_steps import PendingSteps
from regard.watching.prefix_keys import KeyPlacement
from regard.watching.retention import Retention


class LayerRecorder:
    """Records one layer.

    Args:
        name: The module, with ``#2`` and so on where a forward pass uses it several times.
        kind: Self-attention of an encoder or a decoder, or cross-attention.
        measures: What to measure, by name.
        retention: What to keep.
        head_indices: The heads that are recorded; None for all.
        held_keys: What recognizes the steps of a hand-written KV cache, if they are to be joined.
    """

    def __init__(
        self,
        name: str,
        kind: AttentionKind,
        measures: Mapping[str, Measure],
        retention: Retention,
        head_indices: tuple[int, ...] | None = None,
        held_keys: HeldKeys | None = None,
    ) -> None:
        self._held_keys = held_keys
        self.name, self._measures, self._retention, self.head_indices = name, measures, retention, head_indices
        self.kind: AttentionKind = kind
        self._results: dict[str, Any] = {}
        self._calls: list[AttentionCall] = []
        self._concatenated: AttentionCall | None = None
        self._versions: list[TensorVersions] = []  # of the tensors of each call
        self._gradients: list[tuple[OutputGradient, int]] = []  # of each call, and its number of queries
        self._valid: list[tuple[Tensor | None, int]] = []  # valid queries of each call, and its number of queries
        self._continuation: Continuation | None = None
        self._inconsistency: Inconsistency | None = None
        self._has_several_values = False
        self._next_position = self._num_keys = self._first_kv_offset = self._num_prefix = 0
        self._last_keys: Tensor | Sequence[Any] | None = None  # or what identifies the last one, if they are not kept
        self._last_index = 0  # of the last token among them
        self._pending = PendingSteps()
        self.batch_size = 0
        self.is_dense = False
        """Whether it holds scores of the size queries × keys."""
        self.may_have_bias = False
        """Whether scores may be more than products of queries and keys."""
        self.splits: tuple[Split, ...] = ()
        """How modules cut the entries of the batch, as far as it is known, the innermost first."""
        self.batch_axis: BatchAxis | None = None
        """What the entries of the batch are; None if they are the sequences that the model read."""
        self.is_axis_decided = False
        """Whether a forward pass has ended, and has said what they are."""

    @property
    def weights(self) -> WeightMatrix:
        """The weight matrix of all calls.

        Raises:
            InvalidArgument: If only measures were kept, or the calls are not rows of one matrix.
        """
        call = self._concatenate()
        weights = WeightMatrix(call.request, call.valid_queries)
        return weights.with_gradient(self._gradient) if self._gradients else weights

    def _gradient(self) -> GradientMatrix | str | None:
        """The gradient of the weights of all calls; None if there is none, or the sentence why not."""
        return gradient_of_weights(self.name, self._gradients, self.value, self.valid_queries)

    @property
    def output_gradients(self) -> list[OutputGradient]:
        """Those of the calls, if gradients are recorded."""
        return [gradient for gradient, _ in self._gradients]

    @property
    def value(self) -> Tensor | None:
        """(batch, kv_heads, keys, value_dim), if it was kept."""
        has_value = bool(self._calls) and self._calls[0].value is not None
        return self._concatenate().value if has_value else None

    @property
    def measured(self) -> Mapping[str, Any]:
        """The results of the measures, by name.

        Raises:
            InvalidArgument: If the calls are not the rows of one matrix; keys that a cache changed do not matter.
        """
        if self._inconsistency not in (None, "changed keys"):
            raise InvalidArgument(why_inconsistent(self.name, self._inconsistency, has_calls=bool(self._calls)))
        self.flush()
        return self._results

    @property
    def valid_queries(self) -> Tensor | None:
        """(batch, queries) False where a query is padding; None if all are valid."""
        return concatenate_valid(self._valid)

    @property
    def device(self) -> torch.device:
        """Where queries and keys are kept."""
        return self._calls[0].query.device

    @property
    def tensors(self) -> list[Tensor]:
        """All that is kept: queries, keys, values, masks, biases and measures."""
        calls = self._calls if self._concatenated is None else [*self._calls, self._concatenated]
        gradients = [gradient.total for gradient in self.output_gradients]
        return [*(tensor for call in calls for tensor in call.tensors), *tensors_in((self._results, gradients))]

    @property
    def num_queries(self) -> int:
        """The number of queries of all calls."""
        return sum(count for _, count in self._valid)

    @property
    def num_keys(self) -> int:
        """The number of keys of all calls, those of a KV cache once for each call."""
        return self._num_keys

    @property
    def num_calls(self) -> int:
        """The number of calls that are kept."""
        return len(self._calls)

    @property
    def num_steps(self) -> int:
        """The number of steps of a generation that are kept, of which the first may be several calls, for a prompt."""
        return len(self._calls) - self.num_more_for_prompt

    @property
    def num_more_for_prompt(self) -> int:
        """How many calls after the first read the prompt, in chunks. A last chunk of one token is taken for a step."""
        has_one_query = [call.query.shape[2] == 1 for call in self._calls]
        return max([*has_one_query, True].index(True) - 1, 0)

    def add(
        self, call: AttentionCall, continuation: Continuation | None, *, fuses_output: bool = False
    ) -> tuple[WeightMatrix, Tensor | None]:
        """Record one more call.

        Args:
            call: The call.
            continuation: How it continues the calls before; None for the first.
            fuses_output: Whether to compute its output with the measures.

        Returns:
            The weight matrix of this call alone; and its output, (batch, heads, queries, value_dim), or None if it was
            not to be computed or would take a pass of its own.

        Raises:
            InvalidArgument: If a measure of whole matrices would need all calls at once, or a limit is exceeded.
        """
        weights, output, query, key = call.weights_of(self.name), None, call.request.query, call.request.key
        queries, keys = query.shape[2], key.shape[2]
        self.is_dense = call.is_dense
        self.may_have_bias |= call.is_dense or call.is_adapted or has_bias(call.request.score)
        cached = call.cached if call.is_dense or self._held_keys is not None else key
        if continuation is None:  # a window may have dropped keys before the watch began
            self._first_kv_offset, self._num_prefix = call.kv_offset, call.num_prefix_keys
        elif continuation == "new_tokens" and self._held_keys is not None and call.has_assumed_positions:
            call.q_offset, call.kv_offset = self._next_position, self._next_position + queries - keys
        if continuation is not None and (self._measures or continuation == "new_tokens"):
            self._check_continuation(call, continuation)
        value = call.value if fuses_output and continuation != "new_tokens" else None
        if not self._retention.keep_values:
            call.value = None
        is_measured = self._measures and self._inconsistency in (None, "changed keys")
        can_wait = continuation == "new_tokens" and self._inconsistency is None
        if is_measured and not (can_wait and self._pending.try_add(call)):
            output = self._measure(call, continuation, value)
        self.batch_size, self._num_keys = len(query), self._num_keys + keys
        self._next_position = call.q_offset + queries
        self._valid.append((call.valid_queries, queries))
        if call.output_gradient is not None:
            self._gradients.append((call.output_gradient, queries))
        last = self._next_position - call.kv_offset if self.kind != "cross" else 0
        if self._retention.keep_qk:
            stored = self._keep(call, continuation, weights)
            key, last = stored.request.key, last if call.is_dense else min(last, stored.request.key.shape[2])
            self._last_keys, self._last_index = key if last > 0 else None, last - 1
        if call.is_dense or not self._retention.keep_qk:
            self._last_keys = fingerprint(cached[:, :, last - 1 : last]) if last > 0 else None
        if self._held_keys is not None:
            self._held_keys.hold(call, cached, continuation)
        return weights, output

    def _measure(self, call: AttentionCall, continuation: Continuation | None, value: Tensor | None) -> Tensor | None:
        """Measure a call, and return its output for a value if that takes no pass of its own."""
        if continuation is None:
            self._results, output = call.measure(self._measures, value)
        else:
            self.flush()
            results, output = call.measure(self._measures, value)
            offsets = {"new_tokens": call.kv_offset - self._first_kv_offset, "chunk": self._num_keys, "new_queries": 0}
            self._merge(results, offsets[continuation])
            if continuation == "new_tokens":
                self._pending.start_after(call)
        if self._retention.max_bytes is not None:
            self._retention.count(self.name, self._results)
        return output

    def _check_continuation(self, call: AttentionCall, continuation: Continuation) -> None:
        """Notice further calls that are not rows of the matrix, and refuse measures that need all rows at once."""
        if continuation == "new_tokens":
            self._inconsistency = self._inconsistency or self._find_inconsistency(call)
        if self._inconsistency not in (None, "changed keys"):
            self._pending.take()  # and drop them: nothing can be measured any more
            return
        raise_problems(
            [
                f"measure '{name}': needs the whole matrix, but {self.name} is computed in several calls; compute it "
                "afterwards: layer.weights.measure(...)"
                for name, measure in self._measures.items()
                if type(measure).result_index is not Measure.result_index
            ]
        )

    def _keep(self, call: AttentionCall, continuation: Continuation | None, weights: WeightMatrix) -> AttentionCall:
        """Keep a call, and notice later if the model changes what was not copied."""
        store = partial(self._retention.store, self.name)
        if continuation == "new_tokens":
            if self._continuation is None:
                self._trim_first()
            stored = store(call.new_keys_only())
            versions = TensorVersions((stored.query, stored.bias))  # the rest are copies
        elif continuation == "new_queries" and call.key.shape == self._calls[0].key.shape:  # keep equal keys once
            stored = store(call.without_keys()).with_keys_of(self._calls[0])
            versions = TensorVersions(stored.tensors)
        else:
            stored = store(call.copy_of_cache())
            is_same = stored is call and call.value is None
            versions = weights._versions if is_same else TensorVersions(stored.tensors)  # pyright: ignore[reportPrivateUsage]
        self._calls.append(stored)
        self._versions.append(versions)
        self._continuation, self._concatenated = continuation or self._continuation, None
        return stored

    def _trim_first(self) -> None:
        """Let go of the unused end of a static KV cache, which the first call covers."""
        trimmed = self._calls[0].without_unused_keys()
        if trimmed is not self._calls[0]:
            self._calls[0] = self._retention.store(self.name, trimmed)
            with suppress(StaleView):  # a query that was changed before stays refused
                self._check_versions()
                self._versions[0] = TensorVersions(self._calls[0].tensors)

    def _check_versions(self) -> None:
        """Raise StaleView if the model changed a kept tensor in place after the call."""
        for versions in self._versions:
            versions.check(
                f"{self.name}: the watch keeps query, key and mask without copying them, unless offload='cpu'"
            )

    def repeat(self) -> None:
        """The last call was made again with another value: its weights are the same."""
        self._has_several_values = True
        if self._calls:
            self._calls[-1].value = None

    def flush(self) -> None:
        """Measure the deferred decode steps, and let go of their keys."""
        call = self._pending.take()
        if call is not None:
            with torch.no_grad():  # as when the steps ran
                self._merge(call.measure(self._measures)[0], call.kv_offset - self._first_kv_offset)

    def relate(self, call: AttentionCall) -> Literal["new_tokens", "new_queries"] | None:
        """How a call whose positions are only assumed continues this layer, by its keys; None if it does not.

        Raises:
            InvalidArgument: If it does, but as a step that is no row of the matrix.
        """
        return None if self._held_keys is None else self._held_keys.relate(self.name, self.kind, call)

    def is_step_of(self, queries: int) -> bool:
        """Whether its last call may be attention of so many tokens to themselves and those before."""
        return self._held_keys is not None and self._held_keys.attends_to_itself and self.num_last_queries == queries

    @property
    def num_last_queries(self) -> int:
        """The number of queries of the last call."""
        return self._valid[-1][1]

    @property
    def has_doubtful_steps(self) -> bool:
        """Whether its calls may be steps, or layers of the same step."""
        return self._inconsistency == "steps or layers"

    def doubt_steps(self) -> None:
        """Refuse to join its calls from now on."""
        self._inconsistency = "steps or layers"

    def is_continued_by(self, call: AttentionCall, *, compare_keys: bool = False) -> bool:
        """Whether a call continues this layer with new tokens, because the KV cache grew.

        Args:
            call: The call.
            compare_keys: Whether its cache must also hold the keys that were recorded, or where they were not kept, the
                last of them.
        """
        if not 0 < self._next_position == call.q_offset:
            return False
        if not compare_keys or self._inconsistency is not None:
            return True
        if self._calls and self._last_keys is not None and not self.is_dense:
            key = self._concatenate().key
            held = call.key[:, :, : key.shape[2]].to(key.device)
            if call.kv_offset == self._first_kv_offset and held.shape == key.shape:
                return torch.equal(held, key)
        return self._find_inconsistency(call) is None

    def select_beams(self, rows: Tensor) -> LayerRecorder:
        """The sequences of a beam search.

        Args:
            rows: (sequences, steps) The row of the batch at each step, −1 where the sequence had ended.
        """
        self._check_versions()
        selected, more = copy(self), self.num_more_for_prompt
        selected._calls = [
            call.select_sequences(rows[:, max(number - more, 0)]) for number, call in enumerate(self._calls)
        ]
        selected._valid = [(call.valid_queries, call.query.shape[2]) for call in selected._calls]
        selected._versions, selected._gradients, selected._pending = [], [], PendingSteps()
        selected._concatenated = selected._inconsistency = selected._held_keys = None
        selected.batch_size = len(rows)
        selected._results = selected._concatenate().weights.measure(self._measures)
        return selected

    def _concatenate(self) -> AttentionCall:
        """All calls as one."""
        if not self._calls:
            raise InvalidArgument(f"{self.name}: its weights were not kept; watch with keep_qk=True, or read measured")
        if self._inconsistency is not None:
            raise InvalidArgument(why_inconsistent(self.name, self._inconsistency, has_calls=True))
        self._check_versions()
        if self._concatenated is None:
            call = self._calls[0]
            if self._continuation is not None:
                call = concatenate_calls(self._calls, self._continuation)
            value = None if self._has_several_values else call.value
            self._concatenated = replace(call, valid_queries=self.valid_queries, value=value)
        return self._concatenated

    def _find_inconsistency(self, call: AttentionCall) -> Inconsistency | None:
        """Compare the key that the cache holds for the last token of the call before with the one recorded then."""
        if call.num_prefix_keys != self._num_prefix:
            return "compressed keys"
        position, last = self._next_position - call.kv_offset, self._last_keys
        if last is None or position <= 0:
            return None
        held = call.cached[:, :, position - 1 : position]
        if isinstance(last, Tensor):
            held, last = held.to(last.device), fingerprint(last[:, :, self._last_index : self._last_index + 1])
        held = fingerprint(held)
        if len(held) == len(last) and all(map(is_same, held, last)):
            return None
        is_reordered = all(any(is_same(one, other) for other in last) for one in held)
        return "reordered" if is_reordered else "changed keys"

    def _merge(self, results: Mapping[str, Any], key_offset: int) -> None:
        """Append results for further queries, whose keys start at `key_offset`."""
        for name, result in results.items():
            if name in self._results:
                before, measure = self._results[name], self._measures[name]
                result = concatenate_results(before, result, measure, KeyPlacement(key_offset, self._num_prefix))
            self._results[name] = result
