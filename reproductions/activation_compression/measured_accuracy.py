"""Accuracy of "Does compressing activations help model parallel training?": fine-tuning on GLUE under compression.

A smaller encoder than the paper's, so claims compare what is left of the uncompressed score, not scores. Real data and
a real encoder only: a stand-in supports no verdict.

Each claim says in `changed` which of its rules were made or changed after results were seen.
"""

import math
from pathlib import Path

from workbench.reproduction import Bound, Decidable, Evidence, Ordering, Reproduction, Whose, Within, read_published

__all__ = ["CATALOGUE"]

ACCURACY = "notebooks/activation_compression/accuracy.ipynb"
METHODS = ["w/o", "A1", "A2", "T1", "T2", "T3", "T4", "Q1", "Q1f", "Q2", "Q3"]
FEW_METHODS = ["w/o", "A1", "A2", "T1", "T2", "Q1", "Q2"]
TASKS = ["sst2", "mrpc", "stsb", "cola", "rte"]  # those whose data is complete
NOT_RUN = ["mnli", "qqp", "qnli"]  # 40,000 to 393,000 examples; the stored training data are incomplete
FEW_TASKS = ["sst2"]  # far from chance in half a minute; STS-B and MRPC need several
LEARNED, QUANTIZED, TOP_K = ["A1", "A2"], ["Q1", "Q2"], ["T1", "T2", "T3", "T4"]
SENSITIVE = ["cola", "rte"]  # the paper excepts them from takeaway 2

TOLERANCES = dict.fromkeys(["sst2", "mrpc", "stsb", *NOT_RUN], 0.04) | {"cola": 0.10, "rte": 0.07}  # of the score
REPEATED = (
    "for codes and quantisation the paper's tables 5 and 15 differ by at most 0.097 on CoLA, 0.068 on RTE and 0.018 on "
    "SST-2, MRPC and STS-B; so the tolerances are 0.10, 0.07 and twice 0.018, 0.04"
)
COLLAPSED = "0.10: the paper's Top-K collapses in some runs and not in others"
TWO_VALUES = "; a score near one of two printed values that differ by more than 0.20 decides nothing"

LITTLE_LOST = "; a method that loses nothing agrees, too, since the paper's loss is small: an answer by chance fails"

