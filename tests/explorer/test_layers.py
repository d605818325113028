"""Layers by kind: together they are the model."""

import pytest

from kvpager.core import LayerKV
from kvpager.explorer.layers import by_kind, example_layer, kind_of
from kvpager.models import builtin, builtin_names


@pytest.mark.parametrize("name", builtin_names())
def test_kinds_are_a_partition_of_the_layers_and_of_their_bytes(name):
    geometry = builtin(name)
    kinds = by_kind(geometry)
    assert sum(len(part.layers) for part in kinds.values()) == len(geometry.layers)
    for tokens in (1, 1000, 131_072):
        assert sum(part.kv_bytes(tokens) for part in kinds.values()) == geometry.kv_bytes(tokens)
    assert example_layer(geometry).elements_per_token > 0


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (LayerKV(8, 128, 128), "full attention"),
        (LayerKV(8, 128, 128, window_tokens=4096), "window of 4,096 tokens"),
        (LayerKV(1, 576, 0, latent=True, index_dim=128), "latent vector + index keys"),
        (LayerKV(1, 512, 0, window_tokens=128, compressed_dim=512), "window of 128 tokens + compressed entries"),
        (LayerKV(0, 0, 0, state_bytes=4096), "state of constant size"),
        (LayerKV(0, 0, 0), "no attention"),
        (LayerKV(8, 128, 128, shares_layer=3), "reads an earlier layer's KV"),
    ],
)
def test_kind_in_words(layer, words):
    assert kind_of(layer) == words


def test_the_example_is_a_full_layer_where_there_is_one():
    assert example_layer(builtin("gemma-3-27b")).window_tokens is None
