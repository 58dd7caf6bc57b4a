//! Signals, full disks and read-only directories: never a lost or half-written checkpoint.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use distribute_core::checkpoint;

use crate::common::{self, Process, QUICK, run, succeed};

/// A long run in the background.
struct Training(Process);

impl Training {
    /// Starts it and waits until the first epoch is over.
    fn start(folder: &Path, arguments: &str) -> Self {
        let mut command = common::plain(folder);
        let mut process = Process::start(command.args(arguments.split_whitespace()), &[]);
        process.wait_for("val_loss");
        Self(process)
    }

    fn signal(&self, name: &str) {
        self.0.signal(name);
    }

    /// Exit code and standard error.
    fn finish(self) -> (Option<i32>, String) {
        let finished = self.0.finish();
        (finished.code, common::apart_from_cores(&finished.stderr))
    }
}

const LONG: &str = "train --model mlp --replicas 2 --epochs 100000 --output json";

/// Every checkpoint in the directory can be loaded, and there is one.
fn all_complete(directory: &Path) {
    let entries = checkpoint::list(directory).unwrap();
    assert!(!entries.is_empty());
    for entry in entries {
        checkpoint::verify(&entry.path).unwrap();
    }
}

#[test]
fn ctrl_c_saves_and_the_run_goes_on_where_it_was() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let training = Training::start(folder.path(), &format!("{LONG} --checkpoint-dir saved"));
        training.signal(signal);
        let (code, stderr) = training.finish();
        assert_eq!(code, Some(42), "{stderr}");
        let filters = vec![
            (r"step-\d+", "step-[N]"),
            (r"step \d+", "step [N]"),
            ("SIG(INT|TERM)", "[SIGNAL]"),
        ];
        insta::with_settings!({ filters => filters }, {
            insta::assert_snapshot!("interrupted_and_saved", stderr);
        });
        all_complete(&folder.path().join("saved"));
        let newest = checkpoint::load_latest(folder.path().join("saved")).unwrap();
        let step = newest.found.unwrap().0.step;
        let whole = format!(
            "train --model mlp --replicas 2 --epochs 100000 --output json \
                             --steps {}",
            step + 3
        );
        let resumed = succeed(
            folder.path(),
            &format!("{whole} --checkpoint-dir saved --resume"),
        );
        let uninterrupted = succeed(folder.path(), &whole);
        let hash = |out: &str| common::last_event(out)["weights_sha256"].clone();
        assert_eq!(hash(&resumed), hash(&uninterrupted));
    }
}

#[test]
fn ctrl_c_without_a_checkpoint_directory_is_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let training = Training::start(folder.path(), LONG);
    training.signal("INT");
    let (code, stderr) = training.finish();
    assert_eq!(code, Some(1));
    insta::with_settings!({ filters => vec![(r"step \d+", "step [N]")] }, {
        insta::assert_snapshot!("interrupted_without_directory", stderr);
    });
}

#[test]
fn two_runs_never_share_a_checkpoint_directory() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let long = format!("{LONG} --checkpoint-dir saved");
    let training = Training::start(folder.path(), &long);
    for second in [&long, &format!("{long} --resume")] {
        let refused = run(folder.path(), second);
        assert_eq!(refused.code, Some(1), "{}", refused.stderr);
        assert_eq!(refused.stdout, "", "refused before it begins");
        let id = training.0.child.id().to_string();
        insta::with_settings!({ filters => vec![(r"on host [^ ,]+", "on host [HOST]")] }, {
            insta::assert_snapshot!("second_run", refused.stderr.replace(&id, "[ID]"));
        });
    }
    // What an epoch ends with is written after it is told.
    let begun = Instant::now();
    while checkpoint::latest(&saved).unwrap().found.is_none() {
        assert!(begun.elapsed() < common::LIMIT, "nothing is saved");
        std::thread::yield_now();
    }
    // Processes that only read are admitted.
    succeed(folder.path(), "evaluate --checkpoint-dir saved");
    succeed(folder.path(), "predict --checkpoint-dir saved");
    // SIGKILL: what the dead run held is free at once.
    drop(training);
    all_complete(&saved);
    let newest = checkpoint::latest(&saved).unwrap().found.unwrap().0.step;
    let more = newest + 2;
    let resumed = succeed(folder.path(), &format!("{long} --resume --steps {more}"));
    assert_eq!(common::last_event(&resumed)["steps"], more);
}

