"""Figures 4.2, 4.5 and 4.9 as text grids, table 4.2's bytes against closed forms, tensors of the same size."""

from itertools import product
from types import SimpleNamespace

import pytest

from tests.cases import value
from workbench.datasets import gradient_traces
from workbench.techniques.espresso import counted, measured
from workbench.techniques.espresso.counted import num_bubbles, overheads, saved_slots, worked_examples
from workbench.techniques.espresso.method.search import offload, offloaded
from workbench.timeline import format_timeline

GRIDS = {
    ("4.2", "c: all on the GPU"): """
        GPU  | T0 - - C0 - - T1 - - C1 - - T2 - - C2 - - .
        CPU  | .  . . .  . . .  . . .  . . .  . . .  . . .
        link | .  . . .  . . S0 . . .  . . S1 . . .  . . S2
    """,
    ("4.2", "e: T1 on the CPU, T2 on the GPU"): """
        GPU  | T0 - - T1 - - T2 - - C2 - -  .
        CPU  | .  . . .  . . C1 - - -  - .  .
        link | .  . . S0 - - -  - . .  . S1 S2
    """,
    ("4.5", "b: divisible"): """
        GPU  | T0 - C0 T1 - - - - - - C0 . .  .
        link | .  . .  S0 - . . . . . S1 - S0 -
    """,
    ("4.5", "d: inside and between"): """
        GPU     | T0 - C0 - T1 - - - - C0 .  .
        inside  | .  . .  . S0 . . . . S1 .  .
        between | .  . .  . .  . . . . .  S0 S1
    """,
    ("4.9", "b: T1"): """
        GPU  | T0 T1 - - - C1 T2 - .  . . . .
        link | .  S0 - . . .  S1 . S2 - - - -
    """,
}


@pytest.mark.parametrize(("figure", "strategy"), GRIDS)
def test_a_worked_example_is_drawn_as_by_hand(figure, strategy):
    timeline = worked_examples(figure)[strategy].timeline
    by_hand = [line.strip() for line in GRIDS[figure, strategy].strip().splitlines()]
    assert format_timeline(timeline).splitlines() == by_hand


def test_iterations_of_the_worked_examples():
    slots = {f: [e.timeline.end_s for e in worked_examples(f).values()] for f in ("4.2", "4.5", "4.9")}
    assert slots == {"4.2": [18, 14, 19, 19, 13], "4.5": [11, 9, 12, 14, 9, 8, 10, 12], "4.9": [15, 16, 13, 11]}


def test_no_strategy_of_27_is_faster_than_e_and_the_sum_of_savings_misleads():
    rows, _ = counted.example_rows("4.2")
    assert value(rows, "strategies") == 27
    assert value(rows, "above_least_slots", strategy="e: T1 on the CPU, T2 on the GPU") == 0
    # A tensor on the GPU saves 5 - 1 - 3 = 1 slot, on the CPU 5 - 1 - 5 = -1.
    all_on_the_gpu = "c: all on the GPU"
    assert value(rows, "below_most_saved_slots", strategy=all_on_the_gpu) == 0
    assert saved_slots(worked_examples("4.2")[all_on_the_gpu]) == 3


def test_overheads_and_bubbles_are_counted_in_slots():
    timeline = worked_examples("4.2")["d: all on the CPU"].timeline
    # C1 is in slots 8 to 12: T2 is computed in 8. S1 is in slot 13, and nothing is computed there.
    assert overheads(timeline, 1) == {"communication": 1, "compression": 4}
    assert num_bubbles(timeline) == 2
    examples = worked_examples("4.9")
    assert {name: num_bubbles(e.timeline) for name, e in examples.items()} == {
        "a: none": 1,
        "a: T0": 1,
        "b: T1": 2,
        "c: T2": 1,
    }


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_bytes_of_table_4_2_are_those_of_closed_forms(n):
    m_bytes, r = 1e9, 0.01
    rows = counted.routine_rows(num_gpus=[n], tensor_bytes=m_bytes, ratio=r)
    moved = {row["scheme"]: row["value"] for row in rows if row["quantity"] == "busiest_link_bytes"}
    assert moved == pytest.approx(
        {
            "Allreduce": 2 * (n - 1) / n * m_bytes,
            "Reduce-scatter/Allgather": 2 * (n - 1) / n * m_bytes,
            "Reduce/Broadcast": 2 * m_bytes,
            "Allgather": (n - 1) * r * m_bytes,
            "Alltoall/Allgather": 2 * (n - 1) / n * r * m_bytes,
            "Gather/Broadcast": n * r * m_bytes,  # the root receives n - 1 messages and sends one
        }
    )
    decoded = {row["scheme"]: row["value"] for row in rows if row["quantity"] == "decoded_tensors"}
    assert [decoded[name] for name in ("Allgather", "Alltoall/Allgather", "Gather/Broadcast")] == [n, 2, n + 1]


def test_groups_of_one_size_leave_few_combinations(monkeypatch):
    six = SimpleNamespace(num_elements=(10, 10, 10, 20, 20, 30))
    monkeypatch.setattr(gradient_traces, "load", lambda model: six)
    rows = counted.same_size_rows(["lstm"])
    counts = {(row["quantity"], row.get("way", row.get("bytes"))): row["value"] for row in rows}
    assert [counts["same_size", size] for size in (40, 80, 120)] == [3, 2, 1]
    assert counts["combinations", "algorithm 4.2"] == 4 * 3 * 2 and counts["combinations", "brute force"] == 2**6
    assert counts["offloaded_combinations", "algorithm 4.2"] == 3 * 3 * 2  # of five: one of the smallest is left out


def test_brute_force_tries_every_choice_of_tensors():
    from workbench.explore.espresso import OPTIONS, toy_job

    job = toy_job([4_000_000, 2_000_000, 4_000_000], [2e-3] * 3, 25)
    on_gpus = [job.options[1]] * 3
    choices = product(*((option, offloaded(option)) for option in on_gpus))
    assert list(map(str, on_gpus)) == [OPTIONS["GPU, Allgather"]] * 3
    _, least_s = measured.brute_force(job, on_gpus, [0, 1, 2])
    assert least_s == pytest.approx(min(map(job.iteration_s, choices)))
    assert least_s <= offload(job, on_gpus).iteration_s
