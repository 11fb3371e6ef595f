"""Counted items of SDPipe: timelines of figures 1 and 3 by the scheduler itself, and theorem 1's condition."""

from workbench.reproduction import Bound, Evidence, Ordering, Reproduction, Whose, Within

COUNT = "a count is exact"
LEARNING_RATE = {"num_pipelines": [2, 4, 8], "num_stages": 4, "history": 10, "smallest_groups": [1, 2, 4, 8]}


def _timelines(item: str, title: str, claims: tuple) -> Reproduction:
    return Reproduction(
        technique="sdpipe",
        item=item,
        evidence=Evidence.COUNTED,
        title=title,
        notebook="notebooks/sdpipe/timelines.ipynb",
        parameters={profile: {"figure_number": int(item[-1])} for profile in ("smoke", "laptop")},
        expected_s={"smoke": 6, "laptop": 6},
        claims=claims,
    )


CATALOGUE = (
    _timelines(
        "fig-1",
        "A straggler holds up the other stages of its pipeline, and at the flush all other pipelines",
        (
            Ordering(
                "Stage 1 of the straggler's own pipeline is idle for longer",
                quantity="idle_slots",
                along="run",
                where={"stage": 0, "pipeline": 2},
                order=["no straggler", "two stragglers"],
                because=COUNT,
                source="figure 1: stage 1 of pipeline N waits for the backward pass of mini-batch 3",
            ),
            Ordering(
                "So is every worker of the pipeline that has no straggler",
                quantity="idle_slots",
                along="run",
                where={"pipeline": 0},
                order=["no straggler", "two stragglers"],
                because=COUNT,
                source="figure 1 and section 2.4: they wait at the flush",
            ),
        ),
    ),
    _timelines(
        "fig-3",
        "Two stages that wait for each other's workers deadlock, unless one enforces at a time",
        (
            Within(
                "Without the rule four workers wait for ever",
                quantity="blocked_workers",
                where={"rule": "without the rule"},
                expected=4.0,
                abs=0.0,
                because=COUNT,
                source="figure 3, section 3.4",
            ),
            Within(
                "With the rule none does",
                quantity="blocked_workers",
                where={"rule": "with the rule"},
                expected=0.0,
                abs=0.0,
                because=COUNT,
                source="section 3.4, deadlock prevention",
            ),
            Within(
                "One group passes that does not connect the workers",
                quantity="unchecked_groups",
                where={"rule": "with the rule"},
                expected=1.0,
                abs=0.0,
                because=COUNT,
                source="section 3.4: the rule may violate the connectivity for a few iterations",
            ),
        ),
    ),
    Reproduction(
        technique="sdpipe",
        item="theorem-1",
        evidence=Evidence.COUNTED,
        title="The largest learning rate that theorem 1's condition admits",
        notebook="notebooks/sdpipe/learning_rate.ipynb",
        parameters=dict.fromkeys(("smoke", "laptop"), LEARNING_RATE),
        expected_s={"smoke": 6, "laptop": 6},
        claims=(
            Bound(
                "With N = M = 4 and P = 10 it admits the learning rate 0.01 where L is 1",
                quantity="learning_rate",
                where={"num_pipelines": 4, "n1": [1, 2, 4]},
                at_least=0.01,
                because="the artifact trains ResNet-50 with 0.01; a smaller L would admit more, by its inverse",
                source="theorem 1, Eq. 3, with the settings of section 5.1",
                erratum="The text orders n1 <= |S| <= n2, and calls n1 the largest and n2 the smallest group's size. "
                "With n1 the smallest, Eq. 3 divides by 1 - n1^(NP), which is 0 for groups of one worker; groups of at "
                "least two admit learning rates up to 7e-16, those of four up to 6e-28. With n1 the largest, four, it "
                "is 6e-28 whatever the smallest is. Either way the theorem covers no training of the paper.",
            ),
            Ordering(
                "Larger groups admit a larger learning rate",
                quantity="learning_rate",
                along="n1",
                where={"num_pipelines": 4},
                order=[1, 2, 4],
                because="an order needs no tolerance",
                source="section 3.3: a larger group propagates updates faster",
                whose=Whose.OURS,
                explanation="n1 stands in the condition only as n1^(NP), which brings t2 nearer to 1: larger groups "
                "admit less. With n1 the largest size they admit as much as smaller ones.",
            ),
        ),
    ),
)
