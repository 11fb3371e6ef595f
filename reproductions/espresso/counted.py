"""Counted items of Espresso: paths of the tree, worked examples in whole slots, tensors by size, routines.

The figures print no lengths. Their examples have lengths that were chosen so that the text's statements hold: they show
that there is such a case, and are checks of the program, not findings about the paper.
"""

from workbench.reproduction import Bound, Evidence, Ordering, Reproduction, Whose, Within

COUNT = "a count is exact"
ORDER = "an order needs no tolerance"
CHOSEN = "The lengths are ours, chosen so that it holds: there is such a case."
RELEASE = ("needs the authors' release",)
MODELS = ["vgg16", "resnet101", "ugatit", "bert_base", "gpt2", "lstm"]
PRINTED = "printed as whole numbers"
BERT = (
    "The release has BERT-base for question answering: 199 tensors, 415 MiB. With both heads of pre-training it has "
    "206 parameters and 420 MiB."
)
NONE, ON_GPU, ALL_GPU, ALL_CPU = "a: none", "b: T2 on the GPU", "c: all on the GPU", "d: all on the CPU"
BEST = "e: T1 on the CPU, T2 on the GPU"


def _counted(item: str, title: str, notebook: str, claims: tuple, parameters: dict | None = None, **more):
    return Reproduction(
        technique="espresso",
        item=item,
        evidence=Evidence.COUNTED,
        title=title,
        notebook=f"notebooks/espresso/{notebook}.ipynb",
        claims=claims,
        parameters={"smoke": parameters or {}, "laptop": parameters or {}},
        expected_s={"smoke": 6, "laptop": 6},
        **more,
    )


def _example(item: str, title: str, claims: tuple) -> Reproduction:
    return _counted(item, title, "examples", claims, {"figure_number": item.removeprefix("fig-").replace("-", ".")})


def _check(name: str, source: str, quantity: str, where: dict, expected: float) -> Within:
    rule = {"expected": expected, "abs": 0.0, "because": COUNT, "source": source}
    return Within(name, quantity=quantity, where=where, whose=Whose.CONSTRUCTION, explanation=CHOSEN, **rule)


def _overhead(name: str, source: str, strategy: str, tensor: str, of: str, expected: float) -> Within:
    return _check(name, source, "overhead_slots", {"strategy": strategy, "tensor": tensor, "of": of}, expected)


def _faster(name: str, source: str, order: list[str], **more) -> Ordering:
    """The first takes the least time."""
    rule = {"quantity": "iteration_slots", "along": "strategy", "order": order, "because": ORDER, "source": source}
    return Ordering(name, whose=Whose.CONSTRUCTION, explanation=CHOSEN, **rule, **more)


def _of_release(model: str, quantity: str, says: str, tolerance: float, because: str) -> Within:
    return Within(
        f"{model} has {says}",
        quantity=quantity,
        where={"model": model, "inventory": "release"},
        abs=tolerance,
        because=because,
        explanation=BERT if model == "bert_base" else "",
    )


def _moves_less(scheme: str, explanation: str = "") -> Ordering:
    return Ordering(
        f"With compressed tensors {scheme} moves less over the busiest link than Allgather",
        quantity="busiest_link_bytes",
        along="scheme",
        where={"tensor": "compressed", "gpus": [4, 8, 64], "scheme": [scheme, "Allgather"]},
        order=[scheme, "Allgather"],
        because=ORDER,
        source="section 4.3.1: divisible schemes have lower communication time",
        explanation=explanation,
    )