STRICTER = "The tolerance was made stricter, from 0.10, with 12 results of the full run known."
BETWEEN = "With table 5 and figure 4 known, a review added that a value between two printed ones disagrees."
MOST_OF_IT = "With tables 5 and 15 known, MRPC no longer agrees by a tolerance of most of what there is to lose."
ONE_SEED_WRONG = "With everything known, the error of CoLA's shares became that of the seed with the least score."
LATE_Q1F = "Q1f was added with one seed of table 5 known, and is asked of the row Q1 since tables 5 and 15 are known."
WHOLE_SPREAD = "That all seeds count was fixed with all of table 5 but seed 2 known."
ANY_LOSS = "With table 5 known, the rule was made stricter: 3 points in place of any loss."
LONGER = "STS-B was trained for six epochs in place of two after T4 and Q1 had lost 11 to 31 points in two."
FEW_STEPS = "With everything known, no verdict is given on a method at chance after the few steps of the laptop."
EXCEPTED = "Asked as an exception since table 5 and figure 4 are known."
SHARED_ORDERS = "With all of table 5 known, only orders that tables 5 and 15 of the paper share were kept."
RESTORED = (
    "Dropped with table 5 known, since table 15 has the opposite order; ours {} then. Restored, because a claim is not "
    "dropped for its result."
)
ADDED = "Added with all results known."
HARMLESS = "With everything known, no verdict is given on 3 points where T2 loses as little."
# Of each validation split, as `datasets.glue.TASKS` has them (importing that takes the CLI 0.2 s).
TESTED = {"sst2": 872, "mrpc": 408, "stsb": 1500, "cola": 1043, "rte": 277, "mnli": 9815, "qqp": 40_430, "qnli": 5463}
ONLY_DISAGREES = (
    f"; an uncompressed score below {1 / math.sqrt(TESTED['cola']) / 0.10:.2f} has a standard error of more than 0.10 "
    "of itself, and what is kept of it can then disagree, but not agree"
)
THREE_POINTS = "3 points: the limit of section 4.3, for all seeds; a gain counts as no loss"
PRESERVED = "3 points: the limit of section 4.3 for methods that preserve the score, for all seeds"
ORDER = "an order needs no tolerance; overlapping seeds show no order"
SMALLER = (
    "The encoder is smaller: 3 of 6 layers of width 384 are compressed, the paper compresses 12 of 24 of width 1024. "
    "Fewer errors add up, but a small encoder has less to spare. The precision is bfloat16 (paper: fp16). Messages "
    "hold little padding (paper: mostly padding). The paper prints one run of each method, and some of its runs "
    "collapsed: CoLA with A2 ends at 0 in table 16."
)
CODE = SMALLER + " A code has 19 or 38 numbers here and learns in some hundred steps in full, in tens on the laptop."
QUANTIZER = SMALLER + (
    " Q1 and Q2 scale each token from its least to its greatest value, so one outlier spoils its token at 2 bits. The "
    "paper uses the scheme of Wang et al. (2022), whose released code scales each feature; Q1f does the same. On SST-2 "
    "the scale matters after the laptop's few steps and hardly in full."
)
COLLAPSE = (
    "Top-K keeps more of the score the more it sends and the longer it trains. With T1 and T2 the encoder answers by "
    "chance after the laptop's few steps of SST-2; in full it does so on CoLA and RTE alone. T4 loses 12 to 31 points "
    "of STS-B after two epochs and at most 3 after six (table 5). The paper's Top-K ends at chance or at 0 in some "
    "tables and not in others: STS-B with T1 keeps 0.00 in table 5 and 0.80 in table 15, CoLA with T4 0.00 and 0.87."
)
FEWER_EXAMPLES = " The full run learns SST-2 from 8,000 examples, the paper from all of them."
# STS-B, three seeds, batches of 32: after 360 steps T4 loses 12 to 31 points and Q1 11 to 24, after 1,080 at most 3.
# SST-2, batches of 32: T1 and T2 give one constant answer after 47 steps, after 250 neither does.
UNCOMPRESSED = {"method": "w/o"}
ENOUGH_STEPS, LEARNS_AFTER, STEPS_OF = {"stsb": 1_000}, {"sst2": 200}, "all-MiniLM-L6-v2"


def _printed_in(table: int) -> dict:
    """Return the relative scores that a table prints, by task and method."""
    rows = read_published(Path(__file__).with_name("published") / f"table-{table}.csv")
    return {(row.keys["task"], row.keys["method"]): row.value for row in rows if row.quantity == "relative_score"}


BY_TABLE = {str(table): _printed_in(table) for table in (5, 8, 15, 16)}
PRINTED = {"512 tokens": BY_TABLE["5"], "128 tokens": BY_TABLE["15"]}  # one setting here, for sentences are short


def _decidable(task: str, **more) -> Decidable:
    common = {
        "baseline": UNCOMPRESSED,
        "num_tested": TESTED[task],
        "by_accuracy": task == "mrpc",
        "least_steps": ENOUGH_STEPS.get(task, 0),
        "learns_after": LEARNS_AFTER.get(task, 0),
        "steps_of": STEPS_OF,
    }
    return Decidable(**common | more)


# Of claims about all tasks: SST-2 alone is known to need steps.
LEARNED_SST2 = _decidable("sst2", where={"task": "sst2"})
# Table 16 itself says otherwise: CoLA with A2 0.00, with T2 0.00; RTE with A1 47.29, with T1 52.71.
CONTRADICTED = {("16", "cola", "A2"), ("16", "rte", "A1")}

FULL = {
    "tasks": TASKS,
    "methods": METHODS,
    "seeds": [0, 1, 2],
    "max_tokens": 512,
    "batch": 32,
    "limit": 0,
    "precision": "bf16",
    "controls": ["mrpc", "stsb"],
    "encoder": "all-MiniLM-L6-v2",
    "epochs": {"stsb": 6},
}
SHORTER = {"shorter": {"stsb": 2}}  # epochs; a third of those above
LAPTOP = FULL | {"tasks": FEW_TASKS, "methods": FEW_METHODS, "limit": 1500, "controls": [], "epochs": {}}
SMOKE = LAPTOP | {
    "tasks": ["mrpc"],
    "methods": ["w/o", "A2"],
    "seeds": [0],
    "limit": 64,
    "encoder": "stand-in",
    "max_tokens": 32,
    "epochs": {"mrpc": 3},
}
LARGE = {"encoder": "bert-large-uncased", "limit": 0, "device": "cuda"}  # the paper's encoder
PAPER = FULL | LARGE | {"tasks": [*TASKS, "qnli", "qqp", "mnli"], "controls": [], "epochs": {}}


