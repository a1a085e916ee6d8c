"""Makes torchrl's code accept specs of reap as its own; names, arguments and meaning are the same.

Once torchrl has been imported, each class of specs is registered with torchrl's class of the same name, by
`abc.ABCMeta.register`, and with its action space's name. `isinstance` then holds, and modules and losses take the specs of
reap's envs as they are.
"""

from __future__ import annotations

import sys
from typing import Any

PRESENT = "torchrl.data.tensor_specs"
"""The module of torchrl's specs; it is not imported here."""

ACTION_SPACES = "torchrl.data.utils"
"""The module of torchrl's table from classes of specs to the names of action spaces, `"one_hot"`; it imports the other."""

KINDS: dict[str, type] = {}
"""The classes of specs under their names."""

_introduced: set[str] = set()


def introduce() -> None:
    """Register the classes with torchrl's, once it has been imported."""
    if len(_introduced) < len(KINDS) and ACTION_SPACES in sys.modules:
        theirs, names = sys.modules[PRESENT], getattr(sys.modules[ACTION_SPACES], "ACTION_SPACE_MAP", {})
        for name in KINDS.keys() - _introduced:
            known: Any = getattr(theirs, name, None)
            if known is not None:
                known.register(KINDS[name])
            if known in names:
                names[KINDS[name]] = names[known]
            _introduced.add(name)


ABSENT = {
    "SPEC_HANDLED_FUNCTIONS": "torch functions of specs are not looked up in a table; torch.stack takes equal specs",
    "implements_for_spec": "torch functions of specs are not looked up in a table; torch.stack takes equal specs",
    "CONFLICTING_KWARGS": "it is the text of an error",
    "memoize_encode": "encode does not need to be made quicker: envs write values into arrays, without a call of it",
    "erase_memoize_cache": "encode keeps nothing",
    "make_neg_dim": "the dimensions of a value are known; values whose shape changes have the spec NonTensor(shape)",
    "set_provisional_n": "the number of choices is known when the spec is made",
    "index": "write torch.gather(tensor, -1, spec.to_categorical(value).unsqueeze(-1))",
    "names": "dimensions of specs have no names; those of batches have",
    "refine_names": "dimensions of specs have no names; those of batches have",
    "data_cls": "values of a Composite are TensorDicts; make others of them with Class.from_tensordict(value)",
    "separates": "values of a Composite are TensorDicts; select keys of them",
}
"""Names that torchrl's specs have and these lack, with reasons."""


def reason_for(owner: type, name: str) -> str:
    """The text of the AttributeError for a name that a spec lacks."""
    start = f"{owner.__name__!r} object has no attribute {name!r}"
    return f"{start}: {ABSENT[name]}" if name in ABSENT else start
