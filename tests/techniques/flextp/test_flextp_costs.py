import json
from dataclasses import replace

import pytest

from workbench.techniques.flextp.method.costs import Costs, PiecewiseLinear
from workbench.techniques.flextp.method.plan import RankTimes


def test_a_function_goes_through_its_points_and_straight_on():
    seconds = PiecewiseLinear(shares=(0.25, 0.5, 1.0), seconds=(1.0, 2.0, 6.0))
    # Between 0.25 and 0.5 4 s a share, beyond 8 s a share.
    assert [seconds(share) for share in (0, 0.25, 0.375, 0.5, 0.75, 1, 1.5)] == [0, 1, 1.5, 2, 4, 6, 10]


def test_a_function_is_never_negative():
    # 8 s a share through (0.5, 2): at 0 it would be -2.
    assert PiecewiseLinear(shares=(0.5, 1.0), seconds=(2.0, 6.0))(0) == 0


def test_a_single_point_makes_a_constant():
    assert PiecewiseLinear(shares=(0.5,), seconds=(2.0,))(0.9) == 2


def test_of_several_samples_at_one_share_the_median_counts():
    samples = [(0.5, 2.0), (1.0, 4.0), (0.5, 90.0), (0.5, 1.0), (1.0, 6.0)]
    assert PiecewiseLinear.fitted(samples) == PiecewiseLinear(shares=(0.5, 1.0), seconds=(2.0, 5.0))


def test_samples_that_fall_are_levelled():
    # 3 then 2 fall: the nearest that do not are both 2.5.
    samples = [(0.25, 1.0), (0.5, 3.0), (0.75, 2.0), (1.0, 4.0)]
    assert PiecewiseLinear.fitted(samples).seconds == pytest.approx((1.0, 2.5, 2.5, 4.0))


def test_every_sender_pays_for_what_travels_however_few_its_columns():
    # 3 s of whole tensors and 2 s a share: one sender of 1.5 pays 6, three of 0.5 pay 3 (3 + 1); nobody pays nothing.
    costs = Costs(
        alloc_s=0.0,
        extract=PiecewiseLinear.straight(0.0),
        compute=PiecewiseLinear.straight(1.0),
        communicate=PiecewiseLinear.straight(2.0, at_zero_s=3.0),
    )
    assert [costs.communicate_s(1.5, senders) for senders in (1, 3)] == [6, 12]
    assert costs.communicate_s(0.0, 0) == 0
    assert Costs.straight(communicate_s=2.0, compute_s=1.0).communicate_s(1.5, 3) == pytest.approx(3)


NARROW = Costs(
    alloc_s=0.0,
    extract=PiecewiseLinear.straight(0.0),
    communicate=PiecewiseLinear.straight(0.0),
    compute=PiecewiseLinear.straight(3.0, at_zero_s=2.0),
    fixed_share=0.25,
)


def test_a_receiver_multiplies_for_every_sender_by_itself():
    # A volume of 1.5 for 3 receivers: of one sender 2 + 3 x 0.5 s, of two 2 (2 + 3 x 0.25).
    assert [NARROW.compute_s(1.5, senders, 3) for senders in (1, 2)] == [3.5, 5.5]
    assert NARROW.compute_s(0.0, 0, 3) == 0
    assert Costs.straight(compute_s=1.0).compute_s(1.5, 3, 2) == pytest.approx(0.75)


def test_of_a_narrow_product_less_is_in_proportion_to_its_columns():
    # A rank's own products take 4 s, 1 of them however narrow: with half of its columns 1.5 of 2.5 s are in proportion.
    half = NARROW.proportional(RankTimes(own_s=3.5, product_s=2.5, work=0.5))
    assert half == RankTimes(own_s=3.5, product_s=1.5, work=0.5)
    assert (
        half.unresized()
        == NARROW.proportional(RankTimes(own_s=5.0, product_s=4.0))
        == RankTimes(own_s=5.0, product_s=3.0)
    )
    narrow = RankTimes(own_s=2.0, product_s=1.5, work=0.01)
    assert Costs.straight(compute_s=1.0).proportional(narrow) == narrow


def test_costs_survive_json():
    costs = Costs(
        alloc_s=0.5,
        extract=PiecewiseLinear(shares=(0.5,), seconds=(2.0,)),
        communicate=PiecewiseLinear.straight(3.0, at_zero_s=0.25),
        compute=PiecewiseLinear.fitted([(0.25, 1.0), (0.5, 3.0), (1.0, 4.0)]),
        fixed_share=0.25,
    )
    assert Costs.from_record(json.loads(json.dumps(costs.as_record()))) == costs


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PiecewiseLinear(shares=(), seconds=()), r"shares is \(\)"),
        (lambda: PiecewiseLinear(shares=(0.5, 0.5), seconds=(1, 2)), "ascending"),
        (lambda: PiecewiseLinear(shares=(0.25, 0.5), seconds=(2, 1)), "never fall"),
        (lambda: PiecewiseLinear.fitted([]), r"shares is \(\)"),
        (lambda: PiecewiseLinear.fitted([(0.5, -1.0)]), "not negative"),
        (lambda: PiecewiseLinear.straight(1.0)(-0.5), "share is -0.5"),
        (lambda: Costs.straight(alloc_s=-1, compute_s=1), "alloc_s is -1"),
        (lambda: replace(NARROW, fixed_share=1.0), "fixed_share is 1.0"),
    ],
)
def test_costs_that_cannot_be_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
