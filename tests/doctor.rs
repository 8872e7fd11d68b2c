//! `culeak doctor --job` says why a rank has no recording: each cause is a process of a job that runs meanwhile.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::support::process::Started;
use crate::support::profile::folder;
use crate::support::{Profile, another_pid, culeak, expect_root, profile, program, shim};

/// The number of ranks of this job, which no other test's job has: doctor looks at all processes of the machine.
const RANKS: u32 = 4711;

fn doctor(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(culeak());
    command.args(["doctor", "--job"]).args(words).current_dir(folder);
    command.env_remove("LD_PRELOAD").output().expect("culeak starts")
}

fn findings(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The text and the remedy of what is found about a rank.
#[track_caller]
fn about(findings: &Value, subject: &str) -> (String, String) {
    let all = findings["findings"].as_array().expect("a list");
    let found = all.iter().find(|finding| finding["subject"] == subject);
    let found = found.unwrap_or_else(|| panic!("{subject}: {findings:#}"));
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    (text("text"), text("remedy"))
}

/// The processes of a job, which wait until they are killed.
struct Job {
    /// The folder of a driver whose file is called libcuda.so.1: that of other tests is a link.
    driver: String,
    folder: tempfile::TempDir,
    running: Vec<Started>,
    others: Vec<Child>,
}

impl Job {
    fn start(&mut self, rank: u32, process: Profile) {
        let process = process
            .arg("waits")
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", RANKS.to_string())
            .env("LD_LIBRARY_PATH", &self.driver);
        let mut started = process.start_in(self.folder.path());
        let mut line = String::new();
        BufReader::new(started.stdout()).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "rank {rank}");
        self.running.push(started);
    }

    /// A process that uses no CUDA.
    fn start_other(&mut self, rank: u32, command: &mut Command) {
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", RANKS.to_string())
            .stdout(Stdio::null());
        self.others.push(command.spawn().expect("it starts"));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.running.iter().for_each(Started::kill);
        for other in &mut self.others {
            // Fails if it has ended.
            let _ = other.kill();
            let _ = other.wait();
        }
    }
}

/// Waits until the program of this process runs: it maps a file of this name.
fn wait_for(child: u32, name: &str) {
    for _ in 0..60_000 {
        let maps = fs::read_to_string(format!("/proc/{child}/maps")).unwrap_or_default();
        if maps.contains(name) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("process {child} does not map {name}");
}

#[test]
#[ignore = "needs root"]
fn each_rank_without_a_recording_has_a_cause_and_a_remedy() {
    expect_root("enter namespaces and make a set-user-ID program");
    let shim_path = Command::new(culeak())
        .args(["shim-path", "--fake-driver"])
        .output()
        .expect("culeak starts");
    let mut job = Job {
        driver: String::from_utf8_lossy(&shim_path.stdout).trim().to_owned(),
        folder: folder(),
        running: Vec::new(),
        others: Vec::new(),
    };
    let victim = || profile("endings");
    job.start(0, victim());
    job.start(1, victim().bare());
    job.start(2, victim().setting("CULEAK_DISABLE", "1"));
    job.start(3, victim().output("{}/../elsewhere.%p.culeak"));
    job.start(4, victim().output("{}/none/%p.culeak"));
    job.start(5, victim().setting("CULEAK_ONLY", "python*"));
    job.start(6, victim().setting("CULEAK_PARENT", another_pid().to_string()));
    job.start(7, victim().bare().env("LD_PRELOAD", "/nowhere/libculeak.so"));
    job.start(8, victim().bare().env("OMPI_COMM_WORLD_RANK", "8"));
    job.start(9, victim().bare().env("SLURM_PROCID", "9"));
    job.start(10, victim().bare().env("SUDO_COMMAND", "/usr/bin/train"));
    job.start(
        11,
        victim()
            .bare()
            .wrapped_in(&["unshare", "--mount", "--pid", "--fork", "--kill-child"]),
    );
    job.start(12, victim().wrapped_in(&["sh", "-c", "ulimit -f 1; exec \"$@\"", "sh"]));
    job.start(
        13,
        program("/bin/sh").bare().args("-c").arg(format!(
            "LD_PRELOAD={} ; export LD_PRELOAD; /bin/sh -c 'unset LD_PRELOAD; env LD_LIBRARY_PATH=$LD_LIBRARY_PATH \"$0\" waits; :' {}; :",
            shim().display(),
            crate::support::victim("endings", crate::support::Lookup::Linked).display()
        )),
    );
    let path = |name: &str| job.folder.path().join(name);
    let (plain, privileged) = (path("static"), path("privileged"));
    fs::write(
        path("static.c"),
        "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n",
    )
    .expect("written");
    let compiled = Command::new("cc")
        .arg("-static")
        .arg("-o")
        .arg(&plain)
        .arg(path("static.c"))
        .status();
    assert!(compiled.expect("cc starts").success());
    job.start_other(14, &mut Command::new(&plain));
    fs::copy("/bin/sleep", &privileged).expect("a copy");
    fs::set_permissions(&privileged, fs::Permissions::from_mode(0o4755)).expect("permissions");
    // Relative, since another user cannot pass through all folders of the path.
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid=65534",
            "--clear-groups",
            "/bin/sh",
            "-c",
            "exec ./privileged 1000",
        ])
        .current_dir(job.folder.path())
        .env("LD_PRELOAD", shim());
    let traversable = fs::Permissions::from_mode(0o711);
    fs::set_permissions(job.folder.path(), traversable).expect("permissions");
    job.start_other(15, &mut command);
    wait_for(job.others[1].id(), "/privileged");
    job.start_other(16, Command::new("/bin/sleep").arg("1000").env("LD_PRELOAD", shim()));
    wait_for(job.others[2].id(), "/libculeak");

    let found = doctor(job.folder.path(), &["out", "--ranks", &RANKS.to_string(), "--json"]);
    assert_eq!(found.status.code(), Some(1));
    let found = findings(&found);
    let is = |rank: u32, text: &str, remedy: &str| {
        let (said, advice) = about(&found, &format!("rank {rank}"));
        assert!(
            said.contains(text) && advice.contains(remedy),
            "{rank}: {said} -> {advice}"
        );
    };
    is(
        1,
        "LD_PRELOAD is not in its environment",
        "start it with culeak: culeak run -o ",
    );
    is(2, "CULEAK_DISABLE is set", "unset CULEAK_DISABLE");
    is(3, "its recording is in another folder", "name that folder too");
    is(4, "/out/none cannot hold a recording: No such file", "choose a folder");
    is(5, "CULEAK_ONLY=python* excludes ", "--only");
    is(6, "CULEAK_PARENT excludes it", "--no-follow-children");
    is(
        7,
        "LD_PRELOAD names /nowhere/libculeak.so, which the process does not see",
        "shared folder",
    );
    is(8, "started by mpirun", "mpirun -x LD_PRELOAD=");
    is(9, "srun --export=NONE", "srun --export=ALL,LD_PRELOAD=");
    is(10, "sudo, which removes it", "sudo culeak run -o ");
    is(11, "started by a container", "docker run -v ");
    is(12, "its files are limited to ", "ulimit -f unlimited");
    is(13, "(sh) has it", "culeak run -o ");
    is(14, "is statically linked", "another build");
    is(15, "runs with raised privileges", "a copy of the program");
    is(16, "the process has not used CUDA", "nothing, if it needs no GPU");
    let (text, _) = about(&found, "ranks 17-4710");
    assert!(text.starts_with("no recording, and no process here"), "{text}");
    assert_eq!(found["job"]["recorded"], 1);
    assert_eq!(
        found["job"]["missing"].as_array().map(Vec::len),
        Some(RANKS as usize - 1)
    );
}

