//! The ELF files that the process has loaded: where they are, their globals, and their symbols.
//!
//! Exported symbols are found in memory. For the names of variables, a file is used only if it is the one that was loaded: its program
//! headers and its build id are those in memory. Separate debug files are found by the caller ([`DebugFiles`]).

use std::cell::OnceCell;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::copy::selection::{append, containing};
use crate::copy::{Image, PAGE};
use crate::source::{Region, Source};
use crate::{DebugFiles, starts_with_one};

mod exported;
pub mod headers;
mod variables;

use headers::{Headers, NOTE, Read};
use variables::Variables;

/// How names of CUDA's runtime begin in a file that it was linked into statically.
const OF_STATIC_RUNTIME: &str = "libcudart_static_";

/// What a loaded file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It may hold blocks.
    Program,
    /// libc, the loader, and other allocators, those of frameworks included: they know all memory and hold none.
    System,
    /// The CUDA driver, its runtime, and the recorder.
    Driver,
    /// CUDA's libraries without names of variables. Their memory contains addresses of blocks that were never given to them, so what
    /// they lead to is only possibly held.
    Library,
    /// Compilers of CUDA: they allocate no memory of a GPU.
    Compiler,
}

impl Role {
    pub fn of(path: &str) -> Role {
        let name = path.rsplit('/').next().unwrap_or(path);
        // `libc.so.6`, `libc-2.31.so`
        let is = |library: &str| {
            name.strip_prefix(library)
                .is_some_and(|rest| rest.starts_with(".so") || rest.starts_with("-2."))
        };
        const SYSTEM: &str = "libc libpthread libdl libm librt ld ld-linux-x86-64 ld-linux-aarch64 libresolv libjemalloc libtcmalloc \
                              libtcmalloc_minimal libtcmalloc_minimal_debug libmimalloc libasan";
        const COMPILER: [&str; 4] = ["libnvrtc", "libnvrtc-builtins", "libnvJitLink", "libnvvm"];
        // The name has a version, unlike those of most programs' own files.
        const LIBRARIES: [&str; 9] = [
            "libcublas",
            "libcudnn",
            "libcufft",
            "libcurand",
            "libcusolver",
            "libcusparse",
            "libcutensor",
            "libnpp",
            "libnvjpeg",
        ];
        const DRIVER: [&str; 4] = ["libcuda", "libcudart", "libcudadebugger", "libcupti"];
        if DRIVER.into_iter().any(is) || name.starts_with("libnvidia-") || name.starts_with("libculeak") {
            Role::Driver
        } else if SYSTEM.split(' ').any(is)
            || starts_with_one(name, &["libc10_cuda.", "xla_cuda"])
            || path.starts_with("[v")
        {
            Role::System
        } else if COMPILER.into_iter().any(is) {
            Role::Compiler
        } else if starts_with_one(name, &LIBRARIES) && name.contains(".so.") {
            Role::Library
        } else {
            Role::Program
        }
    }
}

/// A loaded file. Its variables are read when they are first needed.
pub struct Module {
    /// As the process sees it.
    pub path: String,
    /// Runtime address minus the address in the file.
    pub bias: u64,
    /// Written static memory (`.data`, `.bss`), as mapped, without what follows the end of `.bss`.
    pub globals: Vec<Range<u64>>,
    headers: Headers,
    build_id: Vec<u8>,
    /// The file that was loaded.
    file: Option<PathBuf>,
    variables: OnceCell<Variables>,
}

impl Module {
    /// Address of an exported symbol, at run time, as the memory of the module has it.
    pub fn address_of(&self, copy: &Image, name: &str) -> Option<u64> {
        exported_of(&self.headers, self.bias, name, &|address, buffer| {
            in_memory(copy, address, buffer)
        })
    }

    /// Without the folder, and without the kernel's remark that the file was deleted.
    pub fn file_name(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.strip_suffix(" (deleted)").unwrap_or(name)
    }

    fn variables(&self, debug_files: Option<&DebugFiles>) -> &Variables {
        self.variables.get_or_init(|| self.read_variables(debug_files))
    }

    fn read_variables(&self, debug_files: Option<&DebugFiles>) -> Variables {
        let read = |path: &Path| {
            let variables = culeak::reader::open_regular(path).map(Variables::read);
            variables.unwrap_or_default()
        };
        // A file without an id on the disk may be that of another build.
        let is_known = self.file.is_some() || !self.build_id.is_empty();
        let debug = debug_files.filter(|_| is_known).and_then(|find| {
            let build_id: String = self.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
            find.0(self.file.as_deref().unwrap_or(Path::new(&self.path)), &build_id)
        });
        let debug = debug.map(|path| read(&path)).unwrap_or_default();
        match &self.file {
            Some(path) if debug.is_empty() => read(path),
            _ => debug,
        }
    }
}

