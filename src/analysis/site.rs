//! Call sites: the line of the user's program that requested the memory, and fingerprints that identify it in other
//! runs.
//!
//! A stack under `cudaMalloc` begins inside the CUDA runtime and ends in the loader. The reader wants the line of their
//! own program in between: the *call site*. Each frame therefore gets a [`Role`] (`site/role.rs`, for Python
//! `site/python.rs`). The default view shows the frames between the runtime and `main`; the site is the innermost of
//! these that is not a wrapper.
//!
//! ```text
//! 0x7f.. libcudart.so.13         Runtime      hidden     0x7f.. libcudart.so.13        Runtime      hidden
//! cudaMalloc                     Runtime      hidden     c10::cuda::…::malloc          Framework    hidden
//! thrust::device_vector::…       Wrapper      shown      THPVariable_matmul            Framework    hidden
//! Trainer::step  train.cu:212    User         the site   _PyEval_EvalFrameDefault      Interpreter  hidden
//! main           main.cu:12      User         shown      forward    torch/nn/…:125     Library      shown
//! __libc_start_main              BelowMain    hidden     step       train.py:212       User         the site
//! ```
//!
//! In a Python program the site is the innermost Python line that the user wrote, else a line of library Python, else
//! native code. If all frames of a stack are hidden, the frames of frameworks are shown, else all.
//!
//! [`Fingerprint`]s compare two runs of one program: hashes of module, source file, function and line of the shown
//! frames. Files count by name alone, so address space randomization, another machine, another build folder or another
//! install path change nothing. Deliberately absent: looking up symbols; the CLI does that before.

use std::fmt;

use serde::Serialize;

use below_main::Expanded;

use crate::analysis::function_name::without_hash;
use crate::kind::{Kind, Place};
use crate::reader::progress::{Progress, Unit};
use crate::snapshot::{Location, Snapshot, Stack, gradient_of};

/// The call site of memory that was recorded without a stack.
pub const NO_STACK: &str = "(no stack)";

mod across;
mod below_main;
mod forward;
mod frame;
mod origin;
mod python;
mod role;
pub mod text;
mod wrapper;

pub(in crate::analysis) use across::{is_comprehension, module_stem};
pub(in crate::analysis) use forward::python_line;
pub use frame::{Frame, Role, file_name};
pub use python::package_of;
pub(in crate::analysis) use role::is_library_module;
pub use role::{Wrappers, set_wrappers};

/// A hash that identifies a stack or a site in every run of the same program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub u64);

impl fmt::Display for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(self)
    }
}

/// One stack of a snapshot, with roles and a call site.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct CallStack<'a> {
    /// Over module, function and line of each shown frame that is no wrapper, or one of the program's own.
    pub fingerprint: Fingerprint,
    /// Without lines, so edits elsewhere in the file do not change it.
    pub loose_fingerprint: Fingerprint,
    /// Over the frame of the site alone.
    pub site_fingerprint: Fingerprint,
    /// Over the frame of the site, without its line.
    pub loose_site_fingerprint: Fingerprint,
    /// A caching allocator requested the memory for the site, so it may be free for reuse.
    pub pool: bool,
    /// The owner of that allocator: `PyTorch`.
    pub allocator: Option<&'static str>,
    /// The CUDA library that requested the memory: `cuBLAS`.
    pub library: Option<&'static str>,
    /// The outer frames are missing.
    pub truncated: bool,
    /// Index of the site in `frames`; `None` for an allocation recorded without its stack.
    pub site: Option<usize>,
    /// Innermost first.
    pub frames: Vec<Frame<'a>>,
    /// How many frames are of the thread that requested the memory. Those behind them are of the thread that started the backward
    /// pass.
    #[serde(skip)]
    pub own: usize,
}

