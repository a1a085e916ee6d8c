"""`RpcChannel`: a worker's end of the line to its group; see `reap.workers.serve.Channel`.

thread "fetch"    fetch(key) ---> requests: control, at once
                             ---> commands and posts: receive
send ---> deliver(key, ...)       in the background, until the next `send`
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from torch.distributed import rpc

from reap.system.queues import next_of
from reap.workers import progress
from reap.workers.messages import Encoded, MessageKind, Received
from reap.workers.pickling import encode_apart
from reap.workers.progress import LEAVE, STOP, STOP_EARLY, Control
from reap.workers.rpc import line
from reap.workers.rpc.agent import LINGER
from reap.workers.rpc.line import Item, Told
from reap.workers.rpc.tensors import unwrapped, wrapped

FOREVER = 0.0
"""The timeout of calls that may take any time: the trainer may be busy for hours, and so may a rollout."""


class Wishes:
    """Requests of the group about the current command, or about one that has not arrived yet.

    A request and a command may overtake each other. So each carries its round: the number of times that the group had asked
    to reset the column before.

    Args:
        control: the worker's control ints.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = threading.Lock()
        self._round = self._stops = 0

    def stop_early(self, number: int) -> None:
        """Handle a request that has arrived."""
        with self._lock:
            self._stops = max(self._stops, number + 1)
            if number == self._round:
                self._control[STOP] |= STOP_EARLY

    def begin(self, number: int) -> None:
        """Note that a command of this round starts."""
        with self._lock:
            if number != self._round:
                self._round = number
                progress.clear(self._control)
                if self._stops > number:
                    self._control[STOP] |= STOP_EARLY


class RpcChannel:
    """The worker's end of the line.

    Args:
        trainer: the address of the group's agent.
        key: authenticates this worker.
        control: the worker's control ints.
        when_cut_off: called when the group is gone, in another thread.
    """

    def __init__(self, trainer: str, key: str, control: Control, when_cut_off: Callable[[], Any]) -> None:
        self._trainer, self._key = trainer, key
        self._control, self._wishes = control, Wishes(control)
        self._commands: SimpleQueue[Item | None] = SimpleQueue()
        self._sending: Any = None
        self._seconds = 0.0
        self._is_leaving = False
        self._left_by = 0
        self._when_cut_off = when_cut_off
        self._fetching = threading.Thread(target=self._fetch_all, name="reap-fetch", daemon=True)
        self._fetching.start()

    def receive(self) -> Received | None:
        """The next command; None if the group is gone, or after `leave`."""
        item = next_of(self._commands)
        if item is None or self._is_leaving:
            return None
        if item.told == Told.POST:
            self._call(line.took)
        else:
            self._wishes.begin(item.round)
        return Received(unwrapped(item.parts), wants_reply=item.told == Told.COMMAND)

    def encode(self, reply: Any) -> Encoded:
        """Prepare a reply, whose arrays are sent without a copy."""
        return encode_apart(reply, "the reply")

    def send(self, kind: MessageKind, encoded: Encoded) -> None:
        """Send a message in the background; returns once the previous one has arrived."""
        self.flush()
        begun = time.monotonic()
        self._sending = self._call(line.deliver, int(kind), self._seconds, *wrapped(encoded))
        self._sending.add_done_callback(lambda _: self._note(begun))

    def flush(self) -> None:
        """Wait until the last message has arrived.

        Raises:
            ConnectionError: the group is gone.
        """
        sending, self._sending = self._sending, None
        if sending is not None:
            try:
                sending.wait()
            except RuntimeError as error:
                raise ConnectionError(f"the group's process is gone: {error}") from error

    def close(self) -> None:
        """Wait until the last message has arrived, and make no more calls."""
        with contextlib.suppress(RuntimeError, ConnectionError):  # the group is gone
            self.flush()
            self._call(line.leave, self._left_by).wait()
            time.sleep(LINGER)
        self._fetching.join()

    def leave(self, number: int = 0) -> None:
        """End the current command with its current column, and accept no other.

        Args:
            number: of the signal that told this worker to leave, of which `close` tells the group; 0 if none did.
        """
        self._left_by = self._left_by or number
        self._is_leaving = True
        self._control[STOP] |= LEAVE
        self._commands.put(None)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return rpc.rpc_async(self._trainer, function, args=(self._key, *arguments), timeout=FOREVER)

    def _note(self, begun: float) -> None:
        self._seconds = time.monotonic() - begun

    def _fetch_all(self) -> None:
        try:
            while (items := self._call(line.fetch).wait()) is not None:
                for item in map(Item._make, items):
                    if item.told == Told.STOP_EARLY:
                        self._wishes.stop_early(item.round)
                    else:
                        self._commands.put(item)
                del items
        except RuntimeError:
            if not self._is_leaving:
                self._when_cut_off()
        self.leave()
