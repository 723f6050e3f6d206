//! One device in use: context, three queues, and every call that can fail.
//!
//! Transfers in, kernels and transfers out have a queue each, so that those of successive batches overlap; events say
//! what has to come after what. All calls go through here: an error names the device and what was being done, and a
//! test can make the Nth call fail as if the device were lost.

use std::sync::atomic::{AtomicU64, Ordering};

use lockwork_engine::EngineError;
use lockwork_memory::{Buffer as HostBuffer, Pages};
use opencl3::command_queue::{CL_QUEUE_PROFILING_ENABLE, CommandQueue};
use opencl3::context::Context;
use opencl3::device::Device;
use opencl3::error_codes::{CL_DEVICE_NOT_AVAILABLE, ClError};
use opencl3::event::Event;
use opencl3::kernel::Kernel;
use opencl3::memory::{Buffer, CL_MEM_READ_WRITE, CL_MEM_USE_HOST_PTR, ClMem};
use opencl3::program::Program;
use opencl3::types::{CL_NON_BLOCKING, cl_device_id, cl_event};

use crate::device::{DeviceInfo, DeviceKind, open};

/// Extra options for the device's compiler, as `-DLW_COMPUTE_UNITS=...` of an FPGA tool chain.
const FLAGS_VARIABLE: &str = "LOCKWORK_OPENCL_FLAGS";

/// Which of the three queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    In,
    Execute,
    Out,
}

/// Memory on the device.
pub(crate) struct DeviceBuffer {
    buffer: Buffer<u8>,
    bytes: usize,
    /// Where a CPU device keeps it; released after `buffer`.
    _host: Option<HostBuffer>,
}

impl DeviceBuffer {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
pub(crate) enum Argument<'a> {
    Buffer(&'a DeviceBuffer),
    Word(u32),
    Long(u64),
}

pub(crate) struct Session {
    // Dropped in this order: queues before their context.
    queues: [CommandQueue; 3],
    context: Context,
    device: cl_device_id,
    pub(crate) info: DeviceInfo,
    calls: AtomicU64,
    /// The call that fails, counted from 1; 0 for none.
    fail_at: u64,
}

// SAFETY: OpenCL objects may be used from any thread (OpenCL 1.2, appendix A.2), but for the arguments of one kernel,
// which only the thread that owns the kernel sets.
unsafe impl Send for Session {}

impl Session {
    /// Opens device `number`, or the best there is. The `fail_at`th call from now on fails (0: none).
    pub(crate) fn new(number: Option<u16>, fail_at: u64) -> Result<Self, EngineError> {
        let (device, info) = open(number)?;
        let failed = |error: ClError| EngineError::BackEnd(format!("the OpenCL device '{}': {error}", info.name));
        let context = Context::from_device(&Device::new(device)).map_err(failed)?;
        let queue = || {
            // SAFETY: the device is one of the context's. The call is that of OpenCL 1.2, which every platform has.
            #[allow(deprecated)]
            unsafe {
                CommandQueue::create(&context, device, CL_QUEUE_PROFILING_ENABLE).map_err(failed)
            }
        };
        let queues = [queue()?, queue()?, queue()?];
        Ok(Self { queues, context, device, info, calls: AtomicU64::new(0), fail_at })
    }

    /// Counts a call, and fails it if it is its turn.
    fn step(&self, doing: &str) -> Result<(), EngineError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if call == self.fail_at { Err(self.failed(doing, &ClError(CL_DEVICE_NOT_AVAILABLE))) } else { Ok(()) }
    }

    fn failed(&self, doing: &str, error: &ClError) -> EngineError {
        EngineError::BackEnd(format!("the OpenCL device '{}' failed while {doing}: {error}", self.info.name))
    }

    /// Whether the device is the host's own cores.
    pub(crate) fn is_cpu(&self) -> bool {
        self.info.kind == DeviceKind::Cpu
    }

