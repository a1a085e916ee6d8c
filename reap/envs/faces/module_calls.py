"""`ModuleCalls`: the methods of torch modules that make sense for an env."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from reap.envs.specs import EnvSpecs, checked_device
from reap.errors import OptionError

if TYPE_CHECKING:
    from reap.envs.faces.tensordict_as_rows import TensorDictAsRows


class ModuleCalls(EnvSpecs):
    """Methods for devices and modes."""

    training: bool = True
    """Whether the env is in training mode, for envs that depend on it; set by `train` and `eval`."""

    _closed: bool
    _face: TensorDictAsRows | None
    _exclusive: Any

    def train(self, mode: bool = True) -> Self:
        """Set the mode; returns the env."""
        self.training = mode
        return self

    def eval(self) -> Self:
        """Leave the training mode; returns the env."""
        return self.train(False)

    def to(self, device: torch.device | str | int) -> Self:
        """Move the env's TensorDicts to another device; returns the env.

        This applies from the next reset or step by TensorDicts; collectors that already drive the env are not notified.

        Raises:
            OptionError: a dtype, or a device that does not exist.
        """
        if isinstance(device, torch.dtype):
            raise OptionError(f"{type(self).__name__}.to: expected a device, got {device}; GymEnv(dtype=) casts observations")
        self.device = checked_device(device)
        self._face = self._exclusive = None
        return self

    def cpu(self) -> Self:
        """The same as `to("cpu")`."""
        return self.to("cpu")

    def cuda(self, device: int | str | torch.device | None = None) -> Self:
        """The same as `to("cuda")`, or to the CUDA device given."""
        return self.to("cuda" if device is None else torch.device("cuda", device) if isinstance(device, int) else device)

    @property
    def is_closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed
