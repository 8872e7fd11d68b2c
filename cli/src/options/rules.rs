//! What a check allows: limits, suppressions and a baseline, from options and files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{fs, io};

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, StringValueParser, TypedValueParser};
use culeak::analysis::baseline::{self, Baseline};
use culeak::analysis::check::{self, FailOn, Limit, Limits, Rules, Scope, Tolerance, Unseen, baseline_of};
use culeak::analysis::suppressions::Suppressions;
use culeak::kind::{Kind, Place};
use culeak::point::Point;
use culeak::snapshot::Class;
use serde::Deserialize;

use super::{
    NameArgs, memory_kind_parser, parse_memory_kind, parse_object_kind, parse_pattern, parse_point, read_rules,
};
use crate::errors::Failure;
use crate::load::{self, Loaded};
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
    /// Allow SIZE in total, e.g. 0, 64MiB
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub max_leaked: Option<u64>,
    /// Allow N blocks in total
    #[arg(long, value_name = "N")]
    pub max_count: Option<u64>,
    /// Allow SIZE per call site
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    pub max_per_site: Option<u64>,
    /// Allow SIZE of one kind of memory, e.g. pinned=1GiB; repeatable
    #[arg(long, value_name = "KIND=SIZE", value_parser = KIND_LIMIT, hide_possible_values = true)]
    pub max_kind: Vec<(Kind, u64)>,
    /// Allow N objects of one kind, e.g. stream=64; repeatable. Kinds: stream, event, module, library, graph-object, graph-exec,
    /// context, green-context, pool, texture, surface, external, external-semaphore, multicast,
    /// user-object, linker, graphics-resource
    #[arg(long, value_name = "KIND=N", value_parser = OBJECT_LIMIT, hide_possible_values = true)]
    pub max_objects: Vec<(Kind, u64)>,
    /// Allow SIZE in total for stacks that match a pattern (as in suppressions), e.g. cache.py=2GiB; repeatable
    #[arg(long, value_name = "PATTERN=SIZE", value_parser = parse_budget)]
    pub budget: Vec<Limit>,
    /// Judge the memory at this point in time: end, peak, exit, mark:NAME, or a time such as 12.5s [default: with a limit, a
    /// baseline or --since, the end of a Python script; otherwise exit]
    #[arg(long, value_name = "POINT", value_parser = parse_point)]
    pub at: Option<Point>,
    /// Judge only allocations made after this mark (culeak_mark)
    #[arg(long, value_name = "MARK")]
    pub since: Option<String>,
    /// Judge only this kind of memory; repeatable [default: all kinds that hold memory]
    #[arg(long, value_name = "KIND", value_parser = memory_kind_parser(), hide_possible_values = true)]
    pub kind: Vec<Kind>,
    /// Also judge memory that caching allocators hold for reuse, beside the blocks in it; without it, a pool whose blocks were not
    /// recorded prevents a verdict
    #[arg(long)]
    pub judge_pools: bool,
    /// Judge even if something that a rule needs is missing: lost events or marks, missing snapshots, an incomplete search for
    /// holders, sampled stacks, a pool without its blocks
    #[arg(long)]
    pub allow_losses: bool,
    /// Ignore leaks that match a rule in this file, in LeakSanitizer's syntax (leak:PATTERN); repeatable
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,
    /// Also judge memory that CUDA libraries and frameworks keep until the process ends
    #[arg(long)]
    pub no_builtin_suppressions: bool,
    /// Fail only on leaks that are new or have grown since this baseline, snapshot or recording
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Let call sites in the baseline grow by this much, e.g. 1MiB or 5%; new call sites still fail
    #[arg(long, value_name = "SIZE|PERCENT", value_parser = parse_tolerance)]
    pub tolerance: Option<Tolerance>,
    /// What fails; list or repeatable. With a baseline: leaks at new call sites (new), new or grown leaks (grown), or all leaks (any)
    /// [default: grown]. Memory by what holds it: lost, cycle, native-holder, over-counted. outlier: a process that holds more
    /// than the other processes of the job
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
    /// Any rule comes from the file.
    pub any: bool,
    pub suppressions: bool,
    pub baseline: bool,
    pub tolerance: bool,
    pub fail_on: bool,
}

impl FromFile {
    /// The config file, if a rule comes from it.
    pub fn used(&self) -> Option<&Path> {
        self.file.as_deref().filter(|_| self.any)
    }

