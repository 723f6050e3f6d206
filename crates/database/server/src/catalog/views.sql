INSERT INTO pg_roles (oid, rolname, rolinherit, rolcanlogin, rolconnlimit)
    SELECT oid, rolname, rolinherit, rolcanlogin, rolconnlimit FROM pg_authid;
INSERT INTO pg_user (usesysid, usename) SELECT oid, rolname FROM pg_authid;
INSERT INTO pg_tables (schemaname, tablename, hasindexes)
    SELECT nspname, relname, relhasindex FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind = 'r';
INSERT INTO information_schema.schemata (schema_name) SELECT nspname FROM pg_namespace;
INSERT INTO information_schema.tables (table_schema, table_name, table_type, is_insertable_into, is_typed)
    SELECT nspname, relname, CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'BASE TABLE' END,
        CASE nspname WHEN 'public' THEN 'YES' ELSE 'NO' END, 'NO'
    FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE relkind IN ('r', 'v');
INSERT INTO information_schema.columns (table_schema, table_name, column_name, ordinal_position, column_default,
        is_nullable, data_type, character_maximum_length, character_octet_length, numeric_precision,
        numeric_precision_radix, numeric_scale, datetime_precision, udt_schema, udt_name, dtd_identifier,
        is_self_referencing, is_identity, is_generated, is_updatable)
    SELECT nspname, relname, attname, attnum, adbin, 'NO', format_type(atttypid, NULL),
        CASE WHEN typname = 'varchar' AND atttypmod >= 4 THEN atttypmod - 4 END,
        CASE WHEN typname = 'varchar' AND atttypmod >= 4 THEN atttypmod - 4 END,
        CASE typname WHEN 'int2' THEN 16 WHEN 'int4' THEN 32 WHEN 'int8' THEN 64
            WHEN 'numeric' THEN (atttypmod - 4) >> 16 END,
        CASE WHEN typname IN ('int2', 'int4', 'int8') THEN 2 WHEN typname = 'numeric' THEN 10 END,
        CASE WHEN typname IN ('int2', 'int4', 'int8') THEN 0 WHEN typname = 'numeric' THEN (atttypmod - 4) & 65535 END,
        CASE typname WHEN 'timestamp' THEN 6 END, 'pg_catalog', typname, attnum, 'NO', 'NO', 'NEVER',
        CASE nspname WHEN 'public' THEN 'YES' ELSE 'NO' END
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace JOIN pg_attribute a ON attrelid = c.oid
    JOIN pg_type t ON t.oid = atttypid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
    WHERE relkind IN ('r', 'v');
INSERT INTO information_schema.table_constraints (constraint_schema, constraint_name, table_schema, table_name,
        constraint_type, is_deferrable, initially_deferred, enforced)
    SELECT 'public', conname, 'public', relname, 'PRIMARY KEY', 'NO', 'NO', 'YES'
    FROM pg_constraint JOIN pg_class c ON c.oid = conrelid;
INSERT INTO information_schema.key_column_usage (constraint_schema, constraint_name, table_schema, table_name,
        column_name, ordinal_position)
    SELECT 'public', conname, 'public', relname, attname, k.key + 1
    FROM pg_constraint JOIN pg_class c ON c.oid = conrelid JOIN json_each(conkey) k
    JOIN pg_attribute ON attrelid = conrelid AND attnum = k.value;
INSERT INTO information_schema.routines (specific_schema, specific_name, routine_schema, routine_name, routine_type,
        routine_body, routine_definition, external_language)
    SELECT 'public', proname || '_' || p.oid, 'public', proname, 'PROCEDURE', 'EXTERNAL', prosrc, upper(lanname)
    FROM pg_proc p JOIN pg_language l ON l.oid = prolang WHERE pronamespace = 2200;
INSERT INTO information_schema.parameters (specific_schema, specific_name, ordinal_position, parameter_mode,
        parameter_name, data_type, udt_schema, udt_name)
    SELECT 'public', proname || '_' || p.oid, n.key + 1,
        CASE json_extract(coalesce(proargmodes, '[]'), '$[' || n.key || ']')
            WHEN 'o' THEN 'OUT' WHEN 'b' THEN 'INOUT' ELSE 'IN' END,
        n.value, format_type(t.oid, NULL), 'pg_catalog', typname
    FROM pg_proc p JOIN json_each(proargnames) n
    JOIN pg_type t ON t.oid = json_extract(coalesce(proallargtypes, proargtypes), '$[' || n.key || ']')
    WHERE pronamespace = 2200;
