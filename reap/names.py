"""Names that a module does not have: the error says the nearest one, or that it is torchrl's and where to import it from.

    def __getattr__(name: str) -> Any:
        raise missing_name(__name__, name, __all__)

Python drops the text of an AttributeError when a name is imported, and `hasattr` knows no other error. So the error is an
ImportError where an import statement asks, and an AttributeError everywhere else.
"""

from __future__ import annotations

import ast
import dis
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from reap.errors import nearest

INSTEAD: Mapping[str, str] = {
    "AsyncBatchedCollector": "MultiaSyncDataCollector, each worker with a batch of envs",
    "AsyncEnvPool": "ParallelEnv, or MultiaSyncDataCollector, which takes rollouts as they come",
    "CompressedListStorage": "ListStorage, or LazyMemmapStorage for data larger than RAM",
    "ConsumingSampler": "SamplerWithoutReplacement",
    "Evaluator": "reap.evaluate",
    "FlatStorageCheckpointer": "buffer.dumps(path), which writes one file per key",
    "H5StorageCheckpointer": "buffer.dumps(path), which writes one file per key",
    "MultiThreadedEnv": "GymEnv over a vector env of envpool",
    "NestedStorageCheckpointer": "buffer.dumps(path), which writes one file per key",
    "RayEvalWorker": "reap.evaluate",
    "SamplerEnsemble": "ReplayBufferEnsemble(*buffers)",
    "StorageEnsemble": "ReplayBufferEnsemble(*buffers)",
    "StorageEnsembleCheckpointer": "ensemble.dumps(path)",
    "WriterEnsemble": "ReplayBufferEnsemble(*buffers)",
}
"""What to use for names of torchrl that reap does not have."""

DOORS = (
    "reap",
    "reap.collectors",
    "reap.data",
    "reap.envs",
    "reap.collectors.distributed",
    "reap.weight_update",
    "reap.envs.utils",
    "reap.errors",
    "reap.testing",
)
"""Where names of reap are documented, the first place first."""

_PACKAGES = tuple(f"torchrl.{name}" for name in ("data", "envs", "collectors", "modules", "objectives", "trainers"))

_IMPORT_FROM = dis.opmap["IMPORT_FROM"]


def missing_name(module: str, name: str, known: Iterable[str]) -> Exception:
    """The error for a name that a module does not have; only a module's `__getattr__` calls this.

    Args:
        module: the full name of the module.
        name: the name.
        known: the names that the module has.

    Returns:
        An ImportError if the name is being imported from the module, else an AttributeError.

    Example:
        >>> print(missing_name("reap.data", "ReplayBufer", ["ReplayBuffer", "ListStorage"]))
        module 'reap.data' has no attribute 'ReplayBufer'. Did you mean 'ReplayBuffer'?
    """
    asking = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]  of the standard library
    advice = "" if name.startswith("__") else _advice(module, name, known)
    if asking.f_lasti >= 0 and asking.f_code.co_code[asking.f_lasti] == _IMPORT_FROM:
        return ImportError(f"cannot import name {name!r} from {module!r}.{advice}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}.{advice}", name=name)


def _advice(module: str, name: str, known: Iterable[str]) -> str:
    own = next((door for door in DOORS if name in _all_of(door)), None)
    if own is not None:
        return f" It is in another module: from {own} import {name}"
    home = torchrl_home(module, name)
    if home is None:
        return nearest(name, known)
    instead = f" reap has {INSTEAD[name]} instead." if name in INSTEAD else ""
    return f" It is a name of torchrl that reap does not have: from {home} import {name}.{instead}"


def torchrl_home(module: str, name: str) -> str | None:
    """The module of torchrl that exports a name; torchrl is not imported.

    The counterpart of the module of reap comes first, then those above it, then torchrl's other packages.

    Args:
        module: the module of reap.
        name: the name.

    Returns:
        Its full name; None if there is none, or torchrl is not installed.
    """
    parts = ["torchrl", *module.split(".")[1:]]
    homes = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
    return next((home for home in (*homes, *_PACKAGES) if name in _exported(home)), None)


@cache
def _all_of(module: str) -> frozenset[str]:
    """The `__all__` of a module of reap, which is a list of strings, from its source."""
    lists = (node.value for node in _body(Path(__file__).parent, module) if isinstance(node, ast.Assign) and _is_all(node))
    return frozenset(name for names in lists for name in ast.literal_eval(names))


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


def _body(package: Path, module: str) -> list[ast.stmt]:
    """The statements of a module in the folder of its package; none if there is no such module."""
    path = package.joinpath(*module.split(".")[1:])
    source = next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)
    return [] if source is None else ast.parse(source.read_text(encoding="utf-8")).body


@cache
def _exported(module: str) -> frozenset[str]:
    """The names that a module of torchrl exports, from its source."""
    package = importlib.util.find_spec("torchrl")
    if package is None or not package.submodule_search_locations:
        return frozenset()
    body = _body(Path(package.submodule_search_locations[0]), module)
    imported = {name.asname or name.name for node in body if isinstance(node, ast.ImportFrom) for name in node.names}
    defined = {node.name for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return frozenset(name for name in imported | defined if not name.startswith("_"))
