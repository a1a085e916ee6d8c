"""`Cluster`: connects to Ray, or starts it; knows the resources of its nodes, and which nodes are being drained.

A running Ray is used, and never shut down here.
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
"""Arguments for starting Ray if none is running: without its web server."""

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
"""Options of Ray's actors that workers do not support, with reasons."""

NAMED = {"num_cpus": "CPU", "num_gpus": "GPU", "memory": "memory"}
"""Options of actors that are resources, with Ray's names of these."""

STATUS = "__autoscaling_status"
"""The key of the report of Ray's autoscaler."""

FIRST_REPORT, BETWEEN_LOOKS = 10.0, 0.2
"""Seconds to wait for the first report of a head node that has just started (it takes one to five), and between two checks."""

NO_TYPE = re.compile("node_[0-9a-f]+")
"""The node type in the report of a cluster without other types, where no nodes are added: the node itself."""

CHOOSES_NODES = ("scheduling_strategy", "placement_group", "label_selector", "fallback_strategy", "accelerator_type")
"""Options with which users choose nodes."""


class Cluster:
    """This process's connection to Ray.

    Args:
        user: the name of the user of Ray, for errors.
        init_config: arguments of `ray.init`, which is called unless Ray is initialised in this process. Without an address, it
            joins the cluster that `RAY_ADDRESS` names or one running on this machine, or else starts one.

    Attributes:
        ray: the module.

    Raises:
        ImportError: Ray is not installed.
        OptionError: this program is not part of the cluster, or there is no Ray at that address.
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
        """Whether Ray is still initialised in this process."""
        return self.ray.is_initialized()

    def actor_class(self) -> Any:
        """The actor class for workers."""
        return self.ray.remote(concurrency_groups=dict(GROUPS))(WorkerActor)

    def kill(self, actor: Any) -> None:
        """End an actor at once; its current calls fail."""
        with suppress(Exception):  # Ray was shut down, or is on its way
            if self.is_up:
                self.ray.kill(actor)

    def nodes(self) -> list[Mapping[str, Any]]:
        """The nodes of the cluster that are alive."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def draining(self) -> set[str]:
        """The ids of nodes being drained."""
        return set(_state().get_draining_nodes()) if self.is_up else set()

    def grows(self) -> bool:
        """Whether Ray's autoscaler can add nodes on demand, because it has node types to choose from."""
        types: set[str] = set()
        deadline = time.monotonic() + FIRST_REPORT
        with suppress(Exception):  # a Ray that does not tell
            if _state().get_cluster_config() is not None:
                return True
            while not (types := self._types_of_nodes()) and time.monotonic() < deadline:
                time.sleep(BETWEEN_LOOKS)
        return not all(map(NO_TYPE.fullmatch, types))

    def _types_of_nodes(self) -> set[str]:
        """The cluster's node types, as reported by its autoscaler; empty before the first report."""
        if optional.load("ray.autoscaler.v2.utils").is_autoscaler_v2(fetch_from_server=True):
            address = self.ray.get_runtime_context().gcs_address
            status = optional.load("ray.autoscaler.v2.sdk").get_cluster_status(address)
            return {node.ray_node_type_name for node in (*status.active_nodes, *status.idle_nodes)}
        found = optional.load("ray.experimental.internal_kv")._internal_kv_get(STATUS)
        report = json.loads(found or b"{}").get("autoscaler_report") or {}
        return {*(report.get("active_nodes") or {}), *(report.get("idle_nodes") or {})}

    def place_other_than(self, node: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options that place an actor on a different node, if one has room for it."""
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
        """Raise OptionError if these actors can never all run on this cluster at the same time.

        Args:
            options: the options of each actor.
        """
        wanted = [resources_of(one) for one in options if all(one.get(name) is None for name in CHOOSES_NODES)]
        problem = _impossible(wanted, [node["Resources"] for node in self.nodes()])
        if problem and not self.grows():
            raise OptionError(problem)


def actor_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a worker's actor: by default one CPU and no GPU.

    Raises:
        OptionError: an option that workers do not support.
    """
    for name, reason in OWN_OPTIONS.items():
        if given.get(name) is not None:
            raise OptionError(f"remote_configs: {name}={given[name]!r} is not for workers: {reason}")
    return {"num_cpus": 1, "num_gpus": 0, **given}


def resources_of(options: Mapping[str, Any]) -> dict[str, float]:
    """The resources that an actor with these options requests."""
    named = {own: options.get(name) for name, own in NAMED.items()}
    return {name: amount for name, amount in {**named, **(options.get("resources") or {})}.items() if amount}


def shown_resources(resources: Mapping[str, float]) -> str:
    """Resources as text."""
    sizes = {"memory", "object_store_memory"}
    parts = [f"{readable(n)} of {name}" if name in sizes else f"{n:g} {name}" for name, n in resources.items()]
    return ", ".join(parts) or "nothing"


def _impossible(wanted: Sequence[Mapping[str, float]], offers: Sequence[Mapping[str, float]]) -> str:
    """Why actors that request these resources cannot all run at the same time on these nodes; empty if they can."""
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
    """How many times a request fits."""
    return min((math.floor(offered.get(name, 0.0) / amount + 1e-9) for name, amount in wanted.items()), default=math.inf)


def _state() -> Any:
    return optional.load("ray._private.state").state
