"""Builds the parts of a worker from a collector's options: env, stage, actor, rollout, slots, handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isclass
from typing import Any

import torch

from reap.collectors.exchange.base import OwnSlots
from reap.collectors.options.collector import CollectorOptions
from reap.collectors.worker.handler import WorkerHandler
from reap.collectors.worker.journal import Journal
from reap.collectors.worker.recorder import Fill, RolloutRecorder
from reap.envs.base import EnvBase
from reap.errors import OptionError, SpecMismatch
from reap.keys import Key, plain
from reap.policy.actors.halves import join_halves
from reap.policy.actors.random import OwnDrawActor, RandomActor
from reap.policy.actors.spec_draws import is_random_policy
from reap.policy.actors.states import read_keys, written_keys
from reap.policy.base import PolicyActor, RetainedInputs
from reap.policy.choose import choose_actor
from reap.policy.contents.held import Held, held_by
from reap.policy.contents.placement import Placement, place
from reap.recording.buffers import FLAGS, IDS, IS_INIT, MASK, REWARD, STEP_COUNT, VERSION, Slot, Stage, after
from reap.recording.layout import Field
from reap.recording.pool import SlotPool
from reap.recording.trajectories import TrajectoryTracker
from reap.rollout.halves import Overlap
from reap.rollout.loop import Hook, Rollout
from reap.specs import Composite, RandomPolicy, Spec


@dataclass(frozen=True)
class Assembly:
    """The parts of a worker, and what the collector needs to know about them.

    Attributes:
        env: the env.
        held: the policy that acts, with its weights and buffers.
        source: the policy that was given, if the one that acts is a copy on another device.
        recorder: records rollouts.
        pool: the slots of a collector in this process.
        frames_per_batch: frames in a batch, rounded up to whole columns.
        actor_kind: a word for how the policy is called.
        options: the collector's.
    """

    env: EnvBase
    held: Held
    source: Callable[..., Any] | None
    recorder: RolloutRecorder
    pool: SlotPool
    frames_per_batch: int
    actor_kind: str
    options: CollectorOptions

    @property
    def policy(self) -> Callable[..., Any]:
        """The policy that acts."""
        return self.held.policy

    @property
    def handler(self) -> WorkerHandler:
        """The handler of a collector's commands in the collector's own process."""
        return WorkerHandler(self.recorder, OwnSlots(self.pool.slots), self.recorder.rollout.control)

    def actor_for(self, policy: Held) -> tuple[PolicyActor | None, RetainedInputs | None]:
        """An actor for another policy of the same kind, a copy for example."""
        return _actor(_place(policy, self.options), self.env, self.recorder.rollout.stage, self.options)


def assemble(
    env: EnvBase,
    policy: Callable[..., Any] | None,
    options: CollectorOptions,
    leaf: int = 0,
    stops: Sequence[Hook] = (),
) -> Assembly:
    """Build the parts of one worker.

    Args:
        env: the env.
        policy: the policy, or None for random actions.
        options: the collector's options.
        leaf: number of the worker, for the ids.
        stops: called after each step; True ends the rollout, and another worker records the rest of it.
    """
    if options.env_device is not None:
        env.set_device(options.env_device)
    env.leave_to_policy([key for key in read_keys(policy) if after(key) in written_keys(policy)])
    _complete_random(policy, env)
    _refuse_rows(env, options)
    env.set_check(options.check)
    if options.use_buffers is False:
        env.let_shapes_change()
    journal = Journal(env) if options.record_episodes else None
    stage = _first_observations(env)
    placed = None if policy is None or isinstance(policy, RandomPolicy) else _placed(policy, options)
    actor, kept = (None, None) if placed is None else _actor(placed, env, stage, options)
    held = placed.held if placed else held_by(policy or RandomPolicy(env.action_spec))
    random = _random_actor(policy, env, stage, actor.outputs if actor else None)
    random.generator.manual_seed(torch.initial_seed())
    columns = -(-options.frames_per_batch // stage.rows)
    pool = SlotPool(
        _fields(env, stage, random.outputs, options),
        stage.batch_shape,
        columns,
        device=options.storing_device if options.stores_here else None,
        same=options.return_same_td,
        make_block=env.make_block,
    )
    tracker = TrajectoryTracker(
        stage.rows, leaf=leaf, limit=options.limit, rewards=_rewards(env), writes_counts=STEP_COUNT not in env.fields_of_stage()
    )
    interruptions = [*_interruptions(options), *stops]
    hooks = [*_hooks(stage), *interruptions]
    rollout = Rollout(env, stage, tracker, hooks=hooks, reset_when_done=options.reset_when_done)
    kind = actor.kind if actor else "random"
    recorder = RolloutRecorder(
        rollout,
        pool.fields,
        columns,
        random=random,
        exploration=options.exploration_type,
        actor_kind=kind,
        fill=_overlap(env, rollout, interruptions),
        remembers=any(key != IS_INIT for key in stage.initial),
        journal=journal,
    )
    recorder.act_with(actor, kept, held.policy)
    source = placed.source if placed else None
    return Assembly(env, held, source, recorder, pool, columns * stage.rows, kind, options)


def made_by(factory: Callable[[], Any]) -> Any:
    """The policy that a policy factory makes.

    Raises:
        OptionError: the factory returned None.
    """
    policy = factory()
    if policy is None:
        raise OptionError("policy_factory: expected it to return a policy, got None; does it lack a return?")
    return policy


def _refuse_rows(env: EnvBase, options: CollectorOptions) -> None:
    """Raise OptionError for an env without rows, or options that its rows, or halves of them, cannot support."""
    if not env.batch_size.numel():
        raise OptionError(f"{env!r}: expected at least one row, found batch size {tuple(env.batch_size)}")
    if options.cudagraph_policy is not False and env.stepper_halves():
        raise OptionError(
            f"cudagraph_policy: a CUDA graph is captured for one number of rows, and {env!r} has the policy called for each "
            "half of them; leave out overlap=True or cudagraph_policy"
        )
    if options.limit is not None and (env.resets_itself or not env.resets_rows):
        raise OptionError(
            f"max_frames_per_traj={options.limit}: {env!r} cannot reset one row without the others; limit the episodes where "
            "its envs are made, or use a SerialEnv or a SyncVectorEnv"
        )
    if not options.reset_when_done and (env.resets_itself or not env.steps_rows):
        raise OptionError(
            f"reset_when_done=False: {env!r} steps all of its rows together, so that one that is done cannot wait for the "
            "others; use a SerialEnv or a SyncVectorEnv"
        )


def _first_observations(env: EnvBase) -> Stage:
    batch = tuple(env.batch_size)
    for name in ("observation_spec", "full_action_spec"):
        if not any(True for _ in getattr(env, name).leaves()):
            raise OptionError(f"{env!r}: {name.removeprefix('full_')} is empty; set it in the env's __init__")
    stage = Stage(env.fields_of_stage(), batch, env.make_block)
    face = env.row_stepper()
    face.bind(stage, Slot(env.slot_fields(), batch, 1, env.make_block))
    face.reset_rows(None, -1)
    return stage


def _rewards(env: EnvBase) -> list[Key]:
    """The keys whose sum is an episode's return: the reward at the root, or else all rewards."""
    keys = list(env.fields(env.full_reward_spec))
    return [after(REWARD)] if REWARD in keys else [after(key) for key in keys]


