//! Sums: of rows, of parts that filters select, of cut rows, in each form; and limits.

use culeak::analysis::categories::Category;
use culeak::analysis::report::By;
use culeak::analysis::words;
use culeak::kind::Kind;

use super::*;

/// A name of each of `By::ALL`, and whether it needs blocks, which a peak does not have.
fn groupings() -> impl Iterator<Item = &'static str> {
    // Modules need a search for holders.
    By::ALL.iter().filter(|by| **by != By::Module).map(|by| by.name())
}

const NEED_BLOCKS: [&str; 4] = ["size", "stream", "thread", "object-kind"];

/// At the end, at the peak, at a mark and in a window: rows, their parts, claims and objects.
pub fn rows_by_anything_add_up_to_the_same_totals(runs: &Runs) {
    let marks = runs.points();
    let mut points: Vec<Vec<&str>> = vec![vec![], vec!["--at", "peak"]];
    points.extend(marks.iter().rev().nth(1).map(|mark| vec!["--at", mark]));
    points.extend(
        marks
            .iter()
            .rev()
            .nth(2)
            .map(|mark| vec!["--between", mark, &marks[marks.len() - 2]]),
    );
    for point in points {
        let mut first: Option<(Value, String)> = None;
        for by in groupings().filter(|by| !(point.contains(&"peak") && NEED_BLOCKS.contains(by))) {
            let what = format!("--by {by} {point:?}");
            let words = [&["report", runs.one(), "--by", by][..], &point[..]].concat();
            let report = json(&words);
            let shown = commands::text(&[&words[..], &["--top", "0"]].concat());
            let headline = shown.lines().nth(1).unwrap_or_default().to_owned();
            check_rows(&report, by, &shown, &what);
            let (first, first_line) = first.get_or_insert_with(|| (report.clone(), headline.clone()));
            if by != "object-kind" {
                same!(memory(&report), memory(first), "{what}: rows");
            }
            for part in ["totals", "devices", "failed", "losses", "ledger", "points"] {
                alike(&report[part], &first[part], &format!("{what}: {part}"));
            }
            same!(&headline, first_line, "{what}: the first line");
        }
    }
}

