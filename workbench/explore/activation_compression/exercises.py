"""The exercises of both parts of the lesson; the library computes their answers."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from workbench.compression import AutoEncoder, Quantize, TopK
from workbench.explore.code_exercises import check_on_cases, check_on_ranks
from workbench.explore.exercises import Exercise, Feedback, Mistake
from workbench.parallel import ProcessTensorGroup, TensorGroup
from workbench.techniques.activation_compression.cost import Setting
from workbench.techniques.activation_compression.reconstruction import best_linear_code, lost_share
from workbench.techniques.activation_compression.runtime import CompressedReduction

from .layer import Approach, break_even_bytes_per_s

__all__ = ["break_even", "check_encoded_sum", "check_quantised", "code_bytes", "loss_of_best_code"]
__all__ += ["share_kept_by_top_k", "sum_of_top_1", "value_in_two_bits"]

A2_CODE_SIZE = 100  # table 1


def code_bytes() -> Exercise:
    """Return the exercise on the bytes of a code."""
    plain, code = Setting(), Setting(method="A2")
    return Exercise(
        question="BERT-large, B = 32, s = 512, fp16: bytes of the message of method A2?",
        answer=code.encoded_bytes(),
        hint="Only the number of columns changes: h becomes c. Rows and bytes a value stay.",
        reason="32 · 512 tokens, each a code of 100 values of 2 bytes: about a tenth of the activation.",
        mistakes=(
            Mistake(answer=plain.activation_bytes(), hint="That is the whole activation. How wide is the code?"),
            Mistake(answer=code.encoded_bytes() / 2, hint="That is how many values there are. How many bytes has one?"),
            Mistake(answer=code.encoded_bytes() * 2, hint="fp16 has 2 bytes a value, not 4."),
        ),
    )


def sum_of_top_1() -> Exercise:
    """Return the exercise on what two gathered Top-1 messages add up to."""
    part_0, part_1 = torch.tensor([3.0, -1.0, 2.0, 0.0]), torch.tensor([-3.0, 4.0, 2.0, 1.0])
    top = TopK(1)
    return Exercise(
        question="Parts [3, -1, 2, 0] and [-3, 4, 2, 1], Top-1 of each, gathered and added: the result?",
        answer=tuple((top(part_0) + top(part_1)).tolist()),
        hint="Go rank by rank: which single element does each one send? Everything else counts as 0.",
        reason="Rank 0 sends its 3, rank 1 its 4. The true sum is [0, 3, 4, 1]: its largest element, at "
        "position 2, is sent by nobody.",
        mistakes=(
            Mistake(
                answer=tuple(top(part_0 + part_1).tolist()),
                hint="That is the Top-1 of the true sum, and no rank knows the true sum.",
            ),
            Mistake(
                answer=tuple((part_0 + part_1).tolist()), hint="That is the true sum. Each rank sends one element only."
            ),
        ),
    )


def break_even() -> Exercise:
    """Return the exercise on the bandwidth above which the auto-encoder does not pay."""
    return Exercise(
        question="Above which bandwidth, in GB/s, does this model predict that a code of 100 columns makes a layer "
        "slower?",
        answer=break_even_bytes_per_s(Approach.AUTO_ENCODER, A2_CODE_SIZE) / 1e9,
        hint="Move the bandwidth until the number beside the curve passes 1.00; the answer lies between two steps. "
        "A value within a fifth is accepted.",
        reason="There the seconds that the smaller messages save equal those that encoding and decoding cost.",
        rel=0.2,
    )


def value_in_two_bits() -> Exercise:
    """Return the exercise on what 2 bits make of a value beside an outlier."""
    row = torch.tensor([0.0, 1.0, 3.0, 30.0])
    return Exercise(
        question="The row [0, 1, 3, 30] travels in 2 bits. What arrives?",
        answer=tuple(Quantize(2)(row).tolist()),
        hint="2 bits make 4 levels, evenly spaced from the row's smallest to its largest value. Which one is nearest?",
        reason="The levels are 0, 10, 20 and 30. One large value spaces them so far apart that all others arrive as 0.",
        mistakes=(
            Mistake(
                answer=tuple(row.tolist()), hint="That is what was sent. Four levels cannot tell all numbers apart."
            ),
            Mistake(answer=(0.0, 0.0, 0.0, 20.0), hint="The largest value is itself a level: it arrives as it is."),
        ),
    )


def share_kept_by_top_k() -> Exercise:
    """Return the exercise on what Top-1 loses where one value is much larger than the others."""
    row = torch.tensor([1.0, -2.0, 2.0, 12.0])
    return Exercise(
        question="Top-1 of [1, -2, 2, 12]: which share of it is lost?",
        answer=lost_share(TopK(1)(row), row),
        hint="What is lost is the row without its largest value. Take the length (the root of the sum of squares) of "
        "that, over the length of the whole row.",
        reason="The rest has length √(1 + 4 + 4) = 3, the row √(9 + 144) = 12.4. A quarter of the numbers carries most "
        "of the length: where one feature is that large, Top-K loses little.",
        mistakes=(
            Mistake(answer=0.75, hint="That is the share of the numbers that stay behind. Weigh them by their size."),
            Mistake(answer=9 / 153, hint="That is the share of the squares. Take roots."),
        ),
        rel=0.01,
    )


def loss_of_best_code() -> Exercise:
    """Return the exercise on what the best linear code loses, given the singular values."""
    matrix = torch.diag(torch.tensor([6.0, 3.0, 2.0, 0.0]))
    return Exercise(
        question="A message has the singular values 6, 3, 2 and 0. Which share does the best code of one column lose?",
        answer=lost_share(best_linear_code(matrix, 1), matrix),
        hint="The best code keeps the largest singular value. The length of a matrix is the root of the sum of the "
        "squares of its singular values.",
        reason="√(9 + 4) / √(36 + 9 + 4) = 3.61 / 7. No linear code of one column can do better; an untrained one is "
        "near 1.",
        mistakes=(
            Mistake(answer=5 / 11, hint="Singular values add up as squares, under a root."),
            Mistake(answer=6 / 7, hint="That is what is kept. What is left over?"),
        ),
        rel=0.01,
    )


SIZES = ((2, 3, 2), (3, 6, 4))  # tokens, hidden, and columns of the code, on ranks
ENCODED_SUM_HINTS = {
    "Nothing was added up: the other ranks' codes are missing.": lambda part, E, D, group: part @ E @ D,
    "That is the code of the sum. Decode it.": lambda part, E, D, group: group.sum([part @ E]),
    "That is the mean. Asked is the sum.": lambda part, E, D, group: group.sum([part @ E]) @ D / group.size,
    "More bytes travel than the code has: add the codes, and decode their sum once.": (
        lambda part, E, D, group: group.sum([part @ E @ D])
    ),
    "That is the whole sum, of as many bytes as without a code.": lambda part, E, D, group: group.sum([part]),
}


def _encoded_sum(part: Tensor, E: Tensor, D: Tensor, group: TensorGroup) -> Tensor:
    """Return the workbench's own sum."""
    codec = AutoEncoder(*E.shape)
    codec.encoder.data, codec.decoder.data = E, D
    return CompressedReduction(codec, group)([part])


