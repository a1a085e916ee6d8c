"""Versions that two processes must agree on, because pickles of one might not load in the other.

a worker, elsewhere: own_versions() ---> the group's process: refuse_other_versions(theirs, where)
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version

from reap.errors import OptionError

PACKAGES = ("torch", "tensordict")


def own_versions() -> dict[str, str]:
    """The versions in this process, by package name."""
    reap = sys.modules["reap"].__version__
    return {"Python": platform.python_version(), "reap": reap, **{name: version(name) for name in PACKAGES}}


def refuse_other_versions(theirs: Mapping[str, str], where: str) -> None:
    """Raise OptionError if a worker's versions differ from those of this process.

    Args:
        theirs: what `own_versions` returned in the worker.
        where: the worker's machine.

    Example:
        >>> refuse_other_versions({**own_versions(), "torch": "1.0"}, "node7")
        Traceback (most recent call last):
            ...
        reap.errors.OptionError: a worker on node7 has other versions: torch ... here, 1.0 there; install the same ...
    """
    ours = own_versions()
    # Patch releases of Python read each other's pickles, and code that travels by value.
    pairs = {name: (ours[name], theirs.get(name, "none")) for name in ours}
    pairs["Python"] = (_minor(pairs["Python"][0]), _minor(pairs["Python"][1]))
    if different := [f"{name} {here} here, {there} there" for name, (here, there) in pairs.items() if here != there]:
        raise OptionError(f"a worker on {where} has other versions: {', '.join(different)}; install the same on all machines")


def _minor(number: str) -> str:
    return ".".join(number.split(".")[:2])
