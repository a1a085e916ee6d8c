"""torchrl's `RandomPolicy`, whose specs are asked one by one: the same bits from the same seed, or the policy itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, MultiOneHot, OneHot, Unbounded
from torchrl.envs.utils import RandomPolicy

from tests.neighbours import since_torchrl_013
from tests.policy.recording import Recording, check, check_rollout

pytestmark = since_torchrl_013

SPECS: dict[str, Callable[[], Any]] = {
    "a box": lambda: Bounded(-1.0, 2.0, (3, 2)),
    "without bounds": lambda: Unbounded((3, 2)),
    "one-hot": lambda: OneHot(4, (3, 4)),
    "an index": lambda: Categorical(5, (3,)),
    "several indices": lambda: MultiCategorical([2, 3], (3, 2)),
    "several one-hots": lambda: MultiOneHot([2, 3], (3, 5)),
    "bits": lambda: Binary(4, (3, 4), dtype=torch.int8),
    "masked": lambda: OneHot(3, (3, 3), mask=torch.tensor([[True, False, True]] * 3)),
    "a composite": lambda: Composite(action=Bounded(-1, 1, (3, 2)), extra=Categorical(3, (3,)), shape=(3,)),
    "nested": lambda: Composite(
        arm=Composite(grip=Binary(2, (3, 2)), turn=Unbounded((3, 1)), shape=(3,)), action=OneHot(2, (3, 2)), shape=(3,)
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_the_same_bits(name: str) -> None:
    check(RandomPolicy(SPECS[name]()), "unwrapped")


class Own(Composite):
    def rand(self, *arguments: Any, **options: Any) -> Any:
        return super().rand(*arguments, **options)


class Derived(RandomPolicy):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: Derived(SPECS["a box"]()),
        lambda: RandomPolicy(Own(action=Bounded(-1, 1, (3, 2)), shape=(3,))),
    ],
)
def test_what_may_do_something_else_is_called_as_it_is(make: Callable[[], Any]) -> None:
    check(make(), "tensordict")


def change_spec(policy: Any) -> None:
    policy.action_spec = Bounded(5.0, 6.0, (3, 2))


def change_part(policy: Any) -> None:
    policy.action_spec["action"] = Bounded(5.0, 6.0, (3, 2))


@pytest.mark.parametrize(("name", "change"), [("a box", change_spec), ("a composite", change_part)])
def test_another_spec_counts_from_the_next_rollout_on(name: str, change: Callable[[Any], None]) -> None:
    policy = RandomPolicy(SPECS[name]())
    recording = Recording(policy)
    check_rollout(recording, policy)
    change(policy)
    check_rollout(recording, policy)
    assert recording.actor.kind == "tensordict"
    assert recording.rollout()["action",].min() >= 5


def test_a_mask_that_changes_counts_at_once() -> None:
    policy = RandomPolicy(OneHot(3, (3, 3), mask=torch.ones(3, 3, dtype=torch.bool)))
    recording = Recording(policy)
    policy.action_spec.update_mask(torch.tensor([[False, True, False]] * 3))
    check_rollout(recording, policy)
    assert recording.actor.kind == "unwrapped"
    assert recording.rollout()["action",].reshape(-1, 3).sum(0).tolist() == [0, 15, 0]
