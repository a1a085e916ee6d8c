"""Takes a folder for a run: one process at a time writes there.

    start      folder, progress (locked), meta.json.unfinished    no frames yet; `is_unfinished_start` if it was killed here
    begin      manifest.json                                      from here on --resume continues the run

A start that was killed is begun anew by the same command. The lock tells it from one that is under way, since the system
releases the locks of a killed process. On a file system without locks the two look alike, and are refused.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

from reap.data.datasets.run_folder import MANIFEST, PROGRESS, WITHHELD
from reap.errors import OptionError


def claimed(path: Path, place: Path) -> int:
    """Make a folder for a new run, or take one that is empty or holds an unfinished start, and lock it.

    Args:
        path: the folder, as the user names it.
        place: the folder itself, if that is a link.

    Returns:
        The descriptor of the progress file, which holds the lock.

    Raises:
        OptionError: there is something else in the folder, another process is writing there, or it cannot be written.
    """
    require_empty(path, place)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"--out {path}: cannot be written: {error.strerror}") from error
    lock = locked(path, place, is_new=True)
    try:
        require_empty(path, place)  # another run may have come and gone since the first look
        remove_rests(place)
        (place / WITHHELD).unlink(missing_ok=True)
    except BaseException:
        (place / PROGRESS).unlink(missing_ok=True)
        os.close(lock)
        raise
    return lock


def locked(path: Path, place: Path, *, is_new: bool = False) -> int:
    """A descriptor of the progress file, locked by this process.

    Args:
        path: the folder, as the user names it.
        place: the folder itself, if that is a link.
        is_new: nobody else may have made the file, unless its lock shows that no process has it.

    Raises:
        OptionError: another process has it, or it cannot be written.
    """
    file = place / PROGRESS
    taken = OptionError(f"--out {path}: another process is writing there; wait for it to end, or stop it")
    try:
        lock, is_made = _opened(file)
    except FileNotFoundError as error:  # a run that kept nothing has just removed it
        raise taken from error
    except OSError as error:
        raise OptionError(f"--out {path}: cannot be written: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = file.exists() and os.path.samestat(os.fstat(lock), file.stat())
    except BlockingIOError:
        is_free = False
    except OSError:  # a file system without locks
        is_free = is_made or not is_new
    if not is_free:
        os.close(lock)
        raise taken
    return lock


def _opened(file: Path) -> tuple[int, bool]:
    """A descriptor for appending to a file, and whether this made the file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        return os.open(file, flags), False


def require_empty(path: Path, place: Path) -> None:
    """Raise OptionError unless a folder is empty, does not exist, or holds an unfinished start.

    Args:
        path: the folder, as the user names it.
        place: the folder itself, if that is a link.
    """
    if not place.is_dir():
        if os.path.lexists(place):
            raise OptionError(f"--out {path}: expected a new or empty folder, found a file; name another")
        return
    try:
        found = sorted(entry.name for entry in place.iterdir())
        others = [name for name in found if not _is_of_start(place / name)]
    except OSError as error:
        raise OptionError(f"--out {path}: cannot be read: {error.strerror}") from error
    if not others:
        return
    if MANIFEST not in found:
        raise OptionError(f"--out {path}: expected a new or empty folder, found {others[0]!r} in it; name another")
    if under_way := {WITHHELD, PROGRESS}.intersection(found):
        raise OptionError(
            f"--out {path}: expected a new or empty folder, found {min(under_way)!r} in it: another run is writing there, or "
            "was killed; continue it with --resume, name another folder, or remove that one"
        )
    raise OptionError(
        f"--out {path}: expected a new or empty folder, found {others[0]!r} in it; name another, or continue that run with "
        "--resume if it was stopped"
    )


def is_unfinished_start(place: Path) -> bool:
    """Whether a folder holds a run that was killed before its manifest was written, and nothing else."""
    try:
        entries = [*place.iterdir()]
        return bool(entries) and all(map(_is_of_start, entries))
    except OSError:  # no folder, or one that cannot be read
        return False


def remove_rests(place: Path) -> None:
    """Remove copies of the manifest that a process was writing when it was killed."""
    for entry in place.iterdir():
        if _is_copy(entry):
            shutil.rmtree(entry)


def _is_of_start(entry: Path) -> bool:
    is_empty_file = entry.is_file() and not entry.is_symlink() and not entry.stat().st_size
    return (entry.name in {PROGRESS, WITHHELD} and is_empty_file) or _is_copy(entry)


def _is_copy(entry: Path) -> bool:
    """Whether this is the folder of `replaced` for a new manifest."""
    if not entry.name.startswith(f".{MANIFEST}.") or not entry.is_dir() or entry.is_symlink():
        return False
    return all(file.name == MANIFEST for file in entry.iterdir())