FIG_4_2 = (
    _faster("(b) is faster than no compression, and (e) faster than (b)", "figure 4.2", [BEST, ON_GPU, NONE]),
    _faster("(c), all on the GPU, is slower than no compression", "figure 4.2", [NONE, ALL_GPU]),
    _faster("(d), all on the CPU, is slower than no compression", "figure 4.2", [NONE, ALL_CPU]),
    _check("No strategy of 27 is faster than (e)", "figure 4.2", "above_least_slots", {"strategy": BEST}, 0.0),
    _check(
        "Without overlap (c) saves most",
        "section 4.3.1, reason 1",
        "below_most_saved_slots",
        {"strategy": ALL_GPU},
        0.0,
    ),
    _overhead("(a) hides all of T0's communication", "reason 1", NONE, "T0", "communication", 0.0),
    _overhead("(a) hides 1 slot of 5 of T1's communication", "reason 1", NONE, "T1", "communication", 4.0),
    _overhead("(a) hides nothing of T2's communication", "reason 1", NONE, "T2", "communication", 5.0),
    _overhead("(b) hides all of T2's compression", "reason 1", ON_GPU, "T2", "compression", 0.0),
    _overhead("(c) hides nothing of a compression", "reason 1", ALL_GPU, ["T0", "T1", "T2"], "compression", 3.0),
    _overhead("(c) hides all of T1's communication", "reason 1", ALL_GPU, "T1", "communication", 0.0),
    _overhead("(d) hides nothing of T1's communication", "reason 1", ALL_CPU, "T1", "communication", 1.0),
    _overhead("(d) hides 1 slot of 5 of T1's compression", "reason 1", ALL_CPU, "T1", "compression", 4.0),
)
FIG_4_5 = (
    _faster("(a) divisible is faster than indivisible", "reason 2", ["a: divisible", "a: indivisible"]),
    _faster("(b) indivisible is faster than divisible", "reason 2", ["b: indivisible", "b: divisible"]),
    _overhead("(b) hides all of T0's communication", "reason 2", "b: indivisible", "T0", "communication", 0.0),
    _faster(
        "(c) compressing inside machines as well is faster",
        "reason 3",
        ["c: inside and between", "c: between machines only"],
    ),
    _faster(
        "(d) compressing inside machines as well is slower",
        "reason 3",
        ["d: between machines only", "d: inside and between"],
    ),
    _overhead("(d) hides 4 of T0's 5 slots", "reason 3", "d: between machines only", "T0", "communication", 1.0),
)
FIG_4_9 = (
    _check("(a) has one bubble", "figure 4.9", "bubbles", {"strategy": NONE}, 1.0),
    _faster("(a) compressing T0, before the bubble, is slower", "property 1", [NONE, "a: T0"]),
    _check("(b) compressing T1 forms a new bubble", "caption of figure 4.9", "bubbles", {"strategy": "b: T1"}, 2.0),
    _check("(c) compressing T2 forms none", "figure 4.9", "bubbles", {"strategy": "c: T2"}, 1.0),
    _faster(
        "(c) compressing T2 gains more than T1",
        "property 2",
        ["c: T2", "b: T1", NONE],
        erratum='Section 4.7.2 says "Figure 4.9(b) shows that a new bubble appears when T2 is compressed"; the caption '
        "says T1, and so do our lengths.",
    ),
    _overhead("T2's compression is hidden", "property 2", "c: T2", "T2", "compression", 0.0),
    _overhead("T1's compression is not", "property 2", "b: T1", "T1", "compression", 1.0),
)
TABLE_4_4 = (
    *(_of_release(model, "tensors", "as many tensors as table 4.5 says", 0.0, COUNT) for model in MODELS),
    *(_of_release(model, "size_MiB", "as many MiB as table 4.4 says MB", 0.5, PRINTED) for model in MODELS),
)
FIG_4_11 = (
    Bound(
        "BERT-base's tensors have a few different sizes",
        quantity="sizes",
        where={"model": "bert_base"},
        at_most=10.0,
        neutral=199.0,
        because="a few: at most ten",
        source="section 4.8.3, figure 4.11",
    ),
    Bound(
        "For BERT-base's 54 largest tensors algorithm 4.2 looks at a few thousand combinations",
        quantity="offloaded_combinations",
        where={"model": "bert_base", "way": "algorithm 4.2"},
        at_most=9999.0,
        neutral=2.0**54,
        because="a few thousand: below ten thousand",
        source="section 4.8.3",
        explanation="Which 54 tensors the paper's search left is not said: here the largest, all with one option.",
    ),
)
TABLE_4_2 = (
    _moves_less("Alltoall/Allgather"),
    _moves_less(
        "Gather/Broadcast",
        "The root of a gather receives n - 1 messages, as every GPU does in an all-gather, and sends one more.",
    ),
    Ordering(
        "Divisible schemes compress and decompress more often",
        quantity="codec_calls",
        along="scheme",
        where={"tensor": "compressed", "gpus": 8, "scheme": ["Allgather", "Alltoall/Allgather"]},
        order=["Allgather", "Alltoall/Allgather"],
        because=ORDER,
        source="section 4.3.1: two compression and decompression operations",
        explanation="Of n GPUs' messages a divisible scheme decodes two tensors in all, an all-gather n: whether it "
        "takes longer depends on what a call costs.",
    ),
)


CATALOGUE = (
    _counted(
        "table-4-3",
        "The decision tree of tables 4.2 and 4.3 and figure 4.8: how many options a tensor has",
        "options",
        (
            Within(
                "A tensor has 4,341 options",
                quantity="options",
                where={"part": "tree"},
                expected=4341.0,
                abs=0.0,
                because=COUNT,
                source="section 4.7.1",
            ),
        ),
    ),
    _counted(
        "table-4-2",
        "The collective routines of table 4.2: what moves over the busiest link",
        "routines",
        TABLE_4_2,
        {"num_gpus": [2, 4, 8, 64], "tensor_mib": 100.0, "ratio": 0.01},
    ),
    _example("fig-4-2", "Five strategies for three tensors: compressing all of them is slower than none", FIG_4_2),
    _example("fig-4-5", "The computation of T1 decides how T0 should be compressed and sent", FIG_4_5),
    _example("fig-4-9", "Bubbles: which of three tensors compressing helps", FIG_4_9),
    _counted(
        "fig-4-11",
        "How many tensors of a model have the same size",
        "inventories",
        FIG_4_11,
        {"models": MODELS, "what": "sizes"},
        tags=RELEASE,
    ),
    _counted(
        "table-4-4",
        "Tensors and sizes of the six models of tables 4.4 and 4.5",
        "inventories",
        TABLE_4_4,
        {"models": MODELS, "what": "models"},
        tags=RELEASE,
        published="table-4-4.csv",
    ),
)
