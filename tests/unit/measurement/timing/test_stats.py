"""Intervals of latency ratios."""

import math

import numpy as np
import pytest
from scipy.stats import t as student_t

from ortune.core.trial import Block, Burst, Pair
from ortune.measurement.arrivals.lanes import percentile
from ortune.measurement.timing import stats


def pair(
    rng: np.random.Generator,
    shift: float,
    *,
    blocks: int = 10,
    sd: float = 0.03,
    own: float = 0.004,
) -> Pair:
    """Blocks of a candidate exp(shift) times as slow, with noise and a pair's own effect."""
    effect = shift + rng.normal(0, own)
    made = []
    for _ in range(blocks):
        base = np.exp(rng.normal(0, sd, 8)) * 1e6
        cand = np.exp(rng.normal(effect, sd, 8)) * 1e6
        made.append(Block(burst(base), burst(cand)))
    return Pair(tuple(made))


def burst(values: np.ndarray, waited: float = 0.0) -> Burst:
    return Burst(tuple(int(v) for v in values), (waited,) * len(values))


def test_equal_models_are_rarely_called_different() -> None:
    rng = np.random.default_rng(0)
    claims = 0
    for _ in range(200):
        found = stats.latency_ratio([pair(rng, 0.0) for _ in range(3)])
        claims += found.high < 1 or found.low > 1
    assert claims <= 7, "1 % of 200 is 2; 7 leaves room for chance"


@pytest.mark.parametrize("own", [0.002, 0.008, 0.03])
def test_claims_stay_rare_whatever_pairs_differ_by(own: float) -> None:
    """Half-widths from the moderated variance alone: blocks would only blur the spread."""
    rng = np.random.default_rng(3)
    claims = 0
    for _ in range(150):
        exact = [pair(rng, 0.0, blocks=4, sd=1e-4, own=own) for _ in range(stats.PAIRS)]
        looks = range(stats.FEWEST_PAIRS, stats.PAIRS + 1)
        claims += any(stats.claim_ratio(exact[:count]).clear for count in looks)
    assert claims <= 11, "the prior lets 3.1 % through at 0.03, 5 of 150; 11 leaves room"


def test_a_claim_that_ends_early_is_surer_than_usual() -> None:
    rng = np.random.default_rng(4)
    pairs = [pair(rng, math.log(0.5)) for _ in range(stats.PAIRS)]
    for count in range(stats.FEWEST_PAIRS, stats.PAIRS + 1):
        claim, usual = stats.claim_ratio(pairs[:count]), stats.latency_ratio(pairs[:count])
        assert claim.low < usual.low < usual.high < claim.high


def test_a_twin_slower_by_3_percent_is_found() -> None:
    rng = np.random.default_rng(1)
    found = [
        stats.latency_ratio([pair(rng, 0.0296) for _ in range(stats.PAIRS)]) for _ in range(50)
    ]
    assert sum(f.low > 1 for f in found) >= 45
    assert np.mean([f.value for f in found]) == pytest.approx(1.03, abs=0.003)


