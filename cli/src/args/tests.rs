//! Claims about the whole command line: the README's examples, the manual pages and the completions.

use clap::ValueEnum;
use clap_complete::Shell;
use culeak::analysis::report::By;

use super::*;
use crate::commands::setup::{self, File};
use crate::export::FORMATS;

/// The commands in a page's examples, without prompt, comment and redirection.
fn commands(page: &str) -> Vec<Vec<&str>> {
    let example =
        |line: &&str| line.starts_with("    ") || line.trim_start().starts_with("- ") || line.starts_with("  run:");
    let lines = page.lines().filter(example);
    let found = lines.filter_map(|line| {
        let line = line
            .trim_start()
            .trim_start_matches(['-', '$', ' '])
            .trim_start_matches("run: ");
        let end = ["  #", " > ", " >> ", " | "]
            .iter()
            .filter_map(|end| line.find(end))
            .min();
        let words: Vec<_> = line[..end.unwrap_or(line.len())].split_whitespace().collect();
        (words.first() == Some(&"culeak")).then_some(words)
    });
    found
        .map(|words| words.into_iter().map(|word| word.trim_matches('\'')).collect())
        .collect()
}

#[test]
fn recording_options_without_a_command_are_refused() {
    let understood = |words: &str| Arguments::try_parse_from(words.split(' ')).is_ok();
    assert!(understood("culeak live 4711 --every 2"));
    assert!(understood("culeak live 4711 --every 500ms"));
    assert!(understood("culeak live -o runs --snapshot mark -- ./app --its own"));
    assert!(!understood("culeak live -o runs 4711"));
    assert!(!understood("culeak live --snapshot mark 4711"));
    assert!(!understood("culeak live 4711 -- ./app"));
    assert!(!understood("culeak live"));
    assert!(!understood("culeak live 4711 --every 0"));
    assert!(understood(
        "culeak check --allow 0,stream=1 --timeline -- ./app --its own"
    ));
    assert!(!understood("culeak check app.culeak --timeline"));
    assert!(!understood("culeak check app.culeak -- ./app"));
    assert!(!understood("culeak check --gen-suppressions -- ./app"));
}

#[test]
fn an_option_of_another_command_is_refused_with_the_place_where_it_belongs() {
    let refused = |line: &str| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = command().try_get_matches_from(&words).expect_err(line);
        sentence(&error, &words).unwrap_or_else(|| error.to_string())
    };
    for (line, expected) in [
        (
            "culeak report a.culeak --format junit -o F",
            "culeak report has no --format; it is an option of culeak check, culeak export",
        ),
        (
            "culeak diff a.json b.json --html",
            "culeak diff has no --html; type: -o FILE.html",
        ),
        (
            "culeak report a.culeak --html=x",
            "culeak report has no --html; type: -o FILE.html",
        ),
        (
            "culeak run --allow 64MiB -- true",
            "culeak run has no --allow; it is an option of culeak check",
        ),
        (
            "culeak report --version",
            "culeak report has no --version; type: culeak --version",
        ),
        ("culeak check a.culeak -o out.xml", FOLDER_OF_CHECK),
        (
            "culeak report a.culeak --kind tensr",
            "--kind tensr: no such value; did you mean tensor?",
        ),
        (
            "culeak check a.culeak --fail-on leaks",
            "--fail-on leaks: no such value; the values are new, grown, any, lost, cycle, native-holder, over-counted, outlier",
        ),
        (
            "culeak report a.culeak --between 1s",
            "--between needs more values, or fewer; type: --between",
        ),
        (
            "culeak report a.culeak --debug-dir /dev/null/x",
            "--debug-dir /dev/null/x: no such folder",
        ),
        (
            "culeak check a.culeak --same-as-last",
            "--at <POINT> is missing; type: culeak check",
        ),
        (
            "culeak report a.culeak --frobnicate",
            "culeak report has no --frobnicate; culeak help report lists all",
        ),
    ] {
        let refused = refused(line);
        assert!(refused.starts_with(expected), "{line}: {refused}");
        assert!(!refused.ends_with("culeak check app.culeak"), "{line}: {refused}");
    }
    for line in ["culeak snapshot 4711", "culeak snapshot -o a.json"] {
        let refused = refused(line);
        assert!(
            refused.ends_with("; for example: culeak snapshot 4711 -o before.json"),
            "{line}: {refused}"
        );
    }
}

