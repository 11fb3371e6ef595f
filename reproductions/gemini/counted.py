"""What follows from counting alone in "Gemini": sizes, placements, probabilities; the same on any machine.

Item names have hyphens where the thesis has dots: fig-6-9 is its figure 6.9. Tolerances are those of the digits that
the text prints, and were fixed before the first run.
Where the text's probability is corollary 6.1's bound and not the probability, the claim says so.
"""

from workbench.reproduction import Bound, Evidence, Ordering, Reproduction, Trend, Whose, Within

__all__ = ["CATALOGUE"]

COUNT = "a count of whole numbers, the same on any machine: no tolerance"
EXACT = "an exact fraction on both sides: no tolerance"
ROUNDED = "half of the last digit that is printed"
IN_ORDER = "an order of exact numbers: a tie is none"


def _item(
    item: str,
    title: str,
    notebook: str,
    claims: tuple,
    *,
    published: str | None,
    smoke: dict | None = None,
    laptop_s: float = 6,
    **parameters: object,
) -> Reproduction:
    """Declare an item whose profiles are equal but for what `smoke` changes."""
    return Reproduction(
        technique="gemini",
        item=item,
        evidence=Evidence.COUNTED,
        title=title,
        notebook=f"notebooks/gemini/{notebook}",
        published=published,
        expected_s={"smoke": 6, "laptop": laptop_s},
        claims=claims,
        parameters={"smoke": {**parameters, **(smoke or {})}, **dict.fromkeys(("laptop", "full", "paper"), parameters)},
    )


TABLE_2_1 = _item(
    "table-2-1",
    "Checkpoints of large models: 12 bytes a parameter",
    "checkpoint_sizes.ipynb",
    (
        Within(
            "The printed terabytes are 12 bytes a parameter",
            quantity="checkpoint_size",
            abs=50,
            where={"model": ["GPT-3", "OPT-175B", "Gopher", "MT-NLG", "PaLM"]},
            because=f"{ROUNDED}, 0.1 TB",
            source="table 2.1",
        ),
        Within(
            "So are Turing-NLG's gigabytes",
            quantity="checkpoint_size",
            where={"model": "Turing-NLG"},
            abs=0.5,
            because=f"{ROUNDED}, 1 GB",
            source="table 2.1",
        ),
        Within(
            "From Turing-NLG to MT-NLG the parameters grow 30-fold",
            quantity="growth",
            rel=0.05,
            where={"of": "parameters"},
            because="5 %: a round number",
            source="section 2.4",
        ),
        Within(
            "From Turing-NLG to MT-NLG the checkpoint grows 360-fold",
            erratum="Section 2.4 says 360-fold, from 206 GB to 6.4 TB: that is 31-fold.",
            quantity="growth",
            rel=0.05,
            where={"of": "checkpoint"},
            because="5 %: a round number",
            source="section 2.4",
            explanation="6.4 TB are 31 times 206 GB, as the parameters are. 360 is what section 6.1 says of PaLM's "
            "parameters over GPT-2's.",
        ),
        Within(
            "MT-NLG takes 42 minutes to storage at 20 Gbps",
            quantity="time_to_storage",
            abs=0.5,
            because=f"{ROUNDED}, 1 minute",
            source="section 2.4",
        ),
        Within(
            "A failure then costs over 1.7 hours",
            quantity="recovery_overhead",
            abs=0.1,
            because="the text says 'exceeds': up to the next digit, 1.8",
            source="section 2.4, by Eq. 6.1",
        ),
    ),
    published="table-2-1.csv",
)

