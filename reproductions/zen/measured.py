"""Measured items of Zen: sparsity in real training, hashing on this machine, the schemes on real ranks."""

from workbench.reproduction import Bound, Evidence, Ordering, Reproduction, Trend, Whose, Within

TASKS = ["lstm", "deepfm", "nmt", "bert"]
RIVALS = ["Dense", "AGsparse", "torch, sparse", "SparCML", "Sparse PS", "OmniReduce"]
PROMISE = "a promise of this project"
WHOLE = "the whole interval"
SEEN = "The first results were known when the rule was written."
ORDER = "an order needs no tolerance"
SMALL = "Small models on small data: tables of 6,000 to 37,000 rows."
FIELDS = "DeepFM's table has a range for each field, with the field's frequent rows first."
CORES = "Two cores hash, add and copy for four ranks; on a GPU the network is what they wait for."
FEW = "Four ranks: the sum is at most four times as dense as its parts. " + CORES
CPU = "The paper has an A100, which writes from thousands of threads at once: so has the full run, on an H100."


def _measured(item: str, title: str, notebook: str, claims: tuple, profiles: dict, seconds: dict, **more):
    return Reproduction(
        technique="zen",
        item=item,
        evidence=Evidence.MEASURED,
        title=title,
        notebook=f"notebooks/zen/{notebook}.ipynb",
        claims=claims,
        parameters=profiles,
        expected_s=seconds,
        **more,
    )


def _ahead(name: str, over: list[str], source: str = PROMISE, **where) -> Bound:
    return Bound(
        name,
        quantity="gain",
        where={"over": over, **where},
        at_least=1.0,
        because=WHOLE,
        source=source,
        whose=Whose.OURS,
        explanation=FEW,
    )


def _takes_less(name: str, way: str, order: list, source: str, whose: Whose = Whose.PAPER) -> Ordering:
    return Ordering(
        name,
        quantity="partition_s",
        where={"way": way},
        along="number",
        order=order,
        because=ORDER,
        source=source,
        whose=whose,
        explanation=CPU,
    )


def _times(name: str, way: str, quantity: str, **bound) -> Bound:
    number = {"number": 2.0} if way == "r1" else {}
    return Bound(
        name,
        quantity=quantity,
        where={"way": way, **number},
        because=WHOLE,
        source=PROMISE,
        whose=Whose.OURS,
        explanation="A promise for CPUs. A GPU sorts by digits, faster than slots are filled; `partition` sorts there.",
        **bound,
    )


TRAINED = {"smoke": {"batch": 16, "steps": 1}, "laptop": {"batch": 62, "steps": 10}}
RANKS = {"smoke": {"rounds": 6, "gigabits_per_s": 1.0}, "laptop": {"rounds": 8}}
SHAPED = ("real ranks", "shaped links")

