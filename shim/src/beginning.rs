//! The first CUDA event of a process: who it is, what the environment asks for, and the file that is made for it.

use std::ffi::CStr;

use crate::{capture, doors_memory, pictures, settings, voice};
use culeak::file::Errno;
use culeak::recording::{Beginning, Recording};
use culeak::variables;

/// Creates the recording; `None` when there shall be or can be none, of which the latter is said.
pub fn create() -> Option<&'static Recording> {
    // SAFETY: getauxval has no preconditions.
    let privileged = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if privileged || settings::is_set(variables::DISABLE) {
        return None;
    }
    let mut executable = [0u8; 4096];
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
        return None;
    }
    let mut host = [0u8; 256];
    let host = read_file(c"/proc/sys/kernel/hostname", &mut host);
    let host = host.strip_suffix(b"\n").unwrap_or(host);
    let mut command_line = [0u8; 8192];
    let command_line = read_file(c"/proc/self/cmdline", &mut command_line);
    let ranks = settings::ranks();
    let rank = ranks.iter().flatten().next().copied().unwrap_or(b"0");
    let path = settings::output(&settings::Names {
        host,
        pid,
        program,
        rank,
    });
    let depth = settings::depth();
    pictures::configure();
    capture::configure(depth, settings::wants_libgcc());
    voice::remember_stderr();
    settings::each_mistake(voice::say_mistake);
    // The walker's own first sight of the loader, better here than in the middle of the program's first allocation.
    culeak_walker::walk(culeak_walker::Registers::here(), &mut [0; 4]);
    capture::prepare();
    let beginning = Beginning {
        pid,
        parent_pid,
        depth: depth as u32,
        process_start_ticks: start_ticks(),
        executable,
        command_line,
        host,
        ranks,
    };
    let mut result = path.as_c_str().map_or(Err(Errno(libc::ENAMETOOLONG)), |path| {
        Recording::create(path, &beginning)
    });
    // A name is taken when a process replaced itself by exec, or its pid was used before.
    for number in 2..100 {
        if !matches!(result, Err(Errno(libc::EEXIST))) {
            break;
        }
        let path = path.numbered(number);
        result = path.as_c_str().map_or(Err(Errno(libc::ENAMETOOLONG)), |path| {
            Recording::create(path, &beginning)
        });
    }
    match result {
        Ok(recording) => {
            doors_memory::flush(recording);
            if settings::is_set(variables::INTERVALS) {
                // PyTorch asks whether the variable is there, not what it says.
                let uncached = settings::variable(c"PYTORCH_NO_CUDA_MEMORY_CACHING").is_some();
                recording.intervals().watch(!uncached);
            }
            Some(recording)
        }
        Err(error) => {
            voice::say_no_recording(path.as_c_str(), error);
            None
        }
    }
}

fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    // SAFETY: a C string; the descriptor is closed below.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return b"";
    }
    let mut length = 0;
    while length < buffer.len() {
        // SAFETY: `fd` is open, the range lies within the buffer.
        let got = unsafe { libc::read(fd, buffer.as_mut_ptr().add(length).cast(), buffer.len() - length) };
        if got <= 0 {
            break;
        }
        length += got as usize;
    }
    // SAFETY: opened above.
    unsafe { libc::close(fd) };
    &buffer[..length]
}

/// Field 22 of /proc/self/stat.
fn start_ticks() -> u64 {
    let mut buffer = [0u8; 1024];
    let stat = read_file(c"/proc/self/stat", &mut buffer);
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
