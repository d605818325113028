"""The planner's formulas against slow scalar references, and their directions: more bytes never take less time."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpager.analysis import capacity, cost, recompute, steptime, transfer

positive = st.floats(1e-3, 1e12)
count = st.integers(0, 400)


@given(count, count, st.one_of(st.integers(1, 300), st.just(math.inf)))
def test_causal_pairs_are_those_counted_one_by_one(tokens, prefix, window):
    slow = sum(min(prefix + i, window) for i in range(1, tokens + 1))
    assert float(steptime.causal_pairs(tokens, prefix, window)) == slow


@given(
    st.integers(0, 5000),
    st.lists(st.tuples(st.integers(0, 4096), st.one_of(st.integers(1, 2048), st.just(math.inf))), max_size=4),
    count,
)
def test_kv_bytes_are_those_summed_layer_by_layer(context, layers, state):
    slow = state
    for of_token, window in layers:
        slow += sum(of_token for token in range(context) if token < window)
    sizes, windows = zip(*layers, strict=True) if layers else ((), ())
    assert float(capacity.kv_bytes(context, sizes, windows, state)) == slow


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(0, 10**6))
def test_users_are_added_one_by_one_until_the_next_does_not_fit(usable, each, taken):
    slow = 0
    while usable - taken - (slow + 1) * each >= 0:
        slow += 1
        if slow > 2000:
            return
    assert capacity.users_that_fit(usable, each, taken) == slow


def test_the_first_of_the_smallest_limits_binds():
    users, which = capacity.binding_constraint([np.array([3.0, 9.0, 4.0]), 4.0, np.array([5.0, 2.0, 4.0])])
    assert users.tolist() == [3, 2, 4]
    assert which.tolist() == [0, 2, 0]


@given(st.floats(1e-6, 1.0), st.floats(0.05, 0.8))
@settings(max_examples=5)
def test_the_queue_waits_as_long_as_one_simulated_customer_by_customer(service, load):
    arrivals = np.random.default_rng(1).exponential(service / load, 60_000).cumsum()
    free_at, waited = 0.0, 0.0
    for arrival in arrivals:
        waited += max(0.0, free_at - arrival)
        free_at = max(free_at, arrival) + service
    assert transfer.queue_wait_s(service, load) == pytest.approx(waited / len(arrivals), rel=0.15)


def test_an_overloaded_link_never_answers():
    assert transfer.queue_wait_s(82e-6, np.array([0.0, 0.5, 0.95, 1.0, 3.0])).tolist() == pytest.approx(
        [0.0, 41e-6, 779e-6, math.inf, math.inf], rel=1e-3
    )


def test_a_rate_by_size_is_measured_points_and_between_them():
    rate = transfer.size_bandwidth_bytes_per_s(np.array([1.0, 64e3, 128e3, 256e3, 1e9]), [64e3, 256e3, 1e6], [97e9, 325e9, 353e9])
    assert rate.tolist() == pytest.approx([97e9, 97e9, 211e9, 325e9, 353e9])


@given(st.floats(0, 1e14), positive, st.integers(1, 1000), st.floats(0, 1e-3), st.floats(1, 10))
def test_more_bytes_pieces_or_fixed_time_never_fetch_faster(size, rate, pieces, t0, more):
    base = transfer.fetch_s(size, rate, pieces, t0)
    assert transfer.fetch_s(size * more, rate, pieces, t0) >= base
    assert transfer.fetch_s(size, rate, pieces * more, t0) >= base
    assert transfer.fetch_s(size, rate * more, pieces, t0) <= base


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=80))
def test_exposed_time_is_what_each_layer_does_not_hide(layers):
    transfers, overlaps = map(np.array, zip(*layers, strict=True))
    slow = sum(max(0.0, moved - hidden) for moved, hidden in layers)
    assert float(np.sum(steptime.exposed_s(transfers, overlaps))) == pytest.approx(slow)
    assert float(steptime.exposed_s(transfers[0], overlaps[0], 7)) == pytest.approx(7 * max(0.0, layers[0][0] - layers[0][1]))


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_a_suffix_and_its_prefix_cost_the_whole_and_a_tail_is_never_dearer_than_the_full_prefix(tokens, prefix):
    model = (70e9, 80, 64, 128)
    whole = recompute.full_prefix_flops(prefix, tokens, *model)
    first = recompute.pass_flops(prefix, 0, *model)
    tail = recompute.pass_flops(tokens, prefix, *model)
    assert whole == pytest.approx(first + tail)
    assert recompute.suffix_flops(prefix + tokens, prefix, *model) == tail
    slow = sum(2 * 70e9 + 4 * 64 * 128 * 80 * (prefix + i) for i in range(1, tokens + 1))
    assert tail == pytest.approx(slow)


@given(st.floats(1e3, 1e6), st.floats(1e9, 1e12), st.floats(1e12, 1e16))
def test_from_the_break_even_position_on_fetching_a_token_is_faster(per_token, rate, speed):
    model = (8e9, 32, 32, 128)
    position = float(recompute.breakeven_tokens(per_token, rate, speed, *model))
    for at, better in ((position * 1.01 + 1, True), (position * 0.99 - 1, False)):
        if at >= 0:
            compute = (2 * model[0] + 4 * 32 * 32 * 128 * at) / speed
            assert bool(recompute.cheaper_to_fetch(transfer.fetch_s(per_token, rate), compute)) is better


@given(st.floats(1, 1e12), st.floats(1e-6, 10), st.integers(1, 100), st.floats(0, 1e-3))
def test_at_the_break_even_bandwidth_both_take_the_same_time(size, time, pieces, t0):
    rate = float(recompute.breakeven_bandwidth_bytes_per_s(size, time, pieces, t0))
    if pieces * t0 >= time:
        assert rate == math.inf
    elif pieces * t0 < 0.99 * time:
        assert transfer.fetch_s(size, rate, pieces, t0) == pytest.approx(time)


@given(positive, positive, positive, st.floats(1, 4))
def test_a_step_is_never_faster_than_its_compute_its_memory_or_its_transfers(compute, memory, exposed, more):
    step = steptime.step_s(compute, memory, exposed)
    assert step >= max(compute, memory) + exposed * (1 - 1e-12)
    assert steptime.step_s(compute * more, memory, exposed) >= step
    assert steptime.step_s(compute, memory * more, exposed) >= step


@given(positive, positive, st.floats(0, 2), st.floats(0, 2), st.integers(1, 90))
def test_a_prefetch_hides_behind_the_layers_and_no_further(compute, memory, demand, ahead, layers):
    own = max(compute, memory)
    slow = sum(own / layers + demand / layers + max(0.0, ahead / layers - own / layers) for _ in range(layers))
    assert float(steptime.prefetched_step_s(compute, memory, demand, ahead)) == pytest.approx(slow)
    assert float(steptime.prefetched_step_s(compute, memory, demand, 0.0)) == pytest.approx(own + demand)


ARGUMENTS = {
    capacity.users_that_fit: (192e9, 43e9, 140e9, 5e9, 0.0),
    capacity.metadata_bytes: (16, 131072, 80, 8, 8, 16),
    capacity.sink_bytes: (100, 327680, 16, 16),
    transfer.effective_bandwidth_bytes_per_s: (64e9, 256e9, 400e9, 0.9),
    transfer.fetch_s: (5e6, 64e9, 160, 1e-6),
    transfer.queue_wait_s: (82e-6, 0.5),
    transfer.drive_life_s: (1e16, 5e7, 1.2),
    steptime.causal_pairs: (100, 5000, 1024),
    steptime.memory_s: (140e9, 37e9, 8e12, 4e12),
    steptime.exposed_s: (3e-4, 1e-4, 80),
    steptime.prefetched_step_s: (2e-2, 3e-2, 1e-1, 4e-2),
    recompute.pass_flops: (16, 50000, 70e9, 80, 64, 128),
    recompute.recompute_s: (2e12, 5e14, 0.4, 140e9, 40e9, 8e12, 4e12),
    recompute.breakeven_tokens: (98304, 7e9, 1e15, 3e9, 48, 32, 128),
    cost.tco_usd: (160000, 3900, 3, 0.168, 1.0),
    cost.usd_per_million_tokens: (160000, 160, 3, 0.7),
}


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda function: function.__name__)
def test_arrays_give_what_numbers_give_one_by_one(function):
    at = ARGUMENTS[function]
    stretch = np.array([0.5, 1.0, 1.7])
    for position in range(len(at)):
        arrays = [value * stretch if i == position else value for i, value in enumerate(at)]
        single = [float(function(*[v * s if i == position else v for i, v in enumerate(at)])) for s in stretch]
        assert np.broadcast_to(function(*arrays), 3).tolist() == single


@pytest.mark.parametrize("function", ARGUMENTS, ids=lambda function: function.__name__)
def test_every_input_that_is_perturbed_moves_the_result(function):
    at = ARGUMENTS[function]
    base = float(function(*at))
    for position, value in enumerate(at):
        moved = [float(function(*at[:position], other, *at[position + 1 :])) for other in (value * 40 + 1e11, value / 50)]
        assert moved != [base, base], f"argument {position}"
