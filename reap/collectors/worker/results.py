"""Saves waiting batches in a state, as tensors, numbers, strings, lists and dicts, and restores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor

from reap.collectors.worker.commands import Done
from reap.keys import Key, as_key, nested
from reap.recording.buffers import MASK
from reap.recording.objects import fill, stacked, to_states, unstacked
from reap.recording.trajectories import Episode
from reap.tensordicts import make_tensordict, sizes_in

NUMBERS = ("frames", "version", "env_seconds", "policy_seconds", "columns")


def valid_frames(batch: TensorDictBase) -> int:
    """Number of frames of a batch that were collected."""
    mask = batch.get(MASK, None)
    return batch.numel() if mask is None else int(mask.sum())


def batch_state(batch: TensorDictBase) -> dict[str, Any]:
    """A copy of a batch for a state, without objects that are not plain data."""
    tensors: list[Any] = []
    objects: list[Any] = []
    for key, value in batch.items(include_nested=True):
        if is_non_tensor(value):
            states = to_states(unstacked(value, tuple(batch.shape)))
            objects += [] if states is None else [(key, states)]
        elif isinstance(value, torch.Tensor):
            tensors.append((key, value.clone()))
    sizes = [(key, list(size)) for key, size in sizes_in(batch, batch.ndim).items()]
    return {"leaves": tensors, "objects": objects, "shape": list(batch.shape), "names": list(batch.names), "sizes": sizes}


def batch_from(state: Mapping[str, Any]) -> TensorDict:
    """The batch that was passed to `batch_state`."""
    leaves: dict[Key, Any] = {as_key(key): value.clone() for key, value in state["leaves"]}
    for key, states in state["objects"]:
        objects = np.empty(tuple(state["shape"]), object)
        fill(objects, states)
        leaves[as_key(key)] = stacked(objects)
    sizes = {as_key(key): tuple(size) for key, size in state.get("sizes", ())}
    return make_tensordict(nested(leaves, sizes), torch.Size(state["shape"]), names=state["names"])


def done_state(done: Done) -> dict[str, Any]:
    """A worker's reply for a rollout, for a state."""
    episodes = [tuple(episode) for episode in done.episodes]
    return {"episodes": episodes, **{name: getattr(done, name) for name in NUMBERS}}


def done_from(state: Mapping[str, Any]) -> Done:
    """The reply that was passed to `done_state`, without its slot."""
    episodes = [Episode(*episode) for episode in state["episodes"]]
    return Done(slot=-1, episodes=episodes, **{name: state[name] for name in NUMBERS})
