"""Training under stragglers: virtual ranks in one process equal real gloo ranks, for every solution."""

import pytest

from workbench.launch import Ranks
from workbench.techniques.flextp.measured.accuracy import compare_on_ranks, train_vit, train_vit_on_ranks

pytestmark = pytest.mark.timeout(110)

# Two epochs of two steps: the straggler moves once, and statistics are renewed before columns are chosen again.
FEW = {"epochs": 2, "batch": 8, "limit": 16, "num_ranks": 2, "seed": 3}
MOVES = {"skewness": [8.0], "moves": True}
ZERO, SEMI = {"solution": "ZERO", **MOVES}, {"solution": "SEMI", "selection": "PriDiffR", **MOVES}
SOLUTIONS = {
    "Baseline": {"solution": "Baseline", **MOVES},
    "ZERO-Rd": {**ZERO, "selection": "Rd"},
    "ZERO-Pri, Same": {**ZERO, "selection": "Pri", "imputation": "Same"},
    "ZERO-PriDiffE, Average": {**ZERO, "selection": "PriDiffE", "pruning_ratio": 0.5, "imputation": "Average"},
    "ZERO-Pri everywhere": {**ZERO, "selection": "Pri", "pruning_ratio": 0.5, "everywhere": True},
    "MIG": {"solution": "MIG", **MOVES},
    "SEMI": SEMI,
    "SEMI refined": {**SEMI, "selection": "Pri", "refine": True},
}


@pytest.fixture(autouse=True, scope="module")
def digits(tmp_path_factory):
    """Train on the digits, whatever is on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("WORKBENCH_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
            patch.delenv(variable, raising=False)
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hf")))
        yield


@pytest.fixture(scope="module")
def ranks(digits):
    with Ranks(2, preload=(train_vit.__module__,)) as pool:
        yield pool


@pytest.mark.parametrize("name", SOLUTIONS)
def test_real_ranks_train_as_virtual_ones_do(name, ranks):
    virtual, real = train_vit(**FEW, **SOLUTIONS[name]), train_vit_on_ranks(ranks, **FEW, **SOLUTIONS[name])
    assert real["train_loss"] == pytest.approx(virtual["train_loss"], rel=1e-4)  # sums in another order, four steps
    assert real["accuracy"] == pytest.approx(virtual["accuracy"], abs=0.01)  # a few of some hundred digits
    for quantity in ("plans", "dropped_share", "migrated_share"):
        assert real[quantity] == virtual[quantity]
    drops, migrates = name not in ("Baseline", "MIG", "SEMI refined"), name in ("MIG", "SEMI refined")
    assert (virtual["dropped_share"] > 0, virtual["migrated_share"] > 0) == (drops, migrates)
    with pytest.raises(ValueError, match="num_ranks is 4; it must be the pool's 2"):
        train_vit_on_ranks(ranks, num_ranks=4)


def test_where_nobody_straggles_every_solution_is_the_baseline_bit_for_bit():
    plain, *others = (
        train_vit(**FEW, **variant)
        for variant in ({}, {**ZERO, "skewness": [1.0]}, {**SEMI, "skewness": [1.0]}, {"solution": "Baseline", **MOVES})
    )
    assert {other["train_loss"] for other in others} == {plain["train_loss"]}
    assert {other["dropped_share"] for other in others} == {0.0}
    assert plain["data"][0]["source"] == "stand-in"


def test_ranks_drop_the_shares_that_each_is_given_and_without_statistics_choose_again():
    for dropped, share in (([0.75, 0.25], 0.5), ([0.75], 0.375)):
        assert train_vit(**FEW | {"solution": "ZERO", "dropped": dropped})["dropped_share"] == pytest.approx(share)
    arguments = {**FEW, **SOLUTIONS["ZERO-Pri everywhere"], "epochs": 3}
    kept, forgotten = (train_vit(**arguments, is_incremental=is_so)["train_loss"] for is_so in (True, False))
    assert kept != forgotten


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": "huge"}, "size is 'huge'; it must be one of tiny, small, 1B, 3B"),
        ({"num_ranks": 3}, "num_ranks is 3; it must be at least 2 and divide the model's 8 attention heads"),
        ({"num_ranks": 1}, "num_ranks is 1; it must be at least 2"),
        ({"limit": 0}, "limit is 0; it must be at least 1, or None for all images"),
        ({"skewness": [2.0, 2.0, 2.0]}, "skewness is .*; it must be at most 2 values"),
        ({"skewness": [0.5]}, "skewness of rank 0 is 0.5"),
        ({"solution": "ZERO", "pruning_ratio": 1.0}, "pruning_ratio is 1.0; it must be in"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(wrong, message, monkeypatch):
    monkeypatch.setattr("workbench.datasets.cifar10.load", None)
    with pytest.raises(ValueError, match=message):
        train_vit(**{**FEW, **wrong})


def test_every_variant_is_looked_at_before_ranks_start(monkeypatch):
    monkeypatch.setattr("workbench.techniques.flextp.measured.accuracy.Ranks", None)
    with pytest.raises(ValueError, match="skewness of rank 0 is 0.5"):
        compare_on_ranks([{}, {"skewness": [0.5]}], **FEW)
