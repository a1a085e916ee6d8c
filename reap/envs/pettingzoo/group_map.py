"""Group maps: which agents of an env have their values stacked under one key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, cast

from reap.errors import OptionError

GroupMap = Mapping[str, Sequence[str]]

TAKEN = ("next", "collector", "state", "done", "terminated", "truncated", "is_init", "step_count")
"""Keys at the root of batches, which groups cannot have."""


class MarlGroupMapType(Enum):
    """Group maps by name, for `group_map=`.

    Example:
        >>> MarlGroupMapType.ALL_IN_ONE_GROUP.get_group_map(["left", "right"])
        {'agents': ['left', 'right']}
        >>> MarlGroupMapType.ONE_GROUP_PER_AGENT.get_group_map(["left", "right"])
        {'left': ['left'], 'right': ['right']}
    """

    ALL_IN_ONE_GROUP = 1
    ONE_GROUP_PER_AGENT = 2

    def get_group_map(self, agent_names: Sequence[str]) -> dict[str, list[str]]:
        """The group map of these agents."""
        if self is MarlGroupMapType.ALL_IN_ONE_GROUP:
            return {"agents": list(agent_names)}
        return {agent: [agent] for agent in agent_names}


def by_name(agents: Sequence[str]) -> dict[str, list[str]]:
    """Group agents whose names differ only in their last number; any other agent is a separate group.

    Example:
        >>> by_name(["red_0", "red_1", "referee"])
        {'red': ['red_0', 'red_1'], 'referee': ['referee']}
    """
    groups: dict[str, list[str]] = {}
    for agent in agents:
        name, _, number = agent.rpartition("_")
        groups.setdefault(name if name and number.isdecimal() else agent, []).append(agent)
    return groups


def checked_map(given: Any, agents: Sequence[str], default: GroupMap) -> dict[str, list[str]]:
    """The group map from a mapping or an object with `get_group_map(agents)`; the default for None.

    Raises:
        OptionError: anything else, an agent in no group or in two, an empty group, or a group with the name of a batch key.
    """
    makes = getattr(given, "get_group_map", None)
    made: Any = default if given is None else makes(list(agents)) if callable(makes) else given
    if not isinstance(made, Mapping):
        raise OptionError(
            f"group_map: expected a dict of lists of agents, or a MarlGroupMapType, got {type(made).__name__}: {made!r}"
        )
    groups = {str(name): list(members) for name, members in cast("GroupMap", made).items()}
    grouped = [agent for members in groups.values() for agent in members]
    if sorted(grouped) != sorted(agents) or not all(groups.values()):
        raise OptionError(
            f"group_map: expected each of the agents {list(agents)} in one group, and no group without agents, got {groups}"
        )
    taken = [name for name in groups if name in TAKEN]
    if taken:
        raise OptionError(f"group_map: groups {taken} have names that batches use; give them other names")
    return groups
