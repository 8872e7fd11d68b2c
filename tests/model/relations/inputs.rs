//! Inputs: names of a process, jobs in any order, files that culeak writes and reads, and samples.

use super::*;

/// Names of one file: itself, its folder, a pattern, a list, and twice.
pub fn a_process_is_the_same_however_it_is_named(runs: &Runs) {
    let folder = folder();
    let file = folder.path().join("one.h.1.culeak");
    fs::copy(runs.one, &file).expect("copied");
    let list = folder.path().join("list");
    fs::write(&list, format!("{}\n", file.display())).expect("written");
    let (all, pattern) = (text(folder.path()), folder.path().join("*.culeak"));
    let names = [
        &[all][..],
        &[text(&pattern)],
        &[text(&file), text(&file)],
        &[all, text(&file)],
        &["-"],
    ];
    for words in [
        &["report"][..],
        &["report", "--by", "kind"],
        &["report", "--at", "peak"],
        &["check", "--allow", "100"],
        &["trend", "--all"],
        &["report", "--view", "ledger"],
    ] {
        let ask = |names: &[&str]| {
            let words = [&words[..1], names, &words[1..], &["--json"]].concat();
            let output = commands::run_with(&words, fs::File::open(&list).expect("readable"));
            let document = serde_json::from_slice(&output.stdout);
            let document: Value =
                document.unwrap_or_else(|_| panic!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)));
            (output.status.code(), lasting(document))
        };
        let (code, document) = ask(&[text(&file)]);
        for names in names {
            let (of_names, others) = ask(names);
            same!(of_names, code, "{words:?} {names:?}: exit codes");
            alike(&others, &document, &format!("{words:?} {names:?}"));
        }
    }
    for of in [text(&file), all, text(&pattern)] {
        let diff = json(&["diff", of, text(runs.again), "--by", "site"]);
        alike(&diff["rows"], &value!([]), &format!("diff {of} AGAIN"));
    }
}

/// A snapshot, as a report, as a verdict, and exported again; and PyTorch's format, for memory on devices.
pub fn what_is_written_reads_as_its_recording(runs: &Runs) {
    let folder = folder();
    let (one, file) = (runs.one(), folder.path().join("snapshot.json"));
    let written = text(&file);
    commands::text(&["snapshot", one, "-o", written]);
    for words in [
        &["report"][..],
        &["report", "--by", "stack"],
        &["report", "--by", "size"],
        &["report", "--by", "thread", "--sort", "age"],
        &["report", "--by", "stream"],
        &["report", "--by", "object-kind"],
        &["report", "--at", "peak"],
        &["report", "--kind", "device", "--focus", "site_1"],
        &["report", "--view", "ledger"],
        &["check", "--allow", "100"],
    ] {
        let ask = |input: &str| {
            let output = commands::run(&[&[words[0], input], &words[1..], &["--json"]].concat());
            let document: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            value!([output.status.code(), lasting(document)])
        };
        alike(
            &ask(one),
            &ask(written),
            &format!("{words:?} of a recording and of its snapshot"),
        );
    }
    for format in ["csv", "folded", "speedscope", "firefox", "openmetrics"] {
        let [of_recording, of_snapshot] = [one, written].map(|input| {
            let text = commands::text(&["export", input, "-f", format, "-o", "-"]);
            let name = Path::new(input).file_name().and_then(OsStr::to_str).expect("a name");
            let lines = text.replace(input, "INPUT").replace(name, "INPUT");
            let lasting = lines.lines().filter(|line| !line.starts_with("culeak_last_update"));
            lasting.map(str::to_owned).collect::<Vec<_>>()
        });
        let differs = of_recording.iter().zip(&of_snapshot).find(|(a, b)| a != b);
        same!(
            (of_recording.len(), differs),
            (of_snapshot.len(), None),
            "export -f {format}"
        );
    }
    let pickle = folder.path().join("snapshot.pickle");
    commands::text(&["export", one, "-f", "memory_viz", "-o", text(&pickle)]);
    let whole = json(&["report", one]);
    let read = json(&["report", text(&pickle)]);
    // Segments: arrays have no device address, memory that is mapped twice appears twice, and blocks may lie in memory that was freed.
    let addressed = |report: &Value| -> Sum {
        let rows = list(&report["rows"]).iter().chain(list(&report["pools"]));
        let kinds = rows.flat_map(|row| row["kinds"].as_object().expect("kinds"));
        let of_segments = ["device", "pitched", "managed", "async", "graph"];
        add(kinds
            .filter(|(kind, _)| of_segments.contains(&kind.as_str()))
            .map(|(_, of)| tally(of)))
    };
    same!(
        addressed(&read).0 >= addressed(&whole).0,
        true,
        "export -f memory_viz: {:?}, {:?}",
        addressed(&read),
        addressed(&whole)
    );
}

