"""Databases: in this process (open) or at a server (connect), with the same methods."""

from __future__ import annotations

import getpass
import os
import uuid
from operator import itemgetter
from types import TracebackType
from typing import Any, Callable, Iterator, Optional, Sequence, TypeVar, Union, overload

from . import _columns
from ._errors import DataError, SqlError
from ._lockwork import Connection as _Connection
from ._lockwork import request_id as _request_id

Answer = TypeVar("Answer")

#: A request id: what request_id() makes, or its text.
RequestId = Union[uuid.UUID, str]


class Row(tuple):  # type: ignore[type-arg]
    """The results of a call: a tuple whose values also have their names."""

    __slots__ = ()
    _fields: "tuple[str, ...]" = ()

    def __getattr__(self, name: str) -> Any:
        # Fields are attributes of the class that each procedure has; this is for what is none.
        known = ", ".join(self._fields) or "none"
        raise AttributeError(f"there is no result '{name}'; there are: {known}")

    def _asdict(self) -> "dict[str, Any]":
        return dict(zip(self._fields, self))

    def __repr__(self) -> str:
        return "Row(" + ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self)) + ")"


def _row_class(fields: "tuple[str, ...]") -> "type[Row]":
    """Rows with these fields; a name that rows have for something else is only in _asdict."""
    free = {name: property(itemgetter(at)) for at, name in enumerate(fields) if not hasattr(tuple, name)}
    return type("Row", (Row,), {"__slots__": (), "_fields": fields, **free})


