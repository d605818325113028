"""Known answers: the arithmetic of both notes, and what their formulas leave out (reference audit of the notes)."""

import numpy as np
import pytest

from kvpager.analysis import capacity, cost, recompute, steptime, transfer

KV = 327_680
LLAMA_70B = {"active_params": 70e9, "layers": 80, "q_heads": 64, "head_dim": 128}
BLOCK = 5_242_880


def test_a_fetch_takes_43_82_and_164_microseconds():
    rates = np.array([transfer.link_bytes_per_s(64e9, 16, 242 / 256), 64e9, 32e9])
    assert rates[0] == 121e9
    assert transfer.fetch_s(BLOCK, rates) == pytest.approx([43.33e-6, 81.92e-6, 163.84e-6], rel=1e-4)
    assert transfer.fetch_s(BLOCK, 64e9, pieces=160, t0_s=13e-6) > 26 * transfer.fetch_s(BLOCK, 64e9)


def test_recomputing_16_tokens_takes_9_11_and_18_ms_at_the_implied_peak_and_never_less_than_reading_the_weights():
    linear = steptime.linear_flops(70e9, 16)
    mfu = np.array([0.5, 0.4, 0.25])
    assert steptime.compute_s(linear, 500e12, mfu) == pytest.approx([8.96e-3, 11.2e-3, 17.92e-3])
    alone = recompute.recompute_s(linear, 500e12, mfu, 140e9, 0.0, 8e12, 8e12)
    assert alone == pytest.approx([17.5e-3, 17.5e-3, 17.92e-3])
    joined = recompute.recompute_s(linear, 2.25e15, mfu, 140e9, 0.0, 8e12, 8e12, piggybacked=True)
    assert joined == pytest.approx([1.991e-3, 2.489e-3, 3.982e-3], rel=1e-3)


def test_the_nine_ratios_span_1_74_to_2_62_orders():
    fetch = transfer.fetch_s(BLOCK, np.array([121e9, 64e9, 32e9])[:, None])
    again = steptime.compute_s(steptime.linear_flops(70e9, 16), 500e12, np.array([0.5, 0.4, 0.25]))
    ratios = recompute.ratio_to_fetch(again, fetch)
    assert ratios.shape == (3, 3)
    assert (ratios.min(), ratios.max()) == pytest.approx((54.6875, 413.57), rel=1e-4)
    assert np.log10([ratios.min(), ratios.max()]) == pytest.approx([1.7379, 2.6166], abs=1e-4)
    assert np.count_nonzero(ratios < 100) == 2


@pytest.mark.parametrize(("position", "share"), [(50_000, 0.93623), (100_000, 1.8725), (131_072, 2.4543)])
def test_attention_adds_94_percent_at_50k_and_245_percent_at_128k(position, share):
    linear = steptime.linear_flops(70e9, 16)
    extra = recompute.pass_flops(16, position, **LLAMA_70B) - linear
    assert extra / linear == pytest.approx(share, rel=3e-4)  # the audit leaves the 136 pairs inside the block out


def test_an_interior_block_with_nothing_cached_takes_41_to_82_s_and_with_its_prefix_cached_a_tail():
    flops = recompute.full_prefix_flops(50_000, 16, **LLAMA_70B)
    assert steptime.compute_s(flops, 500e12, np.array([0.5, 0.4, 0.25])) == pytest.approx([41.125, 51.406, 82.25], rel=1e-4)
    assert recompute.pass_flops(16, 50_000, **LLAMA_70B) < flops / 2000


def test_prefill_is_4_percent_quadratic_at_4k_and_123_percent_at_128k():
    tokens = np.array([4096, 32768, 50_000, 131_072])
    linear = steptime.linear_flops(70e9, tokens)
    quadratic = steptime.attention_flops(steptime.causal_pairs(tokens), 80, 64, 128)
    assert quadratic / linear == pytest.approx([0.0384, 0.307, 0.468, 1.227], rel=2e-3)


