"""The end of the processes of an `AsyncVectorEnv`, within a time that is limited.

gymnasium waits without limit for processes that died, are stuck in a step, or whose replies it has already read. Here each is
asked, whatever it is doing, and those that do not end in time are killed:

    "close" to every pipe  ->  read what comes, until the processes end  ->  SIGTERM  ->  SIGKILL
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from reap.envs.gymnasium.vector_kinds import layers

PATIENCE = 5.0
"""Seconds for the step in progress and the `close` of the envs."""

LAST_PATIENCE = 1.0
"""Seconds between SIGTERM and SIGKILL."""

CHUNK = 1 << 16
"""Bytes that are read from a pipe at once."""


def end_processes(env: Any, patience: float = PATIENCE) -> None:
    """Close an `AsyncVectorEnv`, so that the `close` of the wrappers around it finds it closed.

    Args:
        env: the env, or wrappers around it; other envs are left as they are.
        patience: seconds after which processes that have not ended are killed.
    """
    base = layers(env)[-1]
    if not isinstance(base, AsyncVectorEnv) or base.closed:
        return
    running = _wait_for(base.processes, _ask(base), patience)
    for end in (BaseProcess.terminate, BaseProcess.kill):
        running = _end(running, end)
    base._state = AsyncState.DEFAULT  # pyright: ignore[reportPrivateUsage]  nobody is left to reply to a call that is pending
    base.close(terminate=True)


def _ask(env: AsyncVectorEnv[Any, Any]) -> list[int]:
    """Ask the processes to close their envs; return the descriptors of the pipes through which they reply."""
    asked: list[int] = []
    pipes: list[Any] = env.parent_pipes
    for pipe in pipes:
        # None: the process has ended, because its env raised.
        if pipe is not None and not pipe.closed:
            with suppress(OSError):  # the process has died, or reads nothing
                os.set_blocking(pipe.fileno(), False)
                pipe.send(("close", None))
                asked.append(pipe.fileno())
    return asked


def _wait_for(processes: list[Any], pipes: list[int], patience: float) -> list[Any]:
    """Wait until the processes have ended, and drop what they send; return those that are still running."""
    running = {one.sentinel: one for one in processes}
    open_pipes, deadline = set(pipes), time.monotonic() + patience
    while running and (left := deadline - time.monotonic()) > 0:
        for ready in wait([*running, *open_pipes], left):
            if ready in running:
                del running[ready]
            elif not _drop(ready):
                open_pipes.discard(ready)
    return list(running.values())


def _drop(pipe: Any) -> bool:
    """Read from a pipe, without waiting; return whether there may be more."""
    try:
        return bool(os.read(pipe, CHUNK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _end(processes: list[Any], end: Callable[[Any], None]) -> list[Any]:
    for process in processes:
        if process.is_alive():  # else its pid may be another's
            end(process)
    return _wait_for(processes, [], LAST_PATIENCE)
