//! The environment variables `CULEAK_*`: one row each.
//!
//! The preload library and the command line read them through this table, `culeak help environment` and the manual pages
//! print it, and the table in `docs/configuration.md` is compared with it. An invalid value is an error of `culeak run`; in a
//! program that runs under `LD_PRELOAD` alone it is reported on stderr and ignored. Nothing here needs a heap, since the
//! library uses it too. Deliberately absent: the effects of the variables. Most take effect when the recording is created
//! (`shim/src/recorder/create.rs`).

use std::ffi::CStr;

use crate::quantities;

/// The valid values of a variable. An empty value is the same as an unset variable, except for [`Values::Text`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    Text,
    /// `1`, `true`, `yes` and `on`, or `0`, `false`, `no` and `off`.
    Switch,
    /// A switch, or this word, which enables more.
    SwitchOr(&'static str),
    /// This word alone.
    Word(&'static str),
    /// One of these words.
    OneOf {
        words: &'static [&'static str],
        allowed: &'static str,
    },
    Number {
        least: u32,
        most: u32,
        allowed: &'static str,
    },
    /// As [`quantities::size`] parses it.
    Size,
    /// As [`quantities::time`] parses it.
    Time,
}

/// The parsed value of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    Text,
    Switch(bool),
    /// The word of [`Values::SwitchOr`] or [`Values::Word`].
    Word,
    /// The index of the word in [`Values::OneOf`].
    OneOf(usize),
    Number(u32),
    Bytes(u64),
    Nanoseconds(u64),
}

impl Values {
    /// `None` if the text is not a valid value.
    pub fn read(self, text: &[u8]) -> Option<Value> {
        let text = match self {
            Values::Text => return Some(Value::Text),
            _ => std::str::from_utf8(text).ok()?,
        };
        match self {
            Values::Text => Some(Value::Text),
            Values::Switch => switch(text).map(Value::Switch),
            Values::SwitchOr(word) | Values::Word(word) if text == word => Some(Value::Word),
            Values::SwitchOr(_) => switch(text).map(Value::Switch),
            Values::Word(_) => None,
            Values::OneOf { words, .. } => words.iter().position(|word| *word == text).map(Value::OneOf),
            Values::Number { least, most, .. } => {
                let number = text.parse().ok()?;
                (least..=most).contains(&number).then_some(Value::Number(number))
            }
            Values::Size => quantities::size(text).ok().map(Value::Bytes),
            Values::Time => quantities::time(text).ok().map(Value::Nanoseconds),
        }
    }

    /// The valid values in words, for messages; to be concatenated.
    pub fn allowed(self) -> [&'static str; 2] {
        match self {
            Values::Text => ["any text", ""],
            Values::Switch => ["1 or 0", ""],
            Values::SwitchOr(word) => ["1, 0 or ", word],
            Values::Word(word) => [word, ""],
            Values::OneOf { allowed, .. } => [allowed, ""],
            Values::Number { allowed, .. } => [allowed, ""],
            Values::Size => [quantities::SIZE, ""],
            Values::Time => [quantities::TIME, ""],
        }
    }
}