    /// Memory for `bytes` bytes.
    pub(crate) fn allocate(&self, bytes: usize, what: &str) -> Result<DeviceBuffer, EngineError> {
        self.step("allocating memory")?;
        let bytes = bytes.max(64);
        let info = &self.info;
        if bytes as u64 > info.buffer_bytes.min(info.memory_bytes) {
            return Err(EngineError::BackEnd(format!(
                "{what} need {} MiB in one buffer, but the OpenCL device '{}' gives at most {} MiB: use fewer rows or \
                 smaller batches, or another device",
                bytes >> 20,
                info.name,
                info.buffer_bytes.min(info.memory_bytes) >> 20
            )));
        }
        // The memory of a CPU device is the host's, and on huge pages random reads cost two thirds.
        let host = match self.is_cpu() {
            true => Some(HostBuffer::zeroed(bytes, Pages::Huge, "device memory").map_err(EngineError::from)?),
            false => None,
        };
        let (flags, pointer) = match &host {
            Some(host) => (CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, host.as_ptr().cast()),
            None => (CL_MEM_READ_WRITE, std::ptr::null_mut()),
        };
        // SAFETY: host memory that is handed over is as long as the buffer, lives longer, and is used by nobody else.
        let buffer = unsafe { Buffer::create(&self.context, flags, bytes, pointer) };
        let buffer = buffer.map_err(|error| {
            EngineError::BackEnd(format!(
                "the OpenCL device '{}' has no {} MiB for {what}: {error}",
                info.name,
                bytes >> 20
            ))
        })?;
        Ok(DeviceBuffer { buffer, bytes, _host: host })
    }

    /// Starts copying `bytes` to `target` at `offset`.
    ///
    /// # Safety
    /// The bytes stay as they are until the event has happened.
    pub(crate) unsafe fn write(
        &self,
        target: &mut DeviceBuffer,
        offset: usize,
        bytes: &[u8],
        after: &[cl_event],
    ) -> Result<Event, EngineError> {
        let doing = "copying to the device";
        self.step(doing)?;
        assert!(offset + bytes.len() <= target.bytes, "a copy beyond the end of a buffer");
        // SAFETY: the range lies in the buffer; the bytes are the caller's promise.
        unsafe { self.queue(Lane::In).enqueue_write_buffer(&mut target.buffer, CL_NON_BLOCKING, offset, bytes, after) }
            .map_err(|error| self.failed(doing, &error))
    }

