//! One rank's endpoint of a group whose ranks all share the host: segments, meetings, poison.

use std::sync::Arc;

use crate::bookkeeping::{Bookkeeping, RunningOperation};
use crate::communicator::{AbortHandle, AbortTarget};
use crate::error::{CollectiveError, Result};
use crate::failure::Failure;
use crate::header::OperationHeader;
use crate::options::GroupOptions;
use crate::shared_memory::arrival::Record;
use crate::shared_memory::doorbell::{Operation, SegmentView};
use crate::shared_memory::group::LocalGroup;
use crate::status::GroupStatus;
use crate::transport::Transport;

/// A [`Transport`] through shared memory only; also the base of
/// [`SharedMemoryCommunicator`](super::SharedMemoryCommunicator).
pub(crate) struct LocalTransport {
    pub(crate) group: LocalGroup,
    pub(crate) options: GroupOptions,
    abort: Arc<dyn AbortTarget>,
    operations: Bookkeeping,
    /// What may differ between the ranks of the running operation; kept for its memory.
    pub(crate) owns: Vec<usize>,
    /// For segments that are bigger than a mailbox slot; kept for its memory.
    scratch: Vec<u8>,
}

impl LocalTransport {
    /// An endpoint of a group whose ranks 0, 1, ... are all in `group`; `abort` ends it on all
    /// ranks.
    ///
    /// # Errors
    /// [`CollectiveError::InvalidOption`] when a rank is not.
    pub(crate) fn new(
        group: LocalGroup,
        options: GroupOptions,
        abort: Arc<dyn AbortTarget>,
    ) -> Result<Self> {
        if group.ranks().iter().copied().ne(0..group.ranks().len()) {
            let what = format!("ranks {:?} are not a whole group", group.ranks());
            return Err(CollectiveError::InvalidOption { what });
        }
        Ok(LocalTransport {
            group,
            options,
            abort,
            operations: Bookkeeping::default(),
            owns: Vec::new(),
            scratch: Vec::new(),
        })
    }

    pub(crate) fn shared(&self) -> &Arc<SegmentView> {
        &self.group.shared
    }

    /// Begins an operation: `put` writes this rank's input where the others find it, `own` is
    /// what may differ, see [`Record`]. Returns when all ranks have begun it and their headers
    /// agree.
    pub(crate) fn start(
        &mut self,
        header: &OperationHeader,
        own: usize,
        put: impl FnOnce(&SegmentView),
    ) -> Result<()> {
        self.operations.check()?;
        let status = self.group.status.clone();
        let running = RunningOperation::new(header, self.options.timeout);
        status.begin(running);
        let operation = Operation::of(&status, &running);
        // Also where nothing has to be waited for, an earlier failure counts.
        status.check_peer(header, None)?;
        if header.kind.is_point_to_point() {
            return Ok(());
        }
        let (shared, header) = (&self.group.shared, *header);
        put(shared);
        let record = Record { header, own };
        shared.arrive(&record);
        shared.compare_headers(&record, &operation, &mut self.owns)
    }

    /// Runs `f` for the operation that has begun.
    pub(crate) fn during<R>(
        &mut self,
        f: impl FnOnce(&mut Self, &Operation<'_>) -> Result<R>,
    ) -> Result<R> {
        let status: Arc<GroupStatus> = self.group.status.clone();
        let running = RunningOperation::required(status.running(), self.shared().me)?;
        let operation = Operation::of(&status, &running);
        f(self, &operation)
    }
}

impl Transport for LocalTransport {
    fn rank(&self) -> usize {
        self.shared().me
    }

    fn world_size(&self) -> usize {
        self.shared().members()
    }

    fn name(&self) -> &str {
        "shared-memory"
    }

    fn segment_bytes(&self) -> usize {
        self.max_segment_bytes()
    }

    fn max_segment_bytes(&self) -> usize {
        self.group.mailbox_bytes()
    }

    fn sequence(&self) -> u64 {
        self.operations.sequence()
    }

    fn begin(&mut self, header: &OperationHeader) -> Result<()> {
        self.start(header, 0, |_| {})
    }

    fn end(&mut self, header: &OperationHeader, result: Result<()>) -> Result<()> {
        self.group.status.end();
        self.operations.end(header.kind, result)
    }

    fn send_with(
        &mut self,
        to: usize,
        bytes: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<()> {
        self.during(|this, operation| {
            let scratch = &mut this.scratch;
            this.group.send_with(operation, to, bytes, fill, scratch)
        })
    }

    fn receive_with(
        &mut self,
        from: usize,
        bytes: usize,
        consume: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        self.during(|this, operation| {
            let scratch = &mut this.scratch;
            this.group
                .receive_with(operation, from, bytes, consume, scratch)
        })
    }

    fn fail(&mut self, error: CollectiveError) {
        let failure = Failure::ended(error, self.operations.sequence());
        self.group.status.record_failure(failure);
    }

    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(self.shared().me, self.abort.clone())
    }
}
