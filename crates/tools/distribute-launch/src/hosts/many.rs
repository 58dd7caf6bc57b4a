//! A job of many hosts: all launchers in this process, with real connections. The number of hosts
//! may be given as DISTRIBUTE_LAUNCHERS, and the results are printed, for the table of limits in
//! the book.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use distribute_net::security::{Security, Token};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::events::{self, Event, Events};
use crate::hosts::join::{Dialer, RETRY_PAUSE};
use crate::hosts::link::Link;
use crate::hosts::outbox::{Farewell, Outbox};
use crate::hosts::part::Part;
use crate::hosts::relay::Relay;
use crate::hosts::wire::{Terms, runtime};
use crate::job::cluster::Cluster;
use crate::job::hosts::Hosts;
use crate::job::ports::ReservedPorts;
use crate::job::task::Task;
use crate::posts::{JobEnd, Post, PostBody};
use crate::report::attempt::{AttemptResult, ProcessReport};
use crate::report::console::{Console, Screen};
use crate::report::outcome::{Ending, Outcome};
use crate::report::verdict::Verdict;
use crate::thread_scope::ThreadScope;

/// How many launchers take part if it is not said.
const LAUNCHERS: usize = 60;
/// How many connect to one, with that number.
const FEW: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);

/// A launcher's thread that decides: it says what a job with one worker on each host says.
struct Decider {
    host: usize,
    count: usize,
    received: Receiver<Event>,
    outbox: Arc<Outbox>,
    cluster: Cluster,
    /// How many posts of each kind have come.
    heard: [usize; 4],
    is_over: bool,
}

impl Decider {
    fn say(&self, item: PostBody) {
        let (host, restart) = (self.host, 0);
        let post = Post {
            host,
            restart,
            item,
        };
        assert!(self.outbox.push(post));
    }

    /// Hears the posts that have come.
    fn hear(&mut self) {
        loop {
            let post = match self.received.try_recv() {
                Ok(Event::Post(post)) => post,
                Ok(Event::Broken(error)) => panic!("host {}: {error}", self.host),
                Ok(_) => continue,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            };
            let kind = match post.item {
                PostBody::Came => 0,
                PostBody::Ready(..) => 1,
                PostBody::WorkersDone => 2,
                PostBody::Ended(_) => 3,
                PostBody::JobEnd(_) => {
                    self.is_over = true;
                    self.outbox.close(Farewell::JobEnded);
                    return;
                }
                PostBody::Lost if self.is_over => continue,
                PostBody::Lost => panic!("host {} hears that {} is lost", self.host, post.host),
                _ => continue,
            };
            self.heard[kind] += 1;
            if self.heard[kind] == self.count {
                self.go_on(kind);
            }
        }
    }

    fn go_on(&self, kind: usize) {
        match kind {
            0 => self.say(PostBody::Ready("nonce".to_owned(), self.cluster.clone())),
            1 => self.say(PostBody::WorkersDone),
            2 => {
                let report = ProcessReport {
                    task: Task::worker(self.host),
                    host: self.host.to_string(),
                    pid: 1,
                    ending: Ending::Exit(0),
                    is_asked: false,
                    is_given_up: false,
                    log: format!("logs/worker-{}.log", self.host),
                    last_lines: vec!["the last line of its output".to_owned(); 3],
                    lost: None,
                };
                let ended = AttemptResult::new(Verdict::Succeeded, vec![report]);
                self.say(PostBody::Ended(ended));
            }
            _ if self.host == 0 => {
                let outcome = Outcome::Succeeded { restarts: 0 };
                self.say(PostBody::JobEnd(JobEnd::Outcome(outcome)));
            }
            _ => {}
        }
    }
}

/// How many connections each listening port of this machine has, by the port.
fn connections() -> BTreeMap<u16, usize> {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let mut all = BTreeMap::new();
    for line in table.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = words[1].rsplit_once(':').unwrap();
        if words[3] == "01" {
            *all.entry(u16::from_str_radix(port, 16).unwrap())
                .or_default() += 1;
        }
    }
    all
}

/// What was measured in one job.
#[derive(Debug)]
struct Measured {
    met: Duration,
    ended: Duration,
    at_relay: usize,
    at_others: usize,
    posts: usize,
}