/// All loaded files, by address.
#[derive(Default)]
pub struct Modules {
    all: Vec<Module>,
    /// Index of the module of each range of globals, by address.
    globals: Vec<(Range<u64>, usize)>,
    debug_files: Option<DebugFiles>,
}

impl Modules {
    pub fn find(copy: &Image) -> Modules {
        let mut found = Modules::default();
        for region in copy.regions().iter().filter(|region| region.is_start_of_file()) {
            if let Some(module) = loaded(copy, region) {
                let index = found.all.len();
                let globals = module.globals.iter().map(|range| (range.clone(), index));
                found.globals.extend(globals);
                found.all.push(module);
            }
        }
        found.globals.sort_by_key(|(range, _)| range.start);
        found
    }

    /// Names of variables come from these files first.
    #[must_use]
    pub fn with_debug_files(self, debug_files: Option<DebugFiles>) -> Modules {
        Modules { debug_files, ..self }
    }

    pub fn all(&self) -> &[Module] {
        &self.all
    }

    /// The words of static memory that are `wanted` by their value, although they are as in the file: constants, which nothing wrote
    /// while the program ran. In order.
    pub fn constants(&self, copy: &Image, wanted: impl Fn(u64) -> bool) -> Vec<Range<u64>> {
        let mut found = Vec::new();
        for (range, index) in &self.globals {
            let module = &self.all[*index];
            let file = OnceCell::new();
            for (address, value) in copy.words(range.clone()).filter(|(_, value)| wanted(*value)) {
                let file = file.get_or_init(|| File::open(module.file.as_ref()?).ok());
                let mut bytes = [0; 8];
                if let Some(file) = file
                    && in_file(file, &module.headers)(address.wrapping_sub(module.bias), &mut bytes)
                    && u64::from_le_bytes(bytes) == value
                {
                    found.push(address..address + 8);
                }
            }
        }
        found
    }

    /// The variable that contains this address, demangled, and the offset in it: `g_cache`, 8. Local symbols are known
    /// unless the file was stripped.
    pub fn variable_at(&self, address: u64) -> Option<(String, u64)> {
        let (name, range) = self.variable(address)?;
        Some((name, address.wrapping_sub(range.start)))
    }

    /// As above, with the variable's addresses.
    pub fn variable(&self, address: u64) -> Option<(String, Range<u64>)> {
        let module = self.with_global(address)?;
        let bias = module.bias;
        let (name, range) = module
            .variables(self.debug_files.as_ref())
            .at(address.wrapping_sub(bias))?;
        let range = range.start.wrapping_add(bias)..range.end.wrapping_add(bias);
        Some((crate::demangle::variable(&name), range))
    }

    /// The thread-local variable at this offset in the memory that the module with this index has for each thread: its name
    /// and its offsets.
    pub fn thread_local(&self, index: usize, offset: u64) -> Option<(String, Range<u64>)> {
        let variables = self.all.get(index)?.variables(self.debug_files.as_ref());
        let (name, range) = variables.thread_local(offset)?;
        Some((crate::demangle::variable(&name), range))
    }

    /// The offsets of the thread-local variables of CUDA's runtime, if it was linked statically into the module with this index.
    pub fn thread_locals_of_runtime(&self, index: usize) -> Vec<Range<u64>> {
        let variables = self
            .all
            .get(index)
            .map(|module| module.variables(self.debug_files.as_ref()));
        variables.map_or_else(Vec::new, |all| all.thread_locals_of(OF_STATIC_RUNTIME).collect())
    }

    /// Whether a function of the file with this path is CUDA's runtime's, which was linked statically into it.
    pub fn is_function_of_runtime(&self, path: &str, address: u64) -> bool {
        self.all.iter().filter(|module| module.path == path).any(|module| {
            let variables = module.variables(self.debug_files.as_ref());
            let name = variables.function_at(address.wrapping_sub(module.bias));
            name.is_some_and(|name| name.starts_with(OF_STATIC_RUNTIME))
        })
    }

    /// The bytes that the module with this index has for each thread; `None` if it has no thread-local variables.
    pub fn thread_local_bytes(&self, index: usize) -> Option<u64> {
        self.all.get(index)?.headers.thread_local_bytes()
    }

    /// The module whose globals contain this address.
    pub fn with_global(&self, address: u64) -> Option<&Module> {
        let (_, index) = containing(&self.globals, address, |(range, _)| range.clone())?;
        self.all.get(*index)
    }
}

/// The address of an exported symbol of a library that is loaded from this address on, without a copy of the process. The file may have
/// been deleted.
pub(crate) fn exported_of_loaded(source: &dyn Source, start: u64, name: &str) -> Option<u64> {
    let read = |address: u64, buffer: &mut [u8]| {
        let end = address.checked_add(buffer.len() as u64);
        end.is_some_and(|end| source.read(&[address..end], buffer) == buffer.len())
    };
    let headers = Headers::read(&|offset, buffer| read(start.wrapping_add(offset), buffer))?;
    exported_of(&headers, headers.bias(start), name, &read)
}

