//! From sources to code.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use siphasher::sip::SipHasher13;

use crate::model::{Interface, Model};
use crate::tool::{VARIABLE, Verilator};

/// Why a module could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no Verilator.
    #[error("no Verilator was found; run scripts/rtl-tools, or name one by {VARIABLE}")]
    NoVerilator,
    /// A tool did not do what it should; the text is its own.
    #[error("{tool} refuses module '{module}':\n{message}")]
    Tool {
        /// Which tool.
        tool: String,
        /// Which module.
        module: String,
        /// What it says.
        message: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {error}")]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The object could not be opened.
    #[error("module '{module}' was built but does not load: {error}")]
    Load {
        /// Which module.
        module: String,
        /// Why.
        error: libloading::Error,
    },
    /// No source has the module's name.
    #[error("there is no {module}.sv in {root} or the folders in it")]
    NoModule {
        /// Which module.
        module: String,
        /// Where it was looked for.
        root: PathBuf,
    },
    /// Verilator made a port that the shim cannot reach.
    #[error("module '{module}': port '{port}' is an unpacked array; make it a packed one")]
    Unpacked {
        /// Which module.
        module: String,
        /// Which port.
        port: String,
    },
}

/// How a module is to be built.
#[derive(Clone, Debug)]
pub struct Build {
    module: String,
    root: PathBuf,
    parameters: Vec<(String, String)>,
    trace: bool,
    fast: bool,
    seed: u64,
    /// Modules that nothing names and that bind themselves to others.
    bound: Vec<String>,
}

/// Nothing is written into the folder of a build for so long only if nobody builds.
const ABANDONED: Duration = Duration::from_secs(3600);
/// Who is told of builds.
static LISTENER: OnceLock<fn(&str)> = OnceLock::new();

/// Has `listener` told of every model that is built from now on, in words, before the minute or more that it takes.
/// Only the first one that asks is.
pub fn tell_builds(listener: fn(&str)) {
    // Whoever was first stays.
    let _ = LISTENER.set(listener);
}

/// Bytes of C++ that one call of the compiler takes.
const SMALL: u64 = 1 << 20;

/// What one call of the compiler compiles.
struct Unit {
    source: PathBuf,
    /// Whether the code runs in every cycle.
    runs: bool,
}

impl Unit {
    fn of(source: PathBuf) -> Self {
        // Verilator puts what runs once, at the beginning, into files of their own.
        let runs = !source.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("Slow"));
        Self { source, runs }
    }

    fn object(&self) -> PathBuf {
        self.source.with_extension("o")
    }
}

struct Declared {
    name: String,
    bits: u32,
    input: bool,
}

fn in_file<T>(path: &Path, result: std::io::Result<T>) -> Result<T, BuildError> {
    result.map_err(|error| BuildError::File { path: path.to_path_buf(), error })
}

impl Build {
    /// Builds this module of `hardware/rtl`, for a simulation in which assertions are checked.
    #[must_use]
    pub fn new(module: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../hardware/rtl");
        Self {
            module: module.to_string(),
            root,
            parameters: Vec::new(),
            trace: false,
            fast: false,
            seed: 1,
            bound: Vec::new(),
        }
    }

    /// Takes sources from this folder and those in it instead.
    #[must_use]
    pub fn sources(mut self, root: &Path) -> Self {
        self.root = root.to_path_buf();
        self
    }

    /// Sets a parameter of the module.
    #[must_use]
    pub fn parameter(mut self, name: &str, value: impl std::fmt::Display) -> Self {
        self.parameters.push((name.to_string(), value.to_string()));
        self
    }

    /// Makes [`Model::trace`] possible, which makes the model slower.
    #[must_use]
    pub fn trace(mut self, trace: bool) -> Self {
        self.trace = trace;
        self
    }

    /// Leaves assertions out and compiles for speed.
    #[must_use]
    pub fn fast(mut self, fast: bool) -> Self {
        self.fast = fast;
        self
    }

    /// Adds a module that nothing names: its file binds it to a module of the design, to tell what happens inside
    /// ([`Model::notes`]).
    #[must_use]
    pub fn bind(mut self, module: &str) -> Self {
        self.bound.push(module.to_string());
        self
    }

