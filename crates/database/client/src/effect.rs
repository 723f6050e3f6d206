//! What a statement may do, as far as a client has to know it to repeat the statement at another server.

use crate::divide::words;

/// What a statement may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It only reads.
    Read,
    /// A CALL with the id of a request: it is made once, however often it is asked for.
    CallOnce,
    /// A CALL without one: a second one is a second call.
    Call,
    /// It begins a transaction of several statements.
    Begin,
    /// It ends such a transaction.
    End,
    /// It changes what the session has set.
    Set,
    /// Anything else: it may write.
    Other,
}

impl Effect {
    /// What a statement may do. What is not known may write.
    #[must_use]
    pub fn of(statement: &str) -> Self {
        // Words outside of parentheses, in capitals; inside of them, only what could write or set is looked for.
        let words = words(statement);
        let outer: Vec<&str> = words.iter().filter(|(depth, _)| *depth == 0).map(|(_, word)| word.as_str()).collect();
        let has = |wanted: &[&str]| words.iter().any(|(_, word)| wanted.contains(&word.as_str()));
        let first = words.first().map_or("", |(_, word)| word.as_str());
        match first {
            "SELECT" | "VALUES" | "TABLE" | "WITH" if has(&["SET_CONFIG", "INSERT", "UPDATE", "DELETE", "MERGE"]) => {
                Self::Other
            }
            "EXPLAIN" if has(&["ANALYZE"]) => Self::Other,
            "SELECT" | "VALUES" | "TABLE" | "WITH" | "SHOW" | "EXPLAIN" => Self::Read,
            "CALL" if outer.get(1) == Some(&"MANY") => Self::Other,
            "CALL" if outer.iter().skip(2).any(|word| *word == "REQUEST") => Self::CallOnce,
            "CALL" => Self::Call,
            "BEGIN" | "START" => Self::Begin,
            "ROLLBACK" | "ABORT" if outer.contains(&"TO") => Self::Other,
            "COMMIT" | "END" | "ROLLBACK" | "ABORT" => Self::End,
            "SET" | "RESET" | "DISCARD" | "DEALLOCATE" | "PREPARE" | "LISTEN" => Self::Set,
            _ => Self::Other,
        }
    }

    /// Whether asking twice does no more than asking once.
    #[must_use]
    pub fn is_repeatable(self) -> bool {
        matches!(self, Self::Read | Self::CallOnce)
    }

    /// Whether it is a single call, which takes microseconds at the server.
    #[must_use]
    pub fn is_call(self) -> bool {
        matches!(self, Self::Call | Self::CallOnce)
    }
}

/// What a session has at its server beside the connection, and loses with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionState {
    in_transaction: bool,
    has_settings: bool,
}

impl SessionState {
    /// Notes a statement that is about to be sent.
    pub fn sends(&mut self, effect: Effect) {
        self.in_transaction |= effect == Effect::Begin;
        self.has_settings |= effect == Effect::Set;
    }

    /// Notes that a statement was carried out.
    pub fn done(&mut self, effect: Effect) {
        self.in_transaction &= effect != Effect::End;
    }

    /// Whether a new session is as good as this one: no transaction is open, and nothing was set.
    #[must_use]
    pub fn is_fresh(self) -> bool {
        !self.in_transaction && !self.has_settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_repeated_is_known_by_its_words() {
        for (statement, effect) in [
            ("CALL transfer(1, 2, 5.00) REQUEST '0190b5a0-7c1e-7d3a-9f00-3b1c5d2e4f60';", Effect::CallOnce),
            ("CALL transfer($1, $2, $3) REQUEST $4", Effect::CallOnce),
            ("call \"Request\"(request) request '0198c6f4-0000-7000-8000-000000000000'", Effect::CallOnce),
            ("CALL transfer($1, $2, $3) REQUEST $4", Effect::CallOnce),
            ("CALL request(1) -- REQUEST 1", Effect::Call),
            ("CALL pay('REQUEST 1', REQUEST)", Effect::Call),
            ("CALL MANY transfer($1) REQUEST $2", Effect::Other),
            ("/* x */ (SELECT 1)", Effect::Read),
            ("WITH a AS (SELECT 1) SELECT * FROM a", Effect::Read),
            ("WITH a AS (DELETE FROM t RETURNING x) SELECT * FROM a", Effect::Other),
            ("SELECT set_config('a', 'b', false)", Effect::Other),
            ("SHOW lockwork.record", Effect::Read),
            ("EXPLAIN PROCEDURE transfer", Effect::Read),
            ("INSERT INTO t SELECT 1", Effect::Other),
            ("CREATE PROCEDURE p() AS BEGIN SELECT 1; END;", Effect::Other),
            ("SAVEPOINT a", Effect::Other),
            ("ROLLBACK TO SAVEPOINT a", Effect::Other),
            ("begin read only", Effect::Begin),
            ("ROLLBACK", Effect::End),
            ("SET lockwork.read_after = 7", Effect::Set),
            ("DISCARD ALL", Effect::Set),
            ("", Effect::Other),
        ] {
            assert_eq!(Effect::of(statement), effect, "{statement}");
        }
    }

    #[test]
    fn a_session_is_fresh_outside_of_transactions_and_without_settings() {
        let mut state = SessionState::default();
        state.sends(Effect::Begin);
        assert!(!state.is_fresh());
        // A COMMIT that was refused may have left the transaction open.
        state.sends(Effect::End);
        assert!(!state.is_fresh());
        state.done(Effect::End);
        assert!(state.is_fresh());
        state.sends(Effect::Set);
        state.done(Effect::Set);
        assert!(!state.is_fresh());
    }
}
