"""Actors that several groups use one after the other, for tests that make many groups.

An actor takes seconds to start, because its process imports torch. Those of a `PooledCluster` are lives of one process: when a
worker has been closed, its actor goes back to the pool, and becomes the next one with a channel of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from reap.workers.ray.actor import GROUPS, WorkerActor
from reap.workers.ray.cluster import Cluster


class ReusedActor(WorkerActor):
    """An actor that can begin anew."""

    def renew(self, hides_gpus: bool) -> None:
        """Be as one that was just made."""
        WorkerActor.__init__(self, hides_gpus)

    def has_ended(self) -> bool:
        """Whether its worker closed and left."""
        return self._channel.has_ended


class PooledCluster(Cluster):
    """Gives out actors that were given back."""

    idle: ClassVar[list[Any]] = []
    """Those of all clusters of this process."""

    def actor_class(self) -> Any:
        return PooledClass(self.ray, self.ray.remote(concurrency_groups=dict(GROUPS))(ReusedActor), {})

    def kill(self, actor: Any) -> None:
        try:
            if self.ray.get(actor.has_ended.options(concurrency_group="control").remote(), timeout=5):
                if all(other is not actor for other in self.idle):  # a group may end an actor twice
                    self.idle.append(actor)
                return
        except self.ray.exceptions.RayError:
            pass
        super().kill(actor)


class PooledClass:
    """As the class of an actor, with options."""

    def __init__(self, ray: Any, made: Any, options: Mapping[str, Any]) -> None:
        self._ray, self._made, self._options = ray, made, options

    def options(self, **options: Any) -> PooledClass:
        return PooledClass(self._ray, self._made, options)

    def remote(self, hides_gpus: bool) -> Any:
        while PooledCluster.idle:
            actor = PooledCluster.idle.pop()
            try:
                self._ray.get(actor.renew.options(concurrency_group="control").remote(hides_gpus))
                return actor
            except self._ray.exceptions.RayError:
                continue
        return self._made.options(**self._options).remote(hides_gpus)
