"""The timing study: injected delays of a meter, rows of turns worked by hand, and turns on real ranks.

Nothing here asserts a duration.
"""

import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from cases import refusals

from workbench.launch import run_on_ranks
from workbench.rows import spread_row, value_row
from workbench.study.breakdown import break_down
from workbench.study.timing import Timed, Turn, Turns, take_turns
from workbench.techniques.flextp import measured
from workbench.techniques.flextp import plots as pictures
from workbench.techniques.flextp.measured import Notes, Setting, Size, Variant, timing
from workbench.techniques.flextp.method import Costs, Plan, RankPlan
from workbench.techniques.flextp.runtime import Meter
from workbench.timeline import Action
from workbench.timeline.stragglers import Dose, Sleeper, StragglerTrace

SMALL = Size(hidden=64, layers=1, heads=2, patch=8, batch=2)
SLOW = (8.0,)


@pytest.mark.parametrize(
    ("skewness", "slowness", "products", "slept", "dose"),
    [
        # 0.1 s of the processor at skewness 8 are 0.7 s of sleep, whatever the product waited for a core.
        (8.0, 1.0, [(0.1, 0.5)], [0.7], (0.7, 0.7, 0.7, 0.0)),
        # Slowness 4: 0.1 s last 0.4 s. 0.25 s passed, so 0.15 s are left; of 0.9 s more no sleep is taken back.
        (1.0, 4.0, [(0.1, 0.25), (0.1, 0.9)], [0.15], (0.6, 0.0, 0.6, 0.45)),
        # At skewness 2 it is to last 0.8 s: of the 0.7 s of sleep at most the 0.3 s of slowness are spared.
        (2.0, 4.0, [(0.1, 0.9)], [0.4], (0.7, 0.4, 0.7, 0.3)),
    ],
)
def test_waiting_for_a_core_counts_as_slowness_but_never_as_straggling(
    monkeypatch, skewness, slowness, products, slept, dose
):
    now, sleeps = SimpleNamespace(cpu_s=0.0, wall_s=0.0), []
    monkeypatch.setattr(time, "thread_time", lambda: now.cpu_s)
    monkeypatch.setattr(time, "perf_counter", lambda: now.wall_s)

    def move(cpu_s, wall_s):
        now.cpu_s, now.wall_s = now.cpu_s + cpu_s, now.wall_s + wall_s

    sleeper = Sleeper(clock=lambda: now.wall_s, sleep=lambda seconds: (sleeps.append(seconds), move(0, seconds)))
    meter = Meter(0, StragglerTrace.fixed(1, {0: skewness}), slowness=slowness, sleeper=sleeper)
    meter.clock = lambda: now.cpu_s
    meter.begin(0)
    for cpu_s, wall_s in products:
        meter.time(move, cpu_s, wall_s)
    assert sleeps == pytest.approx(slept)
    assert meter.end(1.0).product_s == pytest.approx(0.1 * skewness * slowness * len(products))
    names = ("intended_s", "straggling_s", "delivered_s", "passed_s")
    assert meter.dose.as_record() == pytest.approx(dict(zip(names, dose, strict=True)))


def test_on_a_gpu_what_is_queued_before_a_product_or_beside_it_is_none_of_its_time(monkeypatch):
    now, sleeps = SimpleNamespace(wall_s=0.0, queued_s=0.0), []

    def finish():
        now.wall_s, now.queued_s = now.wall_s + now.queued_s, 0.0

    def queue(seconds):
        now.queued_s += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now.wall_s)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(synchronize=finish))
    monkeypatch.setattr(torch.cuda, "synchronize", pytest.fail)  # it would wait for messages
    sleeper = Sleeper(clock=lambda: now.wall_s, sleep=sleeps.append)
    meter = Meter(0, slowness=4.0, device="cuda", sleeper=sleeper)
    meter.begin(0)
    queue(0.2)  # such as a norm
    meter.time(queue, 0.1)
    assert sleeps == pytest.approx([0.3])  # at slowness 4 the product lasts 0.4 s


