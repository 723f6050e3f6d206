"""Exceptions. All have one root, Error, and say what kind of error they are by their class and their SQLSTATE."""

from __future__ import annotations

from typing import Optional


class Error(Exception):
    """What can go wrong.

    Attributes:
        message: what is wrong.
        sqlstate: five characters that say what kind of error it is.
        hint: what to do; empty where the message says it.
        position: where in the statement, in characters from 1; None where it is in none.
    """

    def __init__(
        self,
        message: str,
        sqlstate: str = "XX000",
        hint: str = "",
        position: Optional[int] = None,
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.sqlstate = sqlstate
        self.hint = hint
        self.position = position
        self._retryable = retryable

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed later, and cannot happen twice: it has not happened yet, or it has a
        request_id. After Closed that takes ``reconnect``."""
        return self._retryable

    def __str__(self) -> str:
        place = f" (character {self.position})" if self.position else ""
        hint = f"\nhint: {self.hint}" if self.hint else ""
        return f"{self.sqlstate}: {self.message}{place}{hint}"

    def __reduce__(self) -> "tuple[type[Error], tuple[str, str, str, Optional[int], bool]]":
        return (type(self), (self.message, self.sqlstate, self.hint, self.position, self._retryable))


class Abort(Error):
    """A call or statement was taken back: what a procedure raised, no such row, a key that exists, a conflict."""


class SqlError(Error):
    """A statement is wrong, or asks for something that there is not."""


class DataError(Error, ValueError):
    """A value does not fit its parameter."""


class Closed(Error):
    """The database, connection or session was closed, or has ended, or belongs to the process that forked this one."""


class ConnectError(Error, ConnectionError):
    """No connection could be had."""


class Locked(Error):
    """Another process has the folder open."""


class Damaged(Error):
    """What was durable is damaged: which file, and where."""


class DiskFull(Error):
    """There is no room for the log. Nothing of the call has happened."""


class LockError(Error):
    """A lock was not granted."""


class LockBusy(LockError):
    """Somebody else holds the lock, and the request was not to wait."""


class LockTimeout(LockError, TimeoutError):
    """The lock was not granted in time."""


class Deadlock(LockError):
    """The request waited in a circle with others: release what is held, and try again."""


class LockLost(LockError):
    """The session has ended, and all locks of it are lost."""
