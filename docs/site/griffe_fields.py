"""For the site: the constructors of rules, configurations and named tuples, which Python derives from their fields."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import griffe


class FieldArguments(griffe.Extension):
    """Sets the constructor of each mask, score, measure, configuration and named tuple that does not define one."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Called when all modules are loaded."""
        for cls in _classes(pkg):
            bases = {base.canonical_path for base in cls.bases if isinstance(base, griffe.Expr)}
            is_rule = cls.path.startswith(("regard.ops.masks", "regard.ops.scores", "regard.ops.measures"))
            decorators = {str(decorator.value) for decorator in cls.decorators}
            if is_rule or "typing.NamedTuple" in bases or "config_class" in decorators:
                _set_constructor(cls)


def _classes(module: griffe.Module) -> list[griffe.Class]:
    nested = [cls for each in module.modules.values() if not each.is_alias for cls in _classes(each)]
    return [cls for cls in module.classes.values() if not cls.is_alias] + nested


def _set_constructor(cls: griffe.Class) -> None:
    if "__init__" in cls.members:
        return
    value = getattr(importlib.import_module(cls.module.path), cls.name)
    fields = cls.all_members
    arguments = [
        griffe.Parameter(
            name,
            annotation=getattr(fields.get(name), "annotation", None),
            kind=getattr(griffe.ParameterKind, parameter.kind.name.lower()),
            default=None if parameter.default is parameter.empty else repr(parameter.default),
        )
        for name, parameter in inspect.signature(value).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    self_ = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(self_, *arguments), parent=cls))
