//! Verdicts in the formats of other tools.
//!
//! All formats are made from [`Finding`]s: one per failing call site, and one per exceeded limit on the total. A finding
//! points at the first frame of its stack whose file is below the [`SourceRoot`], because the reader can change that line.
//! Deliberately absent: the text for a terminal; see `text::check`.

pub mod github;
pub mod junit;
pub mod sarif;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::env;
use std::path::{Path, PathBuf};

use culeak::analysis::check::{Breach, Judged, Measure, Scope, Standing, Verdict};
use culeak::analysis::job::identity;
use culeak::analysis::site::{CallStack, Fingerprint, Frame, Line};
use culeak::snapshot::Class;
use culeak::table;

use crate::document::{self, counted};
use crate::escape::Escaped;
use crate::text;
use crate::text::check::sentences;
use crate::text::{parts, units};

/// Whether a file begins as a verdict in one of the formats of `check`, or is empty.
pub fn is_one(content: &[u8]) -> bool {
    let start = String::from_utf8_lossy(&content[..content.len().min(4096)]).into_owned();
    let has = |words: &[&str]| words.iter().all(|word| start.contains(word));
    let first = start.lines().next().unwrap_or_default();
    let outcome = first.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    let outcomes = ["passed: ", "failed: ", "no verdict: "];
    let is_sum = || {
        [" block", " object", " process"]
            .iter()
            .any(|word| first.contains(word))
    };
    content.is_empty()
        || outcomes.iter().any(|begin| outcome.starts_with(begin)) && is_sum()
        || has(&["culeak-check"])
        || has(&["<testsuites", "culeak check"])
        || has(&["sarif", "\"culeak\""])
        || first.starts_with("::") && String::from_utf8_lossy(content).contains("culeak check")
}

/// The folder that relative file names refer to.
pub struct SourceRoot {
    folder: PathBuf,
    /// A cache of look-ups: stacks share their frames.
    known: RefCell<HashMap<String, Option<String>>>,
}

/// Linux's limit on the length of a path.
const PATH_MAX: usize = 4096;

impl SourceRoot {
    /// The given folder; otherwise the checkout of a GitHub runner; otherwise the repository of the current folder.
    pub fn find(given: Option<&Path>) -> SourceRoot {
        let here = || env::current_dir().unwrap_or_default();
        let workspace = || {
            env::var_os("GITHUB_WORKSPACE")
                .filter(|path| !path.is_empty())
                .map(PathBuf::from)
        };
        let root = given.map(Path::to_owned).or_else(workspace).unwrap_or_else(|| {
            let here = here();
            let repository = here.ancestors().find(|folder| folder.join(".git").exists());
            repository.map(Path::to_owned).unwrap_or(here)
        });
        SourceRoot {
            folder: root.canonicalize().unwrap_or(root),
            known: RefCell::default(),
        }
    }

    /// The file's path relative to the root. A program built in another folder has other prefixes, so the longest suffix of
    /// its path that exists below the root counts as the same file.
    fn relative(&self, file: &str) -> Option<String> {
        if file.len() > PATH_MAX {
            return None;
        }
        let mut known = self.known.borrow_mut();
        if let Some(found) = known.get(file) {
            return found.clone();
        }
        let found = self.find_below(file);
        known.insert(file.to_owned(), found.clone());
        found
    }

    fn find_below(&self, file: &str) -> Option<String> {
        let path = Path::new(file);
        let below = path.strip_prefix(&self.folder).ok().map(Path::to_owned);
        let mut ends = path
            .components()
            .filter(|part| matches!(part, std::path::Component::Normal(_)));
        let found = below.filter(|path| self.folder.join(path).is_file()).or_else(|| {
            loop {
                let rest = ends.clone().collect::<PathBuf>();
                if rest.as_os_str().is_empty() {
                    return None;
                }
                if !file.contains("..") && self.folder.join(&rest).is_file() {
                    return Some(rest);
                }
                ends.next();
            }
        })?;
        Some(found.to_string_lossy().into_owned())
    }
}

/// The reason of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Leak,
    New,
    Grown,
    /// A limit on the total.
    Limit,
    /// Something that a rule speaks of was not seen.
    Incomplete,
    /// Objects without an address, of a kind that is over its limit.
    Objects,
    /// Blocks of a class that must not exist.
    Held(Class),
    /// A process that holds more than the others.
    Outlier,
}

