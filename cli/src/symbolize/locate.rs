//! Locates the files on this machine that belong to a recorded module.
//!
//! The build id decides: a file with another build id is another program, even under the same path. The order of search is
//! that of gdb: the recorded path; `.build-id/xx/yyyy.debug` in each debug folder; the module's debug link beside it, in
//! `.debug/`, and below each debug folder; last the module's own symbols. Deliberately absent: downloads.
//!
//! Paths in a recording or a module are untrusted. Only regular files are opened, and DWARF is not read if blazesym would
//! follow a link in it to a special file ([`has_unsafe_links`]).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use culeak::reader::open_regular;
use culeak::snapshot::Module;
use data_encoding::HEXLOWER;
use flate2::CrcReader;
use object::read::ReadCache;
use object::{CompressionFormat, Object, ObjectSection};

use super::Note;

/// Where to look up names.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Debug folders, searched before the system's.
    pub debug_dirs: Vec<PathBuf>,
    /// The root of the file system as the process sees it, if that differs from this process's.
    pub root: Option<PathBuf>,
    /// The folder of cached names.
    pub cache: Option<PathBuf>,
}

/// The files to search for names of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Located {
    /// The separate debug file, which has the same addresses as the module.
    pub debug: Option<PathBuf>,
    /// The module itself.
    pub module: Option<PathBuf>,
    /// A warning about the names.
    pub note: Option<Note>,
    /// Neither the module nor a debug file has debug information.
    pub bare: bool,
}

impl Located {
    /// Files in the order of search, and whether to read their DWARF.
    pub fn attempts(&self) -> impl Iterator<Item = (&Path, bool)> {
        let debug = self.debug.as_deref().map(|path| (path, true));
        // If there is a debug file, the module can only add exported names.
        let module = self
            .module
            .as_deref()
            .filter(|_| self.debug.is_none())
            .map(|path| (path, true));
        // Damaged DWARF fails a whole request; the symbol table then still has names without lines.
        let names = self.module.as_deref().map(|path| (path, false));
        debug.into_iter().chain(module).chain(names)
    }
}

/// The identification in an ELF file.
struct Identity {
    build_id: String,
    debug_link: Option<(String, u32)>,
    has_debug_information: bool,
}

/// Finds the files of a module, or the reason why there are none.
pub fn locate(module: &Module, places: &Places, debug_dirs: &[PathBuf], started_unix_ns: u64) -> Result<Located, Note> {
    let recorded = module.path.trim_end_matches(" (deleted)");
    if !recorded.starts_with('/') {
        // [vdso] and other code without a file.
        return Ok(Located::default());
    }
    let mut located = Located {
        debug: by_build_id(&module.build_id, debug_dirs),
        ..Located::default()
    };
    let mut problem = None;
    for path in candidates(recorded, places.root.as_deref()) {
        match identity(&path) {
            Ok(identity) if identity.build_id == module.build_id => {
                if module.build_id.is_empty() && newer_than(&path, started_unix_ns) {
                    located.note = Some(Note::Doubtful {
                        module: recorded.to_owned(),
                        problem:
                            "has no build id and is newer than the recording, so its names may be wrong; link with \
                                  --build-id"
                                .to_owned(),
                    });
                }
                located.debug = located.debug.or_else(|| by_debug_link(&path, &identity, debug_dirs));
                located.bare = located.debug.is_none() && !identity.has_debug_information;
                located.module = Some(path);
                return Ok(located);
            }
            Ok(_) => problem = Some("changed since recorded".to_owned()),
            Err(error) if problem.is_none() => {
                problem = Some(match error.kind() {
                    io::ErrorKind::NotFound => "not on this machine".to_owned(),
                    _ => format!("cannot be read ({error})"),
                });
            }
            Err(_) => {}
        }
    }
    if located.debug.is_some() {
        return Ok(located);
    }
    Err(Note::Nameless {
        module: recorded.to_owned(),
        problem: problem.unwrap_or_else(|| "not found".to_owned()),
    })
}

/// The path in the file system of the process, then in this one.
pub fn candidates(recorded: &str, root: Option<&Path>) -> Vec<PathBuf> {
    let outside = below(Path::new("/"), recorded);
    let inside = root.map(|root| below(root, recorded));
    // The root of a process vanishes when it ends, perhaps while its names are read: the same file outside does not.
    let inside = inside.filter(|inside| !is_same_file(inside, &outside));
    inside.into_iter().chain([outside]).collect()
}

