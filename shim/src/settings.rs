//! What the environment asks of us, read once, when the recording begins.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `CULEAK_OUTPUT` | file, or folder when it ends in `/` or is one; `%h` host, `%p` pid, `%e` program, `%r` rank, `%%` percent sign | `%e.%h.%p.culeak` in the current folder |
//! | `CULEAK_DEPTH` | frames kept per stack, 1 to 256 | 128 |
//! | `CULEAK_DISABLE` | anything but empty or `0`: do nothing | |
//! | `CULEAK_ONLY` | record only programs whose file name matches this pattern (`*` and `?`) | all |
//! | `CULEAK_PARENT` | record only the process whose parent has this id (`culeak run --no-follow-children`) | all |
//! | `CULEAK_UNWINDER` | `libgcc`: unwind stacks the slow, portable way | own walker |
//! | `CULEAK_JAX_BUFFERS` | anything but empty or `0`: record XLA's buffers, one by one; `addresses`: and where they lie | |
//! | `CULEAK_OOM_SNAPSHOTS` | pictures kept on disk when a request fails for lack of memory, at most; 0: none | 3 |
//! | `CULEAK_SNAPSHOT_AT_PEAK` | bytes: keep a picture when a peak is that much higher than at the last picture | |
//! | `CULEAK_SNAPSHOT_AT_MARK` | anything but empty or `0`: keep one at each `culeak_mark` | |
//! | `CULEAK_SNAPSHOT_EVERY` | seconds: keep one after each such time, at the next event | |
//! | `CULEAK_QUIET` | anything but empty or `0`: no line on stderr at exit | |
//!
//! Nothing else of the environment is kept but the rank variables (`layout::RANK_VARIABLES`).

use std::ffi::CStr;

use culeak::layout::RANK_VARIABLES;

pub const DEPTH_MAX: usize = 256;
const DEPTH_DEFAULT: usize = 128;

/// The value of a variable, as bytes of the process's own environment.
pub fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: a C string; the result is copied or dropped before this thread can change the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv returns a C string.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}

pub fn is_set(name: &CStr) -> bool {
    variable(name).is_some_and(|value| !value.is_empty() && value != b"0")
}

pub fn depth() -> usize {
    let value = variable(c"CULEAK_DEPTH").and_then(|value| std::str::from_utf8(value).ok()?.parse::<usize>().ok());
    value.map_or(DEPTH_DEFAULT, |depth| depth.clamp(1, DEPTH_MAX))
}

/// The number in a variable; `None` when it is not set or no such number.
pub fn number<T: std::str::FromStr>(name: &CStr) -> Option<T> {
    variable(name).and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
}

/// Whether stacks are unwound by libgcc instead of our own walker.
pub fn wants_libgcc() -> bool {
    variable(c"CULEAK_UNWINDER") == Some(b"libgcc")
}

/// The rank variables that are set, in the order of `RANK_VARIABLES`.
pub fn ranks() -> [Option<&'static [u8]>; RANK_VARIABLES.len()] {
    RANK_VARIABLES.map(|name| {
        let mut buffer = [0u8; 32];
        buffer[..name.len()].copy_from_slice(name.as_bytes());
        CStr::from_bytes_until_nul(&buffer).ok().and_then(variable)
    })
}

/// Whether `CULEAK_ONLY` and `CULEAK_PARENT` let this process through.
pub fn is_wanted(program: &[u8], parent_pid: u32) -> bool {
    let by_name = variable(c"CULEAK_ONLY").is_none_or(|pattern| pattern.is_empty() || matches(pattern, program));
    let parent = variable(c"CULEAK_PARENT").and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
    by_name && parent.is_none_or(|parent: u32| parent == parent_pid)
}

