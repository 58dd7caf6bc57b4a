//! A tree of launchers in a simulated network: the relay's members, the children of each launcher,
//! the posts on their way up and down run as they are; connections, clocks and who is scheduled
//! when are simulated.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::hosts::branch::{Branch, LinkEvent, Upward};
use crate::hosts::line::{ChildLine, Last, Order};
use crate::hosts::log::{Line, Log, Next, Sender};
use crate::hosts::members::{Admitted, Members};
use crate::hosts::outbox::{self, Farewell, Outbox};
use crate::hosts::part::Part;
use crate::hosts::wire::{Frame, Session, Settings, Terms, Up};
use crate::posts::{Post, PostBody};

/// How long a host may be out of reach.
const HOST_TIMEOUT: Duration = Duration::from_secs(120);
/// How many frames one direction of a connection holds.
const IN_FLIGHT: usize = 4;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }

    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// What the launchers' threads hear of.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    /// A launcher has joined; these hosts were there before.
    Joined { host: usize, here: Vec<usize> },
    /// A launcher is lost: it ends.
    Ended { host: usize },
}

/// A connection of a launcher to its parent; `None` is the relay.
struct Edge {
    parent: Option<usize>,
    /// As the parent and as the outbox count it.
    connection: u64,
    outbox_connection: u64,
    line: Arc<ChildLine>,
    /// The number of the post that is sent down next.
    next: u64,
    up: VecDeque<Frame>,
    down: VecDeque<Frame>,
    /// Since when nothing passes.
    silent: Option<Duration>,
}

/// A launcher.
struct Node {
    session: Session,
    member: u64,
    outbox: Arc<Outbox>,
    log: Arc<Log>,
    branch: Branch,
    is_open: bool,
    edge: Option<Edge>,
    /// Where the relay has sent it, until it is there.
    sent: Option<Admitted>,
    /// Since when the relay says that there is another launcher of its host.
    refused: Option<Duration>,
    has_joined: bool,
    /// Until when it cannot reach the relay.
    cut_until: Duration,
    /// Whether it has begun to say good-bye.
    is_leaving: bool,
}

/// A connection over which a launcher was sent to its parent has ended.
struct Parted {
    host: usize,
    member: u64,
    attach: u64,
    has_arrived: bool,
    /// When the relay notices.
    at: Duration,
}

/// The relay and all launchers.
pub struct Tree {
    members: Members,
    branch: Branch,
    terms: Terms,
    arity: usize,
    nodes: BTreeMap<usize, Node>,
    /// Connections of launchers that were killed, which their parents have not noticed.
    silent: Vec<(usize, Edge)>,
    parted: Vec<Parted>,
    /// Whether something has changed since the relay looked at who is connected.
    has_changed: bool,
    begun: Instant,
    now: Duration,
    changes: Vec<Change>,
    /// How many entries of the relay's log were looked at for losses.
    looked_at: u64,
}

impl Tree {
    pub fn new(hosts: usize, arity: usize) -> Tree {
        let terms = Terms {
            hosts,
            restarts_max: 0,
            workers: None,
            host_timeout: HOST_TIMEOUT,
        };
        Tree {
            members: Members::new(terms, arity),
            branch: Branch::new(HOST_TIMEOUT),
            terms,
            arity,
            nodes: BTreeMap::new(),
            silent: Vec::new(),
            parted: Vec::new(),
            has_changed: false,
            begun: Instant::now(),
            now: Duration::ZERO,
            changes: Vec::new(),
            looked_at: 0,
        }
    }

    fn instant(&self) -> Instant {
        self.begun + self.now
    }

    pub fn is_there(&self, host: usize) -> bool {
        self.nodes.contains_key(&host)
    }

    /// A launcher is started.
    pub fn come(&mut self, host: usize) {
        let mut session = Session::new().unwrap();
        session.door = Some(([127, 0, 0, 1], host as u16).into());
        let node = Node {
            session,
            member: 0,
            outbox: Outbox::new(),
            log: Log::new(0),
            branch: Branch::new(HOST_TIMEOUT),
            is_open: false,
            edge: None,
            sent: None,
            refused: None,
            has_joined: false,
            cut_until: Duration::ZERO,
            is_leaving: false,
        };
        assert!(self.nodes.insert(host, node).is_none(), "it is there");
    }

