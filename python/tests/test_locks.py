"""The lock client, at a lock service of its own."""

import pickle
import threading
import time

import pytest

import lockwork
from conftest import Program
from lockwork import locks


@pytest.fixture(scope="module")
def service():
    program = Program("lockd", "--udp", "127.0.0.1:0", "--locks", "1000", "--fresh")
    yield program.ready.split(" on ")[1].split()[0]
    program.end()


@pytest.fixture
def client(service):
    with locks.connect(service) as client:
        yield client


def test_one_at_a_time_holds_a_lock_and_tokens_grow(client, service):
    assert client.count == 1000 and client.lease == 2.0
    with locks.connect(service) as other:
        tokens = []
        with client.lock("backup", timeout=5) as held:
            tokens.append(held.token)
            assert held.name == "backup" and held.number >= 1000
            assert not held.is_lost and not held.shared
            assert "exclusive, held, token" in repr(held)
            with pytest.raises(lockwork.LockBusy) as caught:
                other.acquire("backup", timeout=0)
            assert caught.value.is_retryable
            with pytest.raises(lockwork.LockTimeout) as caught:
                other.acquire("backup", timeout=0.05)
            assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, lockwork.Error)
        assert held.is_lost
        for _ in range(3):
            with other.acquire("backup", timeout=5) as held:
                tokens.append(held.token)
        assert tokens == sorted(set(tokens))


def test_a_lock_that_stays_is_had_by_whoever_asks_for_it(client, service):
    with locks.connect(service, stay=1.0) as stays:
        tokens = []
        for _ in range(10):
            with stays.lock(21, timeout=5) as held:
                tokens.append(held.token)
        with client.acquire(21, timeout=5) as held:
            tokens.append(held.token)
        assert tokens == sorted(set(tokens))
    with pytest.raises(lockwork.DataError, match="stay is -1"):
        locks.connect(service, stay=-1.0)


def test_readers_share_and_writers_wait_for_them(client, service):
    with locks.connect(service) as other:
        first = client.acquire(17, shared=True)
        second = other.acquire(17, shared=True, timeout=5)
        assert first.shared and second.shared
        with pytest.raises(lockwork.LockBusy):
            client.acquire(17, timeout=0)
        first.release()
        first.release()
        second.release()
        writer = client.acquire(17, timeout=5)
        writer.downgrade()
        with other.lock(17, shared=True, timeout=5):
            pass
        with pytest.raises(lockwork.LockError, match="not held exclusively"):
            writer.downgrade()
        writer.release()
        assert "released" in repr(writer)


def test_threads_and_clients_exclude_each_other(service):
    """A number that is read, and written a while later, loses nothing."""
    number = 0

    def work():
        nonlocal number
        with locks.connect(service) as client:
            for _ in range(25):
                with client.lock("number", timeout=30):
                    seen = number
                    time.sleep(0.0005)
                    number = seen + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert number == 100


def test_a_circle_is_found(client):
    met = threading.Barrier(2)
    found = []

    def work(first, second, task):
        with client.lock(first, task=task, detect_deadlock=True):
            met.wait()
            try:
                with client.lock(second, task=task, detect_deadlock=True, timeout=20):
                    pass
            except lockwork.Deadlock as error:
                found.append(error.is_retryable)

    threads = [threading.Thread(target=work, args=words) for words in [(1, 2, 1), (2, 1, 2)]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [True]


def test_what_is_wrong_is_named(client, service, tmp_path):
    with pytest.raises(lockwork.LockError, match="there is no lock 1000: the service has 1000"):
        client.acquire(1000)
    with pytest.raises(lockwork.DataError, match="numbered from 0"):
        client.acquire(-1)
    with pytest.raises(lockwork.DataError, match="timeout is -1"):
        client.acquire(1, timeout=-1)
    with pytest.raises(lockwork.ConnectError, match="no address"):
        locks.connect("nowhere")
    with pytest.raises(lockwork.ConnectError, match="no answer|cannot talk"):
        locks.connect(service, key=bytes(16), timeout=0.3)
    (tmp_path / "key").write_text("0011\n")
    with pytest.raises(lockwork.DataError, match="has 2 bytes, and 16 are needed"):
        locks.connect(service, key=tmp_path / "key")
    client.close()
    with pytest.raises(lockwork.Closed):
        client.acquire(1)


def test_errors_travel_between_processes():
    error = lockwork.Deadlock("a circle", "40P01", "try again", None, True)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.is_retryable) == (lockwork.Deadlock, str(error), True)


def test_names_are_locks_of_their_own_and_one_session_is_shared(service, monkeypatch):
    monkeypatch.setenv("LOCKWORK_LOCKD", service)
    with locks.exclusive("orders/17", timeout=1) as one, locks.exclusive("orders/18", timeout=1) as two:
        assert one.token > 0 and one.number != two.number and one.name == "orders/17"
        with pytest.raises(lockwork.LockBusy):
            with locks.shared("orders/17", timeout=0):
                pass
    with locks.shared("orders/17", timeout=1) as one, locks.shared("orders/17", timeout=1) as two:
        assert one.shared and two.shared and one.number == two.number
    with pytest.raises(lockwork.LockError, match="1 to 255 bytes"):
        with locks.exclusive(""):
            pass


def test_without_names_a_name_is_a_number():
    program = Program("lockd", "--udp", "127.0.0.1:0", "--locks", "1000", "--names", "0", "--fresh")
    try:
        with locks.connect(program.ready.split(" on ")[1].split()[0]) as client:
            with client.lock("backup", timeout=5) as held:
                assert held.number == client.number("backup") and held.name is None
    finally:
        program.end()