/// `*` stands for any characters, `?` for one.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if p < pattern.len() && pattern[p] == b'*' {
            star = Some((p + 1, t));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == b'?' || pattern[p] == text[t]) {
            p += 1;
            t += 1;
        } else if let Some((after, from)) = star {
            star = Some((after, from + 1));
            p = after;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// A path being put together; what does not fit makes it invalid.
pub struct Path {
    bytes: [u8; culeak::file::PATH_MAX],
    length: usize,
    fits: bool,
}

impl Path {
    fn new() -> Path {
        Path {
            bytes: [0; culeak::file::PATH_MAX],
            length: 0,
            fits: true,
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        if end < self.bytes.len() {
            self.bytes[self.length..end].copy_from_slice(bytes);
            self.length = end;
        } else {
            self.fits = false;
        }
    }

    fn push_number(&mut self, number: u32) {
        let mut digits = [0; 10];
        self.push(decimal(number, &mut digits));
    }

    /// `None` when it was too long.
    pub fn as_c_str(&self) -> Option<&CStr> {
        if self.fits {
            CStr::from_bytes_until_nul(&self.bytes).ok()
        } else {
            None
        }
    }

    /// The same with `.N` before its extension: for a name that is taken.
    pub fn numbered(&self, number: u32) -> Path {
        let mut path = Path::new();
        let all = &self.bytes[..self.length];
        let stem = all.strip_suffix(b".culeak").unwrap_or(all);
        path.push(stem);
        path.push(b".");
        path.push_number(number);
        path.push(&all[stem.len()..]);
        path.fits &= self.fits;
        path
    }

    /// The name of a picture that is kept beside the recording of this name.
    pub fn kept(recording: &CStr, what: &[u8], number: Option<u32>) -> Path {
        let mut path = Path::new();
        let all = recording.to_bytes();
        path.push(all.strip_suffix(b".culeak").unwrap_or(all));
        path.push(b".");
        path.push(what);
        if let Some(number) = number {
            path.push(b"-");
            path.push_number(number);
        }
        path.push(b".culeak-kept");
        path
    }
}

pub fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// What stands behind the placeholders.
pub struct Names<'a> {
    pub host: &'a [u8],
    pub pid: u32,
    pub program: &'a [u8],
    pub rank: &'a [u8],
}

const DEFAULT_NAME: &[u8] = b"%e.%h.%p.culeak";

/// The absolute path of the recording to make.
pub fn output(names: &Names) -> Path {
    let pattern = variable(c"CULEAK_OUTPUT")
        .filter(|value| !value.is_empty())
        .unwrap_or(DEFAULT_NAME);
    let mut path = Path::new();
    if pattern[0] != b'/' {
        // The program may change folders later, and the file is opened again whenever it grows.
        let mut folder = [0u8; culeak::file::PATH_MAX];
        // SAFETY: the buffer is as long as we say.
        if unsafe { !libc::getcwd(folder.as_mut_ptr().cast(), folder.len()).is_null() } {
            let length = folder.iter().position(|&byte| byte == 0).unwrap_or(0);
            path.push(&folder[..length]);
            path.push(b"/");
        }
    }
    expand(pattern, names, &mut path);
    if path.length > 0 && (path.bytes[path.length - 1] == b'/' || is_folder(&path)) {
        path.push(b"/");
        expand(DEFAULT_NAME, names, &mut path);
    }
    path
}

fn is_folder(path: &Path) -> bool {
    // SAFETY: plain integers: all zeros is a value of `stat`.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: a C string and a valid `stat`.
    path.as_c_str()
        .is_some_and(|path| unsafe { libc::stat(path.as_ptr(), &mut status) } == 0)
        && status.st_mode & libc::S_IFMT == libc::S_IFDIR
}

fn expand(pattern: &[u8], names: &Names, path: &mut Path) {
    let mut bytes = pattern.iter().copied();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            path.push(&[byte]);
            continue;
        }
        match bytes.next() {
            Some(b'h') => push_safe(path, names.host),
            Some(b'p') => path.push_number(names.pid),
            Some(b'e') => push_safe(path, names.program),
            Some(b'r') => push_safe(path, names.rank),
            Some(b'%') | None => path.push(b"%"),
            Some(other) => path.push(&[b'%', other]),
        }
    }
}

/// A name must not lead into another folder.
fn push_safe(path: &mut Path, name: &[u8]) {
    for &byte in name {
        path.push(&[if byte == b'/' { b'_' } else { byte }]);
    }
}
