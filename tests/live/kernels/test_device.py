"""The kernel of a GPU: on one, or, with ``TRITON_INTERPRET=1``, on a CPU under Triton's interpreter, block by block.

It is held against float64 and against the reference; equal bits however the work is split. Long cases are short under
the interpreter, where the kernel's tiles are made smaller instead.
"""

import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.live.kernels.cases import make_case

from kvpager.errors import BadInput
from kvpager.live.kernels.reference import ReferenceKernel

pytestmark = pytest.mark.gpu

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# group, k_dim, v_dim, block_size: a GPU compiles for each, so that every value occurs, not every combination
SHAPES = [
    (1, 16, 16, 4), (3, 64, 64, 16), (4, 128, 128, 16), (8, 128, 64, 16), (4, 80, 80, 16), (1, 64, 80, 32), (3, 16, 128, 32),
    (8, 80, 16, 4), (5, 96, 96, 16),
]  # fmt: skip
ELEMENTS = ["float32", "bfloat16"]


@pytest.fixture(scope="module")
def device():
    if INTERPRETED:
        return "cpu"
    if not torch.cuda.is_available():
        pytest.fail("there is no CUDA device: run these tests where there is one, or with TRITON_INTERPRET=1")
    return "cuda"


@pytest.fixture(scope="module", autouse=True)
def _scalars_are_indices():
    """NumPy 2.4 makes no number of an array [1], which is how the interpreter of Triton 3.6 holds the bounds of a loop."""
    with pytest.MonkeyPatch.context() as patch:
        if INTERPRETED:
            from triton.runtime import interpreter

            original = interpreter._patch_lang_tensor

            def patched(tensor, scope):
                original(tensor, scope)
                scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

            patch.setattr(interpreter, "_patch_lang_tensor", patched)
        yield


def kernel_of(case, device, element="float32"):
    from kvpager.live.kernels.device import DeviceKernel

    dims = {"k_dim": case.keys.shape[2], "v_dim": case.values.shape[2], "block_size": case.keys.shape[1]}
    return DeviceKernel(kv_heads=len(case.counts), group=case.group, element=element, device=device, **dims)


def memory_of(case, device):
    return torch.from_numpy(case.memory).to(device)


def in_steps(kernel, case, memory, parts, rows, softcap=0.0):
    """Partials of `parts`, lists of block numbers, put at `rows`, and folded."""
    out = kernel.room(len(rows) + 2)
    for tensor in out:
        tensor.fill_(torch.nan)
    for part in parts:
        kernel.partials(case.query, memory, case.slots[part], case.heads[part], rows[part], out, case.tokens[part], softcap)
    return kernel.fold(out, rows, case.starts)


def same_bits(one, other):
    return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def check(case, output, mass, softcap=0.0):
    exact_output, exact_mass = case.exact(softcap)
    assert output.dtype == mass.dtype == np.float32
    assert output.shape == exact_output.shape
    assert np.abs(output - exact_output).max() <= 2e-5 * np.abs(exact_output).max()
    assert np.abs(mass - exact_mass).max() <= 5e-6


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_error_against_float64_and_reference(device, shape, element):
    group, k_dim, v_dim, size = shape
    for counts, last, sharpness in [((1, 1), 1, 1.0), ((9, 0, 2), size - 1, 4.0)]:
        case = make_case(
            counts=counts, group=group, k_dim=k_dim, v_dim=v_dim, element=element, block_size=size, last=last, sharpness=sharpness
        )
        kernel, memory = kernel_of(case, device, element), memory_of(case, device)
        found = kernel.attend(case.query, memory, case.slots, case.starts, case.tokens)
        check(case, *found)
        shaped = {"kv_heads": len(counts), "group": group, "k_dim": k_dim, "v_dim": v_dim, "block_size": size}
        reference = ReferenceKernel(**shaped, element=element)
        expected = reference.attend(case.query, case.memory, case.slots, case.starts, case.tokens)
        for mine, its in zip(found, expected, strict=True):
            np.testing.assert_allclose(mine, its, rtol=0, atol=2e-5 * np.abs(its).max())
        order = np.random.default_rng(0).permutation(len(case.slots))
        rows = np.arange(len(case.slots), dtype=np.int32)[::-1].copy()
        assert same_bits(in_steps(kernel, case, memory, np.array_split(order, 3), rows), found)


