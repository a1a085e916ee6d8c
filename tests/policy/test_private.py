"""Private copies: their weights are their own, and all else is shared."""

from __future__ import annotations

from threading import Lock
from types import MappingProxyType
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from reap.errors import OptionError
from reap.policy.contents.held import held_by
from reap.policy.contents.private import private_copy
from reap.testing import Const
from tests.policy.forms import FORMS, Agent, Hiding, WithLock, a_closure, in_tensordict, itself

META = torch.device("meta")


def act(policy: Any) -> float:
    if hasattr(policy, "in_keys"):
        return policy(TensorDict(observation=torch.zeros(1)))["action"].item()
    return policy(torch.zeros(1)).item()


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_keeps_its_weights(form: str) -> None:
    make, name = FORMS[form]
    agent = Agent(1.0)
    policy = make(agent)
    own = private_copy(policy)
    assert list(own.tensors()) == [name]
    nn.init.constant_(agent.w, 2.0)
    assert (act(policy), act(own.policy)) == (2.0, 1.0)
    nn.init.constant_(own.tensors()[name], 3.0)
    assert (act(policy), act(own.policy)) == (2.0, 3.0)
    assert isinstance(own.tensors()[name], nn.Parameter)


def test_all_else_is_shared() -> None:
    player = WithLock(Const(1.0))
    player.memory = [0]  # type: ignore[attr-defined]
    own = private_copy(player.act).policy.__self__
    assert own is not player
    assert own.chooser.player is own, "what leads to weights is copied, round and round"
    assert (own.lock is player.lock, own.memory is player.memory) == (True, True)
    own.eps = 1.0
    assert player.eps == 0.0


def test_a_module_around_what_cannot_be_pickled() -> None:
    player = WithLock(Const(1.0))
    player.policy = in_tensordict(player.act)  # type: ignore[attr-defined]
    own = private_copy(player.policy).policy  # type: ignore[attr-defined]
    assert own.module.__self__.policy is own
    nn.init.constant_(player.net.w, 2.0)
    assert act(own) == 1.0


def test_functions_that_call_each_other() -> None:
    net = Const(1.0)

    def even(observation: Tensor, n: int = 4) -> Tensor:
        return odd(observation, n - 1) if n else net(observation)

    def odd(observation: Tensor, n: int) -> Tensor:
        return even(observation, n - 1) if n else -net(observation)

    own = private_copy(even).policy
    nn.init.constant_(net.w, 2.0)
    assert (act(even), act(own)) == (2.0, 1.0)


def test_what_a_class_holds() -> None:
    net = Const(1.0)

    class Base(nn.Module):
        shift = Const(10.0)

        def forward(self, observation: Tensor) -> Tensor:
            return net(observation) + self.shift(observation) + self.more(observation)

        @staticmethod
        def more(observation: Tensor) -> Tensor:
            return net(observation) * 100

    class Derived(Base):
        def __init__(self) -> None:
            super().__init__()

    policy = Derived()
    own = private_copy(policy).policy
    assert isinstance(own, Derived)
    with torch.no_grad():
        net.w.fill_(2.0)
        Base.shift.w.fill_(20.0)
    assert (act(policy), act(own)) == (222.0, 111.0)
    assert act(Derived()) == 222.0, "the class is as it was"


def test_what_a_class_hides() -> None:
    net = Const(1.0)

    class Base(nn.Module):
        def forward(self, observation: Tensor) -> Tensor:
            return net(observation)

    class Derived(Base):
        def forward(self, observation: Tensor) -> Tensor:
            return super().forward(observation)

    assert list(held_by(Derived()).tensors()) == ["__class__.Base.forward.net.w"]
    with pytest.raises(OptionError, match=r"found \['__class__.Base.forward.net'\], which belong to the class"):
        private_copy(Derived())


def test_variables_that_are_assigned_are_ones_own() -> None:
    net, calls, log = Const(1.0), 0, []

    def policy(observation: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        log.append(calls)
        return net(observation)

    own = private_copy(policy).policy
    act(own)
    act(policy)
    assert (calls, log) == (2, [1, 2]), "a variable that does not lead to weights is the same one"


def test_a_policy_without_weights_is_not_copied() -> None:
    def policy(observation: Tensor) -> Tensor:
        return observation

    assert private_copy(policy).policy is policy


def test_a_copy_on_a_device() -> None:
    agent = Agent(1.0)
    own = private_copy(Hiding(agent.act, itself), META)
    assert own.is_on(META)
    assert agent.w.device.type == "cpu"


def test_a_function_that_torch_has_compiled() -> None:
    net = Const(1.0)
    policy = torch.compile(a_closure(net), backend="eager")
    assert act(policy) == 1.0
    own = private_copy(policy).policy
    nn.init.constant_(net.w, 2.0)
    assert (act(policy), act(own)) == (2.0, 1.0)
    assert held_by(own).tensors().keys() == held_by(policy).tensors().keys()


class Locked(Const):
    """A module that cannot be copied."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.lock = Lock()


class Thinning(nn.Module):
    """A module whose copies are of another form, as those of traced modules are."""

    def __init__(self) -> None:
        super().__init__()
        self.nets = [Const(1.0)]

    def __deepcopy__(self, memo: dict[int, Any]) -> object:
        return object()


UNCOPIED: dict[str, tuple[Any, str]] = {
    "a lock in a module": (Locked(), "policy Locked: expected one that can be copied.*TypeError: cannot pickle '_thread.lock'"),
    "a view of a dict": (
        a_closure(MappingProxyType({"net": Const(1.0)})),
        "policy a_closure.*act: expected one that can be copied.*cannot pickle 'mappingproxy'",
    ),
    "one that a copy lacks": (Thinning(), "policy Thinning: .*: copy.deepcopy makes an object of another form"),
}


@pytest.mark.parametrize("case", UNCOPIED)
def test_what_cannot_be_copied_is_refused(case: str) -> None:
    policy, text = UNCOPIED[case]
    with pytest.raises(OptionError, match=text):
        private_copy(policy)
