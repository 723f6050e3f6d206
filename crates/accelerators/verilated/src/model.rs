//! One instance of a verilated module.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::port::{Direction, Port, PortError};

/// The functions of the shim; see `shim.cpp`, which [`crate::Build`] writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interface {
    pub(crate) new: unsafe extern "C" fn(u64) -> *mut c_void,
    pub(crate) delete: unsafe extern "C" fn(*mut c_void),
    pub(crate) eval: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    pub(crate) ports: unsafe extern "C" fn() -> u32,
    pub(crate) port_name: unsafe extern "C" fn(u32) -> *const c_char,
    pub(crate) port_bits: unsafe extern "C" fn(u32) -> u32,
    pub(crate) port_is_input: unsafe extern "C" fn(u32) -> c_int,
    pub(crate) port_data: unsafe extern "C" fn(*mut c_void, u32) -> *mut c_void,
    pub(crate) trace: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
    pub(crate) dump: unsafe extern "C" fn(*mut c_void, u64),
    pub(crate) flush: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(crate) notes: unsafe extern "C" fn(*mut c_void, *mut *const u32) -> u32,
    pub(crate) forget_notes: unsafe extern "C" fn(*mut c_void),
}

/// What the design told by calling `lw_note`: kind, worker, then the word, its lowest 32 bits first.
pub type Note = [u32; 14];

/// An instance of a module. Its clock is the port `clk_i`, if it has one.
#[derive(Debug)]
pub struct Model {
    module: Arc<str>,
    interface: Interface,
    instance: *mut c_void,
    names: Arc<HashMap<String, usize>>,
    ports: Vec<Port>,
    clock: Option<Port>,
    cycles: u64,
    /// The clock is low and the model has not seen it.
    falls: bool,
    traced: bool,
    /// Keeps the code; dropped after the instance.
    library: Option<Arc<libloading::Library>>,
}

// SAFETY: an instance has no thread of its own and is used through one reference at a time.
unsafe impl Send for Model {}

impl Model {
    /// An instance of the module behind `interface`. Registers and memories begin with random values of the seed.
    pub(crate) fn new(
        module: &str,
        interface: Interface,
        library: Option<Arc<libloading::Library>>,
        seed: u64,
    ) -> Self {
        // SAFETY: the shim makes an instance, or ends the process when there is no memory.
        let instance = unsafe { (interface.new)(seed) };
        let mut names = HashMap::new();
        let mut ports = Vec::new();
        // SAFETY: numbers below `ports()` are ports; names are constant strings.
        unsafe {
            for number in 0..(interface.ports)() {
                let name = CStr::from_ptr((interface.port_name)(number)).to_string_lossy().into_owned();
                names.insert(name, number as usize);
                let is_input = (interface.port_is_input)(number) != 0;
                ports.push(Port {
                    number: number as usize,
                    address: (interface.port_data)(instance, number).cast(),
                    bits: (interface.port_bits)(number),
                    direction: if is_input { Direction::Input } else { Direction::Output },
                });
            }
        }
        let clock = names.get("clk_i").map(|&number: &usize| ports[number]);
        let (module, names) = (module.into(), Arc::new(names));
        let mut model =
            Self { module, interface, instance, names, ports, clock, cycles: 0, falls: false, traced: false, library };
        // Inputs begin at zero, and the clock has been low before its first edge.
        for number in 0..model.ports.len() {
            let port = model.ports[number];
            if port.direction == Direction::Input {
                (0..port.bits).step_by(32).for_each(|low| model.set_bits(port, low, (port.bits - low).min(32), 0));
            }
        }
        model.eval();
        model
    }

    /// Another instance of the same module, with registers of another seed.
    #[must_use]
    pub fn again(&self, seed: u64) -> Self {
        Self::new(&self.module, self.interface, self.library.clone(), seed)
    }

    /// The port of this name.
    ///
    /// # Errors
    /// [`PortError`] names those there are.
    pub fn port(&self, name: &str) -> Result<Port, PortError> {
        self.names.get(name).map(|&number| self.ports[number]).ok_or_else(|| {
            let mut ports: Vec<_> = self.names.keys().map(String::as_str).collect();
            ports.sort_unstable();
            PortError { module: self.module.to_string(), port: name.to_string(), ports: ports.join(", ") }
        })
    }

    #[inline(always)]
    fn own(&self, port: Port) -> Port {
        let own = self.ports[port.number];
        debug_assert_eq!(own.bits, port.bits, "a port of another module");
        own
    }