STUDY = {
    "plain": Variant(),
    "slow": Variant(skewness=SLOW),
    "Rd": Variant(solution="ZERO", selection="Rd", skewness=SLOW),
    "Pri": Variant(solution="ZERO", skewness=SLOW),
    "PriDiffR": Variant(solution="ZERO", selection="PriDiffR", skewness=SLOW),
    "PriDiffM": Variant(solution="ZERO", selection="PriDiffM", skewness=SLOW),
    "one_shot": Variant(solution="ZERO", reference="mean", skewness=SLOW),
    "tree": Variant(solution="MIG", migrated=0.5),
    "star": Variant(solution="MIG", migrated=0.5, scheme="scatter-gather"),
    "idle": Variant(solution="SEMI", skewness=(1.0,)),
    "with balance": Variant(),
    "as it is": None,
}


def timed(**seconds):
    """Make six rounds of four equal ranks by variant from (iteration, product) seconds of two iterations."""
    rounds, plan = {}, Plan(ranks=(RankPlan(migrated=0.5), *[RankPlan()] * 3))
    for name, (iteration_s, product_s) in seconds.items():
        actions = (
            Action(resource="rank", start_s=0, end_s=product_s, label="product"),
            Action(resource="rank", start_s=0, end_s=iteration_s, label="iteration"),
        )
        balanced = {"dropped_share": 0.25, "plan": plan} if STUDY[name] else {}
        notes = Notes(dose=Dose(intended_s=2.0, delivered_s=2.1), **balanced)
        turn = Turn(name=name, length=2, actions=actions, cpu_s=iteration_s / 4, notes=notes)
        rounds[name] = [(turn,) * 4] * 6
    return Timed(rounds=rounds, facts={})


def rows_of(**seconds):
    variants = {name: STUDY[name] for name in seconds}
    keys = {name: {"variant": name, "solution": name} for name in seconds}
    return measured.rows_of(variants, timed(**seconds), keys=keys, iterations_per_epoch=10)


def values_of(rows, name):
    return {row["quantity"]: row["value"] for row in rows if row["variant"] == name and row.get("rank", 0) == 0}


def test_rows_hold_speedups_and_the_best_possible_ones():
    # Products take 4 of 5 s: o = 1/4. Ideal: (0.25 + 8) / (0.25 + 4 / 3.125) = 8.25 / 1.53. Eq. 1's bound is
    # 8.25 / 1.25, and for the one-shot form, down to the mean (8 + 3) / 4 of products, 8.25 / (0.25 + 2.75).
    rows = rows_of(plain=(10.0, 8.0), slow=(66.0, 64.0), Pri=(11.0, 9.0), one_shot=(33.0, 8.0))
    pri, once = values_of(rows, "Pri"), values_of(rows, "one_shot")
    assert (pri["iteration_s"], pri["epoch_s"], pri["cpu_s"], pri["speedup"]) == (5.5, 55.0, 4 * 2.75, 6.0)
    assert pri["epoch_saved"] == pytest.approx(100 * (1 - 5.5 / 33))
    assert pri["ideal_speedup"] == pytest.approx(8.25 / 1.53)
    assert pri["share_of_bound"] == pytest.approx(6 / (8.25 / 1.25))
    assert once["bound"] == pytest.approx(8.25 / 3)
    assert (pri["dropped_share"], pri["migrated_share"]) == (0.25, 0.125)
    assert (pri["rank_drops"], pri["rank_migrates"]) == (0.25, 0.5)
    assert (pri["dose_intended_s"], pri["dose_delivered_s"]) == (2.0, 2.1)
    assert pri["dose_error"] == pytest.approx(0.05)


