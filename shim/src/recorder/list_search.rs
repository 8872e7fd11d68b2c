//! Searches a list of libraries, of `/etc/ld.so.preload` or `LD_PRELOAD`, for one with a given file name. The list may come in pieces, so
//! that it can be of any length without memory of its own.

pub struct ListSearch<'a> {
    name: &'a [u8],
    /// How many bytes of the name the list's last path has after its last slash; `None` if they differ.
    matched: Option<usize>,
    has_comments: bool,
    is_comment: bool,
    is_found: bool,
}

impl<'a> ListSearch<'a> {
    /// Comments, from `#` to the end of the line, exist in the file only.
    pub fn new(name: &'a [u8], has_comments: bool) -> ListSearch<'a> {
        ListSearch {
            name,
            matched: Some(0),
            has_comments,
            is_comment: false,
            is_found: false,
        }
    }

    /// The next piece of the list.
    pub fn feed(&mut self, piece: &[u8]) {
        for &byte in piece {
            if self.is_comment && byte != b'\n' {
                continue;
            }
            self.is_comment = byte == b'#' && self.has_comments;
            match byte {
                b' ' | b'\t' | b'\n' | b':' => self.end_path(),
                b'/' => self.matched = Some(0),
                _ if self.is_comment => self.end_path(),
                _ => {
                    let next = self.matched.filter(|&at| self.name.get(at) == Some(&byte));
                    self.matched = next.map(|at| at + 1);
                }
            }
        }
    }

    fn end_path(&mut self) {
        self.is_found |= self.is_last();
        self.matched = Some(0);
    }

    fn is_last(&self) -> bool {
        !self.name.is_empty() && self.matched == Some(self.name.len())
    }

    /// Whether what was fed has the name, after its last piece.
    pub fn is_found(&self) -> bool {
        self.is_found || self.is_last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(list: &str, has_comments: bool) -> bool {
        let results = [1, 3, usize::MAX].map(|length| {
            let mut search = ListSearch::new(b"libculeak.so", has_comments);
            list.as_bytes()
                .chunks(length.min(list.len().max(1)))
                .for_each(|piece| search.feed(piece));
            search.is_found()
        });
        assert!(
            results.iter().all(|&result| result == results[0]),
            "{list}: {results:?}"
        );
        results[0]
    }

    #[test]
    fn whole_file_names_are_found_anywhere() {
        for list in [
            "libculeak.so",
            "/usr/lib/libculeak.so\n",
            "libc.so:/a/libculeak.so /b/other.so",
            "/a/b.so\t/c/libculeak.so#comment",
            "# comment\nlibculeak.so",
        ] {
            assert!(finds(list, true), "{list}");
        }
        assert!(finds(
            &format!("{} /x/libculeak.so", "/some/library.so ".repeat(500)),
            true
        ));
    }

    #[test]
    fn parts_of_names_are_not() {
        for list in [
            "",
            "/a/libculeak.so.1",
            "/a/mylibculeak.so",
            "/libculeak.so/other.so",
            "libculeak.s",
            "# /a/libculeak.so",
        ] {
            assert!(!finds(list, true), "{list}");
        }
        assert!(finds("a# libculeak.so", false));
    }
}
