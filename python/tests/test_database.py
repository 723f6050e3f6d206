"""What a database does, the same in memory, in a folder and at a server."""

import datetime
import os
import subprocess
import threading
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lockwork

from conftest import ROOT

TYPES = {
    "TINYINT": st.integers(-128, 127),
    "SMALLINT": st.integers(-(2**15), 2**15 - 1),
    "INTEGER": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "TINYINT UNSIGNED": st.integers(0, 255),
    "SMALLINT UNSIGNED": st.integers(0, 2**16 - 1),
    "INTEGER UNSIGNED": st.integers(0, 2**32 - 1),
    "BOOLEAN": st.booleans(),
    "DECIMAL(18, 4)": st.integers(-(10**18) + 1, 10**18 - 1).map(lambda n: Decimal(n).scaleb(-4)),
    "DECIMAL(5, 0)": st.integers(-99999, 99999).map(Decimal),
    "TIMESTAMP": st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "VARCHAR(20)": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5),
    "BYTEA(4)": st.binary(min_size=4, max_size=4),
}
settings.register_profile(
    "house",
    deadline=None,
    max_examples=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.load_profile("house")


def test_a_value_of_every_type_comes_back_as_it_went(database):
    names = [f"c{at}" for at in range(len(TYPES))]
    columns = ", ".join(f"{name} {sql} NOT NULL" for name, sql in zip(names, TYPES))
    parameters = ", ".join(f"p_{name} {sql}, OUT r_{name} {sql}" for name, sql in zip(names, TYPES))
    copies = " ".join(f"r_{name} := p_{name};" for name in names)
    database.define(f"CREATE TABLE t (id BIGINT PRIMARY KEY, {columns})")
    database.define(f"CREATE PROCEDURE echo({parameters}) AS BEGIN {copies} END;")
    places = ", ".join(f"${at + 2}" for at in range(len(names)))
    insert = f"INSERT INTO t VALUES ($1, {places})"
    echo = database.procedure("echo")
    assert echo.parameters == tuple(f"p_{name}" for name in names)
    ids = iter(range(10**9))

    @given(st.lists(st.tuples(*TYPES.values()), min_size=1, max_size=3))
    def check(rows):
        for row in rows:
            here = next(ids)
            assert database.execute(insert, (here, *row)).rowcount == 1
            back = database.execute(f"SELECT {', '.join(names)} FROM t WHERE id = $1", (here,)).one()
            assert back == row
            assert list(map(type, back)) == list(map(type, row))
            # 2.00 is not shown as 2.
            assert list(map(str, back)) == list(map(str, database.call("echo", *row)))
            assert echo(**dict(zip(echo.parameters, row))) == row
        answer = database.call_many("echo", [list(column) for column in zip(*rows)])
        for at, name in enumerate(echo.results):
            assert list(map(lambda value: getattr(value, "item", lambda: value)(), answer[name])) == [
                row[at] for row in rows
            ], name

    check()


def test_arrays_are_lists(database):
    database.define(
        """CREATE PROCEDURE add(xs DECIMAL(9, 2)[3], ts VARCHAR(4)[2], bs BOOLEAN[2], OUT total DECIMAL(9, 2),
               OUT again DECIMAL(9, 2)[3], OUT texts VARCHAR(4)[2], OUT truths BOOLEAN[2]) AS
           BEGIN
               FOR i IN 1..3 LOOP total := total + xs[i]; again[i] := xs[i]; END LOOP;
               FOR i IN 1..2 LOOP texts[i] := ts[i]; truths[i] := bs[i]; END LOOP;
           END;"""
    )
    row = database.call("add", [Decimal("1.50"), 2], ("a'\"\\", "{}"), bs=[False, True])
    assert row.total == Decimal("3.50")
    assert row.again == [Decimal("1.50"), Decimal("2.00"), Decimal("0.00")]
    assert row.texts == ["a'\"\\", "{}"]
    assert row.truths == [False, True]
    with pytest.raises(lockwork.DataError, match="'total'|'xs' is an array"):
        database.call_many("add", [[1], ["a"], [True]])
    with pytest.raises(lockwork.DataError, match="int from|Decimal"):
        database.call("add", "12", [], [])


def test_random_transfers_and_statements_are_those_of_a_dict(bank):
    amounts = st.integers(1, 60000).map(lambda n: Decimal(n).scaleb(-2))
    steps = st.lists(
        st.one_of(
            st.tuples(st.just("call"), st.integers(1, 5), st.integers(1, 5), amounts),
            st.tuples(st.just("many"), st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), amounts), min_size=1)),
            st.tuples(st.just("insert"), st.integers(1, 5), amounts),
            st.tuples(st.just("update"), st.integers(1, 5), amounts),
            st.tuples(st.just("delete"), st.integers(1, 5)),
        ),
        max_size=12,
    )

    def transfer(model, source, target, amount):
        """The state that the call aborts with, and what is left."""
        if source not in model:
            return "P0002", None
        if model[source] < amount:
            return "BK001", None
        if target not in model:
            return "P0002", None
        left = model[source] - amount
        model[source] -= amount
        model[target] += amount
        return "", left

    @given(steps)
    def check(steps):
        model = dict(bank.execute("SELECT id, balance FROM accounts WHERE id >= 0 LIMIT 100"))
        for kind, *step in steps:
            if kind == "call":
                state, left = transfer(model, *step)
                if state:
                    with pytest.raises(lockwork.Abort) as caught:
                        bank.call("transfer", *step)
                    assert caught.value.sqlstate == state
                else:
                    assert bank.call("transfer", *step).left == left
            elif kind == "many":
                answer = bank.call_many("transfer", [list(column) for column in zip(*step[0])])
                for at, call in enumerate(step[0]):
                    state, left = transfer(model, *call)
                    assert answer["sqlstate"][at] == state
                    assert answer["left"][at] == (0 if left is None else left)
            elif kind == "insert":
                id, balance = step
                if id in model:
                    with pytest.raises(lockwork.Abort) as caught:
                        bank.execute("INSERT INTO accounts VALUES ($1, $2)", step)
                    assert caught.value.sqlstate == "23505"
                else:
                    assert bank.execute("INSERT INTO accounts VALUES ($1, $2)", step).rowcount == 1
                    model[id] = balance
            elif kind == "update" and step[0] in model:
                bank.execute("UPDATE accounts SET balance = $1 WHERE id = $2", (step[1], step[0]))
                model[step[0]] = step[1]
            elif kind == "delete" and step[0] in model:
                bank.execute("DELETE FROM accounts WHERE id = $1", step)
                del model[step[0]]
        rows = bank.execute("SELECT id, balance FROM accounts WHERE id >= $1 LIMIT 100", (0,))
        assert rows.columns == ["id", "balance"]
        assert dict(rows) == model
        assert rows.rowcount == len(model)

    check()


