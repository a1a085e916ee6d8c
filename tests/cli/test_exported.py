"""Programs of `torch.export.save`: read as they are, and nothing that one says is run."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from reap.cli.exported import load_exported
from reap.errors import OptionError

Files = dict[str, bytes]


class Policy(nn.Module):
    """Batch statistics, a constant, a string argument, shape arithmetic, several outputs, and a draw."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.GELU(approximate="tanh"))
        self.constant = torch.arange(6.0)

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.net(observation) + self.constant
        folded = hidden.reshape(hidden.shape[0] * 2, 3).reshape(hidden.shape[0], 6)
        return {
            "action": torch.multinomial(folded.softmax(-1), 1).squeeze(-1),
            "value": torch.einsum("ij,kj->ik", hidden, folded),
        }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Policy, Path]:
    policy = Policy().eval()
    path = tmp_path_factory.mktemp("saved") / "policy.pt2"
    shapes = {"observation": {0: torch.export.Dim("envs")}}
    torch.export.save(torch.export.export(policy, (torch.zeros(3, 4),), dynamic_shapes=shapes), path)
    return policy, path


def altered(source: Path, target: Path, change: Callable[[Files], None]) -> Path:
    """A copy of an archive with other files in it."""
    with zipfile.ZipFile(source) as archive:
        files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"policy/{name}", content)
    return target


def edited(name: str, change: Callable[[Any], None]) -> Callable[[Files], None]:
    def edit(files: Files) -> None:
        content = json.loads(files[name])
        change(content)
        files[name] = json.dumps(content).encode()

    return edit


@pytest.mark.processes
def test_gives_what_the_module_gives(saved: tuple[Policy, Path]) -> None:
    policy, path = saved
    loaded = load_exported(path)
    for rows in (1, 3, 8):
        observation = torch.randn(rows, 4)
        torch.manual_seed(1)
        wanted = policy(observation)
        torch.manual_seed(1)
        found = loaded(observation)
        assert set(found) == set(wanted)
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)


class Canary:
    """A pickle that makes a file where it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def pickled(path: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save((Canary(path),), buffer)
    return buffer.getvalue()


MODEL, WEIGHTS, CONSTANTS = (
    "models/model.json",
    "data/weights/model_weights_config.json",
    "data/constants/model_constants_config.json",
)


def graph(model: Any) -> Any:
    return model["graph_module"]["graph"]


def first_payload(change: dict[str, Any]) -> Callable[[Any], None]:
    return lambda content: next(iter(content["config"].values())).update(change)


def first_shape(text: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        size = next(s for v in graph(model)["tensor_values"].values() for s in v["sizes"] if "as_expr" in s)
        size["as_expr"]["expr_str"] = text

    return change


def in_spec(kind: str, context: str) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        spec = json.dumps([1, {"type": kind, "context": context, "children_spec": []}])
        model["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = spec

    return change


def rename_input(model: Any) -> None:
    text = json.dumps(model).replace('"observation"', '"observation=open(1)"')
    model.update(json.loads(text))


REFUSED: dict[str, tuple[str, Callable[[Any], None]]] = {
    "a pickled weight": (WEIGHTS, first_payload({"use_pickle": True})),
    "a weight elsewhere": (WEIGHTS, first_payload({"path_name": "../../x"})),
    "a pickled constant": (CONSTANTS, first_payload({"path_name": "opaque_obj_0", "use_pickle": True})),
    "a script object": (CONSTANTS, first_payload({"path_name": "custom_obj_0"})),
    "an expression": (MODEL, first_shape("__import__('pathlib').Path('canary').touch() or Symbol('s0')")),
    "an attribute": (MODEL, first_shape("Symbol.__class__('x')")),
    "a name evaluated": (MODEL, first_shape("Add('print(1)', Integer(1))")),
    "a symbol of another kind": (MODEL, first_shape("Symbol('__import__')")),
    "an operator that reads files": (MODEL, lambda m: graph(m)["nodes"][0].update(target="torch.ops.aten.from_file.default")),
    "a function": (MODEL, lambda m: graph(m)["nodes"][0].update(target="torch.load")),
    "another function": (MODEL, lambda m: graph(m)["nodes"][0].update(target="_operator.methodcaller")),
    "a name that is code": (MODEL, rename_input),
    "a string argument": (MODEL, lambda m: graph(m)["nodes"][0]["inputs"][0].update(arg={"as_string": "/etc/x"})),
    "a container": (MODEL, in_spec("collections.defaultdict", '{"default_factory_module": "os"}')),
    "a key that is code": (MODEL, in_spec("builtins.dict", '["a\\"]; open(1)"]')),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(saved: tuple[Policy, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = altered(saved[1], tmp_path / "policy.pt2", edited(*REFUSED[name]))
    with pytest.raises(OptionError, match="refused"):
        load_exported(path)
    assert [file.name for file in tmp_path.iterdir()] == ["policy.pt2"]


@pytest.mark.parametrize(
    "name", ["data/aotinductor/model/x.so", "data/constants/opaque_obj_0", "data/weights/model.pt", "x.pkl"]
)
def test_files_that_are_no_part_of_a_graph(saved: tuple[Policy, Path], tmp_path: Path, name: str) -> None:
    path = altered(saved[1], tmp_path / "policy.pt2", lambda files: files.update({name: pickled(tmp_path / "canary")}))
    with pytest.raises(OptionError, match=rf"refused, it holds {name}"):
        load_exported(path)
    assert not (tmp_path / "canary").exists()


def test_what_is_left_out(saved: tuple[Policy, Path], tmp_path: Path) -> None:
    """Sample inputs that are a pickle, guards and metadata that are code: not read."""
    canary = tmp_path / "canary"

    def change(files: Files) -> None:
        files["data/sample_inputs/model.pt"] = pickled(canary)

        def edit(model: Any) -> None:
            model["guards_code"] = [f"__import__('pathlib').Path({str(canary)!r}).touch() is None"]
            graph(model)["nodes"][0]["metadata"] = {"stack_trace": "\nopen(1)", "custom": "}"}

        edited(MODEL, edit)(files)

    loaded = load_exported(altered(saved[1], tmp_path / "policy.pt2", change))
    assert loaded(torch.zeros(2, 4))["value"].shape == (2, 2)
    assert not canary.exists()


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt2"
    path.write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
    with pytest.raises(OptionError, match=r"not an archive of torch.export.save"):
        load_exported(path)
    path.write_bytes(pickled(tmp_path / "canary"))
    with pytest.raises(OptionError, match=r"expected a program saved by torch.export.save"):
        load_exported(path)
    assert not (tmp_path / "canary").exists()


def test_a_program_that_torch_cannot_read(saved: tuple[Policy, Path], tmp_path: Path) -> None:
    path = altered(
        saved[1], tmp_path / "policy.pt2", edited(MODEL, lambda model: model.update(schema_version={"major": 999, "minor": 1}))
    )
    with pytest.raises(OptionError, match=r"torch .* cannot read it"):
        load_exported(path)