fn switch(text: &str) -> Option<bool> {
    let is = |words: [&str; 4]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    match () {
        () if is(["1", "true", "yes", "on"]) => Some(true),
        () if is(["0", "false", "no", "off"]) => Some(false),
        () => None,
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct Variable {
    pub name: &'static CStr,
    pub values: Values,
    /// In Markdown.
    pub meaning: &'static str,
    /// In Markdown; empty if an unset variable has no effect.
    pub default: &'static str,
}

impl Variable {
    /// The name as text.
    pub fn name(&self) -> &'static str {
        self.name.to_str().unwrap_or_default()
    }
}

macro_rules! number {
    ($least:literal to $most:literal) => {
        Values::Number {
            least: $least,
            most: $most,
            allowed: concat!("a whole number from ", $least, " to ", $most),
        }
    };
}

macro_rules! variables {
    ($($id:ident = $name:literal, $values:expr, $default:literal, $meaning:literal;)*) => {
        $(pub const $id: &Variable =
            &Variable { name: $name, values: $values, meaning: $meaning, default: $default };)*
        /// In the order of the manual.
        pub const ALL: &[&Variable] = &[$($id),*];
    };
}

variables! {
    OUTPUT = c"CULEAK_OUTPUT", Values::Text, "`%e.%h.%p.culeak` in the current folder",
        "file, or a folder if it ends in `/` or is one; `%h` host, `%p` pid, `%e` program, `%r` rank, `%%` percent sign";
    SPOOL = c"CULEAK_SPOOL", Values::Text, "`$TMPDIR`, `/tmp` or `/dev/shm`",
        "folder for recordings of running processes if `CULEAK_OUTPUT` is on a network, FUSE or copy-on-write file system, see `docs/limits.md`";
    DEPTH = c"CULEAK_DEPTH", number!(1 to 256), "128", "frames kept per stack, 1 to 256";
    STACKS = c"CULEAK_STACKS", Values::OneOf { words: &["both", "python", "native"], allowed: "both, python or native" }, "both",
        "`python`: only Python frames for tensors and other blocks of frameworks, which costs less; `native`: no Python frames; `both`";
    SAMPLE = c"CULEAK_SAMPLE", Values::Size, "",
        "size: take a stack once every so many bytes on average (`512KiB`); `0`: for each block; see `docs/sampling.md`";
    STACK_RATE = c"CULEAK_STACK_RATE", number!(0 to 1000000), "1000",
        "with `CULEAK_SAMPLE`: about the most stacks a second in each thread; a thread above this limit uses a larger size; `0`: no limit";
    SAMPLE_SEED = c"CULEAK_SAMPLE_SEED", number!(0 to 4294967295), "differs",
        "with `CULEAK_SAMPLE` and a rate of 0: a program with one thread chooses the same blocks in each run";
    DISABLE = c"CULEAK_DISABLE", Values::Switch, "", "`1`: record nothing";
    ONLY = c"CULEAK_ONLY", Values::Text, "all",
        "record only programs whose file name matches this pattern (`*` and `?`)";
    PARENT = c"CULEAK_PARENT", number!(0 to 4194304), "all", "record only the process whose parent has this pid";
    RUN = c"CULEAK_RUN", Values::Text, "", "set by `culeak run`: the file in which the library records facts about the run";
    UNWINDER = c"CULEAK_UNWINDER", Values::Word("libgcc"), "built-in",
        "`libgcc`: unwind stacks with libgcc, which is portable and slow";
    JAX_BUFFERS = c"CULEAK_JAX_BUFFERS", Values::SwitchOr("addresses"), "",
        "`1`: record XLA's buffers; `addresses`: also their addresses";
    ADAPTERS = c"CULEAK_ADAPTERS", Values::Text, "",
        "read by the Python package: adapters to switch on (`cupy,vllm`; `1`: all), see `culeak help adapters`";
    OOM_SNAPSHOTS = c"CULEAK_OOM_SNAPSHOTS", number!(0 to 64), "3",
        "number of automatic snapshots when requests fail for lack of memory, 64 at most";
    SNAPSHOT_AT_PEAK = c"CULEAK_SNAPSHOT_AT_PEAK", Values::Size, "",
        "size: take a snapshot at the peak, and replace it when the peak rises by this much";
    SNAPSHOT_AT_MARK = c"CULEAK_SNAPSHOT_AT_MARK", Values::Switch, "", "`1`: take a snapshot at each `culeak_mark`";
    SNAPSHOT_EVERY = c"CULEAK_SNAPSHOT_EVERY", Values::Time, "",
        "time: take a snapshot after each such interval, at the next allocation";
    TIMELINE = c"CULEAK_TIMELINE", Values::Size, "",
        "size: log every allocation and free, the newest in at most this many bytes (8MiB to 4GiB)";
    INTERVALS = c"CULEAK_INTERVALS", Values::Switch, "",
        "`1`: measure what each interval allocates (`culeak_interval_begin`, pytest)";
    WHY = c"CULEAK_WHY", Values::Switch, "",
        "`1`: let any process of the same user read the memory of this process (`culeak why PID`), even if the kernel permits only parents to read it; replaces an earlier `PR_SET_PTRACER` of the program";
    QUIET = c"CULEAK_QUIET", Values::Switch, "", "`1`: print nothing on stderr at exit";
    CONFIG = c"CULEAK_CONFIG", Values::Text, "`culeak.toml` in the current folder or a parent",
        "read by the CLI: the config file (`docs/configuration.md`)";
    PAGER = c"CULEAK_PAGER", Values::Text, "`$PAGER`, else `less -FRX`",
        "read by the CLI: the pager for text that is longer than the terminal; empty: no pager";
    SHIM = c"CULEAK_SHIM", Values::Text, "", "read by the CLI: preload this library instead of the built-in one";
    CACHE_DIR = c"CULEAK_CACHE_DIR", Values::Text, "`culeak` in `$XDG_CACHE_HOME` or `~/.cache`",
        "read by the CLI: the folder that caches function names, 256 MiB at most; empty: no cache (for one command: \
         `--no-symbol-cache`)";
}

/// Frames kept per stack by default.
pub const DEPTH_DEFAULT: usize = match usize::from_str_radix(DEPTH.default, 10) {
    Ok(depth) => depth,
    Err(_) => panic!("the default of CULEAK_DEPTH is a number"),
};

const PREFIX: &[u8] = b"CULEAK_";

/// Prefixes of names that belong to the build, the tests and the Python package.
const OTHERS: [&str; 13] = [
    "CULEAK_AUDIT_",
    "CULEAK_BIN",
    "CULEAK_BLESS",
    "CULEAK_CUDART",
    "CULEAK_FAKE_",
    "CULEAK_HOLD_",
    "CULEAK_PREBUILT_",
    "CULEAK_PYTEST",
    "CULEAK_PYTHON",
    "CULEAK_SAMPLES",
    "CULEAK_SCREENSHOTS",
    "CULEAK_SHIM_",
    "CULEAK_TEST_",
];

/// An invalid environment variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake<'e> {
    Value {
        variable: &'static Variable,
        value: &'e [u8],
    },
    /// No variable has this name; `similar` is the most similar one.
    Name {
        name: &'e [u8],
        similar: Option<&'static Variable>,
    },
}