SCALED = SMALLER + " Q1f scales each feature, as the released code of Wang et al. (2022) does."
TAGS = ("virtual ranks", "small encoder")
NEAR = [*((code, CODE) for code in LEARNED), *((bits, QUANTIZER) for bits in QUANTIZED)]
BOTH_NEAR = [*NEAR, ("Q1f", SCALED)]
WITHIN_3 = "section 4.3: within 3 % except for CoLA and RTE (but table 5 has QNLI with Q1 at 61.38, 93.39 without)"
BEYOND_3 = "section 4.3: Top-K does not preserve accuracy; table 5 has losses above 3 points for these tasks"
TABLE_5_ID = "activation-compression/table-5/measured"
KEPT_IN_TABLE_5 = {("sst2", "T4")}  # loses 1.38 there; left out when that was noticed (it was not comparable)


def _keeps(task: str, method: str, table: str, tolerance: float, because: str, why: str, changed: str = "") -> Within:
    ours = " (our variant, a scale a token)" if method in QUANTIZED else ""
    loses_little = BY_TABLE[table][task, method] + tolerance >= 1
    return Within(
        f"{task}: {method}{ours} keeps of the score what it keeps in table {table}",
        quantity="relative_score",
        neutral=1.0,
        where={"task": task, "method": method},
        abs=tolerance,
        because=because + LITTLE_LOST * loses_little,
        needs_real_data=True,
        decidable=_decidable(task, printed=_printed(task, method) if table in ("5", "15") else {}),
        explanation=why,
        source=f"table {table}",
        changed=changed,
        repeats=TABLE_5_ID if table == "15" else "",
        insensitive=LITTLE_LOST.removeprefix("; ") if loses_little else "",
    )


def _printed(task: str, method: str) -> dict:
    return {setting: values[task, method] for setting, values in PRINTED.items() if (task, method) in values}


def _loses(name: str, where: dict, source: str, why: str, **rule) -> Bound:
    """Claim that at most, or at least, 3 points of a task are lost; `rule` says which, and when that can be decided."""
    return Bound(
        name,
        quantity="points_below",
        where=where,
        because=THREE_POINTS if "at_most" in rule else PRESERVED,
        needs_real_data=True,
        source=source,
        explanation=why,
        **{"decidable": _decidable(where["task"]), **rule},
    )


def _order(name: str, order: list, source: str, task: str, explanation: str = "", **about) -> Ordering:
    return Ordering(
        f"{task}: {name}",
        quantity="score",
        along="method",
        order=order,
        where={"task": task},
        because=ORDER,
        needs_real_data=True,
        decidable=_decidable(task),
        source=source,
        explanation=explanation,
        **about,
    )


def _missing(task: str) -> str:
    return f" Missing: trainings on {task}." if task in NOT_RUN else ""


def _changes(task: str, method: str, table: str) -> str:
    """Say what of a share's rule was changed after results were seen."""
    if task in NOT_RUN:
        return ADDED
    by_task = {"cola": ONE_SEED_WRONG, "mrpc": MOST_OF_IT, "sst2": FEW_STEPS}.get(task, "")
    said = {
        LATE_Q1F: method == "Q1f",
        STRICTER: method not in TOP_K and task != "cola",
        BETWEEN: method in TOP_K and table != "16",
        LONGER: task == "stsb" and table != "16",
        by_task: bool(by_task),
    }
    return " ".join(text for text, holds in said.items() if holds)


