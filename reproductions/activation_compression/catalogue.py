"""The findings that the page of this technique begins with; its items are in items.toml, its claims in claims.csv."""

from workbench.reproduction import Finding, Missed, Page, Use, Value


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

PRICE = "coding-price/measured"
LARGEST = "table-3/measured: A1 speeds TP 4 up by 17.8 % or more without NVLink, link"

PAGE = Page(
    scale="Times: a BERT of 4 to 12 layers of width 256, on 4 or 16 real ranks that share two cores. Accuracy: "
    "all-MiniLM-L6-v2 (6 layers of width 384, 23 million parameters), three seeds (MNLI and QNLI: two), on virtual "
    "ranks. SST-2: 8,000 examples, 250 steps, 85.7 % without compression, 50.9 % by chance. STS-B: 5,749 examples, "
    "1,080 steps, a rank correlation of 85.1 %, 0 by chance. The paper: BERT-large with 345 million parameters on 4 or "
    "16 V100s.",
    picture="coding-price/measured",
    use=Use(
        when="Tensor parallelism runs over slow links.",
        gain="A learned code gained {slow:.1f} % over slow links and {fast:+.1f} % over fast ones.",
        values={
            "slow": _gain("table-3/measured", method="A1", tp=4, link=SLOW),
            "fast": _gain("table-3/measured", method="A1", tp=4, link=FAST),
        },
        avoid="Links are as fast as NVLink, or you would use Top-K or Random-K where accuracy matters.",
        lost="On SST-2 a learned code (A1) lost {code:.1f} points, 4 bits (Q2) {bits:.1f} and Top-K (T1) {top:.1f}.",
        lost_values={"code": _points("sst2", "A1"), "bits": _points("sst2", "Q2"), "top": _points("sst2", "T1")},
        line="compress(model, codec, layers=2)",
        missed=Missed(item="fig-5/measured", measured="speedup_over_link", predicted="predicted_speedup_over_link"),
        seen=Value(item="table-3/measured", quantity="communication_share", where={"method": "w/o"}),
        ratio="forward tensor communication's share of an iteration",
    ),
    findings=(
        Finding(
            says="Learned codes speed up training by up to 17.8 % on a machine without NVLink.",
            source="takeaway 1, section 4.2, table 3",
            ours="With four tensor-parallel ranks over slow links a learned code gained {slow:.1f} % and "
            "{carried:.1f} %, with the link tuned in two ways; {fused:.1f} % with the code fused into the weight.",
            values={
                "slow": _gain("table-3/measured", method="A1", tp=4, link=SLOW),
                "carried": _gain("table-3/measured", method="A1", tp=4, link=CARRIED),
                "fused": _gain("table-3/measured", method="A1 fused", tp=4, link=CARRIED),
            },
            claims=(
                f"{LARGEST} tuned at TP 2",
                f"{LARGEST} with the share of TP 2 carried over to TP 4, 36.2 %",
                "table-3/measured: Learned codes without NVLink, TP 4: the gain of table 3",
            ),
            means="Use a learned code where tensor parallelism runs over slow links, and fuse it into the weight.",
        ),
        Finding(
            says="Over NVLink compression does not pay: with four ranks a learned code loses 3 %.",
            source="section 4.2, tables 2 and 3",
            ours="Over fast links, with four ranks, a learned code changed the speed by {code:+.1f} %; the same code "
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
            ours="With encoding and decoding as dear beside the link as in table 4, Top-K (T1) changed the speed by "
            "{top:+.1f} %, 2-bit quantisation (Q1) by {bits:+.1f} % and Random-K (R1) by {drawn:+.1f} %. With codecs "
            "of today over the same link T1 changed it by {top_today:+.1f} %, Q1 by {bits_today:+.1f} % and a learned "
            "code (A1) by {code:+.1f} %.",
            values={
                "top": _gain(PRICE, method="T1"),
                "bits": _gain(PRICE, method="Q1"),
                "drawn": _gain(PRICE, method="R1"),
                "code": _gain(PRICE, method="A1"),
                "top_today": _gain(PRICE, method="T1 today"),
                "bits_today": _gain(PRICE, method="Q1 today"),
            },
            claims=(
                "table-4/measured: Takeaway 1: Top-K gains at most 1 %",
                "table-4/measured: Takeaway 1: quantisation gains at most 1 %",
                "table-4/measured: Takeaway 1: Random-K gains at most 1 %",
                f"{PRICE}: T1 is faster with a codec of today than at the paper's price of coding",
                f"{PRICE}: Q1 is faster with a codec of today than at the paper's price of coding",
            ),
            means="The ranking depends on the cost of encoding on your device; time the encoder before you choose.",
        ),
        Finding(
            says="Learned codes and quantisation keep accuracy within 3 points in fine-tuning; Top-K does not.",
            source="takeaway 2, section 4.3, table 5",
            ours="On SST-2, a learned code (A1) lost {code:.1f} points, 4 bits (Q2) {bits:.1f} and Top-K (T1) "
            "{top:.1f}; on STS-B, the code lost {code_stsb:.1f} and Top-K {top_stsb:.1f}.",
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
            ours="The cost model of the paper's machines predicts {code:.1f} % for a learned code (A2) and "
            "{top:.1f} % for Top-K (T1) with TP 4, PP 4. On sixteen ranks that share two cores, the code changed the "
            "speed by {measured:+.1f} %.",
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
            means="The gain in pre-training could not be measured here; expect a gain only between machines.",
        ),
        Finding(
            says="Early layers are more sensitive: compressing the first layers harms accuracy most.",
            source="takeaway 7, section 4.5, figure 4b",
            ours="Compressing the first two of six layers cost {first:.1f} points of CoLA, the last two {last:.1f}.",
            values={"first": _lost(0), "last": _lost(1)},
            claims=(
                "fig-4b/measured: cola: takeaway 7, compressing the first layers harms more than compressing the last",
                "fig-4b/measured: cola: takeaway 7, compressing the first layers loses at least 3 points",
            ),
            means="Compress the last third of the layers and leave the first ones alone.",
        ),
    ),
)