    /// What registers begin with.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The module's source and those of what it names, and what these name; packages first.
    fn files(&self) -> Result<Vec<PathBuf>, BuildError> {
        let mut folders = vec![self.root.clone()];
        let mut all = BTreeMap::new();
        while let Some(folder) = folders.pop() {
            for entry in in_file(&folder, std::fs::read_dir(&folder))? {
                let path = in_file(&folder, entry)?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if let (Some("sv"), Some(stem)) =
                    (path.extension().and_then(OsStr::to_str), path.file_stem().and_then(OsStr::to_str))
                {
                    all.insert(stem.to_string(), path);
                }
            }
        }
        let Some(top) = all.remove(&self.module) else {
            return Err(BuildError::NoModule { module: self.module.clone(), root: self.root.clone() });
        };
        let mut files = Vec::new();
        self.collect(top, &mut all, &mut files)?;
        for module in &self.bound {
            let Some(file) = all.remove(module) else {
                return Err(BuildError::NoModule { module: module.clone(), root: self.root.clone() });
            };
            self.collect(file, &mut all, &mut files)?;
        }
        files.sort_by_key(|file| !is_package(file));
        Ok(files)
    }

    /// Appends a file behind all that it names and `left` still has.
    fn collect(
        &self,
        file: PathBuf,
        left: &mut BTreeMap<String, PathBuf>,
        files: &mut Vec<PathBuf>,
    ) -> Result<(), BuildError> {
        let text = in_file(&file, std::fs::read_to_string(&file))?;
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if let Some(named) = left.remove(word) {
                self.collect(named, left, files)?;
            }
        }
        files.push(file);
        Ok(())
    }

    /// Whether Verilator has to be given the file by name.
    fn is_root(&self, file: &Path) -> bool {
        file.file_stem()
            .is_some_and(|stem| stem == self.module.as_str() || self.bound.iter().any(|module| stem == module.as_str()))
    }

    fn digest(&self, files: &[PathBuf], verilator: &Verilator) -> Result<u64, BuildError> {
        let mut hasher = SipHasher13::new();
        (&self.module, &self.parameters, self.trace, self.fast, &verilator.version).hash(&mut hasher);
        (&verilator.root, &self.bound, SHIM).hash(&mut hasher);
        for file in files {
            (file.file_name(), in_file(file, std::fs::read(file))?).hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    /// Builds the module, unless that was done before, and makes an instance.
    ///
    /// # Errors
    /// Those of [`BuildError`].
    pub fn load(&self) -> Result<Model, BuildError> {
        let verilator = Verilator::find().ok_or(BuildError::NoVerilator)?;
        let files = self.files()?;
        let digest = self.digest(&files, &verilator)?;
        let cache = target().join("verilated");
        let object = cache.join(format!("{}-{digest:016x}.so", self.module));
        if !object.exists() {
            self.tell(&cache);
            sweep(&cache);
            let folder = cache.join(format!("{}-{digest:016x}-{}", self.module, own()));
            in_file(&folder, std::fs::create_dir_all(&folder))?;
            let runtime = self.runtime(&verilator, &cache)?;
            let units = self.translate(&verilator, &files, &folder)?;
            let objects = self.compile(&verilator, &folder, &units)?;
            let built = folder.join("model.so");
            let mut command = Command::new("c++");
            command.args(["-shared", "-o"]).arg(&built).args(&objects).args(&runtime).arg("-lpthread");
            self.run("the linker", &mut command)?;
            // Two that build the same at once make the same; the last one stays.
            in_file(&object, std::fs::rename(&built, &object))?;
            in_file(&folder, std::fs::remove_dir_all(&folder))?;
        }
        self.open(&object)
    }

    fn tell(&self, cache: &Path) {
        if let Some(listener) = LISTENER.get() {
            let workers = self.parameters.iter().find(|(name, _)| name == "Workers").map(|(_, count)| count.as_str());
            let workers = match workers {
                None => String::new(),
                Some("1") => " with 1 worker".into(),
                Some(count) => format!(" with {count} workers"),
            };
            listener(&format!(
                "building the model of {}{workers}, which takes a minute or more and is done once; it is kept in {}",
                self.module,
                cache.display()
            ));
        }
    }

    fn open(&self, object: &Path) -> Result<Model, BuildError> {
        let failed = |error| BuildError::Load { module: self.module.clone(), error };
        // SAFETY: the object is the one that was built from a model and the shim: it does nothing when it is loaded,
        // and its functions have these types.
        let (library, interface) = unsafe {
            let library = libloading::Library::new(object).map_err(failed)?;
            let interface = Interface {
                new: *library.get(b"lw_new\0").map_err(failed)?,
                delete: *library.get(b"lw_delete\0").map_err(failed)?,
                eval: *library.get(b"lw_eval\0").map_err(failed)?,
                ports: *library.get(b"lw_ports\0").map_err(failed)?,
                port_name: *library.get(b"lw_port_name\0").map_err(failed)?,
                port_bits: *library.get(b"lw_port_bits\0").map_err(failed)?,
                port_is_input: *library.get(b"lw_port_is_input\0").map_err(failed)?,
                port_data: *library.get(b"lw_port_data\0").map_err(failed)?,
                trace: *library.get(b"lw_trace\0").map_err(failed)?,
                dump: *library.get(b"lw_dump\0").map_err(failed)?,
                flush: *library.get(b"lw_flush\0").map_err(failed)?,
                notes: *library.get(b"lw_notes\0").map_err(failed)?,
                forget_notes: *library.get(b"lw_forget_notes\0").map_err(failed)?,
            };
            (library, interface)
        };
        Ok(Model::new(&self.module, interface, Some(Arc::new(library)), self.seed))
    }

    /// Verilator's own objects, which all models share.
    fn runtime(&self, verilator: &Verilator, cache: &Path) -> Result<Vec<PathBuf>, BuildError> {
        let mut hasher = SipHasher13::new();
        (&verilator.root, &verilator.version, self.trace, self.fast).hash(&mut hasher);
        let digest = hasher.finish();
        let sources: &[_] = if self.trace {
            &["verilated", "verilated_threads", "verilated_vcd_c"]
        } else {
            &["verilated", "verilated_threads"]
        };
        let object = |name: &&str| {
            let object = cache.join(format!("{name}-{digest:016x}.o"));
            if !object.exists() {
                let built = cache.join(format!("{name}-{digest:016x}-{}.o", own()));
                let source = verilator.root.join("include").join(name).with_extension("cpp");
                self.run(
                    "the C++ compiler",
                    self.compiler(verilator, true).args(["-c", "-o"]).arg(&built).arg(source),
                )?;
                in_file(&object, std::fs::rename(&built, &object))?;
            }
            Ok(object)
        };
        sources.iter().map(object).collect()
    }

    /// Compiles units side by side.
    fn compile(&self, verilator: &Verilator, folder: &Path, units: &[Unit]) -> Result<Vec<PathBuf>, BuildError> {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                let mut command = self.compiler(verilator, unit.runs);
                command.arg("-I").arg(folder).args(["-c", "-o"]).arg(unit.object()).arg(&unit.source);
                self.run("the C++ compiler", &mut command)?;
            }
            Ok(())
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(units.len());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
        })?;
        Ok(units.iter().map(Unit::object).collect())
    }

    /// Has Verilator translate the module into `folder` and writes the shim. Returns what is to be compiled.
    fn translate(&self, verilator: &Verilator, files: &[PathBuf], folder: &Path) -> Result<Vec<Unit>, BuildError> {
        let mut command = Command::new(&verilator.program);
        command.env("VERILATOR_ROOT", &verilator.root);
        command.args(["--cc", "--prefix", "Model", "--top-module", &self.module, "--Mdir"]).arg(folder);
        // Lint is a check of its own.
        command.args(["-Wno-fatal", "-Wno-lint", "-Wno-style", "-O3", "--x-assign", "fast", "--x-initial", "unique"]);
        if self.trace {
            command.args(["--trace-vcd", "--trace-structs"]);
        }
        if !self.fast {
            command.args(["--assert", "-DLW_ASSERT"]);
        }
        command.args(self.parameters.iter().map(|(name, value)| format!("-G{name}={value}")));
        let (packages, modules): (Vec<_>, Vec<_>) = files.iter().partition(|file| is_package(file));
        let mut folders: Vec<_> = modules.iter().filter_map(|file| file.parent()).collect();
        folders.dedup();
        for folder in folders {
            command.arg("-y").arg(folder);
        }
        command.args(packages);
        command.args(modules.iter().filter(|file| self.is_root(file)));
        self.run("Verilator", &mut command)?;
        let header = folder.join("Model.h");
        let declared = self.ports(&in_file(&header, std::fs::read_to_string(&header))?)?;
        let shim = folder.join("shim.cpp");
        in_file(&shim, std::fs::write(&shim, shim_source(&declared)))?;
        let mut sources = Vec::new();
        let mut bytes = 0;
        for entry in in_file(folder, std::fs::read_dir(folder))? {
            let path = in_file(folder, entry)?.path();
            if path.extension().is_some_and(|extension| extension == "cpp") {
                bytes += in_file(&path, path.metadata())?.len();
                sources.push(path);
            }
        }
        sources.sort();
        if bytes > SMALL {
            return Ok(sources.into_iter().map(Unit::of).collect());
        }
        // Most of the time goes into the headers, which are read once so.
        let all = folder.join("all.cc");
        let name = |path: &PathBuf| path.file_name().map(|name| format!("#include \"{}\"\n", name.to_string_lossy()));
        let text: String = sources.iter().filter_map(name).collect();
        in_file(&all, std::fs::write(&all, text))?;
        Ok(vec![Unit { source: all, runs: true }])
    }

    /// For code that `runs` in every cycle, or else only at the beginning.
    fn compiler(&self, verilator: &Verilator, runs: bool) -> Command {
        let include = verilator.root.join("include");
        let mut command = Command::new("c++");
        command.args(["-std=c++20", "-fPIC", "-w", "-fvisibility=hidden", "-DVL_USER_STOP", "-DVL_USER_FATAL"]);
        let effort = if !runs {
            "-O0"
        } else if self.fast {
            "-O2"
        } else {
            "-O1"
        };
        command.args([effort, if self.trace { "-DLW_TRACE" } else { "-DLW_PLAIN" }]);
        command.args(["-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TRACE_FST=0", "-DVM_TRACE_SAIF=0"]);
        command.args(if self.trace {
            ["-DVM_TRACE=1", "-DVM_TRACE_VCD=1"]
        } else {
            ["-DVM_TRACE=0", "-DVM_TRACE_VCD=0"]
        });
        command.arg("-I").arg(&include).arg("-I").arg(include.join("vltstd"));
        command
    }

    fn run(&self, tool: &str, command: &mut Command) -> Result<(), BuildError> {
        let failed =
            |message: String| BuildError::Tool { tool: tool.to_string(), module: self.module.clone(), message };
        let output = command.output().map_err(|error| failed(format!("{command:?} did not start: {error}")))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// The ports that Verilator's header declares.
    fn ports(&self, header: &str) -> Result<Vec<Declared>, BuildError> {
        let mut ports = Vec::new();
        for line in header.lines().map(str::trim) {
            let input = line.starts_with("VL_IN");
            if !(input && !line.starts_with("VL_INOUT") || line.starts_with("VL_OUT")) {
                continue;
            }
            let Some((_, inside)) = line.split_once("(&") else {
                let port = line.to_string();
                return Err(BuildError::Unpacked { module: self.module.clone(), port });
            };
            let mut fields = inside.split([',', ')']);
            let (name, high) = (fields.next(), fields.next());
            if let (Some(name), Some(Ok(high))) = (name, high.map(str::parse::<u32>)) {
                ports.push(Declared { name: name.to_string(), bits: high + 1, input });
            }
        }
        Ok(ports)
    }
}

