"""What is reproduced of "Does compressing activations help model parallel training?".

Here: the page's findings, bytes (tables 1, 2, 4 and 7, counted) and figure 2 (measured).
"""

from workbench.reproduction import Evidence, Finding, Ordering, Page, Reproduction, Value, Whose, Within

__all__ = ["CATALOGUE", "PAGE"]

METHODS = ["w/o", "A1", "A2", "T1", "T2", "T3", "T4", "R1", "R2", "R3", "R4", "Q1", "Q2", "Q3"]
FEW_METHODS = ["w/o", "A1", "T1", "Q1"]
FINE_TUNING = {"meshes": [[1, 4], [2, 2], [4, 1]], "micro_batch": 32, "sequence": 512, "num_micro_batches": 1}
PRE_TRAINING = {"meshes": [[2, 8], [4, 4], [8, 2]], "micro_batch": 128, "sequence": 128, "num_micro_batches": 8}

BANDWIDTH_BOUND = "10 %: the time of messages of megabytes follows their bytes; latency and launching are left out"
SECOND_HALF = "only the forward reductions of 12 of the 24 layers are compressed"


def _profiles(**parameters) -> dict[str, dict]:
    small = {**parameters, "methods": FEW_METHODS}
    return {"smoke": small} | dict.fromkeys(("laptop", "full", "paper"), {**parameters, "methods": METHODS})


def _time_follows_bytes(of: str, methods: list[str], table: str, explanation: str = "") -> Within:
    return Within(
        f"{of}: the published time of tensor communication falls as the bytes do",
        quantity="tensor_share",
        neutral=1.0,
        where={"method": methods},
        rel=0.10,
        because=BANDWIDTH_BOUND,
        source=f"table {table}, column Tensor Comm. over its uncompressed row",
        explanation=explanation,
        whose=Whose.OURS,
    )


TABLE_1 = Reproduction(
    technique="activation_compression",
    item="table-1",
    evidence=Evidence.COUNTED,
    title="Bytes of one encoded activation, by method",
    notebook="notebooks/activation_compression/message.ipynb",
    published="table-1.csv",
    parameters={
        "smoke": {"methods": FEW_METHODS, "micro_batch": 2, "sequence": 128},
        **dict.fromkeys(("laptop", "full", "paper"), {"methods": METHODS, "micro_batch": 32, "sequence": 512}),
    },
    expected_s={"smoke": 6, "laptop": 15},
    claims=(
        Within(
            "Codes of 50 and 100 compress around 20 and 10 times, and so do the sparse methods that match them",
            quantity="element_ratio",
            where={},
            rel=0.05,
            because="5 %: the paper says 'around'; 1024/50 is 20.5",
            source="section 4.1",
            explanation="The codes have 50 and 100 of 1024 elements, and the sparse methods keep as many.",
            whose=Whose.CONSTRUCTION,
        ),
        Within(
            "Q1, Q2 and Q3 take 2, 4 and 8 bits an element",
            quantity="bits_per_element",
            where={"method": ["Q1", "Q2", "Q3"]},
            rel=0.02,
            because="2 %: a scale and a bias of 16 bits a row of 1024 add 0.03 bits an element",
            source="table 1",
            whose=Whose.CONSTRUCTION,
        ),
        Within(
            "T1 and R1 send the bytes of A1, T2 and R2 those of A2, among 2 ranks",
            quantity="wire_over_code",
            where={"tp": 2},
            expected=1.0,
            rel=0.001,
            because="the number of kept elements is a whole number",
            source="table 1: 'same comm. cost'",
            explanation="The number of kept elements is chosen for this equality.",
            whose=Whose.CONSTRUCTION,
        ),
        Within(
            "T1 and R1 send the bytes of A1, T2 and R2 those of A2, among 4 ranks",
            quantity="wire_over_code",
            where={"tp": 4},
            expected=1.0,
            rel=0.001,
            because="the number of kept elements is a whole number",
            source="table 1: 'same comm. cost'",
            explanation="The payloads are equal, the collectives are not. For n ranks, a ring all-reduce sends "
            "2(n−1)/n payloads a rank; the all-gather of sparse messages sends n−1. That is equal for 2 ranks and "
            "twice as much for 4.",
        ),
    ),
)

