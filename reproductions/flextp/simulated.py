"""Epochs of "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", simulated on its machine.

Eight V100 over PCIe 3. The model is fitted to three of the cells of table I that the text shows (two of them one
number), its form was chosen on three more; claims judge the other four and all figures. The figures' axes did not
survive in the paper's text, so most of their claims are orders. Each claim says in `changed` which of its rules were
changed after results were seen. The share of products in an iteration, which decides the size of a speedup, and the
model's errors on table I were known before any claim was written.

Assumed, since the values did not survive: γ is swept over 1/4, 1/2 and 3/4, and 1/2 is behind the 23.5 % and PriDiffE's
2.1; χ is 8 in figures 7 and 8 and behind 3.5, 2.1 and 4 %; figures 9 and 10 are ViT-1B's where the model is not said.
The paper's χ = 0 is 1 here.
"""

from workbench.reproduction import Bound, Evidence, Ordering, Reproduction, Trend, Whose, Within

__all__ = ["CATALOGUE"]

EPOCHS = "notebooks/flextp/simulated_epochs.ipynb"
MODELS = {5: "ViT-1B", 6: "ViT-3B", 7: "ViT-1B", 8: "ViT-3B"}
RATIOS = [0.25, 0.5, 0.75]
SKEWNESSES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
HEAVY = 8.0
HALVES = [8.0, 6.0, 4.0, 2.0]  # figure 11's stragglers, four of eight ranks

A_PREDICTION = "10 %: the model has one rate for all products and data-sheet links, and misses table I by up to 4 %."
OF_A_GAIN = A_PREDICTION + " The gain is judged, not the speedup."
IN_ORDER = "An order needs no tolerance, since the model has no noise."
IN_PROPORTION = "The model's products take time in proportion to their columns, so this checks the program."
RENEWED = "A mean that is renewed falls with the straggler's time, so this checks the program."
ADDED_UP = "The model adds up what migration takes, so this checks the program."
CHOSEN_BY = (
    "Forms of the model that break this order were dropped when the model was made (`cost.migration`), so the order "
    "cannot test the form that is left."
)
A_COUNT = "It is a count of whole numbers, so there is no tolerance."
HALF_OF_A_CONSTANT = "Half of the 8 % by which the best single number for all four cells misses one of them."
TWO_POINTS = (
    "2 points: within 10 % were MIG and both refined solutions too. Every solution that levels the ranks saves 77 to "
    "79 %, ZERO-Pri as well, so this shows that SEMI levels them, not by which means."
)
SECTION = "section V-B"

# What was changed after results were seen.
ADDED = "Added after results of this item were known."
BY_GAIN = "With the value known, 10 % of the speedup became 10 % of the gain."
GENTLER = "After results were seen, SEMI refined aims at 0.8 of the ideal speed when it drops, before at 0.9."
ONE_SIDED = "With the value known, 10 % either way became a bound."

# Formulas that the paper's text lost.
EQ_1 = "The text lost the formula of Eq. 1 (how much a straggler drops); it is reconstructed from the words around it."
EQ_2 = "The text lost the formula of Eq. 2 (how much migrates); it is reconstructed from the words around it."
EQ_3 = "The text lost the formula of Eq. 3 (how many ranks migrate); it is reconstructed from the words around it."

PRODUCTS = (
    "A speedup of 3.5 at χ = 8 after which nobody waits, (o + 8) / (o + 1), needs products that take 36 % of a plain "
    "iteration. Table I's plain epoch, with links as in the data sheet, leaves 53 % for them. With the mean as it was "
    "before anybody dropped, Eq. 1 gives 3.2 at most on eight ranks; renewed as in section III-A, it lets the "
    "straggler catch up. The paper's 3.5 lies between the two."
)
MEANING = (
    "The text says neither the skewness nor the meaning. 77.6 % of the time saved is a speedup of 4.5, more than the "
    "3.5 of section V-B and more than the mean allows on eight ranks; 77.6 % more throughput is a speedup of 1.8, less "
    "than the 2.1 of section V-B."
)


def _profiles(**parameters) -> dict[str, dict]:
    return dict.fromkeys(("smoke", "laptop", "full", "paper"), parameters)