#[test]
fn of_two_runs_started_at_once_one_is_refused_and_one_trains() {
    let folder = tempfile::tempdir().unwrap();
    // Without a directory, so that both come as far as making it.
    let start = || {
        Command::new(assert_cmd::cargo::cargo_bin("distribute-cli"))
            .current_dir(folder.path())
            .args(format!("{QUICK} --checkpoint-dir saved").split_whitespace())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let both = [start(), start()];
    let _watchdogs: Vec<_> = both
        .iter()
        .map(|child| common::watchdog(child.id()))
        .collect();
    let ends: Vec<_> = both.map(|child| child.wait_with_output().unwrap()).into();
    let mut codes: Vec<_> = ends.iter().map(|end| end.status.code()).collect();
    codes.sort_unstable();
    // The second may come when the first is done: then its checkpoint is in the way.
    assert!(
        codes == [Some(0), Some(1)] || codes == [Some(0), Some(2)],
        "{ends:?}"
    );
    let entries = checkpoint::list(folder.path().join("saved")).unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    all_complete(&folder.path().join("saved"));
}

/// Waits until a checkpoint is there and the save of the next one has begun: its temporary
/// directory is there.
fn wait_for_a_save(directory: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        let names: Vec<String> = names.collect();
        let some = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
        if some("step-") && some(".tmp-") {
            return;
        }
        std::thread::yield_now();
    }
    panic!("no save was seen in a minute");
}

#[test]
fn a_second_ctrl_c_during_a_save_harms_no_checkpoint() {
    for _ in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        let saved = folder.path().join("saved");
        let training = Training::start(folder.path(), &format!("{LONG} --checkpoint-dir saved"));
        wait_for_a_save(&saved);
        training.signal("INT");
        training.signal("INT");
        let (code, stderr) = training.finish();
        // Two signals of a kind may arrive as one.
        assert!(matches!(code, Some(130 | 42)), "{code:?} {stderr}");
        all_complete(&saved);
        let evaluated = run(folder.path(), "evaluate --checkpoint-dir saved");
        assert_eq!(evaluated.code, Some(0), "{}", evaluated.stderr);
    }
}

/// A tmpfs that is unmounted at the end; none if this process may not mount.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(folder: &'a Path, options: &str, test: &str) -> Option<Self> {
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs"])
            .arg(folder)
            .output();
        match mount {
            Ok(output) if output.status.success() => Some(Self(folder)),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                eprintln!("SKIPPED {test}: cannot mount a tmpfs here ({})", why.trim());
                None
            }
            Err(error) => {
                eprintln!("SKIPPED {test}: cannot run mount ({error})");
                None
            }
        }
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_ends_the_run_and_keeps_older_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    fs::create_dir(&saved).unwrap();
    // Room for two checkpoints of about 110 KB, not for three.
    let Some(_disk) = SmallDisk::mount(&saved, "size=300k", "a full disk") else {
        return;
    };
    let train = "train --model mlp --replicas 2 --epochs 9 --output json --checkpoint-dir saved";
    let finished = run(folder.path(), train);
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    let filters = vec![(r"tmp-distribute-[0-9a-f]+/\S+", "tmp-distribute-[RANDOM]")];
    insta::with_settings!({ filters => filters }, {
        insta::assert_snapshot!("full_disk", common::apart_from_cores(&finished.stderr));
    });
    all_complete(&saved);
}

#[test]
fn a_full_disk_leaves_the_predictions_that_were_there() {
    let folder = tempfile::tempdir().unwrap();
    succeed(folder.path(), &format!("{QUICK} --checkpoint-dir saved"));
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let Some(_disk) = SmallDisk::mount(&disk, "size=16k", "predictions on a full disk") else {
        return;
    };
    fs::write(disk.join("filler"), vec![0; 12 << 10]).unwrap();
    let predict = "predict --checkpoint-dir saved --split all --predictions disk";
    for (name, before) in [("new.csv", None), ("old.csv", Some("precious\n"))] {
        if let Some(before) = before {
            fs::write(disk.join(name), before).unwrap();
        }
        let finished = run(folder.path(), &format!("{predict}/{name}"));
        assert_eq!(finished.code, Some(1), "{}", finished.stderr);
        assert!(finished.stderr.contains(name), "{}", finished.stderr);
        assert_eq!(fs::read_to_string(disk.join(name)).ok().as_deref(), before);
    }
    let files = fs::read_dir(&disk).unwrap().count();
    assert_eq!(files, 2, "nothing half-written is left");
}

#[test]
fn a_read_only_checkpoint_directory_is_found_before_training() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    fs::create_dir(&saved).unwrap();
    let Some(_disk) = SmallDisk::mount(&saved, "ro", "a read-only directory") else {
        return;
    };
    let finished = run(folder.path(), &format!("{QUICK} --checkpoint-dir saved"));
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    assert!(
        !finished.stdout.contains("\"epoch\","),
        "{}",
        finished.stdout
    );
    insta::assert_snapshot!("read_only", finished.stderr);
}