TABLE_6_1 = _item(
    "table-6-1",
    "Memory of CPUs and GPUs, and the room it leaves for replicas",
    "memory.ipynb",
    (
        Ordering(
            "Every machine's CPU memory is larger than its GPU memory",
            quantity="memory",
            along="memory",
            order=["GPU", "CPU"],
            because=IN_ORDER,
            source="table 6.1",
        ),
        Within(
            "It is two to four times as large",
            whose=Whose.OURS,
            quantity="memory_ratio",
            expected=3.0,
            abs=1.0,
            because="'much larger' gives no number; read as twice at least, and four times as the table's largest",
            source="table 6.1, its caption: much larger",
        ),
        Ordering(
            "Two buffers of two replicas of the largest model's shard have room on both testbeds",
            quantity="buffers",
            along="memory",
            order=["needed", "there is"],
            because=IN_ORDER,
            source="sections 6.2.3 and 6.7.1: sufficient to store a few checkpoints; two buffers",
        ),
        Ordering(
            "They have room on every machine of the table, even where model states fill its GPUs",
            whose=Whose.OURS,
            quantity="fullest_buffers",
            along="memory",
            order=["needed", "there is"],
            because=IN_ORDER,
            source="section 6.2.3: sufficient to store a few checkpoints, read at its largest",
            explanation="12 of the 16 bytes a parameter takes on a GPU are checkpointed, so full GPUs ask for "
            "4 · 3/4 = 3 times their memory: more than there is on both machines of Azure and both of GCP, and "
            "exactly all there is on p3dn. Activations take much of a GPU in practice: the paper's own models "
            "need a sixth to a quarter of the memory.",
        ),
    ),
    published="table-6-1.csv",
    num_machines=16,
    num_replicas=2,
)

TABLE_6_2 = _item(
    "table-6-2",
    "Parameters of the evaluated models, counted from their configurations",
    "parameters.ipynb",
    (
        Within(
            "The names of the models of 20, 40 and 100 billion are their parameters",
            quantity="parameters",
            rel=0.05,
            where={
                "model": [
                    "GPT-2 20B",
                    "GPT-2 40B",
                    "RoBERTa 40B",
                    "BERT 40B",
                    "GPT-2 100B",
                    "RoBERTa 100B",
                    "BERT 100B",
                ]
            },
            because="5 %: the names are rounded to one digit",
            source="table 6.2",
        ),
        Within(
            "The name of GPT-2 10B is its parameters",
            erratum="Table 6.2 names GPT-2 10B; its 46 layers of width 2560 have 3.7 billion parameters.",
            quantity="parameters",
            rel=0.05,
            where={"model": "GPT-2 10B"},
            because="5 %: the names are rounded to one digit",
            source="table 6.2",
            explanation="46 layers of hidden size 2560 with 10240 inner units have 3.6 billion, and 0.1 billion "
            "more are embeddings. 10 billion would take 125 layers of that width, or a hidden size of about 4200 in 46 "
            "layers: the row of the table cannot be right as it is printed.",
        ),
        Within(
            "A GPU's shard of the checkpoint of GPT-2 100B is 9.4 GB",
            quantity="checkpoint_per_gpu",
            abs=0.05,
            because=ROUNDED,
            source="section 6.5.2; 16 machines of 8 GPUs",
        ),
    ),
    published="table-6-2.csv",
    num_gpus=128,
)

FIGURE_6_3 = _item(
    "fig-6-3",
    "Group, ring and mixed placement, and the pairs of machines that each cannot lose",
    "placement.ipynb",
    (
        Within(
            "Of six pairs of four machines, groups cannot lose two and a ring cannot lose four",
            quantity="fatal",
            where={"placement": ["group", "ring"]},
            abs=0.0,
            because=COUNT,
            source="section 6.4",
        ),
        Within(
            "Groups fall back to storage half as often",
            quantity="fallback_saved",
            abs=0.0,
            because=EXACT,
            source="section 6.4",
        ),
        Within(
            "Five machines make a group of two and a ring of three",
            quantity="part_size",
            where={"placement": "mixed"},
            abs=0.0,
            because=COUNT,
            source="section 6.4, algorithm 6.1",
        ),
    ),
    published="fig-6-3.csv",
    num_replicas=2,
)

