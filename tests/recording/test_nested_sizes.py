"""Nested TensorDicts have batch sizes of their own, wherever data go."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torchrl.data import NonTensor as NonTensorOfTorchRL
from torchrl.data import Unbounded as UnboundedOfTorchRL

from reap import SerialEnv, SyncDataCollector, split_trajectories
from reap.data import LazyMemmapStorage, LazyTensorStorage, ListStorage, MultiStep, TensorDictReplayBuffer
from reap.envs import EnvBase
from reap.envs.adapters.torchrl import TorchRLEnv
from reap.errors import OptionError, SpecMismatch
from reap.keys import nested
from reap.recording.layout import OBJECT, Field, field_of, sizes_of
from reap.specs import Bounded, Composite, NonTensor, Unbounded
from reap.tensordicts import make_tensordict, sizes_in
from tests.envs.agents import Team

Sizes = dict[Any, tuple[int, ...]]


def sizes(data: Any) -> Sizes:
    """Batch sizes of the TensorDicts nested in one."""
    found = data.items(include_nested=True)
    return {key: tuple(value.batch_size) for key, value in found if isinstance(value, TensorDictBase)}


def expected(*batch: int, extra: bool = True) -> Sizes:
    """Those of a batch of `Team` with the policy `act`."""
    group = (*batch, Team.n)
    found: Sizes = {"agents": group, "collector": batch, "next": batch, ("next", "agents"): group}
    return {**found, ("agents", "more"): group} if extra else found


def act(tensordict: TensorDictBase) -> TensorDictBase:
    assert tensordict["agents"].batch_size == (*tensordict.batch_size, Team.n)
    action = torch.zeros(*tensordict["agents"].batch_size, 1)
    tensordict["agents", "action"] = action
    tensordict["agents", "more", "values"] = action.clone()
    return tensordict


def batch_of(batch_size: tuple[int, ...] = (), **options: Any) -> TensorDictBase:
    env = Team(batch_size)
    with SyncDataCollector(env, act, frames_per_batch=16, total_frames=32, **options) as collector:
        collector.next()
        batch = collector.next()
    assert set(env.seen) == {torch.Size((*batch_size, Team.n))}
    return batch


# ---------------------------------------------------------------------- fields


def test_a_field_says_how_many_dimensions_are_those_of_the_tensordicts_around_it() -> None:
    inner = Composite(value=Unbounded((4, 3, 2, 5)), shape=(4, 3, 2))
    spec = Composite(agents=Composite(inner=inner, reward=Unbounded((4, 3, 1)), shape=(4, 3)), shape=(4,))
    fields = {key: field_of(spec, key, 1) for key, _ in spec.leaves()}
    assert fields["agents", "inner", "value"].batch_dims == (2, 1)
    assert fields["agents", "reward"].batch_dims == (1,)
    assert sizes_of(fields) == {("agents",): (3,), ("agents", "inner"): (3, 2)}
    assert sizes_of({key: field.lead(7, 9) for key, field in fields.items()}, 2) == sizes_of(fields)


def test_a_flat_layout_has_no_sizes() -> None:
    assert sizes_of({("a",): Field((3,), torch.float32), ("b", "c"): Field((3,), torch.float32)}) == {}


def test_values_that_say_nothing_take_over_the_size_of_their_neighbours() -> None:
    reward = Field((3, 1), torch.float32, batch_dims=(1,))
    assert sizes_of({("agents", "a", "b"): Field((3,), torch.float32), ("agents", "reward"): reward}) == {
        ("agents",): (3,),
        ("agents", "a"): (3,),
    }


@pytest.mark.parametrize("other", [OBJECT, Field((2, 1), torch.float32), Field((), torch.float32)])
def test_a_tensordict_has_the_dimensions_that_its_values_have_in_common(other: Field) -> None:
    reward = Field((3, 1), torch.float32, batch_dims=(1,))
    assert sizes_of({("agents", "reward"): reward, ("agents", "other"): other}) == {}


def test_tensordicts_are_made_with_their_sizes_and_names() -> None:
    value = torch.zeros(4, 3, 2)
    made = make_tensordict(nested({("a", "x"): value, ("b", "y"): value}, {("a",): (3,)}), torch.Size([4]), names=["time"])
    assert sizes(made) == {"a": (4, 3), "b": (4,)}
    assert (made["a"].names, made["b"].names) == (["time", None], ["time"])
    assert sizes_in(made, 1) == {("a",): (3,)}


# ---------------------------------------------------------------------- batches


@pytest.mark.parametrize("batch_size", [(), (2,), (2, 2)])
def test_batches(batch_size: tuple[int, ...]) -> None:
    columns = 16 // torch.Size(batch_size).numel()
    batch = batch_of(batch_size)
    assert sizes(batch) == expected(*batch_size, columns)
    assert batch["agents"].names == [*[None] * len(batch_size), "time", None]
    assert sizes(batch.reshape(-1)) == expected(16)
    assert sizes(pickle.loads(pickle.dumps(batch))) == expected(*batch_size, columns)


@pytest.mark.parametrize(
    "options",
    [
        {"return_same_td": True},
        {"split_trajs": True},
        {"trajs_per_batch": 4},
        {"storing_device": "cpu"},
        {"reset_at_each_iter": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_batches_by_option(options: dict[str, Any]) -> None:
    is_split = "split_trajs" in options or "trajs_per_batch" in options
    assert sizes(batch_of(**options)) == (expected(4, 4) if is_split else expected(16))


def test_random_actions_and_large_values() -> None:
    with SyncDataCollector(Team((2,)), None, frames_per_batch=8) as collector:
        assert sizes(collector.next()) == expected(2, 4, extra=False)


def test_modules_are_given_the_group() -> None:
    from tensordict.nn import TensorDictModule

    class OfGroup(nn.Module):
        def forward(self, group: TensorDictBase) -> torch.Tensor:
            assert group.batch_size == (Team.n,)
            return group["observation"][..., :1] * 0

    module = TensorDictModule(OfGroup(), in_keys=["agents"], out_keys=[("agents", "action")])
    with SyncDataCollector(Team(), module, frames_per_batch=8) as collector:
        assert collector.next()["agents"].batch_size == (8, Team.n)


def test_an_output_that_lacks_the_dimensions_of_its_group() -> None:
    def misplaced(observation: torch.Tensor, state: torch.Tensor) -> dict[Any, torch.Tensor]:
        return {("agents", "action"): observation[..., :1], ("agents", "value"): state}

    with pytest.raises(SpecMismatch, match=r"'value'.*goes on with \(3,\).*found \(1,\); give it a key outside of 'agents'"):
        SyncDataCollector(Team(), misplaced, frames_per_batch=8)


def test_postprocs_keep_them() -> None:
    batch = batch_of((2,))
    assert sizes(MultiStep(0.9, 2)(batch)) == expected(2, 8)
    assert sizes(split_trajectories(batch)) == expected(4, 4)
    jagged = split_trajectories(batch, as_nested=True)
    assert jagged["agents"].batch_size == (4, -1, Team.n)


def test_states_of_collectors_keep_them() -> None:
    with SyncDataCollector(Team(), act, frames_per_batch=10, trajs_per_batch=1) as collector:
        collector.next()
        state = collector.state_dict()
    with SyncDataCollector(Team(), act, frames_per_batch=10, trajs_per_batch=1) as other:
        other.load_state_dict(state)
        assert sizes(other.next()) == expected(1, 4)


# ---------------------------------------------------------------------- envs


def test_the_results_of_envs() -> None:
    for env, batch in ((TorchRLEnv(Team()), ()), (TorchRLEnv(Team((2,))), (2,)), (SerialEnv(2, Team), (2,))):
        group = (*batch, Team.n)
        assert sizes(env.reset()) == {"agents": group}
        assert sizes(env.rand_step(env.reset())) == {"agents": group, "next": batch, ("next", "agents"): group}
        steps = env.rollout(3)
        assert steps["agents"].batch_size == steps["next", "agents"].batch_size == (*batch, 3, Team.n)


class Steered(EnvBase):
    """An env of TensorDicts whose group holds actions alone."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((2,)))
        self.action_spec = Composite(agents=Composite(action=Bounded(-1, 1, (3, 1)), shape=(3,)))
        self.seen: set[torch.Size] = set()

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return TensorDict({"observation": torch.zeros(2)})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.seen.add(tensordict["agents"].batch_size)
        return TensorDict({"observation": torch.zeros(2), "reward": torch.zeros(1), "terminated": torch.zeros(1).bool()})

    def _set_seed(self, seed: int) -> None:
        pass


