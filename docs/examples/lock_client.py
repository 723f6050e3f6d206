"""A client of the lock service in the standard library of Python, written from docs/lock-protocol.md alone.

It takes exclusive locks by number or by name, waits in queues, releases, and hands locks over to others. It is the simplest
client that is correct: one request for a lock at a time, no shared locks, no search for deadlocks.

    python3 lock_client.py vectors docs/lock-protocol-vectors.json
    python3 lock_client.py lock 127.0.0.1:7400 orders/17
"""

import ipaddress
import json
import os
import socket
import struct
import sys
import threading
import time

HEADER = struct.Struct("<HBBHHQQIHBBQHHIIBBBBQ")
MAGIC, VERSION, MAX_BYTES = 0x4B4C, 1, 1400

ACQUIRE, RELEASE, FREE, MOVE, OPEN, CLOSE, ENROL, SEEK = range(8)
GRANT, DONE, REFUSED, ACK, ERROR, PROBE = range(8, 14)
JOIN, WELCOME, RENEW, RENEWED, LEAVE, LEFT, DIED, SWEEP, SWEPT, STATUS = range(16, 26)
NAME, UNNAME = 30, 31
NO_SUCH_LOCK, NO_SUCH_SESSION, NO_SUCH_MACHINE, FULL, MOVED = 1, 2, 3, 4, 10

SHARED, EXCLUSIVE = 1, 3
AGENT, GRANTED, TRY, BUSY = 4, 8, 16, 32
MASK = (1 << 64) - 1


