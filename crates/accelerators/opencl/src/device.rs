//! Which OpenCL devices there are, and which one is used.

use std::sync::{Mutex, PoisonError};

use lockwork_engine::EngineError;
use opencl3::device::{CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU, Device};
use opencl3::error_codes::{CL_PLATFORM_NOT_FOUND_KHR, ClError, DLOPEN_RUNTIME_LOAD_FAILED};
use opencl3::platform::get_platforms;
use opencl3::types::cl_device_id;

/// What kind of processor a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceKind {
    /// A graphics processor.
    Gpu,
    /// An FPGA, or another accelerator.
    Accelerator,
    /// The host's own cores: what is there when nothing else is.
    Cpu,
}

impl DeviceKind {
    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "GPU",
            Self::Accelerator => "accelerator",
            Self::Cpu => "CPU",
        }
    }
}

/// A device, as `lockwork doctor` lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// What the setting `device` takes.
    pub number: u16,
    /// Its platform's name.
    pub platform: String,
    /// Its name.
    pub name: String,
    /// OpenCL version and driver, in the platform's words.
    pub version: String,
    /// What it is.
    pub kind: DeviceKind,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// The most bytes of one buffer: tables with their indexes lie in one.
    pub buffer_bytes: u64,
    /// How many compute units it has.
    pub compute_units: u32,
}

/// Where OpenCL comes from when there is none.
pub const REMEDY: &str = "install a platform ('apt install pocl-opencl-icd' runs it on the CPU; a GPU's driver brings \
                          its own)";

/// Why there is no device, with what would help.
fn absent(error: &ClError) -> EngineError {
    let why = match error.0 {
        DLOPEN_RUNTIME_LOAD_FAILED => "there is no OpenCL library (libOpenCL.so) on this machine".to_string(),
        CL_PLATFORM_NOT_FOUND_KHR => "there is no OpenCL platform on this machine".to_string(),
        _ => format!("OpenCL does not answer ({error})"),
    };
    EngineError::BackEndAbsent(format!("{why}; {REMEDY}"))
}

/// All usable devices of all platforms, with their handles.
fn all() -> Result<Vec<(Device, DeviceInfo)>, EngineError> {
    // Two threads that ask PoCL 3.1 for the first time at once can both be told that there is nothing.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut found = Vec::new();
    for platform in get_platforms().map_err(|error| absent(&error))? {
        // A platform without devices answers with an error.
        for id in platform.get_devices(CL_DEVICE_TYPE_ALL).unwrap_or_default() {
            let device = Device::new(id);
            if let Ok(info) = describe(&device, found.len() as u16, &platform.name().unwrap_or_default()) {
                found.push((device, info));
            }
        }
    }
    if found.is_empty() {
        return Err(EngineError::BackEndAbsent(format!("no OpenCL platform has a usable device; {REMEDY}")));
    }
    Ok(found)
}

fn describe(device: &Device, number: u16, platform: &str) -> Result<DeviceInfo, ClError> {
    let kind = match device.dev_type()? {
        bits if bits & CL_DEVICE_TYPE_GPU != 0 => DeviceKind::Gpu,
        bits if bits & CL_DEVICE_TYPE_CPU != 0 => DeviceKind::Cpu,
        _ => DeviceKind::Accelerator,
    };
    if !device.available()? || !device.compiler_available()? || !device.endian_little()? {
        return Err(ClError(opencl3::error_codes::CL_DEVICE_NOT_AVAILABLE));
    }
    Ok(DeviceInfo {
        number,
        platform: platform.trim().to_string(),
        name: device.name()?.trim().to_string(),
        version: format!("{} ({})", device.version()?.trim(), device.driver_version()?.trim()),
        kind,
        memory_bytes: device.global_mem_size()?,
        buffer_bytes: device.max_mem_alloc_size()?,
        compute_units: device.max_compute_units()?,
    })
}

/// All usable devices.
///
/// # Errors
/// [`EngineError::BackEndAbsent`] when there is none; it says how to get one.
pub fn devices() -> Result<Vec<DeviceInfo>, EngineError> {
    Ok(all()?.into_iter().map(|(_, info)| info).collect())
}

/// The device that `wanted` names: its number, or a part of its name or its platform's.
///
/// # Errors
/// [`EngineError::BackEndAbsent`] when there is no device, or none of that name; it lists those there are.
pub fn find(wanted: &str) -> Result<DeviceInfo, EngineError> {
    let mut devices = devices()?;
    let lower = wanted.to_lowercase();
    let named =
        |info: &DeviceInfo| info.name.to_lowercase().contains(&lower) || info.platform.to_lowercase().contains(&lower);
    let position = match wanted.parse::<usize>() {
        Ok(number) => (number < devices.len()).then_some(number),
        Err(_) => devices.iter().position(named).filter(|_| !wanted.is_empty()),
    };
    match position {
        Some(position) => Ok(devices.swap_remove(position)),
        None => {
            let list: Vec<String> = devices.iter().map(|info| format!("{} ({})", info.number, info.name)).collect();
            Err(EngineError::BackEndAbsent(format!("no OpenCL device is '{wanted}'; there are {}", list.join(", "))))
        }
    }
}

/// The device that engines whose setting `device` is `number` run on: without a number the first GPU, else accelerator,
/// else CPU.
///
/// # Errors
/// [`EngineError::BackEndAbsent`] when there is no device, or none of that number.
pub fn chosen(number: Option<u16>) -> Result<DeviceInfo, EngineError> {
    Ok(open(number)?.1)
}

/// The handle and description of the [chosen] device.
pub(crate) fn open(number: Option<u16>) -> Result<(cl_device_id, DeviceInfo), EngineError> {
    let mut all = all()?;
    let position = match number {
        Some(number) => usize::from(number),
        None => (0..all.len()).min_by_key(|&at| all[at].1.kind).unwrap_or(0),
    };
    if position >= all.len() {
        let why = format!("there is no OpenCL device {position}; there are 0 to {}", all.len() - 1);
        return Err(EngineError::BackEndAbsent(why));
    }
    let (device, info) = all.swap_remove(position);
    Ok((device.id(), info))
}
