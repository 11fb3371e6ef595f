import pytest
from torch.distributed.pipelining.schedules import _Action

from workbench.timeline import (
    Cell,
    Kind,
    format_timeline,
    gpipe,
    one_forward_one_backward,
    parse_schedule,
    pipeline_tasks,
    simulate,
)

ONE_F_ONE_B_3X4 = """\
rank 0 | 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
rank 1 | 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
rank 2 | 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"""


def test_one_forward_one_backward_of_three_stages_is_the_schedule_of_the_paper():
    assert str(one_forward_one_backward(3, 4)) == ONE_F_ONE_B_3X4


def test_a_printed_schedule_reads_back():
    assert parse_schedule(ONE_F_ONE_B_3X4) == one_forward_one_backward(3, 4)


def test_gpipe_does_every_forward_pass_before_the_first_backward_pass():
    assert str(gpipe(2, 2)) == "rank 0 | 0F0 0F1 0B0 0B1\nrank 1 | 1F0 1F1 1B0 1B1"


def test_a_cell_is_written_as_torch_writes_it():
    assert str(_Action.from_str("1F0")) == str(Cell.parse("1F0"))
    assert str(_Action.from_str("2B13")) == str(Cell(stage=2, kind=Kind.BACKWARD, micro_batch=13))


@pytest.mark.parametrize("word", ["F0", "1G0", "1F", "1F0x"])
def test_a_malformed_cell_is_named(word):
    with pytest.raises(ValueError, match=f"cell is '{word}'"):
        Cell.parse(word)


def test_rows_out_of_order_are_refused():
    with pytest.raises(ValueError, match="rank 0, rank 1"):
        parse_schedule("rank 1 | 1F0\nrank 0 | 0F0")


def test_two_stages_with_free_links_wait_only_at_both_ends():
    # Forward 1 s, backward 2 s, by hand: (m + n - 1) * (f + b) = (2 + 2 - 1) * 3 = 9 s for n = 2, m = 2.
    tasks = pipeline_tasks(
        one_forward_one_backward(2, 2),
        duration_s=lambda cell: {Kind.FORWARD: 1, Kind.BACKWARD: 2}[cell.kind],
        transfer_s=lambda cell: 0,
    )
    compute = [task for task in simulate(tasks).actions if task.kind is not Kind.COMMUNICATE]
    assert {(a.label, a.start_s) for a in compute} == {
        ("0F0", 0),
        ("0F1", 1),
        ("0B0", 4),
        ("0B1", 7),
        ("1F0", 1),
        ("1B0", 2),
        ("1F1", 4),
        ("1B1", 5),
    }
    assert simulate(tasks).end_s == 9


def test_transfers_that_take_time_are_rows_of_the_timeline():
    tasks = pipeline_tasks(gpipe(2, 1), duration_s=lambda cell: 1, transfer_s=lambda cell: 2)
    assert format_timeline(simulate(tasks)) == (
        "rank 0   | 0F0 .        . .   .   .        . 0B0\n"
        "link 0-1 | .   send-0F0 - .   .   .        . .\n"
        "rank 1   | .   .        . 1F0 1B0 .        . .\n"
        "link 1-0 | .   .        . .   .   send-1B0 - ."
    )