@torch.no_grad()
def _reduce_on_rank(encoded_sum: Callable) -> list:
    """Return the sum for each size, and the bytes of this rank's messages; whole numbers, so that it is exact."""
    sums = []
    for tokens, hidden, code_size in SIZES:
        group, draw = ProcessTensorGroup(), torch.Generator().manual_seed(0)
        E, D = (
            torch.randint(-2, 3, shape, generator=draw).float() for shape in [(hidden, code_size), (code_size, hidden)]
        )
        part = torch.randint(-3, 4, (tokens, hidden), generator=draw.manual_seed(1 + group.local_ranks[0])).float()
        total = encoded_sum(part, E, D, group)
        sums.append((total, group.traffic.num_bytes()))
    return sums


def check_encoded_sum(encoded_sum: Callable | None) -> Feedback:
    """Check a reader's `encoded_sum(part, E, D, group)` on three ranks: the sum, and the bytes that travel."""
    return check_on_ranks(
        encoded_sum,
        _encoded_sum,
        _reduce_on_rank,
        num_ranks=3,
        mistakes=ENCODED_SUM_HINTS,
        of="(sum, bytes that this rank sent)",
        reason="All three ranks have the sum that `CompressedReduction` gives, and sent codes only.",
    )


def _quantised(
    row: Tensor,
    bits: int,
    *,
    more_steps: int = 0,
    to_level: Callable = torch.round,
    from_zero: bool = False,
    is_code: bool = False,
) -> Tensor:
    """Send a row with a usual mistake."""
    low = row.new_zeros(()) if from_zero else row.min()
    step = (row.max() - low) / (2**bits - 1 + more_steps)
    code = to_level((row - low) / step)
    return code if is_code else low + code * step


QUANTISED_HINTS = {
    "So many bits make 2**bits levels. How many steps are between them?": partial(_quantised, more_steps=1),
    "Take the nearest level, not the one below.": partial(_quantised, to_level=torch.floor),
    "The lowest level is the row's smallest value, not 0.": partial(_quantised, from_zero=True),
    "Those are the numbers of the levels, which travel. What does the receiver make of them?": (
        partial(_quantised, is_code=True)
    ),
}


def check_quantised(quantised: Callable | None) -> Feedback:
    """Check a reader's `quantised(row, bits)` against `Quantize` on rows whose levels are whole numbers."""
    draw, cases = torch.Generator().manual_seed(0), []
    for number in range(20):
        bits, low, step = 1 + number % 4, number % 7 - 2, 3 + 2 * (number % 2)  # odd steps: no value is half-way
        top = step * (2**bits - 1)
        row = torch.cat([torch.tensor([0, top]), torch.randint(top + 1, (3,), generator=draw)]) + low
        cases.append((row[torch.randperm(5, generator=draw)].float(), bits))
    return check_on_cases(
        quantised,
        cases,
        [Quantize(bits)(row) for row, bits in cases],
        mistakes=QUANTISED_HINTS,
        reason=f"What arrives is what `Quantize` makes of {len(cases)} rows.",
        rel=1e-4,
    )
