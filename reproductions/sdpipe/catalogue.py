"""The findings that the page of this technique begins with; its items are in items.toml, its claims in claims.csv."""

from workbench.reproduction import Finding, Page, Use, Value


def _largest(over: str, dose: str = "each iteration") -> Value:
    return Value(item="fig-4/simulated", quantity="largest_speedup", where={"over": over, "dose": dose})


def _on_ranks(model: str) -> Value:
    where = {"over": ALL_REDUCE, "model": model, "mesh": "4 x 4", "setting": "B"}
    return Value(item="fig-4/measured", quantity="speedup", where=where)


def _to_55(over: str) -> Value:
    return Value(item="fig-5a/measured", quantity="target_speedup", where={"over": over, "to": "55 %"})


def _test_loss(scheme: str) -> Value:
    return Value(item="fig-5b/measured", quantity="test_loss", where={"scheme": scheme})


def _on_links(over: str) -> Value:
    return Value(item="links/measured", quantity="speedup", where={"over": over, "setting": "B"})


def _over_all_reduce(item: str) -> Value:
    return Value(item=f"{item}/measured", quantity="test_loss_over_all_reduce", where={"scheme": "SDPipe"})


ALL_REDUCE, AD_PSGD, HETPIPE = "All-Reduce+Pipe", "AD-PSGD+Pipe", "HetPipe"

