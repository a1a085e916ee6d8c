"""How the two sides of a pair find each other: through a file on one machine, otherwise through a TCPStore.

    carrier                              store                              worker
      | invitation ---------------- by the launcher ----------------------->|
      |                       hello: who it is  <---------------------------|
      | waits for hello, checks the job                                      |
      |<================== ProcessGroupGloo of two, in that store ==========>|

Nothing listens on all interfaces. On one machine the store is a file in a private folder, and gloo uses the loopback interface.
Otherwise the store's socket is bound to the address that workers are given, because a TCPStore would listen on all interfaces.
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
"""Seconds to connect the two sides once both are present."""

LOOK = 0.01
"""Seconds between two checks whether a worker has connected."""


class Invitation(Protocol):
    """Tells a worker where to connect; can be pickled."""

    @property
    def place(self) -> str:
        """The place, as text for messages."""
        ...

    def store(self, timeout: float) -> Store:
        """Open the store, in the worker's process."""
        ...

    def own_address(self) -> str:
        """The address of the interface that the worker's machine uses."""
        ...


@dataclass(frozen=True)
class FileInvitation:
    """An invitation to a file on this machine.

    Attributes:
        path: the path of the file.
    """

    path: str

    @property
    def place(self) -> str:
        """The path of the file."""
        return self.path

    def store(self, timeout: float) -> Store:
        """The file as a store."""
        return FileStore(self.path, 2)

    def own_address(self) -> str:
        """The loopback interface."""
        return LOOPBACK


@dataclass(frozen=True)
class TcpInvitation:
    """An invitation to a TCPStore.

    Attributes:
        address: of the machine that runs it.
        port: of the store.
        name: the name of the pair.
    """

    address: str
    port: int
    name: str

    @property
    def place(self) -> str:
        """Address and port, as text for messages."""
        return f"{self.address}:{self.port}"

    def store(self, timeout: float) -> Store:
        """Open the part of the store that belongs to the pair.

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
        """The address that this machine uses to reach the store."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((self.address, self.port))  # sends nothing: the kernel looks up the way
            return probe.getsockname()[0]


class FileMeeting:
    """The meeting place for workers on this machine: a file for each, in a private folder that exists while one is awaited."""

    address = LOOPBACK
    place = "this machine"

    def __init__(self) -> None:
        self._folder = ""
        self._awaited: set[str] = set()
        self._lock = threading.Lock()

    def invitation(self, name: str) -> Invitation:
        """An invitation for a worker."""
        with self._lock:
            self._awaited.add(name)
            self._folder = self._folder or tempfile.mkdtemp(prefix="reap-gloo-")
            return FileInvitation(os.path.join(self._folder, name))

    def store(self, name: str) -> Store:
        """Open the store of a pair, in this process."""
        return FileStore(os.path.join(self._folder, name), 2)

    def forget(self, name: str) -> None:
        """Clean up after a pair that is connected, or never will be."""
        with self._lock:
            self._awaited.discard(name)
            if self._folder and not self._awaited:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = ""

    def close(self) -> None:
        """Remove everything."""
        for name in list(self._awaited):
            self.forget(name)


class TcpMeeting:
    """The meeting place for workers on other machines.

    Args:
        address: of the interface by which they reach this machine.
        port: the port to listen on; None for any free port.

    Raises:
        OptionError: it is not possible to listen at this address.
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
        """Address and port, as text for messages."""
        return f"{self.address}:{self._port}"

    def invitation(self, name: str) -> Invitation:
        """An invitation for a worker."""
        return TcpInvitation(self.address, self._port, name)

    def store(self, name: str) -> Store:
        """Open the store of a pair, in this process."""
        return PrefixStore(name, self._store)

    def forget(self, name: str) -> None:
        """Clean up after a pair that is connected, or never will be."""

    def close(self) -> None:
        """Stop listening."""
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
        raise OptionError(f"{what}: cannot listen there: {error.strerror}") from error
    return listener


def own_addresses() -> list[str]:
    """The addresses that this machine's hostname resolves to, without those of the loopback interface."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return [one for one in addresses if not ipaddress.ip_address(one.partition("%")[0]).is_loopback]


def introduction() -> dict[str, Any]:
    """A process's description of itself."""
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
        meeting: the meeting place.
        name: the name of the pair.
        timeout: seconds to wait.
        give_up: called now and then; returns the reason why the worker will not connect, or None.
        connecting: a context that is entered while the connection to the worker is made.

    Returns:
        The pair, and the worker's introduction.

    Raises:
        TimeoutError: it did not connect in time.
        ConnectionError: it will not connect, or the connection failed; the message says why.
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
    """Connect as an invitation says; called in the worker.

    Raises:
        ConnectionError: there is no connection to the collector's process.
    """
    store = invitation.store(timeout)
    store.set(HELLO, json.dumps(introduction()))
    try:
        return Pair(store, 1, invitation.own_address(), CONNECTING)
    except RuntimeError as error:
        raise ConnectionError(f"no connection to the collector's process over {invitation.place}: {error}") from error
