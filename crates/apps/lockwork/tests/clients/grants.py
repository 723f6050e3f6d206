"""A CALL that waits for its Sync when a REVOKE comes."""

import sys

import psycopg
from psycopg import pq


def address(user):
    return f"host=127.0.0.1 port={sys.argv[1]} user={user} password='a good password' dbname=bank"


admin, bob = psycopg.connect(address("admin"), autocommit=True), psycopg.connect(address("bob"))
admin.execute("GRANT EXECUTE ON PROCEDURE add TO bob")
# All before the Sync is sent, and nothing asks for an answer.
bob.pgconn.enter_pipeline_mode()
bob.pgconn.send_query_params(b"CALL add($1)", [b"1"])
bob.pgconn.flush()
# Meanwhile the server reads it.
for _ in range(100):
    admin.execute("SELECT 1")
admin.execute("REVOKE EXECUTE ON PROCEDURE add FROM bob")
bob.pgconn.pipeline_sync()
bob.pgconn.flush()
answer = bob.pgconn.get_result()
print(pq.ExecStatus(answer.status).name, answer.error_field(pq.DiagnosticField.MESSAGE_PRIMARY).decode())
print(admin.execute("SELECT n FROM items WHERE id = 1").fetchone())
