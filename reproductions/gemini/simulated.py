"""Idle spans, iterations and checkpoint times of "Gemini", simulated on its machines.

Item names have hyphens where the thesis has dots: fig-6-16 is its figure 6.16. Its bars did not survive: only numbers
that the text prints are published here.
Fitted (and so never counted as reproduced): 65 times at 100 Gbit/s (the share of the network's bandwidth that messages
reach), 62 s of GPT-2 100B (the share of an A100's peak), 10.1 % of blocking (the share of a V100's peak).
Assumed: μ = 0.9, which the text does not give; 512 MB free on a device ("a few hundred" in section 6.5.2); copying to
host memory at 400 Gbit/s on p3dn as on p4d.
Tolerances follow from the digits or words of the text, not from the model's errors.
"""

from dataclasses import replace

from workbench.reproduction import Evidence, Ordering, Reproduction, Trend, Whose, Within

__all__ = ["CATALOGUE"]

SEEN = "nothing; but the rule was written when first numbers of the item had been seen, from the digits of the text"
IN_ORDER = "an order; the model has no noise"
A_BOUND = "the text has a bound alone, on whose side ours must be"
A_COUNT = "a count of whole iterations: no tolerance"
NO_SLOWER = '1 %: "negligible" and "does not affect" read as less than can be measured'
A_PREDICTION = "10 %: idle spans and rates are a model's"
SIMILAR = '5 %: "similar" read as within what two runs may differ by'

FITTED = (
    "The model was fitted to the 62 s of GPT-2 100B, and all three have the same layers: this checks the program alone."
)
SPANS = (
    "Our idle spans are those of one layer each: 0.1 s at most, where the paper profiled one of 1.6 s. Chunks that "
    "fill ours stay small, with any scheme. For a span of 1.6 s the model's network needs 2.03 GB, more than is "
    "free, which is a claim of its own."
)
COPYING = (
    "At 400 Gbit/s, which the paper measured on p4d, a copy takes a fifth of its chunk's time on p3dn's network, and "
    "idle time suffices for both. The paper's 3.5 % asks for 76 Gbit/s, about what messages reach on p3dn's network "
    '(81): "comparable to the network", as section 6.5.2 has it. The text does not say how fast p3dn copies.'
)
TRANSFERRED = (
    "With the A100's share of peak, 17 %, a V100 would take 63 s for GPT-2 40B, of which blocking's 3 s are 4.8 %. "
    "10.1 % asks for 29.6 s, a share of 38 %. The two testbeds' iterations are not limited by the same thing."
)
NINE = (
    "The text contradicts itself: ⌈481 s / 62 s⌉ is 8, as its 8 times say. Nine would need 496 s or more for a "
    "checkpoint, or an iteration of 60 s."
)


def _item(
    item: str,
    title: str,
    notebook: str,
    claims: tuple,
    *,
    published: str | None = None,
    laptop_s: float = 6,
    **parameters: object,
) -> Reproduction:
    """Declare an item that is the same in every profile."""
    return Reproduction(
        technique="gemini",
        item=item,
        evidence=Evidence.SIMULATED,
        title=title,
        notebook=f"notebooks/gemini/{notebook}",
        published=published,
        claims=tuple(replace(claim, changed=claim.changed or SEEN) for claim in claims),
        parameters=dict.fromkeys(("smoke", "laptop", "full", "paper"), parameters),
        expected_s={"smoke": laptop_s, "laptop": laptop_s},
    )


def _no_slower(scheme: str, source: str, because: str = NO_SLOWER, tolerance: float = 1.0, **where: object) -> Within:
    return Within(
        f"{scheme} makes iterations no longer",
        quantity="overhead",
        where={"scheme": scheme, **where},
        expected=0.0,
        abs=tolerance,
        because=because,
        source=source,
    )


def _is_out(scheme: str, expected: float, source: str, explanation: str = "") -> Within:
    name = f"{scheme} is out of memory" if expected else f"{scheme}'s buffers fit"
    return Within(
        name,
        quantity="out_of_memory",
        where={"scheme": scheme},
        expected=expected,
        abs=0.0,
        because="it is or it is not",
        source=source,
        explanation=explanation,
    )


WORKED = "no tolerance but rounding: whole steps"
FIGURE_6_4 = _item(
    "fig-6-4",
    "A worked example: no checkpoint, one that goes first, one in idle spans",
    "schemes.ipynb",
    (
        Ordering(
            "Blocking makes an iteration longer than interleaving",
            quantity="iteration_s",
            along="scheme",
            order=["Gemini", "Blocking"],
            because=IN_ORDER,
            source="section 6.5.1, figure 6.4b and c",
        ),
        _no_slower("Gemini", "section 6.5.1, figure 6.4c", WORKED, 1e-9),
        Ordering(
            "Chunks use idle time",
            quantity="idle_s",
            along="scheme",
            order=["Gemini", "Baseline"],
            because=IN_ORDER,
            source="section 6.5.1, figure 6.4",
        ),
    ),
    schemes=["Baseline", "Blocking", "Gemini"],
)

