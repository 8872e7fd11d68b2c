//! The environment variables that make the preload library load and record; computed here, set by `run` and `live`.
//!
//! Only the variables named here change, and libraries already in `LD_PRELOAD` stay in it. Deliberately absent:
//! `LD_LIBRARY_PATH`; a recorder must not change which libraries a program finds.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use culeak::format::{TIMELINE_MAX, TIMELINE_MIN};
use culeak::variables::{self, Mistake};

use super::RecordArgs;
use crate::errors::Failure;
use crate::load::in_folder;
use crate::load::incomplete::tag_part;
use crate::text::units;

/// A variable that an option sets, and its value.
pub type Variable = (&'static str, String);

/// Parses one value of `--snapshot`.
///
/// # Errors
/// The message has the syntax.
pub fn parse_snapshot(text: &str) -> Result<Variable, String> {
    let (when, value) = text.split_once(':').unwrap_or((text, ""));
    match (when, value) {
        ("oom", number) => match number.parse::<u32>() {
            Ok(number) if number <= 64 => Ok(("CULEAK_OOM_SNAPSHOTS", number.to_string())),
            _ => Err("expected a number from 0 to 64 after oom:, such as oom:3".to_owned()),
        },
        ("peak", step) => match units::parse_size(step)? {
            0 => Err("0 takes no snapshot; give the size by which a peak must rise, such as peak:64MiB".to_owned()),
            step => Ok(("CULEAK_SNAPSHOT_AT_PEAK", step.to_string())),
        },
        ("mark", "") => Ok((SNAPSHOT_AT_MARK, "1".to_owned())),
        ("every", time) => Ok((
            "CULEAK_SNAPSHOT_EVERY",
            units::parse_duration(time)?.as_secs_f64().to_string(),
        )),
        _ => Err("expected oom:N, peak:SIZE, mark or every:TIME".to_owned()),
    }
}

pub const SNAPSHOT_AT_MARK: &str = "CULEAK_SNAPSHOT_AT_MARK";

/// A value of `--record`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Recorded {
    /// NVTX ranges as phases, NVTX marks, and blocks of NVTX's memory extension; --timeline includes it
    Nvtx,
    /// Each XLA buffer of JAX; waits until the memory of each buffer exists
    Jax,
    /// Libraries opened with RTLD_DEEPBIND or dlmopen: the loader asks an audit library (LD_AUDIT) about each binding
    Audit,
    /// Only Python frames for tensors and other blocks of frameworks, which costs less
    PythonFrames,
    /// No Python frames
    NativeFrames,
}

pub fn parse_timeline(text: &str) -> Result<u64, String> {
    match units::parse_size(text)? {
        size if size < TIMELINE_MIN => Err("too small; the smallest log is 8MiB".to_owned()),
        size if size > TIMELINE_MAX => Err("too large; the largest log is 4GiB".to_owned()),
        size => Ok(size),
    }
}

/// The settings of one run.
#[derive(Debug)]
pub struct Settings<'a> {
    pub shim: &'a Path,
    /// The library that notices the end of a script.
    pub hold: Option<&'a Path>,
    /// The library that the loader asks about bindings.
    pub audit: Option<&'a Path>,
    /// Absolute folder for the recordings.
    pub folder: &'a Path,
    /// Part of the name of every recording of this run, so that concurrent runs can share a folder.
    pub tag: &'a str,
    pub record: &'a RecordArgs,
    /// The program is linked to a shared AddressSanitizer runtime.
    pub address_sanitizer: bool,
    /// The file in which the library records facts about the run.
    pub proof: Option<OsString>,
}

