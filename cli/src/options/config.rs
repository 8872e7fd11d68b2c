//! The config file: defaults for options that are the same in every run of a project, in `culeak.toml`.
//!
//! The search starts in the current folder and ends at the root of the repository; outside a repository only the current
//! folder is searched. A Python project may keep the same keys in `pyproject.toml`, below `tool.culeak`. An option on the
//! command line replaces the value in the file. Paths in the file are relative to the file. Deliberately absent: options that
//! differ from run to run, or that change what a report shows, and commands to execute (the pager), since a config file
//! is part of the repository, which others may have written; see docs/configuration.md.
//!
//! A file that was found, not named, sets the limits of a check. So it counts only if root or the caller owns it: in a parent folder
//! such as /tmp any user may create one.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{self, Path, PathBuf};
use std::{env, io};

use clap::{Args, ColorChoice, ValueEnum};
use culeak::analysis::check::{Limit, Tolerance};
use culeak::analysis::site::Wrappers;
use culeak::reader::open_regular;
use culeak::variables::CONFIG;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::parse_pattern;
use super::rules::{self, Failing, RuleArgs};
use crate::errors::Failure;
use crate::escape::Escaped;
use crate::launch::RecordArgs;
use crate::progress;
use crate::text::units;

/// The file name that is searched for.
const NAME: &str = "culeak.toml";
/// The file of a Python project, which has a config if it has the table `tool.culeak`.
const PYTHON_NAME: &str = "pyproject.toml";

/// Which config file is read, for the commands that read one.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct ConfigArgs {
    /// Read defaults of options from this file [default: culeak.toml in this folder or a parent, up to the repository root]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Read no config file
    #[arg(long, global = true, conflicts_with = "config")]
    pub no_config: bool,
}

impl ConfigArgs {
    /// The same file, for a process that changes its current folder.
    ///
    /// # Errors
    /// The current folder is unknown.
    pub fn absolute(&self) -> Result<ConfigArgs, Failure> {
        let config = named(self).map(|file| {
            let failure = |error| Failure::new(format!("{}: {error}; name the whole path", file.display()));
            path::absolute(&file).map_err(failure)
        });
        Ok(ConfigArgs {
            config: config.transpose()?,
            no_config: self.no_config,
        })
    }
}

/// The defaults in a config file; none if there is no file.
#[derive(Debug, Default)]
pub struct Defaults {
    config: Config,
    file: Option<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    run: RunDefaults,
    check: CheckDefaults,
    display: DisplayDefaults,
    symbols: SymbolDefaults,
}

/// Defaults for every command that prints.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DisplayDefaults {
    #[serde(deserialize_with = "color")]
    color: Option<ColorChoice>,
    pager: Option<bool>,
}

/// Defaults for every command that shows names.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct SymbolDefaults {
    debug_dirs: Vec<PathBuf>,
    #[serde(deserialize_with = "wrappers")]
    wrappers: Wrappers,
}

/// The part of pyproject.toml that is read.
#[derive(Debug, Deserialize)]
struct PythonProject {
    #[serde(default)]
    tool: Tools,
}

#[derive(Debug, Default, Deserialize)]
struct Tools {
    culeak: Option<Config>,
}

/// Defaults for `run` and `live`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RunDefaults {
    output: Option<PathBuf>,
    #[serde(deserialize_with = "size")]
    sample: Option<u64>,
    #[serde(rename = "stack-rate", deserialize_with = "stack_rate")]
    stack_rate: Option<u32>,
}

/// Defaults for `check`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
struct CheckDefaults {
    #[serde(deserialize_with = "allow")]
    allow: Vec<Limit>,
    suppressions: Vec<PathBuf>,
    baseline: Option<PathBuf>,
    #[serde(deserialize_with = "tolerance")]
    tolerance: Option<Tolerance>,
    #[serde(deserialize_with = "fail_on")]
    fail_on: Vec<Failing>,
}

/// Finds the config file and reads it.
///
/// # Errors
/// The file cannot be read, or has a mistake; the message names the line and the column.
pub fn read(args: &ConfigArgs) -> Result<Defaults, Failure> {
    let named = named(args);
    let is_named = named.is_some();
    let Some(path) = named.or_else(|| found(args)) else {
        return Ok(Defaults::default());
    };
    progress::detail(format_args!("config file: {}", Escaped(&path.display().to_string())));
    Ok(Defaults {
        config: parsed(&path, is_named)?,
        file: Some(path),
    })
}

impl Defaults {
    /// Fills in options that the command line does not set: limits and other rules, and what to record.
    pub fn fill(self, rules: Option<&mut RuleArgs>, record: Option<&mut RecordArgs>) {
        let base = self.base().to_path_buf();
        if let Some(record) = record {
            let folder = self.config.run.output.map(|folder| base.join(folder));
            record.output = record.output.take().or(folder);
            // A timeline needs every stack; on the command line it replaces the file's value.
            let sample = self.config.run.sample.filter(|_| record.timeline.is_none());
            record.sample = record.sample.or(sample);
            record.stack_rate = record.stack_rate.or(self.config.run.stack_rate);
        }
        if let Some(rules) = rules {
            self.config.check.fill(rules, &base);
            rules.defaults.file = self.file;
        }
    }