def _item(
    item: str,
    title: str,
    claims: tuple,
    notebook: str = EPOCHS,
    published: str | None = None,
    evidence: Evidence = Evidence.SIMULATED,
    parameters: dict | None = None,
    laptop_s: float = 8,
    full_s: float = 8,
) -> Reproduction:
    return Reproduction(
        technique="flextp",
        item=item,
        evidence=evidence,
        title=title,
        notebook=notebook,
        published=published,
        parameters=parameters or {},
        expected_s={"smoke": min(laptop_s, 8), "laptop": laptop_s, "full": full_s},
        claims=claims,
    )


def _falls(solution: str, source: str) -> Trend:
    return Trend(
        f"The more {solution} drops, the shorter an epoch",
        quantity="epoch_s",
        along="pruning_ratio",
        direction="decreasing",
        where={"solution": solution},
        because=IN_PROPORTION,
        whose=Whose.CONSTRUCTION,
        source=source,
    )


def _below(faster: str, slower: str, source: str, because: str = IN_ORDER, *, where: dict, **more) -> Ordering:
    return Ordering(
        f"An epoch of {faster} is shorter than one of {slower}" + " at χ = 8" * ("skewness" in where),
        quantity="epoch_s",
        along="solution",
        order=[faster, slower],
        where=where,
        because=because,
        source=source,
        **more,
    )


def _by_ratio(
    figure: int,
    more: tuple = (),
    *,
    solutions: tuple = ("Baseline", "ZERO-Rd", "ZERO-Pri"),
    skewness: float = 1.0,
    published: str | None = None,
) -> Reproduction:
    source = f"figure {figure}, {SECTION}"
    who = "one straggler drops columns" if skewness > 1 else "every rank drops columns"
    named = [name for name in solutions if name != "Baseline"]
    return _item(
        f"fig-{figure}b",
        f"Epochs by pruning ratio, {MODELS[figure]}, {who}",
        (
            *(_falls(name, source) for name in named),
            *(
                _below(
                    name, "Baseline", source, IN_PROPORTION, where={"pruning_ratio": RATIOS}, whose=Whose.CONSTRUCTION
                )
                for name in named
            ),
            *more,
        ),
        published=published,
        parameters=_profiles(
            what="ratios", model=MODELS[figure], solutions=list(solutions), ratios=RATIOS, skewnesses=[skewness]
        ),
    )


SAVED = Within(
    "Pri makes epochs of ViT-3B 23.5 % shorter at half of the columns",
    quantity="epoch_saved",
    where={"solution": "ZERO-Pri", "pruning_ratio": 0.5},
    rel=0.10,
    because=A_PREDICTION,
    source=f"{SECTION}; the ratio did not survive, 1/2 is assumed",
    explanation="The ratio behind 23.5 % did not survive; abstract/simulated shows the ratio that the model needs.",
)
OF_HETEROGENEOUS = ("Baseline", "ZERO-Pri")
RATIO_ITEMS = (
    _by_ratio(5),
    _by_ratio(6, (SAVED,), published="fig-6.csv"),
    _by_ratio(7, solutions=OF_HETEROGENEOUS, skewness=HEAVY),
    _by_ratio(8, solutions=OF_HETEROGENEOUS, skewness=HEAVY),
)


def _linear(source: str) -> Within:
    return Within(
        "Baseline's epochs grow linearly with skewness",
        quantity="off_straight_line",
        where={"solution": "Baseline"},
        expected=0.0,
        abs=0.01,
        because="1 %: only the straggler's products grow, so this checks the program.",
        whose=Whose.CONSTRUCTION,
        source=source,
    )


