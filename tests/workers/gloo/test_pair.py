"""A pair by itself, and an inbox: what happens in moments that a group rarely meets."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from torch._C._distributed_c10d import FileStore

from reap.workers.gloo.inbox import Inbox
from reap.workers.gloo.pair import Pair
from reap.workers.gloo.rendezvous import LOOPBACK
from reap.workers.launchers.base import Task
from reap.workers.launchers.mp import MpLauncher
from tests.workers.handlers import descriptors

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


def meet(path: Path, rank: int) -> Pair:
    return Pair(FileStore(str(path), 2), rank, LOOPBACK, 20.0)


def leaves_once_it_is_connected(data: bytes, _control: Any) -> int:
    """A worker that is killed before it has said which connections it has."""
    Pair._find_sockets = lambda self, before: os._exit(3)  # type: ignore[method-assign]
    meet(Path(data.decode()), 1)
    return 0


def test_a_worker_that_is_gone_as_soon_as_it_is_connected_leaves_no_descriptor(tmp_path: Path) -> None:
    """A socket that is dropped and not closed is a warning, and here an error."""
    launcher, path = MpLauncher(), tmp_path / "store"
    launcher.launch(Task(f"{__name__}:leaves_once_it_is_connected", str(path).encode(), "gone")).close()
    before = descriptors()
    with pytest.raises(ConnectionError):
        meet(path, 0)
    gc.collect()
    assert descriptors() == before
    launcher.close()


class Gate(SimpleQueue[Any]):
    """Closes the inbox when somebody is about to wait, as a signal's handler may."""

    def __init__(self, inbox: Inbox) -> None:
        super().__init__()
        self._inbox = inbox

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self._inbox.close()
        return super().get(block, timeout)


def test_an_inbox_that_is_closed_between_the_look_and_the_wait_lets_go() -> None:
    inbox = Inbox()
    inbox._bell = Gate(inbox)
    assert inbox.take() is None
    assert inbox.take() is None
