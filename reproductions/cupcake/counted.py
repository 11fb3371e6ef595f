"""Counted items of Cupcake: worked examples in slots, the optima of random problems, and the models' tensors."""

from workbench.reproduction import Bound, Evidence, Ordering, Reproduction, Whose, Within

ORDER = "an order needs no tolerance"
COUNT = "a count is exact"
CHOSEN = "The figures print no lengths. Ours were chosen so that it holds: there is such a case."
ONE_GROUP = (
    "Main (lines 60 to 62) hands the one group of all tensors on with nothing left to fuse, and lines 91 to 93, which "
    "remember the best fusion, are not reached then. The smallest case is one tensor: nothing is returned."
)
LINE, FLAT, ALL = "α + β·x", "flat, then linear", "decoding, CPU, two links and limits"
FLAT_PART = (
    "With α + β·x a tensor that moves to the group before changes no sum, and one group takes no longer than two. With "
    "a flat time the move can lengthen one group and not shorten the other, which pruning 2 overlooks. Where several "
    "groups within the flat part take less than one, the outcome that pruning 1 calls optimistic is not. The smallest "
    "case of each is in the record."
)


def _counted(item: str, title: str, notebook: str, claims: tuple, laptop: dict, smoke: dict, **more) -> Reproduction:
    return Reproduction(
        technique="cupcake",
        item=item,
        evidence=Evidence.COUNTED,
        title=title,
        notebook=f"notebooks/cupcake/{notebook}.ipynb",
        claims=claims,
        parameters={"smoke": laptop | smoke, "laptop": laptop},
        **{"expected_s": {"smoke": 6, "laptop": 6}, **more},
    )


def _fewer_slots(name: str, faster: str, slower: str, source: str) -> Ordering:
    return Ordering(
        name,
        quantity="slots",
        along="scheme",
        order=[faster, slower],
        because=ORDER,
        source=source,
        whose=Whose.CONSTRUCTION,
        explanation=CHOSEN,
    )


def _finds(name: str, search: str, costs: str, whose: Whose, **more) -> Bound:
    return Bound(
        name, quantity="misses", where={"search": search, "costs": costs}, at_most=0, because=COUNT, whose=whose, **more
    )


def _tensors(model: str, name: str, num: int, explanation: str = "") -> Within:
    return Within(
        f"{name} has {num} tensors",
        quantity="tensors",
        where={"model": model, "source_of": "release"},
        expected=float(num),
        abs=0.0,
        because=COUNT,
        source="table 5.1",
        explanation=explanation,
    )


CATALOGUE = (
    _counted(
        "fig-5-1",
        "Five tensors: no overlap, overlap, and compressing each",
        "examples",
        (
            _fewer_slots("Overlap makes the iteration shorter", "WFBP", "no overlap", "figures 5.1a and 5.1b"),
            Within(
                "Compressing each tensor does not make the iteration shorter",
                quantity="slots",
                where={"scheme": "layer-wise"},
                expected=17.0,
                abs=0.0,
                because=COUNT,
                source="figure 5.1c: it takes as long as 5.1b, 17 slots here",
                whose=Whose.CONSTRUCTION,
                explanation=CHOSEN,
            ),
        ),
        {"figure_number": "5.1"},
        {},
    ),
    _counted(
        "fig-5-3",
        "Five tensors: one group, each, and the best fusion",
        "examples",
        (
            _fewer_slots("Some fusion is faster than one group", "fused best", "one group", "figure 5.3"),
            _fewer_slots("Some fusion is faster than layer-wise compression", "fused best", "layer-wise", "figure 5.3"),
        ),
        {"figure_number": "5.3"},
        {},
    ),
    _counted(
        "theorem-5-1",
        "Does each search find the optimum of random problems?",
        "exactness",
        (
            *(
                _finds(
                    f"optimal_fusion finds the optimum with costs that are {costs}",
                    "optimal_fusion",
                    costs,
                    Whose.OURS,
                    source="a promise of this project",
                )
                for costs in (LINE, FLAT, ALL)
            ),
            _finds(
                "Algorithm 5.1 as printed finds the optimum",
                "algorithm 5.1 as printed",
                LINE,
                Whose.PAPER,
                source="theorem 5.1",
                explanation=ONE_GROUP,
                erratum="Theorem 5.1 against lines 60 to 62 and 91 to 93 of algorithm 5.1.",
            ),
            _finds(
                "Algorithm 5.1, with one group remembered, finds the optimum",
                "algorithm 5.1",
                LINE,
                Whose.PAPER,
                source="theorem 5.1",
            ),
            _finds(
                "Algorithm 5.1 finds the optimum with costs that are flat, then linear",
                "algorithm 5.1",
                FLAT,
                Whose.OURS,
                source="theorem 5.1 with section 5.2.4",
                explanation=FLAT_PART,
                changed="The first rule had one flat encoding and linear sending, with one miss in 20,000 problems.",
            ),
        ),
        {"num_problems": 20_000, "most_tensors": 8, "seed": 0},
        {"num_problems": 100, "most_tensors": 6},
        expected_s={"smoke": 8, "laptop": 150},
    ),
    _counted(
        "table-5-1",
        "Tensors of the three models, by the release and by the architecture",
        "inventories",
        (
            _tensors("resnet50", "ResNet50", 161),
            _tensors("resnet101", "ResNet101", 314),
            _tensors("bert_base", "BERT-base", 207, "For question answering it has 199; its pooler and heads differ."),
        ),
        {"models": ["resnet50", "resnet101", "bert_base"]},
        {},
        tags=("needs the authors' release",),
    ),
)
