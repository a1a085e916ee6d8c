"""Which operators a program may call: those of real policies; hostile ones are refused by name, and nothing is run."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as trees

from reap.cli.exported import load_exported
from reap.cli.operators import ADMITTED, CHECKED
from reap.errors import OptionError
from tests.cli.exported_policies import policies

pytestmark = [  # of torch's own export
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attributes self.net._flat_weights:UserWarning"),
]

MODEL = "models/model.json"
POLICIES = policies()


def saved(program: torch.export.ExportedProgram, path: Path) -> Path:
    torch.export.save(program, path)
    return path


def exported(module: nn.Module, inputs: tuple[Any, ...]) -> torch.export.ExportedProgram:
    return torch.export.export(module.eval(), inputs)


# What policies call


@pytest.mark.processes
@pytest.mark.parametrize("name", POLICIES)
def test_policies_give_what_their_modules_give(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = POLICIES[name]()
    program = exported(module, inputs)
    for number, one in enumerate((program, program.run_decompositions())):
        loaded = load_exported(saved(one, tmp_path / f"{number}.pt2"))
        with torch.no_grad():
            torch.manual_seed(1)
            wanted = trees.tree_leaves(one.module()(*inputs))
            torch.manual_seed(1)
            found = trees.tree_leaves(loaded(*inputs))
        assert len(wanted) == len(found)
        assert all(map(torch.equal, wanted, found))


def test_parts_without_gradients_are_resolved_by_decompositions(tmp_path: Path) -> None:
    class Policy(nn.Module):
        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return torch.distributions.Normal(observation, 1.0, validate_args=False).sample()

    program = exported(Policy(), (torch.zeros(2, 3),))
    with pytest.raises(
        OptionError, match=r"higher_order.wrap_with_set_grad_enabled' is not .* exported.run_decompositions\(\)"
    ):
        load_exported(saved(program, tmp_path / "policy.pt2"))
    loaded = load_exported(saved(program.run_decompositions(), tmp_path / "policy.pt2"))
    assert loaded(torch.zeros(2, 3)).shape == (2, 3)


# What is refused


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A program of a few calls, by the names of its files."""
    module, inputs = POLICIES["discrete"]()
    path = saved(exported(module, inputs), tmp_path_factory.mktemp("saved") / "policy.pt2")
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def changed(files: dict[str, bytes], path: Path, change: Callable[[list[Any]], None]) -> Path:
    """The program with other calls."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            if name.endswith(MODEL):
                model = json.loads(content)
                change(model["graph_module"]["graph"]["nodes"])
                archive.writestr(name, json.dumps(model))
            else:
                archive.writestr(name, content)
    return path


HOSTILE = (
    "torch.ops.aten.as_strided.default",
    "torch.ops.aten.as_strided_.default",
    "torch.ops.aten.set_.source_Storage_storage_offset",
    "torch.ops.aten.resize_.default",
    "torch.ops.aten.resize_as_.default",
    "torch.ops.aten.from_file.default",
    "torch.ops.aten._sparse_coo_tensor_unsafe.default",
    "torch.ops.aten.sparse_coo_tensor.indices_size",
    "torch.ops.aten.to_dense.default",
    "torch.ops.aten.segment_reduce.default",
    "torch.ops.aten._unsafe_index.Tensor",
    "torch.ops.aten._unsafe_index_put.default",
    "torch.ops.aten._unsafe_masked_index.default",
    "torch.ops.aten._index_put_impl_.default",
    "torch.ops.aten.put_.default",
    "torch.ops.aten.embedding_bag.default",
    "torch.ops.aten._foreach_add_.List",
    "torch.ops.aten._fused_adam_.default",
    "torch.ops.aten.upsample_nearest2d.default",
    "torch.ops.aten.max_unpool2d.default",
    "torch.ops.aten.grid_sampler_2d.default",
    "torch.ops.aten.mkldnn_rnn_layer.default",
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default",
    "torch.ops.aten._weight_norm_interface.default",
    "torch.ops.aten.native_batch_norm.default",
    "torch.ops.aten.view.dtype",
    "torch.ops.aten._make_dep_token.default",
    "torch.ops.aten.add.out",
    "torch.ops.prims.as_strided.default",
    "torch.ops.inductor._alloc_from_pool.default",
    "torch.ops.quantized.linear_dynamic.default",
    "torch.ops.mkldnn._linear_pointwise.default",
    "torch.ops.higher_order.cond",
    "torch.ops.higher_order.while_loop",
    "torch.ops.higher_order.call_torchbind",
    "torch.ops.higher_order.triton_kernel_wrapper_mutation",
    "torch.ops.mylib.anything.default",
    "torch.ops.load_library",
    "torch.load",
    "torch.hub.load",
    "torch.serialization.load",
    "torch.sym_fresh_size",
    "_operator.pow",
    "_operator.methodcaller",
    "_operator.setitem",
    "math.factorial",
    "math.perm",
    "builtins.eval",
    "os.system",
    "#operator",
    "",
)
"""Each trusts its caller, runs code, or takes for ever."""


def registered() -> Sequence[str]:
    """All operators that this torch knows, as a program's file names them."""
    names = [name.replace("::", ".") for name in torch._C._dispatch_get_all_op_names()]
    return sorted(f"torch.ops.{name if name.count('.') == 2 else f'{name}.default'}" for name in names)


