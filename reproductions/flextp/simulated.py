"""Epochs of "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", simulated on its machine.

Eight V100 over PCIe 3, fitted to three of the cells of table I that the text shows (two of them one number), its form
chosen on three more; claims judge the other four and all figures. The figures' axes did not survive, so most of their
claims are orders. Assumed, since the values did not survive: γ is swept over 1/4, 1/2 and 3/4, and 1/2 is behind the
23.5 % and PriDiffE's 2.1; χ is 8 in figures 7 and 8 and behind 3.5, 2.1 and 4 %; figures 9 and 10 are ViT-1B's where
the model is not said. What the paper calls χ = 0 is 1 here. Tolerances were fixed before the first run of an item,
knowing the share of products in an iteration, from which a speedup's size follows: 10 % for what is predicted, which is
more than twice what the model misses table I by. The model knew its errors on table I then (they were computed when it
was made). After a review, knowing what they find: the cells of table I may be missed by 4 %, not 10, which a single
number for all cells would have met; SEMI's 77.6 % by 2 points, not 10 %; two orders of table I say that the model's
form was chosen by them. After another one, the cases of the certificate have what products take however narrow, and a
rank keeps a hundredth of its columns in the divisions that certify, as in those that are certified; SEMI refined drops
for four fifths of the ideal's speed, no longer nine tenths.
"""

from workbench.reproduction import Bound, Evidence, Ordering, Reproduction, Trend, Within

__all__ = ["CATALOGUE"]

EPOCHS = "notebooks/flextp/simulated_epochs.ipynb"
MODELS = {5: "ViT-1B", 6: "ViT-3B", 7: "ViT-1B", 8: "ViT-3B"}
RATIOS = [0.25, 0.5, 0.75]
SKEWNESSES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
HEAVY = 8.0
HALVES = [8.0, 6.0, 4.0, 2.0]  # figure 11's stragglers, half of eight ranks

A_PREDICTION = "10 %: one rate for all products, data sheets for the rest; table I is missed by up to 4 %"
IN_ORDER = "an order; the model has no noise"
BY_CONSTRUCTION = "an order by construction, since the model's products take time in proportion: it checks the program"
RENEWED = (
    "an order by construction, since a mean that is renewed falls with the straggler's time: it checks the program"
)
ADDED = "an order by construction, since the model adds up what migrating takes: it checks the program"
CHOSEN_BY = (
    IN_ORDER + "; forms of the model that break it were dropped (`cost.migration`): no test of the one that is left"
)
A_COUNT = "a count of whole numbers: no tolerance"
HALF_OF_A_CONSTANT = "half of the 8 % by which the best single number for all four cells misses one of them"
TWO_POINTS = (
    "2 points: 10 % of it would also be met by MIG and by both refined solutions. Every solution that levels the "
    "ranks saves 77 to 79 %, ZERO-Pri as well: this says that SEMI levels them, not by what means"
)
SECTION = "section V-B"

PRODUCTS = (
    "A speedup of 3.5 at χ = 8 that ends where nobody waits, (o + 8) / (o + 1), is one in which products take 36 % of "
    "a plain iteration; table I's plain epoch, on links as the data sheet has them, leaves 53 % for them. Compared "
    "with the mean as it was before anybody dropped anything Eq. 1 gives 3.2 at most on eight ranks; renewed as "
    "section III-A says, it lets the straggler come down to the others. The paper's 3.5 lies between the two."
)
MEANING = (
    "77.6 % of the time saved is a speedup of 4.5, more than the 3.5 of section V-B and more than the mean allows on "
    "eight ranks; a throughput gained by 77.6 % is a speedup of 1.8, less than its 2.1. Neither the skewness nor the "
    "meaning is said."
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
        because=BY_CONSTRUCTION,
        source=source,
    )


