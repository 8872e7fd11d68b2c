//! The config file.

use std::os::unix::fs::{chown, lchown, symlink};

use super::*;

#[test]
fn limits_come_from_the_config_file_unless_the_command_line_sets_them() {
    let folder = project("[check]\nallow = \"2GiB\"\n");
    let code = |words: &[&str]| code(folder.path(), words);
    assert_eq!(code(&["check", "leaky.json"]), 0);
    assert_eq!(code(&["check", "leaky.json", "--allow", "1MiB"]), 1);
    assert_eq!(code(&["check", "leaky.json", "--allow", "count=1000,3GiB"]), 0);
    assert_eq!(code(&["check", "leaky.json", "--no-config"]), 1);
}

#[test]
fn every_key_of_the_config_file_has_an_effect() {
    for (config, passes) in [
        ("allow = \"0\"", false),
        ("allow = \"2147483648\"", true),
        ("allow = \"count=3\"", false),
        ("allow = \"count=1000\"", true),
        ("allow = [\"2GiB\", \"site=1MiB\"]", false),
        ("allow = [\"2GiB\", \"site=2GiB\"]", true),
        ("allow = \"pinned=1MiB\"", false),
        ("allow = \"pinned=64MiB, managed=12288\"", true),
        ("allow = \"leak:train.cu=1MiB\"", false),
        ("allow = \"leak:train.cu=2GiB\"", true),
        ("suppressions = [\"own.supp\"]", true),
        ("baseline = \"known.json\"", true),
        ("baseline = \"early.json\"", false),
        ("baseline = \"early.json\"\ntolerance = \"2GiB\"", false),
        ("baseline = \"early.json\"\nsuppressions = [\"new.supp\"]", false),
        (
            "baseline = \"early.json\"\nsuppressions = [\"new.supp\"]\ntolerance = \"2GiB\"",
            true,
        ),
        ("baseline = \"early.json\"\nfail-on = \"any\"", false),
    ] {
        let folder = project(&format!("[check]\n{config}\n"));
        fs::write(folder.path().join("own.supp"), "leak:main\n").expect("written");
        let new = "leak:load_weights\nleak:libfancy.so\n";
        fs::write(folder.path().join("new.supp"), new).expect("written");
        fs::copy(folder.path().join("leaky.json"), folder.path().join("known.json")).expect("copied");
        let output = output(folder.path(), &["check", "leaky.json"]);
        let expected = Some(i32::from(!passes));
        assert_eq!(
            output.status.code(),
            expected,
            "{config}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
    }
}

#[test]
fn mistakes_in_the_config_file_are_reported_with_their_line() {
    for (config, expected) in [
        (
            "[check]\nmax-leeked = 1\n",
            "culeak.toml:2:1: unknown field `max-leeked`",
        ),
        ("[chekc]\n", "culeak.toml:1:2: unknown field `chekc`"),
        ("output = \"runs\"\n", "culeak.toml:1:1: unknown field `output`"),
        ("[run]\n\noutput = 3\n", "culeak.toml:3:10: invalid type"),
        ("[check]\nallow = \"much\"\n", "culeak.toml:2:9: \"much\""),
        ("[check]\nallow = -1\n", "culeak.toml:2:9: expected a text"),
        (
            "[check]\n\nallow = [\"1\", \"tape=1\"]\n",
            "culeak.toml:3:9: \"tape=1\": no kind of memory or object",
        ),
        (
            "[check]\nallow = \"stream=1MiB\"\n",
            "culeak.toml:2:9: \"stream=1MiB\": \"1MiB\" is not a number",
        ),
        (
            "[check]\nallow = [\"1\", \"2\"]\n",
            "--allow SIZE: two limits of one thing are given; keep one of them (set in culeak.toml)",
        ),
        ("[check]\nallow = \"leak:*=1\"\n", "culeak.toml:2:9: \"leak:*=1\""),
        ("[check]\nallow = \"reserved=1\"\n", "(set in culeak.toml)"),
        (
            "[check]\nfail-on = \"old\"\n",
            "culeak.toml:2:11: expected one of new, grown, any, lost, cycle, native-holder, over-counted",
        ),
        ("[check\n", "culeak.toml:1:"),
        ("[check\n", "`culeak help config` lists the keys"),
        (
            "[run]\nstack-rate = -1\n",
            "culeak.toml:2:14: expected a number of stacks a second, from 0 to 1000000",
        ),
        ("[check]\ntolerance = \"5%\"\n", "(set in culeak.toml)"),
        ("[check]\nbaseline = \"missing.json\"\n", "(set in culeak.toml)"),
        ("[check]\nsuppressions = [\"missing.supp\"]\n", "(set in culeak.toml)"),
    ] {
        let output = output(project(config).path(), &["check", "clean.json"]);
        assert_eq!(output.status.code(), Some(2), "{config}");
        assert!(
            text(&output.stderr).contains(expected),
            "{config}: {}",
            text(&output.stderr)
        );
        assert_eq!(output.stdout, b"", "{config}");
    }
}

#[test]
fn the_config_file_is_found_up_to_the_root_of_the_repository_and_no_further() {
    let folder = project("[check]\nallow = \"2GiB\"\n");
    let inside = folder.path().join("build/tests");
    fs::create_dir_all(&inside).expect("made");
    let check = ["check", "../../leaky.json"];
    assert_eq!(code(&inside, &check), 1, "no repository, no parent");
    fs::create_dir(folder.path().join(".git")).expect("made");
    assert_eq!(code(&inside, &check), 0, "the root's file");
    fs::create_dir(folder.path().join("build/.git")).expect("made");
    assert_eq!(code(&inside, &check), 1, "a repository in the repository");
    let named = [&check[..], &["--config", "../../culeak.toml"]].concat();
    assert_eq!(code(&inside, &named), 0);
    let mut by_variable = culeak(&inside, &check);
    by_variable.env("CULEAK_CONFIG", "../../culeak.toml");
    assert_eq!(by_variable.status().expect("culeak starts").code(), Some(0));
    by_variable.arg("--no-config");
    assert_eq!(by_variable.status().expect("culeak starts").code(), Some(1));
    let missing = stderr(&inside, &[&check[..], &["--config", "other.toml"]].concat());
    assert!(
        missing.contains("other.toml: the config file cannot be read"),
        "{missing}"
    );
}

#[test]
fn paths_in_the_config_file_are_relative_to_it() {
    let folder = project("[run]\noutput = \"runs\"\n[check]\nsuppressions = [\"own.supp\"]\n");
    fs::write(folder.path().join("own.supp"), "leak:main\n").expect("written");
    fs::create_dir(folder.path().join(".git")).expect("made");
    let inside = folder.path().join("build");
    fs::create_dir(&inside).expect("made");
    assert_eq!(code(&inside, &["check", "../leaky.json"]), 0);
    let ended = run(&inside, &["--no-report"]).output().expect("culeak starts");
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let recordings = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .filter(|entry| entry.path().extension().is_some_and(|e| e == "culeak"))
            .count()
    };
    assert_eq!((recordings(&folder.path().join("runs")), recordings(&inside)), (1, 0));
    let ended = run(&inside, &["--no-report", "-o", "."])
        .output()
        .expect("culeak starts");
    assert_eq!((ended.status.code(), recordings(&inside)), (Some(0), 1));
}

