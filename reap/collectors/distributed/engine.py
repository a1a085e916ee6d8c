"""`EngineCollector`: what the collectors on all engines share. Engines differ only in how bytes move.

given options --> the engine's own --> make_group
              --> EngineOptions    --> how often weights are sent, who has to be there
              --> the others       --> as of collectors with several workers
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

from reap.collectors.distributed.options import taken_apart
from reap.collectors.exchange.copied import CopiedExchange
from reap.collectors.multi import RemoteCollector
from reap.collectors.schedules.make import as_they_come, together
from reap.collectors.workers.joining import JoinLater
from reap.collectors.workers.retries import GrowingPauses
from reap.collectors.workers.rollout_workers import RolloutWorkers
from reap.option_values import switch


class EngineCollector(RemoteCollector):
    """A collector whose workers may be on other machines."""

    is_on_one_machine = False

    def _compose_over(
        self,
        make_group: Callable[..., Any],
        create_env_fn: Any,
        policy: Any,
        options: Mapping[str, Any],
        *,
        is_sync: bool,
        own: Any,
        can_write: Callable[[Any], bool] = lambda _: False,
    ) -> None:
        """Build the collector from workers that an engine reaches.

        Args:
            make_group: makes the workers' group, with the arguments of `RemoteGroup`.
            create_env_fn: as given.
            policy: as given.
            options: as given, without the engine's own.
            is_sync: whether a batch holds a rollout of every worker; otherwise it is that of one, in order of arrival.
            own: the engine's own options, a dataclass.
            can_write: whether workers can write to a replay buffer themselves.
        """
        switch(is_sync, "sync")
        given = taken_apart(
            create_env_fn, options, is_sync=is_sync, owner=type(self).__name__, own=[option.name for option in fields(own)]
        )
        self._engine_options, self._sync = given.engine, is_sync
        self._factories = given.create_env_fn
        make_workers = partial(
            RolloutWorkers,
            exchange=CopiedExchange(can_write),
            make_group=make_group,
            may_leave=True,
            min_workers=given.engine.min_workers,
        )
        self._compose(
            given.create_env_fn,
            policy,
            given.options,
            together if is_sync else as_they_come,
            is_shared=is_sync,
            make_workers=make_workers,
            joins=None if is_sync else JoinLater(),
            retries=GrowingPauses(),
        )
        if given.engine.batches_per_update:
            self._weights.refresh_after(given.engine.batches_per_update)

    @property
    def sync(self) -> bool:
        """Whether a batch holds a rollout of every worker."""
        return self._sync
