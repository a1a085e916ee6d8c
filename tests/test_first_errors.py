"""What is told to those who use the library for the first time, and mix something up."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn

from reap import EnvBase, GymEnv, SerialEnv, SyncDataCollector, aSyncDataCollector, split_trajectories
from reap.errors import OptionError, SpecMismatch
from reap.specs import Composite, Unbounded
from reap.testing import Const, Count, IdRows

IDS = ["CartPole-v1", "CartPole-v1"]


def message(kind: type[Exception], call: Callable[[], Any]) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)


def collect(env: Any = "Pendulum-v1", policy: Any = None, **options: Any) -> Any:
    return SyncDataCollector(env, policy, **{"frames_per_batch": 12, **options}).next()


# ---------------------------------------------------------------------- envs


def test_a_list_of_envs() -> None:
    text = message(OptionError, lambda: collect(IDS))
    assert text == (
        f"create_env_fn: expected an env, a factory or a gymnasium id, got list: {IDS}; several envs are a SerialEnv(2, "
        "[...]), or in a process each a MultiSyncDataCollector([...], ...)"
    )


@pytest.mark.parametrize("second", ["CartPole-v1", lambda: GymEnv("CartPole-v1"), None])
def test_the_policy_in_place_of_the_env(second: Any) -> None:
    text = message(OptionError, lambda: collect(nn.Tanh(), second))
    assert text.endswith("got Tanh: Tanh(); that is a policy: the env comes first, then the policy. Are they swapped?")


@pytest.mark.parametrize("make", [GymEnv, lambda name, device: SerialEnv(2, name, device=device)])
def test_a_device_that_is_not_there(make: Any) -> None:
    assert message(OptionError, lambda: make("Pendulum-v1", device="mps")) == "device='mps': torch finds no MPS device here"
    assert make("Pendulum-v1", device="cpu").device == torch.device("cpu")


class Unfinished(EnvBase):
    """An env whose `__init__` forgets that of its base."""

    def __init__(self, **specs: Any) -> None:
        for name, spec in specs.items():
            setattr(self, name, spec)

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        return TensorDict({"observation": torch.zeros(1)})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return TensorDict({"observation": torch.zeros(1), "reward": torch.zeros(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _set_seed(self, seed: int) -> None:
        pass


UNFINISHED: dict[str, Callable[[], Any]] = {
    "a spec": lambda: Unfinished(observation_spec=Composite(observation=Unbounded((1,)))),
    "an action": lambda: Unfinished(action_spec=Unbounded((1,))),
    "a reset": lambda: Unfinished().reset(),
    "a collector": lambda: collect(Unfinished),
    "a batch of them": lambda: collect(SerialEnv(2, Unfinished)),
}


@pytest.mark.parametrize("what", UNFINISHED)
def test_an_env_that_forgets_the_init_of_its_base(what: str) -> None:
    text = message(AttributeError, UNFINISHED[what])
    assert "yet: Unfinished.__init__ has to call super().__init__() first, before it sets specs" in text


def test_other_attributes_that_are_missing_are_told_as_ever() -> None:
    class Faulty(IdRows):
        @property
        def fault(self) -> Any:
            return self.nothing_of_this_name

    env = Faulty()
    assert not hasattr(env, "anything")
    assert message(AttributeError, lambda: env.anything) == "'Faulty' object has no attribute 'anything'"
    assert message(AttributeError, lambda: env.fault) == "'Faulty' object has no attribute 'nothing_of_this_name'"


class Untold(Count):
    """An env whose info is None from a step on; 0: from the reset."""

    def __init__(self, start: int) -> None:
        super().__init__(5)
        self.first = start

    def reset(self, **options: Any) -> Any:
        return super().reset(**options)[0], {} if self.first else None

    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], None if self.steps >= self.first else {}


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("rows", [0, 2])
def test_info_keys_where_there_is_no_info(rows: int, start: int) -> None:
    def make() -> GymEnv:
        return GymEnv(Untold(start), info_keys=["bonus"])

    text = message(SpecMismatch, lambda: collect(SerialEnv(rows, make) if rows else make()))
    places = [*(["env 0 of 2"] if rows else []), *([f"column {start - 1}"] if start else [])]
    within = f" (in {', '.join(places)})" if places else ""
    assert text == (
        "info_keys: 'bonus' is looked for in the info of each reset and step: expected a dict, found NoneType: None; let the "
        f"env return {{}} where it has nothing to tell{within}"
    )
    assert collect(Untold(start)).numel() == 12


# ---------------------------------------------------------------------- policies


def test_a_policy_that_returns_a_tuple_of_tensors_and_others() -> None:
    text = message(SpecMismatch, lambda: collect(policy=lambda observation: (torch.zeros(1), {"value": 1})))
    assert text.endswith(
        "output 'action': expected a tensor, found a tuple of 2; several outputs have names: "
        'return {"action": ..., "log_prob": ...}'
    )


def acts_in_tuples(tensordict: TensorDictBase) -> Any:
    return tensordict, 1


def test_a_policy_of_tensordicts_that_returns_a_tuple() -> None:
    text = message(SpecMismatch, lambda: collect(policy=acts_in_tuples))
    assert text == "policy acts_in_tuples: expected it to return a TensorDict, or None, found tuple"


@pytest.mark.parametrize("key", [3, ("next", 3), None, ()])
def test_an_output_without_a_name(key: Any) -> None:
    text = message(SpecMismatch, lambda: collect(policy=lambda observation: {"action": torch.zeros(1), key: torch.zeros(1)}))
    assert text.endswith(
        f"expected names of outputs, strings or tuples of strings such as ('next', 'hidden'), found the key {key!r}"
    )


def test_an_output_without_a_name_below_one_with_a_name() -> None:
    outputs = {"action": torch.zeros(1), "more": {2: torch.zeros(1)}}
    assert message(SpecMismatch, lambda: collect(policy=lambda observation: outputs)).endswith("found the key 2")


@pytest.mark.parametrize("shape", [(), (1,), (2, 1)])
@pytest.mark.parametrize("name", ["action", "value"])
def test_outputs_for_one_row_where_there_are_several(name: str, shape: tuple[int, ...]) -> None:
    def policy(observation: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"action": torch.zeros(3, 1), name: torch.zeros(shape)}

    text = message(SpecMismatch, lambda: collect(SerialEnv(3, "Pendulum-v1"), policy))
    assert f"found {'shape ' if name == 'action' else ''}{shape}" in text
    assert text.endswith(". The policy is called once for all rows: its outputs begin with (3,).")


def test_of_one_env_nothing_is_said_about_rows() -> None:
    assert "all rows" not in message(SpecMismatch, lambda: collect(policy=lambda observation: torch.zeros(2)))


# ---------------------------------------------------------------------- collectors and batches


def test_the_name_of_an_exploration_type() -> None:
    text = message(OptionError, lambda: collect(exploration_type="mode"))
    assert text.startswith("exploration_type: expected an ExplorationType ['MODE', ")
    assert text.endswith("got 'mode'")


@pytest.mark.parametrize("kind", [SyncDataCollector, aSyncDataCollector])
@pytest.mark.parametrize("call", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_collector_is_not_pickled_nor_copied(call: Callable[[Any], Any], kind: Any) -> None:
    with kind(partial(Count, 3), Const(), frames_per_batch=4) as collector:
        assert message(TypeError, lambda: call(collector)) == (
            f"a {kind.__name__} cannot be pickled or copied: envs, processes, memory and generators belong to it; keep its "
            "state_dict(), or pass on a function that builds it"
        )
        assert collector.next().numel() == 4


BUFFER = "; a collector with a replay buffer yields None: sample from the buffer"


@pytest.mark.parametrize(("given", "found"), [({"a": 1}, "dict"), (None, f"NoneType{BUFFER}"), (torch.zeros(3), "Tensor")])
def test_what_is_split_is_a_batch(given: Any, found: str) -> None:
    text = message(SpecMismatch, lambda: split_trajectories(given))
    assert text == f"split_trajectories: expected a TensorDict of batch size [..., T], got {found}"
