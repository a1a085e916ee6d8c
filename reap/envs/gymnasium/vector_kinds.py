"""Kinds of vector envs, and how single rows of each are reset.

A vector env resets rows that end by itself, in the step after the end or in the same one. The loop needs the true last
observation, and no frame that is a reset. The way to get that depends on the kind of env, which is never guessed:

    whole mask known   gymnasium's Sync/AsyncVectorEnv, EnvPool, under wrappers known to pass a mask on: rows are reset by mask
    same-step mode     final observations are in the info, the reset ones in the observation
    anything else      the step after an end stays as an invalid frame (`EnvBase.resets_itself`)

Known classes are those whose source was checked: `CartPoleVectorEnv`, for example, ignores the mask and would reset every row,
and wrappers with per-row data may clear them for all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import gymnasium as gym
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import vector as wrappers

from reap.errors import OptionError

HAS_MODES = hasattr(gym.vector, "AutoresetMode")
"""The gymnasium version that added modes and masks; earlier vector envs reset rows in the next step and ignored masks."""

NAMES_OF_WRAPPERS = (
    "ClipAction",
    "ClipReward",
    "DictInfoToList",
    "DtypeObservation",
    "FilterObservation",
    "FlattenObservation",
    "GrayscaleObservation",
    "RecordEpisodeStatistics",
    "RescaleAction",
    "RescaleObservation",
    "ReshapeObservation",
    "ResizeObservation",
    "TransformAction",
    "TransformObservation",
    "TransformReward",
    "VectorizeTransformAction",
    "VectorizeTransformObservation",
    "VectorizeTransformReward",
)
PASS_MASKS = frozenset(getattr(wrappers, name) for name in NAMES_OF_WRAPPERS if HAS_MODES and hasattr(wrappers, name))
"""Wrappers that, according to their source, pass a mask on and affect no other rows."""
PASS_MASKS_TO_POOL = frozenset(
    w for w in PASS_MASKS if w.__name__ in {"ClipReward", "RecordEpisodeStatistics", "TransformReward"}
)
"""EnvPool returns only the rows of the mask, which observation wrappers do not expect."""


class Mode(Enum):
    """When a vector env resets a row that ended: gymnasium's modes."""

    NEXT_STEP = "NextStep"
    SAME_STEP = "SameStep"
    DISABLED = "Disabled"


@dataclass(frozen=True)
class VectorKind:
    """The abilities of a vector env.

    Attributes:
        mode: when it resets rows that ended.
        takes_mask: rows can be reset alone, by `options={"reset_mask": mask}`.
        takes_ids: rows can be reset and stepped alone, by their numbers (EnvPool without wrappers).
        returns_chosen: a reset of some rows returns those rows only (EnvPool).
        seeds_rows: each row has its own generator; otherwise there is one for all.
    """

    mode: Mode
    takes_mask: bool
    takes_ids: bool
    returns_chosen: bool
    seeds_rows: bool

    @property
    def resets_itself(self) -> bool:
        """Whether the step after an end is the env's reset step, which cannot be avoided."""
        return self.mode is Mode.NEXT_STEP and not self.takes_mask

    @property
    def way(self) -> str:
        """Text for how rows that ended are reset."""
        if self.mode is Mode.SAME_STEP:
            return "rows reset in the same step"
        if self.takes_mask:
            return f"rows reset by {'id' if self.takes_ids else 'mask'}"
        return "rows reset in the next step"


def is_vector_env(given: Any) -> bool:
    """Whether this is a gymnasium vector env or an EnvPool."""
    return isinstance(given, VectorEnv) or is_envpool(given)


def is_envpool(given: Any) -> bool:
    """Whether this is an env of EnvPool; its package is not imported."""
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(given).__mro__)


def count_rows(env: Any) -> int:
    """Number of rows of a vector env."""
    return int(env.config["num_envs"]) if is_envpool(env) else int(env.num_envs)


def single_spaces(env: Any) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Observation and action space of a single env, or of one row."""
    if is_envpool(env) or not is_vector_env(env):
        return env.observation_space, env.action_space
    return env.single_observation_space, env.single_action_space


def layers(env: Any) -> list[Any]:
    """The wrappers around a vector env, outermost first, and the env itself."""
    found = [env]
    while isinstance(found[-1], VectorWrapper):
        found.append(found[-1].env)
    return found


def kind_of(env: Any) -> VectorKind:
    """The abilities of a vector env.

    Raises:
        OptionError: it returns rows in batches as they get ready, does not say when it resets rows, resets none and is not
            known to honour a mask, or has a bug that repeats resets or leaves texts unchanged.
    """
    *outer, base = layers(env)
    pool = is_envpool(base)
    if pool:
        _refuse_pool(base)
    mode = Mode.NEXT_STEP if pool or not HAS_MODES else _mode(base)
    known_wrappers = PASS_MASKS_TO_POOL if pool else PASS_MASKS
    is_known = pool or (HAS_MODES and type(base) in {SyncVectorEnv, AsyncVectorEnv})
    unknown = [type(layer).__name__ for layer in outer if type(layer) not in known_wrappers]
    if not is_known:
        unknown.append(type(base).__name__)
    if mode is Mode.DISABLED and unknown:
        raise OptionError(
            f"{env}: with autoreset_mode DISABLED its rows have to be reset by mask, and {unknown} are not known to reset the "
            "rows of the mask and no others; make it with autoreset_mode NEXT_STEP or SAME_STEP"
        )
    if mode is Mode.NEXT_STEP and type(base) is AsyncVectorEnv and not base.shared_memory:
        raise OptionError(
            "AsyncVectorEnv(shared_memory=False) in NEXT_STEP mode resets rows a second time after a reset, by a fault of "
            "gymnasium's workers; use shared_memory=True, or autoreset_mode SAME_STEP or DISABLED"
        )
    if type(base) is AsyncVectorEnv and base.shared_memory and _has_text(base.single_observation_space):
        raise OptionError(
            "AsyncVectorEnv(shared_memory=True) returns the same text in every step, by a fault of gymnasium's; use "
            "shared_memory=False with autoreset_mode SAME_STEP or DISABLED, or a SyncVectorEnv"
        )
    return VectorKind(
        mode,
        takes_mask=not unknown,
        takes_ids=pool and not outer,
        returns_chosen=pool,
        seeds_rows=isinstance(base, SyncVectorEnv | AsyncVectorEnv),
    )


def _has_text(space: gym.Space[Any]) -> bool:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(_has_text, parts))
    return isinstance(space, spaces.Text)


def _refuse_pool(pool: Any) -> None:
    if not hasattr(pool, "action_space"):
        raise OptionError(f"{type(pool).__name__}: expected an EnvPool made with env_type='gymnasium'")
    rows, batch = pool.config["num_envs"], pool.config["batch_size"]
    if batch not in {0, rows}:
        raise OptionError(
            f"{type(pool).__name__}: batch_size {batch} of {rows} envs gives rows as they get ready; leave batch_size out"
        )


def _mode(env: VectorEnv[Any, Any, Any]) -> Mode:
    # ale_py's vector env writes its mode into the dict of the base class, where every env without metadata finds it.
    given = getattr(env, "autoreset_mode", None)
    if given is None and env.metadata is not VectorEnv.metadata:
        given = env.metadata.get("autoreset_mode")
    try:
        return Mode(getattr(given, "value", given))
    except ValueError:
        raise OptionError(
            f"{env}: expected metadata['autoreset_mode'] to be one of gymnasium.vector.AutoresetMode, found {given!r}; without "
            "it one cannot tell which steps are resets"
        ) from None
