"""Gymnasium's registry in another process: the entries that it lacks there.

An entry that cannot get there harms nobody who does not ask for it: whoever makes that env is told why.
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

from reap.errors import OptionError, headline
from reap.workers.pickling import dumps

OWN = "gymnasium."
"""Entry points of gymnasium's own envs begin with this."""

MAIN = "__main__"
"""The module of the program, which other processes do not run."""

PLAIN = frozenset({type(None), bool, int, float, str})


def registry_entries() -> Callable[[], None]:
    """Registers, in whatever process it is called, the envs that this process has registered and that one lacks.

    Ids that a package registers when it is imported (`ale_py`) come with its import.
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
    """Whether any process can have this value."""
    if type(value) is dict:
        return all(map(_is_plain, [*value, *value.values()]))
    if type(value) in {list, tuple}:
        return all(map(_is_plain, value))
    return type(value) in PLAIN


def _pickled(name: str, spec: EnvSpec) -> bytes | str:
    """An entry on its way; the reason where it cannot go."""
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
    """An entry that says why there is none."""
    return EnvSpec(name, partial(_refuse, name, reason), vector_entry_point=partial(_refuse, name, reason))


def _refuse(name: str, reason: str, **_kwargs: Any) -> NoReturn:
    raise OptionError(f"{name}: it is registered in the process that made this worker, and cannot be made here: {reason}")
