"""`TorchRLEnv`: an env object of torchrl, with its transforms, as an env of reap.

The env is driven as by torchrl's own collectors, by `step_and_maybe_reset`, which resets rows that ended in the TensorDict of
the next step (in the workers, with a `ParallelEnv`). Rows that reach a limit of the collector are reset by the env's
`maybe_reset`. If done flags are only below the root, torchrl would reset parts of a row; here any of them ends the episode of
its row, which is then reset as a whole.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from reap.envs.base import EnvBase
from reap.envs.faces.td_access import get_leaf
from reap.envs.faces.tensordict_as_rows import TensorDictAsRows, TensorDictCalls
from reap.envs.own_policy import own_draw
from reap.envs.row_stepper import RowStepper
from reap.errors import OptionError
from reap.keys import Key, as_key, plain
from reap.recording.buffers import FLAGS, Slot, Stage, after
from reap.specs import Composite, Spec
from reap.specs.parts.from_torchrl import composite_from_torchrl

if TYPE_CHECKING:
    from tensordict import TensorDictBase

PRESENT = "torchrl.envs.common"
"""The module of torchrl's EnvBase; torchrl envs exist only if it has been imported."""


def is_torchrl_env(given: Any) -> bool:
    """Whether an object is a torchrl env; does not import torchrl."""
    module = sys.modules.get(PRESENT)
    return module is not None and isinstance(given, module.EnvBase)


class TorchRLEnv(EnvBase):
    """A torchrl env as an env of reap.

    Collectors wrap torchrl envs in this class. All observations are recorded, including keys of transforms (such as
    `step_count` of `StepCounter`).

    Args:
        env: an instance of a subclass of `torchrl.envs.EnvBase`.

    Raises:
        OptionError: a value has no fixed shape, or an observation has the name of a key of every batch.

    Example:
        >>> from torchrl.envs import GymEnv
        >>> TorchRLEnv(GymEnv("CartPole-v1")).observation_spec["observation"].shape
        torch.Size([4])
    """

    def __init__(self, env: Any) -> None:
        super().__init__(device=env.device, batch_size=env.batch_size)
        self.wrapped = env
        size = tuple(env.batch_size)
        self.observation_spec = composite_from_torchrl(env.full_observation_spec, size)
        self.action_spec = composite_from_torchrl(env.full_action_spec, size)
        self.reward_spec = composite_from_torchrl(env.full_reward_spec, size)
        self.done_spec = composite_from_torchrl(env.full_done_spec, size)
        objects = [plain(key) for key, spec in self.full_action_spec.leaves() if spec.dtype is None]
        if objects:
            raise OptionError(f"{type(env).__name__}: expected actions that are tensors, found {objects} which are objects")
        each = [plain(key) for key, spec in self.observation_spec.leaves() if spec.dtype is None and _is_each(env, key)]
        if each:
            raise OptionError(
                f"{type(env).__name__}: observations {each} are objects for each agent of a group; expected one for each "
                "row: put them into one, or under a key outside of the group"
            )
        taken = [plain(key) for key in self.fields_of_stage() if key[0] in {"next", "collector"} or key in FLAGS]
        if taken:
            raise OptionError(f"{type(env).__name__}: observations {taken} have names that batches use; rename them")
        self._calls = TorchRLCalls(self)

    def row_stepper(self) -> RowStepper:
        """The object that the loop calls."""
        self.ensure_open()
        return self._made_face()

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write."""
        super().bind(stage, slot)

    def _made_face(self) -> TensorDictAsRows:
        if self._face is None:
            self._face = PolicyFedFace(self, self._calls) if self._calls.wanted else TensorDictAsRows(self, self._calls)
        return self._face

    def _tensordict_calls(self) -> TensorDictCalls:
        return self._calls

    def leave_to_policy(self, keys: Sequence[Key]) -> None:
        """Exclude from the observations the keys that a `TensorDictPrimer` adds for a policy's recurrent state."""
        if any(key in keys for key, _ in self.observation_spec.leaves()):
            self.observation_spec = _without(self.observation_spec, keys)
            self._face = None

    def set_device(self, device: torch.device) -> None:
        """Move the torchrl env to a device, unless all its specs are there; see `EnvBase`."""
        super().set_device(device)
        env = self.wrapped
        specs = (env.full_observation_spec, env.full_action_spec, env.full_reward_spec, env.full_done_spec)
        devices = {env.device, *(leaf.device for spec in specs for leaf in spec.values(True, True))}
        if devices - {None, device}:
            self.wrapped = env.to(device)
            self._calls = TorchRLCalls(self)

    def _reset(self, tensordict: TensorDictBase | None) -> TensorDictBase:
        self._forget()
        if tensordict is None or "_reset" not in tensordict:
            return self.wrapped.reset(None if tensordict is None else tensordict.copy())
        mask = tensordict.get("_reset")
        return self._calls.begin_rows(tensordict.exclude("_reset"), mask)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self._forget()
        return self.wrapped.step(tensordict.copy()).get("next")

    def _set_seed(self, seed: int) -> None:
        self._forget()
        self.wrapped.set_seed(seed)

    def _forget(self) -> None:
        if self._face is not None:
            self._face.forget()

    def as_torchrl(self) -> Any:
        """The torchrl env itself."""
        return self.wrapped

    stores_choices_as_given = True

    @property
    def own_draw(self) -> Callable[[TensorDictBase], TensorDictBase] | None:
        """The torchrl env's own method of drawing random actions; see `EnvBase`."""
        return own_draw(self.wrapped)

    def get_attribute(self, name: str) -> Any:
        """An attribute of the torchrl env."""
        return getattr(self.wrapped, name)

    def own_attribute(self, name: str) -> Any:
        """An attribute of the torchrl env, whose specs are torchrl's."""
        return self.get_attribute(name)

    def call(self, name: str, *args: Any) -> Any:
        """Call a method of the torchrl env; return its result."""
        return getattr(self.wrapped, name)(*args)

    def close(self, *, raise_if_closed: bool = False) -> None:
        """Close the env; a second call does nothing, or raises ClosedError with `raise_if_closed`."""
        if not self.closed or raise_if_closed:
            super().close(raise_if_closed=raise_if_closed)
            if not self.wrapped.is_closed:
                self.wrapped.close()

    def __repr__(self) -> str:
        return f"TorchRLEnv({type(_innermost(self.wrapped)).__name__}, batch_size={tuple(self.batch_size)})"