    /// Copies `bytes` to `target` at `offset` and waits for it.
    pub(crate) fn write_now(&self, target: &mut DeviceBuffer, offset: usize, bytes: &[u8]) -> Result<(), EngineError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes are borrowed until the copy is done.
        let event = unsafe { self.write(target, offset, bytes, &[])? };
        self.wait(&event, "copying to the device")
    }

    /// Starts copying from `source` at `offset` to the `length` bytes at `target`.
    ///
    /// # Safety
    /// The target is writable, and nobody else's, until the event has happened.
    pub(crate) unsafe fn read(
        &self,
        source: &DeviceBuffer,
        offset: usize,
        target: *mut u8,
        length: usize,
        after: &[cl_event],
    ) -> Result<Event, EngineError> {
        let doing = "copying from the device";
        self.step(doing)?;
        assert!(offset + length <= source.bytes, "a copy beyond the end of a buffer");
        // SAFETY: the range lies in the buffer; the target is the caller's promise.
        unsafe {
            let target = std::slice::from_raw_parts_mut(target, length);
            self.queue(Lane::Out).enqueue_read_buffer(&source.buffer, CL_NON_BLOCKING, offset, target, after)
        }
        .map_err(|error| self.failed(doing, &error))
    }

    /// Copies from `source` at `offset` and waits for it.
    pub(crate) fn read_now(&self, source: &DeviceBuffer, offset: usize, target: &mut [u8]) -> Result<(), EngineError> {
        if target.is_empty() {
            return Ok(());
        }
        // SAFETY: the target is borrowed until the copy is done.
        let event = unsafe { self.read(source, offset, target.as_mut_ptr(), target.len(), &[])? };
        self.wait(&event, "copying from the device")
    }

    /// Fills `length` bytes with zeros, and waits for it. Both are multiples of 64.
    pub(crate) fn zero(&self, target: &mut DeviceBuffer, offset: usize, length: usize) -> Result<(), EngineError> {
        let doing = "clearing memory";
        self.step(doing)?;
        if length == 0 {
            return Ok(());
        }
        assert!(offset + length <= target.bytes && (offset | length).is_multiple_of(64), "whole lines of the buffer");
        // SAFETY: the range lies in the buffer.
        let event =
            unsafe { self.queue(Lane::In).enqueue_fill_buffer(&mut target.buffer, &[0_u8; 64], offset, length, &[]) };
        self.wait(&event.map_err(|error| self.failed(doing, &error))?, doing)
    }

    /// Starts `kernel` on `items` work-items, in whole groups of `group`.
    ///
    /// # Safety
    /// The arguments are those that the kernel declares, and every address that it computes from them lies in the
    /// buffers.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &Kernel,
        arguments: &[Argument<'_>],
        items: usize,
        group: usize,
        after: &[cl_event],
    ) -> Result<Event, EngineError> {
        let doing = "starting a kernel";
        self.step(doing)?;
        let failed = |error: ClError| self.failed(doing, &error);
        for (number, argument) in (0_u32..).zip(arguments) {
            // SAFETY: the caller vouches for number and types of the arguments.
            unsafe {
                match argument {
                    Argument::Buffer(buffer) => kernel.set_arg(number, &buffer.buffer.get()),
                    Argument::Word(word) => kernel.set_arg(number, word),
                    Argument::Long(long) => kernel.set_arg(number, long),
                }
            }
            .map_err(failed)?;
        }
        let global = [items.max(1).next_multiple_of(group)];
        let queue = self.queue(Lane::Execute);
        // SAFETY: one dimension, sizes that the kernel declares.
        unsafe {
            queue.enqueue_nd_range_kernel(kernel.get(), 1, std::ptr::null(), global.as_ptr(), [group].as_ptr(), after)
        }
        .map_err(failed)
    }

    /// Whether so many bytes of table descriptions fit where kernels look for them.
    pub(crate) fn check_constants(&self, bytes: usize) -> Result<(), EngineError> {
        let most = Device::new(self.device).max_constant_buffer_size().unwrap_or(64 << 10);
        if bytes as u64 <= most {
            return Ok(());
        }
        let tables = most / 64;
        Err(EngineError::BackEnd(format!("the OpenCL device '{}' takes at most {tables} tables", self.info.name)))
    }

    /// The work-items of a group: `wanted`, or as many as the device takes.
    pub(crate) fn group(&self, wanted: usize) -> usize {
        wanted.min(Device::new(self.device).max_work_group_size().unwrap_or(1)).max(1)
    }

    /// Which language kernels are compiled as: OpenCL C 3.0 has fences that order memory between groups; in 1.2 that is
    /// what `mem_fence` does on the devices there are, though the standard promises it within a group only.
    pub(crate) fn language(&self) -> &'static str {
        if self.info.version.starts_with("OpenCL 3") { "-cl-std=CL3.0" } else { "" }
    }

    /// Refuses a command that ended badly, though what came after it may have ended well.
    pub(crate) fn check(&self, event: &Event, doing: &str) -> Result<(), EngineError> {
        match event.command_execution_status() {
            Ok(status) if status.0 >= 0 => Ok(()),
            Ok(status) => Err(self.failed(doing, &ClError(status.0))),
            Err(error) => Err(self.failed(doing, &error)),
        }
    }

    /// Hands what was started in a queue to the device.
    pub(crate) fn flush(&self, lane: Lane) -> Result<(), EngineError> {
        self.queue(lane).flush().map_err(|error| self.failed("starting work", &error))
    }

    /// Waits for an event.
    pub(crate) fn wait(&self, event: &Event, doing: &str) -> Result<(), EngineError> {
        // Also a call that a test lets fail has waited: who sees the error may free what was copied from.
        let waited = event.wait();
        self.step(doing)?;
        waited.map_err(|error| self.failed(doing, &error))
    }

    /// Waits until nothing is running, whatever became of it.
    pub(crate) fn drain(&self) {
        for queue in &self.queues {
            // A device that is lost has nothing running.
            let _ = queue.finish();
        }
    }

    /// Builds a program. An error has the compiler's log and the lines that it names.
    pub(crate) fn build(&self, source: &str, options: &str) -> Result<Program, EngineError> {
        let doing = "building the kernels";
        self.step(doing)?;
        let extra = std::env::var(FLAGS_VARIABLE).unwrap_or_default();
        let mut program =
            Program::create_from_source(&self.context, source).map_err(|error| self.failed(doing, &error))?;
        let built = program.build(&[self.device], &format!("{options} {extra}"));
        built.map_err(|error| {
            let log = program.get_build_log(self.device).unwrap_or_default();
            EngineError::BackEnd(format!(
                "the OpenCL device '{}' does not build the kernels ({error}){}; its compiler says:\n{}",
                self.info.name,
                if extra.is_empty() { String::new() } else { format!(" with {FLAGS_VARIABLE}='{extra}'") },
                with_lines(&log, source)
            ))
        })?;
        Ok(program)
    }

    /// A kernel of a built program.
    pub(crate) fn kernel(&self, program: &Program, name: &str) -> Result<Kernel, EngineError> {
        let doing = "building the kernels";
        self.step(doing)?;
        Kernel::create(program, name).map_err(|error| self.failed(doing, &error))
    }

    fn queue(&self, lane: Lane) -> &CommandQueue {
        &self.queues[lane as usize]
    }
}

