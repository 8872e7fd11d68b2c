//! Processes that run.

use super::*;

/// The demo program between its rounds, with its process id.
struct Running {
    child: Child,
    pid: String,
    _folder: TempDir,
}

impl Running {
    fn start() -> Running {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = run(folder.path(), &["--no-report"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("culeak starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let round = lines.find_map(|line| line.ok().filter(|line| line.starts_with("round")));
        let round = round.expect("a round ends");
        // Closing the pipe early would end the program by SIGPIPE.
        std::thread::spawn(move || lines.count());
        Running {
            child,
            pid: round.rsplit(' ').next().expect("a word").to_owned(),
            _folder: folder,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut input) = self.child.stdin.take() {
            let _ = writeln!(input);
        }
        let _ = self.child.wait();
    }
}

#[test]
fn running_processes_are_shown_listed_and_written_with_all() {
    let running = Running::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let pid = running.pid.as_str();
    // No terminal is needed.
    let once = output(folder.path(), &["live", pid, "--once"]);
    let screen = text(&once.stdout);
    assert_eq!(once.status.code(), Some(0), "{}", text(&once.stderr));
    assert!(
        screen.starts_with(&format!("culeak: {pid} ")) && screen.contains("running for"),
        "{screen}"
    );
    assert!(
        screen.contains("forget_weights") && screen.contains("not recorded:"),
        "{screen}"
    );
    assert!(!screen.contains("q quit") && !screen.contains('\u{1b}'), "{screen}");

    let list = json(folder.path(), &["snapshot", "--list", "--json"]);
    assert_eq!(list["format"], "culeak-processes");
    let ours = |process: &&Value| process["pid"].as_u64() == pid.parse().ok();
    let process = list["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .find(ours)
        .expect("ours");
    assert_eq!(process["state"], "recorded");
    assert!(process["device_bytes"].as_u64() > Some(0), "{process}");

    // Other tests may start and end processes meanwhile, so only this process is checked.
    let all = output(folder.path(), &["snapshot", "--all", "-o", "deep/all"]);
    let names = || {
        fs::read_dir(folder.path().join("deep/all"))
            .expect("a folder")
            .flatten()
    };
    let files: Vec<PathBuf> = names().map(|entry| entry.path()).collect();
    let ending = format!(".{pid}.json");
    let file = files.iter().find(|path| path.to_string_lossy().ends_with(&ending));
    let file = file.unwrap_or_else(|| panic!("{files:?} {}", text(&all.stderr)));
    let snapshot = fs::read(file).expect("a snapshot");
    let snapshot: Value = serde_json::from_slice(&snapshot).expect("JSON");
    assert_eq!(snapshot["process"]["pid"].to_string(), pid);
    let again = text(&output(folder.path(), &["snapshot", "--all", "-o", "deep/all"]).stderr);
    assert!(again.contains(&format!("{ending}: already exists")), "{again}");
}

#[test]
fn once_without_a_recording_reports_what_is_missing() {
    let folder = folder();
    let missing = output(folder.path(), &["live", "missing.culeak", "--once"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(
        text(&missing.stderr).contains("missing.culeak, which does not exist"),
        "{missing:?}"
    );
    assert_eq!(code(folder.path(), &["live", "--once", "--", "true"]), 2);
}

#[test]
fn the_doctor_prints_json() {
    let doctor = json(folder().path(), &["doctor", "--json"]);
    assert_eq!(
        (&doctor["format"], &doctor["version"]),
        (&"culeak-doctor".into(), &1.into())
    );
    let findings = doctor["findings"].as_array().expect("a list");
    let of_level = |level: &str| findings.iter().filter(|finding| finding["level"] == level).count() as u64;
    assert!(of_level("ok") > 0, "{doctor}");
    assert_eq!(doctor["failures"].as_u64(), Some(of_level("fail")));
    assert_eq!(doctor["warnings"].as_u64(), Some(of_level("warn")));
}
