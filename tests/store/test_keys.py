"""Names of blocks: fixed for ever, in any process, and different whenever anything is."""

import hashlib
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpager.errors import BadInput
from kvpager.store import Namespace, chain
from kvpager.store.keys import Names, tenant_id

RUN = Namespace(weights="sha256:12ab", dtype="bfloat16", layout="kv", block_tokens=16, rank=1, ranks=2, lora="a@1", rope="yarn")
GOLDEN = {
    "fingerprint": "8060f546a812823e323ea436482aa530a4adc9601bb38bea702de680e046d3f0",
    "digest": "0a6c0e7763e6018590bc89fe287d27e4d64f7739a42ed2a43c39e294f4f35779",
    "chain": [
        "7b5cb009469337d4bf688191107a1e096bf0240b19b17c3b296a642487a406ee",
        "b47db097ecd1bd79810431e27504620dcb74fb9055230ee91ab303d36cc9b8f1",
    ],
    "tenant": "fba19174370a58924f33863d5c72c4c9",
}


def spelled_out(tokens, namespace, tenant, size, extra):
    """The chain again, from the words of the module's docstring."""

    def framed(part):
        return struct.pack("<I", len(part)) + part

    fields = (namespace.weights, namespace.dtype, namespace.layout, namespace.block_tokens, namespace.rank, namespace.ranks,
              namespace.lora, namespace.rope)  # fmt: skip
    print_ = hashlib.sha256(b"kvpager namespace 1" + b"".join(framed(str(field).encode()) for field in fields)).digest()
    seed = b"".join(map(framed, (print_, tenant, struct.pack("<I", size), extra)))
    key, keys = hashlib.sha256(b"kvpager chain 1" + seed).digest(), []
    for first in range(0, len(tokens) // size * size, size):
        row = b"".join(struct.pack("<I", token) for token in tokens[first : first + size])
        key = hashlib.sha256(b"kvpager chain 1" + framed(key) + framed(row)).digest()
        keys.append(key)
    return keys


def current():
    return {
        "fingerprint": RUN.fingerprint.hex(),
        "digest": Names(RUN, b"salt").digest(b"key").hex(),
        "chain": [key.hex() for key in chain(range(40), RUN, tenant=b"salt", extra=b"image")],
        "tenant": tenant_id(b"salt").hex(),
    }


def test_golden_vectors():
    assert current() == GOLDEN


@given(st.lists(st.integers(0, 2**32 - 1), max_size=50), st.integers(1, 20), st.binary(max_size=5), st.binary(max_size=5))
def test_the_chain_is_as_it_is_written_down(tokens, size, tenant, extra):
    namespace = Namespace(weights="w")
    assert chain(tokens, namespace, size, tenant=tenant, extra=extra) == spelled_out(tokens, namespace, tenant, size, extra)
    assert chain(np.array(tokens, np.int64), namespace, size, tenant=tenant, extra=extra) == chain(
        tokens, namespace, size, tenant=tenant, extra=extra
    )


def test_another_process_makes_the_same_names():
    code = "from tests.store.test_keys import current; print(current())"
    said = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        said.add(done.stdout)
    assert said == {f"{GOLDEN}\n"}


@pytest.mark.parametrize(
    "change",
    [{"weights": "x"}, {"dtype": "float16"}, {"layout": "vk"}, {"block_tokens": 0}, {"rank": 0}, {"ranks": 3}, {"lora": ""},
     {"rope": ""}],
)  # fmt: skip
def test_each_field_of_a_namespace_counts(change):
    fields = {name: getattr(RUN, name) for name in RUN.__slots__}
    other = Namespace(**{**fields, **change})
    assert other.fingerprint != RUN.fingerprint
    assert Names(other, b"").digest(b"key") != Names(RUN, b"").digest(b"key")
    assert chain(range(16), other) != chain(range(16), RUN)


@given(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), st.tuples(st.binary(max_size=4), st.binary(max_size=4)))
def test_tenant_and_key_do_not_run_into_each_other(one, other):
    digests = [Names(RUN, tenant).digest(key) for tenant, key in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)


def test_a_key_depends_on_all_before_it_and_on_nothing_behind():
    keys = chain(range(64), block_size=16)
    assert chain(range(63), block_size=16) == keys[:3]
    changed = chain([9, *range(1, 64)], block_size=16)
    assert not set(keys) & set(changed)
    assert len(set(keys)) == 4
    assert chain([], block_size=16) == []
    assert chain(range(16), tenant=b"a") != chain(range(16), tenant=b"b") != chain(range(16), extra=b"b")


def test_what_is_no_key_is_refused():
    names = Names(RUN, b"")
    assert len({names.digest(b""), names.digest(b"x" * 10_000)}) == 2
    for key in (b"x" * 10_001, "text", 7, None):
        with pytest.raises(BadInput, match="10,000"):
            names.digest(key)
    for tokens in ([-1] * 16, [1 << 32] * 16, [0.5] * 16, [[1] * 16]):
        with pytest.raises(BadInput, match="ids"):
            chain(tokens)
    with pytest.raises(BadInput, match="namespace of 16"):
        chain(range(8), RUN, 8)
    with pytest.raises(BadInput, match="rank 2 of 2"):
        Namespace(rank=2, ranks=2)