def test_errors_have_their_fields(bank):
    with pytest.raises(lockwork.Abort) as caught:
        bank.call("transfer", 1, 2, 5000)
    error = caught.value
    assert (error.sqlstate, error.message, error.hint, error.position) == ("BK001", "not enough money", "", None)
    assert not error.is_retryable
    assert isinstance(error, lockwork.Error)

    with pytest.raises(lockwork.SqlError) as caught:
        bank.execute("UPDATE accounts SET balance = 1 WHERE balance = 3")
    error = caught.value
    assert error.sqlstate == "0A000"
    assert "primary key (id)" in error.hint
    assert "\nhint: " in str(error)
    text = "SELECT id FROM accounts\nWHERE nothing = 3"
    with pytest.raises(lockwork.SqlError) as caught:
        bank.execute(text)
    assert text[caught.value.position - 1 :].startswith("nothing")

    with pytest.raises(lockwork.SqlError, match="nothing"):
        bank.call("nothing")
    bank.define("CREATE PROCEDURE no() AS BEGIN RAISE EXCEPTION 'never' USING ERRCODE = 'LW007'; END;")
    for call in [lambda: bank.call("no"), lambda: bank.execute("CALL no()")]:
        with pytest.raises(lockwork.Abort) as caught:
            call()
        assert (caught.value.sqlstate, caught.value.message) == ("LW007", "never")
    # What only the database knows not to fit is no abort either.
    bank.define("CREATE PROCEDURE narrow(n TINYINT UNSIGNED, s VARCHAR(2), d DECIMAL(3, 1)) AS BEGIN NULL; END;")
    for values in [(-1, "", 0), (256, "", 0), (1, "abc", 0), (1, "", 100), (1, "", Decimal("99.95"))]:
        with pytest.raises(lockwork.DataError):
            bank.call("narrow", *values)
        with pytest.raises(lockwork.DataError):
            bank.call_many("narrow", [[value] for value in values])
    assert bank.call("narrow", 255, "ab", Decimal("-99.9")) == ()
    # What is assigned is rounded, half away from zero.
    bank.define("CREATE PROCEDURE rounded(d DECIMAL(3, 1), OUT r DECIMAL(3, 1)) AS BEGIN r := d; END;")
    for value, expected in [("0.05", "0.1"), ("-0.05", "-0.1"), ("0.049", "0.0"), ("99.94", "99.9")]:
        assert bank.call("rounded", Decimal(value)).r == Decimal(expected)
        assert list(bank.call_many("rounded", [[Decimal(value)]])["r"]) == [Decimal(expected)]
        long = Decimal(value) + Decimal("1e-25").copy_sign(Decimal(value))
        assert bank.call("rounded", long).r == Decimal(expected)
    with pytest.raises(lockwork.SqlError) as caught:
        bank.execute("SELECT id FROM accounts WHERE id = 1; SELECT 2")
    assert caught.value.sqlstate == "42601"


