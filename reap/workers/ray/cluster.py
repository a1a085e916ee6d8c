"""`Cluster`: the Ray that workers run on: reached, or started; what its nodes offer, and which of them are about to go.

A Ray that runs is used, and nobody here ends one.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from reap import optional
from reap.errors import OptionError
from reap.ray_start import start_ray
from reap.system.memory import readable
from reap.workers.ray.actor import GROUPS, WorkerActor

STARTED_HERE: Mapping[str, Any] = {"include_dashboard": False}
"""How a Ray is started where there is none: without its web server."""

CLIENT = "ray://"

OWN_OPTIONS = {
    "max_restarts": 'collectors restart workers themselves: on_worker_failure="restart"',
    "max_task_retries": "a command is carried out once",
    "lifetime": "workers end with their collector",
    "name": "there would be several of that name",
    "get_if_exists": "each worker is made for its collector",
    "max_concurrency": "a worker carries out one command at a time",
    "concurrency_groups": "a worker has its own",
    "namespace": "workers have no names",
}
"""Options of Ray's actors that workers have no use for, and why."""

NAMED = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
"""Options of actors that are resources, and what Ray calls these."""

STATUS = "__autoscaling_status"
"""Where Ray's autoscaler keeps its report."""

FIRST_REPORT, BETWEEN_LOOKS = 10.0, 0.2
"""Seconds that a head which has just started has for its first report, which comes after one to five; and between two looks."""

NO_TYPE = re.compile("node_[0-9a-f]+")
"""What the report gives as the type of a node where no others are added: the node itself."""

CHOOSES_NODES = ("scheduling_strategy", "placement_group", "label_selector", "fallback_strategy", "accelerator_type")
"""Options by which users choose nodes."""