def test_an_env_is_given_actions_in_a_group_of_their_own() -> None:
    env = Steered()
    with SyncDataCollector(env, None, frames_per_batch=4) as collector:
        batch = collector.next()
    assert env.seen == {torch.Size([3])}
    assert batch["agents"].batch_size == (4, 3)


def test_specs_make_them() -> None:
    spec = TorchRLEnv(Team((2,))).observation_spec
    assert spec["agents"].shape == (2, 3)
    assert sizes(spec.rand()) == sizes(spec.zero()) == {"agents": (2, 3)}
    assert sizes(spec.expand(4, 2).rand()) == {"agents": (4, 2, 3)}
    assert Composite(agents=Composite(name=NonTensor((2,)), shape=(2,))).rand()["agents"].batch_size == (2,)


class Named(Team):
    """A team whose agents have names."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec["agents", "name"] = NonTensorOfTorchRL((self.n,))


def test_an_object_for_each_agent_is_refused() -> None:
    with pytest.raises(OptionError, match=r"observations \[\('agents', 'name'\)\] are objects for each agent of a group"):
        TorchRLEnv(Named())


class Ragged(Team):
    """A team whose agents have words, which change their number."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec["agents", "words"] = UnboundedOfTorchRL((self.n, -1))

    def _observed(self) -> TensorDictBase:
        result = super()._observed()
        result["agents", "words"] = torch.zeros(self.n, 1 + int(self.steps))
        return result