def test_values_in_expressions_keep_their_digits(bank):
    update = "UPDATE accounts SET balance = balance * $1 WHERE id = 1"
    assert bank.execute(update, [Decimal("1.0825")]).rowcount == 1
    select = "SELECT balance FROM accounts WHERE id = 1"
    assert bank.execute(select).scalar() == Decimal("1082.50")
    assert bank.execute(f"{select} AND balance = $1", [Decimal("1082.501")]).rows == []
    assert bank.execute(f"{select} AND balance > $1", [Decimal("1082.499")]).scalar() == Decimal("1082.50")
    # What is assigned is rounded, however many digits it has.
    bank.execute("UPDATE accounts SET balance = $1 WHERE id = 1", [Decimal(1000) / 3])
    assert bank.execute(select).scalar() == Decimal("333.33")
    with pytest.raises(lockwork.DataError, match="has more than 18 digits"):
        bank.execute(update, [Decimal(1) / 3])


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "says"),
    [
        ((None, 2, 1), "22004", "'from_id' is None"),
        ((1.5, 2, 1), "42804", "1.5 does not fit 'from_id', which is an int"),
        ((True, 2, 1), "42804", "True does not fit 'from_id'"),
        (("1", 2, 1), "42804", "'1' does not fit 'from_id'"),
        ((2**63, 2, 1), "22003", "does not fit 'from_id'"),
        ((1, 2, Decimal("NaN")), "42804", "does not fit 'amount'"),
        ((1, 2, Decimal("1E+30")), "42804", "does not fit 'amount'"),
        ((1, 2, "1"), "42804", "does not fit 'amount'"),
        ((1, 2), "08P01", "takes 3"),
        ((1, 2, 3, 4), "08P01", "takes 3"),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(bank, arguments, sqlstate, says):
    with pytest.raises(lockwork.DataError) as caught:
        bank.call("transfer", *arguments)
    assert caught.value.sqlstate == sqlstate
    assert says in caught.value.message
    assert isinstance(caught.value, ValueError)


def test_names_of_parameters_are_checked(bank):
    transfer = bank.procedure("transfer")
    assert repr(transfer) == "<procedure transfer(from_id, to_id, amount) -> (left)>"
    assert transfer(1, amount=Decimal("0.50"), to_id=2) == (Decimal("999.50"),)
    assert repr(transfer(1, 2, 0.25)) == "Row(left=Decimal('999.25'))"
    assert transfer(1, 2, 1)._asdict() == {"left": Decimal("998.25")}
    for arguments, names, says in [
        ((1,), {"to_id": 2}, "'amount' of 'transfer' has no value"),
        ((1,), {"from_id": 2}, "'from_id' of 'transfer' is given twice"),
        ((1,), {"to": 2}, "'to' of 'transfer' does not exist; there are: from_id, to_id, amount"),
    ]:
        with pytest.raises(lockwork.DataError, match=says):
            transfer(*arguments, **names)
    with pytest.raises(AttributeError, match="there is no result 'right'; there are: left"):
        transfer(1, 2, 1).right


def test_a_result_shows_itself_as_a_table(bank):
    rows = bank.execute("SELECT id, balance FROM accounts WHERE id >= 0 LIMIT 5")
    assert repr(rows) == "id | balance\n---+--------\n1  | 1000.00\n2  | 1000.00"
    assert rows[0] == (1, Decimal("1000.00")) and rows[:1] == [rows[0]] and len(rows) == 2
    assert repr(bank.execute("UPDATE accounts SET balance = 1 WHERE id = 1")) == "<1 rows written>"
    with pytest.raises(lockwork.DataError, match="one row is expected, and there are 2"):
        rows.scalar()
    plan = bank.execute("EXPLAIN PROCEDURE transfer")
    assert plan.columns == ["QUERY PLAN"] and "procedure transfer" in [line for line, in plan]
    called = bank.execute("CALL transfer(2, 1, $1)", [Decimal("10")])
    assert called.columns == ["left"] and called.scalar() == Decimal("990.00")


def test_a_procedure_that_is_replaced_is_the_new_one(bank):
    assert bank.call("transfer", 1, 2, 1).left == 999
    old = bank.procedure("transfer")
    bank.define("CREATE OR REPLACE PROCEDURE transfer(who BIGINT, OUT twice BIGINT) AS BEGIN twice := who * 2; END;")
    assert bank.call("transfer", who=21).twice == 42
    with pytest.raises(lockwork.SqlError, match="'transfer' was replaced"):
        old(1, 2, 3)
    bank.execute("CREATE OR REPLACE PROCEDURE transfer(who BIGINT, OUT thrice BIGINT) AS BEGIN thrice := who * 3; END;")
    assert bank.procedure("transfer")(2).thrice == 6
    assert bank.call("transfer", 3).thrice == 9
    bank.execute("CREATE OR REPLACE PROCEDURE transfer(a BIGINT, b BIGINT, OUT sum BIGINT) AS BEGIN sum := a + b; END;")
    assert bank.call("transfer", 3, b=4).sum == 7
    assert bank.call_many("transfer", {"b": [1], "a": [2]})["sum"] == [3]


def test_many_threads_use_one_connection(bank):
    def work(seed):
        for at in range(100):
            source, target = (1, 2) if (seed + at) % 2 else (2, 1)
            bank.call("transfer", source, target, Decimal("0.10"))
            bank.execute("SELECT balance FROM accounts WHERE id = $1", (source,))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(balance for _, balance in bank.execute("SELECT id, balance FROM accounts WHERE id >= 0 LIMIT 9")) == 2000


def test_what_is_closed_says_so(bank):
    bank.close()
    bank.close()
    for use in [
        lambda: bank.call("transfer", 1, 2, 3),
        lambda: bank.execute("SELECT id FROM accounts WHERE id = 1"),
        lambda: bank.define("CREATE TABLE x (id BIGINT PRIMARY KEY)"),
        lambda: bank.procedure("transfer"),
    ]:
        with pytest.raises(lockwork.Closed, match="closed"):
            use()


def test_a_copy_is_refused_before_it_is_sent(start_server):
    bank = ROOT / "examples/bank.sql"
    server = start_server("--init", bank)
    with lockwork.connect(server.address) as connection:
        rows = connection.execute("SELECT count(*) FROM accounts").one()
        for text, position in [
            ("COPY accounts FROM STDIN", 1),
            ("copy accounts TO STDOUT", 1),
            ("-- é\nCOPY (SELECT 1) TO STDOUT;", 6),
            ("SELECT 1; COPY accounts FROM STDIN; SELECT 2", 11),
        ]:
            for ask in [connection.execute, connection.define]:
                with pytest.raises(lockwork.SqlError, match="has no COPY") as caught:
                    ask(text)
                assert caught.value.sqlstate == "0A000" and "psql" in caught.value.hint
                assert caught.value.position == position
                # What is asked next is answered, and not with what came before.
                assert connection.execute("SELECT count(*) FROM accounts").one() == rows
        text = "a; COPY accounts FROM STDIN"
        assert connection.execute(f"SELECT '{text}' AS text").one() == (text,)


def test_values_of_the_catalog_are_numbers_and_texts(start_server):
    bank = ROOT / "examples/bank.sql"
    server = start_server("--init", bank)
    with lockwork.connect(server.address) as connection:
        ask = connection.execute
        oid, name, kind, acl = ask(
            "SELECT oid, relname, relkind, relacl FROM pg_catalog.pg_class WHERE relname = $1", ("accounts",)
        ).one()
        assert type(oid) is int and (name, kind, acl) == ("accounts", "r", None)
        assert ask("SELECT relname FROM pg_catalog.pg_class WHERE oid = $1", (oid,)).one() == ("accounts",)
        text = "SELECT indrelid, indkey, indnatts FROM pg_catalog.pg_index WHERE indrelid = $1 AND indisprimary"
        assert ask(text, (oid,)).one() == (oid, [1], 1)
        types = dict(ask("SELECT typname, oid FROM pg_catalog.pg_type"))
        assert types["oid"] == 26 and types["bool"] == 16
        # Whatever the catalog has comes as something that can be read, or the column is named.
        for (relation,) in ask("SELECT relname FROM pg_catalog.pg_class WHERE relnamespace = 11 AND relkind = 'r'"):
            try:
                rows = ask(f"SELECT * FROM pg_catalog.{relation}").rows
            except lockwork.SqlError as error:
                assert error.sqlstate == "0A000" and "is of type" in error.message, error
                continue
            for value in (value for row in rows for value in row):
                parts = value if isinstance(value, list) else [value]
                texts = [part for part in parts if not (part is None or isinstance(part, (int, float, Decimal)))]
                assert all(text.replace("\n", "").isprintable() for text in texts), (relation, texts)
        now, today = ask("SELECT now(), current_date").one()
        assert isinstance(now, datetime.datetime) and now.tzinfo is None
        assert type(today) is datetime.date and today <= now.date()
        assert ask("SELECT CAST(0.5 AS double precision)").one() == (0.5,)


def test_a_server_with_users_wants_their_passwords(start_server, tmp_path):
    users = tmp_path / "users"
    make = [os.environ["LOCKWORK_BIN"], "user", str(users), "app", "--right", "call"]
    subprocess.run(make, input="secret-secret\n", text=True, check=True, stdout=subprocess.DEVNULL)
    bank = ROOT / "examples/bank.sql"
    server = start_server("--users", users, "--init", bank)
    with lockwork.connect(server.address, user="app", password="secret-secret") as connection:
        assert connection.call("transfer", 1, 2, 25).left == Decimal("975.00")
        with pytest.raises(lockwork.SqlError) as refused:
            connection.execute("SELECT balance FROM accounts WHERE id = 1")
        assert refused.value.sqlstate == "42501"
    for user, password in [("app", "wrong"), ("nobody", "secret-secret"), ("app", None)]:
        with pytest.raises(lockwork.ConnectError):
            lockwork.connect(server.address, user=user, password=password)


def test_what_looks_like_an_address_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for address in ["localhost:5433", "127.0.0.1", "postgres://ann@localhost/bank"]:
        with pytest.raises(lockwork.Error, match="looks like the address of a server"):
            lockwork.open(address)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(lockwork.Error, match="no database, and not empty"):
        lockwork.open(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    with lockwork.open("./localhost:5433"):
        pass
    assert (tmp_path / "localhost:5433" / "FORMAT").exists()
