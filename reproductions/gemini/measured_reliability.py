"""Whether training survives whatever is done to it: drawn failure schedules on real ranks.

Beyond the paper, which shows one failure at a time. The claims were written after the first few schedules had run and
before the first recorded run: all are counts of what must not be, so none has a tolerance.
"""

from workbench.reproduction import Evidence, Reproduction, Within

__all__ = ["CATALOGUE"]

OURS = "ours; section 6.6 resumes from the same states"
SCHEDULES = {"each": 10, "first": 0, "iterations": 10}

FAILURE_SCHEDULES = Reproduction(
    technique="gemini",
    item="failure-schedules",
    evidence=Evidence.MEASURED,
    title="Ranks, machines, the root and the store are killed, bits flipped: does training end as if nothing had been?",
    notebook="notebooks/gemini/failure_schedules.ipynb",
    parameters={
        "smoke": SCHEDULES | {"num_schedules": 2, "each": 2, "first": 8},
        "laptop": SCHEDULES | {"num_schedules": 10},
        "full": SCHEDULES | {"num_schedules": 200},
    },
    expected_s={"smoke": 15, "laptop": 150, "full": 1500},
    claims=(
        Within(
            "Every training finishes", quantity="is_finished", expected=1.0, abs=0.0, because="yes or no", source="ours"
        ),
        Within(
            "Every training ends with the very bits of an undisturbed one",
            quantity="different_ranks",
            expected=0.0,
            abs=0.0,
            because="bit for bit",
            source=OURS,
        ),
        Within(
            "No process is left behind", quantity="num_orphans", expected=0.0, abs=0.0, because="a count", source="ours"
        ),
        Within(
            "No shared memory is left behind",
            quantity="leaked_bytes",
            expected=0.0,
            abs=0.0,
            because="a count",
            source="ours",
        ),
        Within(
            "A replica with a flipped bit is passed over, and the report says why",
            quantity="damage_is_named",
            expected=1.0,
            abs=0.0,
            because="yes or no",
            source="ours; the paper has no checksums",
        ),
    ),
)

CATALOGUE = (FAILURE_SCHEDULES,)
