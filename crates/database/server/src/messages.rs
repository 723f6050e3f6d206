//! A client's messages, as they come: how long they may be, how long they may take, and whether they are whole.
//!
//! Only what is whole is decoded: pgwire reads behind the end of a message that says that it has more than there is.
//! What is too long is passed over as it comes, and the client goes on with its next message.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use pgwire::error::ErrorInfo;
use pgwire::messages::{DecodeContext, PgWireFrontendMessage, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

use crate::error::{Refusal, refuse};
use crate::quota::{Held, Part};
use crate::session::fatal;

/// The longest text of a statement, in bytes.
const MAX_TEXT: usize = 1 << 20;
/// The longest values of a statement or of a COPY.
const MAX_VALUES: usize = 64 << 20;
/// The longest other message, also of those who have not logged in.
const MAX_OTHER: usize = 10_000;
/// The longest message of the protocol.
const MOST: usize = (1 << 30) - 1;
/// What is read at a time.
const READ: usize = 8 << 10;
/// Messages that close something, and that a Sync is looked for behind: drivers send a few.
const MAX_CLOSES: usize = 16;
/// A message adds a second to the time that it may take for each of so many bytes.
const BYTES_PER_SECOND: usize = 1 << 20;

/// What a client has sent.
pub(crate) enum Next {
    /// A message, and the room that it takes.
    Message(PgWireFrontendMessage, Part),
    /// A message of this kind that cannot be taken. It has been passed over.
    Refused(u8, Refusal),
    /// No message of the protocol, or only a part of one: there is nothing to go on with.
    Broken(Box<ErrorInfo>),
    /// Nothing more.
    Gone,
}

/// What is expected of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Who it is.
    Startup,
    /// The first message of what proves it.
    Mechanism,
    /// A further one.
    Proof,
    Other,
}

/// The messages of a connection.
pub(crate) struct Messages {
    bytes: BytesMut,
    timeout: Duration,
}

fn broken(message: impl Into<String>) -> Next {
    Next::Broken(fatal("08P01", &message.into()).into())
}

impl Messages {
    /// `bytes` have been read already. A message may take `timeout` from its first byte on, and more if it is long.
    pub(crate) fn new(bytes: BytesMut, timeout: Duration) -> Self {
        Self { bytes, timeout }
    }

    /// Whether a Sync is there already, with nothing before it but a few messages that close statements and portals.
    pub(crate) fn is_sync_next(&self) -> bool {
        let mut rest = &self.bytes[..];
        // It is asked for each message: with many of them it would look at the same ones again and again.
        for _ in 0..MAX_CLOSES {
            let [b'C', length @ ..] = rest else { break };
            let Some(length) = length.first_chunk().map(|length| u32::from_be_bytes(*length)) else { break };
            let Some(behind) = rest.get(1 + length as usize..) else { break };
            rest = behind;
        }
        rest.first() == Some(&b'S')
    }

