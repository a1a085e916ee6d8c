"""`GymEnv`: a gymnasium env with specs, for the step loop and for use by TensorDicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import torch
from gymnasium import error as gym_error
from gymnasium.wrappers import AddRenderObservation

from reap.buffers import Slot, Stage
from reap.envs.base import EnvBase, Rows
from reap.envs.gym_rows import Env, GymCalls, GymRow, RowFormat
from reap.envs.gym_state import env_state, load_env_state
from reap.envs.values import ObservationLeaf, action_leaves, observation_leaves
from reap.errors import OptionError, nearest
from reap.keys import Key
from reap.optional import load
from reap.specs import Composite, Spec, Unbounded, spec_from_space

RESERVED = frozenset({"action", "reward", "done", "terminated", "truncated", "next", "collector", "is_init", "step_count"})
InfoKeys = Sequence[str] | Mapping[str, Spec]


class FrameSkip(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats each action, sums the rewards, and stops repeating when the episode ends."""

    stateless = True

    def __init__(self, env: Env, frames: int) -> None:
        super().__init__(env)
        self._frames = frames

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """`frames` steps of the env with one action."""
        total: Any = 0.0
        for _ in range(self._frames):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += reward
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info  # pyright: ignore[reportPossiblyUnboundVariable]


def make_gymnasium_env(env_id: str, **kwargs: Any) -> Env:
    """`gymnasium.make` with the nearest known names in the error, and with Atari's ids registered on demand.

    Raises:
        OptionError: no env of that name is registered.
    """
    if env_id.startswith("ALE/") and env_id not in gym.registry:
        gym.register_envs(load("ale_py", env_id))
    kwargs.setdefault("disable_env_checker", True)
    try:
        return gym.make(env_id, **kwargs)
    except gym_error.Error as error:
        if not (isinstance(error, gym_error.UnregisteredEnv) or type(error) is gym_error.Error):
            raise
        raise OptionError(
            f"unknown env id {env_id!r}: gymnasium has no env of that name.{nearest(env_id, list(gym.registry))} "
            "Ids of other packages are known after importing the package."
        ) from error


