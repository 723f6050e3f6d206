//! What the way between host and storage costs: nothing in the memory of one machine, so that it can be added.
//!
//! | link | a line of the other side's memory, 64 bytes | a remote atomic | 8 KiB | from |
//! |---|---|---|---|---|
//! | `none` | 0 | 0 | 0 | the two processes share the caches of this machine |
//! | `ccix` | 90 ns | 800 ns | 1320 ns | neoDBMS, section 4: 80-100 ns from the device's cache, 800 ns non-local atomics |
//! | `cxl` | 378 ns | 378 ns | 508 ns | no number in the paper; see below |
//! | `pcie` | 737 ns | 1474 ns | 1257 ns | neoDBMS, section 2.2: 737 ns on PCIe Gen3, that of the paper's slot |
//!
//! Where the paper gives no number, this stands for it:
//! - *CXL* "is not supported yet in commodity hardware" there. The nearest coherent link that it has a number for is
//!   OpenCAPI, 378 ns; a CXL device that keeps the host's line coherent makes the same round trip, for a line as for an
//!   atomic. Prefetching into the device's cache is not assumed, as nothing is reported of it.
//! - *8 KiB* are in figure 5, but not in its text. They are taken as one access that misses (800, 378 or 737 ns) and
//!   the 8192 bytes at the link's own rate: 15.75 GB/s for CCIX at 16 GT/s on eight lanes and for PCIe Gen3 on sixteen,
//!   63 GB/s for CXL on PCIe Gen5.
//! - *Atomics over PCIe* are not coherent with the host's caches: a read and a write, two crossings.
//!
//! Not added: that the host's own atomics slow down under contention from the device (about 400 ns, section 4); the
//! processes of one machine contend really. PCIe Gen4 (<555 ns) would be faster than `pcie` by a quarter.
//!
//! The time is waited for where the access happens, by looking at the monotonic clock, as a processor stalls on a load;
//! sleeping would be a thousand times too coarse. Trade-off: a waiting thread keeps its core.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Bytes of a line.
pub const LINE_BYTES: usize = 64;
/// Bytes of the larger transfer, a page.
pub const PAGE_BYTES: usize = 8192;

/// A link between host and storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Link {
    /// Nothing is added.
    #[default]
    None,
    /// Cache-coherent interconnect for accelerators, as the paper measured it.
    Ccix,
    /// Compute Express Link.
    Cxl,
    /// PCI Express, third generation.
    Pcie,
}

/// Nanoseconds that a link adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// A line of 64 bytes.
    pub line_ns: u32,
    /// An atomic operation on the other side's memory.
    pub atomic_ns: u32,
    /// 8 KiB.
    pub page_ns: u32,
}

impl Link {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::None, Self::Ccix, Self::Cxl, Self::Pcie];

    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ccix => "ccix",
            Self::Cxl => "cxl",
            Self::Pcie => "pcie",
        }
    }

    /// What it adds.
    #[must_use]
    pub const fn latency(self) -> Latency {
        let (line_ns, atomic_ns, page_ns) = match self {
            Self::None => (0, 0, 0),
            Self::Ccix => (90, 800, 1320),
            Self::Cxl => (378, 378, 508),
            Self::Pcie => (737, 1474, 1257),
        };
        Latency { line_ns, atomic_ns, page_ns }
    }

    /// What moving `bytes` adds: nothing for none, a line up to 64, a page's time for every 8 KiB, and in between
    /// on the straight line between these two.
    #[must_use]
    pub const fn transfer_ns(self, bytes: usize) -> u64 {
        let Latency { line_ns, page_ns, .. } = self.latency();
        let (line, page) = (line_ns as u64, page_ns as u64);
        if bytes == 0 {
            0
        } else if bytes <= LINE_BYTES {
            line
        } else if bytes < PAGE_BYTES {
            line + (page - line) * (bytes - LINE_BYTES) as u64 / (PAGE_BYTES - LINE_BYTES) as u64
        } else {
            page * bytes as u64 / PAGE_BYTES as u64
        }
    }

    /// Waits as long as a line takes.
    #[inline]
    pub fn line(self) {
        wait(self.latency().line_ns.into());
    }

    /// Waits as long as a remote atomic takes.
    #[inline]
    pub fn atomic(self) {
        wait(self.latency().atomic_ns.into());
    }

    /// Waits as long as moving `bytes` takes.
    #[inline]
    pub fn transfer(self, bytes: usize) {
        wait(self.transfer_ns(bytes));
    }
}

#[inline]
fn wait(ns: u64) {
    if ns == 0 {
        return;
    }
    let (start, time) = (Instant::now(), Duration::from_nanos(ns));
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no link has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no link; there are none, ccix, cxl and pcie")]
pub struct NoLink(String);

impl FromStr for Link {
    type Err = NoLink;

    fn from_str(text: &str) -> Result<Self, NoLink> {
        Self::ALL.into_iter().find(|link| link.name() == text).ok_or_else(|| NoLink(text.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_others_are_told_what_there_is() {
        for link in Link::ALL {
            assert_eq!(link.to_string().parse(), Ok(link));
        }
        let error = "infiniband".parse::<Link>().expect_err("no such link");
        assert_eq!(error.to_string(), "'infiniband' is no link; there are none, ccix, cxl and pcie");
    }

    #[test]
    fn more_bytes_never_take_less_time() {
        for link in Link::ALL {
            let Latency { line_ns, page_ns, .. } = link.latency();
            let times = (0..3 * PAGE_BYTES).map(|bytes| link.transfer_ns(bytes)).collect::<Vec<_>>();
            assert!(times.is_sorted(), "{link}");
            assert_eq!(
                (times[64], times[8192], times[16384]),
                (line_ns.into(), page_ns.into(), 2 * u64::from(page_ns))
            );
        }
    }

    #[test]
    fn the_time_is_waited_for() {
        let start = Instant::now();
        (0..100).for_each(|_| Link::Pcie.line());
        Link::Ccix.atomic();
        Link::Cxl.transfer(PAGE_BYTES);
        assert!(start.elapsed() >= Duration::from_nanos(100 * 737 + 800 + 508));
        assert_eq!(Link::None.transfer_ns(1 << 30), 0);
    }
}
