"""Transactions as psycopg 3 and SQLAlchemy make them, with the settings that they have by themselves."""

import sys

import psycopg
import sqlalchemy as sa
from psycopg.types import TypeInfo

port = sys.argv[1]
server = dict(host="127.0.0.1", port=port, user="ann", dbname="bank")
READ = "SELECT balance FROM accounts WHERE id = %s"


def balance(connection, account):
    return connection.execute(READ, (account,)).fetchone()[0]


with psycopg.connect(**server) as connection, psycopg.connect(**server, autocommit=True) as other:
    print(TypeInfo.fetch(connection, "numeric"))
    before = balance(connection, 1)
    connection.execute("CALL transfer(%s, %s, %s)", (1, 2, "0.25"))
    print(before, balance(connection, 1), balance(other, 1))
    connection.rollback()
    print(balance(connection, 1))
    try:
        with connection.transaction():
            connection.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", (1,))
            raise ValueError("on purpose")
    except ValueError:
        pass
    try:
        with connection.transaction():
            connection.execute("INSERT INTO accounts VALUES (%s, 5)", (1,))
    except psycopg.errors.UniqueViolation as error:
        print(error.sqlstate, connection.info.transaction_status.name)
    connection.execute("INSERT INTO accounts VALUES (%s, 5)", (7,))
    connection.commit()
    print(balance(other, 7))
    read = balance(connection, 1)
    other.execute("CALL transfer(1, 2, 1)")
    try:
        connection.execute("UPDATE accounts SET balance = %s WHERE id = 1", (read - 1,))
    except psycopg.errors.SerializationFailure as error:
        print(error.sqlstate, connection.info.transaction_status.name)
    connection.rollback()
    with connection.pipeline():
        connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 1")
        connection.execute("UPDATE accounts SET balance = balance - 1 WHERE id = 2")
    connection.commit()
    print(balance(other, 1), balance(other, 2))
    print(connection.execute("SELECT count(*), sum(balance) FROM accounts").fetchone())
    connection.execute("INSERT INTO accounts VALUES (8, 1)")
    print(connection.execute("SELECT count(*) FROM accounts").fetchone())
    connection.rollback()

engine = sa.create_engine(f"postgresql+psycopg://ann@127.0.0.1:{port}/bank")
tables = sa.MetaData()
tables.reflect(engine)
accounts = tables.tables["accounts"]
read = sa.select(accounts.c.balance).where(accounts.c.id == 1)
with engine.begin() as connection:
    connection.execute(accounts.update().where(accounts.c.id == 1).values(balance=accounts.c.balance + 100))
    nested = connection.begin_nested()
    connection.execute(accounts.update().where(accounts.c.id == 1).values(balance=0))
    print(connection.execute(read).scalar())
    nested.rollback()
    print(connection.execute(read).scalar())
with engine.connect() as connection:
    print(connection.execute(read).scalar())