RESIZING = ("Baseline", "ZERO-Pri", "ZERO-Pri, one shot", "ZERO-PriDiffE", "ZERO-PriDiffR")
FIGURE_9 = _item(
    "fig-9b",
    "Epochs of resizing by skewness, one straggler, ViT-1B",
    (
        _linear(f"figure 9, {SECTION}"),
        Within(
            "Pri keeps epochs steady from no straggler to χ = 8",
            quantity="growth",
            where={"solution": "ZERO-Pri"},
            expected=1.0,
            abs=0.15,
            because="15 %: a plan is kept while a rank is within 10 % of its time.",
            explanation=EQ_1,
            source=f"figure 9, {SECTION}: the straggler roughly catches up and runtime is kept steady",
        ),
        Within(
            "Pri trains 3.5 times as fast as Baseline at χ = 8",
            quantity="speedup",
            where={"solution": "ZERO-Pri", "skewness": HEAVY},
            no_effect=1.0,
            rel=0.10,
            because=OF_A_GAIN,
            changed=BY_GAIN,
            source=f"{SECTION}, figure 9; skewness assumed",
            explanation=f"{PRODUCTS} {EQ_1}",
        ),
        Within(
            "PriDiffE trains 2.1 times as fast as Baseline at χ = 8, with half of the columns dropped",
            quantity="speedup",
            where={"solution": "ZERO-PriDiffE", "skewness": HEAVY},
            no_effect=1.0,
            rel=0.10,
            because=OF_A_GAIN,
            changed=BY_GAIN,
            source=f"{SECTION}, figure 9; skewness and ratio assumed",
            explanation="With half of its columns a straggler becomes at most twice as fast. In this model, whose "
            "layers all drop γ, a speedup of 2.1 needs a ratio of 0.58. Measured layers drop from 0.8 γ on "
            "and gain less.",
        ),
        Within(
            "PriDiffR's epochs are up to 4 % shorter than Pri's",
            quantity="epoch_saved_over_pri",
            where={"solution": "ZERO-PriDiffR", "skewness": HEAVY},
            abs=2.0,
            because="Half of it either way.",
            source=f"{SECTION}, figure 9; skewness assumed",
            explanation="The text lost PriDiff's ratio per layer; measured items use a reconstruction.",
        ),
        Ordering(
            "At χ = 8 Pri is faster than PriDiffE, and both than Baseline",
            quantity="epoch_s",
            along="solution",
            order=["ZERO-Pri", "ZERO-PriDiffE", "Baseline"],
            where={"skewness": HEAVY},
            because=IN_ORDER,
            source=f"{SECTION}: PriDiffE can trade efficiency for accuracy",
        ),
        Ordering(
            "Plans from a renewed mean are faster than one plan from the first mean",
            quantity="epoch_s",
            along="solution",
            order=["ZERO-Pri", "ZERO-Pri, one shot"],
            where={"skewness": HEAVY},
            because=RENEWED,
            whose=Whose.CONSTRUCTION,
            source="section III-A: the mean is renewed once a rank's own time has changed by a tenth",
        ),
    ),
    published="fig-9.csv",
    parameters=_profiles(
        what="skewness", model="ViT-1B", solutions=list(RESIZING), ratios=[0.5], skewnesses=SKEWNESSES
    ),
)

