"""A whole state passed to compiled code as one pointer.

Numba passes a tuple of arrays as seven words an array: with a hundred arrays a call costs more than what it calls, and
compiling it takes most of a minute. `packed(state)` describes a NamedTuple of arrays, numbers and further such tuples
in one block of memory, laid out by `_layout.py`; inside a kernel `state.part.array[i]` reads as before, and passing
`state` or `state.part` costs one word. The arrays themselves stay where they are, so what a kernel writes is seen in
the tuple. With the JIT off `packed(state)` is `state`.

**Indices are not negative.** Numba lets -1 mean the last element, which costs every access a test and a load of the
length. The arrays of a packed state do without: an index is an offset, as in C. With bounds checks on, a negative index
is an IndexError like one past the end.
"""

from __future__ import annotations

import operator
from importlib import import_module
from typing import Any

import numpy as np

from firsttouch._jit import BOUNDSCHECK, JIT
from firsttouch._layout import Field, lay_out


class _Packed:
    """Keeps the tuple and its block alive while a kernel runs."""

    def __init__(self, state: Any, numba_type: Any, block: Any) -> None:
        self.state, self.numba_type, self.block = state, numba_type, block
        self.address = int(block.ctypes.data)


if JIT:
    # Through import_module: numba's stubs cover little of what extends it.
    ir: Any = import_module("llvmlite.ir")
    types: Any = import_module("numba").types
    cgutils: Any = import_module("numba.core.cgutils")
    templates: Any = import_module("numba.core.typing.templates")
    extending: Any = import_module("numba.extending")
    arrayobj: Any = import_module("numba.np.arrayobj")
    from_dtype: Any = import_module("numba.np.numpy_support").from_dtype

    _WORD = ir.IntType(64)

    class StateArray(types.Array):  # type: ignore[misc]
        """A C-contiguous array of a packed state, whose indices are not negative."""

    extending.register_model(StateArray)(extending.models.ArrayModel)

    def _place(context: Any, builder: Any, kind: Any, value: Any, index_type: Any, index: Any) -> Any:
        """Where an element is; None if `index` does not name a single one."""
        many = isinstance(index_type, types.BaseTuple)
        index_types = list(index_type) if many else [index_type]
        if len(index_types) != kind.ndim or not all(isinstance(each, types.Integer) for each in index_types):
            return None
        indices = cgutils.unpack_tuple(builder, index, kind.ndim) if many else [index]
        array = arrayobj.make_array(kind)(context, builder, value)
        lengths = cgutils.unpack_tuple(builder, array.shape, kind.ndim)
        offset = ir.Constant(_WORD, 0)
        for number, number_type, length in zip(indices, index_types, lengths, strict=True):
            at = context.cast(builder, number, number_type, types.intp)
            if BOUNDSCHECK:
                with builder.if_then(builder.icmp_unsigned(">=", at, length), likely=False):
                    context.call_conv.return_user_exc(builder, IndexError, ("index is out of bounds",))
            offset = builder.add(builder.mul(offset, length), at)
        return builder.gep(array.data, [offset])

    @extending.lower_builtin(operator.getitem, StateArray, types.Integer)  # type: ignore[untyped-decorator]
    @extending.lower_builtin(operator.getitem, StateArray, types.BaseTuple)  # type: ignore[untyped-decorator]
    def _get_item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, index_type = signature.args
        place = _place(context, builder, kind, arguments[0], index_type, arguments[1])
        if place is None:
            raise NotImplementedError(f"{kind}[{index_type}]: arrays of a packed state are read one element at a time")
        return arrayobj.load_item(context, builder, kind, place)

    @extending.lower_builtin(operator.setitem, StateArray, types.Integer, types.Any)  # type: ignore[untyped-decorator]
    @extending.lower_builtin(operator.setitem, StateArray, types.BaseTuple, types.Any)  # type: ignore[untyped-decorator]
    def _set_item(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, index_type, value_type = signature.args
        place = _place(context, builder, kind, arguments[0], index_type, arguments[1])
        if place is None:
            raise NotImplementedError(f"{kind}[{index_type}]: elements of a packed state are written one at a time")
        value = context.cast(builder, arguments[2], value_type, kind.dtype)
        arrayobj.store_item(context, builder, kind, value, place)
        return context.get_dummy_value()

    class PackedType(types.Type):  # type: ignore[misc]
        """The layout of one NamedTuple: for each field its Numba type and its first word, counted from the start."""

        def __init__(self, name: str, fields: tuple[tuple[str, Any, int], ...]) -> None:
            self.fields = {field: (kind, at) for field, kind, at in fields}
            super().__init__(f"Packed{name}({', '.join(f'{field}:{kind}@{at}' for field, kind, at in fields)})")

    extending.register_model(PackedType)(lambda manager, kind: extending.models.PrimitiveModel(manager, kind, _WORD))

    @extending.infer_getattr
    class _PackedAttribute(templates.AttributeTemplate):  # type: ignore[misc]
        key = PackedType

        def generic_resolve(self, packed: PackedType, attribute: str) -> Any:
            kind, _ = packed.fields.get(attribute, (None, 0))
            return kind

    @extending.lower_getattr_generic(PackedType)  # type: ignore[untyped-decorator]
    def _get_attribute(context: Any, builder: Any, packed: PackedType, address: Any, attribute: str) -> Any:
        kind, at = packed.fields[attribute]
        if isinstance(kind, PackedType):
            return builder.add(address, ir.Constant(_WORD, 8 * at))
        words = [_load(builder, address, at + i) for i in range(1 + getattr(kind, "ndim", 0))]
        if not isinstance(kind, types.Array):
            return cgutils.is_not_null(builder, words[0]) if kind == types.boolean else words[0]
        itemsize = context.get_constant(types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype)))
        shape, strides = words[1:], [itemsize]
        for length in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], length))
        array = arrayobj.make_array(kind)(context, builder)
        data = builder.inttoptr(words[0], context.get_data_type(kind.dtype).as_pointer())
        arrayobj.populate_array(
            array, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None, parent=None
        )
        return array._getvalue()

    def _load(builder: Any, address: Any, at: int) -> Any:
        """One word of the block, which nothing changes while a kernel runs."""
        place = builder.inttoptr(builder.add(address, ir.Constant(_WORD, 8 * at)), _WORD.as_pointer())
        word = builder.load(place)
        word.set_metadata("invariant.load", builder.module.add_metadata([]))
        return word

    @extending.unbox(PackedType)  # type: ignore[untyped-decorator]
    def _unbox(_kind: Any, packed: Any, c: Any) -> Any:
        address = c.pyapi.object_getattr_string(packed, "address")
        value = c.pyapi.long_as_longlong(address)
        c.pyapi.decref(address)
        return extending.NativeValue(value, is_error=cgutils.is_not_null(c.builder, c.pyapi.err_occurred()))

    @extending.typeof_impl.register(_Packed)  # type: ignore[untyped-decorator]
    def _typeof(packed: _Packed, _context: Any) -> Any:
        return packed.numba_type

    def _type_of(name: str, fields: tuple[Field, ...]) -> PackedType:
        kinds: list[tuple[str, Any, int]] = []
        for field in fields:
            kind: Any
            if field.part:
                kind = _type_of(field.kind, field.part)
            elif field.kind in ("int", "bool"):
                kind = types.int64 if field.kind == "int" else types.boolean
            else:
                kind = StateArray(from_dtype(np.dtype(field.kind)), field.ndim, "C")
            kinds.append((field.name, kind, field.at))
        return PackedType(name, tuple(kinds))

    def packed(state: Any) -> Any:
        """`state` as one pointer, for the time that the result is kept."""
        fields, block = lay_out(state)
        return _Packed(state, _type_of(type(state).__name__, fields), block)

else:

    def packed(state: Any) -> Any:
        """The JIT is off: the state itself."""
        return state
