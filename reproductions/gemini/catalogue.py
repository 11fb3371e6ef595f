"""The findings that the page of this technique begins with; its items are in items.toml, its claims in claims.csv."""

from workbench.reproduction import Finding, Page, Use, Value


def _longer(item: str, scheme: str = "Gemini") -> Value:
    """Name how many per cent longer a scheme makes iterations."""
    return Value(item=f"{item}/measured", quantity="over_baseline", where={"scheme": scheme}, minus=1.0, times=100.0)


def _busy(quantity: str, scheme: str, **scale: float) -> Value:
    where = {"scheme": scheme, "batch": 1152}
    return Value(item="cost-by-length/measured", quantity=quantity, where=where, **scale)


def _recovers(lost: int) -> Value:
    """Name the per cent of cases that recover from memory when so many of sixteen machines are lost."""
    where = {"placement": "group", "num_machines": 16, "k": lost, "way": "exact"}
    return Value(item="fig-6-9/counted", quantity="recovery_probability", where=where)


def _seconds(failure: str) -> Value:
    return Value(item="fig-6-14/measured", quantity="total_s", where={"failure": failure})


def _ratio(solution: str, quantity: str = "effective_ratio") -> Value:
    where = {"solution": solution, "num_machines": 1000}
    return Value(item="fig-6-15b/simulated", quantity=quantity, where=where, times=100.0)


def _gain(quantity: str) -> Value:
    where = {"highfreq": "HighFreq", "num_machines": 1000, "of": "HighFreq's ratio"}
    return Value(item="fig-6-15b/simulated", quantity=quantity, where=where)


def _times(highfreq: str) -> Value:
    where = {"highfreq": highfreq, "replaced": "one"}
    return Value(item="fig-6-10/simulated", quantity="reduction", where=where)


def _slower(scheme: str) -> Value:
    return Value(item="fig-6-16/simulated", quantity="overhead", where={"scheme": scheme})


def _differ(failure: str) -> Value:
    return Value(item="fig-6-14/measured", quantity="different_ranks", where={"failure": failure})


NO_LONGER = "Gemini makes iterations at most 1 % longer"

