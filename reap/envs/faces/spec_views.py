"""`SpecViews`: the specs of an env in other groupings, without their batch dimensions, and their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from reap.errors import OptionError
from reap.keys import NestedKey, as_key, plain
from reap.specs import Composite, Spec

if TYPE_CHECKING:
    from tensordict import TensorDictBase


class SpecViews:
    """Views derived from the four specs of an env."""

    batch_size: torch.Size
    device: torch.device | None
    _state: Composite | None = None

    if TYPE_CHECKING:

        @property
        def observation_spec(self) -> Composite: ...  # noqa: D102
        @property
        def full_action_spec(self) -> Composite: ...  # noqa: D102
        @property
        def action_spec(self) -> Spec: ...  # noqa: D102
        @property
        def full_reward_spec(self) -> Composite: ...  # noqa: D102
        @property
        def reward_spec(self) -> Spec: ...  # noqa: D102
        @property
        def full_done_spec(self) -> Composite: ...  # noqa: D102
        @property
        def done_spec(self) -> Spec: ...  # noqa: D102

    # ------------------------------------------------------------------ sizes

    @property
    def shape(self) -> torch.Size:
        """The same as `batch_size`."""
        return self.batch_size

    @property
    def batch_dims(self) -> int:
        """The number of batch dimensions."""
        return len(self.batch_size)

    @property
    def ndim(self) -> int:
        """The same as `batch_dims`."""
        return len(self.batch_size)

    def ndimension(self) -> int:
        """The same as `batch_dims`."""
        return len(self.batch_size)

    def numel(self) -> int:
        """The number of rows."""
        return self.batch_size.numel()

    # ------------------------------------------------------------------ groups of specs

    @property
    def state_spec(self) -> Composite:
        """The inputs besides actions that an env declares to read from the TensorDict; empty unless set.

        An env steps from the TensorDict that it returned last, which holds everything it put there, declared or not.
        """
        return Composite(shape=self.batch_size) if self._state is None else self._state

    @state_spec.setter
    def state_spec(self, spec: Spec) -> None:
        if not isinstance(spec, Composite):
            raise OptionError(f"state_spec of {type(self).__name__}: expected a Composite, got {type(spec).__name__}")
        lead = tuple(self.batch_size)
        self._state = (spec if tuple(spec.shape[: len(lead)]) == lead else spec.expand(*lead)).clone().lock_()

    @property
    def full_state_spec(self) -> Composite:
        """The same as `state_spec`."""
        return self.state_spec

    @property
    def input_spec(self) -> Composite:
        """The inputs of a step: `full_state_spec` and `full_action_spec`."""
        groups = {"full_state_spec": self.state_spec, "full_action_spec": self.full_action_spec}
        return Composite(groups, shape=self.batch_size)

    @property
    def output_spec(self) -> Composite:
        """The outputs of a step: `full_observation_spec`, `full_reward_spec` and `full_done_spec`."""
        groups = {
            "full_observation_spec": self.observation_spec,
            "full_reward_spec": self.full_reward_spec,
            "full_done_spec": self.full_done_spec,
        }
        return Composite(groups, shape=self.batch_size)

    @property
    def specs(self) -> Composite:
        """All specs: `output_spec` and `input_spec`."""
        return Composite({"output_spec": self.output_spec, "input_spec": self.input_spec}, shape=self.batch_size)

    # ------------------------------------------------------------------ of one row

    def _of_one_row(self, spec: Any) -> Any:
        return spec[(0,) * len(self.batch_size)] if self.batch_size else spec

    @property
    def observation_spec_unbatched(self) -> Composite:
        """`observation_spec` without the batch dimensions."""
        return self._of_one_row(self.observation_spec)

    @property
    def full_observation_spec_unbatched(self) -> Composite:
        """`full_observation_spec` without the batch dimensions."""
        return self._of_one_row(self.observation_spec)

    @property
    def action_spec_unbatched(self) -> Spec:
        """`action_spec` without the batch dimensions."""
        return self._of_one_row(self.action_spec)

    @property
    def full_action_spec_unbatched(self) -> Composite:
        """`full_action_spec` without the batch dimensions."""
        return self._of_one_row(self.full_action_spec)

    @property
    def reward_spec_unbatched(self) -> Spec:
        """`reward_spec` without the batch dimensions."""
        return self._of_one_row(self.reward_spec)

    @property
    def full_reward_spec_unbatched(self) -> Composite:
        """`full_reward_spec` without the batch dimensions."""
        return self._of_one_row(self.full_reward_spec)

    @property
    def done_spec_unbatched(self) -> Spec:
        """`done_spec` without the batch dimensions."""
        return self._of_one_row(self.done_spec)

    @property
    def full_done_spec_unbatched(self) -> Composite:
        """`full_done_spec` without the batch dimensions."""
        return self._of_one_row(self.full_done_spec)

    @property
    def state_spec_unbatched(self) -> Composite:
        """`state_spec` without the batch dimensions."""
        return self._of_one_row(self.state_spec)

    @property
    def full_state_spec_unbatched(self) -> Composite:
        """`full_state_spec` without the batch dimensions."""
        return self._of_one_row(self.state_spec)

    @property
    def input_spec_unbatched(self) -> Composite:
        """`input_spec` without the batch dimensions."""
        return self._of_one_row(self.input_spec)

    @property
    def output_spec_unbatched(self) -> Composite:
        """`output_spec` without the batch dimensions."""
        return self._of_one_row(self.output_spec)

    # ------------------------------------------------------------------ keys

    @property
    def observation_keys(self) -> list[NestedKey]:
        """Keys of the observations."""
        return [plain(key) for key, _ in self.observation_spec.leaves()]

    @property
    def state_keys(self) -> list[NestedKey]:
        """Keys of `state_spec`."""
        return [plain(key) for key, _ in self.state_spec.leaves()]

    @property
    def done_keys(self) -> list[NestedKey]:
        """Keys of all done flags: `done`, `terminated` and, if the env has it, `truncated`."""
        return [plain(key) for key, _ in self.full_done_spec.leaves()]

    @property
    def done_key(self) -> NestedKey:
        """Key of the only flag that ends an episode for any reason.

        Raises:
            OptionError: there are several.
        """
        keys = [key for key in self.done_keys if as_key(key)[-1] == "done"]
        if len(keys) != 1:
            raise OptionError(f"expected one done flag, this env has {keys}; use .done_keys")
        return keys[0]

    @property
    def done_keys_groups(self) -> list[list[NestedKey]]:
        """The keys of the done flags, grouped by their parent."""
        groups: dict[tuple[str, ...], list[NestedKey]] = {}
        for key in self.done_keys:
            groups.setdefault(as_key(key)[:-1], []).append(key)
        return list(groups.values())

    @property
    def reset_keys(self) -> list[NestedKey]:
        """The key of the reset mask next to each group of done flags: `"_reset"`, `("agents", "_reset")`."""
        return [plain((*as_key(group[0])[:-1], "_reset")) for group in self.done_keys_groups]

    # ------------------------------------------------------------------ values

    def cardinality(self, tensordict: TensorDictBase | None = None) -> int | float:
        """The number of actions from which a row may choose; infinity if actions are continuous.

        Args:
            tensordict: ignored here; for envs that override the method because their choices vary.
        """
        return self._of_one_row(self.full_action_spec).cardinality()

    def all_actions(self, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """All actions from which a row may choose, as a TensorDict `[cardinality]`.

        Args:
            tensordict: ignored here; for envs that override the method because their choices vary.

        Raises:
            OptionError: actions are continuous.
        """
        return self._of_one_row(self.full_action_spec).enumerate(use_mask=True)

    def fake_tensordict(self) -> TensorDictBase:
        """A step's TensorDict `[*batch_size]` full of zeros: keys, shapes and dtypes as in a rollout."""
        observed, flags = self.observation_spec.zero(), self.full_done_spec.zero()
        following = observed.clone().update(self.full_reward_spec.zero()).update(flags.clone())
        whole = self.state_spec.zero().update(self.full_action_spec.zero()).update(observed).update(flags)
        whole = whole.set("next", following)
        return whole if self.device is None else whole.to(self.device)
