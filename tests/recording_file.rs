//! The recording as a file: where it is created, who can read it, what it leaves out; and the settings.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use culeak::kind::Kind::*;

use crate::support::claims::Claims;
use crate::support::compile::executable;
use crate::support::outcome::recordings_in;
use crate::support::profile::folder;
use crate::support::{Outcome, Profile, another_pid, expect_root, fake_driver, profile, program, shim};

fn leaks() -> Profile {
    profile("endings").arg("returns")
}

/// Names of the recordings without the folder.
fn names(outcome: &Outcome) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    outcome.recordings.iter().map(name).collect()
}

#[test]
#[ignore = "needs root"]
fn only_the_user_can_read_it_under_any_umask() {
    for mask in ["000", "022", "077", "777"] {
        let umask = format!("umask {mask}; exec \"$@\"");
        let outcome = leaks().wrapped_in(&["sh", "-c", &umask, "sh"]).run();
        outcome.only_snapshot();
        let mode = fs::metadata(&outcome.recordings[0])
            .expect("there")
            .permissions()
            .mode()
            & 0o7777;
        // umask can only remove permissions
        assert_eq!(mode & !0o600, 0, "umask {mask} gave mode {mode:o}");
        assert!(mask == "777" || mode == 0o600, "umask {mask} gave mode {mode:o}");
    }
}

/// Runs a leaking program whose recording is to get a name that already exists.
fn run_where_the_name_exists(place: impl Fn(&Path)) -> Outcome {
    let folder = folder();
    let out = folder.path().join("out");
    fs::create_dir(&out).expect("made");
    place(&out.join("existing.culeak"));
    let outcome = leaks().output("{}/existing.culeak").run_in(folder);
    outcome.expect_success();
    assert_eq!(outcome.stdout, "done\n");
    outcome
}

#[test]
fn an_existing_file_of_that_name_is_left_alone() {
    let outcome = run_where_the_name_exists(|path| fs::write(path, "precious").expect("written"));
    assert_eq!(
        fs::read(outcome.out().join("existing.culeak")).expect("still there"),
        b"precious"
    );
    assert!(
        !outcome.our_lines().is_empty(),
        "where the recording went, or that there is none, is reported"
    );
}

#[test]
fn a_symlink_of_that_name_is_not_followed() {
    let elsewhere = folder();
    let (target, missing) = (elsewhere.path().join("target"), elsewhere.path().join("missing"));
    fs::write(&target, "precious").expect("written");
    let outcome = run_where_the_name_exists(|path| symlink(&target, path).expect("linked"));
    assert_eq!(fs::read(&target).expect("still there"), b"precious");
    assert!(!outcome.our_lines().is_empty(), "{}", outcome.everything());
    let outcome = run_where_the_name_exists(|path| symlink(&missing, path).expect("linked"));
    assert!(!missing.exists(), "a file appeared behind the link");
    assert!(!outcome.our_lines().is_empty(), "{}", outcome.everything());
}

#[test]
fn a_pipe_or_device_of_that_name_does_not_stop_the_program() {
    let outcome = run_where_the_name_exists(|path| {
        let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL in it");
        nix::unistd::mkfifo(path.as_c_str(), nix::sys::stat::Mode::S_IRWXU).expect("made");
    });
    assert!(!outcome.our_lines().is_empty(), "{}", outcome.everything());
}

#[test]
fn placeholders_are_replaced_by_host_process_program_and_rank() {
    let outcome = leaks().output("{}/%e-%h-%p-%r-100%%.culeak").env("RANK", "3").run();
    let process = &outcome.only_snapshot().process;
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("readable");
    assert_eq!(process.host, host.trim());
    assert_eq!(
        names(&outcome),
        [format!("endings-{}-{}-3-100%.culeak", host.trim(), process.pid)]
    );
}

#[test]
fn an_output_folder_gets_the_default_file_name() {
    for folder in ["{}", "{}/"] {
        let outcome = leaks().output(folder).run();
        let process = &outcome.only_snapshot().process;
        assert_eq!(
            names(&outcome),
            [format!("endings.{}.{}.culeak", process.host, process.pid)]
        );
    }
}