FIGURE_6_5 = _item(
    "fig-6-5",
    "A worked example: one chunk a span, one buffer, sub-buffers",
    "schemes.ipynb",
    (
        _is_out("Naive", 1.0, "section 6.5.2, figure 6.5b"),
        _is_out("Unpipelined", 0.0, "section 6.5.2, figure 6.5c"),
        _is_out("Gemini", 0.0, "section 6.5.2, figure 6.5d"),
        Ordering(
            "Waiting for copies makes an iteration longer",
            quantity="iteration_s",
            along="scheme",
            order=["Gemini", "Unpipelined"],
            because=IN_ORDER,
            source="section 6.5.2, figure 6.5c and d",
        ),
        _no_slower("Gemini", "section 6.5.2, figure 6.5d", WORKED, 1e-9),
    ),
    schemes=["Baseline", "Naive", "Unpipelined", "Gemini"],
)

P4D_MODELS = ["GPT-2 100B", "RoBERTa 100B", "BERT 100B"]
P3DN_MODELS = ["GPT-2 10B", "GPT-2 20B", "GPT-2 40B", "RoBERTa 40B", "BERT 40B"]


def _suffices(models: list[str], source: str) -> tuple:
    return (
        Ordering(
            "Idle time suffices for the checkpoint",
            quantity="network_s",
            along="what",
            order=["needed by the checkpoint", "idle without checkpoints"],
            where={"model": models},
            because=IN_ORDER,
            source=source,
        ),
        Ordering(
            "The checkpoint takes up idle time",
            quantity="idle_s",
            along="scheme",
            order=["Gemini", "Baseline"],
            where={"model": models},
            because=IN_ORDER,
            source=source,
        ),
    )


FIGURE_6_7 = _item(
    "fig-6-7",
    "Iteration time of three models on 16 p4d, without checkpoints and with one in each",
    "iterations.ipynb",
    (
        _no_slower("Gemini", "section 6.7.2, figure 6.7", model=P4D_MODELS),
        Within(
            "RoBERTa and BERT take as long as GPT-2",
            whose=Whose.CONSTRUCTION,
            explanation=FITTED,
            quantity="iteration_s",
            where={"model": ["RoBERTa 100B", "BERT 100B"], "scheme": "Baseline"},
            expected=62.0,
            rel=0.05,
            because=SIMILAR,
            source="section 6.7.2: 62 s for GPT-2 100B; RoBERTa and BERT have similar results",
        ),
    ),
    published="fig-6-7.csv",
    machine="p4d",
    models=P4D_MODELS,
)

FIGURE_6_8 = _item(
    "fig-6-8",
    "Idle network of three models on 16 p4d, without checkpoints and with one in each",
    "iterations.ipynb",
    _suffices(P4D_MODELS, "section 6.7.2, figure 6.8: idle time is left"),
    machine="p4d",
    models=P4D_MODELS,
)

FIGURE_6_11 = _item(
    "fig-6-11",
    "How many times shorter checkpoints are than storage's, by network and machines",
    "checkpoint_times.ipynb",
    (
        Within(
            "65 times at 100 Gbit/s (fitted)",
            quantity="reduction",
            rel=0.05,
            because="the model is fitted to it",
            where={"network_gbit_per_s": 100, "num_machines": 16},
            source="section 6.7.2, figure 6.11",
        ),
        Ordering(
            "More than 250 times at 400 Gbit/s",
            quantity="reduction_at_400",
            along="whose",
            order=["the text's bound", "the model"],
            because=A_BOUND,
            source="section 6.7.2, figure 6.11",
        ),
        Trend(
            "More machines, larger reduction",
            quantity="reduction",
            along="num_machines",
            direction="increasing",
            because=IN_ORDER,
            source="section 6.7.2, figure 6.11",
        ),
        Trend(
            "A faster network, larger reduction",
            quantity="reduction",
            along="network_gbit_per_s",
            direction="increasing",
            because=IN_ORDER,
            source="section 6.7.2, figure 6.11",
        ),
        Within(
            "Storage as fast as 16 machines needs 6.4 Tbit/s in theory",
            quantity="matching_storage_tbit_per_s",
            where={"rate": "nominal"},
            abs=0.05,
            because='half of the last digit; nominal rates, as "in theory"',
            source="section 6.7.2, figure 6.11",
        ),
    ),
    published="fig-6-11.csv",
    what="reduction",
    model="GPT-2 100B",
    networks=[100, 200, 400],
    nums_machines=[4, 8, 12, 16],
)

