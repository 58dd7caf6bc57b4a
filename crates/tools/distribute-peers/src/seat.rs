//! A process as rank 0 sees it: asked for one thing after the other.

use std::io;
use std::time::{Duration, Instant};

use distribute_net::peers::Connection;

use crate::clock::{ClockOffset, Sample, offset};
use crate::dial::ANSWER_LIMIT;
use crate::findings::Guest;
use crate::member::Member;
use crate::messages::{Answer, Card, Order, receive, send};

/// Exchanges by which two clocks are compared.
const CLOCK_EXCHANGES: usize = 9;

/// A process that has come, and its connection; rank 0 itself has none.
pub(crate) struct Seat {
    pub(crate) guest: Guest,
    line: Option<Connection>,
}

impl Seat {
    pub(crate) fn new(card: Card, line: Option<Connection>) -> Self {
        let dialled_us = card.leader.is_none();
        let peer = line.as_ref().and_then(|line| line.peer_addr().ok());
        let seen = peer.map(|it| it.ip().to_canonical());
        Self {
            guest: Guest::new(card, seen.filter(|_| dialled_us)),
            line,
        }
    }

    /// Asks for something; a process that does not answer in time is lost.
    pub(crate) async fn ask(
        &mut self,
        own: &Member,
        order: Order,
        limit: Duration,
    ) -> Option<Answer> {
        if self.guest.lost.is_some() {
            return None;
        }
        let Some(line) = &mut self.line else {
            return Some(own.obey(order).await);
        };
        let answered = async {
            send(line, &order, ANSWER_LIMIT).await?;
            receive(line, limit).await
        };
        match answered.await {
            Ok(answer) => Some(answer),
            Err(error) => {
                self.guest.lost = Some(lost(&error, limit));
                self.line = None;
                None
            }
        }
    }

    /// A few exchanges, by which the clock is compared with that of rank 0.
    pub(crate) async fn compare_clocks(&mut self, own: &Member) -> Option<ClockOffset> {
        let clock = &own.options.clock;
        let mut samples = Vec::with_capacity(CLOCK_EXCHANGES);
        for _ in 0..CLOCK_EXCHANGES {
            let (before, begun) = (clock(), Instant::now());
            let answer = self.ask(own, Order::Time, ANSWER_LIMIT).await;
            let (after, round_trip) = (clock(), begun.elapsed());
            if let Some(Answer::Time(other)) = answer {
                samples.push(Sample {
                    before,
                    other,
                    after,
                    round_trip,
                });
            }
        }
        offset(&samples)
    }
}

fn lost(error: &io::Error, limit: Duration) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => format!("it has not answered for {limit:.0?}"),
        _ => format!("its process ended, or its connection broke ({error})"),
    }
}
