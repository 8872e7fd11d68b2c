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
use crate::document::estimate;
use crate::escape::is_active;
use crate::text;
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
    text::report::write_html(&[item], &mut out).expect("a page");
    String::from_utf8(out).expect("text")
}

fn diff_page(before: &Snapshot, after: &Snapshot) -> String {
    let options = diff::Options {
        by: By::Stack,
        ..diff::Options::default()
    };
    let mut out = Vec::new();
    text::diff::write_html([(before, None), (after, None)], &options, false, &mut out).expect("a page");
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
    page_of(trends.iter().map(|trend| text::trend::page(trend, true, "")))
}

fn page_of(documents: impl Iterator<Item = Document>) -> String {
    let documents = documents.map(|document| ("name".to_owned(), document)).collect();
    let mut out = Vec::new();
    write("title", documents, &mut out).expect("a page");
    String::from_utf8(out).expect("text")
}

#[test]
fn only_a_page_with_graphs_has_the_licences_of_their_libraries() {
    let has_them = |page: &str| page.contains("Libraries in this file");
    assert!(has_them(&page(&leaky(), By::Site)));
    assert!(!has_them(&trend_page(leaky)) && !has_them(&job_page(&leaky())));
}

fn why_page(snapshot: &Snapshot) -> String {
    let why = Why::of(snapshot, &why::Options::default()).expect("an answer");
    page_of([text::why::page(&why, None)].into_iter())
}

/// A job of eight processes, of which one holds everything twice.
fn job_page(snapshot: &Snapshot) -> String {
    let (mut job, mut sites) = (Job::default(), Sites::default());
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
    let options = culeak::analysis::job::Options {
        values: true,
        ..Default::default()
    };
    let report = job.finish(&sites, &options);
    page_of([text::job::page(&report, Some(ROWS), "")].into_iter())
}

/// The texts between two markers of a page.
fn between<'a>(page: &'a str, start: &str, end: &str) -> Vec<&'a str> {
    let parts = page.split(start).skip(1);
    parts
        .map(|part| part.split_once(end).expect("the end mark").0)
        .collect()
}

/// The documents of a page.
fn content(page: &str) -> &str {
    between(page, "<main id=\"main\">", "</main>")[0]
}

/// The exact sizes in a part of a page.
fn sizes(part: &str) -> Vec<u64> {
    let numbers = between(part, "data-bytes=\"", "\"").into_iter();
    numbers.map(|number| number.parse().expect("a number")).collect()
}

/// The rows of a page's first table, without what is below them.
fn rows(page: &str) -> Vec<&str> {
    let table = between(page, "<table", "</tbody>")[0];
    between(table, "<tr data-row", "</tr>")
}

/// The header of the data of graphs, and the columns by name.
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
        assert_eq!(page.matches("</pre>").count(), page.matches("<pre>").count());
        let content = content(&page).replace('\n', "");
        assert!(content.contains("\\u{202e}") && !content.contains(is_active));
    }
}

#[test]
fn names_in_the_data_of_graphs_are_escaped() {
    let mut sample = Sample::new();
    let stack = sample.stack(&[("a\u{202e}b", "/src/a.cu:3", "/lib/a.so"), MAIN]);
    sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
    let (header, _) = data(&page(&sample.finish(0, 0), By::Site));
    let strings = header["strings"].to_string();
    assert!(
        strings.contains("\\\\u{202e}") && !strings.contains(is_active),
        "{strings}"
    );
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
    assert!(report.rows.iter().any(|row| row.estimated.is_some()));
    let page = page(&snapshot, By::Site);
    for (row, shown) in report.rows.iter().zip(rows(&page)) {
        assert!(shown.contains(&estimate(row.bytes, row.estimated)), "{shown}");
    }
    let changed = diff_page(&leaky(), &snapshot);
    assert!(rows(&changed).iter().any(|row| row.contains('±')));
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
        let page = page(&snapshot, by);
        let bytes: Vec<u64> = report.rows.iter().map(|row| row.bytes).collect();
        assert_eq!(sizes(&rows(&page).concat()), bytes);
        let (_, column) = data(&page);
        let all: u64 = column("0.samples.bytes").iter().sum();
        assert_eq!(all, bytes.iter().sum::<u64>(), "the graph holds what the rows hold");
        let ledger = between(&page, "<table class=\"rows adds-up\"", "</table>")[0];
        let lines = report.ledger.devices[0].lines.iter();
        let lines: Vec<u64> = lines.filter_map(|line| u64::try_from(line.bytes).ok()).collect();
        assert_eq!(sizes(ledger)[..lines.len()], lines);
    }
}

