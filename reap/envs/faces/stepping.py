"""`Stepping`: an env's methods on TensorDicts that build on `reset` and `step`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from reap.envs.adapters.into_torchrl import as_torchrl
from reap.envs.adapters.transformed import TransformedEnv
from reap.envs.faces.done_flags import DoneFlags
from reap.envs.faces.episodes import rollout, step_mdp
from reap.envs.own_policy import as_policy, own_draw
from reap.envs.specs import EnvSpecs
from reap.errors import OptionError
from reap.option_values import positive, switch
from reap.specs import random_actions

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    Policy = Callable[[TensorDictBase], TensorDictBase | None]


class Stepping(EnvSpecs):
    """Random steps, rollouts and partial resets."""

    if TYPE_CHECKING:

        def reset(self, tensordict: TensorDictBase | None = None) -> TensorDictBase: ...  # noqa: D102
        def step(self, tensordict: TensorDictBase) -> TensorDictBase: ...  # noqa: D102
        def ensure_open(self) -> None: ...  # noqa: D102
        def set_seed(self, seed: int) -> int: ...  # noqa: D102
        def close(self) -> None: ...  # noqa: D102
        def results_of_step(self, tensordict: TensorDictBase) -> TensorDictBase: ...  # noqa: D102

    def rand_action(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """A TensorDict with random actions, drawn from torch's global generator; an `action_mask` in it is obeyed."""
        return random_actions(self.full_action_spec, self.empty_tensordict() if tensordict is None else tensordict)

    @property
    def own_draw(self) -> Callable[[TensorDictBase], TensorDictBase] | None:
        """The function that draws random actions, if `rand_action` or `rand_step` is overridden; None: specs draw them."""
        return own_draw(self)

    def rand_step(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """A step with a random action."""
        return self.step(self.rand_action(tensordict))

    def step_mdp(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        """The root of the next step, from a step's result; see `step_mdp`."""
        return step_mdp(
            next_tensordict,
            exclude_action=False,
            reward_keys=self.reward_keys,
            done_keys=self.done_keys,
            action_keys=self.action_keys,
        )

    def any_done(self, tensordict: TensorDictBase) -> bool:
        """Whether any row is done in a TensorDict with done flags at its root; the rows are noted under `"_reset"`.

        Args:
            tensordict: the entry `"next"` of a step's result, or the root of the next step.
        """
        ended = DoneFlags(self).read(tensordict)
        if ended is None:
            return False
        mask = torch.from_numpy(ended[0] | ended[1]).view(*self.batch_size, 1)
        tensordict.set("_reset", mask.to(tensordict.device))
        return True

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Reset the rows that are done in a TensorDict with done flags at its root; if none is, return it unchanged."""
        return self.reset(tensordict) if self.any_done(tensordict) else tensordict

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Step, and reset the rows whose episode ended.

        Returns:
            The step's result, and the TensorDict from which the next step starts.

        Example:
            >>> from reap.envs import GymEnv
            >>> env = GymEnv("CartPole-v1")
            >>> stepped, following = env.step_and_maybe_reset(env.rand_action(env.reset()))
            >>> torch.equal(stepped["next", "observation"], following["observation"])
            True
        """
        stepped = self.step(tensordict)
        return stepped, self.maybe_reset(self.step_mdp(stepped))

    def rollout(
        self,
        max_steps: int,
        policy: Policy | None = None,
        callback: Callable[[Any, TensorDictBase], Any] | None = None,
        *,
        actions: Iterable[Any] | None = None,
        auto_reset: bool = True,
        auto_cast_to_device: bool = False,
        break_when_any_done: bool | None = None,
        return_contiguous: bool = True,
        tensordict: TensorDictBase | None = None,
        set_truncated: bool = False,
        storing_device: torch.device | str | None = None,
    ) -> TensorDictBase:
        """Steps of a policy, stacked along a last dimension `"time"`: `[*batch_size, T]` with `T <= max_steps`.

        Args:
            max_steps: maximum number of steps.
            policy: takes and returns a TensorDict; None for random actions.
            callback: called with the env and the step's TensorDict after each step.
            actions: actions to take instead of a policy's: tensors, or TensorDicts with the actions' keys. The rollout ends
                when they run out.
            auto_reset: reset before the first step; otherwise the rollout starts from `tensordict`.
            auto_cast_to_device: move TensorDicts to the device of the policy's parameters, and actions back.
            break_when_any_done: stop when any row is done (also the meaning of None); otherwise reset done rows and continue.
            return_contiguous: stack the values; otherwise the result is a LazyStackedTensorDict of the steps.
            tensordict: the starting point with `auto_reset=False`, or the argument of the reset.
            set_truncated: mark the last step truncated and done.
            storing_device: the device of the result; None leaves steps where the env made them.

        Raises:
            OptionError: both a policy and actions, `auto_cast_to_device` with a policy without a single device, or an argument
                of another type.
        """
        self.ensure_open()
        positive(max_steps, "rollout: max_steps")
        switches = {
            "auto_reset": auto_reset,
            "auto_cast_to_device": auto_cast_to_device,
            "break_when_any_done": True if break_when_any_done is None else break_when_any_done,
            "return_contiguous": return_contiguous,
            "set_truncated": set_truncated,
        }
        for name, value in switches.items():
            switches[name] = switch(value, f"rollout: {name}")
        if policy is not None and actions is not None:
            raise OptionError("rollout: expected a policy or actions, got both")
        start = self.reset(tensordict) if switches["auto_reset"] else tensordict
        act: Any = as_policy(policy) or self.rand_action
        if actions is not None:
            given = list(islice(actions, max_steps))
            act, max_steps = _Replay(self, given), len(given)
        elif switches["auto_cast_to_device"] and policy is not None:
            act = _OnItsDevice(policy, self.device)
        return rollout(
            self,
            self.reset,
            self.step,
            act,
            start,
            max_steps,
            callback=callback,
            break_when_any_done=switches["break_when_any_done"],
            set_truncated=switches["set_truncated"],
            is_lazy=not switches["return_contiguous"],
            device=storing_device,
        )

    # ------------------------------------------------------------------ torchrl

    def as_torchrl(self) -> Any:
        """The env as an instance of `torchrl.envs.EnvBase`, for torchrl code that takes envs.

        Raises:
            ImportError: torchrl is not installed.

        Example:
            >>> from reap.envs import GymEnv
            >>> from torchrl.envs import StepCounter, TransformedEnv
            >>> env = TransformedEnv(GymEnv("CartPole-v1").as_torchrl(), StepCounter())
            >>> env.rollout(3)["next", "step_count"].flatten().tolist()
            [1, 2, 3]
        """
        return as_torchrl(self)

    def append_transform(self, transform: Any) -> TransformedEnv:
        """The env with one of torchrl's transforms around it, as `TransformedEnv(env, transform)`.

        Raises:
            ImportError: torchrl is not installed.
        """
        return TransformedEnv(self, transform)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise TypeError, because an env was passed to code that expects a factory of envs."""
        raise TypeError(
            f"{self!r} is an env, and is not called: a factory of envs is lambda: {type(self).__name__}(...); "
            "torchrl's collectors and batched envs take env.as_torchrl(), or lambda: make_env().as_torchrl()."
        )


class _Replay:
    """Writes given actions, one after the other."""

    def __init__(self, env: EnvSpecs, actions: Iterable[Any]) -> None:
        self._env, self._actions = env, iter(actions)

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = next(self._actions)
        if hasattr(action, "keys"):
            return tensordict.update(action)
        return tensordict.set(self._env.action_key, action)


class _OnItsDevice:
    """Calls a policy with TensorDicts on the device of its parameters."""

    def __init__(self, policy: Policy, device: torch.device | None) -> None:
        tensors = [*policy.parameters(), *policy.buffers()] if isinstance(policy, nn.Module) else []
        places = {tensor.device for tensor in tensors}
        if len(places) != 1:
            raise OptionError(
                f"auto_cast_to_device: expected a policy with parameters on one device, found {sorted(map(str, places))}; move "
                "the TensorDict in the policy"
            )
        self._policy, self._place, self._back = policy, places.pop(), device

    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        moved = tensordict.to(self._place)
        acted = self._policy(moved)
        result = moved if acted is None else acted
        return result.to(self._back) if self._back is not None else result.to("cpu").clear_device_()