@pytest.mark.parametrize("softcap", [0.7, 5.0, 50.0])
def test_softcap(device, softcap):
    case = make_case(counts=(10, 9), group=3, k_dim=64, v_dim=64, last=3, sharpness=6.0)
    kernel = kernel_of(case, device)
    output, mass = kernel.attend(case.query, memory_of(case, device), case.slots, case.starts, case.tokens, softcap)
    check(case, output, mass, softcap)
    assert np.abs(output - case.exact()[0]).max() > 1e-4  # the cap does something


@settings(max_examples=4 if INTERPRETED else 30, deadline=None)
@given(data=st.data())
def test_any_order_and_split_gives_the_same_bits(device, data):
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    element, softcap = data.draw(st.sampled_from([("float32", 0.0), ("bfloat16", 0.0), ("bfloat16", 3.0)]))
    group, k_dim, v_dim, size = data.draw(st.sampled_from(SHAPES[1:5]))
    counts = data.draw(st.lists(st.integers(0, 18 if INTERPRETED else 600), min_size=2, max_size=2))
    last = data.draw(st.none() | st.integers(1, size))
    case = make_case(
        counts=counts, group=group, k_dim=k_dim, v_dim=v_dim, element=element, block_size=size, last=last, seed=random,
        sharpness=3.0,
    )  # fmt: skip
    kernel, memory, blocks = kernel_of(case, device, element), memory_of(case, device), sum(counts)
    parts = np.split(random.permutation(blocks), np.sort(random.integers(0, blocks + 1, data.draw(st.integers(0, 9)))))
    stepwise = in_steps(kernel, case, memory, parts, random.permutation(blocks).astype(np.int32), softcap)
    at_once = kernel.attend(case.query, memory, case.slots, case.starts, case.tokens, softcap)
    assert same_bits(stepwise, at_once)
    assert np.isfinite(at_once[0]).all()
    assert (at_once[0].reshape(2, -1)[np.array(counts) == 0] == 0).all()
    if blocks:
        check(case, *at_once, softcap)


@pytest.mark.parametrize("element", ELEMENTS)
def test_other_heads_and_other_slots_do_not_change_a_bit(device, element):
    case = make_case(counts=(13, 9, 19), group=4, k_dim=128, v_dim=128, element=element, last=3)
    kernel, memory = kernel_of(case, device, element), memory_of(case, device)
    output, mass = kernel.attend(case.query, memory, case.slots, case.starts, case.tokens)
    moved = torch.full((2 * len(memory), memory.shape[1]), 0x7F, dtype=torch.uint8, device=device)
    slots = case.slots + len(memory) * (np.arange(len(case.slots)) % 3 == 0).astype(np.int32)
    moved[torch.from_numpy(slots).to(device)] = memory[torch.from_numpy(case.slots).to(device)]
    for head, first in enumerate(case.starts[:-1]):  # alone, with what the other heads read cut away
        mine = slice(first, case.starts[head + 1])
        starts = np.where(np.arange(4) > head, case.counts[head], 0).astype(np.int32)
        alone, share = kernel.attend(case.query, moved, slots[mine], starts, case.tokens[mine])
        rows = slice(4 * head, 4 * head + 4)
        assert same_bits((alone[rows], share), (output[rows], mass[mine]))


