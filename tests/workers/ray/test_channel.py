"""`ActorChannel`: what the trainer's calls bring comes in the order of its numbers, and messages wait to be fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from reap.workers.messages import Encoded, MessageKind, Received
from reap.workers.progress import COLUMN, LEAVE, STOP, STOP_EARLY
from reap.workers.ray.channel import ActorChannel, Ending, Wish

pytestmark = pytest.mark.timeout(20)

COMMAND, POST = MessageKind.COMMAND, MessageKind.POST


@pytest.fixture
def channel() -> ActorChannel:
    return ActorChannel()


@pytest.fixture
def aside() -> Iterator[Callable[..., Future[Any]]]:
    """Calls a function in another thread."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def body(received: Received | None) -> bytes:
    assert received is not None
    return received.encoded.body


def take(channel: ActorChannel, number: int, kind: int, text: bytes = b"", name: str = "") -> None:
    channel.take(number, kind, name, Encoded(text))


def test_commands_come_in_the_order_of_their_numbers(channel: ActorChannel) -> None:
    for number in (2, 0, 1):
        take(channel, number, COMMAND, b"%d" % number)
    assert [body(channel.receive()) for _ in range(3)] == [b"0", b"1", b"2"]


def test_what_is_early_waits_for_what_was_sent_before(channel: ActorChannel, aside: Callable[..., Future[Any]]) -> None:
    take(channel, 1, COMMAND, b"second")
    received = aside(channel.receive)
    take(channel, 0, COMMAND, b"first")
    assert body(received.result()) == b"first"


def test_a_post_that_waits_is_replaced_where_it_waits(channel: ActorChannel) -> None:
    take(channel, 0, POST, b"old", "weights")
    take(channel, 1, COMMAND, b"collect")
    take(channel, 2, POST, b"other", "else")
    take(channel, 3, POST, b"new", "weights")
    found = [channel.receive() for _ in range(3)]
    assert [body(one) for one in found] == [b"new", b"collect", b"other"]
    assert [one.wants_reply for one in found if one] == [False, True, False]


def test_wishes_are_carried_out_in_their_turn(channel: ActorChannel) -> None:
    channel.control[COLUMN] = 5
    take(channel, 1, Wish.STOP_EARLY)
    assert channel.control[STOP] == 0
    take(channel, 0, Wish.CLEAR)
    assert (channel.control[COLUMN], channel.control[STOP]) == (-1, STOP_EARLY)
    take(channel, 2, Wish.CLEAR)
    assert channel.control[STOP] == 0


def test_who_leaves_takes_no_other_command(channel: ActorChannel) -> None:
    take(channel, 0, COMMAND)
    take(channel, 1, Wish.LEAVE)
    take(channel, 2, Wish.CLEAR)
    assert channel.control[STOP] == LEAVE
    assert channel.receive() is None
    channel.finish(0)
    assert channel.following(0)[:2] == (Ending.LEFT, 0)


def test_a_wait_for_commands_ends_with_a_signal(channel: ActorChannel, aside: Callable[..., Future[Any]]) -> None:
    received = aside(channel.receive)
    channel.leave()
    assert received.result() is None


def test_messages_are_fetched_one_by_one(channel: ActorChannel, aside: Callable[..., Future[Any]]) -> None:
    numbers = np.arange(4, dtype=np.int16)
    channel.send(MessageKind.STARTED, Encoded(b""))
    assert channel.following(0)[:2] == (MessageKind.STARTED, b"")
    second = aside(channel.send, MessageKind.REPLY, Encoded(b"two", [numbers.data]))
    assert not second.done()
    fetched = channel.following(1)
    second.result()
    assert (fetched.kind, fetched.body) == (MessageKind.REPLY, b"two")
    assert np.shares_memory(fetched.buffers[0], numbers)
    assert channel.following(1)[:2] == (MessageKind.REPLY, b"two")  # once more: it was not received


def test_the_end_comes_after_all_messages(channel: ActorChannel) -> None:
    channel.send(MessageKind.RAISED, Encoded(b"why"))
    channel.finish(1)
    assert channel.following(0)[:2] == (MessageKind.RAISED, b"why")
    assert channel.following(1)[:2] == (Ending.ENDED, 1)
    assert channel.has_ended


def test_posts_are_told_of(channel: ActorChannel, aside: Callable[..., Future[Any]]) -> None:
    news = aside(channel.following, 0)
    take(channel, 0, POST, name="weights")
    assert (news.result().kind, news.result().posts) == (None, 1)
    news = aside(channel.following, 0)
    take(channel, 1, POST, name="weights")
    assert news.result().posts == 2


def test_nobody_waits_once_the_trainer_has_hung_up(channel: ActorChannel, aside: Callable[..., Future[Any]]) -> None:
    channel.send(MessageKind.STARTED, Encoded(b""))
    sending = aside(channel.send, MessageKind.REPLY, Encoded(b""))
    take(channel, 0, Wish.HANG_UP)
    with pytest.raises(BrokenPipeError):
        sending.result()
    assert channel.receive() is None
