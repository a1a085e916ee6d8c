"""Ctrl-C at each moment of a call in turn, by a trace function: whichever it is, nothing may be lost or left taken.

Python looks for signals where a function begins, behind a call of what is not written in Python, and where a loop goes back.
"""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import reap

PACKAGE = str(Path(reap.__file__).parent)
CALLS = {dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW") if name in dis.opmap}
BACK = {dis.opmap["JUMP_BACKWARD"]}


class CtrlC:
    """Runs a call, with Ctrl-C at the n-th moment in this package at which it can come.

    Attributes:
        moments: how many there were.
        where: where it came, `file:line`, or None.
    """

    def __init__(self, at: int = -1) -> None:
        self.moments = 0
        self.where: str | None = None
        self._at = at
        self._before: dict[FrameType, int] = {}

    def call(self, function: Callable[[], Any]) -> tuple[Any, bool]:
        """What the function returns, or None, and whether Ctrl-C broke it off."""
        earlier = sys.gettrace()
        try:
            sys.settrace(self._enter)
            return function(), False
        except KeyboardInterrupt:
            return None, True
        finally:
            sys.settrace(earlier)
            self._before.clear()

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        caller = frame.f_back
        if caller is not None:
            self._before.pop(caller, None)  # of a function in Python Python does not look behind it
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if frame.f_code.co_code[frame.f_lasti] == dis.opmap["RESUME"]:  # else a generator is closed
            self._moment(frame)
        return self._step

    def _step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            code = frame.f_code.co_code[frame.f_lasti]
            before = self._before.pop(frame, None)
            if before is not None:
                self._moment(frame)
            if code in CALLS or code in BACK:
                self._before[frame] = code
        return self._step

    def _moment(self, frame: FrameType) -> None:
        self.moments += 1
        if self.moments == self._at + 1:
            self.where = f"{frame.f_code.co_filename[len(PACKAGE) + 1 :]}:{frame.f_lineno}"
            signal.raise_signal(signal.SIGINT)


def moments_of(function: Callable[[], Any]) -> int:
    """At how many moments Ctrl-C could come into a call."""
    counter = CtrlC()
    counter.call(function)
    return counter.moments


def each_moment(act: Callable[[], Any], every: int, between: Callable[[CtrlC], Any]) -> int:
    """Ctrl-C at each moment of an act that is done again and again; the number of times that it broke the act off.

    Args:
        act: what is done.
        every: how many moments are left out between two, plus one.
        between: is called behind each act.
    """
    total, broken_off = max(moments_of(act) for _ in range(3)), 0
    for moment in range(0, total, every):
        interruption = CtrlC(moment)
        _, is_broken_off = interruption.call(act)
        broken_off += is_broken_off
        try:
            between(interruption)
        except Exception as error:
            error.add_note(f"after Ctrl-C in {interruption.where}, moment {moment}")
            raise
    return broken_off