PRICED = (
    "Eq. 2 compares what migration costs the other ranks with what taking columns out costs the straggler, not with "
    "accuracy. Over PCIe even the first migrated column costs more, since whole tensors travel with it. SEMI therefore "
    "drops all that it removes. It is ZERO measured against the fastest rank instead of the mean, and drops more. SEMI "
    "refined migrates."
)
SECTION_C = "figure 10, section V-C"
AT_8 = {"skewness": HEAVY}
FIGURE_10 = _item(
    "fig-10b",
    "Epochs by skewness, one straggler, ViT-1B: resizing, migration, both",
    (
        _linear(SECTION_C),
        _below("MIG", "Baseline", SECTION_C, where=AT_8),
        _below("SEMI", "MIG", SECTION_C, where=AT_8, explanation=EQ_2),
        _below("ZERO-PriDiffR", "MIG", SECTION_C, where=AT_8, explanation=EQ_1),
        Bound(
            "MIG reaches at most 90 % of the ideal speed",
            quantity="speed_of_ideal",
            where={"solution": "MIG", "skewness": HEAVY},
            at_most=0.9,
            because="10 %: the model may be off by as much. The paper says far from ideal.",
            changed="After results were seen, an order between MIG and the ideal, which no cost could break, became a "
            "bound.",
            source=SECTION_C,
        ),
        *(
            Ordering(
                f"Epochs of {name} grow less with skewness than MIG's, and MIG's less than Baseline's",
                quantity="growth",
                along="solution",
                order=[name, "MIG", "Baseline"],
                because=IN_ORDER,
                changed=changed,
                source=SECTION_C,
                explanation=explanation,
            )
            for name, changed, explanation in (("SEMI", "", EQ_2), ("ZERO-PriDiffR", ADDED, EQ_1))
        ),
        Ordering(
            "SEMI drops less than ZERO",
            quantity="dropped_share",
            along="solution",
            order=["SEMI", "ZERO-PriDiffR"],
            where=AT_8,
            because=IN_ORDER,
            source="figure 10a, section V-C: ZERO causes much more accuracy loss",
            explanation=f"{PRICED} {EQ_2}",
        ),
        Ordering(
            "SEMI refined drops less than ZERO",
            quantity="dropped_share",
            along="solution",
            order=["SEMI refined", "ZERO-PriDiffR"],
            where=AT_8,
            because=IN_ORDER,
            whose=Whose.OURS,
            changed=GENTLER,
            source="ours, beside figure 10a",
        ),
        Ordering(
            "SEMI refined is faster than MIG",
            quantity="epoch_s",
            along="solution",
            order=["SEMI refined", "MIG"],
            where=AT_8,
            because=IN_ORDER,
            whose=Whose.OURS,
            changed=GENTLER,
            source="ours, beside figure 10b",
        ),
    ),
    parameters=_profiles(
        what="skewness",
        model="ViT-1B",
        ratios=[0.5],
        skewnesses=SKEWNESSES,
        solutions=["Baseline", "MIG", "ZERO-PriDiffR", "SEMI", "MIG refined", "SEMI refined"],
    ),
)

SLOW_RECEIVERS = (
    "Migrated columns are divided evenly over all receivers, also over stragglers that resize, which are 6, 4 and 2 "
    "times slower at them, and over PCIe whole tensors travel with them. With one sender an epoch already takes 1.6 "
    "times as long as with none. Eq. 3 compares a sender's saving with doing nothing, not with dropping. "
) + EQ_3
FIGURE_11 = _item(
    "fig-11b",
    "Epochs by how many of four stragglers migrate, ViT-1B",
    (
        Trend(
            "The more stragglers migrate, the less is dropped",
            quantity="dropped_share",
            along="num_senders",
            direction="decreasing",
            because="It is a count of columns, so it follows from the plans and checks the program.",
            whose=Whose.CONSTRUCTION,
            source="figure 11, section V-C",
        ),
        Within(
            "Eq. 3 lets 1, 2 or 3 of the four stragglers migrate",
            quantity="planned_senders",
            where={"solution": "SEMI"},
            expected=2.0,
            abs=1.0,
            because="The paper's number did not survive; it lies between the extremes 0 and 4, so 2 ± 1 is asked for.",
            source="figure 11, section V-C",
            explanation=f"Three of the five possible numbers would agree. {EQ_3}",
        ),
        Bound(
            "Eq. 3 chooses a division that is at most 10 % slower than the fastest",
            quantity="planned_over_fastest",
            where={"solution": "SEMI"},
            at_most=1.1,
            because='10 %: the paper says "roughly".',
            changed=ONE_SIDED,
            source="figure 11, section V-C: it roughly hits the sweet spot",
            explanation=SLOW_RECEIVERS,
        ),
        *(
            Bound(
                f"No division is both faster than {name}'s plan and drops less",
                quantity="better_divisions",
                where={"solution": name},
                at_most=0.0,
                because="It is a count.",
                whose=whose,
                changed=f"{ADDED} {changed}".strip(),
                explanation=SLOW_RECEIVERS,
                source=source,
            )
            for name, whose, changed, source in (
                ("SEMI", Whose.PAPER, "", "figure 11, section V-C: efficient with small accuracy penalty"),
                ("SEMI refined", Whose.OURS, GENTLER, "ours, beside figure 11"),
            )
        ),
    ),
    parameters=_profiles(what="divisions", model="ViT-1B", solutions=["SEMI"], ratios=[0.5], skewnesses=HALVES),
)