/// A variable to set, or to remove (`None`).
pub type Change = (&'static str, Option<OsString>);

/// The changes to the environment; `present` looks up a current value.
pub fn changes(settings: &Settings, present: impl Fn(&str) -> Option<OsString>) -> Vec<Change> {
    fn text(value: Option<impl ToString>) -> Option<OsString> {
        value.map(|value| value.to_string().into())
    }
    let record = settings.record;
    let preloaded = preload(settings.shim, settings.hold, present("LD_PRELOAD").as_deref());
    let stacks = [(Recorded::PythonFrames, "python"), (Recorded::NativeFrames, "native")];
    let stacks = stacks.into_iter().find(|(frames, _)| record.records(*frames));
    // Without an option, the user's own variable applies.
    let chosen = |name: &'static str, value: Option<OsString>| (name, value.or_else(|| present(name)));
    let mut changes = vec![
        ("LD_PRELOAD", Some(preloaded)),
        ("CULEAK_OUTPUT", Some(pattern(settings.folder, settings.tag))),
        chosen("CULEAK_DEPTH", text(record.depth)),
        chosen("CULEAK_SAMPLE", text(record.sample)),
        chosen("CULEAK_STACK_RATE", text(record.stack_rate)),
        chosen("CULEAK_STACKS", text(stacks.map(|(_, value)| value))),
        ("CULEAK_ONLY", text(record.only.as_ref())),
        ("CULEAK_PARENT", text(record.no_follow_children.then(std::process::id))),
        chosen(
            "CULEAK_JAX_BUFFERS",
            text(record.records(Recorded::Jax).then_some("addresses")),
        ),
        chosen("CULEAK_TIMELINE", text(record.timeline)),
        ("CULEAK_QUIET", Some("1".into())),
        ("CULEAK_RUN", settings.proof.clone()),
        ("CULEAK_DISABLE", None),
    ];
    changes.extend(record.snapshot.iter().map(|(name, value)| (*name, Some(value.into()))));
    if let Some(audit) = settings.audit {
        changes.push(("LD_AUDIT", Some(preload(audit, None, present("LD_AUDIT").as_deref()))));
    }
    if wants_nvtx(settings, &present) && other_nvtx_tool(settings, &present).is_none() {
        // The path of the preloaded file, so that the loader returns the loaded copy.
        changes.push((NVTX_TOOL, Some(settings.shim.into())));
    }
    if settings.address_sanitizer {
        // The ASan runtime refuses to start after another preloaded library. The two libraries replace different functions, so
        // the order does not matter. Preloading the runtime first instead would load it into every child process.
        let mut options = present("ASAN_OPTIONS").unwrap_or_default();
        if !options.is_empty() {
            options.push(":");
        }
        options.push("verify_asan_link_order=0");
        changes.push(("ASAN_OPTIONS", Some(options)));
    }
    changes
}

/// NVTX loads the library that this variable names.
const NVTX_TOOL: &str = "NVTX_INJECTION64_PATH";

/// With a timeline, ranges and marks of NVTX are wanted too: phases have figures then.
fn wants_nvtx(settings: &Settings, present: impl Fn(&str) -> Option<OsString>) -> bool {
    let has_timeline = settings.record.timeline.is_some() || present("CULEAK_TIMELINE").is_some();
    settings.record.records(Recorded::Nvtx) || has_timeline
}

/// The user's own tool, which takes precedence: NVTX supports one.
fn other_nvtx_tool(settings: &Settings, present: impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    present(NVTX_TOOL).filter(|tool| !tool.is_empty() && tool != settings.shim.as_os_str())
}

/// Why NVTX's ranges, marks and blocks are not recorded although they are wanted.
pub fn without_nvtx(settings: &Settings, present: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let tool = other_nvtx_tool(settings, &present).filter(|_| wants_nvtx(settings, &present))?;
    Some(format!(
        "NVTX ranges, marks and blocks are not recorded: NVTX_INJECTION64_PATH names another tool, {}, which is kept; unset it to \
         record them",
        tool.display()
    ))
}

/// Refuses `CULEAK_` variables with a wrong name or value before the program starts.
///
/// # Errors
/// Lists every such variable, and the values it allows.
pub fn examine(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<(), Failure> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut mistakes: Vec<String> = variables
        .filter_map(
            |(name, value)| match variables::mistake(name.as_bytes(), value.as_bytes())? {
                Mistake::Value { variable, value } => {
                    let allowed = variable.values.allowed().concat();
                    Some(format!("{}={}: expected {allowed}", variable.name(), text(value)))
                }
                Mistake::Name { name, similar } => Some(match similar {
                    Some(variable) => format!("{}: unknown variable; did you mean {}?", text(name), variable.name()),
                    None => format!("{}: unknown variable; `culeak help environment` lists them", text(name)),
                }),
            },
        )
        .collect();
    mistakes.sort();
    match mistakes.as_slice() {
        [] => Ok(()),
        mistakes => Err(Failure::new(format!(
            "environment: {}; correct or unset {}",
            mistakes.join("; "),
            if mistakes.len() == 1 { "it" } else { "them" }
        ))),
    }
}

/// Refuses two automatic snapshots of one kind, and frames of one language only, of both.
///
/// # Errors
/// Says which.
pub fn suits_lists(record: &RecordArgs) -> Result<(), Failure> {
    let mut seen = BTreeSet::new();
    if !record.snapshot.iter().all(|(name, _)| seen.insert(name)) {
        return Err(Failure::new(
            "--snapshot: one of the values is given twice; keep one of them",
        ));
    }
    match record.records(Recorded::PythonFrames) && record.records(Recorded::NativeFrames) {
        true => Err(Failure::new(
            "--record: python-frames and native-frames exclude each other; leave out both to record all frames",
        )),
        false => Ok(()),
    }
}

/// Refuses sampled stacks together with what needs the stack of every block. `0` samples nothing.
///
/// # Errors
/// Names both, and what to leave out.
pub fn suits_sampling(
    sample: Option<u64>,
    timeline: Option<u64>,
    present: impl Fn(&str) -> Option<OsString>,
) -> Result<(), Failure> {
    let is_set = |name: &str| present(name).is_some_and(|value| !value.is_empty() && value != "0");
    let sampling = match sample {
        Some(0) => return Ok(()),
        Some(_) => "--sample",
        None if is_set("CULEAK_SAMPLE") => "CULEAK_SAMPLE",
        None => return Ok(()),
    };
    let needs_all = match timeline {
        Some(_) => "--timeline",
        None if is_set("CULEAK_TIMELINE") => "CULEAK_TIMELINE",
        None if is_set("CULEAK_INTERVALS") => "CULEAK_INTERVALS",
        None => return Ok(()),
    };
    Err(Failure::new(format!(
        "{sampling}: {needs_all} needs the stack of every block; leave out one of the two"
    )))
}

/// Puts the shim first, since the first definition of a symbol wins, but after AddressSanitizer, which must come first.
fn preload(shim: &Path, hold: Option<&Path>, present: Option<&OsStr>) -> OsString {
    let ours: Vec<&[u8]> = [Some(shim), hold].into_iter().flatten().map(bytes_of).collect();
    let present = present.map(OsStr::as_bytes).unwrap_or_default();
    let separator = |byte: &u8| matches!(byte, b':' | b' ' | b'\t' | b'\n');
    let others = present
        .split(separator)
        .filter(|&name| !name.is_empty() && !ours.contains(&name));
    let mut names: Vec<&[u8]> = others.collect();
    let sanitizer = names.iter().rposition(|name| is_address_sanitizer(name));
    let place = sanitizer.map_or(0, |index| index + 1);
    names.splice(place..place, ours);
    OsString::from_vec(names.join(&b':'))
}

fn bytes_of(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// The libraries in `LD_PRELOAD` in the order of symbol look-up, for a message; `None` if ours are alone.
pub fn order_beside_others(list: &OsStr, hold: Option<&Path>) -> Option<String> {
    let ours = 1 + usize::from(hold.is_some());
    let list = list.to_str().filter(|list| list.split(':').count() > ours)?;
    Some(list.replace(':', ", "))
}

pub fn is_address_sanitizer(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    name.starts_with(b"libasan.so") || name.starts_with(b"libclang_rt.asan")
}

/// The pattern of file names: program, tag, host and pid. A `%` in the folder's name is doubled.
fn pattern(folder: &Path, tag: &str) -> OsString {
    let mut pattern = Vec::new();
    // `runs/` is `runs`, so that no path has two slashes.
    let folder: PathBuf = folder.components().collect();
    let folder = match folder.as_os_str().as_bytes() {
        b"/" => b"",
        folder => folder,
    };
    for &byte in folder {
        pattern.extend(std::iter::repeat_n(byte, if byte == b'%' { 2 } else { 1 }));
    }
    pattern.extend_from_slice(format!("/%e{}%h.%p.culeak", tag_part(tag)).as_bytes());
    OsString::from_vec(pattern)
}

/// The file names of this run's recordings, sorted.
pub fn recordings(folder: &Path, tag: &str) -> Vec<OsString> {
    let part = tag_part(tag);
    let paths = in_folder(folder, |name| name.contains(&part) && name.ends_with(".culeak"));
    paths
        .iter()
        .filter_map(|path| Some(path.file_name()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::fs;

    fn settings() -> Settings<'static> {
        Settings {
            shim: Path::new("/cache/libculeak.so"),
            hold: None,
            audit: None,
            folder: Path::new("/out"),
            tag: "k3f9",
            record: Box::leak(Box::default()),
            address_sanitizer: false,
            proof: None,
        }
    }

    fn changed(settings: &Settings, present: &[(&str, &str)]) -> HashMap<&'static str, Option<String>> {
        let present: HashMap<&str, OsString> = present.iter().map(|&(name, value)| (name, value.into())).collect();
        let changes = changes(settings, |name| present.get(name).cloned());
        changes
            .into_iter()
            .map(|(name, value)| (name, value.map(|value| value.into_string().expect("text"))))
            .collect()
    }

    fn preloaded(present: &str) -> String {
        preload(Path::new("/cache/libculeak.so"), None, Some(OsStr::new(present)))
            .into_string()
            .expect("text")
    }

    #[test]
    fn an_existing_preload_stays_and_the_shim_comes_first() {
        assert_eq!(preloaded(""), "/cache/libculeak.so");
        assert_eq!(
            preloaded("/lib/a.so /lib/b.so"),
            "/cache/libculeak.so:/lib/a.so:/lib/b.so"
        );
    }

    #[test]
    fn the_order_beside_other_libraries_is_reported() {
        let reported = |present| order_beside_others(OsStr::new(&preloaded(present)), None);
        assert_eq!(reported("").as_deref(), None);
        assert_eq!(reported("/lib/a.so").as_deref(), Some("/cache/libculeak.so, /lib/a.so"));
    }

    #[test]
    fn another_audit_library_stays() {
        let settings = Settings {
            audit: Some(Path::new("/cache/libculeak-audit.so")),
            ..settings()
        };
        let of = |present: &[(&str, &str)]| changed(&settings, present)["LD_AUDIT"].clone().expect("set");
        assert_eq!(of(&[]), "/cache/libculeak-audit.so");
        assert_eq!(of(&[("LD_AUDIT", "/lib/a.so")]), "/cache/libculeak-audit.so:/lib/a.so");
    }

    #[test]
    fn nested_runs_preload_once() {
        assert_eq!(
            preloaded("/lib/a.so:/cache/libculeak.so"),
            "/cache/libculeak.so:/lib/a.so"
        );
    }

    #[test]
    fn the_library_that_notices_the_end_follows_the_shim() {
        let hold = Some(Path::new("/cache/libculeak-hold.so"));
        let of = |present| preload(Path::new("/cache/libculeak.so"), hold, Some(OsStr::new(present)));
        assert_eq!(of(""), "/cache/libculeak.so:/cache/libculeak-hold.so");
        let beside = of("/lib/libasan.so.8:/lib/b.so:/cache/libculeak-hold.so");
        assert_eq!(
            beside,
            "/lib/libasan.so.8:/cache/libculeak.so:/cache/libculeak-hold.so:/lib/b.so"
        );
        assert_eq!(order_beside_others(&of(""), hold), None);
        assert!(order_beside_others(&beside, hold).is_some());
    }

    #[test]
    fn the_sanitizer_stays_in_front() {
        assert_eq!(
            preloaded("/usr/lib/libasan.so.8:/lib/b.so"),
            "/usr/lib/libasan.so.8:/cache/libculeak.so:/lib/b.so"
        );
    }

    #[test]
    fn a_sanitized_program_keeps_its_options() {
        let settings = Settings {
            address_sanitizer: true,
            ..settings()
        };
        let changed = changed(&settings, &[("ASAN_OPTIONS", "detect_leaks=0")]);
        assert_eq!(
            changed["ASAN_OPTIONS"].as_deref(),
            Some("detect_leaks=0:verify_asan_link_order=0")
        );
    }

    #[test]
    fn settings_of_an_outer_run_do_not_reach_an_inner_one() {
        let outer = [
            ("CULEAK_PARENT", "1"),
            ("CULEAK_ONLY", "x"),
            ("CULEAK_DISABLE", "1"),
            ("CULEAK_RUN", "7:/tmp/outer"),
            ("CULEAK_DEPTH", "9"),
        ];
        let changed = changed(&settings(), &outer);
        assert_eq!(changed["CULEAK_PARENT"], None);
        assert_eq!(changed["CULEAK_ONLY"], None);
        assert_eq!(changed["CULEAK_DISABLE"], None);
        assert_eq!(changed["CULEAK_RUN"], None);
        assert_eq!(
            changed["CULEAK_DEPTH"].as_deref(),
            Some("9"),
            "the user's own default applies"
        );
    }

    #[test]
    fn snapshot_options_become_variables() {
        let snapshots = ["oom:0", "peak:1MiB", "mark", "every:500ms"];
        let snapshots = snapshots.iter().map(|text| parse_snapshot(text).expect(text));
        let settings = Settings {
            record: &RecordArgs {
                snapshot: snapshots.collect(),
                record: vec![Recorded::Nvtx, Recorded::PythonFrames],
                ..RecordArgs::default()
            },
            ..settings()
        };
        let changed = changed(&settings, &[("CULEAK_OOM_SNAPSHOTS", "9")]);
        let set = |name: &str| changed[name].as_deref().unwrap_or("unset").to_owned();
        assert_eq!(set("CULEAK_OOM_SNAPSHOTS"), "0");
        assert_eq!(set("CULEAK_SNAPSHOT_AT_PEAK"), "1048576");
        assert_eq!(set("CULEAK_SNAPSHOT_AT_MARK"), "1");
        assert_eq!(set("CULEAK_SNAPSHOT_EVERY"), "0.5");
        assert_eq!(set("CULEAK_STACKS"), "python");
        assert_eq!(set("NVTX_INJECTION64_PATH"), "/cache/libculeak.so");
    }

    #[test]
    fn wrong_values_of_lists_are_refused_with_what_to_type() {
        for (text, part) in [
            ("oom", "such as oom:3"),
            ("oom:65", "from 0 to 64"),
            ("peak:0", "such as peak:64MiB"),
            ("mark:1", "expected oom:N, peak:SIZE, mark or every:TIME"),
            ("peek:1", "expected oom:N"),
        ] {
            let error = parse_snapshot(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(parse_snapshot("every:often").is_err() && parse_snapshot("peak").is_err());
        let refused = |snapshots: &[&str], record: &[Recorded]| {
            let args = RecordArgs {
                snapshot: snapshots.iter().map(|text| parse_snapshot(text).expect(text)).collect(),
                record: record.to_vec(),
                ..RecordArgs::default()
            };
            suits_lists(&args)
                .err()
                .map(|failure| failure.message)
                .unwrap_or_default()
        };
        assert_eq!(refused(&["oom:1", "mark"], &[Recorded::NativeFrames]), "");
        assert!(refused(&["oom:1", "oom:2"], &[]).contains("twice"));
        assert!(refused(&[], &[Recorded::NativeFrames, Recorded::PythonFrames]).contains("exclude each other"));
    }

    #[test]
    fn without_an_option_the_environment_applies() {
        let changed = changed(
            &settings(),
            &[
                ("CULEAK_SNAPSHOT_EVERY", "30"),
                ("CULEAK_JAX_BUFFERS", "1"),
                // Set by an outer run, and not meant for this one.
                ("CULEAK_ONLY", "sh"),
                ("CULEAK_PARENT", "7"),
            ],
        );
        let set = |name: &str| changed[name].as_deref().unwrap_or("unset").to_owned();
        assert!(!changed.contains_key("CULEAK_SNAPSHOT_EVERY"), "inherited");
        assert_eq!(set("CULEAK_JAX_BUFFERS"), "1");
        assert_eq!(
            (set("CULEAK_ONLY"), set("CULEAK_PARENT")),
            ("unset".into(), "unset".into())
        );
    }

    #[test]
    fn every_wrong_variable_is_reported_with_its_allowed_values() {
        let of = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(OsString, OsString)> = pairs.iter().map(|&(n, v)| (n.into(), v.into())).collect();
            examine(pairs.into_iter()).map_err(|failure| failure.to_string())
        };
        assert_eq!(
            of(&[("CULEAK_DEPTH", "64"), ("PATH", "x"), ("CULEAK_SNAPSHOT_EVERY", "1m")]),
            Ok(())
        );
        assert_eq!(
            of(&[("CULEAK_OUTPUTT", "x"), ("CULEAK_DEPTH", "abc")]),
            Err("environment: CULEAK_DEPTH=abc: expected a whole number from 1 to 256; \
                 CULEAK_OUTPUTT: unknown variable; did you mean CULEAK_OUTPUT?; correct or unset them"
                .to_owned())
        );
    }

    #[test]
    fn another_nvtx_tool_stays() {
        let settings = Settings {
            record: &RecordArgs {
                record: vec![Recorded::Nvtx],
                ..RecordArgs::default()
            },
            ..settings()
        };
        let changed = changed(&settings, &[("NVTX_INJECTION64_PATH", "/opt/nsight.so")]);
        assert!(!changed.contains_key("NVTX_INJECTION64_PATH"));
        let present = |tool: &'static str| move |name: &str| (name == "NVTX_INJECTION64_PATH").then(|| tool.into());
        let message = without_nvtx(&settings, present("/opt/nsight.so")).expect("a message");
        assert!(message.contains("/opt/nsight.so, which is kept"), "{message}");
        assert_eq!(without_nvtx(&settings, present("/cache/libculeak.so")), None);
    }

    #[test]
    fn a_timeline_records_nvtx_too() {
        let tool = |settings: &Settings, present: &[(&str, &str)]| {
            changed(settings, present)
                .get("NVTX_INJECTION64_PATH")
                .cloned()
                .flatten()
        };
        assert_eq!(tool(&settings(), &[]), None);
        let ours = Some("/cache/libculeak.so".to_owned());
        assert_eq!(tool(&settings(), &[("CULEAK_TIMELINE", "1GiB")]), ours);
    }

    #[test]
    fn percent_signs_in_the_folder_are_not_placeholders() {
        let settings = Settings {
            folder: Path::new("/out/100%p"),
            ..settings()
        };
        assert_eq!(
            changed(&settings, &[])["CULEAK_OUTPUT"].as_deref(),
            Some("/out/100%%p/%e.k3f9.%h.%p.culeak")
        );
    }

    #[test]
    fn recordings_of_other_runs_are_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in [
            "app.k3f9.host.7.culeak",
            "app.abcd.host.7.culeak",
            "app.k3f9.host.7.json",
            "a.k3f9.h.8.culeak",
        ] {
            fs::write(folder.path().join(name), b"").expect("written");
        }
        assert_eq!(
            recordings(folder.path(), "k3f9"),
            ["a.k3f9.h.8.culeak", "app.k3f9.host.7.culeak"]
        );
        assert!(recordings(Path::new("/nonexistent"), "k3f9").is_empty());
    }
}
