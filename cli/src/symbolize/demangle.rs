//! Names as people write them, and only as long as people would read.
//!
//! A mangled name refers back to its own parts, so one of a few hundred bytes can stand for gigabytes. Such a name stays
//! as it is in the file.

use std::fmt::{self, Write};

/// Longer names are not spelled out; those of the largest templates have some ten thousand letters.
const LENGTH: usize = 1 << 16;

/// How a mangled name begins. The grammars go on without it, so a C function `f` would read as the type `float`.
const PREFIXES: [&str; 3] = ["_Z", "__Z", "_R"];

/// The name in Rust's or C++'s own terms, if it is one of theirs.
pub fn demangled(name: &str) -> String {
    if !PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        return name.to_owned();
    }
    let rust = || {
        let name = rustc_demangle::try_demangle(name).ok()?;
        // Without the hash behind it.
        written(|out| write!(out, "{name:#}"))
    };
    let cpp = || {
        let name = cpp_demangle::Symbol::new(name).ok()?;
        written(|out| name.structured_demangle(out, &Default::default()))
    };
    rust().or_else(cpp).unwrap_or_else(|| name.to_owned())
}

fn written(write: impl FnOnce(&mut Limited) -> fmt::Result) -> Option<String> {
    let mut out = Limited(String::new());
    write(&mut out).ok()?;
    Some(out.0)
}

/// A text that takes no more than a certain length.
struct Limited(String);

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LENGTH {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_languages_are_spelled_out_and_others_left() {
        assert_eq!(demangled("_ZN7Trainer4stepEi"), "Trainer::step(int)");
        assert_eq!(demangled("_ZN3app4grow17h0123456789abcdefE"), "app::grow");
        assert_eq!(demangled("_RNvC3app4grow"), "app::grow");
        assert_eq!(demangled("cuMemAlloc_v2"), "cuMemAlloc_v2");
    }

    #[test]
    fn short_names_of_c_functions_are_no_types_of_cpp() {
        for name in [
            "a",
            "f",
            "i",
            "v",
            "St",
            "Sa",
            "Ss",
            "PKc",
            "ZN3app4growE",
            "RNvC3app4grow",
        ] {
            assert_eq!(demangled(name), name);
        }
    }

    #[test]
    fn a_name_that_doubles_itself_again_and_again_stays_as_it_is() {
        // A pair of pairs of pairs …, each of which occurs in the name once.
        let twice = |nth: usize| match nth {
            0 => "S_IS0_S0_E".to_owned(),
            nth => format!("S_IS{nth}_S{nth}_E"),
        };
        let few = format!("_Z1fSt4pairIiiE{}", (0..2).map(twice).collect::<String>());
        assert_eq!(demangled(&few).matches("int").count(), 2 + 4 + 8);
        let many = format!("_Z1fSt4pairIiiE{}", (0..10).map(twice).collect::<String>());
        let letters = (0..26).map(|nth| char::from(b'A' + nth));
        let more: String = letters.map(|letter| format!("S_IS{letter}_S{letter}_E")).collect();
        let bomb = format!("{many}{more}");
        assert_eq!(demangled(&bomb), bomb);
    }
}
