"""Weights that are packed once for several mailboxes, and the mailbox that sends them as they are."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn

from reap.errors import ClosedError, OptionError, SpecMismatch
from reap.weights import packed as packing
from reap.weights.attributes import ATTRIBUTES
from reap.weights.copied_mailbox import CopiedMailbox
from reap.weights.mailbox import WeightMailbox
from reap.weights.messages import MessageMailbox
from reap.weights.no_weights import NoMailbox
from reap.weights.packed import PackedWeights, half_in
from reap.weights.remote import MultiProcessedWeightUpdater, distinct
from reap.weights.weight_layout import describe
from tests.weights.receivers import net, values


class Remembering(nn.Module):
    """State beyond tensors; counts how often it is asked for."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.state, self.asked = state, 0

    def get_extra_state(self) -> Any:
        self.asked += 1
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


def across(box: CopiedMailbox, other: CopiedMailbox) -> None:
    """Have the latest weights, and those written later, taken to the other end, as bytes."""
    box.deliver(lambda parcel: other.put(pickle.loads(pickle.dumps(parcel))))


def ends(policy: nn.Module) -> tuple[CopiedMailbox, CopiedMailbox]:
    described = describe(policy)
    return CopiedMailbox.for_weights(described), CopiedMailbox.attach(pickle.loads(pickle.dumps(described)))


# ---------------------------------------------------------------------- packed once


def test_an_update_is_packed_once_for_each_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, packed = nn.Sequential(nn.Linear(2, 1), Remembering("a")), list[Any]()
    pack, dumps = packing.block_of, packing.packed
    monkeypatch.setattr(packing, "block_of", lambda *arguments: (packed.append("block"), pack(*arguments))[1])
    monkeypatch.setattr(packing, "packed", lambda extra: (packed.append("extra"), dumps(extra))[1])
    kinds = (CopiedMailbox, CopiedMailbox, WeightMailbox, MessageMailbox, CopiedMailbox)
    boxes = {worker: kind.for_weights(describe(policy)) for worker, kind in enumerate(kinds)}
    before = policy[1].asked
    MultiProcessedWeightUpdater(policy, boxes).push_weights()
    assert sorted(packed) == ["block", "extra"]
    assert policy[1].asked == before + 1
    assert [box.version for box in boxes.values()] == [1] * len(kinds)
    for box in boxes.values():
        box.close()


def test_workers_with_other_layouts_get_theirs() -> None:
    policies = {0: nn.BatchNorm1d(2), 1: nn.BatchNorm1d(2), 2: nn.LayerNorm(2)}
    boxes = {worker: CopiedMailbox.for_weights(describe(policy)) for worker, policy in policies.items()}
    assert len(distinct(box.described for box in boxes.values())) == 2
    given = dict(nn.LayerNorm(2).named_parameters())
    MultiProcessedWeightUpdater(None, boxes).push_weights(given)  # the buffers of the others may be left out
    parcels: list[Any] = []
    for box in boxes.values():
        box.deliver(parcels.append)
    blocks = [parcel.block for parcel in parcels]
    assert blocks[0] is blocks[1]
    assert blocks[0].nbytes != blocks[2].nbytes


def test_what_does_not_fit_is_refused_when_it_is_packed() -> None:
    with pytest.raises(SpecMismatch, match="missing"):
        PackedWeights(describe(nn.Linear(2, 1)), {})
    with pytest.raises(OptionError, match="got int"):
        PackedWeights(describe(nn.Linear(2, 1)), 3)


