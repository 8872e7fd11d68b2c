//! Real stacks, each compared with libgcc's.

#![allow(dead_code)]

pub mod shapes;

use culeak_walker::{End, ReadSets, Registers, mix_in, walk};
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

#[repr(C)]
pub struct Run {
    pub probe: extern "C" fn(),
    pub shapes: *const extern "C" fn(*mut Run, i32),
    pub count: u64,
    pub random: u64,
}

pub const DEPTH: usize = 768;

pub static STACKS: AtomicU64 = AtomicU64::new(0);
pub static FRAMES: AtomicU64 = AtomicU64::new(0);
/// Stacks that end before the root for both unwinders.
pub static TRUNCATED: AtomicU64 = AtomicU64::new(0);
/// Stacks that were known by their read sets.
pub static FOUND: AtomicU64 = AtomicU64::new(0);
pub static DIFFERENT: AtomicU64 = AtomicU64::new(0);
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Takes the stack with both unwinders and counts the result. Allocates nothing while they agree, so it can be called
/// anywhere.
#[inline(never)]
pub extern "C" fn compare() {
    let same = same_as_libgcc(true);
    DIFFERENT.fetch_add(u64::from(!same), Relaxed);
}

/// Whether the walker and libgcc see the same stack, frame by frame, and end for the same reason.
#[inline(never)]
pub fn same_as_libgcc(report: bool) -> bool {
    let start = Registers::here();
    let mut ours = [0; DEPTH];
    let walked = walk(start, &mut ours);
    let mut theirs = [0; DEPTH];
    let (mut count, mut reached, mut root) = (0, false, false);
    // SAFETY: the trace keeps no shared state.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            let ip = frame.ip() as u64;
            // The frame in which both begin; the frames before it belong to `backtrace`.
            if !reached {
                reached = frame.sp() as u64 == start.rsp;
                return true;
            }
            // libgcc reports the root's missing caller as address 0.
            root = ip == 0;
            if root || count == DEPTH {
                return false;
            }
            theirs[count] = ip;
            count += 1;
            true
        });
    }
    let end = if root { End::Root } else { End::Lost };
    STACKS.fetch_add(1, Relaxed);
    FRAMES.fetch_add(count as u64, Relaxed);
    TRUNCATED.fetch_add(u64::from(!root), Relaxed);
    let same = reached && ours.get(1..walked.count) == Some(&theirs[..count]) && walked.end == end;
    let is_as_found = is_as_found(start, &ours[..walked.count]);
    if !(same && is_as_found) && report && !REPORTED.swap(true, Relaxed) {
        eprintln!("as its read set has it: {is_as_found}");
        print_difference(&ours[1..walked.count.max(1)], walked.end, &theirs[..count], end);
    }
    same && is_as_found
}

/// Whether the stack is the one that has its read set, if any has; else it is remembered.
fn is_as_found(start: Registers, addresses: &[u64]) -> bool {
    thread_local! {
        static SETS: ReadSets = const { ReadSets::new() };
    }
    let number = (addresses.iter().fold(0, |hash, &address| mix_in(hash, address)) >> 32) as u32;
    // SAFETY: the thread's own.
    SETS.with(|sets| unsafe {
        if let Some(found) = sets.find(start, |_| false, || 0) {
            FOUND.fetch_add(1, Relaxed);
            return found == number;
        }
        if !sets.found_again(start, 0, number)
            && let Some(kept) = sets.walk(start, |_| true)
        {
            kept.remember(0, number, 0);
        }
        true
    })
}

/// Prints two different stacks, address by address.
fn print_difference(ours: &[u64], our_end: End, theirs: &[u64], their_end: End) {
    eprintln!("the walker ends with {our_end:?}, libgcc with {their_end:?}");
    for at in 0..ours.len().max(theirs.len()) {
        let pair = (ours.get(at).copied().unwrap_or(0), theirs.get(at).copied().unwrap_or(0));
        eprintln!(
            "{} {:2} {:#14x} {:#14x}  {}",
            if pair.0 == pair.1 { ' ' } else { '!' },
            at,
            pair.0,
            pair.1,
            name(pair.1)
        );
    }
}

fn name(address: u64) -> String {
    // SAFETY: all zeros is a valid Dl_info, and dladdr takes any address.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(address as *const c_void, &mut info) == 0 {
            return String::new();
        }
        let text = |name: *const libc::c_char| {
            if name.is_null() {
                "?".into()
            } else {
                std::ffi::CStr::from_ptr(name).to_string_lossy().into_owned()
            }
        };
        format!(
            "{} {}+{:#x}",
            text(info.dli_sname),
            text(info.dli_fname),
            address - info.dli_fbase as u64
        )
    }
}