/// Blocks that are far larger than the sample are chosen for certain, and stand for themselves.
pub fn a_tiny_sample_is_everything(script: &Script) {
    let mut script = script.clone();
    for line in &mut script.lines {
        let bytes = match &*line.verb {
            "alloc" | "alloc32" | "managed" | "host" | "hostv2" | "async" | "asyncptsz" | "frompool" => 0,
            "node" => 1,
            "block" | "blocks" => 2,
            "array" | "array3d" | "mipmap" | "pitch" => {
                line.arguments
                    .iter_mut()
                    .take(2)
                    .for_each(|side| *side = (*side).max(16));
                continue;
            }
            _ => continue,
        };
        line.arguments[bytes] = line.arguments[bytes].max(64);
    }
    let folders = [folder(), folder()];
    let sampled = record(
        &script,
        Mode::Sampled,
        &[("CULEAK_SAMPLE", "1"), ("CULEAK_STACK_RATE", "0")],
        folders[0].path(),
    );
    let all = record(&script, Mode::Sampled, &[("CULEAK_SAMPLE", "0")], folders[1].path());
    same!(sampled.len(), all.len(), "processes");
    for (sampled, all) in sampled.iter().zip(&all) {
        let ask =
            |words: &[&str]| [sampled, all].map(|path| facts(&json(&[&["report", text(path)][..], words].concat())));
        for words in [
            &["--by", "site"][..],
            &["--by", "stack"],
            &["--by", "kind"],
            &["--by", "api"],
            &["--by", "category"],
            &["--by", "size"],
            &["--by", "object-kind"],
            &["--at", "peak"],
            &["--at", "peak", "--by", "kind"],
            &["--focus", "site_1"],
            &["--ignore", "site_1"],
            &["--kind", "device"],
        ] {
            let [of_sample, of_all] = ask(words);
            alike(&of_sample, &of_all, &format!("{words:?} sampled, and in full"));
        }
        let diff = json(&["diff", text(sampled), text(all)]);
        alike(&diff["rows"], &value!([]), "diff SAMPLED ALL");
    }
}

/// The recordings of some ranks, which ran this script and the first half of it, and again the other way round.
fn job(script: &Script, folder: &Path, name: &str, halves: [bool; 4]) -> Vec<PathBuf> {
    let mut half = script.clone();
    half.lines.truncate(script.lines.len() / 2);
    let mut all = Vec::new();
    for (rank, is_half) in halves.into_iter().enumerate() {
        let own = folder.join(format!("{name}{rank}"));
        fs::create_dir(&own).expect("created");
        let script = if is_half { &half } else { script };
        all.extend(record(script, Mode::Logged, &[("RANK", &rank.to_string())], &own));
    }
    all
}

/// Copies recordings to a folder, under names that `name` gives them by their number.
fn gathered(folder: &Path, recordings: &[&PathBuf], name: impl Fn(usize) -> usize) -> String {
    fs::create_dir_all(folder).expect("created");
    for (nth, path) in recordings.iter().enumerate() {
        fs::copy(path, folder.join(format!("p{:03}.culeak", name(nth)))).expect("copied");
    }
    text(folder).to_owned()
}