def _below(faster: str, slower: str, source: str, because: str = IN_ORDER, explanation: str = "", **where) -> Ordering:
    return Ordering(
        f"An epoch of {faster} is shorter than one of {slower}" + " at χ = 8" * ("skewness" in where),
        quantity="epoch_s",
        along="solution",
        order=[faster, slower],
        where=where,
        because=because,
        source=source,
        explanation=explanation,
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
    who = "one straggler, which alone drops" if skewness > 1 else "all ranks alike"
    named = [name for name in solutions if name != "Baseline"]
    return _item(
        f"fig-{figure}b",
        f"Epochs by pruning ratio, {MODELS[figure]}, {who}",
        (
            *(_falls(name, source) for name in named),
            *(_below(name, "Baseline", source, BY_CONSTRUCTION, pruning_ratio=RATIOS) for name in named),
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
    explanation="The ratio behind 23.5 % did not survive: abstract/simulated says which one the model asks for.",
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
        because="1 %: the straggler's products are all that grows, by construction",
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
            because="15 %: plans rest once a rank is within a tenth of where it was",
            source=f"figure 9, {SECTION}: the straggler roughly catches up and runtime is kept steady",
        ),
        Within(
            "Pri's speedup at χ = 8",
            quantity="speedup",
            where={"solution": "ZERO-Pri", "skewness": HEAVY},
            rel=0.10,
            because=A_PREDICTION,
            source=f"{SECTION}, figure 9; skewness assumed",
            explanation=PRODUCTS,
        ),
        Within(
            "PriDiffE's speedup at χ = 8, a half dropped",
            quantity="speedup",
            where={"solution": "ZERO-PriDiffE", "skewness": HEAVY},
            rel=0.10,
            because=A_PREDICTION,
            source=f"{SECTION}, figure 9; skewness and ratio assumed",
            explanation="With half of its columns a straggler cannot become more than twice as fast, whatever else "
            "takes time: 2.1 asks for a larger ratio, 0.58 in this model, whose layers all drop γ; measured layers "
            "drop from 0.8 γ on, and gain less.",
        ),
        Within(
            "PriDiffR's epochs are up to 4 % shorter than Pri's",
            quantity="epoch_saved_over_pri",
            where={"solution": "ZERO-PriDiffR", "skewness": HEAVY},
            abs=2.0,
            because="half of it either way",
            source=f"{SECTION}, figure 9; skewness assumed",
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
            "Renewing the mean is faster than one plan by it",
            quantity="epoch_s",
            along="solution",
            order=["ZERO-Pri", "ZERO-Pri, one shot"],
            where={"skewness": HEAVY},
            because=RENEWED,
            source="section III-A: the mean is renewed once a rank's own time has changed by a tenth",
        ),
    ),
    published="fig-9.csv",
    parameters=_profiles(
        what="skewness", model="ViT-1B", solutions=list(RESIZING), ratios=[0.5], skewnesses=SKEWNESSES
    ),
)

