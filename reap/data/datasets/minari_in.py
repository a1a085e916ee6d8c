"""`from_minari`: the episodes of a data set of the Minari package, in a replay buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from reap.data.buffers.replay import ReplayBuffer
from reap.data.buffers.tensordict_buffers import TensorDictReplayBuffer
from reap.data.datasets.frames import NEXT, TRAJECTORY
from reap.data.datasets.spaces import ACTION, OBSERVATION, root_of, taken_apart
from reap.data.storages.lazy import LazyTensorStorage
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, nested
from reap.option_values import switch
from reap.optional import load


def from_minari(dataset: Any, buffer: ReplayBuffer | None = None, *, categorical_action_encoding: bool = False) -> ReplayBuffer:
    """Load a data set of Minari into a replay buffer, in the layout of a collector's frames.

    Observations, also under `"next"`, with the last one of each episode; `"action"`; under `"next"` reward, done, terminated
    and truncated; infos as observations; and `("collector", "traj_ids")`, which is the number of the episode.

    Args:
        dataset: the id of a data set on this machine, or a `minari.MinariDataset`: some of the episodes of one, for example.
        buffer: the buffer to append to; by default a new `TensorDictReplayBuffer` that holds exactly these frames.
        categorical_action_encoding: discrete actions and observations as indices, not one-hot; as for `GymEnv`.

    Returns:
        The buffer.

    Raises:
        ImportError: Minari, or the package for the format of the data set, is not installed.
        OptionError: the data set does not exist here, or has no episodes; or an argument of another type.
        SpecMismatch: a space that cannot be used: Text, for example.

    Example (reads from Minari's folder)::

        buffer = reap.data.from_minari("cartpole/mine-v0")
        buffer.sample(256)
    """
    minari = load("minari", "from_minari")
    switch(categorical_action_encoding, "categorical_action_encoding")
    if isinstance(dataset, str):
        try:
            dataset = minari.load_dataset(dataset)
        except FileNotFoundError as error:
            raise OptionError(
                f"dataset: there is none of the id {dataset!r} here; minari.list_local_datasets() shows those that are, "
                "minari.download_dataset(id) fetches one"
            ) from error
        except ValueError as error:
            raise OptionError(f"dataset: {dataset!r} cannot be loaded: {error}") from error
    if not dataset.total_steps:
        raise OptionError(f"dataset: {dataset.id!r} has no episodes")
    if buffer is None:
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(dataset.total_steps))
    for episode in dataset.iterate_episodes():
        values = dict(_frames(dataset, episode, categorical=categorical_action_encoding))
        buffer.extend(TensorDict(nested(values), [len(episode)]))
    return buffer


def _frames(dataset: Any, episode: Any, *, categorical: bool) -> Iterator[tuple[Key, Tensor]]:
    """The values of the frames of an episode, `[T, *item]`, by key."""
    space, count = dataset.observation_space, len(episode)
    root = root_of(space, OBSERVATION)
    whole = dict(taken_apart(space, root, episode.observations, categorical=categorical))
    whole |= dict(_infos(episode.infos or {}, ()))
    for key, values in whole.items():
        if len(values) != count + 1:
            raise SpecMismatch(
                f"episode {episode.id}: expected {count + 1} values under {'/'.join(key)}, one more than steps, found "
                f"{len(values)}"
            )
        yield key, values[:-1]
        yield (NEXT, *key), values[1:]
    yield from taken_apart(dataset.action_space, ACTION, episode.actions, categorical=categorical)
    yield (NEXT, "reward"), torch.from_numpy(np.array(episode.rewards))[:, None]
    terminated = torch.from_numpy(np.array(episode.terminations, np.bool_))[:, None]
    truncated = torch.from_numpy(np.array(episode.truncations, np.bool_))[:, None]
    flags = {"done": terminated | truncated, "terminated": terminated, "truncated": truncated}
    for name, flag in flags.items():
        yield (NEXT, name), flag
        yield (name,), torch.zeros_like(flag)
    yield TRAJECTORY, torch.full((count,), int(episode.id), dtype=torch.int64)


def _infos(infos: Mapping[str, Any], lead: Key) -> Iterator[tuple[Key, Tensor]]:
    for name, values in infos.items():
        if isinstance(values, Mapping):
            yield from _infos(values, (*lead, name))
        elif (array := np.array(values)).dtype.kind in "biuf":
            yield (*lead, name), torch.from_numpy(array)
        else:
            raise SpecMismatch(f"infos: expected numbers under {'/'.join((*lead, name))}, found {array.dtype}")
