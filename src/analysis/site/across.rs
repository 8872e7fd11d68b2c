//! What a stack is matched by in a process with other versions of its libraries: the program's own lines.
//!
//! Another version of a library has other lines, other functions between the program and the allocation, and files with other names.
//! CPython differs too: since 3.12 a list comprehension is no frame of its own, and before 3.11 the name of a method lacks its class.

use super::{CallStack, Fingerprint, Frame, Hasher, Role};
use crate::analysis::function_name::plain;

/// The name of a library's file without what differs between its versions and builds: `libcublas` of `libcublas.so.12`, `_C` of
/// `_C.cpython-312-x86_64-linux-gnu.so`.
pub fn module_stem(name: &str) -> &str {
    let stem = name.split(".so").next().unwrap_or(name);
    let stem = stem.split(".cpython-").next().unwrap_or(stem);
    let stem = stem.strip_suffix(".abi3").unwrap_or(stem);
    // What auditwheel adds.
    let is_hash = |hash: &str| hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    match stem.rsplit_once('-') {
        Some((bare, hash)) if is_hash(hash) => bare,
        _ => stem,
    }
}

impl<'a> CallStack<'a> {
    /// Over the program's own frames: with the numbers of their lines, without them, and without the classes of methods either. Of a
    /// stack without such frames, over the module and the function of each shown frame. `site_alone`: over the call site.
    pub fn own_fingerprints(&self, site_alone: bool) -> [Fingerprint; 3] {
        let is_own = |frame: &Frame| frame.role == Role::User || frame.is_own_wrapper();
        let from = self.site.filter(|_| site_alone).unwrap_or(0);
        let has_own = match site_alone {
            true => self.site().is_some_and(is_own),
            false => self.frames.iter().any(is_own),
        };
        let mut hashers = [(); 3].map(|()| Hasher::new());
        // The line of a comprehension counts as that of the function around it, which is the next frame.
        let mut line = None;
        for frame in self.frames[from..].iter().filter(|frame| has_own && is_own(frame)) {
            line = line.or(frame.line);
            if !is_comprehension(frame) {
                let line = line.take();
                [(true, line), (false, None), (true, None)]
                    .into_iter()
                    .zip(&mut hashers)
                    .for_each(|((short, line), hasher)| hasher.own_frame(frame, short, line));
                if site_alone {
                    break;
                }
            }
        }
        let others = match site_alone {
            true => self.site().into_iter().collect(),
            false => self.shown().collect::<Vec<_>>(),
        };
        for frame in others.into_iter().filter(|_| !has_own) {
            hashers.iter_mut().for_each(|hasher| hasher.library_frame(frame));
        }
        hashers.map(|mut hasher| {
            hasher.bytes(self.library.unwrap_or_default().as_bytes());
            hasher.finish()
        })
    }
}

/// Whether a line is in a comprehension that is a function of its own, as before CPython 3.12.
pub fn is_comprehension(frame: &Frame) -> bool {
    let kinds = ["<listcomp>", "<dictcomp>", "<setcomp>"];
    let function = frame.function.unwrap_or_default();
    frame.is_python() && kinds.iter().any(|kind| function.ends_with(kind))
}

impl Hasher {
    fn words(&mut self, words: &[&str]) {
        for word in words {
            self.bytes(word.as_bytes());
            self.bytes(&[0]);
        }
    }

    /// `short`: methods without their classes.
    fn own_frame(&mut self, frame: &Frame, short: bool, line: Option<u32>) {
        let function = frame.function.unwrap_or_default();
        let short = short && frame.is_python();
        let function = match function.rsplit_once('.') {
            Some((_, last)) if short => last.into(),
            _ => plain(function),
        };
        self.words(&[module_stem(frame.home()), frame.source(), &function]);
        self.bytes(&line.unwrap_or(0).to_le_bytes());
    }

    fn library_frame(&mut self, frame: &Frame) {
        let home = match frame.is_python() {
            true => frame.home(),
            false => module_stem(frame.home()),
        };
        self.words(&[home, &plain(frame.function.unwrap_or_default())]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_library_lacks_its_version_and_its_build() {
        for (name, stem) in [
            ("libtorch_cuda.so", "libtorch_cuda"),
            ("libcublas.so.12.8.4", "libcublas"),
            ("libcudart-d0da41ae.so.11.0", "libcudart"),
            ("_C.cpython-312-x86_64-linux-gnu.so", "_C"),
            ("flash_attn_2_cuda.abi3.so", "flash_attn_2_cuda"),
            ("train", "train"),
            ("train-release", "train-release"),
        ] {
            assert_eq!(module_stem(name), stem, "{name}");
        }
    }
}
