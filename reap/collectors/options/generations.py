"""Names of options by generation: translates those of older and newer programs into today's.

first generation    devices, passing_devices, passing_device, storing_devices, exploration_mode, replay_buffer_chunk, and
                    total_frames as the third positional argument: taken, with a DeprecationWarning
torchrl >= 0.10     options with a single supported value: it is accepted, any other is refused
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from reap.errors import OptionError, callers_level
from reap.option_values import switch

FRAMES_PER_BATCH = 200
"""Default number of frames in a batch for programs that use names of the first generation."""

EPISODE_ROLLOUT = 1_000
"""Default number of frames in a rollout with `trajs_per_batch`."""

EXPLORATION = {"random": "RANDOM", "mode": "MODE", "mean": "MEAN", "median": "MEDIAN", "deterministic": "DETERMINISTIC"}

RENAMED = {
    "devices": ("policy_device", "env_device", "storing_device"),
    "passing_devices": ("env_device", "storing_device"),
    "passing_device": ("env_device", "storing_device"),
    "storing_devices": ("storing_device",),
}
"""Device options of the first generation, the general ones first, and today's names."""

RIVALS = {
    "devices": ("device", "policy_device", "env_device", "storing_device"),
    "passing_devices": ("passing_device", "policy_device", "env_device", "storing_device", "storing_devices"),
    "passing_device": ("policy_device", "env_device", "storing_device", "storing_devices"),
    "storing_devices": ("storing_device",),
    "exploration_mode": ("exploration_type",),
    "replay_buffer_chunk": ("extend_buffer",),
}
"""Options that exclude one of the first generation."""

FIRST = (*RIVALS, "init_with_lag")

FIXED: dict[str, tuple[tuple[Any, ...], str]] = {
    "init_with_lag": (
        (False,),
        "first episodes are not cut short at random; limits may differ by env, in its factory",
    ),
    "track_traj_ids": ((True,), "every batch has its trajectories' ids"),
    "local_init_rb": ((True,), "the storage of a replay buffer is laid out by the first write, wherever that is"),
    "auto_register_policy_transforms": ((True,), "a policy's recurrent states are always found; no env is changed for them"),
    "compact_obs": ((False,), "batches hold the observations under 'next'; a storage keeps them once where it can"),
    "trajs_per_write": ((), "give trajs_per_batch, which the replay buffer gets as well"),
    "init_fn": ((), "do it in the env's factory, which runs in the worker first"),
    "pre_collect_hook": ((), "do it in the training loop, before the next batch"),
    "post_collect_hook": ((), "give a postproc, which returns the batch"),
}
"""Options with a single supported value: the accepted spellings besides None, and why other values are refused."""


def todays_options(given: Mapping[str, Any], interaction: Any) -> dict[str, Any]:
    """The keywords of a collector under their current names.

    Args:
        given: the keywords; None counts as not given unless None is a value of the option.
        interaction: the enum of exploration types.

    Raises:
        OptionError: names of two generations for one thing, or a value that cannot work here.
    """
    options = dict(given)
    is_first = any(options.get(name) is not None for name in FIRST)
    refuse_rivals(options)
    for name, (meant, reason) in FIXED.items():
        value = options.pop(name, None)
        if value is not None and value not in meant:
            expected = " or ".join(map(repr, (*meant, None)))
            raise OptionError(f"{name}: expected {expected}, got {value!r}: {reason}")
    for old, new in RENAMED.items():
        if (device := options.pop(old, None)) is not None:
            _deprecated(old, _listed(new))
            options.update(dict.fromkeys(new, device))
    if (mode := options.pop("exploration_mode", None)) is not None:
        _deprecated("exploration_mode", "exploration_type")
        if not isinstance(mode, str) or mode not in EXPLORATION:
            raise OptionError(f"exploration_mode: expected one of {sorted(EXPLORATION)}, got {mode!r}")
        options["exploration_type"] = interaction[EXPLORATION[mode]]
    if (chunk := options.pop("replay_buffer_chunk", None)) is not None:
        _deprecated("replay_buffer_chunk", "extend_buffer")
        options["extend_buffer"] = switch(chunk, "replay_buffer_chunk")
    if options.get("trajs_per_batch") is not None:
        options.setdefault("frames_per_batch", EPISODE_ROLLOUT)
    elif is_first:
        options.setdefault("frames_per_batch", FRAMES_PER_BATCH)
    return options


def refuse_rivals(options: Mapping[str, Any]) -> None:
    """Raise OptionError if an old and a current name of one option are both given."""
    for old, rivals in RIVALS.items():
        both = [name for name in rivals if options.get(name) is not None]
        if both and options.get(old) is not None:
            raise OptionError(
                f"{old} and {both[0]}: expected the names of one generation of options, got both; give "
                f"{_listed(RENAMED.get(old, rivals))}"
            )


def with_total_frames(options: Mapping[str, Any], positional: Sequence[Any]) -> dict[str, Any]:
    """The keywords, including the third positional argument of the first generation.

    Args:
        options: the keywords of a collector.
        positional: positional arguments after the policy.

    Raises:
        OptionError: more than one argument, or `total_frames` as a keyword too.
    """
    chosen = dict(options)
    if not positional:
        return chosen
    if len(positional) > 1:
        raise OptionError(f"expected env, policy and total_frames by position, and keywords; got {positional[1:]} too")
    if "total_frames" in chosen:
        raise OptionError(f"total_frames: expected it once, got {positional[0]!r} by position and the keyword too")
    _deprecated("total_frames as the third argument", "the keyword total_frames")
    chosen.setdefault("frames_per_batch", FRAMES_PER_BATCH)
    return {**chosen, "total_frames": positional[0]}


def _deprecated(old: str, new: str) -> None:
    warnings.warn(f"option {old} is deprecated, use {new}", DeprecationWarning, stacklevel=callers_level())


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
