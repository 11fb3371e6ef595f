"""The findings that the page of this technique begins with; its items are in items.toml, its claims in claims.csv."""

from workbench.reproduction import Finding, Missed, Page, Use, Value


def _gain(model: str, over: str, figure: str) -> Value:
    where = {"model": model, "over": over, "gpus": 64}
    return Value(item=f"{figure}/simulated", quantity="gain", where=where)


def _pays_below(model: str) -> Value:
    return Value(item="advice/simulated", quantity="pays_below", where={"model": model, "machines": 8})


def _below(variant: str) -> Value:
    return Value(item="fig-4-16b/measured", quantity="points_below", where={"variant": variant, "metric": "accuracy"})


PAGE = Page(
    scale="Simulated: six models on 8 to 64 V100 of the paper's two clusters, with gradients, codec times and "
    "links that its authors released. Measured: small models on 4 or 8 real ranks of hosts joined by links of 20 to "
    "100 Mbit/s.",
    picture="fig-4-12/simulated",
    name="Espresso",
    use=Use(
        when="The network is slow for the model.",
        gain="On 8 machines of 8 H100 compression pays below {pays:.0f} Gbit/s for BERT-base and below {less:.0f} for "
        "ResNet101. At 400 Gbit/s BERT-base is {fast:.2f} times as fast as with the best plain setting.",
        values={
            "pays": _pays_below("bert_base"),
            "less": _pays_below("resnet101"),
            "fast": Value(
                item="advice/simulated",
                quantity="gain",
                where={"model": "bert_base", "machines": 8, "gigabits_per_s": 400},
            ),
        },
        avoid="The network is faster than that: 16 bits cost next to nothing.",
        lost="A ResNet lost {sign:.1f} points with EFSignSGD and {dgc:.1f} with DGC, {half:.1f} with FP16.",
        lost_values={"sign": _below("Espresso, efsignsgd"), "dgc": _below("Espresso, dgc"), "half": _below("FP16")},
        line="espresso.compress_gradients(model, plan)",
        missed=Missed(item="blind/measured", plain={"scheme": "FP32"}, technique={"scheme": "Espresso"}),
        seen=Value(item="advice/simulated", quantity="plain_scaling"),
        ratio="computation's share of the best plain iteration",
    ),
    findings=(
        Finding(
            says="Espresso trains up to 269 % faster than without compression and up to 77 % faster than HiPress.",
            source="section 4.8.4",
            ours="Simulated on 64 GPUs, VGG16 trains {vgg:.2f} times as fast as without compression, and LSTM "
            "{lstm:.2f} times as fast as with HiPress. Over sending FP16, which the paper leaves out, BERT-base gains "
            "{half:.2f} times. On 8 machines of 8 H100 compression pays below {pays:.0f} Gbit/s for BERT-base and "
            "below {less:.0f} for ResNet101.",
            values={
                "vgg": _gain("vgg16", "FP32", "fig-4-13"),
                "lstm": _gain("lstm", "HiPress", "fig-4-13"),
                "half": _gain("bert_base", "FP16", "fig-4-12"),
                "pays": _pays_below("bert_base"),
                "less": _pays_below("resnet101"),
            },
            claims=(
                "fig-4-13/simulated: On 64 GPUs Espresso trains vgg16 3.69 times as fast as FP32",
                "fig-4-13/simulated: On 64 GPUs Espresso trains lstm 1.77 times as fast as HiPress",
            ),
            means="Compare with FP16 before you compress: it costs next to nothing.",
        ),
        Finding(
            says="Its strategies are less than 10 % below the upper bound.",
            source="section 4.8.5, figure 4.14",
            ours="Simulated on 64 GPUs with all models and codecs, up to {nvlink:.0f} % below it with NVLink, and up "
            "to {pcie:.0f} % with PCIe. On small jobs algorithm 4.1 is up to {above:.0f} % above the optimum.",
            values={
                "nvlink": Value(
                    item="fig-4-14a/simulated", quantity="largest_below_bound", where={"scheme": "Espresso"}
                ),
                "pcie": Value(item="fig-4-14b/simulated", quantity="largest_below_bound", where={"scheme": "Espresso"}),
                "above": Value(
                    item="certificate/simulated",
                    quantity="above_optimum",
                    where={"scheme": "Espresso", "model": "vgg16"},
                ),
            },
            claims=(
                "fig-4-14a/simulated: Espresso with every model and codec is less than 10 % below the upper bound",
                "fig-4-14b/simulated: Espresso with every model and codec is less than 10 % below the upper bound",
                "certificate/simulated: Espresso is at most 5 % above the optimum of small jobs",
            ),
            means="Search on where the paper's algorithm stops: it takes a fraction of a second.",
        ),
        Finding(
            says="A tensor has 4,341 ways to be compressed and synchronised.",
            source="section 4.7.1",
            ours="Built from the rules, the decision tree has {count:,.0f} paths.",
            values={"count": Value(item="table-4-3/counted", quantity="options", where={"part": "tree"})},
            claims=("table-4-3/counted: A tensor has 4,341 options",),
            means="Most of these ways are never the best: the search looks at a few dozen.",
        ),
    ),
)