BELOW_TWO_GROUPS = "for k < 2m the bound of corollary 6.1 is the probability itself"
RING = (
    "Exactly, the ring recovers in 22/35 = 62.9 % of the cases: 17.1 points, or 21.4 % of Gemini's 80.0 %, lower. "
    "25.0 % is what comes out if corollary 6.1's sum is taken for the ring, 60.0 %: it counts three neighbours in a "
    "row, which hold two fatal pairs, twice. The figure shows the ring's bound, not its probability."
)
FIGURE_6_9 = _item(
    "fig-6-9",
    "The probability of recovery from memory by machines, exact beside the bound",
    "probability.ipynb",
    (
        Within(
            "With two of sixteen machines lost, 93.3 % of the cases recover from memory",
            abs=0.05,
            quantity="recovery_probability",
            where={"placement": "group", "num_machines": 16, "k": 2, "way": "exact"},
            because=f"{ROUNDED}; {BELOW_TWO_GROUPS}",
            source="section 6.7.2",
        ),
        Within(
            "With three lost, 80.0 % do",
            abs=0.05,
            quantity="recovery_probability",
            where={"placement": "group", "num_machines": 16, "k": 3, "way": "exact"},
            because=f"{ROUNDED}; {BELOW_TWO_GROUPS}",
            source="section 6.7.2",
        ),
        Within(
            "With two lost, 6.7 % start from storage",
            abs=0.05,
            quantity="fallback",
            where={"placement": "group", "num_machines": 16, "k": 2},
            because=ROUNDED,
            source="section 6.7.2",
        ),
        Within(
            "The ring's exact probability is 25.0 % lower than the groups', relatively, when three are lost",
            erratum="Section 6.7.2 says 25.0 % lower; exactly it is 21.4 %. Corollary 6.1's bound, taken for the "
            "ring, gives the 25.0 %.",
            quantity="ring_lower",
            where={"num_machines": 16, "k": 3, "reading": "exact, relative"},
            abs=0.05,
            because=ROUNDED,
            source="section 6.7.2",
            explanation=RING,
        ),
        Within(
            "The ring's exact probability is 25.0 points lower than the groups' when three are lost",
            whose=Whose.OURS,
            quantity="ring_lower",
            where={"num_machines": 16, "k": 3, "reading": "exact, points"},
            abs=0.05,
            because=ROUNDED,
            source="section 6.7.2",
            explanation=RING,
        ),
        Within(
            "The ring's bound, not its probability, is 25.0 % lower, relatively",
            whose=Whose.OURS,
            quantity="ring_lower",
            abs=0.05,
            where={"num_machines": 16, "k": 3, "reading": "bound, relative"},
            because=ROUNDED,
            source="section 6.7.2; corollary 6.1's sum over the ring's sets",
        ),
        Trend(
            "The probability increases with the number of machines",
            quantity="recovery_probability",
            along="num_machines",
            direction="increasing",
            where={"way": "exact", "k": [2, 3], "placement": ["group", "ring"]},
            because=IN_ORDER,
            source="section 6.7.2: the probability increases with N",
        ),
        Within(
            "Fewer lost machines than replicas never matter",
            quantity="recovery_probability",
            expected=100.0,
            where={"way": "exact", "k": 1, "placement": "group"},
            abs=0.0,
            because=EXACT,
            source="corollary 6.1",
        ),
        Within(
            "Corollary 6.1 is exact below 2m failures",
            quantity="bound_error",
            where={"k": [2, 3]},
            expected=0.0,
            abs=0.0,
            because=EXACT,
            source="corollary 6.1, Eq. 6.5",
        ),
        Ordering(
            "From 2m failures on it is a bound that lies below the probability",
            quantity="recovery_probability",
            along="way",
            order=["bound", "exact"],
            where={"placement": "group", "num_machines": 16, "k": 4},
            because=IN_ORDER,
            source="corollary 6.1, Eq. 6.6",
        ),
    ),
    published="fig-6-9.csv",
    num_replicas=2,
    machine_counts=[4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128],
    failure_counts=[1, 2, 3, 4],
    smoke={"machine_counts": [4, 16]},
)

