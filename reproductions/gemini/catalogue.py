"""What is reproduced of "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints".

Here what is measured on real ranks: a process is killed, and training goes on. Further items stand beside
it, in files by evidence.
"""

from workbench.reproduction import Evidence, Finding, Ordering, Page, Reproduction, Value, Whose, Within

__all__ = ["CATALOGUE", "PAGE"]

FIGURE_6_14 = "figure 6.14, section 6.7.3"
RECOVERY = {
    "kinds": ["software", "hardware"],
    "repeats": 3,
    "num_machines": 4,
    "at_iteration": 9,
    "iterations": 14,
    "hidden": 128,
    "layers": 4,
    "sharded": True,
    "num_replicas": 2,
    "num_profiled": 3,
    "reserved_bytes": 262_144,
}
SMALL = {"repeats": 1, "at_iteration": 4, "iterations": 6, "hidden": 32, "layers": 2, "num_profiled": 1}

RECOVERY_MEASURED = Reproduction(
    technique="gemini",
    item="fig-6-14",
    evidence=Evidence.MEASURED,
    title="A process is killed and training goes on: what detecting, restarting and fetching take",
    notebook="notebooks/gemini/recovery.ipynb",
    parameters={
        "smoke": RECOVERY | SMALL,
        "laptop": RECOVERY,
        "full": RECOVERY | {"repeats": 10, "num_machines": 8, "hidden": 256, "layers": 8},
    },
    expected_s={"smoke": 15, "laptop": 105, "full": 600},
    times=True,
    tags=("real ranks", "real kills"),
    claims=(
        Within(
            "Training ends with the very bits of a training without failure",
            quantity="different_ranks",
            expected=0.0,
            abs=0.0,
            because="bit for bit",
            source="section 6.6 resumes from the same states",
            whose=Whose.OURS,
        ),
        Within(
            "Every rank is served from memory, its own machine's or a peer's",
            quantity="from_memory",
            expected=1.0,
            abs=0.0,
            because="a count",
            source="section 6.6.2: one machine lost, group placement with two replicas",
        ),
        Within(
            "At most two iterations are done again",
            quantity="lost_iterations",
            expected=1.0,
            abs=1.0,
            because="0 to 2: the one under way when the kill came, and the one whose checkpoint was on its way",
            source=f"{FIGURE_6_14}: a failure in iteration 4 resumes with iteration 3",
        ),
        Ordering(
            "A hardware failure takes longer than a software failure",
            quantity="total_s",
            along="failure",
            order=["software", "hardware"],
            because="an order needs no tolerance",
            source=FIGURE_6_14,
            explanation="A replacement is ready at once here, where a cloud needs 4 to 7 minutes; what remains is "
            "how long a silent machine goes unnoticed.",
        ),
        Ordering(
            "Of a hardware failure, retrieving takes less than detecting",
            quantity="phase_s",
            along="phase",
            where={"failure": "hardware"},
            order=["retrieve", "detect"],
            because="an order needs no tolerance",
            source=f"{FIGURE_6_14}: under 3 s and 15 s",
        ),
    ),
)

CATALOGUE = (RECOVERY_MEASURED,)


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


def _ratio(solution: str, times: float = 100.0) -> Value:
    where = {"solution": solution, "num_machines": 1000}
    return Value(item="fig-6-15b/simulated", quantity="effective_ratio", where=where, times=times)


def _wasted(of: str, replaced: str) -> Value:
    where = {"highfreq": "HighFreq", "replaced": replaced, "of": of}
    return Value(item="fig-6-10/simulated", quantity="bound_s", where=where)


