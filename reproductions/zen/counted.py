"""Counted items of Zen: densities of the paper's LSTM, lost gradients, formats, balance, the space of schemes."""

from workbench.reproduction import Bound, Evidence, Reproduction, Whose, Within

COUNT = "a count is exact"
PROMISE = "a promise of this project"
SEEN = "The first results were known when the rule was written; the tolerance is that of similar claims."
SOFTMAX = (
    "The softmax table alone has it: 8,192 sampled rows and the targets among 793,471. Both tables together are the "
    "406 M parameters of the same row of the table."
)
BALLS = "N indices in m slots leave m (1 - e^(-N/m)) of them: 9.4 % lost with four bytes a slot, 17.6 % with eight."
NO_DENSITY = (
    "With DeepFM's density of 2.8 % the formula has 0.7 % and 0.2 %. No density has both: a quarter of the load loses "
    "about a quarter, not a ninth."
)
FEW_RANKS = (
    "With four ranks the sum of the LSTM's gradients is 3.1 times as dense as each: swapping sums in two stages, as "
    "SparCML does, sends less than push and pull."
)
WHOLE_ROWS = "Hashing whole rows leaves 75 a server with 128 servers; hashed one by one their values would be even."


def _counted(item: str, title: str, notebook: str, claims: tuple, laptop: dict, smoke: dict, **more) -> Reproduction:
    return Reproduction(
        technique="zen",
        item=item,
        evidence=Evidence.COUNTED,
        title=title,
        notebook=f"notebooks/zen/{notebook}.ipynb",
        claims=claims,
        parameters={"smoke": laptop | smoke, "laptop": laptop},
        **more,
    )


def _lost(name: str, expected: float, density: float, memory: float, source: str, explanation: str) -> Within:
    return Within(
        name,
        quantity="lost",
        where={"density": density, "memory": memory},
        expected=expected,
        rel=0.15,
        because="the text says around",
        source=source,
        explanation=explanation,
    )


def _best(name: str, scheme: str, overlap: str, explanation: str = "") -> Bound:
    return Bound(
        name,
        quantity="behind_best",
        where={"scheme": scheme, "overlap": overlap},
        at_most=0.02,
        neutral=1.0,
        because="2 %: partitions of real sets are not exactly even",
        source="theorem 3.1",
        changed=SEEN,
        explanation=explanation,
    )


BALANCED = "Point-to-point, One-shot, Parallelism, Balanced"
CENTRAL = "Hierarchy, Incremental, Centralization, N/A"
RELEASE = ("needs the released index sets",)