TABLE_2 = Reproduction(
    technique="activation_compression",
    item="table-2",
    evidence=Evidence.COUNTED,
    title="Bytes of a fine-tuning iteration, by method and (TP, PP), checked on real sockets",
    notebook="notebooks/activation_compression/bytes.ipynb",
    published="table-2.csv",
    parameters=_profiles(**FINE_TUNING, rehearse=True),
    expected_s={"smoke": 12, "laptop": 40},
    claims=(
        Within(
            "4 real ranks send exactly the bytes of the messages in sections 3.2 and 3.3",
            quantity="rehearsal_unexplained_bytes",
            expected=0.0,
            abs=0.0,
            because="a count: bytes sent on sockets, less the messages of sections 3.2 and 3.3, less gloo's headers",
            source="sections 3.2 and 3.3, in closed form",
            whose=Whose.OURS,
        ),
        Within(
            "The gradient of a quantised boundary message keeps its full size",
            quantity="boundary_gradient_share",
            where={"method": ["Q1", "Q2"], "tp": 2, "pp": 2},
            expected=1.0,
            rel=0.001,
            because="a count; autograd has no gradients for integers",
            source="section 3.3",
            whose=Whose.CONSTRUCTION,
        ),
    ),
)

TABLE_4 = Reproduction(
    technique="activation_compression",
    item="table-4",
    evidence=Evidence.COUNTED,
    title="Bytes beside the published communication times, fine-tuning, TP 2, PP 2",
    notebook="notebooks/activation_compression/bytes.ipynb",
    published="table-4.csv",
    parameters=_profiles(**{**FINE_TUNING, "meshes": [[2, 2]]}, rehearse=False),
    expected_s={"smoke": 6, "laptop": 6},
    claims=(
        _time_follows_bytes("Learned codes", ["A1", "A2"], "4"),
        _time_follows_bytes("Top-K", ["T1", "T2", "T3", "T4"], "4"),
        _time_follows_bytes("Quantisation", ["Q1", "Q2"], "4"),
        _time_follows_bytes(
            "Random-K",
            ["R1", "R2", "R3", "R4"],
            "4",
            "The paper's Random-K takes seconds to encode, so ranks reach the collective at different times. Its "
            "column of communication probably contains that waiting.",
        ),
    ),
)

TABLE_7 = Reproduction(
    technique="activation_compression",
    item="table-7",
    evidence=Evidence.COUNTED,
    title="Bytes beside the published communication times of tables 7 and 9, pre-training",
    notebook="notebooks/activation_compression/bytes.ipynb",
    published="table-7.csv",
    parameters=_profiles(**PRE_TRAINING, rehearse=False),
    expected_s={"smoke": 6, "laptop": 6},
    claims=(
        _time_follows_bytes(
            "Learned codes",
            ["A1", "A2"],
            "7",
            f"The published shares lie below one half. Bytes cannot: {SECOND_HALF}, so at least half stays. The column "
            "probably covers only the last pipeline stage.",
        ),
        _time_follows_bytes(
            "Top-K",
            ["T1", "T2", "T3", "T4"],
            "7",
            "An all-gather among 4 ranks sends twice the bytes of an all-reduce of the same payload. The paper's "
            "gathers over NVLink take even longer than these bytes need.",
        ),
        _time_follows_bytes(
            "Quantisation",
            ["Q1", "Q2"],
            "7",
            "The published times rise, although fewer bytes are sent; the paper gives no reason.",
        ),
        Within(
            "The bytes of the two compressed boundaries fall to a seventh with A2, as their times do",
            quantity="boundary_share",
            neutral=1.0,
            where={"method": "A2", "tp": 4, "pp": 4, "boundary": [1, 2]},
            rel=0.10,
            because=BANDWIDTH_BOUND,
            source="table 9",
            whose=Whose.OURS,
            explanation="Bytes fall to a tenth (100 of 1024 elements, both ways), times to a seventh. The published "
            "times contradict the stated link: 8 micro-batches of one rank are 268 MB each way, which take 215 ms at "
            "10 Gbit/s; table 9 has 88 and 98 ms for them without compression.",
        ),
        Within(
            "A2 leaves the boundary between uncompressed stages alone",
            quantity="boundary_share",
            neutral=1.0,
            where={"method": "A2", "tp": 4, "pp": 4, "boundary": 0},
            rel=0.10,
            because=BANDWIDTH_BOUND,
            source="table 9",
            explanation="Nothing is compressed at this boundary.",
            whose=Whose.CONSTRUCTION,
        ),
    ),
)

