"""A folder of `reap collect`: its manifest and frames, whether the run has ended, still runs, or was killed.

manifest.json        versions, options, env, seeds of each session, state; once it has ended, checksums of the files
progress             while it runs: columns that are complete, and the next id of a trajectory
frames.reap          format "minari": records (record_file.py)
*.memmap, meta.json  format "memmap": a file for each key; `meta.json.unfinished` until the run has ended
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from reap.data.datasets.frames import NEXT, TRAJECTORY, Frames, frames_of
from reap.data.datasets.record_file import read_records
from reap.data.dtypes import dtype_named
from reap.data.saving.manifest import checksum, hexadecimal
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, nested
from reap.option_values import switch
from reap.system.disk import replaced, room
from reap.tensordicts import make_tensordict

MANIFEST, PROGRESS, RECORDS = "manifest.json", "progress", "frames.reap"
META, WITHHELD = "meta.json", "meta.json.unfinished"
VERSION = 1

SUFFIXES = {".memmap", ".reap", ".json", ".hdf5", ".arrow", ".parquet"}
"""Of the files whose checksums a manifest has."""

NOTHING: Mapping[str, int] = {}
_PROGRESS = struct.Struct("<qq")


class Progress(NamedTuple):
    """The progress of a run.

    Attributes:
        columns: complete columns.
        next_id: the first number that is not the id of a trajectory.
    """

    columns: int = 0
    next_id: int = 0

    def packed(self) -> bytes:
        """The entry to append to the file."""
        return _PROGRESS.pack(*self)


def read_progress(folder: Path) -> Progress:
    """The last complete entry of the file; if there is none, the progress in the manifest."""
    path = folder / PROGRESS
    entries = path.read_bytes() if path.exists() else b""
    whole = len(entries) // _PROGRESS.size
    if whole:
        return Progress(*_PROGRESS.unpack_from(entries, (whole - 1) * _PROGRESS.size))
    manifest = read_run_manifest(folder)
    return Progress(manifest["columns"], manifest["next_id"])


def progress_of(batches: Sequence[Frames]) -> Progress:
    """The progress of the run with these frames."""
    columns = sum(frames.shape[1] for frames in batches)
    return Progress(columns, 1 + max((int(frames.ids.max()) for frames in batches), default=-1))


def read_run_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run.

    Raises:
        OptionError: there is none.
        SpecMismatch: it is damaged, or of a later version.
    """
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        version = manifest["manifest_version"]
    except FileNotFoundError as error:
        found = f"found no {MANIFEST} in it" if folder.is_dir() else "there is no such folder"
        raise OptionError(f"{folder}: expected a folder of reap collect, {found}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SpecMismatch(f"{path}: expected a manifest of reap collect, found something else") from error
    if version != VERSION:
        raise SpecMismatch(f"{path}: expected version {VERSION}, found {version}: it was written by another version of reap")
    return manifest


def about_run(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a run's manifest that a data set of its frames repeats."""
    return {name: manifest[name] for name in manifest if name != "files"}


def write_run_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Replace the manifest atomically.

    Raises:
        DiskFull: there is no room for it; the old one is still there.
    """
    text = json.dumps({"manifest_version": VERSION, **manifest}, indent=1) + "\n"
    with room(folder, len(text), MANIFEST), replaced(folder / MANIFEST) as path:
        path.write_text(text, encoding="utf-8")


def file_sums(folder: Path, known: Mapping[str, int] = NOTHING) -> dict[str, dict[str, Any]]:
    """Size and checksum of each file of the data, by name.

    Args:
        folder: where they are.
        known: checksums by name; the other files are read.
    """
    files = [file.relative_to(folder) for file in folder.rglob("*") if file.suffix in SUFFIXES]
    names = sorted(str(file) for file in files if not any(part.startswith(".") for part in file.parts))
    return {
        name: {
            "bytes": (folder / name).stat().st_size,
            "crc32": hexadecimal(known[name] if name in known else checksum(folder / name)),
        }
        for name in names
        if name != MANIFEST
    }


def load_run(folder: str | Path, *, verify: bool = False) -> TensorDictBase:
    """The frames of a folder of `reap collect`, `[envs, time]`, whatever its format and however it ended.

    For a run that was killed or is still running, these are the complete columns; nothing is written. Files of the
    format "memmap" are mapped, those of "minari" are read into memory.

    Args:
        folder: the folder.
        verify: compare checksums, which reads all files.

    Raises:
        OptionError: not a folder of `reap collect`, or `verify` is not a bool.
        SpecMismatch: a file is damaged, or has another checksum.

    Example (after `reap collect CartPole-v1 --frames 1000 --num-envs 4 --out data`)::

        load_run("data").shape  # torch.Size([4, 250])
    """
    path, compares = Path(folder), switch(verify, "verify")
    manifest = read_run_manifest(path)
    if compares:
        _verify(path, manifest)
    if manifest["options"]["format"] == "memmap":
        return _mapped(path, manifest["options"]["num_envs"])
    parts = [one.tensordict() for one in read_records(path / RECORDS, verify=verify).frames]
    if not parts:
        raise OptionError(f"{folder}: no batch was complete")
    joined: Any = torch.cat(parts, 1)  # pyright: ignore[reportCallIssue, reportArgumentType]
    return joined


def run_frames(folder: Path) -> list[Frames]:
    """The frames of a folder, in order; see `load_run`."""
    manifest = read_run_manifest(folder)
    if manifest["options"]["format"] == "memmap":
        return [frames_of(_mapped(folder, manifest["options"]["num_envs"]), str(folder))]
    return read_records(folder / RECORDS).frames


def ended_ids(folder: Path) -> set[int] | None:
    """The ids of the trajectories that end in the frames of a folder; None if their ids or ends were dropped."""
    found: set[int] = set()
    for frames in run_frames(folder):
        if TRAJECTORY not in frames.values or (NEXT, "done") not in frames.values:
            return None
        found.update(frames.ids[frames.values[NEXT, "done"].reshape(frames.shape).numpy()].tolist())
    return found


def _verify(folder: Path, manifest: Mapping[str, Any]) -> None:
    if manifest["state"] == "running":
        return  # checksums come with the end; records have their own
    found = file_sums(folder)
    for name, expected in manifest["files"].items():
        if found.get(name) != expected:
            raise SpecMismatch(f"{folder / name}: expected {expected}, found {found.get(name, 'no such file')}")


def _mapped(folder: Path, rows: int) -> TensorDictBase:
    columns = read_progress(folder).columns
    if not columns:
        raise OptionError(f"{folder}: no batch was complete")
    if (folder / META).exists():
        return TensorDict.load_memmap(folder)
    values = {key: _prefix(file, entry, rows, columns) for key, file, entry in stored_files(folder)}
    return make_tensordict(nested(values), torch.Size((rows, columns)))


def stored_files(folder: Path) -> Iterator[tuple[Key, Path, dict[str, Any]]]:
    """Key, file, and what is noted of it (shape and dtype), of each tensor in an unfinished folder."""
    for meta in (folder / WITHHELD, *folder.rglob(META)):
        lead = tuple(unquote(part) for part in meta.parent.relative_to(folder).parts)
        files = {name_of(file): file for file in meta.parent.glob("*.memmap")}
        for name, entry in json.loads(meta.read_text()).items():
            if isinstance(entry, dict) and "shape" in entry and "dtype" in entry and name in files:
                yield (*lead, name), files[name], entry


def name_of(file: Path) -> str:
    """The name of the values in a file of tensordict, in whose own name a slash or a blank is `%2F` or `%20`."""
    return unquote(file.name.removesuffix(".memmap"))


def _prefix(file: Path, entry: Mapping[str, Any], rows: int, columns: int) -> Tensor:
    """The complete columns of a file, which has its full length, or was already shortened to them."""
    item, dtype = tuple(entry["shape"][2:]), dtype_named(entry["dtype"])
    nbytes = rows * int(np.prod(item)) * dtype.itemsize
    if not nbytes:
        return torch.empty(rows, columns, *item, dtype=dtype)
    there = file.stat().st_size // nbytes
    whole = torch.from_file(str(file), shared=False, size=rows * there * int(np.prod(item)), dtype=dtype)
    return whole.view(rows, there, *item)[:, :columns]