    /// Adds the config file to a failure, if the rule comes from it.
    fn named(&self, is_from_file: bool, failure: Failure) -> Failure {
        match self.file.as_ref().filter(|_| is_from_file) {
            Some(file) => Failure {
                message: format!("{} (set in {})", failure.message, file.display()),
                ..failure
            },
            None => failure,
        }
    }
}

/// The ids of the options in [`RuleArgs`], for commands that restrict them.
pub const RULE_OPTIONS: [&str; 16] = [
    "max_leaked",
    "max_count",
    "max_per_site",
    "max_kind",
    "max_objects",
    "budget",
    "at",
    "since",
    "kind",
    "judge_pools",
    "allow_losses",
    "suppressions",
    "no_builtin_suppressions",
    "baseline",
    "tolerance",
    "fail_on",
];

impl RuleArgs {
    /// The rules, with the suppressions and the baseline read from their files.
    ///
    /// # Errors
    /// A file cannot be read or has a mistake; the message names the file and the line.
    pub fn rules(&self) -> Result<Rules, Failure> {
        // The baseline may come from the config file, so clap cannot require it.
        let needs_baseline = [
            ("tolerance", self.tolerance.is_some(), self.defaults.tolerance),
            (
                "fail-on new, grown and any",
                !self.against_baseline().is_empty(),
                self.defaults.fail_on,
            ),
        ];
        let needs = needs_baseline.iter().find(|(_, given, _)| *given);
        if let (None, Some((option, _, from_file))) = (&self.baseline, needs) {
            let failure = Failure::new(format!(
                "{option} applies to a baseline, but none is given; add --baseline FILE"
            ));
            return Err(self.defaults.named(*from_file, failure));
        }
        if self.against_baseline().len() > 1 {
            return Err(Failure::new(
                "--fail-on: new, grown and any exclude each other; keep one of them",
            ));
        }
        let mut rules = self.without_baseline()?;
        if let Some(path) = &self.baseline {
            let baseline = read_baseline(path, &rules);
            rules.baseline = Some(baseline.map_err(|failure| self.defaults.named(self.defaults.baseline, failure))?);
        }
        Ok(rules)
    }