def siphash13(key, data):
    """SipHash with one round a word and three at the end."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def turn(x, bits):
        return ((x << bits) | (x >> (64 - bits))) & MASK

    def round_():
        v[0] = (v[0] + v[1]) & MASK
        v[1] = turn(v[1], 13) ^ v[0]
        v[0] = turn(v[0], 32)
        v[2] = (v[2] + v[3]) & MASK
        v[3] = turn(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & MASK
        v[3] = turn(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & MASK
        v[1] = turn(v[1], 17) ^ v[2]
        v[2] = turn(v[2], 32)

    last = (len(data) & 0xFF) << 56
    whole = len(data) // 8 * 8
    words = list(struct.unpack(f"<{whole // 8}Q", data[:whole]))
    last |= int.from_bytes(data[whole:], "little")
    for word in words + [last]:
        v[3] ^= word
        round_()
        v[0] ^= word
    v[2] ^= 0xFF
    for _ in range(3):
        round_()
    return v[0] ^ v[1] ^ v[2] ^ v[3]


FIELDS = (
    "kind flags state hops lock request requester requester_session sender session target incarnation token part parts"
).split()


def packet(kind, lock=0, **fields):
    """A packet as a dictionary, with zero for what is not given."""
    return {**dict.fromkeys(FIELDS, 0), "kind": kind, "lock": lock, **fields}


def encode(p, body=b"", key=None):
    """The datagram of a packet."""
    length = len(body) + 8 if body else 0
    head = HEADER.pack(
        MAGIC, VERSION, 0, 0, p["requester"], p["lock"], p["request"], p["requester_session"], length, p["part"],
        p["parts"], p["token"], p["sender"], p["target"], p["incarnation"], p["session"], p["kind"], p["flags"],
        p["state"] | p["hops"] << 2, 0, 0,
    )
    if key:
        head = head[:56] + struct.pack("<Q", siphash13(key, head[:55]))
    if not body:
        return head
    return head + body + struct.pack("<Q", siphash13(key, head[:32] + body) if key else 0)


def decode(data, key=None):
    """Packet and body of a datagram; nothing if it is none."""
    if not 64 <= len(data) <= MAX_BYTES:
        return None
    (magic, version, zero, rack, requester, lock, request, requester_session, length, part, parts, token, sender, target,
     incarnation, session, kind, flags, state, zero_too, tag) = HEADER.unpack(data[:64])
    body = data[64:]
    if length != len(body) or length % 8 or magic != MAGIC or version != VERSION or zero or rack or zero_too:
        return None
    if tag != (siphash13(key, data[:55]) if key else 0):
        return None
    if body:
        body, tag = body[:-8], struct.unpack("<Q", body[-8:])[0]
        if tag != (siphash13(key, data[:32] + body) if key else 0):
            return None
    return packet(
        kind, lock, flags=flags, state=state & 3, hops=state >> 2, request=request, requester=requester,
        requester_session=requester_session, sender=sender, session=session, target=target, incarnation=incarnation,
        token=token, part=part, parts=parts,
    ), body


def name_body(name):
    data = bytes([len(name)]) + name
    return data + bytes(-len(data) % 8)


def newer(a, b):
    """Whether incarnation b comes after a, in the ring of 32 bits."""
    return 0 < (b - a) & 0xFFFFFFFF < 1 << 31


class Lost(Exception):
    """The session has ended, and with it every lock."""


class Moved(Exception):
    """Another service decides on the lock: the address, host and port, is in args[0]."""


class Request:
    """One wish for one lock."""

    def __init__(self, lock, number, flags):
        self.lock, self.number, self.flags = lock, number, flags
        self.state, self.token = "asking", 0
        self.again, self.delay = 0.0, 0.002
        self.abandoned = False


class Agent:
    """The agent of a lock, which is here: who holds, who waits, and what was asked of the decider."""

    def __init__(self, incarnation, token):
        self.incarnation, self.token = incarnation, token
        self.holder = None
        self.queue = []      # of (machine, mode, session, request)
        self.parts = {}
        self.op = None       # (kind, number, packet, body), while it leaves or is taken over
        self.again, self.delay = 0.0, 0.002


class Client:
    """A session. Any number of threads may use it; a thread of its own drives it."""

    def __init__(self, address, key=None, timeout=5.0):
        host, port = address.rsplit(":", 1)
        self.key = key
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((host, int(port)))
        self.changed = threading.Condition()
        self.requests, self.agents, self.arriving = {}, {}, {}
        self.numbers = 0
        self.names, self.questions, self.refused = {}, {}, {}
        self.over = self.left = False
        self._join(timeout)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    # What a program calls.

    def acquire(self, lock, timeout=None):
        """Takes a lock, by number or name: its fencing token, or None if it was not granted in time. A timeout of 0
        does not wait for others."""
        end = None if timeout is None else time.monotonic() + (timeout or 0.2)
        with self.changed:
            number = self._number_of(lock, end) if isinstance(lock, str) else lock
            if number is None:
                return None
            # One request for a lock at a time; one that was given up is still settled.
            while any(request.lock == number for request in self.requests.values()):
                if not self._wait(end):
                    return None
            self.numbers += 1
            request = Request(number, os.getpid() << 32 | self.numbers, EXCLUSIVE | (TRY if timeout == 0 else 0))
            self.requests[request.number] = request
            self._ask(request, time.monotonic())
            while request.state in ("asking", "queued") and self._wait(end):
                pass
            if request.state == "held":
                return request.token
            if request.state == "failed":
                raise LookupError(f"there is no lock {lock}")
            if request.state == "moved":
                raise Moved(request.at)
            if request.number in self.requests:
                request.abandoned = True
            return None

    def release(self, lock):
        """Gives a lock back, or hands it to the first who waits."""
        with self.changed:
            number = self.names[lock.encode()] if isinstance(lock, str) else lock
            agent = self.agents.get(number)
            if self.over or agent is None or agent.holder is None:
                raise Lost()
            self.requests.pop(agent.holder)
            agent.holder = None
            self._leave(number, agent)
            self.changed.notify_all()

    def close(self):
        """Waits until what was released is gone, and ends the session."""
        with self.changed:
            end = time.monotonic() + 1
            while self.agents and self._wait(end):
                pass
            end = time.monotonic() + 0.2
            while not self.left and not self.over and time.monotonic() < end:
                self._send(self._mine(packet(LEAVE)))
                self._wait(time.monotonic() + 0.01)
            self.over = True
        self.thread.join()
        self.socket.close()

    # Sessions.

    def _join(self, timeout):
        end, again, since, nonce = time.monotonic() + timeout, 0.0, 0.0, 0
        while time.monotonic() < end:
            now = time.monotonic()
            if not nonce or now - since > 0.4:
                nonce, since = int.from_bytes(os.urandom(8), "little") | 1, now
            if now >= again:
                self._send(packet(JOIN, request=nonce))
                again = now + 0.02
            found = self._receive(0.02)
            if found is None or found[0]["request"] != nonce:
                continue
            p, body = found
            if p["kind"] == ERROR and p["token"] == FULL:
                raise ConnectionError("the service is full")
            if p["kind"] == WELCOME:
                self.machine, self.session = p["requester"], p["requester_session"]
                self.locks, lease_ms = struct.unpack("<QI", body[:12])
                self.lease = lease_ms / 1000
                self.lease_until, self.renew = since + self.lease * 7 / 8, 0.0
                return
        raise ConnectionError("nobody answers")

    def _mine(self, p):
        """A packet of this machine, about its own business unless it says otherwise."""
        p["sender"], p["session"] = self.machine, self.session
        if not p["requester_session"]:
            p["requester"], p["requester_session"] = self.machine, self.session
        return p

    def _send(self, p, body=b""):
        try:
            self.socket.send(encode(p, body, self.key))
        except ConnectionRefusedError:
            pass

    def _receive(self, most):
        self.socket.settimeout(max(most, 0.0005))
        try:
            return decode(self.socket.recv(2048), self.key)
        except (TimeoutError, ConnectionRefusedError):
            return None

    def _wait(self, end):
        """Waits for a change: whether there is time left."""
        if self.over and not self.left:
            raise Lost()
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            return False
        self.changed.wait(left)
        if self.over and not self.left:
            raise Lost()
        return True

    def _run(self):
        while not self.over:
            found = self._receive(0.002)
            with self.changed:
                now = time.monotonic()
                if now >= self.lease_until:
                    self.over = True
                elif found is not None and found[0]["target"] == self.machine:
                    self._handle(*found, now)
                if not self.over:
                    self._due(now)
                self.changed.notify_all()

    def _due(self, now):
        if now >= self.renew:
            self.renew = now + self.lease / 8
            self._send(self._mine(packet(RENEW, request=int(now * 1e9))))
        for request in list(self.requests.values()):
            if request.state in ("asking", "queued") and now >= request.again:
                self._ask(request, now)
        for agent in self.agents.values():
            if agent.op and now >= agent.again:
                agent.delay = min(agent.delay * 2, 0.128)
                agent.again = now + agent.delay
                self._send(*agent.op[2:])
        for name, question in self.questions.items():
            if now >= question[1]:
                question[1] = now + 0.02
                self._send(self._mine(packet(NAME, request=question[0], part=NAME)), name_body(name))

    # Requests.

    def _ask(self, request, now):
        request.delay = 0.25 if request.state == "queued" else min(request.delay * 2, 0.128)
        request.again = now + request.delay
        p = packet(ACQUIRE, request.lock, flags=request.flags, request=request.number, part=ACQUIRE)
        self._send(self._mine(p))

    def _number_of(self, name, end):
        name = name.encode()
        while name not in self.names:
            if name in self.refused:
                raise LookupError(f"the service gives no lock for '{name.decode()}': problem {self.refused.pop(name)}")
            if name not in self.questions:
                self.numbers += 1
                self.questions[name] = [self.numbers, 0.0]
            if not self._wait(end):
                return None
        return self.names[name]

    def _wanted(self, number):
        """A request that still waits for its lock, so that a grant counts."""
        request = self.requests.get(number)
        return request if request and request.state in ("asking", "queued") and not request.abandoned else None

    # Packets.

    def _handle(self, p, body, now):
        kind, lock = p["kind"], p["lock"]
        agent = self.agents.get(lock)
        own = p["requester"] == self.machine and p["requester_session"] == self.session
        if kind == RENEWED and own:
            self.lease_until = p["request"] / 1e9 + self.lease * 7 / 8
        elif kind == LEFT and own:
            self.left = True
        elif kind == ERROR and p["token"] == NO_SUCH_SESSION and own and p["session"] == 0:
            self.over = True
        elif kind in (NAME, UNNAME) and p["flags"] & GRANTED and own:
            name = body[1 : 1 + body[0]]
            if self.questions.get(name, [0])[0] == p["request"]:
                del self.questions[name]
                self.names[name] = lock
        elif kind == ERROR and p["part"] == NAME and body:
            name = body[1 : 1 + body[0]]
            if self.questions.pop(name, None):
                self.refused[name] = p["token"]
        elif kind in (DIED, SWEEP):
            if kind == DIED:
                dead = (p["requester"], p["requester_session"])
                for one in self.agents.values():
                    one.queue = [waiter for waiter in one.queue if (waiter[0], waiter[2]) != dead]
            keep = ("request", "incarnation", "requester", "requester_session")
            self._send(self._mine(packet(SWEPT, lock, **{field: p[field] for field in keep})))
        elif kind == ACQUIRE and not p["flags"] & GRANTED:
            self._asked(p, agent, own)
        elif kind in (RELEASE, ENROL):
            if agent and not agent.op:
                who = (p["requester"], p["request"])
                agent.queue = [waiter for waiter in agent.queue if (waiter[0], waiter[3]) != who]
                self._acknowledge(p, 0)
            elif not agent and p["hops"] < 4:
                self._send(self._mine({**p, "hops": p["hops"] + 1, "target": 0}))
        elif kind == GRANT and p["flags"] & AGENT:
            self._granted(p, body)
        elif kind == ACK and p["part"] == ACQUIRE and own:
            request = self.requests.get(p["request"])
            if request and request.state in ("asking", "queued"):
                if p["flags"] & BUSY:
                    request.state = "busy"
                    del self.requests[request.number]
                elif request.state == "asking":
                    request.state, request.again = "queued", now + 0.25
        elif kind == ACK and p["part"] == GRANT and p["flags"] & AGENT:
            if agent and agent.op and agent.op[0] == MOVE and agent.op[1] == p["request"]:
                del self.agents[lock]
        elif kind in (DONE, REFUSED) and agent and agent.op and agent.op[1] == p["request"]:
            self._answered(p, agent)
        elif kind == ERROR and p["token"] == NO_SUCH_MACHINE:
            if agent and agent.op and agent.op[0] == MOVE and agent.op[1] == p["request"]:
                self._leave(lock, agent)      # to the next in the queue
        elif kind == ERROR and p["token"] == NO_SUCH_LOCK and self._wanted(p["request"]):
            self.requests.pop(p["request"]).state = "failed"
        elif kind == ERROR and p["token"] == MOVED and self._wanted(p["request"]):
            request = self.requests.pop(p["request"])
            host = ipaddress.IPv6Address(body[:16])
            request.state, request.at = "moved", (str(host.ipv4_mapped or host), int.from_bytes(body[16:24], "little"))

    def _asked(self, p, agent, own):
        """Somebody asks for a lock whose agent should be here."""
        if agent:
            if own or agent.op:
                return                        # it holds, or it asks again when the agent has left
            waiter = (p["requester"], p["flags"] & 3, p["requester_session"], p["request"])
            if not p["flags"] & TRY and waiter not in agent.queue:
                agent.queue.append(waiter)
            self._acknowledge(p, BUSY if p["flags"] & TRY else 0)
        elif p["hops"] < 4:
            # The grant may just be late: round once more.
            self._send(self._mine({**p, "hops": p["hops"] + 1, "target": 0}))
        elif own and p["request"] in self.requests and p["state"] == 3:
            # The grant is lost. Nobody else can hold: take over what was granted.
            agent = self.agents[p["lock"]] = Agent(p["incarnation"], 0)
            self.numbers += 1
            number = 0xFFFFFFFF << 32 | self.numbers
            move = packet(
                MOVE, p["lock"], flags=EXCLUSIVE, request=number, target=self.machine, incarnation=p["incarnation"], parts=1
            )
            self._start(agent, "take over", number, self._mine(move))

    def _acknowledge(self, p, flags):
        self._send(self._mine(packet(
            ACK, p["lock"], flags=p["flags"] & 3 | flags, request=p["request"], requester=p["requester"],
            requester_session=p["requester_session"], target=p["requester"], part=p["kind"], parts=p["parts"],
        )))

    def _granted(self, p, body):
        """A lock with its agent: from the decider (no parts), or from another machine with its queue."""
        lock, agent = p["lock"], self.agents.get(p["lock"])
        if agent and agent.op and agent.op[0] == "take over" and agent.op[1] == p["request"]:
            return self._taken(lock, agent, p["incarnation"], p["token"])
        queue = []
        if p["parts"]:
            base = p["incarnation"] - 1 if p["part"] == 0 else p["incarnation"]
            place = (lock, p["request"], base & 0xFFFFFFFF, p["parts"])
            parts = self.arriving.setdefault(place, {})
            parts[p["part"]] = (p, body)
            if len(parts) < p["parts"]:
                return
            del self.arriving[place]
            p = parts[0][0]
            for part in range(p["parts"]):
                for machine, mode, _, session, request in struct.iter_unpack("<HBBIQ", parts[part][1]):
                    queue.append((machine, mode, session, request))
            ack = {**p, "kind": ACK, "flags": p["flags"] & 3 | AGENT, "target": p["sender"], "part": GRANT, "parts": 0}
            self._send(self._mine(ack))
        if agent and not newer(agent.incarnation, p["incarnation"]):
            return                            # a copy
        agent = self.agents[lock] = Agent(p["incarnation"], p["token"])
        agent.queue = [waiter for waiter in queue if waiter[0] != self.machine]
        self._hold(lock, agent, p["request"])

    def _hold(self, lock, agent, number):
        request = self._wanted(number)
        if request and request.lock == lock:
            request.state, request.token, agent.holder = "held", agent.token, number
        else:
            self.requests.pop(number, None)
            self._leave(lock, agent)          # nobody wants it any more

    def _taken(self, lock, agent, incarnation, token):
        agent.incarnation, agent.token, agent.op = incarnation, token, None
        number = next((n for n, request in self.requests.items() if request.lock == lock), 0)
        self._hold(lock, agent, number)

    def _answered(self, p, agent):
        mine = p["sender"] == self.machine and p["state"] != 0
        if p["kind"] == DONE and mine:
            return
        if agent.op[0] == "take over" and p["kind"] == REFUSED and p["state"] == 2:
            if p["incarnation"] == (agent.incarnation + 1) & 0xFFFFFFFF:
                # An earlier copy was done, and its answer was lost.
                return self._taken(p["lock"], agent, p["incarnation"], p["token"] | 0xFFFF)
        # Gone, or granted anew since; then that grant tells.
        del self.agents[p["lock"]]

    def _leave(self, lock, agent):
        """Hands the lock to the first who waits, or gives it back."""
        if agent.queue:
            (machine, mode, session, request), rest = agent.queue[0], agent.queue[1:]
            # What does not fit into one packet asks again.
            agent.queue = rest[:82]
            body = b"".join(struct.pack("<HBBIQ", m, kind, 0, s, r) for m, kind, s, r in agent.queue)
            p = packet(
                MOVE, lock, flags=mode, request=request, requester=machine, requester_session=session, target=machine,
                incarnation=agent.incarnation, parts=1,
            )
            return self._start(agent, MOVE, request, self._mine(p), body)
        self.numbers += 1
        number = 0xFFFFFFFF << 32 | self.numbers
        p = packet(FREE, lock, flags=EXCLUSIVE, request=number, target=self.machine, incarnation=agent.incarnation)
        self._start(agent, FREE, number, self._mine(p))

    def _start(self, agent, kind, number, p, body=b""):
        agent.op, agent.delay = (kind, number, p, body), 0.002
        agent.again = time.monotonic() + agent.delay
        self._send(p, body)


def play_vectors(path):
    """Encodes and decodes every packet of a file of test vectors."""
    with open(path, encoding="utf-8") as file:
        vectors = json.load(file)
    for vector in vectors["packets"]:
        key = bytes.fromhex(vector["key"]) if vector["key"] else None
        fields, body, data = vector["fields"], bytes.fromhex(vector["body"]), bytes.fromhex(vector["datagram"])
        assert encode(fields, body, key) == data, vector["about"]
        assert decode(data, key) == (fields, body), vector["about"]
        assert decode(data[:-1], key) is None and decode(data, bytes(15) + b"x") is None, vector["about"]
    return len(vectors["packets"])


class Racks:
    """A session with each of several services that share the locks, as far as it is needed. Locks have numbers."""

    def __init__(self, address, key=None):
        self.key, self.first, self.held = key, address, {}
        self.clients = {address: Client(address, key)}
        self.places = {}     # which service decides on a part of the locks

    def acquire(self, lock, timeout):
        """As that of a Client."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            client = self.clients[self.places.get(lock % 64, self.first)]
            try:
                token = client.acquire(lock, end - time.monotonic())
            except Moved as moved:
                address = "%s:%d" % moved.args[0]
                if address not in self.clients:
                    self.clients[address] = Client(address, self.key)
                self.places[lock % 64] = address
                continue
            self.held[lock] = client
            return token
        return None

    def release(self, lock):
        """As that of a Client."""
        self.held.pop(lock).release(lock)

    def close(self):
        """As that of a Client."""
        for client in self.clients.values():
            client.close()


def main(words):
    if words[:1] == ["vectors"]:
        print(f"{play_vectors(words[1])} packets")
    elif words[:1] == ["count"]:
        # Adds to a number in a file, many times, under a lock: for tests of exclusion.
        address, lock, path, rounds = words[1:]
        client = Racks(address) if lock.isdigit() else Client(address)
        for _ in range(int(rounds)):
            token = client.acquire(lock if not lock.isdigit() else int(lock), timeout=60)
            assert token is not None, "not granted in a minute"
            with open(path, encoding="ascii") as file:
                number, newest = map(int, file.read().split())
            assert token > newest, f"token {token} after {newest}"
            with open(path, "w", encoding="ascii") as file:
                file.write(f"{number + 1} {token}")
            client.release(lock if not lock.isdigit() else int(lock))
        client.close()
    elif words[:1] == ["lock"]:
        client = Client(words[1])
        print(f"token {client.acquire(words[2])}; Enter releases", flush=True)
        sys.stdin.readline()
        client.release(words[2])
        client.close()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