def test_extra_states_that_were_sent_before_are_sent_again() -> None:
    described = describe(nn.Sequential(Remembering(1), Remembering(2)))
    weights = dict(nn.Sequential(Remembering(1), Remembering(2)).named_parameters())
    first = PackedWeights(described, weights, {"0._extra_state": "a", "1._extra_state": "b", ATTRIBUTES: {"x": (1, 2)}})
    sent, blob = first.extra_after({})
    assert packing.unpacked(blob) == {"0._extra_state": "a", "1._extra_state": "b", ATTRIBUTES: {"x": (1, 2)}}
    second = PackedWeights(described, weights, {"1._extra_state": "c", ATTRIBUTES: {"y": (2, 3)}})
    _, blob = second.extra_after(sent)
    expected = {"0._extra_state": "a", "1._extra_state": "c", ATTRIBUTES: {"x": (1, 2), "y": (2, 3)}}
    assert packing.unpacked(blob) == expected
    assert second.extra_after({})[1] == packing.packed(second.extra_after({})[0])


# ---------------------------------------------------------------------- copied


def test_weights_arrive_bit_by_bit_and_the_latest_win() -> None:
    target = net(0.0)
    box, other = ends(target)
    assert (box.version, other.read_into(target, 0)) == (0, 0)
    box.write(net(1.0), 1)
    box.write(net(2.0), 2)
    across(box, other)
    assert (other.read_into(target, 0), values(target)) == (2, [2.0])
    assert other.read_into(target, 2) == 2
    box.write(net(3.0), 1)  # of a collector that has loaded an earlier state
    across(box, other)
    assert (other.read_into(target, 2), values(target)) == (1, [3.0])


def test_buffers_that_are_left_out_stay_as_they_were_sent_last() -> None:
    target = net(9.0)
    box, other = ends(target)
    box.write(dict(net(1.0).named_parameters()), 1)
    across(box, other)
    other.read_into(target, 0)
    assert values(target) == [1.0, 9.0]
    box.write(net(2.0), 2)
    box.write(dict(net(3.0).named_parameters()), 3)  # in the place of one that nobody has read
    across(box, other)
    other.read_into(target, 1)
    assert values(target) == [2.0, 3.0]


def test_a_later_change_of_the_source_does_not_reach_what_was_written() -> None:
    source, target = net(1.0), net(0.0)
    box, other = ends(target)
    box.write(source, 1)
    with torch.no_grad():
        source[0].weight.fill_(5.0)
    across(box, other)
    other.read_into(target, 0)
    assert values(target) == [1.0]


def test_state_beyond_tensors() -> None:
    source, target = Remembering({"k": [1]}), Remembering(None)
    box, other = ends(target)
    box.write(source, 1)
    source.state["k"].append(2)
    across(box, other)
    other.read_into(target, 0)
    assert target.state == {"k": [1]}


def test_another_worker_is_sent_the_latest_weights_again() -> None:
    target = net(0.0)
    box, other = ends(target)
    box.write(net(1.0), 1)
    across(box, other)
    renewed, successor = box.renewed(), ends(target)[1]
    across(renewed, successor)
    assert (renewed.version, successor.read_into(target, 0), values(target)) == (1, 1, [1.0])


def test_a_closed_mailbox() -> None:
    policy = net(0.0)
    box, _ = ends(policy)
    box.close()
    box.close()
    for call in (lambda: box.version, lambda: box.write(policy, 1), lambda: box.read_into(policy, 0)):
        with pytest.raises(ClosedError, match="this weight mailbox is closed"):
            call()


def test_versions_count_from_one() -> None:
    box, _ = ends(net(0.0))
    with pytest.raises(OptionError, match="expected 1 or more, got 0"):
        box.write(net(0.0), 0)


def test_a_mailbox_without_weights_takes_what_is_packed() -> None:
    policy = net(1.0)
    box = NoMailbox.for_weights(describe(policy))
    box.send(PackedWeights(box.described, policy), 1)
    assert (box.version, NoMailbox.attach(describe(policy)).read_into(policy, 0)) == (0, 0)


def test_a_packed_block_holds_the_tensors() -> None:
    described, target = describe(net(0.0)), net(0.0)
    half_in(described, PackedWeights(described, net(4.0)).block).load_into(target)
    assert values(target) == [4.0]
