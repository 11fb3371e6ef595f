"""The findings that the page of this technique begins with; its items are in items.toml, its claims in claims.csv."""

from workbench.reproduction import Finding, Missed, Page, Use, Value


def _largest(item: str, over: str, model: str = "") -> Value:
    where = {"over": over} | ({"model": model} if model else {})
    return Value(item=f"{item}/simulated", quantity="largest_gain" if model else "largest_of_all", where=where)


def _search(model: str, way: str, costs: str = "α + β·x", times: float = 1.0) -> Value:
    where = {"model": model, "way": way, "costs": costs}
    return Value(item="table-5-1/measured", quantity="search_s", where=where, times=times)


def _slower(item: str, over: str) -> Value:
    return Value(item=f"{item}/simulated", quantity="slower_cells", where={"over": over})


def _misses(costs: str, search: str, quantity: str = "misses") -> Value:
    return Value(item="theorem-5-1/counted", quantity=quantity, where={"costs": costs, "search": search})


def _left(sent: str) -> Value:
    return Value(item="headroom/simulated", quantity="largest_gain", where={"sent": sent})


def _below(variant: str) -> Value:
    return Value(item="fig-5-8a/measured", quantity="points_below", where={"variant": variant, "metric": "accuracy"})


PAGE = Page(
    scale="Simulated: ResNet50, ResNet101 and BERT-base on a server of 8 V100 and on 8 machines of 8, with gradients, "
    "codec times and links that the authors released. Measured: small models on 4 or 8 real ranks of hosts joined by "
    "slow links.",
    picture="fig-5-6/simulated",
    name="Cupcake",
    use=Use(
        when="You compress gradients anyway.",
        gain="Simulated on 64 V100s, up to {plain:.2f} times as fast as FP32; but FP16 is faster with {half:.0f} of "
        "{cells:.0f} pairs of model and codec.",
        values={
            "plain": _largest("fig-5-7", "FP32"),
            "half": _slower("fig-5-7", "FP16"),
            "cells": Value(item="fig-5-6/simulated", quantity="cells"),
        },
        avoid="16 bits are enough. Without compression keep DistributedDataParallel's own buckets.",
        lost="A ResNet lost {points:.1f} points with DGC, {half:.1f} with FP16.",
        lost_values={"points": _below("Cupcake, dgc"), "half": _below("FP16")},
        line='cupcake.fuse(model, "efsignsgd")',
        missed=Missed(item="fig-5-7/measured", plain={"scheme": "FP16"}, technique={"scheme": "Cupcake"}),
        seen=Value(item="fig-5-7/measured", quantity="communication_share"),
        ratio="communication's share of the best plain iteration",
    ),
    findings=(
        Finding(
            says="Cupcake trains up to 2.03 times as fast as without compression, and up to 1.79 times as fast as "
            "layer-wise compression.",
            source="section 5.1",
            ours="Simulated on 64 GPUs, up to {plain:.2f} times as fast as FP32 and {each:.2f} times as fast as "
            "HiPress; on the server ResNet50 gains {server:.2f}. FP16, which the paper leaves out, is faster than "
            "Cupcake with {half_server:.0f} of {cells:.0f} pairs of model and codec on the server and with "
            "{half:.0f} on 64 GPUs, and FP32 fused best with {fused:.0f} on 64 GPUs.",
            values={
                "plain": _largest("fig-5-7", "FP32"),
                "each": _largest("fig-5-7", "layer-wise compression"),
                "server": _largest("fig-5-6", "FP32", "resnet50"),
                "half_server": _slower("fig-5-6", "FP16"),
                "half": _slower("fig-5-7", "FP16"),
                "fused": _slower("fig-5-7", "FP32, fused best"),
                "cells": Value(item="fig-5-6/simulated", quantity="cells"),
            },
            claims=(
                "fig-5-7/simulated: On 64 GPUs Cupcake trains up to 2.03 times as fast as FP32",
                "fig-5-7/simulated: On 64 GPUs Cupcake trains up to 1.79 times as fast as layer-wise compression",
            ),
            means="Never compress tensor by tensor, and compare with FP16 before you compress.",
        ),
        Finding(
            says="The optimal fusion is up to 1.12 times as fast as buckets and 1.18 times as fast as an even split.",
            source="section 5.4.3",
            ours="Simulated on the server with DGC, at most {buckets:.3f} and {even:.3f} times; over "
            "DistributedDataParallel's own buckets {ddp:.3f} times.",
            values={
                "buckets": Value(item="fig-5-9/simulated", quantity="largest_gain", where={"over": "Bucket fusion"}),
                "even": Value(item="fig-5-9/simulated", quantity="largest_gain", where={"over": "Evenly split"}),
                "ddp": Value(item="fig-5-9/simulated", quantity="largest_gain", where={"over": "DDP's buckets"}),
            },
            claims=(
                "fig-5-9/simulated: Cupcake is up to 1.12 times as fast as bucket fusion",
                "fig-5-9/simulated: Cupcake is up to 1.18 times as fast as an even split",
            ),
            means="Fuse tensors into large groups; which tensors form a group hardly matters.",
        ),
        Finding(
            says="A search with two prunings finds the optimal fusion in seconds.",
            source="sections 5.3.2 and 5.4.3, theorem 5.1",
            ours="Dynamic programming finds the same optimum of ResNet101's 314 tensors in {fast:.2f} ms, and in "
            "{flat:.0f} ms with flat times and decoding; algorithm 5.1 takes {search:.2f} s, and for BERT-base it had "
            "not ended after {bert:.0f} s. As printed it missed {printed:.0f} of {problems:.0f} random problems: it "
            "never considers one group of all tensors.",
            values={
                "fast": _search("resnet101", "Dynamic programming", times=1000.0),
                "flat": _search("resnet101", "Dynamic programming", "flat, then linear", times=1000.0),
                "search": _search("resnet101", "Algorithm 5.1"),
                "bert": _search("bert_base", "Algorithm 5.1"),
                "printed": _misses("α + β·x", "algorithm 5.1 as printed"),
                "problems": _misses("α + β·x", "algorithm 5.1 as printed", "problems"),
            },
            claims=(
                "theorem-5-1/counted: Algorithm 5.1 as printed finds the optimum",
                "table-5-1/measured: Algorithm 5.1 ends in seconds",
            ),
            means="Use dynamic programming: it is exact and takes milliseconds.",
        ),
        Finding(
            says="The paper does not ask how much fusion still gains on the machines of today.",
            source="beyond the paper",
            ours="On 8 machines of 8 H100, over DistributedDataParallel's buckets: at most {plain:.2f} times as fast "
            "without compression, {dgc:.2f} with DGC and {sign:.2f} with EFSignSGD.",
            values={"plain": _left("FP32"), "dgc": _left("dgc"), "sign": _left("efsignsgd")},
            claims=(
                "headroom/simulated: Without compression the best fusion gains at most 5 % over "
                "DistributedDataParallel's buckets",
            ),
            means="Without compression, keep DistributedDataParallel's own buckets.",
        ),
    ),
)
