"""Saves of buffers in the form that earlier versions gave them: they load, and what they lack is what it was then.

fields of the schema    [shape, dtype, is_object]    no batch dimensions of nested TensorDicts; they have those of the root
manifest.json           absent                       no checksums; nothing is verified
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict

from reap.data.buffers.replay import ReplayBuffer
from reap.data.saving.manifest import MANIFEST
from reap.data.saving.rest import REST
from reap.data.storages import LazyMemmapStorage, LazyTensorStorage
from reap.errors import SpecMismatch

STORAGES = {
    "in RAM": lambda: LazyTensorStorage(8),
    "observations once": lambda: LazyTensorStorage(8, observations_once=True),
    "in files": lambda: LazyMemmapStorage(8),
    "rows": lambda: LazyTensorStorage(8, ndim=2),
}


def frames(*shape: int, agents: bool = False) -> TensorDict:
    """Frames whose values say which they are, with a group of two agents that has batch dimensions of its own if asked for."""
    number = torch.arange(torch.Size(shape).numel()).reshape(shape)
    step = TensorDict({"observation": number + 1, "reward": number.float().unsqueeze(-1)}, shape)
    ids = TensorDict({"traj_ids": torch.zeros_like(number)}, shape)
    held = TensorDict({"observation": number, "next": step, "collector": ids}, shape)
    if agents:
        held["agents"] = TensorDict({"x": number.unsqueeze(-1).expand(*shape, 2)}, (*shape, 2))
    return held


def as_before(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a buffer, or of one in a save, in the older form."""
    schema = state["storage"]["schema"]
    assert all(len(field) == 4 for field in schema["fields"].values())
    fields = {key: list(field[:3]) for key, field in schema["fields"].items()}
    return {**state, "storage": {**state["storage"], "schema": {**schema, "fields": fields}}}


def make_older(folder: Path) -> None:
    """Bring a save into the older form: its file is written as it was then, and there is no manifest."""
    rest = torch.load(folder / REST, weights_only=True)
    del rest["manifest"]
    torch.save(as_before(rest), folder / REST)
    (folder / MANIFEST).unlink()


def filled(kind: str, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=STORAGES[kind](), batch_size=4)
    buffer.extend(frames(*((2, 3) if kind == "rows" else (5,)), **options))
    return buffer


@pytest.mark.parametrize("kind", STORAGES)
def test_a_save_in_a_folder(kind: str, tmp_path: Path) -> None:
    buffer, other = filled(kind), ReplayBuffer(storage=STORAGES[kind](), batch_size=4)
    buffer.dumps(tmp_path / "save")
    make_older(tmp_path / "save")
    other.loads(tmp_path / "save")
    assert (other[:] == buffer[:]).all()
    assert len(other) == len(buffer)
    other.extend(frames(*((2, 1) if kind == "rows" else (2,))))
    assert len(other) == len(buffer) + 2
    assert other.sample().batch_size == torch.Size([4])


@pytest.mark.parametrize("kind", ["in RAM", "in files", "rows"])
def test_a_state_dict(kind: str) -> None:
    buffer, other = filled(kind), ReplayBuffer(storage=STORAGES[kind](), batch_size=4)
    other.load_state_dict(as_before(buffer.state_dict()))
    assert (other[:] == buffer[:]).all()


def test_groups_of_agents_have_the_batch_size_that_they_were_saved_with(tmp_path: Path) -> None:
    buffer, other = filled("in RAM", agents=True), ReplayBuffer(storage=LazyTensorStorage(8), batch_size=4)
    assert buffer[:]["agents"].batch_size == torch.Size([5, 2])
    buffer.dumps(tmp_path / "save")
    make_older(tmp_path / "save")
    other.loads(tmp_path / "save")
    assert other[:]["agents"].batch_size == torch.Size([5])
    assert torch.equal(other[:]["agents", "x"], buffer[:]["agents", "x"])


def test_objects(tmp_path: Path) -> None:
    buffers = [ReplayBuffer(storage=LazyTensorStorage(4)) for _ in range(2)]
    buffers[0].extend(TensorDict({"text": NonTensorStack("a", "b"), "n": torch.arange(2)}, [2]))
    buffers[0].dumps(tmp_path / "save")
    make_older(tmp_path / "save")
    buffers[1].loads(tmp_path / "save")
    assert list(buffers[1][:]["text"]) == ["a", "b"]


def test_a_field_of_no_form_that_there_was_is_refused() -> None:
    state = as_before(filled("in RAM").state_dict())
    fields = {key: field[:1] for key, field in state["storage"]["schema"]["fields"].items()}
    state["storage"]["schema"] = {**state["storage"]["schema"], "fields": fields}
    buffer = ReplayBuffer(storage=LazyTensorStorage(8))
    with pytest.raises(SpecMismatch, match="nothing was changed"):
        buffer.load_state_dict(state)
    assert len(buffer) == 0
