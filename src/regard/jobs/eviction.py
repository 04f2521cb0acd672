"""EvictingCache: a cache of keys and values with a budget, which keeps the keys that receive most attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import Any, Literal
from weakref import finalize

import torch
from torch import Tensor, nn

from regard.checks import Checks
from regard.errors import InvalidArgument, InvalidType, short_repr
from regard.jobs.evicting_layer import EvictingLayer, cache_utils
from regard.watching.module_inspection import ignores_attention_interface, is_of_transformers
from regard.watching.transformers_attention import attention_interfaces, parameter_names

IMPLEMENTATIONS = ("sdpa", "eager", "regard")
"""The attention implementations whose masks may differ between heads."""

Budget = float | Sequence[float | Sequence[float]] | Tensor
"""A share of the tokens or a number of keys, for all, for each layer, or for each key head of each layer."""


_ONE_AT_A_TIME = RLock()
"""Forward passes of models that evict replace functions of the whole process: other threads wait."""


class EvictingCache(cache_utils.DynamicCache):
    """A cache for `generate` of transformers that keeps a budget of keys, those that receive most attention.

    After each forward pass each layer of full attention drops the keys that its policy does not keep. The model keeps
    its attention implementation, and the policies get the rows or column sums that they need, no more:

    - ``"h2o"`` (Zhang et al. 2023): the *heavy hitters*, which have received most from all queries until now, and the
      most recent keys, by default half of the budget each.
    - ``"snapkv"`` (Li et al. 2024): the keys of the prompt that receive most from its last queries, mean-pooled over
      neighbors, and the keys of these queries. What is generated afterwards is kept.
    - ``"tova"`` (Oren et al. 2024): the keys to which the last query attends most, the same ones in all heads of a
      layer.

    Where query heads share a key head, their weights are added. Keys are cached with their rotary embedding, so those
    that are left, and the tokens that follow, have their own positions. Sliding-window layers stay what they are.

    Args:
        model: A decoder of transformers with the attention implementation ``"sdpa"``, ``"eager"`` or ``"regard"``.
            While the cache exists, hooks on the model serve it. In threads, one of them evicts at a time.
        policy: ``"h2o"``, ``"snapkv"`` or ``"tova"``.
        budget: A float is the share of the tokens read so far, rounded, an int the number of keys that are kept, at
            least one. A sequence has one for each layer of the model, or, except in TOVA, sequences of one for each key
            head; the heads of a layer take the memory of the largest.
        window: How many of the last keys are kept anyway; in SnapKV also how many queries vote. Default: half of the
            budget in H2O, 32 in SnapKV; TOVA has none.
        kernel_size: How many neighbors SnapKV pools, an odd number.

    Raises:
        InvalidType: If an argument has a wrong type, or the model is not of transformers.
        InvalidArgument: If the model computes attention in its own code or has no layer of full attention, the policy
            is unknown, or a number is out of range. When the model runs: if it is another one, has another attention
            implementation, an attention mask is not (batch, tokens) or has padding at the end, or the generation is
            assisted.
        MissingExtra: If transformers is not installed.

    Memory:
        O(layers * budget * d_model); in a forward pass the keys of its tokens and the scores, O(heads * tokens), of one
        layer on top of that. No matrix of queries and keys.

    Reference:
        Zhang et al. 2023, "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models",
        algorithm 1; Li et al. 2024, "SnapKV: LLM Knows What You are Looking for Before Generation", section 4; Oren et
        al. 2024, "Transformers are Multi-State RNNs", section 3.

    Examples:
        >>> import regard, torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        ...     num_key_value_heads=2, vocab_size=99)
        >>> model = LlamaForCausalLM(config).eval()  # or .from_pretrained("meta-llama/Llama-3.1-8B")
        >>> cache = regard.jobs.EvictingCache(model, policy="snapkv", budget=0.5, window=8)
        >>> output = model.generate(torch.randint(3, 99, (1, 40)), past_key_values=cache, max_new_tokens=1,
        ...     do_sample=False)
        >>> cache.layers[0].positions.shape  # of the keys that are left in the first layer, (batch, kv_heads, keys)
        torch.Size([1, 2, 20])
    """

    def __init__(
        self,
        model: nn.Module,
        policy: Literal["h2o", "snapkv", "tova"] = "snapkv",
        budget: Budget = 0.5,
        *,
        window: int | None = None,
        kernel_size: int = 5,
    ) -> None:
        config: Any = getattr(model, "config", None)
        if not is_of_transformers(model):
            raise InvalidType(f"model: expected a decoder of transformers, got {type(model).__name__}")
        decoder = config.get_text_config(decoder=True)
        with Checks() as checks:
            _check_model(checks, model, config)
            checks.choice("policy", policy, ("h2o", "snapkv", "tova"))
            checks.integer("window", window, low=1, optional=True)
            checks.that(
                window is None or policy != "tova",
                f"window: expected None for tova, which keeps no window, got {window}",
            )
            if checks.integer("kernel_size", kernel_size, low=1):
                checks.that(kernel_size % 2 == 1, f"kernel_size: expected an odd number, got {kernel_size}")
        super().__init__(config=config)
        heads = getattr(decoder, "num_key_value_heads", None) or decoder.num_attention_heads
        with Checks() as checks:
            budgets = _spread(checks, budget, len(self.layers), heads)
            is_full = [type(layer) is cache_utils.DynamicLayer for layer in self.layers]
            if policy == "tova":
                for index, each in enumerate(budgets):
                    one = f"budget[{index}]: expected one for all key heads, because tova keeps the same keys in each"
                    checks.that(len(set(each)) == 1, f"{one}, got {each}")
            checks.that(any(is_full), f"model: expected layers of full attention, got {type(model).__name__} without")
        for index, each in enumerate(is_full):
            if each:
                self.layers[index] = EvictingLayer(policy, budgets[index], window, kernel_size)
        self._hooks = _Hooks(model)
        self._replaced: list[tuple[Any, Any]] = []
        self._padding: Tensor | None = None
        self._last: Any = None
        self._num_tokens = self._num_waiting = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add keys and values, as any cache of transformers does; attention to them evicts."""
        if not self._replaced:
            raise InvalidArgument(
                f"past_key_values: expected a call of the {self._hooks.name} that this cache was made for, got one of "
                "another model or of a part of it"
            )
        self._last = self.layers[layer_idx]
        self._num_waiting += isinstance(self._last, EvictingLayer)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    def _begin(self, model: Any, arguments: Mapping[str, Any]) -> None:
        """Look at attention during a forward pass."""
        if self._replaced:  # another cache of this model has hooks, too
            return
        implementation = model.config.get_text_config(decoder=True)._attn_implementation
        inputs = next(filter(torch.is_tensor, map(arguments.get, ("input_ids", "inputs_embeds"))))
        tokens, padding = self.get_seq_length() + inputs.shape[1], arguments.get("attention_mask")
        with Checks() as checks:
            known = ", ".join(IMPLEMENTATIONS)
            checks.that(
                implementation in IMPLEMENTATIONS,
                f"model: expected an attention implementation among {known}, got {implementation}; call "
                'model.set_attn_implementation("sdpa")',
            )
            shapes = {"(batch, tokens)": (inputs.shape[0], tokens)}
            if padding is not None and checks.tensor("attention_mask", padding, shapes=shapes):
                padding = None if bool(padding.all()) else padding.bool()
                if padding is not None and not bool(padding[:, -1].all()):
                    checks.fail("attention_mask: expected padding on the left, got a sequence that ends with padding")
        self._padding = padding
        self._num_tokens, self._num_waiting = tokens, 0
        _ONE_AT_A_TIME.acquire()
        try:
            for interface in self._hooks.interfaces:
                self._replaced.append((interface, vars(interface).get("get_interface")))
                interface.get_interface = partial(self._get_interface, interface.get_interface)
        except BaseException:  # Ctrl-C
            self._restore()
            raise

    def _end(self, model: Any, output: Any) -> None:
        """Restore the interfaces, also after an error."""
        if self._replaced:
            self._restore()
        self._last = self._padding = None
        if output is not None and (self._num_waiting or self.get_seq_length() != self._num_tokens):
            raise InvalidArgument(
                f"model: expected one that attends to the keys that it caches, got {type(model).__name__}; nothing was "
                "evicted"
            )

    def _restore(self) -> None:
        for interface, before in self._replaced:
            if before is not None:
                interface.get_interface = before
            elif "get_interface" in vars(interface):
                del interface.get_interface
        self._replaced.clear()
        _ONE_AT_A_TIME.release()

    def _get_interface(self, get: Callable[..., Any], implementation: str, default: Callable[..., Any]) -> Any:
        """An attention function that calls the model's own, with the mask of the keys that are left, and evicts."""
        function = get(implementation, default)

        def attention(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
        ) -> Any:
            layer = self._last
            if not isinstance(layer, EvictingLayer) or key is not layer.keys:
                return function(module, query, key, value, attention_mask, **options)
            if options.get("position_bias") is not None:
                raise InvalidArgument(
                    f"model: expected positions in the keys, as rotary ones, got {type(module).__name__}, which adds a "
                    "bias of the distance to the scores"
                )
            if layer.cumulative_length > query.shape[2]:
                attention_mask = layer.make_mask(query, self._padding, added=implementation == "eager")
            result = function(module, query, key, value, attention_mask, **options)
            layer.evict(query, self._padding, options)
            self._num_waiting -= 1
            return result

        return attention


