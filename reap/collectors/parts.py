"""`Parts`: the objects that a collector is composed of, chosen when it is built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from reap.collectors.counting import count_rollout
from reap.collectors.delivery.episodes import EpisodeQueue
from reap.collectors.delivery.random_ends import end_episodes
from reap.collectors.delivery.records import EpisodeRecords
from reap.collectors.handover import Handover, Recording
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.policy_weights import PolicyWeights
from reap.collectors.stats import Meter
from reap.collectors.worker.commands import Collect, Done
from reap.collectors.workers.base import Workers
from reap.recording.buffers import MASK


@dataclass(frozen=True)
class Parts:
    """The parts that a collector's schedule and delivery work with.

    Attributes:
        options: the collector's options.
        workers: record the rollouts.
        meter: counts frames, episodes and times.
        handover: the ledger of rollouts in progress.
        weights: the policy's weights and their version.
        queue: holds whole episodes, with `trajs_per_batch`.
        records: records for replay, with `record_episodes`.
    """

    options: CollectorOptions
    workers: Workers
    meter: Meter
    handover: Handover
    weights: PolicyWeights
    queue: EpisodeQueue | None
    records: EpisodeRecords | None = None

    @property
    def expected_frames(self) -> int:
        """Number of frames delivered, recorded or in progress."""
        infos, handover = self.workers.infos, self.handover
        under_way = sum(infos[worker].frames for one in handover.recording if one.is_wanted for worker in one.commands)
        return self.meter.frames + under_way + sum(one.frames for one in handover.recorded)

    @cached_property
    def random_frames(self) -> int:
        """Number of initial frames with random actions."""
        return self.options.random_frames

    @property
    def is_random(self) -> bool:
        """Whether the next rollout has random actions."""
        return self.random_frames > 0 and self.expected_frames < self.random_frames

    def command(self, worker: int, slot: int) -> Collect:
        """The command for the next rollout of a worker."""
        fresh = self.options.reset_at_each_iter or worker in self.handover.restarting
        return Collect(slot, self.is_random, fresh, self.weights.current())

    def arrive(self, recording: Recording) -> None:
        """Finish a rollout: if the policy acts next and restarts all episodes, mark unfinished ones as ended with it."""
        self.handover.arrive(recording)
        if self.records is not None:
            self._keep_notes(self.records, recording)
        if self.random_frames and recording.is_wanted and recording.is_random and not self.is_random:
            for worker, done in recording.dones.items():
                self._end_episodes(worker, done)

    def _keep_notes(self, records: EpisodeRecords, recording: Recording) -> None:
        for worker, done in recording.dones.items():
            if done.notes is not None:
                records.add(worker, done.notes)
                recording.dones[worker] = replace(done, notes=None)  # what waits for delivery needs them no more

    def _end_episodes(self, worker: int, done: Done) -> None:
        if self.workers.infos[worker].remembers:
            arrays = self.workers.slots_of(worker).rows_of(worker, done.slot)
            end_episodes(arrays.__getitem__, has_mask=MASK in arrays)
            # Should the next actions be random again, for others recorded less than they could: the episodes have ended.
            self.handover.restarting.add(worker)

    def count(self, worker: int, done: Done) -> None:
        """Count a rollout that is about to be delivered."""
        staleness = self.weights.version - done.version if self.workers.has_weights(worker) else 0
        count_rollout(self.meter, done, worker=worker, staleness=staleness)
