"""`LocalWorkers`: the single worker of a collector that records in the user's process, while the training loop waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensordict import TensorDictBase

from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.weights import made_scheme, made_updater
from reap.collectors.worker.assembly import Assembly, assemble, made_by
from reap.collectors.worker.commands import Collect, Done, Seed, SetState, WorkerInfo
from reap.collectors.workers.requests import ask_one
from reap.envs.base import EnvBase
from reap.envs.make_env import build_env, is_env
from reap.envs.own_policy import as_policy
from reap.errors import OptionError, SpecMismatch, WorkerError
from reap.keys import Key
from reap.policy.contents.held import Held
from reap.policy.contents.private import private_copy
from reap.recording.layout import Array, require_private, require_shared
from reap.recording.pool import SlotPool
from reap.weights.base import VanillaWeightUpdater, WeightUpdaterBase
from reap.weights.pending import PendingWeightUpdater
from reap.workers.inline import InlineGroup


class LocalSlots:
    """Slots in this process; see `WorkerSlots`.

    Args:
        pool: the slots.
    """

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool

    def take(self) -> int:
        """The number of a free slot."""
        return self.pool.take()

    def give_back(self, slot: int) -> None:
        """Return a slot that was taken but will not be delivered."""
        self.pool.give_back(slot)

    def rows_of(self, worker: int, slot: int) -> dict[Key, Array]:
        """The rows of a slot, `[rows, T, *value]` for each key."""
        whole = self.pool.slot(slot)
        return {key: whole.by_row(key) for key, field in whole.fields.items() if not field.is_object}

    def deliver(self, slot: int) -> TensorDictBase:
        """The batch that was recorded in a slot."""
        return self.pool.deliver(slot)


class LocalWorkers:
    """One worker in this process; see `Workers`.

    Args:
        create_env_fn: an env, a factory of one, a gymnasium id or a gymnasium env.
        policy: a module or function, or None for random actions.
        options: the collector's options.
    """

    def __init__(self, create_env_fn: Any, policy: Callable[..., Any] | None, options: CollectorOptions) -> None:
        if policy is not None and options.policy_factory is not None:
            raise OptionError("policy and policy_factory: expected one of them, got both")
        self._options, self._owns_env = options, not is_env(create_env_fn)
        env = build_env(create_env_fn, options.create_env_kwargs)
        try:
            self._made = as_policy(policy) if options.policy_factory is None else made_by(options.policy_factory)
            self.assembly: Assembly = assemble(env, self._made, options)
            layout = self.assembly.pool.layout
            require_shared([layout]) if env.shares_memory else require_private(layout)
        except BaseException:
            if self._owns_env:
                env.close()
            raise
        self.slots = LocalSlots(self.assembly.pool)
        self.group = InlineGroup([self.assembly.handler])
        self.infos: list[WorkerInfo] = [self.assembly.recorder.describe()]
        self._has_updater = False

    @property
    def policy(self) -> Callable[..., Any]:
        """The policy that acts."""
        return self.assembly.policy

    @property
    def held(self) -> Held:
        """The policy with its weights and buffers."""
        return self.assembly.held

    @property
    def env(self) -> EnvBase:
        """The env."""
        return self.assembly.env

    def slots_of(self, worker: int) -> LocalSlots:
        """The slots."""
        return self.slots

    @property
    def next_leaf(self) -> int:
        """The next worker's number in trajectory ids; unused, since there is no next worker."""
        return 1

    def starts(self) -> list[int]:
        """The first row, 0."""
        return [0]

    def has_weights(self, worker: int) -> bool:
        """Whether weights are sent to the policy."""
        return self._has_updater

    def make_updater(self, given: Any = None) -> WeightUpdaterBase | None:
        """Make the updater for the policy that acts; see `Workers`."""
        options, assembly = self._options, self.assembly
        scheme = made_scheme(options.weight_sync_schemes, options.weight_updater)
        chosen = options.weight_updater if given is None else given
        self._has_updater = chosen is not None or bool(assembly.held)
        if chosen is not None:
            return made_updater(chosen)
        if not assembly.held:
            return None
        held, source = assembly.held, assembly.source
        return VanillaWeightUpdater(held, source) if scheme is None else scheme.updater_here(held, source)

    def take_env(self, given: Any) -> None:
        """Record from another env with the policy that acts; see `Workers`."""
        before = self.assembly
        acting = self._made if before.actor_kind == "random" else before.policy
        after = assemble(build_env(given), acting, self._options)
        old, new = self.infos[0], after.recorder.describe()
        expected, found = (old.fields, old.batch_shape), (new.fields, new.batch_shape)
        if expected != found:
            raise SpecMismatch(f"env: expected batches as those of {old.env}, {expected}, found {found}; build a new collector")
        state = before.recorder.state()
        after.recorder.load({**state, "rollout": {**state["rollout"], "env": None}})
        if before.recorder.is_in_thread:
            after.recorder.move_to_thread()
        self.assembly = replace(after, pool=before.pool, source=before.source)
        self.group.replace_handler(0, self.assembly.handler)
        self.infos[0] = new

    def prepare_background(self, updater: WeightUpdaterBase | None) -> PendingWeightUpdater | None:
        """Act with a private copy of the policy; see `Workers`."""
        assembly = self.assembly
        assembly.recorder.move_to_thread()
        if not assembly.held:
            return None
        private = private_copy(assembly.held)
        actor, kept = assembly.actor_for(private)
        assembly.recorder.act_with(actor, kept, private.policy)
        if self._options.weight_updater is not None or not isinstance(updater, VanillaWeightUpdater):
            return None
        source = assembly.source
        # A copy on another device may lack what was changed since the last update.
        changes = None if source is None else updater.changes
        return PendingWeightUpdater(private, source or assembly.held, changes)

    place_of = None

    @property
    def joining(self) -> Collection[int]:
        """Nobody: the only worker exists from the start."""
        return ()

    def join(self, worker: int, reply: Any) -> None:
        """Never called: no worker joins."""

    def complete(self, worker: int, done: Done) -> Done:
        """The reply unchanged: no worker has failed."""
        return done

    def recover(self, failure: WorkerError, command: Collect | None) -> Done | None:
        """Raise the failure: a worker in this process cannot be replaced."""
        raise failure

    def recover_all(self) -> None:
        """Nothing to do: a worker in this process is never down."""

    def seed(self, seed: int, static: bool) -> int:
        """Seed the envs and the generators."""
        return ask_one(self.group, 0, Seed(seed, static))

    def check_states(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Nothing to do: the state is checked when it is loaded."""

    def set_states(self, states: Sequence[Mapping[str, Any]], restarts: int, next_leaf: int | None) -> None:
        """Resume from a state."""
        ask_one(self.group, 0, SetState(states[0]))

    def values(self, replies: list[Any]) -> Any:
        """The answer of the only worker."""
        return replies[0]

    def close(self, timeout: float | None, close_env: bool) -> None:
        """Close the env, unless it must stay open, and release the slots."""
        self.assembly.recorder.close_env = close_env
        self.group.stop(timeout)
        self.assembly.pool.clear()  # not with the collector: its parts refer to each other

    def withdraw(self) -> None:
        """Close everything made so far, but not the user's env, because the collector could not be built."""
        if self._owns_env:
            self.env.close()

    def patience(self, timeout: float | None) -> float | None:
        """As given: a rollout in progress cannot be ended from outside."""
        return timeout

    def kill(self) -> bool:
        """Do nothing: a rollout in progress cannot be ended from outside."""
        return False

    def text(self) -> str:
        """Descriptions of the env and the policy."""
        return f"{self.env!r}, policy={type(self.policy).__name__} ({self.assembly.actor_kind})"