TABLE_1 = _item(
    "table-1",
    "Epochs of equal ranks, by the share of columns that 1 to 4 of eight ranks migrate",
    (
        Within(
            "Four cells of broadcast-reduce that the model was not fitted to",
            quantity="epoch_s",
            where={},
            rel=0.04,
            because=HALF_OF_A_CONSTANT,
            changed="After a review, with the values known, 10 % became 4 %. A single number for all cells met 10 %. A "
            "second claim, that half of the cells are within 5 %, was dropped then; they are within 3 %.",
            source="table I, one sender; the text does not show the others",
        ),
        Ordering(
            "Broadcast-reduce is ahead of scatter-gather, for 1 to 4 senders and every share",
            quantity="epoch_s",
            along="scheme",
            order=["broadcast-reduce", "scatter-gather"],
            where={"num_senders": [1, 2, 3, 4], "migrated_share": [0.25, 0.5, 0.75, 1.0]},
            because=CHOSEN_BY,
            whose=Whose.CONSTRUCTION,
            source="section V-C",
        ),
        Trend(
            "Its lead narrows as senders increase, for every share",
            quantity="lead_s",
            along="num_senders",
            direction="decreasing",
            where={"migrated_share": [0.25, 0.5, 0.75, 1.0]},
            because=CHOSEN_BY,
            whose=Whose.CONSTRUCTION,
            source="section V-C",
        ),
        Trend(
            "The more migrates, the longer an epoch",
            quantity="epoch_s",
            along="migrated_share",
            direction="increasing",
            because=ADDED_UP,
            whose=Whose.CONSTRUCTION,
            source="table I",
        ),
    ),
    notebook="notebooks/flextp/table_1.ipynb",
    published="table-1.csv",
    parameters=_profiles(nums_senders=[1, 2, 3, 4], shares=[0.0, 0.25, 0.5, 0.75, 1.0]),
)

MAP = {
    "model": "ViT-1B",
    "skewnesses": [1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0],
    "nums_stragglers": [1, 2, 3, 4, 5, 6],
    "bandwidths_gb_per_s": [1.0, 4.0, 16.0, 64.0, 256.0],
}


def _migration_wins(name: str, axis: str, order: list, source: str, **more) -> Ordering:
    return Ordering(
        name,
        quantity=f"won_by_{axis}",
        along=axis,
        order=order,
        where={"means": "migration"},
        because=IN_ORDER,
        source=source,
        explanation=f"{EQ_2} {EQ_3}",
        **more,
    )


WINNERS = _item(
    "winner-map",
    "Whether resizing, migration or both are best, by skewness, stragglers and link",
    (
        _migration_wins(
            "Migration wins more often with one straggler than with six",
            "num_stragglers",
            [6, 1],
            "section IV-B: migration is more sensitive to the number of stragglers",
        ),
        _migration_wins(
            "Migration wins more often over links of 256 GB/s than of 1 GB/s",
            "bandwidth_gb_per_s",
            [1.0, 256.0],
            "section IV-B: its costs are communication",
            whose=Whose.CONSTRUCTION,
        ),
        _migration_wins(
            "Migration wins more often with stragglers of χ = 8 than of 1.25",
            "skewness",
            [1.25, 8.0],
            "section IV-B: a large skewness requires a large ratio, and so loses accuracy",
        ),
    ),
    notebook="notebooks/flextp/winners.ipynb",
    laptop_s=15,
    full_s=15,
    parameters=_profiles(refine=False, **MAP),
)

