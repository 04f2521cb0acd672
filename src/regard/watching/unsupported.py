"""Why attention was not recorded, and what to do, in the words of error messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from regard.checks import warn
from regard.watching.module_inspection import (
    calls_sdpa,
    is_named_attention,
    is_of_transformers,
    may_attend,
    mentions_attention,
)


@dataclass(eq=False)
class OwnSoftmaxes:
    """The modules of a watched model that compute a softmax and multiply by it, by name.

    Args:
        dense: Those that were recorded with dense weights.
        not_recorded: The others, and what each does with its softmax.
        partly_recorded: Those that compute other attention, too, and what each does besides.
    """

    dense: dict[str, nn.Module] = field(default_factory=dict[str, nn.Module])
    not_recorded: dict[str, tuple[nn.Module, str]] = field(default_factory=dict[str, tuple[nn.Module, str]])

    partly_recorded: dict[str, tuple[nn.Module, str]] = field(default_factory=dict[str, tuple[nn.Module, str]])

    def warn(self, model: str, *, is_kept: bool) -> None:
        """Name them in one warning each.

        Args:
            model: The class of the watched model.
            is_kept: Whether the weights are kept, not only measures.
        """
        if self.dense:
            size = ", in memory of queries × keys" if is_kept else ""
            warn(
                f"{model}: dense weights were recorded at the softmax of {_list_modules(self.dense)}{size}; an adapter "
                "for the class (adapters={Class: adapter}) needs memory of queries + keys"
            )
        if self.not_recorded:
            modules = {name: module for name, (module, _) in self.not_recorded.items()}
            warn(
                f"{model}: not recorded: {_list_modules(modules)}, which multiply by a softmax in their own code; to "
                "record only the others, pass layers=[...]"
            )
        for problem in dict.fromkeys(problem for _, problem in self.partly_recorded.values()):
            modules = {name: module for name, (module, each) in self.partly_recorded.items() if each == problem}
            warn(f"{model}: not all is recorded of {_list_modules(modules)}: it {problem}")


def label(name: str, module: nn.Module) -> str:
    """A module by name and class."""
    return f"{name} ({type(module).__name__})" if name else type(module).__name__


def _list_modules(modules: Mapping[str, nn.Module]) -> str:
    """The first modules by name, and the classes of all."""
    classes = ", ".join(sorted({type(module).__name__ for module in modules.values()}))
    names = [name or "the model" for name in modules]
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{rest} ({classes})"


def why_not_recorded(model: nn.Module, name: str, module: nn.Module, problem: str | None = None) -> str:
    """Why the attention of a module was not recorded, and what to do.

    Args:
        model: The watched model.
        name: The module's name.
        module: The module.
        problem: What it does with its softmax, if that is known.
    """
    cls = type(module)
    if calls_sdpa(cls) and is_of_transformers(model):
        step = 'watch it after model.set_attn_implementation("sdpa")'
    else:
        step = f"if it is a softmax over keys, write an adapter for it (adapters={{{cls.__name__}: adapter}})"
    others = (other for other in model.modules() if may_attend(type(other)) or calls_sdpa(type(other)))
    if any(not any(isinstance(part, cls) for part in other.modules()) for other in others):
        step += ", or record only the others by passing layers=[...]"
    reason = "" if problem is None else f": it {problem}"
    return f"{label(name, module)} computes attention in its own code, which cannot be recorded{reason}; {step}"


def why_no_attention(model: nn.Module, modules_run: Collection[int]) -> str:
    """Why nothing was recorded in a model, as far as its code shows it.

    Args:
        model: The model.
        modules_run: The ids of the modules that ran.
    """
    if isinstance(model, torch.jit.ScriptModule):
        return "it is a ScriptModule, which takes no hooks; watch the module that it was made from"
    if not any(mentions_attention(type(module)) for module in model.modules()):
        return "no attention was found in its code"
    attention = {name: module for name, module in model.named_modules() if is_named_attention(type(module))}
    if attention and not any(id(module) in modules_run for module in attention.values()):
        return f"its attention was not called ({', '.join(list(attention)[:3])})"
    for name, module in attention.items():
        if not any(is_named_attention(type(part)) for part in module.modules() if part is not module):
            return why_not_recorded(model, name, module)
    return "it has no attention, or computes it in its own code"
