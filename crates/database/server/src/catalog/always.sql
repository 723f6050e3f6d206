INSERT INTO pg_namespace (oid, nspname, nspowner)
    VALUES (11, 'pg_catalog', 10), (2200, 'public', 10), (13000, 'information_schema', 10);
INSERT INTO pg_am (oid, amname, amtype) VALUES (2, 'heap', 't'), (403, 'btree', 'i'), (405, 'hash', 'i');
INSERT INTO pg_authid (oid, rolinherit, rolcanlogin, rolconnlimit) VALUES (10, 1, 1, -1);
INSERT INTO pg_database (oid, datdba, encoding, datlocprovider, datallowconn, datconnlimit, dattablespace,
        datcollate, datctype)
    VALUES (5, 10, 6, 'c', 1, -1, 1663, 'C', 'C');
INSERT INTO pg_collation (oid, collname, collnamespace, collowner, collprovider, collisdeterministic, collencoding)
    VALUES (100, 'default', 11, 10, 'd', 1, -1), (950, 'C', 11, 10, 'c', 1, -1);
INSERT INTO pg_language (oid, lanname, lanowner, lanpltrusted)
    VALUES (12, 'internal', 10, 0), (14, 'sql', 10, 1), (15, 'assembly', 10, 1);
INSERT INTO pg_tablespace (oid, spcname, spcowner) VALUES (1663, 'pg_default', 10);
INSERT INTO pg_proc (oid, proname, pronamespace, proowner, prolang, prokind, provolatile, proparallel, prorettype,
        proargtypes, prosrc)
    VALUES (750, 'array_in', 11, 10, 12, 'f', 's', 's', 2277, '[]', 'array_in');
