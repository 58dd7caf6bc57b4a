//! Host 0 says which launcher it does not take, and why.

use rstest::rstest;

use crate::common::{self, Process};

#[rstest]
#[case("another-token-of-16-bytes", 2, "its token is another one")]
#[case("one-token-of-16-bytes", 3, "the numbers of hosts differ")]
fn a_launcher_that_is_refused_is_named_on_host_0(
    #[case] token: &str,
    #[case] hosts: usize,
    #[case] why: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let launch = |host: usize, hosts: usize, token: &str| {
        let mut command = common::plain(folder.path());
        let line = format!(
            "launch --workers 1 --rendezvous {address} --hosts {hosts} --host {host} -- true"
        );
        command.args(line.split_whitespace());
        Process::start(&mut command, &[("DISTRIBUTE_JOB_TOKEN", token)])
    };
    let first = launch(0, 2, "one-token-of-16-bytes");
    let refused = launch(1, hosts, token).finish();
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    first.signal("TERM");
    let said = first.finish().stderr;
    assert!(
        said.contains("turned away a launcher at 127.0.0.1"),
        "{said}"
    );
    assert!(said.contains(why), "{said}");
}
