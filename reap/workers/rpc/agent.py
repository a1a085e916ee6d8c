"""`SharedAgent`: the RPC agent of this process; there can be only one, so all collectors share it.

    collector's process    take() -> Address ... give_back()    the user's own agent, if one runs, which is never shut down here
    worker's process       join(...)                            knows only that process, and is unknown to all

PyTorch's groups are not used: one of fixed size admits no later members, and one without a size asks all members, including
killed ones, at each change, and waits for them. But an agent answers any caller, so a worker needs no group to call the
collector's process, only its address. The collector sends messages as answers to calls that wait for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import socket
import struct
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch._C._distributed_c10d import HashStore, PrefixStore

from reap.errors import ClosedError, OptionError, headline

rpc: Any = import_module("torch.distributed.rpc")
api: Any = import_module("torch.distributed.rpc.api")
autograd: Any = import_module("torch.distributed.autograd")
"""torch has no public way to start an agent without a group; these names are unchanged since 1.12."""

INTERFACE = "TP_SOCKET_IFNAME"
"""The environment variable that names the interface on which agents listen; each process reads it once."""

TRANSPORTS = ("uv",)
"""TCP. The shared-memory transport polls without pause, so each process would use a third of a core."""

CHANNELS_HERE = ("cma", "basic")
"""How tensors travel on one machine: copied from the other process's memory if the kernel permits, else with the message."""

SIOCGIFADDR = 0x8915
"""Linux's ioctl number for an interface's address."""

LINGER = 0.02
"""Seconds before an agent ends, so that the other side's torch notices that its last answer arrived and prints no warning."""

TRAINER_NUMBER = 0

numbers = itertools.count(1 << 14)
"""Ranks of workers in torch, far from the user's. None is reused, because an agent keeps what belonged to one."""


@dataclass(frozen=True)
class Address:
    """The address of an agent.

    Attributes:
        name: the agent's name.
        number: its rank in torch.
        url: transport, host and port.
    """

    name: str
    number: int
    url: str

    @property
    def info(self) -> Any:
        """The address as torch's `WorkerInfo`."""
        return rpc.WorkerInfo(self.name, self.number)

    @property
    def host(self) -> str:
        """The host in the URL."""
        return self.url.partition("://")[2].rpartition(":")[0].strip("[]")

    @property
    def port(self) -> str:
        """The port in the URL."""
        return self.url.rpartition(":")[2]

    @property
    def is_of_one_machine(self) -> bool:
        """Whether it can be reached from its own machine only."""
        return self.host.startswith("127.") or self.host == "::1" or self.url.startswith("shm:")