def _complete_random(policy: Any, env: EnvBase) -> None:
    """Give a `RandomPolicy` (of reap or torchrl) without a spec the env's action specs."""
    if isinstance(policy, RandomPolicy):
        policy.set_action_spec_from_env(env)
    elif is_random_policy(policy) and policy.action_spec is None:
        policy.action_spec = env.full_action_spec.as_torchrl()


def _random_actor(policy: Any, env: EnvBase, stage: Stage, outputs: Mapping[Key, Field] | None) -> RandomActor:
    if isinstance(policy, RandomPolicy):
        return RandomActor(_random_actions(policy, env), stage, outputs)
    if env.own_draw is not None:
        return OwnDrawActor(env.own_draw, env.full_action_spec, stage, outputs, env.device)
    return RandomActor(env.full_action_spec, stage, outputs)


def _random_actions(policy: RandomPolicy, env: EnvBase) -> Composite:
    actions = policy.actions
    expected, found = dict(env.full_action_spec.leaves()), dict(actions.leaves())
    if _layouts(expected) != _layouts(found):
        raise SpecMismatch(
            f"RandomPolicy: expected actions {_layouts(expected)}, as the env takes them, found {_layouts(found)}; "
            "build it with env.action_spec"
        )
    return actions


def _layouts(specs: Mapping[Key, Spec]) -> dict[Any, Any]:
    return {plain(key): (tuple(spec.shape), spec.dtype) for key, spec in specs.items()}


