"""Times, plans, costs, ratios and policies that cannot be are refused with their rule, before any work."""

import math
from dataclasses import replace

import torch
from cases import refusals
from flextp_cases import ranks

from workbench.techniques.flextp import cost, counted, measured, method
from workbench.techniques.flextp.method import ColumnStatistics, Costs, PiecewiseLinear, Plan, RankPlan, RankTimes
from workbench.techniques.flextp.runtime import Policy, check_policy, planner_of
from workbench.techniques.flextp.simulated import ratio_needed, simulate_ratios

COSTS = Costs.straight(compute_s=1)
BENT = replace(COSTS, extract=PiecewiseLinear(shares=(0, 0.5, 1), seconds=(0, 0.1, 0.9)))


def migrated(scheme="broadcast-reduce", num_senders=1, share=0.5):
    return lambda: cost.migration_epoch_time_s(scheme, num_senders, share)


def epoch(solution, **options):
    return lambda: cost.epoch_time_s(solution, **options)


def mapped(num_stragglers):
    return cost.winner_map(skewnesses=[2.0], nums_stragglers=[num_stragglers], bandwidths_bytes_per_s=[1e9])


test_times_plans_costs_and_ratios_that_cannot_be_are_refused = refusals(
    (lambda: RankTimes(own_s=3.0, product_s=1.0, work=0.0).unresized(), "work is 0.0; it must be above 0"),
    (lambda: RankTimes(own_s=math.nan, product_s=0.0), "own_s is nan"),
    (lambda: RankTimes(own_s=1.0, product_s=2.0), "product_s is 2.0"),
    (lambda: RankPlan(dropped=1.0), "dropped is 1.0"),
    (lambda: RankPlan(dropped=0.5, migrated=0.5), r"dropped \+ migrated is 1.0"),
    (lambda: Plan(ranks=(RankPlan(migrated=0.1),) * 2), r"senders is \(0, 1\); it must have at most .* = 1"),
    (lambda: Plan(ranks=()), r"ranks is \(\)"),
    (lambda: method.receivers_of(2, [2], 2), r"senders has rank 2; it must be in 0\.\.1"),
    (lambda: method.receivers_of(0, [1], 3), r"sender is 0; it must be among the senders \(1,\)"),
    (lambda: method.receivers_of(0, [0, 1], 2), "senders has 2 of 2 ranks; it must leave one to receive"),
    (lambda: PiecewiseLinear(shares=(), seconds=()), r"shares is \(\)"),
    (lambda: PiecewiseLinear(shares=(0.5, 0.5), seconds=(1, 2)), "ascending"),
    (lambda: PiecewiseLinear(shares=(0.25, 0.5), seconds=(2, 1)), "never fall"),
    (lambda: PiecewiseLinear.straight(1.0)(-0.5), "share is -0.5"),
    (lambda: Costs.straight(alloc_s=-1, compute_s=1), "alloc_s is -1"),
    (lambda: replace(COSTS, fixed_share=1.0), "fixed_share is 1.0"),
    (lambda: method.ideal_s([*ranks(1, other_s=1), *ranks(0, other_s=1)]), "product_s of rank 1 is 0"),
    (lambda: method.rank_s(ranks(1, 1), Plan.plain(3), COSTS), "times has 2 ranks; it must have as many as plan"),
    (lambda: method.speedup_bound(0.5, 4), "skewness is 0.5"),
    (lambda: method.split_of_one(1.0, COSTS, 3), "removed is 1.0"),
    (lambda: method.plan_division(ranks(8, 4, 1, 1), 3), "num_senders is 3; it must be in 0..2"),
    (lambda: method.settled_resizing(ranks(8, 1), 1.0), r"threshold is 1.0; it must be in \(0, 1\)"),
    (lambda: method.levelled_plan(ranks(8, 4), COSTS, [0, 1]), r"slowest_first is \(0, 1\); it must leave a rank"),
    (lambda: method.levelled_plan(ranks(8, 1), COSTS, [0], speed_share=1), "speed_share is 1"),
    (lambda: method.fastest_division(ranks(3, 1), BENT, most_dropped=0), "extract of costs bends at 0.5"),
    (lambda: method.best_plan_by_search(ranks(8, 4, 2, 1), COSTS, 40), "551,368,000 plans"),
    (lambda: method.num_dropped_columns(1.0, 4), r"pruning_ratio is 1.0; it must be in \[0, 1\)"),
    (lambda: method.kept_columns([4], 4), "column 4"),
    (lambda: method.kept_columns([-1], 4), "column -1"),
    (lambda: method.kept_columns([1, 1], 4), "twice"),
    (lambda: method.kept_columns([3, 0, 2, 1], 4), "all 4 columns"),
    (lambda: method.first_columns(torch.arange(2), 2), r"num_dropped is 2; it must be in \[0, 2\)"),
    (lambda: ColumnStatistics(torch.zeros(2, 3)).update_(torch.zeros(2, 4), []), r"\[2, 4\]; it must be \[2, 3\]"),
    (lambda: method.layer_ratios([1.5], 0.5), "candidate_shares has 1.5"),
    (lambda: method.layer_ratios([0.5], 0.5, decay=-1), "decay is -1"),
    (lambda: method.micro_threshold(0.0, 10), "learning_rate is 0.0"),
    (lambda: method.change_threshold(10, -0.1), "micro_threshold is -0.1"),
    (migrated(scheme="gossip"), "scheme is 'gossip'; it must be one of"),
    (migrated(num_senders=8), r"num_senders is 8; it must be an integer in 1\.\.7"),
    (migrated(share=1.01), r"migrated_share is 1.01; it must be in \[0, 1\]"),
    (epoch("PRAYER"), "solution is 'PRAYER'; it must be one of 'Baseline', 'ZERO', 'MIG'"),
    (epoch("ZERO", skewness={8: 2.0}), r"skewness has rank 8; ranks are 0\.\.7"),
    (epoch("ZERO", skewness={0: 0.5}), "skewness of rank 0 is 0.5; it must be finite and"),
    (epoch("ZERO", pruning_ratio=1.0), r"dropped is 1.0; it must be in \[0, 1\)"),
    (epoch("MIG", pruning_ratio=0.5), "pruning_ratio is 0.5; only ZERO takes one"),
    (lambda: planner_of(Policy(num_senders=4), 4), "num_senders is 4; it must be at most 3"),
    (lambda: check_policy(Policy(solution="given", plan=Plan.plain(4)), 3), "plan is of 4 ranks; it must be of"),
    (lambda: planner_of(Policy(solution="MIG", refine=True), 4), "costs is None; it must be given where"),
    (lambda: simulate_ratios("ViT-2B", [0.5], ["Baseline"]), "model is 'ViT-2B'"),
    (lambda: simulate_ratios("ViT-1B", [0.5], ["SDP"]), "has 'SDP'"),
    (lambda: ratio_needed("ViT-1B", 20, "luck"), "meaning is 'luck'; it must be one of"),
    (lambda: mapped(8), r"nums_stragglers has 8; each must be in 0\.\.7"),
    (lambda: cost.extraction_s(cost.VIT_1B, cost.paper_machine(), 1.5), r"removed is 1.5; it must be in \[0, 1\]"),
    (lambda: counted.count_worked_example([]), "imputations is empty"),
    (lambda: counted.draw_case(0, 4), r"num_stragglers is 4; it must be in 1..3"),
    (lambda: measured.measure_variants({}, rounds=6), "variants is empty"),
    (lambda: measured.Size(batch=0), "batch is 0; it must be at least 1"),
)


