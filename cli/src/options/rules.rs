//! What a check allows: limits, suppressions and a baseline, from options and files.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use culeak::analysis::baseline::{self, Baseline};
use culeak::analysis::check::{
    self, FailOn, Limit, Limits, Measure, Rules, Scope, Spelling, Tolerance, Unseen, baseline_of,
};
use culeak::analysis::suppressions::Suppressions;
use culeak::kind::{Kind, Place};
use culeak::point::Point;
use culeak::snapshot::{self, Class};
use culeak::table;
use serde::Deserialize;

use super::{names, one_of, parse_pattern, parsed, read_rules};
use crate::errors::Failure;
use crate::load::{self, Loaded, NameArgs};
use crate::output;
use crate::text::units;

/// A value of `--fail-on`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failing {
    AgainstBaseline(FailOn),
    Class(Class),
    /// A process that holds more than the others.
    Outlier,
}

/// The rules of a check.
#[derive(Debug, Clone, Default, Args)]
pub struct RuleArgs {
    /// What may be left, as a list such as 64MiB,pinned=1GiB,stream=8
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = AllowParser, hide_possible_values = true,
        long_help = allow_help())]
    pub allow: Vec<Limit>,
    /// Judge the memory at this point in time: end, peak, exit, mark:NAME, or a time such as 12.5s [default: with a limit, a
    /// baseline or --since, the end of a Python script; otherwise exit]
    #[arg(long, value_name = "POINT", value_parser = parsed::<Point>)]
    pub at: Option<Point>,
    /// Judge only allocations made after this mark (culeak_mark)
    #[arg(long, value_name = "MARK")]
    pub since: Option<String>,
    /// Judge only this kind of memory; repeatable [default: all kinds that hold memory]
    #[arg(long, value_name = "KIND", hide_possible_values = true,
        value_parser = one_of(Kind::of_memory().map(Kind::name), Kind::from_name))]
    pub kind: Vec<Kind>,
    /// Also judge memory that caching allocators hold for reuse, beside the blocks in it; without it, a pool whose blocks were not
    /// recorded prevents a verdict
    #[arg(long)]
    pub judge_pools: bool,
    /// Judge even if something that a rule needs is missing: lost events or marks, missing snapshots, an incomplete search for
    /// holders, sampled stacks, a pool without its blocks
    #[arg(long)]
    pub allow_losses: bool,
    /// Ignore leaks that match a rule in this file (leak:PATTERN)
    ///
    /// The syntax is that of LeakSanitizer. Repeatable
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,
    /// Also judge memory that CUDA libraries and frameworks keep until the process ends
    #[arg(long)]
    pub no_builtin_suppressions: bool,
    /// Fail only on what is new or has grown since this file
    ///
    /// A baseline, as --update-baseline writes it, a snapshot or a recording
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Let call sites in the baseline grow by this much, e.g. 1MiB or 5%; new call sites still fail
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = parse_tolerance)]
    pub tolerance: Option<Tolerance>,
    /// What fails, as a list
    ///
    /// With a baseline: leaks at new call sites (new), new or grown leaks (grown), or all leaks (any) [default: grown]. Memory by what
    /// holds it: lost, cycle, native-holder, over-counted. outlier: a process that holds more than the other processes of the job.
    /// Repeatable
    #[arg(long, value_name = "new|grown|any|CLASS|outlier", value_delimiter = ',', value_parser = fail_on_parser(), hide_possible_values = true)]
    pub fail_on: Vec<Failing>,
    /// Which of these come from the config file, for messages.
    #[arg(skip)]
    pub defaults: FromFile,
}

/// Rules that the command line does not set, so that they are those of the config file.
#[derive(Debug, Clone, Default)]
pub struct FromFile {
    pub file: Option<PathBuf>,
    /// The options that the file sets.
    pub set: BTreeSet<&'static str>,
}

impl FromFile {
    /// The config file, if a rule comes from it.
    pub fn used(&self) -> Option<&Path> {
        self.file.as_deref().filter(|_| !self.set.is_empty())
    }

    /// Adds the config file to a failure, if it sets the option.
    fn named(&self, option: &str, failure: Failure) -> Failure {
        let file = self.file.as_ref().filter(|_| self.set.contains(option));
        let set_in = file.map_or_else(String::new, |file| format!(" (set in {})", file.display()));
        Failure::with_exit(failure.message + &set_in, failure.exit)
    }
}