/// `None` if the variable is valid, or not one of culeak's.
pub fn mistake<'e>(name: &'e [u8], value: &'e [u8]) -> Option<Mistake<'e>> {
    match ALL.iter().find(|variable| variable.name.to_bytes() == name) {
        Some(variable) if value.is_empty() || variable.values.read(value).is_some() => None,
        Some(variable) => Some(Mistake::Value { variable, value }),
        None if !name.starts_with(PREFIX) => None,
        None if OTHERS.iter().any(|other| name.starts_with(other.as_bytes())) => None,
        None => Some(Mistake::Name {
            name,
            similar: similar(name),
        }),
    }
}

/// The variable whose name differs in the fewest characters, three at most.
fn similar(name: &[u8]) -> Option<&'static Variable> {
    let distance = |variable: &&&'static Variable| distance(variable.name.to_bytes(), name);
    let nearest = ALL.iter().min_by_key(distance)?;
    (distance(&nearest) <= 3).then_some(*nearest)
}

/// The number of insertions, deletions and replacements between two names; `usize::MAX` if `to` is very long.
fn distance(from: &[u8], to: &[u8]) -> usize {
    const LONGEST: usize = 40;
    if to.len() > LONGEST {
        return usize::MAX;
    }
    let mut row = [0; LONGEST + 1];
    for (column, cell) in row.iter_mut().enumerate() {
        *cell = column;
    }
    for (line, a) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_right(name: &str, value: &str) -> bool {
        mistake(name.as_bytes(), value.as_bytes()).is_none()
    }

    #[test]
    fn the_page_has_the_same_table() {
        let page = include_str!("../docs/configuration.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `CULEAK_")).collect();
        let row = |variable: &&Variable| {
            let default = match variable.default {
                "" => " ".to_owned(),
                default => format!(" {default} "),
            };
            format!("| `{}` | {} |{default}|", variable.name(), variable.meaning)
        };
        let expected: Vec<String> = ALL.iter().map(row).collect();
        assert_eq!(
            rows,
            expected,
            "the table of docs/configuration.md:\n{}",
            expected.join("\n")
        );
    }

    #[test]
    fn values_accept_the_units_of_the_command_line() {
        assert_eq!(SNAPSHOT_AT_PEAK.values.read(b"1MiB"), Some(Value::Bytes(1 << 20)));
        assert_eq!(
            SNAPSHOT_EVERY.values.read(b"500ms"),
            Some(Value::Nanoseconds(500_000_000))
        );
        assert_eq!(
            SNAPSHOT_EVERY.values.read(b"30"),
            Some(Value::Nanoseconds(30_000_000_000))
        );
        assert_eq!(JAX_BUFFERS.values.read(b"addresses"), Some(Value::Word));
        assert_eq!(QUIET.values.read(b"off"), Some(Value::Switch(false)));
    }

    #[test]
    fn wrong_values_and_unknown_names_are_mistakes() {
        for (name, value) in [
            ("CULEAK_DEPTH", "abc"),
            ("CULEAK_DEPTH", "0"),
            ("CULEAK_DEPTH", "257"),
            ("CULEAK_SNAPSHOT_AT_PEAK", "much"),
            ("CULEAK_SNAPSHOT_EVERY", "0"),
            ("CULEAK_QUIET", "perhaps"),
            ("CULEAK_UNWINDER", "1"),
            ("CULEAK_OUTPUTT", "x"),
        ] {
            assert!(!is_right(name, value), "{name}={value}");
        }
        assert!(mistake(b"CULEAK_DEPTH", b"\xff").is_some());
    }

    #[test]
    fn right_values_and_variables_of_others_are_no_mistakes() {
        for (name, value) in [
            ("CULEAK_DEPTH", "256"),
            ("CULEAK_DEPTH", ""),
            ("CULEAK_CACHE_DIR", ""),
            ("CULEAK_QUIET", "1"),
            ("CULEAK_PYTEST", "4711"),
            ("CULEAK_FAKE_FAIL", "x"),
            ("CULEAK", "/usr/bin/culeak"),
            ("HOME", "/root"),
        ] {
            assert!(is_right(name, value), "{name}={value}");
        }
    }

    #[test]
    fn a_misspelled_name_finds_the_most_similar_variable() {
        let meant = |name: &str| similar(name.as_bytes()).map(Variable::name);
        assert_eq!(meant("CULEAK_OUTPUTT"), Some("CULEAK_OUTPUT"));
        assert_eq!(meant("CULEAK_SNAPSHOTS_EVERY"), Some("CULEAK_SNAPSHOT_EVERY"));
        assert_eq!(meant("CULEAK_COLOUR_OF_THE_SKY"), None);
        assert_eq!(meant(&"CULEAK_X".repeat(100)), None);
    }
}