NO_LONGER = "Gemini makes iterations at most 1 % longer"
PAGE = Page(
    scale="A GPT-2 of 2 layers of width 128 with sharded states on 4 real ranks, each a host of its own with a link of "
    "100 Mbit/s; for the time of an accelerator ranks sleep. Failures: real kills of processes, of 4 to 8 ranks. "
    "Simulated: GPT-2 100B on 16 machines of 8 A100, the paper's own.",
    picture="fig-6-14/measured",
    quick={
        "fig-6-9/counted": {},
        "fig-6-10/simulated": {},
        "fig-6-11/simulated": {},
        "fig-6-12/simulated": {},
        "fig-6-14/measured": {"repeats": 1, "expected_s": 40},
        "fig-6-14/simulated": {},
        "fig-6-15b/simulated": {},
    },
    findings=(
        Finding(
            says="A checkpoint in every iteration makes iterations no longer.",
            source="section 6.7.2, figure 6.7",
            found="Iterations of 2 s became {slept:.1f} % longer (with torch's async_save to files {saved:.1f} %) "
            "where an accelerator computes. Where the processors that checkpoint also train, iterations of "
            "{busy_s:.1f} s became {busy:.1f} % longer.",
            values={
                "slept": _longer("fig-6-7"),
                "saved": _longer("fig-6-7", "async_save"),
                "busy": _busy("over_baseline", "Gemini", minus=1.0, times=100.0),
                "busy_s": _busy("iteration_s", "Baseline"),
            },
            claims=(
                f"fig-6-7/measured: {NO_LONGER}",
                "cost-by-length/measured: The longest iterations, of over 2 s, become at most 1 % longer without a "
                "free processor",
            ),
            means="A checkpoint takes some 10 ms of a processor: free where iterations take seconds on accelerators, "
            "not where processors train.",
        ),
        Finding(
            says="Checkpoints and retrieval take up to 250 times less time than with remote storage.",
            source="abstract of the chapter; section 6.7.2, figure 6.11",
            found="Simulated on the paper's machines, {simulated:.0f} times at 400 Gbit/s. Measured with a thousandth "
            "of the paper's rates and 4 machines, {measured:.0f} times, where the rates alone give 80.",
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
                "fig-6-11/simulated: More than 250 times at 400 Gbit/s",
                "fig-6-12/simulated: Retrieval from a peer is 250 times shorter than from storage",
                "fig-6-11/measured: A faster network, larger reduction",
                "fig-6-11/measured: More machines, larger reduction",
            ),
            means="The gain is the ratio of the rates; expect less where starting a transfer takes as long as the "
            "transfer.",
        ),
        Finding(
            says="With two of sixteen machines lost, 93.3 % of cases recover from memory; with three, 80.0 %.",
            source="section 6.7.2, figure 6.9",
            found="Counted exactly, {two:.1f} % and {three:.1f} %. A ring of replicas recovers 21.4 % less often with "
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
            found="After a real kill training went on in {software:.1f} s, and in {hardware:.1f} s where a machine was "
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
            means="Most of a recovery is not the checkpoint: detecting, replacing and warming up are.",
        ),
        Finding(
            says="Gemini recovers 13 times faster than the best storage-based checkpointing.",
            source="section 6.7.2, figure 6.10",
            found="With the text's constants, checkpoints every 8 iterations to storage waste {highfreq:,.0f} s a "
            "failure. 13 times Gemini's waste is {software:,.0f} s on a software failure, which is less; where one "
            "machine is replaced it is {one:,.0f} s, which is more.",
            values={
                "highfreq": _wasted("HighFreq", "none"),
                "software": _wasted("13 x Gemini", "none"),
                "one": _wasted("13 x Gemini", "one"),
            },
            claims=(
                "fig-6-10/simulated: HighFreq, every 8 iterations as its formula says, wastes more than 13 times as "
                "much as Gemini from memory",
            ),
            means="The factor falls with one replaced machine, and is gone if no replica is left.",
        ),
        Finding(
            says="With 1,000 machines 91 % of the time is training, 54 % more than with frequent checkpoints.",
            source="section 6.7.3, figure 6.15b",
            found="Simulated failures leave {gemini:.0f} % with Gemini and {highfreq:.0f} % with checkpoints every 8 "
            "iterations. Against every 9 iterations, as the text has it, Gemini has {gain:.0f} % more.",
            values={
                "gemini": _ratio("Gemini"),
                "highfreq": _ratio("HighFreq"),
                "gain": Value(
                    item="fig-6-15b/simulated",
                    quantity="gain",
                    where={"highfreq": "HighFreq, every 9", "num_machines": 1000, "of": "HighFreq's ratio"},
                ),
            },
            claims=(
                "fig-6-15b/simulated: Gemini's is around 91 % with 1,000 machines",
                "fig-6-15b/simulated: Gemini's ratio is 54 % above HighFreq's, as a share of it, every 9 iterations",
            ),
            means="The gain is real and smaller: losses of failures that meet do not add up.",
        ),
    ),
)
