//! Creates the recording at the first CUDA event of a process: the identity of the process, the settings of its
//! environment, and the file.

use std::ffi::CStr;

use crate::recorder::list_search::ListSearch;
use crate::recorder::{auto_snapshot, hold, job_variables, proof, sampling, unhooked};
use crate::resolve::{loader, own};
use crate::{messages, settings, stacks};
use culeak::file::spool;
use culeak::job_variables::VALUE_MAX;
use culeak::proof::Fact;
use culeak::recording::{Recording, Session, inode};
use culeak::system::{Descriptor, Errno, Scratch};
use culeak::variables;

/// Buffers, too large for a small stack. All zeros is a value.
struct Buffers {
    executable: [u8; 4096],
    command_line: [u8; 8192],
    stat: [u8; 1024],
    system: libc::utsname,
    path: settings::Path,
    numbered: settings::Path,
    rank: [u8; VALUE_MAX],
}

/// Creates the recording. `None` if recording is disabled or impossible; the latter is reported on stderr.
pub fn create() -> Option<&'static Recording> {
    if settings::is_privileged() || settings::is_set(variables::DISABLE) || is_for_whole_system() {
        proof::state(Fact::Disabled, 1);
        return None;
    }
    // SAFETY: bytes and integers: all zeros is a value.
    match unsafe { Scratch::<Buffers>::zeroed() } {
        Ok(mut buffers) => create_in(&mut buffers),
        Err(error) => {
            messages::remember_stderr();
            messages::no_recording(None, error);
            None
        }
    }
}

#[inline(never)]
fn create_in(buffers: &mut Buffers) -> Option<&'static Recording> {
    let executable = &mut buffers.executable;
    // SAFETY: the buffer has this length.
    let length = unsafe {
        libc::readlink(
            c"/proc/self/exe".as_ptr(),
            executable.as_mut_ptr().cast(),
            executable.len(),
        )
    };
    let executable = &executable[..usize::try_from(length).unwrap_or(0)];
    let program = executable.rsplit(|&byte| byte == b'/').next().unwrap_or(executable);
    // SAFETY: no preconditions.
    let (pid, parent_pid) = unsafe { (libc::getpid() as u32, libc::getppid() as u32) };
    if !settings::is_wanted(program, parent_pid) {
        proof::state(Fact::NotChosen, 1);
        return None;
    }
    // SAFETY: a valid utsname; its fields are C strings, empty if the call fails.
    let host = unsafe {
        libc::uname(&mut buffers.system);
        CStr::from_ptr(buffers.system.nodename.as_ptr())
    }
    .to_bytes();
    let command_line = read_file(c"/proc/self/cmdline", &mut buffers.command_line);
    let ranks = settings::ranks();
    let rank = job_variables::rank(&mut buffers.rank);
    let path = &mut buffers.path;
    path.set_output(&settings::Names {
        host,
        pid,
        program,
        rank,
    });
    let depth = settings::depth();
    auto_snapshot::configure();
    stacks::configure(depth, settings::frames(), settings::is_set(variables::UNWINDER));
    messages::remember_stderr();
    settings::each_mistake(messages::mistake);
    // The walker reads the loader's list at its first walk: better here than inside the program's first allocation.
    culeak_walker::walk(culeak_walker::Registers::here(), &mut [0; 4]);
    stacks::prepare();
    let session = Session {
        pid,
        parent_pid,
        depth: depth as u32,
        process_start_ticks: start_ticks(&mut buffers.stat),
        pid_namespace: inode(c"/proc/self/ns/pid"),
        time_namespace: inode(c"/proc/self/ns/time"),
        executable,
        command_line,
        host,
        ranks,
    };
    let spools = spool::folders(settings::text(variables::SPOOL.name), settings::text(c"TMPDIR"));
    let create = |path: &settings::Path| {
        let path = path.as_c_str().ok_or(Errno(libc::ENAMETOOLONG))?;
        Recording::create_or_spool(path, spools, &session)
    };
    let mut result = create(path);
    // The name exists if a process replaced itself by exec, or if an earlier process had the same pid.
    for number in 2..100 {
        if !matches!(result, Err(Errno(libc::EEXIST))) {
            break;
        }
        buffers.numbered.set_numbered(path, number);
        result = create(&buffers.numbered);
    }
    match result {
        Ok(recording) => {
            proof::created();
            if !settings::is_set(variables::QUIET) {
                messages::spooled(recording);
            }
            job_variables::record(recording);
            hold::prepare();
            unhooked::flush(recording);
            sampling::configure(recording);
            if settings::is_set(variables::INTERVALS) {
                // PyTorch tests whether the variable is set and ignores its value.
                let uncached = settings::variable(c"PYTORCH_NO_CUDA_MEMORY_CACHING").is_some();
                recording.enable_intervals(!uncached);
            }
            if let Some(bytes) = settings::timeline() {
                recording.enable_timeline(bytes);
            }
            Some(recording)
        }
        Err(error) => {
            proof::state(Fact::NotCreated, error.0 as u8);
            messages::no_recording(path.as_c_str(), error);
            None
        }
    }
}

/// Whether this library is in every process of the system (`/etc/ld.so.preload`), and nothing asks for a recording of this one.
fn is_for_whole_system() -> bool {
    let asks = [variables::OUTPUT.name, variables::RUN.name].map(settings::variable);
    if asks.into_iter().flatten().any(|value| !value.is_empty()) {
        return false;
    }
    let mut name = [0; 256];
    let length = loader::find_containing(own::here(), |loaded| {
        let file = loaded.file_name();
        let room = file.len().min(name.len());
        name[..room].copy_from_slice(&file[..room]);
        room
    });
    let name = &name[..length.unwrap_or(0)];
    let Ok(file) = Descriptor::open(c"/etc/ld.so.preload", libc::O_RDONLY) else {
        return false;
    };
    let mut search = ListSearch::new(name, true);
    let mut buffer = [0; 512];
    loop {
        let piece = file.read(&mut buffer);
        if piece.is_empty() {
            break;
        }
        search.feed(piece);
    }
    let mut preload = ListSearch::new(name, false);
    preload.feed(settings::variable(c"LD_PRELOAD").unwrap_or(b""));
    search.is_found() && !preload.is_found()
}

fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    match Descriptor::open(path, libc::O_RDONLY) {
        Ok(file) => file.read(buffer),
        Err(_) => b"",
    }
}

/// Field 22 of /proc/self/stat.
fn start_ticks(buffer: &mut [u8]) -> u64 {
    let stat = read_file(c"/proc/self/stat", buffer);
    let after_name = stat
        .iter()
        .rposition(|&byte| byte == b')')
        .map_or(stat.len(), |at| at + 1);
    let field = stat[after_name..]
        .split(|&byte| byte == b' ')
        .filter(|field| !field.is_empty())
        .nth(19);
    field
        .and_then(|field| std::str::from_utf8(field).ok()?.parse().ok())
        .unwrap_or(0)
}
