//! Scenarios as text. One line is one thing; `#` begins a comment, a blank line ends a step.
//!
//! ```text
//! # Title
//! profile wide                                          or lean
//! locks 4
//! first readers                                         or writers
//! key 000102030405060708090a0b0c0d0e0f                  or none
//! machine 1 session=101
//! lock 3 shared machine=1 incarnation=5 token=0x10000   new locks are not listed
//!
//! # comment
//! in acquire shared lock=3 request=0:7 requester=2/102 sender=2/102
//! out 2: grant shared state=shared lock=3 ...
//! out source: ...
//! drop tag                                              length, magic, version, tag, field or kind
//! lock 3 shared machine=1 incarnation=6 token=0x10000
//! ```
//!
//! Fields that are 0 are left out; a request is `task:counter`, `2/102` is machine 2 in session 102. What is no packet
//! is `hex` and its bytes. Tags are not written: they follow from the key.

use super::{Dropped, Lock, Scenario, Setup, Step};
use crate::decider::To;
use crate::packet::{AGENT, BUSY, GRANTED, Key, Kind, Packet, TRY, parse};
use crate::word::{Machine, Profile, State, Word};
use std::fmt::Write;

/// Flags and the mode bits, as words.
const FLAGS: [(&str, u8); 6] =
    [("shared", 1), ("exclusive", 3), ("agent", AGENT), ("granted", GRANTED), ("try", TRY), ("busy", BUSY)];

const DROPS: [(&str, Dropped); 6] = [
    ("length", Dropped::Length),
    ("magic", Dropped::Magic),
    ("version", Dropped::Version),
    ("tag", Dropped::Tag),
    ("field", Dropped::Field),
    ("kind", Dropped::Kind),
];

/// A line of a scenario that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// From 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect::<Option<_>>().ok_or_else(|| format!("'{text}' is no hex"))
}

fn kind_name(kind: Kind) -> String {
    format!("{kind:?}").to_lowercase()
}

/// A datagram in words: its fields if it is a packet under `key`, else its bytes.
#[must_use]
pub fn describe(datagram: &[u8], key: Option<&Key>) -> String {
    let Ok((packet, payload)) = parse(datagram, key) else { return format!("hex {}", hex(datagram)).trim_end().into() };
    let mut text = kind_name(packet.kind);
    let mode = packet.flags & 3;
    for (name, bits) in FLAGS {
        if if bits < 4 { mode == bits } else { packet.has(bits) } {
            let _ = write!(text, " {name}");
        }
    }
    if packet.state != State::Free {
        let _ = write!(text, " state={}", packet.state);
    }
    let mut field = |name: &str, value: String, zero: bool| {
        if !zero {
            let _ = write!(text, " {name}={value}");
        }
    };
    let Packet { requester, requester_session, sender, session, request, .. } = packet;
    field("lock", packet.lock.to_string(), false);
    field("request", format!("{}:{}", request >> 32, request as u32), request == 0);
    field("requester", format!("{}/{requester_session}", requester.0), requester.0 == 0 && requester_session == 0);
    field("sender", format!("{}/{session}", sender.0), sender.0 == 0 && session == 0);
    field("target", packet.target.0.to_string(), packet.target.0 == 0);
    field("incarnation", packet.incarnation.to_string(), packet.incarnation == 0);
    field("token", format!("{:#x}", packet.token), packet.token == 0);
    field("hops", packet.hops.to_string(), packet.hops == 0);
    field("part", packet.part.to_string(), packet.part == 0);
    field("parts", packet.parts.to_string(), packet.parts == 0);
    field("payload", hex(payload), payload.is_empty());
    text
}

pub(super) fn output((to, datagram): &(To, Vec<u8>), key: Option<&Key>) -> String {
    let to = match to {
        To::Source => "source".to_string(),
        To::Machine(machine) => machine.0.to_string(),
    };
    format!("out {to}: {}", describe(datagram, key))
}

