"""Loads the policy of `--policy`: `random`, `module.py:factory` or `file.pt2`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import sysconfig
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import Any

import cloudpickle
from torch import nn

from reap.cli.exported import load_exported
from reap.envs.base import EnvBase
from reap.errors import OptionError, ReapError, nearest, notes_of, text_of

FORMS = "random, module.py:factory or file.pt2"
REAP = Path(__file__).parent.parent
PACKAGES = [Path(folder) for folder in {*sysconfig.get_paths().values()}]
"""Folders of Python's own code and of installed packages."""

PICKLES = frozenset({".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".joblib"})

Policy = Callable[..., Any]


def load_policy(text: str, env: EnvBase) -> Policy | None:
    """The policy named by a text; None for random actions.

    Args:
        text: `random`, `module.py:factory` or `file.pt2`.
        env: passed to a factory that takes an argument.

    Raises:
        OptionError: the text has none of these forms, or names a pickle, or a file or factory that does not exist or fails.
    """
    if text == "random":
        return None
    file, _, name = text.rpartition(":")
    if file.endswith(".py"):
        return _made_by(_import(Path(file)), name, env)
    path = Path(text)
    if path.suffix in PICKLES:
        raise OptionError(
            f"--policy {text}: refused, a {path.suffix} file is a pickle, which can run any code when it is loaded. "
            "Save the policy with torch.export.save (.pt2), or write a factory that loads its weights with "
            "torch.load(..., weights_only=True), and give module.py:factory"
        )
    if path.suffix == ".py":
        raise OptionError(f"--policy {text}: expected the name of a factory too, {text}:make_policy")
    if path.suffix != ".pt2":
        raise OptionError(f"--policy {text}: expected {FORMS}")
    _require_file(path)
    return load_exported(path)


def _require_file(path: Path) -> None:
    if not path.is_file():
        near = nearest(path.name, [one.name for one in path.parent.glob(f"*{path.suffix}")]) if path.parent.is_dir() else ""
        raise OptionError(f"--policy: no file {path}.{near}")


def _import(path: Path) -> ModuleType:
    _require_file(path)
    spec = importlib.util.spec_from_file_location(f"reap_policy_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look up a class's module
    cloudpickle.register_pickle_by_value(module)  # workers cannot import it: its name is none that Python finds
    sys.path.insert(0, str(path.parent.resolve()))  # as for a script: modules in its folder can be imported
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OptionError(f"--policy: importing {path} failed: {told(error, path)}") from error
    return module


def _made_by(module: ModuleType, name: str, env: EnvBase) -> Policy:
    path = Path(str(module.__file__))
    factory = getattr(module, name, None)
    if factory is None:
        own = [
            key
            for key, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        there = f"; it has {', '.join(own)}" if own else ""
        raise OptionError(f"--policy: {path} has no factory {name!r}{there}.{nearest(name, own)}")
    if isinstance(factory, nn.Module):
        raise OptionError(f"--policy: {name} in {path} is a policy; expected a factory, a function that returns it")
    if not callable(factory):
        raise OptionError(
            f"--policy: {name} in {path} is {type(factory).__name__}; expected a function that returns the policy"
        )
    try:
        policy = factory(env) if _takes_env(factory) else factory()
    except Exception as error:
        raise OptionError(f"--policy: the factory {name} in {path} failed: {told(error, path)}") from error
    if not callable(policy) or inspect.isclass(policy):
        raise OptionError(f"--policy: expected the factory {name} in {path} to return a module or function, got {policy!r}")
    return policy


def _takes_env(factory: Callable[..., Any]) -> bool:
    """Whether a factory takes the env: it has one argument without a default."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(one.kind in kinds and one.default is one.empty for one in parameters)


@contextmanager
def explained_env(env_id: str) -> Generator[None]:
    """Turn an exception raised while an env is made into an OptionError that names the env."""
    try:
        yield
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(f"the env {env_id} cannot be made: {told(error)}") from error


@contextmanager
def explained(policy: str) -> Generator[None]:
    """Turn an exception of the first calls of `--policy` into an OptionError with advice."""
    try:
        yield
    except Exception as error:
        if str(error).startswith("--policy"):
            raise
        text = " ".join(str(error).split()) if isinstance(error, ReapError) else "; ".join([told(error), *notes_of(error)])
        hint = ""
        if policy.endswith(".pt2") and "dynamic_shapes" in text:
            hint = " Export the program for any number of envs: dynamic_shapes={...: {0: torch.export.Dim('envs')}}."
        elif "categorical_action_encoding" in text:
            hint = " On the command line that is --indices."
        raise OptionError(f"--policy {policy}: {text}{hint}") from error


def told(error: BaseException, path: Path | None = None) -> str:
    """Type and text of an exception, and the last line of `path` in its traceback.

    Without a path it is the last line of the user's own code, or of another package if there is none.
    """
    lines = [(Path(frame.f_code.co_filename), line) for frame, line in walk_tb(error.__traceback__)]
    if path is not None:
        lines = [(file, line) for file, line in lines if file in (path, path.resolve())]
    else:
        lines = [(file, line) for file, line in lines if not (_is_own(file) or str(file).startswith("<"))]
        lines = [(file, line) for file, line in lines if not _is_in(file, PACKAGES)] or lines
    text = " ".join(text_of(error).split())
    where = f" ({lines[-1][0].name}, line {lines[-1][1]})" if lines else ""
    return f"{type(error).__name__}{f': {text}' if text else ''}{where}"


def _is_own(file: Path) -> bool:
    return _is_in(file, [REAP]) and not _is_in(file, [REAP / "testing"])


def _is_in(file: Path, folders: Iterable[Path]) -> bool:
    return any(file.is_relative_to(folder) for folder in folders)