class GymEnv(EnvBase):
    """A single gymnasium env.

    Observations: Box as they are; Discrete one-hot int64, or indices int64 with `categorical_action_encoding`;
    MultiDiscrete and MultiBinary likewise; the entries of a Dict at the root under their own names, nested ones nested; those
    of a Tuple under `("observation", "0")`, .... Actions the same under `"action"`.

    Args:
        env: an id, or an env that is used as it is.
        categorical_action_encoding: discrete actions and observations as indices, not one-hot.
        dtype: dtype for float observations, which MuJoCo has as float64; cast when they are written.
        info_keys: values of `info` kept as observations: names (scalars, float32), or name to spec; zeros where absent.
        from_pixels: render each step, as `"pixels"` `[height, width, 3]` uint8.
        pixels_only: with `from_pixels`, leave out the env's own observation.
        frame_skip: times that each action is repeated; rewards are summed.
        device: device of the env's TensorDicts.
        **kwargs: passed to `gymnasium.make` with an id.

    Raises:
        OptionError: unknown id, an observation key that collides with a key of the batch, a space that cannot be used.

    Example:
        >>> env = GymEnv("CartPole-v1")
        >>> env.observation_spec["observation"].shape, env.action_spec.shape
        (torch.Size([4]), torch.Size([2]))
        >>> env.rollout(3).batch_size
        torch.Size([3])
    """

    def __init__(
        self,
        env: str | Env,
        *,
        categorical_action_encoding: bool = False,
        dtype: torch.dtype | None = None,
        info_keys: InfoKeys | None = None,
        from_pixels: bool = False,
        pixels_only: bool = True,
        frame_skip: int | None = None,
        device: torch.device | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(device=device)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise OptionError(f"dtype: expected a floating torch.dtype, for float observations, got {dtype!r}")
        options: dict[str, Any] = {
            "categorical_action_encoding": categorical_action_encoding,
            "dtype": dtype,
            "info_keys": info_keys,
            "from_pixels": from_pixels,
            "pixels_only": pixels_only,
            "frame_skip": frame_skip,
            "device": device,
        }
        self._recipe = (env, {**options, **kwargs})
        self.wrapped = _wrap(_build(env, from_pixels, kwargs), from_pixels, pixels_only, frame_skip)
        name = "pixels" if from_pixels and pixels_only else "observation"
        self.form = _row_format(self.wrapped, name, categorical_action_encoding, info_keys)
        self._set_specs(categorical_action_encoding, dtype, info_keys)
        self.row = GymRow(GymCalls(self.wrapped), self.form)

    def _set_specs(self, categorical: bool, dtype: torch.dtype | None, info_keys: InfoKeys | None) -> None:
        found: dict[Key, Spec] = {}
        for leaf in self.form.observations:
            found[leaf.key] = spec_from_space(leaf.space, categorical=categorical, dtype=dtype)
        infos = _info_specs(info_keys)
        _refuse_twice({key[0] for key in found}, infos)
        found.update({(name,): spec for name, spec in infos.items()})
        _refuse_reserved(found, self.wrapped)
        self.observation_spec = _tree(found)
        actions = {leaf.key: spec_from_space(leaf.space, categorical=categorical) for leaf in self.form.actions}
        self.action_spec = actions["action",] if ("action",) in actions else _tree(actions)
        self.reward_spec = Unbounded((1,), dtype=torch.float32)
        self.add_truncated_keys()

    # The loop calls the row itself, one call less for each step.
    def loop_face(self) -> GymRow:
        """The object whose `bind`, `reset_rows` and `step_rows` a step loop calls."""
        self.ensure_open()
        return self.row

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Take the arrays that following calls read and write."""
        self.row.bind(stage, slot)

    def reset_rows(self, rows: Rows | None, t: int) -> None:
        """Begin a new episode."""
        self.row.reset_rows(rows, t)

    def step_rows(self, rows: Rows | None, t: int) -> Rows | None:
        """Step with the action of column `t`; return row 0 if the episode ended."""
        return self.row.step_rows(rows, t)

    def send(self, rows: Rows | None, t: int) -> None:
        """Keep what is to be stepped."""
        self.row.send(rows, t)

    def receive(self) -> Rows | None:
        """Step what `send` kept."""
        return self.row.receive()

    def _set_seed(self, seed: int) -> None:
        self.row.calls.seed(seed)

    def get_attribute(self, name: str) -> Any:
        """An attribute of the gymnasium env, looked for through its wrappers."""
        return self.wrapped.get_wrapper_attr(name)

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the gymnasium env, looked for through its wrappers."""
        return self.wrapped.get_wrapper_attr(name)(*args)

    def state_dict(self) -> dict[str, Any] | None:
        """The state of the gymnasium env, if it has `state_dict` and `load_state_dict` and no wrapper keeps one of its own."""
        return env_state(self.wrapped)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        load_env_state(self.wrapped, state)

    def close(self) -> None:
        """Close the gymnasium env; a second call does nothing."""
        if not self.closed:
            self.wrapped.close()
        super().close()

    def __reduce__(self) -> tuple[Any, ...]:
        env, options = self._recipe
        return _rebuild, (type(self), env, options)

    def __repr__(self) -> str:
        spec = self.wrapped.spec
        return f"{type(self).__name__}({spec.id if spec else self.wrapped})"


class GymWrapper(GymEnv):
    """A gymnasium env that exists already; the options are those of `GymEnv`."""


def _rebuild(cls: type[GymEnv], env: Any, options: dict[str, Any]) -> GymEnv:
    return cls(env, **options)


def _build(env: Any, from_pixels: bool, kwargs: dict[str, Any]) -> Env:
    if isinstance(env, str):
        return make_gymnasium_env(env, **({"render_mode": "rgb_array"} if from_pixels else {}), **kwargs)
    if not isinstance(env, gym.Env):
        raise OptionError(f"GymEnv: expected a gymnasium id or env, got {type(env).__name__}: {env!r}")
    if kwargs:
        raise OptionError(f"GymEnv: {sorted(kwargs)} go to gymnasium.make and need an id, but an env was given")
    return env


def _wrap(env: Env, from_pixels: bool, pixels_only: bool, frame_skip: int | None) -> Env:
    if frame_skip is not None:
        if isinstance(frame_skip, bool) or not isinstance(frame_skip, int) or frame_skip < 1:
            raise OptionError(f"frame_skip: expected a positive integer, got {frame_skip!r}")
        env = FrameSkip(env, frame_skip)
    if not from_pixels:
        return env
    if env.render_mode != "rgb_array":
        raise OptionError(f"from_pixels needs render_mode='rgb_array', this env has {env.render_mode!r}")
    env.reset()
    return AddRenderObservation(env, render_only=pixels_only, render_key="pixels", obs_key="observation")


def _info_specs(info_keys: InfoKeys | None) -> dict[str, Spec]:
    if info_keys is None:
        return {}
    if isinstance(info_keys, str):
        raise OptionError(f"info_keys: expected a list of names or a dict of specs, got the string {info_keys!r}")
    if isinstance(info_keys, Mapping):
        return dict(info_keys)
    return {name: Unbounded((), dtype=torch.float32) for name in info_keys}


def _info_leaf(name: str, spec: Spec) -> ObservationLeaf:
    zero: Any = spec.zero().numpy()
    return ObservationLeaf((name,), gym.spaces.Space(), lambda info: info.get(name, zero))


def _row_format(env: Env, name: str, categorical: bool, info_keys: InfoKeys | None) -> RowFormat:
    form = RowFormat(
        observations=tuple(observation_leaves(env.observation_space, (name,), categorical=categorical)),
        infos=tuple(_info_leaf(key, spec) for key, spec in _info_specs(info_keys).items()),
        actions=tuple(action_leaves(env.action_space, ("action",), categorical=categorical)),
        action_space=env.action_space,
    )
    if not form.observations and not form.infos:
        raise OptionError(f"{env}: expected an observation space that holds something, got {env.observation_space}")
    if not form.actions:
        raise OptionError(f"{env}: expected an action space that holds something, got {env.action_space}")
    return form


def _tree(leaves: Mapping[Key, Spec]) -> Composite:
    tree = Composite()
    for key, spec in leaves.items():
        tree = tree.with_(key, spec)
    return tree


def _refuse_twice(names: set[str], infos: Mapping[str, Spec]) -> None:
    taken = sorted(names & infos.keys())
    if taken:
        raise OptionError(f"info_keys: {taken} are observations of the env already; leave them out or rename the observation")


def _refuse_reserved(keys: Mapping[Key, Spec], env: Env) -> None:
    taken = sorted({key[0] for key in keys} & RESERVED)
    if taken:
        raise OptionError(
            f"{env}: observation keys {taken} collide with keys of every batch; rename them, e.g. with "
            "gymnasium.wrappers.TransformObservation"
        )
