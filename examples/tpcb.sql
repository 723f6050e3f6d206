-- The tables of pgbench, for its built-in scripts: pgbench -i makes others, without keys at first.
CREATE TABLE pgbench_branches (bid INTEGER PRIMARY KEY, bbalance INTEGER NOT NULL, filler CHAR(88) NOT NULL DEFAULT '')
    WITH (ordered = true);
CREATE TABLE pgbench_tellers (tid INTEGER PRIMARY KEY, bid INTEGER NOT NULL, tbalance INTEGER NOT NULL,
    filler CHAR(84) NOT NULL DEFAULT '');
CREATE TABLE pgbench_accounts (aid INTEGER PRIMARY KEY, bid INTEGER NOT NULL, abalance INTEGER NOT NULL,
    filler CHAR(84) NOT NULL DEFAULT '');
CREATE TABLE pgbench_history (tid INTEGER, bid INTEGER, aid INTEGER, delta INTEGER, mtime TIMESTAMP,
    filler CHAR(22) NOT NULL DEFAULT '', PRIMARY KEY (tid, bid, aid, delta, mtime));
