"""Packages that are loaded on first use: those that reap can do without, and tensordict, which is slow to import.

A worker that needs no TensorDict starts about a second sooner without it.
"""

from __future__ import annotations

import importlib
from types import ModuleType

_INSTALL = {
    "av": 'pip install "reap[video]"',
    "ale_py": 'pip install "gymnasium[atari]"',
    "envpool": "pip install envpool",
    "imageio": 'pip install "reap[video]"',
    "h5py": 'pip install "reap[minari]"',
    "matplotlib": 'pip install "reap[plots]"',
    "minari": 'pip install "reap[minari]"',
    "pettingzoo": 'pip install "reap[pettingzoo]"',
    "pyarrow": "pip install pyarrow",
    "ray": 'pip install "reap[ray]"',
    "starlette": 'pip install "reap[page]"',
    "submitit": 'pip install "reap[slurm]"',
    "tensordict": "pip install tensordict",
    "torchrl": 'pip install "reap[torchrl]"',
    "uvicorn": 'pip install "reap[page]"',
}


def load(name: str, user: str = "") -> ModuleType:
    """The module of an optional package.

    Args:
        name: the package, or a module in it: `"ray"`, `"torchrl.envs"`.
        user: who needs it, for the error: `"RayCollector"`.

    Raises:
        ImportError: the package is not installed; the message holds the line that installs it. A package that is
            there but fails to import raises its own error.

    Example:
        >>> load("tensordict").TensorDict({}, [3]).batch_size
        torch.Size([3])
    """
    package = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        needs = f"{user} needs it" if user else "what you call needs it"
        install = _INSTALL.get(package, f"pip install {package}")
        raise ImportError(f"{package} is not installed, and {needs}. Install it: {install}", name=package) from error


def tensordict() -> ModuleType:
    """The tensordict package."""
    return load("tensordict")