fn check_rows(report: &Value, by: &str, shown: &str, what: &str) {
    let kinds = |name: &str| {
        list(&report["objects"]["kinds"])
            .iter()
            .map(|kind| number(&kind[name]))
            .sum::<u64>()
    };
    if by == "object-kind" {
        let rows = list(&report["rows"]).iter().map(|row| number(&row["count"]));
        same!(
            rows.sum::<u64>(),
            kinds("live") - kinds("suppressed"),
            "{what}: objects"
        );
        return;
    }
    if by == "site" {
        let own = list(&report["rows"]).iter().filter(|row| row["pool"] != true);
        let own = own.map(|row| (number(&row["bytes"]), number(&row["count"]) - number(&row["claims"])));
        same!(add(own), commands::held(report), "{what}: rows that are in no pool");
    }
    let row_claims = list(&report["rows"]).iter().map(|row| number(&row["claims"]));
    same!(row_claims.sum::<u64>(), claims(report), "{what}: claims");
    let lines = shown.lines().skip_while(|line| !line.starts_with(' '));
    let mut blocks = 0;
    for line in lines.take_while(|line| line.starts_with(' ')) {
        // `2 MiB  in 3 blocks  main  train.cu:14`; a line of a caller is a part of the row above it.
        let Some((_, rest)) = line.split_once("  in ") else {
            continue;
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        if let [count, "block" | "blocks", label, ..] = words[..]
            && label != "←"
        {
            blocks += count.replace(',', "").parse::<u64>().expect("a count");
        }
    }
    same!(blocks, memory(report).1, "{what}: blocks in the text\n{shown}");
    for row in list(&report["rows"]) {
        for part in ["kinds", "devices", "streams", "threads", "apis"] {
            let parts = row[part].as_object().expect("parts").values().map(tally);
            same!(add(parts), tally(row), "{what}: {part} of {}", row["label"]);
        }
        let stacks = list(&row["stacks"]);
        if number(&row["stacks_in_all"]) == stacks.len() as u64 {
            same!(
                add(stacks.iter().map(tally)),
                tally(row),
                "{what}: stacks of {}",
                row["label"]
            );
        }
    }
}

/// Parts of a report, which are all of it, by the options that select them.
fn parts(of: &str, report: &Value) -> Vec<Vec<Vec<String>>> {
    let option = |name: &str, values: &[&str]| -> Vec<String> {
        values
            .iter()
            .flat_map(|value| [format!("--{name}"), (*value).to_owned()])
            .collect()
    };
    let kinds: Vec<&str> = Kind::of_memory()
        .chain(
            Kind::ALL
                .iter()
                .copied()
                .filter(|kind| kind.place() == culeak::kind::Place::Nowhere),
        )
        .map(Kind::name)
        .collect();
    let (some, others) = kinds.split_at(kinds.len() / 3);
    let mut places = vec![option("device", &["host"])];
    let devices = list(&report["devices"]).iter();
    let devices = devices.map(|device| option("device", &[&device["ordinal"].to_string()]));
    // A device that the process has not used is refused.
    places.extend(devices.filter(|device| commands::run(&["report", of, &device[0], &device[1]]).status.success()));
    let categories = Category::ALL
        .iter()
        .map(|category| option("category", &[category.name()]));
    let mut all = vec![
        vec![option("kind", some), option("kind", others)],
        places,
        categories.collect(),
    ];
    all.extend(
        ["site_1", "^through_2$", "script.c", "no_such_function"]
            .map(|pattern| vec![option("focus", &[pattern]), option("ignore", &[pattern])]),
    );
    all
}

/// Of a report at the end, at the peak and at a mark.
pub fn a_filter_and_its_complement_add_up(runs: &Runs) {
    let marks = runs.points();
    let mut points: Vec<Vec<&str>> = vec![vec![], vec!["--at", "peak"]];
    points.extend(marks.iter().rev().nth(1).map(|mark| vec!["--at", mark]));
    for point in points {
        let of = |words: &[&str]| json(&[&["report", runs.one()][..], &point[..], words].concat());
        let whole = of(&[]);
        let (all, all_claims) = (memory(&whole), claims(&whole));
        let part = |words: &[String]| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let report = of(&words);
            let (held, what) = (memory(&report), format!("{words:?} {point:?}"));
            let with_others = add([held, tally(&report["filter"]["left_out"])].into_iter());
            same!(with_others, all, "{what}: with what it leaves out");
            (held, claims(&report))
        };
        for parts in parts(runs.one(), &whole) {
            let sums: Vec<(Sum, u64)> = parts.iter().map(|words| part(words)).collect();
            let with_claims = (
                add(sums.iter().map(|sum| sum.0)),
                sums.iter().map(|sum| sum.1).sum::<u64>(),
            );
            same!(with_claims, (all, all_claims), "{parts:?} {point:?}");
        }
        if !point.contains(&"peak") {
            for mark in marks.iter().filter_map(|point| point.strip_prefix("mark:")) {
                part(&["--since".to_owned(), mark.to_owned()]);
            }
        }
        for least in ["1", "513", "65536", "1GiB"] {
            let report = of(&["--min-bytes", least]);
            same!(listed(&report), listed(&whole), "--min-bytes {least} {point:?}");
            alike(
                &report["totals"],
                &whole["totals"],
                &format!("--min-bytes {least} {point:?}"),
            );
        }
    }
}

