"""Connections to one of several servers, and what becomes of a call when its server dies."""

import signal
import threading
import time

import pytest
from conftest import BANK

import lockwork


@pytest.fixture
def start_bank(start_server, tmp_path):
    script = tmp_path / "bank.sql"
    script.write_text(BANK)
    return lambda *words: start_server("--init", script, *words)


def kill_under(server, ask):
    """Kills a server while it has something to do, and gives the error of whoever asked."""
    server.stop()
    caught = []

    def asks():
        try:
            ask()
        except lockwork.Error as error:
            caught.append(error)

    thread = threading.Thread(target=asks)
    thread.start()
    time.sleep(0.3)
    server.end(signal.SIGKILL)
    thread.join()
    return caught[0]


def test_a_call_on_its_way_is_told_apart_from_one_that_was_not_asked(start_bank):
    servers = [start_bank() for _ in range(3)]
    with lockwork.connect(",".join(server.address for server in servers)) as database:
        transfer = database.procedure("transfer")
        assert transfer(1, 2, 25).left == 975
        # It may have happened, and might happen twice.
        error = kill_under(servers[0], lambda: transfer(1, 2, 25))
        assert isinstance(error, lockwork.Closed) and not error.is_retryable
        assert "is not known" in error.message and servers[0].address in error.message
        # What is asked next goes to the next server by itself.
        assert transfer(1, 2, 25).left == 975 and database.call("transfer", 1, 2, 25).left == 950
        database.reconnect()  # There is nothing to do.
        assert database.execute("SELECT balance FROM accounts WHERE id = 1").scalar() == 950
        # In a session that has set something, nothing does: its program has to know.
        database.execute("SET lockwork.read_after = 0")
        one = lockwork.request_id()
        error = kill_under(servers[1], lambda: transfer(1, 2, 25, request_id=one))
        assert isinstance(error, lockwork.Closed) and error.is_retryable and "request_id" in error.hint
        with pytest.raises(lockwork.Closed, match="nothing was asked") as caught:
            transfer(1, 2, 25)
        assert caught.value.is_retryable and "reconnect" in caught.value.hint
        threads = [threading.Thread(target=database.reconnect) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [transfer(1, 2, 25, request_id=one).left for _ in range(2)] == [975, 975]
        error = kill_under(servers[2], lambda: database.execute("SELECT balance FROM accounts WHERE id = 1"))
        assert isinstance(error, lockwork.Closed)
        with pytest.raises(lockwork.ConnectError, match="none of 3 servers") as caught:
            database.reconnect()
        assert caught.value.is_retryable and all(server.address in caught.value.message for server in servers)
    with pytest.raises(lockwork.Closed, match="is closed"):
        database.reconnect()


def test_a_server_that_ends_is_left_for_another(start_bank):
    servers = [start_bank() for _ in range(2)]
    with lockwork.connect(f"postgres://ann@{servers[0].address},{servers[1].address}/bank") as database:
        transfer = database.procedure("transfer")
        transfer(1, 2, 25)
        one = lockwork.request_id()
        assert servers[0].end() == 0
        # It was told, or finds out.
        for _ in range(100):
            try:
                left = transfer(1, 2, 25, request_id=one).left
                break
            except lockwork.Closed as error:
                assert error.is_retryable
                database.reconnect()
        assert left == 975


def test_a_call_with_an_id_goes_on_at_the_next_server_when_its_own_is_stopped(start_bank):
    servers = [start_bank() for _ in range(2)]
    with lockwork.connect(",".join(server.address for server in servers), call_timeout=4) as database:
        transfer = database.procedure("transfer")
        assert transfer(1, 2, 25).left == 975
        servers[0].stop()
        try:
            begun = time.monotonic()
            # The other server is another bank, so that it is seen where the call was made.
            assert transfer(1, 2, 30, request_id=lockwork.request_id()).left == 970
            assert time.monotonic() - begun < 6
        finally:
            servers[0].process.send_signal(signal.SIGCONT)
        # It was made there, too, when the server went on: of one cluster it would have been made once.
        assert database.execute("SELECT balance FROM accounts WHERE id = 1").scalar() == 970
    with lockwork.connect(servers[0].address, call_timeout=1) as database:
        transfer = database.procedure("transfer")
        servers[0].stop()
        try:
            with pytest.raises(lockwork.Closed, match="no answer within 1 s.*is not known") as caught:
                transfer(1, 2, 1)
            assert not caught.value.is_retryable
        finally:
            servers[0].process.send_signal(signal.SIGCONT)
    for wrong in (-1, float("nan")):
        with pytest.raises(lockwork.DataError, match="call_timeout is"):
            lockwork.connect(servers[0].address, call_timeout=wrong)


def test_the_kind_of_server_can_be_chosen(start_bank):
    address = start_bank().address
    with lockwork.connect(f"127.0.0.1:1,{address}", target_session_attrs="primary") as database:
        database.call("transfer", 1, 2, 25)
    for attrs in ["read-only", "prefer-standby"]:
        with lockwork.connect(f"{address},127.0.0.1:1", target_session_attrs=attrs) as database:
            assert database.execute("SELECT balance FROM accounts WHERE id = 1").scalar() == 975
            with pytest.raises(lockwork.Error) as caught:
                database.call("transfer", 1, 2, 25)
            assert caught.value.sqlstate == "25006"
    url = f"postgres://ann@127.0.0.1:1,{address}/bank?target_session_attrs=standby"
    with pytest.raises(lockwork.ConnectError, match="it follows no other server") as caught:
        lockwork.connect(url)
    assert caught.value.is_retryable and "127.0.0.1:1: " in caught.value.message
    lockwork.connect(url, target_session_attrs="any").close()
    with pytest.raises(lockwork.DataError, match="target_session_attrs is 'leader'"):
        lockwork.connect(address, target_session_attrs="leader")
    with pytest.raises(lockwork.DataError, match="there is no host"):
        lockwork.connect(f"{address},")


def test_a_database_in_this_process_has_nothing_to_reconnect():
    with lockwork.open() as database:
        database.define(BANK)
        database.reconnect()
        assert database.call("transfer", 1, 2, 25).left == 975