/// A recorded path below this root. The kernel writes a line break as `\012`, and the reader U+FFFD for bytes that are not UTF-8: the
/// build id decides whether a file with such a name is the one.
fn below(root: &Path, recorded: &str) -> PathBuf {
    let mut path = root.to_owned();
    for name in recorded.trim_start_matches('/').split('/') {
        let name = name.replace("\\012", "\n");
        let is_it = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy() == name;
        let entries = || path.read_dir().ok()?.flatten().find(is_it);
        let found = name.contains(char::REPLACEMENT_CHARACTER).then(entries).flatten();
        path = found.map_or_else(|| path.join(&name), |entry| entry.path());
    }
    path
}

pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    identity(one).is_some_and(|known| Some(known) == identity(other))
}

/// A file whose reads may fail: [`ReadCache`] keeps no error of the system, and what cannot be read looks damaged.
struct Checked {
    file: File,
    failure: Option<io::Error>,
}

impl Checked {
    fn checked<T>(&mut self, result: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &result
            && let Some(code) = error.raw_os_error()
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.failure = Some(io::Error::from_raw_os_error(code));
        }
        result
    }
}

impl Read for Checked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let result = self.file.read(into);
        self.checked(result)
    }
}

impl Seek for Checked {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let result = self.file.seek(to);
        self.checked(result)
    }
}

/// What is read of an ELF file; the error of the system if it cannot be read.
fn read<T>(file: File, what: impl FnOnce(&ReadCache<Checked>) -> io::Result<T>) -> io::Result<T> {
    let cache = ReadCache::new(Checked { file, failure: None });
    let result = what(&cache);
    cache.into_inner().failure.map_or(result, Err)
}

fn identity(path: &Path) -> io::Result<Identity> {
    read(open_regular(path)?, identity_of)
}

fn identity_of(cache: &ReadCache<Checked>) -> io::Result<Identity> {
    let elf = object::File::parse(cache).map_err(io::Error::other)?;
    let build_id = elf
        .build_id()
        .ok()
        .flatten()
        .map(|id| HEXLOWER.encode(id))
        .unwrap_or_default();
    let debug_link = elf
        .gnu_debuglink()
        .ok()
        .flatten()
        .map(|(name, crc)| (String::from_utf8_lossy(name).into_owned(), crc));
    let section = |name: &str| elf.section_by_name(name).is_some();
    Ok(Identity {
        build_id,
        debug_link,
        has_debug_information: [".debug_line", ".zdebug_line"].into_iter().any(section),
    })
}

/// Whether frames of this file have lines, from its own debug information or a debug file. `None` if it is no ELF file that can be
/// read.
pub fn has_lines(path: &Path, debug_dirs: &[PathBuf]) -> Option<bool> {
    let identity = identity(path).ok()?;
    let elsewhere = || {
        let by_id = by_build_id(&identity.build_id, debug_dirs);
        by_id.or_else(|| by_debug_link(path, &identity, debug_dirs)).is_some()
    };
    Some(identity.has_debug_information || elsewhere())
}

const DEBUG_LINK: &str = ".gnu_debuglink";
/// Sections that name another file, and the offset of the name.
const LINKS: [(&str, usize); 3] = [
    (DEBUG_LINK, 0),
    (".gnu_debugaltlink", 0),
    // After a version, and whether this is the supplementary file.
    (".debug_sup", 3),
];

/// Whether blazesym would open a special file when it reads this file's DWARF. It opens the targets of the file's links,
/// relative to the file's folder, and the package (`.dwp`) beside it, without checks. A debug link to an existing file also
/// counts as unsafe: a matching file is already [`Located::debug`], and any other makes blazesym fail.
/// A malformed link counts as unsafe, too.
///
/// # Errors
/// The machine refuses to read the links.
pub fn has_unsafe_links(path: &Path) -> io::Result<bool> {
    let is_special = |path: &Path| path.metadata().is_ok_and(|metadata| !metadata.is_file());
    let companions = match companions(path) {
        Err(error) if error.raw_os_error().is_none() => return Ok(true),
        companions => companions?,
    };
    let mut companions = companions.iter();
    Ok(companions.any(|(link, target)| is_special(target) || *link == Some(DEBUG_LINK) && target.exists()))
}

/// A file and the files that are read with it.
pub fn with_companions(path: &Path) -> Vec<PathBuf> {
    let companions = companions(path)
        .unwrap_or_default()
        .into_iter()
        .map(|(_, target)| target);
    [path.to_path_buf()].into_iter().chain(companions).collect()
}

/// The other files that blazesym reads, and the section that names each.
fn companions(path: &Path) -> io::Result<Vec<(Option<&'static str>, PathBuf)>> {
    let links = read(open_regular(path)?, linked_names)?;
    let own = match path.canonicalize() {
        Ok(own) => own,
        // A deleted file, or one in the root of a process: blazesym, too, takes the path as it is then.
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_path_buf(),
        Err(error) => return Err(error),
    };
    let mut package = path.as_os_str().to_owned();
    package.push(".dwp");
    let targets = links
        .into_iter()
        .map(|(link, name)| (Some(link), own.with_file_name("").join(name)))
        .filter(|(_, target)| *target != own);
    Ok([(None, PathBuf::from(package))].into_iter().chain(targets).collect())
}

