"""A wish and the command that it is for may overtake each other."""

from __future__ import annotations

from reap.workers.progress import COLUMN, LEAVE, STOP, STOP_EARLY, new_control
from reap.workers.rpc.channel import Wishes


def test_a_wish_for_the_command_under_way() -> None:
    control = new_control()
    wishes = Wishes(control)
    wishes.begin(1)
    control[COLUMN] = 5
    wishes.stop_early(1)
    assert (control[STOP], control[COLUMN]) == (STOP_EARLY, 5)
    wishes.begin(1)  # another command, before which nothing was to be forgotten
    assert (control[STOP], control[COLUMN]) == (STOP_EARLY, 5)
    wishes.begin(2)
    assert (control[STOP], control[COLUMN]) == (0, -1)


def test_a_wish_that_comes_before_its_command() -> None:
    control = new_control()
    wishes = Wishes(control)
    wishes.begin(1)
    wishes.stop_early(2)
    assert control[STOP] == 0
    wishes.begin(2)
    assert control[STOP] == STOP_EARLY


def test_a_wish_that_comes_after_its_command_has_ended() -> None:
    control = new_control()
    wishes = Wishes(control)
    wishes.begin(1)
    wishes.begin(2)
    wishes.stop_early(1)
    assert control[STOP] == 0


def test_a_worker_that_leaves_leaves() -> None:
    control = new_control()
    wishes = Wishes(control)
    control[STOP] = LEAVE
    wishes.begin(1)
    assert control[STOP] == LEAVE
