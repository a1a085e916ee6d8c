"""`to_minari`: frames as a data set of the Minari package.

It is written to a temporary place and moved at the end, so a data set is complete or does not exist.

    $MINARI_DATASETS_PATH/NAMESPACE/NAME-v0/data/            what Minari reads
                                           /manifest.json    versions, origin, checksums
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import Space

from reap.data.datasets.episodes import REWARD, TERMINATED, TRUNCATED, Episode, episodes_of
from reap.data.datasets.frames import NEXT, Frames
from reap.data.datasets.run_folder import file_sums, write_run_manifest
from reap.data.datasets.sources import Source, Spaces, observed_keys, observed_objects, source_of, spaces_of
from reap.data.datasets.spaces import (
    ACTION,
    OBSERVATION,
    STORABLE,
    assembled,
    leaves,
    require_name,
    require_storable,
    restricted,
    root_of,
)
from reap.data.datasets.versions import versions
from reap.errors import DiskFull, OptionError, SpecMismatch
from reap.keys import Key, nested, plain
from reap.option_values import switch
from reap.optional import load
from reap.recording.layout import Array
from reap.system.disk import free_space, full_number
from reap.system.memory import readable

AT_ONCE, BYTES_AT_ONCE = 256, 1 << 26
"""Limits on the episodes passed to Minari at once: their number, and their bytes (which the last one may exceed)."""

FORMATS = ("hdf5", "arrow", "parquet")


def to_minari(
    source: Any,
    dataset_id: str,
    *,
    env: Any = None,
    complete_only: bool = False,
    data_format: str = "hdf5",
    description: str | None = None,
    algorithm_name: str | None = None,
    author: str | Iterable[str] | None = None,
    author_email: str | Iterable[str] | None = None,
    code_permalink: str | None = None,
    requirements: Iterable[str] | None = None,
) -> Any:
    """Write frames as a data set of Minari, episode by episode, bit for bit.

    Observations with the last one of each episode, actions, rewards, terminations, truncations, infos (values that are observed
    but not in the observation space: those of `info_keys`), seeds where they are known, and the spec of the env. Choices become
    numbers, as the env has them, whether the frames have them as indices or one-hot. Pictures are stored as they are, not as
    JPEG. A `manifest.json` with versions, origin and checksums is stored next to the data.

    An incomplete episode ends as truncated, as with Minari's own `DataCollector`. Minari has no place for other values of the
    frames (such as log-probabilities of a policy), so they are omitted.

    Args:
        source: a `ReplayBuffer`, the folder of a run of `reap collect` (finished, running or killed), or a TensorDict
            `[*rows, time]`.
        dataset_id: `"namespace/name-v0"`. The data set goes to `MINARI_DATASETS_PATH`, or `~/.minari/datasets`.
        env: where the frames are from: an id, an `EnvSpec` or an env of gymnasium. A folder knows it; for others without it the
            spaces are as large as the dtypes of the values, and choices stay as they are.
        complete_only: omit incomplete episodes.
        data_format: `"hdf5"`, or `"arrow"` or `"parquet"`, which take a file, and milliseconds, for each episode.
        description: a description of the data set.
        algorithm_name: the algorithm that acted.
        author: the authors' names.
        author_email: their addresses.
        code_permalink: a link to the code.
        requirements: packages that the env needs, in pip's form: `["ale-py>=0.10"]`.

    Returns:
        The `minari.MinariDataset`.

    Raises:
        ImportError: Minari, or the package for the format, is not installed.
        OptionError: a data set of this id exists, or an argument is invalid; nothing is written.
        SpecMismatch: the frames are not episodes of the env; or an observation, an action or an info is a Python object (text,
            for example), or has a name that HDF5 cannot hold (with a slash).
        DiskFull: there is no room for the data set; nothing is left behind.
        OSError: the disk fails in another way; nothing is left behind.

    Example (writes to Minari's folder)::

        dataset = reap.data.to_minari(buffer, "cartpole/mine-v0", env="CartPole-v1")
    """
    minari = load("minari", "to_minari")
    switch(complete_only, "complete_only")
    if data_format not in FORMATS:
        raise OptionError(f"data_format: expected one of {', '.join(FORMATS)}, got {data_format!r}")
    load("h5py" if data_format == "hdf5" else "pyarrow", f"to_minari with data_format={data_format!r}")
    target = place_of(dataset_id)
    found = source_of(source)
    spaces = spaces_of(env, found)
    names: dict[str, Any] = {
        "description": description,
        "algorithm_name": algorithm_name,
        "code_permalink": code_permalink,
        "author": _names(author),
        "author_email": _names(author_email),
        "requirements": None if requirements is None else list(requirements),
    }
    metadata = {name: value for name, value in names.items() if value is not None}
    with _partial(dataset_id, target) as folder:
        metadata |= {"dataset_id": dataset_id, "minari_version": minari.__version__}
        count = _write(folder, found, spaces, data_format, metadata, complete_only=complete_only)
        about = {"kind": "minari", "versions": versions(), "episodes": count, "source": found.about}
        write_run_manifest(folder, {**about, "files": file_sums(folder)})
        _move(folder, target, dataset_id)
    return minari.load_dataset(dataset_id)


def place_of(dataset_id: str) -> Path:
    """The folder of a new data set.

    Raises:
        OptionError: it already exists, or the id is malformed.
    """
    path = dataset_path(dataset_id)
    if os.path.lexists(path):
        raise OptionError(f"dataset_id: {dataset_id!r} is there already, at {path}, and nothing is overwritten; name another")
    return path


def dataset_path(dataset_id: str) -> Path:
    """The folder of a data set, whether it exists or not.

    Raises:
        OptionError: the id is malformed.
    """
    minari_dataset, places = load("minari.dataset.minari_dataset", "to_minari"), load("minari.storage", "to_minari")
    try:
        minari_dataset.parse_dataset_id(dataset_id)
    except (ValueError, TypeError) as error:
        raise OptionError(
            f"dataset_id: expected 'namespace/name-v0', with a namespace of two letters or more, or none; got {dataset_id!r}"
        ) from error
    return Path(places.get_dataset_path(dataset_id))


def _parent(dataset_id: str, target: Path) -> Path:
    """The folder that a data set goes to, which is made; a namespace that Minari knows."""
    namespace = dataset_id.rpartition("/")[0]
    if namespace:
        known = load("minari.namespace", "to_minari")
        if namespace not in known.list_local_namespaces():
            known.create_namespace(namespace)
    return target.parent


@contextmanager
def _partial(dataset_id: str, target: Path) -> Generator[Path]:
    """A folder beside the target. The `with` block moves it there, otherwise it is removed.

    Raises:
        DiskFull: there was no room in the block.
    """
    taken = 0
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=_parent(dataset_id, target)))
        try:
            folder.chmod(0o755)
            yield folder
        except BaseException:
            taken = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except (OSError, RuntimeError) as error:  # h5py raises both
        number = full_number(error)
        if number is None:
            raise
        needed = f"more than {readable(taken)}" if taken else "more"  # HDF5 takes some kilobytes for each episode
        raise DiskFull(
            f"to_minari: expected room for {needed} at {target.parent}, found {readable(free_space(target.parent))} free: "
            f"{os.strerror(number)}. Remove something there, or choose a folder on another disk with MINARI_DATASETS_PATH",
            number,
        ) from error


def _move(folder: Path, target: Path, dataset_id: str) -> None:
    try:
        folder.rename(target)
    except OSError as error:
        if os.path.lexists(target):
            raise OptionError(f"dataset_id: another process has made {dataset_id!r} meanwhile; name another") from error
        raise


def _names(given: str | Iterable[str] | None) -> set[str] | None:
    return None if given is None else {given} if isinstance(given, str) else set(given)


def _write(
    folder: Path, source: Source, spaces: Spaces, data_format: str, metadata: Mapping[str, Any], *, complete_only: bool
) -> int:
    """Write the data; return the number of episodes."""
    storage = load("minari.dataset.minari_storage", "to_minari").MinariStorage
    buffers = load("minari.data_collector", "to_minari")
    form = Form(source, spaces)
    made = storage.new(
        folder / "data",
        observation_space=form.observation_space,
        action_space=spaces.action,
        env_spec=spaces.spec,
        data_format=data_format,
        jpeg_encoding=False,
    )
    episodes = (one for one in episodes_of(source.batches) if one.is_finished or not complete_only)
    count = 0
    for some in _groups(episodes, sum(value[0, 0].nbytes for value in source.batches[0].values.values())):
        made.update_episodes(
            [
                buffers.EpisodeBuffer(id=count + number, seed=source.seeds.get((one.row, one.column)), **form.parts(one))
                for number, one in enumerate(some)
            ]
        )
        count += len(some)
    if not count:
        raise OptionError("to_minari: expected episodes, found none that is complete; complete_only=False takes the others too")
    made.update_metadata(dict(metadata))
    return count


def _groups(episodes: Iterable[Episode], frame: int) -> Iterator[list[Episode]]:
    """Some episodes at a time; `frame` is the number of bytes of a frame."""
    some: list[Episode] = []
    frames = 0
    for one in episodes:
        some.append(one)
        frames += len(one)
        if len(some) == AT_ONCE or frames * frame >= BYTES_AT_ONCE:
            yield some
            some, frames = [], 0
    if some:
        yield some


class Form:
    """Converts the episodes of a source to those of a data set.

    Args:
        source: the frames.
        spaces: of their env.

    Raises:
        SpecMismatch: a value is missing, or the frames are from another env.
    """

    def __init__(self, source: Source, spaces: Spaces) -> None:
        frames, space = source.batches[0], spaces.observation
        observed = observed_keys(frames)
        single = ("pixels",) if OBSERVATION not in observed and ("pixels",) in observed else OBSERVATION
        self._root, self._action_space = root_of(space, single), spaces.action
        _refuse_objects(frames, dict([*leaves(space, self._root), *leaves(spaces.action, ACTION)]))
        known = restricted(space, self._root, observed.__contains__)
        missing = [key for key, _ in leaves(spaces.action, ACTION) if key not in frames.values]
        if known is None or missing:
            wanted = [plain(key) for key, _ in (*leaves(space, self._root), *leaves(spaces.action, ACTION))]
            raise SpecMismatch(
                f"to_minari: expected the observations and actions {wanted} of the env, found {list(map(plain, frames.values))}"
            )
        self.observation_space = known
        """The env's, without what the frames lack."""
        require_storable(known, self._root)
        require_storable(spaces.action, ACTION)
        own = {key for key, _ in leaves(known, self._root)}
        self._infos = [key for key in observed if key not in own]
        for key in self._infos:
            require_name(key)

    def parts(self, episode: Episode) -> dict[str, Any]:
        """The data of an episode."""
        truncations = _flags(episode, TRUNCATED)
        if not episode.is_finished:
            truncations[-1] = True
        return {
            "observations": assembled(self.observation_space, self._root, episode.observed),
            "actions": assembled(self._action_space, ACTION, episode.values),
            "rewards": _one_each(episode, (NEXT, *REWARD)),
            "terminations": _flags(episode, TERMINATED),
            "truncations": truncations,
            "infos": nested({key: episode.observed(key) for key in self._infos}) or None,
        }


def _refuse_objects(frames: Frames, known: Mapping[Key, Space[Any]]) -> None:
    """Raise SpecMismatch for observations, actions and infos that are Python objects, which would be missing otherwise."""
    for key in dict.fromkeys([*(key for key in known if key in frames.objects), *observed_objects(frames)]):
        wanted = f"{STORABLE}, got {known[key]}, whose values are" if key in known else "numbers, found"
        there = ", ".join(repr(plain(one)) for one in (key, (NEXT, *key)) if one in frames.objects)
        raise SpecMismatch(
            f"{plain(key)!r}: expected {wanted} Python objects; to write the data set without them, give frames without them: "
            f"frames.exclude({there})"
        )


def _flags(episode: Episode, key: Key) -> Array:
    return np.array(_one_each(episode, (NEXT, *key)), np.bool_)


def _one_each(episode: Episode, key: Key) -> Array:
    values = episode.values(key)
    if values.size != len(values):
        raise SpecMismatch(f"to_minari: expected one number per frame under {plain(key)!r}, found {values.shape[1:]}")
    return values.reshape(-1)