#[test]
fn options_for_baselines_require_a_baseline_from_any_source() {
    let folder = folder();
    for words in [
        &["--tolerance", "5%"][..],
        &["--fail-on", "new"],
        &["--update-baseline"],
    ] {
        let output = output(folder.path(), &[&["check", "leaky.json"], words].concat());
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(
            text(&output.stderr).contains("--baseline FILE"),
            "{words:?}: {}",
            text(&output.stderr)
        );
    }
    let folder = project("[check]\nbaseline = \"known.json\"\n");
    assert_eq!(code(folder.path(), &["check", "leaky.json", "--update-baseline"]), 0);
    assert_eq!(code(folder.path(), &["check", "leaky.json", "--tolerance", "5%"]), 0);
}

#[test]
fn a_python_project_keeps_the_same_keys_in_its_own_file() {
    let folder = folder();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    let check = || output(folder.path(), &["check", "leaky.json"]);
    write("pyproject.toml", "[project]\nname = \"x\"\n");
    assert_eq!(check().status.code(), Some(1), "no keys");
    write(
        "pyproject.toml",
        "[project]\nname = \"x\"\n\n[tool.other]\nx = 1\n\n[tool.culeak.check]\nallow = \"2GiB\"\n",
    );
    assert_eq!(check().status.code(), Some(0));
    write(
        "pyproject.toml",
        "[project]\nname = \"x\"\n\n[tool.culeak.check]\nmax-leeked = 1\n",
    );
    let mistake = text(&check().stderr);
    assert!(
        mistake.contains("pyproject.toml:5:1: unknown field `max-leeked`"),
        "{mistake}"
    );
    write("culeak.toml", "[check]\nallow = \"2GiB\"\n");
    assert_eq!(check().status.code(), Some(0), "culeak.toml wins");
}

