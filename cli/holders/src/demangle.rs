//! Demangles names of Rust and C++, with a limit on the length of the result.
//!
//! A mangled name can refer back to its own parts, so a few hundred bytes can expand to gigabytes. Such a name stays mangled.

use crate::starts_with_one;
use std::fmt::{self, Write};

/// The maximum length of a demangled name; those of the largest templates have tens of thousands of characters.
const LENGTH: usize = 1 << 16;

/// Prefixes of mangled names. The parsers accept names without them, so a C function `f` would become the type `float`.
const PREFIXES: [&str; 3] = ["_Z", "__Z", "_R"];

/// The demangled name, or the name itself if it is not mangled.
pub fn demangled(name: &str) -> String {
    if !starts_with_one(name, &PREFIXES) {
        return name.to_owned();
    }
    let rust = || {
        // The parser takes any last part of `h` and hexadecimal digits for a hash: `app::head` would lose its name.
        if !name.starts_with("_R") && !has_hash(name) {
            return None;
        }
        let name = rustc_demangle::try_demangle(name).ok()?;
        // The alternate form omits the hash.
        written(LENGTH, |out| write!(out, "{name:#}"))
    };
    let cpp = || {
        let name = cpp_demangle::Symbol::new(name).ok()?;
        written(LENGTH, |out| name.structured_demangle(out, &Default::default()))
    };
    rust().or_else(cpp).unwrap_or_else(|| name.to_owned())
}

/// Whether the last part of a name is a hash as Rust appends it to C++'s form of names: `17h` and 16 digits.
fn has_hash(name: &str) -> bool {
    let mut hashes = name.match_indices("17h").map(|(place, _)| &name[place + 3..]);
    let is_hash = |rest: &str| {
        let digits = rest.bytes().take(16).filter(u8::is_ascii_hexdigit).count();
        digits == 16 && rest[16..].starts_with('E')
    };
    hashes.any(is_hash)
}

/// The name of a variable. Compilers append numbers to the names of static locals of C: `cache.0`.
pub fn variable(name: &str) -> String {
    let plain = name.trim_end_matches(|letter: char| letter == '.' || letter.is_ascii_digit());
    let name = match name[plain.len()..].starts_with('.') && !plain.is_empty() {
        true => demangled(plain),
        false => demangled(name),
    };
    without_tags(name)
}

/// Compilers mark variables whose type depends on the library's version: `list[abi:cxx11]`.
fn without_tags(mut name: String) -> String {
    while let Some(start) = name.find("[abi:") {
        let Some(length) = name[start..].find(']') else { break };
        name.replace_range(start..start + length + 1, "");
    }
    name
}

/// What `write` writes; `None` if it is longer than the limit, in bytes.
pub fn written(limit: usize, write: impl FnOnce(&mut Limited) -> fmt::Result) -> Option<String> {
    let text = String::new();
    let mut out = Limited { text, limit };
    write(&mut out).ok()?;
    Some(out.text)
}

/// A string with a maximum length.
pub struct Limited {
    text: String,
    limit: usize,
}

impl Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.limit {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_languages_are_demangled_and_others_stay() {
        assert_eq!(demangled("_ZN7Trainer4stepEi"), "Trainer::step(int)");
        assert_eq!(demangled("_ZN3app4grow17h0123456789abcdefE"), "app::grow");
        assert_eq!(demangled("_ZN3app4headE"), "app::head");
        assert_eq!(demangled("_RNvC3app4grow"), "app::grow");
        assert_eq!(demangled("cuMemAlloc_v2"), "cuMemAlloc_v2");
    }

    #[test]
    fn numbers_of_static_locals_are_left_out() {
        assert_eq!(variable("cache.0"), "cache");
        assert_eq!(variable("table2"), "table2");
        assert_eq!(variable("_ZZ1fvE5cache"), "f()::cache");
        assert_eq!(variable("_Z4listB5cxx11"), "list");
        assert_eq!(variable(".1"), ".1");
    }

    #[test]
    fn short_names_of_c_functions_are_not_types_of_cpp() {
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
    fn a_name_that_expands_exponentially_stays_mangled() {
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
