"""What psycopg 3 and SQLAlchemy do with a server: statements, and questions about tables."""

import sys
import threading

import psycopg
import sqlalchemy as sa

port = sys.argv[1]
with psycopg.connect(host="127.0.0.1", port=port, user="ann", dbname="bank", autocommit=True) as connection:
    print(connection.execute("SELECT balance FROM accounts WHERE id = %s", (1,)).fetchone())
    print(connection.execute("CALL transfer(%s, %s, %s)", (1, 2, "0.25")).fetchone())
    for is_binary in (False, True):
        with connection.cursor(binary=is_binary) as cursor:
            cursor.execute("SELECT oid, relname, relhasindex FROM pg_class WHERE relname = %s", ("t",))
            print(cursor.fetchone(), [column.type_code for column in cursor.description])

    with connection.cursor() as cursor:
        with cursor.copy("COPY accounts FROM STDIN") as copy:
            for row in ((7, "7.50"), (8, -8)):
                copy.write_row(row)
        with cursor.copy("COPY accounts (balance, id) TO STDOUT") as copy:
            print(list(copy.rows())[-2:])
        try:
            with cursor.copy("COPY accounts FROM STDIN (FORMAT csv)") as copy:
                copy.write("9,1\n7,1\n")
        except psycopg.errors.UniqueViolation as error:
            print(error.diag.context, error.diag.message_detail)
        try:
            with cursor.copy("COPY accounts FROM STDIN") as copy:
                raise KeyError("of the program")
        except KeyError:
            print(cursor.execute("SELECT balance FROM accounts WHERE id = 9").fetchall())
        cursor.executemany("DELETE FROM accounts WHERE id = %s", [(7,), (8,), (9,)])

engine = sa.create_engine(f"postgresql+psycopg://ann@127.0.0.1:{port}/bank", isolation_level="AUTOCOMMIT",
    use_native_hstore=False)
with engine.connect() as connection:
    print(connection.execute(sa.text("SELECT balance FROM accounts WHERE id = :id"), {"id": 2}).all())
    seen = sa.inspect(connection)
    print(seen.get_schema_names(), seen.default_schema_name)
    print(seen.get_table_names(), seen.get_view_names(), seen.has_table("t"), seen.has_table("nothing"))
    for column in seen.get_columns("t"):
        print(column["name"], column["type"], column["nullable"], column["default"])
    key = seen.get_pk_constraint("t")
    print(key["name"], key["constrained_columns"])
    for index in seen.get_indexes("t"):
        print(index["name"], index["unique"], index["column_names"])
    print(seen.get_foreign_keys("t"), seen.get_unique_constraints("t"), seen.get_check_constraints("t"))
    tables = sa.MetaData()
    tables.reflect(connection)
    accounts = tables.tables["accounts"]
    print(sorted(tables.tables), connection.execute(sa.select(accounts.c.balance).where(accounts.c.id == 1)).scalar())
    page = sa.select(accounts.c.id).order_by(accounts.c.id)
    for limit, offset in ((1, 0), (1, 1), (5, 1)):
        print(connection.execute(page.limit(limit).offset(offset)).scalars().all())
    print(connection.execute(page.where(accounts.c.id == 2).limit(5)).scalars().all())
    # Texts: SQLAlchemy writes $1::VARCHAR for each.
    notes = sa.Table("notes", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("note", sa.String(20), nullable=False), sa.Column("price", sa.Numeric(10, 2), nullable=False))
    notes.create(connection)
    connection.execute(notes.insert(), {"id": 1, "note": "one", "price": 1})
    connection.execute(notes.insert(), [{"id": id, "note": f"no. {id}", "price": 2.5} for id in (2, 3)])
    print(connection.execute(notes.update().where(notes.c.id == 2).values(note="zwei é")).rowcount)
    print(connection.execute(notes.update().where(notes.c.id == 3).values(note="3")).rowcount)
    print(connection.execute(sa.select(notes).where(notes.c.note == "zwei é")).all())
    print(connection.execute(sa.select(notes.c.note).where(notes.c.id == 1, notes.c.note == "one")).scalars().all())
    print(connection.execute(sa.select(notes.c.id).where(notes.c.note.in_(["one", "3"])).order_by(notes.c.id)).all())
    print(connection.execute(notes.delete().where(notes.c.id == 1)).rowcount)
    try:
        connection.execute(notes.insert(), {"id": 4, "note": "x" * 21, "price": 1})
    except sa.exc.DBAPIError as error:
        print(error.orig.sqlstate)
        connection.rollback()
    for wrong in (page.limit(-1), page.offset(-1)):
        try:
            connection.execute(wrong).all()
        except sa.exc.DBAPIError as error:
            print(error.orig.sqlstate)
            connection.rollback()

# Both ways to cancel what another thread waits for.
long = "SELECT count(*) FROM " + ", ".join(f"accounts a{number}" for number in range(40))
with psycopg.connect(host="127.0.0.1", port=port, user="ann", dbname="bank", autocommit=True) as connection:
    for cancel in (connection.cancel, connection.cancel_safe):
        timer = threading.Timer(0.3, cancel)
        timer.start()
        try:
            connection.execute(long)
        except psycopg.errors.QueryCanceled as error:
            print(error.diag.message_primary)
        timer.join()
    connection.prepare_threshold = 0
    print(connection.execute("SELECT id FROM accounts WHERE id = %s", (1,)).fetchall())
    print(connection.execute("DEALLOCATE ALL").statusmessage)