def _claims(task: str, table: str) -> tuple:
    further = FEWER_EXAMPLES * (table == "16") + _missing(task)
    noisy, collapse = ONLY_DISAGREES if task == "cola" else "", COLLAPSE + further
    repeated, collapsed = (TOLERANCES[task], REPEATED + noisy), COLLAPSED + TWO_VALUES * (table != "16") + noisy
    return (
        *(
            _keeps(task, method, table, *repeated, why + further, _changes(task, method, table))
            for method, why in BOTH_NEAR
        ),
        *(_keeps(task, method, table, 0.10, collapsed, collapse, _changes(task, method, table)) for method in TOP_K),
        *(
            _order(
                f"at the bytes of {code}, a learned code keeps more than Top-K",
                [top, code],
                f"table {table}",
                task,
                collapse,
                repeats=TABLE_5_ID if table == "15" else "",
            )
            for top, code in (("T1", "A1"), ("T2", "A2"))
            if (table, task, code) not in CONTRADICTED and task not in NOT_RUN
        ),
    )


def _takeaway_2(task: str) -> tuple:
    claim = f"{task}: takeaway 2, {{}} loses {{}} 3 points"
    late = LONGER if task == "stsb" else ""
    near = {"Q1f": f"{LATE_Q1F} {WHOLE_SPREAD} {late}"}
    return (
        *(
            _loses(
                claim.format(method, "at most"),
                {"task": task, "method": method},
                WITHIN_3,
                why,
                at_most=3.0,
                changed=near.get(method, f"{WHOLE_SPREAD} {late}").strip(),
            )
            for method, why in BOTH_NEAR
        ),
        *(
            _loses(
                claim.format(method, "at least"),
                {"task": task, "method": method},
                BEYOND_3,
                COLLAPSE,
                at_least=3.0,
                neutral=0.0,
                changed=f"{ANY_LOSS} {late}".strip(),
            )
            for method in TOP_K
            if (task, method) not in KEPT_IN_TABLE_5
        ),
    )


def _takeaway_2_excepts(task: str) -> tuple:
    source = f"{WITHIN_3}; each of these loses more in its table 5"
    return tuple(
        _loses(
            f"{task}: excepted from takeaway 2, {method} loses at least 3 points",
            {"task": task, "method": method},
            source,
            why,
            at_least=3.0,
            neutral=0.0,
            changed=EXCEPTED,
        )
        for method, why in BOTH_NEAR
    )


def _table(
    number: str, title: str, claims: tuple, expected_s: dict, full: dict, laptop: dict | None, smoke: dict = SMOKE
):
    """Declare a table of fine-tunings, whose paper profile has neither controls nor other epochs."""
    return Reproduction(
        technique="activation_compression",
        item=f"table-{number}",
        evidence=Evidence.MEASURED,
        title=title,
        notebook=ACCURACY,
        published=f"table-{number}.csv",
        tags=TAGS,
        claims=claims,
        expected_s=expected_s,
        parameters={
            "smoke": smoke | {"batch": full["batch"]},
            **({"laptop": laptop} if laptop else {}),
            "full": full,
            "paper": {name: value for name, value in full.items() if name != "shorter"}
            | {name: PAPER[name] for name in (*LARGE, "tasks", "controls", "epochs")},
        },
    )


def _for_all(table: str) -> tuple:
    return tuple(claim for task in [*TASKS, *NOT_RUN] for claim in _claims(task, table))


TABLE_5 = _table(
    "5",
    "Fine-tuning under compression: the share of the GLUE score that is kept, 512 tokens",
    (
        *(claim for task in TASKS for claim in (_takeaway_2_excepts if task in SENSITIVE else _takeaway_2)(task)),
        *_for_all("5"),
    ),
    {"smoke": 15, "laptop": 250, "full": 33_000},
    FULL | SHORTER,
    LAPTOP,
    SMOKE | {"shorter": {"mrpc": 1}, "controls": ["mrpc"]},
)

