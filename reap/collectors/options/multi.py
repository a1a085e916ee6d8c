"""The options of collectors with several workers, and the part of them that each worker gets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import isclass
from numbers import Real
from typing import Any

from reap.collectors.options.collector import (
    DEVICES,
    CollectorOptions,
    SyncOptions,
    make_options,
    without_none,
)
from reap.collectors.options.generations import todays_options
from reap.collectors.options.weights import made_scheme
from reap.errors import OptionError, nearest, shown
from reap.option_values import is_count, switch, whole_number
from reap.weights.scheme import WeightSyncScheme
from reap.weights.schemes import SharedMemWeightSyncScheme
from reap.workers.stall import checked_seconds

STACK = "stack"


class MultiOptions(SyncOptions, total=False):
    """Keywords of collectors with several workers; `WorkerOptions` describes those that other collectors lack."""

    num_workers: int | None
    cat_results: str | int
    preemptive_threshold: float | None
    num_threads: int | None
    num_sub_threads: int
    update_at_each_batch: bool
    stall_after: float | None
    on_worker_failure: str
    collector_class: Any


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Options of the workers as a whole, with their defaults.

    Attributes:
        num_workers: number of workers, if one `create_env_fn` is given for all.
        cat_results: "stack" puts the workers' results one after the other in a new first dimension; an integer joins them along
            that dimension of the batch.
        preemptive_threshold: when this share of the workers, 0 to 1, has finished, the others stop with their current column;
            0: all stop with their first column.
        num_threads: torch threads of this process; None leaves the number unchanged.
        num_sub_threads: torch threads of each worker.
        update_at_each_batch: send the policy's weights to the workers before each batch.
        on_worker_failure: "raise" ends all workers when one fails; "restart" launches another in its place, which continues
            with new episodes after the last column that the failed worker completed; that column is marked truncated. An error
            still ends all workers if the replacement fails while it starts, or before it completes a column. A failure in the
            middle of another call (`set_seed`, `call_env`, `state_dict`, ...) is raised by that call, because its answer is
            lost; the next call continues.
        collector_class: the collector in each worker: a class derived from `SyncDataCollector`, whose `rollout()` is called,
            or "single" for that class itself, or "sync" or "async" for a collector with processes of its own: an entry of
            `create_env_fn` is then a list of env factories.
        stall_after: seconds after which a worker that is stuck in one place is reported; None for never.
    """

    num_workers: int | None = None
    cat_results: str | int = STACK
    preemptive_threshold: float | None = None
    num_threads: int | None = None
    num_sub_threads: int | None = 1
    update_at_each_batch: bool = False
    stall_after: float | None = 60.0
    on_worker_failure: str = "raise"
    collector_class: Any = None

    def __post_init__(self) -> None:
        share = self.preemptive_threshold
        if share is not None and not (isinstance(share, Real) and 0 <= share <= 1):
            raise OptionError(f"preemptive_threshold: expected a share of the workers from 0 to 1, got {share!r}")
        is_index = isinstance(self.cat_results, int) and not isinstance(self.cat_results, bool)
        if self.cat_results != STACK and not is_index:
            raise OptionError(f'cat_results: expected "stack" or a dimension of the batch, got {self.cat_results!r}')
        switch(self.update_at_each_batch, "update_at_each_batch")
        self._check_class()
        if self.on_worker_failure not in ("raise", "restart"):
            raise OptionError(f'on_worker_failure: expected "raise" or "restart", got {self.on_worker_failure!r}')
        for name in ("num_threads", "num_sub_threads"):
            value = getattr(self, name)
            if value is not None and not is_count(value):
                raise OptionError(f"{name}: expected a positive number of threads or None, got {value!r}")
        checked_seconds(self.stall_after)

    def _check_class(self) -> None:
        kind = self.collector_class
        if kind is None or kind == "single":
            return
        if not isclass(kind) and kind not in ("sync", "async"):
            raise OptionError(f'collector_class: expected a class, "single", "sync" or "async", got {kind!r}')
        if self.restarts or self.preemptive_threshold is not None:
            raise OptionError(
                "collector_class: a worker with a collector of its own does not tell which column it is in; it excludes "
                'on_worker_failure="restart" and preemptive_threshold'
            )

    @property
    def restarts(self) -> bool:
        """Whether workers that fail are restarted."""
        return self.on_worker_failure == "restart"


@dataclass(frozen=True)
class Plan:
    """What a collector with several workers is built from.

    Attributes:
        factories: what makes the env, for each worker.
        policy_factories: what makes the policy, for each worker, or None.
        each: the options of each worker's rollouts.
        keywords: the same as keywords, for workers with a collector of their own.
        whole: the options of the collector.
        workers: the options of the workers as a whole.
        scheme: what carries weights to the workers.
    """

    factories: Sequence[Any]
    policy_factories: Sequence[Callable[[], Any] | None]
    each: Sequence[CollectorOptions]
    keywords: Sequence[Mapping[str, Any]]
    whole: CollectorOptions
    workers: WorkerOptions
    scheme: WeightSyncScheme