impl<'a> CallStack<'a> {
    fn of(stack: &Stack, known: &[Vec<Expanded<'a>>]) -> CallStack<'a> {
        let known: Vec<Expanded> = stack
            .frames
            .iter()
            .flat_map(|&location| known[location].iter().copied())
            .collect();
        let mut frames: Vec<Frame> = known.iter().map(|known| known.frame).collect();
        role::fold_static_cudart(&mut frames);
        let own = below_main::fold(&mut frames, &known);
        python::fold_outer(&mut frames);
        let allocator = known.iter().find_map(|known| known.allocator);
        CallStack {
            own,
            ..CallStack::new(frames, allocator, stack.truncated)
        }
    }

    /// The stack of an allocation that was recorded without one.
    fn unknown() -> CallStack<'a> {
        CallStack::new(Vec::new(), None, true)
    }

    fn new(frames: Vec<Frame<'a>>, allocator: Option<&'static str>, truncated: bool) -> CallStack<'a> {
        let site = site(&frames);
        let library = origin::library(&frames);
        let of_stack = |by| print(telling(&frames, site), by, library);
        let of_site = |by| print(site.map(|site| &frames[site]), by, library);
        CallStack {
            fingerprint: of_stack(NameDetail::WithLine),
            loose_fingerprint: of_stack(NameDetail::InFull),
            site_fingerprint: of_site(NameDetail::WithLine),
            loose_site_fingerprint: of_site(NameDetail::InFull),
            pool: allocator.is_some(),
            allocator,
            library,
            truncated,
            site,
            own: frames.len(),
            frames,
        }
    }

    pub fn site(&self) -> Option<&Frame<'a>> {
        self.site.map(|site| &self.frames[site])
    }

    /// `loose_fingerprint` as CPython 3.10 has it, which does not know the classes of methods.
    pub fn unqualified_fingerprint(&self) -> Fingerprint {
        print(telling(&self.frames, self.site), NameDetail::WithoutClass, self.library)
    }

    /// `loose_site_fingerprint` as CPython 3.10 has it.
    pub fn unqualified_site_fingerprint(&self) -> Fingerprint {
        print(self.site(), NameDetail::WithoutClass, self.library)
    }

    /// Whether the stack shows a statically linked CUDA runtime as the driver's caller. `program_has_runtime`: the
    /// program has a CUDA runtime at all.
    pub fn is_of_static_runtime(&self, program_has_runtime: bool) -> bool {
        let innermost = self.frames.first().filter(|frame| !frame.is_python());
        innermost.is_some_and(|frame| role::is_static_runtime(frame, program_has_runtime))
    }

    /// Whether the constructor of a static object requested the memory, before `main` or while a library was loaded.
    pub fn is_of_static_constructor(&self) -> bool {
        self.frames.iter().any(origin::is_static_constructor)
    }

    /// The frames of the default view.
    pub fn shown(&self) -> impl Iterator<Item = &Frame<'a>> {
        let visible = visible(&self.frames);
        self.frames.iter().filter(move |frame| visible.shows(frame))
    }

    /// Whether a frame is the user's own code, so that runs of libraries' frames beside it are one line.
    pub fn has_user(&self) -> bool {
        self.frames.iter().any(|frame| frame.role == Role::User)
    }

    /// The frames of the default view that called the call site and are no wrappers, innermost first.
    pub fn callers(&self) -> impl Iterator<Item = &Frame<'a>> {
        let site = self.site();
        let is_site = move |frame: &Frame| site.is_some_and(|site| std::ptr::eq(frame, site));
        let outer = self.shown().skip_while(move |frame| !is_site(frame)).skip(1);
        outer.filter(|frame| !frame.is_wrapper())
    }

    /// The program's own wrappers that the call site requested the memory through, innermost first.
    pub fn wrappers(&self) -> impl Iterator<Item = &Frame<'a>> {
        let inner = self.site.map_or(&[][..], |site| &self.frames[..site]);
        inner.iter().filter(|frame| frame.is_own_wrapper())
    }

    /// The frames of the default view as lines: a run of lines of one library is one, if the user's own code is beside it.
    pub fn folded(&self) -> Vec<Line<'a, &Frame<'a>>> {
        let shown: Vec<&Frame> = self.shown().collect();
        fold(&shown, self.has_user(), |frame| frame.python_library())
    }

    /// The innermost Python line that the user wrote, else the innermost line of library Python.
    pub fn python_line(&self) -> Option<&Frame<'a>> {
        line_of_python(&self.frames).map(|line| &self.frames[line])
    }
}

/// The fewest lines of one library that become one.
const FOLDED: usize = 3;

/// A line of a stack in the default view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Line<'t, F> {
    Frame(F),
    /// Consecutive lines of one library.
    Folded {
        library: &'t str,
        frames: usize,
    },
}