SCALES = "this project's comparison; the released code of Wang et al. (2022), the paper's scheme, scales each feature"
BOTH_SCALES = ["w/o", "Q1", "Q1f", "Q2", "Q2f"]
QUANTISERS = Reproduction(
    technique="activation_compression",
    item="quantisers",
    evidence=Evidence.MEASURED,
    notebook=ACCURACY,
    tags=TAGS,
    title="Quantisation to 2 and 4 bits: one scale a token (Q1, Q2) or a feature (Q1f, Q2f)",
    published="table-5.csv",
    parameters={
        "smoke": SMOKE | {"methods": ["w/o", "Q1f"]},
        "full": FULL | {"tasks": ["sst2", "stsb"], "methods": BOTH_SCALES, "controls": []},
    },
    expected_s={"smoke": 10, "full": 1_100},
    claims=tuple(
        claim
        for task in ("sst2", "stsb")
        for claim in (
            _order(
                "two bits keep more with a scale a feature than with one a token",
                ["Q1", "Q1f"],
                SCALES,
                task,
                whose=Whose.OURS,
            ),
            *(
                _loses(
                    f"{task}: with a scale a feature {bits} bits lose at most 3 points",
                    {"task": task, "method": method},
                    WITHIN_3,
                    SCALED,
                    at_most=3.0,
                    changed=LATE_Q1F,
                    repeats=TABLE_5_ID if method == "Q1f" else "",
                    whose=Whose.PAPER if method == "Q1f" else Whose.OURS,
                )
                for bits, method in (("two", "Q1f"), ("four", "Q2f"))
            ),
        )
    ),
)
TABLE_15 = _table(
    "15",
    "Fine-tuning under compression: the share of the GLUE score that is kept, 128 tokens",
    _for_all("15"),
    {"smoke": 10, "laptop": 15, "full": 2_700},
    FULL | {"max_tokens": 128, "controls": []},
    LAPTOP | {"max_tokens": 128},
)
TABLE_16 = _table(
    "16",
    "Fine-tuning under compression: the share of the GLUE score that is kept, batch 8, 128 tokens",
    _for_all("16"),
    {"smoke": 10, "full": 15_000},
    FULL
    | {"max_tokens": 128, "batch": 8, "controls": [], "epochs": {}},  # a step is a quarter: STS-B has enough of them
    laptop=None,
)


def _item(
    item: str,
    title: str,
    notebook: str,
    profiles: tuple,
    seconds: tuple,
    claims: tuple,
    published: str | None = None,
    tags: tuple = TAGS,
) -> Reproduction:
    """Declare an item by its parameters and seconds in smoke, laptop (None: not in it), full and paper."""
    names = ("smoke", "laptop", "full", "paper")
    return Reproduction(
        technique="activation_compression",
        item=item,
        evidence=Evidence.MEASURED,
        title=title,
        published=published,
        tags=tags,
        notebook=f"notebooks/activation_compression/{notebook}.ipynb",
        claims=claims,
        parameters={name: each for name, each in zip(names, profiles, strict=False) if each},
        expected_s={name: each for name, each in zip(names, seconds, strict=False) if each},
    )


AVERAGES = (
    "section 4.3: tables 5 and 15 of the paper both have this order, averaged over SST-2, MRPC, STS-B and CoLA; ours "
    "is averaged over the tasks that were run and are not at chance"
)
TABLE_5_ALONE = "table 5, averaged over SST-2, MRPC, STS-B and CoLA; table 15 has the opposite order"
STUDY = {name: value for name, value in FULL.items() if name != "controls"}
PER_BYTE = _item(
    "accuracy-per-byte",
    "The share of the score that a method keeps, by the bytes that it sends",
    "accuracy_per_byte",
    (
        {name: SMOKE[name] for name in STUDY},
        {name: LAPTOP[name] for name in STUDY},
        STUDY,
        {name: PAPER[name] for name in PAPER if name != "controls"},
    ),
    (10, 15, 20),
    tuple(
        Ordering(
            name,
            quantity="mean_relative_score",
            along="method",
            order=order,
            where={},
            because=ORDER,
            source=source,
            needs_real_data=True,
            decidable=LEARNED_SST2,
            explanation=COLLAPSE,
            changed=changed,
            repeats=TABLE_5_ID if name.startswith("Takeaway 2") else "",
        )
        for name, order, source, changed in (
            ("At the bytes of A1, a learned code keeps more than Top-K", ["T1", "A1"], AVERAGES, SHARED_ORDERS),
            ("At the bytes of A2, a learned code keeps more than Top-K", ["T2", "A2"], AVERAGES, SHARED_ORDERS),
            ("T2 keeps least, then A2, then Q2", ["T2", "A2", "Q2"], AVERAGES, SHARED_ORDERS),
            ("T4 keeps more than T3, which sends less", ["T3", "T4"], AVERAGES, SHARED_ORDERS),
            ("T4 keeps more than T2, which sends less", ["T2", "T4"], AVERAGES, SHARED_ORDERS),
            ("T2 keeps more than T3, which sends more", ["T3", "T2"], TABLE_5_ALONE, RESTORED.format("disagreed")),
            ("T2 keeps more than T1", ["T1", "T2"], TABLE_5_ALONE, RESTORED.format("was not comparable")),
            *(
                (f"Takeaway 2: {method} keeps less than the uncompressed encoder", [method, "w/o"], "section 4.3", "")
                for method in TOP_K
            ),
        )
    ),
)

