"""Columns of values between Python and Rust: numpy and Arrow arrays, and lists."""

from __future__ import annotations

import array
import sys
from decimal import Decimal
from typing import Any, Iterator, Sequence, Union

from ._errors import DataError

try:
    import numpy
except ImportError:  # Everything works with lists.
    numpy = None  # type: ignore[assignment, unused-ignore]


class Scaled:
    """Decimals as whole numbers, all times ten to the same scale: ``Scaled([2500, 1], 2)`` is 25.00 and 0.01.

    For columns of DECIMAL in and out of ``call_many`` that are not to become a Decimal each. ``numbers`` is a numpy
    array of int64 where there is numpy, else a list.
    """

    __slots__ = ("numbers", "scale")

    def __init__(self, numbers: Any, scale: int) -> None:
        if not 0 <= scale <= 18:
            raise DataError(f"scale is {scale}, and a DECIMAL has 0 to 18 decimals", "22023")
        self.numbers = numbers
        self.scale = scale

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> "Iterator[Decimal]":
        return (Decimal(int(number)).scaleb(-self.scale) for number in self.numbers)

    def __repr__(self) -> str:
        return f"Scaled({self.numbers!r}, {self.scale})"


Handed = Union["list[Any]", "tuple[str, bytes]", "tuple[str, bytes, int]"]


def words(numbers: Sequence[int]) -> bytes:
    """64-bit integers in little-endian order."""
    try:
        packed = array.array("q", numbers)
    except (OverflowError, TypeError) as error:
        raise DataError(f"a column of Scaled holds integers of 64 bits: {error}", "22003") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def hand_over(name: str, column: Any) -> Handed:
    """A column in one of the forms that Rust takes."""
    if isinstance(column, Scaled):
        numbers = hand_over(name, column.numbers)
        if isinstance(numbers, list):
            return ("d", words(numbers), column.scale)
        if numbers[0] != "i":
            raise DataError(f"the column of '{name}' is Scaled and holds no integers", "42804")
        return ("d", numbers[1], column.scale)
    if numpy is not None:
        if hasattr(column, "to_numpy") and hasattr(type(column), "to_pylist"):
            column = of_arrow(name, column)
        elif hasattr(column, "to_numpy"):  # pandas, polars
            column = column.to_numpy()
        if isinstance(column, numpy.ndarray):
            return of_numpy(name, column)
    elif hasattr(column, "to_pylist"):
        return list(column.to_pylist())
    if isinstance(column, (str, bytes, dict, set)) or not hasattr(column, "__iter__"):
        raise DataError(f"the column of '{name}' is {type(column).__name__}: give a list or an array", "42804")
    return list(column)


def of_arrow(name: str, column: Any) -> Any:
    """An Arrow array as numpy where its type has one, else as a list."""
    if column.null_count:
        raise DataError(f"the column of '{name}' holds {column.null_count} nulls, and there are no NULLs", "22004")
    kind = str(column.type)
    if kind.startswith(("int", "uint", "bool", "double", "float", "timestamp")):
        return column.to_numpy(zero_copy_only=False) if hasattr(column, "buffers") else column.to_numpy()
    return column.to_pylist()


def of_numpy(name: str, column: Any) -> Handed:
    if column.ndim != 1:
        raise DataError(f"the column of '{name}' has {column.ndim} dimensions, and one is needed", "42804")
    kind = column.dtype.kind
    if kind == "b":
        return ("b", column.astype("<i8").tobytes())
    if kind in "iu":
        if kind == "u" and column.dtype.itemsize == 8 and column.size and column.max() > 2**63 - 1:
            raise DataError(f"{column.max()} does not fit '{name}'", "22003")
        return ("i", column.astype("<i8", copy=False).tobytes())
    if kind == "f":
        return ("f", column.astype("<f8", copy=False).tobytes())
    if kind == "M":
        if numpy.isnat(column).any():
            raise DataError(f"the column of '{name}' holds NaT, and there are no NULLs", "22004")
        micros = column.astype("datetime64[us]")
        if (micros != column).any():
            raise DataError(f"the column of '{name}' has more than microseconds", "22008")
        return ("t", micros.astype("<i8").tobytes())
    if kind in "OUS":
        return list(column.tolist())
    raise DataError(f"the column of '{name}' is of {column.dtype}, which no type of SQL is", "42804")


def take_over(column: Any) -> Any:
    """A column as Rust gives it, as numpy or a list. Decimals, texts and bytes are objects."""
    if isinstance(column, list):
        if numpy is None:
            return column
        objects = numpy.empty(len(column), dtype=object)
        objects[:] = column
        return objects
    tag, data = column[0], column[1]
    if numpy is None:
        numbers = array.array("q", bytes(data))
        if sys.byteorder == "big":
            numbers.byteswap()
        if tag == "b":
            return [number != 0 for number in numbers]
        if tag == "t":
            return [moment(number) for number in numbers]
        return Scaled(numbers.tolist(), column[2]) if tag == "d" else numbers.tolist()
    words = numpy.frombuffer(data, dtype="<i8")
    if tag == "b":
        return words != 0
    if tag == "t":
        return words.view("<M8[us]")
    return Scaled(words, column[2]) if tag == "d" else words


def moment(micros: int) -> Any:
    from datetime import datetime, timedelta

    return datetime(1970, 1, 1) + timedelta(microseconds=micros)


def states(aborts: "list[tuple[int, str]]", calls: int) -> Any:
    """The SQLSTATE of each call: '' for one that committed."""
    if numpy is not None:
        column = numpy.zeros(calls, dtype="U5")
        if aborts:
            column[[at for at, _ in aborts]] = [state for _, state in aborts]
        return column
    listed = [""] * calls
    for at, state in aborts:
        listed[at] = state
    return listed