/// Makes one line of a run of frames of one library, if the stack has a frame of the user's. `library`: what a frame belongs to.
pub fn fold<'t, F: Copy>(frames: &[F], has_user: bool, library: impl Fn(F) -> Option<&'t str>) -> Vec<Line<'t, F>> {
    let library = |frame: &F| library(*frame);
    let runs = frames.chunk_by(|a, b| library(a).is_some() && library(a) == library(b));
    let lines = runs.flat_map(|run| match library(&run[0]) {
        Some(library) if has_user && run.len() >= FOLDED => vec![Line::Folded {
            library,
            frames: run.len(),
        }],
        _ => run.iter().copied().map(Line::Frame).collect(),
    });
    lines.collect()
}

/// Which frames of a stack the default view shows.
#[derive(Clone, Copy)]
enum Visible {
    Shown,
    Frameworks,
    All,
}

impl Visible {
    fn shows(self, frame: &Frame) -> bool {
        match self {
            Visible::Shown => frame.shown(),
            Visible::Frameworks => frame.role == Role::Framework,
            Visible::All => true,
        }
    }
}

fn visible(frames: &[Frame]) -> Visible {
    [Visible::Shown, Visible::Frameworks]
        .into_iter()
        .find(|visible| frames.iter().any(|frame| visible.shows(frame)))
        .unwrap_or(Visible::All)
}

/// The frames that tell stacks apart. Stacks that differ in wrappers of libraries alone are one, as `emplace_back` and
/// `_M_realloc_insert` of one line.
fn telling<'f, 'a>(frames: &'f [Frame<'a>], site: Option<usize>) -> impl Iterator<Item = &'f Frame<'a>> {
    let visible = visible(frames);
    let only_wrappers = !frames.iter().any(|frame| frame.shown() && !frame.is_wrapper());
    let is_passed_over = |frame: &Frame| frame.is_wrapper() && !frame.is_own_wrapper();
    let tells = move |(nth, frame): &(usize, &'f Frame<'a>)| {
        visible.shows(frame) && (only_wrappers || Some(*nth) == site || !is_passed_over(frame))
    };
    frames.iter().enumerate().filter(tells).map(|(_, frame)| frame)
}

/// A library's own memory and memory that the program requested stay apart, even if one line caused both.
fn print<'f, 'a: 'f>(
    frames: impl IntoIterator<Item = &'f Frame<'a>>,
    by: NameDetail,
    library: Option<&'static str>,
) -> Fingerprint {
    let mut hasher = Hasher::new();
    frames.into_iter().for_each(|frame| hasher.frame(frame, by));
    hasher.bytes(library.unwrap_or_default().as_bytes());
    hasher.finish()
}

/// The innermost Python line of the user that is no wrapper, else one that is; else such a line of a library.
fn line_of_python(frames: &[Frame]) -> Option<usize> {
    let innermost =
        |wanted: &dyn Fn(&Frame) -> bool| frames.iter().position(|frame| frame.is_python() && wanted(frame));
    innermost(&|frame| frame.role == Role::User)
        .or_else(|| innermost(&python::is_users_wrapper))
        .or_else(|| innermost(&|frame| frame.role == Role::Library))
        .or_else(|| innermost(&|frame| frame.is_wrapper()))
}

fn site(frames: &[Frame]) -> Option<usize> {
    let innermost = |wanted: &dyn Fn(&Frame) -> bool| frames.iter().position(wanted);
    line_of_python(frames)
        .or_else(|| innermost(&|frame| frame.role == Role::User))
        .or_else(|| innermost(&|frame| frame.role == Role::Operator))
        // The user's module first: a library's template there was instantiated for the user's code.
        .or_else(|| innermost(&|frame| frame.role == Role::Wrapper && !below_main::is_system(frame.module_name())))
        .or_else(|| innermost(&|frame| frame.role == Role::Wrapper))
        .or_else(|| innermost(&|frame| frame.role == Role::Framework))
        .or_else(|| innermost(&|frame| frame.role != Role::Allocator))
        .or(if frames.is_empty() { None } else { Some(0) })
}

/// All stacks of a snapshot.
pub struct CallStacks<'a> {
    stacks: Vec<CallStack<'a>>,
    unknown: CallStack<'a>,
}