/// Runs a relay, and hands its hosts and terms to `with`.
fn with_relay<T>(count: usize, arity: usize, with: impl FnOnce(Vec<Hosts>, Terms) -> T) -> T {
    let ports = ReservedPorts::new(1, Ipv4Addr::LOCALHOST.into()).unwrap();
    let address = ports.addresses()[0];
    let security = Security::default().token(Token::new("a token of 16 bytes or more").unwrap());
    let hosts = |index| {
        Hosts::new(address, count, index, security.clone())
            .timeout(Duration::from_secs(600))
            .arity(arity)
    };
    let terms = Terms {
        hosts: count,
        restarts_max: 0,
        workers: None,
        host_timeout: Duration::from_secs(600),
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut console = Console::new(&mut stdout, &mut stderr);
    let run = |screen: &Screen| {
        ThreadScope::run(|threads| {
            let (_events, received) = events::channel(1);
            let relay = Relay::start(threads, &hosts(0), terms, &received, screen).unwrap();
            let all = (0..count).map(hosts).collect();
            let done = with(all, terms);
            drop(relay);
            Ok(done)
        })
    };
    Screen::run(&mut console, run).unwrap()
}

fn run_job(count: usize, arity: usize) -> Measured {
    with_relay(count, arity, run_launchers)
}

/// Joins, says where its door is, and serves its connections to the end.
async fn launcher(
    hosts: Hosts,
    terms: Terms,
    outbox: Arc<Outbox>,
    events: Events,
    doors: Arc<Mutex<BTreeSet<u16>>>,
) {
    let mut dialer = Dialer::new(&hosts, terms, Part::default()).unwrap();
    let joined = loop {
        match dialer.join(Vec::new()).await {
            Ok(joined) => break joined,
            Err(_) => sleep(RETRY_PAUSE).await,
        }
    };
    let door = dialer.session.door.map(|door| door.port());
    doors.lock().unwrap().extend(door);
    let link = Link {
        dialer,
        outbox,
        events,
        return_time: None,
    };
    link.run(joined).await;
}

fn run_launchers(all: Vec<Hosts>, terms: Terms) -> Measured {
    let begun = Instant::now();
    let address = all[0].address;
    let count = all.len();
    let mut deciders = Vec::new();
    let mut links = Vec::new();
    let doors = Arc::<Mutex<BTreeSet<u16>>>::default();
    for (host, hosts) in all.into_iter().enumerate() {
        let (events, received) = events::channel(count);
        let outbox = Outbox::new();
        let ports = ReservedPorts::new(1, Ipv4Addr::LOCALHOST.into()).unwrap();
        let cluster = Cluster::with_ports(&ports, &[Task::worker(host)]);
        deciders.push(Decider {
            host,
            count,
            received,
            outbox: Arc::clone(&outbox),
            cluster,
            heard: [0; 4],
            is_over: false,
        });
        links.push(launcher(hosts, terms, outbox, events, Arc::clone(&doors)));
    }
    let links = std::thread::spawn(|| {
        runtime().unwrap().block_on(async {
            let mut all: JoinSet<()> = links.into_iter().collect();
            while let Some(ended) = all.join_next().await {
                ended.unwrap();
            }
        });
    });
    let (mut met, mut seen) = (None, BTreeMap::new());
    while !deciders.iter().all(|decider| decider.is_over) {
        deciders.iter_mut().for_each(Decider::hear);
        if met.is_none() && deciders.iter().all(|one| one.heard[0] == count) {
            met = Some(begun.elapsed());
            seen = connections();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    links.join().unwrap();
    let ended = begun.elapsed();
    let at = |port: u16| seen.get(&port).copied().unwrap_or_default();
    let others: Vec<usize> = doors.lock().unwrap().iter().map(|door| at(*door)).collect();
    let heard = deciders[count - 1].heard;
    Measured {
        met: met.unwrap(),
        ended,
        at_relay: at(address.port()),
        at_others: others.into_iter().max().unwrap_or_default(),
        posts: heard.iter().sum::<usize>() + 1,
    }
}

#[test]
fn a_job_of_many_hosts_starts_and_ends() {
    let given = std::env::var("DISTRIBUTE_LAUNCHERS");
    let given: Option<usize> = given.ok().map(|text| text.parse().unwrap());
    let (count, arity, limit) = match given {
        Some(count) => (count, 16, 20 * LIMIT),
        None => (LAUNCHERS, FEW, LIMIT),
    };
    let measured = hostile::limit::within(limit, move || run_job(count, arity));
    let Measured { met, ended, .. } = measured;
    println!("{count} launchers, {arity} at one: met {met:?}, ended {ended:?}: {measured:?}");
    // The launcher of host 0 is connected to its relay, too.
    assert_eq!(measured.at_relay, arity + 1);
    assert!(measured.at_others <= arity, "{measured:?}");
    assert_eq!(measured.posts, 4 * count + 1);
}

/// Host 1 hangs at its door, to which the relay sends a launcher of host 2. This one is killed as
/// it waits there. The next one gives up an attempt there, and is not sent there again.
#[test]
fn a_launcher_that_hangs_or_is_killed_at_a_door_keeps_no_other_out() {
    let join = |all: Vec<Hosts>, terms| {
        let dialer = |host: usize| Dialer::new(&all[host], terms, Part::default()).unwrap();
        let (mut first, mut killed, mut last) = (dialer(1), dialer(2), dialer(2));
        runtime().unwrap().block_on(async {
            let _connected = first.join(Vec::new()).await.unwrap();
            let attempt = Duration::from_secs(1);
            while !killed.session.avoid.contains(&1) {
                let joined = timeout(attempt, killed.join(Vec::new())).await;
                assert!(!matches!(joined, Ok(Ok(_))), "no launcher answers there");
            }
            let mut joined = timeout(attempt, last.join(Vec::new())).await;
            while !matches!(joined, Ok(Ok(_))) {
                sleep(RETRY_PAUSE).await;
                joined = timeout(attempt, last.join(Vec::new())).await;
            }
        });
    };
    // Far less than the relay waits for a launcher that it cannot hear.
    hostile::limit::within(LIMIT, move || with_relay(3, 1, join));
}