/// Of diffs, exports and churn.
pub fn a_filter_and_its_complement_add_up_in_other_commands(runs: &Runs) {
    let (one, points) = (runs.one(), runs.points());
    let from = &points[0];
    let whole = json(&["report", one]);
    let diff = |words: &[&str]| {
        let diff = json(&[&["diff", one, "--at", from, "--at", "exit"][..], words].concat());
        let totals = diff["totals"].clone();
        [tally(&totals["before"]), tally(&totals["after"])]
    };
    let csv = |words: &[&str]| {
        commands::text(&[&["export", one, "-f", "csv", "-o", "-"][..], words].concat())
            .lines()
            .skip(1)
            .count()
    };
    let folded = |words: &[&str]| commands::exports::folded_sum(one, words);
    let churn = |words: &[&str]| {
        let churn = json(&[&["report", one, "--view", "churn"][..], words].concat());
        ["driver", "blocks"].map(|of| ["allocated", "freed"].map(|what| tally(&churn[of][what])))
    };
    let (all_diff, all_csv, all_folded, all_churn) = (diff(&[]), csv(&[]), folded(&[]), churn(&[]));
    for parts in parts(runs.one(), &whole) {
        let name = parts[0][0].as_str();
        let words: Vec<Vec<&str>> = parts
            .iter()
            .map(|words| words.iter().map(String::as_str).collect())
            .collect();
        // A diff has no categories.
        if name != "--category" {
            let sums: Vec<_> = words.iter().map(|words| diff(words)).collect();
            let both = [0, 1].map(|side| add(sums.iter().map(|sums| sums[side])));
            same!(both, all_diff, "diff {parts:?}");
        }
        same!(
            words.iter().map(|words| csv(words)).sum::<usize>(),
            all_csv,
            "export -f csv {parts:?}"
        );
        same!(
            words.iter().map(|words| folded(words)).sum::<u64>(),
            all_folded,
            "export -f folded {parts:?}"
        );
        let sums: Vec<_> = words.iter().map(|words| churn(words)).collect();
        let churned = [0, 1].map(|of| [0, 1].map(|what| add(sums.iter().map(|sums| sums[of][what]))));
        same!(churned, all_churn, "--view churn {parts:?}");
    }
}

/// Of rows of reports, of objects and churn, and of diffs.
pub fn fewer_rows_are_the_first_of_more(runs: &Runs) {
    let (one, points) = (runs.one(), runs.points());
    let again = text(runs.again);
    for words in [
        vec!["report", one],
        vec!["report", one, "--by", "stack", "--sort", "count"],
        vec!["report", one, "--by", "size"],
        vec!["report", one, "--by", "object-kind"],
        vec!["report", one, "--sort", "age", "--by", "api"],
        vec!["report", one, "--view", "churn"],
        vec!["report", one, "--at", "peak"],
        vec!["diff", one, "--at", &points[0], "--at", "exit"],
        vec!["diff", one, again, "--all", "--sort", "count"],
        vec!["trend", one, again, "--all"],
    ] {
        let all = json(&[&words[..], &["--top", "0"]].concat());
        for most in 1..5 {
            let few = json(&[&words[..], &["--top", &most.to_string()]].concat());
            let [rows, all_rows] = [&few, &all].map(|report| list(&report["rows"]));
            let what = format!("{words:?} --top {most}");
            same!(rows, &all_rows[..most.min(all_rows.len())], "{what}");
            alike(&few["totals"], &all["totals"], &what);
            let hidden = few["hidden_rows"]
                .as_u64()
                .unwrap_or(all_rows.len() as u64 - rows.len() as u64);
            same!(
                rows.len() as u64 + hidden,
                all_rows.len() as u64 + all["hidden_rows"].as_u64().unwrap_or(0),
                "{what}: hidden"
            );
            // Rows of churn are of events.
            if few["hidden"].is_object() && !words.contains(&"churn") {
                same!(listed(&few), listed(&all), "{what}: rows and hidden");
            }
        }
    }
}