PAGE = Page(
    scale="Measured: throughput of a ResNet of 8 layers and a BERT of 4 layers on 4 to 16 real ranks of one machine, "
    "which sleep for the time of their passes and delays, with and without links as slow as the paper's; losses of the "
    "ResNet on 10,000 images of CIFAR-10 and of a GPT-2 of 4 layers on WikiText-2 on 16 virtual ranks. Simulated: "
    "ResNet-50 and BERT-base on 16 to 4,096 workers.",
    picture="fig-5a/measured",
    name="SDPipe",
    use=Use(
        when="Delays are rare and about as long as an iteration.",
        gain="With a delay in one of ten iterations a small ResNet trained {resnet:.2f} times and a small BERT "
        "{bert:.2f} times as fast as with all-reduce, on 4 x 4 real ranks. Why not 4.3: with the delays of the text "
        "the simulation gives {all:.1f}, with two a mini-batch, as in the release, {twice:.1f}.",
        values={
            "resnet": _on_ranks("resnet"),
            "bert": _on_ranks("bert"),
            "all": _largest(ALL_REDUCE),
            "twice": _largest(ALL_REDUCE, dose="twice"),
        },
        avoid="Nothing is late, or a worker of each pipeline always is.",
        lost="The test loss ended at {images:.2f} times all-reduce's for a ResNet, {words:.2f} for a GPT-2.",
        lost_values={"images": _over_all_reduce("fig-5a"), "words": _over_all_reduce("fig-5b")},
        line="synchronized(part, optimizer, num_stages=2)",
        seen=Value(item="fig-4/measured", quantity="delay_over_iteration"),
        ratio="a delay over an iteration",
    ),
    findings=(
        Finding(
            says="SDPipe is up to 4.3 times as fast as All-Reduce and 2.8 times as fast as AD-PSGD.",
            source="section 5.2, figure 4",
            ours="Simulated with the delays of the text, up to {all:.1f} and {pairs:.1f} times; with two delays a "
            "mini-batch, as in the release, {twice:.1f} and {twice_pairs:.1f}. Measured on 4 x 4 real ranks with a "
            "delay in one of ten iterations (delays B), a small ResNet trains {resnet:.2f} times and a small BERT "
            "{bert:.2f} times as fast as with All-Reduce.",
            values={
                "all": _largest(ALL_REDUCE),
                "pairs": _largest(AD_PSGD),
                "twice": _largest(ALL_REDUCE, dose="twice"),
                "twice_pairs": _largest(AD_PSGD, dose="twice"),
                "resnet": _on_ranks("resnet"),
                "bert": _on_ranks("bert"),
            },
            claims=(
                "fig-4/simulated: SDPipe is up to 4.3 times as fast as All-Reduce+Pipe",
                "fig-4/simulated: SDPipe is up to 2.8 times as fast as AD-PSGD+Pipe",
                "fig-4/measured: With delays B SDPipe is fastest, then AD-PSGD, then All-Reduce",
                "fig-7b/simulated: SDPipe is 2.3 times as fast as All-Reduce",
            ),
            means="SDPipe gains where delays are rare and as long as an iteration. No scheme avoids the delays of a "
            "worker's own pipeline, and without delays All-Reduce that does not flush is as fast.",
        ),
        Finding(
            says="To the same loss All-Reduce and AD-PSGD take about 1.5 times as long as SDPipe; on BERT HetPipe 1.6 "
            "times, and it and AD-PSGD even longer than All-Reduce.",
            source="section 5.3, figure 5",
            ours="With delays B (losses measured on virtual ranks, seconds simulated): until a ResNet classifies 55 % "
            "of CIFAR-10's test images, All-Reduce takes {to_55:.2f} and AD-PSGD {pairs_to_55:.2f} times as long as "
            "SDPipe; it ends at {all:.1f} % with All-Reduce and {sdpipe:.1f} % with SDPipe. A GPT-2 ends at a test "
            "loss of {words:.2f} with All-Reduce and {words_sdpipe:.2f} with SDPipe, {words_flush:.2f} if SDPipe "
            "flushes its pipeline, too; knowing how often words occur gives {words_naive:.2f}.",
            values={
                "to_55": _to_55(ALL_REDUCE),
                "pairs_to_55": _to_55(AD_PSGD),
                "all": Value(item="fig-5a/measured", quantity="accuracy", where={"scheme": ALL_REDUCE}),
                "sdpipe": Value(item="fig-5a/measured", quantity="accuracy", where={"scheme": "SDPipe"}),
                "words": _test_loss(ALL_REDUCE),
                "words_sdpipe": _test_loss("SDPipe"),
                "words_naive": Value(item="fig-5b/measured", quantity="naive_loss"),
                "words_flush": Value(item="flushed-words/measured", quantity="test_loss", where={"scheme": "SDPipe"}),
            },
            claims=(
                "fig-5a/measured: To the target loss it takes All-Reduce+Pipe 1.5 times as long as SDPipe",
                "fig-5a/measured: To 45 and 55 % of the test images SDPipe takes less time than every rival",
                "fig-5a/measured: All models end with the same loss on the test set as All-Reduce's",
                "fig-5b/measured: To the target loss it takes All-Reduce+Pipe 1.5 times as long as SDPipe",
                "fig-5b/measured: HetPipe has more throughput than All-Reduce",
                "fig-7c/measured: To the target loss it takes All-Reduce+Pipe 1.6 times as long as SDPipe",
            ),
            means="Without a flush gradients belong to older weights: SDPipe makes more mini-batches in the same time "
            "and needs more of them. On images it still gains, on words it loses. With a flush it needs no more.",
        ),
        Finding(
            says="Its speedup over a parameter server grows from 16 to 64 workers.",
            source="section 5.4, figure 6",
            ours="Simulated with delays B, ResNet-50 trains {few:.1f} times as fast as with HetPipe on 16 workers and "
            "{many:.1f} times on 64; the rate of HetPipe's one server is calibrated. Measured on 4 x 4 real ranks with "
            "links as slow as the paper's beside an iteration, a small BERT trains {links:.1f} times as fast as with "
            "HetPipe that pushes each mini-batch, and {rare:.2f} times with a push in ten, as in the release.",
            values={"links": _on_links(HETPIPE), "rare": _on_links("HetPipe, a push in ten")}
            | {
                name: Value(
                    item="fig-6/simulated",
                    quantity="over_hetpipe",
                    where={"model": "ResNet-50", "setting": "B", "scheme": "SDPipe", "workers": workers},
                )
                for name, workers in (("few", 16), ("many", 64))
            },
            claims=(
                "fig-4/simulated: With delays B on 4 x 4 workers SDPipe trains BERT-base 1.6 times as fast as HetPipe",
                "fig-6/simulated: With delays B on 64 workers SDPipe gains most",
                "links/measured: With delays B SDPipe trains BERT 1.6 times as fast as HetPipe",
            ),
            means="The gain comes from one slow server; with servers on all machines, or with a push in ten "
            "mini-batches, it vanishes.",
        ),
        Finding(
            says="Waiting for certain workers can deadlock; it cannot if only one stage waits at a time.",
            source="section 3.4, figure 3",
            ours="The state machine deadlocks on {without:.0f} workers without the rule and on {rule:.0f} with it.",
            values={
                "without": Value(item="fig-3/counted", quantity="blocked_workers", where={"rule": "without the rule"}),
                "rule": Value(item="fig-3/counted", quantity="blocked_workers", where={"rule": "with the rule"}),
            },
            claims=(
                "fig-3/counted: Without the rule four workers wait for ever",
                "fig-3/counted: With the rule none does",
                "map/simulated: With P = 10 and T = 1/N at least 9 in 10 runs of P groups connect all workers",
            ),
            means="The price: meanwhile groups of other stages are not checked. Look at the map before you choose P.",
        ),
        Finding(
            says="Training converges under theorem 1's condition on the learning rate.",
            source="section 3.3, theorem 1",
            ours="With groups of at least two of four workers the condition admits learning rates up to {rate:.0e}, "
            "with groups of one worker none.",
            values={
                "rate": Value(item="theorem-1/counted", quantity="learning_rate", where={"num_pipelines": 4, "n1": 2})
            },
            claims=("theorem-1/counted: With N = M = 4 and P = 10 it admits the learning rate 0.01 where L is 1",),
            means="The theorem guarantees nothing for these trainings: that they converge is an observation.",
        ),
    ),
)
