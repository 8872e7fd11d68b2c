//! Tests of the page that need no browser; tests/html/ has the others.

use std::io::Read;

use culeak::analysis::diff;
use culeak::analysis::job::Job;
use culeak::analysis::job::sites::{ProcessSums, Sites};
use culeak::analysis::report::{By, Options, Report};
use culeak::analysis::trend::{self, Summary, Trend, lineages};
use culeak::analysis::why::{self, Why};
use culeak::kind::Kind;
use culeak::snapshot::{Sampling, Snapshot};
use data_encoding::BASE64;
use flate2::read::ZlibDecoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;
use crate::escape::is_active;
use crate::text::sample::{MAIN, MIB, Sample, held, leaky, serving, training};
use crate::text::timeline::training_over_time;

fn page(snapshot: &Snapshot, by: By) -> String {
    let item = Item {
        snapshot,
        timeline: None,
        options: Options {
            by,
            source: "app.json".to_owned(),
            ..Options::default()
        },
        full_stacks: false,
    };
    let mut out = Vec::new();
    write_report(&[item], &mut out).expect("a page");
    String::from_utf8(out).expect("text")
}

fn diff_page(before: &Snapshot, after: &Snapshot) -> String {
    let options = diff::Options {
        by: By::Stack,
        ..diff::Options::default()
    };
    let mut out = Vec::new();
    write_diff(before, after, &options, false, &mut out).expect("a page");
    String::from_utf8(out).expect("text")
}

/// Ten snapshots of one process, each with more of everything.
fn trend_page(made: impl Fn() -> Snapshot) -> String {
    let options = trend::Options {
        by: By::Site,
        all: true,
        ..trend::Options::default()
    };
    let summaries = (0..10).map(|nth| {
        let mut snapshot = made();
        snapshot.process.state = culeak::snapshot::ProcessState::Running;
        snapshot.taken.at_ns += nth * 600_000_000_000;
        snapshot.taken.at_unix_ns += nth * 600_000_000_000;
        snapshot
            .allocations
            .change(|_, allocation, _| allocation.bytes *= nth + 1);
        Summary::of(&snapshot, format!("{nth}.json"), &options)
    });
    let trends: Vec<Trend> = lineages(summaries.collect())
        .iter()
        .map(|lineage| Trend::of(lineage, &options))
        .collect();
    let mut out = Vec::new();
    write_trends(&trends, By::Site, &mut out).expect("a page");
    String::from_utf8(out).expect("text")
}

fn why_page(snapshot: &Snapshot) -> String {
    let why = Why::of(snapshot, &why::Options::default()).expect("an answer");
    let mut out = Vec::new();
    write_why(&why, &mut out).expect("a page");
    String::from_utf8(out).expect("text")
}

/// A job of eight processes, of which one holds everything twice.
fn job_page(snapshot: &Snapshot) -> String {
    let (mut job, mut sites) = (Job::default(), Sites::default());
    let mut values: Vec<Vec<u64>> = Vec::new();
    for rank in 0..8_u32 {
        let mut own = snapshot.clone();
        own.process.pid = 100 + rank;
        own.process.ranks.insert("RANK".to_owned(), rank.to_string());
        if rank == 5 {
            own.allocations.change(|_, allocation, _| allocation.bytes *= 2);
        }
        let report = Report::of(&own, &Options::default());
        job.add(rank, ProcessSums::of_report(&own, &report, &mut sites));
    }
    let report = job.finish(&sites, &culeak::analysis::job::Options::default());
    for row in &report.sites {
        let each = row.sum_bytes / 9;
        values.push((0..8).map(|rank| if rank == 5 { 2 * each } else { each }).collect());
    }
    let mut out = Vec::new();
    write_job(&report, &values, &mut out).expect("a page");
    String::from_utf8(out).expect("text")
}

/// The texts between two markers of a page.
fn between<'a>(page: &'a str, start: &str, end: &str) -> Vec<&'a str> {
    let parts = page.split(start).skip(1);
    parts
        .map(|part| part.split_once(end).expect("the end mark").0)
        .collect()
}

