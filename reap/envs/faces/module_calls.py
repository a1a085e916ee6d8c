"""`ModuleCalls`: the calls of torch's modules that make sense for an env."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch

from reap.envs.specs import EnvSpecs, checked_device
from reap.errors import OptionError

if TYPE_CHECKING:
    from reap.envs.faces.tensordict_as_rows import TensorDictAsRows


class ModuleCalls(EnvSpecs):
    """Devices and modes."""

    training: bool = True
    """Whether the env is in training mode, for envs that differ then; `train` and `eval` set it."""

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
        """Let the env's TensorDicts be on another device from now on; the env itself is returned.

        Its next reset or step by TensorDicts is there; collectors that drive it already are not told.

        Raises:
            OptionError: a dtype, or a device that there is not.
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