    /// Reads until so many bytes are there; whether they are.
    async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin), length: usize) -> io::Result<bool> {
        while self.bytes.len() < length {
            if self.bytes.capacity() - self.bytes.len() < READ / 8 {
                self.bytes.reserve(READ);
            }
            if from.read_buf(&mut self.bytes).await? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads until so many bytes are there; what it is if they do not come until then.
    async fn fill_until(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        length: usize,
        until: Instant,
    ) -> io::Result<Option<Next>> {
        if self.bytes.len() >= length {
            // Mostly all has come at once, and needs no timer.
            return Ok(None);
        }
        match timeout_at(until, self.fill(from, length)).await {
            Err(_) => Ok(Some(self.stopped())),
            Ok(come) => Ok(if come? { None } else { Some(Next::Gone) }),
        }
    }

    /// Reads so many bytes and forgets them; whether they came.
    async fn pass_over(&mut self, from: &mut (impl AsyncRead + Unpin), mut length: usize) -> io::Result<bool> {
        loop {
            let some = length.min(self.bytes.len());
            drop(self.bytes.split_to(some));
            length -= some;
            if length == 0 || !self.fill(from, 1).await? {
                return Ok(length == 0);
            }
        }
    }

    /// The next message. It waits for its beginning as long as it takes, and takes room from `held` before it is read.
    pub(crate) async fn next(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        stage: Stage,
        version: ProtocolVersion,
        held: &Held,
    ) -> io::Result<Next> {
        if !self.fill(from, 1).await? {
            return Ok(Next::Gone);
        }
        let begun = Instant::now();
        let kind_bytes = usize::from(stage != Stage::Startup);
        if let Some(end) = self.fill_until(from, kind_bytes + 4, begun + self.timeout).await? {
            return Ok(end);
        }
        let (kind, said) = (self.bytes[0], &self.bytes[kind_bytes..kind_bytes + 4]);
        let said = i32::from_be_bytes([said[0], said[1], said[2], said[3]]);
        let most = match stage {
            Stage::Startup => Some(MAX_OTHER),
            Stage::Mechanism | Stage::Proof => Some(MAX_OTHER).filter(|_| matches!(kind, b'p' | b'X')),
            // Who is in proves nothing any more.
            Stage::Other if kind == b'p' => None,
            Stage::Other => most(kind),
        };
        let Some(most) = most else {
            return Ok(broken(format!("there is no message of the kind {:?} here", char::from(kind))));
        };
        let Some(length) = usize::try_from(said).ok().filter(|length| (4..=MOST).contains(length)) else {
            return Ok(broken(format!("a message says that it has {said} bytes")));
        };
        let until = begun + self.timeout + Duration::from_secs((length / BYTES_PER_SECOND) as u64);
        let all = kind_bytes + length;
        if length > most {
            let message = format!("a message has {length} bytes, and {most} of this kind are possible");
            if stage != Stage::Other || !matches!(kind, b'Q' | b'P' | b'B') {
                return Ok(broken(message));
            }
            let hint = "make several statements or calls of it";
            let Ok(come) = timeout_at(until, self.pass_over(from, all)).await else { return Ok(self.stopped()) };
            return Ok(if come? { Next::Refused(kind, refuse("54000", message).hint(hint)) } else { Next::Gone });
        }
        if stage == Stage::Other && kind == b'F' {
            let Ok(come) = timeout_at(until, self.pass_over(from, all)).await else { return Ok(self.stopped()) };
            let refusal = refuse("0A000", "functions are not called by messages of their own").hint("SELECT, or CALL");
            return Ok(if come? { Next::Refused(kind, refusal) } else { Next::Gone });
        }
        let part = match held.room(length).await {
            Ok(part) => part,
            Err(refusal) => {
                let Ok(come) = timeout_at(until, self.pass_over(from, all)).await else { return Ok(self.stopped()) };
                return Ok(if come? { Next::Refused(kind, refusal) } else { Next::Gone });
            }
        };
        let until = until.max(Instant::now() + self.timeout);
        if let Some(end) = self.fill_until(from, all, until).await? {
            return Ok(end);
        }
        let mut message = self.bytes.split_to(all);
        if all > READ {
            // What a long message took is not kept for those behind it.
            self.bytes = BytesMut::from(&self.bytes[..]);
        }
        match if stage == Stage::Startup { startup(&message) } else { texts(kind, &message[5..], stage) } {
            None if stage == Stage::Startup => return Ok(broken("the first message has not what belongs to it")),
            None => {
                let message = format!("a message of the kind {:?} has not what belongs to it", char::from(kind));
                return Ok(broken(message));
            }
            Some(false) if stage != Stage::Other => return Ok(broken("a text is no UTF-8")),
            Some(false) => {
                let refusal = refuse("22021", "a text of this message is no UTF-8");
                return Ok(Next::Refused(kind, refusal.hint("the encoding of clients is UTF8")));
            }
            Some(true) => {}
        }
        let mut context = DecodeContext::new(version);
        context.awaiting_frontend_ssl = false;
        context.awaiting_frontend_startup = stage == Stage::Startup;
        Ok(match PgWireFrontendMessage::decode(&mut message, &context) {
            Ok(Some(message)) => Next::Message(message, part),
            Ok(None) => broken("a message has not the bytes that it says"),
            Err(error) => broken(error.to_string()),
        })
    }

    fn stopped(&self) -> Next {
        broken(format!("the rest of a message has not come within {:?}", self.timeout))
    }
}

/// The most bytes that a message of a kind may have; nothing for what clients do not send.
fn most(kind: u8) -> Option<usize> {
    match kind {
        b'Q' | b'P' => Some(MAX_TEXT),
        b'B' | b'd' => Some(MAX_VALUES),
        b'C' | b'D' | b'E' | b'F' | b'H' | b'S' | b'X' | b'c' | b'f' | b'p' => Some(MAX_OTHER),
        _ => None,
    }
}

/// As [`texts`], of the message that a connection begins with: what asks for a session has names and values of
/// settings.
fn startup(message: &[u8]) -> Option<bool> {
    /// Version 3 of the protocol.
    const SESSION: [u8; 2] = [0, 3];
    let (head, body) = message.split_at_checked(8)?;
    if head[4..6] != SESSION {
        return Some(true);
    }
    let mut fields = Fields { rest: body, is_utf8: true };
    while fields.rest.first().is_some_and(|&byte| byte != 0) {
        fields.text().and_then(|()| fields.text())?;
    }
    (fields.rest == [0]).then_some(fields.is_utf8)
}

/// Whether the texts of a message are UTF-8, if its body has what its kind demands, and nothing else.
fn texts(kind: u8, body: &[u8], stage: Stage) -> Option<bool> {
    let mut fields = Fields { rest: body, is_utf8: true };
    let read = match kind {
        b'Q' | b'f' => fields.text(),
        b'P' => fields.text().and_then(|()| fields.text()).and_then(|()| fields.several(4)),
        b'B' => fields.bind(),
        b'C' | b'D' => fields.skip(1).and_then(|()| fields.text()),
        b'E' => fields.text().and_then(|()| fields.skip(4)),
        b'p' if stage == Stage::Mechanism => fields.text().and_then(|()| fields.value()),
        b'p' | b'd' => fields.skip(body.len()),
        _ => Some(()),
    };
    read.filter(|()| fields.rest.is_empty()).map(|()| fields.is_utf8)
}

/// What is left of a body.
struct Fields<'a> {
    rest: &'a [u8],
    /// Whether all texts so far are.
    is_utf8: bool,
}