test_policies_that_contradict_themselves_are_refused = refusals(
    ({"scheme": "best"}, "'best'"),
    ({"solution": "ZERO", "pruning_ratio": 1.0}, r"pruning_ratio is 1.0; it must be in \[0, 1\)"),
    ({"solution": "MIG", "pruning_ratio": 0.5}, "pruning_ratio is 0.5; it must be None with MIG"),
    ({"solution": "given"}, "plan is None; it must be given with given, and only there"),
    ({"solution": "ZERO", "selection": "PriDiffE"}, "pruning_ratio is None; .* where selection is PriDiffE"),
    ({"solution": "MIG", "num_senders": 1}, "num_senders is 1; it must be None, or 0 or more where"),
    ({"solution": "ZERO", "refine": True}, "refine is True; it must be False where solution is ZERO"),
    ({"refine": True, "num_senders": 1}, "num_senders is 1; it must be None where refine is True"),
    ({"refine": True, "selection": "PriDiffR"}, "selection is PriDiffR; it must be Rd or Pri where refine is True"),
    ({"threshold": math.inf}, "threshold is inf; it must be finite and above 0"),
    ({"patience": 0}, "patience is 0; it must be at least 1"),
    ({"pruning_ratio": "0.5"}, "pruning_ratio is '0.5'; it must be a number"),
    ({"num_senders": 1.0}, "num_senders is 1.0; it must be a whole number"),
    ({"solution": "given", "plan": 3}, "plan is 3; it must be a Plan or None"),
    ({"decay": 1.1}, r"decay is 1.1; it must be in \[0, 1\]"),
    of=Policy,
)