/// In whatever order recordings are named, and from however many folders they come.
pub fn ranks_have_no_order(script: &Script) {
    let folder = folder();
    let ranks = job(script, folder.path(), "a", [false, true, false, false]);
    let others = job(script, folder.path(), "b", [true, false, false, false]);
    let all: Vec<&PathBuf> = ranks.iter().collect();
    let put = |name: &str, recordings: &[&PathBuf], number: fn(usize) -> usize| {
        gathered(&folder.path().join(name), recordings, number)
    };
    let (even, odd): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(nth, _)| nth.is_multiple_of(2));
    let [even, odd] = [even, odd].map(|half| half.into_iter().map(|(_, path)| *path).collect::<Vec<_>>());
    let (whole, shuffled) = (
        put("whole", &all, |nth| nth),
        put("shuffled", &all, |nth| (nth * 37 + 5) % 101),
    );
    let halves = [put("even", &even, |nth| nth), put("odd", &odd, |nth| 100 - nth)];
    // Where they were recorded, there are snapshots beside them.
    let files = recordings_in(Path::new(&whole));
    let named: Vec<&str> = files.iter().rev().map(|path| text(path)).collect();
    let sets = [
        vec![&*shuffled],
        named,
        vec![&*halves[0], &halves[1]],
        vec![&*halves[1], &halves[0]],
        vec![&*whole, &*whole],
    ];
    // The list of verdicts and of reports has the order of the inputs.
    for (words, is_list) in [
        (&["report"][..], false),
        (&["report", "--at", "peak"], false),
        (&["report", "--kind", "device", "--top", "2"], false),
        (&["report", "--ignore", "site_1"], false),
        (&["trend", "--all"], false),
        (&["trend", "--top", "2"], false),
        (&["report", "--per-process"], true),
        (&["check", "--fail-on", "outlier"], true),
    ] {
        let ask = |inputs: &[&str]| {
            let output = commands::run(&[&words[..1], inputs, &words[1..], &["--json"]].concat());
            let errors = String::from_utf8_lossy(&output.stderr);
            let document: Value =
                serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{words:?}: {errors}"));
            let mut document = lasting(document);
            if is_list {
                let verdicts = document
                    .get_mut("verdicts")
                    .map(Value::take)
                    .unwrap_or_else(|| document.take());
                document = Value::Array(sorted(list(&verdicts).iter().cloned()));
            }
            value!([output.status.code(), document])
        };
        let wanted = ask(&[&whole]);
        for inputs in &sets {
            alike(
                &ask(inputs),
                &wanted,
                &format!("{words:?} of {inputs:?} and of {whole}"),
            );
        }
    }
    let others: Vec<&PathBuf> = others.iter().collect();
    let later = [
        put("later", &others, |nth| nth),
        put("later shuffled", &others, |nth| (nth * 37 + 5) % 101),
    ];
    if all.len() == 4 && others.len() == 4 {
        let [plain, mixed] =
            [[&whole, &later[0]], [&shuffled, &later[1]]].map(|[before, after]| json(&["diff", before, after]));
        alike(&lasting(plain.clone()), &lasting(mixed), "diff of jobs");
        check_diff(&plain, &json(&["diff", &later[0], &whole]));
        alike(
            &json(&["diff", &whole, &whole])["sites"],
            &value!([]),
            "diff of a job and itself",
        );
    }
}

/// The changes at call sites are all changes, and those of the reversed diff are their opposites.
fn check_diff(diff: &Value, back: &Value) {
    let change = number(&diff["held_after"]["bytes"]) as i64 - number(&diff["held_before"]["bytes"]) as i64;
    let at_sites = |diff: &Value, sign: i64| {
        let delta = |site: &Value| value!([site["site"]["fingerprint"], sign * site["sum"].as_i64().expect("bytes")]);
        sorted(list(&diff["sites"]).iter().map(delta))
    };
    let sum: i64 = at_sites(diff, 1)
        .iter()
        .map(|site| site[1].as_i64().expect("bytes"))
        .sum();
    same!(sum, change, "diff of jobs: call sites");
    same!(
        at_sites(diff, 1),
        at_sites(back, -1),
        "diff of jobs, and the other way round"
    );
}

