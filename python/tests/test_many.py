"""Many calls at once: columns in, columns out."""

import datetime
from decimal import Decimal

import pytest

import lockwork

numpy = pytest.importorskip("numpy")
pyarrow = pytest.importorskip("pyarrow")


def test_many_calls_are_those_made_one_by_one(database):
    random = numpy.random.default_rng(seed := 20261123)
    print("seed", seed)
    database.define(
        """CREATE TABLE a (id BIGINT PRIMARY KEY, n DECIMAL(12, 2) NOT NULL) WITH (ordered = true);
           CREATE TABLE b (id BIGINT PRIMARY KEY, n DECIMAL(12, 2) NOT NULL) WITH (ordered = true);"""
    )
    body = """AS BEGIN
        SELECT n INTO rest FROM {t} WHERE id = source;
        IF rest < amount THEN RAISE EXCEPTION 'too little' USING ERRCODE = 'BK001'; END IF;
        rest := rest - amount;
        UPDATE {t} SET n = n - amount WHERE id = source;
        UPDATE {t} SET n = n + amount WHERE id = target;
    END;"""
    for t in "ab":
        database.define(
            f"CREATE PROCEDURE move_{t}(source BIGINT, target BIGINT, amount DECIMAL(12, 2), OUT rest DECIMAL(12, 2)) "
            + body.format(t=t)
        )
        for id in range(20):
            database.execute(f"INSERT INTO {t} VALUES ($1, 100)", (id,))
    calls = 500
    source, target = random.integers(0, 22, calls), random.integers(0, 20, calls)
    cents = random.integers(1, 9000, calls)
    answer = database.call_many("move_a", {"amount": lockwork.Scaled(cents, 2), "source": source, "target": target})
    states = set()
    for at in range(calls):
        try:
            amount = Decimal(int(cents[at])).scaleb(-2)
            state, rest = "", database.call("move_b", source[at], target[at], amount).rest
        except lockwork.Abort as error:
            state, rest = error.sqlstate, Decimal(0)
        states.add(state)
        assert (answer["sqlstate"][at], answer["rest"][at]) == (state, rest), at
    assert states == {"", "BK001", "P0002"}
    rows = [list(database.execute(f"SELECT id, n FROM {t} WHERE id >= 0 LIMIT 100")) for t in "ab"]
    assert rows[0] == rows[1]


@pytest.fixture
def echo(database):
    database.define(
        """CREATE PROCEDURE echo(i SMALLINT, b BOOLEAN, d DECIMAL(9, 3), t TIMESTAMP, s VARCHAR(8), y BYTEA(2),
               OUT i2 SMALLINT, OUT b2 BOOLEAN, OUT d2 DECIMAL(9, 3), OUT t2 TIMESTAMP, OUT s2 VARCHAR(8),
               OUT y2 BYTEA(2))
           AS BEGIN i2 := i; b2 := b; d2 := d; t2 := t; s2 := s; y2 := y; END;"""
    )
    return database.procedure("echo")


MOMENTS = [datetime.datetime(2024, 1, 31, 12, 0, 0, 123456), datetime.datetime(1969, 12, 31, 23, 59, 59)]
LISTS = {
    "i": [-5, 32767],
    "b": [True, False],
    "d": [Decimal("0.125"), Decimal("-999999.999")],
    "t": MOMENTS,
    "s": ["ä", ""],
    "y": [b"\0\1", b"\xff\0"],
}


def check(answer):
    assert answer["sqlstate"].tolist() == ["", ""]
    assert answer["i2"].dtype == numpy.int64 and answer["i2"].tolist() == LISTS["i"]
    assert answer["b2"].dtype == bool and answer["b2"].tolist() == LISTS["b"]
    assert answer["d2"].tolist() == LISTS["d"]
    assert answer["t2"].dtype == "datetime64[us]" and answer["t2"].tolist() == MOMENTS
    assert answer["s2"].tolist() == LISTS["s"] and answer["y2"].tolist() == LISTS["y"]


