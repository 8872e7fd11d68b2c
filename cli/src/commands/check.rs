//! `culeak check`: a verdict for scripts and CI.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use culeak::analysis::baseline::Baseline;
use culeak::analysis::check::{
    Outcome, Rules, Unseen, Verdict, baseline_of, fail_outliers, lacks_holders, missing_ranks, missing_ranks_here,
    of_running_process,
};
use culeak::analysis::job::identity::Identity;
use culeak::analysis::job::member::Member;
use culeak::analysis::program::Program;
use culeak::analysis::site::CallStack;
use culeak::analysis::suppressions::{BUILT_IN, Of, rule_for};
use culeak::point::Point;
use culeak::snapshot::{BY_READING, ProcessState};

use super::boundaries::BoundaryArgs;
use super::program::{self, ProgramArgs};
use crate::document::counted;
use crate::errors::{Failure, USAGE, exit_of};
use crate::escape::Escaped;
use crate::load::{self, Loaded, NameArgs, Place, Several, Sources, holders, incomplete};
use crate::options::format::{self, Format};
use crate::options::groups;
use crate::options::rules::{Failing, RuleArgs, check_baseline, is_baseline};
use crate::output::{self, Overwrite};
use crate::{json, launch, progress, text, verdict};

/// Fail if a process leaked more than allowed
#[derive(Debug, Args)]
#[command(mut_arg("force", |force| force.help("Accept a baseline of another program, and replace a file that is not a baseline or a verdict")))]
#[command(mut_args(groups::sort))]
#[command(group = ArgGroup::new("program").args(launch::ids::<ProgramArgs>()).multiple(true).conflicts_with("inputs"))]
#[command(override_usage = "\
culeak check [OPTIONS] <PID|RECORDING|SNAPSHOT>...
       culeak check [OPTIONS] -- <COMMAND>...")]
#[command(after_help = "\
Without limits, any leak fails; with limits, only leaks over a limit fail. With a baseline, new and grown leaks fail. \
Memory that was never freed is judged. For a Python script with a limit, a baseline or --since, it is the memory held when the script \
ended. --at chooses another point. Defaults can be set in a config file, culeak.toml: see culeak help config.

With -- COMMAND, the program is recorded as by culeak run, and the verdict is printed to standard error.

Exit codes: 0 no leak over the limit, 1 leak over the limit, 2 wrong usage, or no leak over the limit but unreadable input or no \
verdict. There is no verdict if something that a rule needs was not recorded; the output names it. The other inputs are still judged. \
With -- COMMAND the program's own, if it failed; 126 if it cannot be executed, 127 if it is not found.

Examples:
  culeak check app.culeak
  culeak check --allow 64MiB -- ./tests              record and judge
  culeak check app.culeak --allow 64MiB,graph-exec=64,stream=32
  culeak check rank0.culeak rank1.culeak runs/       all must pass
  culeak check --format junit --verdict-file leaks.xml -- ./tests
  culeak check runs/ --fail-on outlier               no rank may hold more than the others
  culeak check app.culeak --allow 64MiB --kind device
  culeak check app.culeak --allow 1GiB,leak:cache.py=512MiB
  culeak check app.culeak --suppressions app.supp --format github
  culeak check app.culeak --baseline leaks.json --update-baseline     write the baseline
  culeak check app.culeak --baseline leaks.json                       compare with the baseline
  culeak check app.culeak --at mark:asleep --same-as-last             nothing may be left by a round
  culeak check app.culeak --at mark:asleep --not-above 64MiB
  culeak check --why --fail-on lost,cycle -- python train.py")]
pub struct CheckArgs {
    /// Process ids, recordings, snapshots, folders of recordings or snapshots, patterns such as runs/*.culeak, or - for a
    /// snapshot or a list of these on standard input
    #[arg(
        value_name = "PID|RECORDING|SNAPSHOT",
        required_unless_present_any = ["print_suppressions", "command"]
    )]
    pub inputs: Vec<OsString>,
    #[command(flatten)]
    pub rules: RuleArgs,
    #[command(flatten)]
    pub boundary: BoundaryArgs,
    /// Write the current leaks to the file of --baseline, and pass
    #[arg(long, conflicts_with_all = ["tolerance", "fail_on", "allow", "command"])]
    pub update_baseline: bool,
    /// Print a suppression rule for each leaking call site, and for each with objects of a kind that is over its limit, instead of
    /// the verdict
    #[arg(long, conflicts_with_all = ["format", "json", "update_baseline", "command"])]
    pub gen_suppressions: bool,
    /// Print the built-in suppressions
    #[arg(long, conflicts_with_all = ["inputs", "command"])]
    pub print_suppressions: bool,
    /// Format of the verdict
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
    /// Short for --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    /// Write the verdict in this format to FILE, and print it as text; an older verdict is replaced
    #[arg(long, value_name = "FILE")]
    pub verdict_file: Option<PathBuf>,
    /// Root of the source tree, for formats that refer to source files [default: the repository of the current folder]
    #[arg(long, value_name = "DIR")]
    pub source_root: Option<PathBuf>,
    #[command(flatten)]
    pub names: NameArgs,
    #[command(flatten)]
    pub overwrite: Overwrite,
    #[command(flatten)]
    pub program: ProgramArgs,
    /// The program to record and judge, and its arguments
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "inputs")]
    pub command: Vec<OsString>,
}

