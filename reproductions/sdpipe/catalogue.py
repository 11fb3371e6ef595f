"""The findings that the page of this technique begins with; its items are in items.toml, its claims in claims.csv."""

from workbench.reproduction import Finding, Page, Value


def _largest(over: str) -> Value:
    return Value(item="fig-4/simulated", quantity="largest_speedup", where={"over": over, "dose": "each iteration"})


def _gain(item: str) -> Value:
    return Value(item=f"{item}/measured", quantity="speedup", where={"over": ALL_REDUCE})


ALL_REDUCE, AD_PSGD = "All-Reduce+Pipe", "AD-PSGD+Pipe"

PAGE = Page(
    scale="Measured: a ResNet of 8 layers on CIFAR-10 and a BERT of 4 layers on WikiText-2, 8 to 16 real ranks of one "
    "machine, which sleep for the time of their passes and delays. Simulated: ResNet-50 and BERT-base on 16 to 4,096 "
    "workers.",
    picture="fig-5a/measured",
    name="SDPipe",
    findings=(
        Finding(
            says="SDPipe is up to 4.3 times as fast as All-Reduce and 2.8 times as fast as AD-PSGD.",
            source="section 5.2, figure 4",
            found="Simulated with the delays of the text, up to {all:.1f} and {pairs:.1f} times. Measured with a delay "
            "in one of ten iterations (delays B), a small ResNet trains {resnet:.2f} times and a small BERT "
            "{bert:.2f} times as fast as with All-Reduce. On workers that replay a trace of shared GPUs, BERT trains "
            "{cloud:.2f} times as fast.",
            values={
                "all": _largest(ALL_REDUCE),
                "pairs": _largest(AD_PSGD),
                "resnet": _gain("fig-5a"),
                "bert": _gain("fig-5b"),
                "cloud": _gain("fig-7b"),
            },
            claims=(
                "fig-4/simulated: SDPipe is up to 4.3 times as fast as All-Reduce+Pipe",
                "fig-4/simulated: SDPipe is up to 2.8 times as fast as AD-PSGD+Pipe",
                "fig-5a/measured: SDPipe has more throughput than All-Reduce",
                "fig-5b/measured: SDPipe has more throughput than All-Reduce",
            ),
            means="SDPipe gains where delays are rare and as long as an iteration. No scheme avoids the delays of a "
            "worker's own pipeline.",
        ),
        Finding(
            says="Its speedup over a parameter server grows from 16 to 64 workers.",
            source="section 5.4, figure 6",
            found="Simulated with a delay of 0.3 s in one of ten iterations (delays B), ResNet-50 trains {few:.1f} "
            "times as fast as with HetPipe on 16 workers and {many:.1f} times on 64. The rate of HetPipe's one server "
            "is calibrated.",
            values={
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
            ),
            means="The gain comes from one slow server; with servers on all machines it vanishes.",
        ),
        Finding(
            says="Waiting for certain workers can deadlock; it cannot if only one stage waits at a time.",
            source="section 3.4, figure 3",
            found="The state machine deadlocks on {without:.0f} workers without the rule and on {rule:.0f} with it.",
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
            found="With groups of at least two of four workers the condition admits learning rates up to {rate:.0e}, "
            "with groups of one worker none.",
            values={
                "rate": Value(item="theorem-1/counted", quantity="learning_rate", where={"num_pipelines": 4, "n1": 2})
            },
            claims=("theorem-1/counted: With N = M = 4 and P = 10 it admits the learning rate 0.01 where L is 1",),
            means="The theorem guarantees nothing for these trainings: that they converge is an observation.",
        ),
    ),
)
