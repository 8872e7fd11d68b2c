//! Golden texts. `CULEAK_BLESS=1 cargo test -p culeak-cli --bin culeak golden` rewrites them; review the diff before committing.

use std::io;
use std::path::Path;

use culeak::analysis::categories::Categories;
use culeak::analysis::check::{Limit, Limits, Rules, Scope, baseline_of, point_of, verdict};
use culeak::analysis::diff::Diff;
use culeak::analysis::filter::Filter;
use culeak::analysis::points::Points;
use culeak::analysis::profile::tree::{Limits as OfTree, Tree};
use culeak::analysis::profile::{self, Profile};
use culeak::analysis::report::{By, Options, Report};
use culeak::analysis::site::text::Site;
use culeak::analysis::trend::{self, Summary, Trend};
use culeak::kind::Kind;
use culeak::point::Point;
use culeak::snapshot::{EndOf, GroupLimits, ProcessState, Snapshot};

mod diffs;
mod escapes;
mod fits;
mod job;
mod ledger;
mod objects;
mod phases;
mod verdicts;
mod why;

use super::report::Extent;
use super::sample::{GIB, MAIN, MIB, RUNTIME, START, Sample, gradients, leaky, serving, shut_down, training};
use crate::document::Document;
use crate::names::Detail;
use crate::options::view::Shape;

/// Renders without styles, as for a pipe.
pub fn plain(render: impl FnOnce(&mut dyn io::Write) -> io::Result<()>) -> String {
    let mut out = anstream::StripStream::new(Vec::new());
    render(&mut out).expect("writing to memory succeeds");
    String::from_utf8(out.into_inner()).expect("text")
}

fn report_text(snapshot: &Snapshot, options: &Options, full_stacks: bool) -> String {
    let extent = Extent {
        views: if full_stacks {
            &[Shape::Stacks, Shape::Ledger]
        } else {
            &[]
        },
        full_stacks,
    };
    plain(|out| super::report::page(&Report::of(snapshot, options), extent).text(out))
}

/// As for a text on the command line.
fn from_file(name: &str) -> Options {
    Options {
        source: name.to_owned(),
        top: Some(20),
        without_minor_rows: true,
        ..Options::default()
    }
}

fn expect_golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/text/golden").join(name);
    if std::env::var_os("CULEAK_BLESS").is_some() {
        std::fs::write(&path, text).expect("golden text written");
        return;
    }
    let golden = std::fs::read_to_string(&path).expect("golden text; make it with CULEAK_BLESS=1");
    assert_eq!(
        text, golden,
        "{name} differs; if that is right, bless it with CULEAK_BLESS=1"
    );
}

#[test]
fn golden_report_by_category_names_the_rules() {
    let mut categories = Categories::none();
    let own = "kv-cache: ^data.py$\ninputs: absent.py\n";
    categories.add(own, "mine.txt").expect("valid rules");
    categories.add_built_in();
    let options = Options {
        by: By::Category,
        categories,
        ..from_file("train.node7.4711.culeak")
    };
    let snapshot = training().finish(0, 3);
    expect_golden("report-by-category.txt", &report_text(&snapshot, &options, false));
}

#[test]
fn golden_report_of_a_finished_process() {
    expect_golden(
        "report-leaky.txt",
        &report_text(&leaky(), &from_file("app.node7.4711.culeak"), false),
    );
}

#[test]
fn golden_report_with_full_stacks() {
    expect_golden(
        "report-full-stacks.txt",
        &report_text(
            &leaky(),
            &Options {
                top: Some(2),
                ..from_file("app.culeak")
            },
            true,
        ),
    );
}

#[test]
fn golden_report_of_gradients_names_forward_lines() {
    let text = report_text(&gradients(0), &from_file("train.culeak"), false);
    expect_golden("report-gradients.txt", &text);
}

#[test]
fn golden_report_by_kind() {
    expect_golden(
        "report-by-kind.txt",
        &report_text(
            &leaky(),
            &Options {
                by: By::Kind,
                ..from_file("app.culeak")
            },
            false,
        ),
    );
}