/// Nanoseconds that a command ran, by the device's clock; 0 where it has none.
pub(crate) fn nanoseconds(event: &Event) -> u64 {
    match (event.profiling_command_start(), event.profiling_command_end()) {
        (Ok(start), Ok(end)) => end.saturating_sub(start),
        _ => 0,
    }
}

/// The most lines of a compiler's log that are shown.
const MAX_MESSAGES: usize = 20;

/// The beginning of a compiler's log, with the source lines that its errors name (`...:LINE:COLUMN: error ...`).
fn with_lines(log: &str, source: &str) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let mut out = String::new();
    let messages = log.trim().lines();
    for message in messages.clone().take(MAX_MESSAGES) {
        out.push_str(message);
        out.push('\n');
        let number = message.split(':').skip(1).find_map(|part| part.trim().parse::<usize>().ok());
        if let Some(number) = number.filter(|_| message.contains("error"))
            && let Some(line) = number.checked_sub(1).and_then(|at| lines.get(at))
        {
            out.push_str(&format!("    generated line {number}: {}\n", line.trim()));
        }
    }
    let rest = messages.count().saturating_sub(MAX_MESSAGES);
    match (out.is_empty(), rest) {
        (true, _) => "(nothing)".into(),
        (false, 0) => out,
        (false, rest) => out + &format!("... and {rest} more lines\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_with_the_lines_they_name() {
        let text = with_lines("/tmp/x.cl:2:5: error: no such thing\nnote: nothing", "first\n  second;\nthird");
        assert_eq!(text, "/tmp/x.cl:2:5: error: no such thing\n    generated line 2: second;\nnote: nothing\n");
        assert_eq!(with_lines("", "x"), "(nothing)");
        assert!(with_lines(&"x\n".repeat(30), "x").ends_with("... and 10 more lines\n"));
    }
}
