"""Calls that are repeated with the id of their request."""

import signal
import time
import uuid

import pytest
from conftest import BANK

import lockwork


def id_at(seconds):
    """A request id of a time, in seconds from now."""
    made = int((time.time() + seconds) * 1000)
    return uuid.UUID(int=made << 80 | 0x7000_8000_0000_0000_0000 | uuid.uuid4().int & (1 << 62) - 1)


def test_a_call_with_an_id_is_made_once(bank):
    transfer = bank.procedure("transfer")
    one, other, third = (lockwork.request_id() for _ in range(3))
    lefts = [bank.call("transfer", 1, 2, 25, request_id=one).left, transfer(1, 2, 25, request_id=str(one)).left]
    assert lefts == [975, 975] and transfer(1, 2, 25).left == 950
    for _ in range(2):
        with pytest.raises(lockwork.Abort, match="not enough money"):
            transfer(2, 1, 1060, request_id=other)
        bank.call("transfer", 1, 2, 25)
    assert transfer(2, 1, 1060, request_id=third).left == 40


def test_what_is_no_id_is_refused(bank):
    bank.define("CREATE PROCEDURE other() AS BEGIN UPDATE accounts SET balance = 0 WHERE id = 1; END;")
    one = lockwork.request_id()
    bank.call("transfer", 1, 2, 25, request_id=one)
    with pytest.raises(lockwork.SqlError, match=f"request id {one} was used before, .* 'other'") as caught:
        bank.call("other", request_id=one)
    assert caught.value.sqlstate == "22R01" and not caught.value.is_retryable
    with pytest.raises(lockwork.SqlError, match="with other arguments") as caught:
        bank.call("transfer", 1, 2, 26, request_id=one)
    assert caught.value.sqlstate == "22R01"
    for wrong in [0, 17, "x", uuid.uuid4()]:
        with pytest.raises(lockwork.DataError, match="UUID of version 7") as caught:
            bank.call("transfer", 1, 2, 25, request_id=wrong)
        assert caught.value.sqlstate == "22023" and "lockwork.request_id()" in caught.value.hint
    for seconds, sqlstate, why in [(-601, "22R02", "too old"), (120, "22R03", "ahead of")]:
        with pytest.raises(lockwork.SqlError, match=why) as caught:
            bank.call("transfer", 1, 2, 25, request_id=id_at(seconds))
        assert caught.value.sqlstate == sqlstate and not caught.value.is_retryable
    assert bank.call("transfer", 1, 2, 25).left == 950


def test_a_server_makes_ids(start_server):
    with lockwork.connect(start_server().address) as database:
        database.define(BANK)
        made = database.execute("SELECT uuidv7()").scalar()
        assert uuid.UUID(made).version == 7
        assert [database.call("transfer", 1, 2, 25, request_id=made).left for _ in range(2)] == [975, 975]
        assert database.execute("CALL transfer(1, 2, 25) REQUEST $1", (made,)).scalar() == 975


def test_a_window_can_be_chosen(tmp_path):
    with lockwork.open(tmp_path, request_window=5) as database:
        database.define(BANK)
        with pytest.raises(lockwork.SqlError, match="remembers ids for 5.0 s"):
            database.call("transfer", 1, 2, 25, request_id=id_at(-6))
    with pytest.raises(lockwork.DataError, match="request_window"):
        lockwork.open(tmp_path, request_window=0)


def test_a_call_is_repeated_at_a_server_that_was_killed(start_server, tmp_path):
    server = start_server("--data", tmp_path / "data")
    database = lockwork.connect(server.address)
    database.define(BANK)
    one, other = lockwork.request_id(), lockwork.request_id()
    assert database.call("transfer", 1, 2, 25, request_id=one).left == 975
    server.end(signal.SIGKILL)
    with pytest.raises(lockwork.Closed):
        database.call("transfer", 1, 2, 25, request_id=other)
    database.close()
    with lockwork.connect(start_server("--data", tmp_path / "data").address) as database:
        assert database.call("transfer", 1, 2, 25, request_id=one).left == 975
        assert [database.call("transfer", 1, 2, 25, request_id=other).left for _ in range(2)] == [950, 950]
