"""The options that collectors with workers on other machines share, and how workers apply them.

given ---> popped: the engine's own
      ---> EngineOptions                   how often weights are sent, what each worker runs
      ---> the options of any collector with several workers (`reap.collectors.options.multi`)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from inspect import isclass
from typing import Any, NamedTuple, TypeVar

from reap.collectors.multi import RemoteCollector
from reap.collectors.options.multi import LISTS
from reap.errors import OptionError
from reap.option_values import is_count, switch

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of collectors on any engine, with their defaults.

    Attributes:
        num_workers_per_collector: envs of each worker that runs a collector with processes of its own: an entry of
            `create_env_fn` is made that many times. More than 1 asks for `collector_class="sync"`, the default then, or
            `"async"`.
        collector_kwargs: more options, as a dict; or a list of dicts with one for each worker, where values that differ
            must be of options that may be lists: `frames_per_batch`, `create_env_kwargs`, `policy_factory` and devices.
        update_after_each_batch: send the policy's weights to the workers before each batch.
        max_weight_update_interval: batches after which the policy's weights are sent to a worker that got none in between,
            whichever workers recorded these batches; -1 for never.
        update_interval: the same, under the name that synchronous collectors have for it.
        min_workers: number of workers that have to be there before the first batch; the others join while these deliver. None
            waits for all. For collectors whose batches are those of one worker each.
    """

    num_workers_per_collector: int = 1
    collector_kwargs: Any = None
    update_after_each_batch: bool = False
    max_weight_update_interval: int = -1
    update_interval: int | None = None
    min_workers: int | None = None

    def __post_init__(self) -> None:
        switch(self.update_after_each_batch, "update_after_each_batch")
        if not is_count(self.num_workers_per_collector):
            raise OptionError(
                f"num_workers_per_collector: expected a positive number of envs, got {self.num_workers_per_collector!r}"
            )
        if self.max_weight_update_interval != -1 and not is_count(self.max_weight_update_interval):
            found = self.max_weight_update_interval
            raise OptionError(f"max_weight_update_interval: expected a positive number of batches or -1, got {found!r}")
        if self.update_interval is not None and not is_count(self.update_interval):
            raise OptionError(f"update_interval: expected a positive number of batches or None, got {self.update_interval!r}")
        if self.min_workers is not None and not is_count(self.min_workers):
            raise OptionError(f"min_workers: expected a positive number of workers or None, got {self.min_workers!r}")
        given = [name for name in INTERVALS if getattr(self, name) not in (False, -1, None)]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)}: expected one of them, for each says when weights are sent")

    @property
    def batches_per_update(self) -> int:
        """Batches after which the policy's weights are sent; 0 for never."""
        if self.update_after_each_batch:
            return 1
        return max(0, self.max_weight_update_interval if self.update_interval is None else self.update_interval)


INTERVALS = ("update_after_each_batch", "max_weight_update_interval", "update_interval")


class Given(NamedTuple):
    """A user's options, by the part of the collector that they belong to.

    Attributes:
        create_env_fn: as collectors with several workers expect it.
        engine: the options that all engines share.
        options: those of collectors with several workers.
    """

    create_env_fn: Any
    engine: EngineOptions
    options: dict[str, Any]


def popped(options: dict[str, Any], kind: type[T]) -> T:
    """Remove the options of one kind from those given, and return them.

    Args:
        options: as given; the options of this kind are removed.
        kind: a dataclass.
    """
    own = {field.name for field in fields(kind)} & options.keys()  # pyright: ignore[reportArgumentType]
    return kind(**{name: options.pop(name) for name in own})