impl RuleArgs {
    /// The rules, with the suppressions and the baseline read from their files.
    ///
    /// # Errors
    /// A file cannot be read or has a mistake; the message names the file and the line.
    pub fn rules(&self) -> Result<Rules, Failure> {
        // The baseline may come from the config file, so clap cannot require it.
        let needs = match (&self.tolerance, self.against_baseline().first()) {
            (Some(_), _) => Some(("tolerance", "tolerance")),
            (None, Some(_)) => Some(("fail-on", "fail-on new, grown and any")),
            (None, None) => None,
        };
        if let (None, Some((option, shown))) = (&self.baseline, needs) {
            let failure = format!("{shown} applies to a baseline, but none is given; add --baseline FILE");
            return Err(self.defaults.named(option, failure.into()));
        }
        if self.against_baseline().len() > 1 {
            return Err(Failure::new(
                "--fail-on: new, grown and any exclude each other; keep one of them",
            ));
        }
        let mut rules = self.without_baseline()?;
        if let Some(path) = &self.baseline {
            let baseline = read_baseline(path, &rules);
            rules.baseline = Some(baseline.map_err(|failure| self.defaults.named("baseline", failure))?);
        }
        Ok(rules)
    }

    /// The limits in the order in which a verdict names them, without those that could never be broken or of which there are two.
    fn limits(&self) -> Result<Vec<Limit>, Failure> {
        let refuse = |limit: &Limit, reason: String| {
            let failure = Failure::new(format!("--allow {}: {reason}", shown(limit)));
            self.defaults.named("allow", failure)
        };
        for (nth, limit) in self.allow.iter().enumerate() {
            let is_same = |other: &Limit| (&other.of, other.measure) == (&limit.of, limit.measure);
            if self.allow[..nth].iter().any(is_same) {
                let reason = "two limits of one thing are given; keep one of them".to_owned();
                return Err(refuse(limit, reason));
            }
        }
        let is_judged = |kind: Kind| match self.kind.is_empty() {
            true => kind.place() != Place::Nowhere,
            false => self.kind.contains(&kind),
        };
        for limit in self.allow.iter().filter(|limit| limit.measure == Measure::Bytes) {
            if let Scope::Kind(kind) = limit.of
                && !is_judged(kind)
            {
                let or = match self.kind.is_empty() {
                    true => "",
                    false => ", or leave --kind out",
                };
                let kind = kind.name();
                let reason =
                    format!("memory of this kind is not judged, so the limit has no effect; add --kind {kind}{or}");
                return Err(refuse(limit, reason));
            }
        }
        let mut limits = self.allow.clone();
        let kind = |limit: &Limit| match limit.of {
            Scope::Kind(kind) => Some(kind),
            _ => None,
        };
        limits.sort_by_key(|limit| (limit.spelling(), kind(limit)));
        Ok(limits)
    }

    fn against_baseline(&self) -> Vec<FailOn> {
        let values = self.fail_on.iter().filter_map(|failing| match failing {
            Failing::AgainstBaseline(what) => Some(*what),
            Failing::Class(_) | Failing::Outlier => None,
        });
        values.collect()
    }

    /// The classes of blocks that fail.
    pub fn classes(&self) -> BTreeSet<Class> {
        let classes = self.fail_on.iter().filter_map(|failing| match failing {
            Failing::Class(class) => Some(*class),
            Failing::AgainstBaseline(_) | Failing::Outlier => None,
        });
        classes.collect()
    }

    /// The rules without the baseline, for a baseline that is about to be written.
    ///
    /// # Errors
    /// See [`RuleArgs::rules`].
    pub fn without_baseline(&self) -> Result<Rules, Failure> {
        let given = self.limits()?;
        let suppressions = read_suppressions(&self.suppressions, !self.no_builtin_suppressions)
            .map_err(|failure| self.defaults.named("suppressions", failure))?;
        Ok(Rules {
            limits: Limits {
                given,
                tolerance: self.tolerance.unwrap_or_default(),
                fail_on: self.against_baseline().first().copied().unwrap_or_default(),
                classes: self.classes(),
                outliers: self.fail_on.contains(&Failing::Outlier),
                since: self.since.clone(),
                kinds: self.kind.clone(),
                judge_pools: self.judge_pools,
                allow_losses: self.allow_losses,
            },
            suppressions,
            baseline: None,
            config: self.defaults.used().map(|file| file.display().to_string()),
            at: self.at.clone(),
            boundary: None,
            previous: None,
        })
    }
}

