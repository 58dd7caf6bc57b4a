//! Jobs leave nothing behind.

use std::path::Path;
use std::time::{Duration, Instant};

use distribute_launch::Hosts;
use hostile::alone::is_alone;

use crate::common::{script, security, see};

fn count(directory: &str) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

#[test]
fn threads_files_and_children_are_as_many_as_before() {
    let name = "threads_files_and_children_are_as_many_as_before";
    if !is_alone(module_path!(), name) {
        return;
    }
    if !Path::new("/proc/self/task").exists() {
        println!("SKIPPED: no /proc to count threads and open files in");
        return;
    }
    let job = || {
        let text = "case $r$i in worker1) exit 1 ;; chief0) sleep 0.3; exit 1 ;; esac
            exec sleep 100";
        let job = script(text)
            .workers(3)
            .parameter_servers(1)
            .max_restarts(1)
            .prefix_output(true);
        let logs = tempfile::tempdir().unwrap();
        assert_eq!(
            see(job.handle_signals(true).log_directory(&logs))
                .outcome()
                .exit_code(),
            1
        );
    };
    // The launchers of more than two hosts are a tree.
    let jobs_on_hosts = |count| {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let threads = (0..count).map(|index| {
            let hosts = Hosts::new(address, count, index, security()).arity(1);
            std::thread::spawn(move || see(script("true").hosts(hosts)))
        });
        for thread in threads.collect::<Vec<_>>() {
            assert_eq!(thread.join().unwrap().outcome().exit_code(), 0);
        }
    };
    let counts = || (count("/proc/self/task"), count("/proc/self/fd"));
    // What is made once, such as the handlers of signals, is there after the first job.
    job();
    jobs_on_hosts(2);
    let before = counts();
    // A job mostly waits, so some of them run at once.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| job()));
        }
    });
    (0..5).for_each(|_| jobs_on_hosts(2));
    (0..5).for_each(|_| jobs_on_hosts(5));
    // A thread that was joined is on its way out of the system's list.
    let until = Instant::now() + Duration::from_secs(5);
    while counts() != before && Instant::now() < until {
        std::thread::yield_now();
    }
    assert_eq!(counts(), before);
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    assert_eq!(children, "");
}
