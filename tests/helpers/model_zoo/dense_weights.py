"""Compares captured weights with each softmax of an unwatched run, and with the weights that the model returns."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

from torch import Tensor

KERNELS = {"ConvBertSelfAttention"}
"""Classes that compute convolutions, too, by kernels (batch · tokens · heads, kernel size, 1) from a softmax."""


def compare_dense(
    actual: Mapping[tuple[str, int], Tensor], softmaxes: Mapping[tuple[str, str], list[Tensor]], returned: list[Tensor]
) -> None:
    """Compare captured weights with the results of each module's softmax, and with what the model itself returns.

    Args:
        actual: (batch, heads, queries, keys) of each layer.
        softmaxes: The results of all softmaxes in an unwatched run, by the names of their module and its class.
        returned: What an unwatched model returns with ``output_attentions=True``.
    """
    of_modules = {
        module: [each for each in results if cls not in KERNELS or each.shape[-1] != 1]
        for (module, cls), results in softmaxes.items()
    }
    for (module, entry), weights in actual.items():
        results = of_modules.get(module, [])
        assert any(_has_entries_of(weights, result) for result in results), (
            f"{module} #{entry}: {tuple(weights.shape)} is none of {[tuple(each.shape) for each in results]}"
        )
    for each in returned:
        alike = [weights for weights in actual.values() if each.shape == weights.shape]
        assert not alike or any(_are_alike(each, weights) for weights in alike), (
            f"weights of {tuple(each.shape)} that the model returns are none of those recorded"
        )
    for module in {module for module, _ in actual}:
        count = sum(name == module for name, _ in actual)
        expected = len({(each.data_ptr(), each.shape) for each in of_modules[module]})
        assert count == expected, f"{module}: {count} layers of {expected} softmaxes"


def _are_alike(returned: Tensor, weights: Tensor) -> bool:
    is_empty = (weights == 0).all(-1, keepdim=True)
    return float((returned.masked_fill(is_empty, 0) - weights).abs().max()) <= 1e-5


def _has_entries_of(weights: Tensor, result: Tensor) -> bool:
    """Whether weights are the result of a softmax, perhaps with its axes in another order."""
    if result.numel() != weights.numel():
        return False
    layouts = (result.permute(axes).reshape(weights.shape) for axes in permutations(range(result.ndim)))
    return any(float((each - weights).abs().max()) <= 1e-5 for each in layouts)
