//! Function names without their decoration: `cudaError cudaMalloc<float>(float**, unsigned long)` is `cudaMalloc`.
//!
//! Debug information names a C++ function with return type, template arguments and parameters. Classifying a frame and
//! printing it on one line need the bare name. The parser counts brackets; a full C++ grammar would add nothing here.
//! Python names stay unchanged. Deliberately absent: shortening of the name itself, which the printer does.

use std::borrow::Cow;

use crate::snapshot::gradient_of;

/// The name without return type, template arguments, parameters and trailing qualifiers.
///
/// Rust's `<T as Trait>::method` keeps its leading bracket, which is part of the name.
pub fn plain(function: &str) -> Cow<'_, str> {
    if !function.contains(['<', '(', ' ']) || gradient_of(function).is_some() {
        return Cow::Borrowed(function);
    }
    let protected = function.starts_with('<');
    let mut out = String::with_capacity(function.len());
    let mut angle = 0usize;
    let mut rest = function;
    while let Some(c) = rest.chars().next() {
        let step = c.len_utf8();
        if angle == 0 {
            if let Some(len) = operator_len(rest, &out) {
                out.push_str(&rest[..len]);
                rest = &rest[len..];
                // `operator<< <char>`: the space separates two brackets and does not end a type.
                rest = rest
                    .strip_prefix(' ')
                    .filter(|after| after.starts_with('<'))
                    .unwrap_or(rest);
                continue;
            }
            if let Some(len) = verbatim_len(rest) {
                out.push_str(&rest[..len]);
                rest = &rest[len..];
                continue;
            }
        }
        match c {
            '<' if protected && out.is_empty() => {
                let len = matching_angle(rest);
                out.push_str(&rest[..len]);
                rest = &rest[len..];
                continue;
            }
            // Python's `outer.<locals>.<lambda>`: C++ has no dot before template arguments. And a lambda as GCC names it.
            '<' if angle == 0 && (out.ends_with('.') || rest.starts_with("<lambda")) => {
                let len = matching_angle(rest);
                out.push_str(&rest[..len]);
                rest = &rest[len..];
                continue;
            }
            '<' => {
                // Rust's `alloc::<f64>`, in the newer mangling.
                if angle == 0 && out.ends_with("::") {
                    out.truncate(out.len() - "::".len());
                }
                angle += 1;
            }
            '>' if !rest_is_arrow(function, rest) => angle = angle.saturating_sub(1),
            // `decltype(auto)`, `decltype (n + 1)`: a return type.
            '(' if angle == 0 && (out.is_empty() || out == "decltype") => {
                rest = behind_brackets(rest).unwrap_or_default();
                continue;
            }
            // Parameters end the name, unless they belong to a function that encloses another one.
            '(' if angle == 0 => match behind_parameters(rest) {
                Some(inner) => {
                    out.push_str("::");
                    rest = inner;
                    continue;
                }
                None => break,
            },
            // The text so far was a return type or a storage class.
            ' ' if angle == 0 && !protected => out.clear(),
            _ if angle == 0 => out.push(c),
            _ => {}
        }
        rest = &rest[step..];
    }
    if out.is_empty() {
        Cow::Borrowed(function)
    } else {
        Cow::Owned(out)
    }
}

/// The name without the `::h0123456789abcdef` that Rust's legacy mangling appends, which differs between builds.
pub fn without_hash(function: &str) -> &str {
    match function.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => name,
        _ => function,
    }
}

/// `operator()`, `operator<<`, `operator new[]` and so on at the start of `rest`.
fn operator_len(rest: &str, before: &str) -> Option<usize> {
    let after = rest.strip_prefix("operator")?;
    if before.ends_with(|c: char| c.is_alphanumeric() || c == '_') {
        return None;
    }
    for symbol in [
        "()", "[]", "<<=", ">>=", "<=>", "->*", "->", "<<", ">>", "<=", ">=", "<", ">",
    ] {
        if after.starts_with(symbol) {
            return Some("operator".len() + symbol.len());
        }
    }
    let words = after.strip_prefix(' ')?;
    let end = words.find(['(', '<']).unwrap_or(words.len());
    Some("operator ".len() + end)
}

/// The text after `(int)`, if it begins like that.
fn behind_brackets(rest: &str) -> Option<&str> {
    let mut depth = 0usize;
    let end = rest.char_indices().find_map(|(at, c)| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at + 1)
    })?;
    Some(&rest[end..])
}