class Cluster:
    """The Ray of this process.

    Args:
        user: who needs it, for errors.
        init_config: arguments of `ray.init`, which is called if Ray does not run in this process. Without an address, it joins
            the cluster that `RAY_ADDRESS` names, or one that runs on this machine, or starts one.

    Attributes:
        ray: the module.

    Raises:
        ImportError: Ray is not installed.
        OptionError: this program is no part of the cluster, or there is no Ray at that address.
    """

    def __init__(self, user: str, init_config: Mapping[str, Any] | None = None) -> None:
        self.ray: Any = optional.load("ray", user)
        config = dict(init_config or {})
        address = config.get("address") or os.environ.get("RAY_ADDRESS") or ""
        if optional.load("ray.util.client").ray.is_connected() or str(address).startswith(CLIENT):
            raise OptionError(
                f"{user}: this program reaches its Ray cluster through a client ({CLIENT}...), without its object store; "
                'run it on a node of the cluster, with "ray job submit" for example'
            )
        if not self.ray.is_initialized():
            start_ray(user, config, STARTED_HERE)

    @property
    def is_up(self) -> bool:
        """Whether Ray still runs in this process."""
        return self.ray.is_initialized()

    def actor_class(self) -> Any:
        """What makes workers' actors."""
        return self.ray.remote(concurrency_groups=dict(GROUPS))(WorkerActor)

    def kill(self, actor: Any) -> None:
        """End an actor at once; what it is calling fails."""
        with suppress(Exception):  # Ray was shut down, or is on its way
            if self.is_up:
                self.ray.kill(actor)

    def nodes(self) -> list[Mapping[str, Any]]:
        """The nodes that are there."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def draining(self) -> set[str]:
        """Ids of nodes that are about to go."""
        return set(_state().get_draining_nodes()) if self.is_up else set()

    def grows(self) -> bool:
        """Whether nodes are added when more is asked for than there is: Ray's autoscaler has types of nodes to choose from."""
        types: set[str] = set()
        deadline = time.monotonic() + FIRST_REPORT
        with suppress(Exception):  # a Ray that does not tell
            if _state().get_cluster_config() is not None:
                return True
            while not (types := self._types_of_nodes()) and time.monotonic() < deadline:
                time.sleep(BETWEEN_LOOKS)
        return not all(map(NO_TYPE.fullmatch, types))

    def _types_of_nodes(self) -> set[str]:
        """The types of the cluster's nodes, as its autoscaler reports them; nothing where that has not begun."""
        if optional.load("ray.autoscaler.v2.utils").is_autoscaler_v2(fetch_from_server=True):
            address = self.ray.get_runtime_context().gcs_address
            status = optional.load("ray.autoscaler.v2.sdk").get_cluster_status(address)
            return {node.ray_node_type_name for node in (*status.active_nodes, *status.idle_nodes)}
        found = optional.load("ray.experimental.internal_kv")._internal_kv_get(STATUS)
        report = json.loads(found or b"{}").get("autoscaler_report") or {}
        return {*(report.get("active_nodes") or {}), *(report.get("idle_nodes") or {})}

    def place_other_than(self, node: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options that put an actor on another node than this one, if one that is there has room for it."""
        if any(options.get(name) is not None for name in CHOOSES_NODES):
            return {}
        free = optional.load("ray._private.state").available_resources_per_node()
        wanted, going = resources_of(options), self.draining()
        others = [other for other, offered in free.items() if other not in {node, *going} and _copies(wanted, offered)]
        alive = {one["NodeID"] for one in self.nodes()}
        chosen = next((other for other in others if other in alive), None)
        if chosen is None:
            return {}
        strategies = optional.load("ray.util.scheduling_strategies")
        return {"scheduling_strategy": strategies.NodeAffinitySchedulingStrategy(chosen, soft=True)}

    def refuse_impossible(self, options: Sequence[Mapping[str, Any]]) -> None:
        """Raise OptionError if these actors can never run here at the same time, however long they wait.

        Args:
            options: of each actor.
        """
        wanted = [resources_of(one) for one in options if all(one.get(name) is None for name in CHOOSES_NODES)]
        problem = _impossible(wanted, [node["Resources"] for node in self.nodes()])
        if problem and not self.grows():
            raise OptionError(problem)


def actor_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a worker's actor: one CPU and no GPU unless something else is asked for.

    Raises:
        OptionError: one that workers have no use for.
    """
    for name, reason in OWN_OPTIONS.items():
        if given.get(name) is not None:
            raise OptionError(f"remote_configs: {name}={given[name]!r} is not for workers: {reason}")
    return {"num_cpus": 1, "num_gpus": 0, **given}


def resources_of(options: Mapping[str, Any]) -> dict[str, float]:
    """What an actor with these options asks for."""
    named = {own: options.get(name) for name, own in NAMED.items()}
    return {name: amount for name, amount in {**named, **(options.get("resources") or {})}.items() if amount}


def shown_resources(resources: Mapping[str, float]) -> str:
    """Resources in words."""
    sizes = {"memory", "object_store_memory"}
    parts = [f"{readable(n)} of {name}" if name in sizes else f"{n:g} {name}" for name, n in resources.items()]
    return ", ".join(parts) or "nothing"


def _impossible(wanted: Sequence[Mapping[str, float]], offers: Sequence[Mapping[str, float]]) -> str:
    """Why actors that ask for this never run at the same time on nodes that offer that; empty if they can."""
    for one in wanted:
        if not any(_copies(one, offered) for offered in offers):
            return (
                f"remote_configs: no node of the cluster offers {shown_resources(one)}, which one worker asks for; nodes offer "
                f"{_each(offers)}"
            )
    room = sum(_copies(wanted[0], offered) for offered in offers) if wanted else 0
    if room < len(wanted) and all(one == wanted[0] for one in wanted):
        return (
            f"num_collectors: {len(wanted)} workers ask for {shown_resources(wanted[0])} each, and there is room for "
            f"{room:.0f}; nodes offer {_each(offers)}. Ask for less in remote_configs, or add nodes first"
        )
    return ""


def _each(offers: Sequence[Mapping[str, float]]) -> str:
    own = [
        {name: offered[name] for name in sorted(offered) if ":" not in name and name != "object_store_memory"}
        for offered in offers
    ]
    return "; ".join(sorted({shown_resources(one) for one in own}))


def _copies(wanted: Mapping[str, float], offered: Mapping[str, float]) -> float:
    """How often something fits."""
    return min((math.floor(offered.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items()), default=math.inf)


def _state() -> Any:
    return optional.load("ray._private.state").state