# Figure 4 has CoLA and RTE. RTE stays at chance with this encoder (table 5), where no layer can be seen to matter.
LAYERS = {
    "along": "layer_share",
    "tasks": ["sst2", "cola", "stsb"],
    "method": "A2",
    "seeds": [0, 1, 2],
    "max_tokens": 512,
    "batch": 32,
    "limit": 0,
    "precision": "bf16",
    "encoder": "all-MiniLM-L6-v2",
    "layer_sets": [[], [5], [4, 5], [3, 4, 5], [2, 3, 4, 5], [1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]],
}
WINDOWS = LAYERS | {"along": "place", "layer_sets": [[], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]}
IN_PRINT = {"tasks": ["cola", "rte"]}  # in figure 4
CLAIMED = [
    "sst2",
    "cola",
    "rte",
]  # of full and of paper; two epochs of STS-B are too few to judge, and it is not in print
NONE, A_THIRD, HALF, ALL = 0, 0.333, 0.5, 1  # of the layers, as accuracy.with_layers rounds it
FIRST, LAST = 0, 1  # places of the compressed layers
STAND_IN = {"tasks": ["mrpc"], "seeds": [0], "limit": 64, "max_tokens": 32, "encoder": "stand-in"}
REPAIRED = (
    "The encoder has six layers, so one layer here stands for four of the paper's 24. Fine-tuning can repair a part of "
    "the loss. The paper does not name the method of figure 4 (A2 is assumed) and prints no spread."
)
COARSER = (
    "With the runs known, the order is asked of none, half and all of the layers. Asked of every number of layers, "
    "whose seeds overlap, no task could be decided."
)


def _source(task: str, place: str) -> str:
    if task == "rte":
        return f"{place}; asked in the profile paper alone, since the small encoder is at chance on RTE"
    return place if task in SENSITIVE else f"{place}, which has CoLA and RTE; this task was added here"


def _whose(task: str) -> Whose:
    return Whose.PAPER if task in SENSITIVE else Whose.OURS


def _takeaway_6(task: str) -> tuple:
    decidable = _decidable(task, baseline={"layer_share": NONE})
    common = {"where": {"task": task}, "because": ORDER, "needs_real_data": True, "explanation": REPAIRED}
    common |= {"whose": _whose(task)}
    return (
        *(
            Ordering(
                f"{task}: takeaway 6, {statement}",
                quantity="score",
                along="layer_share",
                order=order,
                source=_source(task, "section 4.5, figure 4a"),
                decidable=decidable,
                changed=COARSER,
                **common,
            )
            for statement, order in (
                ("the score falls from none of the layers compressed to half and to all of them", [ALL, HALF, NONE]),
                ("all layers compressed score below none", [ALL, NONE]),
            )
        ),
        _loses(
            f"{task}: compressing the last third of the layers loses at most 3 points",
            {"task": task, "layer_share": A_THIRD},
            _source(task, "section 4.5: the last 8 of 24 layers keep the loss within 3 %"),
            REPAIRED,
            at_most=3.0,
            decidable=decidable,
            whose=_whose(task),
        ),
    )


