//! Jobs leave nothing behind: the only test of its program, because it counts what the whole
//! process has.

mod common;

use std::path::Path;

use common::{script, see};

fn count(directory: &str) -> usize {
    std::fs::read_dir(directory).map_or(0, Iterator::count)
}

#[test]
fn threads_files_and_children_are_as_many_as_before() {
    if !Path::new("/proc/self/task").exists() {
        println!("SKIPPED: no /proc to count threads and open files in");
        return;
    }
    let job = || {
        let text = "if [ $i = 1 ]; then exit 1; fi; exec sleep 100";
        let job = script(text)
            .workers(3)
            .parameter_servers(1)
            .prefix_output(true);
        let logs = tempfile::tempdir().unwrap();
        assert_eq!(
            see(job.handle_signals(true).log_directory(&logs))
                .outcome()
                .exit_code(),
            1
        );
    };
    let counts = || (count("/proc/self/task"), count("/proc/self/fd"));
    // What is made once, such as the handlers of signals, is there after the first job.
    job();
    let before = counts();
    (0..20).for_each(|_| job());
    assert_eq!(counts(), before);
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    assert_eq!(children, "");
}
