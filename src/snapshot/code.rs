//! Where memory was requested: modules, code addresses with their symbols, and call stacks.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Module {
    pub path: String,
    /// Lower-case hex; empty if the file has none.
    pub build_id: String,
    /// Load bias: runtime address minus the address in the ELF file.
    pub bias: u64,
    /// Lowest and one past the highest runtime address.
    pub start: u64,
    pub end: u64,
    pub first_seen_ns: u64,
    pub unloaded_ns: Option<u64>,
    /// Names were looked up in its file, which has no debug information and no debug file: its frames have no lines.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bare: bool,
}

/// One code address. `symbols` is empty until the CLI resolves it; several entries are inlined calls, innermost first.
/// A Python frame needs no resolving: it has no module and exactly one symbol, with file and line.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Location {
    /// Index into `modules`; null for Python.
    pub module: Option<usize>,
    /// The return address as an address in the module's ELF file (runtime address minus bias); without a module, the
    /// runtime address. For a Python frame, the offset of the instruction in its function.
    pub address: u64,
    /// Empty until symbolized. Several: inlined calls, innermost first.
    #[serde(default)]
    pub symbols: Vec<Symbol>,
    #[serde(default, skip_serializing_if = "Language::is_native")]
    pub language: Language,
}

impl Location {
    /// Whether this is no frame but the Python lines, innermost first, that computed what the stack computes the gradient of.
    pub fn is_gradient(&self) -> bool {
        let of_gradient = |symbol: &Symbol| gradient_of(&symbol.function).is_some();
        self.language == Language::Python && self.symbols.first().is_some_and(of_gradient)
    }
}

/// What executes a frame's code: the processor or an interpreter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Language {
    #[default]
    Native,
    Python,
}

impl Language {
    pub fn is_native(&self) -> bool {
        *self == Language::Native
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Symbol {
    /// Demangled.
    pub function: String,
    pub file: Option<String>,
    pub line: Option<u32>,
    /// True for a call the compiler inlined into the next entry.
    pub inlined: bool,
}

/// The start of the functions of a location that is no frame: of the operator's own line, and of the next one that is known.
pub const GRADIENT_OF: &str = "gradient of ";
pub const GRADIENT_NEAR: &str = "gradient near ";

/// The function that a gradient is of or near; `None`: this is no name of a gradient.
pub fn gradient_of(function: &str) -> Option<&str> {
    let of = function.strip_prefix(GRADIENT_OF);
    of.or_else(|| function.strip_prefix(GRADIENT_NEAR))
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stack {
    /// Indices into `locations`, innermost (nearest the CUDA call) first.
    pub frames: Vec<usize>,
    /// The outer frames are missing: the depth limit was reached, or unwind information is missing.
    pub truncated: bool,
}
