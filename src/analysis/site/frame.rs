//! A frame of a stack, and its role.

use serde::Serialize;

use super::python;
use crate::snapshot::{Language, gradient_of};

/// What a frame means to the reader of the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Inside CUDA or culeak.
    Runtime,
    /// Inside the Python interpreter.
    Interpreter,
    /// Inside the allocator of a framework.
    Allocator,
    /// Inside PyTorch, XLA, CuPy …, or a CUDA library: shown only if the stack has no better frames.
    Framework,
    /// Code between the user's code and CUDA that requests memory for its callers: shown, but no site if the stack has a frame of
    /// another kind, and no caller of one.
    Wrapper,
    /// An operator of a backward pass, or the line of the forward pass that it belongs to: shown, but not a site if the stack has
    /// a better frame.
    Operator,
    /// Python code of a package or of Python itself: shown, but not a site if the stack has a line of the user.
    Library,
    User,
    /// The callers of `main` or of the thread's function.
    BelowMain,
}

/// One line of a stack: a code address, or a call that the compiler inlined there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Frame<'a> {
    pub function: Option<&'a str>,
    pub file: Option<&'a str>,
    pub line: Option<u32>,
    pub inlined: bool,
    #[serde(skip_serializing_if = "Language::is_native")]
    pub language: Language,
    /// Path of the module; empty if the address is in none.
    pub module: &'a str,
    /// Address in the module's file, or in the process if there is no module.
    pub address: u64,
    pub role: Role,
    /// It is the program's own code, and a wrapper for its name alone.
    #[serde(skip)]
    pub named_as_wrapper: bool,
}

impl<'a> Frame<'a> {
    /// File name of the module.
    pub fn module_name(&self) -> &'a str {
        file_name(self.module)
    }

    /// The function, or `module+0xoffset` if no symbol is known.
    pub fn name(&self) -> String {
        match self.function {
            Some(function) => function.to_owned(),
            None if self.module.is_empty() => format!("{:#x}", self.address),
            None => format!("{}+{:#x}", self.module_name(), self.address),
        }
    }

    /// File name and line: `train.cu:212`. `None` without debug information.
    pub fn short_place(&self) -> Option<String> {
        self.place_with(file_name)
    }

    /// Path and line.
    pub fn place(&self) -> Option<String> {
        self.place_with(|file| file)
    }

    fn place_with(&self, shorten: impl Fn(&'a str) -> &'a str) -> Option<String> {
        let file = shorten(self.file?);
        Some(
            self.line
                .map_or_else(|| file.to_owned(), |line| format!("{file}:{line}")),
        )
    }

    pub fn is_python(&self) -> bool {
        self.language == Language::Python
    }

    /// The library that a Python line outside the user's code belongs to: `torch`, `Python`.
    pub fn python_library(&self) -> Option<&'a str> {
        let is_of_library = self.is_python() && self.role == Role::Library;
        is_of_library.then(|| python::library(self.file.unwrap_or_default()))
    }

    /// Whether this is no frame but the line that computed what the stack computes the gradient of.
    pub fn is_gradient(&self) -> bool {
        self.is_python() && self.function.and_then(gradient_of).is_some()
    }

    pub(super) fn is_wrapper(&self) -> bool {
        self.role == Role::Wrapper
    }

    pub(super) fn is_own_wrapper(&self) -> bool {
        self.is_wrapper() && self.named_as_wrapper
    }

    pub(super) fn shown(&self) -> bool {
        matches!(self.role, Role::User | Role::Library | Role::Wrapper | Role::Operator)
    }

    /// The source file, or the module if no file is known, by a name that does not depend on where it was built or
    /// installed.
    pub fn source(&self) -> &'a str {
        match self.file {
            Some(file) if self.is_python() => python::name_in_package(file),
            Some(file) => file_name(file),
            None => self.module_name(),
        }
    }

    /// The module, or the file of a Python line, by a name that does not depend on where the program is installed.
    pub fn home(&self) -> &'a str {
        match self.file {
            Some(file) if self.is_python() => python::name_in_package(file),
            _ => self.module_name(),
        }
    }
}

/// The part of a path after the last slash.
pub fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
