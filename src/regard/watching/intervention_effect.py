"""The effect of an intervention: the output of a model with and without it, on the same input."""

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
from regard.watching.result import WatchResult
from regard.watching.watch import watch


@dataclass(frozen=True, eq=False)
class InterventionEffect:
    """Two runs of a model on the same input, without and with an intervention.

    Args:
        baseline: The output without it, (batch, tokens, width).
        intervened: The output with it, of the same shape.
        divergence: (batch, tokens) How far apart they are. For logits, the KL divergence of the predicted
            distributions, KL(baseline ‖ intervened), in nats; else ‖intervened − baseline‖ / ‖baseline‖.
        is_logits: Whether the outputs are logits.
        watched: What the model attended to in both runs.
    """

    baseline: Float[Tensor, "batch tokens width"]
    intervened: Float[Tensor, "batch tokens width"]
    divergence: Float[Tensor, "batch tokens"]
    is_logits: bool
    watched: tuple[WatchResult, WatchResult]

    def __repr__(self) -> str:
        unit = "nats of KL divergence" if self.is_logits else "relative to the baseline's norm"
        mean, most = self.divergence.mean(), self.divergence.max()
        return f"InterventionEffect({tuple(self.divergence.shape)} tokens: mean {mean:.3g}, maximum {most:.3g} {unit})"

    @property
    def top_tokens(self) -> tuple[Tensor, Tensor]:
        """The id of the most likely token at each position, without and with the intervention, each (batch, tokens).

        Raises:
            InvalidArgument: If the outputs are not logits.
        """
        if not self.is_logits:
            raise InvalidArgument("top_tokens: the model returns hidden states, not logits")
        return self.baseline.argmax(-1), self.intervened.argmax(-1)


def intervention_effect(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    ablate: Mapping[str, Sequence[int]] | None = None,
    knockout: Mapping[str, Pairs] | None = None,
) -> InterventionEffect:
    """Run a model of transformers without and with an intervention, and compare the outputs.

    Args:
        model: As for `watch`.
        inputs: The model's arguments by name, as a tokenizer returns them.
        ablate: As for `watch`.
        knockout: As for `watch`.

    Raises:
        InvalidType: If the inputs are not a dict.
        InvalidArgument: If there is no intervention, the model is in training mode, or it returns neither logits nor
            hidden states for its tokens; and as `watch`.

    Examples:
        >>> import regard, torch, transformers
        >>> config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99)
        >>> model = transformers.GPT2LMHeadModel(config).eval()
        >>> inputs = {"input_ids": torch.randint(99, (1, 10))}
        >>> effect = regard.watching.intervention_effect(model, inputs, ablate={"transformer.h.0.attn": [1, 3]})
        >>> effect.divergence.shape, bool((effect.divergence > 0).all())
        (torch.Size([1, 10]), True)
    """
    if not isinstance(model, nn.Module):
        raise InvalidType(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(inputs, Mapping):
        raise InvalidType(f"inputs: expected a dict of the model's arguments by name, got {type(inputs).__name__}")
    if not ablate and not knockout:
        raise InvalidArgument("intervention_effect: expected an intervention; pass ablate= or knockout=")
    if model.training:
        raise InvalidArgument("model: is in training mode, where dropout differs between runs; call model.eval() first")
    outputs, results = [], []
    for changes in ({}, {"ablate": ablate, "knockout": knockout}):
        with watch(model, **changes) as result, torch.no_grad():
            output = model(**_copy_caches(inputs))
        logits = getattr(output, "logits", None)
        outputs.append(logits if logits is not None else getattr(output, "last_hidden_state", None))
        results.append(result)
    baseline, intervened = outputs
    if not isinstance(baseline, Tensor) or baseline.ndim != 3:
        raise InvalidArgument(f"model: {type(model).__name__} returns neither logits nor hidden states for each token")
    is_logits = logits is not None
    if is_logits:
        log_p, log_q = baseline.float().log_softmax(-1), intervened.float().log_softmax(-1)
        divergence = (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0)
    else:
        divergence = (intervened - baseline).float().norm(dim=-1) / baseline.float().norm(dim=-1)
    return InterventionEffect(baseline, intervened, divergence, is_logits, (results[0], results[1]))


def _copy_caches(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs for one run, which writes into a KV cache among them."""
    return {name: value if isinstance(value, Tensor) else deepcopy(value) for name, value in inputs.items()}
