//! The interpreter of a process, its version, and whether its structures are those of the table.
//!
//! The version number alone is not trusted. Sizes in the interpreter's type objects must be those of the table. From 3.13 on
//! the interpreter describes its structures: objects must be as in the table; for its own state, which patch releases may
//! change, the description is adopted. At last, known objects must be where the structures say.

use crate::Error;
use crate::copy::Image;
use crate::modules::{Module, Modules};
use crate::python::Python;
use crate::python::references::is_address;
use crate::python::types::{Kind, Types};
use culeak::cpython::{self, ABSENT, Offsets, State};

/// Why an interpreter cannot be used; completes "Python 3.14: …".
type Reason = String;

impl Python {
    /// `None` without Python in the process.
    ///
    /// # Errors
    /// The interpreter is not supported: an unknown version, a free-threaded 3.15, a debug build, or a failed check.
    pub fn find(copy: &Image, modules: &Modules) -> Result<Option<Python>, Error> {
        let unsupported = |module: &Module, reason: Reason| Error::Unsupported(format!("{}: {reason}", module.path));
        // An interpreter has another name if a program contains it; looking at every file takes longer.
        let is_likely = |module: &&Module| module.file_name().contains("python");
        let (likely, others): (Vec<_>, Vec<_>) = modules.all().iter().partition(is_likely);
        for module in likely.into_iter().chain(others) {
            let find = |name: &str| module.address_of(copy, name);
            if let Some(runtime) = find("_PyRuntime") {
                let mut python = examine(copy, module, runtime, &find).map_err(|reason| unsupported(module, reason))?;
                python.signal_handlers = python.find_handlers(copy, module);
                return Ok(Some(python));
            }
            if module.file_name().contains("python") && find("PyInterpreterState_Head").is_some() {
                return Err(unsupported(module, format!("a Python older than 3.7 {UNKNOWN}")));
            }
        }
        Ok(None)
    }
}

const UNKNOWN: &str =
    "is not supported (3.8 to 3.15 are, and free-threaded 3.13 and 3.14); what it holds cannot be searched for";
/// The first word of an interpreter's description, and where it says that the build is free-threaded.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
const FREE_THREADED: u64 = 16;

fn examine(copy: &Image, module: &Module, runtime: u64, find: &dyn Fn(&str) -> Option<u64>) -> Result<Python, Reason> {
    let exported = find("Py_Version").map(|address| copy.half(address));
    let version = exported.or_else(|| version_of(module.file_name()));
    if find("_Py_NegativeRefcount").is_some() {
        return Err("a debug build of Python keeps other structures and is not supported; run a release build".into());
    }
    if let Some(version) = version {
        return with_version(copy, runtime, version, find);
    }
    // Before 3.11, within a program of another name: the version whose structures fit.
    (8..=10)
        .find_map(|minor| with_version(copy, runtime, 3 << 24 | minor << 16, find).ok())
        .ok_or_else(|| "its version of Python cannot be determined".into())
}

/// `libpython3.10.so.1.0`, `python3.8`: the version without the last number.
fn version_of(file: &str) -> Option<u32> {
    let start = file.find("python")? + "python".len();
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let rest = &file[start..];
    let (major, rest) = rest.split_at(digits(rest));
    let rest = rest.strip_prefix('.')?;
    let minor = &rest[..digits(rest)];
    let (major, minor): (u8, u8) = (major.parse().ok()?, minor.parse().ok()?);
    Some(u32::from(major) << 24 | u32::from(minor) << 16)
}

fn with_version(
    copy: &Image,
    runtime: u64,
    version: u32,
    find: &dyn Fn(&str) -> Option<u64>,
) -> Result<Python, Reason> {
    let (major, minor) = (version >> 24, version >> 16 & 0xff);
    let name = format!("Python {major}.{minor}");
    let is_free_threaded = minor >= 13 && copy.word(runtime) == COOKIE && copy.word(runtime + FREE_THREADED) != 0;
    let (name, table) = match is_free_threaded {
        true => {
            let table = cpython::FREE_THREADED.iter().find(|table| table.minor() == minor);
            (format!("free-threaded {name}"), table)
        }
        false => (name, if major == 3 { cpython::of(minor).next() } else { None }),
    };
    let table = table.ok_or_else(|| format!("{name} {UNKNOWN}"))?;
    let (offsets, state) = described(copy, runtime, &name, table)?;
    let types = Types::new(minor, &offsets, find);
    let mut python = Python {
        version,
        version_text: format!("{major}.{minor}"),
        runtime,
        offsets,
        types: types.ok_or_else(|| format!("{name} does not export its types"))?,
        is_state_shifted: state == State::Shifted,
        code_type: find("PyCode_Type").ok_or_else(|| format!("{name} does not export its types"))?,
        plain_lookup: 0,
        signal_handlers: None,
    };
    sizes(copy, &python.offsets, minor, find)
        .and_then(|()| python.known_objects(copy, find))
        .map_err(|what| {
            format!("{name} has {what} elsewhere than other builds of this version, or its end has cleared its modules, so its objects cannot be read")
        })?;
    Ok(python)
}

