"""Python programs in processes of their own, for what a test process cannot do to itself."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parent.parent.parent
TIMEOUT = 180


class Script:
    """A program that runs in a process group of its own, which is killed at the end.

    Args:
        code: its text, for `python -c`.
        arguments: what python is called with instead.
    """

    def __init__(self, code: str, arguments: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *(arguments or ("-c", code))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    @property
    def code(self) -> int:
        """Its exit code."""
        return self.process.wait(TIMEOUT)

    def line(self) -> str:
        """Its next line of output."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the script ended: {self.communicate()[1]}")
        return line

    def tell(self, text: str) -> None:
        """Write to its standard input."""
        assert self.process.stdin
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def communicate(self, text: str = "") -> tuple[str, str]:
        """Wait for its end; the rest of its output, and its errors."""
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        self.tell(text)
        self.process.stdin.close()
        # Not Popen.communicate, which does not know what `line` has read ahead.
        return self.process.stdout.read(), self.process.stderr.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(TIMEOUT)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(OSError):
                if stream:
                    stream.close()
