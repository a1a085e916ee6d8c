"""`Run`: a run of `reap collect` in its folder, from the start, or from the point where it was killed or stopped.

session 0    seed s                killed     its complete batches are there
session 1    the seeds after those --resume   new episodes, with new ids
...                                           manifest.json has the seeds of each session
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium
import torch
from tensordict import TensorDictBase

from reap.cli.folder import DataFolder
from reap.cli.options import Collect
from reap.cli.report import Stored
from reap.cli.runs.claim import claimed, is_unfinished_start, locked, remove_rests
from reap.cli.runs.recording import Recording
from reap.data.datasets.frames import TRAJECTORY
from reap.data.datasets.minari_out import dataset_path, place_of, to_minari
from reap.data.datasets.record_file import read_records
from reap.data.datasets.run_folder import (
    MANIFEST,
    PROGRESS,
    RECORDS,
    Progress,
    about_run,
    ended_ids,
    file_sums,
    progress_of,
    read_progress,
    read_run_manifest,
    write_run_manifest,
)
from reap.data.datasets.versions import versions
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, plain
from reap.optional import load
from reap.recording.layout import Field
from reap.recording.records import EpisodeRecord
from reap.replaying import EpisodeFolder
from reap.seeds import seed_chain

RUNNING, STOPPED, COLLECTED, COMPLETE = "running", "stopped", "collected", "complete"
"""States of a run; a collected one still lacks its data set."""

EPISODES = "episodes"
"""The folder of records, inside that of the frames."""

FREE = frozenset({"out", "plot", "traceback", "resume", "frames_per_batch"})
"""Options that may change when a run is resumed: they do not change the data."""


class Run:
    """A run in a folder.

    Args:
        options: the command line.
        columns: number of time steps in all.

    Raises:
        OptionError: the folder of a new run is not empty; or the one to resume contains no run, a run with other options, or
            one that another process is writing.
        DiskFull: there is no room for the rest of the data.

    Attributes:
        seed: the seed of this session.
        written: time steps that are complete.
    """

    def __init__(self, options: Collect, columns: int) -> None:
        amount, output = options.collection, options.output
        _check(options)
        self.path, self.columns = output.out, columns
        self._options, self._rows = options, amount.num_envs
        self._place = Path(os.path.realpath(output.out))
        self._is_new = not output.resume or is_unfinished_start(self._place)
        self._is_made = not self._place.exists()
        self._changed: list[str] = []
        self._manifest: dict[str, Any] = {"kind": "reap collect", "options": _noted(options), "sessions": []}
        self.seed = amount.seed
        if not self._is_new:
            _compare(self.path, read_run_manifest(self._place)["options"], self._manifest["options"])
        self._lock = claimed(self.path, self._place) if self._is_new else locked(self.path, self._place)
        try:
            progress = Progress() if self._is_new else self._take_up()
            self._next_id = self._first_id = progress.next_id
            self._records = EpisodeFolder(self._place / EPISODES) if output.record_episodes else None
            self._recorded = progress.columns
            self._sink = self._make_sink(progress.columns)
        except BaseException:
            if self._is_new:
                self._restore()
            os.close(self._lock)
            raise

    def _make_sink(self, written: int) -> DataFolder | Recording:
        if self._options.output.format == "minari":
            recording = Recording(self.path, self._rows, self.columns, is_new=self._is_new)
            recording.written = written
            return recording
        return DataFolder(self.path, self.columns) if self._is_new else DataFolder.resumed(self.path, self.columns, written)

    def _take_up(self) -> Progress:
        """Read the existing part of the run to resume."""
        manifest = read_run_manifest(self._place)
        remove_rests(self._place)
        current = versions()
        self._changed = [
            f"{name} {found} (then {then})"
            for name, then in manifest["versions"].items()
            if (found := current.get(name, then)) != then
        ]
        self._manifest = manifest
        self.seed = manifest["sessions"][-1]["next_seed"]
        records = self._place / RECORDS
        if self._options.output.format == "memmap":
            return read_progress(self._place)
        return progress_of(read_records(records).frames) if records.exists() and records.stat().st_size else Progress()

    @property
    def written(self) -> int:
        """Time steps that are complete."""
        return self._sink.written

    @property
    def has_records(self) -> bool:
        """Whether the frames are in a file of batches, not in a file for each key."""
        return isinstance(self._sink, Recording)

    @property
    def records_episodes(self) -> bool:
        """Whether records of episodes are kept."""
        return self._records is not None

    @property
    def changed_versions(self) -> list[str]:
        """Packages whose version has changed since the run began."""
        return self._changed

    # ------------------------------------------------------------------ collecting

    def begin(self, fields: Mapping[Key, Field]) -> None:
        """Refuse values that cannot be stored, and write the manifest of this session.

        Args:
            fields: shape and dtype of one frame's value under each key.

        Raises:
            OptionError: a value cannot be stored.
            DiskFull: there is no room.
        """
        self._sink.expect(fields, self._rows, self._options.output.drop)
        *seeds, following = seed_chain(self.seed, self._rows)
        session = {"first_column": self.written, "seed": self.seed, "seeds": seeds, "next_seed": following}
        env_id = self._options.env_id
        self._manifest |= {
            "state": RUNNING,
            "versions": versions(),
            "env": {"id": env_id, "spec": _spec(env_id)},
            "sessions": [*self._manifest["sessions"], session],
            "columns": self.written,
            "next_id": self._next_id,
        }
        write_run_manifest(self._place, self._manifest)
        if not self._is_new:
            self._settle()

    def _settle(self) -> None:
        """Remove the records of episodes whose last frames are not there; ids are given again."""
        if self._records is not None:
            ids = ended_ids(self._place) if self.written else set[int]()
            self._records.keep([one for one in self._records if one < self._next_id] if ids is None else ids)

    @property
    def is_resumed(self) -> bool:
        """Whether a part of the run is from before."""
        return not self._is_new and len(self._manifest["sessions"]) > 1

    def write(self, batch: TensorDictBase, episodes: Iterable[EpisodeRecord] = ()) -> int:
        """Append a batch `[E, T]`; return the number of its columns that were still needed.

        Args:
            batch: the frames.
            episodes: records of episodes that end in them. They are written first, so a killed run has the record of each
                episode that ends in its frames; those of frames that were lost are removed when it is resumed.

        Raises:
            DiskFull: there is no room.
        """
        self._recorded += min(batch.shape[-1], self.columns - self.written)
        try:
            if self._records is not None:
                self._records.add(replace(one, id=one.id + self._first_id) for one in episodes)
        finally:
            columns = self._append(batch)
        return columns

    def _append(self, batch: TensorDictBase) -> int:
        ids: Any = batch.get(plain(TRAJECTORY))
        if self._first_id:
            ids = torch.where(ids < 0, ids, ids + self._first_id)
            batch = batch.copy().set(plain(TRAJECTORY), ids)
        columns = self._sink.write(batch)
        self._next_id = max(self._next_id, 1 + int(ids.max()))
        os.write(self._lock, Progress(self.written, self._next_id).packed())
        return columns

    def flush(self) -> None:
        """Write waiting frames.

        Raises:
            DiskFull: there is no room.
        """
        self._sink.flush()

    def finish(self) -> Stored | None:
        """Make the data readable; if there are none, restore the folder and return None."""
        data = self._sink.finish()
        if self.written < self._recorded:
            self._settle()
        if data is None:
            self._restore()
        else:
            has_more = self._options.output.dataset is not None
            self._end(STOPPED if self.written < self.columns else COLLECTED if has_more else COMPLETE)
            (self._place / PROGRESS).unlink(missing_ok=True)
        os.close(self._lock)
        return data if data is None or isinstance(data, Stored) else _stored(data)

    def _restore(self) -> None:
        """Remove what this run has put into the folder, besides frames."""
        os.ftruncate(self._lock, 0)  # whoever is killed from here on leaves an unfinished start
        for name in (MANIFEST, PROGRESS):
            (self._place / name).unlink(missing_ok=True)
        if self._is_made:
            with suppress(OSError):  # somebody put a file there
                self._place.rmdir()

    def _end(self, state: str) -> None:
        known = self._sink.checksums if isinstance(self._sink, Recording) else {}
        self._manifest |= {"state": state, "columns": self.written, "next_id": self._next_id}
        self._manifest["files"] = file_sums(self._place, known)
        write_run_manifest(self._place, self._manifest)

    # ------------------------------------------------------------------ the data set

    def make_dataset(self) -> tuple[Any, float] | None:
        """Make the Minari data set of a collected run; None if none is requested, or frames are missing.

        Returns:
            The data set, and the seconds that this took.
        """
        dataset_id = self._options.output.dataset
        if dataset_id is None or self.written < self.columns:
            return None
        started = time.perf_counter()
        dataset = to_minari(self._place, dataset_id)
        seconds = time.perf_counter() - started
        self._manifest["state"] = COMPLETE
        write_run_manifest(self._place, self._manifest)
        return dataset, seconds


def is_complete(options: Collect) -> bool:
    """Whether the run to resume is complete.

    Raises:
        OptionError: there is no run in the folder, or it has other options.
    """
    if is_unfinished_start(Path(os.path.realpath(options.output.out))):
        return False
    manifest = read_run_manifest(options.output.out)
    _compare(options.output.out, manifest["options"], _noted(options))
    return manifest["state"] == COMPLETE or (manifest["state"] == COLLECTED and _has_dataset(manifest, options.output.dataset))


def _has_dataset(manifest: Mapping[str, Any], dataset_id: str | None) -> bool:
    """Whether the data set of a collected run is there: the run was killed between making it and noting that."""
    if dataset_id is None or not (folder := dataset_path(dataset_id)).exists():
        return False
    with suppress(OptionError, SpecMismatch):  # of a data set of others
        return read_run_manifest(folder).get("source") == about_run(manifest)
    return False


def _check(options: Collect) -> None:
    """Raise OptionError for options that exclude each other, and ImportError for a missing package."""
    output = options.output
    if output.format == "memmap" and output.dataset is not None:
        raise OptionError(f"--dataset {output.dataset}: expected --format minari with it, got --format memmap")
    if output.format == "minari":
        if output.dataset is None:
            raise OptionError("--format minari: expected --dataset ID with it, the id of the data set (cartpole/random-v0)")
        load("h5py", "--format minari")
        place_of(output.dataset)


def _noted(options: Collect) -> dict[str, Any]:
    """The options that decide on the data, by name, and the checksum of the policy's file."""
    groups = asdict(options)
    flat = {"env_id": groups["env_id"], **groups["collection"], **groups["policy"], **groups["output"]}
    file = Path(options.policy.policy.rpartition(":")[0] or options.policy.policy)
    known = {"policy_file": hashlib.sha256(file.read_bytes()).hexdigest()} if file.is_file() else {}
    noted: dict[str, Any] = json.loads(json.dumps({name: value for name, value in flat.items() if name not in FREE}))
    return {**noted, **known}


def _compare(path: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise OptionError if a run has other options than the one to resume."""
    names = [name for name in then.keys() | now.keys() if then.get(name) != now.get(name)]
    if names:
        shown = {"env_id": "ENV_ID", "policy_file": "the checksum of the file of --policy"}
        told = [
            f"{shown.get(name, '--' + name.replace('_', '-'))} was {then.get(name)!r} and is {now.get(name)!r}"
            for name in sorted(names)
        ]
        raise OptionError(
            f"--resume: expected the options of the run in {path}; {'; '.join(told)}. A run has one set of options and one "
            "policy: begin another with --out"
        )


def _spec(env_id: str) -> str | None:
    """The spec for making the env, as JSON; None if it cannot be written."""
    try:
        return gymnasium.spec(env_id.rpartition(":")[2]).to_json()
    except Exception:  # noqa: BLE001  specs hold anything, and ids may lack their version
        return None


def _stored(data: TensorDictBase) -> Stored:
    rows, columns = data.shape
    return Stored(rows, columns, data.bytes(), sum(1 for _ in data.keys(include_nested=True, leaves_only=True)))
