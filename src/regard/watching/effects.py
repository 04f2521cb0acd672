"""What becomes of a model's output where heads are silent or cells forbidden, beside the untouched run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import InvalidArgument, InvalidType
from regard.watching.interventions import Pairs
from regard.watching.listening import Watch
from regard.watching.watch import watch


@dataclass(frozen=True, eq=False)
class Effect:
    """Two runs of a model on the same input: untouched, and with an intervention.

    Args:
        before: The output of the untouched run, (batch, tokens, width).
        after: That of the other, of the same shape.
        change: (batch, tokens) How far apart they are: where the output is logits, the Kullback-Leibler divergence of
            the words' distributions, KL(before ‖ after), in nats; else ‖after − before‖ / ‖before‖.
        logits: Whether they are logits.
        seen: What both runs attended to.
    """

    before: Float[Tensor, "batch tokens width"]
    after: Float[Tensor, "batch tokens width"]
    change: Float[Tensor, "batch tokens"]
    logits: bool
    seen: tuple[Watch, Watch]

    def __repr__(self) -> str:
        what = "nats between the words' distributions" if self.logits else "of the vectors' length"
        mean, most = self.change.mean(), self.change.max()
        return f"Effect({tuple(self.change.shape)} tokens: {mean:.3g} {what} in the mean, {most:.3g} at most)"

    @property
    def likeliest(self) -> tuple[Tensor, Tensor]:
        """The likeliest word at each place before and after, each (batch, tokens).

        Raises:
            InvalidArgument: If the output is no logits.
        """
        if not self.logits:
            raise InvalidArgument("likeliest: the model gives vectors, and no logits of words")
        return self.before.argmax(-1), self.after.argmax(-1)


def effect(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    ablate: Mapping[str, Sequence[int]] | None = None,
    knockout: Mapping[str, Pairs] | None = None,
) -> Effect:
    """Run a model of transformers twice, untouched and with an intervention, and set the outputs side by side.

    Args:
        model: As for `watch`.
        inputs: What it is given, by name, as a tokenizer gives it.
        ablate: As for `watch`.
        knockout: As for `watch`.

    Raises:
        InvalidArgument: If nothing is to be changed, or the model is in training mode; as `watch`; or if the model
            gives neither logits nor hidden states for its tokens.

    Example:
        >>> import regard, torch, transformers
        >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99)
        >>> model = transformers.GPT2LMHeadModel(config).eval()
        >>> words = {"input_ids": torch.randint(99, (1, 10))}
        >>> found = regard.watching.effect(model, words, ablate={"transformer.h.0.attn": [1, 3]})
        >>> found.change.shape, bool((found.change > 0).all())
        (torch.Size([1, 10]), True)
    """
    if not isinstance(inputs, Mapping):
        raise InvalidType(f"inputs: expected a dict by the names of the model's arguments, got {type(inputs).__name__}")
    if not ablate and not knockout:
        raise InvalidArgument("effect: nothing is to be changed: give ablate= or knockout=")
    if model.training:
        raise InvalidArgument(
            "model is in training mode, where dropout differs from run to run: call model.eval() first"
        )
    found, watches = [], []
    for changes in ({}, {"ablate": ablate, "knockout": knockout}):
        with watch(model, **changes) as seen, torch.no_grad():
            output = model(**_own(inputs))
        logits = getattr(output, "logits", None)
        found.append(logits if logits is not None else getattr(output, "last_hidden_state", None))
        watches.append(seen)
    before, after = found
    if not isinstance(before, Tensor) or before.ndim != 3:
        raise InvalidArgument(f"effect: {type(model).__name__} gives no logits or hidden states for each token")
    of_words = logits is not None
    if of_words:
        logs, others = before.float().log_softmax(-1), after.float().log_softmax(-1)
        change = (logs.exp() * (logs - others)).sum(-1).clamp(min=0)
    else:
        change = (after - before).float().norm(dim=-1) / before.float().norm(dim=-1)
    return Effect(before, after, change, of_words, (watches[0], watches[1]))


def _own(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs for one run: a cache among them grows."""
    return {name: given if isinstance(given, Tensor) else deepcopy(given) for name, given in inputs.items()}