class _Hooks:
    """Hooks on a model that tell an `EvictingCache` among its arguments of each forward pass.

    They are removed with the last cache that has them; copies of a cache share them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.name = type(model).__name__
        self.interfaces = attention_interfaces({type(module) for module in model.modules()})
        before = model.register_forward_pre_hook(_before, with_kwargs=True)
        after = model.register_forward_hook(_after, with_kwargs=True, always_call=True)
        finalize(self, before.remove)
        finalize(self, after.remove)

    def __deepcopy__(self, memo: Any) -> _Hooks:
        return self


def _before(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    arguments = _arguments(model, args, kwargs)
    cache = arguments.get("past_key_values")
    if isinstance(cache, EvictingCache):
        cache._begin(model, arguments)


def _after(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    cache = _arguments(model, args, kwargs).get("past_key_values")
    if isinstance(cache, EvictingCache):
        cache._end(model, output)


def _arguments(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(parameter_names(model.forward), args, strict=False)) | kwargs if args else kwargs


def _check_model(checks: Checks, model: nn.Module, config: Any) -> None:
    name = type(model).__name__
    if config.is_encoder_decoder:
        checks.fail(f"model: expected a decoder without an encoder, got {name}")
    elif ignores_attention_interface(type(config)):
        checks.fail(f"model: expected one with transformers' attention interface, got {name}, which has its own code")


def _spread(checks: Checks, budget: Any, layers: int, heads: int) -> list[list[float]]:
    """The budget of each key head of each layer."""
    budget = budget.tolist() if isinstance(budget, Tensor) else budget
    by_layer = _repeat(checks, "budget", budget, layers, "layers")
    return [
        [_check_budget(checks, each) for each in _repeat(checks, f"budget[{index}]", of_layer, heads, "key heads")]
        for index, of_layer in enumerate(by_layer)
    ]


def _repeat(checks: Checks, name: str, value: Any, size: int, of: str) -> list[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value] * size
    checks.that(len(value) == size, f"{name}: expected one for each of {size} {of}, got {len(value)}")
    return list(value)


def _check_budget(checks: Checks, value: Any) -> float:
    expected = "budget: expected a share above 0 and at most 1, or a number of keys of at least 1"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        checks.fail_type(f"{expected}, got {short_repr(value)}")
    else:
        checks.that(0 < value <= 1 if isinstance(value, float) else value >= 1, f"{expected}, got {value}")
    return value
