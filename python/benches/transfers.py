"""Transfers a second, one by one and by call_many, in this process and at a server.

    LOCKWORK_BIN=target/release/lockwork python python/benches/transfers.py

Prints the machine, the settings, and medians of the rounds, which take turns.
"""

import argparse
import os
import platform
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy

import lockwork

BANK = (Path(__file__).resolve().parents[2] / "examples/bank.sql").read_text()
LOAD = """CREATE PROCEDURE load(id BIGINT, n DECIMAL(12, 2)) AS BEGIN INSERT INTO accounts VALUES (id, n); END;"""


@contextmanager
def serve(*words):
    command = [os.environ["LOCKWORK_BIN"], "serve", "--listen", "127.0.0.1:0", *map(str, words)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        with lockwork.connect("127.0.0.1:" + server.stdout.readline().split()[-1]) as bank:
            yield bank
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def fill(bank, accounts):
    bank.define(BANK + LOAD)
    ids = numpy.arange(3, accounts + 1)
    assert (bank.call_many("load", [ids, numpy.full(len(ids), 1000)])["sqlstate"] == "").all()


def total(bank, accounts):
    cents, at = 0, 0
    while at <= accounts:
        rows = bank.execute("SELECT id, balance FROM accounts WHERE id >= $1 LIMIT 10000", (at,))
        if not len(rows):
            break
        cents += sum(int(balance * 100) for _, balance in rows)
        at = rows[-1][0] + 1
    return cents


def calls(random, accounts, count):
    source = random.integers(1, accounts + 1, count)
    return source, source % accounts + 1, lockwork.Scaled(numpy.ones(count, dtype=numpy.int64), 2)


def one_by_one(bank, columns, threads):
    transfer = bank.procedure("transfer")
    rows = list(zip(columns[0].tolist(), columns[1].tolist()))

    def work(part):
        for source, target in part:
            transfer(source, target, 0.01)

    workers = [threading.Thread(target=work, args=(rows[at::threads],)) for at in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def many(bank, columns, scaled):
    assert (bank.call_many("transfer", columns, scaled=scaled)["sqlstate"] == "").all()


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--accounts", type=int, default=100_000)
    words.add_argument("--calls", type=int, default=200_000, help="of call_many")
    words.add_argument("--single", type=int, default=4_000, help="one by one")
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--seed", type=int, default=1)
    options = words.parse_args()
    model = [line for line in open("/proc/cpuinfo") if line.startswith("model name")][:1] or [": ?"]
    print(f"machine: {os.cpu_count()} cores, {model[0].split(':')[1].strip()}, {platform.platform()}")
    versions = f"numpy {numpy.__version__}, lockwork {lockwork.__version__}"
    print(f"python {platform.python_version()}, {versions}, {vars(options)}")
    random = numpy.random.default_rng(options.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lockwork-bench-")))
        banks = {
            "in memory": stack.enter_context(lockwork.open()),
            "folder, fsync": stack.enter_context(lockwork.open(folder / "a")),
            "server, in memory": stack.enter_context(serve()),
            "server, fsync": stack.enter_context(serve("--data", folder / "b")),
        }
        for bank in banks.values():
            fill(bank, options.accounts)
        ways = {
            "one by one": (options.single, lambda bank, columns: one_by_one(bank, columns, 1)),
            "one by one, 8 threads": (options.single, lambda bank, columns: one_by_one(bank, columns, 8)),
            "call_many": (options.calls, lambda bank, columns: many(bank, columns, False)),
            "call_many, scaled": (options.calls, lambda bank, columns: many(bank, columns, True)),
        }
        rates = {}
        for _ in range(options.rounds):
            for place, bank in banks.items():
                for way, (count, run) in ways.items():
                    columns = calls(random, options.accounts, count)
                    began = time.perf_counter()
                    run(bank, columns)
                    rates.setdefault((place, way), []).append(count / (time.perf_counter() - began))
        for place, bank in banks.items():
            assert total(bank, options.accounts) == options.accounts * 100_000, f"{place}: money was lost or made"
        print("transfers a second, medians | " + " | ".join(ways))
        for place in banks:
            print(f"{place} | " + " | ".join(f"{statistics.median(rates[place, way]):,.0f}" for way in ways))


main()
