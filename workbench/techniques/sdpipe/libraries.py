"""What users have today, beside SDPipe: local SGD and DiLoCo of torchft, and averaging by hivemind.

Each is a package of its own, and runs as its users run it. torchft averages all workers after a number of updates.
hivemind forms groups as SDPipe does, but by a time limit alone, and nothing says that its groups connect all workers.
"""

import os
import time
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from workbench.checks import require_counts, require_positive
from workbench.launch.agreement import tell_all
from workbench.parallel.replicas import Place
from workbench.parallel.voting import Voting
from workbench.rows.cells import named
from workbench.techniques.sdpipe.cost import Scheme
from workbench.techniques.sdpipe.method.scheduler import Group
from workbench.techniques.sdpipe.runtime.averaging import Log
from workbench.techniques.sdpipe.runtime.rivals import Worker
from workbench.techniques.sdpipe.training import train

__all__ = ["DILOCO", "HIVEMIND", "LOCAL_SGD", "cells", "train_beside"]

LOCAL_SGD, DILOCO, HIVEMIND = "torchft LocalSGD", "torchft DiLoCo", "hivemind"
PACKAGES = {LOCAL_SGD: "torchft", DILOCO: "torchft", HIVEMIND: "hivemind"}
OUTER: dict[str, Any] = {"lr": 0.7, "momentum": 0.9, "nesterov": True}  # DiLoCo's SGD, arXiv 2311.08105, section 3
LOCALHOST = "/ip4/127.0.0.1/tcp/0"
GIVING_UP_S = 2.0  # in which hivemind must have averaged, or the worker goes on alone


def cells(schemes: list[str], seeds: list[int], *, sync_every: int, matchmaking_s: float, **setting: Any) -> list[dict]:
    """List the trainings: every scheme with every seed; refuse a scheme whose package is not installed."""
    require_counts(1, sync_every=sync_every)
    require_positive(matchmaking_s=matchmaking_s)
    for scheme in schemes:
        if (package := PACKAGES.get(scheme)) and find_spec(package) is None:
            raise ModuleNotFoundError(f"{scheme} needs the package {package}: pip install {package}")
    more: dict[str, dict[str, Any]] = dict.fromkeys((LOCAL_SGD, DILOCO), {"sync_every": sync_every})
    more[HIVEMIND] = {"matchmaking_s": matchmaking_s}
    return [setting | {"scheme": scheme, "seed": seed} | more.get(scheme, {}) for seed in seeds for scheme in schemes]


@named("sdpipe/beside")
def train_beside(*, scheme: str, sync_every: int = 0, matchmaking_s: float = 0.0, **setting: Any) -> dict[str, Any]:
    """Train with a library's scheme or one of ours, see `training.train`; same model, data, seeds and delays."""
    if scheme not in PACKAGES:
        return train(scheme=scheme, **setting)
    if scheme == HIVEMIND:
        require_positive(matchmaking_s=matchmaking_s)
    else:
        require_counts(1, sync_every=sync_every)

    make_worker = partial(_Hivemind, matchmaking_s) if scheme == HIVEMIND else partial(_Torchft, scheme, sync_every)
    # The setting's scheme decides only on the optimizer here: the plain one, as for the rivals.
    trained = train(make_worker, scheme=Scheme.ALL_REDUCE, **setting)
    return trained | {"setting": trained["setting"] | {"scheme": scheme}}


class _Torchft(Worker):
    """Averages in the optimizer's hooks, all workers after every `sync_every` updates."""

    def __init__(self, scheme: str, sync_every: int, _: Any, part: nn.Module, place: Place, group: Any, optimizer: Any):
        # All start alike, and none joins late: nothing is loaded.
        self._voting = Voting(lambda _: None, dict, group=group, use_async_quorum=False)
        from torchft.local_sgd import DiLoCo, LocalSGD  # after it, which keeps its servers quiet

        if scheme == LOCAL_SGD:
            self._context = LocalSGD(self._voting.manager, part, optimizer, sync_every)
        else:
            outer = torch.optim.SGD(part.parameters(), **OUTER)
            self._context = DiLoCo(self._voting.manager, [part], optimizer, outer, sync_every)
        self._context.__enter__()
        self.log, self._place, self._sync_every = Log(), place, sync_every

    def after_update(self) -> None:
        """Note who averaged."""
        is_alone = (len(self.log.groups) + 1) % self._sync_every
        members = {self._place.pipeline} if is_alone else range(self._place.num_pipelines)
        self.log.groups.append(Group(self._place.stage, frozenset(members)))

    def close(self) -> dict[str, int]:
        """Leave the vote."""
        self._context.__exit__(None, None, None)
        self._voting.close()
        return {}


class _Hivemind(Worker):
    """Averages the model after each update among the workers of a stage that come within a time limit."""

    def __init__(self, matchmaking_s: float, _: Any, part: nn.Module, place: Place, *__: Any):
        os.environ["HIVEMIND_LOGLEVEL"] = "CRITICAL"  # a worker that goes on alone is no error here
        # Its other way to share memory between its processes leaves files in /dev/shm behind.
        os.environ["HIVEMIND_MEMORY_SHARING_STRATEGY"] = "file_descriptor"
        import hivemind

        how: dict[str, Any] = {"start": True, "use_ipfs": False, "host_maddrs": [LOCALHOST]}
        table = hivemind.DHT(**how) if dist.get_rank() == 0 else None
        peers = tell_all(None if table is None else [str(address) for address in table.get_visible_maddrs()])[0]
        self._table = table or hivemind.DHT(**how, initial_peers=peers)
        self._weights = [weight for weight in part.parameters() if weight.requires_grad]
        self._averager = hivemind.averaging.DecentralizedAverager(
            [nn.utils.parameters_to_vector(self._weights).detach()],
            self._table,
            start=True,
            prefix=f"stage{place.stage}",
            target_group_size=place.num_pipelines,
            min_matchmaking_time=matchmaking_s,
            request_timeout=matchmaking_s / 2,  # it must be less, or peers can wait for each other
            allreduce_timeout=GIVING_UP_S,
        )
        self.log, self._place = Log(), place
        dist.barrier()

    def after_update(self) -> None:
        """Average; a worker that finds no peers goes on alone."""
        began_s = time.monotonic()
        with self._averager.get_tensors() as (held,):
            held.copy_(nn.utils.parameters_to_vector(self._weights))
        try:
            gathered = self._averager.step(gather=self._place.pipeline, allow_retries=False, timeout=GIVING_UP_S)
        except Exception:  # whatever it raises: its own errors, and those of the time-outs of two libraries
            gathered = None
        with self._averager.get_tensors() as (held,), torch.no_grad():
            nn.utils.vector_to_parameters(held, self._weights)
        self.log.averaged_s += time.monotonic() - began_s
        self.log.groups.append(Group(self._place.stage, frozenset((gathered or {0: self._place.pipeline}).values())))

    def close(self) -> dict[str, int]:
        """End its processes, when all have averaged for the last time."""
        dist.barrier()
        self._averager.shutdown()
        self._table.shutdown()
        return {}