class TestLearnt:
    def test_it_pools_squares_about_each_mean_and_of_equals_about_zero(self) -> None:
        def of(*logs: float) -> list[Pair]:
            rng = np.random.default_rng(0)
            return [pair(rng, log, blocks=4, sd=0.0, own=0.0) for log in logs]

        found = stats.PooledVariance.pool([of(0.1, 0.3), of(0.5), of(-0.1, 0.0, 0.1)], of(0.2))
        assert found.df == 1 + 0 + 2 + 1
        assert found.squares == pytest.approx(2 * 0.1**2 + 2 * 0.1**2 + 0.2**2, rel=1e-4)
        assert stats.PooledVariance.pool([of(0.1)]) == stats.NOTHING

    def test_of_one_baseline_all_groups_count_and_lone_pairs_do_not(self) -> None:
        """k groups tell as much as 4 k / (k + 3) of their own; equal sides are a group."""
        rng = np.random.default_rng(15)
        one, two, equal = ([pair(rng, 0.0) for _ in range(n)] for n in (5, 1, 4))
        alone = stats.PooledVariance.pool([one], one_baseline=True)
        assert alone.df == 4
        assert stats.PooledVariance.pool([one, two], one_baseline=True) == alone
        assert stats.PooledVariance.pool([one], equal, one_baseline=True).df == int(8 * 4 / 5)
        assert stats.PooledVariance.pool([], equal, one_baseline=True).df == 4

    def test_two_runs_tell_their_sum(self) -> None:
        both = stats.PooledVariance(0.25, 3) + stats.PooledVariance(0.5, 4)
        assert both == stats.PooledVariance(0.75, 7)
        assert both + stats.NOTHING == both

    def test_the_variance_is_the_formula_of_the_documents(self) -> None:
        rng = np.random.default_rng(8)
        own = [pair(rng, 0.0) for _ in range(3)]
        learnt = stats.PooledVariance(0.004, 9)
        middle, variance, df, n = stats.pair_spread(own, learnt)
        logs = [stats.block_logs(one) for one in own]
        means = np.array([stats.compute_trimmed_mean(one) for one in logs])
        within = np.mean([stats.bootstrap_error(one) ** 2 for one in logs])
        prior = stats.PRIOR_DF * (stats.PAIR_SD**2 + within)
        assert (df, n) == (stats.PRIOR_DF + 9 + 2, 3)
        expected = (prior + 0.004 + 2 * means.var(ddof=1)) / df
        assert variance == pytest.approx(expected)
        half = stats.student_quantile(0.99, df) * math.sqrt(variance / 3)
        assert stats.latency_ratio(own, learnt=learnt).high == pytest.approx(
            math.exp(middle + half)
        )
        assert stats.predict_ratio(own, learnt) != stats.predict_ratio(own)

    def test_a_noisy_run_widens_and_a_calm_one_narrows(self) -> None:
        rng = np.random.default_rng(9)
        own = [pair(rng, 0.0, own=0.0085) for _ in range(5)]
        calm, loud = (
            stats.PooledVariance(14 * 0.0085**2, 14),
            stats.PooledVariance(14 * 0.05**2, 14),
        )

        def width(learnt: stats.PooledVariance) -> float:
            found = stats.latency_ratio(own, learnt=learnt)
            return found.high / found.low

        assert width(calm) < width(stats.NOTHING) < width(loud)
        assert stats.half_width(calm) < 0.015 < 0.04 < stats.half_width(loud)

    def test_false_claims_stay_rare_where_every_pair_is_loud(self) -> None:
        """Where pairs differ by 3 % a prior from other models lets 3 % through; learnt, 1 %."""
        rng = np.random.default_rng(10)
        alone = pooled = 0
        for _ in range(60):
            groups = [
                [pair(rng, 0.0, blocks=4, sd=1e-4, own=0.03) for _ in range(5)] for _ in range(3)
            ]
            equal = [pair(rng, 0.0, blocks=4, sd=1e-4, own=0.03)]
            for k, group in enumerate(groups):
                learnt = stats.PooledVariance.pool(groups[:k] + groups[k + 1 :], equal)
                alone += stats.latency_ratio(group).clear
                pooled += stats.latency_ratio(group, learnt=learnt).clear
        assert pooled <= 6, "1 % of 180 is 2; 6 leaves room for chance"
        assert pooled <= alone

    def test_the_pairs_that_find_three_percent_find_it(self) -> None:
        sd = 0.02
        learnt = stats.PooledVariance(14 * sd**2, 14)
        needed = stats.pairs_for(learnt)
        assert needed is not None and needed > stats.PAIRS
        assert stats.pairs_for(stats.PooledVariance(14 * 0.004**2, 14)) in (2, 3)
        assert stats.pairs_for(stats.PooledVariance(14 * 0.5**2, 14)) is None
        rng = np.random.default_rng(14)
        means = rng.normal(math.log(1.03), sd / math.sqrt(needed), 20_000)
        found = (means - stats.half_width(learnt, needed) > 0).mean()
        assert 0.88 < found < 0.96, "pairs are whole"
        assert (
            stats.minimum_detectable_effect(learnt, needed)
            <= 0.03
            < stats.minimum_detectable_effect(learnt, needed - 1)
        )
        assert stats.minimum_detectable_effect(learnt) > 0.03

    def test_a_plan_louder_than_the_rest_is_not_called_calm(self) -> None:
        rng = np.random.default_rng(12)
        calm, claims = stats.PooledVariance(9 * 0.01**2, 9), 0
        for _ in range(150):
            loud = [pair(rng, 0.0, blocks=4, sd=1e-4, own=0.03) for _ in range(5)]
            claims += stats.latency_ratio(loud, learnt=calm).clear
        assert claims <= 10, "3 % by simulation; pooled without a guard it is 12 %"

    def test_the_wider_of_both_counts_beyond_one_and_a_half_times_the_variance(self) -> None:
        rng = np.random.default_rng(13)
        own = [pair(rng, 0.0, blocks=4, sd=1e-4, own=0.02) for _ in range(5)]
        means = np.array([stats.compute_trimmed_mean(stats.block_logs(one)) for one in own])
        seen = float(means.var(ddof=1))
        alone = stats.pair_spread(own)
        assert stats.pair_spread(own, stats.PooledVariance(9 * seen / 1.51, 9)) == alone
        pooled = stats.pair_spread(own, stats.PooledVariance(9 * seen / 1.49, 9))
        assert pooled[2] == stats.PRIOR_DF + 4 + 9 and pooled[1] < alone[1]

    def test_the_wider_counts_though_its_variance_be_smaller(self) -> None:
        """Two pairs alone have few degrees of freedom."""
        own = exact(0.0, 0.1)
        seen = float(np.var([0.0, 0.1], ddof=1))
        alone, pooled = stats.pair_spread(own), stats.PooledVariance(9 * seen / 1.6, 9)
        assert stats.pair_spread(own, pooled) == alone
        assert alone[1] < pooled.squares / pooled.df

    def test_few_pairs_do_where_all_are_alike_and_not_100_where_none_are(self) -> None:
        assert stats.pairs_for(stats.PooledVariance(0.0, 1000)) == 2
        loud = stats.PooledVariance(1000 * 0.09**2, 1000)
        assert (
            stats.minimum_detectable_effect(loud, 101)
            > 0.03
            > stats.minimum_detectable_effect(loud, 201)
        )
        assert stats.pairs_for(loud) is None

    def test_groups_that_share_a_baseline_count_for_less(self) -> None:
        rng = np.random.default_rng(11)
        groups = [[pair(rng, 0.0) for _ in range(4)] for _ in range(5)]
        own, shared = (
            stats.PooledVariance.pool(groups),
            stats.PooledVariance.pool(groups, one_baseline=True),
        )
        assert (own.df, shared.df) == (15, 7)
        assert shared.squares / shared.df == pytest.approx(own.squares / own.df)
        assert stats.PooledVariance.pool(groups[:1], one_baseline=True).df == 3