def _takeaway_7(task: str) -> tuple:
    source, decidable = _source(task, "section 4.5, figure 4b"), _decidable(task, baseline={"place": None})
    return (
        Ordering(
            f"{task}: takeaway 7, compressing the first layers harms more than compressing the last",
            quantity="score",
            along="place",
            order=[FIRST, LAST],
            where={"task": task},
            because=ORDER,
            needs_real_data=True,
            decidable=decidable,
            source=source,
            explanation=REPAIRED,
            whose=_whose(task),
        ),
        _loses(
            f"{task}: takeaway 7, compressing the first layers loses at least 3 points",
            {"task": task, "place": FIRST},
            source,
            REPAIRED,
            at_least=3.0,
            neutral=0.0,
            decidable=decidable,
            whose=_whose(task),
            changed=ANY_LOSS,
        ),
    )


FIGURE_4A = _item(
    "fig-4a",
    "Score by the number of compressed layers",
    "accuracy_by_layers",
    (
        LAYERS | STAND_IN | {"layer_sets": [[], [1], [0, 1]]},
        None,
        LAYERS,
        LAYERS
        | LARGE
        | IN_PRINT
        | {"layer_sets": [list(range(24 - number, 24)) for number in (0, 4, 8, 12, 16, 20, 24)]},
    ),
    (10, None, 7_200),
    tuple(claim for task in CLAIMED for claim in _takeaway_6(task)),
)
FIGURE_4B = _item(
    "fig-4b",
    "Score by the place of the compressed layers",
    "accuracy_by_layers",
    (
        WINDOWS | STAND_IN | {"layer_sets": [[], [0], [1]]},
        None,
        WINDOWS,
        WINDOWS
        | LARGE
        | IN_PRINT
        | {"layer_sets": [[], *(list(range(first, first + 8)) for first in (0, 4, 8, 12, 16))]},
    ),
    (10, None, 5_400),
    tuple(claim for task in CLAIMED for claim in _takeaway_7(task)),
)

FEEDBACK = {name: value for name, value in STUDY.items() if name != "epochs"} | {
    "tasks": ["sst2", "stsb"],
    "methods": ["A1", "T1", "T4", "Q1"],
    "max_tokens": 48,
    "limit": 3000,
}
ERROR_FEEDBACK = _item(
    "error-feedback",
    "Fine-tuning with and without error feedback",
    "accuracy_error_feedback",
    (FEEDBACK | STAND_IN | {"methods": ["T1"]}, None, FEEDBACK),
    (10, None, 5_400),
    tuple(
        Ordering(
            f"{task}: error feedback raises the score under {method}, as one may expect",
            quantity="score",
            along="error_feedback",
            order=[0, 1],
            where={"task": task, "method": method},
            because=ORDER,
            needs_real_data=True,
            decidable=_decidable(task),
            source="this project's expectation: error feedback helps where gradients are compressed; section 3.3 "
            "offers it and prints no scores",
            explanation="The remembered error belongs to other sentences. Gradients of all steps move one weight, but "
            "an activation is read once, so the error is added as noise. Independent normal messages are off by 0.57 "
            "of their norm when rounded to 2 bits, and by 0.95 with the error of the last message added.",
            whose=Whose.OURS,
            changed=FEW_STEPS,
        )
        for task in FEW_TASKS
        for method in FEEDBACK["methods"]  # STS-B is shown; its steps are too few to judge
    ),
)

RANKS = {
    "methods": METHODS,
    "task": "stsb",
    "seed": 0,
    "limit": 256,
    "epochs": 1,
    "max_tokens": 64,
    "precision": "bf16",
    "encoder": "all-MiniLM-L6-v2",
}
REAL_RANKS = _item(
    "real-ranks",
    "Virtual ranks give the losses, scores and bytes of real ranks",
    "accuracy_on_ranks",
    (RANKS | {"methods": ["w/o", "A1"], "limit": 32, "max_tokens": 16, "encoder": "stand-in"}, None, RANKS),
    (15, None, 400),
    (
        Within(
            "Real and virtual ranks end at the same loss",
            quantity="loss_difference",
            expected=0.0,
            abs=0.01,
            because="1 %: real ranks add in another order, and Top-K can turn a last bit into another element",
            explanation="Both run one thread. With two threads for the virtual ranks, a processor with AMX rounded "
            "bf16 products otherwise, and losses were up to 1.3 % apart.",
            source="sections 3.2 and 3.3: the ranks compute one function",
            whose=Whose.OURS,
        ),
        Within(
            "Real and virtual ranks score the same",
            quantity="score_difference",
            expected=0.0,
            abs=1.0,
            because="1 point of rank correlation over 1,500 pairs; after few steps equal losses say more",
            source="sections 3.2 and 3.3: the ranks compute one function",
            whose=Whose.OURS,
        ),
        Within(
            "Real and virtual ranks send the same bytes",
            quantity="bytes_difference",
            expected=0.0,
            abs=0.0,
            because="a count",
            source="sections 3.2 and 3.3: the ranks compute one function",
            whose=Whose.OURS,
        ),
    ),
    tags=("real ranks", "virtual ranks", "small encoder"),
)

