"""What programs ask of a collector: its env, its policy, its weights and its buffer, by torchrl's names."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector, WeightUpdaterBase
from reap.data import LazyTensorStorage, ReplayBuffer
from reap.envs import GymEnv, SerialEnv
from reap.errors import CallOrderError, ClosedError, OptionError, SpecMismatch
from reap.testing import Const, Count
from reap.weight_update import MultiProcessWeightSyncScheme, NoWeightSyncScheme, SharedMemWeightSyncScheme

CLASSES: dict[str, Callable[..., Any]] = {
    "Sync": lambda policy=None, **options: SyncDataCollector(partial(Count, 9), policy, frames_per_batch=4, **options),
    "MultiSync": lambda policy=None, **options: MultiSyncDataCollector(
        [partial(Count, 9)] * 2, policy, frames_per_batch=8, **options
    ),
}
each_class = pytest.mark.parametrize("kind", CLASSES)


@contextmanager
def collecting(kind: str, policy: Any = None, **options: Any) -> Generator[Any]:
    with CLASSES[kind](policy, **options) as collector:
        yield collector


def actions(collector: Any) -> list[float]:
    """The action of each worker's first frame."""
    batch = collector.next()["action"].reshape(collector.num_workers, -1)
    return batch[:, 0].tolist()


# ---------------------------------------------------------------------- weights


FORMS: dict[str, Callable[[nn.Module], dict[str, Any]]] = {
    "positional": lambda policy: {"policy_or_weights": policy},
    "policy": lambda policy: {"policy": policy},
    "weights": lambda policy: {"weights": TensorDict.from_module(policy)},
    "state dict": lambda policy: {"weights": policy.state_dict()},
    "dict": lambda policy: {"weights_dict": {"policy": TensorDict.from_module(policy)}},
    "model": lambda policy: {"policy": policy, "model_id": "policy"},
}


@each_class
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_new_weights(kind: str, form: str) -> None:
    with collecting(kind, Const(1.0)) as collector:
        collector.update_policy_weights_(**FORMS[form](Const(2.0)))
        assert actions(collector) == [2.0] * collector.num_workers
        assert (collector.policy_version, collector.get_policy_version()) == (1, 1)


def test_weights_by_worker() -> None:
    with collecting("MultiSync", Const(1.0)) as collector:
        collector.update_policy_weights_({0: TensorDict.from_module(Const(2.0)), 1: Const(3.0)})
        assert actions(collector) == [2.0, 3.0]
        collector.update_policy_weights_(policy=Const(4.0), worker_ids=1)
        assert actions(collector) == [2.0, 4.0]
        with pytest.raises(OptionError, match="worker_ids: weights by worker were given"):
            collector.update_policy_weights_({0: Const(2.0)}, worker_ids=[0])
        with pytest.raises(OptionError, match=r"worker_ids: expected some of \[0, 1\], got \[2\]"):
            collector.update_policy_weights_({2: Const(2.0)})


@each_class
def test_workers_that_do_not_exist_are_refused_where_no_weights_are_sent(kind: str) -> None:
    with collecting(kind) as collector:
        collector.update_policy_weights_(worker_ids=collector.num_workers - 1)
        with pytest.raises(OptionError, match=r"worker_ids: expected some of \[0.*\], got \[7\]"):
            collector.update_policy_weights_(worker_ids=[0, 7])
        assert collector.policy_version == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policy": 1, "weights": 2}, "policy and weights: expected one of them, got both"),
        ({"policy_or_weights": 1, "policy": 2}, "policy_or_weights and policy: expected one of them, got both"),
        ({"weights_dict": {}, "model_id": "policy"}, "weights_dict: it holds weights by model; expected neither"),
        ({"weights_dict": {}, "weights": 1}, "weights_dict: it holds weights by model; expected neither"),
        ({"model_id": "value"}, r"model_id: expected one of \['policy'\], the models of weight_sync_schemes, got 'value'"),
        ({"weights_dict": {"value": 1}}, r"model_id: expected one of \['policy'\]"),
    ],
)
def test_weights_that_are_refused(given: dict[str, Any], message: str) -> None:
    collector = CLASSES["Sync"](Const(1.0))
    with pytest.raises(OptionError, match=message):
        collector.update_policy_weights_(**given)
    assert collector.policy_version == 0


@each_class
def test_received_weights(kind: str) -> None:
    policy = Const(1.0)
    with collecting(kind, policy) as collector:
        collector.receive_weights()
        assert collector.policy_version == 0
        collector.receive_weights(policy=Const(2.0))
        assert policy.w.item() == 2.0
        assert actions(collector) == [2.0] * collector.num_workers
        collector.receive_weights(weights=TensorDict.from_module(Const(3.0)))
        assert actions(collector) == [3.0] * collector.num_workers
        assert collector.policy_version == 2
        with pytest.raises(OptionError, match="policy and weights: expected one of them"):
            collector.receive_weights(policy=policy, weights={})