def exact(*logs: float, blocks: int = 4) -> list[Pair]:
    """Pairs of these log-ratios, all blocks alike."""
    rng = np.random.default_rng(0)
    return [pair(rng, log, blocks=blocks, sd=0.0, own=0.0) for log in logs]


def mixed(*groups: list[float]) -> list[Pair]:
    """Pairs whose blocks have these log-ratios."""
    return [Pair(tuple(exact(one, blocks=1)[0].blocks[0] for one in logs)) for logs in groups]


class TestSpread:
    def test_of_nothing_it_is_not_known(self) -> None:
        middle, variance, *rest = stats.pair_spread([])
        assert math.isnan(middle) and math.isnan(variance) and rest == [stats.PRIOR_DF, 1]

    def test_a_lone_block_tells_no_error(self) -> None:
        assert stats.pair_spread(exact(0.1, blocks=1))[1] == math.inf
        assert stats.bootstrap_error(np.array([0.1])) == math.inf
        assert 0 < stats.bootstrap_error(np.array([0.1, 0.2])) < math.inf

    def test_of_two_lone_blocks_the_spread_is_the_error(self) -> None:
        seen = float(np.var([0.0, 0.1], ddof=1))
        found = (stats.PRIOR_DF * (stats.PAIR_SD**2 + seen) + seen) / (stats.PRIOR_DF + 1)
        assert stats.pair_spread(exact(0.0, 0.1, blocks=1))[1] == pytest.approx(found, rel=1e-4)

    def test_two_blocks_have_an_error(self) -> None:
        pairs = mixed([0.0, 0.1], [0.1, 0.2])
        within = np.mean([stats.bootstrap_error(stats.block_logs(one)) ** 2 for one in pairs])
        prior = stats.PRIOR_DF * (stats.PAIR_SD**2 + within)
        found = (prior + np.var([0.05, 0.15], ddof=1)) / (stats.PRIOR_DF + 1)
        assert stats.pair_spread(pairs)[1] == pytest.approx(found, rel=1e-4)

    def test_one_pair_is_pooled_with_what_was_learnt(self) -> None:
        learnt = stats.PooledVariance(9 * 0.01**2, 9)
        found = (stats.PRIOR_DF * stats.PAIR_SD**2 + learnt.squares) / (stats.PRIOR_DF + 9)
        assert stats.pair_spread(exact(0.1), learnt)[1:] == (
            pytest.approx(found, rel=1e-4),
            9 + stats.PRIOR_DF,
            1,
        )