/// Compares the interpreter's description of its structures with the table, and adopts that of its own state.
fn described(copy: &Image, runtime: u64, name: &str, table: &Offsets) -> Result<(Offsets, State), Reason> {
    if table.described_runtime_interpreters == ABSENT {
        return Ok((*table, State::Known));
    }
    if copy.word(runtime) != COOKIE {
        return Err(format!(
            "{name} does not describe its structures as other builds of this version do"
        ));
    }
    let mut own = *table;
    for (place, expected, what) in table.described() {
        let found = copy.word(runtime + place);
        if found == expected {
            continue;
        }
        let is_state = cpython::STATE.iter().any(|state| what.starts_with(state));
        if !is_state || !found.is_multiple_of(8) || found >= LARGEST_STATE {
            let what = what.replace('_', " ");
            return Err(format!(
                "{name} describes its structures differently than other builds of this version ({what}: {found}, \
                 expected {expected}), so its objects cannot be read"
            ));
        }
        own.adopt(place, found);
    }
    Ok(own.with_undescribed())
}

/// No part of the interpreter's state is larger.
const LARGEST_STATE: u64 = 1 << 24;

/// Compares sizes in type objects with the table.
fn sizes(copy: &Image, o: &Offsets, minor: u32, find: &dyn Fn(&str) -> Option<u64>) -> Result<(), &'static str> {
    let frame = match minor {
        ..=10 => o.frame_object_locals + 8,
        _ => o.frame_object_data + o.frame_locals,
    };
    let expected = [
        ("PyType_Type", o.type_bytes, "types"),
        ("PyDict_Type", o.dict_bytes, "dictionaries"),
        ("PySet_Type", o.set_bytes, "sets"),
        ("PyTuple_Type", o.tuple_items, "tuples"),
        ("PyModule_Type", o.module_bytes, "modules"),
        ("PyFrame_Type", frame, "frames"),
        ("_PyWeakref_RefType", o.weakref_bytes, "weak references"),
    ];
    for (name, bytes, what) in expected {
        let found = find(name).map(|address| copy.word(address + o.type_basic_bytes));
        if found != Some(bytes) {
            return Err(what);
        }
    }
    if minor >= 11 && find("PyCode_Type").map(|code| copy.word(code + o.type_basic_bytes)) != Some(o.code_instructions)
    {
        return Err("code objects");
    }
    Ok(())
}

impl Python {
    /// Whether known objects are where the structures say.
    fn known_objects(&mut self, copy: &Image, find: &dyn Fn(&str) -> Option<u64>) -> Result<(), &'static str> {
        let o = self.offsets;
        let type_type = find("PyType_Type").ok_or("types")?;
        if copy.word(type_type + o.head() - 8) != type_type {
            return Err("types");
        }
        // The dictionary of a class has only texts as keys, so it has the look-up function of such dictionaries.
        let dict = copy.word(self.code_type + o.type_dict);
        if self.minor() < 11 && is_address(dict) {
            self.plain_lookup = copy.word(copy.word(dict + o.dict_keys).wrapping_add(16));
        }
        let interpreters = self.interpreters(copy);
        let main = *interpreters.last().ok_or("interpreters")?;
        let modules = copy.word(main + o.interpreter_modules);
        let kind = |python: &mut Python, address| python.object(copy, address).map(|of| python.types[of].kind);
        if kind(self, modules) != Some(Kind::Dict) {
            return Err("sys.modules");
        }
        let sys = self.value_of(copy, modules, "sys").ok_or("sys")?;
        let sysdict = copy.word(main + o.interpreter_sysdict);
        if kind(self, sys) != Some(Kind::Module) || copy.word(sys + o.module_dict) != sysdict {
            return Err("sys");
        }
        if self.value_of(copy, sysdict, "gettotalrefcount").is_some() {
            return Err("counts (a debug build)");
        }
        let version = self.value_of(copy, sysdict, "version").ok_or("sys.version")?;
        let version = self.text(copy, version, 200).ok_or("texts")?;
        let number = version.split_whitespace().next().unwrap_or_default();
        let expected = format!("3.{}.", self.minor());
        if !number.starts_with(&expected) {
            return Err("sys.version");
        }
        let free_threaded = if o.is_free_threaded() { "t" } else { "" };
        self.version_text = format!("{}{free_threaded}", number.trim_end_matches('+'));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_the_names_of_files() {
        assert_eq!(version_of("libpython3.10.so.1.0"), Some(0x030a_0000));
        assert_eq!(version_of("python3.8"), Some(0x0308_0000));
        assert_eq!(version_of("libpython3.7m.so.1.0"), Some(0x0307_0000));
        for name in ["python3", "python", "libpython.so", "python3.x", "python3.999"] {
            assert_eq!(version_of(name), None, "{name}");
        }
    }
}
