"""What is reproduced of "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints".

Here what is measured on real ranks: a process is killed, and training goes on. Further items stand beside
it, in files by evidence. Tolerances were fixed before the first recorded run.
"""

from workbench.reproduction import Evidence, Ordering, Reproduction, Within

__all__ = ["CATALOGUE"]

FIGURE_6_14 = "figure 6.14, section 6.7.3"
RECOVERY = {
    "kinds": ["software", "hardware"],
    "repeats": 3,
    "num_machines": 4,
    "at_iteration": 9,
    "iterations": 14,
    "hidden": 128,
    "layers": 4,
    "sharded": True,
    "num_replicas": 2,
    "num_profiled": 3,
    "reserved_bytes": 262_144,
}
SMALL = {"repeats": 1, "at_iteration": 4, "iterations": 6, "hidden": 32, "layers": 2, "num_profiled": 1}

RECOVERY_MEASURED = Reproduction(
    technique="gemini",
    item="fig-6-14",
    evidence=Evidence.MEASURED,
    title="A process is killed and training goes on: what detecting, restarting and fetching take",
    notebook="notebooks/gemini/recovery.ipynb",
    parameters={
        "smoke": RECOVERY | SMALL,
        "laptop": RECOVERY,
        "full": RECOVERY | {"repeats": 10, "num_machines": 8, "hidden": 256, "layers": 8},
    },
    expected_s={"smoke": 15, "laptop": 105, "full": 600},
    times=True,
    claims=(
        Within(
            "Training ends with the very bits of a training without failure",
            quantity="different_ranks",
            expected=0.0,
            abs=0.0,
            because="bit for bit",
            source="ours; section 6.6 resumes from the same states",
        ),
        Within(
            "Every rank is served from memory, its own machine's or a peer's",
            quantity="from_memory",
            expected=1.0,
            abs=0.0,
            because="a count",
            source="section 6.6.2: one machine lost, group placement with two replicas",
        ),
        Within(
            "At most two iterations are done again",
            quantity="lost_iterations",
            expected=1.0,
            abs=1.0,
            because="0 to 2: the one under way when the kill came, and the one whose checkpoint was on its way",
            source=f"{FIGURE_6_14}: a failure in iteration 4 resumes with iteration 3",
        ),
        Ordering(
            "A hardware failure takes longer than a software failure",
            quantity="total_s",
            along="failure",
            order=["software", "hardware"],
            because="an order needs no tolerance",
            source=FIGURE_6_14,
            explanation="A replacement is ready at once here, where a cloud needs 4 to 7 minutes; what remains is "
            "how long a silent machine goes unnoticed.",
        ),
        Ordering(
            "Of a hardware failure, retrieving takes less than detecting",
            quantity="phase_s",
            along="phase",
            where={"failure": "hardware"},
            order=["retrieve", "detect"],
            because="an order needs no tolerance",
            source=f"{FIGURE_6_14}: under 3 s and 15 s",
        ),
    ),
)

CATALOGUE = (RECOVERY_MEASURED,)
