"""Weights sent to several mailboxes: all or none of them, from a policy that is only read."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import nn

from reap.errors import OptionError, SpecMismatch
from reap.weights.mailbox import WeightMailbox, describe
from reap.weights.remote import MultiProcessedWeightUpdater


class Owner:
    """What an updater needs of a collector."""

    policy_version = 41


def net(value: float) -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.fill_(value)
    return module


def boxes(*policies: nn.Module) -> dict[int, WeightMailbox]:
    return {worker: WeightMailbox.for_weights(describe(policy)) for worker, policy in enumerate(policies)}


def received(box: WeightMailbox, since: int = 0) -> tuple[int, list[float]]:
    policy = net(0.0)
    version = box.read_into(policy, since)
    return version, sorted({value for one in (*policy.parameters(), *policy.buffers()) for value in one.flatten().tolist()})


def versions(updater: MultiProcessedWeightUpdater) -> list[int]:
    return [box.version for box in updater.mailboxes.values()]


FORMS = {
    "module": lambda module: module,
    "TensorDict": TensorDict.from_module,
    "flat TensorDict": lambda module: TensorDict(dict(module.state_dict())),
    "state dict": lambda module: module.state_dict(),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_weights(form: str) -> None:
    updater = MultiProcessedWeightUpdater(net(1.0), boxes(net(0.0), net(0.0)))
    updater.push_weights(FORMS[form](net(2.0)))
    assert [received(box) for box in updater.mailboxes.values()] == [(1, [2.0])] * 2


def test_the_policy_given_at_construction_is_sent_when_nothing_is_given() -> None:
    policy = net(3.0)
    updater = MultiProcessedWeightUpdater(policy, boxes(policy))
    updater.push_weights()
    assert received(updater.mailboxes[0]) == (1, [3.0])
    assert received(updater.mailboxes[0], since=1) == (1, [0.0]), "there is nothing newer"


def test_the_version_is_the_collectors_next() -> None:
    owner, policy = Owner(), net(1.0)
    updater = MultiProcessedWeightUpdater.from_policy(policy)
    updater.mailboxes.update(boxes(policy, policy))
    updater.register_collector(owner)
    updater.push_weights(worker_ids=1)
    assert versions(updater) == [0, 42]
    owner.policy_version = 42
    updater.push_weights()
    assert versions(updater) == [43, 43]
    del owner
    updater.push_weights()
    assert versions(updater) == [44, 44], "it counts on without a collector"


@pytest.mark.parametrize(("chosen", "expected"), [(None, [1, 1, 1]), (1, [0, 1, 0]), ([2, 0], [1, 0, 1]), ([], [0, 0, 0])])
def test_chosen_workers(chosen: Any, expected: list[int]) -> None:
    policy = net(1.0)
    updater = MultiProcessedWeightUpdater(policy, boxes(policy, policy, policy))
    assert updater.all_worker_ids() == [0, 1, 2]
    updater.push_weights(worker_ids=chosen)
    assert versions(updater) == expected


def test_an_unknown_worker() -> None:
    updater = MultiProcessedWeightUpdater(net(1.0), boxes(net(1.0)))
    with pytest.raises(OptionError) as caught:
        updater.push_weights(worker_ids=[0, 3])
    assert str(caught.value) == "worker_ids: expected some of [0], got [3]"
    assert versions(updater) == [0]


def test_no_mailbox_is_written_if_one_does_not_fit() -> None:
    updater = MultiProcessedWeightUpdater(net(1.0), boxes(net(1.0), nn.Linear(2, 1)))
    updater.register_post_hook(lambda: pytest.fail("the push has failed"))
    with pytest.raises(SpecMismatch, match="missing \\['bias', 'weight'\\], unknown"):
        updater.push_weights()
    assert versions(updater) == [0, 0]
    with pytest.raises(OptionError, match="got int"):
        updater.push_weights(3)
    assert versions(updater) == [0, 0]


def test_without_a_policy_weights_have_to_be_given() -> None:
    updater = MultiProcessedWeightUpdater(None, boxes(net(0.0)))
    with pytest.raises(OptionError, match="each worker builds its own policy, so there is none here to send"):
        updater.push_weights()
    updater.push_weights(net(5.0))
    assert received(updater.mailboxes[0]) == (1, [5.0])


def test_weights_from_a_function_and_targets_of_this_process() -> None:
    target, flat = net(0.0), TensorDict(dict(net(0.0).state_dict()))
    updater = MultiProcessedWeightUpdater(
        get_server_weights=lambda: TensorDict.from_module(net(7.0)).data, policy_weights={"a": target, "b": flat}
    )
    assert updater.all_worker_ids() == ["a", "b"]
    updater.push_weights(worker_ids="a")
    assert (target[0].bias.tolist(), flat["0.bias"].tolist()) == ([7.0] * 3, [0.0] * 3)
    updater.push_weights()
    assert flat["0.bias"].tolist() == [7.0] * 3


def test_hooks_run_after_each_push() -> None:
    policy, log = net(1.0), []
    updater = MultiProcessedWeightUpdater(policy, boxes(policy))
    updater.register_post_hook(lambda: log.append(updater.mailboxes[0].version))
    updater.push_weights()
    updater.push_weights()
    assert log == [1, 2]


def state_of(policy: nn.Module) -> list[Any]:
    return [
        (name, id(one), one.data_ptr(), one.is_shared(), one.requires_grad, one.device, one._version, one.grad, digest(one))
        for name, one in (*policy.named_parameters(), *policy.named_buffers())
    ]


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()


def test_the_callers_module_stays_as_it_is() -> None:
    policy = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    before, keys = state_of(policy), set(policy.__dict__)
    updater = MultiProcessedWeightUpdater(policy, boxes(policy, policy))
    for _ in range(3):
        updater.push_weights()
    assert state_of(policy) == before
    assert set(policy.__dict__) == keys
    assert not any(shared for _, _, _, shared, *_ in before)


class Halving(MultiProcessedWeightUpdater):
    """Sends half of each weight."""

    def _maybe_map_weights(self, server_weights: Any) -> Any:
        return {name: value / 2 for name, value in server_weights.state_dict().items()}


def test_weights_may_change_on_the_way() -> None:
    updater = Halving(net(4.0), boxes(net(0.0)))
    updater.push_weights()
    assert received(updater.mailboxes[0]) == (1, [2.0])
