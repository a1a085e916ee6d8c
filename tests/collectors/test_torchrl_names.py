"""What torchrl's collectors, updaters and schemes are called and take is there in reap's, or decided otherwise.

The public classes of torchrl are walked through: a name that torchrl adds, or that is forgotten here, fails. The reasons are
those of docs/dropin.md.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reap.collectors.options.generations import FIRST, FIXED

pytest.importorskip("torchrl")

MODULES: dict[Any, Any] = {}
"""torchrl's modules, each with the one of reap; `weight_update` is newer than torchrl 0.10."""
for path in ("collectors", "collectors.distributed", "weight_update"):
    with warnings.catch_warnings(), suppress(ModuleNotFoundError):
        warnings.simplefilter("ignore")
        MODULES[importlib.import_module(f"torchrl.{path}")] = importlib.import_module(f"reap.{path}")

GUIDE = Path(__file__).parents[2] / "docs/dropin.md"

PROFILES = "enable_profile"
TRANSPORTS = "transports of weight schemes"

NOT_THERE = {
    **dict.fromkeys(("Evaluator", "RayEvalWorker"), "Evaluator"),
    "AsyncBatchedCollector": "AsyncBatchedCollector",
    "ProfileConfig": PROFILES,
    "RayModuleTransformScheme": "RayModuleTransformScheme",
    **dict.fromkeys(
        (
            "DistributedTransport",
            "InitialSyncTransport",
            "MPTransport",
            "RPCTransport",
            "RayTransport",
            "SharedMemTransport",
            "TransportBackend",
        ),
        TRANSPORTS,
    ),
}
"""Classes of torchrl's that reap does not have, and the word of the guide's table for each."""

OF_COLLECTORS = {
    **dict.fromkeys(("enable_profile", "disable_profile", "profile_config"), PROFILES),
    **dict.fromkeys(("pre_collect_hook", "post_collect_hook", "set_post_collect_hook"), "pre_collect_hook"),
    "map_fn": "map_fn",
    "fake_tensordict": "fake_tensordict",
    "trajs_per_write": "trajs_per_write",
    **dict.fromkeys(("traj_format", "trajs_per_batch"), ""),  # attributes of instances
}
OF_SCHEMES = dict.fromkeys(
    (
        "apply_weights",
        "connection_info_name",
        "context",
        "create_transport",
        "from_backend",
        "model",
        "model_id",
        "prepare_weights",
        "receiver_transport",
        "sender_transports",
        "shared_transport",
        "strategy",
        "synchronized_on_sender",
        "weights",
        "worker_idx",
    ),
    TRANSPORTS,
)
"""Public names of torchrl's classes that reap's do not have, and the word of the guide's table for each."""

CLASSES = [
    pytest.param(one, getattr(ours, name, None), id=name)
    for module, ours in MODULES.items()
    for name, one in vars(module).items()
    if inspect.isclass(one) and not name.startswith("_")
]
BY_FUNCTION = {"Collector", "MultiCollector"}
"""Classes of torchrl's that are functions here: what they make is one of the others."""


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def arguments(kind: Any) -> set[str]:
    return set(inspect.signature(kind).parameters) - {"args", "kwargs"}


@pytest.mark.parametrize(("their", "our"), CLASSES)
def test_classes(their: Any, our: Any) -> None:
    assert (our is None) == (their.__name__ in NOT_THERE)


@pytest.mark.parametrize(("their", "our"), CLASSES)
def test_arguments(their: Any, our: Any) -> None:
    if our is not None and their.__name__ != "BaseCollector":  # which is not built
        by_class = {"sync"} if their.__name__ not in BY_FUNCTION else set[str]()  # of their metaclass
        assert arguments(their) - arguments(our) - by_class <= {*FIXED, *FIRST}


@pytest.mark.parametrize(("their", "our"), CLASSES)
def test_names(their: Any, our: Any) -> None:
    if our is not None and their.__name__ not in BY_FUNCTION:
        decided = OF_COLLECTORS if "Collector" in their.__name__ else OF_SCHEMES if "Scheme" in their.__name__ else {}
        assert public(their) - public(our) <= set(decided)


def test_the_guide_says_what_to_use_instead() -> None:
    words = {*NOT_THERE.values(), *OF_COLLECTORS.values(), *OF_SCHEMES.values()}
    not_there = GUIDE.read_text().partition("## Not there")[2].partition("\n## ")[0]
    assert [word for word in words if word not in not_there] == []
