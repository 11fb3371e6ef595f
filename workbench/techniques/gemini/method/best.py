"""The number of replicas and the interval of checkpoints that waste least; beside them Young's and Daly's intervals.

With m replicas of s bytes, n iterations of T seconds with b idle ones each, and blocking a, a checkpoint takes
v = (m - 1) s / B to send, its interval is W = nT + a + max(0, v - nb), and a second of training loses

    (a + max(0, v - nb)) / W  +  rate * (t_ckpt + W / 2 + t_rtvl)

where t_ckpt is the sending, spread over the idle spans of whole iterations. Both terms are convex in n where the
traffic fits the idle time and where it does not, so that each part has its minimum at a root or at its end.
Young: CACM 17(9), 1974. Daly: FGCS 22(3), 2006, Eq. 37.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from workbench.checks import require_counts, require_not_negative, require_positive

from .placement import BUFFERS_PER_REPLICA, placement
from .probability import recovery_probability
from .waste import Job, Level, Tier, gemini, wasted_time_s

__all__ = ["BestCheckpointing", "CheckpointingNeeds", "best_checkpointing", "expected_waste"]

_DAY_S = 86_400.0
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
        return self.failures_per_machine_day * self.job.num_machines / _DAY_S

    def sending_s(self, num_replicas: int) -> float:
        """Seconds of the link that a checkpoint takes: a machine's shard to all its peers."""
        return (num_replicas - 1) * self.job.shard_bytes / self.job.network_bytes_per_s


@dataclass(frozen=True, kw_only=True, slots=True)
class BestCheckpointing:
    """A choice and what it loses."""

    num_replicas: int  # m, the machine's own included
    interval_iterations: int  # n, from checkpoint to checkpoint
    waste: float  # expected seconds lost in a second of training
    storage_share: float  # probability that a hardware failure has to be recovered from storage
    young_s: float  # Young's interval for the time that a checkpoint stops training; 0 where it stops none
    daly_s: float  # Daly's


def best_checkpointing(needs: CheckpointingNeeds) -> BestCheckpointing:
    """Find the number of replicas and the interval that lose least; a tie goes to fewer, then to more frequent ones."""
    numbers = range(1, needs.most_replicas + 1)
    return _best(needs, ((m, n) for m in numbers for n in _candidates(needs, m)))


def best_checkpointing_by_definition(needs: CheckpointingNeeds) -> BestCheckpointing:
    """Find the same by trying every number of replicas with every interval."""
    numbers, intervals = range(1, needs.most_replicas + 1), range(1, needs.most_iterations + 1)
    return _best(needs, ((m, n) for m in numbers for n in intervals))


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
    storage = gemini(needs.job, storage_interval_s=needs.storage_interval_s).storage
    from_storage_s = wasted_time_s(
        checkpoint_s=storage.transfer_s,
        interval_s=storage.interval_iterations * needs.job.iteration_s,
        retrieval_s=needs.job.retrieval_s(Tier.STORAGE),
    )
    failure_s = (1 - lost_share) * from_memory_s + peer_s + lost_share * from_storage_s
    return level.blocking_s / interval_s + needs.failures_per_s * failure_s


def memory_level(needs: CheckpointingNeeds, num_replicas: int, interval_iterations: int) -> Level:
    """Return the checkpoints in memory of a choice: what does not fit the idle time stops training."""
    sending_s, iteration_s = needs.sending_s(num_replicas), needs.job.iteration_s
    excess_s = max(0.0, sending_s - interval_iterations * needs.idle_s)
    spread = interval_iterations if excess_s else _iterations_to_send(needs, num_replicas)
    return Level(
        in_memory=True,
        interval_iterations=interval_iterations,
        blocking_s=needs.blocking_s + excess_s,
        transfer_s=spread * iteration_s,
    )


def storage_share(needs: CheckpointingNeeds, num_replicas: int) -> float:
    """Return the probability that a hardware failure finds all replicas of some shard gone."""
    return _storage_share(
        needs.job.num_machines,
        num_replicas,
        needs.failures_per_machine_day * needs.hardware_share / _DAY_S * (needs.job.num_machines - 1) * needs.window_s,
    )


