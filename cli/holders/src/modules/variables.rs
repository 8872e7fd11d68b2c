//! The variables in the symbol table of a file.
//!
//! Only the table is read, and names when they are needed: the symbols of a large library take gigabytes.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use object::LittleEndian;
use object::elf::{FileHeader64, SHT_DYNSYM, SHT_SYMTAB, STB_LOCAL, STT_FUNC, STT_OBJECT, STT_TLS};
use object::read::ReadCache;
use object::read::elf::{FileHeader, SectionHeader, Sym};

/// Larger tables of symbols are not read; those of the largest libraries have 100 MiB.
const LARGEST: u64 = 1 << 30;

/// The longest name, as mangled.
const NAME: usize = 4096;

/// Variables by address.
#[derive(Default)]
pub struct Variables {
    all: Vec<Variable>,
    /// By the offset in the memory that the file has for each thread.
    thread_local: Vec<Variable>,
    file: Option<File>,
    strings: u64,
}

#[derive(Debug, Clone, Copy)]
struct Variable {
    start: u64,
    bytes: u64,
    /// Of the name, in the table of strings.
    name: u32,
    is_local: bool,
}

impl Variables {
    /// Those of the full symbol table if the file has one, else those it exports. Empty if the file is damaged.
    pub fn read(file: File) -> Variables {
        Variables::parse(&file, SHT_SYMTAB)
            .or_else(|| Variables::parse(&file, SHT_DYNSYM))
            .map(|(all, thread_local, strings)| Variables {
                all,
                thread_local,
                strings,
                file: Some(file),
            })
            .unwrap_or_default()
    }

    /// Global and thread-local variables, and where their names are.
    fn parse(file: &File, table: object::elf::SectionType) -> Option<(Vec<Variable>, Vec<Variable>, u64)> {
        let endian = LittleEndian;
        let cache = ReadCache::new(file);
        let header = FileHeader64::<LittleEndian>::parse(&cache).ok()?;
        let sections = header.sections(endian, &cache).ok()?;
        let section = sections.iter().find(|section| section.sh_type(endian) == table)?;
        if section.sh_size(endian) > LARGEST {
            return None;
        }
        let symbols = sections.symbols(endian, &cache, table).ok()?;
        let strings = sections.section(symbols.string_section()).ok()?.sh_offset(endian);
        let (mut all, mut thread_local) = (Vec::new(), Vec::new());
        for symbol in symbols.iter().filter(|symbol| !symbol.is_undefined(endian)) {
            let variables = match symbol.st_type() {
                STT_OBJECT => &mut all,
                STT_TLS => &mut thread_local,
                _ => continue,
            };
            if symbol.st_size(endian) > 0 {
                variables.push(Variable {
                    start: symbol.st_value(endian),
                    bytes: symbol.st_size(endian),
                    name: symbol.st_name(endian),
                    is_local: symbol.st_bind() == STB_LOCAL,
                });
            }
        }
        for variables in [&mut all, &mut thread_local] {
            // Of several names for one address, an exported one is last, and so is found first.
            variables.sort_by_key(|variable| (variable.start, !variable.is_local, std::cmp::Reverse(variable.name)));
        }
        (!symbols.is_empty()).then_some((all, thread_local, strings))
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The mangled name of the variable that contains this address, and its range.
    pub fn at(&self, address: u64) -> Option<(String, Range<u64>)> {
        self.named(&self.all, address)
    }

    /// As above, of a thread-local variable; by its offset in the memory that the file has for each thread.
    pub fn thread_local(&self, offset: u64) -> Option<(String, Range<u64>)> {
        self.named(&self.thread_local, offset)
    }

    /// The offsets of the thread-local variables whose names begin with this.
    pub fn thread_locals_of<'v>(&'v self, prefix: &'v str) -> impl Iterator<Item = Range<u64>> + 'v {
        let named = |variable: &Variable| self.thread_local(variable.start);
        let of_prefix = move |(name, range): (String, Range<u64>)| name.starts_with(prefix).then_some(range);
        self.thread_local.iter().filter_map(named).filter_map(of_prefix)
    }

    /// The mangled name of the function that contains this address. The table is read again, since few are asked for.
    pub fn function_at(&self, address: u64) -> Option<String> {
        let endian = LittleEndian;
        let cache = ReadCache::new(self.file.as_ref()?);
        let header = FileHeader64::<LittleEndian>::parse(&cache).ok()?;
        let symbols = header
            .sections(endian, &cache)
            .ok()?
            .symbols(endian, &cache, SHT_SYMTAB)
            .ok()?;
        let contains = |start: u64, bytes: u64| start <= address && address - start < bytes;
        let function = symbols
            .iter()
            .find(|symbol| symbol.st_type() == STT_FUNC && contains(symbol.st_value(endian), symbol.st_size(endian)))?;
        let name = symbols.symbol_name(endian, function).ok()?;
        std::str::from_utf8(name).ok().map(str::to_owned)
    }

    fn named(&self, variables: &[Variable], address: u64) -> Option<(String, Range<u64>)> {
        let end = variables.partition_point(|variable| variable.start <= address);
        let contains = |variable: &&Variable| address - variable.start < variable.bytes;
        // A variable may lie inside another one.
        let variable = variables[..end].iter().rev().take(16).find(contains)?;
        let mut name = vec![0; NAME];
        let place = self.strings.checked_add(u64::from(variable.name))?;
        let read = self.file.as_ref()?.read_at(&mut name, place).ok()?;
        let length = name[..read].iter().position(|&byte| byte == 0)?;
        let name = std::str::from_utf8(&name[..length]).ok()?;
        let range = variable.start..variable.start.saturating_add(variable.bytes);
        (!name.is_empty()).then(|| (name.to_owned(), range))
    }
}
