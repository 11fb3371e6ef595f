"""Training under stragglers, virtual and real ranks alike; cells and rows of the accuracy study, and stand-ins."""

import itertools
from types import SimpleNamespace

import pytest
from cases import verdicts

from workbench.datasets import cifar10
from workbench.launch import Ranks
from workbench.reproduction import Project, load_catalogue
from workbench.reproduction.comparing import Verdict
from workbench.rows import value_row
from workbench.techniques.flextp.measured import Variant, accuracy
from workbench.techniques.flextp.measured.accuracy import CONTROL, compare_on_ranks, train_vit, train_vit_on_ranks

pytestmark = pytest.mark.usefixtures("generated_data")

# Two epochs of two steps: the straggler moves once, and statistics are renewed before columns are chosen again.
FEW = {"epochs": 2, "batch": 8, "limit": 16, "num_ranks": 2, "seed": 3}
MOVES = {"skewness": [8.0], "moves": True}
ZERO = {"solution": "ZERO", **MOVES}
SOLUTIONS = {
    "ZERO-Pri, Same": {**ZERO, "selection": "Pri", "imputation": "Same"},
    "ZERO-PriDiffE, Average": {**ZERO, "selection": "PriDiffE", "pruning_ratio": 0.5, "imputation": "Average"},
    "ZERO-Pri everywhere": {**ZERO, "selection": "Pri", "pruning_ratio": 0.5, "everywhere": True},
    "MIG": {"solution": "MIG", **MOVES},
    "SEMI refined": {"solution": "SEMI", "selection": "Pri", "refine": True, **MOVES},
}


def score_few_images():
    """Load 32 images to score a model with; a training's own limit counts."""
    accuracy.cifar10 = SimpleNamespace(load=lambda split, limit=32, seed=0: cifar10.load(split, limit, seed))


@pytest.fixture(scope="module")
def ranks(generated_data):
    with pytest.MonkeyPatch.context() as patch, Ranks(2, preload=(train_vit.__module__,)) as pool:
        patch.setattr(accuracy, "cifar10", cifar10)  # put back at the end
        score_few_images()
        pool.run(score_few_images)
        yield pool


@pytest.mark.parametrize("name", SOLUTIONS)
def test_real_ranks_train_as_virtual_ones_do(name, ranks):
    virtual, real = train_vit(**FEW, **SOLUTIONS[name]), train_vit_on_ranks(ranks, **FEW, **SOLUTIONS[name])
    assert real["train_loss"] == pytest.approx(virtual["train_loss"], rel=1e-4)  # sums in another order, four steps
    for quantity in ("accuracy", "plans", "dropped_share", "migrated_share"):
        assert real[quantity] == virtual[quantity]
    does = name != "MIG", name in ("MIG", "SEMI refined")
    assert (virtual["dropped_share"] > 0, virtual["migrated_share"] > 0) == does


def test_bad_arguments_are_refused_before_any_work(monkeypatch):
    monkeypatch.setattr("workbench.datasets.cifar10.load", None)
    with pytest.raises(ValueError, match="num_ranks is 4; it must be the pool's 2"):
        train_vit_on_ranks(SimpleNamespace(num_ranks=2), num_ranks=4)
    for wrong, message in (
        ({"size": "huge"}, "size is 'huge'; it must be one of tiny, small, 1B, 3B"),
        ({"num_ranks": 3}, "num_ranks is 3; it must be at least 2 and divide the model's 8 attention heads"),
        ({"limit": 0}, "limit is 0; it must be at least 1, or None for all images"),
    ):
        with pytest.raises(ValueError, match=message):
            train_vit(**{**FEW, **wrong})
    monkeypatch.setattr("workbench.techniques.flextp.measured.accuracy.Ranks", None)
    with pytest.raises(ValueError, match="skewness of rank 0 is 0.5"):  # every variant is looked at
        compare_on_ranks([{}, {"skewness": [0.5]}], **FEW)


REAL = [{"name": "cifar10/train", "source": "WORKBENCH_DATA", "detail": "", "sha256": "0"}]
ITEMS = {item.item: item for item in load_catalogue(Project()) if item.notebook == "notebooks/flextp/accuracy.ipynb"}

PLAIN = {"solution": "Baseline"}
RD = {"solution": "ZERO", "selection": "Rd", "pruning_ratio": 0.5, "everywhere": True}
PRI = {**RD, "selection": "Pri"}
SHARES = {"dropped_share": 0.25, "migrated_share": 0.0}