pub(super) fn lock(of: &Lock) -> String {
    let Lock { lock, word: Word { state, machine, incarnation }, token } = of;
    format!("lock {lock} {state} machine={} incarnation={incarnation} token={token:#x}", machine.0)
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { title, setup, steps } = self;
        title.lines().try_for_each(|line| writeln!(out, "# {line}"))?;
        writeln!(out, "profile {}", if setup.profile == Profile::Wide { "wide" } else { "lean" })?;
        writeln!(out, "locks {}", setup.locks)?;
        writeln!(out, "first {}", if setup.writers_first { "writers" } else { "readers" })?;
        writeln!(out, "key {}", setup.key.map_or("none".into(), |key| hex(&key.0)))?;
        for (machine, session) in &setup.sessions {
            writeln!(out, "machine {} session={session}", machine.0)?;
        }
        setup.words.iter().try_for_each(|of| writeln!(out, "{}", lock(of)))?;
        for step in steps {
            writeln!(out)?;
            step.comment.lines().try_for_each(|line| writeln!(out, "# {line}"))?;
            writeln!(out, "in {}", describe(&step.input, setup.key.as_ref()))?;
            for one in &step.outputs {
                writeln!(out, "{}", output(one, setup.key.as_ref()))?;
            }
            if let Some((name, _)) = DROPS.iter().find(|(_, cause)| Some(*cause) == step.dropped) {
                writeln!(out, "drop {name}")?;
            }
            step.changed.iter().try_for_each(|of| writeln!(out, "{}", lock(of)))?;
        }
        Ok(())
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("'{text}' is no number that fits"))
}

/// Tokens are easier to read in hex: what a decider adds to them is 0x10000.
fn token(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x");
    let token = digits.map_or_else(|| text.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok());
    token.ok_or_else(|| format!("'{text}' is no token"))
}

fn state(text: &str) -> Result<State, String> {
    let named = |state: &State| state.to_string() == text;
    State::ALL.into_iter().find(named).ok_or_else(|| format!("'{text}' is no state: free, shared, led or exclusive"))
}

fn member(text: &str) -> Result<(Machine, u32), String> {
    let (machine, session) = text.split_once('/').ok_or_else(|| format!("'{text}' is not MACHINE/SESSION"))?;
    Ok((Machine(number(machine)?), number(session)?))
}

/// `name=value`, with this name.
fn value<'a>(text: Option<&'a str>, name: &str) -> Result<&'a str, String> {
    let of = text.and_then(|text| text.strip_prefix(name)).and_then(|rest| rest.strip_prefix('='));
    of.ok_or_else(|| format!("'{name}=' is missing"))
}

fn datagram(text: &str, key: Option<&Key>) -> Result<Vec<u8>, String> {
    let mut words = text.split_whitespace();
    let name = words.next().ok_or("a packet is missing")?;
    if name == "hex" {
        return unhex(words.next().unwrap_or_default());
    }
    let kind = Kind::ALL.into_iter().find(|kind| kind_name(*kind) == name);
    let mut packet = Packet::new(kind.ok_or_else(|| format!("'{name}' is no kind of packet"))?, 0);
    let mut payload = Vec::new();
    for word in words {
        if let Some((_, bits)) = FLAGS.into_iter().find(|(name, _)| *name == word) {
            packet.flags |= bits;
            continue;
        }
        let (name, value) = word.split_once('=').ok_or_else(|| format!("'{word}' is no field and no flag"))?;
        match name {
            "state" => packet.state = state(value)?,
            "lock" => packet.lock = number(value)?,
            "request" => {
                let (task, counter) = value.split_once(':').ok_or_else(|| format!("'{value}' is not TASK:COUNTER"))?;
                packet.request = u64::from(number::<u32>(task)?) << 32 | u64::from(number::<u32>(counter)?);
            }
            "requester" => (packet.requester, packet.requester_session) = member(value)?,
            "sender" => (packet.sender, packet.session) = member(value)?,
            "target" => packet.target = Machine(number(value)?),
            "incarnation" => packet.incarnation = number(value)?,
            "token" => packet.token = token(value)?,
            "hops" => {
                let hops = number(value)?;
                packet.hops = if hops < 64 { hops } else { return Err(format!("'{value}' is no number that fits")) };
            }
            "part" => packet.part = number(value)?,
            "parts" => packet.parts = number(value)?,
            "payload" => payload = unhex(value)?,
            _ => return Err(format!("there is no field '{name}'")),
        }
    }
    if !payload.len().is_multiple_of(8) || payload.len() > crate::packet::MAX_BYTES - crate::packet::HEADER {
        return Err(format!("a payload of {} bytes does not travel", payload.len()));
    }
    let mut bytes = packet.header(payload.len(), key).to_vec();
    bytes.extend_from_slice(&payload);
    Ok(bytes)
}