STAR = (
    "The proof is about k = m. With more failures than replicas, placements that load one machine with many replicas "
    "survive more often: of four machines that all send to one, three can fail as long as that one lives. Where every "
    "machine keeps m replicas, groups remain the best."
)
THEOREM = _item(
    "theorem-6-1",
    "Every placement of a few machines tried: is algorithm 6.1's the best?",
    "optimal.ipynb",
    (
        Within(
            "Where m divides N no placement is better than groups when m machines are lost",
            quantity="missed",
            where={"among": "all", "num_machines": [4, 6], "k": 2},
            expected=0.0,
            abs=0.0,
            because=EXACT,
            source="theorem 6.1, first part",
        ),
        Within(
            "None is better when more than m are lost, either",
            erratum="Theorem 6.1 names no number of failures; with more than m lost, unbalanced placements are better.",
            quantity="missed",
            expected=0.0,
            abs=0.0,
            where={"among": "all", "num_machines": [4, 6], "k": 3},
            because=EXACT,
            explanation=STAR,
            source="theorem 6.1, first part, which names no k",
        ),
        Within(
            "Among placements with m replicas on every machine none is, whether m or more are lost",
            whose=Whose.OURS,
            quantity="missed",
            where={"among": "balanced", "num_machines": [4, 6], "k": [2, 3]},
            expected=0.0,
            abs=0.0,
            because=EXACT,
            source="theorem 6.1, read for placements of equal traffic",
        ),
        Within(
            "Where m does not divide N some placement reaches the upper bound",
            quantity="upper_bound_missed",
            where={"num_machines": 5},
            expected=0.0,
            abs=0.0,
            because=EXACT,
            source="theorem 6.1: upper bound",
        ),
        Within(
            "Where m does not divide N no placement of equal traffic is better than the mixed one",
            whose=Whose.OURS,
            quantity="missed",
            where={"among": "balanced", "num_machines": 5},
            expected=0.0,
            abs=0.0,
            because=EXACT,
            source="theorem 6.1, second part, which says near-optimal: this asks for more",
            explanation="With five machines and three replicas the mixed placement is a ring with five different "
            "sets of holders; four suffice, such as 012, 034, 134, 234.",
        ),
        Within(
            "The mixed placement's gap keeps to the bound (2m - 3)/C(N, m)",
            quantity="gap_share",
            expected=0.5,
            abs=0.5,
            because="a share of the bound: from none to all of it",
            source="theorem 6.1, Eq. 6.3",
        ),
    ),
    published=None,
    sizes=[[4, 2, 2], [4, 2, 3], [6, 2, 2], [6, 2, 3], [5, 2, 2], [5, 3, 3]],
    most_machines=60,
    replica_counts=[2, 3, 4, 5],
    laptop_s=10,
    smoke={"most_machines": 12},
)

IDLE_SPANS = _item(
    "idle-spans",
    "Idle spans that the authors recorded of BERT: how they deviate, and algorithm 6.2 on them",
    "idle_spans.ipynb",
    (
        Bound(
            "Spans that are used deviate by less than 10 %",
            quantity="deviation",
            where={"of": "a used span"},
            at_most=0.10,
            because="the text's bound",
            source="section 6.5.4: the normalised standard deviation of the measurements",
            needs_real_data=True,
            explanation="One span of 124 is used, that before the second reduce-scatter. The others are shorter than "
            "the artifact's threshold of 0.1 s in some iteration.",
        ),
        Bound(
            "All idle time of an iteration deviates by less than 10 %",
            quantity="deviation",
            where={"of": "all idle time"},
            at_most=0.10,
            because="the text's bound",
            source="section 6.5.4: the profiled timeline remains almost constant",
            needs_real_data=True,
            explanation="Spans of 0.6 to 3.6 s come at changing places of an iteration, as if it waited for another "
            "machine. They are in no other iteration, so the planner does not count on them.",
        ),
        Bound(
            "The used spans have room for the whole checkpoint",
            quantity="share_in_spans",
            at_least=0.95,
            because="5 %: the link's rate and the model's size are those of the artifact's settings, not measured",
            source="section 6.5.1: the idle time is enough for a checkpoint in every iteration",
            needs_real_data=True,
        ),
    ),
    published=None,
    left_out=8,
    threshold_s=0.1,
    parameters=4_661_376_000,
    num_devices=32,
    bandwidth_bytes_per_s=1.25e9,
    reserved_bytes=134_217_728,
    num_buffers=2,
    safety=0.8,
)

CATALOGUE = (TABLE_2_1, TABLE_6_1, TABLE_6_2, FIGURE_6_3, FIGURE_6_9, THEOREM, IDLE_SPANS)
