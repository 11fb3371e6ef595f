"""The time that a failure wastes, Eqs. 6.1 and 6.2, and three policies; the paper's frequency f is the interval 1/f."""

import math
from dataclasses import dataclass, replace

from workbench.checks import require_counts, require_not_negative, require_positive

from .recovery import Tier

__all__ = ["CheckpointPolicy", "Job", "Level", "Tier", "average_wasted_s", "gemini", "high_frequency", "strawman"]

STRAWMAN_INTERVAL_S = 3 * 3600.0  # section 6.7.1: every three hours, as BLOOM's training did


def wasted_time_s(*, checkpoint_s: float, interval_s: float, retrieval_s: float, iteration_s: float = 0.0) -> float:
    """Return the average time that one failure wastes, Eq. 6.1: t_ckpt + 1 / (2 f) + t_rtvl.

    A checkpoint takes t_ckpt from its snapshot until it is complete. Eq. 6.2 bounds the interval from snapshot to
    snapshot by t_ckpt and T_iter.
    """
    require_not_negative(checkpoint_s=checkpoint_s, retrieval_s=retrieval_s, iteration_s=iteration_s)
    least_s = max(checkpoint_s, iteration_s)
    if not least_s <= interval_s < math.inf:
        raise ValueError(f"interval_s is {interval_s!r}; Eq. 6.2 asks for at least {least_s!r}, and it must be finite")
    return checkpoint_s + interval_s / 2 + retrieval_s


def wasted_time_s_by_definition(
    *, checkpoint_s: float, interval_s: float, retrieval_s: float, num_moments: int
) -> float:
    """Average the waste over evenly spread moments of failure, each going back to its newest complete checkpoint."""
    first_s = 10 * interval_s  # late enough for a complete checkpoint, whatever the times
    wasted_s = 0.0
    for moment in range(num_moments):
        failure_s = first_s + (moment + 0.5) / num_moments * interval_s
        snapshots_s = [each * interval_s for each in range(12) if each * interval_s + checkpoint_s <= failure_s]
        wasted_s += failure_s - snapshots_s[-1] + retrieval_s
    return wasted_s / num_moments


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A training and what its checkpoints take, as far as waste depends on it."""

    name: str = "job"  # of the model and machines
    iteration_s: float  # T_iter, without checkpoints
    state_bytes: float  # model states of all machines together
    num_machines: int  # that the states are divided over
    storage_bytes_per_s: float  # of persistent storage, for all machines together, either way
    network_bytes_per_s: float  # of one machine's link to its peers
    latency_s: float = 0.0  # of that link, before the first byte arrives
    serialise_s: float = 0.0  # for which writing a checkpoint to storage stops training, by `torch.save`

    def __post_init__(self) -> None:
        positive = ("iteration_s", "state_bytes", "num_machines", "storage_bytes_per_s", "network_bytes_per_s")
        require_positive(**{name: getattr(self, name) for name in positive})
        require_not_negative(latency_s=self.latency_s, serialise_s=self.serialise_s)

    @property
    def shard_bytes(self) -> float:
        """Model states of one machine."""
        return self.state_bytes / self.num_machines

    @property
    def storage_s(self) -> float:
        """Seconds to write all states to storage, or to read them."""
        return self.state_bytes / self.storage_bytes_per_s

    def retrieval_s(self, tier: Tier) -> float:
        """Seconds to read a checkpoint back: none from local memory, a shard over a link, all states from storage."""
        peer_s = self.latency_s + self.shard_bytes / self.network_bytes_per_s
        return {Tier.LOCAL: 0.0, Tier.PEER: peer_s, Tier.STORAGE: self.storage_s}[tier]


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One kind of checkpoint that a policy takes."""

    in_memory: bool  # in the machines' memory; otherwise in persistent storage
    interval_iterations: int  # iterations from snapshot to snapshot
    blocking_s: float = 0.0  # for which training stops at a snapshot
    transfer_s: float = 0.0  # from then on until the checkpoint is complete, beside training

    def __post_init__(self) -> None:
        require_counts(1, interval_iterations=self.interval_iterations)
        require_not_negative(blocking_s=self.blocking_s, transfer_s=self.transfer_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPolicy:
    """When a job checkpoints, and where to."""

    name: str  # as figures write it
    iteration_s: float  # of the job
    storage: Level  # its checkpoints in persistent storage
    memory: Level | None = None  # those in memory; None where there are none

    def __post_init__(self) -> None:
        if self.storage.in_memory or (self.memory is not None and not self.memory.in_memory):
            raise ValueError(f"storage, memory are {self.storage!r}, {self.memory!r}; each must be of its own kind")
        for level in self.levels:
            least_s, interval_s = level.transfer_s, level.interval_iterations * self.iteration_s
            if interval_s < least_s * (1 - 1e-12):
                rule = f"Eq. 6.2 asks for at least transfer_s, {least_s:g} s"
                raise ValueError(f"interval_iterations is {level.interval_iterations!r}, {interval_s:g} s; {rule}")

    @property
    def levels(self) -> tuple[Level, ...]:
        """All kinds of checkpoint, memory first."""
        return (self.storage,) if self.memory is None else (self.memory, self.storage)


def strawman(job: Job, *, interval_s: float = STRAWMAN_INTERVAL_S) -> CheckpointPolicy:
    """Return the policy that writes to storage every three hours; whole iterations, at least as often as asked."""
    iterations = max(math.floor(interval_s / job.iteration_s), _least_iterations(job))
    return replace(high_frequency(job, interval_iterations=iterations), name="Strawman")


def high_frequency(job: Job, *, interval_iterations: int | None = None) -> CheckpointPolicy:
    """Return the policy that writes to storage as often as bandwidth allows: every ceil(t_ckpt / T_iter) iterations."""
    iterations = _least_iterations(job) if interval_iterations is None else interval_iterations
    level = Level(in_memory=False, interval_iterations=iterations, blocking_s=job.serialise_s, transfer_s=job.storage_s)
    return CheckpointPolicy(name="HighFreq", iteration_s=job.iteration_s, storage=level)


def gemini(
    job: Job,
    *,
    interval_iterations: int = 1,
    blocking_s: float = 0.0,
    transfer_s: float | None = None,  # None spreads a checkpoint over the idle spans of one iteration
    storage_interval_s: float = STRAWMAN_INTERVAL_S,
) -> CheckpointPolicy:
    """Return the policy that checkpoints to memory every iteration, and to storage without stopping training."""
    memory = Level(
        in_memory=True,
        interval_iterations=interval_iterations,
        blocking_s=blocking_s,
        transfer_s=job.iteration_s if transfer_s is None else transfer_s,
    )
    storage = replace(strawman(job, interval_s=storage_interval_s).storage, blocking_s=0.0)
    return CheckpointPolicy(name="Gemini", iteration_s=job.iteration_s, storage=storage, memory=memory)


def average_wasted_s(policy: CheckpointPolicy, job: Job, tier: Tier) -> float:
    """Return the average waste of a failure that a tier recovers, Eq. 6.1; blocking is left out as in the paper."""
    level = policy.storage if tier is Tier.STORAGE else policy.memory
    if level is None:
        raise ValueError(f"tier is {tier.value!r}; {policy.name} keeps checkpoints in {Tier.STORAGE.value} only")
    return wasted_time_s(
        checkpoint_s=level.transfer_s,
        interval_s=level.interval_iterations * job.iteration_s,
        retrieval_s=job.retrieval_s(tier),
        iteration_s=job.iteration_s,
    )


def _least_iterations(job: Job) -> int:
    return max(1, math.ceil(job.storage_s / job.iteration_s))