#[test]
fn golden_report_of_a_running_process_on_two_gpus() {
    let mut sample = Sample::new().running();
    let stack = sample.stack(&[RUNTIME, ("Cache::fill()", "/src/cache.cu:8", "/opt/app"), MAIN, START]);
    sample.holds(Kind::Device, "cudaMalloc", GIB, 3, stack);
    let mut snapshot = sample.finish(4 * GIB, 7);
    let mut second = snapshot.devices[0].clone();
    second.ordinal = 1;
    snapshot.devices.push(second);
    snapshot.device_peaks.push(culeak::snapshot::DevicePeak {
        device: 1,
        peak_bytes: 2 * GIB,
        time_ns: 1,
    });
    snapshot.allocations.change(|nth, _, call| {
        if nth == 2 {
            call.device = Some(1);
        }
    });
    snapshot.process.ranks.insert("RANK".to_owned(), "3".to_owned());
    snapshot.taken.events_during_read = 12;
    expect_golden("report-running.txt", &report_text(&snapshot, &from_file("4711"), false));
}

#[test]
fn golden_report_without_leaks_and_without_cuda() {
    let clean = report_text(&Sample::new().finish(64 * MIB, 12), &from_file("clean.culeak"), false);
    let idle = report_text(&Sample::new().finish(0, 0), &from_file("idle.culeak"), false);
    expect_golden("report-clean.txt", &format!("{clean}\n{idle}"));
}

#[test]
fn golden_report_of_a_training_program_with_the_drivers_answer() {
    let mut sample = super::sample::training().running();
    sample.0.usage = Some(super::sample::usage_while_training());
    let snapshot = sample.finish(60 * MIB, 9);
    expect_golden(
        "report-training.txt",
        &report_text(&snapshot, &from_file("4711"), false),
    );
    let by_line = Options {
        by: By::PythonLine,
        ..from_file("4711")
    };
    expect_golden("report-by-python-line.txt", &report_text(&snapshot, &by_line, false));
}

#[test]
fn golden_reports_of_a_script_at_its_points() {
    let snapshot = shut_down();
    let points = Some(Points::of(&snapshot));
    let options = || Options {
        points: points.clone(),
        ..from_file("train.culeak")
    };
    let end = snapshot.at(&Point::End).expect("an end");
    expect_golden("report-at-end.txt", &report_text(&end, &options(), false));
    expect_golden(
        "report-at-exit.txt",
        &report_text(&snapshot, &from_file("train.culeak"), false),
    );
    let peak = snapshot.at(&Point::Peak).expect("a peak");
    expect_golden("report-at-peak.txt", &report_text(&peak, &options(), false));
}

/// The first lines of a report.
fn headline(snapshot: &Snapshot, options: &Options) -> String {
    super::report::headline(&Report::of(snapshot, options)).plain()
}

#[test]
fn a_recording_that_lost_all_allocations_does_not_say_that_there_were_none() {
    let mut lost = Sample::new().finish(0, 0);
    let headline_at = |snapshot: &Snapshot| headline(snapshot, &Options::default());
    assert_eq!(headline_at(&lost), "no CUDA memory was ever allocated\n");
    lost.losses.lost_allocations = 3000;
    assert_eq!(headline_at(&lost), "no allocation could be recorded\n");
    lost.process.state = ProcessState::Ended;
    assert_eq!(
        headline_at(&lost),
        "no allocation could be recorded when the process ended\n"
    );
}