/// The file names in all link sections.
fn linked_names(cache: &ReadCache<Checked>) -> io::Result<Vec<(&'static str, PathBuf)>> {
    let file = object::File::parse(cache).map_err(io::Error::other)?;
    let mut names = Vec::new();
    for section in file.sections() {
        let name = section.name_bytes().unwrap_or_default();
        let Some(&(link, skipped)) = LINKS.iter().find(|(link, _)| link.as_bytes() == name) else {
            continue;
        };
        // No tool compresses such short sections, and blazesym would read a name that this code does not see.
        let range = section.compressed_file_range().map_err(io::Error::other)?;
        if range.format != CompressionFormat::None {
            return Err(io::Error::other("a compressed link"));
        }
        let bytes = section.data().map_err(io::Error::other)?;
        let bytes = bytes.get(skipped..).unwrap_or_default();
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        names.push((link, PathBuf::from(OsStr::from_bytes(&bytes[..end]))));
    }
    Ok(names)
}

fn newer_than(path: &Path, started_unix_ns: u64) -> bool {
    let started = SystemTime::UNIX_EPOCH + Duration::from_nanos(started_unix_ns);
    path.metadata()
        .and_then(|metadata| metadata.modified())
        .is_ok_and(|modified| modified > started)
}

fn by_build_id(build_id: &str, debug_dirs: &[PathBuf]) -> Option<PathBuf> {
    // A hostile "build id" could otherwise contain "../".
    if build_id.len() < 4 || !build_id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let (folder, rest) = build_id.split_at(2);
    debug_dirs
        .iter()
        .map(|dir| dir.join(".build-id").join(folder).join(format!("{rest}.debug")))
        .find(|path| identity(path).is_ok_and(|identity| identity.build_id == build_id))
}

fn by_debug_link(module: &Path, identity: &Identity, debug_dirs: &[PathBuf]) -> Option<PathBuf> {
    let (name, crc) = identity.debug_link.as_ref()?;
    if name.is_empty() || name.contains('/') {
        return None;
    }
    let module = module.canonicalize().ok()?;
    let folder = module.parent()?;
    let below = |dir: &PathBuf| dir.join(folder.strip_prefix("/").unwrap_or(folder)).join(name);
    let mut places = vec![folder.join(name), folder.join(".debug").join(name)];
    places.extend(debug_dirs.iter().map(below));
    places.extend(debug_dirs.iter().map(|dir| dir.join(name)));
    places
        .into_iter()
        .filter(|path| *path != module)
        .find(|path| belongs(path, identity, *crc))
}

/// Whether a debug file belongs to the module: by build id, or without one by the checksum in the link.
fn belongs(debug_file: &Path, module: &Identity, crc: u32) -> bool {
    match self::identity(debug_file) {
        Ok(found) if !found.build_id.is_empty() && !module.build_id.is_empty() => found.build_id == module.build_id,
        Ok(_) => checksum(debug_file).is_ok_and(|found| found == crc),
        Err(_) => false,
    }
}

fn checksum(path: &Path) -> io::Result<u32> {
    let mut file = CrcReader::new(open_regular(path)?);
    io::copy(&mut file, &mut io::sink())?;
    Ok(file.crc().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_the_system_refuses_to_read_is_not_damaged() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("app");
        std::fs::copy("/proc/self/exe", &path).expect("copied");
        let unreadable = File::options().write(true).open(&path).expect("opened");
        let refused = read(unreadable, linked_names).expect_err("it cannot be read");
        assert_eq!(refused.raw_os_error(), Some(nix::errno::Errno::EBADF as i32));
        std::fs::write(&path, "no program").expect("written");
        let damaged = read(open_regular(&path).expect("opened"), linked_names).expect_err("damaged");
        assert_eq!(damaged.raw_os_error(), None);
    }

    #[test]
    fn a_file_that_a_process_shares_with_this_one_is_read_where_it_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("app");
        std::fs::write(&file, "").expect("written");
        let recorded = file.display().to_string();
        let own = candidates(&recorded, Some(Path::new("/proc/self/root")));
        assert_eq!(own, std::slice::from_ref(&file));
        let other = folder.path().join("root");
        let inside = other.join(recorded.trim_start_matches('/'));
        assert_eq!(candidates(&recorded, Some(&other)), [inside, file]);
    }
}