def test_no_operator_with_a_warning_in_its_name_is_admitted() -> None:
    signs = ["unsafe", "sparse", "strided", "resize", "set_.", "from_", "quantiz", "_foreach", "_fused", "mkldnn"]
    assert [name for name in ADMITTED if any(sign in f"{name}." for sign in (*signs, ".out.", "storage"))] == []
    assert {f"torch.ops.{operator}" for operator in CHECKED} < ADMITTED


def test_every_admitted_operator_is_one() -> None:
    known = {*registered(), "torch.ops.aten.sym_numel.default"}
    assert [name for name in ADMITTED if name.startswith("torch.ops.") and name not in known] == []


def hostile_argument(chance: random.Random) -> Any:
    number = chance.choice([-(1 << 62), -1, 0, 1 << 40])
    return chance.choice(
        [
            {"as_int": number},
            {"as_ints": [number, number]},
            {"as_float": float(number)},
            {"as_bool": True},
            {"as_none": True},
            {"as_tensor": {"name": "linear"}},
            {"as_tensors": [{"name": "linear"}] * 3},
            {"as_graph": {"name": "part", "graph": {"inputs": [], "outputs": [], "nodes": []}}},
        ]
    )


def test_hostile_operators_are_refused_by_name_and_nothing_is_run(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: Any, **options: Any) -> None:
        raise AssertionError("torch.export.load was called")

    monkeypatch.setattr(torch.export, "load", run)
    chance = random.Random(0)
    unlisted = [name for name in registered() if name not in ADMITTED]
    assert len(unlisted) > 1000
    for name in (*HOSTILE, *chance.sample(unlisted, 50)):

        def place(nodes: list[Any], name: str = name) -> None:
            inputs = [{"name": "", "kind": 1, "arg": hostile_argument(chance)} for _ in range(chance.randrange(4))]
            call = {"target": name, "inputs": inputs, "outputs": [{"as_tensor": {"name": "evil"}}], "metadata": {}}
            if chance.random() < 0.3:  # in a graph that is the argument of a call
                inner = {"as_graph": {"name": "part", "graph": {"inputs": [], "outputs": [], "nodes": [call]}}}
                call = {**nodes[0], "inputs": [{"name": "", "kind": 1, "arg": inner}]}
            nodes.insert(chance.randrange(len(nodes) + 1), call)

        with pytest.raises(OptionError) as raised:
            load_exported(changed(files, tmp_path / "policy.pt2", place))
        assert f"refused, the operator {name[:80]!r} is not among those that are safe" in str(raised.value)


def argument(change: dict[str, Any]) -> Callable[[list[Any]], None]:
    return lambda nodes: nodes[0]["inputs"].append({"name": "x", "kind": 2, "arg": change})


def call(name: str, *arguments: dict[str, Any]) -> Callable[[list[Any]], None]:
    inputs = [{"name": "", "kind": 1, "arg": one} for one in arguments]
    return lambda nodes: nodes[0].update(target=name, inputs=inputs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (argument({"as_layout": 1}), "tensors of the layout 1, which may be sparse"),
        (argument({"as_operator": "torch.ops.aten.add.Tensor"}), "as_operator 'torch.ops.aten.add.Tensor'"),
        (argument({"as_graph": {"name": "g", "graph": {"nodes": []}}}), "is given a graph"),
        (argument({"as_float": "1e5"}), "as_float '1e5'"),
        (call("torch.ops.aten.pad.default", {"as_string": "reflect"}), "safe with the mode 'constant' only, found 'reflect'"),
        (call("torch.ops.aten.div.Tensor_mode", {"as_string": "trunc"}), "safe with the mode 'floor' only, found 'trunc'"),
    ],
)
def test_arguments_that_are_refused(
    files: dict[str, bytes], tmp_path: Path, change: Callable[[list[Any]], None], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        load_exported(changed(files, tmp_path / "policy.pt2", change))


def test_bools_that_are_neither_true_nor_false(tmp_path: Path) -> None:
    class Policy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.tensor([True, False, True]))

        def forward(self, observation: torch.Tensor) -> torch.Tensor:
            return observation.masked_fill(self.mask, 0.0)

    path = saved(exported(Policy(), (torch.ones(2, 3),)), tmp_path / "policy.pt2")
    assert load_exported(path)(torch.ones(1, 3).expand(2, 3)).tolist() == [[0, 1, 0]] * 2
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    (weights,) = [name for name in content if name.endswith("data/weights/weight_0")]
    content[weights] = bytes([1, 7, *content[weights][2:]])
    with pytest.raises(OptionError, match="bools that are neither true nor false"):
        load_exported(changed(content, path, lambda nodes: None))


