"""What a simulated training consists of: job, policy, overheads of a failure, placement, standby machines.

What: `Setting`, and the paper's: GPT-2 100B on 16 p4d machines with the overheads it measured; MT-NLG's checkpoints.
Source: thesis, chapter 6 (Gemini), sections 6.2.2, 6.7.1, 6.7.2 and 6.7.3; bytes a parameter: Adam's fp32 weight and
two moments, which makes table 2.1's sizes (MT-NLG: 530e9 x 12 = 6.4 TB).
Simplified: the overheads follow one another, as their sum in the text does; they do not depend on machines' number.
Left out: who detects and replaces (`runtime.control`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..method.placement import Placement
from ..method.waste import CheckpointPolicy, Job

__all__ = ["GPT2_100B", "MT_NLG", "PAPER_OVERHEADS", "STATE_BYTES_PER_PARAMETER", "Overheads", "Setting"]

STATE_BYTES_PER_PARAMETER = 12  # fp32 weight and Adam's two moments
GIGABIT_BYTES = 1e9 / 8

GPT2_100B = Job(
    name="GPT-2 100B on 16 p4d",
    iteration_s=62.0,  # section 6.7.2
    state_bytes=100e9 * STATE_BYTES_PER_PARAMETER,
    num_machines=16,
    storage_bytes_per_s=20 * GIGABIT_BYTES,  # section 6.7.1: FSx
    network_bytes_per_s=400 * GIGABIT_BYTES,  # section 6.7.1: EFA
    serialise_s=81.0,  # section 6.7.3, one checkpoint
)
MT_NLG = Job(
    name="MT-NLG",
    iteration_s=1.0,  # not given, and without influence on Eq. 6.1 where checkpoints take minutes
    state_bytes=530e9 * STATE_BYTES_PER_PARAMETER,
    num_machines=560,  # table 2.1: 4,480 A100, 8 a machine
    storage_bytes_per_s=20 * GIGABIT_BYTES,  # section 6.2.2
    network_bytes_per_s=400 * GIGABIT_BYTES,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overheads:
    """What a failure costs besides lost progress and retrieval, in seconds one after the other.

    Attributes:
        detection_s: until the failure is known.
        serialise_s: to write what is in memory to files; not where storage is read.
        least_replacement_s: to get a machine in place of a lost one, at least.
        most_replacement_s: at most; drawn uniformly in between.
        warm_up_s: from retrieved states to the first iteration.
    """

    detection_s: float
    serialise_s: float
    least_replacement_s: float
    most_replacement_s: float
    warm_up_s: float

    def __post_init__(self) -> None:
        for name in ("detection_s", "serialise_s", "least_replacement_s", "warm_up_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be finite and not negative")
        if not self.least_replacement_s <= self.most_replacement_s < math.inf:
            raise ValueError(
                f"most_replacement_s is {self.most_replacement_s!r}; it must be finite and at least "
                f"{self.least_replacement_s!r}"
            )


PAPER_OVERHEADS = Overheads(
    detection_s=15.0,  # section 6.7.3
    serialise_s=162.0,  # section 6.7.3: two replicas
    least_replacement_s=4 * 60.0,  # section 6.7.3: 4 to 7 minutes
    most_replacement_s=7 * 60.0,
    warm_up_s=4 * 60.0,  # section 6.7.3: more than four minutes
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """A training to simulate.

    Attributes:
        job: what is trained.
        policy: when it checkpoints.
        overheads: what a failure costs besides.
        placement: who keeps whose replicas; needed where machines are lost and the policy keeps some in memory.
        num_standbys: machines that wait to take a lost one's place at once; one that went is requested again.
        seed: of the draws of replacement times.
    """

    job: Job
    policy: CheckpointPolicy
    overheads: Overheads = PAPER_OVERHEADS
    placement: Placement | None = None
    num_standbys: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.policy.iteration_s != self.job.iteration_s:
            raise ValueError(
                f"iteration_s of the policy is {self.policy.iteration_s!r}; it must be that of the job, "
                f"{self.job.iteration_s!r}"
            )
        if self.num_standbys < 0:
            raise ValueError(f"num_standbys is {self.num_standbys!r}; it must not be negative")
