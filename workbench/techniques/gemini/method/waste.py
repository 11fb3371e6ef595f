"""Sizes of checkpoints, the time that a failure wastes (Eqs. 6.1 and 6.2), three policies, and the best checkpointing.

The paper's frequency f is the interval 1/f. With m replicas of s bytes, n iterations of T seconds with b idle ones
each, and blocking a, a checkpoint takes v = (m - 1) s / B to send, its interval is W = nT + a + max(0, v - nb), and a
second of training loses

    (a + max(0, v - nb)) / W  +  rate * (t_ckpt + W / 2 + t_rtvl)

where t_ckpt is the sending, spread over the idle spans of whole iterations. Both terms are convex in n where the
traffic fits the idle time, and where it does not.
Young: CACM 17(9), 1974. Daly: FGCS 22(3), 2006, Eq. 37.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.models.sizes import Family, ModelSizes, num_parameters

from .placement import BUFFERS_PER_REPLICA, placement, recovery_probability
from .recovery import Tier

__all__ = ["BYTES_PER_PARAMETER", "GPU_BYTES_PER_PARAMETER", "TABLE_6_2", "BestCheckpointing", "CheckpointPolicy"]
__all__ += ["CheckpointingNeeds", "Family", "Job", "Level", "ModelSizes", "average_wasted_s", "best_checkpointing"]
__all__ += ["best_checkpointing_by_definition", "checkpoint_bytes", "daly_interval_s", "expected_waste", "gemini"]
__all__ += ["high_frequency", "memory_level", "num_parameters", "strawman", "wasted_time_s"]
__all__ += ["wasted_time_s_by_definition", "young_interval_s"]

# Of a checkpoint: the parameter and Adam's two moments, 4 bytes each (table 2.1's sizes over its parameters)
BYTES_PER_PARAMETER = 12
# Of mixed-precision training with Adam: the 12, and 2 each for a half-precision parameter and its gradient (Rajbhandari
# et al., ZeRO, section 3.1)
GPU_BYTES_PER_PARAMETER = 16
TEXT = MappingProxyType({"vocab_size": 50_265, "max_positions": 512})  # Tokens (section 6.7.1)


def checkpoint_bytes(parameters: float) -> float:
    """Return the bytes of a checkpoint, 12 a parameter."""
    require_not_negative(parameters=parameters)
    return BYTES_PER_PARAMETER * parameters


# The models of the evaluation, by the paper's names
TABLE_6_2: Mapping[str, ModelSizes] = MappingProxyType(
    {
        name: ModelSizes(
            family=family, hidden_size=h, intermediate_size=4 * h, num_layers=layers, num_heads=heads, **TEXT
        )
        for name, family, h, layers, heads in (
            ("GPT-2 10B", Family.GPT_2, 2560, 46, 40),
            ("GPT-2 20B", Family.GPT_2, 5120, 64, 40),
            ("GPT-2 40B", Family.GPT_2, 5120, 128, 40),
            ("RoBERTa 40B", Family.ROBERTA, 5120, 128, 40),
            ("BERT 40B", Family.BERT, 5120, 128, 40),
            ("GPT-2 100B", Family.GPT_2, 8192, 124, 64),
            ("RoBERTa 100B", Family.ROBERTA, 8192, 124, 64),
            ("BERT 100B", Family.BERT, 8192, 124, 64),
        )
    }
)


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
        snapshots_s = [number * interval_s for number in range(12) if number * interval_s + checkpoint_s <= failure_s]
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
    often = high_frequency(job)
    iterations = max(math.floor(interval_s / job.iteration_s), often.storage.interval_iterations)
    return replace(often, name="Strawman", storage=replace(often.storage, interval_iterations=iterations))


def high_frequency(job: Job, *, interval_iterations: int | None = None) -> CheckpointPolicy:
    """Return the policy that writes to storage as often as bandwidth allows: every ceil(t_ckpt / T_iter) iterations."""
    least = max(1, math.ceil(job.storage_s / job.iteration_s))
    iterations = least if interval_iterations is None else interval_iterations
    level = Level(interval_iterations=iterations, blocking_s=job.serialise_s, transfer_s=job.storage_s)
    return CheckpointPolicy(name="HighFreq", iteration_s=job.iteration_s, storage=level)


def gemini(job: Job, *, storage_interval_s: float = STRAWMAN_INTERVAL_S) -> CheckpointPolicy:
    """Return the policy that checkpoints to memory every iteration, and to storage without stopping training."""
    memory = Level(interval_iterations=1, transfer_s=job.iteration_s)  # in all its idle spans
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


DAY_S = 86_400
_NEGLIGIBLE = 1e-12  # probability below which still more simultaneous failures are left out


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointingNeeds:
    """What the choice depends on."""

    job: Job  # iteration, states, machines, storage and link
    idle_s: float  # seconds of an iteration in which the network is idle
    memory_bytes: float  # of one machine, for replicas
    failures_per_machine_day: float  # rate of one machine, hardware and software together
    hardware_share: float = 1.0  # of the failures; these lose the machine's memory
    window_s: float = 600.0  # machines that fail within so long of one another count as lost at once
    blocking_s: float = 0.0  # for which every checkpoint stops training, however it is sent
    storage_interval_s: float = 3 * 3600.0  # seconds between checkpoints in storage, the last resort
    most_iterations: int = 10_000  # longest interval that is considered

    def __post_init__(self) -> None:
        if not 0 <= self.idle_s <= self.job.iteration_s:
            raise ValueError(f"idle_s is {self.idle_s!r}; it must be in 0..{self.job.iteration_s!r}, an iteration")
        if not 0 <= self.hardware_share <= 1:
            raise ValueError(f"hardware_share is {self.hardware_share!r}; it must be in [0, 1]")
        require_positive(failures_per_machine_day=self.failures_per_machine_day)
        require_not_negative(window_s=self.window_s, blocking_s=self.blocking_s)
        require_counts(1, most_iterations=self.most_iterations)
        if self.memory_bytes < (least_bytes := BUFFERS_PER_REPLICA * self.job.shard_bytes):
            rule = f"{BUFFERS_PER_REPLICA} buffers of one replica need {least_bytes!r}"
            raise ValueError(f"memory_bytes is {self.memory_bytes!r}; {rule}")

    @property
    def most_replicas(self) -> int:
        """How many replicas, the machine's own included, fit into memory with two buffers each."""
        fit = int(self.memory_bytes // (BUFFERS_PER_REPLICA * self.job.shard_bytes))
        return min(fit, self.job.num_machines)

    @property
    def failures_per_s(self) -> float:
        """Rate of all machines together."""
        return self.failures_per_machine_day * self.job.num_machines / DAY_S

    def sending_s(self, num_replicas: int) -> float:
        """Seconds of the link that a checkpoint takes: a machine's shard to all its peers."""
        return (num_replicas - 1) * self.job.shard_bytes / self.job.network_bytes_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class BestCheckpointing:
    """A choice and what it loses."""

    num_replicas: int  # m, the machine's own included
    interval_iterations: int  # n, from checkpoint to checkpoint
    waste: float  # expected seconds lost in a second of training
    young_s: float  # Young's interval for the time that a checkpoint stops training; 0 where it stops none


def best_checkpointing(needs: CheckpointingNeeds) -> BestCheckpointing:
    """Find the number of replicas and the interval that lose least; a tie goes to fewer, then to more frequent ones."""
    return _best(needs, _candidates)


def best_checkpointing_by_definition(needs: CheckpointingNeeds) -> BestCheckpointing:
    """Find the same by trying every number of replicas with every interval."""
    return _best(needs, lambda needs, _: range(1, needs.most_iterations + 1))


def expected_waste(needs: CheckpointingNeeds, num_replicas: int, interval_iterations: int) -> float:
    """Return the expected seconds lost in a second of training."""
    if not 1 <= num_replicas <= needs.most_replicas:
        raise ValueError(f"num_replicas is {num_replicas!r}; it must be in 1..{needs.most_replicas}, what memory holds")
    require_counts(1, interval_iterations=interval_iterations)
    level = memory_level(needs, num_replicas, interval_iterations)
    interval_s = interval_iterations * needs.job.iteration_s + level.blocking_s
    from_memory_s = level.blocking_s + level.transfer_s + interval_s / 2
    lost_share = storage_share(needs, num_replicas) * needs.hardware_share
    peer_s = (needs.hardware_share - lost_share) * needs.job.retrieval_s(Tier.PEER)
    stored = strawman(needs.job, interval_s=needs.storage_interval_s)
    from_storage_s = average_wasted_s(stored, needs.job, Tier.STORAGE)
    failure_s = (1 - lost_share) * from_memory_s + peer_s + lost_share * from_storage_s
    return level.blocking_s / interval_s + needs.failures_per_s * failure_s


def memory_level(needs: CheckpointingNeeds, num_replicas: int, interval_iterations: int) -> Level:
    """Return the checkpoints in memory of a choice: what does not fit the idle time stops training."""
    blocking_s = needs.blocking_s + max(0.0, needs.sending_s(num_replicas) - interval_iterations * needs.idle_s)
    transfer_s = min(interval_iterations, _iterations_to_send(needs, num_replicas)) * needs.job.iteration_s
    return Level(interval_iterations=interval_iterations, blocking_s=blocking_s, transfer_s=transfer_s)


@cache
def storage_share(needs: CheckpointingNeeds, num_replicas: int) -> float:
    """Return the probability that a hardware failure finds all replicas of some shard gone."""
    num_machines = needs.job.num_machines
    rate = needs.failures_per_machine_day * needs.hardware_share / DAY_S
    mean_more = rate * (num_machines - 1) * needs.window_s  # further machines that fail within the window
    placed, lost, weight, rest = placement(num_machines, num_replicas), 0.0, math.exp(-mean_more), 1.0
    for lost_machines in range(1, num_machines + 1):
        lost += weight * float(1 - recovery_probability(placed, lost_machines))
        rest -= weight
        weight *= mean_more / lost_machines
        if rest < _NEGLIGIBLE or (weight < _NEGLIGIBLE and lost_machines > mean_more):
            return lost
    return lost + max(rest, 0.0)


def young_interval_s(blocking_s: float, mean_time_between_failures_s: float) -> float:
    """Return Young's interval: the time of training between two checkpoints, sqrt(2 * blocking * MTBF)."""
    require_not_negative(blocking_s=blocking_s)
    require_positive(mean_time_between_failures_s=mean_time_between_failures_s)
    return math.sqrt(2 * blocking_s * mean_time_between_failures_s)


def daly_interval_s(blocking_s: float, mean_time_between_failures_s: float) -> float:
    """Return Daly's interval of higher order; the mean time between failures where checkpoints take twice that."""
    young_s = young_interval_s(blocking_s, mean_time_between_failures_s)
    half = blocking_s / (2 * mean_time_between_failures_s)
    if half >= 1:
        return mean_time_between_failures_s
    return young_s * (1 + math.sqrt(half) / 3 + half / 9) - blocking_s


def _best(needs: CheckpointingNeeds, intervals: Callable[..., Iterable[int]]) -> BestCheckpointing:
    choices = ((m, n) for m in range(1, needs.most_replicas + 1) for n in intervals(needs, m))
    waste, replicas, iterations = min((expected_waste(needs, m, n), m, n) for m, n in choices)
    level = memory_level(needs, replicas, iterations)
    return BestCheckpointing(
        num_replicas=replicas,
        interval_iterations=iterations,
        waste=waste,
        young_s=young_interval_s(level.blocking_s, 1 / needs.failures_per_s),
    )


def _candidates(needs: CheckpointingNeeds, num_replicas: int) -> list[int]:
    """Return the best interval where the traffic does not fit the idle time, and where it does."""

    def is_least_so_far(interval: int) -> bool:
        return expected_waste(needs, num_replicas, interval) <= expected_waste(needs, num_replicas, interval + 1)

    fits, end = _iterations_to_send(needs, num_replicas), needs.most_iterations + 1
    parts = [part for part in (range(1, fits), range(fits, end)) if part]
    return [part[bisect_left(part[:-1], True, key=is_least_so_far)] for part in parts]


def _iterations_to_send(needs: CheckpointingNeeds, num_replicas: int) -> int:
    """Return in how many iterations the idle spans suffice; one more than allowed where they never do."""
    sending_s, never = needs.sending_s(num_replicas), needs.most_iterations + 1
    if sending_s <= needs.idle_s:
        return 1
    return min(never, math.ceil(sending_s / needs.idle_s)) if needs.idle_s else never