NEAR = "5 %: the price of simple rules."
PROPORTION = (
    "In a refined plan the slowest ranks migrate, as many as turns out best and at least 1/32 of their columns, and "
    "all ranks that remove columns drop in one proportion. With two or three stragglers a few cases do better if a "
    "light straggler drops more than it needs and receives columns that a heavy one would have dropped."
)
CASES = (
    "After results were seen, the best division is computed by linear programmes instead of a grid, the cases have "
    "products with a fixed cost, and a rank keeps at least 1 % of its columns."
)
CERTIFICATE = _item(
    "certificate",
    "SEMI's plans beside the certified best division, over random small cases",
    (
        Within(
            "No refined plan is more than 5 % slower than the fastest division that drops no more",
            quantity="largest_slower_by",
            where={"solution": "SEMI refined"},
            expected=0.0,
            abs=0.05,
            because=NEAR,
            whose=Whose.OURS,
            changed=f"{CASES} {GENTLER}",
            source="ours: a plan on the front of all divisions has no gap",
            explanation=PROPORTION,
        ),
        Within(
            "No refined plan drops more than 5 % more than the gentlest division that is no slower",
            quantity="largest_drops_more_by",
            where={"solution": "SEMI refined"},
            expected=0.0,
            abs=0.05,
            because=NEAR,
            whose=Whose.OURS,
            changed=f"{ADDED} {CASES} {GENTLER}",
            source="ours: a plan on the front of all divisions has no gap",
            explanation=PROPORTION,
        ),
        Within(
            "Half of the paper's plans are at most 5 % slower than the fastest division that drops no more",
            quantity="median_slower_by",
            where={"solution": "SEMI"},
            expected=0.0,
            abs=0.05,
            because=NEAR,
            changed=CASES,
            source="section V-C: the analysis roughly hits the sweet spot; the measure is ours",
            explanation="With several stragglers Eq. 3 brings every sender down to the fastest rank's time and ignores "
            f"what that adds to the receivers, which then are the slowest. {EQ_3}",
        ),
        Within(
            "Half of the paper's plans drop at most 5 % more than the gentlest division that is no slower",
            quantity="median_drops_more_by",
            where={"solution": "SEMI"},
            expected=0.0,
            abs=0.05,
            because=NEAR,
            changed=CASES,
            source="section V-C: with small accuracy penalty; the measure is ours",
            explanation="Stragglers that do not migrate drop down to the fastest rank's time, which no rank has once "
            f"it receives columns. {EQ_3}",
        ),
        Bound(
            "Brute force over a grid finds nothing faster than the certified best",
            quantity="least_search_slower_by",
            at_least=-1e-6,
            because="A millionth is the precision of the linear programmes.",
            whose=Whose.CONSTRUCTION,
            changed=ADDED,
            source="ours: it checks the certificate itself",
        ),
    ),
    notebook="notebooks/flextp/certificate.ipynb",
    evidence=Evidence.COUNTED,
    laptop_s=35,
    full_s=180,
    parameters={
        "smoke": {"num_cases": 2, "nums_stragglers": [1, 2], "num_searched": 1, "grids": [[1, 12], [2, 6]]},
        "laptop": {
            "num_cases": 50,
            "nums_stragglers": [1, 2, 3],
            "num_searched": 2,
            "grids": [[1, 48], [2, 12], [3, 6]],
        },
        **dict.fromkeys(
            ("full", "paper"),
            {"num_cases": 200, "nums_stragglers": [1, 2, 3], "num_searched": 4, "grids": [[1, 96], [2, 16], [3, 7]]},
        ),
    },
)


def _efficiency(environment: str, meaning: str, name: str, explanation: str, tolerance: dict, **where) -> Within:
    return Within(
        name,
        quantity="efficiency_gain",
        where={"environment": environment, "meaning": meaning, **where},
        source="section I, contributions",
        explanation=explanation,
        **tolerance,
    )


def _ratio_for(claimed: float, model: str, meaning: str, source: str) -> Within:
    return Within(
        f"A ratio of the sweep, 1/4 to 3/4, gives {claimed} % {meaning}, {model}",
        quantity="ratio_needed",
        expected=0.5,
        abs=0.25,
        where={"claimed": claimed, "model": model, "meaning": meaning},
        because="The sweep is ours, 1/2 ± 1/4; the paper's ratios did not survive.",
        whose=Whose.CONSTRUCTION,
        source=source,
        explanation="The ratio is free and solved for the paper's value, so this cannot confirm it. Ratios of the "
        "sweep save 12 to 45 % of an epoch, and every value between them would agree.",
    )


