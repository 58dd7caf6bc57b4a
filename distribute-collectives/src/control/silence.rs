//! How long another rank has been silent, and how much of that says something about it.
//!
//! A rank counts as stopped after the limit (`interval * misses`) without a message, but
//!
//! - what this process, or the machine, did not get to compute meanwhile does not count;
//! - a rank that reports that it gets only a part of the time has a limit that is longer by that
//!   factor;
//! - what was in a queue of this process is read first: it has to be silent at two looks;
//! - a rank whose host has been out of reach and is back has the time that TCP takes to send again
//!   what was lost. TCP doubles its pauses, so bytes that were lost at the begin of a cut of 2.5 s
//!   come again up to 2.5 s after its end;
//! - a rank whose host is out of reach, as far as can be told, has an interval and [`REACH_TIME`]
//!   more: a cut begins up to an interval after the last message, and one that is shorter than the
//!   limit is seen to be over.

use std::time::{Duration, Instant};

use distribute_net::compute_clock::SLOWDOWN_MAX;

/// The pause between two attempts to reach a silent rank.
pub(super) const ATTEMPT_PAUSE: Duration = Duration::from_millis(250);
/// How long an attempt to reach a silent rank may take.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(500);
/// What the last attempt within the limit takes.
const REACH_TIME: Duration = Duration::from_millis(500);
/// What TCP takes to send again beside its doubled pauses: its first pause, and the way.
const RESEND_TIME: Duration = Duration::from_secs(1);
/// How soon a silent rank is looked at again, after everything was read that lay there.
const SECOND_LOOK: Duration = Duration::from_millis(50);

/// The silence of one rank.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    /// When it was heard of last.
    since: Instant,
    /// Of the time since then, what does not count.
    excused: Duration,
    /// When its host has answered since then.
    reached: Option<Instant>,
    /// When a look has found it silent.
    suspected: Option<Instant>,
    /// How many times longer everything takes there, as it says.
    slowdown: f64,
    /// Until when it may be silent whatever else is known.
    pardoned: Option<Instant>,
}

/// What a look at a rank finds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    /// It may be silent until then.
    Until(Instant),
    /// It has been silent for so long.
    Silent(Duration),
}

/// What a silence is measured by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) limit: Duration,
    /// The time between two messages.
    pub(super) interval: Duration,
    /// Whether an attempt to reach the rank's host is under way while it is silent.
    pub(super) is_probed: bool,
}

impl Silence {
    /// The silence of a rank that was heard of now.
    pub(super) fn since(now: Instant) -> Silence {
        Silence {
            since: now,
            excused: Duration::ZERO,
            reached: None,
            suspected: None,
            slowdown: 1.0,
            pardoned: None,
        }
    }

    /// Notes that the rank was heard of.
    pub(super) fn end(&mut self, now: Instant) {
        *self = Silence {
            slowdown: self.slowdown,
            ..Silence::since(now)
        };
    }

    /// Notes what a rank says: the part of the time that it lost, in thousandths. What it said
    /// before loses half of its weight.
    pub(super) fn note_lost_share(&mut self, permille: u32) {
        let share = f64::from(permille.min(1000)) / 1000.0;
        let says = (1.0 / (1.0 - share)).min(SLOWDOWN_MAX);
        self.slowdown = says.max(1.0 + (self.slowdown - 1.0) / 2.0);
    }

    /// Leaves out time in which this process could not hear of it, or it could not speak.
    pub(super) fn excuse(&mut self, time: Duration, now: Instant) {
        self.excused = (self.excused + time).min(self.elapsed(now));
    }

    /// Lets it be silent until then: it would speak if it could.
    pub(super) fn pardon(&mut self, until: Instant) {
        self.pardoned = Some(until);
        self.suspected = None;
    }

    /// Notes that the rank's host has answered.
    pub(super) fn note_reached(&mut self, now: Instant) {
        self.reached.get_or_insert(now);
    }

    /// Whether the rank's host has answered since it is silent.
    pub(super) fn was_reached(&self) -> bool {
        self.reached.is_some()
    }

    /// Since when it is silent.
    pub(super) fn begin(&self) -> Instant {
        self.since
    }

    /// How long it has been silent.
    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// The part of the silence that counts.
    pub(super) fn counted(&self, now: Instant) -> Duration {
        self.elapsed(now).saturating_sub(self.excused)
    }

    /// The end of what the rank is allowed.
    fn allowed_until(&self, rules: &Rules) -> Instant {
        let own = self.since + self.excused + rules.limit;
        let theirs = self.since + rules.limit.mul_f64(self.slowdown);
        let resent = match self.reached {
            Some(reached) => {
                let away = reached.saturating_duration_since(self.since);
                self.since + 2 * away + RESEND_TIME
            }
            None if rules.is_probed => own + rules.interval + REACH_TIME,
            None => own,
        };
        let pardoned = self.pardoned.unwrap_or(own);
        own.max(theirs).max(resent).max(pardoned)
    }

