"""The timing study: what a meter charges, how an iteration is broken down, and rows from real ranks in turns.

Nothing here asserts a duration.
"""

import time
from statistics import median

import pytest
import torch

from workbench.launch import run_on_ranks
from workbench.reproduction import Project, load_catalogue
from workbench.techniques.flextp import plots as pictures
from workbench.techniques.flextp.method.levelling import SPEED_SHARE
from workbench.techniques.flextp.method.plan import Plan, RankPlan
from workbench.techniques.flextp.runtime.balancer import PATIENCE
from workbench.techniques.flextp.runtime.meter import Meter
from workbench.techniques.flextp.study import timing
from workbench.techniques.flextp.study.timing.beside import Beside, beside, plain_baseline
from workbench.techniques.flextp.study.timing.rank import Recording, Turns, _Trial, record_rounds
from workbench.techniques.flextp.study.timing.rows import Turn, rows_of
from workbench.techniques.flextp.study.variant import Variant
from workbench.timeline import Action, Kind, Recorder
from workbench.timeline.stragglers import Dose, Sleeper, StragglerTrace

pytestmark = pytest.mark.timeout(90)

TINY = timing.Size(hidden=32, layers=1, heads=2, patch=16, batch=2)


class Clocks:
    """A processor's clock and the wall's, which a test moves by hand; sleeping moves the wall."""

    def __init__(self, monkeypatch):
        self.cpu_s = self.wall_s = 0.0
        self.slept = []
        monkeypatch.setattr(time, "thread_time", lambda: self.cpu_s)
        monkeypatch.setattr(time, "perf_counter", lambda: self.wall_s)

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.wall_s += seconds

    def meter(self, skewness, slowness):
        sleeper = Sleeper(clock=lambda: self.wall_s, sleep=self.sleep)
        meter = Meter(0, StragglerTrace.fixed(1, {0: skewness}), slowness=slowness, sleeper=sleeper)
        meter.clock = lambda: self.cpu_s
        meter.begin(0)
        return meter

    def multiply(self, meter, cpu_s, wall_s):
        def product():
            self.cpu_s += cpu_s
            self.wall_s += wall_s

        meter.time(product)


def test_a_straggler_sleeps_the_rest_of_its_skewness_in_its_own_seconds(monkeypatch):
    # 0.1 s of the processor at skewness 8 are 0.7 s of sleep, whatever the product waited for a core.
    clocks = Clocks(monkeypatch)
    meter = clocks.meter(8.0, slowness=1.0)
    clocks.multiply(meter, cpu_s=0.1, wall_s=0.5)
    assert clocks.slept == pytest.approx([0.7])
    assert meter.end(1.0).product_s == pytest.approx(0.8)
    assert meter.dose.straggling_s == pytest.approx(meter.dose.intended_s) == pytest.approx(0.7)


def test_waiting_for_a_core_counts_as_slowness_but_never_as_straggling(monkeypatch):
    # Slowness 4: 0.1 s last 0.4 s. 0.25 s passed, so 0.15 s are left; of 0.9 s more than that no sleep is taken back.
    clocks = Clocks(monkeypatch)
    meter = clocks.meter(1.0, slowness=4.0)
    clocks.multiply(meter, cpu_s=0.1, wall_s=0.25)
    assert clocks.slept == pytest.approx([0.15])
    clocks.multiply(meter, cpu_s=0.1, wall_s=0.9)
    assert clocks.slept == pytest.approx([0.15])
    # At skewness 2 it is to last 0.8 s: of the 0.7 s of sleep at most the 0.3 s of slowness are spared.
    clocks = Clocks(monkeypatch)
    meter = clocks.meter(2.0, slowness=4.0)
    clocks.multiply(meter, cpu_s=0.1, wall_s=0.9)
    assert clocks.slept == pytest.approx([0.4])
    assert meter.end(1.0).product_s == pytest.approx(0.8)
    told = {name: pytest.approx(seconds) for name, seconds in meter.dose.as_record().items()}
    assert told == {"intended_s": 0.7, "straggling_s": 0.4, "delivered_s": 0.7, "passed_s": 0.3}