    /// A launcher is killed. Its connections are closed, or nothing passes on them any more.
    pub fn kill(&mut self, host: usize, is_silent: bool) {
        let Some(mut node) = self.nodes.remove(&host) else {
            return;
        };
        match node.edge.take() {
            Some(mut edge) if is_silent => {
                edge.silent.get_or_insert(self.now);
                self.silent.push((host, edge));
            }
            Some(edge) => self.tell_broken(host, &edge, true),
            None => {}
        }
        if let Some(admitted) = node.sent {
            self.part(host, (admitted.member, admitted.attach), false, is_silent);
        }
        self.close_children(host, is_silent);
    }

    /// A launcher that was sent to its parent ends its connection to the relay, or nothing passes
    /// on it any more.
    fn part(&mut self, host: usize, numbers: (u64, u64), has_arrived: bool, is_silent: bool) {
        let silence = self.terms.pace().silence();
        let (member, attach) = numbers;
        self.parted.push(Parted {
            host,
            member,
            attach,
            has_arrived,
            at: self.now + if is_silent { silence } else { Duration::ZERO },
        });
    }

    /// The relay notices the first of these.
    fn note_parted(&mut self) -> bool {
        let now = self.now;
        let Some(index) = self.parted.iter().position(|one| one.at <= now) else {
            return false;
        };
        let Parted {
            host,
            member,
            attach,
            has_arrived,
            ..
        } = self.parted.remove(index);
        if has_arrived {
            let now = self.instant();
            self.members.arrived(host, member, attach, now);
        } else {
            self.members.forget_silent(host, member, attach);
        }
        true
    }

    /// A launcher is gone, and with it its ends of the connections of its children.
    fn close_children(&mut self, host: usize, is_silent: bool) {
        let now = self.now;
        for child in self.nodes.values_mut() {
            let is_its = child
                .edge
                .as_ref()
                .is_some_and(|it| it.parent == Some(host));
            let silent = child.edge.as_mut().filter(|_| is_its && is_silent);
            if let Some(edge) = silent {
                edge.silent.get_or_insert(now);
            } else if is_its {
                child.edge = None;
            }
        }
    }

    /// The connection of a launcher to its parent breaks, or nothing passes on it any more; it
    /// cannot reach the relay for this long.
    pub fn cut(&mut self, host: usize, is_silent: bool, time: Duration) {
        let until = self.now + time;
        let Some(node) = self.nodes.get_mut(&host) else {
            return;
        };
        node.cut_until = until;
        if let Some(admitted) = node.sent.take() {
            self.part(host, (admitted.member, admitted.attach), false, is_silent);
        }
        let node = self.nodes.get_mut(&host).unwrap();
        if is_silent {
            if let Some(edge) = &mut node.edge {
                edge.silent.get_or_insert(self.now);
            }
        } else if let Some(edge) = node.edge.take() {
            self.tell_broken(host, &edge, true);
        }
    }

    /// A launcher leaves the job, which goes on.
    pub fn leave(&mut self, host: usize) {
        if let Some(node) = self.nodes.get_mut(&host) {
            node.outbox.close(Farewell::JobEnded);
        }
    }

    pub fn say(&mut self, post: Post) {
        if let Some(node) = self.nodes.get(&post.host) {
            assert!(node.outbox.push(post));
        }
    }

    /// The post of this number, if it has come down to a launcher.
    pub fn heard(&self, host: usize, number: u64) -> Option<Post> {
        match self.nodes.get(&host)?.log.get(number)? {
            Next::Line(line) => Some(line.entry.post.clone()),
            Next::Farewell => None,
        }
    }

    /// The number of the first post that a launcher hears.
    pub fn begin(&self, host: usize) -> u64 {
        self.nodes[&host].log.first()
    }