def test_ratios_whose_mean_is_a_constant_have_a_name_and_redrawn_columns_are_chosen_anew_in_every_iteration():
    options = {"solution": "ZERO", "selection": "PriDiffM"}
    assert measured.rows.name_of(options) == "ZERO-PriDiffM"
    assert measured.rows.name_of({**options, "pruning_ratio": 0.5}) == "ZERO-PriDiffM, constant γ"
    redrawn = Variant(solution="ZERO", selection=measured.rows.REDRAWN, pruning_ratio=0.5, skewness=SLOW)
    policy = redrawn.policy(4, iterations_per_epoch=79, seed=1)
    assert (policy.selection.value, policy.iterations_per_epoch, policy.seed) == ("Rd", 1, 1)


def test_variants_that_differ_in_one_option_are_compared_within_rounds():
    layers = {"PriDiffR": (7.2, 8.0), "PriDiffM": (8.1, 8.0)}
    rows = rows_of(Rd=(12.0, 8.0), Pri=(9.0, 8.0), **layers, tree=(10.0, 8.0), star=(12.0, 8.0))
    assert "speedup" not in values_of(rows, "Pri")  # without a Baseline under the same stragglers
    assert values_of(rows, "Pri")["over_random"] == 0.75
    assert values_of(rows, "PriDiffR")["epoch_saved_over_pri"] == pytest.approx(20)
    assert values_of(rows, "PriDiffM")["epoch_saved_over_pri"] == pytest.approx(10)
    assert values_of(rows, "tree")["gap"] == pytest.approx(0.2) and "gap" not in values_of(rows, "star")
    idle = values_of(rows_of(plain=(12.0, 8.0), idle=(10.0, 8.0)), "idle")
    assert idle["speedup"] == 1.2  # skewness 1 is no straggler
    rows = rows_of(**{"with balance": (11.0, 8.0), "as it is": (10.0, 0.0)})
    values = values_of(rows, "with balance")
    assert values["over_unbalanced"] == values["cpu_over_unbalanced"] == pytest.approx(1.1)
    assert {"product_s", "rank_drops"}.isdisjoint(values_of(rows, "as it is"))
    labels = [text.get_text() for text in pictures.draw_machinery(rows, asked=1.02).axes[0].texts]
    assert labels == ["1.100 (1.100 to 1.100)"] * 2


def test_entries_of_a_figure_have_names_and_keys_and_none_twice():
    compared = [{"solution": "Baseline"}, {"solution": "ZERO", "selection": "Pri", "skewness": [8.0]}]
    variants, keys = measured.variants_of(compared, ["skewness"], model="ViT-1B")
    assert list(variants) == ["Baseline χ 1", "ZERO-Pri χ 8"]
    assert keys["ZERO-Pri χ 8"] == {"solution": "ZERO-Pri", "skewness": 8.0, "model": "ViT-1B"}
    with pytest.raises(ValueError, match=r"keys is \['skewness'\]; it must tell"):
        measured.variants_of([compared[0], compared[0]], ["skewness"])


def along(axis, places, dropped=()):
    """Compare places along an axis: {name: (key columns, iterations round by round)}."""
    keys, rounds = ({name: place[i] for name, place in places.items()} for i in (0, 1))
    rows = [value_row("dropped_share", share, **keys[name]) for name, share in dict(dropped).items()]
    rows += [spread_row("epoch_s", rounds[name], "s", **keys[name]) for name in places]
    compared = measured.along_axis(rounds, keys, rows, axis)
    return {(row["quantity"], row["solution"]): (row["value"], row["low"], row["high"]) for row in compared}


def test_growth_and_the_straight_line_are_of_a_solution_within_rounds():
    # From 1 s at χ = 1 to 8 s at χ = 8 the line passes 4 s at χ = 4; 4.4 s lie a tenth above it. Every other round all
    # takes twice as long, which changes neither.
    places = {
        f"χ {x}": ({"solution": "Baseline", "skewness": x}, [seconds, 2 * seconds] * 3)
        for x, seconds in ((1.0, 1.0), (2.0, 2.0), (4.0, 4.4), (8.0, 8.0))
    }
    compared = along("skewness", places)
    assert compared["growth", "Baseline"] == (8.0, 8.0, 8.0)
    assert compared["off_straight_line", "Baseline"] == pytest.approx((0.1, 0.1, 0.1))
    assert along("skewness", {place: places[place] for place in ("χ 1.0", "χ 8.0")}) == {}  # two places make no line


