"""Policies that are called with tensors: which arguments they get, and what becomes of their outputs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from reap.collectors import SyncDataCollector
from reap.envs import GymEnv, SerialEnv
from reap.errors import OptionError, SpecMismatch
from reap.policy.actors.plain import match_arguments
from reap.policy.choose import takes_tensordict
from reap.testing import Count, DictCount, DictPolicy, Id, IdRows

OBSERVATION = [("observation",)]
SEVERAL = [("agent", "bits"), ("agent", "level"), ("image",), ("place",)]


# ---------------------------------------------------------------------- arguments


class Module(nn.Module):
    def forward(self, place: Tensor, image: Tensor) -> Tensor: ...


class Method:
    def act(self, image: Tensor) -> Tensor: ...

    def __call__(self, place: Tensor) -> Tensor: ...


@pytest.mark.parametrize(
    ("policy", "known", "keys"),
    [
        (lambda observation: None, OBSERVATION, [("observation",)]),
        (lambda x: None, OBSERVATION, [("observation",)]),
        (lambda x, /: None, OBSERVATION, [("observation",)]),
        (lambda x=None: None, OBSERVATION, [("observation",)]),
        (lambda x, scale=2: None, OBSERVATION, [("observation",)]),
        (lambda *inputs: None, OBSERVATION, [("observation",)]),
        (lambda x, **options: None, OBSERVATION, [("observation",)]),
        (lambda x, *, scale=2: None, OBSERVATION, [("observation",)]),
        (torch.neg, OBSERVATION, [("observation",)]),
        (nn.Linear(1, 1), OBSERVATION, [("observation",)]),
        (nn.Sequential(nn.Linear(1, 1)), OBSERVATION, [("observation",)]),
        (partial(lambda scale, x: None, 2), OBSERVATION, [("observation",)]),
        (lambda place: None, SEVERAL, [("place",)]),
        (lambda image, place: None, SEVERAL, [("image",), ("place",)]),
        (lambda place, image: None, SEVERAL, [("place",), ("image",)]),
        (lambda place, level: None, SEVERAL, [("place",), ("agent", "level")]),
        (lambda agent_level, bits: None, SEVERAL, [("agent", "level"), ("agent", "bits")]),
        (lambda place, image=None: None, SEVERAL, [("place",), ("image",)]),
        (lambda place, scale=2: None, SEVERAL, [("place",)]),
        (lambda place, *, scale=2: None, SEVERAL, [("place",)]),
        (Module(), SEVERAL, [("place",), ("image",)]),
        (Method(), SEVERAL, [("place",)]),
        (Method().act, SEVERAL, [("image",)]),
        (partial(lambda scale, place: None, 2), SEVERAL, [("place",)]),
    ],
)
def test_arguments_are_matched_by_name(policy: Any, known: Any, keys: Any) -> None:
    assert match_arguments(policy, known) == keys


def nothing() -> None: ...


def two(a: Tensor, b: Tensor) -> None: ...


def misnamed(place: Tensor, picture: Tensor) -> None: ...


def late(place: Tensor, scale: float = 2, image: Tensor | None = None) -> None: ...


def by_keyword(*, observation: Tensor) -> None: ...


WRAP = "rename the arguments, or wrap it: TensorDictModule(policy, in_keys=[...], out_keys=['action'])"
NAMED = "expected arguments named after the env's observations"
NESTED = "[('agent', 'bits'), ('agent', 'level'), 'image', 'place']"


@pytest.mark.parametrize(
    ("policy", "known", "message"),
    [
        (nothing, OBSERVATION, f"{NAMED} ['observation'], found []; {WRAP}"),
        (by_keyword, OBSERVATION, f"{NAMED} ['observation'], found []; {WRAP}"),
        (two, OBSERVATION, f"{NAMED} ['observation'], found ['a', 'b']; {WRAP}"),
        (misnamed, SEVERAL, f"{NAMED} {NESTED}, found ['place', 'picture']; {WRAP}"),
        (
            late,
            SEVERAL,
            "expected arguments that are observations to come first, found ['image'] after 'scale', which is none",
        ),
    ],
)
def test_arguments_that_are_not_known(policy: Any, known: Any, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        match_arguments(policy, known)
    assert str(caught.value) == f"policy {policy.__name__}: {message}"


def test_arguments_get_the_values_of_their_observations() -> None:
    seen: list[tuple[Any, ...]] = []

    def policy(place: Tensor, level: Tensor, bits: Tensor) -> Tensor:
        seen.append((place.clone(), level.clone(), bits.clone()))
        return place[..., :1].float()

    collector = SyncDataCollector(SerialEnv(2, lambda: GymEnv(DictCount(5))), policy, frames_per_batch=6)
    batch = collector.next()
    assert batch["action"].squeeze(-1).tolist() == [[0, 1, 2]] * 2
    for t, (place, level, bits) in enumerate(seen[1:]):
        assert torch.equal(place, batch["place"][:, t])
        assert torch.equal(level, batch["agent", "level"][:, t])
        assert torch.equal(bits, batch["agent", "bits"][:, t])


def test_a_single_env_gives_an_unbatched_observation() -> None:
    shapes: list[torch.Size] = []

    def policy(observation: Tensor) -> Tensor:
        shapes.append(observation.shape)
        return observation[..., :1]

    for env in (GymEnv(Id(0)), IdRows((1,)), IdRows((2, 3))):
        SyncDataCollector(env, policy, frames_per_batch=6)
    assert shapes == [(3,), (1, 3), (2, 3, 3)]


# ---------------------------------------------------------------------- outputs


def collect(policy: Any, frames: int = 4, **options: Any) -> TensorDictBase:
    return SyncDataCollector(Count(9), policy, frames_per_batch=frames, **options).next()


@pytest.mark.parametrize(
    "policy",
    [
        lambda observation: observation * 2,
        lambda observation: (observation * 2).numpy(),
        lambda observation: observation.numpy() * 2,
        lambda observation: [2 * observation.item()],
        lambda observation: {"action": observation * 2},
        lambda observation: {("action",): observation.numpy() * 2},
        lambda observation: {"action": [2 * observation.item()]},
        lambda observation: TensorDict({"action": observation * 2}),
    ],
)
def test_forms_of_an_action(policy: Any) -> None:
    batch = collect(policy)
    assert batch["action"].dtype == torch.float32
    assert batch["action"].flatten().tolist() == [0, 2, 4, 6]


def test_a_dict_of_outputs() -> None:
    batch = SyncDataCollector(IdRows((2,)), DictPolicy(), frames_per_batch=4).next()
    total = batch["observation"].sum(-1)
    assert torch.equal(batch["action"], total.unsqueeze(-1))
    assert torch.equal(batch["log_prob"], -total)
    assert torch.equal(batch["info", "count"], (2 * total).long().unsqueeze(-1))
    assert batch["info", "count"].dtype == torch.int64


def test_nested_outputs_and_those_of_the_next_frame() -> None:
    batch = collect(
        lambda observation: {
            "action": observation,
            "info": {"deep": {"half": observation / 2}},
            ("next", "value"): observation + 1,
            "next": {"mark": observation.long()},
            "scalar": 3,
        }
    )
    assert batch["info", "deep", "half"].flatten().tolist() == [0, 0.5, 1, 1.5]
    assert batch["next", "value"].flatten().tolist() == [1, 2, 3, 4]
    assert batch["next", "mark"].flatten().tolist() == [0, 1, 2, 3]
    assert batch["scalar"].tolist() == [3] * 4
    assert batch["next", "observation"].flatten().tolist() == [1, 2, 3, 4]


def test_an_output_that_is_left_out() -> None:
    def policy(observation: Tensor) -> dict[str, Tensor]:
        outputs = {"action": observation}
        return outputs if observation % 2 else {**outputs, "even": observation + 1}

    with pytest.raises(SpecMismatch, match=r"expected outputs \['action', 'even'\], .* found \['action'\].*\(in column 1\)"):
        collect(policy, 5)
    assert collect(policy, 5, check="first")["even"].flatten().tolist() == [1, 0, 3, 0, 5]


def test_an_output_that_comes_later() -> None:
    def policy(observation: Tensor) -> dict[str, Tensor]:
        outputs = {"action": observation}
        return {**outputs, "odd": observation} if observation % 2 else outputs

    with pytest.raises(SpecMismatch, match=r"expected outputs \['action'\], .* found \['action', 'odd'\].*\(in column 1\)"):
        collect(policy)
    assert "odd" not in collect(policy, check="first").keys()


def test_parameters_that_are_returned_as_they_are() -> None:
    class Direct(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([2.0]))

        def forward(self, observation: Tensor) -> Tensor:
            return self.w

    policy = Direct()
    collector = SyncDataCollector(Count(9), policy, frames_per_batch=2)
    first = collector.next()
    with torch.no_grad():
        policy.w.fill_(5.0)
    second = collector.next()
    assert (first["action"].flatten().tolist(), second["action"].flatten().tolist()) == ([2, 2], [5, 5])
    assert not second["action"].requires_grad
    second["action"].zero_()
    assert policy.w.tolist() == [5.0]


def test_an_input_that_is_returned_as_the_action() -> None:
    collector = SyncDataCollector(Count(9), lambda observation: observation, frames_per_batch=4)
    assert collector.next()["action"].flatten().tolist() == [0, 1, 2, 3]
    assert collector.next()["action"].flatten().tolist() == [4, 5, 6, 7]


def test_a_policy_that_changes_its_input() -> None:
    batch = collect(lambda observation: observation.add_(100))
    assert batch["action"].flatten().tolist() == [100, 101, 102, 103]
    assert batch["observation"].flatten().tolist() == [0, 1, 2, 3]


def test_a_wrong_shape_in_a_later_frame_is_an_error_there() -> None:
    def policy(observation: Tensor) -> Tensor:
        return torch.zeros(1 if observation < 2 else 3)

    with pytest.raises(SpecMismatch, match=r"expected shape \(1,\) .* found shape \(3,\)") as caught:
        collect(policy)
    assert caught.value.__notes__ == ["reap: raised in policy of GymEnv(<Count instance>), column 2 of a rollout"]


def test_numpy_actions_of_several_envs() -> None:
    env = SerialEnv(3, "CartPole-v1")
    policy = lambda observation: np.eye(2, dtype=np.int64)[(observation.numpy()[:, 2] > 0).astype(int)]  # noqa: E731
    with SyncDataCollector(env, policy, frames_per_batch=12) as collector:
        batch = collector.next()
    assert torch.equal(batch["action"][..., 1].bool(), batch["observation"][..., 2] > 0)


# ---------------------------------------------------------------------- functions of a TensorDict


def by_name(tensordict):
    return tensordict.set("action", tensordict["observation"] + 1)


def by_short_name(td: Any) -> None:
    td["action"] = td["observation"] + 1


def by_annotation(x: TensorDictBase) -> TensorDictBase:
    return x.set("action", x["observation"] + 1)


def by_union(x: TensorDict | None) -> Any:
    assert x is not None
    return TensorDict({"action": x["observation"] + 1}, x.batch_size)


class ByForward(nn.Module):
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        return by_annotation(tensordict)


def untold(x: Any) -> Any:
    return x.set("action", x["observation"] + 1)


@pytest.mark.parametrize("policy", [by_name, by_short_name, by_annotation, by_union, ByForward()])
def test_functions_of_a_tensordict(policy: Any) -> None:
    assert takes_tensordict(policy)
    collector = SyncDataCollector(Count(9), policy, frames_per_batch=3)
    assert "(tensordict)" in repr(collector)
    assert collector.next()["action"].flatten().tolist() == [1, 2, 3]


def test_functions_of_tensors() -> None:
    def by_tensor(td: torch.Tensor) -> torch.Tensor: ...

    for policy in (by_tensor, torch.neg, nn.Linear(1, 1), untold, lambda observation, tensordict: None, nothing):
        assert not takes_tensordict(policy)


def test_trust_policy() -> None:
    with pytest.raises(AttributeError):
        SyncDataCollector(Count(9), untold, frames_per_batch=3)
    collector = SyncDataCollector(Count(9), untold, frames_per_batch=3, trust_policy=True)
    assert "(tensordict)" in repr(collector)
    assert collector.next()["action"].flatten().tolist() == [1, 2, 3]


# ---------------------------------------------------------------------- several outputs


class Pair(nn.Module):
    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return observation[..., :1] * 0, observation.sum(-1), observation[..., :1] > 0


@pytest.mark.parametrize("rows", [0, 2])
def test_the_first_of_several_tensors_is_the_action(rows: int) -> None:
    env = SerialEnv(rows, lambda: Count(9)) if rows else GymEnv(Count(9))
    with SyncDataCollector(env, Pair(), frames_per_batch=4) as collector:
        batch = collector.next()
    assert torch.equal(batch["output1"], batch["observation"].sum(-1))
    assert torch.equal(batch["output2"], batch["observation"][..., :1] > 0)
    assert not batch["action"].any()


def test_a_tuple_of_one_tensor_is_the_action() -> None:
    with SyncDataCollector(GymEnv(Count(9)), lambda observation: (torch.zeros(1),), frames_per_batch=4) as collector:
        assert "output1" not in collector.next().keys()
