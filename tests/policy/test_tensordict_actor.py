"""Policies that are handed a TensorDict: what they do to it is their own affair, what they add is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential, WrapModule
from torch import nn

from reap.errors import SpecMismatch
from reap.keys import Key
from reap.policy.choose import choose_actor
from reap.recording.layout import Field
from reap.specs import Composite, Unbounded
from tests.pairwise import pairwise
from tests.policy.recording import COLUMNS, OBSERVATION, Recording, check, check_rollout, inputs_of

NESTED: dict[Key, Field] = {
    ("agents", "position"): Field((4,), torch.float32),
    ("observation",): Field((4,), torch.float32),
}


class Policy(TensorDictModuleBase):
    """A policy by its `forward`."""

    in_keys = ["observation"]  # noqa: RUF012 (tensordict's way to say it)
    out_keys = ["action"]  # noqa: RUF012

    def __init__(self, function: Callable[[TensorDictBase], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.function = function

    def forward(self, td: TensorDictBase) -> Any:
        td["action"] = self.linear(td["observation"])
        return self.function(td)


def returns_a_new_one(td: TensorDictBase) -> TensorDictBase:
    return TensorDict({"action": td["action"], "extra": td["observation"].sum(-1)}, td.batch_size)


def returns_none(td: TensorDictBase) -> None:
    td["extra"] = td["observation"] + 1


def overwrites_its_input(td: TensorDictBase) -> TensorDictBase:
    td["observation"] = td["observation"] / 255
    return td.set("extra", td["observation"].clone())


def deletes_its_input(td: TensorDictBase) -> TensorDictBase:
    td["extra"] = td.pop("observation") + 1
    return td


def changes_its_input_in_place(td: TensorDictBase) -> TensorDictBase:
    td["observation"].zero_()
    return td


def renames(td: TensorDictBase) -> TensorDictBase:
    return td.rename_key_("observation", "seen")


def selects(td: TensorDictBase) -> TensorDictBase:
    return td.select("action")


def adds_nested_keys(td: TensorDictBase) -> TensorDictBase:
    return td.set(("a", "b", "c"), td["observation"] * 2).set(("next", "hidden"), td["observation"] + 3)


BEHAVIOURS = [
    returns_a_new_one,
    returns_none,
    overwrites_its_input,
    deletes_its_input,
    changes_its_input_in_place,
    renames,
    selects,
    adds_nested_keys,
]


@pytest.mark.parametrize(("behaviour", "batch", "fields"), pairwise(BEHAVIOURS, [(), (3,), (2, 2)], [OBSERVATION, NESTED]))
def test_behaviours(behaviour: Callable[[Any], Any], batch: tuple[int, ...], fields: dict[Key, Field]) -> None:
    check(Policy(behaviour), "tensordict", batch=batch, fields=fields)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_behaviours_of_a_part_of_a_sequence(behaviour: Callable[[Any], Any]) -> None:
    def part(td: TensorDictBase) -> TensorDictBase:
        result = behaviour(td)
        return td if result is None else result

    check(TensorDictSequential(Policy(lambda td: td), WrapModule(part)), "tensordict")


def test_functions() -> None:
    weights = torch.randn(4, 2)

    def policy(td: TensorDictBase) -> TensorDictBase:
        return td.set("action", td["observation"] @ weights)

    def annotated(x: TensorDict) -> None:
        x["action"] = x["observation"] @ weights

    check(policy, "tensordict")
    check(annotated, "tensordict")


def test_an_output_that_is_written_only_sometimes() -> None:
    def every_second(td: TensorDictBase) -> TensorDictBase:
        if counter[0] % 2 == 0:
            td["extra"] = td["observation"] + 1
        counter[0] += 1
        return td

    counter = [1]  # one call tells the shape of the action, the next one is the probe
    recording = Recording(Policy(every_second))
    assert recording.actor.kind == "tensordict"
    counter[0] = 0
    with pytest.raises(SpecMismatch, match=r"found \['action'\].*\(in column 1\)"):
        recording.rollout()


def test_an_output_that_comes_later() -> None:
    is_late = [False]

    def late(td: TensorDictBase) -> TensorDictBase:
        return td.set("late", td["observation"]) if is_late[0] else td

    recording = Recording(Policy(late))
    is_late[0] = True
    with pytest.raises(SpecMismatch, match=r"found \['action', 'late'\].*\(in column 0\)"):
        recording.rollout()


def test_the_stage_is_as_it_was_after_the_probe() -> None:
    recording = Recording(Policy(changes_its_input_in_place))
    assert torch.equal(recording.stage.tensors["observation",], inputs_of(recording.stage, 0)["observation",])


def test_a_policy_that_keeps_its_tensordict_is_given_copies() -> None:
    kept: list[TensorDictBase] = []

    def keeps(td: TensorDictBase) -> TensorDictBase:
        kept.append(td)
        return td

    recording = Recording(Policy(keeps))
    assert recording.kept is None
    kept.clear()
    recording.rollout()
    for t, td in enumerate(kept):
        assert torch.equal(td["observation"], inputs_of(recording.stage, t)["observation",]), t


def test_a_policy_that_keeps_nothing_is_given_the_stage_itself() -> None:
    addresses: list[int] = []

    def notes(td: TensorDictBase) -> TensorDictBase:
        addresses.append(td["observation"].data_ptr())
        return td

    recording = Recording(Policy(notes))
    recording.rollout()
    assert recording.kept is not None
    assert not recording.kept.found()
    assert set(addresses[-COLUMNS:]) == {recording.stage.tensors["observation",].data_ptr()}


def test_the_random_state_is_as_it_was_after_the_probe() -> None:
    policy = Policy(lambda td: td.set("noise", torch.randn(3)))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    recording = Recording(policy)  # seeds with 1 too
    assert torch.equal(torch.get_rng_state(), state)
    check_rollout(recording, policy)


def test_a_missing_action() -> None:
    policy = Policy(lambda td: td.rename_key_("action", "choice"))
    stage = Recording(Policy(lambda td: td)).stage
    actions = Composite(action=Unbounded((3, 2)), shape=(3,))
    with pytest.raises(SpecMismatch, match="expected the action under"):
        choose_actor(policy, actions, stage)


def test_skipped_keys_are_computed_again_in_each_column() -> None:
    def once(td: TensorDictBase) -> TensorDictBase:
        return td if "extra" in td else td.set("extra", td["observation"] * 3)

    check(TensorDictSequential(TensorDictModule(nn.Linear(4, 2), ["observation"], ["action"]), once), "tensordict")