/// As above, of a library with these headers. `read`: reads the memory of the process.
fn exported_of(headers: &Headers, bias: u64, name: &str, read: Read) -> Option<u64> {
    let inside = |address: u64, buffer: &mut [u8]| read(address.wrapping_add(bias), buffer);
    let address = exported::address(headers, &inside, bias, name)?;
    Some(address.wrapping_add(bias))
}

/// Reads copied memory.
fn in_memory(copy: &Image, address: u64, buffer: &mut [u8]) -> bool {
    let end = address.checked_add(buffer.len() as u64);
    let bytes = end.and_then(|end| copy.bytes(address..end));
    bytes.map(|bytes| buffer.copy_from_slice(&bytes)).is_some()
}

/// Reads a file by addresses without the bias.
fn in_file(file: &File, headers: &Headers) -> impl Fn(u64, &mut [u8]) -> bool {
    move |address, buffer| {
        let is_whole = |(_, left): &(u64, u64)| *left >= buffer.len() as u64;
        let place = headers.in_file(address).filter(is_whole);
        place.is_some_and(|(offset, _)| file.read_exact_at(buffer, offset).is_ok())
    }
}

/// The build id in a file, whose notes are found by their offset.
pub fn build_id(file: &File, headers: &Headers) -> Vec<u8> {
    let read = |address: u64, buffer: &mut [u8]| {
        let mut notes = headers.segments.iter().filter(|segment| segment.kind == NOTE);
        let note = notes.find(|segment| segment.address == address);
        note.is_some_and(|note| file.read_exact_at(buffer, note.offset).is_ok())
    };
    headers.build_id(&read)
}

/// The module whose file begins with this region; `None` if the file is mapped as data.
fn loaded(copy: &Image, first: &Region) -> Option<Module> {
    let start = first.range.start;
    let memory = |address: u64, buffer: &mut [u8]| in_memory(copy, address, buffer);
    let headers = Headers::read(&|offset, buffer| memory(start.wrapping_add(offset), buffer))?;
    let bias = headers.bias(start);
    let region = |address: u64| copy.region(address);
    for segment in headers.loaded().filter(|segment| segment.file_bytes > 0) {
        let place = region(segment.memory(bias).start);
        let is_mapped = match (segment.is_executable(), segment.is_writable()) {
            // Text may have been moved to huge pages, which belong to no file.
            (true, _) => place.is_some_and(|place| place.executable),
            (_, true) => place.is_some_and(|place| place.name == first.name),
            _ => true,
        };
        if !is_mapped {
            return None;
        }
    }
    let mut globals = Vec::new();
    for segment in headers.loaded().filter(|segment| segment.is_writable()) {
        let memory = segment.memory(bias);
        let all = copy.regions();
        let from = all.partition_point(|region| region.range.end <= memory.start);
        let regions = (all[from..].iter()).take_while(|region| region.range.start < memory.end);
        for region in regions.filter(|region| region.readable && !region.shared) {
            let range = region.range.start.max(memory.start)..region.range.end.min(memory.end);
            if region.writable {
                append(&mut globals, range);
            } else {
                // What the program made read-only itself was copied.
                let pages = (range.start & !(PAGE - 1)..range.end).step_by(PAGE as usize);
                for page in pages.filter(|page| copy.has(*page)) {
                    append(&mut globals, page.max(range.start)..(page + PAGE).min(range.end));
                }
            }
        }
    }
    let build_id = headers.build_id(&|address, buffer| memory(bias.wrapping_add(address), buffer));
    let file = same_file(copy.source(), first, &headers, &build_id);
    Some(Module {
        path: first.name.clone(),
        bias,
        globals,
        headers,
        build_id,
        file,
        variables: OnceCell::new(),
    })
}

/// A file with these headers and this build id: the one under the module's path, or the one that is mapped, which the
/// kernel shows to privileged users only.
fn same_file(source: &dyn Source, first: &Region, headers: &Headers, build_id: &[u8]) -> Option<PathBuf> {
    let mapped = source.pid().map(|pid| {
        let Range { start, end } = first.range;
        PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"))
    });
    [Some(source.file(Path::new(&first.name))), mapped]
        .into_iter()
        .flatten()
        .find(|path| culeak::reader::open_regular(path).is_ok_and(|file| is_that(&file, headers, Some(build_id))))
}

/// Whether a file has these headers and this build id, if that is known.
pub(crate) fn is_that(file: &File, headers: &Headers, id: Option<&[u8]>) -> bool {
    let found = Headers::read(&|offset, buffer| file.read_exact_at(buffer, offset).is_ok());
    found.is_some_and(|found| found == *headers && id.is_none_or(|id| build_id(file, headers) == id))
}

#[cfg(test)]
mod tests;
