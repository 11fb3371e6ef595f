"""The map of how many replicas and which interval waste least, by failure rate and link; simulated beside it.

What: `best_rows` calls `best_checkpointing` at every place, searches everything beside it, and simulates the choice.
Source: ours, beyond the paper; the job is GPT-2 100B on 16 machines of 1,152 GB (thesis, section 6.7.1).
Simplified: seconds of idle network are a parameter, since the text does not print figure 6.8's; what a recovery takes
whatever the checkpoints are is zero in the simulation beside it.
Left out: racks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from workbench.timeline.fault_draws import DAY_S, poisson_faults

from ..method.best import (
    BestCheckpointing,
    CheckpointingNeeds,
    best_checkpointing,
    best_checkpointing_by_definition,
    expected_waste,
    memory_level,
)
from ..method.placement import placement
from ..method.waste import gemini
from .setting import GIGABIT_BYTES, GPT2_100B, Overheads, Setting
from .solutions import Rows, spread_row
from .training import simulate_training

__all__ = ["best_rows", "paper_needs"]

P4D_MEMORY_BYTES = 1152 * 2**30  # section 6.7.1
NOTHING = Overheads(detection_s=0, serialise_s=0, least_replacement_s=0, most_replacement_s=0, warm_up_s=0)
PAPERS_REPLICAS = 2  # section 6.7.2


def paper_needs(
    failures_per_machine_day: float,
    gigabits: float,
    *,
    idle_s: float,
    blocking_s: float = 0.0,
    most_iterations: int = 500,
) -> CheckpointingNeeds:
    """Return the paper's job with another failure rate and link.

    Args:
        failures_per_machine_day: all of hardware.
        gigabits: of a machine's link, Gbps.
        idle_s: of an iteration, in which the link is idle.
        blocking_s: for which every checkpoint stops training.
        most_iterations: longest interval.
    """
    return CheckpointingNeeds(
        job=replace(GPT2_100B, network_bytes_per_s=gigabits * GIGABIT_BYTES),
        idle_s=idle_s,
        memory_bytes=P4D_MEMORY_BYTES,
        failures_per_machine_day=failures_per_machine_day,
        window_s=0.0,
        blocking_s=blocking_s,
        most_iterations=most_iterations,
    )


def best_rows(
    rates: Sequence[float],
    links_gbps: Sequence[float],
    *,
    idle_s: float,
    blocking_s: float,
    window_s: float,
    num_failures: int,
    seeds: Sequence[int],
) -> Rows:
    """Return the map.

    Args:
        rates: failures of a machine a day.
        links_gbps: of a machine's link.
        idle_s: of an iteration, in which the link is idle.
        blocking_s: for which every checkpoint stops training.
        window_s: machines lost within so long of one another are lost at once.
        num_failures: that each simulation has, about.
        seeds: of the failures.

    Returns:
        Rows, keys failures_per_machine_day and link_gbps: best_replicas, best_interval, waste (per cent of the time),
        gap_to_search, two_over_best (waste with two replicas and their best interval over the least), young_interval
        (iterations; where checkpoints block), simulated_over_expected (with two replicas every iteration's choice).
    """
    rows: Rows = []
    for rate in rates:
        for link in links_gbps:
            needs = replace(paper_needs(rate, link, idle_s=idle_s, blocking_s=blocking_s), window_s=window_s)
            keys = {"failures_per_machine_day": rate, "link_gbps": link}
            rows += [{**row, **keys} for row in _chosen(needs, best_checkpointing(needs))]
            ratios = [_simulated(needs, num_failures, seed) for seed in seeds]
            rows.append(spread_row("simulated_over_expected", ratios, "1", keys))
    return rows


def _chosen(needs: CheckpointingNeeds, best: BestCheckpointing) -> Rows:
    searched = best_checkpointing_by_definition(needs)
    two = min(expected_waste(needs, PAPERS_REPLICAS, each) for each in range(1, needs.most_iterations + 1))
    values = {
        "best_replicas": (best.num_replicas, "1"),
        "best_interval": (best.interval_iterations, "iteration"),
        "waste": (100 * best.waste, "%"),
        "gap_to_search": (best.waste - searched.waste, "1"),
        "two_over_best": (two / best.waste, "1"),
        "young_interval": (best.young_s / needs.job.iteration_s, "iteration"),
    }
    return [{"quantity": name, "value": value, "unit": unit} for name, (value, unit) in values.items()]


def _simulated(needs: CheckpointingNeeds, num_failures: int, seed: int) -> float:
    """Return the simulated loss over the expected one, with the best interval of two replicas.

    The simulation has no window within which machines are lost at once: a machine is replaced in no time.
    """
    alone, number = replace(needs, window_s=0.0), needs.job.num_machines
    iterations = min(range(1, needs.most_iterations + 1), key=lambda each: expected_waste(alone, PAPERS_REPLICAS, each))
    level = memory_level(alone, PAPERS_REPLICAS, iterations)
    policy = gemini(needs.job, interval_iterations=iterations, blocking_s=level.blocking_s, transfer_s=level.transfer_s)
    placed = placement(number, PAPERS_REPLICAS)
    rate = needs.failures_per_machine_day
    trace = poisson_faults(
        number, duration_s=num_failures / (rate * number) * DAY_S, failures_per_machine_day=rate, seed=seed
    )
    run = simulate_training(Setting(job=needs.job, policy=policy, overheads=NOTHING, placement=placed), trace)
    return (1 - run.effective_ratio) / expected_waste(alone, PAPERS_REPLICAS, iterations)
