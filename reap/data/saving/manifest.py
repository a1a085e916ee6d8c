"""`manifest.json`: the length and the checksum (CRC-32) of each file of a save, which reveal damage.

It is written last. A save in a subfolder has its own manifest, which counts as a file here.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from reap.data.saving.reading import PIECE, SavedFolder
from reap.errors import SpecMismatch

MANIFEST = "manifest.json"

Manifest = Mapping[str, Any]
"""By the name of a file: `{"bytes": 800, "crc32": "1c291ca3"}`."""


def write_manifest(folder: Path, known: Mapping[str, int]) -> None:
    """Write the manifest of a folder whose files are complete.

    Args:
        folder: the folder of the files.
        known: known checksums, by file name; other files are read.
    """
    files = {
        name: {"bytes": file.stat().st_size, "crc32": hexadecimal(known[name] if name in known else checksum(file))}
        for file in _files(folder)
        if (name := str(file.relative_to(folder))) != MANIFEST
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1))


def read_manifest(folder: SavedFolder) -> Manifest:
    """The manifest of a folder.

    Raises:
        SpecMismatch: it is damaged or missing.
    """
    try:
        files = json.loads(folder.read(MANIFEST))["files"]
        return {name: {"bytes": int(file["bytes"]), "crc32": str(file["crc32"])} for name, file in files.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecMismatch(
            f"{folder.path / MANIFEST}: expected a file of dumps, found it damaged; nothing was changed"
        ) from error


def check(folder: SavedFolder, manifest: Manifest, name: str) -> None:
    """Raise SpecMismatch for a file that differs from the one written."""
    if name not in manifest:
        raise SpecMismatch(f"{folder.path / name}: expected its checksum in {MANIFEST}, found none; nothing was changed")
    expected = manifest[name]
    found = {"bytes": folder.size(name), "crc32": hexadecimal(folder.checksum(name))}
    if found != expected:
        raise SpecMismatch(
            f"{folder.path / name}: expected {expected['bytes']} bytes with the checksum {expected['crc32']}, found "
            f"{found['bytes']} with {found['crc32']}: it is damaged; nothing was changed. verify=False loads it all the same"
        )


def hexadecimal(number: int) -> str:
    """The text form of a checksum."""
    return f"{number:08x}"


def checksum(file: Path) -> int:
    """The CRC-32 of a file."""
    total = 0
    with file.open("rb") as opened:
        while piece := opened.read(PIECE):
            total = zlib.crc32(piece, total)
    return total


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(folder.iterdir()):
        if not entry.is_dir():
            yield entry
        elif (entry / MANIFEST).exists():
            yield entry / MANIFEST
        else:
            yield from _files(entry)