/// Held memory, pools, failed requests, and what filters leave out.
pub fn rows_of_a_job_are_those_of_its_processes(script: &Script) {
    let folder = folder();
    let all = job(script, folder.path(), "a", [false, true, true, false]);
    let whole = gathered(&folder.path().join("whole"), &all.iter().collect::<Vec<_>>(), |nth| nth);
    for words in [
        &[][..],
        &["--at", "peak"],
        &["--kind", "device", "--kind", "block"],
        &["--focus", "site_1"],
        &["--ignore", "site_1"],
        &["--device", "host"],
    ] {
        let job = json(&[&["report", &whole][..], words].concat());
        let each = json(&[&["report", &whole, "--per-process"][..], words].concat());
        let each = list(&each);
        same!(
            tally(&job["held"]),
            add(each.iter().map(commands::held)),
            "{words:?}: held"
        );
        same!(
            tally(&job["held"]),
            add(list(&job["processes"]).iter().map(|process| tally(&process["held"]))),
            "{words:?}: processes"
        );
        let failed = each.iter().map(|report| tally(&report["totals"]["failed"]));
        same!(tally(&job["failed"]), add(failed), "{words:?}: failed");
        let rows = each.iter().flat_map(|report| list(&report["rows"]));
        let sites = list(&job["sites"])
            .iter()
            .map(|site| (number(&site["sum"]), number(&site["sum_count"])));
        same!(add(sites), add(rows.map(tally)), "{words:?}: call sites");
        let left_out = each
            .iter()
            .map(|report| &report["filter"]["left_out"])
            .filter(|of| of.is_object());
        if job["filter"].is_object() {
            same!(
                tally(&job["filter"]["left_out"]),
                add(left_out.map(tally)),
                "{words:?}: left out"
            );
        }
    }
    let all_sites = json(&["report", &whole]);
    for most in 1..4 {
        let few = json(&["report", &whole, "--top", &most.to_string()]);
        let [few_sites, sites] = [&few, &all_sites].map(|job| list(&job["sites"]));
        same!(few_sites, &sites[..most.min(sites.len())], "--top {most}");
        same!(
            few_sites.len() as u64 + number(&few["hidden_sites"]),
            sites.len() as u64,
            "--top {most}: hidden"
        );
    }
    let folded = |input: &str| commands::exports::folded_sum(input, &[]);
    let each: u64 = all.iter().map(|path| folded(text(path))).sum();
    same!(folded(&whole), each, "export -f folded of a job");
}

/// A trend has at each point what its rows have, and what filters select adds up.
pub fn trends_add_up(runs: &Runs) {
    let points = |words: &[&str]| -> Vec<u64> {
        let ask = ["trend", runs.one(), text(runs.again), "--all", "--per-process"];
        let trend = json(&[&ask[..], words].concat());
        let bytes = |point: &Value| number(&point["held"]["bytes"]);
        let held: Vec<u64> = list(&trend["points"]).iter().map(bytes).collect();
        for (nth, held) in held.iter().enumerate() {
            let of_rows = list(&trend["rows"])
                .iter()
                .map(|row| number(&row["series"]["bytes"][nth]));
            same!(
                of_rows.sum::<u64>(),
                *held,
                "{words:?}: the rows of a trend at point {nth}"
            );
        }
        held
    };
    let all = points(&[]);
    for parts in [
        [&["--focus", "site_1"][..], &["--ignore", "site_1"]],
        [&["--focus", "script.c"], &["--ignore", "script.c"]],
        [&["--device", "host"], &["--device", "0", "--device", "1"]],
    ] {
        let [part, rest] = parts.map(points);
        let sums: Vec<u64> = part.iter().zip(&rest).map(|(part, rest)| part + rest).collect();
        same!(&sums, &all, "{parts:?}");
    }
}
