"""Waits for an item, and signals that Python would not handle during them."""

from __future__ import annotations

import signal
import threading
from queue import SimpleQueue
from typing import Any

from reap.system.queues import next_of


def test_a_signal_that_another_thread_is_given_is_handled_during_a_wait() -> None:
    """As one that comes when the wait begins: nothing interrupts it. The handler puts what is waited for."""
    waits = threading.Event()

    class Told(SimpleQueue[str]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            waits.set()
            return super().get(block, timeout)

    def signal_oneself() -> None:
        waits.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)

    queue = Told()
    before = signal.signal(signal.SIGUSR2, lambda *_: queue.put("handled"))
    thread = threading.Thread(target=signal_oneself)
    try:
        thread.start()
        assert next_of(queue) == "handled"
    finally:
        thread.join()
        signal.signal(signal.SIGUSR2, before)