#[test]
fn every_command_in_the_readme_and_the_pages_parses() {
    let pages = [include_str!("../../../README.md")]
        .into_iter()
        .chain(help::tests::pages());
    // What a shell would put in is unknown here.
    let is_whole = |words: &Vec<&str>| !words.iter().any(|word| word.contains("$("));
    let commands: Vec<_> = pages.flat_map(commands).filter(is_whole).collect();
    assert!(commands.len() > 100, "{commands:?}");
    assert!(commands.iter().any(|words| words.contains(&"junit")), "{commands:?}");
    for words in commands {
        if let Err(error) = Arguments::try_parse_from(&words) {
            panic!("{words:?}: {error}");
        }
        let whole = command();
        let matches = whole.clone().try_get_matches_from(&words).expect("parsed already");
        let (name, matches) = matches.subcommand().expect("a command");
        let asked = Asked::of(whole.find_subcommand(name).expect("a command"), matches);
        assert_eq!(asked.refusal(None), None, "{words:?}");
    }
}

#[test]
fn the_pages_name_each_format_and_each_property_of_by() {
    let (formats, reports) = (
        include_str!("../../../docs/formats.md"),
        include_str!("../../../docs/reports.md"),
    );
    for format in FORMATS {
        assert!(
            formats.contains(&format!("`{}`", format.name)),
            "docs/formats.md lacks {}",
            format.name
        );
    }
    for by in By::ALL {
        assert!(
            reports.contains(&format!("`{}`", by.name())),
            "docs/reports.md lacks --by {}",
            by.name()
        );
    }
}

fn page_text(page: &File) -> &str {
    std::str::from_utf8(&page.1).expect("text")
}

#[test]
fn every_command_has_a_page_that_names_its_options() {
    let pages = setup::pages(public());
    let whole = public();
    assert_eq!(pages.len(), whole.get_subcommands().count() + 1);
    for command in whole.get_subcommands() {
        let name = format!("culeak-{}.1", command.get_name());
        let page = pages.iter().find(|page| page.0 == name).expect("a page");
        let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
        for option in shown.filter_map(|argument| argument.get_long()) {
            let spelled = format!("\\-\\-{}", option.replace('-', "\\-"));
            assert!(page_text(page).contains(&spelled), "{name} does not mention --{option}");
        }
    }
}

#[test]
fn no_page_mentions_a_hidden_command() {
    for page in setup::pages(public()) {
        assert!(
            !page_text(&page).contains("probe") && !page_text(&page).contains("demo\\-program"),
            "{}",
            page.0
        );
    }
}

#[test]
fn a_page_keeps_the_lines_of_examples() {
    for page in setup::pages(public()) {
        let notes = page_text(&page).split(".SH NOTES\n.nf\n").nth(1).expect("notes");
        assert!(
            notes.contains("Examples:\n") || notes.contains("First steps:\n"),
            "{}",
            page.0
        );
        assert!(!page_text(&page).contains(".SH EXTRA"), "{} repeats them", page.0);
    }
}

#[test]
fn every_shell_completes_every_command_and_no_hidden_one() {
    for &shell in Shell::value_variants() {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut public(), "culeak", &mut script);
        let script = String::from_utf8(script).expect("text");
        for command in public().get_subcommands() {
            assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
        }
        assert!(!script.contains("probe") && !script.contains("demo-program"), "{shell}");
    }
}

/// The sentence that refuses a command line.
fn refusal(line: &str) -> String {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    let error = Arguments::try_parse_from(&words).expect_err(line);
    sentence(&error, &words).unwrap_or_else(|| panic!("{line}: {error}"))
}

#[test]
fn what_is_missing_is_refused_with_what_to_type() {
    for command in [
        "report", "check", "diff", "run", "live", "why", "trend", "export", "snapshot",
    ] {
        let text = refusal(&format!("culeak {command}"));
        assert!(
            text.contains(" missing; type: culeak ") && text.contains(&format!("; for example: culeak {command} ")),
            "{text}"
        );
    }
    assert_eq!(
        refusal("culeak report"),
        "<PID|RECORDING|SNAPSHOT> is missing; type: culeak report <PID|RECORDING|SNAPSHOT>...; for example: culeak report app.host.4711.culeak"
    );
    let needs_job = refusal("culeak doctor runs");
    assert!(
        needs_job.starts_with("--job is missing; type: culeak doctor --job <RUNS>...")
            && needs_job.ends_with("; for example: culeak doctor --job runs --ranks 64"),
        "{needs_job}"
    );
    assert_eq!(
        refusal("culeak report x -o p --json"),
        "--output and --json exclude each other; leave out one of them"
    );
    assert_eq!(
        refusal("culeak report x --at"),
        "--at needs a value; type: --at <POINT>"
    );
}

#[test]
fn an_option_that_took_the_input_as_its_file_says_so() {
    let text = refusal("culeak report -o app.culeak");
    assert!(
        text.starts_with("-o took app.culeak as its FILE; <PID|RECORDING|SNAPSHOT> is missing; type: culeak report "),
        "{text}"
    );
    let text = refusal("culeak report -o page.html");
    assert!(text.starts_with("<PID|RECORDING|SNAPSHOT> is missing"), "{text}");
    let text = refusal("culeak export -o app.culeak");
    assert!(text.starts_with("-o took app.culeak as its FILE; "), "{text}");
}
