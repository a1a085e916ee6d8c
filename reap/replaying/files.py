"""`EpisodeFolder`: records of episodes in append-only files, so that a killed run loses none of the written ones.

    values.bin        arrays, one after the other
    episodes.jsonl    a line for each episode, written after its arrays: numbers, the note, and the places of the arrays

Reading runs no code from the files: there are no pickles in them.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reap.errors import OptionError
from reap.keys import Key
from reap.recording.layout import Array
from reap.recording.records import EpisodeRecord, Note, Recipe, Values
from reap.system.disk import replaced

INDEX, VALUES = "episodes.jsonl", "values.bin"

NUMBERS = tuple(one.name for one in fields(EpisodeRecord) if one.type in ("int", "float", "bool"))
"""Fields of a record that are written unchanged."""

BEST = {
    "best": ("reward", max),
    "worst": ("reward", min),
    "longest": ("length", max),
    "shortest": ("length", min),
}
"""Names for episodes: the number of each line that is compared, and how one is chosen."""


class EpisodeFolder(Mapping[int, EpisodeRecord]):
    """The records in a folder, by the id of their trajectory, in the order in which they ended.

    Args:
        path: the folder; `add` creates it.

    Raises:
        OptionError: lines that cannot be read.

    Example:
        >>> import tempfile
        >>> from reap import SyncDataCollector
        >>> collector = SyncDataCollector("CartPole-v1", frames_per_batch=100, record_episodes=True, seed=0)
        >>> batch = collector.next()
        >>> folder = EpisodeFolder(tempfile.mkdtemp())
        >>> folder.add(collector.episodes.take())
        >>> record = folder["best"]
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lines: dict[int, dict[str, Any]] = {}
        """The entries of the index by id, without the arrays."""
        index = self.path / INDEX
        for line in index.read_text(encoding="utf-8").splitlines(keepends=True) if index.exists() else ():
            if line.endswith("\n"):  # the last one of a run that was killed is not complete
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            found = json.loads(line)
            self.lines[found["id"]] = found
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(f"{self.path / INDEX}: expected a line of JSON for each episode, found {line[:80]!r}") from error

    def add(self, records: Iterable[EpisodeRecord]) -> None:
        """Append records.

        Raises:
            OptionError: a record that would need a pickle: values that are objects, or a state that is not plain data.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lines: list[str] = []
        with (self.path / VALUES).open("ab") as values:
            for record in records:
                lines.append(json.dumps(_line(record, values)))
                self.lines[record.id] = json.loads(lines[-1])
        self._end_last_line()
        with (self.path / INDEX).open("a", encoding="utf-8") as index:
            index.writelines(f"{line}\n" for line in lines)

    def keep(self, ids: Collection[int]) -> None:
        """Remove the records of all episodes but these; with the last one the files are removed.

        The arrays of others stay in their file. Records that were added last take no room to be removed.
        """
        index, kept = self.path / INDEX, {number: line for number, line in self.lines.items() if number in ids}
        if not kept:
            for name in (INDEX, VALUES):
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):  # there is none, or somebody put a file there
                self.path.rmdir()
        elif len(kept) < len(self.lines):
            text = "".join(f"{json.dumps(line)}\n" for line in kept.values())
            if index.read_text(encoding="utf-8").startswith(text):
                os.truncate(index, len(text.encode()))
            else:
                with replaced(index) as path:
                    path.write_text(text, encoding="utf-8")
        self.lines = kept

    def _end_last_line(self) -> None:
        """Remove an incomplete line that a killed run left."""
        index = self.path / INDEX
        if index.exists() and not (text := index.read_bytes()).endswith(b"\n"):
            os.truncate(index, text.rfind(b"\n") + 1)

    def __getitem__(self, key: int | str) -> EpisodeRecord:
        """The record of an id, or of "best", "worst", "longest", "shortest", "first" or "last"."""
        line = self.lines[self.id_of(key)]
        with (self.path / VALUES).open("rb") as values:
            return _record(line, values)

    def id_of(self, key: int | str) -> int:
        """The id of an episode, given as a number, as text, or as a name such as "best".

        Raises:
            KeyError: there is no such episode.
        """
        text = str(key)
        if not self.lines:
            raise KeyError(f"{self.path} holds no episodes")
        if text in ("first", "last"):
            return list(self.lines)[0 if text == "first" else -1]
        if text in BEST:
            name, choose = BEST[text]
            return choose(self.lines, key=lambda one: self.lines[one][name])
        if not text.lstrip("-").isdigit() or int(text) not in self.lines:
            names = ", ".join((*BEST, "first", "last"))
            raise KeyError(
                f"{text}: expected the id of one of the {len(self.lines)} episodes in {self.path}, or one of {names}"
            )
        return int(text)

    def __iter__(self) -> Iterator[int]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)


def _line(record: EpisodeRecord, values: Any) -> dict[str, Any]:
    recipe = record.recipe
    return {
        **{name: getattr(record, name) for name in NUMBERS},
        "recipe": None if recipe is None or recipe.factory is not None else _encoded([recipe.env_id, recipe.options]),
        "note": [record.note.seed, _encoded(record.note.state)],
        "lead": [_written(one, values) for one in record.lead],
        **{name: _written(getattr(record, name), values) for name in ("actions", "first", "results")},
    }


def _record(line: Mapping[str, Any], values: Any) -> EpisodeRecord:
    seed, state = line["note"]
    recipe = None if line["recipe"] is None else _decoded(line["recipe"])
    numbers: Any = {name: line[name] for name in NUMBERS}
    return EpisodeRecord(
        **numbers,
        recipe=None if recipe is None else Recipe(*recipe),
        note=Note(seed, _decoded(state)),
        lead=[_loaded(one, values) for one in line["lead"]],
        actions=_loaded(line["actions"], values),
        first=_loaded(line["first"], values),
        results=_loaded(line["results"], values),
    )


def _written(arrays: Values, values: Any) -> list[Any]:
    """Append arrays to a file; return the key, place, dtype and shape of each."""
    places: list[Any] = []
    for key, given in arrays.items():
        array = np.asarray(given)
        if array.dtype == object:
            raise OptionError(f"record_episodes: {'/'.join(key)} holds Python objects, which cannot be written to a file")
        places.append([list(key), values.tell(), array.dtype.str, list(array.shape)])
        values.write(array.tobytes())
    return places


def _loaded(places: Iterable[Any], values: Any) -> dict[Key, Array]:
    arrays: dict[Key, Array] = {}
    for key, place, dtype, shape in places:
        kind = np.dtype(dtype)
        nbytes = prod(shape) * kind.itemsize
        values.seek(place)
        content = bytearray(values.read(nbytes))
        if len(content) != nbytes:
            raise OptionError(f"{values.name}: expected {nbytes} bytes at {place}, found fewer; the file was cut short")
        arrays[tuple(key)] = np.frombuffer(content, kind).reshape(shape)
    return arrays


def _encoded(value: Any) -> Any:
    """Plain data as JSON; types that JSON lacks become a dict with one key that starts with `$`."""
    for kind, encode in _ENCODE.items():
        if isinstance(value, kind):
            return encode(value)
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _encoded(one) for name, one in value.items()}
    raise OptionError(f"record_episodes: expected plain data to write to a file, found {type(value).__name__}: {value!r}")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (name := next(iter(value))) in _DECODE:
        return _DECODE[name](value[name])
    return {name: _decoded(one) for name, one in value.items()}


def _array(parts: Any) -> Array:
    dtype, shape, text = parts
    return np.frombuffer(base64.b64decode(text), np.dtype(dtype)).reshape(shape).copy()


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


_ENCODE: Mapping[Any, Callable[[Any], Any]] = {
    np.generic: lambda one: one.item(),
    str | int | float | bool | None: lambda one: one,
    bytes: lambda one: {"$bytes": _base64(one)},
    np.ndarray: lambda one: {"$array": [one.dtype.str, list(one.shape), _base64(one.tobytes())]},
    torch.Tensor: lambda one: {"$tensor": _encoded(one.numpy())},
    torch.dtype: lambda one: {"$dtype": str(one).removeprefix("torch.")},
    tuple: lambda one: {"$tuple": [_encoded(item) for item in one]},
    list: lambda one: [_encoded(item) for item in one],
}

_DECODE: Mapping[str, Any] = {
    "$bytes": base64.b64decode,
    "$array": _array,
    "$tensor": lambda one: torch.from_numpy(_decoded(one)),
    "$dtype": lambda name: getattr(torch, name),
    "$tuple": lambda items: tuple(_decoded(items)),
}