    /// A look at the rank.
    pub(super) fn look(&mut self, now: Instant, rules: &Rules) -> Verdict {
        let until = self.allowed_until(rules);
        if now < until {
            self.suspected = None;
            return Verdict::Until(until);
        }
        let second_look = *self.suspected.get_or_insert(now) + SECOND_LOOK;
        if now < second_look {
            Verdict::Until(second_look)
        } else {
            Verdict::Silent(self.elapsed(now))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMIT: Duration = Duration::from_secs(3);

    fn rules(is_probed: bool) -> Rules {
        Rules {
            limit: LIMIT,
            interval: LIMIT / 6,
            is_probed,
        }
    }

    /// How long a rank may be silent, when it is looked at as often as it asks for.
    fn allowed(mut silence: Silence, rules: &Rules) -> Duration {
        let mut now = silence.since;
        loop {
            match silence.look(now, rules) {
                Verdict::Until(wake) => now = wake,
                Verdict::Silent(elapsed) => return elapsed,
            }
        }
    }

    fn silence() -> Silence {
        Silence::since(Instant::now())
    }

    #[test]
    fn a_rank_is_silent_after_the_limit_and_a_second_look() {
        assert_eq!(allowed(silence(), &rules(false)), LIMIT + SECOND_LOOK);
        let probed = allowed(silence(), &rules(true));
        assert_eq!(probed, LIMIT + LIMIT / 6 + REACH_TIME + SECOND_LOOK);
        assert!(probed < 5 * SECOND, "what the documents promise");
    }

    /// Also one that had longer than the limit anyway.
    #[test]
    fn a_pardon_counts_from_the_look() {
        let mut it = silence();
        it.note_lost_share(500);
        let now = it.since + 2 * LIMIT + SECOND;
        it.look(now, &rules(false));
        let verdict = it.look(now + SECOND_LOOK, &rules(false));
        assert!(matches!(verdict, Verdict::Silent(_)), "{verdict:?}");
        let until = now + LIMIT / 6;
        it.pardon(until);
        assert_eq!(it.look(now, &rules(false)), Verdict::Until(until));
        it.end(now);
        assert_eq!(it.pardoned, None);
    }

    #[test]
    fn what_was_not_computed_does_not_count() {
        let mut it = silence();
        let now = it.since + 10 * SECOND;
        it.excuse(9 * SECOND, now);
        assert_eq!(it.counted(now), SECOND);
        assert_eq!(allowed(it, &rules(false)), 12 * SECOND + SECOND_LOOK);
        // Never more than has passed: a later silence counts in full.
        it.excuse(90 * SECOND, now);
        assert_eq!(it.counted(now), Duration::ZERO);
        it.end(now);
        assert_eq!(allowed(it, &rules(false)), LIMIT + SECOND_LOOK);
    }

    #[test]
    fn a_rank_that_gets_a_quarter_of_the_time_may_be_silent_four_times_as_long() {
        let mut it = silence();
        it.note_lost_share(750);
        assert_eq!(allowed(it, &rules(false)), 4 * LIMIT + SECOND_LOOK);
        // Not four times what this process counts four times anyway.
        it.excuse(9 * SECOND, it.since + 10 * SECOND);
        assert_eq!(allowed(it, &rules(false)), 4 * LIMIT + SECOND_LOOK);
        for _ in 0..20 {
            it.note_lost_share(0);
        }
        it.end(it.since);
        assert!(allowed(it, &rules(false)) < LIMIT + 2 * SECOND_LOOK);
        it.note_lost_share(u32::MAX);
        assert_eq!(allowed(it, &rules(false)), 10 * LIMIT + SECOND_LOOK);
    }

    #[test]
    fn a_message_that_lay_in_the_socket_ends_the_suspicion() {
        let mut it = silence();
        let late = it.since + 60 * SECOND;
        let Verdict::Until(second) = it.look(late, &rules(false)) else {
            panic!("silent at the first look");
        };
        it.end(late);
        assert_eq!(it.look(second, &rules(false)), Verdict::Until(late + LIMIT));
    }

    /// When bytes that were lost at `lost` come again, if the link is back at `back`: TCP tries
    /// after 0.2, 0.6, 1.4, 3.0, 6.2 s, for a first pause of 0.2 s.
    fn resent(lost: Duration, back: Duration, first: Duration) -> Duration {
        let mut pause = first;
        let mut at = lost + first;
        while at < back {
            pause *= 2;
            at += pause;
        }
        at
    }

    /// Whether a rank is heard of in time whose link is cut at `begin` for `cut`, both after its
    /// last message, as the next one is lost at `lost`.
    fn is_heard(limit: Duration, begin: Duration, cut: Duration, lost: Duration) -> bool {
        let rules = Rules {
            limit,
            interval: limit / 6,
            is_probed: true,
        };
        let end = begin + cut;
        // The attempt that succeeds began at most one pause after the end.
        let answered = end.max(limit / 3) + ATTEMPT_PAUSE;
        let heard = resent(lost, end, Duration::from_millis(300));
        let mut it = silence();
        if answered < allowed(it, &rules) {
            it.note_reached(it.since + answered);
        }
        heard < allowed(it, &rules)
    }

    #[test]
    fn a_rank_that_is_cut_off_for_less_than_the_limit_is_heard_again_in_time() {
        for limit in [1, 2, 3, 5, 10, 60].map(|seconds| seconds * SECOND) {
            let interval = limit / 6;
            for cut in (1..100).map(|percent| limit * percent / 100) {
                for lost in [interval / 10, interval / 2, interval] {
                    for begin in [Duration::ZERO, lost] {
                        assert!(
                            is_heard(limit, begin, cut, lost),
                            "{limit:?}: {cut:?} from {begin:?}, lost at {lost:?}"
                        );
                    }
                }
            }
        }
        assert!(!is_heard(LIMIT, LIMIT / 6, 2 * LIMIT, LIMIT / 6));
    }

    #[test]
    fn a_stopped_process_whose_host_answers_is_silent_after_the_limit() {
        let mut it = silence();
        it.note_reached(it.since + LIMIT / 3 + Duration::from_millis(1));
        assert!(allowed(it, &rules(true)) < LIMIT + 2 * SECOND_LOOK);
    }
}
