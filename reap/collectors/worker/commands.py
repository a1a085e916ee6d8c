"""The conversation between a collector and a worker: all commands, and what answers them.

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
      Reset, Seed, Call         ------------------------>   None, the next seed, what the method returned
      GetState                  ------------------------>   the worker's state
      CheckState, SetState      ------------------------>   None, or SpecMismatch: nothing has changed then

Which of them an exchange needs is up to it (`reap.collectors.exchange`): with shared memory all, and `Done` carries no data;
where data is copied no slot is attached, `Done` brings the rollout along, and weights are posted (`PutWeights`), without a
reply. A worker answers one command at a time, by one table (`WorkerHandler`), whatever it works on.
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
    """What a collector must know of a worker.

    Attributes:
        fields: one frame's value under each key of a slot.
        batch_shape: batch dimensions of the env.
        columns: time steps of a rollout.
        specs: the env's specs, by name.
        env: the env, in words.
        actor_kind: how the policy is called.
        counts_steps: the collector counts the steps of episodes.
        resets_itself: the env does so, with a step of its own.
        remembers: the policy has a recurrent state.
        weights: shape and dtype of each weight; None for a policy without weights.
        attributes: plain attributes of the policy as the worker made it; none of one that was sent to it.
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
        """Number of rows."""
        return int(np.prod(self.batch_shape, dtype=np.int64))

    @property
    def frames(self) -> int:
        """Frames of a rollout."""
        return self.rows * self.columns


@dataclass(frozen=True)
class AttachSlot:
    """Map the next slot: memory for `rows` rows, where this worker's begin with `first_row`."""

    rows: int
    first_row: int


@dataclass(frozen=True)
class AttachWeights:
    """Take the worker's end of the mailbox that weights come through.

    Attributes:
        kind: the class of the mailbox.
    """

    kind: Any


@dataclass(frozen=True)
class ConnectBuffer:
    """Take the worker's end of the replay buffer, which `Write` writes to.

    Attributes:
        options: what is done with a rollout before the write; without the two that follow.
        buffer: the end, pickled.
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
        random: random actions instead of the policy's.
        fresh: begin new episodes first, where any frame was recorded of the present ones.
        version: the version of the policy's weights.
        start: the first column that is recorded, where another worker recorded those before.
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
        frames: valid frames in it.
        version: version of the policy that acted.
        episodes: episodes that ended.
        env_seconds: time in the env.
        policy_seconds: time in the policy.
        columns: columns recorded; less than the slot has if the rollout was ended early.
        outside: numbers that lay outside of their bounds.
        is_last: the worker ended the rollout early because it leaves; another records the rest.
        parcel: the worker's rows, where memory is not shared.
        objects: columns of objects by key, which no shared memory can hold.
        notes: what it takes to run its episodes again, where that is asked for.
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
    """Begin new episodes in these rows (None: all) with the next rollout."""

    rows: Sequence[int] | None = None


@dataclass(frozen=True)
class Seed:
    """Seed envs and generators; the reply is the next seed."""

    seed: int
    static: bool


@dataclass(frozen=True)
class GetState:
    """Reply with all that the worker needs to continue from here: tensors, numbers and lists."""


@dataclass(frozen=True)
class CheckState:
    """Refuse a worker's state that does not fit; nothing is changed."""

    harmless: ClassVar[bool] = True
    state: Mapping[str, Any]


@dataclass(frozen=True)
class SetState:
    """Continue from a worker's state; one that does not fit is refused, and changes nothing."""

    harmless: ClassVar[bool] = True
    state: Mapping[str, Any]


# ---------------------------------------------------------------------- weights that are copied


@dataclass(frozen=True)
class PutWeights:
    """Put weights into the worker's mailbox, from which later commands read them; posted, without a reply.

    Attributes:
        weights: as the mailbox takes them.
    """

    weights: Any