    /// When to use colour. The file has the last word, after the command line and the environment.
    pub fn color(&self, given: Option<ColorChoice>) -> ColorChoice {
        let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        let by_environment = set("NO_COLOR") || set("CLICOLOR_FORCE");
        let default = self.config.display.color.filter(|_| !by_environment);
        given.or(default).unwrap_or(ColorChoice::Auto)
    }

    /// The file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// The folder that paths are relative to.
    fn base(&self) -> &Path {
        self.file().and_then(Path::parent).unwrap_or(Path::new(""))
    }

    /// Whether a pager may be used.
    pub fn pager(&self) -> bool {
        self.config.display.pager.unwrap_or(true)
    }

    /// The user's own wrappers, whose callers are the call sites.
    pub fn wrappers(&self) -> Wrappers {
        self.config.symbols.wrappers.clone()
    }

    /// The folders with debug files.
    pub fn debug_dirs(&self) -> Vec<PathBuf> {
        let folders = self.config.symbols.debug_dirs.iter();
        folders.map(|folder| self.base().join(folder)).collect()
    }
}

/// The file that the user named.
fn named(args: &ConfigArgs) -> Option<PathBuf> {
    let variable = || {
        env::var_os(CONFIG.name())
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    };
    let named = args.config.clone().or_else(variable);
    named.filter(|_| !args.no_config)
}

/// The nearest file.
fn found(args: &ConfigArgs) -> Option<PathBuf> {
    if args.no_config {
        return None;
    }
    let config_in = |folder: &Path| config_in(folder).filter(|path| is_trusted(path));
    if let Some(here) = config_in(Path::new("")) {
        return Some(here);
    }
    let folder = env::current_dir().ok()?;
    let is_root = |folder: &&Path| folder.join(".git").exists();
    let root = folder.ancestors().find(is_root)?;
    let mut inside = folder.ancestors().take_while(|folder| folder.starts_with(root));
    inside.find_map(config_in)
}

/// Whether root or the caller owns a file that was found, and a link to it. Warns if not.
fn is_trusted(path: &Path) -> bool {
    let owners = [path.symlink_metadata(), path.metadata()];
    let mut owners = owners.into_iter().flatten().map(|metadata| metadata.uid());
    let Some(owner) = owners.find(|&owner| !may_configure(owner)) else {
        return true;
    };
    progress::say(format_args!(
        "warning: {}: the config file is not read, because it belongs to user {owner}, neither to root nor to you; name it with --config \
         to use it",
        Escaped(&path.display().to_string())
    ));
    false
}

/// Root, the caller, and who called sudo.
fn may_configure(owner: u32) -> bool {
    let caller = nix::unistd::geteuid();
    let by_sudo = || env::var("SUDO_UID").ok()?.parse().ok();
    owner == 0 || owner == caller.as_raw() || caller.is_root() && by_sudo() == Some(owner)
}

/// The config file in a folder.
fn config_in(folder: &Path) -> Option<PathBuf> {
    let (own, of_python) = (folder.join(NAME), folder.join(PYTHON_NAME));
    // A folder, or a link to nothing, is a mistake, which reading reports.
    if own.symlink_metadata().is_ok() {
        return Some(own);
    }
    let has_config = text_of(&of_python, false).is_ok_and(|text| names_culeak(&text));
    has_config.then_some(of_python)
}

/// Whether a pyproject.toml has a config. The mistakes of one that is not valid TOML are reported only if a line of it is about
/// culeak: the file has other readers, and most projects have no config in it.
fn names_culeak(text: &str) -> bool {
    let in_table = |whole: toml::Table| {
        let tools = whole.get("tool").and_then(toml::Value::as_table);
        tools.is_some_and(|tools| tools.contains_key("culeak"))
    };
    let in_line = |line: &str| {
        let ignored = |c: &char| !c.is_whitespace() && !matches!(c, '"' | '\'');
        let line: String = line.chars().filter(ignored).collect();
        let key = line.trim_start_matches('[');
        let key = key.strip_prefix("tool.").unwrap_or(key);
        let rest = key.strip_prefix("culeak");
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([']', '.', '=']))
    };
    toml::from_str(text).map_or_else(|_| text.lines().any(in_line), in_table)
}

/// Reads a file that is no larger than people write config files; if it was found, not named, a regular one.
fn text_of(path: &Path, is_named: bool) -> io::Result<String> {
    const MOST: u64 = 1 << 20;
    let mut text = String::new();
    let file = if is_named { File::open(path) } else { open_regular(path) };
    let read = file?.take(MOST + 1).read_to_string(&mut text)?;
    match read as u64 > MOST {
        true => Err(io::Error::other("it is larger than 1 MiB")),
        false => Ok(text),
    }
}

