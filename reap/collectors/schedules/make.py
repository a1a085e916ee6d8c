"""Makes the schedule of a collector with workers elsewhere, including their slots and their writes to the replay buffer."""

from __future__ import annotations

import torch

from reap.collectors.delivery.arrangement import Arrangement
from reap.collectors.delivery.buffer_writes import PendingWrites, end_for_workers
from reap.collectors.delivery.join import checked_dim, joined_shape, joiner, real_rows
from reap.collectors.delivery.steps import ndim_of
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.multi import Plan
from reap.collectors.parts import Parts
from reap.collectors.schedules.as_they_come import AsTheyCome
from reap.collectors.schedules.together import Together
from reap.collectors.workers.remote import RemoteWorkers
from reap.errors import OptionError


def together(plan: Plan, workers: RemoteWorkers, parts: Parts) -> Together:
    """A schedule in which all workers record at the same time and each batch holds the rollouts of all.

    Raises:
        OptionError: `cat_results` does not fit the workers' rollouts.
        SpecMismatch: workers of different layouts.
    """
    workers.require_equal()
    shapes = [(*info.batch_shape, info.columns) for info in workers.infos]
    threshold, whole = plan.workers.preemptive_threshold, plan.whole
    # Episodes in turn need the rows apart.
    kind = "stack" if whole.trajs_per_batch is not None else plan.workers.cat_results
    dim = checked_dim(kind, shapes)
    drops_missing = threshold is not None and dim is not None
    if drops_missing and dim != len(shapes[0]) - 1:
        raise OptionError(
            f"cat_results={kind} with preemptive_threshold: workers that stop early record less along the last dimension; "
            'join along it (-1), or use "stack", which marks what is missing'
        )
    shape = torch.Size(joined_shape(dim, shapes))
    is_one_slot = len(set(shapes)) == 1
    is_in_place = is_one_slot and (dim is None or (dim == 0 and not drops_missing))
    if is_one_slot:
        slot_shape = shape if is_in_place else joined_shape(None, shapes)
        slots = [workers.make_slots(range(len(shapes)), tuple(slot_shape[:-1]), slot_shape[-1])]
    else:
        slots = [workers.make_slots([worker], own[:-1], own[-1]) for worker, own in enumerate(shapes)]
    workers.record_in(slots, parts.meter)
    takes_parts = buffer_takes_parts(whole, dim, len(shape))
    arrangement = Arrangement(
        slots,
        len(shapes),
        shape,
        sum(info.frames for info in workers.infos),
        join=None if is_in_place else joiner(dim, shapes),
        drops_missing=drops_missing,
        real_rows=real_rows(shapes),
        delivers_in_parts=dim is None and takes_parts,
    )
    schedule = Together(parts, arrangement, threshold)
    # One write after the other, in the order of the workers, as they lie in a batch.
    schedule.writes = make_writes(workers, parts, takes_parts=takes_parts, at_once=1)
    return schedule


def as_they_come(plan: Plan, workers: RemoteWorkers, parts: Parts) -> AsTheyCome:
    """A schedule in which each worker records by itself and each batch is the rollout of one.

    Raises:
        OptionError: an option for workers that record together.
    """
    if plan.workers.preemptive_threshold is not None:
        raise OptionError("preemptive_threshold: it belongs to MultiSyncDataCollector, whose batches wait for all workers")
    slots = [workers.make_slots([worker], info.batch_shape, info.columns) for worker, info in enumerate(workers.infos)]
    workers.record_in(slots, parts.meter)
    schedule = AsTheyCome(parts)
    schedule.writes = make_writes(workers, parts, takes_parts=True, at_once=workers.group.size)
    return schedule


def make_writes(workers: RemoteWorkers, parts: Parts, *, takes_parts: bool, at_once: int) -> PendingWrites | None:
    """The workers' own writes to the replay buffer; None if this process writes, or if there is no buffer."""
    options = parts.options
    if options.replay_buffer is None:
        return None
    end = end_for_workers(options, workers.infos, takes_parts=takes_parts, can_send=workers.can_send)
    if end is None:
        return None
    workers.let_write(end)
    by_column = not options.extend_buffer
    return PendingWrites(workers, parts.meter, at_once, by_column=by_column, are_elsewhere=not workers.shares_memory)


def buffer_takes_parts(options: CollectorOptions, dim: int | None, ndim: int) -> bool:
    """Whether the replay buffer takes each worker's rollout by itself, rather than the batch of all.

    Results joined along the dimension in which the buffer grows would be written one after the other anyway. A stack is
    written as a whole if the buffer's storage has as many dimensions as the stack, because its rows are then the workers;
    otherwise each worker's part equals what a collector with that worker alone would write.

    Args:
        options: the collector's.
        dim: the dimension along which results are joined; None for a stack.
        ndim: dimensions of a batch.
    """
    buffer, kept_apart = options.replay_buffer, ndim_of(options.replay_buffer)
    if kept_apart is None or options.split_trajs or options.trajs_per_batch is not None:
        return False
    if dim is None:
        return kept_apart < ndim
    return dim == (getattr(buffer, "dim_extend", kept_apart - 1) if options.extend_buffer else ndim - 1)