class TestPrediction:
    def test_a_new_pair_on_another_occasion_falls_inside(self) -> None:
        rng = np.random.default_rng(4)
        inside = 0
        for _ in range(200):
            here, there = rng.normal(0, stats.OCCASION_SD / math.sqrt(2), 2)
            known = [pair(rng, here, blocks=4, own=0.0085) for _ in range(stats.PAIRS)]
            found = stats.predict_ratio(known)
            again = stats.latency_ratio([pair(rng, there, blocks=4, own=0.0085)]).value
            inside += found.low <= again <= found.high
        assert inside >= 186, "95 % of 200 is 190"

    def test_it_is_wider_than_the_interval_of_the_mean_and_not_huge(self) -> None:
        rng = np.random.default_rng(5)
        known = [pair(rng, -0.79, own=0.0085) for _ in range(stats.PAIRS)]
        mean, new = stats.latency_ratio(known, stats.PREDICTED), stats.predict_ratio(known)
        assert new.low < mean.low < mean.value == new.value < mean.high < new.high
        assert new.high / new.low < 1.15

    def test_more_pairs_never_predict_away_the_occasion(self) -> None:
        rng = np.random.default_rng(6)
        many = [pair(rng, 0.0) for _ in range(30)]
        found = stats.predict_ratio(many)
        assert math.log(found.high / found.low) / 2 > 1.96 * stats.OCCASION_SD

    def test_nothing_measured_predicts_nothing(self) -> None:
        assert math.isnan(stats.predict_ratio([]).value)


def test_more_pairs_narrow_the_interval() -> None:
    rng = np.random.default_rng(2)
    pairs = [pair(rng, 0.0) for _ in range(6)]
    widths = [
        stats.latency_ratio(pairs[:n]).high - stats.latency_ratio(pairs[:n]).low for n in (1, 3, 6)
    ]
    assert widths[0] > widths[1] > widths[2]


def test_disturbed_entries_are_dropped_on_both_sides() -> None:
    base = Burst((100, 100, 100, 100), (0, 0, 0.5, 0))
    cand = Burst((50, 5000, 50, 50), (0, 0.4, 0, 0))
    found = stats.block_logs(Pair((Block(base, cand),) * 6))
    assert found == pytest.approx([math.log(0.5)] * 6)
    assert stats.compute_disturbed_share([Pair((Block(base, cand),))]) == pytest.approx(2 / 8)
    edge = Burst((100, 100), (stats.WAITED, 0.021))
    assert stats.compute_disturbed_share([Pair((Block(edge, edge),))]) == 0.5


def waiting(side: tuple[float, ...], share: float = 0.67, others: float | None = None) -> Burst:
    """A burst of which every run waited for a share of its time."""
    return Burst(side, (share,) * len(side), 1, True, others)


def test_a_ratio_of_runs_that_waited_on_one_side_is_not_claimed() -> None:
    """The slice of a busy CPU: a run of 3 ms is preempted for 6, a run of 0.75 ms fits into it."""
    base = Burst((9000,) * 26 + (3000,), (0.667,) * 26 + (0.0,), 1, True, 1.0)
    cand = Burst((750,) * 90 + (6750,) * 10, (0.0,) * 90 + (0.889,) * 10, 1, True, 1.0)
    pairs = [Pair((Block(base, cand),) * 4)] * 5
    found = stats.latency_ratio(pairs)
    assert (found.low, found.high) == (0.0, math.inf) and not found.clear
    assert found.value == pytest.approx(0.25, rel=0.01), "to sort by: less what each waited"
    assert stats.count_unusable(pairs) == 5
    foreseen = stats.predict_ratio(pairs)
    assert (foreseen.low, foreseen.high) == (0.0, math.inf)
    assert stats.PooledVariance.pool([pairs], pairs) == stats.NOTHING, "nothing is learnt of them"
    swapped = stats.latency_ratio([Pair((Block(cand, base),) * 4)] * 5)
    assert not swapped.clear and swapped.value == pytest.approx(4.0, rel=0.01)


