"""`EnvSpecs`: the specs of an env's inputs and outputs, under torchrl's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from reap.envs.checks.looks import Bounds, NoNaN, number_looks
from reap.envs.faces.absent import lacking
from reap.envs.faces.spec_views import SpecViews
from reap.errors import OptionError
from reap.keys import Key, NestedKey, plain
from reap.optional import tensordict as load_tensordict
from reap.recording.buffers import FLAGS, after
from reap.recording.layout import Field, field_of
from reap.specs import Categorical, Composite, Spec, Unbounded
from reap.specs.fits import Check
from reap.specs.parts.from_torchrl import as_own
from reap.specs.parts.torchrl import introduce

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class EnvSpecs(SpecViews):
    """Specs with their batch dimensions: every leaf's shape starts with `batch_size`.

    Args:
        device: the env's device, or None.
        batch_size: leading dimensions of all inputs and outputs of the env.

    Raises:
        OptionError: a device that does not exist.
    """

    def __init__(self, *, device: torch.device | str | None = None, batch_size: Sequence[int] = ()) -> None:
        self.batch_size = torch.Size(batch_size)
        self.device: torch.device | None = None if device is None else checked_device(device)
        self._observation = Composite(shape=self.batch_size)
        self._action = Composite(shape=self.batch_size)
        self._reward = Composite(reward=Unbounded((1,), dtype=torch.float32)).expand(*self.batch_size)
        flag = Categorical(2, shape=(1,), dtype=torch.bool)
        self._done = Composite(done=flag, terminated=flag).expand(*self.batch_size)
        self.check: Check = "types"
        """How closely values are checked."""
        self.allow_done_after_reset = False
        """Whether `_reset` may return done flags that are set."""
        self.left_bounds: set[Key] = set()
        """Keys for which a warning about numbers outside their bounds has been given."""
        self._result_specs: dict[str, tuple[Composite, Composite, list[tuple[Key, Spec]]]] = {}
        self._looks: dict[Key, tuple[Spec, tuple[NoNaN | None, Bounds | None]]] = {}

    def specs_of_result(self, call: str) -> list[tuple[Key, Spec]]:
        """The specs of the values in a result of `_reset` or `_step`, flags left out."""
        known = self._result_specs.get(call)
        sources = (self._observation, self._reward)
        if known is None or known[0] is not sources[0] or known[1] is not sources[1]:
            observed, rewards = list(self._observation.leaves()), list(self._reward.leaves())
            known = self._result_specs[call] = (*sources, [*observed, *rewards] if call == "_step" else observed)
        return known[2]

    def looks_of(self, key: Key, spec: Spec) -> tuple[NoNaN | None, Bounds | None]:
        """The checks of the numbers of one of the env's specs."""
        known = self._looks.get(key)
        if known is None or known[0] is not spec:
            known = self._looks[key] = (spec, number_looks(spec, 0))
        return known[1]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Called for missing attributes; an env whose `__init__` was not called has none."""
            if "_done" in vars(self):
                if hasattr(type(self), name):  # a property that raised an AttributeError of its own
                    return object.__getattribute__(self, name)
                raise lacking(self, name)
            cls = type(self).__name__
            raise AttributeError(
                f"{cls!r} object has no attribute {name!r} yet: {cls}.__init__ has to call super().__init__() first, before it "
                "sets specs",
                name=name,
                obj=self,
            )

    # ------------------------------------------------------------------ specs

    @property
    def observation_spec(self) -> Composite:
        """The values that `reset` and `step` return besides reward and done."""
        introduce()
        return self._observation

    @observation_spec.setter
    def observation_spec(self, spec: Spec) -> None:
        spec = as_own(spec)
        if not isinstance(spec, Composite):
            raise OptionError(
                f"observation_spec of {type(self).__name__}: expected a Composite, got {type(spec).__name__}; "
                "write Composite(observation=...)"
            )
        self._observation = self._with_batch(spec)

    @property
    def full_observation_spec(self) -> Composite:
        """The same as `observation_spec`."""
        return self._observation

    @property
    def full_action_spec(self) -> Composite:
        """The actions under their keys."""
        introduce()
        return self._action

    @property
    def action_spec(self) -> Spec:
        """The action's spec, or the Composite of all if there are several."""
        introduce()
        return _only_leaf(self._action)

    @action_spec.setter
    def action_spec(self, spec: Spec) -> None:
        self._action = self._with_batch(_composite(spec, "action"))

    @property
    def full_reward_spec(self) -> Composite:
        """The rewards under their keys."""
        return self._reward

    @property
    def reward_spec(self) -> Spec:
        """The reward's spec, or the Composite of all if there are several."""
        return _only_leaf(self._reward)

    @reward_spec.setter
    def reward_spec(self, spec: Spec) -> None:
        self._reward = self._with_batch(_composite(spec, "reward"))

    @property
    def full_done_spec(self) -> Composite:
        """The done flags under their keys."""
        return self._done

    @property
    def done_spec(self) -> Spec:
        """The spec of a lone done flag, or the Composite of all."""
        return _only_leaf(self._done)

    @done_spec.setter
    def done_spec(self, spec: Spec) -> None:
        spec = as_own(spec)
        given = spec if isinstance(spec, Composite) else Composite(done=spec, terminated=spec)
        self._done = self._with_batch(given)

    def add_truncated_keys(self) -> EnvSpecs:
        """Give the env a `truncated` flag next to each `done`; returns the env."""
        for key, leaf in tuple(self._done.leaves()):
            if key[-1] == "done" and (*key[:-1], "truncated") not in self._done:
                self._done = self._done.with_((*key[:-1], "truncated"), leaf).lock_()
        return self

    # ------------------------------------------------------------------ keys

    @property
    def action_keys(self) -> list[NestedKey]:
        """Keys of the actions."""
        return _keys(self._action)

    @property
    def action_key(self) -> NestedKey:
        """Key of the only action."""
        return _only_key(self._action, "action")

    @property
    def reward_keys(self) -> list[NestedKey]:
        """Keys of the rewards."""
        return _keys(self._reward)

    @property
    def reward_key(self) -> NestedKey:
        """Key of the only reward."""
        return _only_key(self._reward, "reward")

    def fields(self, spec: Composite) -> dict[Key, Field]:
        """Shape and dtype of one row's values for each key of one of the env's specs."""
        lead = len(self.batch_size)
        return {key: field_of(spec, key, lead) for key, _ in spec.leaves()}

    def fields_of_flags(self) -> dict[Key, Field]:
        """Done flags other than those of every batch: nested ones, and ones with other names. They are recorded unchanged."""
        return {key: field for key, field in self.fields(self._done).items() if key not in FLAGS}

    def fields_of_stage(self) -> dict[Key, Field]:
        """Results of a step that are inputs of the next one: observations, and done flags below the root."""
        return {**self.fields(self._observation), **self.fields_of_flags()}

    def slot_fields(self) -> dict[Key, Field]:
        """The fields that the env reads and writes in each column of a slot: actions, and results under `"next"`."""
        following = {**self.fields_of_stage(), **self.fields(self._reward)}
        flags = {key: Field((1,), torch.bool) for key in FLAGS}
        return {**self.fields(self._action), **{after(key): field for key, field in {**following, **flags}.items()}}

    def empty_tensordict(self) -> TensorDictBase:
        """An empty TensorDict of the env's batch size and device."""
        return load_tensordict().TensorDict({}, self.batch_size, device=self.device)

    def _with_batch(self, spec: Composite) -> Composite:
        """A locked copy of a spec, with the batch dimensions."""
        size, lead = tuple(self.batch_size), len(self.batch_size)
        unknown = [key for key in spec.keys(True, True) if spec[key] is None]
        if unknown:
            raise OptionError(f"specs of {type(self).__name__}: expected a spec under each key, found None under {unknown}")
        if tuple(spec.shape[:lead]) == size:
            return spec.clone().lock_()
        if all(tuple(leaf.shape[:lead]) == size for _, leaf in spec.leaves()):
            return Composite(dict(spec.clone().items()), shape=self.batch_size).lock_()
        return spec.expand(*size).lock_()


def checked_device(given: torch.device | str | int) -> torch.device:
    """The device, checked to exist.

    Raises:
        OptionError: torch finds no device of this kind.
    """
    device = torch.device(given)
    backend = getattr(torch, device.type, None)
    is_available = getattr(backend, "is_available", None)
    if is_available is not None and not is_available():
        raise OptionError(f"device={str(given)!r}: torch finds no {device.type.upper()} device here")
    return device


def _composite(spec: Spec, name: str) -> Composite:
    spec = as_own(spec)
    return spec if isinstance(spec, Composite) else Composite({name: spec})


def _keys(spec: Composite) -> list[NestedKey]:
    return [plain(key) for key, _ in spec.leaves()]


def _only_leaf(spec: Composite) -> Spec:
    leaves = [leaf for _, leaf in spec.leaves()]
    return leaves[0] if len(leaves) == 1 else spec


def _only_key(spec: Composite, name: str) -> NestedKey:
    keys = _keys(spec)
    if len(keys) != 1:
        raise OptionError(f"expected one {name}, this env has {keys}; use .{name}_keys")
    return keys[0]
