"""Samples of cases cover every pair of values."""

from __future__ import annotations

import itertools

import pytest

from helpers.pairwise import pairwise, sampled

AXES = ["abcd", [1, 2, 3], [True, False], [None, 0.5, 1.0], ["x"]]


@pytest.fixture(params=[False, True], ids=["sample", "everything"])
def everything(request, monkeypatch):
    monkeypatch.setenv("REGARD_TEST_ALL", str(int(request.param)))
    return request.param


def test_every_pair_of_values_occurs(everything):
    cases = pairwise(*AXES)
    for (i, first), (j, second) in itertools.combinations(enumerate(AXES), 2):
        assert {(case[i], case[j]) for case in cases} == set(itertools.product(first, second))


def test_the_sample_is_smaller_than_the_product_and_all_is_the_product(everything):
    product = list(itertools.product(*AXES))
    cases = pairwise(*AXES)
    assert (cases == product) if everything else (len(cases) < len(product) / 3)


def test_a_seed_names_a_sample(monkeypatch):
    monkeypatch.delenv("REGARD_TEST_ALL", raising=False)
    assert pairwise(*AXES, seed=3) == pairwise(*AXES, seed=3) != pairwise(*AXES, seed=4)


def test_a_plain_sample_keeps_the_order(everything):
    drawn = sampled(range(100), 10, seed=1)
    assert drawn == sorted(drawn)
    assert len(drawn) == (100 if everything else 10)
