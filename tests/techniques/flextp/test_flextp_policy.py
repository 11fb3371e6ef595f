"""What a user may ask of balancing, and what is refused before any work."""

import math
from dataclasses import fields, replace

import pytest

from workbench.techniques.flextp.method.plan import Plan, Scheme, Solution
from workbench.techniques.flextp.method.planners import Reference
from workbench.techniques.flextp.method.priority import Selection
from workbench.techniques.flextp.method.resizing import Imputation
from workbench.techniques.flextp.runtime.policy import Policy

PLAN = Plan.plain(2)


def test_by_default_stragglers_drop_and_migrate_and_every_layer_drops_what_is_planned():
    policy = Policy()
    assert (policy.solution, policy.selection, policy.imputation) == ("SEMI", Selection("Pri"), Imputation("Zero"))
    assert (policy.threshold, policy.decay, policy.scheme) == (0.1, 0.8, "broadcast-reduce")  # III-A, III-B, IV-A
    assert policy.is_incremental
    assert (policy.pruning_ratio, policy.num_senders, policy.refine) == (None, None, False)


def test_choices_may_be_named_as_the_paper_names_them():
    named = Policy(solution="ZERO", selection="Pri", reference="min", imputation="Average", scheme="scatter-gather")
    chosen = Policy(
        solution=Solution.ZERO,
        selection=Selection.PRIORITY,
        reference=Reference.MIN,
        imputation=Imputation.AVERAGE,
        scheme=Scheme.SCATTER_GATHER,
    )
    assert named == chosen
    assert str(named) == str(chosen)  # which is what ranks compare


@pytest.mark.parametrize("field", ["solution", "selection", "reference", "imputation", "scheme"])
def test_a_choice_that_there_is_not_is_refused(field):
    with pytest.raises(ValueError, match="'best' is not a valid"):
        Policy(**{field: "best"})


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"solution": "ZERO", "pruning_ratio": 1.0}, r"pruning_ratio is 1.0; it must be in \[0, 1\)"),
        ({"solution": "ZERO", "pruning_ratio": -0.1}, r"pruning_ratio is -0.1; it must be in \[0, 1\)"),
        ({"solution": "ZERO", "pruning_ratio": math.nan}, r"pruning_ratio is nan; it must be in \[0, 1\)"),
        ({"solution": "MIG", "pruning_ratio": 0.5}, "pruning_ratio is 0.5; it must be None where solution is MIG"),
        ({"solution": "given"}, "plan is None; it must be given where solution is given, and only there"),
        ({"solution": "ZERO", "plan": PLAN}, "must be given where solution is given, and only there"),
        ({"solution": "ZERO", "selection": "PriDiffE"}, r"PriDiffE takes a constant γ: pruning_ratio is None"),
        ({"solution": "MIG", "num_senders": 1}, "num_senders is 1; it must be None, or 0 or more where solution is SEMI"),
        ({"num_senders": -1}, "num_senders is -1; it must be None, or 0 or more where solution is SEMI"),
        ({"solution": "ZERO", "refine": True}, "refine is True; it must be False where solution is ZERO"),
        ({"solution": "Baseline", "refine": True}, "refine is True; it must be False where solution is Baseline"),
        ({"refine": True, "num_senders": 1}, "num_senders is 1; it must be None where refine is True"),
        ({"threshold": 0.0}, "threshold is 0.0; it must be finite and above 0"),
        ({"threshold": math.inf}, "threshold is inf; it must be finite and above 0"),
        ({"patience": 0}, "patience is 0; it must be at least 1"),
        ({"patience": 1.5}, "patience is 1.5; it must be a whole number"),
        ({"pruning_ratio": "0.5"}, "pruning_ratio is '0.5'; it must be a number"),
        ({"decay": None}, "decay is None; it must be a number"),
        ({"num_senders": 1.0}, "num_senders is 1.0; it must be a whole number"),
        ({"iterations_per_epoch": "4"}, "iterations_per_epoch is '4'; it must be a whole number"),
        ({"seed": None}, "seed is None; it must be a whole number"),
        ({"solution": "given", "plan": 3}, "plan is 3; it must be a Plan or None"),
        ({"refine": True, "selection": "PriDiffR"}, "selection is PriDiffR; it must be Rd or Pri where refine is True"),
        ({"micro_threshold": -1e-9}, "micro_threshold is -1e-09; it must be finite and 0 or more"),
        ({"micro_threshold": math.inf}, "micro_threshold is inf; it must be finite and 0 or more"),
        ({"speed_share": 1.0}, r"speed_share is 1.0; it must be in \[0, 1\)"),
        ({"speed_share": -0.5}, r"speed_share is -0.5; it must be in \[0, 1\)"),
        ({"decay": 1.1}, r"decay is 1.1; it must be in \[0, 1\]"),
        ({"decay": -0.1}, r"decay is -0.1; it must be in \[0, 1\]"),
        ({"iterations_per_epoch": 0}, "iterations_per_epoch is 0; it must be at least 1"),
    ],
)
def test_policies_that_contradict_themselves_are_refused(policy, message):
    with pytest.raises(ValueError, match=message):
        Policy(**policy)


@pytest.mark.parametrize(
    "policy",
    [
        {"solution": "ZERO", "pruning_ratio": 0.0},
        {"solution": "ZERO", "selection": "PriDiffE", "pruning_ratio": 0.5},
        {"solution": "given", "plan": PLAN},
        {"num_senders": 0},
        {"solution": "MIG", "refine": True},
        {"micro_threshold": 0.0, "speed_share": 0.0, "decay": 0.0, "iterations_per_epoch": 1},
        {"decay": 1.0, "speed_share": 0.99, "threshold": 5.0},
    ],
)
def test_the_ends_of_every_range_are_allowed(policy):
    made = Policy(**policy)
    assert {field: getattr(made, field) for field in policy} == {
        field: {"selection": Selection.DIFFERENTIATED_EMPIRICAL}.get(field, value) for field, value in policy.items()
    }


def test_policies_that_differ_in_any_field_are_told_apart_by_what_ranks_compare():
    other = {
        "solution": "ZERO",
        "selection": "Rd",
        "pruning_ratio": 0.5,
        "plan": PLAN,
        "refine": True,
        "speed_share": 0.5,
        "num_senders": 1,
        "reference": "min",
        "imputation": "Same",
        "scheme": "scatter-gather",
        "threshold": 0.2,
        "patience": 2,
        "decay": 0.5,
        "micro_threshold": 0.1,
        "iterations_per_epoch": 7,
        "is_incremental": False,
        "seed": 1,
    }
    assert set(other) == {field.name for field in fields(Policy)}
    more = {"pruning_ratio": {"solution": "ZERO"}, "plan": {"solution": "given"}}
    made = {str(replace(Policy(), **{name: value}, **more.get(name, {}))) for name, value in other.items()}
    assert len(made | {str(Policy())}) == len(other) + 1