def young_interval_s(blocking_s: float, mean_time_between_failures_s: float) -> float:
    """Return Young's interval: the time of training between two checkpoints, sqrt(2 * blocking * MTBF)."""
    _check_interval(blocking_s, mean_time_between_failures_s)
    return math.sqrt(2 * blocking_s * mean_time_between_failures_s)


def daly_interval_s(blocking_s: float, mean_time_between_failures_s: float) -> float:
    """Return Daly's interval of higher order; the mean time between failures where checkpoints take twice that."""
    _check_interval(blocking_s, mean_time_between_failures_s)
    half = blocking_s / (2 * mean_time_between_failures_s)
    if half >= 1:
        return mean_time_between_failures_s
    young_s = young_interval_s(blocking_s, mean_time_between_failures_s)
    return young_s * (1 + math.sqrt(half) / 3 + half / 9) - blocking_s


def _best(needs: CheckpointingNeeds, choices: Iterable[tuple[int, int]]) -> BestCheckpointing:
    waste, replicas, iterations = min((expected_waste(needs, m, n), m, n) for m, n in choices)
    level = memory_level(needs, replicas, iterations)
    common = level.blocking_s, 1 / needs.failures_per_s
    return BestCheckpointing(
        num_replicas=replicas,
        interval_iterations=iterations,
        waste=waste,
        storage_share=storage_share(needs, replicas),
        young_s=young_interval_s(*common),
        daly_s=daly_interval_s(*common),
    )


def _candidates(needs: CheckpointingNeeds, num_replicas: int) -> set[int]:
    """Return the intervals among which the best is: the ends of both parts, and beside the roots."""
    fits, iteration_s = _iterations_to_send(needs, num_replicas), needs.job.iteration_s
    # Share of failures whose loss grows with the interval: all but those recovered from storage.
    rate = needs.failures_per_s * (1 - storage_share(needs, num_replicas) * needs.hardware_share)
    places = {1, fits - 1, fits, needs.most_iterations}
    # Where the traffic fits: W = nT + a, and a / W + rate * W / 2 is least at W = sqrt(2 a / rate), Young's interval.
    if rate:
        places |= _beside((math.sqrt(2 * needs.blocking_s / rate) - needs.blocking_s) / iteration_s)
    # Where it does not: W = n (T - b) + A with A = a + v, t_ckpt = W, and (A - nb) / W + 1.5 * rate * W.
    grows_s, fixed_s = iteration_s - needs.idle_s, needs.blocking_s + needs.sending_s(num_replicas)
    if rate and grows_s:
        places |= _beside((math.sqrt(fixed_s * iteration_s / (1.5 * rate * grows_s)) - fixed_s) / grows_s)
    return {place for place in places if 1 <= place <= needs.most_iterations}


def _beside(root: float) -> set[int]:
    return {math.floor(root), math.ceil(root)}


def _iterations_to_send(needs: CheckpointingNeeds, num_replicas: int) -> int:
    """Return in how many iterations the idle spans suffice; one more than allowed where they never do."""
    if needs.sending_s(num_replicas) <= needs.idle_s:
        return 1
    never = needs.most_iterations + 1
    return min(never, math.ceil(needs.sending_s(num_replicas) / needs.idle_s)) if needs.idle_s else never


@cache
def _storage_share(num_machines: int, num_replicas: int, mean_more: float) -> float:
    placed, lost, weight, rest = placement(num_machines, num_replicas), 0.0, math.exp(-mean_more), 1.0
    for lost_machines in range(1, num_machines + 1):
        lost += weight * float(1 - recovery_probability(placed, lost_machines))
        rest -= weight
        weight *= mean_more / lost_machines
        if rest < _NEGLIGIBLE or (weight < _NEGLIGIBLE and lost_machines > mean_more):
            return lost
    return lost + max(rest, 0.0)


def _check_interval(blocking_s: float, mean_time_between_failures_s: float) -> None:
    require_not_negative(blocking_s=blocking_s)
    require_positive(mean_time_between_failures_s=mean_time_between_failures_s)