def training(accuracy: float) -> dict:
    run = {"num_test": 2000, "num_steps": 632, "train_loss": 1.5, "seconds": 1.0, "data": REAL}
    return {"accuracy": accuracy, "chance": 0.1, **SHARES, **run}


def rows_of(*trained: tuple[dict, float], keys=("pruning_ratio",), **same) -> list[dict]:
    compared, accuracies = zip(*trained, strict=True)
    return accuracy.accuracy_rows(compared, list(map(training, accuracies)), keys, **same)


def values_of(rows, quantity: str, *names: str) -> dict:
    of_quantity = [row for row in rows if row["quantity"] == quantity]
    return {tuple(row.get(name) for name in ("solution", "seed", *names)): row["value"] for row in of_quantity}


def at(seed: int, *variants: dict) -> list[dict]:
    return [{**variant, "seed": seed} for variant in variants]


def test_a_training_is_compared_with_the_baseline_of_its_own_seed_and_known_to_a_standard_error_of_its_images():
    seed_0, seed_1 = at(0, PLAIN, PRI), at(1, PLAIN, PRI)
    rows = rows_of((seed_0[0], 0.5), (seed_0[1], 0.4), (seed_1[0], 0.4), (seed_1[1], 0.44))
    keys = itertools.product(["ZERO-Pri"], [0, 1], ["points", "relative"])
    lost = dict(zip(keys, [10.0, 20.0, -4.0, -10.0], strict=True))
    assert values_of(rows, "accuracy_loss", "reading") == pytest.approx(lost)
    # (10 - 4)/2 = 3 points are lost on average, and the Baseline spans 50 - 40 = 10.
    assert values_of(rows, "loss_in_spreads") == pytest.approx({("ZERO-Pri", None): 0.3})
    # A fifth of 2,000 images: sqrt(0.2 * 0.8 / 2000) is 0.894 points, of the Baseline's 40 % 2.236 per cent.
    plain, pri = at(0, PLAIN, PRI)
    rows = [row for row in rows_of((plain, 0.4), (pri, 0.2)) if row["solution"] == "ZERO-Pri"]
    ends = {
        (row["quantity"], row.get("reading")): (row["low"], row["value"], row["high"]) for row in rows if "low" in row
    }
    assert ends == {
        ("accuracy", None): pytest.approx((20 - 0.8944, 20, 20 + 0.8944), abs=1e-4),
        ("accuracy_loss", "points"): pytest.approx((20 - 0.8944, 20, 20 + 0.8944), abs=1e-4),
        ("accuracy_loss", "relative"): pytest.approx((50 - 2.2361, 50, 50 + 2.2361), abs=1e-4),
    }
    assert not values_of(rows, "loss_in_spreads")  # without a second seed there is no spread


def test_the_narrowed_loss_is_that_of_the_ratio_where_it_is_most_on_average():
    small, large = {"pruning_ratio": 0.25}, {"pruning_ratio": 0.75}
    plain, rd, pri, more_rd, more_pri = at(0, PLAIN, RD | small, PRI | small, RD | large, PRI | large)
    # Points lost: Rd 4 and 20, Pri 1 and 12; narrowed by 3 and 8 points, by 75 and 40 per cent.
    rows = rows_of((plain, 0.5), (rd, 0.46), (pri, 0.49), (more_rd, 0.3), (more_pri, 0.38), model="ViT-1B")
    narrowed = {(None, 0, "points", "ViT-1B"): 8.0, (None, 0, "relative", "ViT-1B"): 75.0}
    assert values_of(rows, "loss_narrowed", "reading", "model") == pytest.approx(narrowed)
    rows = rows_of((plain, 0.5), (RD | {"seed": 0}, 0.5), (PRI | {"seed": 0}, 0.49))  # of no loss there is no share
    assert values_of(rows, "loss_narrowed", "reading") == pytest.approx({(None, 0, "points"): -1.0})


def test_a_baseline_at_chance_says_so():
    # sqrt(0.1 · 0.9 / 2000) = 0.0067: 0.113 lies less than two of it above 0.1, 0.114 more.
    plain = at(0, PLAIN)
    assert "at chance" in accuracy.chance_reason(plain, [training(0.113)])
    assert accuracy.chance_reason(plain, [training(0.114)]) == ""


def cells_of(*compared: dict, seed: int = 0, **arguments) -> list[dict]:
    return accuracy.training_cells(accuracy.compared_by_seed(compared, [seed]), **arguments)