#[test]
fn the_headline_compares_the_end_with_the_exit() {
    let mut snapshot = shut_down();
    let at_end = |snapshot: &Snapshot| {
        let points = Some(Points::of(snapshot));
        let view = snapshot.at(&Point::End).expect("an end");
        headline(
            &view,
            &Options {
                points,
                ..Options::default()
            },
        )
    };
    snapshot.allocations.retain(|row| row.time_ns <= 50_000_000_000);
    let text = at_end(&snapshot);
    assert!(
        text.starts_with(
            "held when the script ended: 42 MiB in 4 blocks; exit callbacks and the interpreter's shutdown freed 8 MiB of it; 34 MiB was never freed\n"
        ),
        "{text}"
    );
    let mut all_freed = snapshot.clone();
    all_freed.allocations.truncate(0);
    let text = at_end(&all_freed);
    assert!(
        text.starts_with("held when the script ended: 8 MiB in 2 blocks; exit callbacks and the interpreter's shutdown freed all of it\n"),
        "{text}"
    );
    let mut none_freed = snapshot.clone();
    none_freed.freed_after_end.truncate(0);
    assert!(at_end(&none_freed).contains("shutdown freed nothing of it; 34 MiB was never freed\n"));

    let mut native = snapshot.clone();
    native.end.as_mut().expect("an end").of = EndOf::Main;
    let text = headline(&native, &Options::default());
    assert!(
        text.starts_with("held when main returned: 42 MiB in 4 blocks; exit handlers freed 8 MiB"),
        "{text}"
    );
    native.freed_after_end.truncate(0);
    let text = headline(&native, &Options::default());
    assert!(!text.contains("main"), "exit handlers freed nothing: {text}");

    let mut nothing = all_freed.clone();
    nothing.freed_after_end.truncate(0);
    assert!(
        at_end(&nothing).starts_with("nothing held when the script ended: "),
        "{}",
        at_end(&nothing)
    );
}

#[test]
fn a_report_names_the_modules_whose_call_sites_have_no_lines_for_lack_of_debug_information() {
    let mut snapshot = leaky();
    let names = |snapshot: &Snapshot| {
        let text = report_text(snapshot, &from_file("app.culeak"), false);
        text.lines().find(|line| line.starts_with("names ")).map(str::to_owned)
    };
    assert_eq!(names(&snapshot), None, "the files may be missing");
    snapshot.modules.iter_mut().for_each(|module| module.bare = true);
    assert_eq!(
        names(&snapshot).as_deref(),
        Some(
            "names         libfancy.so has no debug information; build it with -g, or point --debug-dir at its debug files"
        ),
        "the others are of libraries, or have lines"
    );
}

#[test]
fn runs_of_a_librarys_frames_are_one_line_unless_stacks_are_full() {
    let mut sample = Sample::new();
    let files: Vec<String> = (1..=21)
        .map(|line| format!("/venv/lib/python3.12/site-packages/torch/_dynamo/eval_frame.py:{line}"))
        .collect();
    let inside = files.iter().map(|file| ("_fn", file.as_str(), super::sample::PYTHON));
    let step = ("training_step", "/home/me/train.py:212", super::sample::PYTHON);
    let frames: Vec<_> = [RUNTIME].into_iter().chain(inside).chain([step]).collect();
    let stack = sample.stack(&frames);
    sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
    let snapshot = sample.finish(0, 0);
    let stacks = Extent {
        views: &[Shape::Stacks],
        ..Extent::default()
    };
    let report = Report::of(&snapshot, &from_file("app.culeak"));
    let folded = plain(|out| super::report::page(&report, stacks).text(out));
    let lines = "\n      torch: 21 frames\n      training_step  /home/me/train.py:212\n\n";
    assert!(folded.contains(lines), "{folded}");
    let full = report_text(&snapshot, &from_file("app.culeak"), true);
    assert_eq!(full.matches("torch/_dynamo/eval_frame.py").count(), 21, "{full}");
    let page = |full_stacks| {
        let item = crate::html::Item {
            snapshot: &snapshot,
            timeline: None,
            options: from_file("app.culeak"),
            full_stacks,
        };
        let mut page = Vec::new();
        crate::text::report::write_html(&[item], &mut page).expect("written");
        let page = String::from_utf8(page).expect("text");
        page.contains("torch: 21 frames")
    };
    assert_eq!([page(false), page(true)], [true, false]);
    let profile = Profile::of(&snapshot, &profile::Options::default());
    let tree = |signatures| {
        let (tree, mut page) = (Tree::of(&profile, &OfTree::default()), Document::default());
        let lines = true;
        super::tree::write(&profile, &tree, Detail { signatures, lines }, &mut page);
        plain(|out| page.text(out)).contains("torch: 21 frames")
    };
    assert_eq!([tree(false), tree(true)], [true, false]);
    let stack = &report.rows[0].stacks[0].stack;
    let mut kept = Document::default();
    kept.site_stack(&Site::of(stack).stack, true, 0);
    let kept = plain(|out| kept.text(out));
    assert!(kept.starts_with("torch: 21 frames\ntraining_step"), "{kept}");
    assert!(kept.ends_with("… (the stack was cut here)\n"), "{kept}");
    let annotation = crate::verdict::stack_text(stack);
    assert_eq!(annotation, "torch: 21 frames\ntraining_step  /home/me/train.py:212\n");
}