pub fn execute(args: &CheckArgs) -> Result<ExitCode, Failure> {
    if args.print_suppressions {
        text::print(|out| write!(out, "{BUILT_IN}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.update_baseline && args.rules.baseline.is_none() {
        return Err(Failure::new(
            "--update-baseline: no baseline is given; add --baseline FILE, or set baseline in the config file",
        ));
    }
    if !args.rules.classes().is_empty() && args.boundary.is_given() {
        return Err(Failure::new(
            "--fail-on lost, cycle, native-holder and over-counted apply to the end or to a running process; leave them out, or the \
             options for marks",
        ));
    }
    args.boundary.suits(&args.rules)?;
    let rules = if args.update_baseline {
        args.rules.without_baseline()?
    } else {
        args.rules.rules()?
    };
    if args.command.is_empty() {
        return judge(args, &rules, &args.inputs, Vec::new()).map(ExitCode::from);
    }
    // Mistakes are reported before the program runs.
    if let Some(path) = &args.verdict_file {
        output::check_beside_program(path, args.overwrite)?;
    }
    let ended = program::record(&args.program, &args.command, Some(&args.rules))?;
    ended.finish(|recordings| {
        program::mention(recordings);
        judge(args, &rules, recordings, ended.unrecorded())
    })
}

/// If there will be no verdict, an older one must not pass for it.
pub fn remove_older_verdict(args: &CheckArgs) {
    let is_verdict = |path: &&PathBuf| path.is_file() && fs::read(path).is_ok_and(|content| verdict::is_one(&content));
    let Some(path) = args.verdict_file.as_ref().filter(is_verdict) else {
        return;
    };
    if let Err(error) = fs::remove_file(path) {
        let shown = path.display().to_string();
        progress::say(format_args!(
            "warning: {}: an older verdict, which could not be removed: {error}",
            Escaped(&shown)
        ));
    }
}

fn found(args: &CheckArgs, inputs: &[OsString]) -> Sources {
    match args.command.is_empty() {
        true => Sources::of_all(inputs),
        // What this run did not record is known.
        false => Sources::each(inputs),
    }
}

/// Judges these inputs, and returns the exit code if all must pass. `unrecorded`: what their program lacks besides.
fn judge(args: &CheckArgs, rules: &Rules, inputs: &[OsString], mut unrecorded: Vec<Unseen>) -> Result<u8, Failure> {
    if args.boundary.is_given() {
        return at_boundaries(args, rules, inputs, unrecorded);
    }
    let Several {
        items: mut loaded,
        mut unreadable,
        left_out,
    } = found(args, inputs).load(Place::load)?;
    unrecorded.extend(left_out.iter().map(|sentence| missing_beside(sentence)));
    // What reads JSON and suppressions names no holders.
    let is_named = !(args.gen_suppressions || args.json || args.format == Format::Json);
    let until = Instant::now() + NAMED_WITHIN;
    loaded.retain_mut(|item| {
        has_ended(item, rules);
        let judged = match args.update_baseline {
            true => {
                let found = load::at::find(item, rules.at.as_ref(), &args.names);
                found.and_then(|()| check_baseline(item, rules))
            }
            false => load::at::judge(item, rules, &args.names)
                .and_then(|()| with_holders(item, rules, is_named.then_some(until))),
        };
        let judged = judged.inspect_err(progress::fail).is_ok();
        unreadable += usize::from(!judged);
        judged
    });
    if loaded.is_empty() {
        return Ok(USAGE);
    }
    if let (true, Some(path)) = (args.update_baseline, &args.rules.baseline) {
        if unreadable > 0 {
            return Err(Failure::new(
                "no baseline written: some inputs cannot be read or judged (see above); leave them out, or repair them",
            ));
        }
        let known = |item: &Loaded| {
            let source = item.source.clone();
            item.unseen
                .clone()
                .into_iter()
                .map(move |unseen| (source.clone(), unseen))
        };
        let processes = members(args, loaded.iter());
        let missing = missing_members(args, &loaded[0].source, &processes);
        let missing = missing
            .into_iter()
            .map(|(number, unseen)| (loaded[number].source.clone(), unseen));
        let beside = unrecorded
            .iter()
            .map(|unseen| ("these inputs".to_owned(), unseen.clone()));
        let mut lacks = loaded.iter().flat_map(known).chain(missing).chain(beside);
        if let Some((source, unseen)) = lacks.find(|(_, unseen)| !(unseen.acceptable && rules.limits.allow_losses)) {
            let sentence = unseen.sentence();
            return Err(Failure::new(format!("no baseline written: {source}: {sentence}")));
        }
        return update(path, args.overwrite, &loaded, rules);
    }
    if !args.overwrite.force {
        check_programs(rules, &loaded)?;
    }
    unrecorded.extend(of_unread_inputs(unreadable));
    finish(args, verdicts(&loaded, rules), loaded.iter(), unrecorded)
}

fn verdicts<'a>(loaded: &'a [Loaded], rules: &'a Rules) -> Vec<(&'a str, Verdict<'a>)> {
    let verdict = |item: &'a Loaded| (item.source.as_str(), item.verdict(rules));
    loaded.iter().map(verdict).collect()
}

/// Notes that a recording is of a running process, or a copy from before the end of one, so that its end is not known, nor its peak and
/// its last marks. A process id, or a snapshot of a running process, selects its present memory, as `--at exit` does, so nothing is missing.
pub fn has_ended(item: &mut Loaded, rules: &Rules) {
    let path = PathBuf::from(&item.source);
    // An automatic snapshot has what came before it, and no later peak.
    let is_of_past = rules.at.as_ref().is_some_and(|at| *at != Point::Peak);
    let is_selected = item.root.is_some() || is_of_past && item.snapshot.taken.automatic.is_some();
    // Without the file, whose name is not UTF-8, it may be a recording.
    let is_unknown = item.source.contains(char::REPLACEMENT_CHARACTER) && !path.exists();
    if is_selected || !is_unknown && load::must_be_recording(&path).is_err() {
        return;
    }
    let is_past = matches!(rules.at, Some(Point::Exit | Point::Time(_)));
    match item.snapshot.process.state {
        ProcessState::Running if is_past => {}
        ProcessState::Running => item.unseen.push(of_running_process()),
        _ => item.unseen.extend(load::of_early_copy(&path)),
    }
}

/// All searches that no limit asks for have this time together, copies of memory included. The search has half of what is left.
const NAMED_WITHIN: Duration = Duration::from_secs(10);

/// Searches for what holds the memory of a running process, if memory fails by it; or else, until then, to name what holds memory that
/// fails, if the process is recorded and may be read.
fn with_holders(item: &mut Loaded, rules: &Rules, named_until: Option<Instant>) -> Result<(), Failure> {
    let pid = item.root.is_some().then(|| item.source.parse().ok()).flatten();
    let Some(pid) = pid.filter(|_| item.snapshot.holders.is_none()) else {
        return Ok(());
    };
    if lacks_holders(&item.snapshot, rules) {
        return holders::of_process(item, pid, &holders::Wanted::default());
    }
    let left = named_until.and_then(|until| until.checked_duration_since(Instant::now()));
    let is_readable = rules.at.is_none() && item.snapshot.taken.by != BY_READING;
    let Some(left) = left.filter(|_| is_readable && item.verdict(rules).rows.iter().any(|judged| judged.to_blame))
    else {
        return Ok(());
    };
    let wanted = holders::Wanted {
        limit: Some(left / 2),
        until: named_until,
        ..holders::Wanted::default()
    };
    if holders::of_process(item, pid, &wanted).is_err() {
        item.snapshot.holders = None;
    }
    Ok(())
}

/// Prints the verdicts of these inputs. What was not recorded, `unrecorded`, is lacking where its run is named, or else in the first one.
fn finish<'a>(
    args: &CheckArgs,
    mut verdicts: Vec<(&str, Verdict)>,
    items: impl Iterator<Item = &'a Loaded>,
    unrecorded: Vec<Unseen>,
) -> Result<u8, Failure> {
    let processes = members(args, items);
    let missing = verdicts
        .first()
        .map(|(source, _)| missing_members(args, source, &processes));
    for (number, unseen) in missing.into_iter().flatten() {
        verdicts[number].1.lacks([unseen.beside()]);
    }
    for unseen in unrecorded {
        let tag = incomplete::note_in(&unseen.what).split_once(incomplete::ENDING);
        let is_of_run = |(source, _): &(&str, Verdict)| tag.is_some_and(|(tag, _)| source.contains(&format!(".{tag}")));
        let of = verdicts.iter().position(is_of_run).unwrap_or(0);
        if let Some((_, verdict)) = verdicts.get_mut(of) {
            verdict.lacks([unseen.beside()]);
        }
    }
    if args.rules.fail_on.contains(&Failing::Outlier) {
        let mut each: Vec<&mut Verdict> = verdicts.iter_mut().map(|(_, verdict)| verdict).collect();
        fail_outliers(&mut each, &processes);
    }
    if args.gen_suppressions {
        return generated(&verdicts);
    }
    print(args, &verdicts)?;
    let outcomes = verdicts.iter().map(|(_, verdict)| verdict.outcome);
    Ok(exit_of(Outcome::of_all(outcomes)))
}

