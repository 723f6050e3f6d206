"""Several processes, and processes that die."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from decimal import Decimal

import pytest

import lockwork
from conftest import BANK


def python(source, *words, **options):
    """Another Python that runs this source."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, words)], stdout=subprocess.PIPE, text=True, **options
    )


def total(database):
    return sum(balance for _, balance in database.execute("SELECT id, balance FROM accounts WHERE id >= 0 LIMIT 1000"))


def test_processes_that_call_one_server_make_and_lose_no_money(start_server, tmp_path):
    server = start_server("--data", tmp_path / "bank", "--durability", "async")
    with lockwork.connect(server.address) as bank:
        bank.define(BANK)
        for id in range(3, 51):
            bank.execute("INSERT INTO accounts VALUES ($1, 40)", (id,))
        before = total(bank)
        worker = """
            import random, sys, lockwork
            address, seed = sys.argv[1], int(sys.argv[2])
            random.seed(seed)
            done = {"": 0, "BK001": 0}
            with lockwork.connect(address) as bank:
                for at in range(150):
                    source, target = random.sample(range(1, 51), 2)
                    if at % 10 == 0:
                        n = 200
                        columns = [[source] * n, [target] * n, [0.25] * n]
                        for state in bank.call_many("transfer", columns)["sqlstate"]:
                            done[state] += 1
                    else:
                        try:
                            bank.call("transfer", source, target, random.randrange(1, 90))
                            done[""] += 1
                        except lockwork.Abort as error:
                            done[error.sqlstate] += 1
            print(done[""], done["BK001"])
        """
        workers = [python(worker, server.address, seed) for seed in range(1, 5)]
        outcomes = [tuple(map(int, worker.communicate(timeout=120)[0].split())) for worker in workers]
        assert all(worker.returncode == 0 for worker in workers)
        assert all(sum(outcome) == 135 + 15 * 200 for outcome in outcomes)
        assert sum(aborted for _, aborted in outcomes) > 0 and sum(committed for committed, _ in outcomes) > 0
        assert total(bank) == before
    assert server.end() == 0
    with lockwork.open(tmp_path / "bank") as bank:
        assert total(bank) == before


def test_a_folder_is_open_once(tmp_path):
    with lockwork.open(tmp_path):
        for _ in range(2):
            with pytest.raises(lockwork.Locked, match=str(os.getpid())) as caught:
                lockwork.open(tmp_path)
            assert caught.value.is_retryable
        other = python(
            """
            import sys, lockwork
            try:
                lockwork.open(sys.argv[1])
            except lockwork.Locked as error:
                print(error.sqlstate)
            """,
            tmp_path,
        )
        assert other.communicate(timeout=60)[0] == "55006\n"
    lockwork.open(tmp_path).close()


@pytest.mark.parametrize("seed", range(4))
def test_what_was_answered_survives_a_kill_in_call_many(tmp_path, seed):
    with lockwork.open(tmp_path) as bank:
        bank.define(BANK)
        bank.execute("UPDATE accounts SET balance = 1000000 WHERE id = 1")
    worker = python(
        """
        import sys, lockwork
        n = 2000
        with lockwork.open(sys.argv[1]) as bank:
            for round in range(10**6):
                answer = bank.call_many("transfer", [[1] * n, [2] * n, [0.01] * n])
                print(answer["left"][-1], flush=True)
        """,
        tmp_path,
    )
    last = worker.stdout.readline()
    time.sleep(0.02 + 0.03 * seed)
    worker.send_signal(signal.SIGKILL)
    rest = worker.stdout.read().splitlines(keepends=True)
    assert worker.wait() == -signal.SIGKILL
    last = [line for line in [last, *rest] if line.endswith("\n")][-1]
    with lockwork.open(tmp_path) as bank:
        left, right = (balance for _, balance in bank.execute("SELECT id, balance FROM accounts WHERE id >= 1 LIMIT 9"))
        assert left + right == 1001000
        assert left <= Decimal(last)
        # Not more than the calls that were on the way, all of them or a part.
        assert left >= Decimal(last) - 20


def test_damage_is_named(tmp_path):
    with lockwork.open(tmp_path) as bank:
        bank.define(BANK)
    segment = sorted((tmp_path / "log").iterdir())[0]
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    with pytest.raises(lockwork.Damaged, match=segment.name):
        lockwork.open(tmp_path)


