"""Reads a policy that `torch.export.save` wrote, without running any code from the file.

`torch.export.load` trusts its file: it unpickles sample inputs and some weights, evaluates shape expressions and guards as
Python, and runs compiled libraries. So this module reads the archive first and builds a new one in memory, from parts that are
known to be harmless, for `torch.export.load` to read:

    archive on disk               new archive in memory
    models/model.json     ---->   the graph: calls of the operators of `operators.py`, names, shapes made of + and *
    data/weights/*        ---->   raw numbers; pickles are refused
    data/constants/*      ---->   likewise
    data/sample_inputs/*          left out (a pickle)
    anything else                 refused: compiled code, custom objects

Guards, stack traces and other metadata are left out of the graph. Operators that are safe only with the right shapes are called
through functions that check the shapes first.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch import nn

from reap.cli.operators import ADMITTED, CHECKED, MODES
from reap.errors import OptionError, headline

Json = Any
Check = Callable[[str], bool]

MODEL = "models/model.json"
SAMPLE_INPUTS = "data/sample_inputs/model.pt"
PAYLOADS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
COPIED = re.compile(r"data/(weights/weight|constants/tensor)_\d+|archive_format|archive_version|byteorder|\.data/\w+")
LEFT_OUT = re.compile(r"data/sample_inputs/\w+\.pt|extra/[^/]+")

DEFAULT_STRING = re.compile(r"[\w.]*", re.ASCII)
STRING_ARGUMENT = re.compile(r"[\w ,:<>=.()'-]*", re.ASCII)  # modes of operators, einsum's equations, texts of assertions
NO_NUMBERS = frozenset({"Infinity", "-Infinity", "NaN"})
STRIDED = 7
"""The number of the only accepted tensor layout; others are sparse."""

LARGEST, HIGHEST = 2**63 - 1, 4
"""The largest number and the highest power in a shape: computing larger ones would take practically unlimited time."""

CONTAINERS = (None, "builtins.tuple", "builtins.list", "builtins.dict")
SHAPE_FUNCTIONS = frozenset(
    {"Symbol", "Integer", "Add", "Mul", "Pow", "Max", "Min", "Mod", "FloorDiv", "CleanDiv", "PythonMod"}
)


def load_exported(path: Path) -> nn.Module:
    """The policy in an archive of `torch.export.save`.

    Raises:
        OptionError: there is no such archive, or it contains more than a graph of torch's operators and its weights.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            clean = _cleaned(path, archive)
        program = torch.export.load(clean)
        _require_bools(path, [*program.state_dict.values(), *program.constants.values()])
        return _with_checks(program.module())
    except OptionError:
        raise
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{path}: not an archive of torch.export.save ({error})") from error
    except (RuntimeError, AssertionError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(f"{path}: torch {torch.__version__} cannot read it: {headline(error)}") from error


def _cleaned(path: Path, archive: zipfile.ZipFile) -> io.BytesIO:
    names = {name.partition("/")[2]: name for name in archive.namelist() if not name.endswith("/")}
    if MODEL not in names:
        found = "a TorchScript module" if any(name.endswith(".pkl") for name in names) else "something else"
        raise OptionError(f"{path}: expected a program saved by torch.export.save (torch 2.8 or later), found {found}")
    refused = sorted(
        name for name in names if name not in {MODEL, *PAYLOADS} and not (COPIED.fullmatch(name) or LEFT_OUT.fullmatch(name))
    )
    if refused:
        raise OptionError(
            f"{path}: refused, it holds {refused[0]}, which is neither a graph of torch's operators nor its weights"
        )
    clean = io.BytesIO()
    with zipfile.ZipFile(clean, "w") as written:
        for name, full in names.items():
            if COPIED.fullmatch(name):
                written.writestr(f"policy/{name}", archive.read(full))
        for name in PAYLOADS:
            written.writestr(f"policy/{name}", json.dumps(_raw_payloads(path, json.loads(archive.read(names[name])))))
        written.writestr(f"policy/{MODEL}", json.dumps(_harmless_program(path, json.loads(archive.read(names[MODEL])))))
        written.writestr(f"policy/{SAMPLE_INPUTS}", b"")
    clean.seek(0)
    return clean


def _raw_payloads(path: Path, payloads: Json) -> Json:
    """Weights or constants; none is a pickle."""
    for name, payload in payloads["config"].items():
        is_raw = payload["use_pickle"] is False and re.fullmatch(r"(weight|tensor)_\d+", payload["path_name"])
        if not is_raw:
            raise OptionError(f"{path}: refused, {name} is stored as a pickle, which can run any code when it is loaded")
    _check_strings(path, payloads, "")
    return payloads


def _harmless_program(path: Path, program: Json) -> Json:
    """The program without guards and metadata, with all of its strings checked."""
    program = {**program, "guards_code": [], "torch_version": torch.__version__}
    module = program["graph_module"]
    for call in _calls(module):
        _check_call(path, call)
        call["metadata"] = {}
    module["metadata"] = {}
    # The calls of submodules serve `unflatten`; the program is called as a whole.
    module["module_call_graph"] = [call for call in module["module_call_graph"] if call["fqn"] == ""]
    _check_strings(path, {**program, "torch_version": ""}, "")
    return program


def _calls(node: Json) -> Iterator[Json]:
    """The calls of a graph, and of the graphs in its arguments."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _calls(value)
    if isinstance(node, dict) and "target" in node:
        yield node


def _check_call(path: Path, call: Json) -> None:
    """Refuse the call of an operator that is not known to be safe."""
    operator = str(call["target"])
    if operator not in ADMITTED:
        advice = "Export the module without run_decompositions()"
        if operator.startswith("torch.ops.higher_order."):
            advice = "Save exported.run_decompositions(), which resolves the parts of no_grad()"
        raise OptionError(
            f"{path}: refused, the operator {operator[:80]!r} is not among those that are safe with all arguments. "
            f"{advice}, or write it with other operators; if you trust it, give module.py:factory"
        )
    arguments = [one["arg"] for one in call["inputs"]]
    modes = {argument["as_string"] for argument in arguments if "as_string" in argument}
    if wrong := modes - MODES.get(operator, modes):
        raise OptionError(
            f"{path}: refused, {operator} is safe with the mode {min(MODES[operator])!r} only, found {min(wrong)!r}"
        )
    if any("as_graph" in argument for argument in arguments):
        raise OptionError(f"{path}: refused, {operator} is given a graph, which no operator on tensors needs")


def _check_strings(path: Path, node: Json, key: str) -> None:
    """Refuse sparse tensors, and every string that could be run as code or name a file."""
    if isinstance(node, Mapping):
        for name, value in node.items():
            _check_string(path, name, "")
            _check_strings(path, value, name)
    elif isinstance(node, list):
        for value in node:
            _check_strings(path, value, key)
    elif isinstance(node, str):
        _check_string(path, node, key)
    elif key in {"layout", "as_layout"} and node != STRIDED:
        raise OptionError(f"{path}: refused, it has tensors of the layout {node}, which may be sparse; expected strided ones")


def _check_string(path: Path, text: str, key: str) -> None:
    if not STRINGS.get(key, _is_name)(text):
        what = {"target": "operator", "expr_str": "shape"}.get(key, key or "name")
        raise OptionError(f"{path}: refused, {what} {text[:80]!r} is not one that a graph of torch's own operators needs")


def _is_name(text: str) -> bool:
    return DEFAULT_STRING.fullmatch(text) is not None


def _is_string_argument(text: str) -> bool:
    return STRING_ARGUMENT.fullmatch(text) is not None


def _is_container(text: str) -> bool:
    """Whether the structure of arguments or outputs consists of tuples, lists and dicts."""

    def holds(node: Json) -> bool:
        context = node["context"]
        keys = json.loads(context) if isinstance(context, str) else None
        is_plain = keys is None or (isinstance(keys, list) and all(isinstance(key, str) and _is_name(key) for key in keys))
        return node["type"] in CONTAINERS and is_plain and all(map(holds, node["children_spec"]))

    version, root = json.loads(text)
    return isinstance(version, int) and holds(root)


def _is_shape(text: str) -> bool:
    """Whether an expression consists of sums and products of symbols and whole numbers."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return False
    return text.isascii() and "\n" not in text and _is_arithmetic(tree.body)


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int and node.value <= LARGEST
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_arithmetic(node.operand)
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in SHAPE_FUNCTIONS):
        return False
    options_are_flags = all(isinstance(word.value, ast.Constant) and type(word.value.value) is bool for word in node.keywords)
    if node.func.id == "Symbol":
        names = [one.value for one in node.args if isinstance(one, ast.Constant)]
        return options_are_flags and len(names) == len(node.args) == 1 and re.fullmatch(r"[a-z]+\d+", str(names[0])) is not None
    if node.func.id == "Pow" and not (len(node.args) == 2 and _is_low(node.args[1])):
        return False
    return options_are_flags and all(map(_is_arithmetic, node.args))


def _is_low(node: ast.AST) -> bool:
    """Whether a power is a small number."""
    text = re.fullmatch(r"(?:Integer\()?(-?\d+)\)?", ast.unparse(node))
    return text is not None and abs(int(text[1])) <= HIGHEST


def _require_bools(path: Path, values: Iterable[Any]) -> None:
    """Refuse bools that are stored as anything but 0 or 1, on which operators rely."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.dtype == torch.bool and (value.view(torch.uint8) > 1).any():
            raise OptionError(f"{path}: refused, it has bools that are neither true nor false")


def _with_checks(module: Any) -> nn.Module:
    """The module, in which functions with checks replace the operators that trust their caller."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.target = CHECKED.get(node.target, node.target) if node.op == "call_function" else node.target
            part.recompile()
    return module


STRINGS: dict[str, Check] = {
    "target": ADMITTED.__contains__,
    "as_operator": frozenset[str]().__contains__,
    "as_string": _is_string_argument,
    "as_float": NO_NUMBERS.__contains__,
    "as_floats": NO_NUMBERS.__contains__,
    "expr_str": _is_shape,
    "in_spec": _is_container,
    "out_spec": _is_container,
}
"""Patterns of the strings that are allowed under each key; under other keys, names are allowed, dotted or not."""