# What is called with a look at its arguments

aten: Any = torch.ops.aten
zeros = torch.zeros
ONE, STATE = zeros(1), zeros(1, 1, 4)
FITTING = (zeros(16, 8), zeros(16, 4), zeros(16), zeros(16))
OPTIONS = (True, 1, 0.0, False, False, False)

WRONG: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "weights": (aten.lstm.input, (zeros(3, 1, 8), [STATE, STATE], [ONE] * 4, *OPTIONS)),
    "one weight": (aten.lstm.input, (zeros(3, 1, 8), [STATE, STATE], [FITTING[0], ONE, *FITTING[2:]], *OPTIONS)),
    "too few": (aten.lstm.input, (zeros(3, 1, 8), [STATE, STATE], FITTING[:2], *OPTIONS)),
    "rows": (aten.lstm.input, (zeros(3, 1000, 8), [STATE, STATE], FITTING, *OPTIONS)),
    "cell state": (aten.lstm.input, (zeros(3, 1, 8), [STATE, zeros(1, 1, 1)], FITTING, *OPTIONS)),
    "one state": (aten.lstm.input, (zeros(3, 1, 8), [STATE], FITTING, *OPTIONS)),
    "layers": (aten.lstm.input, (zeros(3, 1, 8), [STATE, STATE], FITTING, True, 9, 0.0, False, True, False)),
    "dtypes": (aten.lstm.input, (zeros(3, 1, 8), [STATE, STATE], [*FITTING[:3], FITTING[3].double()], *OPTIONS)),
    "gru": (aten.gru.input, (zeros(3, 1, 8), STATE, FITTING, *OPTIONS)),
    "rnn": (aten.rnn_tanh.input, (zeros(3, 1, 8), STATE, FITTING, *OPTIONS)),
    "values": (aten.scaled_dot_product_attention.default, (zeros(1, 4, 8), zeros(1, 90, 8), zeros(1, 2, 8))),
    "heads": (aten.scaled_dot_product_attention.default, (zeros(90, 4, 8), zeros(1, 4, 8), zeros(1, 4, 8))),
    "sizes": (aten.scaled_dot_product_attention.default, (zeros(1, 4, 8), zeros(1, 4, 1), zeros(1, 4, 8))),
    "a mask": (aten.scaled_dot_product_attention.default, (*[zeros(1, 4, 8)] * 3, zeros(2, 4, 4))),
    "no keys": (aten.scaled_dot_product_attention.default, (zeros(1, 4, 8), zeros(1, 0, 8), zeros(1, 0, 8))),
    "channels": (aten._native_batch_norm_legit_no_training.default, (zeros(1, 90), ONE, ONE, ONE, ONE, 0.1, 1e-5)),
    "no channels": (aten._native_batch_norm_legit_no_training.default, (zeros(9), None, None, ONE, ONE, 0.1, 1e-5)),
    "an instance": (aten._native_batch_norm_legit.no_stats, (zeros(2, 90), ONE, None, True, 0.1, 1e-5)),
}


@pytest.mark.parametrize("name", WRONG)
def test_operators_that_trust_their_caller_are_not_called_with_wrong_shapes(name: str) -> None:
    operator, arguments = WRONG[name]
    with pytest.raises(RuntimeError, match=r"expected .*; the program is refused"):
        CHECKED[operator](*arguments)


def test_memory_as_it_was_reads_zeros() -> None:
    whole = torch.full((1000,), 7.0)
    del whole
    assert not CHECKED[aten.empty.memory_format]([1000], dtype=torch.float32, pin_memory=False).any()
    assert not CHECKED[aten.empty_like.default](torch.ones(3)).any()
    assert CHECKED[aten.new_empty.default](torch.ones(3), [2]).tolist() == [0, 0]
