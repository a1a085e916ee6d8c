"""`ray_head`: the head of a Ray cluster of its own, by `ray start`, with a token that nobody else has.

    this process --- ray start --head --block ---> gcs, raylet, dashboard, autoscaler ...    ended with all that they started

`ray stop` would end every Ray of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import descendants
from tests.workers.ray.local import ROOT

LIMIT = 120.0
"""Seconds for a head to come up."""

NOTHING_TO_DO = (
    "cluster_synced_files",
    "file_mounts_sync_continuously",
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)
"""What the autoscaler does on nodes that are other machines."""

HEAD = "ray.head.default"
"""The head's type, as Ray's fake provider has it."""

RAY = [str(Path(sys.executable).with_name("ray"))]
"""Ray's command line."""


@dataclass(frozen=True)
class Head:
    """A head that runs.

    Attributes:
        address: where it is.
        dashboard: address of its web server.
        environ: what programs need that use it.
        output: what it has said.
    """

    address: str
    dashboard: str
    environ: Mapping[str, str]
    output: Path

    def run(self, *command: str, timeout: float, cwd: Path) -> str:
        """What a command says that is to succeed."""
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(command, check=False, env=self.environ, cwd=cwd, timeout=timeout, **both)
        assert done.returncode == 0, done.stdout
        return done.stdout


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


@contextlib.contextmanager
def ray_head(
    folder: Path, *, dashboard: bool = False, node_types: Mapping[str, object] | None = None, cpus: int = 4
) -> Generator[Head]:
    """A head, for as long as the body runs.

    Args:
        folder: for the token and the head's output.
        dashboard: with its web server, which takes jobs.
        node_types: nodes that Ray's autoscaler may add, as the fake provider of its own tests has them.
        cpus: of the head.
    """
    token, output = folder / "token", folder / "head.log"
    place = tempfile.mkdtemp(prefix="ray-")  # short, for addresses of sockets; in /tmp/ray any program would find this Ray
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    ports = free_ports(4)
    environ = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_worker_niceness": "0",
        "PYTHONPATH": os.pathsep.join([ROOT, os.environ.get("PYTHONPATH", "")]),
    }
    environ.pop("RAY_ADDRESS", None)
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    arguments = [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
    arguments += [f"--num-cpus={cpus}", f"--temp-dir={place}", "--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1"]
    arguments += [f"--include-dashboard={str(dashboard).lower()}", "--object-store-memory=200000000", "--disable-usage-stats"]
    if node_types is not None:
        environ |= {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
        arguments.append(f"--autoscaling-config={_written(folder, node_types, cpus, ports[0])}")
    with output.open("wb") as file:
        process = subprocess.Popen([*RAY, "start", "--head", "--block", *arguments], env=environ, stdout=file, stderr=file)
    try:
        _wait_for(process, [ports[0], *([ports[1]] if dashboard else [])], output)
        yield Head(f"127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", environ, output)
    finally:
        _end(process)
        shutil.rmtree(place, ignore_errors=True)


def _written(folder: Path, node_types: Mapping[str, object], cpus: int, port: int) -> Path:
    """The autoscaler's settings, in a file."""
    from ray.util import get_node_ip_address

    head = {"resources": {"CPU": cpus}, "node_config": {}, "max_workers": 0}
    config = {
        "cluster_name": "test",
        "max_workers": 8,
        # Its nodes are raylets of this machine, with one address.
        "provider": {
            "type": "fake_multinode",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "gcs_address": f"{get_node_ip_address()}:{port}",
        },
        "available_node_types": {**node_types, HEAD: head},
        "head_node_type": HEAD,
        "upscaling_speed": 100.0,
        "idle_timeout_minutes": 5,
        **{key: {} for key in ("auth", "docker", "file_mounts")},
        **{key: [] for key in NOTHING_TO_DO},
    }
    path = folder / "autoscaler.json"
    path.write_text(json.dumps(config))
    return path


def _wait_for(process: subprocess.Popen[bytes], ports: Sequence[int], output: Path) -> None:
    deadline = time.monotonic() + LIMIT
    for port in ports:
        while True:
            assert process.poll() is None, output.read_text()
            assert time.monotonic() < deadline, output.read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
                break
            time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the head and all that it has started; what starts meanwhile too."""
    while pids := descendants(process.pid):
        for pid in (process.pid, *pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    process.kill()
    process.wait()
