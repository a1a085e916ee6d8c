"""Errors that name the processes of an `AsyncVectorEnv` that died.

gymnasium raises what the pipe of the process raises, such as an EOFError without a text, and in later calls an error about a
call that is pending.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

from gymnasium.vector import AsyncVectorEnv

from reap.envs.gymnasium.vector_kinds import layers
from reap.errors import ClosedError, WorkerDied

PATIENCE = 1.0
"""Seconds to wait for the end of a process whose pipe has broken: its files are closed a moment before it ends."""

POLL = 1e-3
"""Seconds between two looks for an exit code."""

Call = Callable[..., Any]


def naming_deaths(call: Call, env: Any, phase: str) -> Call:
    """Return the call of a vector env, with errors that name processes that have died.

    Args:
        call: a method of the env.
        env: the env, or wrappers around it; unless it is an `AsyncVectorEnv`, the call is returned as it is.
        phase: the activity of the processes during the call, for messages.

    Raises:
        WorkerDied: by the call: a process ended without being asked to.
        ClosedError: by the call: a process ended in an earlier call, because its env raised.
    """
    base = layers(env)[-1]
    if not isinstance(base, AsyncVectorEnv):
        return call
    pipes: list[Any] = base.parent_pipes  # None where an env raised

    def naming(*arguments: Any, **keywords: Any) -> Any:
        if None in pipes:
            number = pipes.index(None)
            raise ClosedError(f"{base}: its process {number} has ended, because its env raised; make a new vector env")
        try:
            return call(*arguments, **keywords)
        except Exception as error:
            has_broken = isinstance(error, EOFError | ConnectionError)
            if died := _death(base, PATIENCE if has_broken else 0.0, phase):
                raise died from error
            raise

    return naming


def _death(env: AsyncVectorEnv[Any, Any], patience: float, phase: str) -> WorkerDied | None:
    """The end of a process, if there is one, except those whose env raised: gymnasium raises that error."""
    pipes: list[Any] = env.parent_pipes
    watched = {number: one for number, one in enumerate(env.processes) if pipes[number] is not None}
    deadline = time.monotonic() + patience
    ready = wait([one.sentinel for one in watched.values()], patience)
    for number, process in watched.items():
        while process.exitcode is None and process.sentinel in ready and time.monotonic() < deadline:
            time.sleep(POLL)
        if process.exitcode is not None:
            report = f"It is the process of env {number} of {env}, which cannot be used any more; make a new vector env."
            return WorkerDied(number, process.exitcode, phase, report)
    return None
