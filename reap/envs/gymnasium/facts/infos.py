"""Infos of gymnasium envs as observations: chooses the entries of `info` to read, and their specs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from reap.envs.gymnasium.values import ObservationLeaf, cell
from reap.errors import OptionError, SpecMismatch
from reap.specs import Composite, NonTensor, Spec, Unbounded
from reap.specs.parts.from_torchrl import as_own

InfoKeys = Sequence[str] | Mapping[str, Spec]


class default_info_dict_reader:  # noqa: N801  torchrl's name
    """Chooses the infos that `GymEnv.set_info_dict_reader` turns into observations.

    Args:
        keys: the names; None: all numbers that a reset and a step return.
        spec: a spec for each name, as a list, a dict or a Composite; scalars in float32 unless given.
        ignore_private: with `keys=None`, omit names that start with an underscore.

    Raises:
        OptionError: the numbers of specs and names differ.

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
        self.ignore_private = ignore_private
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
        return {name: as_own(spec) for name, spec in info_keys.items()}
    return {name: Unbounded((), dtype=torch.float32) for name in info_keys}


def info_leaf(name: str, spec: Spec) -> ObservationLeaf:
    """Reads one entry of an info; zeros if it is absent or None."""
    if spec.dtype is None:
        return ObservationLeaf((name,), gym.spaces.Space(), lambda info: cell(_info_value(info, name)), is_checked=True)
    zero: Any = spec.zero().numpy()

    def read(info: Any) -> Any:
        value = _info_value(info, name)
        if value is None:
            return zero
        # A number is one, in whatever array it is.
        return np.reshape(value, zero.shape) if zero.size == 1 == np.size(value) else value

    return ObservationLeaf((name,), gym.spaces.Space(), read)


def _info_value(info: Any, name: str) -> Any:
    try:
        return info.get(name)
    except AttributeError:
        raise SpecMismatch(
            f"info_keys: {name!r} is looked for in the info of each reset and step: expected a dict, found "
            f"{type(info).__name__}: {info!r}; let the env return {{}} where it has nothing to tell"
        ) from None
