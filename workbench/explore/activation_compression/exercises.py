"""The exercises of the lesson, their answers computed by the library.

Source: "Does compressing activations help model parallel training?", tables 1 and 4,
sections 3.2 and 4.7.
Simplified: as the predicted layer. Left out: accuracy.
"""

import torch

from workbench.compression import TopK
from workbench.explore.exercises import Exercise, Mistake
from workbench.techniques.activation_compression.cost import Setting

from .layer import Approach, break_even_bytes_per_s

__all__ = ["break_even", "code_bytes", "sum_of_top_1"]

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
    one, two = torch.tensor([3.0, -1.0, 2.0, 0.0]), torch.tensor([-3.0, 4.0, 2.0, 1.0])
    top = TopK(1)
    return Exercise(
        question="Parts [3, -1, 2, 0] and [-3, 4, 2, 1], Top-1 of each, gathered and added: the result?",
        answer=tuple((top(one) + top(two)).tolist()),
        hint="Go rank by rank: which single element does each one send? Everything else counts as 0.",
        reason="Rank 0 sends its 3, rank 1 its 4. The true sum is [0, 3, 4, 1]: its largest element, at "
               "position 2, is sent by nobody.",
        mistakes=(
            Mistake(answer=tuple(top(one + two).tolist()),
                    hint="That is the Top-1 of the true sum, and no rank knows the true sum."),
            Mistake(answer=tuple((one + two).tolist()),
                    hint="That is the true sum. Each rank sends one element only."),
        ),
    )


def break_even() -> Exercise:
    """Return the exercise on the bandwidth above which the auto-encoder does not pay."""
    return Exercise(
        question="Above which bandwidth, in GB/s, does this model predict that a code of 100 columns makes a layer slower?",
        answer=break_even_bytes_per_s(Approach.AUTO_ENCODER, A2_CODE_SIZE) / 1e9,
        hint="Move the bandwidth until the number beside the curve passes 1.00; the answer lies between two steps. "
             "A value within a fifth is accepted.",
        reason="There the seconds that the smaller messages save equal those that encoding and decoding cost.",
        rel=0.2,
    )