/// Asserts that all comparisons so far were equal.
pub fn expect_no_difference() {
    let (stacks, frames, truncated) = (STACKS.load(Relaxed), FRAMES.load(Relaxed), TRUNCATED.load(Relaxed));
    let found = FOUND.load(Relaxed);
    println!("{stacks} stacks, {frames} frames, {truncated} truncated for both, {found} known by their read sets");
    assert_eq!(DIFFERENT.load(Relaxed), 0, "of {stacks} stacks");
}

/// The folder for the libraries of this run.
pub fn folder() -> PathBuf {
    let parent = option_env!("CARGO_TARGET_TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = parent.join(format!("walker-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support").join(name)
}

/// Compiles a source file to a library. `CROSS_COMPILE` is the prefix of a cross compiler, as usual.
pub fn compile(source: &Path, library: &Path, options: &[&str]) {
    let compiler = if source.extension().is_some_and(|kind| kind == "cpp") {
        "g++"
    } else {
        "gcc"
    };
    let prefix = std::env::var("CROSS_COMPILE").unwrap_or_default();
    let done = Command::new(prefix + compiler)
        .args(["-shared", "-fPIC", "-w"])
        .args(options)
        .arg("-o")
        .args([library, source])
        .status()
        .expect("a compiler");
    assert!(done.success());
}

/// Options that make code harder to walk: vectors, for which functions realign their frames; landing pads in the linkage
/// table; signed return addresses.
const WIDE: &str = if cfg!(target_arch = "x86_64") {
    "-mavx2"
} else {
    "-ftree-vectorize"
};
const PROTECTED: &str = if cfg!(target_arch = "x86_64") {
    "-fcf-protection=full"
} else {
    "-mbranch-protection=standard"
};

/// A library opened with dlopen.
pub struct Library(*mut c_void);

// SAFETY: every thread may use a handle.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    pub fn open(path: &Path, flags: i32) -> Library {
        let name = CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: the library belongs to the tests.
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        assert!(!handle.is_null(), "cannot open {}", path.display());
        Library(handle)
    }

    pub fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: an open handle.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{name:?}");
        address
    }

    pub fn close(self) {
        // SAFETY: opened above, closed once.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
    }
}

/// The C++ shapes, compiled with several sets of options, and the Rust shapes.
pub struct Game {
    pub shapes: Vec<extern "C" fn(*mut Run, i32)>,
    pub libraries: Vec<Library>,
}

impl Game {
    pub fn new() -> Game {
        let builds: [&[&str]; 4] = [
            &["-O2", "-fomit-frame-pointer"],
            &["-O3", "-fomit-frame-pointer", WIDE, "-fno-plt"],
            &["-O1", "-fno-omit-frame-pointer", "-Wl,-z,lazy"],
            &["-O0", PROTECTED],
        ];
        let folder = folder().join("game");
        std::fs::create_dir_all(&folder).unwrap();
        let mut game = Game {
            shapes: shapes::ALL.to_vec(),
            libraries: Vec::new(),
        };
        std::thread::scope(|scope| {
            for (number, options) in builds.iter().enumerate() {
                let library = folder.join(format!("libshapes{number}.so"));
                scope.spawn(move || compile(&source("shapes.cpp"), &library, options));
            }
        });
        for number in 0..builds.len() {
            let library = Library::open(&folder.join(format!("libshapes{number}.so")), libc::RTLD_LAZY);
            // SAFETY: the library exports an array of this many functions.
            let shapes = unsafe {
                let count = *library.symbol("shape_count").cast::<u64>() as usize;
                std::slice::from_raw_parts(library.symbol("all_shapes").cast(), count)
            };
            game.shapes.extend_from_slice(shapes);
            game.libraries.push(library);
        }
        std::fs::remove_dir_all(folder).ok();
        game
    }

    /// Calls shapes at random, `depth` frames deep, and then the probe (more than once: a few shapes call twice).
    pub fn play(&self, seed: u64, depth: i32, probe: extern "C" fn()) {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut run = Run {
            probe,
            shapes: self.shapes.as_ptr(),
            count: self.shapes.len() as u64,
            random,
        };
        self.shapes[seed as usize % self.shapes.len()](&mut run, depth);
    }
}