#[test]
fn a_rank_that_has_ended_without_a_recording_is_named_with_its_host() {
    let folder = folder();
    for rank in [0, 2] {
        let process = profile("ranks").arg("usual").env("RANK", rank.to_string());
        assert!(process.start_in(folder.path()).finish().status.success());
    }
    let found = findings(&doctor(folder.path(), &["out", "--ranks", "3", "--json"]));
    let (text, remedy) = about(&found, "rank 1");
    assert!(
        text.contains("no process with this rank runs on this machine"),
        "{text}"
    );
    assert!(remedy.contains("-- LAUNCHER"), "{remedy}");
    let process = profile("ranks").arg("usual").env("RANK", "1");
    assert!(process.start_in(folder.path()).finish().status.success());
    let complete = doctor(folder.path(), &["out", "--ranks", "3"]);
    let text = String::from_utf8_lossy(&complete.stdout).into_owned();
    assert_eq!(complete.status.code(), Some(0), "{text}");
    assert!(
        text.contains("\n3 of 3 ranks recorded\nnext: culeak report out\n"),
        "{text}"
    );
}

#[test]
fn a_launcher_is_checked_before_the_job() {
    let folder = folder();
    fs::create_dir(folder.path().join("out")).expect("a folder");
    let check = |script: &str| doctor(folder.path(), &["out", "--json", "--", "sh", "-c", script, "sh"]);
    let good = check("for rank in 0 1; do RANK=$rank WORLD_SIZE=2 \"$@\"; done");
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    let text = about(&findings(&good), "processes").0;
    assert!(text.starts_with("the library arrives in all 2, on 1 host"), "{text}");
    let bad = check(
        "RANK=0 WORLD_SIZE=4 \"$@\"; RANK=1 WORLD_SIZE=4 env -i RANK=1 WORLD_SIZE=4 \"$@\"; \
         RANK=2 WORLD_SIZE=4 CULEAK_OUTPUT=/tmp/ \"$@\"",
    );
    assert_eq!(bad.status.code(), Some(1));
    let found = findings(&bad);
    assert!(
        about(&found, "rank 1")
            .0
            .starts_with("LD_PRELOAD is not in its environment")
    );
    assert!(about(&found, "rank 2").0.starts_with("CULEAK_OUTPUT is /tmp/ there"));
    assert!(about(&found, "rank 3").0.starts_with("did not answer"));
    let left: Vec<_> = fs::read_dir(folder.path().join("out")).expect("readable").collect();
    assert!(left.is_empty(), "{left:?}");
    let none = check("exit 3");
    assert_eq!(none.status.code(), Some(2));
    let message = String::from_utf8_lossy(&none.stderr);
    assert!(
        message.contains("sh started no rank (exit status: 3); give the launcher"),
        "{message}"
    );
}
