//! Where everything lies in the segment.
//!
//! One page with the nonce, then a control block per member, the members' inline buffers, their
//! window slots and the mailboxes. Memory that is never touched is never allocated, so a pair of
//! members that sends nothing costs nothing.

/// Words are spread over pairs of cache lines: the hardware fetches lines in pairs.
const LINE: usize = 128;
const PAGE: usize = 4096;
/// A control block: doorbell, four counters and two arrival records, a [`LINE`] each.
const CONTROL_BYTES: usize = 8 * LINE;
/// Head, tail and the lengths of the two slots.
const MAILBOX_CONTROL_BYTES: usize = 4 * LINE;
/// Most members of a host; the mailboxes of more would need too many addresses.
pub(crate) const MEMBERS_MAX: usize = 512;
/// Most bytes of one part, so that no sum overflows.
const PART_BYTES_MAX: usize = 1 << 26;

/// Sizes of the parts of the segment. The leader's settings count for all members.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// Operations up to this size need one meeting; every rank reduces everything itself.
    pub(crate) inline_bytes: usize,
    /// Bytes of the windows that bigger operations are cut into.
    pub(crate) slot_bytes: usize,
    /// Windows that a rank can be ahead; at least 3.
    pub(crate) slots: usize,
    /// Largest segment of a mailbox; see [`for_segments`](Self::for_segments).
    pub(crate) mailbox_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            inline_bytes: INLINE_BYTES,
            slot_bytes: SLOT_BYTES,
            slots: 4,
            mailbox_bytes: SEGMENT_BYTES,
        }
    }
}

/// Bytes of a segment: sender and receiver find it in the second-level cache.
const SEGMENT_BYTES: usize = 128 * 1024;

/// Most bytes of a segment: no mailbox has larger slots.
pub(crate) const SEGMENT_BYTES_MAX: usize = PART_BYTES_MAX;

impl Settings {
    /// Mailboxes for algorithms that cut buffers into segments of this size. Algorithms rely on two
    /// segments being on their way, so a segment must fit a slot in one piece: at most
    /// [`SEGMENT_BYTES_MAX`].
    pub(crate) fn for_segments(mut self, segment_bytes: usize) -> Self {
        self.mailbox_bytes = segment_bytes.max(SEGMENT_BYTES);
        self
    }
}

/// The counters that a member publishes. Each only grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Counter {
    /// Collective operations begun.
    Arrived = 1,
    /// Windows whose inputs are in the slots.
    Published,
    /// Windows of which this member's share is reduced.
    Reduced,
    /// Windows whose slots this member does not need any more.
    Fetched,
    /// Segments sent through a mailbox, or taken out of it.
    Mail,
}

/// The numbers that fix the layout; equal on all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) members: usize,
    /// Most bytes of an operation that is done with one meeting.
    pub(crate) inline_bytes: usize,
    /// Bytes of a window slot, and how many of them a member has.
    pub(crate) slot_bytes: usize,
    pub(crate) slots: usize,
    /// Most bytes of a segment in a mailbox.
    pub(crate) mailbox_bytes: usize,
    /// Whether the members may poll without yielding: they are not more than the cores.
    pub(crate) may_spin: bool,
}

fn round_up(bytes: usize, to: usize) -> usize {
    bytes.div_ceil(to) * to
}

impl Layout {
    pub(crate) fn new(members: usize, settings: &Settings) -> Layout {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let may_spin = members <= cores;
        Layout {
            members,
            inline_bytes: round_up(settings.inline_bytes.min(PART_BYTES_MAX), LINE),
            // Room for one element of each member's share.
            slot_bytes: (settings.slot_bytes).clamp(members * size_of::<u64>(), PART_BYTES_MAX),
            slots: settings.slots.clamp(SLOTS_MIN, 64),
            mailbox_bytes: settings.mailbox_bytes.clamp(64, PART_BYTES_MAX),
            may_spin,
        }
    }