def make_plan(create_env_fn: Any, given: Mapping[str, Any], interaction: Any, *, is_shared: bool, is_here: bool = True) -> Plan:
    """What each worker gets of a collector's options.

    Args:
        create_env_fn: one for each worker, or one with `num_workers`.
        given: the keywords of the collector.
        interaction: the enum of exploration types.
        is_shared: `frames_per_batch` is the sum over the workers; otherwise each delivers that many by itself.
        is_here: the workers have the devices of this machine.

    Raises:
        OptionError: an unknown keyword, a value out of range, a list of another length than there are workers.
    """
    options = without_none(todays_options(given, interaction), WorkerOptions)
    own = {field.name for field in fields(WorkerOptions)}
    crew = WorkerOptions(**{name: options.pop(name) for name in own & options.keys()})
    _refuse_unknown(options, own)
    if crew.collector_class not in (None, "single") and options.get("record_episodes"):
        raise OptionError(
            "collector_class: workers with a collector of their own tell nothing of episodes; it excludes record_episodes"
        )
    factories = _factories(create_env_fn, crew.num_workers)
    count = len(factories)
    spread = {name: _each(name, options.get(name), count, kinds) for name, kinds in LISTS.items() if name in options}
    asked = options.get("frames_per_batch")
    frames = _frames(asked, count, is_shared)
    given_each = [{**options, **{name: values[w] for name, values in spread.items()}, **frames[w]} for w in range(count)]
    here = DEVICES if is_here else ("storing_device",)
    each = [make_options(one, interaction, here) for one in given_each]
    total = {"frames_per_batch": sum(asked) if is_shared else max(asked)} if isinstance(asked, list | tuple) else {}
    whole = make_options({**options, **{name: values[0] for name, values in spread.items()}, **total}, interaction, here)
    # Workers mark their own last frames: in a batch of several, they lie in its middle.
    whole = replace(whole, set_truncated=False)
    keywords = [_of_nested(one, count) for one in given_each]
    makers, workers = [one.policy_factory for one in each], [_of_worker(one) for one in each]
    scheme = made_scheme(whole.weight_sync_schemes, whole.weight_updater) or SharedMemWeightSyncScheme()
    return Plan(factories, makers, workers, keywords, whole, crew, scheme)


LISTS: dict[str, tuple[type, ...]] = {
    "create_env_kwargs": (list, tuple),
    "policy_factory": (list, tuple),
    "device": (list, tuple),
    "policy_device": (list, tuple),
    "env_device": (list, tuple),
    "storing_device": (list, tuple),
}
"""Options that may be a list with one entry for each worker."""


def _refuse_unknown(options: Mapping[str, Any], own: set[str]) -> None:
    known = [*[field.name for field in fields(CollectorOptions)], *own]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise OptionError(f"unknown option {unknown[0]!r}.{nearest(unknown[0], known)}")
    if options.get("interruptor") is not None:
        raise OptionError(
            "interruptor: it works in SyncDataCollector only; preemptive_threshold ends rollouts of workers early"
        )


def _factories(create_env_fn: Any, num_workers: Any) -> list[Any]:
    if isinstance(create_env_fn, list | tuple):
        given: list[Any] = list(create_env_fn)
        if not given:
            raise OptionError("create_env_fn: expected at least one env factory, got an empty list")
        if num_workers is not None and whole_number(num_workers) != len(given):
            raise OptionError(f"num_workers={num_workers} and {len(given)} entries in create_env_fn: give one of them")
        return given
    if num_workers is None:
        raise OptionError(
            "create_env_fn: expected a list with one entry for each worker, or num_workers=... with one entry; got "
            f"{shown(create_env_fn):.100}"
        )
    count = whole_number(num_workers)
    if not is_count(count):
        raise OptionError(f"num_workers: expected a positive number of workers, got {num_workers!r}")
    return [create_env_fn] * count


def _each(name: str, value: Any, count: int, kinds: tuple[type, ...]) -> list[Any]:
    if not isinstance(value, kinds):
        return [value] * count
    values: list[Any] = list(value)
    if len(values) != count:
        raise OptionError(f"{name}: expected one entry, or a list of {count}, one for each worker; got {len(values)}")
    return values


def _frames(value: Any, count: int, is_shared: bool) -> list[dict[str, int]]:
    """The keyword of each worker; empty where the collector has none, which `make_options` complains about."""
    if value is None:
        return [{}] * count
    if isinstance(value, list | tuple):
        return [{"frames_per_batch": frames} for frames in _each("frames_per_batch", value, count, (list, tuple))]
    frames = whole_number(value)
    if frames is None or frames < 1:
        raise OptionError(f"frames_per_batch: expected a positive integer, or one for each worker, got {value!r}")
    return [{"frames_per_batch": math.ceil(frames / count) if is_shared else frames}] * count


NOT_NESTED = (
    "policy_factory",
    "total_frames",
    "postproc",
    "split_trajs",
    "replay_buffer",
    "extend_buffer",
    "max_frames_ahead",
    "samples_per_frame",
    "storing_device",
    "weight_updater",
    "weight_sync_schemes",
    "trajs_per_batch",
    "traj_format",
    "max_pending_frames",
    "return_same_td",
    "pin_memory",
    "seed",
    "weight_recv_schemes",
    "worker_idx",
)
"""Options of what comes after a rollout."""


def _of_nested(given: Mapping[str, Any], count: int) -> Mapping[str, Any]:
    keywords = {name: value for name, value in given.items() if name not in NOT_NESTED}
    if isinstance(random := keywords.get("init_random_frames"), int):
        keywords["init_random_frames"] = math.ceil(random / count)
    return keywords


def _of_worker(options: CollectorOptions) -> CollectorOptions:
    """What a worker does of it: all that comes after the rollout is the collector's."""
    return replace(
        options,
        policy_factory=None,
        total_frames=-1,
        postproc=None,
        split_trajs=False,
        replay_buffer=None,
        storing_device=None,
        weight_updater=None,
        weight_sync_schemes=None,
        trajs_per_batch=None,
        return_same_td=False,
        pin_memory=False,
        seed=None,
        weight_recv_schemes=None,
        worker_idx=None,
    )
