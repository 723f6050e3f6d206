"""Calls that are repeated with the id of their request."""

import signal

import pytest
from conftest import BANK

import lockwork


def test_a_call_with_an_id_is_made_once(bank):
    transfer = bank.procedure("transfer")
    lefts = [bank.call("transfer", 1, 2, 25, request_id=17).left, transfer(1, 2, 25, request_id=17).left]
    assert lefts == [975, 975] and transfer(1, 2, 25).left == 950
    for _ in range(2):
        with pytest.raises(lockwork.Abort, match="not enough money"):
            transfer(2, 1, 1060, request_id=18)
        bank.call("transfer", 1, 2, 25)
    assert transfer(2, 1, 1060, request_id=19).left == 40


def test_what_is_no_id_is_refused(bank):
    bank.define("CREATE PROCEDURE other() AS BEGIN UPDATE accounts SET balance = 0 WHERE id = 1; END;")
    bank.call("transfer", 1, 2, 25, request_id=5)
    with pytest.raises(lockwork.SqlError, match="request id 5 was used") as caught:
        bank.call("other", request_id=5)
    assert caught.value.sqlstate == "22R01" and not caught.value.is_retryable
    with pytest.raises(lockwork.DataError, match="from 1"):
        bank.call("transfer", 1, 2, 25, request_id=0)
    assert bank.call("transfer", 1, 2, 25).left == 950


def test_ids_of_a_server_are_bigints(start_server, tmp_path):
    with lockwork.connect(start_server().address) as database:
        database.define(BANK)
        with pytest.raises(lockwork.DataError, match=r"from 1 to 2\*\*63 - 1") as caught:
            database.call("transfer", 1, 2, 25, request_id=2**63)
        assert caught.value.sqlstate == "22023"
        assert database.call("transfer", 1, 2, 25, request_id=2**63 - 1).left == 975


def test_a_call_is_repeated_at_a_server_that_was_killed(start_server, tmp_path):
    server = start_server("--data", tmp_path / "data")
    database = lockwork.connect(server.address)
    database.define(BANK)
    assert database.call("transfer", 1, 2, 25, request_id=17).left == 975
    server.end(signal.SIGKILL)
    with pytest.raises(lockwork.Closed):
        database.call("transfer", 1, 2, 25, request_id=18)
    database.close()
    with lockwork.connect(start_server("--data", tmp_path / "data").address) as database:
        assert database.call("transfer", 1, 2, 25, request_id=17).left == 975
        assert [database.call("transfer", 1, 2, 25, request_id=18).left for _ in range(2)] == [950, 950]
