//! What several workers train.

use rstest::rstest;

use crate::common::{self, Finished};
use crate::job::{self, MULTI, Member, addresses, epochs, hash, succeed, tf_config};

#[rstest]
#[case("auto", "")]
#[case("grpc", "")]
#[case("auto", "--optimizer burn:muon --weight-decay 0.01 --ema 0.9")]
fn workers_train_what_the_replicas_of_one_process_train(
    #[case] transport: &str,
    #[case] more: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let flags = format!("--transport {transport} --bytes-per-pack 4096");
    let arguments = format!("{MULTI} --steps 30 {flags} {more}");
    let (chief, workers) = succeed(folder.path(), 2, &arguments);
    let mirrored = "train --strategy mirrored --model mlp --output json --replicas 2 --steps 30";
    let one = common::succeed(folder.path(), &format!("{mirrored} {more}"));
    assert_eq!(workers, hash(&one), "the sum of two has one order only");
    assert_eq!(
        epochs(&chief),
        epochs(&one),
        "losses and accuracies are over all workers"
    );
    assert_eq!(
        succeed(folder.path(), 2, &arguments).1,
        workers,
        "the same bits again"
    );
}

#[test]
fn several_replicas_per_worker_train_too() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = format!("{MULTI} --steps 25 --replicas 2");
    let (chief, hash) = succeed(folder.path(), 3, &arguments);
    let start: serde_json::Value = serde_json::from_str(chief.lines().next().unwrap()).unwrap();
    assert_eq!(
        (start["workers"].as_u64(), start["replicas"].as_u64()),
        (Some(3), Some(6))
    );
    assert_eq!(
        succeed(folder.path(), 3, &arguments).1,
        hash,
        "the same bits again"
    );
}

fn loss(stdout: &str) -> f64 {
    common::last_event(stdout)["loss"].as_f64().unwrap()
}

/// Within 1 %.
fn assert_about(found: f64, expected: f64) {
    let off = (found - expected).abs();
    assert!(off < 0.01 * expected, "{found} is not about {expected}");
}

/// Gradients are rounded, and so little that training is as good; the same flag, the same bits.
#[rstest]
#[case("bf16", "auto")]
#[case("bf16", "grpc --bytes-per-pack 4096")]
#[case("f16", "grpc --communication ring")]
fn gradients_travel_in_16_bits(#[case] wire: &str, #[case] transport: &str) {
    let folder = tempfile::tempdir().unwrap();
    let multi = format!("{MULTI} --epochs 8 --transport {transport}");
    let (exact, expected) = succeed(folder.path(), 2, &multi);
    let narrow = format!("{multi} --wire {wire}");
    let (rounded, found) = succeed(folder.path(), 2, &narrow);
    assert_ne!(found, expected, "it takes effect");
    assert_about(loss(&rounded), loss(&exact));
    // Interrupted and continued it is the same run.
    let saved = format!("{narrow} --checkpoint-dir saved --restartable");
    succeed(folder.path(), 2, &format!("{saved} --steps 30"));
    assert_eq!(succeed(folder.path(), 2, &saved).1, found);
}

/// A network with convolutions and dropout. What rounding changes grows with the steps, so that one
/// run says little: the mean of some does.
#[test]
fn a_network_learns_as_well_from_gradients_in_16_bits() {
    let folder = tempfile::tempdir().unwrap();
    let mean = |wire: &str| {
        let losses = [1, 2, 3].map(|seed| {
            let flags = format!("--epochs 4 --seed {seed} --wire {wire}");
            let multi = MULTI.replace("mlp", "digits-cnn");
            loss(&succeed(folder.path(), 2, &format!("{multi} {flags}")).0)
        });
        losses.iter().sum::<f64>() / 3.0
    };
    assert_about(mean("bf16"), mean("f32"));
}

#[test]
fn the_replicas_of_a_job_are_the_same_in_any_number_of_workers() {
    let folder = tempfile::tempdir().unwrap();
    let train = |workers: usize, total: usize| {
        let arguments = format!("{MULTI} --steps 25 --total-replicas {total}");
        succeed(folder.path(), workers, &arguments)
    };
    let (one, expected) = train(1, 2);
    let (two, hash) = train(2, 2);
    assert_eq!(hash, expected, "the sum of two has one order only");
    assert_eq!(epochs(&one), epochs(&two));
    let (three, _) = train(3, 5);
    let start: serde_json::Value = serde_json::from_str(three.lines().next().unwrap()).unwrap();
    assert_eq!(
        (start["workers"].as_u64(), start["replicas"].as_u64()),
        (Some(3), Some(5))
    );
}