/// Refuses a baseline of an input if it is not known what each call site held.
///
/// # Errors
/// The message says what is not known, and how to accept that.
pub fn check_baseline(item: &Loaded, rules: &Rules) -> Result<(), Failure> {
    let sampled = item.snapshot.sampling.map(|_| {
        let what = "the stacks were sampled, so what each call site held is an estimate";
        Unseen::part("--baseline", what, "record without --sample")
    });
    let unseen = item.unseen.iter().cloned();
    let mut unseen = unseen.chain(check::unknown_since(&item.snapshot, rules)).chain(sampled);
    match unseen.find(|unseen| !(unseen.acceptable && rules.limits.allow_losses)) {
        Some(unseen) => Err(Failure::new(format!("{}: {}", item.source, unseen.sentence()))),
        None => Ok(()),
    }
}

/// Reads suppressions from files, followed by the built-in list if wanted.
///
/// # Errors
/// A file cannot be read, or a line is not a rule; the message names the file, line and column.
pub fn read_suppressions(files: &[PathBuf], built_in: bool) -> Result<Suppressions, Failure> {
    let mut suppressions = Suppressions::default();
    for path in files {
        let shown = path.display().to_string();
        protect(path);
        let text = read_rules(path).map_err(|error| {
            format!("{shown}: suppressions cannot be read: {error}; name another file with --suppressions")
        })?;
        suppressions
            .add(&text, &shown)
            .map_err(|error| Failure::new(error.to_string()))?;
    }
    if built_in {
        suppressions.add_built_in();
    }
    Ok(suppressions)
}

/// The suppressions of commands that suppress nothing, not even the built-in list, unless a file is named.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Rules")]
pub struct SuppressionArgs {
    /// Leave out stacks that match a rule in this file or a built-in rule (as in check), and show their total; repeatable
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,
    /// Apply only the rules in the files of --suppressions
    #[arg(long, requires = "suppressions")]
    pub no_builtin_suppressions: bool,
}

impl SuppressionArgs {
    /// # Errors
    /// See [`read_suppressions`].
    pub fn read(&self) -> Result<Suppressions, Failure> {
        match self.suppressions.as_slice() {
            [] => Ok(Suppressions::default()),
            files => read_suppressions(files, !self.no_builtin_suppressions),
        }
    }
}

/// Keeps this command from replacing a file that it reads.
pub(super) fn protect(path: &Path) {
    if let Ok(metadata) = path.metadata() {
        output::protect(&metadata);
    }
}

/// The fields that identify a JSON file.
#[derive(Default, Deserialize)]
struct Envelope {
    format: Option<String>,
    version: Option<u64>,
}

/// Whether a file is a baseline, of any version.
pub fn is_baseline(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap_or_default();
    serde_json::from_slice(&bytes).is_ok_and(|envelope: Envelope| envelope.format.as_deref() == Some(baseline::FORMAT))
}

fn read_baseline(path: &Path, rules: &Rules) -> Result<Baseline, Failure> {
    let shown = path.display();
    // One that a config file names may have no end.
    if path.metadata().is_ok_and(|of| of.file_type().is_char_device()) {
        return Err(Failure::new(format!(
            "{shown}: the baseline cannot be read: it is a device; name a file"
        )));
    }
    protect(path);
    let bytes = fs::read(path).map_err(|error| {
        let next = match error.kind() {
            io::ErrorKind::NotFound => "; make it with --update-baseline",
            _ => "",
        };
        Failure::new(format!("{shown}: the baseline cannot be read: {error}{next}"))
    })?;
    let Envelope { format, version } = serde_json::from_slice(&bytes).unwrap_or_default();
    match format.as_deref() {
        Some(baseline::FORMAT) => {}
        Some(other) if other.starts_with("culeak-") && other != snapshot::FORMAT => {
            return Err(Failure::new(format!(
                "{shown}: not a baseline; --update-baseline writes one"
            )));
        }
        // A snapshot or a recording serves as a baseline too. Its reader reports what is wrong with any other file.
        _ => {
            let mut item = load::read_already(path, &bytes)?;
            load::at::find(&mut item, rules.at.as_ref(), &NameArgs::default())?;
            check_baseline(&item, rules)?;
            return Ok(baseline_of(&item.snapshot, rules));
        }
    }
    if version != Some(u64::from(baseline::VERSION)) {
        return Err(Failure::new(format!(
            "{shown}: a baseline of another version of culeak; this build reads version {}; write it again with \
             --update-baseline",
            baseline::VERSION
        )));
    }
    serde_json::from_slice(&bytes).map_err(|error| {
        Failure::new(format!(
            "{shown}: a damaged baseline ({error}); write it again with --update-baseline"
        ))
    })
}

