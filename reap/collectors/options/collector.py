"""The options of a collector, and the checks that need nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypedDict

import torch

from reap.collectors.options.generations import todays_options
from reap.collectors.options.weights import are_schemes
from reap.errors import OptionError, callers_level, nearest, shown
from reap.option_values import is_count, range_of, switch, whole_number
from reap.specs.fits import Check, checked_level

Device = torch.device | str | int | None


class SyncOptions(TypedDict, total=False):
    """Keywords of `SyncDataCollector`; `CollectorOptions` gives their meaning and defaults."""

    policy_factory: Callable[[], Any] | None
    frames_per_batch: int
    total_frames: int | None
    device: Device
    policy_device: Device
    env_device: Device
    storing_device: Device
    devices: Device
    passing_devices: Device
    passing_device: Device
    storing_devices: Device
    init_with_lag: bool | None
    pin_memory: bool
    seed: int | None
    create_env_kwargs: Mapping[str, Any] | None
    max_frames_per_traj: int | None
    init_random_frames: int | None
    reset_at_each_iter: bool
    reset_when_done: bool
    postproc: Callable[[Any], Any] | None
    split_trajs: bool
    exploration_type: Any
    exploration_mode: str | None
    check: Check
    return_same_td: bool
    set_truncated: bool
    use_buffers: bool | None
    replay_buffer: Any
    extend_buffer: bool
    replay_buffer_chunk: bool | None
    max_frames_ahead: int | None
    samples_per_frame: float
    trust_policy: bool
    compile_policy: bool | Mapping[str, Any]
    cudagraph_policy: bool | Mapping[str, Any]
    no_cuda_sync: bool
    weight_updater: Any
    weight_sync_schemes: Mapping[str, Any] | None
    weight_recv_schemes: Mapping[str, Any] | None
    worker_idx: int | None
    track_policy_version: bool
    record_episodes: bool | int
    interruptor: Any
    trajs_per_batch: int | None
    traj_format: str
    max_pending_frames: int
    track_traj_ids: bool | None
    local_init_rb: bool | None
    auto_register_policy_transforms: bool | None
    compact_obs: bool | None
    trajs_per_write: int | None
    init_fn: Callable[[], Any] | None
    pre_collect_hook: Callable[[], Any] | None
    post_collect_hook: Callable[[Any], Any] | None


@dataclass(frozen=True, kw_only=True)
class CollectorOptions:
    """Options of a collector with their defaults.

    Attributes:
        policy_factory: builds the policy where it runs.
        frames_per_batch: frames of a batch; rounded up to a multiple of the env's rows, with a warning.
        total_frames: frames in all; -1 or None for no end. Rounded up to whole batches, with a warning.
        device: the default of `policy_device`, `env_device` and `storing_device`.
        policy_device: where the policy runs; None leaves it where it is.
        env_device: where the env's values are; None leaves them on the env's own device.
        storing_device: where batches are delivered; None means the device given for both env and policy here, and otherwise
            leaves batches where they are.
        create_env_kwargs: keywords for `create_env_fn`.
        max_frames_per_traj: frames after which an episode is truncated; None or <= 0 for no limit.
        init_random_frames: number of frames at the start with random actions, rounded up to whole batches.
        reset_at_each_iter: reset all envs before each batch.
        reset_when_done: reset an env when its episode ends; otherwise it idles until all envs have ended.
        postproc: a function from TensorDict to TensorDict, called once per delivered batch.
        split_trajs: deliver `split_trajectories(batch)`.
        exploration_type: how probabilistic policies choose (an `ExplorationType`).
        check: how closely the values of envs and policies are compared with their specs. "types": a wrong shape, dtype or
            choice, and NaN, are errors; numbers outside a Box are warned of once for each key and counted in `stats()`.
            "all": these are errors too. "first": only the first reset, the first step and the first call are checked.
        return_same_td: deliver the same memory each time, valid until the next batch.
        set_truncated: mark the last valid frame of each row in a batch truncated and done.
        use_buffers: False lets observations change their shape: those of Box spaces are then objects, a tensor for each frame,
            in a `NonTensorStack`. `batch[3]["observation"]` is the tensor of a frame and `batch["observation"]` a list of them;
            `torch.nested.nested_tensor(list(...), layout=torch.jagged)` makes one tensor of that list. A policy called with
            tensors gets the frame's tensor from a single env, and a list with one for each row from a batch of envs; a policy
            called with a TensorDict finds them in it. Objects stay on the CPU.
        replay_buffer: the buffer to write batches into; iteration then yields None. Workers write their frames themselves,
            unless the buffer, or an option for whole batches, prevents it.
        extend_buffer: write whole batches; otherwise one column of the batch at a time.
        max_frames_ahead: with `start()`, the largest number of frames in the buffer that the learner has not yet consumed; the
            collector waits before it writes more. At least `frames_per_batch`. Those of `init_random_frames` do not count.
        samples_per_frame: how often the learner means to sample each frame: it has consumed the number of frames it sampled
            from the buffer in this process, divided by this.
        trust_policy: call the policy with a TensorDict, whatever it looks like.
        compile_policy: `torch.compile` the policy; a mapping gives its arguments.
        cudagraph_policy: run the policy as a CUDA graph.
        no_cuda_sync: leave out synchronisation with CUDA devices.
        weight_updater: a `WeightUpdaterBase`, or a constructor of one.
        weight_sync_schemes: `{"policy": scheme}`: the scheme carries weights to policies in other processes. To a policy in
            this process they are copied, except with a `NoWeightSyncScheme`. Other models are named by their path in a worker,
            such as `"env.transform[0].module"`: `update_policy_weights_(weights_dict=...)` sends theirs with a command.
        track_policy_version: record the version of the policy with each frame.
        record_episodes: keep records with which episodes can be run again and compared: `collector.episodes[id]` is the record
            of a trajectory, and `reap.replay` takes it. True keeps the last 100 finished episodes, a number that many. Batches
            do not change. The envs must be gymnasium's, alone or in a `SerialEnv`, a `ParallelEnv` or a `SyncVectorEnv`.
        interruptor: its `collection_stopped()` ends a rollout early.
        trajs_per_batch: deliver exactly this number of complete episodes in each batch; the k-th of each row comes before the
            k+1-th of any. `frames_per_batch` is then the size of a rollout, 1,000 by default. Episodes that are unfinished or
            waiting for other rows once `total_frames` are recorded are not delivered.
        traj_format: "padded" `[n, T_max]` with a mask, or "cat" `[frames]`; a replay buffer of one dimension gets "cat".
        max_pending_frames: maximum number of frames in episodes that wait for their turn.
        pin_memory: deliver batches in page-locked memory, from which copies to a CUDA device can be asynchronous.
        seed: given to `set_seed` once the collector is built.
        weight_recv_schemes: `{"policy": scheme}` for a collector whose weights another process sends: `receive_weights()` loads
            them. Each becomes a receiver when the collector is built (`register_scheme_receiver`).
        worker_idx: index of this collector among the receivers of a weight sender.
    """

    frames_per_batch: int
    policy_factory: Callable[[], Any] | None = None
    total_frames: int | None = -1
    device: torch.device | None = None
    policy_device: torch.device | None = None
    env_device: torch.device | None = None
    storing_device: torch.device | None = None
    create_env_kwargs: Mapping[str, Any] | None = None
    max_frames_per_traj: int | None = None
    init_random_frames: int | None = None
    reset_at_each_iter: bool = False
    reset_when_done: bool = True
    postproc: Callable[[Any], Any] | None = None
    split_trajs: bool = False
    exploration_type: Any | None = None
    check: Check = "types"
    return_same_td: bool = False
    set_truncated: bool = False
    use_buffers: bool | None = None
    replay_buffer: Any = None
    extend_buffer: bool = True
    max_frames_ahead: int | None = None
    samples_per_frame: float = 1.0
    trust_policy: bool = False
    compile_policy: bool | Mapping[str, Any] = False
    cudagraph_policy: bool | Mapping[str, Any] = False
    no_cuda_sync: bool = False
    weight_updater: Any = None
    weight_sync_schemes: Mapping[str, Any] | None = None
    track_policy_version: bool = False
    record_episodes: bool | int = False
    interruptor: Any = None
    trajs_per_batch: int | None = None
    traj_format: str = "padded"
    max_pending_frames: int = 1_000_000
    pin_memory: bool = False
    seed: int | None = None
    weight_recv_schemes: Mapping[str, Any] | None = None
    worker_idx: int | None = None

    def __post_init__(self) -> None:
        if self.frames_per_batch <= 0:
            raise OptionError(f"frames_per_batch: expected a positive integer, got {self.frames_per_batch}")
        if self.trajs_per_batch is not None and (self.split_trajs or self.set_truncated or self.reset_at_each_iter):
            raise OptionError(
                "trajs_per_batch delivers whole episodes: it excludes split_trajs, set_truncated and reset_at_each_iter"
            )
        if self.total_frames == 0:
            raise OptionError("total_frames: expected a positive number, or -1 for no end; got 0")
        for name in ("policy_factory", "postproc"):
            self._expect(name, "a function", lambda value: value is None or callable(value))
        for name in ("compile_policy", "cudagraph_policy"):
            self._expect(name, "a bool or a dict of arguments", lambda value: isinstance(value, bool | Mapping))
        self._expect("create_env_kwargs", "a dict", lambda value: value is None or isinstance(value, Mapping))
        self._expect("weight_recv_schemes", 'a dict {"policy": scheme}', lambda value: value is None or are_schemes(value))
        self._expect("use_buffers", "a bool or None", lambda value: value is None or isinstance(value, bool))
        for name in SWITCHES:
            switch(getattr(self, name), name)
        self._expect("record_episodes", "a bool, or a positive number of episodes", is_amount)
        if self.record_episodes and self.use_buffers is False:
            raise OptionError(
                "record_episodes: observations that change their shape are not recorded; leave out use_buffers=False"
            )
        checked_level(self.check)
        self._expect("samples_per_frame", "a positive number", lambda value: isinstance(value, int | float) and value > 0)

    def _expect(self, name: str, what: str, fits: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        if not fits(value):
            raise OptionError(f"{name}: expected {what}, got {value!r}")

    @property
    def kept_episodes(self) -> int:
        """Number of finished episodes to keep."""
        return KEPT_EPISODES if self.record_episodes is True else int(self.record_episodes)

    @property
    def budget(self) -> int | None:
        """Number of frames to collect in all, or None."""
        return None if self.total_frames is None or self.total_frames < 0 else self.total_frames

    @property
    def limit(self) -> int | None:
        """Number of frames after which an episode is truncated, or None."""
        limit = self.max_frames_per_traj
        return None if limit is None or limit <= 0 else limit

    @property
    def stores_here(self) -> bool:
        """Whether batches are delivered in the memory in which they are recorded."""
        return self.storing_device is None or self.storing_device.type == "cpu"

    @property
    def random_frames(self) -> int:
        """Number of initial frames with random actions."""
        return max(0, self.init_random_frames or 0)


KEPT_EPISODES = 100
"""Number of episodes that `record_episodes=True` keeps."""


def is_amount(value: Any) -> bool:
    """Whether a value is a bool or a number of at least 1."""
    return isinstance(value, bool) or is_count(value)


NUMBERS = (
    "frames_per_batch",
    "total_frames",
    "max_frames_per_traj",
    "init_random_frames",
    "max_frames_ahead",
    "seed",
    "worker_idx",
    "trajs_per_batch",
    "max_pending_frames",
)
DEVICES = ("device", "policy_device", "env_device", "storing_device")
SWITCHES = (
    "reset_at_each_iter",
    "reset_when_done",
    "split_trajs",
    "return_same_td",
    "set_truncated",
    "extend_buffer",
    "trust_policy",
    "no_cuda_sync",
    "track_policy_version",
    "pin_memory",
)


def make_options(given: Mapping[str, Any], interaction: Any, here: Sequence[str] = DEVICES) -> CollectorOptions:
    """Options from the keywords of a collector.

    Args:
        given: the keywords.
        interaction: the enum of exploration types.
        here: options that name devices of this machine; other devices are checked where they are used.

    Raises:
        OptionError: an unknown keyword (the nearest known one is named), `frames_per_batch` missing, a value out of range.
    """
    options = todays_options(given, interaction)
    known = [field.name for field in fields(CollectorOptions)]
    for name in options:
        if name not in known:
            raise OptionError(f"unknown option {name!r}.{nearest(name, [*known, *SyncOptions.__annotations__])}")
    if "frames_per_batch" not in options:
        raise OptionError("frames_per_batch is required: the number of frames of each delivered batch")
    chosen = without_none(options, CollectorOptions)
    exploration = chosen.get("exploration_type")
    exploration = chosen["exploration_type"] = interaction.RANDOM if exploration is None else exploration
    if not isinstance(exploration, interaction):
        raise OptionError(
            f"exploration_type: expected an ExplorationType {[kind.name for kind in interaction]}, got {exploration!r}"
        )
    chosen.update({name: _integer(name, chosen[name]) for name in NUMBERS if name in chosen})
    chosen.update(_devices(chosen, here))
    return CollectorOptions(**chosen)


def without_none(given: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Keywords without those whose None means the default.

    Args:
        given: keywords of this class, and others.
        kind: a class of options.
    """
    types: dict[str, Any] = {field.name: field.type for field in fields(kind) if field.default is not MISSING}
    return {name: value for name, value in given.items() if value is not None or "None" in types.get(name, "None")}


