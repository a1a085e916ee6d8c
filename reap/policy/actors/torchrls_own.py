"""Recognises torchrl's own classes by name, without importing torchrl."""

from __future__ import annotations

import sys
from typing import Any

MODULES = "torchrl.modules.tensordict_module"
"""The modules of the classes that are unwrapped."""


def own_name(module: Any) -> str | None:
    """The name of a module's class in `MODULES`, as `"actors.QValueModule"`; None for other classes and derived ones."""
    cls = type(module)
    owner = cls.__module__
    if not owner.startswith(MODULES) or getattr(sys.modules.get(owner), cls.__qualname__, None) is not cls:
        return None
    return f"{owner.removeprefix(MODULES)}.{cls.__qualname__}".removeprefix(".")


def composite() -> Any:
    """The class of torchrl's composite specs; torchrl has been imported if such a spec exists."""
    return sys.modules["torchrl.data.tensor_specs"].Composite


def is_composite(spec: Any) -> bool:
    """Whether a spec of torchrl is a composite."""
    return isinstance(spec, composite())
