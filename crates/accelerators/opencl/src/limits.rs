//! The limits of a device, measured: copies to and from it, and independent random reads of its memory. They are what
//! figures of the engines stand beside.

use lockwork_engine::EngineError;

use crate::session::{Argument, Session, nanoseconds};

const PROBE: &str = include_str!("../../../../hardware/opencl/probe.cl");
/// Bytes that random reads are drawn from: far more than caches hold.
const POOL: usize = 1 << 30;
const ROUNDS: usize = 64;
const REPEATS: usize = 5;

/// What one copy of a batch takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyTimes {
    /// Blocks of the batch.
    pub blocks: usize,
    /// Nanoseconds to the device, median.
    pub in_ns: u64,
    /// Nanoseconds from the device, median.
    pub out_ns: u64,
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Times copies of batches of `sizes` blocks of `stride` bytes to device `device` and back, start to end of each as the
/// host sees it (HOBBES, figure 3.4).
///
/// # Errors
/// No such device, too little memory on it, or its failure.
pub fn copies(device: Option<u16>, stride: usize, sizes: &[usize]) -> Result<Vec<CopyTimes>, EngineError> {
    let session = Session::new(device, 0)?;
    let most = sizes.iter().max().copied().unwrap_or(0) * stride;
    let mut target = session.allocate(most, "a batch of blocks")?;
    let mut host = vec![1_u8; most];
    let timed = |work: &mut dyn FnMut() -> Result<(), EngineError>| -> Result<u64, EngineError> {
        let mut times = Vec::new();
        for _ in 0..=REPEATS {
            let start = std::time::Instant::now();
            work()?;
            times.push(start.elapsed().as_nanos() as u64);
        }
        // The first one warms up.
        Ok(median(times.split_off(1)))
    };
    let mut copies = Vec::new();
    for &blocks in sizes {
        let bytes = blocks * stride;
        let in_ns = timed(&mut || session.write_now(&mut target, 0, &host[..bytes]))?;
        let out_ns = timed(&mut || session.read_now(&target, 0, &mut host[..bytes]))?;
        copies.push(CopyTimes { blocks, in_ns, out_ns });
    }
    Ok(copies)
}

/// Independent random reads of 64-byte lines a second, all compute units together, from a pool of a gibibyte (or of
/// what the device has, halved until it fits).
///
/// # Errors
/// No such device, or its failure.
pub fn random_lines(device: Option<u16>) -> Result<f64, EngineError> {
    let session = Session::new(device, 0)?;
    let mut pool = POOL;
    while pool as u64 > session.info.buffer_bytes / 2 && pool > 1 << 20 {
        pool /= 2;
    }
    let items: usize = if session.is_cpu() { 1 << 14 } else { 1 << 20 };
    let mut lines = session.allocate(pool, "a pool of lines")?;
    session.zero(&mut lines, 0, pool)?;
    let sums = session.allocate(items * 8, "sums")?;
    let program = session.build(PROBE, "")?;
    let kernel = session.kernel(&program, "lw_probe")?;
    let arguments = [
        Argument::Buffer(&lines),
        Argument::Word((pool / 64 - 1) as u32),
        Argument::Word(ROUNDS as u32),
        Argument::Buffer(&sums),
    ];
    let mut times = Vec::new();
    for _ in 0..=REPEATS {
        // SAFETY: the arguments are those of hardware/opencl/probe.cl; the pool is a power of two of lines, and there
        // is a sum for each work-item.
        let event = unsafe { session.launch(&kernel, &arguments, items, 64, &[])? };
        session.wait(&event, "measuring random reads")?;
        times.push(nanoseconds(&event).max(1));
    }
    Ok((items * ROUNDS) as f64 * 1e9 / median(times.split_off(1)) as f64)
}
