"""Ctrl-C while workers write to the replay buffer: no frame is lost, and none is there twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from reap.testing.marked import Told
from tests.collectors.replays import GatedWrite, memory, require_each_once, singles
from tests.collectors.worker_kinds import CLASSES, Gate

pytestmark = pytest.mark.processes


@pytest.mark.parametrize("after", ["next", "state", "rollout", "reset"])
@pytest.mark.parametrize("name", CLASSES)
def test_ctrl_c_in_the_wait_for_a_write(name: str, after: str, tmp_path: Path) -> None:
    gate, buffer = Gate(tmp_path), memory()

    def interrupt() -> None:
        gate.wait_for_entry()
        os.kill(os.getpid(), signal.SIGINT)

    options: Any = {"frames_per_batch": 12, "postproc": GatedWrite(gate, 2), "replay_buffer": buffer}
    with CLASSES[name](singles(1), Told(), **options) as collector:
        assert collector.next() is None
        thread = Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            collector.next()
        thread.join()
        gate.open()
        if after == "state":
            state = collector.state_dict()
            assert state["counters"]["frames"] == buffer.write_count == 24
        if after == "rollout":
            assert collector.rollout().shape[-1] == 12
        if after == "reset":
            collector.reset()
            assert buffer.write_count == 24
        assert collector.next() is None
        assert len(buffer) == buffer.write_count == (24 if after == "next" else 36)
        if after in ("next", "state"):
            for _ in range(2):
                collector.next()
            require_each_once(buffer, buffer.write_count)
    gate.close()
