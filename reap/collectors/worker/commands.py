"""The conversation between a collector and a worker: all commands and their replies.

    collector                                             worker
                        once, when it starts
      DescribeWorker            ------------------------>   WorkerInfo
      AttachSlot + descriptor   ------------------------>   maps a slot; its rows are a part of it
      AttachWeights (+ descriptors)  ------------------->   its end of a mailbox
      ConnectBuffer             ------------------------>   its end of the replay buffer

                        per rollout
      Collect(slot)             ------------------------>   loads newer weights, records: Done
      Write(slot, columns)      ------------------------>   writes what it recorded to the replay buffer

                        between rollouts
      Reset, Seed, Call         ------------------------>   None, the next seed, the method's result
      GetState                  ------------------------>   the worker's state
      CheckState, SetState      ------------------------>   None, or SpecMismatch: nothing has changed then

The exchange (`reap.collectors.exchange`) decides which of them are used. With shared memory all are, and `Done` carries no
data. With copied data no slot is attached, `Done` carries the rollout, and weights are posted (`PutWeights`) without a reply.
A worker answers one command at a time, from a single table (`WorkerHandler`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from reap.collectors.options.collector import CollectorOptions
from reap.keys import Key
from reap.recording.layout import Array, Field
from reap.recording.parcel import Parcel
from reap.recording.records import RolloutNotes
from reap.recording.trajectories import Episode
from reap.specs import Spec
from reap.specs.fits import Outside

# ---------------------------------------------------------------------- when it starts


@dataclass(frozen=True)
class DescribeWorker:
    """Reply with `WorkerInfo`."""


@dataclass(frozen=True)
class WorkerInfo:
    """A worker's description of itself, for its collector.

    Attributes:
        fields: one frame's value under each key of a slot.
        batch_shape: batch dimensions of the env.
        columns: number of time steps in a rollout.
        specs: the env's specs, by name.
        env: a description of the env.
        actor_kind: how the policy is called.
        counts_steps: the collector counts the steps of episodes.
        resets_itself: the env resets itself, in a separate step.
        remembers: the policy has a recurrent state.
        weights: shape and dtype of each weight; None for a policy without weights.
        attributes: plain attributes of a policy that the worker made; none for a policy that was sent to it.
    """

    fields: Mapping[Key, Field]
    batch_shape: tuple[int, ...]
    columns: int
    specs: Mapping[str, Spec]
    env: str
    actor_kind: str
    counts_steps: bool = False
    resets_itself: bool = False
    remembers: bool = False
    weights: Mapping[str, Field] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def rows(self) -> int:
        """Number of rows of the env."""
        return int(np.prod(self.batch_shape, dtype=np.int64))

    @property
    def frames(self) -> int:
        """Number of frames in a rollout."""
        return self.rows * self.columns


@dataclass(frozen=True)
class AttachSlot:
    """Map the next slot: memory for `rows` rows, of which this worker's start at `first_row`."""

    rows: int
    first_row: int


@dataclass(frozen=True)
class AttachWeights:
    """Open the worker's end of the mailbox for weights.

    Attributes:
        kind: the class of the mailbox.
    """

    kind: Any


@dataclass(frozen=True)
class ConnectBuffer:
    """Open the worker's end of the replay buffer, to which `Write` writes.

    Attributes:
        options: the options that change a rollout before it is written, without `buffer` and `postproc`.
        buffer: the worker's end, pickled.
        postproc: pickled.
    """

    options: CollectorOptions
    buffer: bytes
    postproc: bytes


# ---------------------------------------------------------------------- per rollout


@dataclass(frozen=True)
class Collect:
    """Record a rollout in a slot.

    Attributes:
        slot: the slot's number.
        random: take random actions instead of the policy's.
        fresh: first start new episodes in rows that have recorded any frame of their current one.
        version: the version of the policy's weights.
        start: the first column to record, if another worker recorded the columns before it.
    """

    slot: int
    random: bool
    fresh: bool
    version: int
    start: int = 0


@dataclass(frozen=True)
class Done:
    """A recorded rollout.

    Attributes:
        slot: the slot.
        frames: number of valid frames.
        version: version of the policy that acted.
        episodes: episodes that ended.
        env_seconds: time in the env.
        policy_seconds: time in the policy.
        columns: number of recorded columns; fewer than in the slot if the rollout ended early.
        outside: numbers outside their bounds.
        is_last: the worker ended the rollout early because it is leaving; another one records the rest.
        parcel: the worker's rows, if memory is not shared.
        objects: columns of objects by key, which shared memory cannot hold.
        notes: what `record_episodes` needs to run its episodes again.
    """

    slot: int
    frames: int
    version: int
    episodes: list[Episode]
    env_seconds: float
    policy_seconds: float
    columns: int = 0
    outside: Sequence[Outside] = ()
    is_last: bool = False
    parcel: Parcel | None = None
    objects: Mapping[Key, Array] | None = None
    notes: RolloutNotes | None = None


@dataclass(frozen=True)
class Write:
    """Write the first columns of a slot to the replay buffer; the worker continues after an exception of the user's code."""

    harmless: ClassVar[bool] = True
    slot: int
    columns: int


# ---------------------------------------------------------------------- between rollouts


@dataclass(frozen=True)
class Reset:
    """Start new episodes in these rows (None: all) with the next rollout."""

    rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Seed:
    """Seed envs and generators; the reply is the next seed."""

    seed: int
    static: bool


@dataclass(frozen=True)
class GetState:
    """Reply with everything that the worker needs to resume from here: tensors, numbers and lists."""


@dataclass(frozen=True)
class CheckState:
    """Check a worker's state and refuse one that does not fit; changes nothing."""

    harmless: ClassVar[bool] = True
    state: Mapping[str, Any]


@dataclass(frozen=True)
class SetState:
    """Resume from a worker's state; one that does not fit is refused and changes nothing."""

    harmless: ClassVar[bool] = True
    state: Mapping[str, Any]


# ---------------------------------------------------------------------- weights that are copied


@dataclass(frozen=True)
class PutWeights:
    """Put weights into the worker's mailbox, where later commands find them; posted without a reply.

    Attributes:
        weights: in the mailbox's form.
    """

    weights: Any
