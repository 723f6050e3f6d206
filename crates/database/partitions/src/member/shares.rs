//! What is told at one place of the order, outside of calls ([`Exchange`]), on its way between members: in pieces, so
//! that neither a connection's buffer nor calls wait for the whole of it, and once more to who comes back.

use std::collections::HashMap;
use std::sync::Arc;

use super::{End, Member};
use crate::exchange::{Exchange, Share};
use crate::message::{GOT, PIECE, SHARE};
use crate::stream::Stream;
use crate::wire::{Malformed, Put, Reader};

/// No further piece is sent while so many bytes wait in a connection.
const BACKLOG: usize = 4 * PIECE;
/// The most bytes that are told of one place by one member: a coordinator wants no more than this.
const MOST: u64 = 4 << 30;

/// Something that is told, and how far it was sent to each on the connection that there is; `None`: not begun.
#[derive(Debug)]
struct Telling {
    share: Share,
    sent: Vec<Option<usize>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shares {
    pub(super) exchange: Arc<Exchange>,
    telling: Vec<Telling>,
    /// What has come in part, by place and by who tells it.
    parts: HashMap<(u64, usize), Vec<u8>>,
}

impl Shares {
    pub(crate) fn new(exchange: Arc<Exchange>) -> Self {
        Self { exchange, telling: Vec::new(), parts: HashMap::new() }
    }

    /// Takes what the coordinator wants to be told.
    fn begin(&mut self, members: usize) {
        let new = self.exchange.to_tell().into_iter();
        self.telling.extend(new.map(|share| Telling { share, sent: vec![None; members] }));
    }

    /// Member `number` has come, and wants what is of this place and of later ones.
    pub(super) fn again(&mut self, number: usize, from: u64) {
        self.parts.retain(|(_, teller), _| *teller != number);
        for telling in &mut self.telling {
            let is_over = telling.share.stamp < from;
            telling.sent[number] = is_over.then_some(telling.share.bytes.len());
            if is_over && !telling.share.stays {
                telling.share.whom &= !(1 << number);
            }
        }
        self.drop_told();
    }

    /// Member `number` has what is of a place.
    fn got(&mut self, number: usize, stamp: u64) {
        let of = |telling: &&mut Telling| telling.share.stamp == stamp && !telling.share.stays;
        self.telling.iter_mut().filter(of).for_each(|telling| telling.share.whom &= !(1 << number));
        self.drop_told();
    }

    fn drop_told(&mut self) {
        self.telling.retain(|telling| telling.share.whom != 0);
    }

    /// Nobody begins before this place any more.
    pub(super) fn forget(&mut self, stamp: u64) {
        self.telling.retain(|telling| telling.share.stamp >= stamp);
    }

    /// Sends to a member what its connection takes.
    fn send(&mut self, number: usize, peer: &mut Stream) {
        for Telling { share, sent } in self.telling.iter_mut().filter(|telling| telling.share.whom >> number & 1 == 1) {
            let total = share.bytes.len();
            while sent[number].is_none_or(|sent| sent < total) {
                if peer.backlog() >= BACKLOG {
                    return;
                }
                let start = sent[number].unwrap_or(0);
                let end = total.min(start + PIECE);
                peer.send(|frame| {
                    frame.u8(SHARE);
                    frame.u64(share.stamp);
                    frame.u64(start as u64);
                    frame.u64(total as u64);
                    frame.bytes(&share.bytes[start..end]);
                });
                sent[number] = Some(end);
            }
        }
    }

