"""Names of torchrl's envs that are not supported, with reasons."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from reap.errors import OptionError, nearest
from reap.specs.fits import Check

NO_MODULE = "an env of reap is no nn.Module: it has no parameters, buffers, hooks or submodules"
NO_LOCK = "specs are locked; change a clone: spec = env.observation_spec.clone(); ...; env.observation_spec = spec"
NO_HOOK = "values are read into arrays without a call for each; change them in a gymnasium wrapper"
WHEN_BUILT = "options are given where the env is built: ParallelEnv(num_envs, create_env_fn, ...)"
PRESENT = "torchrl.envs.common"

ABSENT = {
    "auto_complete_done_specs": "done flags that are left out are completed; add_truncated_keys() adds truncated",
    "auto_specs_": "write the specs, or run check_env_specs(env), which says what differs",
    "base_env": "it is in no transform: it is the base env itself",
    "batch_locked": "the batch size of an env is fixed",
    "check_env_specs": "write check_env_specs(env), from reap.envs.utils",
    "collector": "an env may be driven by several collectors, one after the other",
    "configure_parallel": WHEN_BUILT,
    "eager": "nothing is compiled",
    "empty_cache": "nothing is kept: keys and specs are read when asked for",
    "fast_encoding": "it is always on: values are written without encode()",
    "info_dict_reader": "infos are read by info_keys=, set_info_dict_reader() or auto_register_info_dict()",
    "is_spec_locked": NO_LOCK,
    "make_parallel": WHEN_BUILT,
    "non_blocking": "there are no copies between devices in a batch of envs",
    "read_action": NO_HOOK,
    "read_done": NO_HOOK,
    "read_obs": NO_HOOK,
    "read_reward": NO_HOOK,
    "rebuild_with_kwargs": "build another one: GymEnv(env_name, ...)",
    "register_collector": "collectors know their envs, not the other way round",
    "register_gym": "write gymnasium.register(id, entry_point)",
    "run_type_checks": "check_env_specs(env) compares all values with the specs; collectors have check=",
    "select_and_clone": "results of a batch of envs are copies already",
    "set_spec_lock_": NO_LOCK,
    "set_state": "an env that has a state has state_dict() and load_state_dict()",
    "validated": "check_env_specs(env) looks",
    **dict.fromkeys(("parameters", "buffers", "children", "modules", "named_parameters", "apply"), NO_MODULE),
    **dict.fromkeys(("forward", "requires_grad_", "zero_grad", "add_module", "register_buffer", "share_memory"), NO_MODULE),
    **dict.fromkeys(("register_forward_hook", "half", "double", "float", "bfloat16", "type", "compile"), NO_MODULE),
}


def lacking(env: object, name: str) -> Exception:
    """The error for a missing attribute of an env: AttributeError, but TypeError for a private one of torchrl's envs."""
    owner = type(env).__name__
    module = sys.modules.get(PRESENT)
    is_known = module is not None and hasattr(module.EnvBase, name)
    if is_known and name.startswith("_") and not name.startswith("__"):
        return TypeError(f"{env!r} is an env of reap, where an env of torchrl is expected ({name}): give env.as_torchrl()")
    hint = f": {ABSENT[name]}" if name in ABSENT else ""
    theirs = "; code of torchrl's takes env.as_torchrl()" if is_known else ""
    return AttributeError(f"{owner!r} object has no attribute {name!r}{hint}{theirs}", name=name, obj=env)


REFUSED = {
    "spec_locked": (True, NO_LOCK),
    "auto_reset": (False, "let _reset begin episodes; a vector env that resets itself is a GymEnv"),
}


def checked_options(owner: str, options: Mapping[str, Any]) -> Check:
    """The value of `check` for an env, from the options of torchrl's class.

    Raises:
        OptionError: an unknown option, or an unsupported value.
    """
    for name, value in options.items():
        if name not in {*REFUSED, "run_type_checks"}:
            raise OptionError(f"{owner}: unknown option {name!r}.{nearest(name, ('device', 'batch_size', *REFUSED))}")
        if name in REFUSED and value is not REFUSED[name][0]:
            expected, reason = REFUSED[name]
            raise OptionError(f"{owner}: {name}: expected {expected}, got {value!r}: {reason}")
    return "all" if options.get("run_type_checks") else "types"
