"""Columns of many rows as statement parameters, in the wire format of arrays.

The driver turns a list over value by value, which for a batch of records takes as long as storing them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEAD = struct.Struct(">iiIii")  # dimensions, whether there are nulls, type of the elements, how many, first index
_EMPTY = struct.Struct(">iiI")
_LENGTH = struct.Struct(">i").pack
_NULL = _LENGTH(-1)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # PostgreSQL counts from here
_DAY_S = 86_400
_NUMBER = np.dtype([("length", ">i4"), ("value", ">i8")])
_NONE = np.empty(0, np.int64)
# Below this many values numpy takes longer than packing them one by one.
_FEW = 16


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the type of the array, and its bytes."""

    oid: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Type:
    """PostgreSQL's numbers of a type and of its array; kind: of a value of fixed size, as `struct` and numpy spell it."""

    oid: int
    array: int
    kind: str = ""


_BOOL, _BYTEA, _TEXT = _Type(16, 1000, "?"), _Type(17, 1001), _Type(25, 1009)
_SMALLINT, _INTEGER, _BIGINT = _Type(21, 1005, "h"), _Type(23, 1007, "i"), _Type(20, 1016, "q")
_FLOAT8, _TIMESTAMPTZ = _Type(701, 1022, "d"), _Type(1184, 1185, "q")


def texts(values: Iterable[str | None]) -> Column:
    """A `text[]`."""
    return _varying(_TEXT, [None if value is None else value.encode() for value in values])


def encoded(values: Iterable[bytes | None]) -> Column:
    """A `text[]` of texts that are in UTF-8 already."""
    return _varying(_TEXT, list(values))


def byteas(values: Iterable[bytes | None]) -> Column:
    """A `bytea[]`."""
    return _varying(_BYTEA, list(values))


def booleans(values: Sequence[bool]) -> Column:
    """A `boolean[]`."""
    return _fixed(_BOOL, values)


def smallints(values: Sequence[int]) -> Column:
    """A `smallint[]`."""
    return _fixed(_SMALLINT, values)


def integers(values: Sequence[int]) -> Column:
    """An `integer[]`."""
    return _fixed(_INTEGER, values)


def bigints(values: Sequence[int]) -> Column:
    """A `bigint[]`."""
    return _fixed(_BIGINT, values)


def floats(values: Sequence[float]) -> Column:
    """A `float8[]`."""
    return _fixed(_FLOAT8, values)


def moments(values: Iterable[datetime]) -> Column:
    """A `timestamptz[]` of aware moments."""
    spans = [value - _EPOCH for value in values]  # summed by hand: to divide by a microsecond takes twice as long
    return _fixed(_TIMESTAMPTZ, [(s.days * _DAY_S + s.seconds) * 1_000_000 + s.microseconds for s in spans])


def numbers(data: bytes) -> NDArray[np.int64]:
    """What `array_send` gives of a `bigint[]` without nulls: a long one is turned into a list value by value, too."""
    return (
        np.frombuffer(data, _NUMBER, offset=_HEAD.size)["value"].astype(np.int64) if len(data) > _HEAD.size else _NONE
    )


def _varying(element: _Type, values: Sequence[bytes | None]) -> Column:
    first = values[0] if values else None
    if values.count(first) == len(values):  # as roles mostly are
        data = (_NULL if first is None else _LENGTH(len(first)) + first) * len(values)
    elif None in values:
        data = b"".join([_NULL if value is None else _LENGTH(len(value)) + value for value in values])
    else:
        lengths = map(_LENGTH, map(len, values))  # type: ignore[arg-type]
        data = b"".join(chain.from_iterable(zip(lengths, values, strict=True)))  # type: ignore[arg-type]
    return Column(element.array, _head(element, len(values)) + data)


def _fixed(element: _Type, values: Sequence[Any]) -> Column:
    row = struct.Struct(f">i{element.kind}")
    size = row.size - 4
    if values and values.count(values[0]) == len(values):  # as ids of a namespace mostly are
        data = row.pack(size, values[0]) * len(values)
    elif len(values) < _FEW:
        data = b"".join([row.pack(size, value) for value in values])
    else:
        rows = np.empty(len(values), [("length", ">i4"), ("value", f">{element.kind}")])
        rows["length"], rows["value"] = size, values
        data = rows.tobytes()
    return Column(element.array, _head(element, len(values)) + data)


def _head(element: _Type, count: int) -> bytes:
    return _HEAD.pack(1, 1, element.oid, count, 1) if count else _EMPTY.pack(0, 0, element.oid)


class _Dumper(Dumper):
    """Hands a column over as it is."""

    format = Format.BINARY

    def get_key(self, obj: Column, format: Any) -> Any:  # noqa: A002, ANN401, ARG002 - psycopg's own names
        return (self.cls, obj.oid)

    def upgrade(self, obj: Column, format: Any) -> Dumper:  # noqa: A002, ANN401, ARG002 - psycopg's own names
        dumper = _Dumper(self.cls, self.connection)
        dumper.oid = obj.oid
        return dumper

    def dump(self, obj: Column) -> bytes:
        return obj.data


psycopg.adapters.register_dumper(Column, _Dumper)