def test_the_memory_wall_of_note_000():
    kv = float(capacity.kv_bytes(131_072, [KV], [np.inf]))
    assert kv == 42_949_672_960
    users = np.array([1, 2, 4, 8])
    wall = capacity.hbm_needed_bytes(140e9, 5e9, kv, users)
    assert np.round(wall / 1e9).tolist() == [188, 231, 317, 489]
    assert capacity.users_that_fit(np.array([192e9, 180e9]), kv, 140e9, 5e9).tolist() == [1, 0]
    assert capacity.users_that_fit(1024e9, kv) == 23
    shards = np.array([3, 4, 5, 2, 8])
    fits = capacity.users_that_fit(192e9 * shards, kv, 140e9, 5e9 * shards)
    assert fits.tolist() == [9, 14, 18, 5, 31]
    assert capacity.hbm_slack_bytes(192e9, 140e9, 5e9, 10e9, 37e9) == 0


def test_metadata_of_one_user_is_640_mib_and_of_sixteen_more_than_tier_0():
    one = capacity.metadata_bytes(1, 131_072, 80, 8, 8)
    assert one == 640 * 2**20
    assert capacity.metadata_bytes(16, 131_072, 80, 8, 8) > 10e9
    assert capacity.metadata_bytes(16, 131_072, 80, 8, 8, 16) == pytest.approx(0.671e9, rel=1e-3)
    assert capacity.metadata_traffic_bytes(16 * one) / 8e12 == pytest.approx(2.7e-3, rel=0.01)


def test_crossover_and_share_of_weights():
    assert capacity.crossover_tokens(140e9, KV) == pytest.approx(427_246, abs=1)
    assert capacity.kv_share_of_weights(np.array([10, 40]) * 2**30, 140e9) == pytest.approx([0.0767, 0.3068], rel=1e-3)


def test_costs_to_the_dollar_and_the_rate_they_imply():
    capex, power = np.array([160_000, 103_000]), np.array([3900, 1900])
    assert np.round(cost.tco_usd(capex, power, 3, 0.168)).tolist() == [177_219, 111_389]
    assert cost.implied_usd_per_kwh(np.array([177_219, 111_389]), capex, power, 3) == pytest.approx([0.168, 0.168], abs=2e-5)
    assert cost.saving(*capex) == pytest.approx(0.35625)
    assert cost.total([3, 1], [1000, 900]) == 3900


def test_demand_and_latency_of_note_000_and_their_limits():
    assert transfer.effective_bandwidth_bytes_per_s(64e9, 4 * 64e9, 4 * 409.6e9) == 64e9
    demand = transfer.demand_bytes_per_s(1, 10, 37e9 / 0.97, 0.03)
    assert demand == pytest.approx(11.443e9, rel=1e-4)
    assert transfer.utilisation(demand, np.array([256e9, 64e9])) == pytest.approx([0.0447, 0.1788], rel=1e-3)
    assert transfer.note_effective_latency_s([0.97, 0.027, 0.003], [100e-9, 200e-9, 25e-6]) == pytest.approx(177.4e-9)
    assert steptime.naive_bandwidth_bytes_per_s(140e9, 43e9, 0.05) == pytest.approx(3.66e12)
    assert steptime.memory_s(140e9, 37e9, 8e12, 8e12) == pytest.approx(22.125e-3)  # the note's 20 ms is below it
    window = steptime.prefetch_window_s(0.05, 0.02)
    assert steptime.prefetch_bytes(window, np.array([256e9, 64e9])) == pytest.approx([7.68e9, 1.92e9])
    assert steptime.ridge_tokens(2.25e15, 8e12) == pytest.approx(281.25)


def test_writes_wear_the_drives():
    rate = transfer.write_bytes_per_s(160, KV)
    assert rate == pytest.approx(52.4e6, rel=1e-3)
    assert transfer.drive_life_s(7e15, rate) / 86400 / 365 == pytest.approx(4.23, rel=0.01)
    assert transfer.drive_writes_per_day(rate, 4e12) == pytest.approx(1.13, rel=0.01)
