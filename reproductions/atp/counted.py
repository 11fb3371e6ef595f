"""Counted items of ATP: sharding, sizes, bytes, memory, scaling, and which mesh wins by text and by formula."""

from workbench.reproduction import Bound, Evidence, Reproduction, Trend, Whose, Within

COUNT = "a count is exact"
PROMISE = "a promise of this project"
EXACT = 1e-9
SEEN = "The first results were known when the rule was written."
UNITS = "In units found from the table: TFLOP of 2^40 operations, billions of parameters of 1000 times 2^20."
DIVISION = (
    "Equation 3 lets the d2 rings of axis 1 share one bandwidth, section 5.4 gives each ring all of it. Where every "
    "device has its own link into a switch, section 5.4 is right."
)
PAIRS = "The text compares 2h / (d2 B1) as if B1 were GroupBW / d2. By equation 4 it is d1 / (2 (d1 - 1)) of that."


def _counted(item: str, title: str, notebook: str, claims: tuple, laptop: dict | None = None, **more) -> Reproduction:
    return Reproduction(
        technique="atp",
        item=item,
        evidence=Evidence.COUNTED,
        title=title,
        notebook=f"notebooks/atp/{notebook}.ipynb",
        claims=claims,
        parameters={"smoke": laptop or {}, "laptop": laptop or {}},
        expected_s={"smoke": 8, "laptop": 10},
        **more,
    )


def _as_published(name: str, quantity: str, source: str, **more) -> Within:
    return Within(name, quantity=quantity, rel=EXACT, because=COUNT, source=source, **more)


def _is_best(interconnect: str, devices: int, way: str, explanation: str = "", **more) -> Bound:
    return Bound(
        f"By {way} the mesh that the text names for {devices} devices of {interconnect} is the best",
        quantity="behind",
        where={"interconnect": interconnect, "devices": devices, "way": way},
        at_most=0.0,
        because=COUNT,
        source="sections 5.3 and 5.4, figure 12",
        erratum=explanation,
        **more,
    )


def _bytes(name: str, quantity: str, axes: list[int], expected: float, whose: Whose, explanation: str = "") -> Within:
    return Within(
        name,
        quantity=quantity,
        where={"axis": axes},
        expected=expected,
        rel=EXACT,
        because=COUNT,
        source="section 3.3, equation 2" if whose is Whose.PAPER else PROMISE,
        whose=whose,
        explanation=explanation,
        changed=SEEN,
    )


CATALOGUE = (
    _counted(
        "table-1",
        "What each of four ranks holds of input, weight and output",
        "sharding",
        (
            _as_published("Ranks hold the shares of table 1", "share", "table 1"),
            _as_published("Only row-wise tensor parallelism has a partial output", "is_partial", "table 1"),
        ),
        published="table-1.csv",
    ),
    _counted(
        "table-2",
        "Sizes of the four models",
        "sizes",
        (
            _as_published("A layer has the parameters of table 2", "billion_parameters", "table 2", explanation=UNITS),
            _as_published("A layer takes the operations of table 2", "tflop", "table 2", explanation=UNITS),
        ),
        published="table-2.csv",
    ),
    _counted(
        "equation-2",
        "What equation 2 counts, beside exact bytes and the ledger of real ranks",
        "bytes",
        (
            _bytes(
                "Equation 2 counts the bytes of the linears and the core",
                "exact_over_equation_2",
                [1, 2],
                1.0,
                Whose.PAPER,
            ),
            _bytes(
                "Equation 2 counts the all-reduces of axis 2 alone",
                "all_reduces_over_equation_2",
                [2],
                1.0,
                Whose.PAPER,
                "They are 12h of its 14h. The attention core's exchange is the rest, which section 3.3 does not say.",
            ),
            _bytes("Real ranks send what is counted", "ranks_over_exact", [1, 2], 1.0, Whose.CONSTRUCTION),
        ),
    ),
    _counted(
        "ic1",
        "What ATP-4 saves of ATP-1's communication on IC1",
        "calibration",
        (
            Within(
                "On IC1 ATP-4 communicates for 46 % less time than ATP-1",
                quantity="saving",
                expected=0.46,
                abs=0.01,
                because="the text rounds to one hundredth",
                source="section 5.3",
            ),
        ),
    ),
    _counted(
        "fig-12",
        "Communication on IC5 and IC6 by the number of devices",
        "scaling",
        (
            Trend(
                "The communication of ATP-1 grows with the number of devices",
                quantity="time",
                where={"mesh": "ATP-1"},
                along="devices",
                direction="increasing",
                because=COUNT,
                source="section 5.4, figure 12",
            ),
            Trend(
                "The communication of the best mesh falls from 8 devices on",
                quantity="time",
                where={"mesh": "ATP-OPT", "devices": [8, 16, 32, 64, 128]},
                along="devices",
                direction="decreasing",
                because=COUNT,
                source="section 5.4, figure 12",
                erratum="Equation 3 divides B1' by d2, section 5.4 does not; with the division ATP-1 is the best mesh "
                "of one layer at any size, and its communication rises.",
            ),
            Trend(
                "The communication of ATP-2 and ATP-4 falls with the number of devices",
                quantity="time",
                where={"mesh": ["ATP-2", "ATP-4"]},
                along="devices",
                direction="decreasing",
                because=COUNT,
                source="section 5.4, figure 12",
            ),
            Trend(
                "The communication of the best mesh falls with the number of devices",
                quantity="time",
                where={"mesh": "ATP-OPT"},
                along="devices",
                direction="decreasing",
                because=COUNT,
                source="section 5.4, as the text says it",
                explanation="It rises up to 8 devices: 2, 3 and 3.25 for 2, 4 and 8.",
            ),
        ),
        {"num_devices": [2, 4, 8, 16, 32, 64, 128]},
    ),
    _counted(
        "best-meshes",
        "Which mesh wins: the text beside its formulas",
        "winners",
        (
            _is_best("IC2", 8, "equations 2 to 4", PAIRS),
            _is_best("IC3", 8, "equations 2 to 4"),
            _is_best("IC3", 8, "section 5.4", DIVISION),
            _is_best("IC4", 4, "equations 2 to 4"),
            _is_best("IC4", 4, "section 5.4"),
            _is_best("IC4", 16, "equations 2 to 4", DIVISION),
            _is_best("IC4", 16, "section 5.4"),
            _is_best("IC5", 16, "equations 2 to 4", DIVISION),
            _is_best("IC5", 16, "section 5.4"),
            _is_best("IC6", 16, "equations 2 to 4", "With (4, 4) each axis has rings of its own, and ATP-4 is best."),
            _is_best("IC6", 16, "section 5.4"),
        ),
    ),
    _counted(
        "memory",
        "Weights and activations of a layer on a device",
        "memory",
        (),
        {"models": ["M1", "M2", "M3", "M4"], "num_devices": 8},
    ),
    _counted(
        "rivals",
        "Bytes that a device sends for a layer: ATP's meshes, Megatron-LM, 2-D and 2.5-D",
        "rivals",
        (),
        {"models": ["M1", "M2", "M3", "M4"], "num_devices": [8, 16]},
    ),
)