#[test]
fn callers_in_a_library_are_one_name_if_the_users_own_code_is_beside_them() {
    let mut sample = Sample::new();
    let files: Vec<String> = (1..=5)
        .map(|line| format!("/venv/lib/python3.12/site-packages/lightning/loop.py:{line}"))
        .collect();
    let inside = || files.iter().map(|file| ("run", file.as_str(), super::sample::PYTHON));
    let step = ("training_step", "/home/me/train.py:212", super::sample::PYTHON);
    let script = ("<module>", "/home/me/train.py:300", super::sample::PYTHON);
    let own: Vec<_> = [RUNTIME, step].into_iter().chain(inside()).chain([script]).collect();
    let only: Vec<_> = [RUNTIME].into_iter().chain(inside()).collect();
    for frames in [own, only] {
        let stack = sample.stack(&frames);
        sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
    }
    let snapshot = sample.finish(0, 0);
    let text = report_text(&snapshot, &from_file("app.culeak"), false);
    let folded = "\n      from lightning: 5 frames < <module> train.py:300, ";
    assert!(text.contains(folded), "{text}");
    assert!(
        text.contains("\n      from run loop.py:2 < run loop.py:3 < run loop.py:4 < …, "),
        "{text}"
    );
    let none = Sample::new().finish(0, 0);
    let diff = Diff::of(&none, &snapshot, &culeak::analysis::diff::Options::default());
    let diff = plain(|out| super::diff::page(&diff, false, false).text(out));
    assert!(
        diff.contains("\n            from lightning: 5 frames < <module>\n"),
        "{diff}"
    );
    let report = Report::of(&snapshot, &from_file("app.culeak"));
    let row = report.rows.iter().find(|row| row.label == "training_step");
    let (kept, mut page) = (Site::of(&row.expect("the row").stacks[0].stack), Document::default());
    super::parts::callers_of(&kept, &mut page);
    let kept = plain(|out| page.text(out));
    assert_eq!(kept.trim(), "from lightning: 5 frames < <module>");
}