EQUATION_2 = (
    "Eq. 2 weighs what migrating costs the others against what taking columns out costs the straggler, not against "
    "accuracy: over PCIe even the first migrated column costs more (whole tensors travel with it), so that SEMI drops "
    "all it removes and is ZERO with the least time for the mean, which drops more. SEMI refined migrates."
)
FIGURE_10 = _item(
    "fig-10b",
    "Epochs by skewness, one straggler, ViT-1B: resizing, migration, both",
    (
        _linear("figure 10, section V-C"),
        _below("MIG", "Baseline", "figure 10, section V-C", skewness=HEAVY),
        _below("SEMI", "MIG", "figure 10, section V-C", skewness=HEAVY),
        _below("ZERO-PriDiffR", "MIG", "figure 10, section V-C", skewness=HEAVY),
        Bound(
            "MIG is still far from ideal",
            quantity="speed_of_ideal",
            where={"solution": "MIG", "skewness": HEAVY},
            at_most=0.9,
            because="10 %, which is what the model may be off by",
            source="figure 10, section V-C",
        ),
        Ordering(
            "ZERO and SEMI scale better than MIG, and MIG better than Baseline",
            quantity="growth",
            along="solution",
            order=["SEMI", "MIG", "Baseline"],
            because=IN_ORDER,
            source="figure 10, section V-C",
        ),
        Ordering(
            "SEMI drops less than ZERO",
            quantity="dropped_share",
            along="solution",
            order=["SEMI", "ZERO-PriDiffR"],
            where={"skewness": HEAVY},
            because=IN_ORDER,
            source="figure 10a, section V-C: ZERO causes much more accuracy loss",
            explanation=EQUATION_2,
        ),
        Ordering(
            "SEMI refined drops less than ZERO",
            quantity="dropped_share",
            along="solution",
            order=["SEMI refined", "ZERO-PriDiffR"],
            where={"skewness": HEAVY},
            because=IN_ORDER,
            source="figure 10a, section V-C; the refined plan is ours",
        ),
        Ordering(
            "SEMI refined is faster than MIG",
            quantity="epoch_s",
            along="solution",
            order=["SEMI refined", "MIG"],
            where={"skewness": HEAVY},
            because=IN_ORDER,
            source="figure 10b, section V-C; the refined plan is ours",
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
    "times slower at them, and over PCIe whole tensors travel with them: already with one sender an epoch takes 1.6 "
    "times as long as with none. Eq. 3 weighs what a sender saves over doing nothing, not over dropping."
)
FIGURE_11 = _item(
    "fig-11b",
    "Epochs by how many of four stragglers migrate, ViT-1B",
    (
        Trend(
            "The more stragglers migrate, the less is dropped",
            quantity="dropped_share",
            along="num_senders",
            direction="decreasing",
            because="a count of columns, so by construction of the plans: it checks the program",
            source="figure 11, section V-C",
        ),
        Within(
            "The number of senders that Eq. 3 takes lies between the extremes",
            quantity="planned_senders",
            where={"solution": "SEMI"},
            expected=2.0,
            abs=1.0,
            because="1, 2 and 3 lie between, told by their middle; the paper's own x did not survive",
            source="figure 11, section V-C",
        ),
        Within(
            "The division that Eq. 3 takes is nearly as fast as the fastest",
            quantity="planned_over_fastest",
            where={"solution": "SEMI"},
            expected=1.0,
            abs=0.10,
            because='10 %: "roughly"',
            source="figure 11, section V-C: it roughly hits the sweet spot",
            explanation=SLOW_RECEIVERS,
        ),
        *(
            Bound(
                f"No division is both faster than {name}'s plan and drops less",
                quantity="better_divisions",
                where={"solution": name},
                at_most=0.0,
                because="a count",
                explanation=SLOW_RECEIVERS,
                source=source,
            )
            for name, source in (
                ("SEMI", "figure 11, section V-C: efficient with small accuracy penalty"),
                ("SEMI refined", "ours, beside figure 11"),
            )
        ),
    ),
    parameters=_profiles(what="divisions", model="ViT-1B", solutions=["SEMI"], ratios=[0.5], skewnesses=HALVES),
)

TABLE_1 = _item(
    "table-1",
    "Epochs of ranks that are all alike, by how much of their columns 1 to 4 of eight migrate",
    (
        Within(
            "Each cell that does not calibrate",
            quantity="epoch_s",
            where={},
            rel=0.04,
            because=HALF_OF_A_CONSTANT,
            source="table I, one sender; the text does not show the others",
        ),
        Ordering(
            "Broadcast-reduce is ahead of scatter-gather, for 1 to 4 senders and every share",
            quantity="epoch_s",
            along="scheme",
            order=["broadcast-reduce", "scatter-gather"],
            where={"num_senders": [1, 2, 3, 4], "migrated_share": [0.25, 0.5, 0.75, 1.0]},
            because=CHOSEN_BY,
            source="section V-C",
        ),
        Trend(
            "Its lead narrows as senders increase, for every share",
            quantity="lead_s",
            along="num_senders",
            direction="decreasing",
            where={"migrated_share": [0.25, 0.5, 0.75, 1.0]},
            because=CHOSEN_BY,
            source="section V-C",
        ),
        Trend(
            "The more migrates, the longer an epoch",
            quantity="epoch_s",
            along="migrated_share",
            direction="increasing",
            because=ADDED,
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


def _migration_wins(name: str, axis: str, order: list, source: str, explanation: str = "") -> Ordering:
    return Ordering(
        name,
        quantity=f"won_by_{axis}",
        along=axis,
        order=order,
        where={"means": "migration"},
        because=IN_ORDER,
        source=source,
        explanation=explanation,
    )


WINNERS = _item(
    "winner-map",
    "Where resizing, migration or both win, by skewness, stragglers and link",
    (
        _migration_wins(
            "Migration wins more often where fewer ranks straggle",
            "num_stragglers",
            [6, 1],
            "section IV-B: migration is more sensitive to the number of stragglers",
        ),
        _migration_wins(
            "Migration wins more often over faster links",
            "bandwidth_gb_per_s",
            [1.0, 256.0],
            "section IV-B: its costs are communication",
        ),
        _migration_wins(
            "Migration wins more often the slower the stragglers are",
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

NEAR = "5 %: the price of SEMI's rules"
PROPORTION = (
    "The slowest ranks migrate, as many as turns out best and at least 1/32 of their columns, and all that remove "
    "columns drop in one proportion. Of cases with two or three stragglers a few do better when a light one only "
    "drops, more than it would need to for itself, so that it can receive what a heavy one then does not drop."
)
CERTIFICATE = _item(
    "certificate",
    "SEMI beside the certified best division, over random small cases",
    (
        Within(
            "The refined plan is nearly as fast as the fastest division that drops no more",
            quantity="largest_slower_by",
            where={"solution": "SEMI refined"},
            expected=0.0,
            abs=0.05,
            because=NEAR,
            source="ours: a plan on the front of all divisions has no gap",
            explanation=PROPORTION,
        ),
        Within(
            "The refined plan drops hardly more than the gentlest division that is no slower",
            quantity="largest_drops_more_by",
            where={"solution": "SEMI refined"},
            expected=0.0,
            abs=0.05,
            because=NEAR,
            source="ours: a plan on the front of all divisions has no gap",
            explanation=PROPORTION,
        ),
        Within(
            "Half of the paper's plans are nearly as fast as the fastest division that drops no more",
            quantity="median_slower_by",
            where={"solution": "SEMI"},
            expected=0.0,
            abs=0.05,
            because=NEAR,
            source="section V-C: the analysis roughly hits the sweet spot",
            explanation="With several stragglers Eq. 3 brings every sender down to the fastest rank's time and "
            "leaves out what that adds to the receivers, who then are the slowest.",
        ),
        Within(
            "Half of the paper's plans drop hardly more than the gentlest division that is no slower",
            quantity="median_drops_more_by",
            where={"solution": "SEMI"},
            expected=0.0,
            abs=0.05,
            because=NEAR,
            source="section V-C: with small accuracy penalty",
            explanation="Who does not migrate drops down to the fastest rank's time, which no rank has once it "
            "receives columns.",
        ),
        Bound(
            "Brute force over a grid finds nothing faster than the certified best",
            quantity="least_search_slower_by",
            at_least=-1e-6,
            because="a millionth: the precision of the linear programmes",
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
        f"A ratio of the sweep gives {claimed} % {meaning}, {model}",
        quantity="ratio_needed",
        expected=0.5,
        abs=0.25,
        where={"claimed": claimed, "model": model, "meaning": meaning},
        because="our sweep, 1/4 to 3/4, told by its middle; the paper's ratios did not survive",
        source=source,
    )


HOMOGENEOUS = "section I: 18.5 % in homogeneous environments"
RATIO_LOST = (
    "The ratio behind 18.5 % did not survive, 1/2 is assumed; the ratio that the model asks for is claimed beside it."
)
MEANINGS = ("time saved", "throughput gained")
SOLUTIONS = ["ZERO-Pri", "MIG", "SEMI", "MIG refined", "SEMI refined"]
ABSTRACT = _item(
    "abstract",
    "Efficiency with and without stragglers, and the ratios that the text's savings ask for",
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
                MEANING,
                {"abs": 2.0, "because": TWO_POINTS},
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
    "A layer all-reduces twice forward, after attention and after the perceptron, and twice backward: 96 an iteration "
    "of 24 layers, of which 48 are the forward pass's."
)
SETTING = _item(
    "setting",
    "Parameters, and all-reduces of an iteration and of a training",
    (
        Within(
            "Parameters of both models",
            quantity="parameters",
            rel=0.05,
            because="two digits are printed",
            source="section V-A",
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
            "144 million all-reduces of a training, as counted",
            quantity="all_reduces_of_training",
            abs=0,
            where={"counted": "forward and backward"},
            because=A_COUNT,
            source="section II-B",
        ),
        Within(
            "144 million all-reduces of a training, 48 in each of its iterations",
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