impl Kind {
    /// What the finding is about, for titles.
    pub fn subject(self) -> &'static str {
        match self {
            Kind::Objects => "CUDA objects",
            _ => "GPU memory",
        }
    }

    /// The machine-readable name. No option makes blocks that something holds a failure.
    pub fn id(self) -> &'static str {
        let row = KINDS.iter().find(|(kind, ..)| *kind == self);
        row.map_or("gpu-memory-held", |(_, id, _)| id)
    }
}

/// Each kind, its machine-readable name and its description, in the order of the rules of SARIF.
pub const KINDS: [(Kind, &str, &str); 11] = table! {
    Kind::Leak, "gpu-memory-leak", "CUDA memory is never freed.";
    Kind::New, "gpu-memory-leak-new", "CUDA memory is never freed, at a call site that the baseline does not have.";
    Kind::Grown, "gpu-memory-leak-grown", "A known call site holds more memory than the baseline allows.";
    Kind::Limit, "gpu-memory-over-limit", "All call sites together hold more memory than allowed.";
    Kind::Incomplete, "gpu-memory-recording-incomplete",
        "Something that a rule speaks of was not seen, so the absence of leaks is not proven.";
    Kind::Objects, "gpu-objects-over-limit", "There are more CUDA objects of a kind than allowed.";
    Kind::Held(Class::Lost), "gpu-memory-lost", "No pointer to CUDA memory is left in the process.";
    Kind::Held(Class::Cycle), "gpu-memory-cycle", "CUDA memory is held by Python objects that only refer to each other.";
    Kind::Held(Class::NativeHolder), "gpu-memory-native-holder", "CUDA memory is held by native code through a Python object.";
    Kind::Held(Class::OverCounted), "gpu-memory-over-counted", "CUDA memory is held by a reference that was never released.";
    Kind::Outlier, "gpu-memory-outlier", "A process holds more CUDA memory than the other processes of its job.";
};

/// `rank 5`, for titles among those of other processes.
pub fn rank_of(verdict: &Verdict) -> Option<String> {
    let rank = identity::rank_of(verdict.process.ranks)?;
    Some(format!("rank {rank}"))
}

pub struct Finding<'v> {
    pub kind: Kind,
    /// One line, without the place. Escaped.
    pub title: String,
    /// The call site, for findings that have one.
    pub stack: Option<&'v CallStack<'v>>,
}

impl<'v> Finding<'v> {
    /// The call site, or else its first caller with a file below the root, or any frame, and the file's relative path.
    pub fn line_in(&self, root: &SourceRoot) -> Option<(String, &'v Frame<'v>)> {
        let outwards = |stack: &'v CallStack<'v>| stack.site().into_iter().chain(stack.callers()).chain(stack.shown());
        let frames = self.stack.into_iter().flat_map(outwards);
        let mut found = frames.filter_map(|frame| Some((root.relative(frame.file?)?, frame)));
        found.next()
    }
}

/// A row, and how it differs from the baseline.
fn beside_baseline(title: String, judged: &Judged) -> String {
    match (judged.standing, judged.known) {
        (Some(Standing::Grown), Some(known)) => {
            let measure = judged.row.measure();
            format!("{title}, {} in the baseline", measure.words(measure.of(known)))
        }
        (Some(Standing::New), _) => title + ", not in the baseline",
        _ => title,
    }
}

/// `32 MiB in 3 blocks leaked by Cache::fill; held by g_cache in app`, if what holds it is known.
pub fn title(judged: &Judged, verdict: &Verdict) -> String {
    let row = &judged.row;
    let (tally, verb) = (parts::tally_about(row.tally(), row.estimated), sentences::verb(verdict));
    let (name, mark) = (parts::name(&row.label), parts::mark(row));
    let title = beside_baseline(format!("{tally} {verb} by {name}{mark}"), judged);
    let held_by = sentences::held_by(&judged.row, verdict);
    title + &held_by.map(|held_by| format!("; {held_by}")).unwrap_or_default()
}

/// `40 graph-exec  Server::decode  server.cu:88`.
pub fn title_of_objects(of: &Judged) -> String {
    beside_baseline(text::objects::title(&of.row), of)
}

