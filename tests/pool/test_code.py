"""The linker against a compiler's object file of functions whose results are known."""

import ctypes

import llvmlite.binding as llvm
import pytest

from firsttouch.pool import code

SOURCE = """
declare i64 @labs(i64)
declare i64 @nowhere_to_be_found(i64)
@table = internal constant [4 x i64] [i64 11, i64 22, i64 33, i64 44]
@names = internal constant [2 x ptr] [ptr @helper, ptr @labs]
define internal i64 @helper(i64 %x) noinline { %y = mul i64 %x, 3 ret i64 %y }
define i64 @pool_malloc(i64 %x) { %y = call i64 @labs(i64 %x) ret i64 %y }
define i64 @pool_calloc(i64 %i) {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %y = load i64, ptr %p
  ret i64 %y
}
define i64 @pool_realloc(i64 %i, i64 %x) {
  %p = getelementptr [2 x ptr], ptr @names, i64 0, i64 %i
  %f = load ptr, ptr %p
  %y = call i64 %f(i64 %x)
  ret i64 %y
}
"""
MISSING = "define i64 @pool_free(i64 %x) { %y = call i64 @nowhere_to_be_found(i64 %x) ret i64 %y }"
WRITABLE = """
@count = global i64 0
define i64 @pool_free(i64 %x) { store i64 %x, ptr @count ret i64 0 }
"""

pytestmark = pytest.mark.skipif(code.os.uname().machine != "x86_64", reason="the linker knows x86-64")


def compiled(text: str) -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(opt=0, reloc="static", codemodel="large")
    return machine.emit_object(llvm.parse_assembly(text))


def test_calls_constants_and_addresses_are_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "NAMES", ("pool_malloc", "pool_calloc", "pool_realloc"))
    found = code.link(compiled(SOURCE))
    malloc, calloc, realloc = (ctypes.CFUNCTYPE(*[ctypes.c_int64] * 3)(found[name]) for name in code.NAMES)
    assert malloc(-7, 0) == 7
    assert [calloc(i, 0) for i in range(4)] == [11, 22, 33, 44]
    assert realloc(0, 5) == 15 and realloc(1, -5) == 5


@pytest.mark.parametrize(
    "text, said",
    [
        (SOURCE + MISSING, "there is no nowhere_to_be_found"),
        (SOURCE + WRITABLE, "it has data of its own"),
        (SOURCE, "it is not the pool's"),
    ],
)
def test_what_cannot_be_linked_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    monkeypatch.setattr(code, "NAMES", ("pool_malloc", "pool_free"))
    with pytest.raises(code.Unlinkable, match=said):
        code.link(compiled(text))


def test_a_file_that_is_none_is_refused() -> None:
    with pytest.raises(code.Unlinkable):
        code.link(b"#!/bin/sh\n")
