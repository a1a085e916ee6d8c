"""What is torchrl's own class, told by names: torchrl is not imported for it."""

from __future__ import annotations

import sys
from typing import Any

MODULES = "torchrl.modules.tensordict_module"
"""Where the classes are that are taken apart."""


def own_name(module: Any) -> str | None:
    """The name of a module's class in `MODULES`, as `"actors.QValueModule"`; None for other classes and derived ones."""
    cls = type(module)
    owner = cls.__module__
    if not owner.startswith(MODULES) or getattr(sys.modules.get(owner), cls.__qualname__, None) is not cls:
        return None
    return f"{owner.removeprefix(MODULES)}.{cls.__qualname__}".removeprefix(".")


def composite() -> Any:
    """The class of torchrl's specs that are composed of others; torchrl has been imported by whoever has a spec of it."""
    return sys.modules["torchrl.data.tensor_specs"].Composite


def is_composite(spec: Any) -> bool:
    """Whether a spec of torchrl is composed of others."""
    return isinstance(spec, composite())
