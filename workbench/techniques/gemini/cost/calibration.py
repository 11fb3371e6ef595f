"""The paper's machines with the three rates that only its own measurements can tell.

Source: thesis, chapter 6 (Gemini), sections 6.7.2 and 6.7.4, read from `reproductions/gemini/published`.
What is fitted, a number each; these never count as reproduced:
- the share of the network's bandwidth that messages reach, so that a checkpoint of GPT-2 100B on 16 machines at 100
  Gbit/s takes 1 / 65 of storage's time; taken for 400 Gbit/s and for p3dn as well;
- the share of an A100's peak that training reaches, so that GPT-2 100B iterates in 62 s on 16 p4d;
- the share of a V100's peak, so that blocking makes GPT-2 40B 10.1 % slower on 16 p3dn, whose iteration time the text
  does not say. With the A100's share instead blocking is predicted from the other two (`transferred`).
Simplified: one share for all models of a machine.
Left out: storage's own efficiency: nominal, as the paper reckons itself (42 minutes for 6.4 TB at 20 Gbit/s).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..method.interleaving import Scheme, interleave
from .checkpoint import NUM_BUFFERS, RESERVED_BYTES, storage_s, traffic_of
from .iteration import baseline_s, phases_of
from .machine import GeminiMachine
from .workload import Workload

__all__ = ["CALIBRATION", "P3DN", "P4D", "Calibrated", "calibrated", "efficiency_from_reduction", "published_value"]

PUBLISHED = Path(__file__).parents[4] / "reproductions/gemini/published"
P4D, P3DN = "gemini/16x-p4d", "gemini/16x-p3dn"  # the catalogue's names
BISECTIONS = 40  # of the logarithm of a share: exact to a millionth of a millionth
LEAST_SHARE = 1e-3  # of a device's peak, where the search begins

CALIBRATION: tuple[tuple[str, dict[str, object]], ...] = (
    ("fig-6-11.csv", {"quantity": "reduction", "network_gbit_per_s": 100, "num_machines": 16}),
    ("fig-6-7.csv", {"quantity": "iteration_s", "model": "GPT-2 100B", "scheme": "Baseline"}),
    ("fig-6-16.csv", {"quantity": "overhead", "scheme": "Blocking"}),
)
"""File and keys of the published cells that are fitted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """The paper's two testbeds, 16 machines each.

    p4d: with A100, 400 Gbit/s.
    p3dn: with V100, 100 Gbit/s.
    transferred: p3dn with the A100's share of its peak, for a prediction that blocking's cell has no part in.
    network_efficiency: of both.
    """

    p4d: GeminiMachine
    p3dn: GeminiMachine
    transferred: GeminiMachine
    network_efficiency: float


@cache
def calibrated() -> Calibrated:
    """Return both testbeds, fitted to `CALIBRATION`.

    Raises:
        ValueError: if no share explains a cell.
    """
    reduction, iteration_s, overhead_percent = (published_value(file, **keys) for file, keys in CALIBRATION)
    gpt_2_100b, gpt_2_40b = Workload.named("GPT-2 100B"), Workload.named("GPT-2 40B")
    efficiency = efficiency_from_reduction(gpt_2_100b, GeminiMachine.named(P4D).with_network(100), reduction)
    p4d = GeminiMachine.named(P4D, network_efficiency=efficiency)
    share = _share_of_peak(lambda share: baseline_s(gpt_2_100b, p4d.with_compute(share)) - iteration_s)
    p3dn = GeminiMachine.named(P3DN, network_efficiency=efficiency)
    blocked_s = _blocking_s(gpt_2_40b, p3dn) * 100 / overhead_percent
    v100_share = _share_of_peak(lambda share: baseline_s(gpt_2_40b, p3dn.with_compute(share)) - blocked_s)
    return Calibrated(
        p4d=p4d.with_compute(share),
        p3dn=p3dn.with_compute(v100_share),
        transferred=p3dn.with_compute(share),
        network_efficiency=efficiency,
    )


def efficiency_from_reduction(workload: Workload, machine: GeminiMachine, reduction: float) -> float:
    """Return the share of the network's bandwidth with which checkpoints are so many times shorter than storage's.

    Args:
        workload: whose checkpoint.
        machine: with its nominal network; two replicas.
        reduction: storage's time over Gemini's.

    Raises:
        ValueError: if that would be more than all of the bandwidth, or reduction is not above 0.
    """
    if not (math.isfinite(reduction) and reduction > 0):
        raise ValueError(f"reduction is {reduction!r}; it must be finite and above 0")
    traffic = traffic_of(workload, machine)
    num_chunks = math.ceil(traffic.checkpoint_bytes / (RESERVED_BYTES // NUM_BUFFERS))
    seconds = storage_s(workload, machine) / reduction - num_chunks * traffic.startup_s
    nominal_s = traffic.checkpoint_bytes * machine.devices_per_machine / machine.network.bandwidth_bytes_per_s
    if not nominal_s <= seconds:
        rule = f"the whole bandwidth gives {nominal_s:.3g} s, not {seconds:.3g} s"
        raise ValueError(f"reduction is {reduction!r}; {rule}")
    return nominal_s / seconds


def published_value(file: str, **keys: object) -> float:
    """Read one published number.

    Args:
        file: in `reproductions/gemini/published`.
        keys: its columns, quantity among them.

    Raises:
        ValueError: if not exactly one row has these.
    """
    wanted = {name: str(value) for name, value in keys.items()}
    with (PUBLISHED / file).open(encoding="utf-8") as opened:
        rows = [row for row in csv.DictReader(opened) if wanted.items() <= row.items()]
    if len(rows) != 1:
        raise ValueError(f"{file} has {len(rows)} rows with {wanted}; it must have one")
    return float(rows[0]["value"])


def _blocking_s(workload: Workload, machine: GeminiMachine) -> float:
    """Return what blocking adds to an iteration: its chunks, one after the other, then training as without."""
    found, traffic = phases_of(workload, machine), traffic_of(workload, machine)
    blocking, plain = (
        interleave(found.phases, traffic, scheme, update_s=found.update_s).iteration_s
        for scheme in (Scheme.BLOCKING, Scheme.BASELINE)
    )
    return blocking - plain


def _share_of_peak(excess_s: Callable[[float], float]) -> float:
    """Return the share of peak at which an iteration takes as long as asked, by bisection."""
    least, most = LEAST_SHARE, 1.0
    if not excess_s(least) >= 0 >= excess_s(most):
        rule = f"no share of peak in {least}..{most} gives it; at all of it {excess_s(most):+.3g} s"
        raise ValueError(f"iteration: {rule}")
    for _ in range(BISECTIONS):
        middle = math.sqrt(least * most)
        least, most = (middle, most) if excess_s(middle) >= 0 else (least, middle)
    return math.sqrt(least * most)