    /// Takes a piece; `true`: the last of something that the coordinator is to know.
    ///
    /// # Errors
    /// A piece that follows none of those before.
    fn take(&mut self, number: usize, reader: &mut Reader<'_>) -> Result<Piece, Malformed> {
        let (stamp, start, total, bytes) = (reader.u64()?, reader.u64()?, reader.u64()?, reader.rest());
        if self.exchange.is_over(stamp) {
            self.parts.remove(&(stamp, number));
            return Ok(Piece::Over(stamp));
        }
        let known = self.parts.entry((stamp, number)).or_default();
        if start != known.len() as u64 || total > MOST || start + bytes.len() as u64 > total {
            return Err(Malformed::new(format_args!("bytes {start} of {total} behind {}", known.len())));
        }
        known.extend_from_slice(bytes);
        if (known.len() as u64) < total {
            return Ok(Piece::More);
        }
        let whole = self.parts.remove(&(stamp, number)).unwrap_or_default();
        self.exchange.hear(stamp, number, whole);
        Ok(Piece::Last)
    }
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    More,
    Last,
    /// Of a place that is over.
    Over(u64),
}

impl Member {
    /// Sends what is to be told at places, as far as connections take it.
    pub(super) fn share(&mut self) {
        let Self { apart, peers, .. } = self;
        let Some(apart) = apart else { return };
        apart.shares.begin(peers.len());
        for (number, peer) in peers.iter_mut().enumerate() {
            if let Some(peer) = peer {
                apart.shares.send(number, peer);
            }
        }
    }

    /// Takes a piece of what another member tells.
    pub(super) fn take_share(&mut self, number: usize, peer: &mut Stream, reader: &mut Reader<'_>) -> Result<(), End> {
        let apart = self.apart.as_mut().expect("the others are on other machines");
        match apart.shares.take(number, reader)? {
            Piece::More => {}
            Piece::Last => self.coordinator.send(|frame| frame.u8(SHARE)),
            Piece::Over(stamp) => peer.send(|frame| put_got(frame, stamp)),
        }
        Ok(())
    }

    /// Member `number` has what is of a place.
    pub(super) fn take_got(&mut self, number: usize, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let stamp = reader.u64()?;
        self.apart.as_mut().expect("the others are on other machines").shares.got(number, stamp);
        Ok(())
    }

