"""Makes envs without what their engines print of themselves: ALE's banner, and remarks on gymnasium's own model files.

Each would be printed once for each env or process. The program's own messages, those of users' envs and models, and
warnings of a simulation are left alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Mapping
from typing import Any

import gymnasium as gym

from reap.optional import load

ALE = "ale_py"
MUJOCO = "gymnasium.envs.mujoco"

_making = threading.Lock()
"""MuJoCo has one handler of warnings for the process."""


@contextlib.contextmanager
def without_notices(env_id: str, options: Mapping[str, Any]) -> Generator[None]:
    """Make an env without ALE's banner and without MuJoCo's remarks on model files that are gymnasium's own.

    MuJoCo would also append them to `MUJOCO_LOG.TXT` in the working folder.

    Args:
        env_id: of gymnasium.
        options: of `gymnasium.make`; with an `xml_file` the model is the user's, and so are the remarks on it.
    """
    spec = gym.registry.get(env_id)
    entry_points = [str(point) for point in (spec.entry_point, spec.vector_entry_point)] if spec else []
    if any(point.startswith(ALE) for point in entry_points):
        hide_banner()
    elif any(point.startswith(MUJOCO) for point in entry_points) and "xml_file" not in options:
        with _without_remarks():
            yield
        return
    yield


def hide_banner() -> None:
    """Set ALE's level of messages in this process to errors, as its envs do themselves when the banner has been printed."""
    ale: Any = load(ALE)
    ale.ALEInterface.setLoggerMode(ale.LoggerMode.Error)


@contextlib.contextmanager
def _without_remarks() -> Generator[None]:
    try:
        mujoco: Any = load("mujoco")
    except ImportError:  # gymnasium's error, which names what to install, is better
        yield
        return
    with _making:
        handler = mujoco.get_mju_user_warning()
        if handler is None:
            mujoco.set_mju_user_warning(_ignore)
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(handler)


def _ignore(_remark: str) -> None:
    pass
