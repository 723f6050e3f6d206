"""Serializable stored-procedure transactions, in this process or at a server, and locks between processes.

>>> import lockwork
>>> with lockwork.open() as db:
...     db.define("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
...     db.execute("INSERT INTO t VALUES ($1, $2)", (1, 10)).rowcount
...     db.execute("SELECT n FROM t WHERE id = $1", (1,)).scalar()
1
10
"""

from . import locks
from ._columns import Scaled
from ._database import Connection, Procedure, Result, Row, connect, open, request_id  # noqa: A004
from ._errors import (
    Abort,
    Closed,
    ConnectError,
    Damaged,
    DataError,
    Deadlock,
    DiskFull,
    Error,
    LockBusy,
    Locked,
    LockError,
    LockLost,
    LockTimeout,
    SqlError,
)
from ._lockwork import __version__

__all__ = [
    "Abort",
    "Closed",
    "ConnectError",
    "Connection",
    "Damaged",
    "DataError",
    "Deadlock",
    "DiskFull",
    "Error",
    "LockBusy",
    "LockError",
    "LockLost",
    "LockTimeout",
    "Locked",
    "Procedure",
    "Result",
    "Row",
    "Scaled",
    "SqlError",
    "__version__",
    "connect",
    "locks",
    "open",
    "request_id",
]