def test_all_figures_share_their_baselines_and_ranks_that_all_drop_are_the_same_whoever_straggles():
    moves = {**PRI, "skewness": [8], "moves": True}
    alone = {**moves, "everywhere": False}
    plain, pri, pri_alone = cells_of(PRI, alone, seed=3, epochs=2)
    assert pri != pri_alone and plain["seed"] == 3 and plain["epochs"] == 2
    assert cells_of({**alone, "pruning_ratio": None, "skewness": [1]}, seed=3, epochs=2) == [plain, plain]
    assert cells_of(moves, seed=3, epochs=2) == [plain, pri]
    with pytest.raises(ValueError, match="migrated is given; it must be among solution, "):
        cells_of({"migrated": 0.5})


def made_up(item: str, profile: str) -> list[dict]:
    """Return rows of an item in a profile: all lose ten points, and seed 1 is a point ahead of seed 0."""
    given = ITEMS[item].parameters[profile]
    wanted = accuracy.compared_by_seed(given["compared"], given["seeds"])
    accuracy.training_cells(wanted)
    accuracies = {"Baseline": 0.5}
    trained = [training(accuracies.get(variant["solution"], 0.4) + variant["seed"] / 100) for variant in wanted]
    return accuracy.accuracy_rows(wanted, trained, given["keys"], model=given["model"])


@pytest.mark.parametrize("item", ITEMS)
def test_every_claim_can_be_judged_by_what_its_item_compares_and_some_are_about_accuracy(item):
    rows = {profile: made_up(item, profile) for profile in ITEMS[item].parameters}["full"]
    assert Verdict.NOT_RUN not in verdicts(ITEMS[item].id, rows, sources=REAL).values()
    assert any(claim.needs_real_data for claim in ITEMS[item].claims)


def timed_drops(**shares):
    """Rows of a timing study: the share that two ranks dropped, by solution."""
    return [
        value_row("rank_drops", share, solution=name, skewness=8.0, rank=rank)
        for name, by_rank in shares.items()
        for rank, share in enumerate(by_rank)
    ]


TIMED = {"Baseline": (0.0, 0.0), "ZERO-Pri": (0.958, 0.041), "SEMI": (0.6, 0.0), "SEMI refined": (0.0, 0.0)}


def test_the_accuracy_that_goes_with_a_speed_is_that_of_what_was_dropped_while_timed():
    assert CONTROL not in accuracy.variants_as_timed(timed_drops(**{"ZERO-Pri": (0.0, 0.0)}))  # where Pri drops nothing
    variants = accuracy.variants_as_timed(timed_drops(**TIMED))
    dropped = {name: compared.get("dropped") for name, compared in variants.items()}
    assert dropped == {"ZERO-Pri": [0.96, 0.04], "SEMI": [0.6, 0.0], "SEMI refined": None, CONTROL: None}
    assert [rank.dropped for rank in Variant.of(variants["ZERO-Pri"]).policy(3).plan.ranks] == [0.96, 0.04, 0]
    assert [rank.dropped for rank in Variant.of(variants[CONTROL]).policy(2).plan.ranks] == [0.96, 0.96]
    migrating = Variant.of(variants["SEMI refined"])
    assert (migrating.policy(2).solution, migrating.trace(2, 1).skewness(0, 0)) == ("MIG", 8.0)
    losses = {"ZERO-Pri": (0.04, 0.06), "SEMI": (0.0, 0.01), "SEMI refined": (0.0, 0.0), CONTROL: (0.1, 0.14)}
    trainings = [
        training(accuracy)
        for seed, whole in enumerate((0.30, 0.34))
        for accuracy in (whole, *(whole - losses[name][seed] for name in variants))
    ]
    rows = accuracy.rows_as_timed(variants, [0, 1], trainings, model="m")
    spreads = {row["solution"]: row["value"] for row in rows if row["quantity"] == "loss_in_spreads"}
    assert spreads == pytest.approx({"ZERO-Pri": 5 / 4, "SEMI": 0.5 / 4, "SEMI refined": 0, CONTROL: 12 / 4})
    assert {row["model"] for row in rows} == {"m"}
    assert {"trained_dropped_share", "trained_migrated_share"} <= {row["quantity"] for row in rows}


def test_losses_tell_nothing_where_not_even_dropping_everywhere_loses_more_than_seeds_differ():
    def reason(**losses):
        return accuracy.blind_reason(
            [value_row("loss_in_spreads", lost, solution=name) for name, lost in losses.items()]
        )

    assert "0.99 of the Baseline's spread" in reason(**{"ZERO-Pri": 2.0, CONTROL: 0.99})
    assert reason(**{"ZERO-Pri": 2.0, CONTROL: 1.0}) == reason() == ""
    assert reason(**{"ZERO-Pri": 2.0})