pub fn findings<'v>(verdict: &'v Verdict<'v>) -> Vec<Finding<'v>> {
    let whole = |kind, title: &str| Finding {
        kind,
        title: Escaped(title).to_string(),
        stack: None,
    };
    let totals = verdict.breaches.iter().filter_map(|breach| {
        let sentence = || sentences::reason(verdict, breach);
        match breach {
            // Each call site is a separate finding.
            Breach::Total(of) if of.limit.of == Scope::Site => None,
            Breach::Total(of) if verdict.allows_nothing() && of.limit.measure == Measure::Blocks => None,
            Breach::Total(of) => Some(match of.site.as_ref().zip(of.of_site) {
                None => whole(Kind::Limit, &sentence()),
                Some((site, most)) => {
                    let most = units::count(most);
                    whole(Kind::Objects, &format!("{}; {most} by {site}", sentence()))
                }
            }),
            Breach::Outlier(of) if of.key.is_none() => Some(whole(Kind::Outlier, &sentence())),
            Breach::Baseline(_) | Breach::Class(_) | Breach::Outlier(_) => None,
        }
    });
    let unseen = (verdict.unseen.iter()).map(|unseen| whole(Kind::Incomplete, &unseen.sentence()));
    let over_limits = (verdict.rows.iter()).filter(|judged| judged.to_blame && !judged.only_by_class);
    let sites = over_limits.map(|judged| Finding {
        kind: match judged.standing {
            Some(Standing::New) => Kind::New,
            Some(Standing::Grown) => Kind::Grown,
            _ => Kind::Leak,
        },
        title: title(judged, verdict),
        stack: Some(judged.row.stack()),
    });
    let apart = (verdict.rows.iter()).flat_map(|judged| apart_from_limits(judged, verdict));
    let objects = verdict.objects.iter().filter(|of| of.to_blame).map(|of| Finding {
        kind: Kind::Objects,
        title: title_of_objects(of),
        stack: Some(of.row.stack()),
    });
    totals.chain(unseen).chain(sites).chain(apart).chain(objects).collect()
}

/// What of a call site fails although it is within limits: blocks by their class, one finding for each path, and memory that other
/// processes do not have.
pub fn apart_from_limits<'v>(judged: &'v Judged<'v>, verdict: &'v Verdict<'v>) -> Vec<Finding<'v>> {
    let is_apart = |breach: &&Breach| breach.key_apart() == Some(judged.key());
    let findings = verdict.breaches.iter().filter(is_apart).map(|breach| Finding {
        kind: match breach {
            Breach::Class(of) => Kind::Held(of.class),
            _ => Kind::Outlier,
        },
        title: Escaped(&sentences::reason(verdict, breach)).to_string(),
        stack: Some(judged.row.stack()),
    });
    findings.collect()
}

/// The visible frames of a stack, one per line; a run of a library's frames is one line.
pub fn stack_text(stack: &CallStack) -> String {
    let line = |line: Line<&Frame>| match line {
        Line::Folded { library, frames } => format!("{}\n", document::folded(library, frames)),
        Line::Frame(frame) => {
            let place = frame.place().map(|place| format!("  {}", Escaped(&place)));
            format!("{}{}\n", Escaped(&frame.name()), place.unwrap_or_default())
        }
    };
    stack.folded().into_iter().map(line).collect()
}

/// `failed: 32 MiB in 3 blocks leaked at 1 call site; 40 stream objects left at 2 call sites`.
pub fn summary(verdict: &Verdict) -> String {
    let result = sentences::result(verdict.outcome);
    let config = verdict.config.iter();
    let config: String = config.map(|file| format!("; limits from {}", Escaped(file))).collect();
    if verdict.judges_only_classes() {
        return format!("{result}: {}{config}", sentences::by_class(verdict));
    }
    let when = verdict.when.iter().map(|when| format!(" {},", Escaped(when)));
    let when: String = when.collect();
    let mut found = Vec::new();
    if !verdict.judges_only_objects() {
        let judged = parts::tally_about(verdict.judged, verdict.judged_estimated);
        let sites = counted(verdict.rows.len(), "call site");
        found.push(format!("{judged} {}{when} at {sites}", sentences::verb(verdict)));
    }
    if verdict.limits.of_objects().next().is_some() {
        let prints: BTreeSet<Fingerprint> = verdict
            .objects
            .iter()
            .map(|of| of.row.stack().site_fingerprint)
            .collect();
        let sites = counted(prints.len(), "call site");
        found.push(format!("{}{when} at {sites}", sentences::judged_objects(verdict)));
    }
    let without_limit = sentences::without_limit([verdict]);
    format!("{result}: {}{without_limit}{config}", found.join("; "))
}

#[cfg(test)]
mod tests;