CATALOGUE = (
    _measured(
        "table-3-1",
        "Sizes and densities of four small models' gradients",
        "densities",
        (
            Bound(
                "At most 3 % of the embeddings' gradients are not zero",
                quantity="density",
                where={"task": TASKS},
                at_most=0.03,
                because="the paper's densest is 2.8 %",
                source="table 3.1",
                changed=SEEN,
                explanation=SMALL,
            ),
            Bound(
                "The gradient's rows are those that the batch looked up",
                quantity="unlike_looked_up",
                at_most=0,
                because="a count is exact",
                source="how an embedding is differentiated",
                whose=Whose.CONSTRUCTION,
            ),
        ),
        {"smoke": TRAINED["smoke"] | {"tasks": ["lstm", "deepfm"]}, "laptop": TRAINED["laptop"] | {"tasks": TASKS}},
        {"smoke": 15, "laptop": 60},
    ),
    _measured(
        "fig-3-1",
        "Overlap of two ranks' gradients, and densification by ranks",
        "overlaps",
        (
            Bound(
                "The sum over 128 ranks is less than 128 times as dense",
                quantity="densification",
                where={"ranks": 128, "task": TASKS},
                at_most=115.0,
                because="a tenth below what ranks without overlap have",
                source="section 3.2.2, figure 3.1b",
                explanation=SMALL,
            ),
            Trend(
                "The more ranks, the denser the sum",
                quantity="densification",
                where={"task": TASKS},
                along="ranks",
                direction="increasing",
                because=ORDER,
                source="section 3.2.2, figure 3.1b: a union grows",
                whose=Whose.CONSTRUCTION,
            ),
        ),
        {
            "smoke": TRAINED["smoke"] | {"tasks": ["deepfm"], "num_ranks": [2, 8], "pairs": 20},
            "laptop": TRAINED["laptop"] | {"tasks": TASKS, "num_ranks": [2, 4, 8, 16, 32, 64, 128]},
        },
        {"smoke": 15, "laptop": 100},
    ),
    _measured(
        "fig-3-2",
        "Where the non-zero gradients are, and how skewed",
        "skewness",
        (
            Bound(
                "Of eight ranges the first holds over 60 % of the non-zero gradients",
                quantity="share",
                where={"range": 0, "task": TASKS},
                at_least=0.6,
                neutral=0.125,
                because="as the text says it of all four models",
                source="section 3.2.2, figure 3.2a",
                explanation=FIELDS,
            ),
            Bound(
                "With 128 ranges the LSTM's skewness ratio is over 70",
                quantity="skewness",
                where={"partitions": 128, "task": "lstm"},
                at_least=70.0,
                because="as the text says it",
                source="section 3.2.2, figure 3.2b",
                explanation="Our vocabulary has 33,278 words, the paper's 793,471: the rarer words touch more ranges.",
            ),
            Trend(
                "The more ranges, the larger the skewness ratio",
                quantity="skewness",
                where={"task": TASKS},
                along="partitions",
                direction="increasing",
                because=ORDER,
                source="section 3.2.2, figure 3.2b",
            ),
        ),
        {
            "smoke": TRAINED["smoke"] | {"tasks": ["deepfm"], "num_partitions": [8, 128]},
            "laptop": TRAINED["laptop"] | {"tasks": TASKS, "num_partitions": [8, 16, 32, 64, 128]},
        },
        {"smoke": 15, "laptop": 60},
    ),
    _measured(
        "fig-3-15",
        "Imbalance of push and pull for DeepFM, with equal ranges and with hashing",
        "balance",
        (
            Bound(
                "Zen's imbalance is below 1.1 whatever the number of ranks",
                quantity="imbalance",
                where={"scheme": "Zen", "what": ["push", "pull"]},
                at_most=1.1,
                because="as the text says it",
                source="section 3.4.3, figure 3.15b",
                explanation="Ours has 100,000 non-zero values on a rank, the paper's 6 million.",
            ),
            Bound(
                "With 128 ranks the push of Sparse PS is out of balance tens of times",
                quantity="imbalance",
                where={"scheme": "Sparse PS", "what": "push", "ranks": 128},
                at_least=10.0,
                because="tens are at least ten",
                source="section 3.4.3, figure 3.15a",
                explanation=FIELDS,
            ),
        ),
        {
            "smoke": TRAINED["smoke"] | {"num_ranks": [4, 16]},
            "laptop": TRAINED["laptop"] | {"num_ranks": [4, 8, 16, 32, 64, 128]},
        },
        {"smoke": 15, "laptop": 60},
    ),
    _measured(
        "fig-3-8a",
        "How long the indices take to find in the strawman's memory",
        "extraction",
        (
            Trend(
                "The larger the memory, the longer it takes",
                quantity="extraction_s",
                where={"density": [0.01, 0.2]},
                along="memory",
                direction="increasing",
                because=ORDER,
                source="section 3.3.2, figure 3.8a",
            ),
            Bound(
                "With 8|G| slots it takes at least 20 times as long as with Zen's",
                quantity="over_zen",
                where={"density": 0.01},
                at_least=20.0,
                because="the text's times are around 45 and 2 ms",
                source="section 3.4.2",
                explanation=CPU,
            ),
        ),
        {
            "smoke": {"domain_size": 1_000_000, "memories": [1, 8], "runs": 6},
            "laptop": {"domain_size": 10_000_000, "memories": [1, 2, 4, 8]},
            "full": {"domain_size": 214_000_000, "memories": [1, 2, 4, 8]},
        },
        {"smoke": 6, "laptop": 20, "full": 300},
        times=True,
    ),
    _measured(
        "fig-3-16",
        "What hierarchical hashing costs by r1 and k, and cheaper ways to the same partitions",
        "hashing",
        (
            _takes_less("Two slots an index are cheaper than one", "r1", [2.0, 1.0], "section 3.4.3, figure 3.16a"),
            _takes_less("Four slots an index are dearer than two", "r1", [2.0, 4.0], "section 3.4.3, figure 3.16a"),
            _takes_less("Three hash functions are cheaper than one", "k", [3, 1], "section 3.4.3, figure 3.16b"),
            Within(
                "Three and four hash functions cost alike",
                quantity="four_over_three",
                expected=1.0,
                rel=0.1,
                because="a tenth",
                source="section 3.4.3, figure 3.16b",
                explanation=CPU,
            ),
            _times("Sorting takes at least 3 times as long as counting", "sorting", "over_counting", at_least=3.0),
            _times("Counting takes at most twice as long as nonzero", "counting", "over_nonzero", at_most=2.0),
            _times("Algorithm 3.2 takes at most twice as long as nonzero", "r1", "over_nonzero", at_most=2.0),
        ),
        {
            "smoke": {"domain_size": 1_000_000, "num_hashes": [1, 3], "slots_per_index": [1.0, 2.0, 4.0], "runs": 6},
            "laptop": {"domain_size": 10_000_000},
            "full": {"domain_size": 214_000_000},
        },
        {"smoke": 8, "laptop": 30, "full": 300},
        times=True,
    ),
    _measured(
        "fig-3-11",
        "Steps of training on real ranks with each scheme",
        "trainings",
        (_ahead("Zen trains at least as fast as DDP", ["DDP"], task=["lstm", "nmt"]),),
        {
            "smoke": RANKS["smoke"] | {"tasks": ["deepfm"], "batch": 8},
            "laptop": RANKS["laptop"] | {"tasks": ["lstm", "nmt"]},
            "full": {"rounds": 12, "tasks": TASKS},
        },
        {"smoke": 30, "laptop": 120, "full": 600},
        times=True,
        tags=SHAPED,
    ),
    _measured(
        "fig-3-13",
        "Real ranks sum the gradients of embeddings with each scheme",
        "gradients",
        (_ahead("On real ranks Zen sums embeddings at least as fast as every rival", RIVALS, task=TASKS),),
        {
            "smoke": RANKS["smoke"] | {"tasks": ["deepfm"], "batch": 8},
            "laptop": RANKS["laptop"] | {"tasks": TASKS},
            "full": {"rounds": 12, "tasks": TASKS},
        },
        {"smoke": 30, "laptop": 150, "full": 300},
        times=True,
        tags=SHAPED,
    ),
    _measured(
        "crossover",
        "Real ranks sum values of rising density with each scheme",
        "crossover",
        (
            _ahead(
                "At 1 Gbit/s and densities of 1 to 10 % Zen is at least as fast as every rival",
                RIVALS,
                density=[0.01, 0.03, 0.1],
            ),
            Bound(
                "Zen's time is at most twice what its bytes take on the link",
                quantity="measured_over_predicted",
                where={"scheme": "Zen", "density": [0.03, 0.1]},
                at_most=2.0,
                because="the rest is computation",
                source=PROMISE,
                whose=Whose.OURS,
                explanation=CORES,
            ),
        ),
        {
            "smoke": {"densities": [0.01, 0.1], "num_elements": 100_000, "rounds": 6},
            "laptop": {"densities": [0.001, 0.01, 0.03, 0.1, 0.3, 0.6], "num_elements": 2_000_000},
            "full": {"densities": [0.001, 0.01, 0.03, 0.1, 0.3, 0.6], "num_elements": 16_000_000, "rounds": 12},
        },
        {"smoke": 30, "laptop": 180, "full": 900},
        times=True,
        tags=SHAPED,
    ),
    _measured(
        "fig-3-14",
        "DeepFM trained with all gradients, with Zen, and with strawmen that lose some",
        "accuracy",
        (
            Bound(
                "Zen scores as AllReduce does",
                quantity="points_below",
                where={"variant": "Zen", "metric": "auc"},
                at_most=0.3,
                because="every seed; sums in another order",
                source="section 3.4.2, figure 3.14",
                needs_real_data=True,
            ),
            Bound(
                "Losing 9 % of the gradients costs accuracy",
                quantity="points_below",
                where={"variant": "Strawman, 9 % lost", "metric": "auc"},
                at_least=0.3,
                because="every seed; the text names no number",
                source="section 3.4.2, figure 3.14",
                needs_real_data=True,
                explanation=SMALL,
            ),
            Bound(
                "Losing 1 % of the gradients hardly costs accuracy",
                quantity="points_below",
                where={"variant": "Strawman, 1 % lost", "metric": "auc"},
                at_most=0.3,
                because="every seed; the text names no number",
                source="section 3.4.2, figure 3.14",
                needs_real_data=True,
            ),
        ),
        {
            "smoke": {
                "steps": 4,
                "points": 2,
                "batch": 16,
                "slots_per_value": {"AllReduce": 0.0, "Strawman, 9 % lost": 5.2},
            },
            "full": {"seeds": [0, 1, 2, 3, 4], "steps": 125},
        },
        {"smoke": 30, "full": 900},
        tags=("real ranks",),
    ),
)
