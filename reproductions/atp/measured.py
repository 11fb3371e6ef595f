"""Measured items of ATP: meshes, rivals and chunks on eight real ranks, and the choice on random links."""

from workbench.reproduction import Bound, Evidence, Ordering, Reproduction, Whose, Within

PROMISE = "a promise of this project"
WHOLE = "the whole interval"
CORES = "Four or eight ranks share two cores, which compute and copy: links are not all that a mesh costs here."
CHOSEN = "Rates of links, sizes and the number of ranks were chosen after a first run, in which start-ups decided."
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
    more = {"because": WHOLE, "source": source, "whose": whose, "explanation": CORES, "changed": CHOSEN}
    return Bound(name, quantity=quantity, where=where, **more, **bound)


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
        changed=CHOSEN,
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
                {"place": "IC1", "scheme": "ATP-4", "ranks": 8},
                "section 5.1",
                at_least=1.37,
            ),
            Within(
                "ATP-1 is as fast as Megatron-LM, whose mesh it is",
                quantity="gain",
                where={"place": PLACES, "scheme": "ATP-1"},
                expected=1.0,
                abs=0.1,
                because="they differ in overlapped gradients alone",
                source="section 3.2.1",
                explanation=CORES,
                changed=CHOSEN,
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
        {"places": PLACES, "schemes": ["Megatron-LM", "2D/2.5D", *MESHES[:3]], "num_ranks": [4, 8]},
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
                "Two chunks are no slower than one",
                "gain",
                {"place": ["IC1", "IC4"], "how": "2 chunks"},
                "section 5.2",
                at_least=1.0,
            ),
        ),
        {"places": ["IC4"], "how": ["", "2 chunks"]} | SMALL,
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
            Ordering(
                "The search with start-ups chooses right more often than torch's topology model",
                quantity="hits",
                along="search",
                order=["torch's model", EXACT],
                because="an order needs no tolerance",
                source=PROMISE,
                whose=Whose.OURS,
                explanation=CORES,
            ),
            Ordering(
                "The search with start-ups is less behind the best mesh than ATP-1 everywhere",
                quantity="mean_behind",
                along="search",
                order=[EXACT, "always ATP-1"],
                because="an order needs no tolerance",
                source=PROMISE,
                whose=Whose.OURS,
                explanation=CORES,
            ),
        ),
        {"num_topologies": 1, "rounds": 6},
        {"num_topologies": 10, "rounds": 6},
        400,
    ),
)