fn allow_help() -> String {
    let spelling = |spelling: &Spelling| format!("{}: {}, e.g. {}", spelling.form, spelling.about, spelling.example);
    let spellings: Vec<String> = Limit::SPELLINGS.iter().map(spelling).collect();
    format!(
        "What may be left, as a list such as 64MiB,pinned=1GiB,stream=8\n\n{}. Repeatable. Objects: {}",
        spellings.join(". "),
        names(Kind::objects())
    )
}

/// What a limit is of, as in a value of `--allow`.
fn shown(limit: &Limit) -> String {
    let form = Limit::SPELLINGS[limit.spelling()].form;
    match &limit.of {
        Scope::Kind(kind) => kind.name().to_owned(),
        Scope::Pattern(pattern) => format!("leak:{}", pattern.text()),
        Scope::All | Scope::Site => form.split('=').next().unwrap_or(form).to_owned(),
    }
}

/// Parses one limit of `--allow`.
///
/// # Errors
/// It is no limit; the message says what to type.
pub fn parse_limit(text: &str) -> Result<Limit, String> {
    let forms = || {
        Limit::SPELLINGS
            .iter()
            .map(|spelling| spelling.form)
            .collect::<Vec<_>>()
            .join(", ")
    };
    let number = |text: &str| {
        let number = text.trim().parse();
        number.map_err(|_| format!("{text:?} is not a number, e.g. 64"))
    };
    Ok(match text.rsplit_once('=') {
        None if text.starts_with("leak:") => {
            return Err("a size is missing: leak:PATTERN=SIZE; * stands for a comma in a pattern".to_owned());
        }
        None => {
            let size = units::parse_size(text).map_err(|reason| format!("{reason}; expected one of {}", forms()))?;
            Limit::bytes(Scope::All, size)
        }
        Some(("count", count)) => Limit::blocks(number(count)?),
        Some(("site", size)) => Limit::bytes(Scope::Site, units::parse_size(size)?),
        Some((name, most)) => match (name.strip_prefix("leak:"), Kind::from_name(name)) {
            (Some(pattern), _) => Limit::bytes(Scope::Pattern(parse_pattern(pattern)?), units::parse_size(most)?),
            (None, Some(kind)) if kind.is_object() => Limit::objects(kind, number(most)?),
            (None, Some(kind)) if kind.place().is_memory() => Limit::bytes(Scope::Kind(kind), units::parse_size(most)?),
            (None, _) => {
                let (memory, objects) = (names(Kind::of_memory()), names(Kind::objects()));
                return Err(format!(
                    "no kind of memory or object has this name; for a pattern type leak:{text}; memory: {memory}; objects: {objects}"
                ));
            }
        },
    })
}

/// Accepts what [`parse_limit`] does; completions offer the kinds.
#[derive(Debug, Clone)]
struct AllowParser;

impl TypedValueParser for AllowParser {
    type Value = Limit;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Limit, clap::Error> {
        StringValueParser::new()
            .try_map(|text| parse_limit(&text))
            .parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let kinds = Kind::of_memory().chain(Kind::objects()).map(Kind::name);
        let forms = Limit::SPELLINGS
            .iter()
            .filter_map(|spelling| spelling.form.split_once('='));
        let words = forms
            .map(|(name, _)| name)
            .filter(|name| !name.contains(char::is_uppercase));
        let value = |name: &str| PossibleValue::new(format!("{name}="));
        Some(Box::new(kinds.chain(words).map(value)))
    }
}

pub fn parse_tolerance(text: &str) -> Result<Tolerance, String> {
    let Some(number) = text.trim().strip_suffix('%') else {
        return units::parse_size(text).map(Tolerance::Bytes);
    };
    match f64::from_str(number.trim()) {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(Tolerance::Percent(percent)),
        _ => Err("expected a size such as 1MiB, or a percentage such as 5%".to_owned()),
    }
}

fn fail_on_parser() -> impl TypedValueParser<Value = Failing> {
    PossibleValuesParser::new(FAILING.map(|(name, _)| name)).try_map(|text| parse_fail_on(&text))
}

const FAILING: [(&str, Failing); 8] = table! {
    "new", Failing::AgainstBaseline(FailOn::New);
    "grown", Failing::AgainstBaseline(FailOn::Grown);
    "any", Failing::AgainstBaseline(FailOn::Any);
    "lost", Failing::Class(Class::Lost);
    "cycle", Failing::Class(Class::Cycle);
    "native-holder", Failing::Class(Class::NativeHolder);
    "over-counted", Failing::Class(Class::OverCounted);
    "outlier", Failing::Outlier;
};