class Result:
    """What a statement answered.

    Attributes:
        columns: names of the columns; empty for what answers none.
        rows: the rows, a tuple each.
        rowcount: rows that were written, or answered.
    """

    __slots__ = ("columns", "rows", "rowcount")

    def __init__(self, columns: "list[str]", rows: "list[tuple[Any, ...]]", rowcount: int) -> None:
        self.columns = columns
        self.rows = rows
        self.rowcount = rowcount

    def __iter__(self) -> "Iterator[tuple[Any, ...]]":
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> "tuple[Any, ...]": ...
    @overload
    def __getitem__(self, at: slice) -> "list[tuple[Any, ...]]": ...
    def __getitem__(self, at: "Union[int, slice]") -> Any:
        return self.rows[at]

    def one(self) -> "tuple[Any, ...]":
        """The only row.

        Raises:
            DataError: there is none, or there are several.
        """
        if len(self.rows) != 1:
            raise DataError(f"one row is expected, and there are {len(self.rows)}", "21000")
        return self.rows[0]

    def scalar(self) -> Any:
        """The first value of the only row."""
        row = self.one()
        if not row:
            raise DataError("the row has no values", "21000")
        return row[0]

    def __repr__(self) -> str:
        if not self.columns:
            return f"<{self.rowcount} rows written>"
        shown = [[_short(value) for value in row] for row in self.rows[:10]]
        widths = [max(map(len, column)) for column in zip(self.columns, *shown)]
        lines = [" | ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip() for cells in shown]
        head = " | ".join(name.ljust(width) for name, width in zip(self.columns, widths)).rstrip()
        rest = len(self.rows) - len(shown)
        return "\n".join([head, "-+-".join("-" * width for width in widths), *lines]) + (
            f"\n... and {rest} more" if rest else ""
        )


def request_id() -> uuid.UUID:
    """Makes a request id, a UUID of version 7, for a call that may have to be repeated; see Procedure.__call__."""
    return uuid.UUID(_request_id())


def _text(request: "Optional[RequestId]") -> Optional[str]:
    return None if request is None else str(request)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."


class Procedure:
    """A procedure of a database, to be called as a function: ``transfer(1, 2, amount=Decimal("25"))``."""

    __slots__ = ("_connection", "_signature", "_row", "name", "parameters", "results")

    def __init__(self, connection: "_Connection", name: str) -> None:
        self._connection = connection
        self.name = name
        self._signature = connection.procedure(name)
        #: Names of the parameters.
        self.parameters = tuple(self._signature.parameters)
        #: Names of the results.
        self.results = tuple(self._signature.results)
        self._row = _row_class(self.results)

    def __call__(self, *args: Any, request_id: "Optional[RequestId]" = None, **kwargs: Any) -> Row:
        """Calls it and waits for its results; in a folder, until they are durable.

        ``request_id`` is an id of ``lockwork.request_id()``, made before the first call: a call that was made before
        with this id does not run, and returns the first one's results, also after a crash. A server or folder remembers
        ids for ten minutes unless told otherwise, and refuses older ones.

        Raises:
            Abort: it was taken back.
            SqlError: the id was used for another call (22R01), is too old (22R02), or of the future (22R03).
        """
        arguments = self._arguments(args, kwargs) if kwargs else args
        return self._row(self._connection.call(self._signature, arguments, _text(request_id)))

    def _arguments(self, args: "Sequence[Any]", kwargs: "dict[str, Any]") -> "list[Any]":
        rest = list(self.parameters[len(args) :])
        for name in kwargs:
            if name not in rest:
                why = "is given twice" if name in self.parameters else "does not exist"
                known = ", ".join(self.parameters)
                raise DataError(f"parameter '{name}' of '{self.name}' {why}; there are: {known}", "22023")
        for name in rest:
            if name not in kwargs:
                raise DataError(f"parameter '{name}' of '{self.name}' has no value", "22023")
        return [*args, *(kwargs[name] for name in rest)]

    def many(self, columns: Any, *, scaled: bool = False, request_ids: Any = None) -> "dict[str, Any]":
        """Makes many calls; see Connection.call_many."""
        if isinstance(columns, dict):
            columns = self._arguments((), columns)
        handed = [_columns.hand_over(name, column) for name, column in zip(self.parameters, columns)]
        handed += [_columns.hand_over("one too many", column) for column in columns[len(self.parameters) :]]
        ids = None if request_ids is None else [str(one) for one in request_ids]
        given, aborts, calls = self._connection.call_many(self._signature, handed, scaled, ids)
        answer = {name: _columns.take_over(column) for name, column in given}
        answer["sqlstate"] = _columns.states(aborts, calls)
        return answer

    def __repr__(self) -> str:
        return f"<procedure {self.name}({', '.join(self.parameters)}) -> ({', '.join(self.results)})>"


class Connection:
    """A database. Any number of threads may use one; it is closed at the end of a with statement."""

    def __init__(self, connection: "_Connection", place: str) -> None:
        self._connection = connection
        self._place = place
        self._procedures: "dict[str, Procedure]" = {}

    def execute(self, sql: str, parameters: "Sequence[Any]" = ()) -> Result:
        """Runs one statement, a transaction of its own, with values for ``$1`` and so on.

        Raises:
            SqlError: the statement is wrong.
            DataError: a value does not fit.
            Abort: it was taken back.
        """
        return Result(*self._connection.execute(sql, _values(parameters)))

    def define(self, sql: str) -> None:
        """Runs a script: definitions and statements, one after the other. Those before an error have happened."""
        self._procedures.clear()
        self._connection.define(sql)
        self._procedures.clear()

    def procedure(self, name: str) -> Procedure:
        """The procedure of this name, as a function."""
        return Procedure(self._connection, name)

    def call(self, name: str, *args: Any, request_id: "Optional[RequestId]" = None, **kwargs: Any) -> Row:
        """Calls a procedure; see Procedure.__call__."""
        return self._known(name, lambda procedure: procedure(*args, request_id=request_id, **kwargs))

    def call_many(
        self, name: str, columns: Any, *, scaled: bool = False, request_ids: Any = None
    ) -> "dict[str, Any]":
        """Makes a call for each value of the columns, each a transaction of its own, in their order.

        Args:
            columns: a column for each parameter: a dict by name, or a sequence in order. A column is a numpy or Arrow
                array, or a list.
            scaled: gives DECIMAL results as Scaled instead of a Decimal each.
            request_ids: a request id for each call; see Procedure.__call__.

        Returns:
            A column for each result, and ``sqlstate``: '' for a call that committed, else why it was taken back, and
            then its results are zeros. Columns are numpy arrays where there is numpy, else lists.
        """
        return self._known(name, lambda it: it.many(columns, scaled=scaled, request_ids=request_ids))

    def _known(self, name: str, use: "Callable[[Procedure], Answer]") -> "Answer":
        procedure = self._procedures.get(name)
        if procedure is not None:
            try:
                return use(procedure)
            except SqlError as error:
                # It was replaced, and nothing has run.
                if error.sqlstate != "0A000":
                    raise
            except DataError:
                # The arguments may be for one that has taken its place.
                if self.procedure(name)._signature == procedure._signature:
                    raise
        procedure = self._procedures[name] = self.procedure(name)
        return use(procedure)

    def checkpoint(self) -> None:
        """Writes all tables to the folder, so that opening it need not repeat what came before."""
        self._connection.checkpoint()

    def reconnect(self) -> None:
        """Connects anew if the connection has ended, to the first server of its addresses that will do; else there is
        nothing to do, and in a folder there never is. Of several servers that happens by itself, unless the session is in
        a transaction or has set something. Procedures go on to work. What was set by SET, and a transaction
        that was open, are gone; what was on its way is not asked again.

        Raises:
            ConnectError: no server takes it now. ``is_retryable`` says whether one may later.
            Closed: it was closed.
        """
        self._connection.reconnect()

    def close(self) -> None:
        """Waits until everything is durable, and closes the database. Doing so again does nothing."""
        self._connection.close()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: "Optional[type[BaseException]]",
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<lockwork {self._place}>"


def _values(parameters: "Sequence[Any]") -> "list[Any]":
    if isinstance(parameters, (str, bytes, dict)):
        kind = type(parameters).__name__
        raise DataError(f"parameters are a {kind}: give a list or tuple of the values of $1 and so on", "42804")
    return list(parameters)


def open(  # noqa: A001
    path: "Union[str, os.PathLike[str], None]" = None,
    *,
    engine: str = "deterministic",
    durability: str = "fsync",
    workers: Optional[int] = None,
    request_window: float = 600.0,
    request_memory: int = 256 << 20,
) -> Connection:
    """Opens the database in a folder, which is made if it is not there; without one, a database in memory.

    Args:
        path: the folder.
        engine: which one runs the calls; a folder can be opened with any one.
        durability: when a call has happened: "fsync" when the disk says so, "async" when the system has it, "none".
        workers: threads of the engine; as many as there are cores unless told otherwise.
        request_window: how long request ids are remembered, in seconds.
        request_memory: bytes for them: when they are used up, the oldest ids are forgotten, and refused.

    Raises:
        Locked: another process has it open.
        Damaged: what was durable is damaged.
    """
    place = "in memory" if path is None else os.fspath(path)
    return Connection(_Connection.open(path, engine, durability, workers, (request_window, request_memory)), place)


def connect(
    address: str = "127.0.0.1:5433",
    *,
    user: Optional[str] = None,
    password: Optional[str] = None,
    database: Optional[str] = None,
    timeout: Optional[float] = None,
    call_timeout: Optional[float] = None,
    tcp_user_timeout: Optional[int] = None,
    sslmode: Optional[str] = None,
    sslrootcert: "Union[str, os.PathLike[str], None]" = None,
    target_session_attrs: Optional[str] = None,
) -> Connection:
    """Connects to a server, ``lockwork serve``.

    Args:
        address: HOST:PORT, or a URL, postgres://user:password@host:port/database?sslmode=verify-full; or several of which
            the first that will do is taken: A:PORT,B:PORT, or postgres://a:port,b:port/database.
        user: who asks; else the one of the URL, or of the system.
        database: its name; else that of the URL, or lockwork.
        timeout: seconds that each server may take to let the client in; else those of the URL, or 10, or 3 for each of
            several.
        call_timeout: seconds that a call may go without an answer, and another statement while the server does not
            respond; else those of the URL, or 10. Of several servers, the next one is asked in this time what may be
            asked twice: reads, and calls with a request_id. 0 for no limit, and no fail-over.
        tcp_user_timeout: milliseconds that bytes may stay unacknowledged before the connection ends; else those of the
            URL, or 9,000. 0 for the system's default. A URL may also have keepalives, keepalives_idle,
            keepalives_interval and keepalives_count, as for libpq.
        sslmode: how safe it has to be: "disable", "prefer", "require", "verify-ca" or "verify-full". If neither it nor
            sslrootcert is given, it is "prefer" for a server of this machine; else "verify-full".
        sslrootcert: a file of the certificates to trust, of who signs or the server's own; "system" and none are those
            that the system trusts.
        target_session_attrs: which of the nodes of a cluster will do: "any", "read-write", "read-only", "primary", "standby"
            or "prefer-standby"; else that of the URL, or "any". With "read-only", "standby" and
            "prefer-standby" the session only reads.

    Raises:
        ConnectError: there is none, it does not let anybody in, or is not as safe as it has to be.
    """
    try:
        whoami = getpass.getuser()
    except (KeyError, OSError, ImportError):
        whoami = "lockwork"
    place = {
        "address": address,
        "user": user,
        "whoami": whoami,
        "database": database,
        "password": password,
        "timeout": timeout,
        "call_timeout": call_timeout,
        "tcp_user_timeout": tcp_user_timeout,
        "sslmode": sslmode,
        "sslrootcert": None if sslrootcert is None else os.fspath(sslrootcert),
        "target_session_attrs": target_session_attrs,
    }
    return Connection(_Connection.connect(place), f"at {_without_password(address)}")


def _without_password(address: str) -> str:
    scheme, is_url, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if is_url else address