    pub fn end(&self) -> u64 {
        self.members.log().end()
    }

    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Where all launchers are, for a run that hangs.
    pub fn describe(&self) -> String {
        let (first, end) = (self.members.log().first(), self.end());
        let mut text = format!("\nat {:?} posts {first} to {end}", self.now);
        for listed in self.branch.census() {
            text += &format!("\nlisted {listed:?}");
        }
        for (host, node) in &self.nodes {
            let edge = node.edge.as_ref().map(|edge| {
                let (up, down) = (edge.up.len(), edge.down.len());
                (edge.parent, edge.next, up, down, edge.silent)
            });
            text += &format!(
                "\nlauncher {host}: member {}, log {}, open {}, joined {}, leaving {}, cut {:?}, \
                 avoids {:?}, {edge:?}",
                node.member,
                node.log.end(),
                node.is_open,
                node.has_joined,
                node.outbox.is_closed(),
                node.cut_until,
                node.session.avoid
            );
        }
        text
    }

    /// Time passes: who hears nothing for long notices it.
    pub fn wait(&mut self, time: Duration) {
        self.now += time;
        let (now, silence) = (self.now, self.terms.pace().silence());
        let is_late = |edge: &Edge| {
            edge.silent
                .is_some_and(|since| now.saturating_sub(since) >= silence)
        };
        let hosts: Vec<usize> = self.nodes.keys().copied().collect();
        for host in hosts {
            let node = self.nodes.get_mut(&host).unwrap();
            if let Some(edge) = node.edge.take_if(|edge| is_late(edge)) {
                node.is_open = false;
                node.branch.let_go();
                self.tell_broken(host, &edge, false);
            }
        }
        for (host, edge) in self
            .silent
            .extract_if(.., |(_, edge)| is_late(edge))
            .collect::<Vec<_>>()
        {
            self.tell_broken(host, &edge, false);
        }
        let instant = self.instant();
        while self.note_parted() {}
        self.branch.look(instant);
        self.nodes
            .values_mut()
            .for_each(|node| node.branch.look(instant));
        self.take_stock();
        self.members.look(instant);
        self.end_lost();
    }

    /// A parent notices that a connection is broken.
    fn tell_broken(&mut self, host: usize, edge: &Edge, is_closed: bool) {
        self.note(
            edge.parent,
            host,
            edge.connection,
            LinkEvent::Broken { is_closed },
        );
    }

    /// A connection of a child reports something to its parent.
    fn note(&mut self, parent: Option<usize>, host: usize, connection: u64, said: LinkEvent) {
        let now = self.instant();
        let Some(parent) = parent else {
            match self.branch.note(host, connection, said, now) {
                Upward::Nothing => {}
                Upward::Changed => self.has_changed = true,
                Upward::Silent {
                    host,
                    member,
                    attach,
                } => self.members.forget_silent(host, member, attach),
                Upward::Forward(frame) => match *frame {
                    Frame::Up(up) => self.members.relay(*up, now),
                    Frame::Left { host, member, .. } => self.members.left(host, member),
                    _ => {}
                },
            }
            return self.end_lost();
        };
        let Some(node) = self.nodes.get_mut(&parent) else {
            return;
        };
        let upward = node.branch.note(host, connection, said, now);
        if let (Upward::Forward(frame), Some(edge)) = (upward, &mut node.edge) {
            edge.up.push_back(*frame);
        }
    }

    fn take_stock(&mut self) {
        let now = self.instant();
        self.has_changed = false;
        let cuts = self.members.note_census(&self.branch.census(), now);
        for (host, member) in cuts {
            self.branch.cut(host, member);
        }
    }

    /// A launcher that the relay has given up ends, at the same moment.
    fn end_lost(&mut self) {
        while let Some(Next::Line(line)) = self.members.log().get(self.looked_at) {
            self.looked_at += 1;
            let host = line.entry.post.host;
            let is_lost = matches!(line.entry.post.item, PostBody::Lost);
            let node = self.nodes.get(&host).filter(|node| node.has_joined);
            if is_lost && node.is_some_and(|node| !node.outbox.is_closed()) {
                self.kill(host, false);
                self.changes.push(Change::Ended { host });
            }
        }
        self.looked_at = self.looked_at.max(self.members.log().first());
    }