def test_columns_are_lists_numpy_or_arrow(echo):
    check(echo.many(LISTS))
    check(echo.many([LISTS[name] for name in echo.parameters]))
    arrays = {
        "i": numpy.array(LISTS["i"], dtype=numpy.int16),
        "b": numpy.array(LISTS["b"]),
        "d": numpy.array([0.125, -999999.999]),
        "t": numpy.array(MOMENTS, dtype="datetime64[us]"),
        "s": numpy.array(LISTS["s"]),
        "y": numpy.array(LISTS["y"], dtype=object),
    }
    check(echo.many(arrays))
    # Every other element of something larger.
    check(echo.many({name: numpy.repeat(array, 2)[::2] for name, array in arrays.items()}))
    arrow = {
        "i": pyarrow.array(LISTS["i"], pyarrow.int32()),
        "b": pyarrow.array(LISTS["b"]),
        "d": pyarrow.array(LISTS["d"], pyarrow.decimal128(9, 3)),
        "t": pyarrow.array(MOMENTS, pyarrow.timestamp("us")),
        "s": pyarrow.array(LISTS["s"]),
        "y": pyarrow.chunked_array([LISTS["y"][:1], LISTS["y"][1:]], pyarrow.binary()),
    }
    check(echo.many(arrow))
    answer = echo.many(arrays, scaled=True)
    assert answer["d2"].scale == 3 and answer["d2"].numbers.tolist() == [125, -999999999]
    assert list(answer["d2"]) == LISTS["d"]
    check(echo.many({**arrays, "d": answer["d2"]}))


def test_no_call_is_no_call(echo):
    answer = echo.many({name: [] for name in LISTS})
    assert {name: len(column) for name, column in answer.items()} == dict.fromkeys([*echo.results, "sqlstate"], 0)


@pytest.mark.parametrize(
    ("name", "column", "says"),
    [
        ("i", [1, 32768], "32768 does not fit 'i'"),
        ("i", numpy.array([1, 32768]), "32768, value 1 of the column, does not fit 'i'"),
        ("i", numpy.array([1.0, 2.0]), "a column of floats does not fit 'i'"),
        ("i", numpy.array([[1, 2]]), "2 dimensions"),
        ("i", numpy.array([1, 2**63], dtype=numpy.uint64), "does not fit 'i'"),
        ("i", pyarrow.array([1, None]), "1 nulls"),
        ("i", [1, None], "'i' is None"),
        ("i", [1], "has 1 values, and the first one 2|has 2 values, and the first one 1"),
        ("i", "12", "is str: give a list or an array"),
        ("b", numpy.array([1, 0]), "a column of integers does not fit 'b'"),
        ("d", numpy.array([0.1 + 0.2, 1]), "0.30000000000000004, value 0"),
        ("d", numpy.array([numpy.nan, 1]), "NaN, value 0"),
        ("d", lockwork.Scaled([10**18, 1], 3), "does not fit 'd'"),
        ("t", numpy.array(["NaT", "2024-01-01"], dtype="datetime64[us]"), "NaT"),
        ("t", [datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)] * 2, "does not fit 't'"),
        ("s", [1, 2], "1 does not fit 's'"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(echo, name, column, says):
    if says.startswith("0.3000"):
        says = "0.30000000000000004|0.3, value|does not fit 'd'"
    with pytest.raises(lockwork.DataError, match=says):
        echo.many({**LISTS, name: column})


def test_more_calls_than_a_message_takes(database):
    database.define(
        """CREATE TABLE n (id BIGINT PRIMARY KEY, n BIGINT NOT NULL); INSERT INTO n VALUES (0, 0);
           CREATE PROCEDURE count(step BIGINT, OUT now BIGINT) AS
           BEGIN UPDATE n SET n = n + step WHERE id = 0; SELECT n INTO now FROM n WHERE id = 0; END;"""
    )
    steps = numpy.arange(150_000)
    answer = database.call_many("count", [steps])
    assert (answer["now"] == numpy.cumsum(steps)).all()
    assert (answer["sqlstate"] == "").all()
    assert database.execute("SELECT n FROM n WHERE id = 0").scalar() == steps.sum()


def test_request_ids_make_calls_once(tmp_path):
    with lockwork.open(tmp_path) as database:
        database.define(
            """CREATE TABLE n (id BIGINT PRIMARY KEY, n BIGINT NOT NULL); INSERT INTO n VALUES (0, 0);
               CREATE PROCEDURE count(step BIGINT, OUT now BIGINT) AS
               BEGIN UPDATE n SET n = n + step WHERE id = 0; SELECT n INTO now FROM n WHERE id = 0; END;"""
        )
        one, other = lockwork.request_id(), lockwork.request_id()
        assert [database.call("count", 1, request_id=one).now for _ in range(3)] == [1, 1, 1]
        answer = database.call_many("count", [[1, 1, 1]], request_ids=[one, other, str(other)])
        assert answer["now"].tolist() == [1, 2, 2]
        with pytest.raises(lockwork.DataError, match="2 request ids for 3 calls"):
            database.call_many("count", [[1, 1, 1]], request_ids=[one, other])
        with pytest.raises(lockwork.DataError, match="UUID of version 7"):
            database.call_many("count", [[1, 1]], request_ids=[one, 2])
    with lockwork.open(tmp_path, engine="serial") as database:
        assert database.call("count", 1, request_id=other).now == 2
        assert database.call("count", 1).now == 3