#[test]
fn the_chief_says_what_was_detected() {
    let folder = tempfile::tempdir().unwrap();
    let text = MULTI.replace(" --output json", "");
    let ended = job::finish(job::start(
        folder.path(),
        2,
        &format!("{text} --steps 2"),
        &[],
    ));
    let said = &ended[0].stderr;
    assert!(
        said.contains("multi-worker strategy on 2 replicas of 2 workers"),
        "{said}"
    );
    assert!(said.contains("cluster from TF_CONFIG"), "{said}");
    for part in [
        "2 ranks over shared-memory, canonical order (generation 0)\n",
        "direct all-reduce: all ranks are processes of one host\n",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(said.lines().all(|line| line.len() <= 80), "{said}");
    assert_eq!(ended[1].stderr.lines().count(), 1, "{}", ended[1].stderr);
}

/// Both workers have succeeded with the same weights.
fn assert_agree(ended: &[Finished]) {
    assert_eq!(ended[0].code, Some(0), "{}", ended[0].stderr);
    let (hash, said) = (hash(&ended[0].stdout), &ended[1].stderr);
    assert!(said.contains(&hash), "{said}");
}

#[test]
fn flags_describe_a_cluster_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let spec = format!(r#"{{"worker":{:?}}}"#, addresses(2)).replace(' ', "");
    let members = (0..2).map(|index| {
        let place = format!("--cluster-spec {spec} --task-type worker --task-id {index}");
        Member::start(folder.path(), &format!("{MULTI} --steps 3 {place}"), &[])
    });
    let ended = job::finish(members.collect());
    assert_agree(&ended);
}

#[test]
fn a_worker_alone_needs_no_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let alone = common::succeed(folder.path(), &format!("{MULTI} --steps 5 --replicas 2"));
    let mirrored = "train --strategy mirrored --model mlp --output json --replicas 2 --steps 5";
    assert_eq!(
        hash(&alone),
        hash(&common::succeed(folder.path(), mirrored))
    );
}

#[test]
fn certificates_and_a_token_protect_the_workers() {
    let folder = tempfile::tempdir().unwrap();
    let both = addresses(2);
    let hosts: Vec<&str> = both.iter().filter_map(|a| a.split(':').next()).collect();
    common::succeed(
        folder.path(),
        &format!("certs --out certs --hosts {}", hosts.join(",")),
    );
    let cluster = format!(r#"{{"worker": {both:?}}}"#);
    let train = |protected: usize, patience: usize| {
        let members = (0..2).map(|index| {
            let config = tf_config(&cluster, "worker", index);
            let mut arguments = format!("{MULTI} --steps 3 --rendezvous-timeout {patience}");
            if index < protected {
                arguments += &format!(" --certs certs/{}", hosts[index]);
            }
            Member::start(folder.path(), &arguments, &[("TF_CONFIG", &config)])
        });
        members.collect()
    };
    assert_agree(&job::finish(train(2, 60)));
    for refused in job::finish(train(1, 3)) {
        // One waits for a worker that may come, the other one is told what does not fit.
        assert!(matches!(refused.code, Some(1 | 2)), "{}", refused.stderr);
        assert_eq!(
            refused.stdout, "",
            "a process without a certificate cannot take part"
        );
    }
}

#[test]
fn the_evaluator_measures_checkpoints_beside_the_training() {
    let folder = tempfile::tempdir().unwrap();
    let all = addresses(3);
    let cluster = format!(
        r#"{{"worker": {:?}, "evaluator": [{:?}]}}"#,
        &all[..2],
        all[2]
    );
    let member = |task: &str, index| {
        let config = tf_config(&cluster, task, index);
        let flags = "--steps 60 --checkpoint-dir saved --checkpoint-steps 20 --log-dir logs";
        Member::start(
            folder.path(),
            &format!("{MULTI} {flags}"),
            &[("TF_CONFIG", &config)],
        )
    };
    let mut evaluator = member("evaluator", 0);
    let workers = job::finish(vec![member("worker", 0), member("worker", 1)]);
    let done = common::last_event(&workers[0].stdout);
    evaluator.wait_for(r#""event":"evaluation""#);
    evaluator.signal("TERM");
    let ended = evaluator.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let last = common::last_event(&ended.stdout);
    assert_eq!(last["step"], 60, "the last checkpoint is never left out");
    let difference = last["accuracy"].as_f64().unwrap() - done["val_accuracy"].as_f64().unwrap();
    assert!(difference.abs() < 1e-9, "{last} {done}");
    let files = std::fs::read_dir(folder.path().join("logs/evaluator")).unwrap();
    assert_eq!(files.count(), 1, "an event file for TensorBoard");
}

/// For so long the checkpoint is never where it was a moment ago.
const ROTATING: std::time::Duration = std::time::Duration::from_secs(3);

#[test]
fn the_evaluator_outlives_checkpoints_that_rotate_away_while_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let train = "train --model mlp --replicas 1 --output json --steps 2 --checkpoint-dir saved";
    common::succeed(folder.path(), train);
    let cluster = format!(
        r#"{{"worker": {:?}, "evaluator": {:?}}}"#,
        job::addresses(1),
        job::addresses(1)
    );
    let config = tf_config(&cluster, "evaluator", 0);
    let arguments = format!("{MULTI} --checkpoint-dir saved");
    let mut evaluator = Member::start(folder.path(), &arguments, &[("TF_CONFIG", &config)]);
    let place = |step: usize| folder.path().join(format!("saved/step-{step:08}"));
    let begun = std::time::Instant::now();
    let mut step = 2;
    while begun.elapsed() < ROTATING {
        std::fs::rename(place(step), place(step + 1)).unwrap();
        step += 1;
    }
    assert!(step > 1000, "{step} places");
    evaluator.wait_for(r#""event":"evaluation""#);
    evaluator.signal("TERM");
    let ended = evaluator.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