/// The processes of these inputs. A rank that a program of this command inherited from this command's own launcher is no rank of it.
fn members<'a>(args: &CheckArgs, items: impl Iterator<Item = &'a Loaded>) -> Vec<Member> {
    let own = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let own: BTreeMap<String, String> = own.collect();
    let member = |item: &Loaded| {
        let mut member = Member::of(&item.snapshot);
        let ranks = &item.snapshot.process.ranks;
        let is_inherited = !ranks.is_empty() && ranks.iter().all(|(name, value)| own.get(name) == Some(value));
        if !args.command.is_empty() && is_inherited {
            member.identity = Identity::default();
        }
        member
    };
    items.map(member).collect()
}

/// Ranks of the job of these inputs, or of the program, that are not judged. One file speaks of its process alone. `source`: the first
/// input's.
fn missing_members(args: &CheckArgs, source: &str, processes: &[Member]) -> Vec<(usize, Unseen)> {
    match args.inputs.as_slice() {
        [] if args.program.record.only.is_some() => Vec::new(),
        [] => missing_ranks_here(processes),
        [input] if processes.len() == 1 && *input == *source => Vec::new(),
        _ => missing_ranks(processes),
    }
}

/// That inputs have no verdict because they cannot be read.
fn of_unread_inputs(unread: usize) -> Option<Unseen> {
    let what = format!("{} could not be read or judged", counted(unread, "other input"));
    (unread > 0).then(|| Unseen::all("", what, "repair them, or leave them out"))
}