def test_an_interval_rests_on_the_pairs_whose_runs_did_not_wait() -> None:
    calm, loud = Burst((100,) * 20, (0.0,) * 20, 1, True), Burst((900,) * 20, (0.9,) * 20, 1, True)
    half = Burst((50,) * 20, (0.0,) * 20, 1, True)
    good, bad = Pair((Block(calm, half),) * 4), Pair((Block(loud, half),) * 4)
    found = stats.latency_ratio([good, bad, good, bad, good])
    assert found == stats.latency_ratio([good] * 3)
    assert found.value == pytest.approx(0.5) and found.high < 1
    assert stats.count_unusable([good, bad, good, bad, good]) == 2


def test_where_no_other_process_ran_its_own_threads_waited_and_all_entries_count() -> None:
    """Four threads on two CPUs wait for each other on a calm machine, too."""
    base = waiting((100,) * 8, 0.5, 0.01)
    calm = Pair((Block(base, waiting((50,) * 8, 0.3, 0.01)),) * 4)
    assert stats.block_logs(calm) == pytest.approx([math.log(0.5)] * 4)
    edge = Pair((Block(waiting((100,) * 8, 0.5, 0.02), waiting((50,) * 8, 0.3, 0.02)),) * 4)
    assert len(stats.block_logs(edge)) == 4
    for others in (0.021, None):
        loud = waiting((50,) * 8, 0.3, others)
        blocks = (Block(waiting((100,) * 8, 0.5, 0.02), loud),) * 4
        assert not len(stats.block_logs(Pair(blocks))), "a neighbour, or nobody knows"


def test_neighbours_are_those_of_the_whole_pair() -> None:
    """The kernel counts in ticks: of one burst it may be one too many and of the next one less."""
    sides = [waiting((100,) * 8, 0.5, others) for others in (0.1, -0.08)]
    assert len(stats.block_logs(Pair((Block(*sides),) * 4))) == 4


def test_who_waited_for_less_than_its_time_is_sorted_by_what_is_left() -> None:
    """Unlike entries are compared one by one; a wait beyond the entry's time leaves a fiftieth."""
    base, cand = Burst((1000, 100), (0.5, 0.5)), Burst((1000, 100, 7), (0.75, 0.75, 0.0))
    assert stats.latency_ratio([Pair((Block(base, cand),))]).value == pytest.approx(0.5)
    loud = Burst((100, 100), (2.0, 3.0), 1, True)
    unread = Burst((100, 100), (-1.0, -1.0), 1, True)
    assert stats.latency_ratio([Pair((Block(unread, loud),))]).value == pytest.approx(0.02)


