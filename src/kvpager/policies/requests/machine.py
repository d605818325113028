"""Two instructions of the processor that numba does not offer: ask for a cache line early, and count leading zeros.

A replay knows what will be accessed: what its next accesses need can be on the way while it works on this one. With a million
blocks, most of what a policy keeps of them lies outside the nearest caches, and waiting for it is most of the work.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

__all__ = ["AHEAD", "highest_bit", "prefetch"]

AHEAD = 16
"""Accesses after which what was asked for is needed."""

_I32, _I64, _BYTE = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
_PREFETCH = ir.FunctionType(ir.VoidType(), [_BYTE, _I32, _I32, _I32])


def _prefetch(typing: Any, array: Any, index: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        at = context.cast(builder, arguments[1], signature.args[1], types.intp)
        call = cgutils.get_or_insert_function(builder.module, _PREFETCH, "llvm.prefetch.p0i8")  # type: ignore[no-untyped-call]
        to_read, keep, of_data = _I32(0), _I32(3), _I32(1)
        builder.call(call, [builder.bitcast(builder.gep(data, [at]), _BYTE), to_read, keep, of_data])
        return context.get_dummy_value()

    return types.void(array, index), code


def _highest_bit(typing: Any, word: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.sub(_I64(63), builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 0)))

    return types.int64(types.uint64), code


prefetch: Any = intrinsic(_prefetch)
"""``prefetch(array, index)`` asks for ``array[index]``, of one dimension and contiguous; any index is harmless."""

highest_bit: Any = intrinsic(_highest_bit)
"""``highest_bit(word)`` is the number of the highest bit of an uint64 that is not 0, as int64."""
