//! The launchers that are connected to this one, and what lies below them.
//!
//! Every launcher tells its parent who is below it, in a list that is whole each time: whatever
//! gets lost with a connection, the next list is right.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::hosts::line::{ChildLine, Last};
use crate::hosts::wire::{Frame, Listed};

/// What a connection of a child reports.
pub enum LinkEvent {
    Frame(Frame),
    /// The connection is broken: closed by the other end, or silent.
    Broken {
        is_closed: bool,
    },
}

/// What follows from it for the parent of this launcher.
pub enum Upward {
    Nothing,
    /// The list of who is below has changed.
    Changed,
    /// The frame is for the relay.
    Forward(Box<Frame>),
    /// A launcher that was admitted has never said a word.
    Silent {
        host: usize,
        member: u64,
        attach: u64,
    },
}

/// The connection of a child that was taken.
pub struct Taken {
    pub line: Arc<ChildLine>,
    pub connection: u64,
}

struct Child {
    member: u64,
    /// Which of the launcher's connections this is, as the launcher counts them.
    attach: u64,
    /// The launcher has all posts before this number.
    has: u64,
    stage: Stage,
    below: Vec<Listed>,
    line: Arc<ChildLine>,
    connection: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing has come from it yet.
    Taken,
    Here,
    Broken {
        is_closed: bool,
        until: Instant,
    },
}

/// The children of one launcher.
pub struct Branch {
    children: BTreeMap<usize, Child>,
    /// The number of the last connection.
    connections: u64,
    /// How long a child whose connection is broken is still listed as such.
    memory: Duration,
}

impl Branch {
    pub fn new(memory: Duration) -> Branch {
        Branch {
            children: BTreeMap::new(),
            connections: 0,
            memory,
        }
    }

    /// How many children are connected, besides this host.
    pub fn count_besides(&self, host: usize) -> usize {
        let others = self.children.iter().filter(|(other, _)| **other != host);
        others.filter(|(_, child)| child.is_connected()).count()
    }

    pub fn is_empty(&self) -> bool {
        !self.children.values().any(Child::is_connected)
    }

    /// Takes a connection of a launcher. `None` if a later one is known.
    pub fn take(&mut self, host: usize, member: u64, attach: u64, has: u64) -> Option<Taken> {
        let known = self.children.get(&host);
        if known.is_some_and(|known| (known.member, known.attach) > (member, attach)) {
            return None;
        }
        self.connections += 1;
        let (line, connection) = (ChildLine::new(), self.connections);
        let child = Child {
            member,
            attach,
            has,
            stage: Stage::Taken,
            below: Vec::new(),
            line: Arc::clone(&line),
            connection,
        };
        if let Some(before) = self.children.insert(host, child) {
            before.line.end(Last::Replaced);
        }
        Some(Taken { line, connection })
    }

    /// Handles what a connection of a child reports. Older connections are ignored.
    pub fn note(&mut self, host: usize, connection: u64, said: LinkEvent, now: Instant) -> Upward {
        let known = self.children.get_mut(&host);
        let Some(child) = known.filter(|child| child.connection == connection) else {
            return Upward::Nothing;
        };
        let (member, attach) = (child.member, child.attach);
        match said {
            LinkEvent::Frame(last @ (Frame::Bye | Frame::Quit)) => {
                self.children.remove(&host);
                let is_over = matches!(last, Frame::Bye);
                Upward::Forward(Box::new(Frame::Left {
                    host,
                    member,
                    is_over,
                }))
            }
            LinkEvent::Frame(Frame::Census { has, below }) => {
                let is_new = child.stage != Stage::Here || !is_alike(&child.below, &below);
                child.stage = Stage::Here;
                child.has = child.has.max(has);
                child.below = below;
                if is_new {
                    Upward::Changed
                } else {
                    Upward::Nothing
                }
            }
            LinkEvent::Frame(frame @ (Frame::Up(_) | Frame::Left { .. })) => {
                child.stage = Stage::Here;
                Upward::Forward(Box::new(frame))
            }
            LinkEvent::Frame(_) => Upward::Nothing,
            LinkEvent::Broken { is_closed } if child.stage == Stage::Here => {
                let until = now + self.memory;
                child.stage = Stage::Broken { is_closed, until };
                child.below.clear();
                Upward::Changed
            }
            LinkEvent::Broken { .. } if child.stage == Stage::Taken => {
                self.children.remove(&host);
                Upward::Silent {
                    host,
                    member,
                    attach,
                }
            }
            LinkEvent::Broken { .. } => Upward::Nothing,
        }
    }

    /// Forgets children that have been away for long.
    pub fn look(&mut self, now: Instant) {
        let is_over = |stage| matches!(stage, Stage::Broken { until, .. } if until <= now);
        self.children.retain(|_, child| !is_over(child.stage));
    }

    /// Who is below this launcher: each child, followed by who is below it.
    pub fn census(&self) -> Vec<Listed> {
        let mut all = Vec::new();
        for (host, child) in &self.children {
            let is_closed = match child.stage {
                Stage::Taken => continue,
                Stage::Here => None,
                Stage::Broken { is_closed, .. } => Some(is_closed),
            };
            all.push(Listed {
                host: *host,
                member: child.member,
                attach: child.attach,
                has: child.has,
                depth: 0,
                is_closed,
            });
            all.extend(child.below.iter().map(|listed| Listed {
                depth: listed.depth.saturating_add(1),
                ..*listed
            }));
        }
        all
    }

