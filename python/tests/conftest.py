"""Databases of each kind, and programs that the tests start."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import lockwork

ROOT = Path(__file__).resolve().parents[2]
BANK = (ROOT / "examples/bank.sql").read_text()


class Program:
    """`lockwork COMMAND`, until the test is over."""

    def __init__(self, *words):
        binary = os.environ.get("LOCKWORK_BIN")
        if not binary:
            pytest.skip("LOCKWORK_BIN does not say where the lockwork command is")
        self.process = subprocess.Popen([binary, *map(str, words)], stdout=subprocess.PIPE, text=True)
        self.ready = self.process.stdout.readline().strip()
        assert "ready" in self.ready, self.ready

    def stop(self):
        """Stops it, and waits until each of its threads stands still: until then one could still answer."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        while any(stat.read_text().rpartition(") ")[2][0] != "T" for stat in tasks.glob("*/stat")):
            time.sleep(0.001)

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.stdout.close()
        return self.process.wait(30)


class Server(Program):
    def __init__(self, *words):
        super().__init__("serve", "--listen", "127.0.0.1:0", *words)
        self.address = "127.0.0.1:" + self.ready.rsplit(" ", 1)[1]


@pytest.fixture
def start_server():
    servers = []

    def start(*words):
        servers.append(Server(*words))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


@pytest.fixture(params=["memory", "folder", "server"])
def database(request, tmp_path):
    """An empty database, of each kind."""
    if request.param == "server":
        server = Server()
        with lockwork.connect(server.address) as database:
            yield database
        assert server.end() == 0
    else:
        with lockwork.open(tmp_path / "data" if request.param == "folder" else None, workers=1) as database:
            yield database


@pytest.fixture
def bank(database):
    database.define(BANK)
    return database