@each_class
@pytest.mark.parametrize("scheme", [SharedMemWeightSyncScheme, MultiProcessWeightSyncScheme])
@pytest.mark.parametrize("by_option", [True, False])
def test_a_scheme_that_receives(kind: str, scheme: Any, by_option: bool) -> None:
    sender, source = scheme(), Const(5.0)
    sender.init_on_sender(model=source)
    receiver = scheme()
    receiver.__setstate__(sender.__getstate__())
    receiver.attach([*map(duplicate, sender.descriptors(0))], 0)
    sender.connect()
    options = {"weight_recv_schemes": {"policy": receiver}, "worker_idx": 0} if by_option else {}
    with collecting(kind, Const(1.0), **options) as collector:
        if not by_option:
            collector.worker_idx = 0
            collector.register_scheme_receiver({"policy": receiver})
        assert (collector.worker_idx, actions(collector)) == (0, [5.0] * collector.num_workers)
        collector.receive_weights()
        assert collector.policy_version == 1, "there was nothing newer"
        sender.send_async(Const(6.0))
        collector.receive_weights()
        assert (actions(collector), collector.policy_version) == ([6.0] * collector.num_workers, 2)
        with pytest.raises(OptionError, match="receive_weights: expected no weights"):
            collector.receive_weights(Const(7.0))
    receiver.shutdown()
    sender.shutdown()


def duplicate(fd: int) -> int:
    import os

    return os.dup(fd)


@each_class
def test_versions(kind: str) -> None:
    with collecting(kind, Const(1.0)) as collector:
        collector.increment_version()
        assert collector.get_policy_version() == 1
        assert collector.next() is not None