    /// The job goes on without this launcher: ends its connection, wherever below it is.
    pub fn cut(&mut self, host: usize, member: u64) {
        let is_it = |child: &&mut Child| child.member == member;
        if let Some(child) = self.children.get_mut(&host).filter(is_it) {
            child.line.end(Last::Quit);
            self.children.remove(&host);
            return;
        }
        let has_it = |child: &&Child| {
            let mut below = child.below.iter();
            below.any(|listed| (listed.host, listed.member) == (host, member))
        };
        if let Some(child) = self.children.values().find(has_it) {
            child.line.send(Frame::Cut { host, member });
        }
    }

    /// Has all below send again what the relay may not have.
    pub fn ask_again(&self) {
        for child in self.children.values() {
            child.line.send(Frame::Again);
        }
    }

    /// Sends all children to other parents, once they have the posts before this number. What
    /// they say until then still counts.
    pub fn move_all(&mut self, after: u64) {
        for child in self.children.values() {
            child.line.end(Last::Move { after });
        }
    }

    /// As [`move_all`](Self::move_all), at once and for good.
    pub fn let_go(&mut self) {
        self.move_all(0);
        self.children.clear();
    }
}

/// Whether both lists have the same launchers with the same connections. What they have of the
/// posts is told now and then only.
fn is_alike(before: &[Listed], now: &[Listed]) -> bool {
    let place = |listed: &Listed| Listed { has: 0, ..*listed };
    before.iter().map(place).eq(now.iter().map(place))
}

impl Child {
    fn is_connected(&self) -> bool {
        !matches!(self.stage, Stage::Broken { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::line::Order;

    const MEMORY: Duration = Duration::from_secs(6);

    fn census(has: u64, below: Vec<Listed>) -> LinkEvent {
        LinkEvent::Frame(Frame::Census { has, below })
    }

    fn listed(host: usize, depth: u32) -> Listed {
        Listed {
            host,
            member: 10 + host as u64,
            attach: 1,
            has: 0,
            depth,
            is_closed: None,
        }
    }

    #[test]
    fn who_is_below_is_listed_after_its_parent_and_forgotten_with_it() {
        let now = Instant::now();
        let mut branch = Branch::new(MEMORY);
        let first = branch.take(3, 13, 1, 0).unwrap();
        let second = branch.take(4, 14, 1, 0).unwrap();
        assert!(branch.census().is_empty(), "nothing has come from them");
        let below = vec![listed(5, 0), listed(6, 1)];
        for (host, taken, below) in [(3, &first, below), (4, &second, Vec::new())] {
            let said = branch.note(host, taken.connection, census(0, below), now);
            assert!(matches!(said, Upward::Changed));
        }
        let all = [listed(3, 0), listed(5, 1), listed(6, 2), listed(4, 0)];
        assert_eq!(branch.census(), all);
        let broken = LinkEvent::Broken { is_closed: true };
        branch.note(3, first.connection, broken, now);
        let is_closed = Some(true);
        let gone = Listed {
            is_closed,
            ..listed(3, 0)
        };
        assert_eq!(branch.census(), [gone, listed(4, 0)]);
        branch.look(now + MEMORY);
        assert_eq!(branch.census(), [listed(4, 0)]);
    }

    #[test]
    fn only_the_last_connection_of_a_child_counts() {
        let now = Instant::now();
        let mut branch = Branch::new(MEMORY);
        let old = branch.take(3, 13, 1, 0).unwrap();
        let new = branch.take(3, 13, 2, 0).unwrap();
        assert!(branch.take(3, 13, 1, 0).is_none());
        assert!(matches!(old.line.take(0), Some(Order::End(Last::Replaced))));
        branch.note(3, new.connection, census(0, Vec::new()), now);
        let broken = LinkEvent::Broken { is_closed: true };
        branch.note(3, old.connection, broken, now);
        assert_eq!(branch.census()[0].is_closed, None);
    }

    #[test]
    fn a_launcher_is_cut_off_wherever_it_is() {
        let now = Instant::now();
        let mut branch = Branch::new(MEMORY);
        let child = branch.take(3, 13, 1, 0).unwrap();
        branch.note(3, child.connection, census(0, vec![listed(5, 0)]), now);
        branch.cut(5, 99);
        assert!(child.line.take(0).is_none(), "that is another launcher");
        branch.cut(5, 15);
        let order = child.line.take(0);
        let cut = |order| {
            matches!(
                order,
                Some(Order::Send(Frame::Cut {
                    host: 5,
                    member: 15
                }))
            )
        };
        assert!(cut(order));
        branch.cut(3, 13);
        assert!(matches!(child.line.take(0), Some(Order::End(Last::Quit))));
        assert!(branch.census().is_empty());
    }

    #[test]
    fn who_moves_has_first_what_was_said_and_is_heard_until_then() {
        let now = Instant::now();
        let mut branch = Branch::new(MEMORY);
        let child = branch.take(3, 13, 1, 0).unwrap();
        branch.note(3, child.connection, census(0, Vec::new()), now);
        branch.move_all(7);
        assert!(child.line.take(6).is_none());
        let left = branch.note(3, child.connection, LinkEvent::Frame(Frame::Bye), now);
        assert!(matches!(left, Upward::Forward(_)) && branch.is_empty());
        let end = child.line.take(7);
        assert!(matches!(end, Some(Order::End(Last::Move { after: 7 }))));
    }
}
