"""Arrays that vector code knows by their address live until it is done: numba frees an array behind its last use."""

import pytest
from numba.core import bytecode, interpreter, postproc
from numba.core.ir import Del, Return

from kvpager.live.kernels.blocks import Shape
from kvpager.live.kernels.loops import compiled, compiled_shares


def freed_early(function, names):
    """Which of the local arrays `names` are freed before the last block of numba's code."""
    made = bytecode.FunctionIdentity.from_function(function)
    code = interpreter.Interpreter(made).interpret(bytecode.ByteCode(made))
    postproc.PostProcessor(code).run(emit_dels=True)
    last = [block for block in code.blocks.values() if any(isinstance(each, Return) for each in block.body)]
    freed = {each.value for block in last for each in block.body if isinstance(each, Del)}
    return {name for name in names if name not in freed}


@pytest.mark.parametrize(("loop", "names"), [(compiled, ["work", "ends"]), (compiled_shares, ["work", "found"])])
def test_memory_that_only_an_address_names_is_not_freed_meanwhile(loop, names):
    assert not freed_early(loop(Shape(3, 64, 64, "float32")).py_func, names)


def test_the_check_can_tell():
    def loop(work, count):
        address = work.ctypes.data
        for _ in range(count):
            address += 1
        return address

    assert freed_early(loop, ["work"]) == {"work"}