def taken_apart(
    create_env_fn: Any, options: Mapping[str, Any], *, is_sync: bool, owner: str = "the collector", own: Collection[str] = ()
) -> Given:
    """Convert arguments to the form that collectors with several workers expect.

    Args:
        create_env_fn: one entry for each worker, or one entry.
        options: as given, without those of one engine only.
        is_sync: whether a batch holds a rollout of every worker.
        owner: the collector's class, for errors.
        own: names of options of the collector itself, in addition to `EngineOptions`; `collector_kwargs` cannot have them.

    Raises:
        OptionError: an option that cannot work.

    Example:
        >>> given = taken_apart(["CartPole-v1"], {"num_workers_per_collector": 2}, is_sync=True)
        >>> given.create_env_fn, given.options
        ([['CartPole-v1', 'CartPole-v1']], {'collector_class': 'sync'})
    """
    rest = dict(options)
    engine = popped(rest, EngineOptions)
    workers = len(create_env_fn) if isinstance(create_env_fn, list | tuple) else rest.get("num_workers")
    _check_min_workers(engine.min_workers, workers, is_sync)
    own = {*own, *(field.name for field in fields(EngineOptions)), "create_env_fn", "policy", "sync"}
    _refuse_own(engine.collector_kwargs, own, owner)
    for name, value in _merged(engine.collector_kwargs, workers).items():
        if name in rest:
            raise OptionError(f"{name} and collector_kwargs[{name!r}]: expected one of them, got both")
        rest[name] = value
    count = engine.num_workers_per_collector
    if count > 1 and rest.setdefault("collector_class", "sync") == "single":
        raise OptionError(
            f'num_workers_per_collector={count}: a worker with collector_class="single" has one env; expected "sync" or "async"'
        )
    if _has_workers(rest.get("collector_class")):
        create_env_fn = _in_lists(create_env_fn, count, workers)
    return Given(create_env_fn, engine, rest)


def _check_min_workers(given: int | None, workers: Any, is_sync: bool) -> None:
    if given is None:
        return
    if is_sync:
        raise OptionError(f"min_workers={given}: every batch holds a rollout of every worker; it is for sync=False")
    if isinstance(workers, int) and given > workers:
        raise OptionError(f"min_workers={given}: expected at most the number of workers, {workers}")


def _has_workers(collector_class: Any) -> bool:
    """Whether each worker runs a collector with workers of its own."""
    return collector_class in ("sync", "async") or (isclass(collector_class) and issubclass(collector_class, RemoteCollector))


def _in_lists(create_env_fn: Any, times: int, workers: Any) -> Any:
    """Each entry as a list of env factories, which such a collector takes; lists are kept."""
    if not isinstance(create_env_fn, list | tuple):
        return [[create_env_fn] * times] * workers if isinstance(workers, int) else create_env_fn
    return [one if isinstance(one, list | tuple) else [one] * times for one in create_env_fn]


def _refuse_own(given: Any, own: Collection[str], owner: str) -> None:
    """Raise OptionError if `collector_kwargs` holds an option of the collector itself."""
    for one in given if isinstance(given, list | tuple) else [given]:
        for name in one if isinstance(one, Mapping) else ():
            if name in own:
                raise OptionError(
                    f"collector_kwargs: expected options of the workers' rollouts, got {name!r}; give it to {owner} itself"
                )


def _merged(given: Any, workers: Any) -> dict[str, Any]:
    """The options in `collector_kwargs`; a list for each option that differs between workers."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, list | tuple) or not all(isinstance(one, Mapping) for one in given):
        raise OptionError(f"collector_kwargs: expected a dict, or a list of dicts, got {given!r}")
    each: list[Mapping[str, Any]] = list(given)
    if len(each) != workers:
        raise OptionError(f"collector_kwargs: expected one dict for each of {workers} workers, got {len(each)}")
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for one in each for name in one):
        values = [one.get(name) for one in each]
        is_same = all(value is values[0] or value == values[0] for value in values[1:])
        if not is_same and name not in {*LISTS, "frames_per_batch"}:
            raise OptionError(f"collector_kwargs: {name!r} has to be the same for all workers, got {values}")
        merged[name] = values[0] if is_same else values
    return merged