class TorchRLCalls:
    """The calls to a torchrl env.

    Attributes:
        wanted: keys other than observations that the env or its transforms read, and a policy may write.
    """

    def __init__(self, env: TorchRLEnv) -> None:
        self._env = env.wrapped
        done_keys = [as_key(key) for key, _ in env.full_done_spec.leaves()]
        self.resets_ended = ("done",) in done_keys
        self._done = [key for key in done_keys if key[-1] == "done" and (len(key) == 1 or not self.resets_ended)]
        self._shapes = {key: tuple(env.full_done_spec[key].shape) for key in self._done}
        known = {*env.fields_of_stage(), *env.fields(env.full_action_spec), *env.fields(env.full_reward_spec), *done_keys}
        self.wanted = [key for key in _input_keys(self._env) if key not in known]
        self.step = self._step_and_reset if self.resets_ended else self._step_only

    def begin(self) -> TensorDictBase:
        """Reset all rows."""
        return self._env.reset()

    def begin_rows(self, current: TensorDictBase, mask: torch.Tensor) -> TensorDictBase:
        """Reset the rows of a mask, through the done flags that the env uses for resets."""
        request = current.copy()
        for key in self._done:
            shape = self._shapes[key]
            spread = mask.reshape((*mask.shape[:-1], *(1,) * (len(shape) - mask.ndim + 1))).expand(shape).clone()
            request.set(plain(key), spread)
        return self._env.maybe_reset(request)

    def _step_and_reset(self, current: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        stepped, following = self._env.step_and_maybe_reset(current)
        return get_leaf(stepped, "next"), following

    def _step_only(self, current: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        stepped = self._env.step(current)
        return get_leaf(stepped, "next"), self._env.step_mdp(stepped)


class PolicyFedFace(TensorDictAsRows):
    """Also passes on policy outputs other than actions, if the env or one of its transforms reads them."""

    def __init__(self, env: TorchRLEnv, calls: TorchRLCalls) -> None:
        super().__init__(env, calls)
        self._wanted = calls.wanted

    def bind(self, stage: Stage, slot: Slot) -> None:
        """Bind the arrays that later calls read and write."""
        super().bind(stage, slot)
        written = [key for key in self._wanted if key in slot.fields and after(key) not in slot.fields]
        self._actions += [(plain(key), slot.views(key)) for key in written]


def _input_keys(env: Any) -> list[Key]:
    """The keys that an env and its transforms read."""
    found = [as_key(key) for key in env.full_state_spec.keys(True, True)]
    for part in _transforms(env):
        names = [*(getattr(part, "in_keys", None) or ()), *(getattr(part, "in_keys_inv", None) or ())]
        found += [as_key(key) for key in names if isinstance(key, str | tuple)]
    return list(dict.fromkeys(found))


def _is_each(env: Any, key: Key) -> bool:
    """Whether there is an object for each agent of a group."""
    spec = env.full_observation_spec[key]
    return type(spec).__name__ == "NonTensor" and len(key) > 1 and tuple(spec.shape) != tuple(env.batch_size)


def _transforms(env: Any) -> Iterator[Any]:
    """The transforms of a TransformedEnv, and of the envs within it, one by one."""
    while _is_transformed(env):
        yield from (part for part in env.transform.modules() if hasattr(part, "in_keys"))
        env = env.base_env


def _innermost(env: Any) -> Any:
    while _is_transformed(env):
        env = env.base_env
    return env


def _is_transformed(env: Any) -> bool:
    return any(cls.__name__ == "TransformedEnv" for cls in type(env).__mro__)


def _without(spec: Composite, keys: Sequence[Key], path: Key = ()) -> Composite:
    """A Composite without these leaves, and without Composites that would be empty."""
    kept: dict[str, Spec] = {}
    for name, part in spec.items():
        key = (*path, name)
        if isinstance(part, Composite):
            inner = _without(part, keys, key)
            kept.update({name: inner} if len(inner) else {})
        elif key not in keys:
            kept[name] = part
    return Composite(kept, shape=spec.shape)