impl Fields<'_> {
    fn skip(&mut self, bytes: usize) -> Option<()> {
        self.rest = self.rest.get(bytes..)?;
        Some(())
    }

    /// A text that ends with a zero byte.
    fn text(&mut self) -> Option<()> {
        let end = self.rest.iter().position(|&byte| byte == 0)?;
        self.is_utf8 &= std::str::from_utf8(&self.rest[..end]).is_ok();
        self.skip(end + 1)
    }

    fn count(&mut self) -> Option<usize> {
        let count = u16::from_be_bytes(self.rest.get(..2)?.try_into().ok()?);
        self.skip(2)?;
        Some(count.into())
    }

    /// A count, and so many of so many bytes.
    fn several(&mut self, bytes: usize) -> Option<()> {
        let count = self.count()?;
        self.skip(count * bytes)
    }

    /// A length, and so many bytes; -1 for none.
    fn value(&mut self) -> Option<()> {
        let length = i32::from_be_bytes(self.rest.get(..4)?.try_into().ok()?);
        self.skip(4)?;
        if length == -1 { Some(()) } else { self.skip(usize::try_from(length).ok()?) }
    }

    fn bind(&mut self) -> Option<()> {
        self.text()?;
        self.text()?;
        self.several(2)?;
        for _ in 0..self.count()? {
            self.value()?;
        }
        self.several(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_message_that_is_cut_anywhere_is_not_whole() {
        let whole = b"\0\0\0\x1f\0\x03\0\0user\0ann\0database\0b\0\0";
        assert_eq!(startup(whole), Some(true));
        (0..whole.len()).for_each(|length| assert_eq!(startup(&whole[..length]), None, "{length}"));
        assert_eq!(startup(b"\0\0\0\x08\x04\xd2\x16\x2f"), Some(true));
        assert_eq!(startup(b"\0\0\0\x10\0\x03\0\0user\0\xff\0\0"), Some(false));
    }

    #[test]
    fn a_message_that_is_cut_anywhere_is_not_whole() {
        for (kind, body) in [
            (b'Q', &b"SELECT 1\0"[..]),
            (b'P', b"name\0SELECT $1\0\0\x02\0\0\0\x14\0\0\0\x15"),
            (b'B', b"portal\0name\0\0\x01\0\x01\0\x02\0\0\0\x02ab\xff\xff\xff\xff\0\x01\0\0"),
            (b'D', b"Sname\0"),
            (b'C', b"Pname\0"),
            (b'E', b"portal\0\0\0\0\x05"),
            (b'p', b"SCRAM-SHA-256\0\0\0\0\x03abc"),
        ] {
            assert_eq!(texts(kind, body, Stage::Mechanism), Some(true), "{}", char::from(kind));
            for length in 0..body.len() {
                assert_eq!(texts(kind, &body[..length], Stage::Mechanism), None, "{} {length}", char::from(kind));
            }
            assert_eq!(texts(kind, &[body, b"x"].concat(), Stage::Mechanism), None, "{}", char::from(kind));
        }
        // Lengths below -1, which pgwire takes for very long ones.
        assert_eq!(texts(b'p', b"SCRAM-SHA-256\0\xff\xff\xff\xfe", Stage::Mechanism), None);
        assert_eq!(texts(b'B', b"\0\0\0\0\0\x01\xff\xff\xff\xfe\0\0", Stage::Other), None);
        assert_eq!((texts(b'S', b"", Stage::Other), texts(b'S', b"x", Stage::Other)), (Some(true), None));
        assert_eq!(texts(b'Q', b"caf\xe9\0", Stage::Other), Some(false));
    }

    #[test]
    fn a_sync_is_looked_for_behind_few_messages() {
        let behind = |closes: usize| {
            let bytes = [b"C\0\0\0\x06P\0".repeat(closes), b"S\0\0\0\x04".to_vec()].concat();
            Messages::new(BytesMut::from(&bytes[..]), Duration::ZERO).is_sync_next()
        };
        assert_eq!([0, 2, MAX_CLOSES, MAX_CLOSES + 1].map(behind), [true, true, true, false]);
        assert!(!Messages::new(BytesMut::from(&b"C\0\0\0\x06P"[..]), Duration::ZERO).is_sync_next());
    }
}
