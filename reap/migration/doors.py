"""Where `reap` has a name that torchrl has.

A migration has three levels, each of which includes those before:

    1   collectors, their updaters and weight-sync schemes
    2   replay buffers, storages, samplers, writers, postprocs
    3   envs, their utilities, and specs
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from functools import cache

from reap.errors import nearest_name
from reap.names import INSTEAD

OWN, PEER = "reap", "torchrl"

_FAMILIES = {
    "collectors": (1, ("reap.collectors", "reap.collectors.distributed")),
    "weight_update": (1, ("reap.weight_update",)),
    "data": (2, ("reap.data",)),
    "envs": (3, ("reap.envs", "reap.envs.utils")),
}
"""torchrl's packages: their level, and the modules of `reap` that may have names which torchrl defines deeper inside."""

_SPECS = "reap.data.tensor_specs"
"""The module of specs. torchrl has them in its package of buffers, but they belong to the third level."""

_NEAR = 0.85
"""Minimum similarity of two names for one to be suggested for the other."""


def is_peer(module: str) -> bool:
    """Whether a module is torchrl's."""
    return module.partition(".")[0] == PEER


def same_module(module: str) -> str:
    """The module of `reap` with the path of one of torchrl's, if there is one."""
    return OWN + module.removeprefix(PEER)


def is_moved(module: str) -> bool:
    """Whether `reap` has a module with the path of this one of torchrl's."""
    return bool(_names(same_module(module)))


def split_path(parts: Sequence[str]) -> tuple[str, str]:
    """Split `torchrl.data.ReplayBuffer.add` into a module and the name in it: `torchrl.data`, `ReplayBuffer`.

    Args:
        parts: the names of the path, at least two.
    """
    lengths = range(len(parts) - 1, 1, -1)
    length = next((length for length in lengths if is_moved(".".join(parts[:length]))), 1)
    return ".".join(parts[:length]), parts[length]


def level_of(module: str, name: str) -> int | None:
    """The level that a name of torchrl belongs to; None for names that stay torchrl's, such as its modules and losses.

    Args:
        module: where it is imported from: `"torchrl.data"`.
        name: what is imported.
    """
    path = module.split(".")
    family = _FAMILIES.get(path[1]) if len(path) > 1 else None
    if path[0] != PEER or family is None:
        return None
    is_spec = path[1:3] == ["data", "tensor_specs"] or (path[1:] == ["data"] and name in _names(_SPECS))
    return 3 if is_spec else family[0]


def door_of(module: str, name: str) -> str | None:
    """The module of `reap` that has what torchrl has under this module and name; the one of the same path comes first.

    Returns:
        None if there is none.
    """
    doors = (same_module(module), *_FAMILIES[module.split(".")[1]][1])
    return next((door for door in doors if name in _names(door)), None)


def advice(module: str, name: str) -> str:
    """Advice about a name that `reap` does not have."""
    if name in INSTEAD:
        return f"use {INSTEAD[name]}"
    near = nearest_name(name, _names(same_module(module)), least=_NEAR)
    return f"stays torchrl's; the nearest name in reap is {near}" if near else "stays torchrl's"


@cache
def _names(module: str) -> frozenset[str]:
    """The public names of a module of `reap`; none if it does not exist."""
    try:
        found = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # a package on the way
        return frozenset()
    return frozenset(getattr(importlib.import_module(module), "__all__", ())) if found else frozenset()