COMPARED = {"depth": "middle", "sentences": 480}  # the paper's layer is the 12th of 24
BETWEEN = (
    "The curve has no knee, so no few directions hold most of the sum; the paper concludes the same. But it bends more "
    "than 'nearly linear' was read as. A random matrix of the same shape is recorded beside it. The profile paper "
    "would tell whether BERT-large is straighter than this small encoder."
)
BY_DEPTH = (
    "The rank of the gradient depends on the depth and on the batch. The loss reads one token a sentence: the gradient "
    "of the last layer is close to rank one, and attention spreads it over more tokens in each layer below. With 32 "
    "sentences the gradient of the middle layer is lower in rank than with 480; both are recorded."
)
ALL_TOKENS = (
    "In the middle layer the gradient has reached all tokens and, without padding, needs as many dimensions as the "
    "activation. In the last layer, recorded too, it is close to rank one."
)
QUARTER = "a quarter of the way from a straight line (area 0) to a matrix of rank one (area 0.5); no number is printed"
EARLIER = "the paper prints no number, so the order of the two shares is compared, over all seeds"

SPECTRUM_PARAMETERS = {"encoder": "all-MiniLM-L6-v2", "task": "sst2", "sentences": [32, 480], "tensor_ranks": 2}

FIGURE_2 = Reproduction(
    technique="activation_compression",
    item="fig-2",
    evidence=Evidence.MEASURED,
    title="Singular values of gradients and of activations",
    notebook="notebooks/activation_compression/spectrum.ipynb",
    parameters={
        "smoke": {**SPECTRUM_PARAMETERS, "encoder": "stand-in", "sentences": [8], "seeds": [0], "in_full": False},
        "laptop": {**SPECTRUM_PARAMETERS, "seeds": [0, 1, 2], "in_full": False},
        "full": {**SPECTRUM_PARAMETERS, "seeds": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "in_full": True},
        "paper": {**SPECTRUM_PARAMETERS, "encoder": "bert-large-uncased", "seeds": [0, 1, 2], "in_full": True},
    },
    expected_s={"smoke": 6, "laptop": 45, "full": 200},
    times=False,
    tags=("one process", "small encoder"),
    claims=(
        Within(
            "The activation is not low-rank: its curve is nearly linear",
            quantity="area_above_diagonal",
            where={**COMPARED, "matrix": "activation"},
            expected=0.0,
            abs=0.125,
            because=QUARTER,
            needs_real_data=True,
            explanation=BETWEEN,
            source="section 2.2: the curve rises nearly linearly; a straight line has area 0",
        ),
        Within(
            "The gradient is low-rank: its curve is nearly that of a matrix of rank one",
            quantity="area_above_diagonal",
            where={**COMPARED, "matrix": "weight gradient"},
            expected=0.5,
            abs=0.125,
            because=QUARTER,
            needs_real_data=True,
            explanation=BY_DEPTH,
            source="figure 2's caption: the gradient is low-rank; a matrix of rank one has area 0.5",
        ),
        Ordering(
            "The gradient reaches 90 % of its sum in fewer dimensions than the activation",
            quantity="dimension_share_for_90",
            where=COMPARED,
            along="matrix",
            order=["weight gradient", "activation"],
            because=EARLIER,
            needs_real_data=True,
            source="figure 2",
        ),
        Ordering(
            "The gradient reaches half of its sum in fewer dimensions than the activation",
            quantity="dimension_share_for_50",
            where=COMPARED,
            along="matrix",
            order=["weight gradient", "activation"],
            because=EARLIER,
            needs_real_data=True,
            source="figure 2",
        ),
        Ordering(
            "The gradient of the activation reaches 90 % of its sum in fewer dimensions than the activation",
            quantity="dimension_share_for_90",
            where=COMPARED,
            along="matrix",
            order=["activation gradient", "activation"],
            because=EARLIER,
            needs_real_data=True,
            explanation=ALL_TOKENS,
            source="figure 2, if its gradient is that of the activation; the text does not say which",
            whose=Whose.OURS,
        ),
    ),
)

