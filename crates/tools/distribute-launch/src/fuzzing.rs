//! The fuzz targets: they feed any bytes to the readers of messages from other launchers and
//! from the job's processes. A panic is a finding.
//!
//! Not part of the interface of this crate; compiled for tests and with the feature `fuzzing`.

use crate::job::cluster::Cluster;
use crate::posts::{Instruction, Post, Posts};
use crate::report::failure_report;
use crate::report::verdict::Verdict;

/// A target's name and function.
type Target = (&'static str, fn(&[u8]));

/// The targets by their names.
pub const TARGETS: [Target; 2] = [
    ("launcher_posts", posts),
    ("failure_report", failure_report),
];

/// How many hosts the posts come from.
const HOSTS: usize = 2;

/// One post per line, as a launcher receives them from the relay. After each post the target
/// makes the decisions that the launcher would make.
pub fn posts(bytes: &[u8]) {
    posts_of(bytes, false);
    posts_of(bytes, true);
}

#[expect(clippy::expect_used, reason = "a fuzz target fails by a panic")]
fn posts_of(bytes: &[u8], is_elastic: bool) {
    let mut posts = Posts::new(HOSTS, is_elastic);
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(post) = serde_json::from_slice::<Post>(line) else {
            continue;
        };
        let text = serde_json::to_string(&post).expect("it came from text");
        let again: Post = serde_json::from_str(&text).expect("it was just written");
        assert_eq!(serde_json::to_string(&again).ok(), Some(text));
        posts.begin_attempt(post.restart);
        if posts.record(post).is_err() {
            return;
        }
        if let Some(Instruction::Start(plan)) = posts.take_instruction(1) {
            posts.begin_plan(&plan);
            let _place = plan.place_of(plan.workers());
        }
        decide(&posts);
    }
}

fn decide(posts: &Posts) {
    let _signal = posts.stop_signal();
    let _done = posts.workers_are_done();
    let _lost = posts.has_lost();
    let mut cluster = Cluster::default();
    let mut tasks = Vec::new();
    for (_, part) in posts.ready().values() {
        tasks = cluster.append(part);
    }
    cluster.reconcile_chief(&mut tasks);
    for task in cluster.tasks() {
        assert!(cluster.tf_config(task).is_ok());
        let _last = posts.is_last_worker(task, tasks.len());
    }
    if let Some((whole, _)) = posts.combined()
        && let Verdict::Failed(index) = whole.verdict
        && let Some(cause) = whole.root_cause(index)
    {
        assert!(!whole.describe(index, &cause).is_empty());
        let _code = cause.ending.exit_code();
    }
}

/// The file in which a process names the ranks that it lost: rejected, or equal after a round trip.
pub fn failure_report(bytes: &[u8]) {
    if let Some(report) = failure_report::parse(bytes) {
        let text = serde_json::to_vec(&report).ok();
        let again = text.and_then(|text| failure_report::parse(&text));
        assert_eq!(again, Some(report));
    }
}

#[cfg(test)]
mod tests {
    use hostile::corpus::Seeds;

    use super::*;
    use crate::job::task::{Role, Task};
    use crate::membership::{Counts, Plan};
    use crate::posts::{JobEnd, PostBody};
    use crate::report::attempt::{AttemptResult, ProcessReport};
    use crate::report::outcome::Ending;

    #[test]
    fn the_corpus_has_the_seeds_and_no_target_fails_with_a_file_of_it() {
        for target in TARGETS {
            let seeds = match target.0 {
                "launcher_posts" => jobs(),
                _ => reports(),
            };
            hostile::corpus::check(target, &seeds);
        }
    }

    const WORKER: Task = Task {
        role: Role::Worker,
        index: 1,
    };

    fn ended(host: usize, lost: Option<Vec<usize>>) -> PostBody {
        let member = |index| ProcessReport {
            task: Task { index, ..WORKER },
            host: format!("host-{host}"),
            pid: 7,
            ending: Ending::Signal(9),
            is_asked: index == 0,
            is_given_up: false,
            log: "worker-1.log".to_owned(),
            last_lines: vec![
                "rank 0 was lost in operation 7, rank(s) [1, 0] did not take part".to_owned(),
            ],
            lost: lost.clone(),
        };
        PostBody::Ended(AttemptResult::new(
            Verdict::Failed(usize::MAX),
            vec![member(2 * host), member(2 * host + 1)],
        ))
    }

    fn job(items: impl IntoIterator<Item = (usize, PostBody)>) -> Vec<u8> {
        let post = |(host, item)| Post {
            host,
            restart: 0,
            item,
        };
        let lines = items
            .into_iter()
            .map(post)
            .map(|post| serde_json::to_string(&post).unwrap());
        lines.collect::<Vec<_>>().join("\n").into_bytes()
    }

    fn jobs() -> Seeds {
        let cluster = r#"{"chief":["a:1"],"worker":["a:2","a:3"],"ps":["a:4"],"evaluator":[""]}"#;
        let cluster: Cluster = serde_json::from_str(cluster).unwrap();
        let ready = |host| (host, PostBody::Ready("nonce".to_owned(), cluster.clone()));
        let failed = PostBody::Failed(WORKER, Ending::Exit(-1));
        let gone = PostBody::WorkerGone(WORKER, Ending::Unknown);
        let ends = || {
            [
                (0, ended(0, None)),
                (1, ended(1, Some(vec![0, usize::MAX]))),
            ]
        };
        let failure = [ready(0), ready(1), (1, failed)].into_iter().chain(ends());
        let done = || (0..HOSTS).map(|host| (host, PostBody::WorkersDone));
        Seeds::from([
            ("failure", job(failure)),
            (
                "preempted",
                job([(1, PostBody::Preempted)].into_iter().chain(ends())),
            ),
            ("workers-done", job([(0, gone)].into_iter().chain(done()))),
            (
                "stop",
                job([(0, PostBody::Stop(i32::MIN))].into_iter().chain(ends())),
            ),
            ("lost", job([ready(usize::MAX), (5, PostBody::Lost)])),
            ("elastic", job(elastic())),
            ("deep", b"[".repeat(1000)),
        ])
    }

    /// Host 1 is lost, and comes again.
    fn elastic() -> Vec<(usize, PostBody)> {
        let plan = |hosts: usize| Plan {
            start: 0,
            places: (0..hosts).map(|host| (host, vec![0, 1])).collect(),
            counts: Counts::default(),
        };
        let (missing, left) = (vec![1], 2);
        vec![
            (0, PostBody::Came),
            (1, PostBody::Came),
            (0, PostBody::Plan(plan(2))),
            (1, PostBody::Lost),
            (0, ended(0, None)),
            (0, PostBody::Plan(plan(1))),
            (1, PostBody::Came),
            (0, PostBody::Save),
            (1, PostBody::Leave),
            (1, PostBody::Slow("rank 1 is slow".to_owned())),
            (
                0,
                PostBody::SlowHost {
                    host: 1,
                    why: "rank 1 is slow".to_owned(),
                    is_dropped: true,
                },
            ),
            (0, PostBody::JobEnd(JobEnd::TooFew { missing, left })),
        ]
    }

    fn reports() -> Seeds {
        let text = |text: &str| text.as_bytes().to_vec();
        Seeds::from([
            ("lost", text(r#"{"lost":[1,3]}"#)),
            ("number-giant", text(r#"{"lost":[99999999999999999999]}"#)),
            ("not-utf-8", b"{\"lost\":[],\"\xff\":0}".to_vec()),
            ("deep", b"[".repeat(1000)),
        ])
    }
}
