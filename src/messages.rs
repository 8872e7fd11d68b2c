//! The lines that the preload library writes to stderr: their texts, and for docs/messages.md what each means and what to do.
//!
//! The library fills in what is in braces, and writes `culeak: ` in front. [`ALL`] is for the page alone, so the library does not contain
//! the explanations.

use crate::table;

/// A line of the table: the text, what it means, and what to do.
pub type Row = (&'static str, &'static str, &'static str);

macro_rules! messages {
    ($( $name:ident = $text:literal; $means:literal, $remedy:literal; )+) => {
        $( #[doc = $means] pub const $name: &str = $text; )+

        /// All lines.
        pub const ALL: &[Row] = &[$( ($text, $means, $remedy) ),+];
    };
}

messages! {
    NO_RECORDING = "nothing is recorded: cannot create {recording}: {reason}; set CULEAK_OUTPUT to a writable folder";
        "The program runs without being recorded.",
        "Name a folder on a local disk that the process may write to: `culeak run -o FOLDER`, or the variable. In a container, it must \
         exist inside.";
    SPOOLED = "the file system of {recording} cannot hold a recording that is being written; until the process ends, it is in {spool}";
        "The folder is on a network, FUSE or copy-on-write file system. At exit the recording is copied to it.",
        "Nothing. `culeak help file-systems` has the details; `CULEAK_SPOOL` names another local folder.";
    NOT_READ = "the recording cannot be copied to {recording}: it could not be read in {spool}; was it removed?";
        "The local copy is gone, so there is no recording.",
        "Keep cleaners of temporary files away, or name another folder in `CULEAK_SPOOL`; record again.";
    FOLDER_GONE = "the recording cannot be copied to {recording}: the file there, or its folder, was moved or removed; it is complete in {spool}";
        "The process has ended, and its recording is in the local folder only.",
        "Copy it from there before the machine is cleaned.";
    NOT_COPIED = "the recording cannot be copied to {recording}: {reason}; it is complete in {spool}";
        "The process has ended, and its recording is in the local folder only.",
        "Remove the reason, and copy it from there.";
    NONE_LIVE = "no memory still live on GPUs; see: culeak report {recording}";
        "At exit: all memory on devices was freed.",
        "Nothing. `CULEAK_QUIET=1` omits the line; `culeak run` does, and reports itself.";
    ONE_LIVE = "1 allocation, {bytes} still live on GPUs; see: culeak report {recording}";
        "At exit: this memory was not freed.",
        "The command names the line of code.";
    LIVE = "{count} allocations, {bytes} still live on GPUs; see: culeak report {recording}";
        "At exit: this memory was not freed.",
        "The command names the lines of code.";
    INCOMPLETE = "the recording is incomplete; see: culeak report {recording}";
        "At exit: some allocations or details could not be recorded, so sums would be wrong.",
        "The report counts what is missing, and says why.";
    OUT_OF_MEMORY = "out of memory: {function} of {bytes} failed; to see what held memory: culeak report {snapshot}";
        "CUDA refused the request, and a snapshot of that instant was written.",
        "The command shows what held the memory.";
    NO_BACKWARD = "stacks of backward passes end in autograd: this PyTorch does not name the pass of a thread";
        "Memory of a backward pass lacks the line that called `backward()`.",
        "Use a PyTorch that `culeak help python` lists, and please report the version.";
    NO_FORWARD = "gradients have no line of the forward pass: this PyTorch has unknown nodes";
        "`--by forward` has no lines for this memory.",
        "Use a PyTorch that `culeak help python` lists, and please report the version.";
    BAD_VALUE = "{variable}={value} is ignored; allowed: {allowed}";
        "A variable of culeak has a value that it cannot have. Its default applies.",
        "Correct or unset it.";
    BAD_NAME = "no variable is called {variable}; see: culeak help environment";
        "A variable begins with `CULEAK_`, and culeak has no such variable.",
        "Correct or unset it.";
    SIMILAR_NAME = "no variable is called {variable}; did you mean {similar}?";
        "A variable begins with `CULEAK_`, and culeak has no such variable.",
        "Correct or unset it.";
    NO_SAMPLING = "{sample} is ignored: {variable} needs the stack of every block";
        "Every stack is taken, which costs more.",
        "Unset one of the two variables.";
    CANNOT_GROW = "the recording cannot grow: {reason}; until it can, allocations are only counted: {recording}";
        "What was recorded so far stays. Later allocations have no call site; the report counts them.",
        "Remove the reason: free space on the disk, raise the quota or the file-size limit, or record to another disk.";
    LATE = "the first allocations are not recorded, only counted: the file system took too long to create {recording}";
        "The program did not wait for the file. Its first allocations have no call site.",
        "Record to a local disk.";
}

/// What `{reason}` is, by error number, and what to do. Any other is `system error` and its number, as `errno` lists them.
pub const REASONS: &[(i32, &str, &str)] = &table! {
    libc::ENOENT, "no such folder", "Create the folder.";
    libc::EACCES, "permission denied", "Let the user of the process write there.";
    libc::EPERM, "permission denied", "Let the user of the process write there.";
    libc::EROFS, "read-only file system", "Name a folder on another file system.";
    libc::ENOSPC, "no space left on device", "Free space, or name a folder on another disk.";
    libc::EDQUOT, "disk quota exceeded", "Free space, or name a folder on another disk.";
    libc::EFBIG, "over the file-size limit", "Raise `ulimit -f`.";
    libc::EMFILE, "too many open files", "Raise `ulimit -n`.";
    libc::ENFILE, "too many open files", "Raise `fs.file-max`.";
    libc::ENOTDIR, "not a folder", "A part of the path is a file; name another path.";
    libc::ELOOP, "a symbolic link is in its place", "Remove the link; culeak follows none.";
    libc::EEXIST, "the file exists already", "Remove the file, or name another one.";
    libc::ENAMETOOLONG, "name too long", "Name a shorter path.";
    libc::ENOMEM, "no memory left", "Free memory of the host.";
    libc::ESTALE, "another file has taken its name", "Let each process have a file of its own: `%p` in `CULEAK_OUTPUT`.";
    libc::ETIMEDOUT, "the file system takes too long", "Record to a local disk.";
    libc::EIO, "input/output error", "Look at the kernel's log; the disk may be broken.";
    libc::ENODEV, "neither its file system nor a local folder can hold a recording; name one in CULEAK_SPOOL", "Name a folder on a local disk.";
};

/// What [`CANNOT_GROW`] says in the place of a reason of the system.
pub const REMOVED: &str = "it was removed, or its folder was moved or removed";
/// As [`REMOVED`].
pub const NO_ADDRESSES: &str = "no address space left";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_meaning_and_a_remedy_and_braces_in_pairs() {
        for (text, means, remedy) in ALL {
            assert!(means.ends_with('.') && remedy.ends_with('.'), "{text}");
            let names = text
                .split('{')
                .skip(1)
                .map(|part| part.split_once('}').map(|(name, _)| name));
            assert!(
                names.clone().all(|name| name.is_some_and(|name| !name.is_empty())),
                "{text}"
            );
        }
    }
}