def actions(whole, products=(), messages=()):
    made = [Action(resource="r", start_s=a, end_s=b, label="product") for a, b in products]
    made += [Action(resource="r", start_s=a, end_s=b, kind=Kind.COMMUNICATE, label="all_reduce") for a, b in messages]
    return (*made, Action(resource="r", start_s=whole[0], end_s=whole[1], label="iteration"))


# Rank 0 multiplies until 2 and enters the message there; rank 1 multiplies until 6. Both are in it until 7.
STRAGGLING = [actions((0, 8), [(0, 2)], [(2, 7)]), actions((0, 8), [(1, 6)], [(6, 7)])]


def test_a_rank_waits_while_another_one_computes_and_transfers_while_all_are_in_messages():
    parts = timing.break_down(STRAGGLING)
    assert (parts.iteration_s, parts.transfer_s) == (8, 1)
    assert parts.product_s == (2, 5)
    assert parts.waiting_s == (4, 0)
    assert parts.other_s == (1, 2)
    for rank in range(2):
        assert parts.product_s[rank] + parts.waiting_s[rank] + parts.transfer_s + parts.other_s[rank] == 8


def test_a_timeline_is_without_gaps_and_tells_waiting_from_transfer():
    timeline = timing.told_apart(STRAGGLING, "SEMI")
    kinds = [(one.kind, one.start_s, one.end_s) for one in timeline.of("SEMI rank 0")]
    assert kinds == [(Kind.COMPUTE, 0, 2), (Kind.WAIT, 2, 6), (Kind.COMMUNICATE, 6, 7), (Kind.OTHER, 7, 8)]
    kinds = [one.kind for one in timeline.of("SEMI rank 1")]
    assert kinds == [Kind.OTHER, Kind.COMPUTE, Kind.COMMUNICATE, Kind.OTHER]


SLOW = (8.0,)
STUDY = {
    "plain": Variant(),
    "slow": Variant(skewness=SLOW),
    "Pri": Variant(solution="ZERO", skewness=SLOW),
    "PriDiffR": Variant(solution="ZERO", selection="PriDiffR", skewness=SLOW),
    "tree": Variant(solution="MIG", migrated=0.5),
    "star": Variant(solution="MIG", migrated=0.5, scheme="scatter-gather"),
    "idle": Variant(solution="SEMI", skewness=(1.0,)),
}


def test_every_variant_is_compared_with_those_under_the_same_stragglers():
    assert plain_baseline(STUDY) == "plain"
    assert dict(beside(STUDY, "Pri")) == {Beside.BASELINE: "slow", Beside.SAVED: "slow"}
    assert dict(beside(STUDY, "PriDiffR"))[Beside.PRI] == "Pri"
    assert dict(beside(STUDY, "tree")) == {Beside.BASELINE: "plain", Beside.SAVED: "plain", Beside.SCATTER: "star"}
    assert dict(beside(STUDY, "idle"))[Beside.BASELINE] == "plain"  # skewness 1 is no straggler
    assert dict(beside({**STUDY, "as it is": None}, "slow"))[Beside.UNBALANCED] == "as it is"


def turns(iteration_s, product_s):
    whole, product, dose = (0, iteration_s), [(0, product_s)], Dose(intended_s=2.0, delivered_s=2.1)
    plan = Plan(ranks=(RankPlan(migrated=0.5), *[RankPlan()] * 3))
    one = Recording(
        name="x", actions=actions(whole, product), dose=dose, cpu_s=iteration_s / 2, dropped_share=0.25, plan=plan
    )
    return [Turn(recordings=(one,) * 4, parts=timing.break_down([one.actions] * 4))] * 6


def values_of(rows, name):
    return {row["quantity"]: row["value"] for row in rows if row["variant"] == name and row.get("rank", 0) == 0}


