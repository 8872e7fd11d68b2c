//! Names of kernels: that of the first kernel of a module, and of the kernel whose code took memory.
//!
//! The number of names is bounded, since a program may load a module of another name for each request.

use std::sync::atomic::Ordering::*;

use super::Recording;
use super::phases::beginning;
use crate::format::Text;

/// The longest name of a kernel, in bytes; longer names are truncated.
pub const KERNEL_NAME_MAX: usize = 256;
/// The most names.
const MOST: u64 = if cfg!(test) { 16 } else { 1 << 14 };

impl Recording {
    /// The text of a kernel's name; [`Text::EMPTY`] if there are too many names.
    pub fn kernel_name(&self, name: &[u8]) -> Text {
        let name = beginning(name, KERNEL_NAME_MAX);
        match self.known_name(name) {
            Some(known) => known,
            None if self.kernel_names.fetch_add(1, Relaxed) < MOST => self.name_once(name),
            None => Text::EMPTY,
        }
    }
}

#[cfg(all(test, feature = "read"))]
mod tests {
    use super::*;
    use crate::reader::tests::{Folder, record};

    #[test]
    fn names_are_stored_once_and_their_number_is_bounded() {
        let folder = Folder::new("kernel-names");
        let recording = record(&folder.0.join("a.culeak"));
        let name = |number: u64| recording.kernel_name(format!("kernel_{number}").as_bytes());
        let first = name(0);
        assert_eq!((first, first.bytes), (name(0), 8));
        let stored = (0..1000).filter(|&number| name(number) != Text::EMPTY).count();
        assert_eq!(stored as u64, MOST);
        assert_eq!(name(0), first, "known names stay known");
        assert_eq!(recording.kernel_name(b""), Text::EMPTY);
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let folder = Folder::new("kernel-long-name");
        let recording = record(&folder.0.join("a.culeak"));
        let text = recording.kernel_name("長".repeat(200).as_bytes());
        assert_eq!(text.bytes as usize, KERNEL_NAME_MAX / 3 * 3);
    }
}
