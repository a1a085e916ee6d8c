"""`Collector` and `MultiCollector`: names that torchrl has since 0.13, whose arguments choose one of the collectors."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

from reap.collectors.local import SyncDataCollector
from reap.collectors.multi import MultiaSyncDataCollector, MultiSyncDataCollector, RemoteCollector
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.multi import WorkerOptions
from reap.collectors.options.shown import shows_options
from reap.errors import OptionError, nearest
from reap.option_values import switch

BACKENDS = {
    "ray": "reap.collectors.distributed:RayCollector",
    "rpc": "reap.collectors.distributed:RPCDataCollector",
    "distributed": "reap.collectors.distributed:DistributedDataCollector",
    "submitit": "reap.collectors.distributed:DistributedDataCollector",
}
"""Collectors whose workers may be on other machines, by backend; imported when one is built."""

DIRECT, PROCESS = "direct", "process"
CHOICES = (DIRECT, PROCESS, *BACKENDS)
CHOOSING = ("backend", "backend_options", "num_collectors", "sync")
"""Arguments that choose the collector."""


@shows_options(_options=CollectorOptions)
class Collector(SyncDataCollector):
    """A `SyncDataCollector`, or with `backend` or `num_collectors` a collector with workers.

    A class derived from this one is always a `SyncDataCollector`.

    Args:
        create_env_fn: an env or what makes one; a list of these, with one entry for each worker; or one and `num_collectors`.
        policy: a module or function, or None for random actions.
        backend: where the envs are: "direct" in this process, "process" in others on this machine, "ray", "rpc",
            "distributed" or "submitit" wherever these have workers. None: "process" with `num_collectors`, else "direct".
        backend_options: options of the chosen collector, in addition to the others.
        num_collectors: number of workers.
        sync: whether a batch holds a rollout of every worker; otherwise it is that of one, in order of arrival.
        **options: those below, and with workers those of the chosen collector too; see `MultiSyncDataCollector` and
            `RayCollector`.

    Raises:
        OptionError: an option that is unknown or cannot work.

    Example:
        >>> with Collector("CartPole-v1", frames_per_batch=20, total_frames=40) as collector:
        ...     print([batch.batch_size for batch in collector])
        [torch.Size([20]), torch.Size([20])]
    """

    def __new__(
        cls,
        create_env_fn: Any,
        policy: Callable[..., Any] | None = None,
        *,
        backend: str | None = None,
        backend_options: Mapping[str, Any] | None = None,
        num_collectors: int | None = None,
        sync: bool | None = None,
        **options: Any,
    ) -> Any:
        """The collector that these arguments choose."""
        if cls is not Collector:
            if any(value is not None for value in (backend, backend_options, num_collectors, sync)):
                raise OptionError(
                    f"{cls.__name__} is derived from Collector and collects in this process; expected no backend, "
                    "backend_options, num_collectors or sync"
                )
            return super().__new__(cls)
        chosen = _backend(backend, num_collectors)
        if chosen == DIRECT:
            _refuse_workers(num_collectors, sync, backend_options)
            return super().__new__(cls)
        own = dict(backend_options or {})
        if both := sorted(own.keys() & options.keys()):
            raise OptionError(f"backend_options: {both} are given as options too")
        told = _of_workers(chosen, create_env_fn, num_collectors)
        return _made(chosen, sync is not None and switch(sync, "sync"))(create_env_fn, policy, **told, **options, **own)

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None = None, **options: Any) -> None:
        for name in CHOOSING:  # `__new__` has followed them
            options.pop(name, None)
        is_list = isinstance(create_env_fn, list | tuple)
        if is_list and len(create_env_fn) != 1:  # pyright: ignore[reportUnknownArgumentType]
            raise OptionError(
                f"create_env_fn: a collector in this process has one env, got a list of {len(create_env_fn)}; "  # pyright: ignore[reportUnknownArgumentType]
                'with backend="process" each is a worker\'s'
            )
        super().__init__(create_env_fn[0] if is_list else create_env_fn, policy, **options)


@shows_options(_options=CollectorOptions, _worker_options=WorkerOptions)
class MultiCollector(ABC):  # noqa: B024  what counts as one is registered
    """A `MultiSyncDataCollector` with `sync=True`, a `MultiaSyncDataCollector` with `sync=False`; both count as instances.

    Args:
        create_env_fn: see `MultiSyncDataCollector`.
        policy: a module or function, or None for random actions; each worker has a copy.
        sync: whether a batch holds a rollout of every worker; otherwise it is that of one, in order of arrival.
        **options: those below.

    Raises:
        OptionError: `sync` is missing, or an option is unknown or cannot work.
    """

    def __new__(
        cls, create_env_fn: Any, policy: Callable[..., Any] | None = None, *, sync: bool | None = None, **options: Any
    ) -> Any:
        """The collector that `sync` chooses."""
        if not isinstance(sync, bool):
            raise OptionError(f"MultiCollector: expected sync=True or sync=False, how workers deliver; got {sync!r}")
        return _made(PROCESS, sync)(create_env_fn, policy, **options)


MultiCollector.register(RemoteCollector)


def _backend(given: str | None, num_collectors: int | None) -> str:
    if given is None:
        return DIRECT if num_collectors is None else PROCESS
    if given not in CHOICES:
        raise OptionError(f"backend: expected one of {list(CHOICES)}, got {given!r}.{nearest(given, CHOICES)}")
    return given


def _refuse_workers(num_collectors: int | None, sync: bool | None, options: Mapping[str, Any] | None) -> None:
    if num_collectors not in (None, 1) or sync is not None or options:
        raise OptionError(
            'backend="direct" has one collector, in this process: expected no num_collectors, sync or backend_options, got '
            f"num_collectors={num_collectors}, sync={sync}, backend_options={options}"
        )


def _of_workers(backend: str, create_env_fn: Any, count: int | None) -> dict[str, Any]:
    """The options that set the number of workers and their launcher."""
    is_list = isinstance(create_env_fn, list | tuple)
    told = {} if is_list and count is None else {"num_workers": 1 if count is None else count}
    return {**told, "launcher": "submitit"} if backend == "submitit" else told


def _made(backend: str, sync: bool) -> Callable[..., Any]:
    """The class for a backend."""
    if backend == PROCESS:
        return MultiSyncDataCollector if sync else MultiaSyncDataCollector
    make = resolve_name(BACKENDS[backend])
    return lambda *given, **options: make(*given, sync=sync, **options)