PAGE = Page(
    scale="A GPT-2 of 2 layers of width 128 with sharded states on 4 real ranks, each on its own host with a link of "
    "100 Mbit/s; ranks sleep for as long as an accelerator would compute. Failures: processes of 4 to 8 ranks are "
    "really killed. "
    "Simulated: GPT-2 100B on 16 machines of 8 A100, the paper's own.",
    picture="fig-6-14/measured",
    use=Use(
        when="Machines fail, and iterations take seconds on accelerators.",
        gain="Iterations of 2 s became {slept:.1f} % longer. Simulated with 1,000 machines, {gemini:.0f} % of the time "
        "is progress; with checkpoints in storage as often as it allows, {storage:.0f} %.",
        values={"slept": _longer("fig-6-7"), "gemini": _ratio("Gemini"), "storage": _ratio("HighFreq")},
        avoid="There is one machine, or the processors that train also copy the checkpoints.",
        lost="Ranks that were not bit-identical after recovery: {soft:.0f} where processes, {hard:.0f} where machines "
        "were lost.",
        lost_values={"soft": _differ("software"), "hard": _differ("hardware")},
        line="InMemoryCheckpoints(context, model, optimizer)",
        seen=Value(item="fig-6-7/simulated", quantity="checkpoint_over_iteration"),
        ratio="a checkpoint's time on the network over an iteration",
    ),
    findings=(
        Finding(
            says="A checkpoint in every iteration makes iterations no longer.",
            source="section 6.7.2, figure 6.7",
            ours="Iterations of 2 s became {slept:.1f} % longer (with torch's async_save to files {saved:.1f} %) "
            "where an accelerator computes. Where the same processors checkpoint and train, iterations of "
            "{busy_s:.1f} s became {busy:.1f} % longer. Simulated on the paper's p3dn machines, they become no longer, "
            "and if copies are waited for, {waiting:.1f} % longer with copies at the network's nominal 100 Gbit/s, "
            "{reached:.1f} % at 80, about what messages reach.",
            values={
                "waiting": _slower("Unpipelined"),
                "reached": Value(
                    item="fig-6-16/simulated",
                    quantity="overhead_by_rate",
                    where={"scheme": "Unpipelined", "copy_gbit_per_s": 80},
                ),
                "slept": _longer("fig-6-7"),
                "saved": _longer("fig-6-7", "async_save"),
                "busy": _busy("over_baseline", "Gemini", minus=1.0, times=100.0),
                "busy_s": _busy("iteration_s", "Baseline"),
            },
            claims=(
                f"fig-6-7/measured: {NO_LONGER}",
                "fig-6-7/simulated: Gemini makes iterations of GPT-2 100B no longer, however the 62 s divide into "
                "computing and messages, as long as a checkpoint takes under 3 s",
                "fig-6-16/simulated: Gemini, then unpipelined, then blocking",
                "cost-by-length/measured: The longest iterations, of over 2 s, become at most 1 % longer without a "
                "free processor",
            ),
            means="A checkpoint takes some 10 ms of a processor: free where iterations take seconds on accelerators, "
            "not where processors train.",
        ),
        Finding(
            says="Checkpoints and retrieval take up to 250 times less time than with remote storage.",
            source="abstract of the chapter; section 6.7.2, figure 6.11",
            ours="Simulated on the paper's machines, {simulated:.0f} times at 400 Gbit/s, four times the 65 at 100 "
            "Gbit/s that the model is fitted to. Measured with a thousandth of the paper's rates and 4 machines, "
            "{measured:.0f} times, where the rates alone give 80.",
            values={
                "simulated": Value(
                    item="fig-6-11/simulated",
                    quantity="reduction",
                    where={"network_gbit_per_s": 400, "num_machines": 16},
                ),
                "measured": Value(
                    item="fig-6-11/measured", quantity="reduction", where={"link_mbit_per_s": 400, "num_machines": 4}
                ),
            },
            claims=(
                "fig-6-12/simulated: A checkpoint takes less than 3 s",
                "fig-6-12/simulated: Retrieval from a peer takes less than 3 s",
                "fig-6-11/measured: A faster network, larger reduction",
                "fig-6-11/measured: More machines, larger reduction",
            ),
            means="The gain is the ratio of the rates; expect less where a transfer takes as long to start as to run.",
        ),
        Finding(
            says="With two of sixteen machines lost, 93.3 % of cases recover from memory; with three, 80.0 %.",
            source="section 6.7.2, figure 6.9",
            ours="Counted exactly, {two:.1f} % and {three:.1f} %. A ring of replicas recovers 21.4 % less often with "
            "three lost, not 25 %: the figure shows its bound.",
            values={"two": _recovers(2), "three": _recovers(3)},
            claims=(
                "fig-6-9/counted: With two of sixteen machines lost, 93.3 % of the cases recover from memory",
                "fig-6-9/counted: With three lost, 80.0 % do",
                "fig-6-9/counted: The ring's exact probability is 25.0 % lower than the groups', relatively, when "
                "three are lost",
            ),
            means="Place replicas in groups.",
        ),
        Finding(
            says="Training resumes from memory after software and hardware failures, in 7 and 12 minutes.",
            source="section 6.7.3, figure 6.14",
            ours="After a real kill training went on in {software:.1f} s, and in {hardware:.1f} s where a machine was "
            "lost, with the bits of an undisturbed training; simulated with the paper's parts, {software_min:.0f} and "
            "{hardware_min:.0f} minutes.",
            values={
                "software": _seconds("software"),
                "hardware": _seconds("hardware"),
                "software_min": Value(item="fig-6-14/simulated", quantity="total_min", where={"failure": "software"}),
                "hardware_min": Value(item="fig-6-14/simulated", quantity="total_min", where={"failure": "hardware"}),
            },
            claims=(
                "fig-6-14/measured: At most two iterations are done again",
                "fig-6-14/measured: A hardware failure takes longer than a software failure",
                "fig-6-14/simulated: About 7 minutes for a software failure, 12 for a hardware failure",
            ),
            means="A recovery spends most of its time on detecting, replacing and warming up, not on the checkpoint.",
        ),
        Finding(
            says="Gemini recovers 13 times faster than the best storage-based checkpointing.",
            source="section 6.7.2, figure 6.10",
            ours="Where one machine is replaced, {eight:.1f} times: with the printed 20 Gbit/s of storage HighFreq's "
            "formula gives eight iterations. With the nine that section 6.7.3 says, {nine:.1f} times.",
            values={"eight": _times("HighFreq, every 8 iterations"), "nine": _times("HighFreq")},
            claims=("fig-6-10/simulated: HighFreq wastes more than 13 times as much as Gemini from memory",),
            means="The factor falls if one machine is replaced, and vanishes if no replica is left.",
        ),
        Finding(
            says="With 1,000 machines 91 % of the time is training, 54 % more than with frequent checkpoints.",
            source="section 6.7.3, figure 6.15b",
            ours="With the cost of one failure times the failures of a day, {added:.0f} % are left with Gemini, "
            "{gain:.0f} % more than with checkpoints every nine iterations. Simulated failure by failure, "
            "{gemini:.0f} % and {highfreq:.0f} %: {simulated:.0f} % more.",
            values={
                "added": _ratio("Gemini", "effective_ratio_added"),
                "gemini": _ratio("Gemini"),
                "highfreq": _ratio("HighFreq"),
                "gain": _gain("gain_added"),
                "simulated": _gain("gain"),
            },
            claims=(
                "fig-6-15b/simulated: Losses added up, Gemini's is around 91 % with 1,000 machines",
                "fig-6-15b/simulated: Losses added up, Gemini's ratio is 54 % above HighFreq's, as a share of it",
            ),
            means="Expect a smaller gain: the losses of failures that overlap do not add up.",
        ),
    ),
)
