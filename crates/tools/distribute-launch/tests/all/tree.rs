//! Jobs whose launchers are a tree, with two children each. Every launcher is a process of its own
//! on this machine; its sockets show where in the tree it is.

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use distribute_launch::ReservedPorts;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};

use crate::common::within_limit;
use crate::eventually::eventually;
use crate::hosts::meeting_point;
use crate::launcher::{ELASTIC, HOST, LOGS, Launcher, TREE};

/// How many launchers connect to one.
const ARITY: usize = 2;

/// A connected socket of a launcher.
struct Socket(TcpStream);

impl Socket {
    fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        Some((self.0.local_addr().ok()?, self.0.peer_addr().ok()?))
    }
}

/// Copies of the sockets of a launcher.
fn sockets(launcher: &Launcher) -> Vec<Socket> {
    let pid = Pid::from_child(&launcher.child);
    let process = pidfd_open(pid, PidfdFlags::empty()).expect("it runs");
    let files = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
    let files = files.into_iter().flatten().filter_map(Result::ok);
    let numbers = files.filter_map(|file| {
        let target = std::fs::read_link(file.path()).ok()?;
        let is_socket = target.to_string_lossy().starts_with("socket:");
        let number = file.file_name().to_str()?.parse().ok()?;
        is_socket.then_some(number)
    });
    let copy = |number| pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).ok();
    let copies = numbers.collect::<Vec<i32>>().into_iter().filter_map(copy);
    copies.map(|file| Socket(TcpStream::from(file))).collect()
}

/// The launchers of a job, by their hosts.
struct Tree {
    launchers: BTreeMap<usize, Launcher>,
    address: SocketAddr,
    count: usize,
    is_elastic: bool,
    directory: tempfile::TempDir,
    _ports: ReservedPorts,
}

impl Tree {
    /// Starts a job whose workers run until a file says how they end.
    fn start(count: usize, is_elastic: bool) -> Tree {
        let (address, ports) = meeting_point();
        let mut tree = Tree {
            launchers: BTreeMap::new(),
            address,
            count,
            is_elastic,
            directory: tempfile::tempdir().expect("a directory"),
            _ports: ports,
        };
        (0..count).for_each(|host| tree.launch(host));
        tree.await_start(count, 0);
        tree
    }

    /// Starts the launcher of a host.
    fn launch(&mut self, host: usize) {
        let (directory, count) = (self.directory.path(), self.count);
        let text = format!(
            "cd '{}'; trap 'exit 42' TERM; echo of rank $i; > up$i-$DISTRIBUTE_RESTART; > of-$PPID
            while true; do
                if [ -e fail$i ]; then exit 3; fi
                if [ -e done ]; then exit 0; fi
                sleep 0.05
            done",
            directory.display()
        );
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.env(HOST, format!("{} {host}", self.address));
        command.env(TREE, format!("{count} {ARITY}"));
        command.env(LOGS, directory.join(format!("logs{host}")));
        if self.is_elastic {
            command.env(ELASTIC, format!("1 {count} {count}"));
        }
        let launcher = Launcher::start_by(command, &text, 0, false);
        self.launchers.insert(host, launcher);
    }

    /// Kills the launcher of a host.
    fn kill(&mut self, host: usize) {
        let launcher = self.launchers.remove(&host).expect("it was there");
        launcher.send(Signal::KILL);
        launcher.end();
    }

    /// Waits until these workers run.
    #[track_caller]
    fn await_start(&self, workers: usize, restart: usize) {
        for rank in 0..workers {
            let up = format!("up{rank}-{restart}");
            let is_up = || self.directory.path().join(&up).exists();
            eventually(is_up, || format!("{up} does not come"));
        }
    }

    fn say(&self, file: &str) {
        std::fs::write(self.directory.path().join(file), "").expect("a file");
    }

    /// The socket over which a launcher is connected to its parent, and the parent's address.
    fn uplink(&self, host: usize) -> Option<(Socket, SocketAddr)> {
        let sockets = sockets(&self.launchers[&host]);
        // At its own door the launcher accepts connections of others.
        let doors = self.doors();
        let mut connected = sockets.into_iter().filter_map(|socket| {
            let (near, far) = socket.ends()?;
            let dials = far == self.address || doors.contains_key(&far);
            (dials && near != self.address).then_some((socket, far))
        });
        connected.next()
    }

    /// The hosts by the addresses at which others are connected to them.
    fn doors(&self) -> BTreeMap<SocketAddr, usize> {
        let mut doors = BTreeMap::new();
        for (host, launcher) in self.launchers.iter().filter(|(host, _)| **host > 0) {
            // A socket that listens has no other end.
            let listening = sockets(launcher)
                .into_iter()
                .filter(|socket| socket.0.peer_addr().is_err() && socket.0.take_error().is_ok());
            let at = listening.filter_map(|socket| socket.0.local_addr().ok());
            doors.extend(at.filter(|at| at.port() > 0).map(|at| (at, *host)));
        }
        doors
    }