FIGURE_6_12 = _item(
    "fig-6-12",
    "How often each policy checkpoints, GPT-2 100B on 16 p4d",
    "checkpoint_times.ipynb",
    (
        Within(
            "8 times as often as HighFreq",
            quantity="frequency_gain",
            where={"policy": "HighFreq"},
            abs=0.0,
            because=A_COUNT,
            source="section 6.7.2, figure 6.12",
        ),
        Ordering(
            "More than 170 times as often as Strawman",
            quantity="gain_over_strawman",
            along="whose",
            order=["the text's bound", "the model"],
            because=A_BOUND,
            source="section 6.7.2, figure 6.12",
        ),
        Within(
            "HighFreq checkpoints every nine iterations",
            erratum="Section 6.7.3 says every nine iterations, section 6.7.2 eight times as often: 481 s over 62 s "
            "rounds up to 8.",
            quantity="interval_iterations",
            where={"policy": "HighFreq"},
            abs=0.0,
            because=A_COUNT,
            source="section 6.7.3",
            explanation=NINE,
        ),
        Ordering(
            "A checkpoint takes less than 3 s",
            quantity="checkpoint_and_bound_s",
            along="whose",
            order=["the model", "the text's bound"],
            because=A_BOUND,
            source="section 6.7.2",
        ),
        Ordering(
            "Retrieval from a peer takes less than 3 s",
            quantity="retrieval_and_bound_s",
            along="whose",
            order=["the model", "the text's bound"],
            because=A_BOUND,
            source="section 6.7.2, wasted time",
        ),
        Within(
            "Retrieval from a peer is 250 times shorter than from storage",
            quantity="retrieval_gain",
            where={"policy": "Gemini"},
            rel=0.10,
            because=A_PREDICTION,
            source="section 6.1, contributions: up to 250 times",
        ),
    ),
    published="fig-6-12.csv",
    what="frequency",
    model="GPT-2 100B",
    networks=[400],
    nums_machines=[16],
)

FIGURE_6_13 = _item(
    "fig-6-13",
    "Iteration time and idle network of five models on 16 p3dn",
    "iterations.ipynb",
    (
        _no_slower("Gemini", "section 6.7.2, figure 6.13a: minimally", model=P3DN_MODELS),
        *_suffices(P3DN_MODELS, "section 6.7.2, figure 6.13b"),
    ),
    machine="p3dn",
    models=P3DN_MODELS,
)

FIGURE_6_16 = _item(
    "fig-6-16",
    "Schemes on GPT-2 40B, 16 p3dn: iteration time and memory",
    "ablation.ipynb",
    (
        Within(
            "Blocking is 10.1 % slower (fitted)",
            quantity="overhead",
            where={"scheme": "Blocking"},
            rel=0.10,
            because="the model is fitted to it",
            source="section 6.7.4, figure 6.16",
        ),
        Within(
            "Blocking is 10.1 % slower, with the A100's share of peak",
            whose=Whose.OURS,
            quantity="transferred_overhead",
            where={"scheme": "Blocking"},
            rel=0.10,
            because=A_PREDICTION,
            source="section 6.7.4, figure 6.16",
            explanation=TRANSFERRED,
        ),
        Within(
            "Without pipelining 3.5 % slower",
            changed="the slower rates of copying were added after this had come out as no slower; the rule is the same",
            quantity="overhead",
            where={"scheme": "Unpipelined"},
            abs=0.5,
            because="half a percent: a rounded bar, and spans are a model's",
            source="section 6.7.4, figure 6.16",
            explanation=COPYING,
        ),
        _no_slower("Gemini", "section 6.7.4, figure 6.16: almost the same"),
        Ordering(
            "Gemini, then unpipelined, then blocking",
            quantity="overhead",
            along="scheme",
            order=["Gemini", "Unpipelined", "Blocking"],
            because=IN_ORDER,
            source="section 6.7.4, figure 6.16",
            explanation=COPYING,
        ),
        _is_out("Naive", 1.0, "section 6.7.4, figure 6.16", SPANS),
        _is_out("Gemini", 0.0, "section 6.7.4, figure 6.16"),
        Ordering(
            "A span of 1.6 s needs more than 2 GB",
            quantity="largest_span_buffer_gb",
            along="whose",
            order=["the text's bound", "the model"],
            because=A_BOUND,
            source="section 6.7.4",
        ),
        Within(
            "One chunk in a span of 1.6 s is out of memory",
            quantity="largest_span_out_of_memory",
            where={"scheme": "Naive"},
            expected=1.0,
            abs=0.0,
            because="it is or it is not",
            source="section 6.7.4",
        ),
        Within(
            "The largest idle span is 1.6 s",
            quantity="largest_span_s",
            where={"scheme": "Naive"},
            rel=0.10,
            because=A_PREDICTION,
            source="section 6.7.4",
            explanation=SPANS,
        ),
    ),
    published="fig-6-16.csv",
    laptop_s=14,
    model="GPT-2 40B",
    schemes=["Baseline", "Blocking", "Naive", "Unpipelined", "Gemini"],
    free_mb=512,
    copy_rates=[400, 200, 100, 80],
)

CATALOGUE = (FIGURE_6_4, FIGURE_6_5, FIGURE_6_7, FIGURE_6_8, FIGURE_6_11, FIGURE_6_12, FIGURE_6_13, FIGURE_6_16)
