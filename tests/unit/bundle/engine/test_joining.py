"""Samples are joined only where that is known to change nothing, and fall apart as they came."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from tests.unit.bundle.engine.scripted import DOUBLING, Doubling, row

from ortune.backends.bucketed import Bucketed
from ortune.backends.cpu import Cpu
from ortune.bundle.engine.batching import Joint, has_free_batch
from ortune.bundle.engine.manifest import Signature
from ortune.core.errors import BadData
from ortune.core.facts import TensorSpec
from ortune.core.session import Tensors

Shape = tuple[int | str | None, ...] | None


def signature(inputs: list[Shape], outputs: list[Shape], dtype: str = "float32") -> Signature:
    return Signature(
        tuple(TensorSpec(f"i{n}", dtype, shape) for n, shape in enumerate(inputs)),
        tuple(TensorSpec(f"o{n}", "float32", shape) for n, shape in enumerate(outputs)),
    )


@pytest.mark.parametrize(
    ("inputs", "outputs", "joins"),
    [
        ([("N", 4)], [("N", 4)], True),
        ([("N", "T"), ("N", "T")], [("N", "T", 384), ("N",)], True),
        ([(1, 4)], [(1, 4)], False),
        ([(None, 4)], [(None, 4)], False),
        ([("N", 4)], [("M", 4)], False),
        ([("N", 4)], [(4, "N")], False),
        ([("N", 4)], [()], False),
        ([("N", 4)], [None], False),
        ([None], [("N", 4)], False),
        ([("N", 4), ("N", "N")], [("N", 4)], False),
        ([("N", 4), ("M", 4)], [("N", 4)], False),
        ([("N", 4), (2, "N", 128)], [("N", 4), (2, "N", 128)], False),
        ([("N", 4), ()], [("N", 4)], False),
        ([], [("N", 4)], False),
    ],
)
def test_only_one_free_first_dimension_is_a_batch(
    inputs: list[Shape], outputs: list[Shape], joins: bool
) -> None:
    assert has_free_batch(signature(inputs, outputs)) == joins


@pytest.mark.parametrize("dtype", ["str", "seq(float32)", ""])
def test_what_is_no_array_of_numbers_is_not_joined(dtype: str) -> None:
    assert not has_free_batch(signature([("N", 4)], [("N", 4)], dtype))


def joint(run: Callable[[Tensors], dict[str, np.ndarray]]) -> Joint:
    return Joint("m", DOUBLING, run)


@pytest.fixture
def session() -> Doubling:
    return Doubling()


@pytest.fixture
def proved(session: Doubling) -> Joint:
    made = joint(session.run)
    assert made.prove_joinable([row(1)])
    session.seen.clear()
    return made


def test_groups_have_equal_shapes_and_keep_the_bound(proved: Joint) -> None:
    samples = [row(0), row(1, 5), row(2), row(3, 4, 2), row(4, 5), row(5), row(6, 4, 9)]
    assert proved.group_samples(samples, 4) == [[0, 2, 3], [1, 4], [5], [6]]
    assert proved.group_samples(samples, 1) == [[0], [1], [2], [3], [4], [5], [6]]
    assert proved.group_samples([], 4) == []
    lone = joint(lambda feeds: {})
    odd = [{"x": np.zeros((0, 4), np.float32)}] * 2
    assert lone.group_samples(odd, 4) == [[0], [1]], "nothing to tell apart"


def test_inputs_that_disagree_about_the_rows_are_alone() -> None:
    made = Joint("m", signature([("N",), ("N",)], [("N",)]), lambda feeds: {})
    two, one = np.zeros(2), np.zeros(1)
    assert made.find_form({"i0": two, "i1": one}) == (None, 1)
    assert made.find_form({"i0": two, "i1": two}) == (((), ()), 2)


def test_every_sample_gets_its_own_rows_back(proved: Joint, session: Doubling) -> None:
    samples = [row(1), row(10, rows=2), row(20)]
    answers = proved.compute_answers(samples)
    assert [one.shape for one in session.seen] == [(4, 4)]
    for sample, answer in zip(samples, answers, strict=True):
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(answer["y"], 2 * sample["x"])
        assert answer["y"].base is None, "who keeps one answer keeps no others in memory"


def test_batches_are_filled_up_to_one_size(session: Doubling) -> None:
    made = Joint("m", DOUBLING, session.run, fill=4)
    for samples in ([row(1)], [row(2), row(30, rows=2)], [row(5, rows=6)]):
        answers = made.compute_answers(samples)
        for sample, answer in zip(samples, answers, strict=True):
            assert isinstance(answer, dict)
            np.testing.assert_array_equal(answer["y"], 2 * sample["x"])
    # What is found out first, whether they may be joined, runs two of a row alone.
    assert [len(one) for one in session.seen] == [1, 1, 4, 4, 4, 6]
    (refused,) = made.compute_answers([row(-5)])
    assert isinstance(refused, ValueError)


def test_a_refused_sample_fails_alone(proved: Joint) -> None:
    good, bad, more = proved.compute_answers([row(1), row(-5), row(2)])
    assert isinstance(bad, ValueError)
    assert isinstance(good, dict) and isinstance(more, dict)
    assert more["y"][0, 0] == 4


def test_the_first_two_are_computed_both_ways(session: Doubling) -> None:
    made = joint(session.run)
    answers = made.compute_answers([row(1), row(1), row(2)])
    assert [one.shape[0] for one in session.seen] == [1, 1, 2, 3]
    assert [one["y"][0, 0] for one in answers if isinstance(one, dict)] == [2, 2, 4]
    made.compute_answers([row(1), row(2)])
    assert len(session.seen) == 5


def test_equal_samples_are_told_from_their_reverse(session: Doubling) -> None:
    assert joint(session.run).prove_joinable([row(1), row(1)])
    np.testing.assert_array_equal(session.seen[1], [[4, 3, 2, 1]])


def test_what_says_nothing_leaves_it_open(session: Doubling) -> None:
    made = joint(session.run)
    zeros = {"x": np.zeros((1, 4), np.float32)}
    assert not made.prove_joinable([zeros, zeros])
    assert not made.prove_joinable([row(-9), row(1)]), "refused by itself"
    assert len(made.compute_answers([zeros, zeros])) == 2
    assert made.prove_joinable([row(1)])


def attention(feeds: Tensors) -> dict[str, np.ndarray]:
    """Every row looks at all others: the first dimension is the tokens of one text."""
    weights = np.exp(feeds["x"] @ feeds["x"].T / 10)
    return {"y": (weights / weights.sum(1, keepdims=True)) @ feeds["x"]}


def running(feeds: Tensors) -> dict[str, np.ndarray]:
    """Every row is added to those before it."""
    return {"y": feeds["x"].cumsum(axis=0)}


def shared_step(feeds: Tensors) -> dict[str, np.ndarray]:
    """Integers whose step is taken over all rows."""
    step = np.abs(feeds["x"]).max() / 127
    return {"y": (np.round(feeds["x"] / step) * step).astype(np.float32)}


def fixed(feeds: Tensors) -> dict[str, np.ndarray]:
    return {"y": feeds["x"][:1]}


@pytest.mark.parametrize("run", [attention, running, shared_step, fixed])
def test_a_first_dimension_that_is_no_batch_is_found_out(
    run: Callable[[Tensors], dict[str, np.ndarray]],
) -> None:
    made = joint(run)
    rng = np.random.default_rng(0)
    samples = [{"x": rng.random((2, 4), np.float32) * scale} for scale in (1, 3, 9)]
    with pytest.warns(
        RuntimeWarning, match="m: outputs change when samples are batched"
    ) as caught:
        answers = made.compute_answers(samples)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answers = [*answers, *made.compute_answers(samples)]
    for sample, answer in zip(samples * 2, answers, strict=True):
        assert isinstance(answer, dict)
        np.testing.assert_array_equal(answer["y"], run(sample)["y"])
    assert made.group_samples(samples, 32) == [[0], [1], [2]]


def test_positions_that_mean_nothing_do_not_count() -> None:
    def odd(feeds: Tensors) -> dict[str, np.ndarray]:
        found = feeds["x"] * 2
        found[:, -1] = len(found)
        return {"y": found}

    class Real(Cpu):
        def compared(self, feeds: Tensors, outputs: Tensors) -> Tensors:
            return {"y": outputs["y"][:, :-1]}

    assert Joint("m", DOUBLING, odd, Real()).prove_joinable([row(1)])
    with pytest.warns(RuntimeWarning, match="outputs change when samples are batched"):
        assert not Joint("m", DOUBLING, odd).prove_joinable([row(1)])


def test_rows_that_go_missing_later_are_answered_one_by_one(session: Doubling) -> None:
    def dropping(feeds: Tensors) -> dict[str, np.ndarray]:
        return {"y": session.run(feeds)["y"][feeds["x"][:, 0] < 50]}

    made = joint(dropping)
    assert made.prove_joinable([row(1)])
    one, none = made.compute_answers([row(1), row(99)])
    assert isinstance(one, dict) and isinstance(none, dict)
    assert one["y"].shape == (1, 4) and none["y"].shape == (0, 4)


def test_a_closed_session_is_everybodys_error() -> None:
    def closed(feeds: Tensors) -> dict[str, np.ndarray]:
        raise BadData("closed", fix="open it")

    assert all(isinstance(one, BadData) for one in joint(closed).compute_answers([row(1), row(2)]))


TOKENS = Signature(
    tuple(TensorSpec(name, "int64", ("N", "T")) for name in ("ids", "mask")),
    (TensorSpec("states", "int64", ("N", "T")), TensorSpec("pooled", "int64", ("N",))),
)


def text(width: int, *lengths: int) -> dict[str, np.ndarray]:
    """Return texts of some lengths, padded to a width."""
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)
    return {"ids": (np.arange(width) + 10 * np.array(lengths)[:, None]) * mask, "mask": mask}


class Encoder(Doubling):
    """Gives twice the ids, 1 at padded positions, and their sum over real ones."""

    def run(self, feeds: Tensors) -> dict[str, np.ndarray]:
        self.seen.append(feeds["ids"])
        states = np.where(feeds["mask"] > 0, 2 * feeds["ids"], 1)
        return {"states": states, "pooled": (feeds["ids"] * feeds["mask"]).sum(axis=1)}


class TestBuckets:
    how = Bucketed(mask="mask", inputs=("ids",), outputs=("states",), lengths=(4, 8))

    def made(self, encoder: Encoder) -> tuple[Joint, Callable[[Tensors], dict[str, np.ndarray]]]:
        """Return what joins, and what computes one sample as the backend does."""

        def run(feeds: Tensors) -> dict[str, np.ndarray]:
            length = self.how.choose_bucket(feeds)
            if not length:
                return encoder.run(feeds)
            found = encoder.run(self.how.cut_feeds(feeds, length))
            return self.how.pad_outputs(found, feeds["mask"].shape[1])

        return Joint("m", TOKENS, run, self.how), run

    def test_requests_of_one_bucket_share_a_run_whatever_their_padding(self) -> None:
        encoder = Encoder()
        made, run = self.made(encoder)
        samples = [text(16, 3), text(12, 2, 4), text(4, 1), text(16, 7), text(8, 6)]
        forms = [made.find_form(one) for one in samples]
        assert [rows for _, rows in forms] == [1, 2, 1, 1, 1]
        assert len({form for form, _ in forms[:3]}) == len({form for form, _ in forms[3:]}) == 1
        assert made.group_samples(samples, 8) == [[0, 1, 2], [3, 4]]
        for group in made.group_samples(samples, 8):
            own = [samples[place] for place in group]
            made.compute_answers(own)
            encoder.seen.clear()
            answers = made.compute_answers(own)
            assert len(encoder.seen) == 1, "one run"
            for sample, answer in zip(own, answers, strict=True):
                alone = run(sample)
                assert isinstance(answer, dict)
                for name in alone:
                    np.testing.assert_array_equal(answer[name], alone[name])

    def test_what_fits_no_bucket_goes_by_its_shape(self) -> None:
        made, _ = self.made(Encoder())
        long, other, gap = text(16, 9), text(12, 9), text(16, 3)
        gap["mask"][:, 0] = 0
        forms = [made.find_form(one)[0] for one in (long, other, gap)]
        assert forms[0] == forms[2] != forms[1], "the mask of the last cannot be told"
        assert made.group_samples([long, gap, other], 8) == [[0, 1], [2]]