    /// The coordinator has what is of a place: nobody needs to tell it any more.
    pub(super) fn has_got(&mut self, stamp: u64) {
        self.peers.iter_mut().flatten().for_each(|peer| peer.send(|frame| put_got(frame, stamp)));
    }
}

fn put_got(frame: &mut Vec<u8>, stamp: u64) {
    frame.u8(GOT);
    frame.u64(stamp);
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn shares() -> (Shares, Arc<AtomicU64>) {
        let wanted = Arc::new(AtomicU64::new(0));
        (Shares::new(Arc::new(Exchange::new(wanted.clone()))), wanted)
    }

    fn stream_pair() -> (Stream, Stream) {
        let (one, other) = UnixStream::pair().unwrap();
        (Stream::new(one).unwrap(), Stream::new(other).unwrap())
    }

    /// Sends everything from member 0 to member 1 over a new connection; what 1 says of the pieces.
    fn pass(from: &mut Shares, to: &mut Shares) -> Vec<Piece> {
        let (mut one, mut other) = stream_pair();
        let mut all = Vec::new();
        from.begin(2);
        loop {
            from.send(1, &mut one);
            if one.backlog() == 0 {
                return all;
            }
            one.flush().unwrap();
            other.receive().unwrap();
            while let Some(frame) = other.frame().unwrap() {
                all.push(to.take(0, &mut Reader::new(&frame[1..])).unwrap());
            }
        }
    }

    fn share(stamp: u64, stays: bool, bytes: Vec<u8>) -> Share {
        Share { stamp, whom: 0b10, stays, bytes }
    }

    #[test]
    fn what_is_told_arrives_whole_however_long_it_is() {
        let ((mut one, _), (mut other, _)) = (shares(), shares());
        let long: Vec<u8> = (0..10 * PIECE + 7).map(|at| ((at * 31) >> 3) as u8).collect();
        one.exchange.tell(share(5, false, long.clone()));
        one.exchange.tell(share(6, false, Vec::new()));
        let pieces = pass(&mut one, &mut other);
        assert_eq!(pieces.iter().filter(|piece| **piece == Piece::Last).count(), 2);
        assert_eq!(pieces.len(), 12);
        assert!(other.exchange.take(5, 0).unwrap() == long);
        assert_eq!(other.exchange.take(6, 0), Some(Vec::new()));
        assert_eq!(other.exchange.take(6, 0), None);
        // It is not sent twice on one connection, and dropped when it is there.
        assert!(pass(&mut one, &mut other).is_empty());
        one.got(1, 5);
        one.got(1, 6);
        assert!(one.telling.is_empty());
    }

    #[test]
    fn who_comes_back_is_told_again_from_the_beginning() {
        let ((mut one, _), (mut other, wanted)) = (shares(), shares());
        one.exchange.tell(share(5, false, vec![1; 3 * PIECE]));
        one.exchange.tell(share(9, true, vec![2; 8]));
        one.begin(2);
        let (mut stream, mut end) = stream_pair();
        one.send(1, &mut stream);
        stream.flush().unwrap();
        end.receive().unwrap();
        // A part of it has come when the connection ends.
        let frame = loop {
            if let Some(frame) = end.frame().unwrap() {
                break frame;
            }
            stream.flush().unwrap();
            end.receive().unwrap();
        };
        assert_eq!(other.take(0, &mut Reader::new(&frame[1..])).unwrap(), Piece::More);
        one.again(1, 5);
        other.again(0, 5);
        assert_eq!(pass(&mut one, &mut other), [Piece::More, Piece::More, Piece::Last, Piece::Last]);
        assert_eq!(other.exchange.take(5, 0).unwrap().len(), 3 * PIECE);
        // What is over is not taken, and whoever tells it learns that; what stays is for those who begin again.
        wanted.store(10, std::sync::atomic::Ordering::Release);
        one.again(1, 5);
        assert_eq!(pass(&mut one, &mut other), [Piece::Over(5), Piece::Over(5), Piece::Over(5), Piece::Over(9)]);
        one.got(1, 5);
        one.got(1, 9);
        assert_eq!(one.telling.len(), 1);
        one.again(1, 10);
        assert_eq!(one.telling.len(), 1);
        one.forget(10);
        assert!(one.telling.is_empty());
    }

    #[test]
    fn pieces_that_do_not_follow_are_refused() {
        let piece = |stamp: u64, start: u64, total: u64, bytes: &[u8]| {
            let mut frame = Vec::new();
            frame.u64(stamp);
            frame.u64(start);
            frame.u64(total);
            frame.bytes(bytes);
            frame
        };
        let refusal = |to: &mut Shares, wrong: &[u8]| to.take(0, &mut Reader::new(wrong)).unwrap_err().0;
        // The first piece of a value, and a piece behind three bytes that have come.
        for (known, wrong) in [
            (0, piece(1, 1, 3, b"ab")),
            (0, piece(1, 0, 1, b"ab")),
            (0, piece(1, 0, MOST + 1, b"ab")),
            (0, piece(1, 0, u64::MAX, b"ab")),
            (0, piece(1, u64::MAX, 2, b"ab")),
            (3, piece(1, 0, 5, b"ab")),
            (3, piece(1, 2, 5, b"ab")),
            (3, piece(1, 4, 6, b"ab")),
            (3, piece(1, 3, 4, b"ab")),
        ] {
            let (mut to, _) = shares();
            if known > 0 {
                assert_eq!(to.take(0, &mut Reader::new(&piece(1, 0, 5, b"abc"))).unwrap(), Piece::More);
            }
            let [start, total] = [8, 16].map(|at| u64::from_le_bytes(wrong[at..at + 8].try_into().unwrap()));
            assert_eq!(refusal(&mut to, &wrong), format!("bytes {start} of {total} behind {known}"));
            // The refused piece has changed nothing: the one that follows is taken.
            let rest = piece(1, known, 5, &b"abcde"[known as usize..]);
            assert_eq!(to.take(0, &mut Reader::new(&rest)).unwrap(), Piece::Last);
            assert_eq!(to.exchange.take(1, 0), Some(b"abcde".to_vec()));
        }
        let (mut to, _) = shares();
        for short in [0, 7, 20] {
            let error = refusal(&mut to, &vec![0; short]);
            assert!(error.contains("bytes"), "{error}");
        }
    }
}
