"""How long cells will take is estimated from those most like them; a cell is named by what tells it from the others."""

import pytest

from workbench.reproduction.cells import Cell, Estimate, describe


def cell(**arguments) -> Cell:
    return Cell(function="module.function", arguments=arguments)


def test_nothing_is_expected_before_anything_has_run():
    estimate = Estimate([])
    assert estimate.seconds(cell(task="rte")) is None and estimate.remaining_s([cell(task="rte")], [], 2) is None


def test_an_argument_that_explains_the_times_counts_more_than_one_that_does_not():
    times = {("rte", 0): 100.0, ("rte", 1): 110.0, ("cola", 0): 10.0, ("cola", 1): 12.0}
    estimate = Estimate([({"task": task, "seed": seed}, seconds) for (task, seed), seconds in times.items()])
    assert estimate.seconds(cell(task="rte", seed=2)) == 105.0  # the mean of its task
    assert estimate.seconds(cell(task="sst2", seed=1)) == 61.0  # an unknown task: the mean of its seed, (110 + 12) / 2
    assert estimate.seconds(cell(task="cola", seed=1)) == 12.0


def test_two_arguments_that_both_matter_are_both_looked_at():
    times = {("rte", "A1"): 10.0, ("rte", "Q1"): 40.0, ("cola", "A1"): 100.0, ("cola", "Q1"): 400.0}
    pairs = [({"task": task, "method": method}, seconds) for (task, method), seconds in times.items()]
    estimate = Estimate([(pair | {"seed": seed}, seconds) for pair, seconds in pairs for seed in (0, 1)])
    assert [estimate.seconds(cell(task=task, method=method, seed=2)) for task, method in times] == list(times.values())


def test_what_has_run_changes_what_is_expected():
    estimate = Estimate([({"task": "cola"}, 10.0)])
    assert estimate.seconds(cell(task="rte")) == 10.0
    estimate.add({"task": "rte"}, 100.0)
    assert estimate.seconds(cell(task="rte")) == 100.0


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 210.0), (2, 105.0), (4, 100.0)])
def test_the_time_left_is_shared_by_the_jobs_and_no_shorter_than_the_longest_cell(jobs, seconds):
    estimate = Estimate([({"task": "rte"}, 100.0), ({"task": "cola"}, 10.0)])
    waiting = [cell(task="rte"), cell(task="cola"), cell(task="cola")]
    running = [(cell(task="rte"), 10.0), (cell(task="cola"), 25.0)]
    assert estimate.remaining_s(waiting, running, jobs) == seconds  # 100 + 10 + 10, 90 of the one, none of the other


def test_a_cell_is_named_by_the_arguments_in_which_the_cells_differ():
    same = {"method": "A1", "epochs": 3}
    cells = [cell(task="rte", seed=2, feedback=True, **same), cell(task="cola", seed=1, feedback=False, **same)]
    assert describe(cells[0], cells) == "rte seed 2 feedback true"
    assert describe(cells[0], cells[:1]) == "function"
