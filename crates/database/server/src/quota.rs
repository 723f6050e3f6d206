//! What a connection holds of the memory that all connections share: its statements and portals, and the message that
//! it is at. A little is its own; the rest comes from one room for all, and who finds it full is told so.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pgwire::api::DEFAULT_NAME;
use pgwire::messages::PgWireFrontendMessage as Message;
use pgwire::messages::extendedquery::TARGET_TYPE_BYTE_STATEMENT;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::{Refusal, refuse};

/// What all connections together may hold beside [`OWN`] of each, in KiB.
const ROOM: usize = 512 << 10;
/// Bytes that a connection may hold whatever others do.
const OWN: usize = 256 << 10;
/// What a statement or portal takes beside its message.
const KEPT: usize = 1 << 10;

/// The room of all connections.
pub(crate) fn room() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(ROOM))
}

/// What a message does to what is held.
pub(crate) enum Change {
    Keep(Kind, String),
    Close(Kind, String),
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Statement,
    Portal,
}

impl Change {
    pub(crate) fn of(message: &Message) -> Self {
        let name = |name: &Option<String>| name.as_deref().unwrap_or(DEFAULT_NAME).to_owned();
        match message {
            Message::Parse(parse) => Self::Keep(Kind::Statement, name(&parse.name)),
            Message::Bind(bind) => Self::Keep(Kind::Portal, name(&bind.portal_name)),
            Message::Close(close) if close.target_type == TARGET_TYPE_BYTE_STATEMENT => {
                Self::Close(Kind::Statement, name(&close.name))
            }
            Message::Close(close) => Self::Close(Kind::Portal, name(&close.name)),
            _ => Self::Nothing,
        }
    }
}

/// Bytes, and where they come from if they are not a connection's own.
pub(crate) struct Part {
    bytes: usize,
    _room: Option<OwnedSemaphorePermit>,
}

/// What a connection holds.
pub(crate) struct Held {
    room: Arc<Semaphore>,
    io_timeout: Duration,
    parts: HashMap<(Kind, String), Part>,
    bytes: usize,
}

impl Held {
    pub(crate) fn new(room: Arc<Semaphore>, io_timeout: Duration) -> Self {
        Self { room, io_timeout, parts: HashMap::new(), bytes: 0 }
    }

    /// Room for a message of so many bytes.
    ///
    /// # Errors
    /// There has been none for as long as this waits.
    pub(crate) async fn room(&self, bytes: usize) -> Result<Part, Refusal> {
        let bytes = bytes + KEPT;
        if self.bytes + bytes <= OWN {
            return Ok(Part { bytes, _room: None });
        }
        let room = timeout(self.io_timeout, self.room.clone().acquire_many_owned((bytes >> 10) as u32 + 1)).await;
        let Ok(Ok(room)) = room else {
            let message =
                format!("statements and values of all connections fill the {} MiB that they have", ROOM >> 10);
            return Err(refuse("53200", message).hint("close statements that are not needed, or try again"));
        };
        Ok(Part { bytes, _room: Some(room) })
    }

    /// What has been done changes what is held; `part` is that of the message.
    pub(crate) fn change(&mut self, change: Change, part: Part) {
        let before = match change {
            Change::Keep(kind, name) => {
                self.bytes += part.bytes;
                self.parts.insert((kind, name), part)
            }
            Change::Close(kind, name) => self.parts.remove(&(kind, name)),
            Change::Nothing => None,
        };
        self.bytes -= before.map_or(0, |part| part.bytes);
    }

    /// These are gone.
    pub(crate) fn free(&mut self, gone: Vec<(Kind, String)>) {
        for one in gone {
            self.bytes -= self.parts.remove(&one).map_or(0, |part| part.bytes);
        }
    }

    /// A transaction has ended, and portals with it.
    pub(crate) fn end_portals(&mut self) {
        self.parts.retain(|(kind, _), _| *kind == Kind::Statement);
        self.bytes = self.parts.values().map(|part| part.bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_holds_much_takes_it_from_all_and_gives_it_back() {
        let shared = Arc::new(Semaphore::new(1_000));
        let held = || Held::new(shared.clone(), Duration::from_millis(10));
        let (mut one, mut two) = (held(), held());
        let keep = |name: &str| Change::Keep(Kind::Portal, name.into());
        for at in 0..200 {
            let part = one.room(0).await.unwrap();
            one.change(keep(&at.to_string()), part);
        }
        assert_eq!(shared.available_permits(), 1_000);
        let part = one.room(900 << 10).await.unwrap();
        one.change(keep("large"), part);
        assert!(shared.available_permits() < 100);
        let part = two.room(200 << 10).await.unwrap();
        two.change(Change::Nothing, part);
        assert_eq!(two.room(300 << 10).await.map(|_| ()).unwrap_err().sqlstate, "53200");
        let part = one.room(0).await.unwrap();
        one.change(Change::Close(Kind::Portal, "large".into()), part);
        two.room(300 << 10).await.map(|_| ()).unwrap();
        let part = one.room(600 << 10).await.unwrap();
        one.change(Change::Keep(Kind::Statement, "s".into()), part);
        let before = shared.available_permits();
        one.free(vec![(Kind::Statement, "s".into()), (Kind::Statement, "1".into())]);
        assert!(shared.available_permits() >= before + 600 && one.parts.len() == 200, "{}", one.parts.len());
        one.free(vec![(Kind::Portal, "1".into())]);
        assert_eq!(one.parts.len(), 199);
        one.end_portals();
        assert!(one.bytes == 0 && shared.available_permits() == 1_000);
    }
}
