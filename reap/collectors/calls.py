"""`CollectorCalls`: access to a collector's env, policy, weights and buffer, under torchrl's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase

from reap.collectors.options.collector import CollectorOptions
from reap.collectors.options.weights import are_schemes
from reap.collectors.policy_weights import PolicyWeights
from reap.collectors.worker.attribute_paths import resolve
from reap.collectors.workers.base import Workers
from reap.errors import OptionError
from reap.keys import nested
from reap.policy.contents.held import held_by
from reap.tensordicts import make_tensordict
from reap.weights.base import WeightUpdaterBase, chosen_workers, load_weights
from reap.weights.scheme import WeightSyncScheme
from reap.weights.weight_layout import weights_by_name
from reap.workers.base import Call

POLICY = "policy"
"""The name of the acting policy among a collector's models."""


class CollectorCalls:
    """Methods that every collector has, each delegated to the collector's parts."""

    _options: CollectorOptions
    _workers: Workers
    _weights: PolicyWeights
    _receivers: dict[str, WeightSyncScheme]

    def _ensure_open(self) -> None:
        raise NotImplementedError

    def _ensure_idle(self) -> None:
        raise NotImplementedError

    def _ask_some(self, workers: Sequence[int], command: Any) -> list[Any]:
        raise NotImplementedError

    # ------------------------------------------------------------------ env and policy

    def getattr_env(self, name: str) -> Any:
        """An attribute of the env; a list if there are several workers or envs."""
        return self._ask("env_attribute", name)

    def getattr_policy(self, name: str) -> Any:
        """An attribute of the policy; a list if there are several workers."""
        return self._ask("policy_attribute", name)

    def call_env(self, name: str, *args: Any, worker_ids: Any = None) -> Any:
        """Call a method of the env and return its result; a list if there are several workers or envs."""
        return self._ask("call_env", name, *args, worker_ids=worker_ids)

    def _ask(self, call: str, *arguments: Any, worker_ids: Any = None) -> Any:
        chosen = chosen_workers(worker_ids, range(self._workers.group.size))
        return self._workers.values(self._ask_some(chosen, Call(call, arguments)))

    def getattr_rb(self, name: str) -> Any:
        """An attribute of the replay buffer.

        Raises:
            OptionError: there is no replay buffer.
        """
        if self._options.replay_buffer is None:
            raise OptionError(f"getattr_rb({name!r}): this {type(self).__name__} was built without a replay_buffer")
        return getattr(self._options.replay_buffer, name)

    def get_distant_attr(self, path: str) -> Any:
        """The object at a path of attributes and items that starts at the collector, such as `"env.transform[0]"`.

        Raises:
            OptionError: not a path, or nothing is found there.
        """
        return resolve(self, path)

    def cascade_execute(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """Call the function at a path and return its result; return any other value as it is; see `get_distant_attr`.

        Raises:
            OptionError: not a path, nothing is found there, or arguments for something that is not a function.
        """
        found = resolve(self, path)
        if callable(found):
            return found(*args, **kwargs)
        if args or kwargs:
            raise OptionError(f"cascade_execute({path!r}): expected a function for the arguments, found {type(found).__name__}")
        return found

    def frames_per_batch_worker(self, worker_idx: int | None = None) -> int:
        """Number of frames in a worker's rollout; the first worker's if None."""
        return self._workers.infos[worker_idx or 0].frames

    # ------------------------------------------------------------------ weights

    def update_policy_weights_(
        self,
        policy_or_weights: Any = None,
        *,
        policy: Any = None,
        weights: Any = None,
        weights_dict: Mapping[str, Any] | None = None,
        model_id: str | None = None,
        worker_ids: Any = None,
    ) -> None:
        """Update the weights of the policies that act, from the policy given at construction or from the weights given here.

        Args:
            policy_or_weights: a module or policy, a TensorDict of parameters or a state dict; or a dict that maps worker
                numbers to one of these.
            policy: the same, if it is a module or policy.
            weights: the same, if it is a TensorDict or a state dict.
            weights_dict: the same for several models, by their names in `weight_sync_schemes`.
            model_id: the name of the model, `"policy"` if None. Others are found in the workers at a path of attributes, such
                as `"env.transform[0].module"`; their weights arrive between two rollouts, and this call waits for that.
            worker_ids: workers to update; all if None.

        Raises:
            OptionError: an unknown model, a worker that does not exist, or weights given twice.
        """
        self._ensure_open()
        given = _only({"policy_or_weights": policy_or_weights, "policy": policy, "weights": weights})
        if weights_dict is not None and (given is not None or model_id is not None):
            raise OptionError("weights_dict: it holds weights by model; expected neither model_id nor other weights with it")
        models = {model_id or POLICY: given} if weights_dict is None else dict(weights_dict)
        for name in models:
            self._require_model(name)
        for name, value in models.items():
            self._send(name, value, worker_ids)

    def _require_model(self, name: str) -> None:
        known = [POLICY, *(one for one in self._options.weight_sync_schemes or () if one != POLICY)]
        if name not in known:
            raise OptionError(f"model_id: expected one of {known}, the models of weight_sync_schemes, got {name!r}")

    def _send(self, name: str, weights: Any, worker_ids: Any) -> None:
        if name != POLICY:
            self._send_model(name, weights, worker_ids)
        elif isinstance(weights, dict) and weights and all(isinstance(worker, int) for worker in weights):
            if worker_ids is not None:
                raise OptionError("worker_ids: weights by worker were given, which already select the workers")
            for worker, own in weights.items():
                self._weights.push(own, worker)
        else:
            if self._weights.updater is None:  # which would know the workers
                chosen_workers(worker_ids, range(self._workers.group.size))
            self._weights.push(weights, worker_ids)

    def _send_model(self, name: str, weights: Any, worker_ids: Any) -> None:
        scheme = (self._options.weight_sync_schemes or {})[name]
        if not scheme.sends:
            return
        if weights is None:
            raise OptionError(f"model_id={name!r}: expected a module or weights, got None: only the policy's are known here")
        given = held_by(weights) if callable(weights) else weights
        values = {key: value.detach().cpu() for key, value in weights_by_name(given).items()}
        self.load_model(name, values, worker_ids)

    def load_model(self, path: str, weights: Mapping[str, Any], worker_ids: Any = None) -> None:
        """Copy weights into a model in the workers, between two rollouts.

        Args:
            path: where it is in a worker: `"policy"`, or a path such as `"env.transform[0].module"`.
            weights: tensors by name, or a TensorDict.
            worker_ids: workers to update; all if None.
        """
        self._ask("load_model", path, weights, worker_ids=worker_ids)

    def receive_weights(self, policy_or_weights: Any = None, *, policy: Any = None, weights: Any = None) -> None:
        """Load weights into the collector's policy, and make its workers act with them.

        Args:
            policy_or_weights: a module or policy, a TensorDict of parameters or a state dict; None takes
                the weights that the registered receivers have received.
            policy: the same, if it is a module or policy.
            weights: the same, if it is a TensorDict or a state dict.

        Raises:
            OptionError: weights given twice, or given while receivers are registered.
        """
        self._ensure_open()
        given = _only({"policy_or_weights": policy_or_weights, "policy": policy, "weights": weights})
        if self._receivers:
            if given is not None:
                raise OptionError("receive_weights: expected no weights, because the registered schemes receive them")
            news = [scheme.receive() for scheme in self._receivers.values()]
            if all(one is None for one in news):
                return
        elif given is None:
            return
        else:
            load_weights(self._workers.held, held_by(given) if callable(given) else given)
        self._weights.push(None, None)

    def register_scheme_receiver(
        self, weight_recv_schemes: Mapping[str, WeightSyncScheme], *, synchronize_weights: bool = True
    ) -> None:
        """Register schemes that receive weights for this collector; `receive_weights()` loads them.

        Args:
            weight_recv_schemes: schemes by the name of their model; see `get_model`.
            synchronize_weights: wait for the first weights.

        Raises:
            OptionError: anything but a dict of schemes.
        """
        if not are_schemes(weight_recv_schemes):
            raise OptionError(f'weight_recv_schemes: expected {{"policy": scheme}}, got {weight_recv_schemes!r}')
        for name, scheme in weight_recv_schemes.items():
            if not scheme.initialized_on_receiver:
                scheme.init_on_receiver(model_id=name, model=self.get_model(name), worker_idx=self._options.worker_idx)
            self._receivers[name] = scheme
        late = [scheme for scheme in weight_recv_schemes.values() if not scheme.synchronized_on_receiver]
        if synchronize_weights and late:
            for scheme in late:
                scheme.connect()
            self._weights.push(None, None)

    def get_model(self, model_id: str) -> Any:
        """A model in this process: the policy, or the object at a path of attributes of the collector.

        Raises:
            OptionError: there is no such model in this process.
        """
        if model_id != POLICY:
            return resolve(self, model_id)
        if self._workers.policy is None:
            raise OptionError("get_model('policy'): none in this process: actions are random, or the workers made their own")
        return self._workers.policy

    def get_cached_weights(self, model_id: str) -> TensorDictBase | None:
        """The policy's weights in this process, nested by module, sharing its memory; None for another model."""
        if model_id != POLICY or not self._workers.held:
            return None
        found = weights_by_name(self._workers.held)
        return make_tensordict(nested({tuple(name.split(".")): one.detach() for name, one in found.items()}), torch.Size())

    def increment_version(self) -> None:
        """Increment the policy version without sending weights."""
        self._weights.increment()

    def count_versions_from(self, version: int) -> None:
        """Give the policy's weights this version, which the next update increments.

        Args:
            version: for example that of another collector, whose weights this one passes on.
        """
        self._weights.version = version

    def get_policy_version(self) -> int:
        """Number of weight updates so far; the same as `policy_version`."""
        return self._weights.version

    def init_updater(self, *args: Any, **kwargs: Any) -> None:
        """Call `init` of the weight updater, if there is one, with these arguments."""
        if self._weights.updater is not None:
            self._weights.updater.init(*args, **kwargs)

    @property
    def weight_updater(self) -> WeightUpdaterBase | None:
        """The updater with which `update_policy_weights_` sends weights; None for a policy without weights.

        It can be set to an updater, a constructor of one, or None for the collector's default.
        """
        return self._weights.updater

    @weight_updater.setter
    def weight_updater(self, updater: Any) -> None:
        self._ensure_idle()
        made = self._workers.make_updater(updater)
        if made is not None:
            made.register_collector(self)
        self._weights.updater = made


def _only(given: Mapping[str, Any]) -> Any:
    """The value given under one of several names; None if none was given.

    Raises:
        OptionError: more than one was given.
    """
    found = {name: value for name, value in given.items() if value is not None}
    if len(found) > 1:
        raise OptionError(f"{' and '.join(found)}: expected one of them, got both")
    return next(iter(found.values()), None)
