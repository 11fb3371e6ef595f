"""The blind test of the advisor: its draw, its seal, its rows by hand, and four kinds on real ranks at smoke scale."""

from dataclasses import replace
from statistics import median

import pytest

from workbench.advisor import blind
from workbench.advisor.blind import KINDS, Drawn, Predicted
from workbench.advisor.predictions import PAYS
from workbench.reproduction import Project, load_catalogue
from workbench.reproduction.findings import ADVICE, BestRun, advice_tested
from workbench.rows import Row

SETTING = Drawn(number=1, kind="gradients", num_hosts=2, gigabits_per_s=1.0, sizes={"model": "vgg"})
OTHER = replace(SETTING, number=2)
SLOW = pytest.mark.slow
SECONDS = {"plain": 1.0, "half": 0.8, "own": 0.7}
PREDICTED = Predicted(seconds=SECONDS, plain=("plain", "half"))


def values_of(rows):
    return {row["quantity"]: row["value"] for row in rows if "setting" not in row and "kind" not in row}


def test_the_draw_is_of_the_seed_and_has_the_kinds_in_turns():
    settings = blind.draw(30, 0)
    assert settings == blind.draw(30, 0) != blind.draw(30, 1)
    assert [setting.kind for setting in settings] == [[*KINDS][number % 7] for number in range(30)]
    assert {setting.num_hosts for setting in settings if setting.kind == "gradients"} <= {2, 4}
    assert all((setting.link is None) == (setting.kind in ("pipelines", "tensors", "failures")) for setting in settings)
    assert blind.draw(2, 0) == settings[:2]


@pytest.mark.parametrize(
    ("own_s", "chosen"), [(0.8 / PAYS, "own"), (0.8 / PAYS + 1e-6, "half"), (0.9, "half"), (2.0, "half")]
)
def test_a_technique_is_advised_where_it_pays_over_the_best_plain_scheme(own_s, chosen):
    assert blind.advised(replace(PREDICTED, seconds=SECONDS | {"own": own_s})) == chosen


def test_regrets_and_errors_are_those_worked_by_hand():
    # First: own is advised and takes 1.0, half 0.8: 25 %. Second: own is advised and is the fastest; half takes 1.2.
    measured = [{"plain": [1.0], "half": [0.7, 0.8, 0.9], "own": [1.0]}, {"plain": [2.0], "half": [1.2], "own": [0.5]}]
    settings, predictions = [SETTING, OTHER], [PREDICTED, PREDICTED]
    rows = blind.rows(settings, predictions, measured, blind.seal(settings, predictions))
    assert [row["value"] for row in rows if row["quantity"] == "regret"] == pytest.approx([25, 0])
    assert [row["value"] for row in rows if row["quantity"] == "plain_regret"] == pytest.approx([0, 140])
    errors = [row["value"] for row in rows if row["quantity"] == "error"]
    assert errors == pytest.approx([0, 0, -30, -50, -100 / 3, 40])
    values = values_of(rows)
    assert values["median_error"] == pytest.approx(median(map(abs, errors)))
    assert (values["num_within"], values["share_within"], values["num_plain_within"]) == (1, 0.5, 1)
    assert (values["largest_regret"], values["settings"]) == (pytest.approx(25), 2)


def test_a_setting_without_a_prediction_counts_as_missed(monkeypatch):
    def noisy(setting):
        raise ValueError("too noisy")

    monkeypatch.setattr(blind, "KINDS", {"gradients": (noisy, None)})
    refused = blind.predict(OTHER)
    settings, predictions = [SETTING, OTHER], [PREDICTED, refused]
    measured = [{"plain": [1.0], "half": [0.8], "own": [0.7]}, blind.measure(OTHER, refused, 6)]
    rows = blind.rows(settings, predictions, measured, blind.seal(settings, predictions))
    assert [(row["setting"], row["why"]) for row in rows if row["quantity"] == "refused"] == [(2, "too noisy")]
    assert values_of(rows)["share_within"] == 0.5
    with pytest.raises(ValueError, match="no model could be calibrated"):
        blind.rows([OTHER], [refused], [{}], blind.seal([OTHER], [refused]))


def test_what_was_changed_after_the_seal_is_refused():
    sealed = blind.seal([SETTING], [PREDICTED])
    later = replace(PREDICTED, seconds=SECONDS | {"own": 1.0})
    with pytest.raises(ValueError, match="changed after the seal"):
        blind.rows([SETTING], [later], [{name: [1.0] for name in SECONDS}], sealed)
    assert blind.seal([OTHER], [PREDICTED]) != sealed != blind.seal([SETTING], [replace(PREDICTED, plain=("plain",))])


def test_the_first_page_and_the_advice_say_what_the_blind_test_came_to():
    (item,) = (item for item in load_catalogue(Project()) if item.id == ADVICE)
    names = {"settings": 30, "num_within": 26, "num_plain_within": 18, "median_error": 12.4}
    run = BestRun(item=item, run="", record=None, verdicts=())
    assert "not tested blind yet" in advice_tested({ADVICE: run}) == advice_tested({})

    class Ran:
        rows = tuple(Row(quantity=name, value=value, unit="1") for name, value in names.items())

    said = advice_tested({ADVICE: Ran})
    assert "30 drawn settings" in said and "fastest in 26, " in said and "in 18; " in said and "12 %" in said


SMALL = {
    "tensors": {"hidden": 64, "layers": 1, "batch": 2, "skewness": 4.0},
    "failures": {"device_s": 0.02, "every": 5, "lost_at": 9},
}


@pytest.mark.parametrize(
    "kind", ["gradients", "embeddings", pytest.param("tensors", marks=SLOW), pytest.param("failures", marks=SLOW)]
)
def test_on_real_ranks_every_scheme_is_predicted_and_then_measured(kind, monkeypatch):
    monkeypatch.setattr(blind, "ITERATIONS", 16)
    monkeypatch.setattr(blind, "RUNS", 1)
    setting = next(drawn for drawn in blind.draw(7) if drawn.kind == kind)
    setting = replace(setting, gigabits_per_s=5.0 if setting.link else 0.0, sizes=SMALL.get(kind, setting.sizes))
    predicted = blind.predict(setting)
    measured = blind.measure(setting, predicted, 6)
    assert list(measured) == list(predicted.seconds) and set(predicted.plain) < set(measured)
    assert min(predicted.seconds.values()) > 0 and min(map(min, measured.values())) > 0
    assert blind.rows([setting], [predicted], [measured], blind.seal([setting], [predicted]))
