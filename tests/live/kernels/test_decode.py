"""Both decode kernels: errors against float64, equal bits however the work is split, nothing wrong from bad input."""

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.live.kernels.cases import make_case

from kvpager.errors import BadInput
from kvpager.live.kernels import kernel_for
from kvpager.live.kernels.decode import DecodeKernel, supported
from kvpager.live.kernels.partials import Partials
from kvpager.live.kernels.plain import PlainKernel
from kvpager.live.kernels.reference import ReferenceKernel

KINDS = ("compiled", "plain", "reference")


def kernel_of(case, kind, element="float32"):
    dims = {"k_dim": case.keys.shape[2], "v_dim": case.values.shape[2], "block_size": case.keys.shape[1]}
    if kind == "plain":
        return PlainKernel(kv_heads=len(case.counts), group=case.group, element=element, **dims)
    return kernel_for(kv_heads=len(case.counts), group=case.group, element=element, force=kind, **dims)


def in_steps(kernel, case, parts, rows, softcap=0.0):
    """Partials of `parts`, lists of block numbers, put at `rows`, and folded."""
    out = Partials.empty(len(rows) + 2, case.group, case.values.shape[2])
    for array in out:
        array.fill(np.nan)
    for part in parts:
        kernel.partials(case.query, case.memory, case.slots[part], case.heads[part], rows[part], out, case.tokens[part], softcap)
    return kernel.fold(out, rows, case.starts)