#[test]
fn nothing_is_said_to_be_free_above_a_pool_whose_blocks_are_unknown() {
    let with = |owned: u64, domains: &[&str]| {
        let mut sample = Sample::new();
        sample.0.process.command_line = vec!["python".to_owned(), "list.py".to_owned()];
        sample.0.domains = domains.iter().map(|domain| (*domain).to_owned()).collect();
        let cupy = ("", "", "/venv/cupy/cuda/memory.cpython-312-x86_64-linux-gnu.so");
        let (pool, own) = (sample.stack(&[RUNTIME, cupy, MAIN]), sample.stack(&[RUNTIME, MAIN]));
        sample.holds(Kind::Device, "cudaMalloc", 8 * MIB, 1, pool);
        sample.holds(Kind::Device, "cudaMalloc", 1024, owned, own);
        sample.0.end = Some(culeak::snapshot::End {
            of: EndOf::Script,
            time_ns: 59_000_000_000,
        });
        sample.finish(8 * MIB, 0)
    };
    let unknown = "8 MiB in CuPy's pool when the script ended: which part was in use is unknown; record with CULEAK_ADAPTERS=cupy, \
                   which needs culeak's Python package\n";
    let next = "\nnext: CULEAK_ADAPTERS=cupy culeak run -- python list.py\n";
    let at_end = |snapshot: &Snapshot| snapshot.at(&Point::End).expect("an end");
    let full = at_end(&with(0, &[]));
    assert_eq!(headline(&full, &Options::default()), unknown);
    let text = report_text(&full, &from_file("list.culeak"), false);
    assert!(text.ends_with(next), "{text}");
    let whole = report_text(&full, &from_file("list.culeak"), true);
    assert!(whole.contains("held          nothing outside pools\n"), "{whole}");
    let beside = at_end(&with(1, &[]));
    let text = report_text(&beside, &from_file("list.culeak"), false);
    assert!(
        text.contains(&format!(
            "1 call site held 1 KiB on GPU 0 (peak 8 MiB) when the script ended\n{unknown}"
        )),
        "{text}"
    );
    assert!(text.contains(next), "{text}");
    let known = at_end(&with(0, &["CuPy"]));
    let text = headline(&known, &Options::default());
    assert!(
        text.starts_with("nothing held when the script ended: ") && text.contains("; pools held 8 MiB"),
        "{text}"
    );

    let unknown = "\n8 MiB in CuPy's pool: which part is in use is unknown; record with CULEAK_ADAPTERS=cupy";
    let options = culeak::analysis::diff::Options::default();
    let diff = plain(|out| super::diff::page(&Diff::of(&full, &beside, &options), false, false).text(out));
    assert!(diff.contains(unknown), "{diff}");
}

#[test]
fn golden_report_of_an_out_of_memory_snapshot() {
    let mut sample = super::sample::training().running();
    let tensor = 1;
    sample.fails(70 * GIB, 2, tensor);
    sample.0.taken.automatic = Some(culeak::snapshot::Automatic {
        reason: culeak::snapshot::Reason::OutOfMemory,
        name: None,
        failed: Some(0),
        limits: GroupLimits::default(),
    });
    let snapshot = sample.finish(60 * MIB, 9);
    let text = report_text(&snapshot, &from_file("train.out-of-memory-1.culeak"), false);
    expect_golden("report-out-of-memory.txt", &text);
}

#[test]
fn a_report_says_recorded_in_full_if_and_only_if_the_snapshot_is_complete() {
    let says = |snapshot: &Snapshot| {
        let complete = super::report::completeness(&Report::of(snapshot, &Options::default()));
        assert_eq!(complete.is_ok(), snapshot.is_complete(), "{complete:?}");
        snapshot.is_complete()
    };
    let complete = training().finish(0, 0);
    assert!(says(&complete));
    let fields = serde_json::to_value(&complete.losses).expect("JSON");
    let fields = fields.as_object().expect("an object").keys().map(String::as_str);
    let mut missing = 0;
    for name in fields.chain(["lost_segments", "segments_ended"]) {
        let mut losses = serde_json::to_value(&complete.losses).expect("JSON");
        losses[name] = match name {
            "unhooked" => serde_json::json!(["cuMemNew"]),
            "segments_ended" => "unknown".into(),
            _ => 1.into(),
        };
        let mut lossy = complete.clone();
        lossy.losses = serde_json::from_value(losses).expect("losses");
        missing += usize::from(!says(&lossy));
    }
    assert_eq!(missing, 14);
    let mut others = [complete.clone(), complete.clone(), complete.clone(), complete];
    others[0].taken.in_flight = 1;
    others[1].taken.events_during_read = 1;
    others[2].taken.by = culeak::snapshot::BY_PYTORCH.to_owned();
    others[3].allocators = vec![culeak::snapshot::Allocator {
        domain: "PyTorch".to_owned(),
        device: None,
        live_bytes: 0,
        reserved_bytes: 0,
        events: 1,
        mismatches: 0,
        unseen_bytes: 1,
    }];
    assert!(others.iter().all(|snapshot| !says(snapshot)));
}

