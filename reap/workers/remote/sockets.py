"""Finds the TCP connections of this process, because gloo does not show its own, and makes the kernel watch them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection


def sockets() -> dict[str, str]:
    """The sockets of this process, by descriptor."""
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[name] = target
    return found


def connections(before: Collection[str]) -> dict[str, socket.socket]:
    """TCP connections of this process, by `"local peer"` addresses; the sockets are duplicates that share their blocking mode.

    Args:
        before: sockets to leave out.
    """
    found: dict[str, socket.socket] = {}
    for name, target in sockets().items():
        if target not in before:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                one = stack.enter_context(socket.socket(fileno=os.dup(int(name))))
                if found.setdefault(_ends_of(one), one) is one:  # else another duplicate of it
                    stack.pop_all()
    return found


def _ends_of(one: socket.socket) -> str:
    """The addresses of a connection.

    Raises:
        OSError: it is not connected, or does not use TCP.
    """
    if one.family not in {socket.AF_INET, socket.AF_INET6}:
        raise OSError(one.family)
    here, there = one.getsockname(), one.getpeername()
    return f"{here[0]}:{here[1]} {there[0]}:{there[1]}"


def watch(one: socket.socket, lost_after: float) -> None:
    """Make the kernel end a connection if the other machine is silent for some time.

    The two kernels probe each other, so it does not matter how busy the processes are.

    Args:
        one: the connection.
        lost_after: seconds of silence.
    """
    step = max(1, int(lost_after / 4))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, step)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, step)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(lost_after * 1000))
