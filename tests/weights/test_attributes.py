"""Plain attributes: what was changed in the trainer's policy travels, once, and what others count stays."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reap.policy.contents.held import held_by
from reap.testing import Const
from reap.weights.attributes import Changes, attributes, set_attributes
from reap.weights.base import VanillaWeightUpdater, load_weights
from reap.weights.mailbox import WeightMailbox, describe
from tests.policy.forms import Agent, Player, WithSlots, in_tensordict


class Full(Agent):
    def __init__(self) -> None:
        super().__init__(1.0)
        self.calls, self.mode, self.scale, self.schedule = 0, "train", torch.ones(2), [1.0]
        self.nothing: Any = None


def changes_of(policy: Any, change: Any) -> dict[str, Any]:
    held = held_by(policy)
    changes = Changes(held)
    change(policy)
    return {name: value for name, (_, value) in changes.found(held).items()}


CHANGED: dict[str, tuple[Any, dict[str, Any]]] = {
    "number": (lambda policy: setattr(policy, "eps", 0.1), {"eps": 0.1}),
    "the same number": (lambda policy: setattr(policy, "eps", 0.0), {}),
    "bool": (lambda policy: setattr(policy, "eps", True), {"eps": True}),
    "string": (lambda policy: setattr(policy, "mode", "eval"), {"mode": "eval"}),
    "number for None": (lambda policy: setattr(policy, "nothing", 1), {"nothing": 1}),
    "None for a number": (lambda policy: setattr(policy, "eps", None), {"eps": None}),
    "not a number": (lambda policy: setattr(policy, "eps", float("nan")), {"eps": pytest.approx(float("nan"), nan_ok=True)}),
    "new": (lambda policy: setattr(policy, "temperature", 0.5), {"temperature": 0.5}),
    "torch's": (lambda policy: policy.eval(), {}),
    "weights": (lambda policy: nn.init.constant_(policy.w, 5.0), {}),
    "an activation": (lambda policy: setattr(policy, "scale", policy.w * 2), {}),
    "a changed list": (lambda policy: policy.schedule.append(2.0), {}),
}


@pytest.mark.parametrize("case", CHANGED)
def test_what_counts_as_a_change(case: str) -> None:
    change, expected = CHANGED[case]
    assert changes_of(Full(), change) == expected


def test_tensors_are_compared_by_their_values() -> None:
    found = changes_of(Full(), lambda policy: policy.scale.add_(1))
    assert {name: value.tolist() for name, value in found.items()} == {"scale": [2.0, 2.0]}
    assert changes_of(Full(), lambda policy: setattr(policy, "scale", torch.ones(2))) == {}


def test_attributes_of_parts() -> None:
    policy = nn.Sequential(nn.Dropout(0.5), nn.GRU(1, 1), Full())
    assert changes_of(policy, lambda policy: setattr(policy[0], "p", 0.0)) == {"0.p": 0.0}
    assert changes_of(policy, lambda policy: policy.double()) == {}, "what torch keeps in its own layers is torch's"
    player = Player(Agent(1.0))
    assert changes_of(player, lambda player: setattr(player, "eps", 2.0)) == {"eps": 2.0}
    held = held_by(in_tensordict(player.act))
    assert {name: value for name, value in attributes(held).items() if name.endswith("eps")} == {
        "module.eps": 2.0,
        "module.net.eps": 0.0,
    }


def test_attributes_in_slots() -> None:
    class Slots(WithSlots):
        __slots__ = ("eps",)

    policy = Slots(Const(1.0))
    policy.eps = 1.0
    assert changes_of(policy, lambda policy: setattr(policy, "eps", 2.0)) == {"eps": 2.0}
    held = held_by(policy)
    set_attributes(held, {"eps": (1, 3.0)})
    assert policy.eps == 3.0


def test_each_change_has_a_number() -> None:
    policy = Full()
    held, acting = held_by(policy), held_by(Full())
    changes = Changes(held)
    policy.eps = 0.5
    set_attributes(acting, changes.found(held))
    assert acting.policy.eps == 0.5
    acting.policy.eps, acting.policy.calls = 0.7, 9
    set_attributes(acting, changes.found(held))
    assert (acting.policy.eps, acting.policy.calls) == (0.7, 9), "nothing was changed since"
    policy.calls = 3
    set_attributes(acting, changes.found(held))
    assert (acting.policy.eps, acting.policy.calls) == (0.7, 3)
    late = held_by(Full())
    set_attributes(late, changes.found(held))
    assert (late.policy.eps, late.policy.calls) == (0.5, 3), "one that missed the updates before has all of them"


def test_a_tensor_is_written_in_place() -> None:
    policy, acting = Full(), Full()
    held, target, before = held_by(policy), held_by(acting), acting.scale
    changes = Changes(held)
    policy.scale = torch.full((2,), 3.0)
    set_attributes(target, changes.found(held))
    assert acting.scale is before
    assert acting.scale.tolist() == [3.0, 3.0]
    policy.scale = torch.zeros(3)
    set_attributes(target, changes.found(held))
    assert acting.scale.tolist() == [0.0, 0.0, 0.0]
    assert acting.scale is not policy.scale


def test_another_object_is_warned_of_once() -> None:
    policy = Full()
    held = held_by(policy)
    changes = Changes(held)
    policy.schedule = [2.0]
    with pytest.warns(UserWarning, match="policy: schedule was") as caught:
        assert changes.found(held) == {}
    assert str(caught[0].message) == (
        "policy: schedule was a list and is another list now, which does not reach the policies that act elsewhere; numbers, "
        "strings and tensors do: keep it in one of these or in get_extra_state(), or build a new collector"
    )
    assert (len(caught), caught[0].filename) == (1, __file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy.schedule = [3.0]
        changes.found(held)
        policy.cache = {}  # type: ignore[assignment]
        changes.found(held)


def set_item(policy: Any, index: int, module: nn.Module) -> None:
    policy[index] = module


REPLACED: dict[str, tuple[Any, str]] = {
    "another class": (lambda policy: set_item(policy, 1, nn.Hardtanh()), "the module '1' was Tanh and is Hardtanh now"),
    "added": (lambda policy: policy.append(nn.ReLU()), "the module '2' was nothing and is ReLU now"),
    "removed": (lambda policy: policy.pop(1), "the module '1' was Tanh and is nothing now"),
}


@pytest.mark.parametrize("case", REPLACED)
def test_another_module_is_warned_of_once(case: str) -> None:
    policy = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    changes, (change, text) = Changes(held_by(policy)), REPLACED[case]
    change(policy)
    with pytest.warns(UserWarning, match="policy: the module") as caught:
        changes.found(held_by(policy))
    assert str(caught[0].message) == (
        f"policy: {text}, which does not reach the policies that act elsewhere: only values of weights and attributes do; "
        "build a new collector"
    )
    assert (len(caught), caught[0].filename) == (1, __file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        changes.found(held_by(policy))


def test_modules_that_are_no_others() -> None:
    policy = nn.Sequential(nn.LazyLinear(1), nn.Tanh())
    changes = Changes(held_by(policy))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        policy(torch.ones(1, 2))  # makes a Linear of the lazy one
        set_item(policy, 1, nn.Tanh())
        changes.found(held_by(policy))
        changes.found(held_by(nn.Sequential(nn.Linear(2, 1), nn.ReLU())))  # another policy: it was not changed


def test_what_those_made_who_act() -> None:
    """Nothing is known of attributes that are not the same in all of them."""
    policy = Full()
    held = held_by(policy)
    changes = Changes(None, {"eps": 0.0, "calls": 0})
    policy.eps = 0.5
    assert {name: value for name, (_, value) in changes.found(held).items()} == {"eps": 0.5}
    policy.mode = "eval"
    assert {name: value for name, (_, value) in changes.found(held).items()} == {"eps": 0.5, "mode": "eval"}


# ---------------------------------------------------------------------- on the way


def test_a_mailbox_keeps_what_was_not_sent_again() -> None:
    policy, acting = Full(), held_by(Full())
    held = held_by(policy)
    box = WeightMailbox.for_weights(describe(held))
    changes = Changes(held)
    policy.eps = 0.5
    box.write(held, 1, {"_changed_attributes": changes.found(held)})
    box.write(policy.state_dict(), 2)
    assert box.read_into(acting, 0) == 2
    assert acting.policy.eps == 0.5
    box.close()


def test_a_copy_in_this_process() -> None:
    source, target = Full(), Full()
    updater = VanillaWeightUpdater(target, source)
    source.eps = 0.5
    updater.push_weights()
    assert target.eps == 0.5
    source.eps = 0.1
    updater.push_weights(source.state_dict())
    assert target.eps == 0.5, "weights without their module have no attributes"
    other = Full()
    other.eps = 0.9
    updater.push_weights(other)
    assert target.eps == 0.9
    load_weights(target, source)
    assert target.eps == 0.9


def test_state_that_was_sent_is_kept_as_it_was() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log: list[int] = []

        def get_extra_state(self) -> Any:
            return self.log

        def set_extra_state(self, state: Any) -> None:
            self.log = state

        def forward(self, observation: Tensor) -> Tensor:
            return observation

    policy, acting = Remembering(), held_by(Remembering())
    box = WeightMailbox.for_weights(describe(policy))
    policy.log.append(1)
    box.write(policy, 1)
    policy.log.append(2)
    box.write({}, 2)
    box.read_into(acting, 0)
    assert acting.policy.log == [1]
    box.close()
