"""Copies missing entries of gymnasium's registry to another process.

An entry that cannot be copied causes an error only when its env is made, which then gives the reason.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from reap.envs.notices import ALE, hide_banner
from reap.errors import OptionError, headline
from reap.workers.pickling import dumps

OWN = "gymnasium."
"""Prefix of the entry points of gymnasium's own envs."""

MAIN = "__main__"
"""The module name of the main program, which other processes do not run."""

PLAIN = frozenset({type(None), bool, int, float, str})


def registry_entries() -> Callable[[], None]:
    """A function that registers, in the process that calls it, envs that this process has registered and the other lacks.

    Ids that a package registers on import (such as `ale_py`'s) are registered by importing it.
    """
    entries = {name: spec for name, spec in gym.registry.items() if not _is_own(spec)}
    modules = {_package(spec) for spec in entries.values() if _is_named(spec)} & sys.modules.keys() - {MAIN}
    named = {name: spec for name, spec in entries.items() if _is_plain(vars(spec)) and _package(spec) != MAIN}
    carried = {name: _pickled(name, spec) for name, spec in entries.items() if name not in named}
    return partial(_register, sorted(modules), named, carried)


def _is_named(spec: Any) -> bool:
    return isinstance(spec.entry_point, str)


def _is_own(spec: Any) -> bool:
    return _is_named(spec) and spec.entry_point.startswith(OWN)


def _package(spec: Any) -> str:
    return str(spec.entry_point).partition(":")[0].partition(".")[0]


def _is_plain(value: Any) -> bool:
    """Whether the value can be recreated in any process."""
    if type(value) is dict:
        return all(map(_is_plain, [*value, *value.values()]))
    if type(value) in {list, tuple}:
        return all(map(_is_plain, value))
    return type(value) in PLAIN


def _pickled(name: str, spec: EnvSpec) -> bytes | str:
    """A pickled entry, or the reason why it cannot be pickled."""
    try:
        if _is_named(spec) and _package(spec) == MAIN:
            spec = replace(spec, entry_point=load_env_creator(str(spec.entry_point)))
        return dumps(spec, f"the entry {name!r} of gymnasium's registry")
    except Exception as error:  # noqa: BLE001  a program may register anything
        return headline(error)


def _register(modules: list[str], named: Mapping[str, EnvSpec], carried: Mapping[str, bytes | str]) -> None:
    if not (named.keys() | carried.keys()) - gym.registry.keys():
        return
    missing: dict[str, str] = {}
    for module in modules:
        try:
            import_module(module)
        except Exception as error:  # noqa: BLE001  modules run anything
            missing[module] = _advice(error)
    if ALE in modules and ALE not in missing:
        hide_banner()
    for name, spec in named.items():
        reason = missing.get(_package(spec))
        gym.registry.setdefault(name, spec if reason is None else _refused(name, reason))
    for name in carried.keys() - gym.registry.keys():
        gym.registry[name] = _loaded(name, carried[name])


def _loaded(name: str, entry: bytes | str) -> EnvSpec:
    if isinstance(entry, str):
        return _refused(name, entry)
    try:
        return pickle.loads(entry)
    except Exception as error:  # noqa: BLE001  as above
        return _refused(name, _advice(error))


def _advice(error: Exception) -> str:
    return (
        f"{headline(error)}. Workers import modules by name, with the sys.path of the process that made them: put the module "
        "where they find it, or register the class itself, not its name, and call cloudpickle.register_pickle_by_value(module)"
    )


def _refused(name: str, reason: str) -> EnvSpec:
    """An entry whose env cannot be made, with the reason."""
    return EnvSpec(name, partial(_refuse, name, reason), vector_entry_point=partial(_refuse, name, reason))


def _refuse(name: str, reason: str, **_kwargs: Any) -> NoReturn:
    raise OptionError(f"{name}: it is registered in the process that made this worker, and cannot be made here: {reason}")