#[test]
fn objects_are_those_of_the_report() {
    let page = page(&serving(), By::Site);
    let objects = page.split("Objects without an address").nth(1).expect("a section");
    assert!(objects.contains("43 created") && objects.contains("40 graph-exec  Server::decode  server.cu:88"));
    let mut later = serving();
    later.objects.truncate(60);
    assert!(diff_page(&serving(), &later).contains("objects without an address: 60 (-9)"));
}

#[test]
fn holders_are_those_of_the_answer() {
    let snapshot = held();
    let why = Why::of(&snapshot, &why::Options::default()).expect("an answer");
    let page_of_why = why_page(&snapshot);
    let retained: Vec<u64> = why.retainers.iter().map(|retainer| retainer.tally.bytes).collect();
    let tree = |page: &str, title: &str| sizes(page.split(title).nth(1).expect("a tree"))[..retained.len()].to_vec();
    assert_eq!(tree(&page_of_why, "dropping a holder frees"), retained);
    // The page of a report shows them below its rows.
    let report = page(&snapshot, By::Site);
    assert!(report.contains("held by") && report.contains("__main__.keep (list of 60)"));
    assert_eq!(tree(&report, "What would be freed"), retained);
    assert!(!page(&leaky(), By::Site).contains("What would be freed"));
}

#[test]
fn a_trend_has_one_point_per_row_and_snapshot() {
    let page = trend_page(leaky);
    let rows = rows(&page);
    assert_eq!(rows.len(), 5);
    for row in rows {
        assert_eq!(row.matches("<rect class=\"point\"").count(), 10, "{row}");
    }
    assert!(page.contains("growing") && page.contains("Trainer::step"));
}

#[test]
fn every_page_names_the_pools_whose_use_is_unknown() {
    let unknown = "40 MiB in PyTorch&#39;s pool";
    assert!(page(&leaky(), By::Site).contains(unknown));
    assert!(diff_page(&leaky(), &leaky()).contains(unknown));
    assert!(trend_page(leaky).contains("400 MiB in PyTorch&#39;s pool"));
    assert!(job_page(&leaky()).contains("360 MiB in PyTorch&#39;s pool"));
}

#[test]
fn a_page_is_in_the_order_of_the_text_with_the_call_sites_below_the_headline() {
    let page = page(&training().finish(0, 0), By::Site);
    let lines: Vec<&str> = content(&page).lines().collect();
    let at = |text: &str| {
        let nth = lines.iter().position(|line| line.contains(text));
        nth.unwrap_or_else(|| panic!("{text}: {lines:#?}"))
    };
    assert_eq!(at("Call sites</h2>"), at("class=\"headline") + 1, "{lines:#?}");
    assert_eq!(at("<table"), at("Call sites</h2>") + 1, "{lines:#?}");
    let order = [
        "<table",
        "besides, ",
        "recorded in full",
        "class=\"graphs\"",
        "Where the memory is",
        "Not recorded",
    ];
    assert!(order.map(at).is_sorted(), "{:?}", order.map(at));
    let lossy = self::page(&leaky(), By::Site);
    let order = [
        "Trainer::step",
        "not recorded",
        "40 frees were",
        "culeak check",
        "class=\"graphs\"",
    ];
    let at = order.iter().map(|text| content(&lossy).find(text));
    assert!(at.clone().all(|at| at.is_some()) && at.is_sorted(), "{lossy}");
}

#[test]
fn the_graph_has_the_stacks_of_the_report() {
    let (header, column) = data(&page(&leaky(), By::Site));
    let string = |number: u64| header["strings"][number as usize].as_str().expect("a string");
    let (depth, shared, added) = (
        column("0.stacks.depth"),
        column("0.stacks.shared"),
        column("0.stacks.frames"),
    );
    let names = column("frames.name");
    let mut stacks: Vec<Vec<&str>> = Vec::new();
    let mut added = added.into_iter().map(|frame| string(names[frame as usize]));
    for (depth, shared) in depth.iter().zip(shared) {
        let before = stacks.last().map_or(&[][..], |stack| &stack[..shared as usize]);
        let mut stack = before.to_vec();
        stack.extend(added.by_ref().take((depth - shared) as usize));
        stacks.push(stack);
    }
    assert!(
        stacks.contains(&vec!["main", "Trainer::run", "Trainer::step"]),
        "{stacks:?}"
    );
}

#[test]
fn a_job_has_one_bar_per_call_site_and_process() {
    let page = job_page(&leaky());
    let charts = between(&page, "<svg", "</svg>");
    assert!(!charts.is_empty());
    for chart in charts {
        assert_eq!(sizes(chart).len(), 8, "{chart}");
    }
    assert!(page.contains("class=\"out\"") && page.contains("rank 5"));
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
    text::report::write_html(&[item], &mut out).expect("a page");
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
fn ten_thousand_stacks_stay_below_four_megabytes() {
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
    assert!(length < 4_000_000, "{length}");
}
