"""States of collectors in the form that earlier versions gave them: the stream goes on from them as from those of today.

They lack names that came later: the number of a worker, and that of the next one; batch sizes of nested TensorDicts, in what
an env steps from, in batches and in episodes that wait; attributes that travel with weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from reap.collectors import MultiaSyncDataCollector, MultiSyncDataCollector, SyncDataCollector
from reap.testing.marked import Marked
from tests.collectors.kinds import KINDS
from tests.collectors.test_resume import FRAMES, Recall, assert_equal, saved, take

LATER = ("leaf", "next_leaf", "sizes", "attributes")
"""What earlier versions did not write."""


def as_before(state: Any) -> Any:
    """A state without what came later."""
    if isinstance(state, dict):
        return {key: as_before(value) for key, value in state.items() if key not in LATER}
    return type(state)(map(as_before, state)) if isinstance(state, list | tuple) else state


def one(kind: str, **options: Any) -> Any:
    return SyncDataCollector(KINDS[kind](Marked), Recall(), frames_per_batch=FRAMES, **options)


def several(cls: Any) -> Any:
    return cls([lambda: KINDS["serial"](Marked)] * 2, Recall(), frames_per_batch=FRAMES)


MAKERS: dict[str, Callable[[], Any]] = {
    "one env": lambda: one("wrapped"),
    "serial": lambda: one("serial"),
    "an env of TensorDicts": lambda: one("custom batched"),
    "whole episodes": lambda: one("serial", trajs_per_batch=2),
    "together": lambda: several(MultiSyncDataCollector),
    "as they come": lambda: several(MultiaSyncDataCollector),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MAKERS)
def test_the_stream_goes_on(name: str) -> None:
    def run(form: Callable[[Any], Any]) -> list[Any]:
        torch.manual_seed(11)
        with MAKERS[name]() as collector, MAKERS[name]() as another:
            collector.set_seed(7)
            take(collector, 2)
            state = saved(collector.state_dict())
            assert any(later in str(state) for later in LATER)
            another.load_state_dict(form(state))
            torch.manual_seed(3)
            return [batch.clone() for batch in take(another, 2)]

    def today(state: Any) -> Any:
        return state

    found, expected = run(as_before), run(today)
    if name == "as they come":  # in the order in which its workers are ready
        assert sorted(batch.numel() for batch in found) == sorted(batch.numel() for batch in expected)
    else:
        assert_equal(found, expected)