impl<'a> CallStacks<'a> {
    pub fn of(snapshot: &'a Snapshot) -> CallStacks<'a> {
        let tensors_recorded = snapshot.ever_had(Kind::Tensor);
        let locations = snapshot.locations.iter();
        let known: Vec<_> = locations
            .map(|location| expand(snapshot, location, tensors_recorded))
            .collect();
        let progress = Progress::over("reading stacks", snapshot.stacks.len() as u64, Unit::Of("stacks"));
        let stacks = snapshot.stacks.iter().enumerate().map(|(nth, stack)| {
            progress.tick(nth);
            CallStack::of(stack, &known)
        });
        CallStacks {
            stacks: stacks.collect(),
            unknown: CallStack::unknown(),
        }
    }

    pub fn get(&self, stack: Option<usize>) -> &CallStack<'a> {
        stack.map_or(&self.unknown, |stack| &self.stacks[stack])
    }

    /// The stacks of the snapshot.
    pub fn all(&self) -> impl Iterator<Item = &CallStack<'a>> {
        self.stacks.iter()
    }

    /// Whether a record of this kind and stack belongs to a caching allocator: a pool object, or memory that such an
    /// allocator requested. The blocks that it hands out do not count.
    pub fn is_pool(&self, kind: Kind, stack: Option<usize>) -> bool {
        is_pool(kind, self.get(stack).pool)
    }
}

/// Whether a record belongs to a caching allocator, given its kind and whether its stack shows such an allocator.
pub fn is_pool(kind: Kind, in_pool: bool) -> bool {
    kind == Kind::Pool || (in_pool && !matches!(kind.place(), Place::Within | Place::Object | Place::Segment))
}

fn expand<'a>(snapshot: &'a Snapshot, location: &'a Location, tensors_recorded: bool) -> Vec<Expanded<'a>> {
    let module = location
        .module
        .map_or("", |module| snapshot.modules[module].path.as_str());
    let bare = Frame {
        function: None,
        file: None,
        line: None,
        inlined: false,
        language: location.language,
        module,
        address: location.address,
        role: Role::User,
        named_as_wrapper: false,
    };
    let mut frames: Vec<Frame> = location
        .symbols
        .iter()
        .map(|symbol| Frame {
            function: Some(&symbol.function),
            file: symbol.file.as_deref(),
            line: symbol.line,
            inlined: symbol.inlined,
            ..bare
        })
        .collect();
    if frames.is_empty() {
        frames.push(bare);
    }
    if location.is_gradient() {
        let line = |role| move |frame: &&Frame| role::of(frame).0 == role;
        let innermost = |role| frames.iter().find(line(role)).copied();
        let line = innermost(Role::User).or_else(|| innermost(Role::Library));
        frames = vec![line.unwrap_or(frames[0])];
    }
    let known = frames.into_iter().map(|frame| {
        let (role, named_as_wrapper) = match frame.is_gradient() {
            true => (Role::Operator, false),
            false => role::of(&frame),
        };
        Expanded {
            end: below_main::end(&frame),
            allocator: origin::caching_allocator(&frame, tensors_recorded),
            frame: Frame {
                role,
                named_as_wrapper,
                function: frame.function.map(role::short),
                ..frame
            },
        }
    });
    known.collect()
}

/// How much of a frame's name a fingerprint is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameDetail {
    WithLine,
    InFull,
    /// `step`, not `Trainer.step`, of a method of Python.
    WithoutClass,
}

/// FNV-1a, 64 bits: never changes, and easy to reproduce in other languages.
struct Hasher(u64);

impl Hasher {
    fn new() -> Hasher {
        Hasher(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn frame(&mut self, frame: &Frame, by: NameDetail) {
        let lines = by == NameDetail::WithLine;
        self.bytes(frame.home().as_bytes());
        self.bytes(&[0]);
        // Lambdas and static helpers of several files may share a name.
        self.bytes(frame.source().as_bytes());
        self.bytes(&[0]);
        match frame.function {
            Some(function) if by == NameDetail::WithoutClass && frame.is_python() => {
                let name = gradient_of(function).unwrap_or(function);
                self.bytes(&function.as_bytes()[..function.len() - name.len()]);
                self.bytes(name.rsplit('.').next().unwrap_or_default().as_bytes());
            }
            Some(function) => self.bytes(without_hash(function).as_bytes()),
            // Offsets in a file are the same in each run; addresses outside all files are not.
            None if lines && !frame.module.is_empty() => self.bytes(&frame.address.to_le_bytes()),
            None => {}
        }
        self.bytes(&[0]);
        if lines && let Some(line) = frame.line {
            self.bytes(&line.to_le_bytes());
        }
        self.bytes(&[1]);
    }

    fn finish(self) -> Fingerprint {
        Fingerprint(self.0)
    }
}

#[cfg(test)]
mod tests;
