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

use culeak::analysis::check::{Breach, Judged, JudgedObjects, Standing, Verdict};
use culeak::analysis::job::identity;
use culeak::analysis::site::{CallStack, Fingerprint, Frame};
use culeak::snapshot::Class;

use crate::document::counted;
use crate::escape::Escaped;
use crate::text;
use crate::text::check::{allows_nothing, judges_only_classes, reason};
use crate::text::parts;
use crate::text::units;

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
    /// Objects without an address, of a kind that is over its limit.
    Objects,
    /// Blocks of a class that must not exist.
    Held(Class),
    /// A process that holds more than the others.
    Outlier,
    /// Something that a rule speaks of was not seen.
    Incomplete,
}

impl Kind {
    /// What the finding is about, for titles.
    pub fn subject(self) -> &'static str {
        match self {
            Kind::Objects => "CUDA objects",
            _ => "GPU memory",
        }
    }

    pub const ALL: [Kind; 11] = [
        Kind::Leak,
        Kind::New,
        Kind::Grown,
        Kind::Limit,
        Kind::Incomplete,
        Kind::Objects,
        Kind::Held(Class::Lost),
        Kind::Held(Class::Cycle),
        Kind::Held(Class::NativeHolder),
        Kind::Held(Class::OverCounted),
        Kind::Outlier,
    ];

    /// The machine-readable name.
    pub fn id(self) -> &'static str {
        match self {
            Kind::Leak => "gpu-memory-leak",
            Kind::New => "gpu-memory-leak-new",
            Kind::Grown => "gpu-memory-leak-grown",
            Kind::Limit => "gpu-memory-over-limit",
            Kind::Objects => "gpu-objects-over-limit",
            Kind::Held(Class::Lost) => "gpu-memory-lost",
            Kind::Held(Class::Cycle) => "gpu-memory-cycle",
            Kind::Held(Class::NativeHolder) => "gpu-memory-native-holder",
            Kind::Held(Class::OverCounted) => "gpu-memory-over-counted",
            Kind::Held(Class::Held) => "gpu-memory-held",
            Kind::Outlier => "gpu-memory-outlier",
            Kind::Incomplete => "gpu-memory-recording-incomplete",
        }
    }

    pub fn description(self) -> &'static str {
        match self {
            Kind::Leak => "CUDA memory is never freed.",
            Kind::New => "CUDA memory is never freed, at a call site that the baseline does not have.",
            Kind::Grown => "A known call site holds more memory than the baseline allows.",
            Kind::Limit => "All call sites together hold more memory than allowed.",
            Kind::Objects => "There are more CUDA objects of a kind than allowed.",
            Kind::Held(Class::Lost) => "No pointer to CUDA memory is left in the process.",
            Kind::Held(Class::Cycle) => "CUDA memory is held by Python objects that only refer to each other.",
            Kind::Held(Class::NativeHolder) => "CUDA memory is held by native code through a Python object.",
            Kind::Held(Class::OverCounted) => "CUDA memory is held by a reference that was never released.",
            Kind::Held(Class::Held) => "CUDA memory is held by a variable.",
            Kind::Outlier => "A process holds more CUDA memory than the other processes of its job.",
            Kind::Incomplete => "Something that a rule speaks of was not seen, so the absence of leaks is not proven.",
        }
    }
}

/// `rank 5`, for titles among those of other processes.
pub fn rank_of(verdict: &Verdict) -> Option<String> {
    let rank = identity::rank_of(verdict.process.ranks)?;
    Some(format!("rank {rank}"))
}

pub struct Finding<'v, 'a> {
    pub kind: Kind,
    /// One line, without the place.
    pub title: String,
    /// The call site, for findings that have one.
    pub stack: Option<&'v CallStack<'a>>,
    pub fingerprint: Option<Fingerprint>,
}

impl<'a> Finding<'_, 'a> {
    /// The first frame with a file below the root, and the file's relative path.
    pub fn line_in(&self, root: &SourceRoot) -> Option<(String, &Frame<'a>)> {
        let frames = self.stack.into_iter().flat_map(|stack| stack.shown());
        let mut found = frames.filter_map(|frame| Some((root.relative(frame.file?)?, frame)));
        found.next()
    }
}

/// `32 MiB in 3 blocks leaked by Cache::fill`.
pub fn title(judged: &Judged, verdict: &Verdict) -> String {
    let word = if verdict.finished { "leaked" } else { "held" };
    let tally = culeak::analysis::report::Tally {
        bytes: judged.row.bytes,
        count: judged.row.count,
    };
    let grown = match (judged.standing, judged.known) {
        (Some(Standing::Grown), Some(known)) => format!(", {} in the baseline", units::bytes(known.bytes)),
        (Some(Standing::New), _) => ", not in the baseline".to_owned(),
        _ => String::new(),
    };
    let mark = parts::mark(&judged.row);
    format!(
        "{} {word} by {}{mark}{grown}",
        parts::tally_about(tally, judged.row.estimated),
        parts::name(&judged.row.label)
    )
}

/// `40 graph-exec  Server::decode  server.cu:88`, and how it differs from the baseline.
pub fn title_of_objects(of: &JudgedObjects) -> String {
    let title = text::objects::title(&of.row);
    match (of.standing, of.known) {
        (Some(Standing::Grown), Some(known)) => format!("{title}, {} in the baseline", units::count(known)),
        (Some(Standing::New), _) => title + ", not in the baseline",
        _ => title,
    }
}

