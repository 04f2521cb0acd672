"""Scores that say what each attention head does, and repeated random tokens to measure some of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from regard.analysis.hodge import hodge
from regard.analysis.padding import know_padding, valid_keys, valid_queries
from regard.analysis.tables import Columns
from regard.errors import InvalidArgument, InvalidType, short_repr
from regard.ops import WeightMatrix
from regard.ops.masks import Documents, Padding
from regard.ops.measures import Diagonal, Entropy, Mass, MeanDistance, Measure
from regard.recordings.layer import AttentionKind
from regard.recordings.recording import Recording

HEAD_SCORES = (
    "previous_token",
    "next_token",
    "self",
    "first_token",
    "separator",
    "duplicate_token",
    "induction",
    "entropy",
    "mean_distance",
)
"""The scores of `head_scores`."""

SPECTRAL_SCORES = ("effective_rank", "hodge_gradient", "hodge_curl")
"""The scores that `head_scores` adds with ``spectral=True``."""

RANK_VALUES = 16
"""Singular values of which the effective rank of a head is taken."""

SEPARATOR_TOKENS = ("[SEP]", "</s>", "<sep>", "<eos>", "<|endoftext|>", "<|eot_id|>", "<|im_end|>", "<end_of_turn>")
"""How tokenizers write the tokens that end or separate texts."""

Tokens = Sequence[Sequence[Hashable]]
"""The tokens of each sequence: words or ids."""


def head_scores(
    recordings: Recording | Iterable[Recording],
    *,
    tokens: Any = None,
    target_tokens: Any = None,
    separator_tokens: Collection[Hashable] = SEPARATOR_TOKENS,
    tokenizer: Any = None,
    repeated_tokens: Recording | None = None,
    spectral: bool = False,
) -> Columns:
    """Where the attention of each head goes: means over all rows that are not padding, of one recording or several.

    ``previous_token``, ``next_token``, ``self``
        The weight on the token before, on the one after, on the token itself; over rows that have one.
    ``first_token``
        The weight on the first token, which many heads use as a sink.
    ``separator``
        The weight on tokens that end or separate texts, such as ``[SEP]``.
    ``duplicate_token``
        The weight on other occurrences of the same token (in a decoder: earlier ones), over rows that have one.
    ``induction``
        The weight on the token that followed another occurrence of the same token, over rows that have one: what a head
        would copy from.
    ``entropy``
        The entropy of the row, in nats.
    ``mean_distance``
        The mean distance to the keys, in tokens.

    With `spectral` also, as means over sequences:

    ``effective_rank``
        The effective rank of the 16 largest singular values (`WeightMatrix.effective_rank`): near 1 where all rows are
        alike.
    ``hodge_gradient``, ``hodge_curl``
        How much of the attention is a hierarchy of tokens, and how much goes around in circles (`hodge`).

    Cross-attention has only ``first_token``, ``separator``, ``entropy`` and ``effective_rank``. Scores without any row
    are NaN.

    Args:
        recordings: Of one model. ``duplicate_token`` and ``induction`` mean most on random tokens that occur twice
            (`repeated_random_tokens`): what repeats in a natural text also follows from its grammar.
        tokens: (batch, tokens) Token ids or words of all recordings. Default: the tokens of their layers, if they are
            named; else ``separator``, ``duplicate_token`` and ``induction`` are NaN.
        target_tokens: The same for the decoder, in a model with encoder and decoder.
        separator_tokens: The tokens that end or separate texts, as they occur in `tokens`: words, or ids. Of ids alone
            none is known to be one, so ``separator`` is then NaN.
        tokenizer: Of transformers. Its separator and its end of text (`sep_token`, `eos_token`) are separators, too,
            and so are the ids of all separators. Its other special tokens, such as ``[CLS]``, are not.
        repeated_tokens: A recording of repeated random tokens, as pipelines' `record_repeated_tokens` makes it, from
            which ``duplicate_token`` and ``induction`` are computed. Default: from `recordings`.
        spectral: Whether to add the scores of `SPECTRAL_SCORES`, which take several more passes.

    Returns:
        Columns by name, for ``pandas.DataFrame``: ``layer``, ``kind``, ``head`` (its index in the model), and the
        scores; a row is a head.

    Raises:
        InvalidType: If something is not a recording, or tokens are not lists of tokens.
        InvalidArgument: If there is no recording, their models have different names, or there are not as many tokens
            as keys.

    Memory:
        O(tokens), in one pass over the weights of each layer, or more with `spectral`.

    Reference:
        Clark et al. 2019, "What Does BERT Look At?"; Olsson et al. 2022, "In-context Learning and Induction Heads".

    Examples:
        >>> import regard
        >>> from regard.analysis import head_scores
        >>> scores = head_scores(regard.pipelines.Translator.load().record("Thank you."))
        >>> list(scores)[:5], len(scores["head"])
        (['layer', 'kind', 'head', 'previous_token', 'next_token'], 80)
    """
    _check_separators(separator_tokens)
    if tokenizer is not None:
        if not hasattr(tokenizer, "all_special_ids"):
            raise InvalidType(f"tokenizer: expected one of transformers, got {type(tokenizer).__name__}")
        separator_tokens = _with_separators_of(tokenizer, separator_tokens)
    sums = HeadScoreAccumulator(separator_tokens, spectral=spectral)
    of_encoder, of_decoder = _as_token_lists("tokens", tokens), _as_token_lists("target_tokens", target_tokens)
    models = set()
    if not isinstance(recordings, (Recording, Iterable)):
        hint = "; pass its .recording" if hasattr(recordings, "recording") else ""
        raise InvalidType(f"recordings: expected a Recording or several, got {type(recordings).__name__}{hint}")
    for recording in [recordings] if isinstance(recordings, Recording) else recordings:
        if not isinstance(recording, Recording):
            raise InvalidType(f"recordings: expected a Recording or several, got {type(recording).__name__}")
        models.add(recording.model_name)
        if len(models) > 1:
            raise InvalidArgument(f"recordings: expected those of one model, got {', '.join(sorted(models))}")
        for layer in recording.layers:
            known = of_decoder if layer.kind == "decoder" and of_decoder is not None else of_encoder
            if known is None and layer.has_tokens:
                known = [layer.key_tokens]
            sums.add(layer.name, layer.kind, layer.weights, known, layer.head_indices)
    scores = sums.means()
    if not scores["head"]:
        raise InvalidArgument("recordings: expected at least one, with layers")
    if repeated_tokens is not None:
        repeated = head_scores(repeated_tokens)
        rows = {head: row for row, head in enumerate(zip(repeated["layer"], repeated["head"], strict=True))}
        for name in ("duplicate_token", "induction"):
            heads = zip(scores["layer"], scores["head"], strict=True)
            scores[name] = [repeated[name][rows[head]] if head in rows else math.nan for head in heads]
    return scores


def _check_separators(separator_tokens: Any) -> None:
    if isinstance(separator_tokens, str) or not isinstance(separator_tokens, Collection):
        raise InvalidType(f"separator_tokens: expected a list of tokens, got {short_repr(separator_tokens)}")


def _with_separators_of(tokenizer: Any, separator_tokens: Collection[Hashable]) -> set[Hashable]:
    """Separators and those of a tokenizer, as words and as ids."""
    own = (getattr(tokenizer, name, None) for name in ("sep_token", "eos_token"))
    tokens = {*separator_tokens, *(token for token in own if token is not None)}
    vocabulary = tokenizer.get_vocab()
    return tokens | {vocabulary[token] for token in tokens if isinstance(token, str) and token in vocabulary}


def rank_heads(scores: Columns, by: str) -> list[int]:
    """The rows of `head_scores` that have a score, strongest first.

    Args:
        scores: As `head_scores` returns them.
        by: Name of the score; rows in which it is NaN are left out.
    """
    rows = [row for row, value in enumerate(scores[by]) if not math.isnan(value)]
    return sorted(rows, key=lambda row: -scores[by][row])


def as_score_tensors(scores: Columns) -> dict[str, Float[Tensor, "layers heads"]]:
    """Head scores as tensors (layers, heads), by name: one row for each layer, in order; NaN where there is no head.

    Examples:
        >>> import regard
        >>> from regard.analysis import as_score_tensors, head_scores
        >>> scores = as_score_tensors(head_scores(regard.pipelines.Translator.load().record("Thank you.")))
        >>> scores["entropy"].shape, scores["entropy"].argmax().item() < 80
        (torch.Size([10, 8]), True)
    """
    rows = {name: row for row, name in enumerate(dict.fromkeys(scores["layer"]))}
    width = max((scores["layer"].count(name) for name in rows), default=0)
    names = [name for name in (*HEAD_SCORES, *SPECTRAL_SCORES) if name in scores]
    tensors = {name: torch.full((len(rows), width), math.nan, device="cpu") for name in names}
    columns: Counter[str] = Counter()
    for number, layer in enumerate(scores["layer"]):
        for name, tensor in tensors.items():
            tensor[rows[layer], columns[layer]] = scores[name][number]
        columns[layer] += 1
    return tensors


def _as_token_lists(name: str, tokens: Any) -> Tokens | None:
    """Tokens as a list for each sequence; one sequence may come without the batch axis."""
    if tokens is None:
        return None
    listed = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise InvalidType(f"{name}: expected (batch, tokens) ids or words, got {type(tokens).__name__}")
    is_one = any(isinstance(each, str) or not isinstance(each, Sequence) for each in listed)
    return [listed] if is_one else listed


def repeated_random_tokens(ids: Sequence[int], length: int, seed: int = 0) -> list[int]:
    """Random tokens followed by the same tokens, so that only induction predicts the second half.

    Args:
        ids: The token ids to draw from.
        length: Number of tokens in each half. They are distinct if there are enough ids.
        seed: Seed of the random numbers.

    Examples:
        >>> repeated_random_tokens(range(100), 3)
        [44, 19, 93, 44, 19, 93]
    """
    generator = torch.Generator().manual_seed(seed)
    if length <= len(ids):
        drawn = torch.randperm(len(ids), generator=generator, device="cpu")[:length]
    else:
        drawn = torch.randint(len(ids), (length,), generator=generator, device="cpu")
    return [ids[index] for index in drawn.tolist()] * 2


class HeadScoreAccumulator:
    """Adds up head scores over the rows of several inputs, and returns their means.

    Args:
        separator_tokens: The tokens that end or separate texts.
        spectral: Whether to compute `SPECTRAL_SCORES`, too.
    """

    def __init__(self, separator_tokens: Collection[Hashable] = SEPARATOR_TOKENS, *, spectral: bool = False) -> None:
        _check_separators(separator_tokens)
        self.separator_tokens, self.spectral = separator_tokens, spectral
        self._sums: dict[tuple[str, AttentionKind, tuple[int, ...]], dict[str, tuple[Tensor, int]]] = {}

    def add(
        self,
        name: str,
        kind: AttentionKind,
        weights: WeightMatrix,
        tokens: Tokens | None = None,
        head_indices: Sequence[int] | None = None,
        extra_measures: Mapping[str, Measure] | None = None,
    ) -> dict[str, Any]:
        """Add the rows of a layer.

        Args:
            name: Name of the layer.
            kind: Kind of the layer.
            weights: (batch, heads, queries, keys). Rows that are not among its `valid_queries` do not count.
            tokens: The tokens of the keys of each sequence. Default: unknown, without the scores that depend on them.
            head_indices: The index of each head in the model. Default: from 0.
            extra_measures: Measures to compute in the same pass, by a name that is not in `HEAD_SCORES`.

        Returns:
            The results of the extra measures.

        Raises:
            InvalidArgument: If there are not as many tokens as keys.
        """
        batch, heads, _, keys = weights.shape
        if tokens is not None and [len(sequence) for sequence in tokens] != [keys] * batch:
            lengths = " and ".join(sorted({str(len(sequence)) for sequence in tokens}))
            raise InvalidArgument(
                f"tokens: expected {batch} x {keys} (sequences x keys) for {name}, got {len(tokens)} x {lengths}"
            )
        extra = extra_measures or {}
        measures, rows_of = self._measures_and_rows(kind, weights, tokens)
        results = weights.detach().measure({**measures, **extra})
        if "duplicate_token" in measures:  # other occurrences, and not what follows the token itself
            results["duplicate_token"] = results["duplicate_token"] - results["self"]
            results["induction"] = results["induction"] - results["next_token"]
        sums = self._sums.setdefault((name, kind, tuple(range(heads) if head_indices is None else head_indices)), {})
        for score, rows in rows_of.items():
            total, count = sums.get(score, (0.0, 0))
            added = (results[score] * rows[:, None]).cpu().sum((0, 2), dtype=torch.float64)  # MPS has no float64
            sums[score] = total + added, count + int(rows.sum())
        for score, values in _spectral_scores(kind, weights).items() if self.spectral else ():
            total, count = sums.get(score, (0.0, 0))
            sums[score] = total + values.cpu().sum(0, dtype=torch.float64), count + batch
        return {name: results[name] for name in extra}

    def means(self) -> Columns:
        """The scores by name, a row for each head."""
        names = (*HEAD_SCORES, *SPECTRAL_SCORES) if self.spectral else HEAD_SCORES
        columns: Columns = {"layer": [], "kind": [], "head": [], **{score: [] for score in names}}
        for (name, kind, head_indices), sums in self._sums.items():
            heads = len(head_indices)
            columns["layer"] += [name] * heads
            columns["kind"] += [kind] * heads
            columns["head"] += head_indices
            for score in names:
                total, count = sums.get(score, (torch.zeros(heads, device="cpu"), 0))
                columns[score] += (total / count).tolist() if count else [math.nan] * heads
        return columns

    def _measures_and_rows(
        self, kind: AttentionKind, weights: WeightMatrix, tokens: Tokens | None
    ) -> tuple[dict[str, Measure], dict[str, Tensor]]:
        """The measure of each score, and the rows that count for it, (batch, queries)."""
        _, _, queries, keys = weights.shape
        device, is_self = weights.device, kind != "cross"
        valid, is_token = (find(weights, is_self=is_self) for find in (valid_queries, valid_keys))
        first = is_token.int().argmax(1, keepdim=True)  # after padding on the left
        last = keys - 1 - is_token.flip(1).int().argmax(1, keepdim=True)
        is_first = torch.zeros_like(is_token).scatter_(1, first, True)
        measures: dict[str, Measure] = {"first_token": Mass(Padding(is_first)), "entropy": Entropy()}
        rows = dict.fromkeys(measures, valid)
        if tokens is not None:
            is_separator = [[token in self.separator_tokens for token in sequence] for sequence in tokens]
            has_words = any(isinstance(token, str) for sequence in tokens for token in sequence)
            if has_words or any(map(any, is_separator)):  # of ids alone, the separators may be unknown
                measures["separator"] = Mass(Padding(torch.tensor(is_separator, device=device)))
                rows["separator"] = valid
        if is_self:
            position = torch.arange(queries, device=device) + weights.request.offset
            measures |= {"self": Diagonal(0), "mean_distance": MeanDistance()}
            rows |= {"self": valid, "mean_distance": valid}
            measures |= {"previous_token": Diagonal(-1), "next_token": Diagonal(1)}
            rows |= {"previous_token": valid & (position > first), "next_token": valid & (position < last)}
        if is_self and tokens is not None:
            parts = _token_repetitions(tokens, is_token.tolist())
            ids, earlier, others, followed = (part.to(device) for part in parts)
            column = position.clamp(0, keys - 1)
            query_ids = ids[:, column].where(position == column, -1)
            measures["duplicate_token"] = Mass(Documents(ids, query_ids))
            measures["induction"] = Mass(Documents(pad(ids[:, :-1], (1, 0), value=-1), query_ids))
            has_id, is_causal = valid & (query_ids >= 0), kind == "decoder"
            rows["duplicate_token"] = has_id & ((earlier if is_causal else others)[:, column] > 0)
            rows["induction"] = has_id & ((earlier if is_causal else followed)[:, column] > 0)
        return measures, rows


def _spectral_scores(kind: AttentionKind, weights: WeightMatrix) -> dict[str, Tensor]:
    """`SPECTRAL_SCORES` of each sequence and head, (batch, heads)."""
    weights = know_padding(weights, is_self=kind != "cross").detach()
    scores = {"effective_rank": weights.effective_rank(min(RANK_VALUES, *weights.shape[2:]), tol=1e-2)}
    if kind != "cross" and weights.shape[2] == weights.shape[3]:
        parts = hodge(weights)
        scores |= {"hodge_gradient": parts.gradient, "hodge_curl": parts.curl}
    return scores


def _token_repetitions(tokens: Tokens, valid: Sequence[Sequence[bool]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An id for each token, −1 for padding, and numbers of its other occurrences.

    Returns:
        Four tensors (batch, tokens): the ids, the number of earlier occurrences, of all others, and of those others
        that another token follows.
    """
    numbers: dict[Hashable, int] = {}
    rows: list[list[list[int]]] = [[], [], [], []]
    for sequence, is_valid in zip(tokens, valid, strict=True):
        ids = [
            numbers.setdefault(token, len(numbers)) if ok else -1 for token, ok in zip(sequence, is_valid, strict=True)
        ]
        total, counts = Counter(ids), Counter[int]()
        earlier = []
        for token in ids:
            earlier.append(counts[token])
            counts[token] += 1
        last = max((index for index, token in enumerate(ids) if token >= 0), default=0)
        others = [total[token] - 1 for token in ids]
        followed = [n - (i < last and ids[last] == token) for i, (n, token) in enumerate(zip(others, ids, strict=True))]
        for row, values in zip(rows, (ids, earlier, others, followed), strict=True):
            row.append(values)
    # int32 compares faster
    ids, earlier, others, followed = (torch.tensor(row, dtype=torch.int32, device="cpu") for row in rows)
    return ids, earlier, others, followed
