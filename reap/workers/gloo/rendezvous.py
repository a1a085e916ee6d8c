"""How the two sides of a pair find each other: in a file where both are on one machine, else through a TCPStore.

    carrier                              store                              worker
      | invitation ---------------- by the launcher ----------------------->|
      |                       hello: who it is  <---------------------------|
      | waits for hello, looks at the job                                    |
      |<================== ProcessGroupGloo of two, in that store ==========>|

Nothing listens on all interfaces. On one machine the store is a file in a private folder, and gloo uses the loopback interface.
Elsewhere the store is bound to the address that workers are given: a TCPStore that is only told an address would listen on all.
"""

from __future__ import annotations

import ipaddress
import json
import os
import platform
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from reap.errors import OptionError
from reap.workers.gloo.pair import Pair
from reap.workers.remote.versions import own_versions, refuse_other_versions

LOOPBACK = "127.0.0.1"
HELLO = "hello"
CONNECTING = 10.0
"""Seconds for the connection between two sides that have both come."""

LOOK = 0.01
"""Seconds between two looks whether a worker has come."""


class Invitation(Protocol):
    """What a worker is told of where to go; it can be pickled."""

    @property
    def place(self) -> str:
        """In words."""
        ...

    def store(self, timeout: float) -> Store:
        """The store, from where the worker is."""
        ...

    def own_address(self) -> str:
        """The address of the interface of the worker's machine that is used."""
        ...


@dataclass(frozen=True)
class FileInvitation:
    """To a file of this machine.

    Attributes:
        path: of the file.
    """

    path: str

    @property
    def place(self) -> str:
        """The file."""
        return self.path

    def store(self, timeout: float) -> Store:
        """The file as a store."""
        return FileStore(self.path, 2)

    def own_address(self) -> str:
        """The loopback interface."""
        return LOOPBACK


@dataclass(frozen=True)
class TcpInvitation:
    """To a TCPStore.

    Attributes:
        address: of the machine that has it.
        port: there.
        name: of the pair.
    """

    address: str
    port: int
    name: str

    @property
    def place(self) -> str:
        """Address and port."""
        return f"{self.address}:{self.port}"

    def store(self, timeout: float) -> Store:
        """The part of the store that belongs to the pair.

        Raises:
            ConnectionError: it cannot be reached.
        """
        limit = timedelta(seconds=timeout)
        try:
            return PrefixStore(self.name, TCPStore(self.address, self.port, None, False, limit, wait_for_workers=False))
        except RuntimeError as error:
            where = f"at {self.place} from {platform.node()} within {timeout:g} s"
            raise ConnectionError(f"the collector's process cannot be reached {where}: {error}") from error

    def own_address(self) -> str:
        """The address that this machine uses on the way there."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((self.address, self.port))  # sends nothing: the kernel looks up the way
            return probe.getsockname()[0]


class FileMeeting:
    """Where workers of this machine are met: a file for each, in a private folder that is there only while one is awaited."""

    address = LOOPBACK
    place = "this machine"

    def __init__(self) -> None:
        self._folder = ""
        self._awaited: set[str] = set()
        self._lock = threading.Lock()

    def invitation(self, name: str) -> Invitation:
        """An invitation to a worker."""
        with self._lock:
            self._awaited.add(name)
            self._folder = self._folder or tempfile.mkdtemp(prefix="reap-gloo-")
            return FileInvitation(os.path.join(self._folder, name))

    def store(self, name: str) -> Store:
        """The store of a pair, here."""
        return FileStore(os.path.join(self._folder, name), 2)

    def forget(self, name: str) -> None:
        """The pair is connected, or never will be."""
        with self._lock:
            self._awaited.discard(name)
            if self._folder and not self._awaited:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = ""

    def close(self) -> None:
        """Forget all."""
        for name in list(self._awaited):
            self.forget(name)


class TcpMeeting:
    """Where workers of other machines are met.

    Args:
        address: of the interface that they reach this machine by.
        port: to listen on; None for any that is free.

    Raises:
        OptionError: nobody can listen there.
    """

    def __init__(self, address: str, port: int | None) -> None:
        self.address = address
        listener = _listener(address, port)
        self._port = listener.getsockname()[1]
        # It owns the descriptor from here on.
        self._store: Any = TCPStore(
            address,
            self._port,
            None,
            True,
            timedelta(seconds=CONNECTING),
            False,
            master_listen_fd=listener.detach(),
            use_libuv=True,
        )

    @property
    def place(self) -> str:
        """Address and port."""
        return f"{self.address}:{self._port}"

    def invitation(self, name: str) -> Invitation:
        """An invitation to a worker."""
        return TcpInvitation(self.address, self._port, name)

    def store(self, name: str) -> Store:
        """The store of a pair, here."""
        return PrefixStore(name, self._store)

    def forget(self, name: str) -> None:
        """The pair is connected, or never will be."""

    def close(self) -> None:
        """Listen no more."""
        self._store = None


Meeting = FileMeeting | TcpMeeting


def _listener(address: str, port: int | None) -> socket.socket:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        raise OptionError(f"address: expected the IP address of one interface of this machine, got {address!r}") from None
    if ip.is_unspecified:
        raise OptionError(f"address: {address} is every interface; expected the one that the workers reach this machine by")
    listener = socket.socket(socket.AF_INET6 if ip.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port or 0))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        what = f"tcp_port={port}, address {address}" if port else f"address {address}"
        raise OptionError(f"{what}: nobody can listen there: {error.strerror}") from error
    return listener


def own_addresses() -> list[str]:
    """The addresses that the name of this machine stands for, without those of the loopback interface."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return [one for one in addresses if not ipaddress.ip_address(one.partition("%")[0]).is_loopback]


def introduction() -> dict[str, Any]:
    """What a process says of itself."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "versions": own_versions()}


def meet(
    meeting: Meeting,
    name: str,
    timeout: float,
    give_up: Callable[[], str | None],
    connecting: AbstractContextManager[Any] | None = None,
) -> tuple[Pair, dict[str, Any]]:
    """Wait for a worker, and connect to it.

    Args:
        meeting: where.
        name: of the pair.
        timeout: seconds.
        give_up: asked now and then: why nobody will come, or None.
        connecting: entered while the worker, which has come, is connected to.

    Returns:
        The pair, and the worker's introduction.

    Raises:
        TimeoutError: it did not come in time.
        ConnectionError: it will not come, or cannot be connected to; the text says why.
    """
    deadline = time.monotonic() + timeout
    try:
        store = meeting.store(name)
        while not store.check([HELLO]):
            if reason := give_up():
                raise ConnectionError(reason)
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(LOOK)
        hello = json.loads(store.get(HELLO))
        refuse_other_versions(hello["versions"], hello["host"])
        with connecting or nullcontext():
            return Pair(store, 0, meeting.address, CONNECTING), hello
    except RuntimeError as error:
        raise ConnectionError(f"a worker has come to {meeting.place}, and cannot be connected to: {error}") from error
    finally:
        meeting.forget(name)


def join(invitation: Invitation, timeout: float) -> Pair:
    """Go where a worker is told to go.

    Raises:
        ConnectionError: nobody can be reached there.
    """
    store = invitation.store(timeout)
    store.set(HELLO, json.dumps(introduction()))
    try:
        return Pair(store, 1, invitation.own_address(), CONNECTING)
    except RuntimeError as error:
        raise ConnectionError(f"no connection to the collector's process over {invitation.place}: {error}") from error
