"""`MultiStep`: n-step returns from a batch of frames.

A frame's window is the frame itself and those after it, at most `n_steps`; it closes with the last frame of the
trajectory, with the last frame of the batch, and before an invalid frame:

    done     . . . 1 . . |         n_steps = 3
    frame    0 1 2 3 4 5 |
    steps    3 3 2 1 2 1 |         frames in the window
    next of  2 3 3 3 5 5 |         the frame whose `next` follows the window
"""

from __future__ import annotations

from functools import reduce
from typing import Any, cast

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from reap.errors import OptionError, SpecMismatch, text_of
from reap.keys import Key, as_key, plain
from reap.option_values import is_count
from reap.recording.buffers import DONE, IDS, MASK, after

__all__ = ["MultiStep"]

NEXT = "next"
REWARD, ORIGINAL = "reward", "original_reward"


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


class MultiStep(nn.Module):
    r"""Replaces one-step transitions by n-step ones.

    With `k` the number of frames in the window of frame `t`:

        reward   r_t + γ r_{t+1} + ... + γ^(k-1) r_{t+k-1}
        next     the values after the window: the `next` of frame t + k - 1

    so that `reward + γ^k * ~terminated * V(next)` is the n-step return of R. S. Sutton, "Learning to predict by the methods
    of temporal differences", Machine Learning 3, 1988, as V. Mnih et al. use it in "Asynchronous methods for deep
    reinforcement learning", ICML 2016. A trajectory that was truncated, or that continues after the batch, is bootstrapped
    from its own last observation.

    Each agent has its own windows if `("next", "done")` is `[..., T, *agents]`, as are all other entries then. Flags of agents
    in a separate group, without one at the root, end the windows of all.

    For a collector's `postproc`, or for any batch with time as its last dimension. A window never holds frames of another
    trajectory: it closes where `("next", "done")` is set, where the ids in `("collector", "traj_ids")` change (so rows may
    follow each other), and before frames that `("collector", "mask")` leaves out. Sums are made in float64.

    All of `next` is that of the frame at the window's end, `done`, `terminated` and `truncated` too (torchrl leaves these
    three where they were, and `next` then shows a terminal observation as one to bootstrap from). So the ends of
    trajectories are found by their ids, no longer by `done`.

    Args:
        gamma: discount per step, above 0 and at most 1.
        n_steps: maximum number of frames in a window; 1 leaves rewards and `next` unchanged.

    Raises:
        OptionError: a number is out of range.

    Example:
        >>> from tensordict import TensorDict
        >>> following = {"reward": torch.ones(5, 1), "done": torch.tensor([[0], [0], [1], [0], [0]]).bool()}
        >>> batch = TensorDict({"next": following}, [5])
        >>> shifted = MultiStep(gamma=0.5, n_steps=2)(batch)
        >>> shifted["next", "reward"].flatten()
        tensor([1.5000, 1.5000, 1.0000, 1.5000, 1.0000])
        >>> shifted["steps_to_next_obs"], shifted["next", "done"].flatten()
        (tensor([2, 2, 1, 2, 1]), tensor([False,  True,  True, False, False]))
    """

    def __init__(self, gamma: float, n_steps: int) -> None:
        super().__init__()
        number, discount = cast(Any, n_steps), cast(Any, gamma)
        if not is_count(number):
            raise OptionError(f"n_steps: expected a positive integer, got {number!r}")
        if not (isinstance(discount, int | float) and 0 < discount <= 1):
            raise OptionError(f"gamma: expected a number above 0 and at most 1, got {discount!r}")
        self.gamma = float(gamma)
        self.n_steps = n_steps

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The n-step batch; the input and its tensors are not changed.

        Args:
            tensordict: frames `[..., T]` with `("next", "reward")`, and `("next", "done")` or trajectory ids.

        Returns:
            A TensorDict of the same batch size, which shares the root values with the input. New in it: `("next",
            "original_reward")`, the one-step reward; `"steps_to_next_obs"` int64 `[..., T]`, the frames in the window;
            `"gamma"` float32 `[..., T]`, the discount of the values after it; `"nonterminal"` bool `[..., T]`, False for
            the last frame of a trajectory (in the batch) and for invalid frames.

        Raises:
            SpecMismatch: no time dimension, neither done nor ids, no reward, or a shape that does not fit.
        """
        if not tensordict.ndim:
            raise SpecMismatch("MultiStep: expected a batch with time as its last dimension, got a single frame")
        if (shape := _shape_of_done(tensordict))[tensordict.ndim :] not in {(), (1,)}:
            return self._for_each_agent(tensordict, shape)
        closes = _window_closes(tensordict)  # [..., T]
        steps = _frames_to_close(closes).clamp_(max=self.n_steps)
        following = tensordict.get(NEXT)
        rewards = [key for key in _leaf_keys(following) if key[-1] == REWARD]
        if not rewards:
            raise SpecMismatch('MultiStep: expected ("next", "reward") in the batch, found no reward')
        moved = _shifted(following.exclude(*map(plain, rewards)), steps)
        for key in rewards:
            reward = following.get(plain(key))
            moved.set((*key[:-1], ORIGINAL), reward)
            moved.set(key, self._summed(reward, steps))
        batch = tensordict.copy()
        batch.set(NEXT, moved)
        batch.set("steps_to_next_obs", steps)
        batch.set("gamma", self.gamma ** steps.to(torch.float32))
        batch.set("nonterminal", ~closes)
        return batch

    def _for_each_agent(self, batch: TensorDictBase, shape: torch.Size) -> TensorDictBase:
        """The n-step batch where the flags at the root are `[..., T, *agents]`: each agent has its own windows."""
        time, agents = batch.ndim - 1, len(shape) - batch.ndim
        wide: Any = batch.copy()
        try:
            wide.batch_size = shape
        except RuntimeError as error:
            raise SpecMismatch(
                f"MultiStep: the tensordict shape must be compatible with its flags: expected every entry {list(shape)} + "
                f'[...], as the flags of agents in ("next", "done") are; {text_of(error)}'
            ) from error
        first, last = list(range(time)), list(range(time + 1, wide.ndim))
        result = self(wide.permute(*first, *last, time)).permute(*first, -1, *range(time, time + agents))
        result.batch_size = batch.batch_size
        return result

    def _summed(self, reward: Tensor, steps: Tensor) -> Tensor:
        """Discounted sums over the windows, in the dtype of the rewards (whole numbers: torch's default)."""
        time = steps.ndim - 1
        if reward.shape[: time + 1] != steps.shape:
            raise SpecMismatch(f"MultiStep: expected rewards {list(steps.shape)} + [...], found {list(reward.shape)}")
        inside = steps.reshape(*steps.shape, *[1] * (reward.ndim - steps.ndim))
        dtype = reward.dtype if reward.is_floating_point() else torch.get_default_dtype()
        values = reward.detach().to(torch.float64)
        total, columns = values.clone(), reward.shape[time]
        for step in range(1, min(self.n_steps, columns)):
            later = values.narrow(time, step, columns - step)
            counted = inside.narrow(time, 0, columns - step) > step
            total.narrow(time, 0, columns - step).add_(torch.where(counted, self.gamma**step * later, 0.0))
        return total.to(dtype)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return f"gamma={self.gamma}, n_steps={self.n_steps}"


def _shape_of_done(batch: TensorDictBase) -> torch.Size:
    """The shape of the root's flags, or else that of the batch."""
    done = batch.get(plain(after(DONE)), None)
    return batch.shape if done is None else done.shape


def _window_closes(batch: TensorDictBase) -> Tensor:
    """Frames after which a window must end, `[..., T]`."""
    done, ids, mask = _done(batch), batch.get(plain(IDS), None), batch.get(plain(MASK), None)
    if done is None and ids is None:
        raise SpecMismatch(f'MultiStep: expected ("next", "done") or {plain(IDS)} in the batch, found neither')
    given = done if done is not None else ids
    assert given is not None
    closes = torch.zeros(batch.shape, dtype=torch.bool, device=given.device) if done is None else done
    closes[..., -1:] = True
    if ids is not None:
        ids = _per_frame(batch, IDS, ids)
        closes[..., :-1] |= ids[..., 1:] != ids[..., :-1]
    if mask is not None:
        valid = _per_frame(batch, MASK, mask)
        closes |= ~valid
        closes[..., :-1] |= ~valid[..., 1:]
    return closes


def _done(batch: TensorDictBase) -> Tensor | None:
    """Ends of trajectories, `[..., T]`, a new tensor: the root's flag decides alone; without one, any flag below."""
    following = batch.get(NEXT, None)
    if following is None:
        raise SpecMismatch('MultiStep: expected an entry "next" in the batch, found none')
    root = following.get(plain(DONE), None)
    keys = [DONE] if root is not None else [key for key in _leaf_keys(following) if key[-1] == DONE[-1]]
    flags = [_per_frame(batch, after(key), following.get(plain(key)), any_of=root is None) for key in keys]
    return reduce(torch.logical_or, flags[1:], flags[0].clone()) if flags else None


def _per_frame(batch: TensorDictBase, key: Key, value: Tensor, *, any_of: bool = False) -> Tensor:
    """One value per frame: `[..., T]` from that or `[..., T, 1]`; flags of several agents count if any is set."""
    if value.shape[: batch.ndim] == batch.shape and (any_of or value.shape[batch.ndim :] in {(), (1,)}):
        flat = value.reshape(*batch.shape, -1)
        return flat.any(-1) if any_of else flat[..., 0]
    raise SpecMismatch(f"MultiStep: expected {plain(key)} {list(batch.shape)}, found {list(value.shape)}")


def _frames_to_close(closes: Tensor) -> Tensor:
    """Frames from each frame to the next closing one, both counted: `[..., T]` int64."""
    columns = torch.arange(closes.shape[-1], device=closes.device)
    places = torch.where(closes, columns, closes.shape[-1])
    return places.flip(-1).cummin(-1).values.flip(-1) - columns + 1


def _shifted(following: TensorDictBase, steps: Tensor) -> TensorDictBase:
    """The values at the end of each frame's window."""
    frames = torch.arange(steps.numel(), device=steps.device)
    moved = following.reshape(-1)[frames + (steps - 1).reshape(-1)].reshape(steps.shape)
    moved.names = following.names
    return moved


def _leaf_keys(node: TensorDictBase) -> list[Key]:
    return [as_key(key) for key in node.keys(include_nested=True, leaves_only=True)]
