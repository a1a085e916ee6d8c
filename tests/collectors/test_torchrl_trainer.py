"""torchrl's `Trainer` and its hooks with collectors of reap, and envs of torchrl in the workers' lists."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector
from reap.data import LazyTensorStorage, TensorDictReplayBuffer
from reap.errors import OptionError
from reap.weight_update import SharedMemWeightSyncScheme
from tests.neighbours import since_torchrl_013

envs = pytest.importorskip("torchrl.envs")
trainers = pytest.importorskip("torchrl.trainers")
data = pytest.importorskip("torchrl.data")
modules = pytest.importorskip("torchrl.modules")
objectives = pytest.importorskip("torchrl.objectives")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torchrl"),
    pytest.mark.filterwarnings("ignore::FutureWarning:torchrl"),
]
FRAMES = 120


def cartpole() -> Any:
    return envs.GymEnv("CartPole-v1")


CLASSES: dict[str, Callable[..., Any]] = {
    "Sync": lambda policy, **options: SyncDataCollector(cartpole(), policy, **options),
    "MultiSync": lambda policy, **options: MultiSyncDataCollector([cartpole] * 2, policy, cat_results=0, **options),
    "MultiaSync": lambda policy, **options: MultiaSyncDataCollector([cartpole] * 2, policy, **options),
}


def value_network() -> Any:
    torch.manual_seed(0)
    return modules.QValueActor(nn.Linear(4, 2), in_keys=["observation"], action_space="one-hot")


def trainer_of(collector: Any, policy: Any, path: Path, **options: Any) -> Any:
    loss = objectives.DQNLoss(policy, action_space="one-hot", delay_value=False)
    return trainers.Trainer(
        collector=collector,
        total_frames=FRAMES,
        frame_skip=1,
        loss_module=loss,
        optimizer=torch.optim.Adam(loss.parameters(), 1e-1),
        optim_steps_per_batch=2,
        progress_bar=False,
        save_trainer_file=str(path / "trainer.pt"),
        seed=1,
        **options,
    )


SOME = [pytest.param(kind, marks=[] if kind == "Sync" else pytest.mark.processes) for kind in CLASSES]
"""Workers import torchrl, which takes seconds."""


@pytest.mark.parametrize("kind", SOME)
def test_it_trains_and_sends_weights(kind: str, tmp_path: Path) -> None:
    policy = value_network()
    before = policy.state_dict()["module.0.module.weight"].clone()
    collector = CLASSES[kind](policy, frames_per_batch=30, total_frames=FRAMES, init_random_frames=30)
    trainer = trainer_of(collector, policy, tmp_path)
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(200), batch_size=16)
    trainers.ReplayBufferTrainer(buffer, flatten_tensordicts=True).register(trainer)
    trainers.UpdateWeights(collector, 1).register(trainer)
    trainers.CountFramesLog(1).register(trainer)
    trainer.train()
    assert (trainer.collected_frames, len(buffer), collector.stats().frames) == (FRAMES, FRAMES, FRAMES)
    assert (collector.policy_version, collector.closed) == (FRAMES // 30, True)
    assert not torch.equal(policy.state_dict()["module.0.module.weight"], before)


def test_reaps_buffer_in_a_trainer(tmp_path: Path) -> None:
    policy = value_network()
    collector = CLASSES["Sync"](policy, frames_per_batch=30, total_frames=FRAMES)
    trainer = trainer_of(collector, policy, tmp_path)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=16)
    trainers.ReplayBufferTrainer(buffer, flatten_tensordicts=True).register(trainer)
    trainer.train()
    assert len(buffer) == FRAMES


@since_torchrl_013
@pytest.mark.parametrize("kind", SOME[:2])
@pytest.mark.parametrize("scheme", [None, {"policy": SharedMemWeightSyncScheme}], ids=["default", "shared"])
def test_weights_by_a_map_of_models(kind: str, scheme: Any, tmp_path: Path) -> None:
    policy = value_network()
    collector = CLASSES[kind](policy, frames_per_batch=30, total_frames=FRAMES, weight_sync_schemes=scheme)
    trainer = trainer_of(collector, policy, tmp_path)
    trainers.UpdateWeights(collector, 1, weight_update_map={"policy": "collector.policy"}, trainer=trainer).register(trainer)
    trainer.train()
    assert collector.policy_version == FRAMES // 30


@since_torchrl_013
def test_it_samples_what_is_collected_in_the_background(tmp_path: Path) -> None:
    policy = value_network()
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(200), batch_size=16)
    updated, numbers = threading.Event(), itertools.count(1)

    def wait_for_an_update(batch: Any) -> Any:
        """Before the third batch is written."""
        assert next(numbers) != 3 or updated.wait(100)
        return batch

    options = {"replay_buffer": buffer, "postproc": wait_for_an_update}
    collector = CLASSES["Sync"](policy, frames_per_batch=30, total_frames=FRAMES, **options)
    trainer = trainer_of(collector, policy, tmp_path, async_collection=True)
    trainers.ReplayBufferTrainer(buffer, batch_size=16, flatten_tensordicts=True).register(trainer)
    trainers.UpdateWeights(collector, 1).register(trainer)
    trainer.register_op("post_steps", updated.set)
    trainer.train()
    assert (len(buffer), collector.closed) == (FRAMES, True)
    assert collector.policy_version > 0


def test_its_state_holds_the_collectors(tmp_path: Path) -> None:
    policy = value_network()
    collector = CLASSES["Sync"](policy, frames_per_batch=30, total_frames=FRAMES)
    trainer = trainer_of(collector, policy, tmp_path)
    collector.next()
    state = trainer.state_dict()
    other = CLASSES["Sync"](policy, frames_per_batch=30, total_frames=FRAMES)
    trainer_of(other, policy, tmp_path).load_state_dict(state)
    assert other.stats().frames == 30


# ---------------------------------------------------------------------- envs of torchrl in the lists of workers


@pytest.mark.processes
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("kind", [MultiSyncDataCollector, MultiaSyncDataCollector])
def test_instances_in_a_list(kind: Any, transformed: bool) -> None:
    made = [envs.TransformedEnv(cartpole(), envs.StepCounter()) if transformed else cartpole() for _ in range(2)]
    with kind(made, frames_per_batch=20, total_frames=40) as collector:
        batches = list(collector)
    assert sum(batch.numel() for batch in batches) == 40
    assert ("step_count" in batches[0]) is transformed
    assert not any(env.is_closed for env in made), "workers have copies"


@pytest.mark.processes
def test_one_instance_for_all_workers() -> None:
    env = cartpole()
    with MultiSyncDataCollector([env, env], frames_per_batch=20) as collector:
        collector.set_seed(0)
        first = collector.next()["observation"]
    assert not torch.equal(first[0], first[1])


class Unsent(envs.GymEnv):
    """An env that cannot be pickled."""

    def __reduce__(self) -> Any:
        raise pickle.PicklingError("this env has a window")


def test_an_instance_that_cannot_be_pickled() -> None:
    with pytest.raises(OptionError, match="create_env_fn"):
        MultiSyncDataCollector([Unsent("CartPole-v1")], frames_per_batch=20)