def test_who_waited_for_just_a_fiftieth_is_calm() -> None:
    base = Burst((100, 100, 100), (0.0, 0.02, 0.021))
    one, two = stats.mask_undisturbed(Block(base, base))
    assert one.tolist() == two.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("calm", "blocks", "counts"),
    [
        *((3, 4, True), (3, 3, False), (2, 6, True), (2, 5, False), (1, 12, True), (4, 3, True)),
        *((9, 1, True), (8, 1, False), (0, 9, False)),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_each_side_has_a_dozen_calm_entries_or_half_or_none_counts(
    calm: int, blocks: int, counts: bool, side: int
) -> None:
    """Only one side is disturbed: its calm entries are the fewer ones."""
    loud = Burst((100,) * calm + (900,) * 9, (0.0,) * calm + (0.5,) * 9, 1, True)
    quiet = Burst((100,) * 13, (0.0,) * 13, 1, True)
    block = Block(*((loud, quiet) if side == 0 else (quiet, loud)))
    assert stats.block_logs(Pair((block,) * blocks)).tolist() == [0.0] * (blocks * counts)


def test_a_block_without_a_calm_entry_is_left_out_among_calm_ones() -> None:
    calm, loud = Burst((100,) * 3, (0.0,) * 3, 1, True), Burst((900,) * 3, (0.5,) * 3, 1, True)
    blocks = [Block(calm, calm)] * 4 + [Block(calm, loud), Block(loud, calm)]
    assert stats.block_logs(Pair(tuple(blocks))) == pytest.approx([0.0] * 4)
    few = [*blocks[2:], *blocks[4:]]
    assert not len(stats.block_logs(Pair(tuple(few)))), "two calm blocks of six are too few"


def test_a_few_calm_entries_outweigh_many_disturbed_ones() -> None:
    base = Burst((100,) * 10, (0.0,) * 10)
    cand = Burst((50, 50, *(400,) * 8), (0.0, 0.0, *(0.9,) * 8))
    found = stats.latency_ratio([Pair((Block(base, cand),) * 8)])
    assert found.value == pytest.approx(0.5)


def test_unreadable_run_queue_drops_nothing() -> None:
    base = Burst((100, 100), (-1.0, -1.0))
    assert all(kept.all() for kept in stats.mask_undisturbed(Block(base, base)))
    assert math.isnan(stats.compute_disturbed_share([Pair((Block(base, base),))]))


def test_alike_entries_are_compared_by_their_medians_however_many() -> None:
    base = Burst((100, 104, 96), (0.0,) * 3, 1, True)
    cand = Burst((50, 52, 48, 49, 51, 90, 10), (0.0,) * 7, 1, True)
    assert stats.block_logs(Pair((Block(base, cand),) * 3)) == pytest.approx([math.log(0.5)] * 3)


def test_each_side_drops_its_own_disturbed_entries_where_they_are_alike() -> None:
    base = Burst((100, 100, 100, 900, 900, 900), (0,) * 3 + (0.5,) * 3, 1, True)
    cand = Burst((500, 500, 500, 50, 50, 50), (0.5,) * 3 + (0,) * 3, 1, True)
    found = stats.block_logs(Pair((Block(base, cand),) * 4))
    assert found == pytest.approx([math.log(0.5)] * 4)


def test_entries_that_are_not_alike_match_by_their_place() -> None:
    """Samples of other shapes: entry 1 takes ten times as long; the longer side's rest is left."""
    base = Burst((100, 1000, 100), (0.0,) * 3)
    cand = Burst((50, 500, 50, 9999, 9999), (0.0,) * 5)
    for block in (Block(base, cand), Block(cand, base)):
        found = stats.block_logs(Pair((block,) * 5))
        assert np.abs(found) == pytest.approx([math.log(2)] * 5)


@pytest.mark.parametrize("side", [0, 1])
def test_entries_match_by_their_place_unless_both_sides_are_alike(side: int) -> None:
    base = Burst((100, 1000, 100), (0.0,) * 3, 1, side == 0)
    cand = Burst((50, 500, 50, 9999, 9999), (0.0,) * 5, 1, side == 1)
    assert stats.block_logs(Pair((Block(base, cand),) * 5)) == pytest.approx([math.log(0.5)] * 5)


def test_a_nanosecond_is_the_least_that_counts() -> None:
    one, four = Burst((0, 1, 1), (0.0,) * 3), Burst((4, 4, 4), (0.0,) * 3)
    assert stats.block_logs(Pair((Block(one, four),))) == pytest.approx([math.log(4)])


def test_a_record_of_equal_counts_reads_as_it_always_did() -> None:
    rng = np.random.default_rng(7)
    base, cand = (tuple(map(int, rng.integers(100, 200, 9))) for _ in range(2))
    waited = tuple(map(float, rng.choice([0.0, 0.3], 9)))
    found = stats.block_logs(Pair((Block(Burst(base, (0.0,) * 9), Burst(cand, waited)),) * 5))
    kept = np.array(waited) == 0
    assert found == pytest.approx([np.median(np.log(np.divide(cand, base))[kept])] * 5)


def test_student_agrees_with_tables() -> None:
    table = {(0.99, 1): 63.657, (0.99, 2): 9.925, (0.99, 3): 5.841, (0.99, 4): 4.604}
    table |= {(0.99, 6): 3.707, (0.95, 4): 2.776, (0.9, 2): 2.920, (0.99, 30): 2.750}
    for (confidence, df), value in table.items():
        assert stats.student_quantile(confidence, df) == pytest.approx(value, abs=0.001)


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("df", [1.5, 2.5, 10.5, 100])
def test_student_agrees_with_the_distribution(confidence: float, df: float) -> None:
    wanted = student_t.ppf((1 + confidence) / 2, df)
    assert stats.student_quantile(confidence, df) == pytest.approx(wanted, rel=1e-5)


def test_no_blocks_give_no_answer() -> None:
    assert math.isnan(stats.latency_ratio([]).value)
    assert math.isnan(stats.latency_ratio([Pair(())]).value)


def test_percentiles_need_samples() -> None:
    assert percentile(range(1, 101), 90) is not None
    assert percentile(range(1, 101), 99) is None
    assert percentile([5], 50) == 5
    assert percentile(range(10_000), 99.9) is not None
    assert percentile(range(9_999), 99.9) is None