impl Scenario {
    /// Reads what [`std::fmt::Display`] writes.
    ///
    /// # Errors
    /// The first line that cannot be read, and why.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut scenario = Self { title: String::new(), setup: Setup::new(0), steps: Vec::new() };
        let mut comment = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            scenario.line(text, &mut comment).map_err(|what| ParseError { line, what })?;
        }
        Ok(scenario)
    }

    fn line<'a>(&mut self, text: &'a str, comment: &mut Vec<&'a str>) -> Result<(), String> {
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        let key = self.setup.key;
        match (name, self.steps.last_mut()) {
            ("", _) => {}
            ("#", _) => comment.push(rest),
            ("profile", None) => {
                self.title = std::mem::take(comment).join("\n");
                self.setup.profile = match rest {
                    "wide" => Profile::Wide,
                    "lean" => Profile::Lean,
                    _ => return Err(format!("'{rest}' is no profile: wide or lean")),
                };
            }
            ("locks", None) => self.setup.locks = number(rest)?,
            ("first", None) => {
                self.setup.writers_first = match rest {
                    "readers" => false,
                    "writers" => true,
                    _ => return Err(format!("'{rest}' go first? Readers or writers do")),
                }
            }
            ("key", None) if rest == "none" => self.setup.key = None,
            ("key", None) => {
                let bytes: Result<[u8; 16], _> = unhex(rest)?.try_into();
                self.setup.key = Some(Key(bytes.map_err(|_| "a key has 16 bytes")?));
            }
            ("machine", None) => {
                let (machine, session) = rest.split_once(' ').ok_or("'session=' is missing")?;
                let session = number(value(Some(session), "session")?)?;
                self.setup.sessions.push((Machine(number(machine)?), session));
            }
            ("lock", step) => {
                let mut words = rest.split(' ');
                let lock = number(words.next().unwrap_or_default())?;
                if lock >= self.setup.locks {
                    return Err(format!("lock {lock} of {}", self.setup.locks));
                }
                let state = state(words.next().unwrap_or_default())?;
                let machine = Machine(number(value(words.next(), "machine")?)?);
                let incarnation = number(value(words.next(), "incarnation")?)?;
                let token = token(value(words.next(), "token")?)?;
                let of = Lock { lock, word: Word { state, machine, incarnation }, token };
                step.map_or(&mut self.setup.words, |step| &mut step.changed).push(of);
            }
            ("in", _) => {
                let (comment, input) = (std::mem::take(comment).join("\n"), datagram(rest, key.as_ref())?);
                let (outputs, changed) = (Vec::new(), Vec::new());
                self.steps.push(Step { comment, input, dropped: None, outputs, changed });
            }
            ("out", Some(step)) => {
                let (to, packet) = rest.split_once(": ").ok_or("'out MACHINE: PACKET' or 'out source: PACKET'")?;
                let to = if to == "source" { To::Source } else { To::Machine(Machine(number(to)?)) };
                step.outputs.push((to, datagram(packet, key.as_ref())?));
            }
            ("drop", Some(step)) => {
                let cause = DROPS.into_iter().find(|(name, _)| *name == rest);
                step.dropped = Some(cause.ok_or_else(|| format!("'{rest}' is no reason"))?.1);
            }
            _ => return Err(format!("'{text}' is not understood here")),
        }
        Ok(())
    }
}
