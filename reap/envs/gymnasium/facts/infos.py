"""Infos of gymnasium envs as observations: chooses the entries of `info` to read, and their specs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from reap.envs.checks.looks import Look, choice_look
from reap.envs.gymnasium.values import ObservationLeaf, cell
from reap.errors import OptionError, SpecMismatch
from reap.option_values import switch
from reap.recording.layout import Array
from reap.specs import Composite, NonTensor, Spec, Unbounded
from reap.specs.fits import Fit
from reap.specs.parts.from_torchrl import as_own

FLOATS = (torch.float16, torch.float32, torch.float64)

InfoKeys = Sequence[str] | Mapping[str, Spec]


class default_info_dict_reader:  # noqa: N801  torchrl's name
    """Chooses the infos that `GymEnv.set_info_dict_reader` turns into observations.

    Args:
        keys: the names; None: all numbers that a reset and a step return.
        spec: a spec for each name, as a list, a dict or a Composite; scalars in float32 unless given.
        ignore_private: with `keys=None`, omit names that start with an underscore.

    Raises:
        OptionError: the numbers of specs and names differ, or `ignore_private` is not a bool.

    Example:
        >>> default_info_dict_reader(["x_position"]).info_keys
        {'x_position': Unbounded(shape=(), dtype=float32)}
    """

    def __init__(
        self,
        keys: Sequence[str] | None = None,
        spec: Sequence[Spec] | Mapping[str, Spec] | Composite | None = None,
        ignore_private: bool = True,
    ) -> None:
        self.ignore_private = switch(ignore_private, "ignore_private")
        self.info_keys: dict[str, Spec] | None = None
        if isinstance(spec, Mapping | Composite):
            self.info_keys = dict(spec.items())
        elif keys is not None:
            names = [keys] if isinstance(keys, str) else list(keys)
            given = [Unbounded((), dtype=torch.float32)] * len(names) if spec is None else list(spec)
            if len(given) != len(names):
                raise OptionError(f"spec: expected one for each of the keys {names}, got {len(given)}")
            self.info_keys = dict(zip(names, given, strict=True))


def keys_of_reader(reader: Any) -> dict[str, Spec] | None:
    """The names and specs of a reader; None means all infos.

    Raises:
        OptionError: not a `default_info_dict_reader`.
    """
    if reader is not None and not isinstance(reader, default_info_dict_reader):
        raise OptionError(
            f"set_info_dict_reader: expected an default_info_dict_reader, got {type(reader).__name__}: {reader!r}; write "
            "default_info_dict_reader(keys, spec) of reap.envs, or GymEnv(info_keys={name: spec})"
        )
    return None if reader is None else reader.info_keys


def specs_of_infos(infos: Iterable[Mapping[str, Any]], *, ignore_private: bool) -> dict[str, Spec]:
    """The specs of all entries in several infos; values that are not numbers, or change their shape, are objects."""
    found: dict[str, Spec] = {}
    for info in infos:
        for name, value in info.items():
            if not (ignore_private and name.startswith("_")):
                spec = _spec_of(value)
                found[name] = spec if found.get(name, spec) == spec else NonTensor(())
    return found


def _spec_of(value: Any) -> Spec:
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic | bool | int | float) else None
    dtype = None if array is None else getattr(torch, array.dtype.name, None)
    if array is None or not isinstance(dtype, torch.dtype) or dtype.is_complex or dtype == torch.uint64:
        return NonTensor(())
    return Unbounded(array.shape, dtype=torch.float32 if isinstance(value, float) else dtype)


def info_specs(info_keys: InfoKeys | None) -> dict[str, Spec]:
    """The specs, by name, of infos kept as observations.

    Raises:
        OptionError: a lone name instead of a list.
    """
    if info_keys is None:
        return {}
    if isinstance(info_keys, str):
        raise OptionError(f"info_keys: expected a list of names or a dict of specs, got the string {info_keys!r}")
    if isinstance(info_keys, Mapping):
        return {name: _info_spec(name, as_own(spec)) for name, spec in info_keys.items()}
    return {name: Unbounded((), dtype=torch.float32) for name in info_keys}


def _info_spec(name: str, spec: Spec) -> Spec:
    """The spec of an info, if arrays of numpy can hold its values.

    Raises:
        OptionError: they cannot.
    """
    if isinstance(spec, Composite):
        raise OptionError(
            f"info_keys: {name!r}: expected the spec of one value, got a Composite; a dict is kept as it is with NonTensor(())"
        )
    if spec.dtype is not None and spec.dtype.is_floating_point and spec.dtype not in FLOATS:
        raise OptionError(
            f"info_keys: {name!r}: expected a dtype that numpy has, got {spec.dtype}; write Unbounded({tuple(spec.shape)}), "
            "which is float32"
        )
    return spec


def info_leaf(name: str, spec: Spec) -> ObservationLeaf:
    """Reads one entry of an info; zeros if it is absent or None."""
    if spec.dtype is None:
        return ObservationLeaf((name,), gym.spaces.Space(), lambda info: cell(info_value(info, name)), is_checked=True)
    zero: Any = spec.zero().numpy()

    def read(info: Any) -> Any:
        value = info_value(info, name)
        if value is None:
            return zero
        # A number is one, in whatever array it is.
        return np.reshape(value, zero.shape) if zero.size == 1 == np.size(value) else value

    look = choice_look(spec, 0)
    if look is None:
        return ObservationLeaf((name,), gym.spaces.Space(), read)
    fit = Fit((name,), zero.shape, zero.dtype)

    def read_choice(info: Any) -> Any:
        value = read(info)
        return zero if value is zero else checked_choices(fit.take(value, "info"), look, name)

    return ObservationLeaf((name,), gym.spaces.Space(), read_choice)


def checked_choices(values: Array, look: Look, name: str) -> Array:
    """The values of an info whose spec is one of choices, if they are ones: those of one row `[*value]`, or of all.

    Raises:
        SpecMismatch: they are not.
    """
    if not look.is_fine(values):
        expected, found = look.words(values, 0)
        raise SpecMismatch(f"info: {name!r}: expected {expected}, found {found}; correct the value, or the spec in info_keys")
    return values


def info_value(info: Any, name: str) -> Any:
    """One entry of an info; None where it is absent.

    Raises:
        SpecMismatch: the info is no dict.
    """
    try:
        return info.get(name)
    except AttributeError:
        raise SpecMismatch(
            f"info_keys: {name!r} is looked for in the info of each reset and step: expected a dict, found "
            f"{type(info).__name__}: {info!r}; let the env return {{}} where it has nothing to tell"
        ) from None