def test_a_division_is_better_than_the_planned_one_if_it_is_faster_round_by_round_and_drops_less():
    divisions = {"better": [8.0] * 6, "drops more": [7.0] * 6, "unsure": [9.0] * 5 + [12.0], "slower": [11.0] * 6}
    places = {"SEMI": ({"solution": "SEMI"}, [10.0] * 6), "Baseline": ({"solution": "Baseline"}, [30.0] * 6)}
    for number, (name, seconds) in enumerate(divisions.items()):
        places[name] = ({"solution": "SEMI(x)", "num_senders": number}, seconds)
    dropped = dict.fromkeys(places, 0.0) | {"SEMI": 0.2, "better": 0.1, "drops more": 0.3}
    compared = along("num_senders", places, dropped)
    assert compared["better_divisions", "SEMI"] == (2, 1, 2)
    assert compared["over_fastest_division", "SEMI"] == pytest.approx((10 / 7, 10 / 7, 10 / 7))
    assert compared["slowest_epoch_s", "SEMI(x)"][0] == pytest.approx(11)
    assert compared["slowest_epoch_s", "Baseline"][0] == 30


def test_the_model_stands_beside_the_measurement_and_names_a_winner():
    # Four ranks, own time 2 s, 1 s of it in products; at χ = 5 the Baseline takes 6 s. Whatever moves costs nothing, so
    # that the ideal brings all to 1 + 4 / (3 + 1 / 5) = 2.25 s, and a migration without losses wins.
    plain = {"solution": "Baseline", "place": "no straggler"}
    rows = [value_row("iteration_s", 2.0, "s", **plain), value_row("product_s", 1.0, "s", **plain)]
    for name, seconds in {"Baseline": 7.5, "ZERO-Pri": 2.5, "MIG": 2.5, "SEMI": 2.5}.items():
        keys = {"solution": name, "place": "1 of χ 5"}
        rows += [value_row("iteration_s", seconds, "s", **keys), value_row("dropped_share", 0.1, **keys)]
    costs = Costs.straight(compute_s=1.0)
    predicted = measured.predicted_rows(rows, costs, measured.map_points([(5.0, 1)]), 4)
    predicted = {(row["quantity"], row.get("solution")): row for row in predicted}
    assert predicted["predicted_s", "Baseline"]["value"] == pytest.approx(6)
    assert predicted["prediction_error", "Baseline"]["value"] == pytest.approx(6 / 7.5 - 1)
    assert predicted["winner_agrees", None]["winner"] == "MIG by the model, ZERO measured"


VARIANTS = {
    "plain": Variant(),
    "slow": Variant(skewness=SLOW),
    "SEMI": Variant(solution="SEMI", refine=True, skewness=SLOW),
    "moves": Variant(solution="ZERO", pruning_ratio=0.5, skewness=SLOW, moves=True),
}


def taken(device="cpu"):
    """Take two turns of each variant at both places of the straggler that moves."""
    turns = Turns(rounds=2, warmup=2, repeats=2)
    setting = Setting(size=Size(hidden=64, layers=1, heads=2, patch=8), turns=turns, slowness=8.0, device=device)
    kept, facts = take_turns(measured.trials, (VARIANTS, setting), turns, device)
    return [(turn.name, turn.notes, break_down([turn.actions])) for turn in kept], facts["SEMI"]