fn parsed(path: &Path, is_named: bool) -> Result<Config, Failure> {
    let shown = path.display();
    let text = text_of(path, is_named).map_err(|error| {
        let next = match error.kind() {
            io::ErrorKind::NotFound => {
                format!("; name another with --config or {}, or pass --no-config", CONFIG.name())
            }
            _ => String::new(),
        };
        Failure::new(format!("{shown}: the config file cannot be read: {error}{next}"))
    })?;
    let parsed = match path.file_name() == Some(PYTHON_NAME.as_ref()) {
        true => toml::from_str(&text).map(|project: PythonProject| project.tool.culeak),
        false => toml::from_str(&text).map(Some),
    };
    let parsed = parsed.map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let message = error.message().trim_end().replace('\n', ", ");
        Failure::new(format!(
            "{shown}:{line}:{column}: {message}; `culeak help config` lists the keys"
        ))
    })?;
    parsed.ok_or_else(|| {
        Failure::new(format!(
            "{shown}: has no table tool.culeak; add [tool.culeak.check], for example, or name another file"
        ))
    })
}

impl CheckDefaults {
    fn fill(self, rules: &mut RuleArgs, base: &Path) {
        fn or<T>(given: &mut Option<T>, default: Option<T>) -> bool {
            let is_set = given.is_none() && default.is_some();
            *given = given.take().or(default);
            is_set
        }
        fn or_all<T>(given: &mut Vec<T>, defaults: Vec<T>) -> bool {
            let is_set = given.is_empty() && !defaults.is_empty();
            if is_set {
                *given = defaults;
            }
            is_set
        }
        let suppressions = self.suppressions.iter().map(|path| base.join(path)).collect();
        let baseline = self.baseline.map(|path| base.join(path));
        let options = [
            ("allow", or_all(&mut rules.allow, self.allow)),
            ("suppressions", or_all(&mut rules.suppressions, suppressions)),
            ("baseline", or(&mut rules.baseline, baseline)),
            ("tolerance", or(&mut rules.tolerance, self.tolerance)),
            ("fail-on", or_all(&mut rules.fail_on, self.fail_on)),
        ];
        let set = options.into_iter().filter(|(_, is_set)| *is_set);
        rules.defaults.set = set.map(|(option, _)| option).collect();
    }
}

fn color<'de, D: Deserializer<'de>>(value: D) -> Result<Option<ColorChoice>, D::Error> {
    let color = ColorChoice::from_str(&String::deserialize(value)?, false);
    color
        .map(Some)
        .map_err(|_| D::Error::custom("expected \"auto\", \"always\" or \"never\""))
}

/// Bytes, as a number or with a unit.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a size, such as 4096 or \"64MiB\"")]
enum Size {
    Number(u64),
    Text(String),
}

fn stack_rate<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u32>, D::Error> {
    let most = culeak::sampling::RATE_MAX;
    let rate = i64::deserialize(value)?;
    let rate = u32::try_from(rate).ok().filter(|rate| *rate <= most);
    rate.map(Some)
        .ok_or_else(|| D::Error::custom(format!("expected a number of stacks a second, from 0 to {most}")))
}

fn size<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    match Size::deserialize(value)? {
        Size::Number(bytes) => Ok(Some(bytes)),
        Size::Text(text) => match units::parse_size(&text) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => Err(D::Error::custom(format!("{text:?}: {error}"))),
        },
    }
}

/// Patterns of wrappers and, after `!`, of functions that are none.
fn wrappers<'de, D: Deserializer<'de>>(from: D) -> Result<Wrappers, D::Error> {
    let mut wrappers = Wrappers::default();
    for text in Vec::<String>::deserialize(from)? {
        let (list, pattern) = match text.strip_prefix('!') {
            Some(pattern) => (&mut wrappers.excepted, pattern),
            None => (&mut wrappers.named, text.as_str()),
        };
        list.push(parse_pattern(pattern).map_err(D::Error::custom)?);
    }
    Ok(wrappers)
}

fn tolerance<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Tolerance>, D::Error> {
    let tolerance = rules::parse_tolerance(&String::deserialize(value)?);
    tolerance.map(Some).map_err(D::Error::custom)
}

/// One value, or a list.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text, such as \"grown\" or \"64MiB\", or a list of such texts"
)]
enum Words {
    One(String),
    Several(Vec<String>),
}

/// The values of an option that takes a list.
fn listed<'de, D: Deserializer<'de>, T>(
    value: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, D::Error> {
    let words = match Words::deserialize(value)? {
        Words::One(word) => vec![word],
        Words::Several(words) => words,
    };
    let words = words.iter().flat_map(|words| words.split(',')).map(str::trim);
    words.map(|word| parse(word).map_err(D::Error::custom)).collect()
}

fn allow<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Limit>, D::Error> {
    listed(value, |word| {
        rules::parse_limit(word).map_err(|reason| format!("{word:?}: {reason}"))
    })
}

fn fail_on<'de, D: Deserializer<'de>>(value: D) -> Result<Vec<Failing>, D::Error> {
    listed(value, rules::parse_fail_on)
}