def test_a_full_block_is_one_with_all_tokens_valid(device):
    case = make_case(counts=(5, 6), group=4, k_dim=128, v_dim=128, element="bfloat16")
    kernel, memory = kernel_of(case, device, "bfloat16"), memory_of(case, device)
    assert same_bits(*(kernel.attend(case.query, memory, case.slots, case.starts, tokens) for tokens in (None, case.tokens)))


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 30.0, 300.0])
def test_error_at_a_long_context(device, sharpness, monkeypatch):
    if device == "cpu":
        monkeypatch.setattr("kvpager.live.kernels.device._LANES", 4)
        monkeypatch.setattr("kvpager.live.kernels.device._ITEMS", 16)
    blocks = 70 if device == "cpu" else 8192
    case = make_case(counts=(blocks, 3), group=4, k_dim=128, v_dim=128, element="bfloat16", sharpness=sharpness)
    kernel, memory = kernel_of(case, device, "bfloat16"), memory_of(case, device)
    check(case, *kernel.attend(case.query, memory, case.slots, case.starts))


def test_a_slot_beyond_the_reach_of_32_bits(device):
    case = make_case(counts=(3, 2), group=1, k_dim=16, v_dim=16, element="float32", block_size=4)
    kernel, near = kernel_of(case, device), memory_of(case, device)
    first = 2**31 // (near.shape[1] // 4) - 2  # its elements are counted with 32 bits, those of the slots after it are not
    far = torch.empty((first + len(near), near.shape[1]), dtype=torch.uint8, device=device)
    far[first:] = near
    expected = kernel.attend(case.query, near, case.slots, case.starts)
    assert same_bits(kernel.attend(case.query, far, case.slots + np.int32(first), case.starts), expected)


def test_no_blocks_at_all(device):
    case = make_case(counts=(0, 0), group=3, k_dim=64, v_dim=64)
    kernel, memory = kernel_of(case, device), memory_of(case, device)
    for output, mass in (
        kernel.attend(case.query, memory, case.slots, case.starts),
        in_steps(kernel, case, memory, [np.arange(0)], np.arange(0, dtype=np.int32)),
    ):
        assert output.shape == (6, 64)
        assert not output.any()
        assert mass.shape == (0,)