#[test]
fn the_rank_is_read_from_the_variable_of_any_launcher() {
    for (variable, value) in [
        ("RANK", "7"),
        ("SLURM_PROCID", "12"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("PMI_RANK", "0"),
    ] {
        let outcome = leaks().output("{}/r%r.culeak").env(variable, value).run();
        assert_eq!(names(&outcome), [format!("r{value}.culeak")], "{variable}");
        assert_eq!(
            outcome.only_snapshot().process.ranks,
            [(variable.to_owned(), value.to_owned())].into()
        );
    }
}

#[test]
fn a_rank_cannot_lead_out_of_the_folder() {
    let outcome = leaks().output("{}/sub%r.culeak").env("RANK", "/../../escaped").run();
    outcome.expect_success();
    let above = outcome.out().join("..");
    assert!(recordings_in(&above).is_empty(), "{:?}", recordings_in(&above));
}

#[test]
fn without_a_setting_it_is_written_to_the_initial_working_folder() {
    let outcome = leaks().output_unset().run();
    outcome.expect_success();
    let [recording] = &recordings_in(&outcome.work())[..] else {
        panic!("{}", outcome.everything())
    };
    let snapshot = crate::support::outcome::read(recording);
    let expected = format!("endings.{}.{}.culeak", snapshot.process.host, snapshot.process.pid);
    assert_eq!(recording.file_name().expect("a name").to_string_lossy(), expected);
}

#[test]
fn of_the_environment_only_the_rank_variables_are_recorded() {
    let ranks = [
        ("RANK", "11"),
        ("LOCAL_RANK", "1"),
        ("SLURM_PROCID", "12"),
        ("OMPI_COMM_WORLD_RANK", "13"),
        ("PMI_RANK", "14"),
    ];
    let mut run = leaks()
        .env("API_TOKEN", "hunter2-hunter2")
        .env("RANKING", "first-of-all");
    for (name, value) in ranks {
        run = run.env(name, value);
    }
    let outcome = run.run();
    let ranks_recorded = &outcome.only_snapshot().process.ranks;
    assert_eq!(
        *ranks_recorded,
        ranks.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    );
    let bytes = fs::read(&outcome.recordings[0]).expect("readable");
    for secret in [
        "hunter2-hunter2",
        "API_TOKEN",
        "RANKING",
        "first-of-all",
        "LD_LIBRARY_PATH",
    ] {
        let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "{secret} of the environment is in the recording");
    }
}

#[test]
fn recording_can_be_switched_off() {
    let outcome = leaks().setting("CULEAK_DISABLE", "1").run();
    outcome.expect_success().expect_same_output_as_bare().expect_no_file();
    assert!(outcome.our_lines().is_empty());
    leaks()
        .setting("CULEAK_DISABLE", "0")
        .run()
        .only_snapshot()
        .expect_live(Device, 1, 100);
}

#[test]
fn recording_can_be_limited_to_programs_by_name() {
    for (glob, fits) in [
        ("endings", true),
        ("end*", true),
        ("*ing?", true),
        ("other*", false),
        ("ending", false),
    ] {
        let outcome = leaks().setting("CULEAK_ONLY", glob).run();
        outcome.expect_success();
        assert_eq!(outcome.recordings.len(), usize::from(fits), "CULEAK_ONLY={glob}");
    }
}

#[test]
fn recording_can_be_limited_to_the_children_of_one_process() {
    let ours = std::process::id().to_string();
    leaks()
        .setting("CULEAK_PARENT", ours)
        .run()
        .only_snapshot()
        .expect_live(Device, 1, 100);
    leaks()
        .setting("CULEAK_PARENT", another_pid().to_string())
        .run()
        .expect_success()
        .expect_same_output_as_bare()
        .expect_no_file();
}

#[test]
fn one_line_at_the_end_sums_up_and_can_be_silenced() {
    let outcome = leaks().run();
    let lines = outcome.our_lines();
    assert_eq!(lines.len(), 1, "{}", outcome.stderr);
    assert!(
        lines[0].contains(&*outcome.recordings[0].to_string_lossy()),
        "names the recording: {}",
        lines[0]
    );
    let quiet = leaks().setting("CULEAK_QUIET", "1").run();
    quiet.only_snapshot();
    assert!(quiet.stderr.is_empty(), "{}", quiet.stderr);
}

