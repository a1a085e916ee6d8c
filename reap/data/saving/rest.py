"""The file for everything except frames in a save, and the manifest; reading a save runs no code from its files."""

from __future__ import annotations

import io
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from reap.data.saving.frame_files import mapped_frames
from reap.data.saving.manifest import MANIFEST, Manifest, check, read_manifest, write_manifest
from reap.data.saving.reading import SavedFolder
from reap.errors import ReapError, SpecMismatch, headline

REST = "reap.pt"
"""The name of the file for everything except frames."""

RUBBISH = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, AssertionError)
"""Errors raised by code that reads malformed data."""


def write_rest(folder: Path, rest: Mapping[str, Any], checksums: Mapping[str, int]) -> None:
    """Write everything except frames, then the manifest.

    Args:
        folder: the target.
        rest: the data.
        checksums: the checksums of the frames' files, by name.
    """
    written = io.BytesIO()
    torch.save({**rest, "manifest": MANIFEST}, written)
    (folder / REST).write_bytes(written.getbuffer())
    write_manifest(folder, checksums)


def read_state(folder: SavedFolder, *, verify: bool) -> dict[str, Any]:
    """Read the state that `dumps` wrote; frames are mapped.

    Raises:
        SpecMismatch: a file is damaged.
    """
    state, manifest = read_rest(folder, verify=verify)
    names = [one["file"] for one in state["files"].values() if one["file"] is not None]
    for name in names:
        folder.file(name)  # all are open before anything takes long: a save that replaces this one removes them
    if manifest is not None:
        for name in names:
            check(folder, manifest, name)
    return {**state, "frames": mapped_frames(folder, state["files"])}


def read_rest(folder: SavedFolder, *, verify: bool) -> tuple[dict[str, Any], Manifest | None]:
    """Read everything except frames from a folder that `dumps` wrote, and the manifest, if requested and present.

    Raises:
        SpecMismatch: the file is damaged.
    """
    manifest = read_manifest(folder) if verify and folder.has(MANIFEST) else None
    if manifest is not None:
        check(folder, manifest, REST)
    try:
        rest = torch.load(io.BytesIO(folder.read(REST)), map_location="cpu", weights_only=True)
    except SpecMismatch:
        raise
    except Exception as error:
        raise SpecMismatch(
            f"{folder.path / REST}: expected a file of dumps, found it damaged ({error}); nothing was changed"
        ) from error
    if verify and manifest is None and "manifest" in rest:  # saves of earlier versions had none
        raise SpecMismatch(f"{folder.path / MANIFEST}: expected the checksums of the files, found none; nothing was changed")
    return rest, manifest


@contextmanager
def refused(source: str) -> Generator[None]:
    """A context that turns errors caused by a malformed state into SpecMismatch."""
    try:
        yield
    except (ReapError, MemoryError):
        raise
    except RUBBISH as error:
        raise SpecMismatch(
            f"replay buffer: expected a state from state_dict or dumps, found something else in {source} "
            f"({headline(error)}); nothing was changed"
        ) from error