#[test]
fn a_python_project_has_a_config_only_in_its_table() {
    let folder = project("[check]\nallow = \"2GiB\"\n");
    fs::create_dir(folder.path().join(".git")).expect("made");
    let inside = folder.path().join("package");
    fs::create_dir(&inside).expect("made");
    let check = |pyproject: &str| {
        fs::write(inside.join("pyproject.toml"), pyproject).expect("written");
        let output = output(&inside, &["check", "../leaky.json"]);
        (output.status.code(), text(&output.stderr))
    };
    // The parent's file allows 2 GiB.
    for pyproject in [
        "# see [tool.culeak] in docs\n",
        "[tool.culeaker]\nx = 1\n",
        "[project]\ndescription = \"[tool.culeak.check]\"\n",
        // Not valid, and not about culeak.
        "[tool.other\n",
    ] {
        let (code, messages) = check(pyproject);
        assert!(
            code == Some(0) && !messages.contains("pyproject"),
            "{pyproject}: {messages}"
        );
    }
    for pyproject in [
        "[ tool . culeak . check ]\nallow = \"0\"\n",
        "[tool]\nculeak.check.allow = \"0\"\n",
        "tool.culeak.check.allow = \"0\"\n",
        "[tool.\"culeak\".check]\nallow = \"0\"\n",
    ] {
        assert_eq!(check(pyproject).0, Some(1), "{pyproject}");
    }
    let (code, message) = check("[tool.culeak.check]\nallow = \n");
    assert!(code == Some(2) && message.contains("pyproject.toml:2:"), "{message}");
    for mistake in ["[tool.culeak\nallow = \"0\"\n", "[tool]\nculeak.check.allow = \n"] {
        let (code, message) = check(mistake);
        assert!(
            code == Some(2) && message.contains("pyproject.toml:"),
            "{mistake}: {message}"
        );
    }
    fs::write(inside.join("pyproject.toml"), "[project]\n").expect("written");
    let named = stderr(&inside, &["check", "../leaky.json", "--config", "pyproject.toml"]);
    assert!(named.contains("has no table tool.culeak"), "{named}");
}

#[test]
fn a_config_file_that_is_no_file_is_a_mistake() {
    let folder = folder();
    let path = folder.path().join("culeak.toml");
    std::os::unix::fs::symlink("nowhere.toml", &path).expect("a link");
    let check = || stderr(folder.path(), &["check", "clean.json"]);
    assert!(
        check().contains("culeak.toml: the config file cannot be read"),
        "{}",
        check()
    );
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("made");
    assert!(
        check().contains("culeak.toml: the config file cannot be read"),
        "{}",
        check()
    );
}