    /// The value of a port of at most 64 bits.
    ///
    /// # Panics
    /// When it is wider.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, port: Port) -> u64 {
        self.get_bits(port, 0, port.bits)
    }

    /// Writes a port of at most 64 bits.
    ///
    /// # Panics
    /// When it is wider, or the value has more bits than the port.
    #[inline(always)]
    pub fn set(&mut self, port: Port, value: u64) {
        self.set_bits(port, 0, port.bits, value);
    }

    /// `width` bits from bit `low` on, at most 64.
    ///
    /// # Panics
    /// When the port does not have them.
    #[inline(always)]
    #[must_use]
    pub fn get_bits(&self, port: Port, low: u32, width: u32) -> u64 {
        let port = self.own(port);
        assert!(width <= 64 && low + width <= port.bits, "bits {low}+{width} of a port of {} bits", port.bits);
        if width == 0 {
            return 0;
        }
        let (first, last) = (low / 32, (low + width - 1) / 32);
        let mut value = 0_u128;
        for word in first..=last {
            // SAFETY: the instance lives, and the word has bits of the port.
            value |= u128::from(unsafe { port.word(word) }) << (32 * (word - first));
        }
        ((value >> (low % 32)) as u64) & mask(width)
    }

    /// Writes `width` bits from bit `low` on, at most 64; the others stay.
    ///
    /// # Panics
    /// When the port does not have them, or `value` has more.
    #[inline(always)]
    pub fn set_bits(&mut self, port: Port, low: u32, width: u32, value: u64) {
        let port = self.own(port);
        assert!(width <= 64 && low + width <= port.bits, "bits {low}+{width} of a port of {} bits", port.bits);
        assert!(value & !mask(width) == 0, "{value:#x} has more than {width} bits");
        if width == 0 {
            return;
        }
        let (first, last) = (low / 32, (low + width - 1) / 32);
        let (value, mask) = (u128::from(value) << (low % 32), u128::from(mask(width)) << (low % 32));
        for word in first..=last {
            let (value, mask) = ((value >> (32 * (word - first))) as u32, (mask >> (32 * (word - first))) as u32);
            // SAFETY: the instance lives, the word has bits of the port, and the mask is inside them.
            unsafe { port.set_word(word, port.word(word) & !mask | value) }
        }
    }

    /// Lets the module settle for its inputs as they are.
    ///
    /// # Panics
    /// With the message of an assertion of the design that failed.
    #[inline]
    pub fn eval(&mut self) {
        self.falls = false;
        self.evaluate();
    }

    #[inline]
    fn evaluate(&mut self) {
        // SAFETY: the instance lives; the message, if any, stays until the next call.
        unsafe {
            let failure = (self.interface.eval)(self.instance);
            if !failure.is_null() {
                let failure = CStr::from_ptr(failure).to_string_lossy();
                panic!("module '{}', cycle {}: {failure}", self.module, self.cycles);
            }
        }
    }

    /// One clock cycle: rising edge with the inputs as they are, then falling edge. Outputs are then those of the new
    /// state.
    ///
    /// Nothing happens at a falling edge, so the model sees it together with what it is evaluated for next.
    ///
    /// # Panics
    /// As [`Self::eval`], or when the module has no port `clk_i`.
    #[inline]
    pub fn tick(&mut self) {
        let clock = self.clock.expect("the module has a clock");
        if std::mem::take(&mut self.falls) {
            self.evaluate();
        }
        self.set(clock, 1);
        self.evaluate();
        self.dump(2 * self.cycles);
        self.set(clock, 0);
        self.falls = true;
        if self.traced {
            self.eval();
            self.dump(2 * self.cycles + 1);
        }
        self.cycles += 1;
    }

    #[inline(always)]
    fn dump(&mut self, time: u64) {
        if self.traced {
            // SAFETY: the instance lives.
            unsafe { (self.interface.dump)(self.instance, time) }
        }
    }

    /// Cycles so far.
    #[must_use]
    pub fn cycles(&self) -> u64 {
        self.cycles
    }

    /// Hands over what the design has told since the last call, in the order in which it did. Notes of one cycle by
    /// different modules are in no order.
    pub fn notes(&mut self, mut take: impl FnMut(&Note)) {
        // SAFETY: the instance lives; the words stay until the next evaluation or until they are forgotten.
        unsafe {
            let mut words = std::ptr::null();
            let count = (self.interface.notes)(self.instance, &raw mut words);
            if count > 0 {
                std::slice::from_raw_parts(words.cast::<Note>(), count as usize).iter().for_each(&mut take);
                (self.interface.forget_notes)(self.instance);
            }
        }
    }

    /// Writes a waveform of all that follows to `file` (VCD).
    ///
    /// # Errors
    /// The file cannot be opened, or the model was built without waveforms.
    pub fn trace(&mut self, file: &Path) -> io::Result<()> {
        let name = CString::new(file.as_os_str().as_encoded_bytes())?;
        // SAFETY: the instance lives, and the name is a string.
        match unsafe { (self.interface.trace)(self.instance, name.as_ptr()) } {
            0 => self.traced = true,
            -1 => return Err(io::Error::new(io::ErrorKind::Unsupported, "the model was built without waveforms")),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        Ok(())
    }

    /// Writes the waveform so far, if the model records one.
    ///
    /// # Errors
    /// The file has not taken all of it; it takes nothing more.
    pub fn flush_waveform(&mut self) -> io::Result<()> {
        // SAFETY: the instance lives.
        match if self.traced { unsafe { (self.interface.flush)(self.instance) } } else { 0 } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: the instance lives until here.
        unsafe { (self.interface.delete)(self.instance) }
    }
}

const fn mask(width: u32) -> u64 {
    if width == 0 { 0 } else { u64::MAX >> (64 - width) }
}
