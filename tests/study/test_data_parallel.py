"""Schemes of data parallelism: what is refused, and how iterations and trainings are compared, by hand."""

from contextlib import nullcontext

import pytest

from tests.cases import refusals, value
from workbench.cluster import GIGABIT_BYTES_PER_S
from workbench.models.small import SMALL_MODELS
from workbench.study import data_parallel
from workbench.study.data_parallel import (
    ALONE,
    DDP,
    Hooks,
    Setting,
    at_share,
    iteration_rows,
    learning_cells,
    learning_rows,
)
from workbench.study.timing import Timed, Turn
from workbench.timeline import Action, Kind


def turns(scheme, seconds):
    ends = [(Action(resource="rank 0", start_s=0.0, end_s=end, kind=Kind.OTHER, label="iteration"),) for end in seconds]
    return [(Turn(name=scheme, length=1, actions=actions, cpu_s=0.0),) for actions in ends]


def test_gains_are_taken_turn_by_turn():
    seconds = {"DDP": [4.0] * 6, "Espresso": [2.0, 1.0, 2.0, 2.0, 4.0, 2.0], ALONE: [1.0] * 6}
    rounds = {scheme: turns(scheme, taken_s) for scheme, taken_s in seconds.items()}
    timed = Timed(rounds=rounds, facts={scheme: ({"plan": ""},) for scheme in rounds})
    rows = iteration_rows(timed, Setting(model="bert"), ["Espresso"], {"Espresso": 1.0})
    (gain,) = [row for row in rows if row["quantity"] == "gain"]
    assert (gain["scheme"], gain["over"], gain["value"], gain["low"], gain["high"]) == ("Espresso", "DDP", 2, 1, 4)
    alone = {row["quantity"]: row["value"] for row in rows if "scheme" not in row}
    assert alone == {"computation_s": 1.0, "communication_share": 0.75}  # 1 of 4 s


def trained(variant, seed, seconds, losses, accuracy):
    curve = [[seconds * (step + 1) / len(losses), step + 1, loss] for step, loss in enumerate(losses)]
    return {"setting": {"variant": variant, "seed": seed}, "curve": curve, "scores": {"accuracy": accuracy}}


def test_trainings_are_compared_with_fp32_of_the_same_seed():
    results = [trained("DDP", 0, 8.0, [3.0, 1.0], 50.0), trained("FP16", 0, 4.0, [3.0, 1.0], 51.0)]
    results += [trained("Espresso, dgc", 0, 2.0, [1.0, 0.5], 49.0)]
    rows = [row for row in learning_rows(results, target=1.0) if row["variant"] == "Espresso, dgc"]
    values = {row["quantity"]: row["value"] for row in rows}
    assert (values["points_below"], values["speedup"], values["speedup_over_fp16"]) == (1.0, 4.0, 2.0)
    assert values["target_speedup"] == 8.0  # 8 s beside 1 s
    assert not [row for row in learning_rows(results, target=0.1) if row["quantity"] == "target_speedup"]


HOOKS = Hooks(schemes=["Cupcake"], plan=None, attach=None, codecs=["dgc"])

test_settings_schemes_and_codecs_that_cannot_be_are_refused = refusals(
    (lambda: Setting(model="elsewhere"), "model is 'elsewhere'"),
    (lambda: Setting(model="bert", codec="zip"), "codec is 'zip'"),
    (lambda: Setting(model="bert", num_machines=0), "num_machines"),
    (lambda: Setting(model="bert", gigabits_per_s=0.0), "gigabits_per_s"),
    (lambda: at_share(Setting(model="bert"), 1.0), "share is 1.0; it must be in 0 < share < 1"),
    (lambda: HOOKS.check(["DDP", "Zen"], "dgc"), "scheme is 'Zen'; it must be one of DDP, FP16, Cupcake"),
    (lambda: HOOKS.check(["Cupcake"], "onebit"), "codec is 'onebit'; it must be one of dgc"),
)


def test_a_variant_is_compared_with_a_scheme_of_its_own_codec():
    results = [trained("DDP", 0, 8.0, [3.0], 50.0), trained("FP16", 0, 4.0, [3.0], 50.0)]
    results += [trained("HiPress, dgc", 0, 6.0, [3.0], 50.0), trained("HiPress, onebit", 0, 9.0, [3.0], 50.0)]
    rows = learning_rows([*results, trained("Cupcake, dgc", 0, 2.0, [3.0], 50.0)], 1.0, {"over_hipress": "HiPress"})
    gains = {row["variant"]: row["value"] for row in rows if row["quantity"] == "over_hipress"}
    assert gains["Cupcake, dgc"] == 3.0 and "DDP" not in gains


def test_every_scheme_is_trained_with_every_codec_for_every_seed():
    cells = learning_cells(["HiPress", "Cupcake"], ["dgc", "onebit"], [0, 1], steps=5)
    assert len(cells) == 2 * (2 + 2 * 2) and all(cell["steps"] == 5 for cell in cells)


def ddp_s(setting, beyond_s):
    gradient_bytes = 4 * sum(parameter.numel() for parameter in SMALL_MODELS["vgg"]().parameters())
    return beyond_s + 1.5 * gradient_bytes / (setting.gigabits_per_s * GIGABIT_BYTES_PER_S)  # a ring of four ranks


def placed_at_share(monkeypatch, share, beyond_s):
    """Place a model that computes for 2 s, and whose iteration with DDP takes some seconds beside its links' time."""

    def timed(ranks, build, setting, **more):
        rounds = {ALONE: turns(ALONE, [2.0]), DDP: turns(DDP, [ddp_s(setting, beyond_s)])}
        return Timed(rounds=rounds, facts={})

    monkeypatch.setattr(data_parallel, "open_ranks", lambda *args, **more: nullcontext())
    monkeypatch.setattr(data_parallel, "time_variants", timed)
    return at_share(Setting(model="vgg"), share)


@pytest.mark.parametrize(("share", "beyond_s"), [(0.5, 2.0), (0.729, 1.7), (0.3, 1.4)])
def test_links_are_slowed_until_communication_takes_its_share(monkeypatch, share, beyond_s):
    placed, rows = placed_at_share(monkeypatch, share, beyond_s)
    assert 1 - 2 / ddp_s(placed, beyond_s) == pytest.approx(share)
    assert value(rows, "rate_bytes_per_s", choice="corrected") == placed.gigabits_per_s * GIGABIT_BYTES_PER_S


@pytest.mark.parametrize("beyond_s", [4.5, 4 - 1e-6])
def test_the_first_rate_stays_where_no_link_is_fast_enough_for_the_share(monkeypatch, beyond_s):
    placed, rows = placed_at_share(monkeypatch, 0.5, beyond_s)
    assert value(rows, "rate_bytes_per_s", choice="first") == placed.gigabits_per_s * GIGABIT_BYTES_PER_S
