"""TOML text of a struct; what is None is left out, because TOML has no word for it."""

from typing import Any

import msgspec


def encode(struct: msgspec.Struct) -> bytes:
    """TOML text of `struct`, from which the same struct can be decoded if None is the default of what is None."""
    return msgspec.toml.encode(_without_none(msgspec.to_builtins(struct)))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
