"""`Evaluator`: evaluates submitted weights in a separate process during training.

    trainer                                       worker
      submit: copy of the weights, version ------> load, then whole episodes
      results, wait <------- Evaluation, version --'

Evaluations run one at a time. Weights submitted meanwhile wait; the latest replace earlier ones.
"""

from __future__ import annotations

import pickle
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import torch

from reap.envs.make_env import build_env, refuse_instances
from reap.errors import OptionError
from reap.evaluation.episodes import Evaluation
from reap.policy.contents.held import Held, held_by
from reap.system.native import require_workers
from reap.weights.attributes import ATTRIBUTES, Changes
from reap.weights.base import as_held
from reap.weights.copied_mailbox import CopiedMailbox, Parcel
from reap.weights.weight_layout import WeightLayout, describe, extra_states
from reap.workers.base import Command
from reap.workers.pickling import dumps
from reap.workers.processes.group import ProcessGroup
from reap.workers.progress import Control

PHASES = ("start", "evaluating")


@dataclass(frozen=True)
class Order:
    """An order to the worker.

    Attributes:
        version: the version of the weights.
        weights: the weights; None for a policy without weights.
    """

    version: int
    weights: Parcel | None


class Evaluator:
    """Evaluates a policy in a separate process while you train; made by `evaluate(..., start=True)`.

    Args:
        env: a factory of an env, or a gymnasium id.
        policy: module or function; None for random actions.
        run: called in the worker to evaluate a policy in an env.

    Raises:
        OptionError: an env instead of a factory, or a policy that cannot be sent to another process.

    Example:
        >>> import torch
        >>> from reap import evaluate
        >>> actor = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Tanh())
        >>> with evaluate("Pendulum-v1", actor, episodes=2, seed=0, max_frames_per_traj=20, start=True) as evaluator:
        ...     for version in range(3):  # your training loop
        ...         _ = evaluator.submit(version=version)
        ...     print(evaluator.wait())
        version 0: return ... ± ..., length 20.0, 2 episodes
    """

    def __init__(self, env: Any, policy: Callable[..., Any] | None, run: Callable[[Any, Any], Evaluation]) -> None:
        require_workers("evaluate(..., start=True)", "evaluate(...) between two batches")
        refuse_instances([env], "an evaluator's worker")
        self._held = held_by(policy)
        self._changes = Changes(self._held)
        described = describe(self._held)
        self._box = CopiedMailbox.for_weights(described) if self._held else None
        self._latest: deque[Parcel] = deque(maxlen=1)  # not a method: the box would keep an evaluator that is dropped alive
        if self._box is not None:
            self._box.deliver(self._latest.append)
        make = partial(EvaluationHandler, dumps(env, "env"), dumps(policy, "policy"), described, run)
        self._group = ProcessGroup([make], phases=PHASES, name="evaluate", stall_after=None)
        self._submitted = 0
        self._is_busy = False
        self._waiting: Order | None = None
        self._results: deque[Evaluation] = deque()

    def submit(self, weights: Any = None, *, version: int | None = None) -> int:
        """Submit weights for evaluation, and plain attributes that changed. They are copied; this does not wait.

        Args:
            weights: a module, a TensorDict of parameters or a state dict; None for the policy's current weights.
            version: the version in the result; by default 1, 2, 3, ...

        Returns:
            The version.

        Raises:
            OptionError: not weights, or the policy has no weights that could be replaced.
            SpecMismatch: names or shapes differ.
            WorkerError: the worker failed; the policy or the env raised an exception.
            ClosedError: the evaluator was shut down.
        """
        self._submitted += 1
        number = self._submitted if version is None else version
        if self._box is None and weights is not None:
            raise OptionError("weights: expected None, since the policy has no weights")
        if self._box is not None:
            given = self._held if weights is None else as_held(weights, self._held)
            changes = self._changes.found(given if isinstance(given, Held) else None)
            self._box.write(given, self._submitted, {**extra_states(given), ATTRIBUTES: changes})
        self._waiting = Order(number, self._latest[0] if self._latest else None)
        self._go_on()
        return number

    def results(self) -> list[Evaluation]:
        """The evaluations that have finished since the last call, oldest first; does not wait.

        Raises:
            WorkerError: the worker failed.
            ClosedError: the evaluator was shut down.
        """
        self._go_on()
        found = list(self._results)
        self._results.clear()
        return found

    def wait(self, timeout: float | None = None) -> Evaluation:
        """The next evaluation; waits for it.

        Args:
            timeout: seconds; None for no limit.

        Raises:
            OptionError: all submitted evaluations have been returned.
            TimeoutError: none has finished in this time.
            WorkerError: the worker failed.
            ClosedError: the evaluator was shut down.
        """
        self._go_on()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._results:
            if not self._is_busy:
                raise OptionError("wait: expected weights under way, found none; call submit() first")
            if deadline is None:
                self._take(self._group.ready([0]))
            elif not self._has_happened(deadline):
                raise TimeoutError(f"no evaluation has ended in {timeout} s")
            self._go_on()
        return self._results.popleft()

    def _has_happened(self, deadline: float) -> bool:
        """Wait until the worker has sent something or ended; False after the timeout."""
        poll = select.poll()
        poll.register(self._group.fileno(), select.POLLIN)
        return bool(poll.poll(1000 * max(0.0, deadline - time.monotonic())))

    def _go_on(self) -> None:
        """Process a result, and send waiting weights."""
        if (reply := self._group.poll([0])) is not None:
            self._take(reply)
        if not self._is_busy and self._waiting is not None:
            order, self._waiting = self._waiting, None
            self._is_busy = True
            self._group.request(0, order)

    def _take(self, reply: tuple[int, Evaluation]) -> None:
        self._is_busy = False
        self._results.append(reply[1])

    @property
    def is_busy(self) -> bool:
        """Whether an evaluation is running, or its result has not been processed."""
        return self._is_busy

    def shutdown(self, timeout: float | None = 0.0) -> None:
        """End the worker, whatever it is doing; a second call does nothing.

        Args:
            timeout: seconds until it is killed; None for 5.
        """
        self._group.stop(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


class EvaluationHandler:
    """The worker's side: one env and one policy, whose weights are replaced.

    Args:
        env: the pickled factory.
        policy: the pickled policy.
        described: its weights.
        run: evaluates them.
    """

    def __init__(
        self,
        env: bytes,
        policy: bytes,
        described: WeightLayout,
        run: Callable[[Any, Any], Evaluation],
        _worker: int,
        _control: Control,
    ) -> None:
        torch.set_num_threads(1)
        self._env = build_env(pickle.loads(env))
        self._policy = pickle.loads(policy)
        self._held = held_by(self._policy)
        self._box = CopiedMailbox.attach(described)
        self._run = run

    def handle(self, command: Command) -> Evaluation:
        """Evaluate an `Order`."""
        if command.weights is not None:
            self._box.put(command.weights)
            self._box.read_into(self._held, 0)
        return replace(self._run(self._env, self._policy), version=command.version)

    def close(self) -> None:
        """Close the env."""
        self._env.close()