def test_rows_say_speedups_and_what_was_the_best_possible():
    # Products take 4 of 5 s: o = 1/4. Ideal: (0.25 + 8) / (0.25 + 4 / 3.125) = 8.25 / 1.53; Pri's bound 8.25 / 1.25.
    names = ("plain", "slow", "Pri")
    found = {"plain": turns(5.0, 4.0), "slow": turns(33.0, 32.0), "Pri": turns(5.5, 4.5)}
    keys = {name: {"variant": name} for name in names}
    rows = rows_of({name: STUDY[name] for name in names}, found, keys=keys, iterations_per_epoch=10)
    pri = values_of(rows, "Pri")
    assert (pri["epoch_s"], pri["speedup"]) == (55.0, 6.0)
    assert pri["epoch_saved"] == pytest.approx(100 * (1 - 5.5 / 33))
    assert pri["ideal_speedup"] == pytest.approx(8.25 / 1.53)
    assert pri["share_of_bound"] == pytest.approx(6 / (8.25 / 1.25))
    assert (pri["dropped_share"], pri["migrated_share"]) == (0.25, 0.125)
    by_rank = [
        (row["quantity"], row["rank"], row["value"])
        for row in rows
        if row["quantity"] in ("rank_drops", "rank_migrates")
    ]
    assert ("rank_drops", 0, 0.25) in by_rank and ("rank_migrates", 0, 0.5) in by_rank
    assert (pri["dose_intended_s"], pri["dose_delivered_s"]) == (2.0, 2.1)
    assert pri["dose_error"] == pytest.approx(0.05)


def test_a_balanced_model_is_compared_with_the_one_as_it_is_in_time_and_in_processor_time():
    found = {"with balance": turns(5.5, 4.0), "without": turns(5.0, 4.0)}
    keys = {name: {"solution": name} for name in found}
    rows = rows_of({"with balance": Variant(), "without": None}, found, keys=keys, iterations_per_epoch=10)
    told = {(row["quantity"], row["solution"]): row["value"] for row in rows if "rank" not in row}
    assert told["cpu_s", "without"] == 4 * 2.5
    assert told["over_unbalanced", "with balance"] == told["cpu_over_unbalanced", "with balance"] == pytest.approx(1.1)
    labels = [text.get_text() for text in pictures.draw_machinery(rows, asked=1.02).axes[0].texts]
    assert labels == ["1.100 (1.100 to 1.100)"] * 2


def test_entries_of_a_figure_have_names_and_keys_and_none_twice():
    compared = [{"solution": "Baseline"}, {"solution": "ZERO", "selection": "Pri", "skewness": [8.0]}]
    assert list(timing.variants_of(compared, ["skewness"])) == ["Baseline χ 1", "ZERO-Pri χ 8"]
    keys = timing.keys_of(compared, ["skewness"], model="ViT-1B")
    assert keys["ZERO-Pri χ 8"] == {"solution": "ZERO-Pri", "skewness": 8.0, "model": "ViT-1B"}
    with pytest.raises(ValueError, match="must tell apart"):
        timing.variants_of([compared[0], compared[0]], ["skewness"])


def along(axis, places, dropped=()):
    """Compare places along an axis: {name: (key columns, iterations round by round)}."""
    rounds, keys = ({name: each[i] for name, each in places.items()} for i in (1, 0))
    rows = [{"quantity": "dropped_share", **keys[name], "value": value} for name, value in dict(dropped).items()]
    ends = {
        name: {"value": median(each), "low": min(each), "high": max(each), "unit": "s"} for name, each in rounds.items()
    }
    rows += [{"quantity": "epoch_s", **keys[name], **ends[name]} for name in places]
    found = timing.along_axis(rounds, keys, rows, axis)
    return {(row["quantity"], row["solution"]): (row["value"], row["low"], row["high"]) for row in found}


def test_growth_and_the_straight_line_are_told_by_solution_and_round():
    # From 1 s at χ = 1 to 8 s at χ = 8 the line passes 4 s at χ = 4; 4.4 s lie a tenth above it. Every other round all
    # takes twice as long, which changes neither.
    seconds = {1.0: 1.0, 2.0: 2.0, 4.0: 4.4, 8.0: 8.0}
    found = along(
        "skewness",
        {
            f"χ {x}": ({"solution": "Baseline", "skewness": x}, [y, 2 * y, y, 2 * y, y, 2 * y])
            for x, y in seconds.items()
        },
    )
    assert found["growth", "Baseline"] == (8.0, 8.0, 8.0)
    assert found["off_straight_line", "Baseline"] == pytest.approx((0.1, 0.1, 0.1))


def test_two_places_of_skewness_make_no_line():
    places = {f"χ {x}": ({"solution": "Baseline", "skewness": x}, [x] * 6) for x in (1.0, 8.0)}
    assert along("skewness", places) == {}


