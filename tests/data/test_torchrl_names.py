"""What torchrl's replay buffers, storages, samplers and writers are called and take is there in reap's, or decided otherwise.

Every public class of `reap.data.replay_buffers` is walked through: a name that torchrl adds, or that is forgotten here, fails.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import reap.data.replay_buffers as ours
from reap.data.replay_buffers import checkpointers, replay_buffers, samplers, scheduler, storages, writers

theirs = pytest.importorskip("torchrl.data.replay_buffers")

SERVICE = "a RayReplayBuffer is the buffer of other machines; there are no services of other kinds"
GENERATIONS = "a place says which frame is there only until it is overwritten; there are no conditional updates"
UNITS = "newer than torchrl 0.10; SliceSampler gives sequences"
CONSUMED = "newer than torchrl 0.10; SamplerWithoutReplacement gives each frame once"
QUERY = "newer than torchrl 0.10; buffer[:] has all frames and their ids of trajectories"
OWN_PRIORITIES = "priorities belong to the process that samples, on the CPU, whoever writes"
NEWER_KEYS = "newer than torchrl 0.10; end_key and traj_key tell trajectories apart, and is_init where they are all there is"
PADDED = "newer than torchrl 0.10; strict_length=False gives shorter slices as they are"
INTERNAL = "a detail of how torchrl stores data"
PARTS = "ensembles are made of buffers, each with parts of its own"
ROUTED = "each buffer of an ensemble is written by itself"
IN_THE_ACTOR = "the actor has the buffer, and what it holds; call the methods of the RayReplayBuffer"

BUFFER_ARGUMENTS = {
    "sample_unit": UNITS,
    "consume_after_n_samples": CONSUMED,
    "service_backend": SERVICE,
    "service_backend_options": SERVICE,
    "transport": SERVICE,
    "transport_options": SERVICE,
}
BUFFER_NAMES = {
    **dict.fromkeys(("as_remote", "client", "is_alive", "service_backend", "shutdown", "start", "synchronize"), SERVICE),
    **dict.fromkeys(("submit_update_if_present", "update_if_present"), GENERATIONS),
    "query": QUERY,
    "prioritized_sampler": "buffer.sampler is it",
}
STORAGE_NAMES = {
    "attach": INTERNAL,
    "supports_conditional_update": GENERATIONS,
    "cleanup": "auto_cleanup says whether files go with the storage",
    "flatten": "of a ListStorage: it has one dimension",
}
SLICE_ARGUMENTS = {
    **dict.fromkeys(("end_keys", "step_key", "fragmented", "init_key"), NEWER_KEYS),
    "pad_output": PADDED,
}
SLICE_NAMES: dict[str, str] = dict.fromkeys(("step_key", "fragmented"), NEWER_KEYS)
WRITER_ARGUMENTS = {"track_generations": GENERATIONS, "kwargs": "all are named"}
WRITER_NAMES = {
    **dict.fromkeys(("generations_of", "tracks_generations"), GENERATIONS),
    "write_at": INTERNAL,
    "WRITING_ERR": INTERNAL,
    "get_insert_index": INTERNAL,
}
PRIORITIZED_BUFFER = {
    **BUFFER_ARGUMENTS,
    "sampler_device": OWN_PRIORITIES,
    "sync": OWN_PRIORITIES,
}

ARGUMENTS: dict[str, dict[str, str]] = {
    "ReplayBuffer": BUFFER_ARGUMENTS,
    "TensorDictReplayBuffer": BUFFER_ARGUMENTS | {"kwargs": "called options here"},
    "PrioritizedReplayBuffer": PRIORITIZED_BUFFER,
    "TensorDictPrioritizedReplayBuffer": PRIORITIZED_BUFFER,
    "RemoteTensorDictReplayBuffer": {"args": "all are named", "kwargs": "called options here"},
    "RayReplayBuffer": BUFFER_ARGUMENTS | {"args": "all are named", "kwargs": "called options here"},
    "ReplayBufferEnsemble": {
        "rbs": "called buffers here; they have no name in a call",
        **dict.fromkeys(("storages", "samplers", "writers", "collate_fns"), PARTS),
        **dict.fromkeys(("routing_key", "routing_dim"), ROUTED),
        "shared": "share the buffers",
        "kwargs": "all are named",
    },
    "SliceSampler": SLICE_ARGUMENTS,
    "SliceSamplerWithoutReplacement": SLICE_ARGUMENTS,
    "PrioritizedSliceSampler": SLICE_ARGUMENTS,
    "RoundRobinWriter": WRITER_ARGUMENTS,
    "TensorDictRoundRobinWriter": WRITER_ARGUMENTS,
    "TensorDictMaxValueWriter": WRITER_ARGUMENTS,
    "Storage": {"checkpointer": "set storage.checkpointer", "compilable": "an option of the storages themselves"},
    **{
        name: {"args": "takes none", "kwargs": "takes none"}
        for name in (
            "RandomSampler",
            "Sampler",
            "ListStorageCheckpointer",
            "StorageCheckpointerBase",
            "TensorStorageCheckpointer",
        )
    },
}
"""By class, the arguments of torchrl's constructor that reap's does not take, and why."""

NAMES: dict[str, dict[str, str]] = {
    **dict.fromkeys(
        (
            "ReplayBuffer",
            "TensorDictReplayBuffer",
            "RemoteTensorDictReplayBuffer",
            "PrioritizedReplayBuffer",
            "TensorDictPrioritizedReplayBuffer",
        ),
        BUFFER_NAMES,
    ),
    "RayReplayBuffer": BUFFER_NAMES
    | dict.fromkeys(("clients", "transport_kind"), SERVICE)
    | dict.fromkeys(("sampler", "writer", "transform"), IN_THE_ACTOR),
    "ReplayBufferEnsemble": BUFFER_NAMES
    | dict.fromkeys(
        ("storage", "sampler", "writer", "set_sampler", "set_storage", "set_writer", "dim_extend", "end_streams", "stats"),
        PARTS,
    )
    | dict.fromkeys(
        (
            "mark_update",
            "set_",
            "set_at_",
            "update_",
            "write_all",
            "read_all_in_order",
            "register_save_hook",
            "register_load_hook",
            "initialized",
            "can_sample",
        ),
        ROUTED,
    ),
    **dict.fromkeys(
        ("LazyTensorStorage", "LazyMemmapStorage", "TensorStorage", "ListStorage", "LazyStackStorage"), STORAGE_NAMES
    ),
    "Storage": STORAGE_NAMES,
    **dict.fromkeys(("SliceSampler", "SliceSamplerWithoutReplacement", "PrioritizedSliceSampler"), SLICE_NAMES),
    **dict.fromkeys(
        ("Writer", "RoundRobinWriter", "TensorDictRoundRobinWriter", "TensorDictMaxValueWriter", "ImmutableDatasetWriter"),
        WRITER_NAMES,
    ),
}
"""By class, the public names of torchrl's that reap's does not have, and why."""

NOT_THERE = {
    "ConditionalUpdateResult": GENERATIONS,
    "ConsumingSampler": CONSUMED,
    **dict.fromkeys(("SampleUnit", "Sequence", "Transition", "StreamingSliceSampler"), UNITS),
    **dict.fromkeys(("SamplerEnsemble", "StorageEnsemble", "StorageEnsembleCheckpointer", "WriterEnsemble"), PARTS),
    **dict.fromkeys(("Trajectory", "TrajectoryPredicate", "filter_trajectories", "iter_trajectories", "traj"), QUERY),
    **dict.fromkeys(
        (
            "DEFAULT_DONE_KEYS",
            "Flat2TED",
            "FlatStorageCheckpointer",
            "H5Combine",
            "H5Split",
            "H5StorageCheckpointer",
            "Nested2TED",
            "NestedStorageCheckpointer",
            "TED2Flat",
            "TED2Nested",
            "find_start_stop_traj",
        ),
        "a save is one file per key, which TensorDict.load_memmap reads; the converters ask for torchrl's storage",
    ),
    **dict.fromkeys(("CompressedListStorage", "CompressedListStorageCheckpointer", "StoreStorage"), "newer than torchrl 0.10"),
    **dict.fromkeys(("HERReplayBuffer", "HindsightStrategy"), "newer than torchrl 0.10"),
    **dict.fromkeys(("OfflineToOnlineReplayBuffer", "prefill_replay_buffer"), "newer than torchrl 0.10"),
    **dict.fromkeys(("PromptGroupSampler", "StalenessAwareSampler"), "newer than torchrl 0.10, for language models"),
    **dict.fromkeys(
        ("checkpointers", "her", "offline_to_online", "query", "ray_buffer", "replay_buffers", "sample_units", "samplers"),
        "a module",
    ),
    **dict.fromkeys(("scheduler", "storages", "utils", "writers", "annotations"), "a module"),
}
"""Names of torchrl's module that reap's does not have, and why."""

DOORS = {
    "samplers": samplers,
    "storages": storages,
    "writers": writers,
    "replay_buffers": replay_buffers,
    "checkpointers": checkpointers,
    "scheduler": scheduler,
}


def classes() -> list[str]:
    return [name for name in ours.__all__ if inspect.isclass(getattr(ours, name))]


def arguments(cls: Any) -> set[str]:
    """The names of a constructor's arguments, those that it hands to the constructor of its base class included."""
    own = inspect.signature(cls.__init__).parameters.values()
    hands_over = any(one.kind is one.VAR_KEYWORD for one in own)
    made_by = [kind for kind in cls.__mro__ if "__init__" in vars(kind) and kind is not object]
    found = {name for kind in (made_by if hands_over else made_by[:1]) for name in own_arguments(kind)}
    return found - {"options"}


