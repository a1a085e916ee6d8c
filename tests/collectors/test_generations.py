"""Names of options of older and newer programs: what they mean today, and how they are refused."""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from tensordict.nn import InteractionType

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector, aSyncDataCollector
from reap.collectors.options.collector import CollectorOptions, make_options
from reap.collectors.options.generations import FIXED, RIVALS
from reap.collectors.options.multi import WorkerOptions
from reap.envs import ExplorationType, GymEnv
from reap.errors import OptionError
from reap.testing import Const, Count

ignore_deprecation = pytest.mark.filterwarnings("ignore:option .* is deprecated:DeprecationWarning")

ENV = GymEnv(Count(5))
CPU, OTHER = torch.device("cpu"), torch.device("meta")
DEVICES = ("policy_device", "env_device", "storing_device")
FIRST = ("devices", "passing_devices", "passing_device", "storing_devices", "exploration_mode", "replay_buffer_chunk")


def options(**given: Any) -> CollectorOptions:
    return make_options({"frames_per_batch": 4, **given}, InteractionType)


def devices_of(found: CollectorOptions | SyncDataCollector) -> list[torch.device | None]:
    return [getattr(found, name) for name in DEVICES]


def deprecated(new: str, **given: Any) -> SyncDataCollector:
    """A collector of keywords of the first generation, after a look at the warning; its options are its attributes."""
    (old,) = given
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = SyncDataCollector(ENV, Const(), frames_per_batch=4, **given)
    assert [(warning.category, str(warning.message)) for warning in caught] == [
        (DeprecationWarning, f"option {old} is deprecated, use {new}")
    ]
    assert caught[0].filename == __file__, "the warning points at the line that builds the collector"
    return made


# ---------------------------------------------------------------------- devices


def test_devices_alone_are_for_compute_and_storage() -> None:
    found = deprecated("policy_device, env_device and storing_device", devices="cpu")
    assert devices_of(found) == [CPU, CPU, CPU]


@pytest.mark.parametrize("name", ["passing_devices", "passing_device"])
def test_passing_devices_are_for_env_and_data(name: str) -> None:
    assert devices_of(deprecated("env_device and storing_device", **{name: "cpu"})) == [None, CPU, CPU]


def test_storing_devices() -> None:
    assert devices_of(deprecated("storing_device", storing_devices="cpu")) == [None, None, CPU]


@ignore_deprecation
def test_devices_together() -> None:
    assert devices_of(options(devices="meta", passing_devices="cpu")) == [OTHER, CPU, CPU]
    assert devices_of(options(devices="meta", storing_devices="cpu")) == [OTHER, OTHER, CPU]
    assert devices_of(options(device="meta", passing_device="cpu")) == [OTHER, CPU, CPU], (
        "as the first SyncDataCollector has it"
    )


@ignore_deprecation
def test_devices_of_each_worker() -> None:
    with MultiSyncDataCollector(
        [partial(Count, 3)] * 2, Const(), frames_per_batch=6, devices=["cpu", "cpu"], passing_devices=["cpu", "cpu"]
    ) as collector:
        assert collector.next().device == CPU


# ---------------------------------------------------------------------- others of the first generation


@pytest.mark.parametrize("mode", ["random", "mode", "mean", "median", "deterministic"])
def test_exploration_mode(mode: str) -> None:
    assert deprecated("exploration_type", exploration_mode=mode).exploration_type is ExplorationType[mode.upper()]


@ignore_deprecation
def test_exploration_mode_that_is_none() -> None:
    with pytest.raises(OptionError) as caught:
        options(exploration_mode="greedy")
    names = ["deterministic", "mean", "median", "mode", "random"]
    assert str(caught.value) == f"exploration_mode: expected one of {names}, got 'greedy'"


@pytest.mark.parametrize("value", [True, False])
def test_replay_buffer_chunk_is_extend_buffer(value: bool) -> None:
    assert deprecated("extend_buffer", replay_buffer_chunk=value).extend_buffer is value