/// A sentence on what lies beside the inputs, or was not recorded.
fn missing_beside(sentence: &str) -> Unseen {
    let (what, next) = sentence.split_once("; ").unwrap_or((sentence, "name it too"));
    match sentence.contains(incomplete::ENDING) {
        true => Unseen::part("", what, next),
        false => Unseen::all("", what, next),
    }
}

/// Judges each input as it was at a mark that the program sets again and again.
fn at_boundaries(
    args: &CheckArgs,
    rules: &Rules,
    inputs: &[OsString],
    mut unrecorded: Vec<Unseen>,
) -> Result<u8, Failure> {
    let mut found = found(args, inputs);
    load::warn_of(&found.left_out);
    unrecorded.extend(found.left_out.iter().map(|sentence| missing_beside(sentence)));
    let judged = found.read(|place| args.boundary.load(place, rules, &args.names));
    found.failures.iter().for_each(progress::fail);
    if judged.is_empty() {
        return Ok(USAGE);
    }
    let verdicts: Vec<_> = judged
        .iter()
        .map(|(item, rules)| (item.source.as_str(), item.verdict(rules)))
        .collect();
    unrecorded.extend(of_unread_inputs(found.failures.len()));
    finish(args, verdicts, judged.iter().map(|(item, _)| item), unrecorded)
}

/// Standard output belongs to the program, if there is one.
fn print(args: &CheckArgs, verdicts: &[(&str, Verdict)]) -> Result<(), Failure> {
    let mut format = if args.json { Format::Json } else { args.format };
    let render = |format, out: &mut dyn Write| format::write(format, verdicts, args.source_root.as_deref(), out);
    if let Some(path) = &args.verdict_file {
        output::create_plain(path, args.overwrite, |out| render(format, out))?;
        format = Format::Text;
    }
    match format {
        _ if !args.command.is_empty() => text::to_stderr(|out| render(format, out)),
        Format::Text => text::print_lines(|out| render(format, out)),
        _ => text::print(|out| render(format, out)),
    }
}

