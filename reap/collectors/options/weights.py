"""Reads the options `weight_updater` and `weight_sync_schemes`, which hold objects or their constructors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from reap.errors import OptionError
from reap.weights.base import WeightUpdaterBase
from reap.weights.scheme import WeightSyncScheme


def made_scheme(schemes: Any, updater: Any) -> WeightSyncScheme | None:
    """The scheme in `weight_sync_schemes`, given as such or by its constructor; None without the option.

    Args:
        schemes: the option.
        updater: the option `weight_updater`.

    Raises:
        OptionError: anything else, or both options are given.
    """
    if schemes is None:
        return None
    if updater is not None:
        raise OptionError("weight_updater and weight_sync_schemes: expected one of them, got both")
    if not isinstance(schemes, Mapping) or not schemes or not all(isinstance(name, str) for name in schemes):
        raise OptionError(f'weight_sync_schemes: expected {{"policy": scheme}}, and other models by name, got {schemes!r}')
    made: dict[str, Any] = {name: given() if inspect.isclass(given) else given for name, given in schemes.items()}
    wrong = [scheme for scheme in made.values() if not isinstance(scheme, WeightSyncScheme)]
    if wrong:
        raise OptionError(f"weight_sync_schemes: expected a WeightSyncScheme, got {wrong[0]!r}")
    return made.get("policy")


def are_schemes(value: Any) -> bool:
    """Whether this is a dict of schemes."""
    return isinstance(value, Mapping) and all(isinstance(one, WeightSyncScheme) for one in value.values())  # pyright: ignore[reportUnknownVariableType]


def made_updater(given: Any) -> WeightUpdaterBase:
    """The updater, given as such or by its constructor.

    Raises:
        OptionError: anything else.
    """
    updater = given if isinstance(given, WeightUpdaterBase) or not callable(given) else given()
    if not isinstance(updater, WeightUpdaterBase):
        raise OptionError(f"weight_updater: expected a WeightUpdaterBase or a constructor of one, got {updater!r}")
    return updater
