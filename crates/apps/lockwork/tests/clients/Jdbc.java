import java.math.BigDecimal;
import java.sql.*;
import java.util.*;

/** What the JDBC driver does with a server: statements, calls and questions about tables. */
public class Jdbc {
    static void print(String title, ResultSet rows, String... columns) throws SQLException {
        while (rows.next()) {
            StringBuilder line = new StringBuilder(title);
            for (String column : columns) line.append(' ').append(rows.getString(column));
            System.out.println(line);
        }
        rows.close();
    }

    public static void main(String[] words) throws Exception {
        String mode = words.length > 1 ? words[1] : "binary";
        Properties settings = new Properties();
        settings.setProperty("user", "ann");
        settings.setProperty("prepareThreshold", mode.equals("binary") ? "-1" : "5");
        settings.setProperty("escapeSyntaxCallMode", "call");
        try (Connection connection = DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + words[0] + "/bank", settings)) {
            System.out.println("version " + connection.getMetaData().getDatabaseMajorVersion());
            try (PreparedStatement read = connection.prepareStatement("SELECT balance FROM accounts WHERE id = ?")) {
                for (long id = 1; id <= 2; id++) {
                    read.setLong(1, id);
                    ResultSet row = read.executeQuery();
                    while (row.next()) System.out.println("balance " + row.getBigDecimal(1));
                }
            }
            try (CallableStatement call = connection.prepareCall("{call transfer(?, ?, ?)}")) {
                call.setLong(1, 1);
                call.setLong(2, 2);
                call.setBigDecimal(3, new BigDecimal("0.25"));
                call.execute();
                print("left", call.getResultSet(), "left");
            }
            connection.setAutoCommit(false);
            try (Statement statement = connection.createStatement()) {
                statement.executeUpdate("UPDATE accounts SET balance = balance + 5 WHERE id = 1");
                Savepoint before = connection.setSavepoint("before");
                try {
                    statement.executeUpdate("INSERT INTO accounts VALUES (2, 1)");
                } catch (SQLException refused) {
                    System.out.println("refused " + refused.getSQLState());
                }
                connection.rollback(before);
                print("inside", statement.executeQuery("SELECT balance FROM accounts WHERE id = 1"), "balance");
                connection.commit();
                statement.executeUpdate("UPDATE accounts SET balance = 0 WHERE id = 1");
                connection.rollback();
                print("after", statement.executeQuery("SELECT balance FROM accounts WHERE id = 1"), "balance");
            }
            connection.setAutoCommit(true);
            DatabaseMetaData about = connection.getMetaData();
            print("schema", about.getSchemas(), "TABLE_SCHEM");
            print("catalog", about.getCatalogs(), "TABLE_CAT");
            print("table", about.getTables(null, "public", "%", new String[] {"TABLE"}), "TABLE_SCHEM", "TABLE_NAME", "TABLE_TYPE");
            print("any", about.getTables(null, null, "acc%", null), "TABLE_SCHEM", "TABLE_NAME", "TABLE_TYPE");
            print("column", about.getColumns(null, "public", "%", "%"), "TABLE_NAME", "COLUMN_NAME", "DATA_TYPE", "TYPE_NAME",
                "COLUMN_SIZE", "DECIMAL_DIGITS", "NULLABLE", "COLUMN_DEF", "ORDINAL_POSITION", "IS_AUTOINCREMENT");
            print("key", about.getPrimaryKeys(null, "public", "t"), "COLUMN_NAME", "KEY_SEQ", "PK_NAME");
            print("index", about.getIndexInfo(null, "public", "t", false, false), "INDEX_NAME", "NON_UNIQUE", "ORDINAL_POSITION", "COLUMN_NAME", "TYPE");
            print("foreign", about.getImportedKeys(null, "public", "t"), "FK_NAME");
            print("procedure", about.getProcedures(null, "public", "%"), "PROCEDURE_NAME", "PROCEDURE_TYPE");
            print("parameter", about.getProcedureColumns(null, "public", "transfer", "%"), "COLUMN_NAME", "COLUMN_TYPE", "TYPE_NAME");
            print("function", about.getFunctions(null, "public", "%"), "FUNCTION_NAME");
            int types = 0;
            for (ResultSet rows = about.getTypeInfo(); rows.next();) types++;
            System.out.println("types " + (types > 20));
            print("row", about.getBestRowIdentifier(null, "public", "t", DatabaseMetaData.bestRowSession, false), "COLUMN_NAME", "TYPE_NAME");
        }
    }
}