def _integer(name: str, value: Any) -> int | None:
    optional = name != "frames_per_batch"
    if value is None and optional:
        return None
    number = int(value) if optional and isinstance(value, float) and value.is_integer() else whole_number(value)
    reach = "" if number is None else range_of(number)
    if number is None or reach:
        expected = f"an integer{reach} or None" if optional else f"a positive integer{reach}"
        raise OptionError(f"{name}: expected {expected}, got {shown(value):.100}")
    return number


def _devices(options: Mapping[str, Any], here: Sequence[str]) -> dict[str, torch.device | None]:
    found: dict[str, torch.device | None] = {}
    for name in DEVICES:
        value = options.get(name)
        value = options.get("device") if value is None else value
        if isinstance(value, Sequence) and not isinstance(value, str):
            raise OptionError(f"{name}: expected one device, got {value!r}; a list belongs to collectors with several workers")
        try:
            device = found[name] = None if value is None else torch.device(value)
        except (RuntimeError, TypeError) as error:
            raise OptionError(f"{name}: expected a device such as 'cpu' or 'cuda:0', got {value!r}") from error
        if device is not None and name in here and not _is_there(device):
            raise OptionError(f"{name}={value!r}: torch finds no {device.type.upper()} device here")
    if found["storing_device"] is None and "env_device" in here and found["env_device"] == found["policy_device"]:
        found["storing_device"] = found["env_device"]
    return found


def _is_there(device: torch.device) -> bool:
    checks = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    return device.type not in checks or checks[device.type]()


def warn_of_rounding(options: CollectorOptions, frames_per_batch: int) -> None:
    """Warn, once, when batches or the budget are larger than requested."""
    asked, budget = options.frames_per_batch, options.budget
    if options.trajs_per_batch is not None:
        return
    if asked != frames_per_batch:
        warnings.warn(
            f"frames_per_batch={asked} is not a multiple of the number of envs: each batch has {frames_per_batch} frames",
            stacklevel=callers_level(),
        )
    if budget is not None and budget % frames_per_batch:
        warnings.warn(
            f"total_frames={budget} is not a multiple of the {frames_per_batch} frames of a batch: "
            f"{-(-budget // frames_per_batch) * frames_per_batch} frames are collected",
            stacklevel=callers_level(),
        )