pub fn parse_fail_on(text: &str) -> Result<Failing, String> {
    let text = text.replace('_', "-");
    let known = FAILING
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, failing)| *failing);
    known.ok_or_else(|| format!("expected one of {}", FAILING.map(|(name, _)| name).join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_no_baseline() {
        let rules = RuleArgs {
            baseline: Some(PathBuf::from("/dev/zero")),
            ..RuleArgs::default()
        };
        let Err(failure) = rules.rules() else {
            panic!("it has no end");
        };
        assert!(failure.message.contains("is a device"), "{failure}");
    }

    fn limits_of(allow: &str, kind: &[Kind]) -> Result<Vec<Limit>, String> {
        let rules = RuleArgs {
            allow: allow.split(',').map(|text| parse_limit(text).expect(text)).collect(),
            kind: kind.to_vec(),
            ..RuleArgs::default()
        };
        rules.limits().map_err(|failure| failure.message)
    }

    #[test]
    fn limits_that_nothing_could_break_and_two_limits_of_one_thing_are_refused() {
        let refused = |kind: &[Kind], allow: &str| limits_of(allow, kind).err().unwrap_or_default();
        assert_eq!(refused(&[], "pinned=0"), "");
        assert_eq!(refused(&[Kind::Device, Kind::HostPinned], "pinned=0"), "");
        let excluded = refused(&[Kind::Device], "pinned=0");
        assert!(
            excluded.starts_with("--allow pinned: ") && excluded.contains("add --kind pinned, or"),
            "{excluded}"
        );
        // Claims are judged only if they are named.
        let claim = refused(&[], "reserved=0");
        assert!(
            claim.contains("not judged") && claim.ends_with("add --kind reserved"),
            "{claim}"
        );
        for twice in [
            "1,2",
            "count=1,count=1",
            "site=1,site=2",
            "device=1,device=2",
            "stream=1,0,stream=1",
            "leak:a.py=1,leak:a.py=2",
        ] {
            assert!(refused(&[], twice).contains("two limits of one thing"), "{twice}");
        }
    }

    #[test]
    fn a_list_limits_each_thing() {
        let all = "leak:operator==*=2k,64MiB,pinned=1GiB,graph-exec=0,pool=3,site=16MiB,count=100,leak:cache.py=1";
        let limits = limits_of(all, &[]).expect("limits");
        let shown: Vec<(String, u64)> = limits.iter().map(|limit| (shown(limit), limit.most)).collect();
        let expected = [
            ("SIZE", 64 << 20),
            ("count", 100),
            ("pinned", 1 << 30),
            ("pool", 3),
            ("graph-exec", 0),
            ("leak:operator==*", 2048),
            ("leak:cache.py", 1),
            ("site", 16 << 20),
        ];
        assert_eq!(shown, expected.map(|(of, most)| (of.to_owned(), most)));
        for (text, part) in [
            ("much", "expected one of SIZE, count=N, KIND=SIZE, OBJECT=N"),
            ("cache.py=2GiB", "for a pattern type leak:cache.py=2GiB"),
            ("tape=1", "no kind of memory or object has this name"),
            ("stream=1MiB", "\"1MiB\" is not a number"),
            ("stream=-1", "is not a number"),
            ("count=1.5", "is not a number"),
            ("device=many", "expected a size"),
            ("leak:f<int", "* stands for a comma"),
            ("leak:*=1", "column"),
        ] {
            let error = parse_limit(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_example_of_each_spelling_is_a_limit_of_its_form() {
        for (nth, spelling) in Limit::SPELLINGS.iter().enumerate() {
            let limit = parse_limit(spelling.example).expect(spelling.example);
            assert_eq!(limit.spelling(), nth, "{}", spelling.example);
            let row = format!("| `{}` |", spelling.example);
            assert!(
                include_str!("../../../docs/ci.md").contains(&row),
                "docs/ci.md lacks {row}"
            );
        }
    }

    #[test]
    fn tolerances_are_sizes_or_percentages() {
        assert_eq!(parse_tolerance("5 %"), Ok(Tolerance::Percent(5.0)));
        assert_eq!(parse_tolerance("1MiB"), Ok(Tolerance::Bytes(1 << 20)));
        for text in ["-1%", "inf%", "%", "much"] {
            assert!(parse_tolerance(text).is_err(), "{text}");
        }
    }
}