CATALOGUE = (TABLE_1, TABLE_2, FIGURE_2, TABLE_4, TABLE_7)


def _gain(item: str, **where) -> Value:
    """Name the gain in per cent of a recorded speedup."""
    return Value(item=item, quantity="speedup", where=where, minus=1.0, times=100.0)


def _points(task: str, method: str) -> Value:
    """Name the points that a method loses on a task of table 5."""
    return Value(item="table-5/measured", quantity="points_below", where={"task": task, "method": method})


def _lost(place: int) -> Value:
    """Name the points of CoLA that are lost with two of six layers compressed at a place, 0 the first, 1 the last."""
    return Value(item="fig-4b/measured", quantity="points_below", where={"task": "cola", "place": place})


SLOW, CARRIED, FAST = "slow", "carried over", "fast"
LARGEST = "table-3/measured: A1 speeds TP 4 up by 17.8 % or more without NVLink, link"
PAGE = Page(
    scale="Times: a BERT of 4 to 8 layers of width 256, on 4 or 16 real ranks that share two cores. Accuracy: "
    "all-MiniLM-L6-v2 (6 layers of width 384, 23 million parameters), three seeds, on virtual ranks. SST-2: 8,000 "
    "examples, 250 steps, 85.7 % without compression, 50.9 % by chance. STS-B: 5,749 examples, 1,080 steps, a rank "
    "correlation of 85.1 %, 0 by chance. The paper: BERT-large with 345 million parameters on 4 or 16 V100s.",
    picture="table-4/measured",
    quick={
        "table-4/measured": {"methods": ["w/o", "fp16", "A1", "T1", "Q1"], "num_iterations": 7, "expected_s": 40},
        "table-6/simulated": {},
    },
    findings=(
        Finding(
            says="Learned codes speed up training by up to 17.8 % on a machine without NVLink.",
            source="takeaway 1, section 4.2, table 3",
            found="With four tensor-parallel ranks over slow links a learned code gained {slow:.1f} % and "
            "{carried:.1f} %, with the link tuned in two ways; {fused:.1f} % with the code fused into the weight.",
            values={
                "slow": _gain("table-3/measured", method="A1", tp=4, link=SLOW),
                "carried": _gain("table-3/measured", method="A1", tp=4, link=CARRIED),
                "fused": _gain("table-3/measured", method="A1 fused", tp=4, link=CARRIED),
            },
            claims=(
                f"{LARGEST} tuned at TP 2",
                f"{LARGEST} with the share of TP 2 carried over to TP 4, 36.2 %",
                "table-3/measured: Learned codes without NVLink, TP 2 and TP 4: the gain of table 3",
            ),
            means="Use a learned code where tensor parallelism runs over slow links, and fuse it into the weight.",
        ),
        Finding(
            says="Over NVLink compression does not pay: with four ranks a learned code loses 3 %.",
            source="section 4.2, tables 2 and 3",
            found="Over fast links, with four ranks, a learned code changed the speed by {code:+.1f} %; the same code "
            "gained {slow:.1f} % over slow links.",
            values={
                "code": _gain("table-3/measured", method="A1", tp=4, link=FAST),
                "slow": _gain("table-3/measured", method="A1", tp=4, link=SLOW),
            },
            claims=(
                "table-3/measured: Learned codes with NVLink, TP 4: the gain of table 3",
                "table-3/measured: Takeaway 1: a learned code gains more over slower links, TP 4, link tuned at TP 2",
            ),
            means="Measure the share of communication first; with fast links leave activations as they are.",
        ),
        Finding(
            says="Top-K, Random-K and quantisation gain at most 1 %, since encoding takes too long.",
            source="takeaway 1, section 4.2, table 4",
            found="Over slow links T1 gained {top:.1f} % and Q1 {bits:.1f} % here, where encoding is cheap beside a "
            "processor's matrix products; A1 gained {code:.1f} %.",
            values={
                "top": _gain("table-4/measured", method="T1"),
                "bits": _gain("table-4/measured", method="Q1"),
                "code": _gain("table-4/measured", method="A1"),
            },
            claims=(
                "table-4/measured: Takeaway 1: Top-K gains at most 1 %",
                "table-4/measured: Takeaway 1: quantisation gains at most 1 %",
            ),
            means="The ranking depends on the cost of encoding on your device; time the encoder before you choose.",
        ),
        Finding(
            says="Learned codes and quantisation keep accuracy within 3 points in fine-tuning; Top-K does not.",
            source="takeaway 2, section 4.3, table 5",
            found="On SST-2, A1 lost {code:.1f} points, Q2 {bits:.1f} and T1 {top:.1f}; on STS-B, A1 lost "
            "{code_stsb:.1f} and T1 {top_stsb:.1f}.",
            values={
                "code": _points("sst2", "A1"),
                "bits": _points("sst2", "Q2"),
                "top": _points("sst2", "T1"),
                "code_stsb": _points("stsb", "A1"),
                "top_stsb": _points("stsb", "T1"),
            },
            claims=tuple(
                f"table-5/measured: {task}: takeaway 2, {method} loses at {bound} 3 points"
                for task in ("sst2", "stsb")
                for method, bound in (("A1", "most"), ("Q2", "most"), ("T1", "least"))
            ),
            means="Choose a learned code or 4 bits if the score must stay within 3 points.",
        ),
        Finding(
            says="In pre-training a learned code gains 16 % and Top-K 7 %.",
            source="takeaways 3 and 4, section 4.4, table 6",
            found="The cost model of the paper's machines predicts {code:.1f} % for A2 and {top:.1f} % for T1 with TP "
            "4, PP 4. On sixteen ranks that share two cores, A2 changed the speed by {measured:+.1f} %.",
            values={
                "code": _gain("table-6/simulated", method="A2", tp=4, pp=4),
                "top": _gain("table-6/simulated", method="T1", tp=4, pp=4),
                "measured": _gain("table-6/measured", method="A2", tp=4, pp=4),
            },
            claims=(
                "table-6/simulated: Takeaway 4: A2 gains 16 % in pre-training, TP 4, PP 4",
                "table-6/simulated: Takeaway 3: Top-K gains 7 % in pre-training (5 to 9 % in table 6)",
                "table-6/measured: Takeaways 3 and 4: A2 speeds pre-training up",
            ),
            means="The gain of pre-training could not be measured here; expect it only between machines.",
        ),
        Finding(
            says="Early layers are more sensitive: compressing the first layers harms accuracy most.",
            source="takeaway 7, section 4.5, figure 4b",
            found="Compressing the first two of six layers cost {first:.1f} points of CoLA, the last two {last:.1f}.",
            values={"first": _lost(0), "last": _lost(1)},
            claims=(
                "fig-4b/measured: cola: takeaway 7, compressing the first layers harms more than compressing the last",
                "fig-4b/measured: cola: takeaway 7, compressing the first layers loses at least 3 points",
            ),
            means="Compress the last third of the layers and leave the first ones alone.",
        ),
    ),
)
