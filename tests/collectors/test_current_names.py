"""Names that torchrl has since 0.13, and import paths of before: doors to the same classes."""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import pytest

from reap import collectors
from reap.collectors import Collector, MultiCollector, MultiSyncDataCollector, SyncDataCollector, distributed
from reap.errors import OptionError
from reap.testing import Const, Count
from reap.weight_update import NoWeightSyncScheme

FACTORY = partial(Count, 3)

SAME = {
    "BaseCollector": "DataCollectorBase",
    "MultiSyncCollector": "MultiSyncDataCollector",
    "MultiAsyncCollector": "MultiaSyncDataCollector",
    "AsyncCollector": "aSyncDataCollector",
}
SAME_DISTRIBUTED = {
    "DistributedCollector": "DistributedDataCollector",
    "DistributedSyncCollector": "DistributedSyncDataCollector",
    "RPCCollector": "RPCDataCollector",
}


@pytest.mark.parametrize(("new", "old"), [*SAME.items()])
def test_the_same_classes(new: str, old: str) -> None:
    door = importlib.import_module("reap.collectors.collectors")
    assert getattr(collectors, new) is getattr(collectors, old) is getattr(door, new) is getattr(door, old)
    assert {new, old} <= set(dir(collectors)) & set(collectors.__all__) & set(door.__all__)


@pytest.mark.parametrize(("new", "old"), [*SAME_DISTRIBUTED.items()])
def test_the_same_classes_of_engines(new: str, old: str) -> None:
    assert getattr(distributed, new) is getattr(distributed, old)
    assert new in distributed.__all__


def test_updaters_by_their_import_path() -> None:
    door = importlib.import_module("reap.collectors.weight_update")
    assert all(getattr(door, name) is getattr(collectors, name) for name in door.__all__)


@pytest.mark.parametrize("module", ["reap.collectors.collectors", "reap.collectors.weight_update", "reap.weight_update"])
def test_doors_show_what_they_export(module: str) -> None:
    door = importlib.import_module(module)
    assert all(hasattr(door, name) for name in door.__all__)


# ---------------------------------------------------------------------- Collector


@pytest.mark.parametrize("given", [{}, {"backend": "direct"}, {"backend": "direct", "num_collectors": 1}])
@pytest.mark.parametrize("env", [FACTORY, [FACTORY]])
def test_a_collector_in_this_process(env: Any, given: dict[str, Any]) -> None:
    collector = Collector(env, Const(), frames_per_batch=3, total_frames=6, **given)
    assert isinstance(collector, SyncDataCollector)
    assert [batch.shape for batch in collector] == [(3,), (3,)]


@pytest.mark.parametrize(
    ("env", "given", "kind", "workers"),
    [
        (FACTORY, {"num_collectors": 2}, "MultiaSyncDataCollector", 2),
        (FACTORY, {"num_collectors": 2, "sync": True}, "MultiSyncDataCollector", 2),
        ([FACTORY] * 2, {"num_collectors": 2, "sync": False}, "MultiaSyncDataCollector", 2),
        ([FACTORY] * 2, {"backend": "process", "sync": True}, "MultiSyncDataCollector", 2),
        (FACTORY, {"backend": "process"}, "MultiaSyncDataCollector", 1),
        (FACTORY, {"backend": "process", "sync": True, "backend_options": {"cat_results": 0}}, "MultiSyncDataCollector", 1),
    ],
)
def test_collectors_with_workers(env: Any, given: dict[str, Any], kind: str, workers: int) -> None:
    with Collector(env, Const(), frames_per_batch=6, **given) as collector:
        assert (type(collector).__name__, collector.num_workers) == (kind, workers)
        assert collector.next().numel() == 6


@pytest.mark.processes
@pytest.mark.parametrize(("backend", "name"), [("distributed", "DistributedDataCollector"), ("rpc", "RPCDataCollector")])
def test_collectors_on_engines(backend: str, name: str) -> None:
    with Collector(FACTORY, Const(), frames_per_batch=6, backend=backend, num_collectors=1) as collector:
        assert type(collector).__name__ == name
        assert collector.next().numel() == 6


@pytest.mark.parametrize(
    ("env", "given", "message"),
    [
        (FACTORY, {"backend": "proces"}, r"backend: expected one of \['direct', 'process', .* Did you mean 'process'\?"),
        (FACTORY, {"backend": "direct", "num_collectors": 2}, 'backend="direct" has one collector, in this process'),
        (FACTORY, {"sync": True}, 'backend="direct" has one collector, in this process'),
        (FACTORY, {"backend_options": {"cat_results": 0}}, 'backend="direct" has one collector, in this process'),
        ([FACTORY] * 2, {}, "a collector in this process has one env, got a list of 2"),
        ([FACTORY] * 2, {"num_collectors": 3}, "num_workers=3 and 2 entries in create_env_fn"),
        (FACTORY, {"num_collectors": 0}, "num_workers: expected a positive number of workers, got 0"),
        (
            FACTORY,
            {"num_collectors": 1, "total_frames": 6, "backend_options": {"total_frames": 6}},
            r"backend_options: \['total_frames'\] are given as options too",
        ),
    ],
)
def test_collectors_that_cannot_be_chosen(env: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Collector(env, Const(), frames_per_batch=6, **given)


class Own(Collector):
    """A class of a user."""


def test_a_derived_class_collects_in_this_process() -> None:
    collector = Own(FACTORY, Const(), frames_per_batch=3)
    assert type(collector) is Own
    assert collector.next().shape == (3,)
    with pytest.raises(OptionError, match="Own is derived from Collector and collects in this process"):
        Own(FACTORY, Const(), frames_per_batch=3, num_collectors=2)


# ---------------------------------------------------------------------- MultiCollector


@pytest.mark.parametrize(("sync", "kind"), [(True, "MultiSyncDataCollector"), (False, "MultiaSyncDataCollector")])
def test_multi_collector(sync: bool, kind: str) -> None:
    with MultiCollector([FACTORY] * 2, Const(), sync=sync, frames_per_batch=6) as collector:
        assert type(collector).__name__ == kind
        assert isinstance(collector, MultiCollector)
        assert collector.next().numel() == 6
    assert issubclass(MultiSyncDataCollector, MultiCollector)
    assert not issubclass(SyncDataCollector, MultiCollector)


def test_multi_collector_has_to_be_told() -> None:
    with pytest.raises(OptionError, match="MultiCollector: expected sync=True or sync=False"):
        MultiCollector([FACTORY], Const(), frames_per_batch=6)


def test_schemes_say_whether_they_send() -> None:
    assert not NoWeightSyncScheme.sends