CATALOGUE = (
    _counted(
        "table-3-1",
        "Densities of the paper's LSTM, of each table and of both",
        "lstm",
        (
            Within(
                "The gradients of the LSTM's embeddings have a density of 1.13 %",
                quantity="density",
                where={"table": "both"},
                expected=0.0113,
                rel=0.1,
                because="a tenth: the batches are of the test set",
                source="table 3.1",
                explanation=SOFTMAX,
                changed=SEEN,
            ),
            Within(
                "The gradient of the LSTM's softmax table has a density of 1.13 %",
                quantity="density",
                where={"table": "softmax"},
                expected=0.0113,
                rel=0.1,
                because="a tenth: the batches are of the test set",
                source="table 3.1, if it means this table",
                whose=Whose.OURS,
                changed=SEEN,
            ),
            Within(
                "The LSTM has 406 M embedding parameters",
                quantity="embedding_parameters",
                where={"model": "LSTM"},
                expected=406e6,
                rel=0.002,
                because="as printed",
                source="table 3.1",
            ),
        ),
        {},
        {},
        expected_s={"smoke": 6, "laptop": 6},
        tags=RELEASE,
    ),
    _counted(
        "table-3-2",
        "The fifteen schemes of the four dimensions: what each sends, and theorem 3.1 by enumeration",
        "space",
        (
            _best("Without overlap a hierarchy that adds at each stage, and no partitions, is best", CENTRAL, "none"),
            _best("With partial overlap Balanced Parallelism is best", BALANCED, "partial", FEW_RANKS),
            _best("With whole overlap Balanced Parallelism is best", BALANCED, "whole"),
            Bound(
                "With partial overlap and 16 ranks Balanced Parallelism is best",
                quantity="behind_best",
                where={"scheme": BALANCED, "overlap": "partial", "ranks": 16},
                at_most=0.02,
                neutral=1.0,
                because="2 %: partitions of real sets are not exactly even",
                source="theorem 3.1, at the paper's number of machines",
                whose=Whose.OURS,
                changed=SEEN,
            ),
        ),
        {"num_ranks": [4, 8, 16]},
        {"num_ranks": [4, 16]},
        expected_s={"smoke": 20, "laptop": 25},
        tags=RELEASE,
    ),
    _counted(
        "theorem-3-2",
        "Balance by hashing: random sets and those of the paper's LSTM",
        "theorem_balance",
        (
            Bound(
                "The imbalance of random sets is 1 + 3 √(n log n / N) at most",
                quantity="excess_over_bound",
                at_most=3.0,
                because="a constant of 3; the theorem names none",
                source="theorem 3.2",
                changed=SEEN,
            ),
            Bound(
                "The imbalance of a million random indices is below 1.1 whatever the number of servers",
                quantity="imbalance",
                where={"kind": "random", "indices": 1_000_000},
                at_most=1.1,
                because="as the text says it",
                source="section 3.4.3",
            ),
            Bound(
                "The imbalance of the LSTM's rows is below 1.1 whatever the number of servers",
                quantity="imbalance",
                where={"kind": ["LSTM, push", "LSTM, pull"]},
                at_most=1.1,
                because="as the text says it of all four models",
                source="section 3.4.3",
                explanation=WHOLE_ROWS,
            ),
        ),
        {"num_partitions": [4, 16, 64, 128], "num_indices": [10_000, 100_000, 1_000_000], "seeds": 10},
        {"num_partitions": [4, 16], "num_indices": [10_000, 1_000_000], "seeds": 2},
        expected_s={"smoke": 10, "laptop": 25},
        tags=RELEASE,
    ),
    _counted(
        "fig-3-8b",
        "Gradients that the strawman loses, by memory and density",
        "losses",
        (
            _lost("15.8 % are lost with memory of the gradient's size and a density of 20 %", 0.158, 0.2, 1,
                  "section 3.3.2", BALLS),
            _lost("DeepFM loses around 9 % with 2|G| slots", 0.09, 0.028, 2, "section 3.4.2", NO_DENSITY),
            _lost("DeepFM loses around 1 % with 8|G| slots", 0.01, 0.028, 8, "section 3.4.2", NO_DENSITY),
        ),
        {"domain_size": 2_000_000},
        {"domain_size": 200_000},
        expected_s={"smoke": 6, "laptop": 10},
    ),
    _counted(
        "fig-3-17",
        "The size of a sum in four formats, by density",
        "formats",
        (
            Bound(
                "The hash bitmap saves still at a density of 95 %",
                quantity="size",
                where={"format": "hash bitmap", "density": 0.95},
                at_most=1.0,
                because="as long as dense saves nothing",
                source="section 3.4.3, figure 3.17",
            ),
            *(
                Within(
                    f"{name} saves below a density of 50 % alone",
                    quantity="worth_it_below",
                    where={"format": name},
                    expected=0.5,
                    abs=0.01,
                    because="a percentage point",
                    source="section 3.4.3, figure 3.17",
                )
                for name in ("COO", "bitmap")
            ),
        ),
        {"domain_size": 4_000_000},
        {"domain_size": 400_000},
        expected_s={"smoke": 6, "laptop": 10},
    ),
)  # fmt: skip