#[test]
fn the_caller_of_a_wrapper_is_the_call_site() {
    let sites = |config: &str| {
        let folder = project(config);
        let output = culeak(folder.path(), &["report", "leaky.json"]).output();
        let report = text(&output.expect("culeak starts").stdout);
        let rows = report.lines().filter(|line| line.contains("in 128 blocks"));
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    let [plain] = &sites("[display]\n")[..] else {
        panic!("one row")
    };
    assert!(
        plain.contains("Trainer::step") && plain.contains("train.cu:212"),
        "{plain}"
    );
    for pattern in ["^Trainer::step", "Trainer::st*p"] {
        let [of_caller] = &sites(&format!("[symbols]\nwrappers = [\"{pattern}\"]\n"))[..] else {
            panic!("one row");
        };
        assert!(
            of_caller.contains("Trainer::run") && of_caller.contains("train.cu:90"),
            "{of_caller}"
        );
    }
}

#[test]
fn what_is_no_wrapper_is_named_behind_an_exclamation_mark() {
    let config = "[symbols]\nwrappers = [\"^Trainer::\", \"!train.cu:212\"]\n";
    let folder = project(config);
    let output = culeak(folder.path(), &["report", "leaky.json"]).output();
    let report = text(&output.expect("culeak starts").stdout);
    let row = report.lines().find(|line| line.contains("in 128 blocks"));
    assert!(row.is_some_and(|row| row.contains("Trainer::step")), "{report}");
    // Libraries that request memory for their callers, too.
    let folder = project("[symbols]\nwrappers = [\"!thrust::\"]\n");
    let output = culeak(folder.path(), &["report", "leaky.json"]).output();
    let report = text(&output.expect("culeak starts").stdout);
    let row = report.lines().find(|line| line.trim_start().starts_with("64 MiB"));
    assert!(row.is_some_and(|row| row.contains("vector.inl:9")), "{report}");
}

#[test]
fn display_and_symbols_have_defaults() {
    let folder = project("[display]\ncolor = \"always\"\n\n[symbols]\ndebug-dirs = [\"debug\"]\n");
    let inside = folder.path().join("inside");
    fs::create_dir_all(&inside).expect("made");
    let report = ["report", "../leaky.json", "--config", "../culeak.toml"];
    let coloured = |words: &[&str], variables: &[(&str, &str)]| {
        let output = culeak(&inside, words).envs(variables.iter().copied()).output();
        text(&output.expect("culeak starts").stdout).contains('\u{1b}')
    };
    assert!(coloured(&report, &[]));
    assert!(!coloured(&report, &[("NO_COLOR", "1")]), "the environment wins");
    assert!(
        !coloured(&[&report[..], &["--color", "never"]].concat(), &[]),
        "the command line wins"
    );
    let verbose = |more: &[&str]| stderr(&inside, &[&report[..], &["--verbose"], more].concat());
    assert!(verbose(&[]).contains("also in ../debug"), "{}", verbose(&[]));
    let note = "debug-dirs of the config file: ../debug: no such folder";
    assert!(verbose(&[]).contains(note), "{}", verbose(&[]));
    fs::create_dir(inside.join("other")).expect("made");
    let replaced = verbose(&["--debug-dir", "other"]);
    assert!(
        replaced.contains("also in other") && !replaced.contains("../debug"),
        "{replaced}"
    );
    for (config, expected) in [
        (
            "[display]\ncolor = \"blue\"\n",
            "culeak.toml:2:9: expected \"auto\", \"always\" or \"never\"",
        ),
        ("[display]\npager = \"less\"\n", "culeak.toml:2:9: invalid type"),
    ] {
        let mistake = stderr(project(config).path(), &["report", "leaky.json"]);
        assert!(mistake.contains(expected), "{mistake}");
    }
}

#[test]
fn commands_that_do_not_need_the_file_work_beside_a_mistake_and_the_doctor_names_it() {
    let folder = project("[chekc]\n");
    for words in [
        &["shim-path"][..],
        &["setup", "man"],
        &["setup", "completions", "bash"],
        &["help", "ci"],
        &["help", "environment"],
        &["help", "categories"],
    ] {
        assert_eq!(code(folder.path(), words), 0, "{words:?}");
    }
    let doctor = stdout(folder.path(), &["doctor"]);
    assert!(doctor.contains("culeak.toml:1:2: unknown field `chekc`"), "{doctor}");
    fs::write(folder.path().join("culeak.toml"), "").expect("written");
    let doctor = stdout(folder.path(), &["doctor"]);
    assert!(
        doctor.contains("ok    config file      culeak.toml") || doctor.contains("culeak.toml\n"),
        "{doctor}"
    );
}

/// Needs root, who alone may give files away.
#[test]
#[ignore = "needs root"]
fn a_config_file_of_another_user_is_not_read() {
    const NOBODY: u32 = 65534;
    let folder = project("[check]\nallow = \"900TiB\"\n");
    fs::create_dir(folder.path().join(".git")).expect("made");
    let inside = folder.path().join("build");
    fs::create_dir(&inside).expect("made");
    let config = folder.path().join("culeak.toml");
    let check = |more: &[&str]| output(&inside, &[&["check", "../leaky.json"], more].concat());
    let own = check(&[]);
    assert_eq!(own.status.code(), Some(0), "{}", text(&own.stderr));
    let named = format!("\n  limits from {}\n", config.display());
    assert!(text(&own.stdout).contains(&named), "{}", text(&own.stdout));

    let expect_refused = || {
        let refused = check(&[]);
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(
            said.contains("belongs to user 65534") && said.contains("--config"),
            "{said}"
        );
        assert!(
            !text(&refused.stdout).contains("limits from"),
            "{}",
            text(&refused.stdout)
        );
    };
    chown(&config, Some(NOBODY), None).expect("root");
    expect_refused();
    assert_eq!(check(&["--config", "../culeak.toml"]).status.code(), Some(0));
    // sudo runs as root for this user.
    let mut by_sudo = culeak(&inside, &["check", "../leaky.json"]);
    by_sudo.env("SUDO_UID", NOBODY.to_string());
    assert_eq!(by_sudo.status().expect("culeak starts").code(), Some(0));
    // Nor is one that another user links to.
    chown(&config, Some(0), None).expect("root");
    let moved = folder.path().join("moved.toml");
    fs::rename(&config, &moved).expect("moved");
    symlink(&moved, &config).expect("a link");
    assert_eq!(check(&[]).status.code(), Some(0));
    lchown(&config, Some(NOBODY), None).expect("root");
    expect_refused();
}

#[test]
fn a_config_file_is_a_regular_file_of_limited_size() {
    let folder = project("");
    let config = folder.path().join("culeak.toml");
    let refused = |expected: &str| {
        let output = output(folder.path(), &["check", "clean.json"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(
            said.contains("culeak.toml: the config file cannot be read") && said.contains(expected),
            "{said}"
        );
    };
    fs::remove_file(&config).expect("removed");
    symlink("/dev/zero", &config).expect("a link");
    refused("not a regular file");
    fs::remove_file(&config).expect("removed");
    let fifo = std::process::Command::new("mkfifo").arg(&config).status();
    assert!(fifo.expect("mkfifo").success());
    refused("not a regular file");
    fs::remove_file(&config).expect("removed");
    fs::write(&config, "#".repeat((1 << 20) + 1)).expect("written");
    refused("larger than 1 MiB");
}