#[test]
fn wrong_variables_are_reported_once_and_change_nothing() {
    let outcome = leaks()
        .setting("CULEAK_OUTPUTT", "x")
        .setting("CULEAK_SNAPSHOT_AT_PEAK", "1 par\x1bsec")
        .setting("CULEAK_WEATHER", "")
        .run();
    outcome.only_snapshot().expect_live(Device, 1, 100);
    let mut lines = outcome.our_lines();
    lines.sort_unstable();
    assert_eq!(lines.len(), 4, "{}", outcome.stderr);
    assert_eq!(
        lines[1..],
        [
            "culeak: CULEAK_SNAPSHOT_AT_PEAK=1 par?sec is ignored; allowed: a size such as 4096, 64MiB or 1.5GB",
            "culeak: no variable is called CULEAK_OUTPUTT; did you mean CULEAK_OUTPUT?",
            "culeak: no variable is called CULEAK_WEATHER; see: culeak help environment",
        ]
    );
}

#[test]
fn the_command_that_the_last_line_suggests_can_be_pasted() {
    for name in ["plain.culeak", "two words.culeak", "it's one.culeak"] {
        let outcome = leaks().output(&format!("{{}}/{name}")).run();
        let line = outcome.our_lines()[0];
        let command = line
            .split("see: ")
            .nth(1)
            .expect("a command")
            .replace("culeak report", "printf %s");
        let pasted = std::process::Command::new("sh")
            .args(["-c", &command])
            .output()
            .expect("a shell");
        assert_eq!(
            String::from_utf8_lossy(&pasted.stdout),
            outcome.recordings[0].to_string_lossy(),
            "{line}"
        );
    }
}

#[test]
#[ignore = "needs root"]
fn a_program_that_raises_its_privileges_is_not_recorded() {
    // The loader drops LD_PRELOAD in such a program; linked with it, the recorder is loaded and has to detect this itself.
    expect_root("creates a set-user-ID program");
    let folder = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(crate::support::compile::run_folder())
        .expect("a folder");
    let out = folder.path().join("out");
    fs::create_dir(&out).expect("made");
    fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).expect("changed");
    // Its libraries have to be found without LD_LIBRARY_PATH, which the loader drops too.
    let rpath = format!("-Wl,-rpath,{}", folder.path().display());
    let linked = executable("secure", &["-Wl,--no-as-needed", &rpath], &[shim(), fake_driver()]);
    for (library, file) in [(shim(), "libculeak.so"), (fake_driver(), "libcuda.so.1")] {
        fs::copy(library, folder.path().join(file)).expect("copied");
    }
    let privileged = folder.path().join("secure");
    fs::copy(&linked, &privileged).expect("copied");
    let other_user = 65534;
    std::os::unix::fs::chown(&privileged, Some(other_user), None).expect("changed");
    fs::set_permissions(&privileged, fs::Permissions::from_mode(0o4755)).expect("changed");
    assert_eq!(fs::metadata(&privileged).expect("there").uid(), other_user);

    let outcome = program(&privileged)
        .bare()
        .env("CULEAK_OUTPUT", out.join("%p.culeak"))
        .run();
    assert!(
        outcome.stdout.contains("secure 1"),
        "the folder is mounted nosuid: {}",
        outcome.everything()
    );
    outcome.expect_success();
    assert!(
        recordings_in(&out).is_empty(),
        "a program with raised privileges was recorded"
    );

    // The same program without raised privileges is recorded; otherwise the claim above would prove nothing.
    fs::set_permissions(&privileged, fs::Permissions::from_mode(0o755)).expect("changed");
    let outcome = program(&privileged)
        .bare()
        .env("CULEAK_OUTPUT", out.join("%p.culeak"))
        .run();
    outcome.expect_success();
    assert_eq!(recordings_in(&out).len(), 1, "{}", outcome.everything());
}
