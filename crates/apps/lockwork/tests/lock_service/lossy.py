"""Clients of docs/examples/lock_client.py in one process, over a network that loses and doubles packets: they count
under a lock, and some of their requests are given up. Words: folder of the client, address, seed."""

import random
import sys
import threading

sys.path.insert(0, sys.argv[1])
import lock_client  # noqa: E402

MACHINES, ROUNDS = 4, 60
random.seed(int(sys.argv[3]))


class Lossy(lock_client.Client):
    def _send(self, p, body=b""):
        # Sessions begin and are renewed; else the test would be one of leases.
        sure = p["kind"] in (lock_client.JOIN, lock_client.RENEW)
        for _ in range(1 if sure else random.choice([0, 1, 1, 1, 1, 1, 1, 2])):
            super()._send(p, body)

    def _receive(self, most):
        found = super()._receive(most)
        control = found and found[0]["kind"] in (lock_client.WELCOME, lock_client.RENEWED)
        return None if found and not control and random.random() < 0.1 else found


total = newest = 0
failures = []


def work():
    global total, newest
    try:
        client = Lossy(sys.argv[2])
        done = 0
        while done < ROUNDS:
            patience = random.choice([0, 0.01, 60, 60])
            token = client.acquire("lossy" if done % 2 else "other", timeout=patience)
            if token is None:
                assert patience < 60, "not granted in a minute"
                continue
            if done % 2:
                before = total
                assert token > newest, f"token {token} after {newest}"
                newest = token
                total = before + 1
            client.release("lossy" if done % 2 else "other")
            done += 1
        client.close()
    except BaseException as error:
        failures.append(error)
        raise


threads = [threading.Thread(target=work) for _ in range(MACHINES)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures and total == MACHINES * ROUNDS // 2, (total, failures)
print("counted", total)