#[test]
fn every_count_of_losses_is_printed_with_all_losses() {
    let printed = |snapshot: &Snapshot, extent| {
        plain(|out| super::report::page(&Report::of(snapshot, &Options::default()), extent).text(out))
    };
    let mut snapshot = leaky();
    let zeros = printed(&snapshot, Extent::ALL);
    let json = serde_json::to_value(&snapshot.losses).expect("json");
    // Every number gets a distinct value, which the report must contain.
    let fields = json.as_object().expect("object");
    let numbered: serde_json::Map<_, _> = fields
        .iter()
        .enumerate()
        .map(|(nth, (name, value))| {
            let value = if value.is_number() {
                serde_json::json!(7_001 + nth)
            } else {
                serde_json::json!(["cuMemNew"])
            };
            (name.clone(), value)
        })
        .collect();
    snapshot.losses = serde_json::from_value(numbered.clone().into()).expect("losses");
    let marked = printed(&snapshot, Extent::ALL);
    assert!(!printed(&snapshot, Extent::default()).contains("        0 "));
    for (name, value) in numbered {
        let shown = match value.as_u64() {
            Some(_) if name == "recorder_ns" => "7 us".to_owned(),
            Some(n) => super::units::count(n),
            None => "cuMemNew".to_owned(),
        };
        assert!(marked.contains(&shown), "{name} is not in the report");
    }
    assert!(zeros.contains("        0 frees at shutdown\n"), "{zeros}");
}

/// The lines of the ranking.
fn ranked(text: &str) -> Vec<&str> {
    let is_row = |line: &&str| line.contains("  in ") && line.contains(" block");
    text.lines().filter(is_row).collect()
}

#[test]
fn stacks_of_one_call_site_are_distinguished_by_callers() {
    let mut sample = Sample::new();
    let fill = ("Cache::fill()", "/src/cache.cu:8", "/opt/app");
    let grow = ("Cache::grow()", "/src/cache.cu:20", "/opt/app");
    let (first, second) = (
        ("main", "/src/main.cu:12", "/opt/app"),
        ("main", "/src/main.cu:19", "/opt/app"),
    );
    for stack in [
        &[RUNTIME, fill, first][..],
        &[RUNTIME, fill, grow, first],
        &[RUNTIME, fill, grow, second],
    ] {
        let stack = sample.stack(stack);
        sample.holds(Kind::Device, "cudaMalloc", MIB, 1, stack);
    }
    let by_stack = Options {
        by: By::Stack,
        ..from_file("app.culeak")
    };
    let text = report_text(&sample.finish(0, 0), &by_stack, false);
    let mut lines = ranked(&text);
    lines.sort_unstable();
    lines.dedup();
    let callers: Vec<_> = lines
        .iter()
        .filter_map(|line| line.split_once("  ← "))
        .map(|(_, callers)| callers)
        .collect();
    let grown = "Cache::grow cache.cu:20 ← main main.cu";
    assert_eq!(
        callers,
        [&format!("{grown}:12"), &format!("{grown}:19"), "main main.cu:12"],
        "{text}"
    );
}

#[test]
fn hidden_rows_are_counted_with_the_option_that_shows_them() {
    let text = |top, min_bytes| {
        let options = Options {
            top,
            min_bytes,
            ..from_file("app.culeak")
        };
        report_text(&leaky(), &options, false)
    };
    assert!(
        text(None, MIB).contains("; --min-bytes 0 shows all"),
        "{}",
        text(None, MIB)
    );
    assert!(text(Some(1), 0).contains("; --top 0 shows all"));
    assert!(text(Some(1), MIB).contains("; --top 0 --min-bytes 0 shows all"));
    assert!(text(None, 0).contains("0 B  in   1 claim   map_window"));
}