class SharedAgent:
    """The agent of a process with collectors.

    Attributes:
        is_ours: whether it was started here; otherwise it is the user's.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._process = 0
        self.is_ours = False

    def take(self, options: Mapping[str, Any], *, is_local: bool, address: str | None = None) -> Address:
        """Use the running agent, or start one, until `give_back`.

        Args:
            options: options of `TensorPipeRpcBackendOptions`, if an agent is started.
            is_local: whether all callers are on this machine.
            address: of the interface to listen on; None for the loopback interface if all callers are on this machine,
                else for the one that this machine's hostname resolves to.

        Raises:
            ClosedError: the agent belongs to the parent of this forked process.
            OptionError: the agent does not listen at this address.
        """
        with self._lock:
            if self._users and self._process != os.getpid():
                raise ClosedError(
                    "RPC: the agent of this process does not work in its forks; make the collector in another process"
                )
            if not self._users:
                self.is_ours = not api._is_current_rpc_agent_set()
                if self.is_ours:
                    with listening_on(interface(address) if address else "lo" if is_local else None):
                        start(f"reap-{os.getpid()}", TRAINER_NUMBER, options, is_local=is_local, calls=not is_local)
                self._process = os.getpid()
            self._users += 1
            own = own_address()
        if address is not None and own.host != address:
            self.give_back()
            raise OptionError(
                f"address: the RPC agent of this process listens at {own.url}, not at {address}: torch chooses the interface "
                "when the first agent of a process starts; make this collector first, or in another process"
            )
        return own

    def visit(self, other: Address) -> None:
        """Use the running agent, or start one, to call another agent, until `give_back`.

        Raises:
            ClosedError: the agent belongs to the parent of this forked process.
            OptionError: the running agent does not know the other one.
        """
        with self._lock:
            if self._users and self._process != os.getpid():
                raise ClosedError("RPC: an agent does not work in a fork of its process; use it in a new process")
            if not self._users:
                self.is_ours = not api._is_current_rpc_agent_set()
                self._process = os.getpid()
            if self.is_ours and not self._users:
                join(other, f"reap-{os.getpid()}", other.number + 1, {}, is_local=other.is_of_one_machine)
            elif other.name not in [info.name for info in api._get_current_rpc_agent().get_worker_infos()]:
                raise OptionError(
                    f"RPC: the agent of this process does not know {other.name!r}; call init_rpc in both processes before, or "
                    "in neither"
                )
            self._users += 1

    def give_back(self) -> None:
        """Stop using the agent; ends one that was started here after its last use."""
        with self._lock:
            if self._process != os.getpid():
                return
            self._users -= 1
            if not self._users and self.is_ours:
                leave()


shared = SharedAgent()


def start(name: str, number: int, options: Mapping[str, Any], *, is_local: bool, calls: bool) -> None:
    """Start an agent that knows no other agent yet.

    Args:
        name: the agent's name.
        number: its rank in torch.
        options: options of `TensorPipeRpcBackendOptions`.
        is_local: whether it is used on this machine only.
        calls: whether it will call others; after such an agent, torch starts no agent of another rank in this process.
    """
    if calls:
        # Without it torch refuses calls. An agent before this one may have done it, with a number of its own: any will do.
        with contextlib.suppress(RuntimeError):
            autograd._init(number)
    here = {"_channels": list(CHANNELS_HERE)} if is_local else {}
    made = backend_options({**here, **options})
    agent = rpc.TensorPipeAgent(HashStore(), name, number, None, made, {}, [])
    api._init_rpc_states(agent)
    # It waits for its own calls, of which there are none, and from then on takes it as usual that others go.
    agent.join(True)


def join(trainer: Address, name: str, number: int, options: Mapping[str, Any], *, is_local: bool) -> Address:
    """Start the agent of a worker, which can call the collector's process.

    Args:
        trainer: the address of that process.
        name: the agent's name.
        number: its rank in torch.
        options: options of `TensorPipeRpcBackendOptions`.
        is_local: whether both are on one machine.
    """
    with listening_on("lo" if is_local else None):
        start(name, number, {"_transports": [trainer.url.partition("://")[0]], **options}, is_local=is_local, calls=True)
    admit(trainer)
    return own_address()


def leave() -> None:
    """End the agent of this process."""
    rpc.shutdown(graceful=False)


def own_address() -> Address:
    """The address of this process's agent.

    Raises:
        RuntimeError: no agent runs.
    """
    agent = api._get_current_rpc_agent()
    info = agent.get_worker_info()
    return Address(info.name, info.id, _urls(agent).get(info.name).decode())


def admit(address: Address) -> None:
    """Introduce another agent to this process's agent, which was started here, so that it can be called."""
    agent = api._get_current_rpc_agent()
    _urls(agent).set(address.name, address.url)
    agent._update_group_membership(address.info, [], {}, True)


def dismiss(address: Address) -> None:
    """Make this process's agent, which was started here, forget another agent."""
    agent = api._get_current_rpc_agent()
    agent._update_group_membership(address.info, [], {}, False)


def _urls(agent: Any) -> Any:
    return PrefixStore("addrs", agent.store)


def backend_options(options: Mapping[str, Any]) -> Any:
    """Make torch's options for an agent.

    Raises:
        OptionError: torch refuses them.
    """
    try:
        return rpc.TensorPipeRpcBackendOptions(**{"_transports": list(TRANSPORTS), **options})
    except (TypeError, ValueError, RuntimeError) as error:
        raise OptionError(f"tensorpipe_options: {headline(error)}") from error


@contextlib.contextmanager
def listening_on(name: str | None) -> Generator[None]:
    """Make agents started inside the `with` block listen on this interface, unless it is None or the user has named another."""
    if name is None or INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = name
    try:
        yield
    finally:
        del os.environ[INTERFACE]


def interface(address: str) -> str:
    """The name of this machine's interface with this address.

    Raises:
        OptionError: no interface has it.

    Example:
        >>> interface("127.0.0.1")
        'lo'
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        names = [name for _, name in socket.if_nameindex()]
        found = {_address_of(probe, name): name for name in names}
    if address not in found:
        own = ", ".join(one for one in found if one)
        raise OptionError(f"address: expected an IP address of this machine ({own}), got {address!r}")
    return found[address]


def _address_of(probe: socket.socket, name: str) -> str:
    try:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()))
    except OSError:  # it has none
        return ""
    return socket.inet_ntoa(answer[20:24])
