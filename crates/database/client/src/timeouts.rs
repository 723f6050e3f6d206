//! How long a client waits for a server, and how the system finds out that a connection is dead.

use std::io;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;

use crate::Error;

/// How long one server may take to let the client in.
const CONNECT: Duration = Duration::from_secs(10);
/// The same for each of several servers: the next one may be quicker.
const CONNECT_EACH: Duration = Duration::from_secs(3);
/// How long a statement may go without an answer.
const CALL: Duration = Duration::from_secs(10);
/// How long bytes that were sent may stay unacknowledged, in milliseconds.
const TCP_USER: u32 = 9_000;

/// Probes of a connection on which nothing arrives. They end it after `idle` and `count` times `interval`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalives {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Probes without an answer that end the connection.
    pub count: u32,
}

impl Default for Keepalives {
    fn default() -> Self {
        Self { idle: Duration::from_secs(5), interval: Duration::from_secs(1), count: 4 }
    }
}

/// How long a client waits. The defaults give an answer or an error within ten seconds, whatever happens to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For each server to let the client in; by default 10 s, or 3 s where there are several.
    pub connect: Option<Duration>,
    /// For the answer of a statement, fail-over included ([`crate::Session::ask`]); `None` for no limit, and no
    /// fail-over.
    pub call: Option<Duration>,
    /// How long bytes that were sent may stay unacknowledged before the system ends the connection (TCP_USER_TIMEOUT),
    /// in milliseconds; zero for the system's default.
    pub tcp_user: u32,
    /// Probes of an idle connection; `None` for none.
    pub keepalives: Option<Keepalives>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: None, call: Some(CALL), tcp_user: TCP_USER, keepalives: Some(Keepalives::default()) }
    }
}

impl Timeouts {
    /// How long each of so many servers may take to let the client in.
    #[must_use]
    pub fn connect_of(&self, hosts: usize) -> Duration {
        self.connect.unwrap_or(if hosts > 1 { CONNECT_EACH } else { CONNECT })
    }

    /// Sets the limit for the answer of a statement, in seconds; zero for none.
    ///
    /// # Errors
    /// It is negative, or no number.
    pub fn set_call(&mut self, seconds: f64) -> Result<(), Error> {
        let limit = Duration::try_from_secs_f64(seconds);
        let limit =
            limit.map_err(|_| Error::asked(format!("call_timeout is {seconds}"), "write seconds, from 0 on"))?;
        self.call = Some(limit).filter(|limit| !limit.is_zero());
        Ok(())
    }

    /// Sets what a parameter of a URL says, in libpq's words and units, if it is one of these; else returns `false`.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        let wrong = |unit: &str| Error::asked(format!("{name} is '{value}'"), format!("write {unit}, from 0 on"));
        let number = |unit: &str| value.trim().parse::<u32>().map_err(|_| wrong(unit));
        let seconds = |unit: u32| Duration::from_secs(unit.max(1).into());
        let keepalives = self.keepalives.unwrap_or_default();
        match name {
            "call_timeout" => self.set_call(value.trim().parse().map_err(|_| wrong("seconds"))?)?,
            "tcp_user_timeout" => self.tcp_user = number("milliseconds")?,
            "keepalives" => self.keepalives = Some(keepalives).filter(|_| value.trim() != "0"),
            // Zero is the default of each, as for libpq.
            "keepalives_idle" => match number("seconds")? {
                0 => {}
                idle => self.keepalives = Some(Keepalives { idle: seconds(idle), ..keepalives }),
            },
            "keepalives_interval" => match number("seconds")? {
                0 => {}
                interval => self.keepalives = Some(Keepalives { interval: seconds(interval), ..keepalives }),
            },
            "keepalives_count" => match number("probes")? {
                0 => {}
                count => self.keepalives = Some(Keepalives { count, ..keepalives }),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Has the system end a connection whose other side is gone.
    pub(crate) fn apply(&self, stream: &TcpStream) -> io::Result<()> {
        if let Some(Keepalives { idle, interval, count }) = self.keepalives {
            sockopt::set_socket_keepalive(stream, true)?;
            sockopt::set_tcp_keepidle(stream, idle)?;
            sockopt::set_tcp_keepintvl(stream, interval)?;
            sockopt::set_tcp_keepcnt(stream, count)?;
        }
        if self.tcp_user > 0 {
            sockopt::set_tcp_user_timeout(stream, self.tcp_user)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_have_the_units_of_libpq() {
        let mut timeouts = Timeouts::default();
        assert_eq!((timeouts.connect_of(1), timeouts.connect_of(3)), (CONNECT, CONNECT_EACH));
        for (name, value) in [
            ("call_timeout", "2.5"),
            ("tcp_user_timeout", "1500"),
            ("keepalives_idle", "7"),
            ("keepalives_interval", "0"),
            ("keepalives_count", "2"),
        ] {
            assert!(timeouts.set(name, value).unwrap(), "{name}");
        }
        assert_eq!((timeouts.call, timeouts.tcp_user), (Some(Duration::from_millis(2500)), 1500));
        let second = Duration::from_secs(1);
        assert_eq!(timeouts.keepalives, Some(Keepalives { idle: 7 * second, interval: second, count: 2 }));
        assert!(timeouts.set("keepalives", "0").unwrap() && timeouts.keepalives.is_none());
        assert!(timeouts.set("call_timeout", "0").unwrap() && timeouts.call.is_none());
        assert!(!timeouts.set("application_name", "0").unwrap());
        for (name, value) in [("call_timeout", "-1"), ("call_timeout", "x"), ("tcp_user_timeout", "1.5")] {
            let error = timeouts.set(name, value).unwrap_err();
            assert!(error.to_string().contains(name) && error.hint().contains("from 0 on"), "{error}");
        }
    }
}