def check(case, output, mass, softcap=0.0):
    exact_output, exact_mass = case.exact(softcap)
    assert output.dtype == mass.dtype == np.float32
    assert np.abs(output - exact_output).max() <= 2e-5 * np.abs(exact_output).max()
    assert np.abs(mass - exact_mass).max() <= 5e-6
    sums = np.array([mass[a:b].sum(dtype=np.float64) for a, b in zip(case.starts[:-1], case.starts[1:], strict=True)])
    np.testing.assert_allclose(sums, case.counts > 0, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("element", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("group", "k_dim", "v_dim"),
    [(1, 256, 256), (2, 64, 128), (3, 64, 64), (4, 128, 128), (8, 128, 64), (7, 64, 48)],
)
def test_error_against_float64(kind, element, group, k_dim, v_dim):
    for counts, last, sharpness in [((1, 1), 1, 1.0), ((70, 3), 5, 1.0), ((129, 200), None, 4.0)]:
        case = make_case(counts=counts, group=group, k_dim=k_dim, v_dim=v_dim, element=element, last=last, sharpness=sharpness)
        kernel = kernel_of(case, kind, element)
        tokens = None if last is None else case.tokens
        check(case, *kernel.attend(case.query, case.memory, case.slots, case.starts, tokens))


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 30.0, 300.0])
def test_error_at_a_long_context(sharpness):
    case = make_case(counts=(4096,), group=4, k_dim=64, v_dim=64, element="bfloat16", sharpness=sharpness)
    check(case, *kernel_of(case, "compiled", "bfloat16").attend(case.query, case.memory, case.slots, case.starts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("softcap", [0.7, 5.0, 50.0])
def test_softcap(kind, softcap):
    case = make_case(counts=(40, 9), group=2, k_dim=64, v_dim=64, last=3, sharpness=6.0)
    output, mass = kernel_of(case, kind).attend(case.query, case.memory, case.slots, case.starts, case.tokens, softcap)
    check(case, output, mass, softcap)
    assert np.abs(output - case.exact()[0]).max() > 1e-4  # the cap does something


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_order_and_split_gives_the_same_bits(kind, data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    element, softcap = data.draw(st.sampled_from([("float32", 0.0), ("bfloat16", 0.0), ("bfloat16", 3.0)]))
    group = data.draw(st.sampled_from([1, 6]))
    counts = data.draw(st.lists(st.integers(0, 150), min_size=2, max_size=2))
    last = data.draw(st.none() | st.integers(1, 16))
    case = make_case(counts=counts, group=group, k_dim=32, v_dim=48, element=element, last=last, seed=random, sharpness=3.0)
    kernel, blocks = kernel_of(case, kind, element), sum(counts)
    parts = np.split(random.permutation(blocks), np.sort(random.integers(0, blocks + 1, data.draw(st.integers(0, 9)))))
    output, mass = in_steps(kernel, case, parts, random.permutation(blocks).astype(np.int32), softcap)
    at_once, shares = kernel.attend(case.query, case.memory, case.slots, case.starts, case.tokens, softcap)
    assert output.tobytes() == at_once.tobytes()
    assert mass.tobytes() == shares.tobytes()
    assert np.isfinite(output).all()
    assert (output.reshape(2, -1)[np.array(counts) == 0] == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_other_slots_do_not_change_a_bit(kind):
    case = make_case(counts=(33, 65), group=3, k_dim=64, v_dim=64)
    kernel = kernel_of(case, kind)
    before = kernel.attend(case.query, case.memory, case.slots, case.starts)
    moved = np.concatenate([case.memory, case.memory])
    slots = case.slots + len(case.memory) * (np.arange(len(case.slots)) % 3 == 0).astype(np.int32)
    moved[np.setdiff1d(np.arange(len(moved)), slots)] = 0
    after = kernel.attend(case.query, moved, slots, case.starts)
    assert before[0].tobytes() == after[0].tobytes()
    assert before[1].tobytes() == after[1].tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_block_is_one_with_all_tokens_valid(kind):
    case = make_case(counts=(5, 6), group=4, k_dim=32, v_dim=32, element="bfloat16")
    kernel = kernel_of(case, kind, "bfloat16")
    one, other = (kernel.attend(case.query, case.memory, case.slots, case.starts, tokens) for tokens in (None, case.tokens))
    assert one[0].tobytes() == other[0].tobytes()


def test_a_block_that_dwarfs_the_rest():
    case = make_case(counts=(50,), group=2, k_dim=32, v_dim=32)
    unit = case.memory[case.slots[20]].view(np.float32)
    unit[:512] = np.repeat(case.query[0] / (case.query[0] @ case.query[0]) * 200, 16)  # logits of 200: the rest is exp(-190)
    case.keys[20] = unit[:512].reshape(32, 16).T
    output, mass = kernel_of(case, "compiled").attend(case.query, case.memory, case.slots, case.starts)
    check(case, output, mass)
    assert mass[20] > 0.499  # one of two query heads


def test_no_blocks_at_all():
    for kind in KINDS:
        case = make_case(counts=(0, 0), group=2, k_dim=16, v_dim=16)
        output, mass = kernel_of(case, kind).attend(case.query, case.memory, case.slots, case.starts)
        assert output.shape == (4, 16)
        assert not output.any()
        assert mass.shape == (0,)


def test_other_kernels_take_what_the_compiled_one_does_not():
    assert not supported(4, 16, 16, "float32", 1)
    assert not supported(16, 24, 16, "float32", 1)
    assert not supported(16, 16, 16, "float16", 1)
    assert not supported(16, 16, 16, "float32", 17)
    case = make_case(counts=(70, 3), group=3, k_dim=24, v_dim=10, block_size=4, last=2)
    kernel = kernel_of(case, None)
    assert isinstance(kernel, PlainKernel)
    check(case, *kernel.attend(case.query, case.memory, case.slots, case.starts, case.tokens))
    shape = {"kv_heads": 2, "group": 3, "k_dim": 32, "v_dim": 32, "block_size": 16, "element": "float32"}
    assert isinstance(kernel_for(**shape), DecodeKernel)
    if importlib.util.find_spec("triton") is None:
        assert isinstance(kernel_for(**shape, device="cuda"), ReferenceKernel)
    with pytest.raises(BadInput, match="block_size 8"):
        kernel_for(**(shape | {"block_size": 8}), force="compiled")


def test_bad_input_is_refused_before_memory_is_touched():
    case = make_case(counts=(5, 6), group=2, k_dim=32, v_dim=32)
    kernel, query, memory, slots, starts = kernel_of(case, "compiled"), case.query, case.memory, case.slots, case.starts
    out, zeros = Partials.empty(11, 2, 32), np.zeros(11, np.int32)
    for wrong in (-1, len(memory)):
        bad = slots.copy()
        bad[4] = wrong
        with pytest.raises(BadInput, match="slot"):
            kernel.attend(query, memory, bad, starts)
        with pytest.raises(BadInput, match="slot"):
            kernel.partials(query, memory, bad, zeros, zeros, out)
        with pytest.raises(BadInput, match="row"):
            kernel.fold(out, np.full(11, wrong, np.int32), starts)
    with pytest.raises(BadInput, match="head"):
        kernel.partials(query, memory, slots, zeros + 2, zeros, out)
    with pytest.raises(BadInput, match="row"):
        kernel.partials(query, memory, slots, zeros, zeros + 11, out)
    for count in (0, 17):
        with pytest.raises(BadInput, match="tokens"):
            kernel.attend(query, memory, slots, starts, np.full(11, count, np.int32))
    with pytest.raises(BadInput, match="starts"):
        kernel.attend(query, memory, slots, starts[:-1])
    with pytest.raises(BadInput, match="memory"):
        kernel.attend(query, memory[:, :-4], slots, starts)
    with pytest.raises(BadInput, match="query"):
        kernel.attend(query[:-1], memory, slots, starts)
    with pytest.raises(BadInput, match=r"Partials\.empty"):
        kernel.partials(query, memory, slots, zeros, zeros, Partials.empty(11, 2, 16))


def halves(case, memory):
    """The same units with K and V in slots of their own, anywhere: memory, slots of values, slots of keys."""
    order = np.random.default_rng(1).permutation(2 * len(memory)).astype(np.int32)
    apart = np.empty((2 * len(memory), memory.shape[1] // 2), np.uint8)
    apart[order] = memory.reshape(apart.shape)
    return apart, order[2 * case.slots + 1], order[2 * case.slots]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("element", ["float32", "bfloat16"])
def test_keys_apart_from_values_change_no_bit(kind, element):
    case = make_case(counts=(40, 0, 7), group=3, k_dim=64, v_dim=64, element=element, last=3)
    kernel = kernel_of(case, kind, element)
    memory, slots, keys = halves(case, case.memory)
    together = kernel.attend(case.query, case.memory, case.slots, case.starts, case.tokens, 2.0)
    apart = kernel.attend(case.query, memory, slots, case.starts, case.tokens, 2.0, keys)
    np.testing.assert_array_equal(apart[0], together[0])
    np.testing.assert_array_equal(apart[1], together[1])
    rows = np.arange(47, dtype=np.int32)
    out = Partials.empty(47, 3, 64)
    kernel.partials(case.query, memory, slots, case.heads, rows, out, case.tokens, 2.0, keys)
    np.testing.assert_array_equal(kernel.fold(out, rows, case.starts)[0], together[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_keys_alone_tell_the_mass(kind, softcap):
    case = make_case(counts=(40, 0, 7), group=3, k_dim=64, v_dim=64, sharpness=4.0)
    kernel = kernel_of(case, kind)
    _, exact = case.exact(softcap)
    memory, _, keys = halves(case, case.memory)
    together, apart = (
        kernel.key_mass(case.query, *where, case.starts, softcap) for where in ((case.memory, case.slots), (memory, keys))
    )
    np.testing.assert_array_equal(together, apart)
    assert np.abs(apart - exact).max() <= 5e-6


def test_bad_slots_of_keys_are_refused():
    case = make_case(counts=(5, 6), group=2, k_dim=32, v_dim=32)
    kernel, (memory, slots, keys) = kernel_of(case, "compiled"), halves(case, case.memory)
    for wrong in (-1, len(memory)):
        bad = keys.copy()
        bad[4] = wrong
        with pytest.raises(BadInput, match="slot"):
            kernel.attend(case.query, memory, slots, case.starts, keys=bad)
        with pytest.raises(BadInput, match="slot"):
            kernel.key_mass(case.query, memory, bad, case.starts)
    with pytest.raises(BadInput, match="half"):
        kernel.attend(case.query, case.memory, case.slots, case.starts, keys=case.slots)
    with pytest.raises(BadInput, match="half"):
        kernel.attend(case.query, memory, slots, case.starts, keys=keys[:-1])