    /// Something happens at a random launcher.
    pub fn act(&mut self, random: &mut Random) {
        let count = self.nodes.len();
        if count == 0 {
            return;
        }
        if self.has_changed && random.once_in(count) {
            return self.take_stock();
        }
        if random.once_in(4) && self.note_parted() {
            return;
        }
        let host = *self.nodes.keys().nth(random.below(count)).unwrap();
        let node = self.nodes.get_mut(&host).unwrap();
        let Some(edge) = &node.edge else {
            return match node.sent.take() {
                Some(admitted) => self.attach(host, admitted),
                None => self.connect(host),
            };
        };
        if edge.silent.is_some() {
            return;
        }
        match random.below(5) {
            0 => self.speak(host),
            1 => self.send_census(host),
            2 => self.hear_child(host),
            3 => self.speak_down(host),
            _ => self.hear_parent(host),
        }
    }

    /// A launcher joins, or finds another parent.
    fn connect(&mut self, host: usize) {
        let now = self.instant();
        let node = self.nodes.get_mut(&host).unwrap();
        if self.now < node.cut_until {
            // Its children may reach the relay.
            node.is_open = false;
            return node.branch.let_go();
        }
        if node.outbox.is_closed() {
            return self.kill(host, false);
        }
        node.session.resumes = node.has_joined;
        node.session.attach += 1;
        node.session.has = node.log.end();
        let settings = Settings {
            terms: self.terms,
            part: Part {
                workers: 1,
                parameter_servers: 0,
                has_evaluator: false,
            },
            own_address: [127, 0, 0, 1].into(),
            session: node.session.clone(),
        };
        let admitted = match self.members.admit(host, &settings, |_| true, now) {
            Ok(admitted) => admitted,
            Err(rejection) if rejection.may_pass => {
                let since = *node.refused.get_or_insert(self.now);
                let pace = self.terms.pace();
                let waited = self.now - since;
                assert!(waited <= pace.silence() + pace.attempt(), "{host} gives up");
                return;
            }
            Err(rejection) => {
                assert!(node.has_joined, "{}", rejection.why);
                self.kill(host, false);
                self.changes.push(Change::Ended { host });
                return;
            }
        };
        node.refused = None;
        if admitted.parent.is_some() {
            node.sent = Some(admitted);
            return self.end_lost();
        }
        self.end_lost();
        self.attach(host, admitted);
    }

    /// A launcher connects to its parent.
    fn attach(&mut self, host: usize, admitted: Admitted) {
        let numbers = (admitted.member, admitted.attach);
        let Admitted {
            member,
            received,
            next,
            here,
            attach,
            parent,
        } = admitted;
        let parent = parent.map(|parent| parent.host);
        let taken = match parent {
            None => self.branch.take(host, member, attach, next),
            Some(parent) => {
                let arity = self.arity;
                let node = self.nodes.get_mut(&parent);
                let node = node.filter(|node| {
                    let has_room = node.branch.count_besides(host) < arity;
                    node.is_open && node.edge.is_some() && has_room && node.log.reaches(next)
                });
                node.and_then(|node| node.branch.take(host, member, attach, next))
            }
        };
        let node = self.nodes.get_mut(&host).unwrap();
        let Some(taken) = taken else {
            node.session.avoid.extend(parent);
            return self.part(host, numbers, false, false);
        };
        node.session.avoid = BTreeSet::new();
        let Some(outbox_connection) = node.outbox.connect(received) else {
            panic!("host {host} has forgotten posts that have not arrived");
        };
        if !node.has_joined {
            node.has_joined = true;
            node.member = member;
            node.log = Log::new(next);
            self.changes.push(Change::Joined { host, here });
        }
        node.is_open = true;
        node.branch.ask_again();
        node.edge = Some(Edge {
            parent,
            connection: taken.connection,
            outbox_connection,
            line: taken.line,
            next,
            up: VecDeque::new(),
            down: VecDeque::new(),
            silent: None,
        });
        self.send_census(host);
        if parent.is_some() {
            self.part(host, numbers, true, false);
        }
    }

