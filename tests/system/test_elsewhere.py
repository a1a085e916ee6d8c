"""Systems that lack calls of Linux: what works there, and what the errors of the rest say.

A child process takes the calls away, after it has imported what reap imports from others, and then imports reap.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from reap.system.bell import Bell
from reap.system.native import path_of
from tests.architecture import ROOT

OTHERS = """
import asyncio, concurrent.futures, ctypes, json, logging, multiprocessing, os, select, signal, socket, subprocess, sys
import tempfile
import cloudpickle, gymnasium, numpy, rich.live, rich.progress_bar, tensordict.nn, torch, torch._dynamo

def without(module, *names):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
"""

MACOS = """
import fcntl
without(os, "memfd_create", "eventfd", "eventfd_read", "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK", "MFD_CLOEXEC")
without(os, "pidfd_open", "sched_getaffinity", "posix_fallocate")
without(signal, "pidfd_send_signal")
without(select, "epoll")
without(socket, "SOCK_SEQPACKET")
without(fcntl, "F_OFD_SETLK", "F_SETPIPE_SZ")
"""

WINDOWS = (
    MACOS
    + """
import _signal
without(os, "fork", "register_at_fork", "getuid", "geteuid", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "uname")
without(os, "sysconf", "killpg", "setsid", "mkfifo", "WNOHANG", "waitpid", "pread", "pwrite", "fchmod", "statvfs")
for module in (signal, _signal):
    without(module, "SIGALRM", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGCHLD", "set_wakeup_fd", "pthread_sigmask", "setitimer")
without(select, "poll")
without(socket, "AF_UNIX", "SCM_RIGHTS")
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
load = ctypes.CDLL.__init__

def load_by_name(self, name=None, *arguments, **options):
    if name is None:
        raise TypeError("LoadLibrary() argument 1 must be str, not None")
    load(self, name, *arguments, **options)

ctypes.CDLL.__init__ = load_by_name
"""
)

PROGRAM = """
import reap

def answer(make):
    try:
        return make()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def collected():
    with reap.SyncDataCollector(reap.SerialEnv(2, "CartPole-v1"), frames_per_batch=20, total_frames=40) as collector:
        return sum(batch.numel() for batch in collector)

def started():
    buffer = reap.ReplayBuffer(storage=reap.LazyTensorStorage(100))
    collector = reap.SyncDataCollector("CartPole-v1", frames_per_batch=10, total_frames=30, replay_buffer=buffer)
    collector.start()
    collector.shutdown()
    return buffer.write_count % 10

def filled(storage):
    buffer = reap.ReplayBuffer(storage=storage, batch_size=2)
    buffer.extend(tensordict.TensorDict({"a": torch.arange(6)}, [6]))
    return buffer

def loaded():
    buffer, folder = filled(reap.LazyTensorStorage(10)), tempfile.mkdtemp()
    buffer.dumps(folder + "/save")
    again = reap.ReplayBuffer(storage=reap.LazyTensorStorage(10))
    again.loads(folder + "/save")
    return again[:]["a"].tolist()

def throttled():
    buffer = reap.ReplayBuffer(storage=reap.LazyTensorStorage(100))
    options = {"frames_per_batch": 10, "replay_buffer": buffer, "max_frames_ahead": 40}
    return reap.SyncDataCollector("CartPole-v1", **options).frames_per_batch

print(json.dumps({
    "collect": answer(collected),
    "start": answer(started),
    "throttle": answer(throttled),
    "evaluate": answer(lambda: len(reap.evaluate("CartPole-v1", episodes=3).lengths)),
    "beside": answer(lambda: reap.evaluate("CartPole-v1", start=True)),
    "buffer": answer(lambda: filled(reap.LazyTensorStorage(10)).sample().shape[0]),
    "files": answer(lambda: len(filled(reap.LazyMemmapStorage(10)))),
    "save": answer(loaded),
    "share": answer(lambda: filled(reap.LazyTensorStorage(10)).share()),
    "MultiSync": answer(lambda: reap.MultiSyncDataCollector(["CartPole-v1"], frames_per_batch=20)),
    "MultiaSync": answer(lambda: reap.MultiaSyncDataCollector(["CartPole-v1"], frames_per_batch=20)),
    "ParallelEnv": answer(lambda: reap.ParallelEnv(2, "CartPole-v1")),
}))
"""

HERE = {"collect": 40, "start": 0, "evaluate": 3, "buffer": 2}
"""What works everywhere."""


def found_on(system: str) -> dict[str, object]:
    code = OTHERS + system + PROGRAM
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("system", "works"),
    [(MACOS, {"throttle": 10, "files": 6, "save": [0, 1, 2, 3, 4, 5]}), (WINDOWS, {})],
    ids=["macOS", "Windows"],
)
def test_what_works_and_what_says_so(system: str, works: dict[str, object]) -> None:
    found = found_on(system)
    works = {**HERE, **works}
    assert {name: found[name] for name in works} == works
    calls = f"need Linux (memfd_create, eventfd, pidfd_open), and this is {sys.platform}; use"
    here = "SyncDataCollector, with a SerialEnv for several envs"
    expected = {
        "MultiSync": f"MultiSyncDataCollector needs worker processes, which {calls} {here}",
        "MultiaSync": f"MultiaSyncDataCollector needs worker processes, which {calls} {here}",
        "ParallelEnv": f"ParallelEnv needs worker processes, which {calls} SerialEnv",
        "beside": f"evaluate(..., start=True) needs worker processes, which {calls} evaluate(...) between two batches",
        "share": "shared memory needs memfd_create, which Linux has; use SyncDataCollector and SerialEnv here",
        "files": "LazyMemmapStorage needs file locks, which POSIX systems have, and this is "
        f"{sys.platform}; use LazyTensorStorage",
        "save": "a save of a replay buffer needs file locks, which POSIX systems have, and this is "
        f"{sys.platform}; use torch.save(buffer.state_dict(), file)",
        "throttle": "max_frames_ahead needs polls of descriptors, which POSIX systems have, and this is "
        f"{sys.platform}; use start() without it",
    }
    told = {name: f"NotImplementedError: {text}" for name, text in expected.items() if name not in works}
    assert {name: found[name] for name in told} == told
    assert set(found) == set(works) | set(told)


def test_a_path_of_an_open_file(tmp_path) -> None:
    path = tmp_path / "file"
    path.write_text("here")
    with path.open() as file, open(path_of(file.fileno())) as again:
        assert again.read() == "here"


@pytest.mark.parametrize("has_events", [True, False])
def test_a_bell(monkeypatch: pytest.MonkeyPatch, has_events: bool) -> None:
    if not has_events:
        monkeypatch.delattr(os, "eventfd")
    bell = Bell()
    bell.clear()
    for _ in range(100_000 if has_events else 20_000):
        bell.ring()
    assert os.read(bell.fileno(), 8)
    bell.clear()
    with pytest.raises(BlockingIOError):
        os.read(bell.fileno(), 8)
