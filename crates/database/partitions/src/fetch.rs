//! Copies of rows from their owners, and an attempt to run a procedure on them.
//!
//! What is fetched is said by accesses that are not fetched yet, in their order; the answer has no keys, because both
//! sides know them. Rows of tables that every worker has are never asked for.

use lockwork_engine::registry::Registered;
use lockwork_memory::prefetch;
use lockwork_procedure::interpreter::{Answer, Context, Stop, run};
use lockwork_procedure::isa::scan_source;
use lockwork_storage::Database;

use crate::access::{Access, Copies, Lacks};
use crate::layout::Layout;
use crate::message::FETCH;
use crate::partition;
use crate::stream::Stream;
use crate::wire::{Malformed, Put, Reader};

/// A worker's own part of the tables, and who has the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalPartition<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) database: &'a Database,
    pub(crate) me: usize,
}

impl LocalPartition<'_> {
    /// Whether a row, or what a range has here, is this worker's to tell.
    fn tells(&self, access: &Access) -> bool {
        !self.layout.is_everywhere(access.table)
            && (access.scan.is_some() || self.layout.owner(access.table, &access.key) == Some(self.me))
    }

    /// Copies what is here of an access.
    pub(crate) fn copy(&self, access: &mut Access) {
        if let Some(scan) = &mut access.scan {
            partition::scan(self.database, access.table, &access.key, scan);
        } else if self.layout.owner(access.table, &access.key).is_none_or(|owner| owner == self.me) {
            access.image.clear();
            let image = partition::image(self.database, access.table, &access.key);
            access.image.extend_from_slice(image.unwrap_or_default());
        }
    }

    /// Brings the rows near that will be copied or written here; those of many, before the first is.
    pub(crate) fn prefetch(&self, accesses: &[Access]) {
        for access in accesses.iter().filter(|access| access.scan.is_none() && self.tells(access)) {
            if let Some(image) = partition::image(self.database, access.table, &access.key) {
                prefetch(image.as_ptr());
            }
        }
    }

    /// Copies what is here of all accesses, and appends it as an answer for the others. No access has anything of this
    /// worker's yet.
    pub(crate) fn copy_and_tell(&self, accesses: &mut [Access], out: &mut Vec<u8>) {
        for access in accesses {
            let before = access.scan.as_ref().map_or((0, 0), |scan| (scan.keys.len(), scan.bytes.len()));
            self.copy(access);
            if !self.tells(access) {
                continue;
            }
            if let Some(scan) = &access.scan {
                let (keys, bytes) = (&scan.keys[before.0..], &scan.bytes[before.1..]);
                out.u32(keys.len() as u32);
                keys.iter().for_each(|key| out.key(key));
                out.counted(bytes);
            } else {
                out.counted(&access.image);
            }
        }
    }

    /// Fetches everything that is not here yet, from this partition at once, from others by messages of request `id`.
    /// Returns how many of them will answer.
    pub(crate) fn fetch(&self, accesses: &mut [Access], id: u32, peers: &mut [Option<Stream>]) -> usize {
        let mut wanted = vec![false; peers.len()];
        for access in accesses.iter_mut().filter(|access| !access.fetched) {
            if let Some(scan) = &mut access.scan {
                scan.keys.clear();
                scan.bytes.clear();
                if !self.layout.is_everywhere(access.table) {
                    wanted.fill(true);
                }
            } else if let Some(owner) = self.layout.owner(access.table, &access.key) {
                wanted[owner] = true;
            }
            self.copy(access);
        }
        let mut outstanding = 0;
        for (number, peer) in peers.iter_mut().enumerate().filter(|(number, _)| wanted[*number]) {
            let Some(peer) = peer else { continue };
            outstanding += 1;
            let there = LocalPartition { me: number, ..*self };
            peer.send(|frame| {
                frame.u8(FETCH);
                frame.u32(id);
                for access in accesses.iter().filter(|access| !access.fetched && there.tells(access)) {
                    frame.u16(access.table);
                    frame.key(&access.key);
                    frame.u8(u8::from(access.scan.is_some()));
                    if let Some(scan) = &access.scan {
                        frame.u32(scan.limit);
                        frame.u8(scan.column);
                    }
                }
            });
        }
        outstanding
    }

    /// Takes the answer of worker `number`.
    pub(crate) fn take(
        &self,
        accesses: &mut [Access],
        number: usize,
        reader: &mut Reader<'_>,
    ) -> Result<(), Malformed> {
        let there = LocalPartition { me: number, ..*self };
        for access in accesses.iter_mut().filter(|access| !access.fetched && there.tells(access)) {
            let Some(scan) = &mut access.scan else {
                access.image.clear();
                access.image.extend_from_slice(reader.counted()?);
                let schema = self.database.table(access.table).schema();
                let width = (schema.row_bytes() - lockwork_procedure::schema::ROW_HEADER_BYTES) as usize;
                if !access.image.is_empty() && access.image.len() != width {
                    let told = access.image.len();
                    return Err(Malformed::new(format_args!("a row of {told} bytes, not {width}")));
                }
                continue;
            };
            let count = reader.u32()?;
            for _ in 0..count {
                scan.keys.push(reader.key()?);
            }
            scan.bytes.extend_from_slice(reader.counted()?);
            let column = usize::from(scan.column).checked_sub(1);
            let (_, width) = scan_source(self.database.table(access.table).schema(), column);
            if scan.bytes.len() != scan.keys.len() * width as usize {
                return Err(Malformed::new("a range with more keys than rows, or fewer"));
            }
        }
        match reader.is_empty() {
            true => Ok(()),
            false => Err(Malformed::new("rows that nobody wants")),
        }
    }
}

/// Everything that was asked for is here: ranges from several owners become one.
pub(crate) fn fetched(accesses: &mut [Access]) {
    for access in accesses.iter_mut().filter(|access| !access.fetched) {
        access.fetched = true;
        if let Some(scan) = &mut access.scan {
            scan.merge();
        }
    }
}

/// Room for the registers of any procedure.
#[derive(Debug, Default)]
pub(crate) struct Windows {
    pub(crate) registers: Vec<i64>,
    cps: Vec<Option<Answer>>,
}

impl Windows {
    /// Room for this many registers of both kinds.
    pub(crate) fn widen(&mut self, (gp, cp): (usize, usize)) {
        self.registers.resize(gp, 0);
        self.cps.resize(cp, None);
    }

    /// Runs a procedure on copies. How it stopped means something only if nothing was lacking.
    ///
    /// # Safety
    /// `block` is a block of the procedure and nobody else's.
    pub(crate) unsafe fn attempt(
        &mut self,
        registered: &Registered,
        block: *mut u8,
        accesses: &mut Vec<Access>,
    ) -> (Stop, Lacks) {
        let start = registered.results.0;
        accesses.iter_mut().for_each(Access::begin_attempt);
        let mut host = Copies { registered, accesses, lacks: Lacks::default() };
        // SAFETY: the block is as long as the procedure's layout says; the windows are the widest of all procedures;
        // the host answers with copies that stay where they are until the next attempt.
        let stop = unsafe {
            block.add(start).write_bytes(0, registered.block_bytes - start);
            run(&registered.program, &mut Context::at(0), &mut self.registers, &mut self.cps, block, &mut host)
        };
        (stop, host.lacks)
    }
}
