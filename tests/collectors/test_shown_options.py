"""Signature, documentation and read access of collectors, made of the fields of their options."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import Any

import pytest

import reap.collectors.distributed
from reap import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector, aSyncDataCollector
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.multi import WorkerOptions

TAKES: dict[Any, tuple[type, ...]] = {
    SyncDataCollector: (CollectorOptions,),
    MultiSyncDataCollector: (CollectorOptions, WorkerOptions),
    MultiaSyncDataCollector: (CollectorOptions, WorkerOptions),
    aSyncDataCollector: (CollectorOptions, WorkerOptions),
}
EVERY = [
    getattr(collectors, name)
    for collectors in (reap.collectors, reap.collectors.distributed)
    for name in collectors.__all__
    if name.endswith("Collector") and not name.endswith(("BaseCollector", "CollectorBase"))
]
"""All public names of collectors but those of the base class, which is not built."""


@pytest.mark.parametrize("kind", TAKES)
def test_the_signature_has_every_option_with_its_default(kind: Any) -> None:
    options = [option for taken in TAKES[kind] for option in fields(taken)]
    parameters = inspect.signature(kind).parameters
    assert list(parameters) == ["create_env_fn", "policy", *(option.name for option in options)]
    for option in options:
        found = parameters[option.name]
        assert found.kind is found.KEYWORD_ONLY
        assert found.default == (inspect.Parameter.empty if option.default is MISSING else option.default)


@pytest.mark.parametrize("kind", TAKES)
def test_the_documentation_names_every_option(kind: Any) -> None:
    for taken in TAKES[kind]:
        for option in fields(taken):
            assert f"\n    {option.name}: " in kind.__doc__, option.name


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
def test_every_argument_is_shown_with_its_documentation(kind: Any) -> None:
    arguments = inspect.signature(kind).parameters.values()
    assert {option.name for option in fields(CollectorOptions)} < {one.name for one in arguments}
    assert all(one.kind not in {one.VAR_KEYWORD, one.VAR_POSITIONAL} for one in arguments)
    lines = [line.strip() for line in (kind.__doc__ or "").splitlines()]
    assert not [one.name for one in arguments if not any(line.startswith(f"{one.name}: ") for line in lines)]


@pytest.mark.parametrize("kind", TAKES)
def test_every_option_can_be_read_from_the_class(kind: Any) -> None:
    for taken in TAKES[kind]:
        assert {option.name for option in fields(taken)} <= set(dir(kind))


def test_options_are_read_from_a_collector() -> None:
    with SyncDataCollector("CartPole-v1", frames_per_batch=20, max_frames_per_traj=7, split_trajs=True) as collector:
        assert (collector.max_frames_per_traj, collector.split_trajs, collector.postproc) == (7, True, None)
        with pytest.raises(AttributeError, match="split_trajs: an option of a SyncDataCollector is chosen when it is built"):
            collector.split_trajs = False
    with MultiSyncDataCollector(["CartPole-v1"], frames_per_batch=20, cat_results=0) as collector:
        assert (collector.cat_results, collector.on_worker_failure, collector.reset_when_done) == (0, "raise", True)
