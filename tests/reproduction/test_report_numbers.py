"""Numbers on the report read well and claim no digits they do not have."""

import math

import pytest

from workbench.reproduction.report.texts import (
    about_text,
    key_text,
    number_text,
    relative_text,
    seconds_text,
    value_text,
)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (33554432, "bytes", "33.55 MB"),  # 33.554432 million
        (999, "bytes", "999 B"),
        (0, "bytes", "0 B"),
        (1.25e9 / 8, "bytes/s", "156.2 MB/s"),
        (0.0123, "s", "12.3 ms"),
        (90, "s", "90 s"),
        (125, "s", "2 min 05 s"),
        (3900, "s", "1 h 05 min"),
        (0.5, "", "0.5"),
        (12, "%", "12 %"),
        (1234567, "", "1,234,567"),
        (4096, "elements", "4,096 elements"),
        (1.5e-7, "", "1.5e-07"),
        (None, "bytes", "—"),
        (math.nan, "s", "—"),
        ("none of them", "", "none of them"),
    ],
)
def test_a_value_is_written_with_four_digits_and_a_prefix_that_fits(value, unit, text):
    assert value_text(value, unit) == text


@pytest.mark.parametrize(
    ("ours", "published", "text"),
    [
        (1.01e6, 1.0e6, "+1 %"),
        (-1.5, -1.0, "-50 %"),
        (3.0, 3.0, "exact"),
        (0.25, 0.0, "+0.25"),
        (None, 1.0, "—"),
        (1.0 + 1e-9, 1.0, "+1e-07 %"),  # tiny, and not called exact
        (0.1 + 0.2, 0.3, "exact"),  # 0.30000000000000004: what the rounding of float64 leaves
        (0.0, 0.0, "exact"),
        (13.1, 1.0, "13 times"),  # +1,210 %
        (426.0, 2.0, "213 times"),
        (9.9, 1.0, "+890 %"),
        (-12.0, 1.0, "-12 times"),
    ],
)
def test_a_difference_is_a_share_of_the_published_value_and_from_ten_times_on_a_factor(ours, published, text):
    assert relative_text(ours, published) == text


def test_keys_are_words_no_time_is_zero_seconds_and_infinity_stays():
    assert key_text({"num_ranks": 4, "method": "A1"}) == "num ranks 4, method A1"
    assert (seconds_text(0), number_text(math.inf)) == ("0 s", "inf")


def test_an_expected_time_is_given_to_a_second_and_below_one_to_a_digit():
    texts = [about_text(value) for value in (6.954, 0.4321, 0.0, 75.6, 3725.0)]
    assert texts == ["7 s", "400 ms", "0 s", "76 s", "1 h 02 min"]
