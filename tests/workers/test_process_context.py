"""What a worker elsewhere takes over: what means the same on any machine, and nothing else."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings

import pytest
import torch

from reap.errors import OptionError
from reap.workers.process_context import LOCAL_VARIABLES, ProcessContext, RemoteContext
from tests.workers.scripts import ROOT

RESTORE = """
import os, pickle, sys, warnings
before = dict(os.environ), os.getcwd(), list(sys.path), list(sys.argv)
context = pickle.loads(sys.stdin.buffer.read())
context.restore()
import torch
print(sorted(own for own in set(os.environ.items()) ^ set(before[0].items()) if not own[0].startswith("TORCH")))
print(before[1:] == (os.getcwd(), list(sys.path), list(sys.argv)))
print(torch.get_default_dtype())
try:
    warnings.warn("about something")
except UserWarning:
    print("raised")
"""


@pytest.mark.processes
def test_a_worker_elsewhere_gets_named_variables_the_dtype_and_the_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("REAP_SECRET", "stays here")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.delenv("REAP_UNSET", raising=False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "about")
            context = RemoteContext.capture(["WANDB_MODE", "REAP_UNSET"])
    finally:
        torch.set_default_dtype(before)
    assert (context.variables, context.dtype) == ({"WANDB_MODE": "offline"}, "float64")
    environ = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "0"}
    command = [sys.executable, "-c", RESTORE]
    done = subprocess.run(command, input=pickle.dumps(context), env=environ, capture_output=True, timeout=180, check=False)
    assert done.stderr == b""
    assert done.stdout.decode().splitlines() == ["[('WANDB_MODE', 'offline')]", "True", "torch.float64", "raised"]


@pytest.mark.parametrize("name", sorted(LOCAL_VARIABLES))
def test_variables_that_mean_something_else_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"^variables: {name}: a worker on another machine has its own; leave it out$"):
        RemoteContext.capture(["WANDB_MODE", name])


def test_a_worker_here_gets_all_variables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    context = ProcessContext.capture()
    assert context.environ == dict(os.environ)
    assert (context.directory, context.argv) == (os.getcwd(), sys.argv)
    assert context.anywhere.variables == {}


def test_filters_that_cannot_travel_stay_here() -> None:
    with warnings.catch_warnings():
        warnings.filters.insert(0, ("ignore", None, UserWarning, (name for name in "abc"), 0))  # pyright: ignore[reportAttributeAccessIssue]
        assert RemoteContext.capture().filters == b""
