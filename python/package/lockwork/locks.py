"""Locks between processes and machines, at a lock service (``lockwork lockd``).

>>> with locks.exclusive("orders/17", timeout=1) as held:     # doctest: +SKIP
...     write(held.token)

A name means one lock, and no other name means it. ``locks.exclusive`` and ``locks.shared`` use one session of this process
with the service at ``LOCKWORK_LOCKD``, 127.0.0.1:7400 if that is not set; ``locks.connect`` gives a session of one's own.
"""

from __future__ import annotations

import hashlib
import os
import threading
from types import TracebackType
from typing import Optional, Union

from ._errors import DataError
from ._lockwork import Guard as _Guard
from ._lockwork import Session as _Session

__all__ = ["Client", "Held", "connect", "exclusive", "shared"]


class Held:
    """A lock that is held until it is released, or lost: when its lease ran out because the process was stopped or the
    service out of reach for longer than that."""

    __slots__ = ("_guard",)

    def __init__(self, guard: _Guard) -> None:
        self._guard = guard

    @property
    def number(self) -> int:
        """Number of the lock."""
        return self._guard.number

    @property
    def name(self) -> Optional[str]:
        """The name that it was asked for by, if by one that the service has given a lock."""
        return self._guard.name

    @property
    def token(self) -> int:
        """The fencing token: larger than that of every exclusive grant before. Whoever is written to refuses one that
        is smaller than the largest it has seen."""
        return self._guard.token

    @property
    def shared(self) -> bool:
        """Whether others may hold it shared too."""
        return self._guard.shared

    @property
    def is_lost(self) -> bool:
        """Whether it is not held any more, as far as this process can know: lost, or released."""
        return self._guard.is_lost()

    def downgrade(self) -> None:
        """Makes an exclusive lock a shared one without letting go."""
        self._guard.downgrade()

    def release(self) -> None:
        """Releases it. Doing so again does nothing."""
        self._guard.release()

    def __enter__(self) -> "Held":
        return self

    def __exit__(
        self,
        kind: "Optional[type[BaseException]]",
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._guard.is_released() else "lost" if self.is_lost else "held"
        return f"<lock {self.name or self.number}, {'shared' if self.shared else 'exclusive'}, {state}, token {self.token}>"


class _Request:
    """A lock that is taken when a with statement begins, and released at its end."""

    def __init__(
        self,
        client: "Client",
        lock: "Union[int, str]",
        shared: bool,
        timeout: Optional[float],
        detect_deadlock: bool,
        task: Optional[int],
    ) -> None:
        self._client = client
        self._words = (lock, shared, timeout, detect_deadlock, task)
        self._held: "list[Held]" = []

    def __enter__(self) -> Held:
        lock, shared, timeout, detect_deadlock, task = self._words
        held = self._client.acquire(
            lock, shared=shared, timeout=timeout, detect_deadlock=detect_deadlock, task=task
        )
        self._held.append(held)
        return held

    def __exit__(
        self,
        kind: "Optional[type[BaseException]]",
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self._held.pop().release()


class Client:
    """A session with a lock service. Any number of threads may use one."""

    def __init__(self, session: _Session, address: str) -> None:
        self._session = session
        self._address = address

    @property
    def count(self) -> int:
        """How many locks with numbers the service has, from 0 on."""
        return self._session.count()

    @property
    def lease(self) -> float:
        """Seconds for which a session lives after its last renewal."""
        return self._session.lease()

    @property
    def count_named(self) -> int:
        """How many locks the service has for names; 0 if it was started without."""
        return self._session.count_named()

    def number(self, name: str) -> int:
        """The number that stands for a name at a service without locks for names: the same for all its clients. Two
        names may stand for one number there, so whoever holds several at a time uses numbers."""
        digest = hashlib.sha256(name.encode()).digest()
        return int.from_bytes(digest[:8], "little") % self.count

    def acquire(
        self,
        lock: "Union[int, str]",
        *,
        shared: bool = False,
        timeout: Optional[float] = None,
        detect_deadlock: bool = False,
        task: Optional[int] = None,
    ) -> Held:
        """Takes a lock, by its number or by a name, and waits for it.

        Args:
            shared: others may hold it shared too.
            timeout: seconds to wait; 0 does not wait, None waits as long as the session lives.
            detect_deadlock: gives up when it waits in a circle of requests that ask for this; each thread then needs
                its own ``task``.
            task: number of what asks, for ``lockwork locks show`` and for detect_deadlock.

        Raises:
            LockBusy: somebody else holds it, with a timeout of 0.
            LockTimeout, Deadlock, LockLost: as they say.
        """
        if isinstance(lock, str):
            if self.count_named == 0:
                lock = self.number(lock)
        elif lock < 0:
            raise DataError(f"lock is {lock}: locks are numbered from 0", "22023")
        return Held(self._session.acquire(lock, shared, timeout, detect_deadlock, task))

    def lock(
        self,
        lock: "Union[int, str]",
        *,
        shared: bool = False,
        timeout: Optional[float] = None,
        detect_deadlock: bool = False,
        task: Optional[int] = None,
    ) -> _Request:
        """``with client.lock("name") as held:`` takes a lock and releases it; arguments as in acquire."""
        return _Request(self, lock, shared, timeout, detect_deadlock, task)

    def close(self) -> None:
        """Ends the session as soon as all locks of it are released. Doing so again does nothing."""
        self._session.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: "Optional[type[BaseException]]",
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<lock service at {self._address}>"


def connect(
    address: str = "127.0.0.1:7400",
    *,
    key: "Union[bytes, str, os.PathLike[str], None]" = None,
    timeout: float = 5.0,
    stay: float = 0.0,
) -> Client:
    """Joins the lock service at HOST:PORT.

    Args:
        key: the cluster's key: 16 bytes, or the file that holds it (32 hexadecimal digits, or 16 bytes).
        timeout: seconds to wait for the service.
        stay: seconds for which a lock that was given back stays with this process, in case that it is asked for here
            again, which takes no packet then. Others get it as soon as they ask, unless this process is stopped or
            dies: then they wait for its lease.

    Raises:
        ConnectError: nobody answers.
    """
    return Client(_Session.connect(address, _key(key), timeout, stay), address)


_default: "Optional[tuple[int, str, Client]]" = None
_lock = threading.Lock()


def _client() -> Client:
    """The session of this process; a child that was forked gets its own."""
    global _default
    address = os.environ.get("LOCKWORK_LOCKD") or "127.0.0.1:7400"
    with _lock:
        if _default is None or _default[:2] != (os.getpid(), address):
            client = connect(address, key=os.environ.get("LOCKWORK_KEY") or None)
            _default = (os.getpid(), address, client)
        return _default[2]


class _Lazy(_Request):
    """A request whose session begins with the first lock that is asked for."""

    def __init__(
        self,
        lock: "Union[int, str]",
        shared: bool,
        timeout: Optional[float],
        detect_deadlock: bool,
        task: Optional[int],
    ) -> None:
        self._words = (lock, shared, timeout, detect_deadlock, task)
        self._held = []

    def __enter__(self) -> Held:
        self._client = _client()
        return super().__enter__()


def exclusive(
    lock: "Union[int, str]",
    *,
    timeout: Optional[float] = None,
    detect_deadlock: bool = False,
    task: Optional[int] = None,
) -> "_Lazy":
    """``with locks.exclusive("orders/17", timeout=1) as held:`` takes a lock that nobody else holds meanwhile, at the
    service of ``LOCKWORK_LOCKD``, and releases it at the end. Arguments as in Client.acquire."""
    return _Lazy(lock, False, timeout, detect_deadlock, task)


def shared(
    lock: "Union[int, str]",
    *,
    timeout: Optional[float] = None,
    detect_deadlock: bool = False,
    task: Optional[int] = None,
) -> "_Lazy":
    """The same for a lock that others may hold shared too."""
    return _Lazy(lock, True, timeout, detect_deadlock, task)


def _key(key: "Union[bytes, str, os.PathLike[str], None]") -> Optional[bytes]:
    if key is None:
        return None
    place = "the key"
    if not isinstance(key, bytes):
        place = f"key file {os.fspath(key)}"
        with open(key, "rb") as file:
            key = file.read(4097)
        if len(key) != 16:
            try:
                key = bytes.fromhex(key.decode("ascii").strip())
            except ValueError:
                raise DataError(f"{place} holds no 32 hexadecimal digits, and not 16 bytes", "22023") from None
    if len(key) != 16:
        raise DataError(f"{place} has {len(key)} bytes, and 16 are needed", "22023")
    return key