/// The text after `(int) const::`, if it begins like that.
fn behind_parameters(rest: &str) -> Option<&str> {
    let mut behind = behind_brackets(rest)?;
    while let Some(after) = [" const", " volatile", " noexcept", " &&", " &", "&&", "&"]
        .iter()
        .find_map(|word| behind.strip_prefix(word))
    {
        behind = after;
    }
    behind.strip_prefix("::")
}

/// Length of the bracketed text that `rest` begins with, if it is part of a name.
fn verbatim_len(rest: &str) -> Option<usize> {
    ["(anonymous namespace)", "{anonymous}"]
        .iter()
        .find(|text| rest.starts_with(**text))
        .map(|text| text.len())
        .or_else(|| {
            // Lambdas: `{lambda(int)#1}`; Rust closures: `{{closure}}`.
            if !rest.starts_with('{') {
                return None;
            }
            let mut depth = 0usize;
            for (at, c) in rest.char_indices() {
                match c {
                    '{' => depth += 1,
                    '}' if depth == 1 => return Some(at + 1),
                    '}' => depth -= 1,
                    _ => {}
                }
            }
            None
        })
}

fn matching_angle(text: &str) -> usize {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if rest_is_arrow(text, &text[at..]) => {}
            '>' if depth == 1 => return at + 1,
            '>' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// Whether the `>` that `rest` begins with belongs to `->`.
fn rest_is_arrow(whole: &str, rest: &str) -> bool {
    whole[..whole.len() - rest.len()].ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decoration_is_removed_from_names() {
        for (decorated, bare) in [
            ("main", "main"),
            ("cudaError cudaMalloc<float>(float**, unsigned long)", "cudaMalloc"),
            ("Trainer::step(float*, int) const", "Trainer::step"),
            (
                "void thrust::detail::fill<int, (thrust::tag)1>(int)",
                "thrust::detail::fill",
            ),
            ("(anonymous namespace)::helper(int)", "(anonymous namespace)::helper"),
            ("Pool::operator()(int)", "Pool::operator()"),
            ("std::ostream& operator<< <char>(std::ostream&, char)", "operator<<"),
            ("operator new[](unsigned long)", "operator new[]"),
            (
                "run()::{lambda(int)#1}::operator()(int) const",
                "run::{lambda(int)#1}::operator()",
            ),
            (
                "void Cache<int>::fill(void (*)(int)) const::{lambda()#2}::operator()() const",
                "Cache::fill::{lambda()#2}::operator()",
            ),
            ("alloc::vec::Vec<T,A>::push", "alloc::vec::Vec::push"),
            ("r::pool::gpu_alloc::<f64>", "r::pool::gpu_alloc"),
            (
                "r::pool::gpu_alloc::<f64>::{closure#0}",
                "r::pool::gpu_alloc::{closure#0}",
            ),
            ("<app::Tensor>::map::<u8>", "<app::Tensor>::map"),
            ("decltype(auto) gpu_alloc<unsigned long>(unsigned long)", "gpu_alloc"),
            (
                "decltype ({parm#1}+(1)) pool::trailing<unsigned long>(unsigned long)",
                "pool::trailing",
            ),
            ("main()::<lambda(int)>", "main::<lambda(int)>"),
            (
                "<app::Tensor as core::ops::Drop>::drop",
                "<app::Tensor as core::ops::Drop>::drop",
            ),
            ("app::main::{{closure}}", "app::main::{{closure}}"),
            ("", ""),
            ("<<<", "<<<"),
        ] {
            assert_eq!(plain(decorated), bare, "{decorated}");
        }
    }

    #[test]
    fn nested_python_names_stay_unchanged() {
        for name in [
            "outer.<locals>.<lambda>",
            "Net.build.<locals>.wrap.<locals>.forward",
            "load.<locals>.<listcomp>",
            "<lambda>",
            "<module>",
            "<eval_with_key>.0",
        ] {
            assert_eq!(plain(name), name);
        }
    }

    #[test]
    fn rust_hashes_are_removed() {
        assert_eq!(without_hash("app::main::h0123456789abcdef"), "app::main");
        assert_eq!(without_hash("app::main::hello"), "app::main::hello");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z<>(){}:\\-& operatr]{0,60}|\\PC*") {
            let _ = plain(&text);
            let _ = without_hash(&text);
        }
    }
}