@ignore_deprecation
@pytest.mark.parametrize(
    "given", [{"devices": "cpu"}, {"passing_device": "cpu"}, {"exploration_mode": "mode"}, {"init_with_lag": False}]
)
def test_names_of_the_first_generation_bring_its_size_of_a_batch(given: dict[str, Any]) -> None:
    assert make_options(given, InteractionType).frames_per_batch == 200
    assert make_options({**given, "frames_per_batch": 8}, InteractionType).frames_per_batch == 8
    assert make_options({**given, "trajs_per_batch": 3}, InteractionType).frames_per_batch == 1_000


@pytest.mark.parametrize("given", [{}, {"seed": 3}, {"device": "cpu"}, dict.fromkeys(FIRST)])
def test_without_them_the_size_of_a_batch_is_required(given: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="^frames_per_batch is required"):
        make_options(given, InteractionType)


@pytest.mark.parametrize("kind", [SyncDataCollector, aSyncDataCollector, MultiSyncDataCollector, MultiaSyncDataCollector])
def test_total_frames_is_the_third_argument(kind: Any) -> None:
    envs = partial(Count, 3) if kind in {SyncDataCollector, aSyncDataCollector} else [partial(Count, 3)]
    with pytest.warns(DeprecationWarning, match="total_frames as the third argument is deprecated, use the keyword") as caught:
        collector = kind(envs, Const(), 400)
    with collector:
        assert caught[0].filename == __file__
        assert (collector.total_frames, collector.frames_per_batch) == (400, 200)
        assert sum(batch.numel() for batch in collector) == 400


@ignore_deprecation
def test_arguments_by_position_that_are_refused() -> None:
    with pytest.raises(OptionError, match=r"expected env, policy and total_frames by position, and keywords; got \(8,\) too"):
        SyncDataCollector(ENV, Const(), 400, 8)
    with pytest.raises(OptionError, match="total_frames: expected it once, got 400 by position and the keyword too"):
        SyncDataCollector(ENV, Const(), 400, total_frames=400)


def test_the_signature_shows_the_present_names() -> None:
    names = set(inspect.signature(SyncDataCollector).parameters)
    assert names.isdisjoint({*FIRST, "args"})


def test_seed_is_given_to_set_seed() -> None:
    by_option = SyncDataCollector("CartPole-v1", frames_per_batch=20, seed=3)
    by_call = SyncDataCollector("CartPole-v1", frames_per_batch=20)
    by_call.set_seed(3)
    assert (by_option.next() == by_call.next()).all()
    assert by_option.seed == 3
    with pytest.raises(OptionError, match="seed: expected an integer from 0"):
        SyncDataCollector("CartPole-v1", frames_per_batch=20, seed=-1)


@pytest.mark.parametrize("kind", [MultiSyncDataCollector, MultiaSyncDataCollector])
def test_seed_of_workers(kind: Any) -> None:
    def first_batches(**given: Any) -> list[Any]:
        with kind(["CartPole-v1"] * 2, frames_per_batch=10, total_frames=20, **given) as collector:
            if not given:
                collector.set_seed(3)
            return sorted(batch["observation"].flatten().tolist() for batch in collector)

    assert first_batches(seed=3) == first_batches()


@pytest.mark.skipif(torch.cuda.is_available(), reason="has CUDA")
def test_pinned_memory_without_cuda() -> None:
    with pytest.raises(OptionError, match="^pin_memory: memory is page-locked for CUDA devices, and torch finds none here"):
        SyncDataCollector(ENV, frames_per_batch=4, pin_memory=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="has no CUDA")
