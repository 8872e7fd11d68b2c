//! The first CUDA event of a process: who it is, what the environment asks for, and the file that is made for it.

use std::ffi::CStr;

use crate::hooks::unhooked;
use crate::recorder::{auto_snapshot, proof};
use crate::{messages, settings, stacks};
use culeak::proof::Fact;
use culeak::recording::{Recording, Session, inode};
use culeak::system::Errno;
use culeak::system::{Descriptor, Scratch};
use culeak::variables;

/// What the start needs to remember for a moment. All zeros is a value.
struct Room {
    executable: [u8; 4096],
    command_line: [u8; 8192],
    stat: [u8; 1024],
    system: libc::utsname,
    path: settings::Path,
    numbered: settings::Path,
}

/// Creates the recording; `None` when there shall be or can be none, of which the latter is said.
pub fn create() -> Option<&'static Recording> {
    // SAFETY: getauxval has no preconditions.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if privileged || settings::is_set(variables::DISABLE) {
        proof::state(Fact::Disabled, 1);
        return None;
    }
    // SAFETY: bytes and integers: all zeros is a value.
    match unsafe { Scratch::<Room>::zeroed() } {
        Ok(mut room) => create_in(&mut room),
        Err(error) => {
            messages::remember_stderr();
            messages::say_no_recording(None, error);
            None
        }
    }
}

#[inline(never)]
fn create_in(room: &mut Room) -> Option<&'static Recording> {
    let executable = &mut room.executable;
    // SAFETY: the buffer is as long as we say.
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
    // SAFETY: a valid utsname; its fields are C strings, empty ones if the call fails.
    let host = unsafe {
        libc::uname(&mut room.system);
        CStr::from_ptr(room.system.nodename.as_ptr())
    }
    .to_bytes();
    let command_line = read_file(c"/proc/self/cmdline", &mut room.command_line);
    let ranks = settings::ranks();
    let rank = ranks.iter().flatten().next().copied().unwrap_or(b"0");
    let path = &mut room.path;
    path.set_output(&settings::Names {
        host,
        pid,
        program,
        rank,
    });
    let depth = settings::depth();
    auto_snapshot::configure();
    stacks::configure(depth, settings::wants_libgcc());
    messages::remember_stderr();
    settings::each_mistake(messages::say_mistake);
    // The walker's own first sight of the loader, better here than in the middle of the program's first allocation.
    culeak_walker::walk(culeak_walker::Registers::here(), &mut [0; 4]);
    stacks::prepare();
    let beginning = Session {
        pid,
        parent_pid,
        depth: depth as u32,
        process_start_ticks: start_ticks(&mut room.stat),
        pid_namespace: inode(c"/proc/self/ns/pid"),
        time_namespace: inode(c"/proc/self/ns/time"),
        executable,
        command_line,
        host,
        ranks,
    };
    let create = |path: &settings::Path| {
        let path = path.as_c_str().ok_or(Errno(libc::ENAMETOOLONG))?;
        Recording::create(path, &beginning)
    };
    let mut result = create(path);
    // A name is taken when a process replaced itself by exec, or its pid was used before.
    for number in 2..100 {
        if !matches!(result, Err(Errno(libc::EEXIST))) {
            break;
        }
        room.numbered.set_numbered(path, number);
        result = create(&room.numbered);
    }
    match result {
        Ok(recording) => {
            proof::created();
            unhooked::flush(recording);
            if settings::is_set(variables::INTERVALS) {
                // PyTorch asks whether the variable is there, not what it says.
                let uncached = settings::variable(c"PYTORCH_NO_CUDA_MEMORY_CACHING").is_some();
                recording.intervals().watch(!uncached);
            }
            Some(recording)
        }
        Err(error) => {
            proof::state(Fact::NotCreated, error.0 as u8);
            messages::say_no_recording(path.as_c_str(), error);
            None
        }
    }
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