pub fn findings<'v, 'a>(verdict: &'v Verdict<'a>) -> Vec<Finding<'v, 'a>> {
    let over_limits = verdict
        .rows
        .iter()
        .filter(|judged| judged.to_blame && !judged.only_by_class);
    let sites = over_limits.map(|judged| {
        let stack = judged.row.stacks.first().map(|stack| &stack.stack);
        Finding {
            kind: match judged.standing {
                Some(Standing::New) => Kind::New,
                Some(Standing::Grown) => Kind::Grown,
                _ => Kind::Leak,
            },
            title: title(judged, verdict),
            stack,
            fingerprint: stack.map(|stack| stack.loose_site_fingerprint),
        }
    });
    let word = if verdict.finished { "leaked" } else { "held" };
    let whole = verdict.breaches.iter().filter_map(|breach| {
        let kind = match breach {
            // Each call site is a separate finding.
            Breach::Count { .. } if allows_nothing(verdict) => return None,
            Breach::Bytes { .. } | Breach::Count { .. } | Breach::Kind { .. } | Breach::Budget { .. } => Kind::Limit,
            Breach::Objects { .. } => Kind::Objects,
            Breach::Outlier { key: None, .. } => Kind::Outlier,
            Breach::Outlier { .. } => return None,
            Breach::Site { .. }
            | Breach::New { .. }
            | Breach::Grown { .. }
            | Breach::NewObjects { .. }
            | Breach::GrownObjects { .. }
            | Breach::Class { .. } => return None,
        };
        let most = match breach {
            Breach::Objects { site, of_site, .. } => format!("; {} by {site}", units::count(*of_site)),
            _ => String::new(),
        };
        Some(Finding {
            kind,
            title: Escaped(&(reason(verdict, breach, word) + &most)).to_string(),
            stack: None,
            fingerprint: None,
        })
    });
    let classes = verdict.rows.iter().flat_map(|judged| by_class(judged, verdict));
    let objects = verdict.objects.iter().filter(|of| of.to_blame).map(|of| Finding {
        kind: Kind::Objects,
        title: title_of_objects(of),
        stack: Some(&of.row.stack),
        fingerprint: Some(of.row.stack.loose_site_fingerprint),
    });
    let unseen = verdict.unseen.iter().map(|unseen| Finding {
        kind: Kind::Incomplete,
        title: Escaped(&unseen.sentence()).to_string(),
        stack: None,
        fingerprint: None,
    });
    whole.chain(unseen).chain(sites).chain(classes).chain(objects).collect()
}

/// What of a call site fails although it is within limits: blocks by their class, one finding for each path, and memory that other
/// processes do not have.
pub fn by_class<'v, 'a>(judged: &'v Judged<'a>, verdict: &'v Verdict<'a>) -> Vec<Finding<'v, 'a>> {
    let Some(stack) = judged.row.stacks.first().map(|stack| &stack.stack) else {
        return Vec::new();
    };
    let word = if verdict.finished { "leaked" } else { "held" };
    let findings = verdict.breaches.iter().filter_map(|breach| match breach {
        Breach::Class { class, of, .. } if Some(*of) == judged.key() => Some(Finding {
            kind: Kind::Held(*class),
            title: Escaped(&reason(verdict, breach, word)).to_string(),
            stack: Some(stack),
            fingerprint: Some(stack.loose_site_fingerprint),
        }),
        Breach::Outlier { key: Some(key), .. } if Some(*key) == judged.key() => Some(Finding {
            kind: Kind::Outlier,
            title: Escaped(&reason(verdict, breach, word)).to_string(),
            stack: Some(stack),
            fingerprint: Some(stack.loose_site_fingerprint),
        }),
        _ => None,
    });
    findings.collect()
}

/// The visible frames of a stack, one per line.
pub fn stack_text(stack: &CallStack) -> String {
    let mut text = String::new();
    for frame in stack.shown() {
        let place = frame
            .place()
            .map(|place| format!("  {}", Escaped(&place)))
            .unwrap_or_default();
        text.push_str(&format!("{}{place}\n", Escaped(&frame.name())));
    }
    text
}

/// `failed: 32 MiB in 3 blocks leaked at 1 call site; 40 stream objects left at 2 call sites`.
pub fn summary(verdict: &Verdict) -> String {
    let word = if verdict.finished { "leaked" } else { "held" };
    let result = text::check::result(verdict.outcome);
    let config = verdict
        .config
        .iter()
        .map(|file| format!("; limits from {}", Escaped(file)));
    let config: String = config.collect();
    if judges_only_classes(verdict) {
        return format!("{result}: {}{config}", text::check::by_class(verdict, word));
    }
    let when = verdict.when.iter().map(|when| format!(" {},", Escaped(when)));
    let when: String = when.collect();
    let of_objects = (!verdict.limits.max_objects.is_empty()).then(|| {
        let prints: BTreeSet<Fingerprint> = verdict.objects.iter().map(|of| of.row.stack.site_fingerprint).collect();
        let sites = counted(prints.len(), "call site");
        format!("{}{when} at {sites}", text::check::judged_objects(verdict))
    });
    let of_memory = (!verdict.judges_only_objects()).then(|| {
        format!(
            "{} {word}{when} at {}",
            parts::tally_about(verdict.judged, verdict.judged_estimated),
            counted(verdict.rows.len(), "call site")
        )
    });
    let both: Vec<String> = of_memory.into_iter().chain(of_objects).collect();
    format!("{result}: {}{config}", both.join("; "))
}

#[cfg(test)]
mod tests;