#[test]
fn claims_are_rows_if_there_is_nothing_else() {
    let mut snapshot = leaky();
    snapshot.allocations.retain(|row| row.kind == Kind::Mapping);
    let text = report_text(&snapshot, &from_file("app.culeak"), false);
    assert!(text.contains("0 B  in 1 claim   map_window"), "{text}");
}

#[test]
fn objects_are_ranked_among_rows_by_what_the_driver_took_for_them() {
    let mut sample = Sample::new().running();
    let frame = |function, line| (function, line, "/opt/app");
    let large = sample.stack(&[RUNTIME, frame("load", "/src/app.cu:1"), MAIN]);
    let small = sample.stack(&[RUNTIME, frame("fill", "/src/app.cu:3"), MAIN]);
    let pool = (
        "c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::alloc_block(int)",
        "",
        "/venv/torch/lib/libc10_cuda.so",
    );
    let pool = sample.stack(&[RUNTIME, pool, frame("tensor", "/src/app.cu:4"), MAIN]);
    let capture = [RUNTIME, frame("capture", "/src/app.cu:2"), MAIN];
    let graphs = sample.stack(&capture);
    sample.holds(Kind::Device, "cudaMalloc", 60 * MIB, 1, large);
    sample.holds(Kind::Device, "cudaMalloc", MIB, 1, small);
    sample.holds(Kind::Device, "cudaMalloc", 90 * MIB, 1, pool);
    sample.makes(Kind::GraphExec, "cudaGraphInstantiateWithFlags", 200, graphs);
    sample.takes_context(MAIN, None);
    sample.takes("cuGraphInstantiateWithFlags", &capture, &[2 * MIB; 25]);
    let snapshot = sample.finish(151 * MIB, 0);
    let text = report_text(&snapshot, &from_file("app.culeak"), false);
    let rows = text
        .lines()
        .filter(|line| line.starts_with(' ') && line.contains("app.cu:"));
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        rows.map(words).collect::<Vec<_>>(),
        [
            "60 MiB in 1 block load app.cu:1",
            "50 MiB in 200 executable graphs capture app.cu:2",
            "1 MiB in 1 block fill app.cu:3",
            "90 MiB in 1 block tensor app.cu:4 [PyTorch's pool]",
        ],
        "{text}"
    );
    let item = crate::html::Item {
        snapshot: &snapshot,
        timeline: None,
        options: from_file("app.culeak"),
        full_stacks: false,
    };
    let mut page = Vec::new();
    crate::text::report::write_html(&[item], &mut page).expect("written");
    let page = String::from_utf8(page).expect("text");
    let rows = page.split_once("Call sites").expect("the table").1;
    let at = [1, 2, 3, 4].map(|line| rows.find(&format!("app.cu:{line}")));
    assert!(at.is_sorted() && at[0].is_some(), "{at:?}");
}

#[test]
fn failed_requests_that_differ_only_in_callers_share_a_line() {
    let mut sample = Sample::new();
    let grow = ("grow()", "/src/cache.cu:9", "/opt/app");
    for line in [12, 19] {
        let place = format!("/src/main.cu:{line}");
        let stack = sample.stack(&[RUNTIME, grow, ("main", &place, "/opt/app")]);
        sample.fails(1 << 46, 2, stack);
    }
    let text = report_text(&sample.finish(0, 0), &from_file("app.culeak"), false);
    let line = "2 times cudaMalloc of 64 TiB on GPU 0: CUDA_ERROR_OUT_OF_MEMORY (2), grow cache.cu:9";
    assert_eq!(text.matches("cudaMalloc of 64 TiB").count(), 1, "{text}");
    assert!(text.contains(line), "{text}");
}

#[test]
fn golden_statistics_of_a_busy_program() {
    use culeak::analysis::stats::{Options, Stats};
    let (snapshot, timeline) = super::sample::busy();
    let options = Options {
        source: "app.culeak".to_owned(),
        ..Options::default()
    };
    let stats = Stats::of(&snapshot, &timeline, &options).expect("the log is complete");
    expect_golden("stats.txt", &plain(|out| super::stats::page(&stats, false).text(out)));
}