def test_a_division_is_better_than_the_planned_one_if_it_is_faster_round_by_round_and_drops_less():
    def division(number, quotients):
        return {"solution": "SEMI(x)", "num_senders": number}, [10.0 * each for each in quotients]

    places = {
        "SEMI": ({"solution": "SEMI"}, [10.0] * 6),
        "Baseline": ({"solution": "Baseline"}, [30.0] * 6),
        "surely better": division(0, [0.8] * 6),
        "drops more": division(1, [0.7] * 6),
        "perhaps faster": division(2, [0.9, 0.9, 0.9, 0.9, 0.9, 1.2]),
        "slower": division(3, [1.1] * 6),
    }
    dropped = {
        "SEMI": 0.2,
        "surely better": 0.1,
        "drops more": 0.3,
        "perhaps faster": 0.0,
        "slower": 0.0,
        "Baseline": 0.0,
    }
    found = along("num_senders", places, dropped)
    assert found["better_divisions", "SEMI"] == (2, 1, 2)
    assert found["over_fastest_division", "SEMI"] == pytest.approx((10 / 7, 10 / 7, 10 / 7))
    assert found["slowest_epoch_s", "SEMI(x)"][0] == pytest.approx(11)
    assert found["slowest_epoch_s", "Baseline"][0] == 30


VARIANTS = {
    "plain": Variant(),
    "slow": Variant(skewness=SLOW),
    "SEMI": Variant(solution="SEMI", refine=True, skewness=SLOW),
    "moves": Variant(solution="ZERO", pruning_ratio=0.5, skewness=SLOW, moves=True),
}


def recorded(device="cpu"):
    size = timing.Size(hidden=64, layers=1, heads=2, patch=8, batch=8)
    recordings, costs = record_rounds(VARIANTS, size, Turns(rounds=2, warmup=2), slowness=16.0, device=device)
    return [(one.name, one.dose, one.plan, timing.break_down([one.actions])) for one in recordings], costs is not None


