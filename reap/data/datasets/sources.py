"""Reads the sources of `to_minari` (a buffer, a folder, or frames) as batches of frames, with information about them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from tensordict import TensorDictBase

from reap.data.buffers.replay import ReplayBuffer
from reap.data.datasets.frames import NEXT, Frames, frames_of
from reap.data.datasets.run_folder import about_run, read_run_manifest, run_frames
from reap.data.datasets.spaces import ACTION, OBSERVATION, guessed
from reap.errors import OptionError, SpecMismatch, text_of
from reap.keys import Key


class Source(NamedTuple):
    """Frames, and information about them.

    Attributes:
        batches: the frames, in order.
        seeds: seeds of episodes, by the row and the column where they begin.
        about: the entries of a manifest about them.
        env: the env they come from, if known: an id, or an `EnvSpec`.
    """

    batches: Sequence[Frames]
    seeds: Mapping[tuple[int, int], int]
    about: Mapping[str, Any]
    env: str | EnvSpec | None = None


class Spaces(NamedTuple):
    """Spaces of an env, and how to make it, if that can be written to a file."""

    observation: gym.Space[Any]
    action: gym.Space[Any]
    spec: EnvSpec | None


def source_of(given: Any) -> Source:
    """The frames of a buffer, a folder of `reap collect`, or a TensorDict `[*rows, time]`.

    Raises:
        OptionError: anything else, or no frames.
    """
    if isinstance(given, str | Path):
        return _of_folder(Path(given))
    if isinstance(given, ReplayBuffer | TensorDictBase) and not len(given):
        raise OptionError("to_minari: expected frames, found none")
    if isinstance(given, ReplayBuffer):
        data, about = _in_order(given), {"kind": type(given).__name__}
        has_items = given.storage.item_dims > 0
    elif isinstance(given, TensorDictBase):
        data, about, has_items = given, {"kind": "TensorDict"}, False
    else:
        raise OptionError(
            f"to_minari: expected a ReplayBuffer, the folder of a run of reap collect, or a TensorDict [rows, time], got "
            f"{type(given).__name__}. Frames of other buffers: make a ReplayBuffer, and load their save (dumps) into it"
        )
    rows = frames_of(data.reshape(-1, data.shape[-1]).cpu(), "to_minari")
    return Source([_one_row(rows) if has_items else rows], {}, about)


def _of_folder(folder: Path) -> Source:
    manifest = read_run_manifest(folder)
    seeds = {
        (row, session["first_column"]): seed for session in manifest["sessions"] for row, seed in enumerate(session["seeds"])
    }
    spec = manifest["env"]["spec"]
    env = manifest["env"]["id"] if spec is None else EnvSpec.from_json(spec)
    return Source(run_frames(folder), seeds, about_run(manifest), env)


def _one_row(frames: Frames) -> Frames:
    """Join rows that follow each other in time into one, since episodes may continue in a later one."""
    values = {key: value.flatten(0, 1)[None] for key, value in frames.values.items()}
    return Frames(values, frames.ids.reshape(1, -1), objects=frames.objects)


def _in_order(buffer: ReplayBuffer) -> TensorDictBase:
    """The frames of a buffer `[*rows, time]`, or `[*rows, time, *item]`, in the order in which they were written."""
    storage = buffer.storage
    with storage.control.lock:
        data = storage.contents()
        whole = storage.ring.whole()
        last = storage.ring.claimed - 1
    if not isinstance(data, TensorDictBase):
        raise SpecMismatch(f"to_minari: expected a buffer of TensorDicts that are alike, found {type(data).__name__}")
    if buffer.writer.replaces:
        if storage.item_dims:
            return data
        raise OptionError(
            f"to_minari: a {type(buffer.writer).__name__} replaces single frames, so what is left are no episodes; write whole "
            "trajectories as items, [N, T]"
        )
    places = np.arange(whole.start, whole.stop) if isinstance(whole, slice) else whole
    order = np.argsort((places - last - 1) % storage.ring.capacity)
    moved: Any = data[(*[slice(None)] * (storage.ndim - 1), torch.from_numpy(order))]
    return moved


def spaces_of(env: Any, source: Source) -> Spaces:
    """The spaces of the env that frames are from.

    Args:
        env: an id, an `EnvSpec`, an env of gymnasium, or None: that of the source, or if there is none, spaces as large as the
            dtypes of the values.
        source: the frames.

    Raises:
        OptionError: the env cannot be made.
    """
    given = source.env if env is None else env
    if given is None:
        return _guessed(source.batches[0])
    if isinstance(given, gym.Env):
        return Spaces(given.observation_space, given.action_space, _written(given.spec))
    if not isinstance(given, str | EnvSpec):
        raise OptionError(f"env: expected an id, an EnvSpec or an env of gymnasium, got {type(given).__name__}")
    try:
        made = gym.make(given, disable_env_checker=True)
    except Exception as error:
        raise OptionError(f"env: {given!r:.100} cannot be made: {text_of(error)}; give an env of gymnasium") from error
    try:
        return Spaces(made.observation_space, made.action_space, _written(made.spec))
    finally:
        made.close()


def _written(spec: EnvSpec | None) -> EnvSpec | None:
    """A spec that can be written to a file; one that holds functions cannot."""
    try:
        if spec is not None:
            spec.to_json()
    except (ValueError, TypeError):
        return None
    return spec


def _guessed(frames: Frames) -> Spaces:
    values = {key: value.flatten(0, 1) for key, value in frames.values.items()}
    names = dict.fromkeys(observed_keys(frames))
    observed = {key: values[key] for key in names}
    if not observed:
        raise SpecMismatch("to_minari: expected observations, at the root and under 'next', found none")
    root: Key = OBSERVATION if set(names) == {OBSERVATION} else ()
    return Spaces(guessed(observed, root), guessed(values, ACTION), None)


def observed_keys(frames: Frames) -> list[Key]:
    """Keys that are at the root and, but for flags and rewards, under `"next"` too."""
    return _observed(frames.values, frames.values.keys() | frames.ends.keys())


def observed_objects(frames: Frames) -> list[Key]:
    """Keys of Python objects that are at the root and under `"next"` too."""
    return _observed(sorted(frames.objects), frames.objects)


def _observed(keys: Iterable[Key], later: Collection[Key]) -> list[Key]:
    flags = {"done", "terminated", "truncated", "reward", "collector"}
    return [key for key in keys if key[0] not in {NEXT, *flags} and (NEXT, *key) in later]