/// The header, and the columns by name.
fn data(page: &str) -> (Value, impl Fn(&str) -> Vec<u64> + use<>) {
    let text = between(page, "<script id=\"data\" type=\"text/plain\">", "</script>")[0];
    let compressed = BASE64.decode(text.as_bytes()).expect("nothing but base64");
    let mut bytes = Vec::new();
    ZlibDecoder::new(&compressed[..])
        .read_to_end(&mut bytes)
        .expect("deflated");
    let length = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[4..4 + length]).expect("JSON");
    let mut numbers = bytes[4 + length..].iter();
    let mut columns = std::collections::HashMap::new();
    for column in header["columns"].as_array().expect("columns") {
        let next = |_| {
            let (mut number, mut shift) = (0, 0);
            for byte in numbers.by_ref() {
                number |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if *byte < 0x80 {
                    break;
                }
            }
            number
        };
        let count = column["count"].as_u64().expect("a count");
        let name = column["name"].as_str().expect("a name").to_owned();
        columns.insert(name, (0..count).map(next).collect::<Vec<u64>>());
    }
    assert!(numbers.next().is_none(), "more bytes than numbers");
    (header, move |name| columns[name].clone())
}

#[test]
fn the_policy_allows_the_scripts_and_styles_of_the_page_and_nothing_else() {
    for page in [
        page(&leaky(), By::Site),
        diff_page(&leaky(), &leaky()),
        trend_page(leaky),
        why_page(&held()),
        job_page(&leaky()),
    ] {
        let policy = between(&page, "http-equiv=\"Content-Security-Policy\" content=\"", "\"")[0];
        let directive = |name: &str| -> Vec<&str> {
            let found = policy.split("; ").find_map(|part| part.strip_prefix(name));
            found
                .unwrap_or_else(|| panic!("{name} in {policy}"))
                .split(' ')
                .skip(1)
                .collect()
        };
        assert_eq!(directive("default-src"), ["'none'"]);
        for (name, element) in [("script-src", "script"), ("style-src", "style")] {
            let texts = between(&page, &format!("<{element}>"), &format!("</{element}>"));
            let hashes: Vec<_> = texts
                .iter()
                .map(|text| format!("'sha256-{}'", BASE64.encode(&Sha256::digest(text.as_bytes()))))
                .collect();
            assert!(!texts.is_empty());
            assert_eq!(directive(name), hashes);
        }
        assert!(!page.contains(" src=") && !page.contains("@import") && !page.contains(" style="));
    }
}

