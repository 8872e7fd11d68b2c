//! A command on a terminal of a chosen width.

use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::process::Command;

/// Runs the command with the streams that `connect` connects to a new terminal of this many columns, and returns what it
/// writes there. A line ends with `\r\n`.
pub fn on_a_terminal(mut command: Command, columns: u16, connect: impl FnOnce(&mut Command, File)) -> String {
    let (mut ours, mut theirs) = (0, 0);
    let size = nix::libc::winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the first two pointers lead to live integers, the size is only read, and the others may be null.
    let opened = unsafe { nix::libc::openpty(&mut ours, &mut theirs, std::ptr::null_mut(), std::ptr::null(), &size) };
    assert_eq!(opened, 0, "a terminal");
    // SAFETY: both were just opened, and nothing else owns them.
    let (mut ours, theirs) = unsafe { (File::from_raw_fd(ours), File::from_raw_fd(theirs)) };
    command.env("TERM", "xterm");
    connect(&mut command, theirs);
    let mut child = command.spawn().expect("culeak starts");
    // Otherwise this copy would keep the terminal open.
    drop(command);
    let mut text = Vec::new();
    let mut piece = [0; 4096];
    // A terminal without writers ends with an error.
    while let Ok(count @ 1..) = ours.read(&mut piece) {
        text.extend_from_slice(&piece[..count]);
    }
    child.wait().expect("its end");
    String::from_utf8_lossy(&text).into_owned()
}