/// The text of a page, without its marks.
fn plain(form: &str, page: &str) -> String {
    let mut plain = String::new();
    let mut in_tag = false;
    for part in page.chars() {
        match part {
            '<' if form == "html" => in_tag = true,
            '>' if in_tag => in_tag = false,
            '*' | '\\' | '`' if form == "md" => {}
            part if !in_tag => plain.push(part),
            _ => {}
        }
    }
    let escapes = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ];
    let plain = escapes
        .into_iter()
        .fold(plain, |plain, (escape, of)| plain.replace(escape, of));
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The headline of text, Markdown and HTML, and its sums, which are those of JSON.
pub fn each_form_has_the_same_totals(runs: &Runs) {
    let folder = folder();
    let marks = runs.points();
    let mut views: Vec<Vec<&str>> = vec![
        vec![],
        vec!["--by", "kind"],
        vec!["--at", "peak"],
        vec!["--kind", "device"],
        vec!["--focus", "site_1"],
        vec!["--min-bytes", "4096"],
    ];
    views.extend(marks.iter().rev().nth(1).map(|mark| vec!["--at", mark]));
    for view in views {
        let words = [&["report", runs.one()][..], &view[..]].concat();
        let (report, shown) = (json(&words), commands::text(&words));
        let mut headline = shown.lines().skip(1).take_while(|line| !line.starts_with(' '));
        let headline = headline.next().unwrap_or_default();
        let what = format!("{view:?}: {headline}");
        for form in ["md", "html"] {
            let file = folder.path().join(format!("page.{form}"));
            commands::text(&[&words[..], &["-o", text(&file), "--force"]].concat());
            let page = plain(form, &fs::read_to_string(&file).expect("a page"));
            assert!(
                page.contains(&plain("text", headline)),
                "{what}: not in {form}:\n{page:.1500}"
            );
        }
        let held = &report["totals"]["held"];
        let on_host = number(&held["host"]["bytes"]);
        let devices: u64 = ["blocks", "device", "managed"]
            .map(|place| number(&held[place]["bytes"]))
            .iter()
            .sum();
        for bytes in [on_host, devices].into_iter().filter(|bytes| *bytes > 0) {
            let several = list(&report["devices"]).len() > 1 && bytes == devices;
            assert!(
                several || headline.contains(&words::bytes(bytes)),
                "{what}: {bytes} bytes are not in it"
            );
        }
    }
}

/// A limit that is raised turns no pass into a failure, nor into no verdict.
pub fn a_higher_limit_fails_no_sooner(runs: &Runs) {
    let report = json(&["report", runs.one(), "--at", "exit"]);
    let held = commands::held(&report).0;
    let mut forms = vec![
        (String::new(), held),
        ("site=".to_owned(), held),
        ("leak:site_1=".to_owned(), held),
        ("count=".to_owned(), 9),
    ];
    let kinds = list(&report["rows"])
        .iter()
        .flat_map(|row| row["kinds"].as_object().expect("kinds"));
    let of_memory = kinds.filter(|(name, _)| Kind::from_name(name).is_some_and(|kind| kind.place().is_memory()));
    forms.extend(
        of_memory
            .take(2)
            .map(|(name, of)| (format!("{name}="), number(&of["bytes"]))),
    );
    let objects = list(&report["objects"]["kinds"]).iter().take(1);
    forms.extend(objects.map(|of| {
        (
            format!("{}=", of["kind"].as_str().expect("a name")),
            number(&of["live"]),
        )
    }));
    for (form, about) in forms {
        let mut best = 0;
        for limit in [
            0,
            about / 3,
            about.saturating_sub(1),
            about,
            about + 1,
            3 * about + 1,
            1 << 40,
        ] {
            let allowed = format!("{form}{limit}");
            let output = commands::run(&["check", runs.one(), "--allow", &allowed]);
            // Failed, no verdict, passed.
            let standing = [2, 0, 1][output.status.code().expect("a code") as usize];
            let shown = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(standing >= best, "--allow {allowed}: {shown}");
            best = standing;
        }
    }
}
