"""Options: their defaults, what is refused and how, and the names of the first generation."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pytest
import torch
from tensordict.nn import InteractionType

from reap.collectors import MultiSyncDataCollector, SyncDataCollector
from reap.collectors.options.collector import SWITCHES, CollectorOptions, SyncOptions, make_options
from reap.collectors.options.generations import FIXED, RIVALS
from reap.envs import ExplorationType, GymEnv
from reap.errors import OptionError
from reap.testing import Count

OTHER_NAMES = {*RIVALS, *FIXED}
"""Names of options that are taken, and that are no options of their own."""
ENV = GymEnv(Count(5))
CPU = torch.device("cpu")


def options(**given: Any) -> CollectorOptions:
    return make_options({"frames_per_batch": 4, **given}, InteractionType)


def collector(**given: Any) -> SyncDataCollector:
    return SyncDataCollector(ENV, **{"frames_per_batch": 4, **given})


def test_typed_keywords_and_options_are_the_same_names() -> None:
    assert set(SyncOptions.__annotations__) - OTHER_NAMES == {field.name for field in fields(CollectorOptions)}


def test_every_option_is_described() -> None:
    assert CollectorOptions.__doc__ is not None
    for field in fields(CollectorOptions):
        assert f"\n    {field.name}: " in CollectorOptions.__doc__.replace("        ", "    ")


def test_defaults() -> None:
    found = {field.name: field.default for field in fields(CollectorOptions) if field.default is not MISSING}
    assert found == {
        "policy_factory": None,
        "total_frames": -1,
        "device": None,
        "policy_device": None,
        "env_device": None,
        "storing_device": None,
        "create_env_kwargs": None,
        "max_frames_per_traj": None,
        "init_random_frames": None,
        "reset_at_each_iter": False,
        "reset_when_done": True,
        "postproc": None,
        "split_trajs": False,
        "exploration_type": None,
        "check": "types",
        "return_same_td": False,
        "set_truncated": False,
        "use_buffers": None,
        "replay_buffer": None,
        "extend_buffer": True,
        "max_frames_ahead": None,
        "samples_per_frame": 1.0,
        "trust_policy": False,
        "compile_policy": False,
        "cudagraph_policy": False,
        "no_cuda_sync": False,
        "weight_updater": None,
        "weight_sync_schemes": None,
        "track_policy_version": False,
        "record_episodes": False,
        "interruptor": None,
        "trajs_per_batch": None,
        "traj_format": "padded",
        "max_pending_frames": 1_000_000,
        "pin_memory": False,
        "seed": None,
        "weight_recv_schemes": None,
        "worker_idx": None,
    }
    assert options().exploration_type is ExplorationType.RANDOM


@pytest.mark.parametrize("value", [0, -3])
def test_frames_per_batch_is_positive(value: int) -> None:
    with pytest.raises(OptionError, match=f"^frames_per_batch: expected a positive integer, got {value}$"):
        collector(frames_per_batch=value)


@pytest.mark.parametrize("value", [True, 2.5, None, "4", np.float32(4), [4]])
def test_frames_per_batch_is_an_integer(value: Any) -> None:
    with pytest.raises(OptionError) as caught:
        collector(frames_per_batch=value)
    assert str(caught.value) == f"frames_per_batch: expected a positive integer, got {value!r}"


def test_frames_per_batch_is_required() -> None:
    with pytest.raises(OptionError, match="^frames_per_batch is required: the number of frames of each delivered batch$"):
        SyncDataCollector(ENV)


@pytest.mark.parametrize("name", ["total_frames", "max_frames_per_traj", "init_random_frames"])
@pytest.mark.parametrize("value", [True, 1.5, float("inf"), "8", [8]])
def test_numbers_are_integers_or_none(name: str, value: Any) -> None:
    with pytest.raises(OptionError) as caught:
        collector(**{name: value})
    assert str(caught.value) == f"{name}: expected an integer or None, got {value!r}"


def test_integers_of_other_kinds_are_integers() -> None:
    found = options(frames_per_batch=np.int64(8), total_frames=torch.tensor(16), max_frames_per_traj=np.uint8(3))
    numbers = (found.frames_per_batch, found.total_frames, found.max_frames_per_traj)
    assert numbers == (8, 16, 3)
    assert [type(number) for number in numbers] == [int, int, int]


@pytest.mark.parametrize("name", ["total_frames", "max_frames_per_traj", "init_random_frames"])
def test_floats_that_are_whole_are_integers(name: str) -> None:
    found = getattr(options(**{name: 2e6}), name)
    assert (found, type(found)) == (2_000_000, int)


def test_total_frames_of_zero_is_refused() -> None:
    with pytest.raises(OptionError, match="^total_frames: expected a positive number, or -1 for no end; got 0$"):
        collector(total_frames=0)


@pytest.mark.parametrize(("given", "budget"), [(-1, None), (None, None), (8, 8)])
def test_budget(given: int | None, budget: int | None) -> None:
    assert options(total_frames=given).budget == budget


@pytest.mark.parametrize(("given", "limit"), [(None, None), (0, None), (-1, None), (7, 7)])
def test_limit(given: int | None, limit: int | None) -> None:
    assert options(max_frames_per_traj=given).limit == limit


@pytest.mark.parametrize(("given", "frames"), [(None, 0), (0, 0), (-1, 0), (7, 7)])
def test_random_frames(given: int | None, frames: int) -> None:
    assert options(init_random_frames=given).random_frames == frames


@pytest.mark.parametrize("name", SWITCHES)
def test_switches_are_bools(name: str) -> None:
    with pytest.raises(OptionError) as caught:
        collector(**{name: 1})
    assert str(caught.value) == f"{name}: expected a bool, got 1"


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_that_is_none_has_its_default(name: str) -> None:
    assert getattr(options(**{name: None}), name) is getattr(options(), name)


def test_every_bool_option_is_a_switch() -> None:
    assert set(SWITCHES) == {field.name for field in fields(CollectorOptions) if field.type == "bool"}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("use_buffers", 1, "a bool or None"),
        ("postproc", 3, "a function"),
        ("policy_factory", 3, "a function"),
        ("compile_policy", "eager", "a bool or a dict of arguments"),
        ("compile_policy", 1, "a bool or a dict of arguments"),
        ("cudagraph_policy", 1, "a bool or a dict of arguments"),
        ("create_env_kwargs", [{}], "a dict"),
        ("create_env_kwargs", 3, "a dict"),
        ("exploration_type", "random", "an ExplorationType ['MODE', 'MEDIAN', 'MEAN', 'RANDOM', 'DETERMINISTIC']"),
        ("exploration_type", 3, "an ExplorationType ['MODE', 'MEDIAN', 'MEAN', 'RANDOM', 'DETERMINISTIC']"),
    ],
)
def test_values_of_a_wrong_type(name: str, value: Any, expected: str) -> None:
    with pytest.raises(OptionError) as caught:
        collector(**{name: value})
    assert str(caught.value) == f"{name}: expected {expected}, got {value!r}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("frame_per_batch", " Did you mean 'frames_per_batch'?"),
        ("total_frame", " Did you mean 'total_frames'?"),
        ("postprocess", " Did you mean 'postproc'?"),
        ("split_traj", " Did you mean 'split_trajs'?"),
        ("device_", " Did you mean 'device'?"),
        ("colour", ""),
    ],
)
def test_an_unknown_option_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        collector(**{name: 3})
    assert str(caught.value) == f"unknown option {name!r}.{hint}"


DEVICES = ("policy_device", "env_device", "storing_device")


def devices_of(found: CollectorOptions | SyncDataCollector) -> list[torch.device | None]:
    return [getattr(found, name) for name in DEVICES]


def test_device_fills_those_that_are_not_given() -> None:
    assert devices_of(options()) == [None, None, None]
    assert devices_of(options(device="cpu")) == [CPU, CPU, CPU]
    meta = torch.device("meta")
    for i, name in enumerate(DEVICES):
        expected = [meta if i == j else CPU for j in range(3)]
        assert devices_of(options(device="cpu", **{name: "meta"})) == expected


@pytest.mark.parametrize("name", ["device", *DEVICES])
def test_devices_that_are_none(name: str) -> None:
    for value in ("nope", 3.5):
        with pytest.raises(OptionError) as caught:
            collector(**{name: value})
        assert str(caught.value) == f"{name}: expected a device such as 'cpu' or 'cuda:0', got {value!r}"
    with pytest.raises(OptionError) as caught:
        collector(**{name: ["cpu", "cpu"]})
    assert str(caught.value) == (
        f"{name}: expected one device, got ['cpu', 'cpu']; a list belongs to collectors with several workers"
    )


@pytest.mark.parametrize("name", ["device", *DEVICES])
def test_cuda_without_cuda(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(OptionError) as caught:
        collector(**{name: "cuda"})
    assert str(caught.value) == f"{name}='cuda': torch finds no CUDA device here"


@pytest.mark.parametrize("name", ["device", *DEVICES])
def test_mps_without_mps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    expected = f"{name}='mps': torch finds no MPS device here"
    with pytest.raises(OptionError) as caught:
        collector(**{name: "mps"})
    assert str(caught.value) == expected
    with pytest.raises(OptionError) as caught:
        MultiSyncDataCollector(["CartPole-v1"] * 2, frames_per_batch=8, **{name: ["cpu", "mps"]})
    assert str(caught.value) == expected


def test_options_are_fixed() -> None:
    with pytest.raises(AttributeError):
        options().total_frames = 3  # pyright: ignore[reportAttributeAccessIssue]