fn is_package(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("_pkg"))
}

/// What no other thread, nor another process, calls its own.
fn own() -> String {
    static BUILDS: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), BUILDS.fetch_add(1, Ordering::Relaxed))
}

/// Removes what builds have left that were killed: folders of processes that have gone, untouched for a while, as a
/// process of another container cannot be seen.
fn sweep(cache: &Path) {
    let is_left = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let process = name.to_str()?.rsplit('-').nth(1)?.parse::<u32>().ok()?;
        let touched = entry.metadata().ok().filter(std::fs::Metadata::is_dir)?.modified().ok()?;
        let gone = !Path::new("/proc").join(process.to_string()).exists();
        Some(gone && touched.elapsed().ok()? > ABANDONED)
    };
    let entries = std::fs::read_dir(cache).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_left(entry) == Some(true)) {
        // Another process may have been faster.
        let _ = std::fs::remove_dir_all(entry.path());
    }
}

/// The folder that cargo builds into.
fn target() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).expect("it lies in a wing of the workspace");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// The part of the shim that is the same for every module.
const SHIM: &str = include_str!("shim.cpp");

fn shim_source(ports: &[Declared]) -> String {
    let mut table = String::new();
    for Declared { name, bits, input } in ports {
        let address = format!("[](Model* model) -> void* {{ return &model->{name}; }}");
        writeln!(table, "    {{\"{name}\", {bits}, {}, {address}}},", u8::from(*input)).expect("a string takes it");
    }
    SHIM.replace("    // PORTS\n", &table)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, create_dir_all, exists, remove_dir_all, write};
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn only_what_builds_have_left_that_are_over_is_swept() {
        let cache = std::env::temp_dir().join(format!("lockwork-sweep-{}", std::process::id()));
        // No process has the greatest number.
        let gone = u32::MAX;
        let (left, fresh, mine) =
            (format!("m-0-{gone}-0"), format!("m-1-{gone}-0"), format!("m-2-{}-0", std::process::id()));
        for name in [&left, &fresh, &mine] {
            create_dir_all(cache.join(name)).unwrap();
            write(cache.join(name).join("Model.cpp"), "").unwrap();
        }
        write(cache.join(format!("m-3-{gone}-0.so")), "").unwrap();
        for name in [&left, &mine] {
            File::open(cache.join(name)).unwrap().set_modified(SystemTime::now() - 2 * ABANDONED).unwrap();
        }
        sweep(&cache);
        let there = |name: &str| exists(cache.join(name)).unwrap();
        let found = [there(&left), there(&fresh), there(&mine), there(&format!("m-3-{gone}-0.so"))];
        remove_dir_all(&cache).unwrap();
        assert_eq!(found, [false, true, true, true]);
    }
}
