"""What a head does: where its attention goes, as a few numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from regard.analysis.recording import Kind, Layers, Recording
from regard.errors import InvalidArgument, InvalidType
from regard.ops import WeightMatrix
from regard.ops.masks import Documents, Padding
from regard.ops.measures import Diagonal, Entropy, Mass, MeanDistance, Measure

HEAD_SCORES = ("previous", "next", "self", "first", "separator", "duplicate", "induction", "entropy", "distance")
"""What `head_scores` tells of each head."""

SEPARATORS = ("[SEP]", "</s>", "<sep>", "<eos>", "<|endoftext|>", "<|eot_id|>", "<|im_end|>", "<end_of_turn>")
"""What tokenizers call the marks that end texts or part them."""

Tokens = Sequence[Sequence[Hashable]]
"""What stands at each place of each sequence: words or numbers."""

Columns = dict[str, list[Any]]
"""A table by columns, as ``pandas.DataFrame`` takes it."""


def head_scores(
    recordings: Recording | Iterable[Recording], *, separators: Collection[Hashable] = SEPARATORS
) -> Columns:
    """Where the attention of each head goes: means over the rows of one text, or of several.

    ``previous``, ``next``, ``self``
        The weight on the token before, on the one after, on the token itself.
    ``first``
        The weight on the first token, which many heads use as a sink.
    ``separator``
        The weight on marks that end or part texts, as ``[SEP]``.
    ``duplicate``
        The weight on the same token elsewhere, in rows where there is one: for a decoder, before.
    ``induction``
        The weight on what came after the same token elsewhere, in rows where there is such: what would copy it.
    ``entropy``
        How spread the row is, in nats.
    ``distance``
        How many tokens away the keys are, on average.

    Of cross-attention ``first``, ``separator`` and ``entropy`` are told. What no row tells is NaN.

    Args:
        recordings: Of one model. Duplicates and induction mean most on random tokens that come twice: in a natural text
            what repeats is a matter of grammar, too.
        separators: What the marks are called.

    Returns:
        Columns by name, for ``pandas.DataFrame``: ``layer``, ``kind``, ``head`` (from 0), and the scores; a row is a
        head.

    Raises:
        InvalidType: If something is no recording.
        InvalidArgument: If there is none, or they are of models with different names.

    Memory: O(tokens), in one pass over the weights of each layer.

    Reference: Clark et al. 2019, "What Does BERT Look At?"; Olsson et al. 2022, "In-context Learning and Induction
        Heads".

    Example:
        >>> import regard
        >>> from regard.analysis import head_scores
        >>> scores = head_scores(regard.generation.Translator.load().record("Thank you."))
        >>> list(scores)[:5], len(scores["head"])
        (['layer', 'kind', 'head', 'previous', 'next'], 80)
    """
    sums = HeadSums(separators)
    models = set()
    for recording in [recordings] if isinstance(recordings, Layers) else recordings:
        if not isinstance(recording, Recording):
            raise InvalidType(f"recordings: expected Recordings, got {type(recording).__name__}")
        models.add(recording.model)
        if len(models) > 1:
            raise InvalidArgument(f"recordings: expected those of one model, got {', '.join(sorted(models))}")
        for layer in recording.layers:
            sums.add(layer.name, layer.kind, layer.weights, [layer.keys], numbers=layer.head_numbers)
    found = sums.means()
    if not found["head"]:
        raise InvalidArgument("recordings: expected at least one, with layers")
    return found


def random_repeats(ids: Sequence[int], length: int, seed: int = 0) -> list[int]:
    """Random words, and the same words once more, in which only induction tells what comes next.

    Args:
        ids: What to draw from.
        length: How many words, of which each is drawn once as long as there are enough.
        seed: Of the draw.

    Example:
        >>> random_repeats(range(100), 3)
        [44, 19, 93, 44, 19, 93]
    """
    draw = torch.Generator().manual_seed(seed)
    enough = length <= len(ids)
    chosen = torch.randperm(len(ids), generator=draw) if enough else torch.randint(len(ids), (length,), generator=draw)
    return [ids[place] for place in chosen[:length].tolist()] * 2


class HeadSums:
    """Sums over rows, and how many there were, of which the scores of heads are the means.

    Args:
        separators: What the marks are called that end texts or part them.
    """

    def __init__(self, separators: Collection[Hashable] = SEPARATORS) -> None:
        if isinstance(separators, str) or not isinstance(separators, Collection):
            raise InvalidType(f"separators: expected several marks, as a list, got {separators!r:.80}")
        self.separators = separators
        self._sums: dict[tuple[str, Kind, tuple[int, ...]], dict[str, tuple[Tensor, int]]] = {}

    def add(
        self,
        name: str,
        kind: Kind,
        weights: WeightMatrix,
        tokens: Tokens | None = None,
        numbers: Sequence[int] | None = None,
        also: Mapping[str, Measure] | None = None,
    ) -> dict[str, Any]:
        """Count the rows of a layer in.

        Args:
            name: The layer.
            kind: What it is.
            weights: A view, (batch, heads, queries, keys). Queries that it knows to be padding do not count.
            tokens: What stands at the keys of each sequence. Default: nobody knows, and what depends on it is not told.
            numbers: What the heads are called. Default: from 0.
            also: What else is measured in the same pass, by name; no name of `HEAD_SCORES`.

        Returns:
            The answers to the latter.

        Raises:
            InvalidArgument: If there are not as many tokens as keys.
        """
        batch, heads, _, keys = weights.shape
        if tokens is not None and [len(each) for each in tokens] != [keys] * batch:
            came = " and ".join(sorted({str(len(each)) for each in tokens}))
            raise InvalidArgument(
                f"tokens: {name} has {batch} x {keys} (sequences x keys), but there are {len(tokens)} x {came}"
            )
        into = self._sums.setdefault((name, kind, tuple(range(heads) if numbers is None else numbers)), {})
        asked, counted_of = self._asked(kind, weights, tokens)
        answers = weights.detach().measure({**asked, **(also or {})})
        if "duplicate" in asked:  # elsewhere, and not what comes after the token itself
            answers["duplicate"] = answers["duplicate"] - answers["self"]
            answers["induction"] = answers["induction"] - answers["next"]
        for score, counted in counted_of.items():
            values = answers[score]
            total, count = into.get(score, (0.0, 0))
            found = (values * counted[:, None]).sum((0, 2), dtype=torch.float64).cpu()
            into[score] = total + found, count + int(counted.sum())
        return {name: answers[name] for name in also or {}}

    def means(self) -> Columns:
        """The scores by name, a row for each head."""
        found: Columns = {"layer": [], "kind": [], "head": [], **{score: [] for score in HEAD_SCORES}}
        for (name, kind, numbers), sums in self._sums.items():
            heads = len(numbers)
            found["layer"] += [name] * heads
            found["kind"] += [kind] * heads
            found["head"] += numbers
            for score in HEAD_SCORES:
                total, count = sums.get(score, (torch.zeros(heads), 0))
                found[score] += (total / count).tolist() if count else [math.nan] * heads
        return found

    def _asked(
        self, kind: Kind, weights: WeightMatrix, tokens: Tokens | None
    ) -> tuple[dict[str, Measure], dict[str, Tensor]]:
        """What is asked of each row, and which rows count, (batch, queries)."""
        batch, _, rows, keys = weights.shape
        device, own = weights.device, kind != "cross"
        all_rows = torch.ones(batch, rows, dtype=torch.bool, device=device)
        real = all_rows if weights.valid_queries is None else weights.valid_queries
        real_keys = real if own and rows == keys else torch.ones(batch, keys, dtype=torch.bool, device=device)
        start = real_keys.int().argmax(1, keepdim=True)  # behind the padding
        last = keys - 1 - real_keys.flip(1).int().argmax(1, keepdim=True)
        first = torch.zeros_like(real_keys).scatter_(1, start, True)
        asked: dict[str, Measure] = {"first": Mass(Padding(first)), "entropy": Entropy()}
        counted = dict.fromkeys(asked, real)
        if tokens is not None:
            marks = [[token in self.separators for token in each] for each in tokens]
            if any(map(any, marks)) or any(isinstance(token, str) for each in tokens for token in each):
                asked["separator"] = Mass(Padding(torch.tensor(marks, device=device)))  # of numbers nobody knows
                counted["separator"] = real
        if own:
            position = torch.arange(rows, device=device) + weights.request.offset
            asked |= {"previous": Diagonal(-1), "self": Diagonal(0), "next": Diagonal(1), "distance": MeanDistance()}
            counted |= {"previous": real & (position > start), "self": real, "distance": real}
            counted["next"] = real & (position < last)
        if own and tokens is not None:
            ids, before, others, followed = (part.to(device) for part in _repeats(tokens, real_keys.tolist()))
            at = position.clamp(0, keys - 1)
            here = ids[:, at].where(position == at, -1)
            asked["duplicate"] = Mass(Documents(ids, here))
            asked["induction"] = Mass(Documents(pad(ids[:, :-1], (1, 0), value=-1), here))
            past = kind == "decoder"
            counted["duplicate"] = real & (here >= 0) & ((before if past else others)[:, at] > 0)
            counted["induction"] = real & (here >= 0) & ((before if past else followed)[:, at] > 0)
        return asked, counted


def _repeats(tokens: Tokens, real: Sequence[Sequence[bool]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A number for each token, −1 for padding; how often it came before, comes elsewhere, and does with another behind.

    Each is (batch, tokens).
    """
    numbers: dict[Hashable, int] = {}
    found: list[list[list[int]]] = [[], [], [], []]
    for sequence, there in zip(tokens, real, strict=True):
        ids = [
            numbers.setdefault(token, len(numbers)) if kept else -1 for token, kept in zip(sequence, there, strict=True)
        ]
        total, seen = Counter(ids), Counter[int]()
        before = []
        for each in ids:
            before.append(seen[each])
            seen[each] += 1
        last = max((place for place, each in enumerate(ids) if each >= 0), default=0)
        found[0].append(ids)
        found[1].append(before)
        found[2].append([total[each] - 1 for each in ids])
        found[3].append([total[each] - 1 - (place < last and ids[last] == each) for place, each in enumerate(ids)])
    ids, before, others, followed = (torch.tensor(part, dtype=torch.int32) for part in found)  # quick to compare
    return ids, before, others, followed
