"""Output of ranks arrives line by line, at a cost that grows with its length alone."""

import os
import threading
import time

import pytest

from workbench.launch import RankFailed, Ranks
from workbench.launch.rank_process import MOST_CHARACTERS, RankOutput

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def wire():
    """The writing end of a pipe and the output that reads it."""
    reading_end, writing_end = os.pipe()
    output = RankOutput(3, reading_end, "stdout", echo=True)
    yield writing_end, output
    output.close()
    os.close(writing_end)


def pass_on_all(output: RankOutput, writing_end: int, data: bytes) -> float:
    """Write data in another thread, pass all of it on, and return the seconds of processor time that took."""
    writer = threading.Thread(target=lambda: [os.write(writing_end, part) for part in parts(data)])
    start = time.process_time()
    writer.start()
    while writer.is_alive():
        output.pass_on()
    output.pass_on()
    output.finish_line()
    return time.process_time() - start


def parts(data: bytes) -> list[bytes]:
    return [data[start : start + 4096] for start in range(0, len(data), 4096)]


def test_a_megabyte_without_a_line_end_costs_a_moment(wire, capsys):
    writing_end, output = wire
    assert pass_on_all(output, writing_end, b"x" * 1_000_000) < 0.5
    assert capsys.readouterr().out == "[rank 3] " + "x" * 1_000_000 + "\n"


def test_a_line_that_never_ends_is_shown_in_pieces(wire, capsys):
    writing_end, output = wire
    pass_on_all(output, writing_end, b"x" * 3_000_000)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3  # 3 000 000 characters, cut after 1 MiB = 1 048 576 and at most one read more
    assert "".join(line.removeprefix("[rank 3] ") for line in lines) == "x" * 3_000_000
    assert all(len(line) >= MOST_CHARACTERS for line in lines[:2])


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        ([b"one\r", b"\ntwo\r\n"], "[rank 3] one\r\n[rank 3] two\r\n"),
        ([b"1 %\r2", b" %\r3 %\r"], "[rank 3] 1 %\r[rank 3] 2 %\r[rank 3] 3 %\r"),
        ([b"a\n\nb\x0cc", b"\xc3", b"\xa9"], "[rank 3] a\n[rank 3] \n[rank 3] b\x0ccé\n"),
    ],
)
def test_a_line_has_one_prefix_wherever_reads_cut_it(wire, capsys, pieces, shown):
    writing_end, output = wire
    for piece in pieces:
        os.write(writing_end, piece)
        output.pass_on()
    output.finish_line()
    assert capsys.readouterr().out == shown


def test_one_call_passes_on_what_a_pipe_holds_and_no_more(wire, capsys):
    writing_end, output = wire
    os.write(writing_end, b"12345678\n" * 7000)  # 63 000 bytes, below the 65 536 of a pipe
    assert output.pass_on()
    assert capsys.readouterr().out.count("\n") == 7000


def write_for_ever() -> None:
    while True:
        os.write(1, b"again and again\n" * 1000)


def test_a_rank_that_writes_for_ever_is_stopped_in_time():
    with Ranks(2, echo=False) as ranks:
        start = time.monotonic()
        with pytest.raises(RankFailed, match="rank 0 did not answer within 1 s"):
            ranks.run(write_for_ever, timeout_s=1.0)
        assert time.monotonic() - start < 6.0  # 1 s, up to 1 s for stacks, and a busy machine


def test_a_program_that_writes_for_ever_beside_a_rank_delays_nothing():
    def start_a_writer():
        import subprocess

        subprocess.Popen(["yes"])

    with Ranks(2, echo=False) as ranks:
        start = time.monotonic()
        assert ranks.run(start_a_writer) == [None, None]
        assert ranks.run(int) == [0, 0]
        ranks.close()
        assert time.monotonic() - start < 10.0
