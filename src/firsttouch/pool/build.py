"""Compiling the pool: from the functions that C calls, and all that they call, to one object file.

Numba makes LLVM's code of each function. Here these are put together, everything but the functions of `code.NAMES` is
made internal, so that nothing that is not reached is kept, and the optimizer sees the whole: what Numba calls through
a word for the result and a status becomes a jump. References are absolute, as `code.link` wants them.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import llvmlite.binding as untyped_llvm

from firsttouch import _jit
from firsttouch._native import Entry
from firsttouch.pool import handler, scrubber
from firsttouch.pool.code import NAMES

llvm: Any = untyped_llvm


def entries() -> dict[str, Entry]:
    """The functions of `code.NAMES`."""
    return {name: getattr(handler, name, None) or getattr(scrubber, name) for name in NAMES}


def callbacks() -> dict[str, Any]:
    """They as Numba compiles, caches and loads them."""
    return {name: _jit.callback(entry.signature)(entry.function) for name, entry in entries().items()}


def object_code() -> bytes:
    """The object file, for this CPU."""
    numba: Any = import_module("numba")
    program: Any = None
    for name, entry in entries().items():
        compiled = numba.cfunc(entry.signature, nopython=True, error_model="numpy", _nrt=False)(entry.function)
        text = re.sub(r"\bnoinline\b", "nounwind", compiled.inspect_llvm())
        module = llvm.parse_assembly(text)
        for function in module.functions:
            if function.name.startswith("cfunc."):
                function.name = name
        if program is None:
            program = module
        else:
            program.link_in(module)
    for function in program.functions:
        if not function.is_declaration and function.name not in NAMES:
            function.linkage = "internal"
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        reloc="static",
        codemodel="large",
    )
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(program, passes)
    made: bytes = machine.emit_object(program)
    return made