def _placed(policy: Callable[..., Any], options: CollectorOptions) -> Placement:
    if isclass(policy):
        raise OptionError(f"policy: expected a module or a function, got the class {policy.__name__}; create one of it")
    if not callable(policy):
        raise OptionError(f"policy: expected a module or a function, got {type(policy).__name__}: {policy!r}")
    return _place(policy, options)


def _place(policy: Any, options: CollectorOptions) -> Placement:
    return place(policy, options.policy_device, compiled=options.compile_policy, as_graph=options.cudagraph_policy)


def _actor(
    placed: Placement, env: EnvBase, stage: Stage, options: CollectorOptions
) -> tuple[PolicyActor, RetainedInputs | None]:
    choose = partial(
        choose_actor,
        placed.held,
        trust=options.trust_policy,
        interaction=options.exploration_type,
        called=placed.called,
        check=options.check,
        device=placed.device,
        as_given=env.stores_choices_as_given,
    )
    chosen = choose(env.full_action_spec, stage)
    parts = _parts(env, stage)
    if not parts:
        return chosen
    return join_halves([choose(half.actions, part) for half, part in zip(env.stepper_halves(), parts, strict=True)], parts)


def _overlap(env: EnvBase, rollout: Rollout, interruptions: list[Hook]) -> Fill | None:
    """The function that fills slots if the env is stepped in halves."""
    if not (halves := env.stepper_halves()):
        return None
    first, second = _parts(env, rollout.stage)
    # The rollout is ended with a column of the first half: the second one's is still to come.
    return Overlap(rollout, halves, [[*_hooks(first), *interruptions], _hooks(second)]).fill


def _parts(env: EnvBase, stage: Stage) -> list[Stage]:
    """The parts of the stage for the halves of an env that are stepped in turns."""
    return [stage.part(half.rows.start, half.rows.stop, half.batch_shape) for half in env.stepper_halves()]


def _fields(env: EnvBase, stage: Stage, outputs: Mapping[Key, Field], options: CollectorOptions) -> dict[Key, Field]:
    # Where the policy reads it, the stage has one of ours.
    counted = STEP_COUNT in stage.initial or (options.limit is not None and STEP_COUNT not in env.fields_of_stage())
    ends_early = not options.reset_when_done or options.interruptor is not None or env.resets_itself
    flags = {key: Field((1,), torch.bool) for key in FLAGS}
    fields = {**stage.fields, **{key: field for key, field in outputs.items() if key[0] != "next"}, **flags}
    if counted:
        fields[STEP_COUNT] = Field((1,), torch.int64)
    fields[IDS] = Field((), torch.int64)
    if ends_early:
        fields[MASK] = Field((), torch.bool)
    if options.track_policy_version:
        fields[VERSION] = Field((), torch.int64)
    following = {key: field for key, field in env.slot_fields().items() if key[0] == "next"}
    _refuse_collisions(outputs, {*stage.fields, *RESERVED, *following, *map(after, RESERVED)})
    fields.update({**{key: field for key, field in outputs.items() if key[0] == "next"}, **following})
    if counted:
        fields[after(STEP_COUNT)] = Field((1,), torch.int64)
    return fields


RESERVED = (*FLAGS, IDS, MASK, VERSION, STEP_COUNT)


def _refuse_collisions(outputs: Mapping[Key, Field], taken: set[Key]) -> None:
    collisions = [plain(key) for key in outputs if key in taken]
    if collisions:
        raise SpecMismatch(f"policy: outputs {collisions} collide with keys of every batch; give them other names")
    every = taken | outputs.keys()
    nodes = {key[:i]: key for key in every for i in range(1, len(key))}
    halves = {plain(nodes[key]): plain(key) for key in every if key in nodes}
    if halves:
        inner, outer = next(iter(halves.items()))
        raise SpecMismatch(f"policy: outputs: {outer!r} cannot be a tensor and hold {inner!r}; give them other names")


def _hooks(stage: Stage) -> list[Hook]:
    hooks: list[Hook] = []
    if IS_INIT in stage.initial:
        hooks.append(partial(stage.arrays[IS_INIT].fill, False))
    if STEP_COUNT in stage.initial:
        hooks.append(partial(_count, stage.arrays[STEP_COUNT]))
    return hooks


def _interruptions(options: CollectorOptions) -> list[Hook]:
    if options.interruptor is None:
        return []
    if not callable(getattr(options.interruptor, "collection_stopped", None)):
        raise OptionError("interruptor: expected an object with collection_stopped(), which returns a bool")
    return [options.interruptor.collection_stopped]


def _count(steps: Any) -> None:
    steps += 1