    /// The layout as words, for the member that joins.
    pub(crate) fn encode(&self) -> [u64; 6] {
        [
            self.members as u64,
            self.inline_bytes as u64,
            self.slot_bytes as u64,
            self.slots as u64,
            self.mailbox_bytes as u64,
            u64::from(self.may_spin),
        ]
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` when a number is out of range.
    pub(crate) fn decode(words: [u64; 6]) -> Option<Layout> {
        let [members, inline, slot, slots, mailbox, may_spin] = words.map(|w| w as usize);
        let layout = Layout {
            members,
            inline_bytes: inline,
            slot_bytes: slot,
            slots,
            mailbox_bytes: mailbox,
            may_spin: may_spin == 1,
        };
        let parts = [inline, slot, mailbox].iter().all(|b| *b <= PART_BYTES_MAX);
        let valid = (1..=MEMBERS_MAX).contains(&members)
            && (SLOTS_MIN..=64).contains(&slots)
            && parts
            && inline.is_multiple_of(LINE)
            && slot >= members * size_of::<u64>()
            && layout.encode() == words;
        valid.then_some(layout)
    }

    /// Arrivals of all members at all operations; the nonce before it has a line of its own.
    pub(crate) const ARRIVALS: usize = LINE;

    fn control(&self, member: usize) -> usize {
        assert!(member < self.members);
        PAGE + member * CONTROL_BYTES
    }

    /// The doorbell of a member; the word after it says for what the member waits.
    pub(crate) fn bell(&self, member: usize) -> usize {
        self.control(member)
    }

    pub(crate) fn waiting(&self, member: usize) -> usize {
        self.control(member) + size_of::<u32>()
    }

    pub(crate) fn counter(&self, member: usize, counter: Counter) -> usize {
        self.control(member) + counter as usize * LINE
    }

    /// The words of the arrival record for operations with this parity.
    pub(crate) fn record(&self, member: usize, sequence: u64) -> usize {
        self.control(member) + (5 + (sequence % 2) as usize) * LINE
    }

    /// The inline buffer for operations with this parity.
    pub(crate) fn inline(&self, member: usize, sequence: u64) -> usize {
        let first = round_up(self.control(self.members - 1) + CONTROL_BYTES, PAGE);
        first + (2 * member + (sequence % 2) as usize) * self.inline_bytes
    }

    /// The slot of a window, which is counted over the life of the group.
    pub(crate) fn slot(&self, member: usize, window: u64) -> usize {
        let first = round_up(self.inline(self.members - 1, 1) + self.inline_bytes, PAGE);
        let index = member * self.slots + (window % self.slots as u64) as usize;
        first + index * round_up(self.slot_bytes, LINE)
    }

    /// The control words of the mailbox from one member to another one.
    pub(crate) fn mailbox(&self, from: usize, to: usize, point_to_point: bool) -> usize {
        assert!(from < self.members && to < self.members);
        let last = self.slot(self.members - 1, self.slots as u64 - 1);
        let first = round_up(last + round_up(self.slot_bytes, LINE), PAGE);
        let index = 2 * (from * self.members + to) + usize::from(point_to_point);
        first + index * self.mailbox_size()
    }

    fn mailbox_size(&self) -> usize {
        round_up(
            MAILBOX_CONTROL_BYTES + 2 * round_up(self.mailbox_bytes, LINE),
            PAGE,
        )
    }

    /// Bytes that were taken out of and put into a mailbox so far, counted in segments.
    pub(crate) fn mail_tail(mailbox: usize) -> usize {
        mailbox
    }

    pub(crate) fn mail_head(mailbox: usize) -> usize {
        mailbox + LINE
    }

    pub(crate) fn mail_len(mailbox: usize, segment: u64) -> usize {
        mailbox + 2 * LINE + (segment % 2) as usize * size_of::<u64>()
    }

    pub(crate) fn mail_data(&self, mailbox: usize, segment: u64) -> usize {
        let slot = (segment % 2) as usize * round_up(self.mailbox_bytes, LINE);
        mailbox + MAILBOX_CONTROL_BYTES + slot
    }

    /// Fails when a part ends after the next one begins.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn check_parts(&self) {
        let last = self.members - 1;
        assert!(self.record(last, 1) + LINE <= self.inline(0, 0));
        assert!(self.inline(last, 1) + self.inline_bytes <= self.slot(0, 0));
        let slots_end = self.slot(last, self.slots as u64 - 1) + self.slot_bytes;
        assert!(slots_end <= self.mailbox(0, 0, false));
        let data = self.mail_data(self.mailbox(last, last, true), 1);
        assert!(data + self.mailbox_bytes <= self.total());
        assert!(self.total() <= isize::MAX as usize);
    }

    /// Bytes of the whole segment.
    pub(crate) fn total(&self) -> usize {
        self.mailbox(self.members - 1, self.members - 1, true) + self.mailbox_size()
    }
}

/// Slots that the pipeline needs: one window is published, one reduced, one fetched.
const SLOTS_MIN: usize = 3;
/// Up to here one meeting with more work for each takes less time than three.
const INLINE_BYTES: usize = 16 * 1024;
/// A window of all members and what they copy from it stays in the second-level cache.
const SLOT_BYTES: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_numbers_survive_the_way() {
        for members in [1, 2, 5] {
            let settings = Settings {
                slot_bytes: 100,
                inline_bytes: 3,
                mailbox_bytes: 70,
                ..Settings::default()
            };
            let layout = Layout::new(members, &settings);
            assert_eq!(Layout::decode(layout.encode()), Some(layout));
            layout.check_parts();
        }
        let settings = Settings {
            slot_bytes: usize::MAX,
            inline_bytes: usize::MAX,
            slots: usize::MAX,
            ..Settings::default().for_segments(usize::MAX)
        };
        for members in [1, MEMBERS_MAX] {
            let layout = Layout::new(members, &settings);
            assert_eq!(Layout::decode(layout.encode()), Some(layout));
            assert_eq!(layout.mailbox_bytes, PART_BYTES_MAX);
            layout.check_parts();
        }
        let mut words = Layout::new(2, &Settings::default()).encode();
        words[0] = u64::MAX;
        assert_eq!(Layout::decode(words), None);
    }
}