def halves(case, device):
    """The same units with K and V in slots of their own, anywhere: memory, slots of values, slots of keys."""
    order = np.random.default_rng(1).permutation(2 * len(case.memory)).astype(np.int32)
    apart = np.empty((2 * len(case.memory), case.memory.shape[1] // 2), np.uint8)
    apart[order] = case.memory.reshape(apart.shape)
    return torch.from_numpy(apart).to(device), order[2 * case.slots + 1], order[2 * case.slots]


@pytest.mark.parametrize("element", ELEMENTS)
def test_keys_apart_from_values_change_no_bit(device, element):
    case = make_case(counts=(10, 0, 7), group=3, k_dim=64, v_dim=64, element=element, last=3)
    kernel = kernel_of(case, device, element)
    memory, slots, keys = halves(case, device)
    together = kernel.attend(case.query, memory_of(case, device), case.slots, case.starts, case.tokens, 2.0)
    assert same_bits(kernel.attend(case.query, memory, slots, case.starts, case.tokens, 2.0, keys), together)
    rows, out = np.arange(17, dtype=np.int32), kernel.room(17)
    kernel.partials(case.query, memory, slots, case.heads, rows, out, case.tokens, 2.0, keys)
    assert same_bits(kernel.fold(out, rows, case.starts), together)


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_keys_alone_tell_the_mass(device, softcap):
    case = make_case(counts=(10, 0, 7), group=3, k_dim=64, v_dim=64, sharpness=4.0)
    kernel, whole = kernel_of(case, device), memory_of(case, device)
    memory, _, keys = halves(case, device)
    _, mass = kernel.attend(case.query, whole, case.slots, case.starts, None, softcap)
    for where in ((whole, case.slots), (memory, keys)):
        np.testing.assert_array_equal(kernel.key_mass(case.query, *where, case.starts, softcap), mass)
    assert np.abs(mass - case.exact(softcap)[1]).max() <= 5e-6


def test_tensors_give_tensors_of_the_same_bits(device):
    case = make_case(counts=(11, 6), group=3, k_dim=64, v_dim=64, last=5)
    kernel, memory = kernel_of(case, device), memory_of(case, device)
    arrays = (case.query, case.slots, case.starts, case.tokens, case.heads, np.arange(17, dtype=np.int32))
    query, slots, starts, tokens, heads, rows = (torch.from_numpy(array).to(device) for array in arrays)
    expected = kernel.attend(case.query, memory, case.slots, case.starts, case.tokens)
    out = kernel.room(17)
    kernel.partials(query, memory, slots, heads, rows, out, tokens)
    for found in (
        kernel.attend(query, memory, slots, starts, tokens),
        kernel.attend(query, memory, case.slots, case.starts, case.tokens),
        kernel.fold(out, rows, starts),
    ):
        assert all(part.device.type == device for part in found)
        assert same_bits([part.cpu().numpy() for part in found], expected)
    mass = kernel.key_mass(query, memory, slots, starts)
    np.testing.assert_array_equal(mass.cpu().numpy(), kernel.key_mass(case.query, memory, case.slots, case.starts))


def test_bad_input_is_refused_before_memory_is_touched(device):
    case = make_case(counts=(5, 6), group=2, k_dim=32, v_dim=32)
    kernel, query, memory, slots, starts = kernel_of(case, device), case.query, memory_of(case, device), case.slots, case.starts
    out, zeros = kernel.room(11), np.zeros(11, np.int32)
    for wrong in (-1, len(memory)):
        bad = slots.copy()
        bad[4] = wrong
        with pytest.raises(BadInput, match="slot"):
            kernel.attend(query, memory, bad, starts)
        with pytest.raises(BadInput, match="slot"):
            kernel.partials(query, memory, bad, zeros, zeros, out)
        with pytest.raises(BadInput, match="slot"):
            kernel.attend(query, halves(case, device)[0], slots, starts, keys=bad + 3 * len(memory))
        with pytest.raises(BadInput, match="row"):
            kernel.fold(out, np.full(11, wrong, np.int32), starts)
    with pytest.raises(BadInput, match="head"):
        kernel.partials(query, memory, slots, zeros + 2, zeros, out)
    with pytest.raises(BadInput, match="row"):
        kernel.partials(query, memory, slots, zeros, zeros + 11, out)
    with pytest.raises(BadInput, match="10 heads"):
        kernel.partials(query, memory, slots, zeros[:10], zeros, out)
    for counts in (zeros, zeros + 17, zeros[:10] + 1):
        with pytest.raises(BadInput, match="tokens"):
            kernel.attend(query, memory, slots, starts, counts)
    for cut in (starts[:-1], starts[::-1], starts + 1):
        with pytest.raises(BadInput, match="starts"):
            kernel.attend(query, memory, slots, cut)
    aside = memory.flatten()[4 : 4 - memory.shape[1]].view(-1, memory.shape[1])
    for other in (memory[:, :-4], memory.view(torch.int8), case.memory, memory.to("meta"), aside):
        with pytest.raises(BadInput, match="memory"):
            kernel.attend(query, other, slots, starts)
    for apart in (slots, slots[:-1]):
        with pytest.raises(BadInput, match="half"):
            kernel.attend(query, memory, slots, starts, keys=apart)
    with pytest.raises(BadInput, match="query"):
        kernel.attend(query[:-1], memory, slots, starts)
    arrays = type(out)(*(part.cpu().numpy() for part in out))
    for room in (out._replace(acc=out.acc[..., :16]), out._replace(m=out.m[1:]), arrays):
        with pytest.raises(BadInput, match="use room"):
            kernel.partials(query, memory, slots, zeros, zeros, room)
        with pytest.raises(BadInput, match="use room"):
            kernel.fold(room, zeros, starts)
