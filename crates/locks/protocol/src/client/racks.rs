//! What a client does when another decider decides on a lock; see [`crate::racks`].

use super::{Client, Event, Output, Request};
use std::net::SocketAddr;

impl Client {
    /// A request that waits is to be made at `to`.
    pub(crate) fn moved(&mut self, number: u64, to: SocketAddr) {
        if self.requests.get(&number).is_some_and(Request::waits) {
            self.forget(number);
            self.out.push_back(Output::Event(Event::Moved { request: number, to }));
        }
    }
}