def test_values_whose_shape_changes_are_objects_of_the_whole_group() -> None:
    with SyncDataCollector(Ragged(), None, frames_per_batch=3) as collector:
        batch = collector.next()
    assert [tuple(words.shape) for words in batch["agents", "words"]] == [(3, 1), (3, 2), (3, 3)]
    assert batch["agents"].batch_size == (3,)  # what an object and the agents' tensors have in common


# ---------------------------------------------------------------------- buffers


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_buffers_and_their_saves(storage: Any, tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(storage=storage(32), batch_size=6)
    buffer.extend(batch_of())
    assert sizes(buffer.sample()) == expected(6)
    assert sizes(buffer[:]) == expected(16)
    assert sizes(buffer[3]) == expected()
    assert sizes(buffer[2:4]) == expected(2)
    buffer.dumps(tmp_path / "saved")
    other = TensorDictReplayBuffer(storage=storage(32), batch_size=6)
    other.loads(tmp_path / "saved")
    assert sizes(other[:]) == expected(16)
    if storage is not ListStorage:
        assert sizes(TensorDict.load_memmap(tmp_path / "saved")) == expected(16)
    third = TensorDictReplayBuffer(storage=storage(32), batch_size=6)
    third.load_state_dict(buffer.state_dict())
    assert sizes(third.sample()) == expected(6)


def test_items_with_batch_dimensions_of_their_own() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=3)
    buffer.extend(split_trajectories(batch_of()))
    assert sizes(buffer.sample()) == expected(3, 4)


def test_a_buffer_of_rows() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(32, ndim=2), batch_size=4)
    buffer.extend(batch_of((2,)))
    assert sizes(buffer[:]) == expected(2, 8)
    assert sizes(buffer.sample()) == expected(4)


def test_data_without_sizes_go_into_a_buffer_of_groups() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(32), batch_size=4)
    buffer.extend(batch_of())
    flat = batch_of()
    for key in ("agents", ("next", "agents"), ("agents", "more")):
        flat[key].batch_size = flat.batch_size
    buffer.extend(flat)
    assert sizes(buffer[:]) == expected(32)
