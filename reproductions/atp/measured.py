"""Measured items of ATP: meshes, rivals and chunks on eight real ranks, and the choice on random links."""

from workbench.reproduction import Bound, Evidence, Ordering, Reproduction, Whose

PROMISE = "a promise of this project"
WHOLE = "the whole interval"
CORES = "Eight ranks share two cores, which compute and copy: computation is most of what a mesh costs here."
MESHES = ["ATP-1", "ATP-2", "ATP-4", "ATP-8"]
SHAPED = ("real ranks", "shaped links")
SMALL = {"hidden": 64, "batch": 2, "sequence": 16, "gigabits_per_s": 1.0, "rounds": 6}
PLACES = ["IC1", "IC2", "IC4"]
EXACT = "with start-ups"


def _measured(item: str, title: str, notebook: str, claims: tuple, smoke: dict, laptop: dict, seconds: int):
    return Reproduction(
        technique="atp",
        item=item,
        evidence=Evidence.MEASURED,
        title=title,
        notebook=f"notebooks/atp/{notebook}.ipynb",
        claims=claims,
        parameters={"smoke": smoke, "laptop": laptop},
        expected_s={"smoke": 20, "laptop": seconds},
        times=True,
        tags=SHAPED,
    )


def _bound(name: str, quantity: str, where: dict, source: str, whose: Whose = Whose.PAPER, **bound) -> Bound:
    return Bound(
        name, quantity=quantity, where=where, because=WHOLE, source=source, whose=whose, explanation=CORES, **bound
    )


def _order(place: str, order: list[str]) -> Ordering:
    return Ordering(
        f"On links like {place}'s {order[0]} is faster than {order[1]}",
        quantity="iteration_s",
        where={"place": place, "ranks": 8},
        along="scheme",
        order=order,
        because="an order needs no tolerance",
        source="section 5.3, figure 11",
        explanation=CORES,
    )


CATALOGUE = (
    _measured(
        "fig-11",
        "Meshes on links like those of IC1, IC2 and IC4",
        "ranks",
        (
            _order("IC1", ["ATP-4", "ATP-1"]),
            _order("IC2", ["ATP-1", "ATP-2"]),
            _order("IC4", ["ATP-1", "ATP-2"]),
            *(
                _bound(
                    f"On links like {place}'s the search with start-ups is at most 5 % behind the fastest mesh",
                    "behind_best",
                    {"place": place, "search": EXACT},
                    PROMISE,
                    Whose.OURS,
                    at_most=1.05,
                )
                for place in PLACES
            ),
        ),
        {"places": ["IC2"], "schemes": ["ATP-1", "ATP-2"], "num_ranks": [4]} | SMALL,
        {"places": PLACES, "schemes": MESHES, "num_ranks": [4, 8]},
        200,
    ),
    _measured(
        "fig-10",
        "ATP, Megatron-LM and 2.5-D on links like those of IC1, IC2 and IC4",
        "ranks",
        (
            _bound(
                "On links like IC1's ATP-4 is at least 1.37 times as fast as Megatron-LM",
                "gain",
                {"place": "IC1", "scheme": "ATP-4"},
                "section 5.1",
                at_least=1.37,
            ),
            _bound(
                "ATP-1 is as fast as Megatron-LM, whose mesh it is",
                "gain",
                {"place": PLACES, "scheme": "ATP-1"},
                "section 3.2.1",
                at_least=0.9,
            ),
            _bound(
                "2.5-D is slower than Megatron-LM",
                "gain",
                {"place": PLACES, "scheme": "2D/2.5D"},
                "section 5.1",
                at_most=1.0,
            ),
        ),
        {"places": ["IC2"], "schemes": ["Megatron-LM", "ATP-1"], "num_ranks": [4]} | SMALL,
        {"places": PLACES, "schemes": ["Megatron-LM", "2D/2.5D", "ATP-1", "ATP-2", "ATP-4"], "num_ranks": [8]},
        150,
    ),
    _measured(
        "table-3",
        "Chunks and overlapped gradients on links like those of IC1 and IC4",
        "overlap",
        (
            _bound(
                "Four chunks gain at least 16 % on links like IC4's",
                "gain",
                {"place": "IC4", "how": "4 chunks"},
                "section 5.2",
                at_least=1.16,
            ),
            _bound(
                "Two chunks are no slower than none",
                "gain",
                {"place": ["IC1", "IC4"], "how": "2 chunks"},
                "section 5.2",
                at_least=1.0,
            ),
        ),
        {"places": ["IC4"], "how": ["blocking", "2 chunks"]} | SMALL,
        {"places": ["IC1", "IC4"], "how": ["blocking", "", "2 chunks", "4 chunks"]},
        90,
    ),
    _measured(
        "topologies",
        "The chosen strategy on ten random topologies",
        "topologies",
        (
            _bound(
                "On at least 9 of 10 topologies the chosen strategy is the fastest, or within its interval",
                "hits",
                {"search": EXACT},
                PROMISE,
                Whose.OURS,
                at_least=9,
            ),
        ),
        {"num_topologies": 1, "rounds": 6},
        {"num_topologies": 10, "rounds": 6},
        400,
    ),
)