def test_every_rank_gets_its_dose_and_a_straggler_moves_to_the_next_rank(pools):
    by_rank = [turns for turns, costs in pools(2).run(taken) if costs is not None]
    for turns in by_rank:
        intended_s = sum(notes.dose.intended_s for _, notes, _ in turns)
        # Nothing is spared; how late a busy machine wakes its sleepers is no matter of the code (see `Sleeper`).
        assert sum(notes.dose.delivered_s for _, notes, _ in turns) > 0.95 * intended_s - 0.02
    slow = [[notes.dose.delivered_s for name, notes, _ in turns if name == "slow"] for turns in by_rank]
    straggler_s, other_s = map(sum, slow)
    assert straggler_s > other_s
    moving = [notes.plan.ranks for name, notes, _ in by_rank[0] if name == "moves"]
    assert [[rank.dropped for rank in ranks] for ranks in (moving[0], moving[-1])] == [[0.5, 0], [0, 0.5]]


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: gloo sends no GPU's memory to one rank")
def test_every_gpu_gets_its_dose_and_its_messages_are_no_time_of_its_own():
    for turns, costs in run_on_ranks(taken, 2, "cuda", device="cuda", timeout_s=120):
        assert costs is not None
        for _, notes, parts in turns:
            assert notes.dose.delivered_s > 0.95 * notes.dose.intended_s - 0.02
            assert 0 < parts.product_s[0] < parts.iteration_s


def test_a_study_on_real_ranks_has_rows_and_a_timeline_of_every_variant(pools, monkeypatch):
    monkeypatch.setattr(timing, "open_ranks", lambda num_ranks, **more: nullcontext(pools(num_ranks)))
    variants = {name: VARIANTS[name] for name in ("plain", "slow")}
    study = measured.measure_variants(variants, size=SMALL, num_ranks=2, rounds=6, warmup=0)
    quantities = {"epoch_s", "waiting_s", "transfer_s", "speedup", "dose_error"}
    assert quantities <= set(values_of(study.rows, "plain")) & set(values_of(study.rows, "slow"))
    assert "share_of_ideal" in values_of(study.rows, "slow")
    assert study.timelines["slow"].resources == ("slow rank 0", "slow rank 1") and study.trace["traceEvents"]


FIXED = {"solution": "MIG", "migrated": 0.5}

test_options_that_contradict_each_other_are_refused = refusals(
    ({"everywhere": True}, "pruning_ratio is None; it must be in"),
    ({"solution": "MIG", "pruning_ratio": 0.5, "everywhere": True}, "everywhere is True; it must be False except"),
    ({"selection": "PriDiffR", "pruning_ratio": 0.5, "everywhere": True}, "selection is 'PriDiffR'; it must be Rd"),
    ({"dropped": [0.5], "pruning_ratio": 0.5}, "pruning_ratio is 0.5; it must be None with given"),
    ({"dropped": [0.5], "pruning_ratio": 0.5, "everywhere": True}, r"dropped is \(0.5,\); it must be \(\) but"),
    ({"solution": "SEMI", "migrated": 0.5}, "migrated is 0.5; it must be None where solution is SEMI"),
    (FIXED | {"refine": True}, "refine is True; it must be False where solution is given"),
    ({"moves": True}, r"skewness is \(\); it must be one value"),
    of=lambda **options: Variant(**{"solution": "ZERO"} | options).policy(2),
)


def started(variant=STUDY["plain"], **more):
    measured.measure_variants({"x": variant}, **{"size": SMALL, "num_ranks": 2, "rounds": 6} | more)


test_bad_input_is_refused_before_any_rank_starts = refusals(
    ({"num_ranks": 3}, "num_ranks is 3; it must be a divisor of the model's 2 heads"),
    ({"variant": None, "slowness": 4.0}, "slowness is 4.0; it must be 1 where 'x' is not balanced"),
    ({"variant": Variant(**FIXED, num_senders=2)}, r"senders is \(0, 1\); it must be at most num_ranks - 1 = 1"),
    ({"variant": Variant(skewness=SLOW * 3)}, "skewness is .*; it must be at most 2 values"),
    of=started,
)
