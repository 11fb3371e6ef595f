"""Whether training survives whatever is done to it: drawn failure schedules on real ranks.

Beyond the paper, which shows one failure at a time. The claims were written after the first few schedules had run and
before the first recorded run: all are counts of what must not be, so none has a tolerance.
"""

from workbench.reproduction import Evidence, Reproduction, Whose, Within

__all__ = ["CATALOGUE"]

AFTER = "written when the first few schedules had run; it asks for no tolerance"
SCHEDULES = {"each": 10, "first": 0, "iterations": 10}


def _never(name: str, quantity: str, expected: float, because: str) -> Within:
    return Within(
        name,
        quantity=quantity,
        expected=expected,
        abs=0.0,
        because=because,
        source="this project's promise",
        whose=Whose.OURS,
        changed=AFTER,
    )


FAILURE_SCHEDULES = Reproduction(
    technique="gemini",
    item="failure-schedules",
    evidence=Evidence.MEASURED,
    title="Ranks, machines, root and store are killed or frozen, bits flip: does training end as if nothing had been?",
    notebook="notebooks/gemini/failure_schedules.ipynb",
    parameters={
        "smoke": SCHEDULES | {"num_schedules": 2, "each": 2, "first": 8},
        "laptop": SCHEDULES | {"num_schedules": 16, "each": 16},
        "full": SCHEDULES | {"num_schedules": 500, "each": 20},
    },
    expected_s={"smoke": 15, "laptop": 120, "full": 3000},
    tags=("real ranks", "real kills"),
    claims=(
        _never(
            "Every training is finished, or ends with the named error where it cannot be",
            "ends_rightly",
            1.0,
            "as it should, 1, or not",
        ),
        _never(
            "Every training ends with the very bits of an undisturbed one",
            "different_ranks",
            0.0,
            "ranks whose bits differ; section 6.6 resumes from the same states",
        ),
        _never("No process is left behind", "num_orphans", 0.0, "a count"),
        _never("No shared memory is left behind", "leaked_bytes", 0.0, "a count"),
        _never(
            "A replica with a flipped bit is passed over, and the report says why",
            "damage_is_named",
            1.0,
            "named, 1, or not; the paper has no checksums",
        ),
    ),
)

CATALOGUE = (FAILURE_SCHEDULES,)