    /// The parent of each launcher, once all are connected.
    #[track_caller]
    fn parents(&self) -> BTreeMap<usize, usize> {
        let mut parents = BTreeMap::new();
        let look = || {
            let doors = self.doors();
            parents = BTreeMap::new();
            for host in self.launchers.keys().filter(|host| **host > 0) {
                let Some((_, at)) = self.uplink(*host) else {
                    return false;
                };
                let parent = if at == self.address { 0 } else { doors[&at] };
                parents.insert(*host, parent);
            }
            true
        };
        eventually(look, || "not all launchers are connected".to_owned());
        parents
    }

    /// Ends all launchers: their exit codes and what they have written.
    fn end(self) -> BTreeMap<usize, (Option<i32>, String)> {
        let ended = self.launchers.into_iter().map(|(host, launcher)| {
            let (status, lines) = launcher.end();
            (host, (status.code(), lines.join("\n")))
        });
        ended.collect()
    }
}

/// An inner launcher, and one that is connected to it.
fn inner(parents: &BTreeMap<usize, usize>) -> (usize, usize) {
    let mut below = parents.iter().filter(|(_, parent)| **parent > 0);
    let (child, parent) = below.next().expect("a launcher below another one");
    (*parent, *child)
}

#[test]
fn a_job_of_many_hosts_is_a_tree_and_a_failure_far_down_is_named_on_all() {
    within_limit(|| {
        let tree = Tree::start(7, false);
        let parents = tree.parents();
        let mut children: BTreeMap<usize, usize> = BTreeMap::new();
        for parent in parents.values() {
            *children.entry(*parent).or_default() += 1;
        }
        assert!(
            children.values().all(|count| *count <= ARITY),
            "{parents:?}"
        );
        assert_eq!(children[&0], ARITY, "{parents:?}");
        let (_, deep) = inner(&parents);
        tree.say(&format!("fail{deep}"));
        for host in 0..7 {
            let log = tree
                .directory
                .path()
                .join(format!("logs{host}/worker-{host}.log"));
            let text = std::fs::read_to_string(log).expect("a log");
            assert_eq!(text, format!("of rank {host}\n"));
        }
        let named = format!("because of rank {deep}: exit code 3");
        for (host, (code, text)) in tree.end() {
            assert_eq!(code, Some(3), "{host}: {text}");
            assert!(text.contains(&named), "{host}: {text}");
        }
    });
}

#[test]
fn an_inner_launcher_that_is_killed_is_named_and_none_below_it() {
    within_limit(|| {
        let tree = Tree::start(7, false);
        let (killed, _) = inner(&tree.parents());
        tree.launchers[&killed].send(Signal::KILL);
        for (host, (code, text)) in tree.end() {
            if host == killed {
                continue;
            }
            assert_eq!(code, Some(1), "{host}: {text}");
            let named = format!("the launcher of host {killed} is gone");
            assert!(text.contains(&named), "{host}: {text}");
            assert_eq!(
                text.matches("is gone; stopping").count(),
                1,
                "{host}: {text}"
            );
        }
    });
}

/// Each connection of the tree breaks once, that of an inner launcher as well as that of a leaf.
#[test]
fn connections_within_the_tree_that_break_end_no_healthy_job() {
    within_limit(|| {
        let tree = Tree::start(6, false);
        for host in 1..6 {
            let before = tree.parents();
            let (socket, _) = tree.uplink(host).expect("it is connected");
            let ends = socket.ends();
            socket.0.shutdown(Shutdown::Both).expect("it is connected");
            drop(socket);
            let is_back = || {
                let now = tree.uplink(host);
                now.is_some_and(|(socket, _)| socket.ends() != ends)
            };
            eventually(is_back, || {
                format!("host {host} does not come back: {before:?}")
            });
        }
        tree.say("done");
        for (host, (code, text)) in tree.end() {
            assert_eq!(code, Some(0), "{host}: {text}");
            assert!(!text.contains("is gone"), "{host}: {text}");
        }
    });
}

/// Its children find other parents, and the job goes on with them.
#[test]
fn an_inner_launcher_may_leave_an_elastic_job() {
    within_limit(|| {
        let mut tree = Tree::start(6, true);
        let (leaves, _) = inner(&tree.parents());
        tree.launchers[&leaves].send(Signal::TERM);
        tree.await_start(5, 1);
        let left = tree.launchers.remove(&leaves).expect("it was there").end();
        assert_eq!(left.0.code(), Some(42), "{:#?}", left.1);
        tree.parents();
        tree.say("done");
        for (host, (code, text)) in tree.end() {
            assert_eq!(code, Some(0), "{host}: {text}");
            assert!(text.contains("going on with 5 workers"), "{host}: {text}");
        }
    });
}

/// They are killed at any moment, on their way to host 0 and from there to another launcher.
#[test]
fn launchers_that_die_while_they_join_below_another_one_disturb_no_other() {
    within_limit(|| {
        let mut tree = Tree::start(4, true);
        let (_, deep) = inner(&tree.parents());
        tree.kill(deep);
        for delay in (0..60).step_by(6).map(Duration::from_millis) {
            tree.launch(deep);
            std::thread::sleep(delay);
            tree.kill(deep);
        }
        tree.launch(deep);
        let last = format!("of-{}", tree.launchers[&deep].child.id());
        let has_come = || tree.directory.path().join(&last).exists();
        eventually(has_come, || "the last one is not taken in".to_owned());
        tree.say("done");
        for (host, (code, text)) in tree.end() {
            assert_eq!(code, Some(0), "{host}: {text}");
        }
    });
}