def public(cls: Any) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_") and name not in dir(type)}


def own_arguments(cls: Any) -> set[str]:
    return {one for one in inspect.signature(cls.__init__).parameters if one != "self"}


@pytest.mark.parametrize("name", classes())
def test_arguments_of_constructors(name: str) -> None:
    wanted, decided = own_arguments(getattr(theirs, name)), ARGUMENTS.get(name, {})
    taken = arguments(getattr(ours, name))
    if name == "RayReplayBuffer":
        taken |= arguments(ours.ReplayBuffer)
    assert wanted - taken <= set(decided), f"arguments of torchrl's {name}: take or decide"
    assert not set(decided) & taken, f"arguments of {name} that are taken"


@pytest.mark.parametrize("name", classes())
def test_public_names(name: str) -> None:
    wanted, decided = public(getattr(theirs, name)), NAMES.get(name, {})
    instance = {"batch_size", "storage", "checkpointer", "control", "max_size", "ndim", "device", "stack_dim", "save_hooks"}
    known = public(getattr(ours, name)) | instance
    assert wanted - known <= set(decided), f"names of torchrl's {name}: have or decide"


def test_names_of_the_module() -> None:
    wanted = {name for name in dir(theirs) if not name.startswith("_")}
    assert wanted - set(ours.__all__) == set(NOT_THERE) & wanted


@pytest.mark.parametrize("name", DOORS)
def test_doors_have_the_same_classes(name: str) -> None:
    module = DOORS[name]
    assert all(getattr(module, one) is getattr(ours, one) for one in module.__all__ if one in ours.__all__)
    torchrls = pytest.importorskip(f"torchrl.data.replay_buffers.{name}")
    classes = {name: one for name, one in vars(torchrls).items() if name in ours.__all__ and inspect.isclass(one)}
    defined = {name for name, one in classes.items() if one.__module__ == torchrls.__name__}
    assert set(getattr(torchrls, "__all__", defined)) & set(classes) <= set(module.__all__)


def test_reasons_are_given() -> None:
    reasons = [reason for table in (ARGUMENTS, NAMES) for decided in table.values() for reason in decided.values()]
    assert all(len(reason) > 5 for reason in [*reasons, *NOT_THERE.values()])