def test_pinned_memory() -> None:
    batch = SyncDataCollector(ENV, frames_per_batch=4, pin_memory=True).next()
    assert all(leaf.is_pinned() for leaf in batch.values(True, True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"storing_device": "meta"}, "expected batches in the host's memory, got storing_device=meta"),
        ({"replay_buffer": []}, "batches go to the replay buffer, which has an option pin_memory"),
    ],
)
def test_memory_that_is_not_pinned(given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(OptionError, match=message):
        SyncDataCollector(ENV, frames_per_batch=4, pin_memory=True, **given)


# ---------------------------------------------------------------------- generations that are mixed


@pytest.mark.parametrize(("old", "new"), [(old, new) for old, rivals in RIVALS.items() for new in rivals])
def test_names_of_two_generations_for_one_thing(old: str, new: str) -> None:
    values: dict[str, Any] = {"exploration_mode": "mode", "exploration_type": ExplorationType.MODE, "extend_buffer": True}
    given = {name: values.get(name, "cpu") for name in (old, new)}
    with pytest.raises(
        OptionError, match=f"^{old} and {new}: expected the names of one generation of options, got both; give "
    ):
        options(**given)


def test_what_to_give_instead() -> None:
    with pytest.raises(OptionError) as caught:
        MultiSyncDataCollector([Count], frames_per_batch=4, devices=["cpu"], policy_device="cpu")
    assert str(caught.value) == (
        "devices and policy_device: expected the names of one generation of options, got both; "
        "give policy_device, env_device and storing_device"
    )


def test_names_of_the_first_generation_that_are_none_do_nothing() -> None:
    assert options(**dict.fromkeys(FIRST), device="cpu", exploration_type=ExplorationType.MODE) == options(
        device="cpu", exploration_type=ExplorationType.MODE
    )


# ---------------------------------------------------------------------- options of torchrl that have one meaning here


@pytest.mark.parametrize("name", FIXED)
def test_options_of_one_meaning(name: str) -> None:
    meant, reason = FIXED[name]
    for value in (*meant, None):
        assert options(**{name: value}) == options()
    refused = False if meant == (True,) else True if meant == (False,) else 3
    with pytest.raises(OptionError) as caught:
        options(**{name: refused})
    assert str(caught.value).startswith(f"{name}: expected ")
    assert str(caught.value).endswith(f"got {refused!r}: {reason}")


NONE = dict.fromkeys(("compile_policy", "cudagraph_policy", "split_trajs", "reset_when_done", "trust_policy", "check"))


def test_none_is_the_default_of_what_cannot_be_none() -> None:
    switches = [field for field in CollectorOptions.__dataclass_fields__.values() if field.type == "bool"]
    given = {**NONE, **{field.name: None for field in switches}, "exploration_type": None, "traj_format": None}
    assert options(**given) == options()
    with MultiSyncDataCollector(
        [partial(Count, 3)], Const(), frames_per_batch=3, cat_results=None, update_at_each_batch=None, **NONE
    ) as collector:
        assert (collector.cat_results, collector.update_at_each_batch) == ("stack", False)
        assert collector.next().shape == (1, 3)


def test_none_that_means_something_stays() -> None:
    with MultiSyncDataCollector([partial(Count, 3)], frames_per_batch=3, num_sub_threads=None, stall_after=None) as collector:
        assert (collector.num_sub_threads, collector.stall_after) == (None, None)
    assert (WorkerOptions().num_sub_threads, WorkerOptions().stall_after) == (1, 60.0)


def test_a_number_of_workers_beside_as_many_envs() -> None:
    with MultiSyncDataCollector([partial(Count, 3)] * 2, Const(), num_workers=2, frames_per_batch=6) as collector:
        assert collector.num_workers == 2


def test_wrong_arguments_are_type_errors_too() -> None:
    with pytest.raises(TypeError, match="unknown option 'colour'"):
        SyncDataCollector(ENV, frames_per_batch=4, colour=3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(TypeError, match="policy and policy_factory"):
        SyncDataCollector(ENV, Const(), policy_factory=Const, frames_per_batch=4)