    /// A launcher sends a post, or good-bye.
    fn speak(&mut self, host: usize) {
        let node = self.nodes.get_mut(&host).unwrap();
        let Some(edge) = node.edge.as_mut().filter(|edge| edge.up.len() < IN_FLIGHT) else {
            return;
        };
        match node.outbox.take(edge.outbox_connection) {
            Some(outbox::Next::Post(number, post)) => {
                let member = node.member;
                let sender = Sender { member, number };
                let post = *post;
                edge.up.push_back(Frame::Up(Box::new(Up { sender, post })));
            }
            Some(outbox::Next::Farewell(_)) if !node.is_leaving => {
                node.is_leaving = true;
                node.is_open = false;
                node.branch.move_all(node.log.end());
            }
            Some(outbox::Next::Farewell(_)) if node.branch.is_empty() => {
                edge.up.push_back(Frame::Bye);
            }
            _ => {}
        }
    }

    fn send_census(&mut self, host: usize) {
        let node = self.nodes.get_mut(&host).unwrap();
        let (has, below) = (node.log.end(), node.branch.census());
        if let Some(edge) = node.edge.as_mut().filter(|edge| edge.up.len() < IN_FLIGHT) {
            edge.up.push_back(Frame::Census { has, below });
        }
    }

    /// A parent gets the next frame of a launcher, if its own connection has room for it.
    fn hear_child(&mut self, host: usize) {
        let edge = self.nodes[&host].edge.as_ref().unwrap();
        let above = edge.parent.and_then(|parent| self.nodes.get(&parent));
        let above = above.and_then(|node| node.edge.as_ref());
        if above.is_some_and(|edge| edge.up.len() >= IN_FLIGHT) {
            return;
        }
        let node = self.nodes.get_mut(&host).unwrap();
        let edge = node.edge.as_mut().unwrap();
        let (parent, connection) = (edge.parent, edge.connection);
        let Some(frame) = edge.up.pop_front() else {
            return;
        };
        let is_last = matches!(frame, Frame::Bye);
        self.note(parent, host, connection, LinkEvent::Frame(frame));
        if is_last {
            self.nodes.remove(&host);
            self.close_children(host, false);
        }
    }

    /// A parent sends something to a launcher.
    fn speak_down(&mut self, host: usize) {
        let edge = self.nodes[&host].edge.as_ref().unwrap();
        let log = match edge.parent {
            None => Some(self.members.log()),
            Some(parent) => self.nodes.get(&parent).map(|node| &node.log),
        };
        let log = log.cloned();
        let edge = self.nodes.get_mut(&host).unwrap().edge.as_mut().unwrap();
        let Some(log) = log.filter(|_| edge.down.len() < IN_FLIGHT) else {
            return;
        };
        let frame = match edge.line.take(edge.next) {
            Some(Order::Send(frame)) => frame,
            Some(Order::End(Last::Quit)) => Frame::Quit,
            Some(Order::End(Last::Move { .. } | Last::Replaced)) => Frame::Move,
            None => match log.get(edge.next) {
                Some(Next::Line(line)) => {
                    edge.next += 1;
                    Frame::Post(Box::new(line.entry.clone()))
                }
                _ => Frame::Beat(log.first()),
            },
        };
        edge.down.push_back(frame);
    }

    /// A launcher gets the next frame of its parent.
    fn hear_parent(&mut self, host: usize) {
        let node = self.nodes.get_mut(&host).unwrap();
        let edge = node.edge.as_mut().unwrap();
        match edge.down.pop_front() {
            Some(Frame::Post(entry)) => {
                let entry = *entry;
                let own = entry.sender.filter(|it| it.member == node.member);
                if let Some(own) = own {
                    node.outbox.acknowledge(own.number + 1);
                }
                let text = String::new();
                node.log.push(Line { entry, text });
            }
            Some(Frame::Again) => {
                node.outbox.rewind();
                node.branch.ask_again();
            }
            Some(Frame::Cut { host, member }) => node.branch.cut(host, member),
            Some(Frame::Quit | Frame::Move) => {
                let edge = node.edge.take().unwrap();
                self.tell_broken(host, &edge, true);
            }
            // The launcher that reads the log here keeps all of it.
            _ => {}
        }
    }
}

