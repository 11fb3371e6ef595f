"""The exercises of the lesson (Eqs. 1 and 2, section IV-A), their answers computed by the library."""

from workbench.explore.exercises import Exercise, Mistake
from workbench.techniques.flextp import method

__all__ = ["bound_of_eight", "columns_of_receivers", "ratio_of_straggler", "split_of_columns"]

TOLERANCE = 0.01  # relative tolerance of answers that are quotients


def ratio_of_straggler() -> Exercise:
    """Return the exercise on Eq. 1."""
    own_s, product_s, others_s = 10.0, 8.0, (4.0, 4.0, 6.0)
    mean_s = (own_s + sum(others_s)) / 4
    return Exercise(
        question="Own times of 10, 4, 4 and 6 s; rank 0 spends 8 of its 10 s in products. Which share of its columns "
        "does Eq. 1 let it drop?",
        answer=method.pruning_ratio(own_s, mean_s, product_s),
        hint="How many seconds must rank 0 lose to reach the mean of all four? Which part of its products is that?",
        reason="The mean is 6 s, so 4 s must go. They can only come out of the 8 s of products.",
        mistakes=(
            Mistake(
                answer=(own_s - mean_s) / own_s, hint="Dropping columns shortens products, not the rest of the 10 s."
            ),
            Mistake(
                answer=(own_s - min(others_s)) / product_s,
                hint="That brings it down to the fastest rank, as SEMI does. Eq. 1 takes the mean.",
            ),
        ),
        rel=TOLERANCE,
    )


def bound_of_eight() -> Exercise:
    """Return the exercise on the bound of Eq. 1."""
    skewness, num_ranks = 8.0, 8
    return Exercise(
        question="Eight ranks, nothing but products, one straggler with χ = 8. How many times faster can an iteration "
        "become if the straggler comes down to the mean?",
        answer=method.speedup_bound(skewness, num_ranks),
        hint="In units of a normal rank's products: how long does an iteration take without help, and what is the mean "
        "of the eight times?",
        reason="Without help 8; the mean of 8 and seven times 1 is 15/8. The mean contains the straggler itself, which "
        "is why Eq. 1 stops short of 8 times.",
        mistakes=(
            Mistake(answer=skewness, hint="That would bring it down to the others. The mean lies above them."),
            Mistake(answer=method.speedup_bound(skewness, 4), hint="That is the bound for four ranks."),
            Mistake(answer=1 / method.speedup_bound(skewness, num_ranks), hint="Turn the fraction over."),
        ),
        rel=TOLERANCE,
    )


def columns_of_receivers() -> Exercise:
    """Return the exercise on virtual renumbering."""
    num_ranks, sender, num_columns = 4, 1, 8
    receivers = method.receivers_of(sender, (sender,), num_ranks)
    columns = dict(zip(receivers, map(len, method.column_ranges(num_columns, len(receivers))), strict=True))
    by_number = tuple(float(columns.get(rank, 0)) for rank in (0, 2, 3))
    return Exercise(
        question="Rank 1 of four migrates 8 columns. How many of them do ranks 0, 2 and 3 compute?",
        answer=by_number,
        hint="Number the receivers from the sender on: r' = (r + 4 - 1) mod 4. Receiver r' takes the columns from "
        "(r' - 1)·8/3 to r'·8/3, both rounded down.",
        reason="Ranks 2, 3 and 0 are the receivers 1, 2 and 3, and the cuts are at 0, 2, 5 and 8.",
        mistakes=(
            Mistake(answer=(2.0, 3.0, 3.0), hint="The counting starts behind the sender, at rank 2, not at rank 0."),
            Mistake(answer=(8 / 3,) * 3, hint="Columns are whole. Round the cuts down."),
        ),
    )


def split_of_columns() -> Exercise:
    """Return the exercise on Eq. 2."""
    costs = method.Costs.straight(extract_s=0.4, communicate_s=0.2, compute_s=0.6)
    return Exercise(
        question="One straggler among four ranks must give up 0.8 of its columns. Dropping a share of 1 costs 0.4 s, "
        "sending it 0.2 s, multiplying it 0.6 s. Which shares does it migrate and drop by Eq. 2?",
        answer=method.split_of_one(0.8, costs, 3),
        hint="Call the migrated share m. What do the others pay for it, the columns divided by three? What does the "
        "straggler pay for the 0.8 - m that are left?",
        reason="0.2 m + 0.6 m/3 = 0.4 m on the others, 0.4 (0.8 - m) on the straggler: equal where m is half.",
        mistakes=(
            Mistake(
                answer=method.split_of_one(0.8, costs, 1),
                hint="The columns are divided: each receiver multiplies a third.",
            ),
            Mistake(
                answer=(0.8, 0.0),
                hint="Then the straggler pays nothing and the others all of it. Eq. 2 makes both pay alike.",
            ),
        ),
        rel=TOLERANCE,
    )