class Noting(WeightUpdaterBase):
    """Sends nothing; notes what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def init(self, *args: Any, **kwargs: Any) -> None:
        self.told.append((args, kwargs))

    def _get_server_weights(self) -> Any:
        return "own"

    def _sync_weights_with_worker(self, *, worker_id: Any, server_weights: Any) -> None:
        self.told.append((worker_id, server_weights))


@each_class
@pytest.mark.parametrize("form", [Noting, Noting()])
def test_another_updater(kind: str, form: Any) -> None:
    with collecting(kind, Const(1.0)) as collector:
        before = collector.weight_updater
        collector.weight_updater = form
        updater = collector.weight_updater
        updater.told.clear()
        assert updater.collector is collector
        collector.update_policy_weights_()
        collector.init_updater(1, name=2)
        updater("given")
        assert updater.told == [(0, "own"), ((1,), {"name": 2}), (0, "given")]
        assert collector.policy_version == 1
        collector.weight_updater = None
        assert type(collector.weight_updater) is type(before)
        collector.update_policy_weights_(Const(2.0))
        assert actions(collector) == [2.0] * collector.num_workers
        with pytest.raises(OptionError, match="weight_updater: expected a WeightUpdaterBase"):
            collector.weight_updater = 3


def test_an_updater_is_not_set_in_the_background() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    collector = SyncDataCollector(partial(Count, 9), Const(), frames_per_batch=4, replay_buffer=buffer)
    collector.start()
    with pytest.raises(CallOrderError):
        collector.weight_updater = Noting
    collector.async_shutdown()


def test_init_updater_without_an_updater() -> None:
    with collecting("Sync") as collector:
        collector.init_updater(3)


# ---------------------------------------------------------------------- a policy, and factories of what acts


@pytest.mark.parametrize("kind", [MultiSyncDataCollector, MultiaSyncDataCollector])
def test_weights_come_from_the_policy_and_factories_make_what_acts(kind: Any) -> None:
    source = Const(4.0)
    with kind(
        [partial(Count, 9)] * 2,
        source,
        policy_factory=[partial(Const, 1.0), partial(Const, 2.0)],
        weight_sync_schemes={"policy": SharedMemWeightSyncScheme},
        frames_per_batch=8,
    ) as collector:
        assert (collector.policy, collector.get_model("policy")) == (source, source)
        assert set(collector.next()["action"].flatten().tolist()) == {4.0}, "they begin with its weights"
        source.w.data.fill_(5.0)
        collector.update_policy_weights_()
        assert 5.0 in {action for _ in range(4) for action in collector.next()["action"].flatten().tolist()}


def test_both_without_a_scheme() -> None:
    with pytest.raises(
        OptionError, match="policy and policy_factory: expected one of them, got both; with weight_sync_schemes"
    ):
        MultiSyncDataCollector([partial(Count, 9)], Const(), policy_factory=Const, frames_per_batch=4)


# ---------------------------------------------------------------------- other models than the policy


class WithModel(gym.Wrapper[Any, Any, Any, Any]):
    """An env whose observation is what a model of its own says."""

    def __init__(self) -> None:
        super().__init__(Count(9))
        self.models = [Const(1.0)]

    def step(self, action: Any) -> Any:
        _, *others = self.env.step(action)
        return self.models[0].w.detach().numpy().copy(), *others


PATH = "env.models[0]"


def with_model(kind: str, scheme: Any = SharedMemWeightSyncScheme) -> Any:
    schemes = {"policy": SharedMemWeightSyncScheme(), PATH: scheme}
    if kind == "Sync":
        return SyncDataCollector(WithModel, Const(1.0), frames_per_batch=4, weight_sync_schemes=schemes)
    return MultiSyncDataCollector([WithModel] * 2, Const(1.0), frames_per_batch=8, weight_sync_schemes=schemes)


@each_class
def test_models_in_the_env(kind: str) -> None:
    with with_model(kind) as collector:
        collector.update_policy_weights_(weights_dict={"policy": Const(2.0), PATH: TensorDict.from_module(Const(3.0))})
        batch = collector.next()
        assert (batch["action"] == 2.0).all()
        assert (batch["next", "observation"] == 3.0).all()
        assert collector.policy_version == 1, "of the policy"
        collector.update_policy_weights_(policy=Const(4.0), model_id=PATH)
        assert (collector.next()["next", "observation"] == 4.0).all()
        with pytest.raises(OptionError, match="expected a module or weights, got None: only the policy's are known here"):
            collector.update_policy_weights_(model_id=PATH)
        with pytest.raises(SpecMismatch):
            collector.update_policy_weights_({"other": torch.zeros(1)}, model_id=PATH)


def test_models_of_some_workers() -> None:
    with with_model("MultiSync") as collector:
        collector.update_policy_weights_(Const(3.0), model_id=PATH, worker_ids=[1])
        assert collector.next()["next", "observation"][..., 0].tolist() == [[1.0] * 4, [3.0] * 4]


def test_models_that_are_not_sent() -> None:
    with with_model("Sync", NoWeightSyncScheme) as collector:
        collector.update_policy_weights_(Const(3.0), model_id=PATH)
        assert (collector.next()["next", "observation"] == 1.0).all()


@each_class
def test_models_that_are_not_there(kind: str) -> None:
    with (
        collecting(kind, Const(1.0), weight_sync_schemes={"env.nothing": SharedMemWeightSyncScheme()}) as collector,
        pytest.raises(OptionError, match=r"'env\.nothing': found nothing there"),
    ):
        collector.update_policy_weights_(Const(1.0), model_id="env.nothing")


def test_a_model_of_a_torchrl_env() -> None:
    envs = pytest.importorskip("torchrl.envs")
    env = envs.TransformedEnv(envs.GymEnv("CartPole-v1"), envs.Compose(envs.StepCounter()))
    env.transform[0].module = Const(1.0)
    path = "env.transform[0].module"
    collector = SyncDataCollector(env, frames_per_batch=4, weight_sync_schemes={path: SharedMemWeightSyncScheme()})
    collector.update_policy_weights_(Const(2.0), model_id=path)
    assert env.transform[0].module.w.item() == 2.0


# ---------------------------------------------------------------------- paths and attributes


def test_paths() -> None:
    policy = nn.Sequential(nn.Linear(1, 1), nn.Identity())
    collector = SyncDataCollector(partial(Count, 9), policy, frames_per_batch=4)
    assert collector.get_distant_attr("policy[0].weight") is policy[0].weight
    assert collector.cascade_execute("env.get_attribute", "steps") == 0
    assert collector.cascade_execute("frames_per_batch") == 4
    assert collector.get_model("policy") is policy
    assert collector.get_model("policy[0]") is policy[0]
    for path in ("policy[", "policy()", "1 + 1", ""):
        with pytest.raises(OptionError, match="expected a path of attributes and items"):
            collector.get_distant_attr(path)
    for path in ("nothing", "policy[7]", "policy.nothing"):
        with pytest.raises(OptionError, match="found nothing there"):
            collector.get_distant_attr(path)
    with pytest.raises(OptionError, match="expected a function for the arguments, found int"):
        collector.cascade_execute("frames_per_batch", 3)


def test_weights_in_this_process() -> None:
    policy = nn.Sequential(nn.Linear(1, 1))
    for collector in (SyncDataCollector(partial(Count, 9), policy, frames_per_batch=4),):
        found = collector.get_cached_weights("policy")
        assert found is not None
        assert found["0", "weight"].data_ptr() == policy[0].weight.data_ptr()
        assert collector.get_cached_weights("env") is None
    random = SyncDataCollector(partial(Count, 9), frames_per_batch=4)
    assert random.get_cached_weights("policy") is None
    with (
        MultiSyncDataCollector([partial(Count, 9)], policy_factory=Const, frames_per_batch=4) as several,
        pytest.raises(OptionError, match=r"get_model\('policy'\): none in this process"),
    ):
        several.get_model("policy")


def test_attributes_of_the_replay_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20))
    collector = SyncDataCollector(partial(Count, 9), frames_per_batch=4, replay_buffer=buffer)
    collector.next()
    assert collector.getattr_rb("write_count") == 4
    with pytest.raises(OptionError, match=r"getattr_rb\('write_count'\): this SyncDataCollector was built without"):
        SyncDataCollector(partial(Count, 9), frames_per_batch=4).getattr_rb("write_count")


def test_attributes_of_envs_of_reap() -> None:
    serial = partial(SerialEnv, 2, partial(Count, 9))
    with MultiSyncDataCollector([serial] * 2, frames_per_batch=8) as collector:
        assert collector.getattr_env("batch_size") == [torch.Size([2])] * 2
        assert collector.getattr_env("steps") == [[0, 0]] * 2, "which only the gymnasium envs have"
    assert SyncDataCollector(GymEnv("CartPole-v1"), frames_per_batch=4).getattr_env("batch_size") == torch.Size([])


def test_frames_of_a_worker() -> None:
    with MultiSyncDataCollector([partial(Count, 9)] * 2, frames_per_batch=[4, 6]) as collector:
        assert collector.frames_per_batch_worker() == 4
        assert [collector.frames_per_batch_worker(worker_idx=worker) for worker in range(2)] == [4, 6]


def test_numbers_and_switches_that_programs_read() -> None:
    plain = SyncDataCollector(partial(Count, 9), Const(), frames_per_batch=4)
    assert (plain.init_random_frames, plain.max_frames_per_traj) == (0, 0)
    assert (plain.compiled_policy, plain.cudagraphed_policy, plain.verbose, plain.trust_policy) == (False,) * 4
    assert (plain.worker_idx, plain.split_trajs, plain.reset_at_each_iter, plain.postproc) == (None, False, False, None)
    given = SyncDataCollector(partial(Count, 9), Const(), frames_per_batch=4, init_random_frames=8, max_frames_per_traj=3)
    assert (given.init_random_frames, given.max_frames_per_traj) == (8, 3)


# ---------------------------------------------------------------------- reset and shutdown


def test_reset_of_workers() -> None:
    with MultiSyncDataCollector([partial(SerialEnv, 2, partial(Count, 9))] * 2, frames_per_batch=8) as collector:
        collector.next()
        collector.reset(reset_idx=[False, True])
        assert collector.next()["observation"][..., 0].tolist() == [[[2, 3]] * 2, [[0, 1]] * 2]
        with pytest.raises(OptionError, match="reset_idx: expected one bool for each of 2 workers, got 4"):
            collector.reset(reset_idx=[True] * 4)
        with pytest.raises(OptionError, match="index and reset_idx: expected one of them, got both"):
            collector.reset([0], reset_idx=[True, False])


def test_reset_of_the_rows_of_a_single_worker() -> None:
    collector = SyncDataCollector(SerialEnv(2, partial(Count, 9)), frames_per_batch=4)
    collector.next()
    collector.reset(reset_idx=[False, True])
    assert collector.next()["observation"][..., 0].tolist() == [[2, 3], [0, 1]]


def test_options_of_an_envs_reset_are_refused() -> None:
    collector = SyncDataCollector(partial(Count, 9), frames_per_batch=4)
    with pytest.raises(OptionError, match=r"reset: expected no options, got \['seed'\]: envs are reset when the next batch"):
        collector.reset(seed=3)


class FailsToClose(gym.Wrapper[Any, Any, Any, Any]):
    """An env that cannot be closed."""

    def __init__(self) -> None:
        super().__init__(Count(9))

    def close(self) -> None:
        raise ConnectionError("gone")


def test_errors_of_a_shutdown() -> None:
    loud, quiet = (SyncDataCollector(FailsToClose, frames_per_batch=4) for _ in range(2))
    with pytest.raises(ConnectionError, match="gone"):
        loud.shutdown()
    quiet.shutdown(raise_on_error=False)
    assert quiet.closed
    with pytest.raises(ClosedError):
        quiet.next()