    /// Refuses limits on what these options exclude, and two limits of one thing.
    fn contradictions(&self) -> Result<(), Failure> {
        let twice = |limits: &[(Kind, u64)]| {
            let mut seen = BTreeSet::new();
            limits.iter().map(|(kind, _)| *kind).find(|kind| !seen.insert(*kind))
        };
        for (option, limits) in [("--max-kind", &self.max_kind), ("--max-objects", &self.max_objects)] {
            if let Some(kind) = twice(limits) {
                return Err(Failure::new(format!(
                    "{option} {}: two limits are given; keep one of them",
                    kind.name()
                )));
            }
        }
        let is_judged = |kind: Kind| match self.kind.is_empty() {
            true => kind.place() != Place::Nowhere,
            false => self.kind.contains(&kind),
        };
        let Some((kind, _)) = self.max_kind.iter().find(|(kind, _)| !is_judged(*kind)) else {
            return Ok(());
        };
        let or = match self.kind.is_empty() {
            true => "",
            false => ", or leave --kind out, which may come from the config file",
        };
        let kind = kind.name();
        Err(Failure::new(format!(
            "--max-kind {kind}: memory of this kind is not judged, so the limit has no effect; add --kind {kind}{or}"
        )))
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

    /// The limits in the order in which a verdict names them.
    fn limits(&self) -> Vec<Limit> {
        let of_all = self.max_leaked.map(|most| Limit::bytes(Scope::All, most));
        let blocks = self.max_count.map(Limit::blocks);
        let by_kind = |limits: &[(Kind, u64)]| limits.iter().copied().collect::<BTreeMap<Kind, u64>>().into_iter();
        let kinds = by_kind(&self.max_kind).map(|(kind, most)| Limit::bytes(Scope::Kind(kind), most));
        let objects = by_kind(&self.max_objects).map(|(kind, most)| Limit::objects(kind, most));
        let site = self.max_per_site.map(|most| Limit::bytes(Scope::Site, most));
        let sums = of_all.into_iter().chain(blocks).chain(kinds).chain(objects);
        sums.chain(self.budget.iter().cloned()).chain(site).collect()
    }

    /// The rules without the baseline, for a baseline that is about to be written.
    ///
    /// # Errors
    /// See [`RuleArgs::rules`].
    pub fn without_baseline(&self) -> Result<Rules, Failure> {
        self.contradictions()?;
        let suppressions = read_suppressions(&self.suppressions, !self.no_builtin_suppressions)
            .map_err(|failure| self.defaults.named(self.defaults.suppressions, failure))?;
        Ok(Rules {
            limits: Limits {
                given: self.limits(),
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
        let text =
            read_rules(path).map_err(|error| Failure::new(format!("{shown}: suppressions cannot be read: {error}")))?;
        suppressions
            .add(&text, &shown)
            .map_err(|error| Failure::new(error.to_string()))?;
    }
    if built_in {
        suppressions.add_built_in();
    }
    Ok(suppressions)
}

/// Suppressions for commands that suppress nothing, not even the built-in list, unless a file is named.
///
/// # Errors
/// See [`read_suppressions`].
pub fn suppressions_if_any(files: &[PathBuf], not_built_in: bool) -> Result<Suppressions, Failure> {
    match files {
        [] => Ok(Suppressions::default()),
        files => read_suppressions(files, !not_built_in),
    }
}

/// Keeps this command from replacing a file that it reads.
pub(super) fn protect(path: &Path) {
    if let Ok(metadata) = path.metadata() {
        output::protect(&metadata);
    }
}

/// The fields that identify a JSON file.
#[derive(Deserialize)]
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
    protect(path);
    let bytes = fs::read(path).map_err(|error| {
        let next = match error.kind() {
            io::ErrorKind::NotFound => "; make it with --update-baseline",
            _ => "",
        };
        Failure::new(format!("{shown}: the baseline cannot be read: {error}{next}"))
    })?;
    let envelope: Option<Envelope> = serde_json::from_slice(&bytes).ok();
    let Some(Envelope { version, .. }) = envelope.filter(|e| e.format.as_deref() == Some(baseline::FORMAT)) else {
        // A snapshot or a recording serves as a baseline too. Its reader reports what is wrong with any other file.
        let mut item = load::read_already(path, &bytes)?;
        load::at::find(&mut item, rules.at.as_ref(), &NameArgs::default())?;
        check_baseline(&item, rules)?;
        return Ok(baseline_of(&item.snapshot, rules));
    };
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

/// `KEY=SIZE`; the key may contain equals signs.
fn key_and_size(text: &str) -> Result<(&str, u64), String> {
    let (key, size) = text.rsplit_once('=').ok_or("expected NAME=SIZE, e.g. pinned=1GiB")?;
    Ok((key, units::parse_size(size)?))
}

fn parse_kind_limit(text: &str) -> Result<(Kind, u64), String> {
    let (kind, size) = key_and_size(text)?;
    Ok((parse_memory_kind(kind)?, size))
}

fn parse_object_limit(text: &str) -> Result<(Kind, u64), String> {
    let (kind, count) = text.rsplit_once('=').ok_or("expected KIND=N, e.g. stream=64")?;
    let kind = parse_object_kind(kind)?;
    let count = count.trim().parse();
    let count = count.map_err(|_| format!("expected a number of objects after {}=, e.g. 64", kind.name()))?;
    Ok((kind, count))
}

/// A parser of limits by kind; completions offer the kinds.
#[derive(Debug, Clone)]
struct LimitParser {
    kinds: fn() -> Vec<Kind>,
    parse: fn(&str) -> Result<(Kind, u64), String>,
}

/// `KIND=SIZE`.
const KIND_LIMIT: LimitParser = LimitParser {
    kinds: || Kind::of_memory().collect(),
    parse: parse_kind_limit,
};

/// `KIND=N`.
const OBJECT_LIMIT: LimitParser = LimitParser {
    kinds: || Kind::objects().collect(),
    parse: parse_object_limit,
};

impl TypedValueParser for LimitParser {
    type Value = (Kind, u64);

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<(Kind, u64), clap::Error> {
        let parse = self.parse;
        let parser = StringValueParser::new().try_map(move |text| parse(&text));
        parser.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let value = |kind: Kind| PossibleValue::new(format!("{}=", kind.name()));
        Some(Box::new((self.kinds)().into_iter().map(value)))
    }
}

fn parse_budget(text: &str) -> Result<Limit, String> {
    let (pattern, bytes) = key_and_size(text)?;
    let pattern = parse_pattern(pattern)?;
    Ok(Limit::bytes(Scope::Pattern(pattern), bytes))
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
    PossibleValuesParser::new(FAILING).try_map(|text| parse_fail_on(&text))
}

const FAILING: [&str; 8] = [
    "new",
    "grown",
    "any",
    "lost",
    "cycle",
    "native-holder",
    "over-counted",
    "outlier",
];

pub fn parse_fail_on(text: &str) -> Result<Failing, String> {
    let class = Class::from_name(text).filter(|&class| class != Class::Held);
    match text {
        "new" => Ok(Failing::AgainstBaseline(FailOn::New)),
        "grown" => Ok(Failing::AgainstBaseline(FailOn::Grown)),
        "any" => Ok(Failing::AgainstBaseline(FailOn::Any)),
        "outlier" => Ok(Failing::Outlier),
        _ => class
            .map(Failing::Class)
            .ok_or_else(|| format!("expected one of {}", FAILING.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_is_in_the_list() {
        #[derive(clap::Parser)]
        struct Alone {
            #[command(flatten)]
            rules: RuleArgs,
        }
        let command = <Alone as clap::CommandFactory>::command();
        let mut names: Vec<_> = command
            .get_arguments()
            .map(|argument| argument.get_id().as_str())
            .collect();
        names.retain(|name| !matches!(*name, "help" | "version"));
        assert_eq!(names, RULE_OPTIONS);
    }

    #[test]
    fn limits_that_nothing_could_break_and_two_limits_of_one_kind_are_refused() {
        let refused = |kind: &[Kind], max_kind: &[(Kind, u64)], max_objects: &[(Kind, u64)]| {
            let rules = RuleArgs {
                kind: kind.to_vec(),
                max_kind: max_kind.to_vec(),
                max_objects: max_objects.to_vec(),
                ..RuleArgs::default()
            };
            rules.rules().err().map(|failure| failure.message).unwrap_or_default()
        };
        let pinned = [(Kind::HostPinned, 0)];
        assert_eq!(refused(&[], &pinned, &[]), "");
        assert_eq!(refused(&[Kind::Device, Kind::HostPinned], &pinned, &[]), "");
        let excluded = refused(&[Kind::Device], &pinned, &[]);
        assert!(
            excluded.starts_with("--max-kind pinned: ") && excluded.contains("add --kind pinned, or"),
            "{excluded}"
        );
        // Claims are judged only if they are named.
        let claim = refused(&[], &[(Kind::Reserved, 0)], &[]);
        assert!(
            claim.contains("not judged") && claim.ends_with("add --kind reserved"),
            "{claim}"
        );
        let twice = refused(&[], &[(Kind::Device, 1), (Kind::Device, 2)], &[]);
        assert!(twice.starts_with("--max-kind device: two limits"), "{twice}");
        let twice = refused(&[], &[], &[(Kind::Stream, 1), (Kind::Stream, 1)]);
        assert!(twice.starts_with("--max-objects stream: two limits"), "{twice}");
    }

    #[test]
    fn sizes_with_names_and_percentages_parse() {
        assert_eq!(parse_kind_limit("pinned=1GiB"), Ok((Kind::HostPinned, 1 << 30)));
        let budget = parse_budget("operator==*=2k").expect("a budget");
        assert_eq!((&*budget.of.words(), budget.most), (" in operator==*", 2048));
        assert_eq!(parse_tolerance("5 %"), Ok(Tolerance::Percent(5.0)));
        assert_eq!(parse_tolerance("1MiB"), Ok(Tolerance::Bytes(1 << 20)));
        assert_eq!(parse_object_limit("graph-exec=0"), Ok((Kind::GraphExec, 0)));
        assert_eq!(parse_object_limit("pool=3"), Ok((Kind::Pool, 3)));
        for (text, part) in [
            ("tape=1", "unknown kind of object; expected one of: pool,"),
            (
                "device=1",
                "device is memory, whose limit is a size: --max-kind device=SIZE",
            ),
            ("stream", "expected KIND=N"),
            ("stream=1MiB", "expected a number of objects after stream="),
            ("stream=-1", "expected a number"),
        ] {
            let error = parse_object_limit(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        let error = parse_kind_limit("stream=1").expect_err("an object");
        assert!(error.contains("--max-objects stream=N"), "{error}");
        assert!(parse_kind_limit("tape=1").is_err() && parse_budget("*=1").is_err());
        for text in ["-1%", "inf%", "%", "much"] {
            assert!(parse_tolerance(text).is_err(), "{text}");
        }
    }
}