def test_variants_take_turns_on_real_ranks_and_every_rank_gets_its_dose():
    by_rank = [found for found, has_costs in run_on_ranks(recorded, 2, timeout_s=60) if has_costs]
    order = [[name for name, *_ in found] for found in by_rank]
    assert order[0] == order[1]
    rounds = [order[0][start : start + 4] for start in range(0, 16, 4)]  # 2 of each place of the straggler that moves
    assert all(sorted(each) == sorted(VARIANTS) for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1
    for found in by_rank:
        intended_s, delivered_s = (sum(each) for each in zip(*((d.intended_s, d.delivered_s) for _, d, *_ in found)))
        # Nothing is spared; by how much a busy machine wakes its sleepers late is no matter of the code (see `Sleeper`).
        assert delivered_s > 0.95 * intended_s - 0.02
    straggler, other = ([dose for name, dose, *_ in found if name == "slow"] for found in by_rank)
    assert sum(dose.delivered_s for dose in straggler) > sum(dose.delivered_s for dose in other)
    moving = [plan.ranks for name, _, plan, _ in by_rank[0] if name == "moves"]
    assert [[rank.dropped for rank in ranks] for ranks in (moving[0], moving[-1])] == [[0.5, 0], [0, 0.5]]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_every_gpu_gets_its_dose_and_its_messages_are_no_time_of_its_own():
    for found, has_costs in run_on_ranks(recorded, 2, "cuda", device="cuda", timeout_s=120):
        assert has_costs
        for _, dose, _, parts in found:
            assert dose.delivered_s > 0.95 * dose.intended_s - 0.02
            assert 0 < parts.product_s[0] < parts.iteration_s


def test_a_study_on_real_ranks_has_rows_and_a_timeline_of_every_variant():
    names = ("plain", "slow")
    variants = {name: VARIANTS[name] for name in names}
    measured = timing.measure_variants(variants, size=TINY, num_ranks=2, rounds=6, warmup=0)
    quantities = {"iteration_s", "epoch_s", "product_s", "waiting_s", "transfer_s", "speedup", "dose_error"}
    for name in names:
        assert quantities <= set(values_of(measured.rows, name))
    assert {"ideal_speedup", "share_of_ideal"} <= set(values_of(measured.rows, "slow"))
    assert measured.timelines["slow"].resources == ("slow rank 0", "slow rank 1")
    assert measured.trace["traceEvents"]


def test_what_contradicts_itself_is_no_variant():
    with pytest.raises(ValueError, match="everywhere is True"):
        Variant(solution="MIG", pruning_ratio=0.5, everywhere=True)
    with pytest.raises(ValueError, match="migrated is 0.5, must be None where solution is SEMI"):
        Variant(solution="SEMI", migrated=0.5)
    with pytest.raises(ValueError, match="selection is PriDiffR, must be Rd or Pri where every rank drops"):
        Variant(solution="ZERO", selection="PriDiffR", pruning_ratio=0.5, everywhere=True)
    with pytest.raises(ValueError, match="refine and pruning_ratio must be left out where migrated is given"):
        Variant(solution="MIG", migrated=0.5, refine=True)


def chosen(iterations):
    """The columns that a real rank drops in the first and the last iteration, and whether it has statistics by then."""
    size, turns = timing.Size(hidden=64, layers=1, heads=2, patch=8, batch=2), Turns(rounds=2, warmup=2)
    variant = Variant(solution="ZERO", selection="Pri", pruning_ratio=0.5, everywhere=True)
    trial = _Trial("drops", variant, size, turns, Recorder(resource="rank"), 1.0, "cpu", None, True)
    found = []
    for _ in range(iterations):
        trial.take_turn()
        (chooser,) = trial.balancer._choosers.values()
        found.append([each.dropped.tolist() for each in chooser.choose(trial.balancer.plan.ranks[trial.rank])])
    return found[0], found[-1], bool(chooser._statistics[0].change.isfinite().any())


def test_after_the_warm_up_columns_are_chosen_by_what_was_measured():
    for first, last, is_measured in run_on_ranks(chosen, 2, 3, timeout_s=60):
        assert is_measured and first != last


def test_semi_selects_alike_wherever_it_is_measured_and_the_refined_one_is_the_default_of_balance():
    items = [item for item in load_catalogue(Project()) if item.technique == "flextp"]
    compared = [what for item in items for each in item.parameters.values() for what in each.get("compared", ())]
    semi = [what for what in compared if what.get("solution") == "SEMI"]
    papers, default = ("PriDiffR", False, SPEED_SHARE), ("Pri", True, SPEED_SHARE)  # `balance` has the latter
    told = {tuple(getattr(Variant.of(what), name) for name in ("selection", "refine", "speed_share")) for what in semi}
    assert told == {papers, default}
    timed = [
        what
        for item in items
        if item.times
        for each in item.parameters.values()
        for what in each.get("compared", ())
        if what["solution"] in ("MIG", "SEMI")
    ]
    assert {what["patience"] for what in timed if "migrated" not in what} == {PATIENCE}


def test_bad_input_is_refused_before_any_rank_starts():
    with pytest.raises(ValueError, match="num_senders is 2; it must be at most 1"):
        timing.measure_variants(
            {"a": Variant(solution="SEMI", num_senders=2, skewness=(4.0,))}, size=TINY, num_ranks=2, rounds=6
        )
    with pytest.raises(ValueError, match="num_ranks is 3, must divide the model's 2 attention heads"):
        timing.measure_variants({"a": Variant()}, size=TINY, num_ranks=3, rounds=6)
    with pytest.raises(ValueError, match="rounds is 5, must make at least 6"):
        timing.measure_variants({"plain": Variant()}, size=TINY, rounds=5)
    with pytest.raises(ValueError, match="slowness is 4.0, must be 1 where 'as it is'"):
        timing.measure_variants({"as it is": None}, size=TINY, rounds=6, slowness=4.0)
    with pytest.raises(ValueError, match="num_senders is 4, must be in 1..3"):
        timing.measure_variants({"all": Variant(solution="MIG", migrated=0.5, num_senders=4)}, size=TINY, rounds=6)
    with pytest.raises(ValueError, match="batch is 0, must be at least 1"):
        timing.Size(batch=0)
    with pytest.raises(ValueError, match="warmup is -1"):
        Turns(rounds=6, warmup=-1)