PRETRAINED = {  # RTE is left out: this encoder is at chance on it
    "tasks": ["sst2", "mrpc", "stsb", "cola"],
    "methods": ["w/o", "A2", "T2", "Q2"],
    "seeds": [0, 1, 2],
    "num_blocks": 4000,
    "max_tokens": 64,
    "limit": 0,
    "precision": "bf16",
    "encoder": "all-MiniLM-L6-v2",
}
PROXY = (
    "A proxy: a few hundred steps from a pretrained encoder, not a pre-training from the start. So few steps cannot do "
    "the harm of a whole pre-training under Top-K, and give a learned code little time to learn."
)
AS_IN_TABLE_5 = "the tolerances of table 5"
TABLE_8 = _item(
    "table-8",
    "Fine-tuning after pre-training under compression (a proxy: a few hundred steps)",
    "accuracy_after_pretraining",
    (
        PRETRAINED | STAND_IN | {"methods": ["w/o", "T2"], "num_blocks": 32, "max_tokens": 32, "limit": 64},
        None,
        PRETRAINED,
    ),
    (15, None, 8_000),
    tuple(
        Ordering(
            f"Words are harder to guess through Top-K than through {told}, at the end of the pre-training",
            quantity="pretraining_loss",
            along="method",
            order=[method, "T2"],
            where={},
            because=ORDER,
            needs_real_data=True,
            decidable=LEARNED_SST2,
            source="this project's, beside takeaway 5: the loss on masked words at the end of the pre-training",
            explanation=PROXY,
            whose=Whose.OURS,
            changed="Added with these losses known.",
        )
        for told, method in (("a code of as many bytes", "A2"), ("4 bits", "Q2"))
    )
    + tuple(
        claim
        for task in PRETRAINED["tasks"]
        if task != "stsb"  # shown; its steps are too few to judge
        for claim in (
            _order("takeaway 5, after Top-K less is left than after a code", ["T2", "A2"], "table 8", task, PROXY),
            _order("takeaway 5, after Top-K less is left than after 4 bits", ["T2", "Q2"], "table 8", task, PROXY),
            _order("takeaway 5, after Top-K less is left than after none", ["T2", "w/o"], "table 8", task, PROXY),
            *(
                _loses(
                    f"{task}: takeaway 5, after {told} at most 3 points are lost",
                    {"task": task, "method": method},
                    "takeaway 5 and table 8: these preserve accuracy",
                    PROXY,
                    at_most=3.0,
                    decidable=_decidable(task, contrast={"method": "T2"}),
                    changed=HARMLESS,
                )
                for told, method in (("a code", "A2"), ("4 bits", "Q2"))
            ),
            _loses(
                f"{task}: takeaway 5, after Top-K at least 3 points are lost",
                {"task": task, "method": "T2"},
                "section 4.4: significant accuracy loss with Top-K; table 8 has 12 to 46 points on these tasks",
                PROXY,
                at_least=3.0,
                neutral=0.0,
                changed=ADDED,
            ),
            *(
                _keeps(task, method, "8", 0.10 if method == "T2" else TOLERANCES[task], AS_IN_TABLE_5, PROXY, ADDED)
                for method in ("A2", "T2", "Q2")
            ),
        )
    ),
    "table-8.csv",
)

CATALOGUE = (
    TABLE_5,
    QUANTISERS,
    PER_BYTE,
    TABLE_15,
    TABLE_16,
    FIGURE_4A,
    FIGURE_4B,
    TABLE_8,
    ERROR_FEEDBACK,
    REAL_RANKS,
)