def test_a_forked_child_may_not_use_its_parents_database():
    # In a process of its own, because a test runner has threads.
    child = python(
        """
        import os, lockwork
        database = lockwork.open(workers=1)
        database.define("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
        child = os.fork()
        if child == 0:
            try:
                database.execute("SELECT n FROM t WHERE id = 1")
            except lockwork.Closed as error:
                print("forked" in error.message, flush=True)
            del database
            with lockwork.open(workers=1) as own:
                own.define("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT NOT NULL)")
                print(own.execute("INSERT INTO t VALUES (1, 2)").rowcount, flush=True)
            os._exit(0)
        print(os.waitpid(child, 0)[1], database.execute("INSERT INTO t VALUES (1, 2)").rowcount, flush=True)
        """
    )
    assert child.communicate(timeout=60)[0].splitlines() == ["True", "1", "0 1"]
    assert child.returncode == 0


def test_a_server_that_dies_ends_the_connection_and_another_one_goes_on(start_server, tmp_path):
    server = start_server("--data", tmp_path / "bank")
    bank = lockwork.connect(server.address)
    bank.define(BANK)
    bank.call("transfer", 1, 2, 10)
    server.end(signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(lockwork.Closed):
            bank.call("transfer", 1, 2, 10)
    with pytest.raises(lockwork.ConnectError, match="lockwork serve") as caught:
        lockwork.connect(server.address)
    assert caught.value.is_retryable
    again = start_server("--data", tmp_path / "bank")
    with lockwork.connect(again.address) as bank:
        assert bank.execute("SELECT balance FROM accounts WHERE id = 1").scalar() == 990


def test_other_threads_run_while_one_waits(start_server):
    """A call that waits holds up nobody, whose server answers or not."""
    server = start_server()
    with lockwork.connect(server.address) as bank:
        bank.define(BANK)
        server.stop()
        try:
            waiting = threading.Thread(target=lambda: bank.execute("SELECT balance FROM accounts WHERE id = 1"))
            waiting.start()
            began, turns = time.monotonic(), 0
            while time.monotonic() - began < 0.3:
                turns += 1
                time.sleep(0.001)
            assert turns > 1 and waiting.is_alive()
        finally:
            server.process.send_signal(signal.SIGCONT)
        waiting.join(30)
        assert not waiting.is_alive()


def test_ctrl_c_ends_a_wait(start_server):
    server = start_server()
    worker = python(
        """
        import signal, sys, lockwork
        # Who runs the tests in the background may have it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        bank = lockwork.connect(sys.argv[1])
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            bank.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
        server.address,
        stdin=subprocess.PIPE,
    )
    assert worker.stdout.readline() == "ready\n"
    server.stop()
    try:
        worker.stdin.write("\n")
        worker.stdin.flush()
        time.sleep(0.3)
        worker.send_signal(signal.SIGINT)
        assert worker.communicate(timeout=20)[0] == "interrupted\n"
    finally:
        server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"engine": "quick"}, "quick"),
        ({"durability": "maybe"}, "fsync, async and none"),
        ({"workers": 0}, "thread"),
    ],
)
def test_options_that_are_not_possible_are_refused(options, says):
    with pytest.raises(lockwork.Error, match=says):
        lockwork.open(**options)


@pytest.mark.parametrize("address", ["127.0.0.1:x", ":1", "127.0.0.1:99999"])
def test_addresses_that_are_none_are_refused(address):
    with pytest.raises(lockwork.DataError, match="write HOST:PORT"):
        lockwork.connect(address)


def test_without_numpy_columns_are_lists(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ImportError('not here')")
    worker = python(
        """
        import datetime, lockwork
        with lockwork.open(workers=1) as db:
            db.define('''CREATE PROCEDURE echo(i BIGINT, b BOOLEAN, d DECIMAL(9, 2), t TIMESTAMP,
                OUT i2 BIGINT, OUT b2 BOOLEAN, OUT d2 DECIMAL(9, 2), OUT t2 TIMESTAMP)
                AS BEGIN i2 := i; b2 := b; d2 := d; t2 := t; END;''')
            moment = datetime.datetime(2024, 1, 31, 12, 0, 0, 5)
            answer = db.call_many("echo", [range(2), (True, False), lockwork.Scaled([1, 2], 2), [moment] * 2])
            print(answer["i2"] == [0, 1], answer["b2"] == [True, False], *map(str, answer["d2"]))
            print(answer["t2"] == [moment] * 2, answer["sqlstate"] == ["", ""])
            print(db.call_many("echo", [[1], [True], [2], [moment]], scaled=True)["d2"])
        """,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert worker.communicate(timeout=60)[0] == "True True 0.01 0.02\nTrue True\nScaled([200], 2)\n"