#[test]
fn names_of_a_recording_never_become_markup() {
    let nasty = "</script><img src=x onerror=alert(1)>\u{202e}\u{2028}\0\"'";
    let mut sample = Sample::new();
    let stack = sample.stack(&[(nasty, "/src/</pre>\u{2029}.cu:3", "/lib/<b>.so"), MAIN]);
    sample.holds(Kind::Device, nasty, MIB, 1, stack);
    let mut snapshot = sample.finish(0, 0);
    snapshot.process.command_line = vec![nasty.to_owned()];
    snapshot.process.host = nasty.to_owned();
    snapshot.devices[0].name = nasty.to_owned();
    snapshot.threads[0].name = nasty.to_owned();
    snapshot.losses.unhooked = vec![nasty.to_owned()];
    let mut with_holders = held();
    (with_holders.process.command_line, with_holders.losses) = (vec![nasty.to_owned()], snapshot.losses.clone());
    let holders = with_holders.holders.as_mut().expect("searched");
    for path in &mut holders.paths {
        (path.origin, path.origin_type, path.note) = (nasty.to_owned(), nasty.to_owned(), Some(nasty.to_owned()));
        path.steps.iter_mut().for_each(|step| step.via = nasty.to_owned());
    }
    holders.retainers[0].name = nasty.to_owned();
    holders.search.limits = vec![nasty.to_owned()];
    for page in [
        page(&snapshot, By::Site),
        diff_page(&snapshot, &leaky()),
        trend_page(|| snapshot.clone()),
        page(&with_holders, By::Site),
        why_page(&with_holders),
        job_page(&snapshot),
    ] {
        assert!(!page.contains("<img") && !page.contains("<b>"));
        assert!(page.contains("&lt;/script&gt;&lt;img src=x"));
        assert_eq!(page.matches("</pre>").count(), 2, "the text and the licences");
        let (header, _) = data(&page);
        fn strings<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::String(text) => found.push(text),
                Value::Array(values) => values.iter().for_each(|value| strings(value, found)),
                Value::Object(values) => values.values().for_each(|value| strings(value, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        strings(&header, &mut found);
        assert!(found.iter().any(|text| text.contains("\\u{202e}")));
        let active: Vec<_> = found.iter().filter(|text| text.contains(is_active)).collect();
        assert!(active.is_empty(), "{active:?}");
    }
}

/// Of the call sites, those with large blocks are exact.
fn sampled(mean: u64) -> Snapshot {
    let mut snapshot = training().finish(0, 3);
    snapshot.sampling = Some(Sampling {
        bytes: mean,
        most_bytes: 0,
        left_out: None,
    });
    snapshot
}

#[test]
fn rows_of_sampled_stacks_have_their_errors() {
    let snapshot = sampled(MIB / 4);
    let report = Report::of(&snapshot, &Options::default());
    let errors = report
        .rows
        .iter()
        .map(|row| row.estimated.map(|errors| errors.bytes_error));
    let expected: Vec<u64> = errors.map(|error| error.map_or(0, |error| error + 1)).collect();
    assert!(
        expected.contains(&0) && expected.iter().any(|error| *error > 1),
        "{expected:?}"
    );
    assert_eq!(data(&page(&snapshot, By::Site)).1("0.rows.estimated"), expected);
    let (_, exact) = data(&page(&training().finish(0, 3), By::Site));
    assert!(exact("0.rows.estimated").iter().all(|error| *error == 0));
    let (_, changed) = data(&diff_page(&leaky(), &snapshot));
    assert!(changed("0.rows.estimated").iter().any(|error| *error > 1));
}

#[test]
fn the_numbers_are_those_of_the_report() {
    for by in [By::Site, By::Stack, By::Kind, By::Size] {
        let snapshot = training().finish(0, 3);
        let report = Report::of(
            &snapshot,
            &Options {
                by,
                ..Options::default()
            },
        );
        let (header, column) = data(&page(&snapshot, by));
        let bytes: Vec<u64> = report.rows.iter().map(|row| row.bytes).collect();
        let counts: Vec<u64> = report.rows.iter().map(|row| row.count).collect();
        assert_eq!(
            (column("0.rows.bytes"), column("0.rows.count")),
            (bytes.clone(), counts)
        );
        let all: u64 = column("0.samples.bytes").iter().sum();
        assert_eq!(all, bytes.iter().sum::<u64>(), "the graph holds what the rows hold");
        let pools: Vec<u64> = report.pools.iter().map(|row| row.bytes).collect();
        assert_eq!(column("0.pools.bytes"), pools);
        let lines = &header["page"]["processes"][0]["ledger"]["devices"][0]["lines"];
        let shown: Vec<_> = lines
            .as_array()
            .expect("lines")
            .iter()
            .map(|line| line["bytes"].as_i64())
            .collect();
        let known: Vec<_> = report.ledger.devices[0]
            .lines
            .iter()
            .map(|line| i64::try_from(line.bytes).ok())
            .collect();
        assert_eq!(shown, known);
    }
}

#[test]
fn objects_are_those_of_the_report() {
    let (header, _) = data(&page(&serving(), By::Site));
    let process = &header["page"]["processes"][0];
    assert_eq!(
        process["object_kinds"][0],
        "graph-exec: 40 live, 43 created, 3 destroyed"
    );
    let first = process["objects"][0]["text"].as_str().expect("a text");
    assert!(
        first.starts_with("40 graph-exec  Server::decode  server.cu:88"),
        "{first}"
    );
    assert_eq!(process["objects"].as_array().map(Vec::len), Some(5));
    let mut later = serving();
    later.objects.truncate(60);
    let (header, _) = data(&diff_page(&serving(), &later));
    let lines = header["page"]["objects"].as_array().expect("lines");
    assert_eq!(lines[0], "objects without an address: 60 (-9)");
    assert!(lines.len() > 1);
}

#[test]
fn holders_are_those_of_the_answer() {
    let snapshot = held();
    let why = Why::of(&snapshot, &why::Options::default()).expect("an answer");
    let (header, _) = data(&why_page(&snapshot));
    let shown = &header["page"];
    let numbers = |list: &Value| -> Vec<u64> {
        let items = list.as_array().expect("a list").iter();
        items.map(|item| item["bytes"].as_u64().expect("bytes")).collect()
    };
    let bytes: Vec<u64> = why.origins.iter().map(|origin| origin.tally.bytes).collect();
    assert_eq!(numbers(&shown["holders"]), bytes);
    let retained: Vec<u64> = why.retainers.iter().map(|retainer| retainer.tally.bytes).collect();
    assert_eq!(numbers(&shown["retainers"]), retained);
    let sums = crate::text::why::sums(&why);
    let totals: Vec<[String; 2]> = sums.into_iter().map(|(name, text)| [name.to_owned(), text]).collect();
    assert_eq!(shown["totals"], serde_json::json!(totals), "the sums of the text");
    // The page of a report shows them below its rows.
    let (header, column) = data(&page(&snapshot, By::Site));
    let process = &header["page"]["processes"][0];
    let held = process["held"].as_array().expect("one list per row");
    let of_rows: Vec<u64> = held.iter().map(|lines| numbers(lines).iter().sum()).collect();
    assert_eq!(of_rows, column("0.rows.bytes"));
    assert_eq!(numbers(&process["retainers"]), retained);
    // What would be freed is said beside a holder, as in the text.
    let mut shared = snapshot.clone();
    shared.holders.as_mut().expect("searched").retainers[0].also = vec!["__main__.other".to_owned()];
    let (header, _) = data(&why_page(&shared));
    let first = &header["page"]["holders"][0];
    assert_eq!(
        first["text"].as_str(),
        Some("__main__.keep (list of 60); dropping it alone frees nothing")
    );
    assert_eq!(first["rows"][0]["also"].as_str(), Some("also held by __main__.other"));
    let (without, _) = data(&page(&leaky(), By::Site));
    assert_eq!(
        without["page"]["processes"][0]["held"].as_array().map(Vec::len),
        Some(0)
    );
}

#[test]
fn a_trend_has_one_value_per_row_and_snapshot() {
    let (header, column) = data(&trend_page(leaky));
    let shown = &header["page"]["trends"][0];
    let rows = shown["rows"].as_array().expect("rows");
    assert_eq!(shown["points"].as_array().map(Vec::len), Some(10));
    let series = column("0.series.bytes");
    assert_eq!((rows.len(), series.len()), (5, 50));
    for (row, series) in rows.iter().zip(series.chunks(10)) {
        assert_eq!(row["bytes"]["first"].as_u64(), Some(series[0]));
        assert_eq!(row["bytes"]["last"].as_u64(), Some(series[9]));
    }
    assert_eq!(rows[0]["class"], "growing");
    assert!(
        rows[0]["sentence"]
            .as_str()
            .is_some_and(|text| text.contains("Trainer::step"))
    );
}

#[test]
fn every_page_names_the_pools_whose_use_is_unknown() {
    let unknown = "40 MiB in PyTorch's pool";
    let (report, _) = data(&page(&leaky(), By::Site));
    let headline = report["page"]["processes"][0]["headline"].as_str().expect("text");
    assert!(headline.contains(unknown), "{headline}");
    let (trend, _) = data(&trend_page(leaky));
    let headline = trend["page"]["trends"][0]["headline"].to_string();
    assert!(headline.contains("400 MiB in PyTorch's pool"), "{headline}");
    let (diff, _) = data(&diff_page(&leaky(), &leaky()));
    let (job, _) = data(&job_page(&leaky()));
    for (page, unknown) in [(&diff["page"], unknown), (&job["page"], "360 MiB in PyTorch's pool")] {
        let warnings = page["warnings"].to_string();
        assert!(warnings.contains(unknown), "{warnings}");
    }
}

#[test]
fn a_row_finds_its_stacks() {
    let snapshot = leaky();
    let (header, column) = data(&page(&snapshot, By::Site));
    let string = |number: u64| header["strings"][number as usize].as_str().expect("a string");
    let (depth, shared, added) = (
        column("0.stacks.depth"),
        column("0.stacks.shared"),
        column("0.stacks.frames"),
    );
    let mut stacks: Vec<Vec<u64>> = Vec::new();
    let mut added = added.into_iter();
    for (nth, (depth, shared)) in depth.iter().zip(shared).enumerate() {
        let mut stack = if nth > 0 {
            stacks[nth - 1][..shared as usize].to_vec()
        } else {
            Vec::new()
        };
        stack.extend(added.by_ref().take((depth - shared) as usize));
        stacks.push(stack);
    }
    let names = column("frames.name");
    let first = &stacks[column("0.rows.stack.number")[0] as usize];
    let first: Vec<_> = first.iter().map(|&frame| string(names[frame as usize])).collect();
    assert_eq!(first, ["main", "Trainer::run", "Trainer::step"]);
    assert_eq!(string(column("0.rows.label")[0]), "Trainer::step");
    assert_eq!(string(column("0.rows.place")[0]), "train.cu:212");
}

#[test]
fn a_job_has_one_value_per_call_site_and_process() {
    let (header, column) = data(&job_page(&leaky()));
    let page = &header["page"];
    let (processes, sites) = (page["processes"].as_array(), page["sites"].as_array());
    let (processes, sites) = (processes.expect("processes").len(), sites.expect("sites").len());
    assert_eq!((processes, sites > 0), (8, true));
    let values = column("values");
    assert_eq!(values.len(), processes * sites);
    let sums: Vec<u64> = values.chunks(processes).map(|values| values.iter().sum()).collect();
    assert_eq!(sums, column("site.sum"));
    assert_eq!(page["processes"][5]["out"], true);
    assert!(
        page["sites"][0]["sentence"]
            .as_str()
            .is_some_and(|text| text.starts_with("rank 5")),
        "{page:#}"
    );
}

#[test]
fn an_empty_snapshot_makes_a_page() {
    let empty = Sample::new().finish(0, 0);
    assert!(page(&empty, By::Site).contains("no CUDA memory was ever allocated"));
    assert!(diff_page(&empty, &empty).contains("no change"));
    let mut no_stack = leaky();
    no_stack.allocations.truncate(1);
    no_stack
        .allocations
        .change_last(|allocation, _| allocation.stack = None);
    page(&no_stack, By::Site);
}

#[test]
fn memory_over_time_is_that_of_the_log() {
    let mut program = training_over_time();
    program.mark("</script>\u{202e}");
    let (snapshot, logged) = program.finish(0);
    let item = Item {
        snapshot: &snapshot,
        timeline: Some(&logged),
        options: Options::default(),
        full_stacks: false,
    };
    let mut out = Vec::new();
    write_report(&[item], &mut out).expect("a page");
    let (header, column) = data(&String::from_utf8(out).expect("text"));
    let shown = &header["page"]["processes"][0]["over_time"];
    let column = |name: &str| column(&format!("0.time.{name}"));
    let (times, high) = (column("times"), column("high.0"));
    assert_eq!(times.iter().sum::<u64>(), logged.timeline.until_ns);
    assert_eq!(
        (high.len() + 1, shown["places"][0].as_str()),
        (times.len(), Some("GPU 0"))
    );
    let peaks: Vec<_> = shown["curves"]
        .as_array()
        .expect("curves")
        .iter()
        .map(|curve| {
            (
                curve["driver"].as_bool(),
                curve["peak_bytes"].as_u64().map(|bytes| bytes / MIB),
            )
        })
        .collect();
    // The table counts at both levels, the segments at one, the tensors at the other.
    assert_eq!(
        peaks,
        [(Some(false), Some(3 + 8 + 6 + 30)), (Some(true), Some(3 + 20 + 40))]
    );
    // The spans that are live at the end are the rows.
    let counts = column("spans.of_class");
    let (length, bytes) = (column("spans.length"), column("spans.bytes"));
    assert_eq!(counts.iter().sum::<u64>(), length.len() as u64);
    let live = length.iter().zip(&bytes).filter(|(length, _)| **length == 0);
    let rows: u64 = snapshot.allocations.iter().map(|row| row.bytes).sum();
    assert_eq!(live.map(|(_, bytes)| bytes).sum::<u64>(), rows);
    let sites = column("group.0");
    let names: std::collections::BTreeSet<_> = sites
        .iter()
        .map(|&name| header["strings"][name as usize].as_str().expect("a string"))
        .collect();
    assert!(names.contains("forward (train.cu:212)"), "{names:?}");
    assert_eq!(shown["phases"][0]["text"], "epoch");
    assert_eq!(
        (
            shown["phases"][1]["depth"].as_u64(),
            shown["phases"].as_array().map(Vec::len)
        ),
        (Some(1), Some(11))
    );
    assert_eq!(shown["marks"][1]["text"], "</script>\\u{202e}");
    assert!(
        shown["failed"][0]["text"]
            .as_str()
            .is_some_and(|text| text.contains("1 TiB failed"))
    );
}

#[test]
fn ten_thousand_stacks_stay_below_a_megabyte() {
    let mut sample = Sample::new();
    let names: Vec<String> = (0..500)
        .map(|nth| format!("module_{}::function_{nth}(int)", nth % 7))
        .collect();
    let mut state = 7u64;
    let mut chance = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    let frames: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), "/src/a.cu:1", "/opt/app"))
        .collect();
    let first = sample.stack(&frames);
    let locations = sample.0.stacks[first].frames.clone();
    for nth in 0..10_000 {
        let mut stack = sample.0.stacks[first].clone();
        stack.frames = (0..30)
            .map(|depth| locations[chance(40 - depth) * 10 + depth % 10])
            .collect();
        sample.0.stacks.push(stack);
        sample.holds(Kind::Device, "cudaMalloc", 512 + nth, 1, first + 1 + nth as usize);
    }
    let length = page(&sample.finish(0, 0), By::Site).len();
    assert!(length < 1_000_000, "{length}");
}