/// Prints rules for what was seen. Without anything to judge there are none.
fn generated(verdicts: &[(&str, Verdict)]) -> Result<u8, Failure> {
    generate(verdicts)?;
    let mut outcome = Outcome::Passed;
    for (source, verdict) in verdicts {
        for unseen in verdict.unseen.iter().filter(|unseen| !unseen.acceptable) {
            outcome = Outcome::NoVerdict;
            progress::fail(&Failure::new(format!("{source}: {}", unseen.sentence())));
        }
    }
    Ok(exit_of(outcome))
}

/// Prints a rule for the memory of each call site, and one for its objects of kinds that fail, with what each suppresses.
fn generate(verdicts: &[(&str, Verdict)]) -> Result<(), Failure> {
    // In order of appearance; a site may have objects of several kinds.
    let mut rules: Vec<Generated> = Vec::new();
    let mut add = |of: usize, stack: &CallStack, thing: Of, what: String| {
        let Some(rule) = rule_for(stack, thing) else { return };
        match rules.iter_mut().find(|known| known.rule == rule) {
            Some(known) if known.of == of => known.what.push(what),
            Some(_) => {}
            None => {
                let place = stack.site().and_then(|site| site.short_place());
                let place = place.map(|place| format!(", {}", Escaped(&place))).unwrap_or_default();
                let what = vec![what];
                rules.push(Generated { rule, of, place, what });
            }
        }
    };
    for (nth, (_, verdict)) in verdicts.iter().enumerate() {
        let of_memory = verdict.rows.iter().filter(|_| !verdict.judges_only_objects());
        for judged in of_memory {
            if let Some(stack) = judged.row.stacks.first() {
                add(nth, &stack.stack, Of::Memory, text::parts::tally(judged.row.tally()));
            }
        }
        for of in verdict.objects.iter().filter(|of| of.to_blame) {
            let kind = of.row.kind_of_objects().map_or("", culeak::kind::Kind::name);
            let objects = counted(of.row.count, &format!("{kind} object"));
            add(nth, of.row.stack(), Of::Objects, objects);
        }
    }
    text::print(|out| {
        rules.iter().try_for_each(|of| {
            writeln!(out, "# {}{}", of.what.join(" and "), of.place)?;
            writeln!(out, "{}", of.rule)
        })
    })
}

/// A rule for a call site.
struct Generated {
    rule: String,
    /// The first verdict with this site.
    of: usize,
    place: String,
    /// What the rule suppresses of this verdict.
    what: Vec<String>,
}

/// Refuses a baseline of other programs, against which every leak would be new.
fn check_programs(rules: &Rules, loaded: &[Loaded]) -> Result<(), Failure> {
    let Some(baseline) = &rules.baseline else { return Ok(()) };
    let programs: Vec<Program> = loaded.iter().map(|item| Program::of(&item.snapshot)).collect();
    if programs.is_empty() || programs.iter().any(|program| baseline.is_of(program)) {
        return Ok(());
    }
    let known: Vec<String> = baseline.programs.iter().map(ToString::to_string).collect();
    Err(Failure::new(format!(
        "the baseline is from {}, but {} is from {}; name this program's baseline, or use it anyway with --force",
        known.join(", "),
        loaded[0].source,
        programs[0]
    )))
}

fn update(path: &Path, overwrite: Overwrite, loaded: &[Loaded], rules: &Rules) -> Result<u8, Failure> {
    if path.is_file() && !overwrite.force && !is_baseline(path) {
        return Err(Failure::new(format!(
            "{}: exists and is not a culeak baseline; name another file, or replace it with --force",
            path.display()
        )));
    }
    let baselines = loaded.iter().map(|item| baseline_of(&item.snapshot, rules));
    let baseline = Baseline::most_of(baselines);
    // The user asked for the update, so no --force is needed.
    output::create(path, Overwrite { force: true }, |out| {
        json::write_pretty(&mut *out, &baseline)?;
        writeln!(out)
    })?;
    let sites = counted(baseline.sites.len(), "call site");
    let objects = match &baseline.objects {
        Some(objects) if !objects.is_empty() => {
            let count = objects.iter().fold(0, |sum: u64, of| sum.saturating_add(of.count));
            format!(" and {}", counted(count, "object"))
        }
        Some(_) => String::new(),
        None => ", without objects: they are not recorded at this point".to_owned(),
    };
    let shown = path.display().to_string();
    progress::note(format_args!(
        "{}: baseline written with {sites}{objects}",
        Escaped(&shown)
    ));
    Ok(0)
}
