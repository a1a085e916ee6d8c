"""`Cluster` without a Ray that runs: what nodes offer, what cannot be, and who is no part of a cluster."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reap import optional
from reap.data.buffers.ray_buffer import RayReplayBuffer
from reap.errors import OptionError
from reap.workers.ray.cluster import Cluster, actor_options, resources_of, shown_resources

pytest.importorskip("ray")


class Offering(Cluster):
    """Of nodes with these resources."""

    def __init__(self, *offers: Mapping[str, float], grows: bool = False) -> None:
        self._offers, self._grows = offers, grows

    def nodes(self) -> list[Mapping[str, Any]]:
        return [{"Resources": {"node:1.2.3.4": 1.0, "object_store_memory": 1e9, **one}} for one in self._offers]

    def grows(self) -> bool:
        return self._grows


def test_actors_ask_for_one_cpu_unless_told_otherwise() -> None:
    assert resources_of(actor_options({})) == {"CPU": 1}
    asked = actor_options({"num_cpus": 0.5, "num_gpus": 1, "memory": 2e9, "resources": {"tpu": 4}})
    assert resources_of(asked) == {"CPU": 0.5, "GPU": 1, "memory": 2e9, "tpu": 4}
    assert shown_resources(resources_of(asked)) == "0.5 CPU, 1 GPU, 2.0 GB of memory, 4 tpu"


@pytest.mark.parametrize("name", ["max_restarts", "lifetime", "name", "max_concurrency"])
def test_options_that_workers_have_no_use_for(name: str) -> None:
    with pytest.raises(OptionError, match=f"remote_configs: {name}=7 is not for workers"):
        actor_options({name: 7})


def test_room_is_counted_by_node() -> None:
    cluster = Offering({"CPU": 3.0}, {"CPU": 3.0})
    cluster.refuse_impossible([{"num_cpus": 1.5}] * 4)
    with pytest.raises(OptionError, match="3 workers ask for 2 CPU each, and there is room for 2; nodes offer 3 CPU"):
        cluster.refuse_impossible([{"num_cpus": 2}] * 3)


def test_the_resource_that_is_missing_is_named() -> None:
    with pytest.raises(OptionError, match="no node of the cluster offers 1 CPU, 1 GPU, .*nodes offer 4 CPU; 8 CPU, 2 tpu"):
        Offering({"CPU": 4.0}, {"CPU": 8.0, "tpu": 2.0}).refuse_impossible([{"num_cpus": 1}, {"num_cpus": 1, "num_gpus": 1}])


def test_who_chooses_nodes_or_has_them_added_is_left_alone() -> None:
    Offering({"CPU": 1.0}).refuse_impossible([{"num_gpus": 1, "placement_group": "mine"}])
    Offering({"CPU": 1.0}, grows=True).refuse_impossible([{"num_gpus": 1}])


class Reporting(Offering):
    """Of nodes whose types the autoscaler reports, one answer for each time that it is asked."""

    grows = Cluster.grows

    def __init__(self, *answers: set[str]) -> None:
        super().__init__({"CPU": 1.0})
        self.answers = list(answers)

    def _types_of_nodes(self) -> set[str]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def no_cluster_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reap.workers.ray.cluster._state", lambda: SimpleNamespace(get_cluster_config=lambda: None))


@pytest.mark.usefixtures("no_cluster_config")
@pytest.mark.parametrize(
    ("types", "grows"),
    [
        ({"node_0a1b"}, False),
        ({"ray.head.default"}, True),
        ({"node_0a1b", "small"}, True),
    ],
)
def test_a_cluster_grows_where_its_autoscaler_has_types_of_nodes(types: set[str], grows: bool) -> None:
    """Without an autoscaler of its own, Ray reports each node as a type."""
    assert Reporting(types).grows() is grows


@pytest.mark.usefixtures("no_cluster_config")
def test_a_head_that_has_just_started_is_given_time_to_report(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Reporting(set(), set(), {"ray.head.default"}).grows()
    monkeypatch.setattr("reap.workers.ray.cluster.FIRST_REPORT", 0.0)
    with pytest.raises(OptionError, match="no node of the cluster offers 1 GPU"):
        Reporting(set()).refuse_impossible([{"num_gpus": 1}])


def test_who_has_room_asks_no_autoscaler() -> None:
    class Unasked(Offering):
        def grows(self) -> bool:
            raise AssertionError("the first report is waited for")

    Unasked({"CPU": 1.0}).refuse_impossible([{"num_cpus": 1}])


def test_a_client_is_no_part_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        OptionError, match='RayCollector: this program reaches its Ray cluster through a client .*"ray job submit"'
    ):
        Cluster("RayCollector", {"address": "ray://head:10001"})
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(OptionError, match="through a client"):
        Cluster("RayCollector")


def test_a_missing_ray_shows_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name="ray")

    monkeypatch.setattr(optional.importlib, "import_module", missing)
    with pytest.raises(ImportError, match=r'ray is not installed, and RayCollector needs it. .*pip install "reap\[ray\]"'):
        Cluster("RayCollector")


@pytest.mark.parametrize("user", [RayReplayBuffer, partial(Cluster, "RayCollector")], ids=["buffer", "collector"])
def test_an_address_that_a_killed_head_has_left(user: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in a file of Ray's, and nobody listens there: Ray itself would try for minutes."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    left = tmp_path / "ray" / "ray_current_cluster"
    left.parent.mkdir()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        left.write_text(address)
        with pytest.raises(OptionError) as info:
            user()
    words = str(info.value)
    assert f"no Ray answers at {address} (" in words
    assert f"is in {left}, where a head that was killed has left it. Remove the file" in words
    assert 'ray_init_config={"address": ...} or RAY_ADDRESS' in words


@pytest.mark.parametrize("source", ['ray_init_config["address"]', "RAY_ADDRESS"])
def test_an_address_that_is_none_is_said_with_its_source(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"address": "nowhere"} if source != "RAY_ADDRESS" else {}
    if not config:
        monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    words = f"Ray could not be reached or started at nowhere, which is {source}: "
    with pytest.raises(OptionError, match=re.escape(words)):
        Cluster("RayCollector", config)