const HOSTS: usize = 9;

/// Lets the launchers do what they have to do, for two minutes.
fn settle(tree: &mut Tree, random: &mut Random) {
    for _ in 0..1200 {
        for _ in 0..50 {
            tree.act(random);
        }
        tree.wait(Duration::from_millis(100));
    }
}

/// The posts that a launcher has heard, from the first one that `begin` has not.
fn posts(tree: &Tree, host: usize, begin: u64) -> Vec<(usize, u32, bool)> {
    let heard = (begin..).map_while(|number| tree.heard(host, number));
    heard
        .map(|post| (post.host, post.restart, matches!(post.item, PostBody::Lost)))
        .collect()
}

/// Whether it is killed, leaves or only loses its connection, and whether this is noticed at once:
/// the posts of all others arrive once and in order, at all of them.
#[test]
fn what_happens_to_an_inner_launcher_costs_those_below_it_nothing() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let mut tree = Tree::new(HOSTS, 2);
        (0..HOSTS).for_each(|host| tree.come(host));
        settle(&mut tree, &mut random);
        assert!(tree.nodes.values().all(|node| node.has_joined));
        let begin = tree.end();
        let parents = tree
            .nodes
            .values()
            .filter_map(|node| node.edge.as_ref()?.parent);
        let inner = parents.min().expect("it is a tree");
        let say = |tree: &mut Tree, restart| {
            for host in 0..HOSTS {
                let item = PostBody::WorkersDone;
                tree.say(Post {
                    host,
                    restart,
                    item,
                });
            }
        };
        (0..4).for_each(|number| say(&mut tree, number));
        // Some of it is underway.
        (0..random.below(200)).for_each(|_| tree.act(&mut random));
        let (what, is_silent) = (seed % 3, random.once_in(2));
        match what {
            0 => tree.kill(inner, is_silent),
            1 => tree.leave(inner),
            _ => tree.cut(inner, is_silent, Duration::from_secs(50)),
        }
        (4..8)
            .filter(|_| what != 1)
            .for_each(|number| say(&mut tree, number));
        settle(&mut tree, &mut random);
        settle(&mut tree, &mut random);
        let all = posts(&tree, 0, begin);
        let lost: Vec<usize> = all.iter().filter(|it| it.2).map(|it| it.0).collect();
        let is_lost = what < 2;
        assert_eq!(lost, [inner][..usize::from(is_lost)], "seed {seed}");
        let count = if what == 1 { 4 } else { 8 };
        for host in (0..HOSTS).filter(|host| *host != inner || !is_lost) {
            let of_host = all.iter().filter(|it| it.0 == host).map(|it| it.1);
            assert_eq!(
                of_host.collect::<Vec<_>>(),
                (0..count).collect::<Vec<_>>(),
                "{seed}"
            );
            assert_eq!(posts(&tree, host, begin), all, "seed {seed}, host {host}");
        }
    }
}

/// Launchers of one host are killed at any point while they join, some of them without a trace. The
/// last one is taken in, and no launcher of another host is lost.
#[test]
fn launchers_that_are_killed_while_they_join_hold_up_none_that_comes_after_them() {
    for seed in 0..30 {
        let mut random = Random(seed);
        let mut tree = Tree::new(HOSTS, [2, 16][random.below(2)]);
        let late = HOSTS - 1;
        (0..late).for_each(|host| tree.come(host));
        settle(&mut tree, &mut random);
        let begin = tree.end();
        for _joiner in 0..10 {
            tree.come(late);
            (0..random.below(120)).for_each(|_| tree.act(&mut random));
            if random.once_in(3) {
                tree.wait(Duration::from_millis(100));
            }
            tree.kill(late, random.once_in(4));
        }
        tree.come(late);
        settle(&mut tree, &mut random);
        let all = posts(&tree, 0, begin);
        assert!(all.iter().all(|it| it.0 == late), "seed {seed}: {all:?}");
        assert!(all.last().is_some_and(|it| !it.2), "seed {seed}: {all:?}");
        assert!(
            tree.nodes.values().all(|node| node.edge.is_some()),
            "seed {seed}"
        );
    }
}
