"""Names of torchrl's envs that there are not here, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reap.errors import OptionError, nearest
from reap.specs.fits import Check

NO_MODULE = "an env of reap is no nn.Module: it has no parameters, buffers, hooks or submodules"
NO_LOCK = "specs are locked; change a clone: spec = env.observation_spec.clone(); ...; env.observation_spec = spec"
NO_HOOK = "values are read into arrays without a call for each; change them in a gymnasium wrapper"
WHEN_BUILT = "options are given where the env is built: ParallelEnv(num_envs, create_env_fn, ...)"
IN_TORCHRL = "torchrl's code asks for it; give it env.as_torchrl()"

ABSENT = {
    "auto_complete_done_specs": "done flags that are left out are completed; add_truncated_keys() adds truncated",
    "auto_specs_": "write the specs, or run check_env_specs(env), which says what differs",
    "base_env": "it is in no transform: it is the base env itself",
    "batch_locked": "the batch size of an env is fixed",
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
    **dict.fromkeys(("_input_spec", "_output_spec", "_step_mdp", "_simple_done", "_cache", "_set_auto_reset"), IN_TORCHRL),
}


def reason_for(owner: type, name: str) -> str:
    """The text of the AttributeError for a name that an env lacks."""
    start = f"{owner.__name__!r} object has no attribute {name!r}"
    return f"{start}: {ABSENT[name]}" if name in ABSENT else start


REFUSED = {
    "spec_locked": (True, NO_LOCK),
    "auto_reset": (False, "let _reset begin episodes; a vector env that resets itself is a GymEnv"),
}


def checked_options(owner: str, options: Mapping[str, Any]) -> Check:
    """How closely an env's values are checked, by the options of torchrl's class.

    Raises:
        OptionError: an option that is not known, or a value that cannot be had.
    """
    for name, value in options.items():
        if name not in {*REFUSED, "run_type_checks"}:
            raise OptionError(f"{owner}: unknown option {name!r}.{nearest(name, ('device', 'batch_size', *REFUSED))}")
        if name in REFUSED and value is not REFUSED[name][0]:
            expected, reason = REFUSED[name]
            raise OptionError(f"{owner}: {name}: expected {expected}, got {value!r}: {reason}")
    return "all" if options.get("run_type_checks") else "types"