HOMOGENEOUS = "section I: 18.5 % in homogeneous environments"
RATIO_LOST = (
    "The ratio behind 18.5 % did not survive, 1/2 is assumed; the ratio that the model needs stands beside it. The "
    "text does not say whether time saved or throughput gained is meant, so both are shown."
)
MEANINGS = ("time saved", "throughput gained")
SOLUTIONS = ["ZERO-Pri", "MIG", "SEMI", "MIG refined", "SEMI refined"]
ABSTRACT = _item(
    "abstract",
    "Efficiency with and without stragglers, and the ratios that the text's savings need",
    (
        *(_ratio_for(18.5, "ViT-1B", meaning, HOMOGENEOUS) for meaning in MEANINGS),
        _ratio_for(23.5, "ViT-3B", "time saved", f"{SECTION}: 23.5 % shorter epochs"),
        *(
            _efficiency(
                "homogeneous",
                meaning,
                f"18.5 % as {meaning} where every rank drops half of its columns",
                RATIO_LOST,
                {"rel": 0.10, "because": A_PREDICTION},
                model="ViT-1B",
                pruning_ratio=0.5,
            )
            for meaning in MEANINGS
        ),
        *(
            _efficiency(
                "heterogeneous",
                meaning,
                f"77.6 % as {meaning} by SEMI at an assumed χ = 8",
                f"{MEANING} {EQ_2}",
                {
                    "abs": 2.0,
                    "because": TWO_POINTS,
                    "changed": "After a review, with the value known, 10 % became 2 points.",
                },
                solution="SEMI",
                model="ViT-1B",
            )
            for meaning in MEANINGS
        ),
    ),
    published="abstract.csv",
    parameters=_profiles(what="text", model="ViT-1B", solutions=SOLUTIONS, ratios=RATIOS, skewnesses=[HEAVY]),
)

FORWARD = (
    "A layer all-reduces twice forward, after attention and after the perceptron, and twice backward. In 24 layers "
    "these are 96 an iteration, 48 of them in the forward pass."
)
SETTING = _item(
    "setting",
    "Parameters, and the number of all-reduces of an iteration and of a training",
    (
        Within(
            "Parameters of both models",
            quantity="parameters",
            rel=0.05,
            because="Two digits are printed.",
            whose=Whose.CONSTRUCTION,
            source="section V-A",
            explanation="The text lost the hidden sizes. Those of ViT-3B, and perceptrons four times as wide as the "
            "hidden states, were inferred from the printed 1.2 and 2.7 billion parameters, so these are "
            "no confirmation.",
        ),
        Within(
            "48 all-reduces in the forward pass of an iteration",
            quantity="all_reduces_per_iteration",
            abs=0,
            where={"counted": "forward"},
            because=A_COUNT,
            source="section II-B",
        ),
        Within(
            "48 all-reduces in a whole iteration",
            quantity="all_reduces_per_iteration",
            abs=0,
            where={"counted": "forward and backward"},
            because=A_COUNT,
            source="section II-B",
            explanation=FORWARD,
        ),
        Within(
            "144 million all-reduces of a training, 96 in each of its iterations",
            quantity="all_reduces_of_training",
            abs=0,
            where={"counted": "forward and backward"},
            because=A_COUNT,
            source="section II-B",
        ),
        Within(
            "144 million all-reduces of a training, 48 in each of its iterations",
            erratum="Section II-B has 48 all-reduces an iteration, 150 epochs of 10,000 iterations, and 144 million in "
            "all: the product is 72 million.",
            quantity="all_reduces_of_training",
            abs=0,
            where={"counted": "48 an iteration"},
            because=A_COUNT,
            source="section II-B",
            explanation="48 in each of 150 x 10,000 iterations are 72 million, half of the paper's 144 million. "
            + FORWARD,
        ),
    ),
    notebook="notebooks/flextp/setting.ipynb",
    published="setting.csv",
    evidence=Evidence.COUNTED,
    parameters=_profiles(num_epochs=150, iterations_per_epoch=10_000),
)

CATALOGUE = (*RATIO_ITEMS, FIGURE_9, TABLE_1, FIGURE_10, FIGURE_11, WINNERS, CERTIFICATE, ABSTRACT, SETTING)
