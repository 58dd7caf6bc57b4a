//! Communicators: what is begun, what is in the streams, and how they end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::stats::{self, lock};
use crate::world::{Aborted, World};
use crate::{arithmetic, cuda, memory, settings};

pub const SUCCESS: i32 = 0;
pub const INVALID_ARGUMENT: i32 = 4;
pub const INVALID_USAGE: i32 = 5;
pub const REMOTE_ERROR: i32 = 6;
pub const IN_PROGRESS: i32 = 7;

pub struct Comm {
    pub rank: usize,
    pub size: usize,
    world: OnceLock<World>,
    aborted: Mutex<bool>,
    abort: Condvar,
    error: AtomicI32,
    /// Polls until what was begun is done.
    polls: AtomicI32,
    /// What goes into the streams then.
    begun: Mutex<Vec<(usize, Work)>>,
    groups: AtomicU64,
    connecting: Mutex<Option<JoinHandle<()>>>,
}

/// As if the thread were not run for so long.
const SLOW: Duration = Duration::from_secs(1);

/// What a call does on its stream.
pub type Work = Box<dyn FnOnce(&Comm) -> Result<(), Aborted> + Send>;

/// A call with its stream.
type GroupCall = (Arc<Comm>, usize, Work);

static COMMS: Mutex<BTreeMap<usize, Arc<Comm>>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The depth, and the calls so far.
    static GROUP: RefCell<(u32, Vec<GroupCall>)> = const { RefCell::new((0, Vec::new())) };
}

/// Counts what a program may not do.
pub fn misuse(code: i32) -> i32 {
    stats::add("misuse", 1);
    code
}

pub fn find(handle: usize) -> Option<Arc<Comm>> {
    lock(&COMMS).get(&handle).cloned()
}

/// A communicator that connects from now on.
pub fn begin(path: PathBuf, rank: usize, size: usize) -> usize {
    let comm = Arc::new(Comm {
        rank,
        size,
        world: OnceLock::new(),
        aborted: Mutex::default(),
        abort: Condvar::new(),
        error: AtomicI32::new(SUCCESS),
        polls: AtomicI32::new(settings::number("polls", 3)),
        begun: Mutex::default(),
        groups: AtomicU64::new(0),
        connecting: Mutex::default(),
    });
    let own = comm.clone();
    let connect = move || {
        if settings::number("refuse", -1) == own.rank as i32 {
            own.error.store(2, Ordering::SeqCst);
            return;
        }
        if let Some(world) = World::open(&path, own.rank, own.size)
            && world.meet(&|| own.is_aborted()).is_ok()
        {
            let _ = own.world.set(world);
        }
    };
    *lock(&comm.connecting) = Some(std::thread::spawn(connect));
    let handle = cuda::new_handle();
    lock(&COMMS).insert(handle, comm);
    stats::add("comms", 1);
    handle
}

/// Takes a communicator out; later calls on it are misuse.
pub fn end(handle: usize, abort: bool) -> i32 {
    let Some(comm) = lock(&COMMS).remove(&handle) else {
        return misuse(INVALID_ARGUMENT);
    };
    stats::add("comms", -1);
    if abort {
        stats::add("aborts", 1);
        if settings::number("stuck_abort", -1) == comm.rank as i32 {
            loop {
                std::thread::park();
            }
        }
        *lock(&comm.aborted) = true;
        comm.abort.notify_all();
    } else if comm.state() != SUCCESS {
        misuse(INVALID_USAGE);
    }
    if let Some(thread) = lock(&comm.connecting).take() {
        let _ = thread.join();
    }
    SUCCESS
}

impl Comm {
    fn is_aborted(&self) -> bool {
        *lock(&self.aborted)
    }

    fn wait_for_abort(&self) {
        let waited = self.abort.wait_while(lock(&self.aborted), |is| !*is);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// What `ncclCommGetAsyncError` says, without a poll.
    pub fn state(&self) -> i32 {
        match self.error.load(Ordering::SeqCst) {
            SUCCESS if self.world.get().is_none() => IN_PROGRESS,
            SUCCESS if self.polls.load(Ordering::SeqCst) > 0 => IN_PROGRESS,
            error => error,
        }
    }

    /// A poll; the last one puts what was begun into the streams.
    pub fn poll(self: &Arc<Self>) -> i32 {
        let state = self.state();
        if state == IN_PROGRESS
            && self.world.get().is_some()
            && self.polls.fetch_sub(1, Ordering::SeqCst) == 1
        {
            for (stream, work) in lock(&self.begun).drain(..) {
                let own = self.clone();
                let run = move || drop(work(&own));
                if cuda::enqueue(stream, Box::new(run)) != SUCCESS {
                    return 1;
                }
            }
            return self.error.load(Ordering::SeqCst);
        }
        state
    }

    /// Begins something that takes polls.
    pub fn busy(&self) {
        self.polls
            .store(settings::number("polls", 3).max(1), Ordering::SeqCst);
    }

    fn begin_group(self: &Arc<Self>, mut works: Vec<(usize, Work)>) -> i32 {
        let number = self.groups.fetch_add(1, Ordering::SeqCst);
        stats::add("groups", 1);
        stats::largest("largest_group", works.len() as i64);
        if settings::concerns("block", self.rank, number) {
            self.wait_for_abort();
            return REMOTE_ERROR;
        }
        if settings::concerns("error", self.rank, number) {
            works.iter_mut().for_each(|(_, work)| *work = fails());
        } else if settings::concerns("hang", self.rank, number) {
            works.iter_mut().for_each(|(_, work)| *work = hangs());
        } else if settings::concerns("dead", self.rank, number) {
            works.iter_mut().for_each(|(_, work)| *work = dies());
        }
        lock(&self.begun).extend(works);
        self.busy();
        IN_PROGRESS
    }

    fn world(&self) -> Result<&World, Aborted> {
        self.world.get().ok_or(Aborted)
    }
}

fn hangs() -> Work {
    Box::new(|comm| {
        comm.wait_for_abort();
        Err(Aborted)
    })
}

fn fails() -> Work {
    Box::new(|comm| {
        std::thread::sleep(Duration::from_millis(5));
        comm.error.store(REMOTE_ERROR, Ordering::SeqCst);
        hangs()(comm)
    })
}

/// A device that does not react.
fn dies() -> Work {
    Box::new(|_| {
        loop {
            std::thread::park();
        }
    })
}

pub fn group_start() -> i32 {
    GROUP.with_borrow_mut(|(depth, _)| *depth += 1);
    SUCCESS
}

pub fn group_end() -> i32 {
    let calls = GROUP.with_borrow_mut(|(depth, calls)| match *depth {
        0 => None,
        1 => {
            *depth = 0;
            Some(std::mem::take(calls))
        }
        _ => {
            *depth -= 1;
            Some(Vec::new())
        }
    });
    let Some(calls) = calls else {
        return misuse(INVALID_USAGE);
    };
    let Some(comm) = calls.first().map(|(comm, ..)| comm.clone()) else {
        return SUCCESS;
    };
    let works = calls.into_iter().map(|(_, stream, work)| (stream, work));
    comm.begin_group(works.collect())
}

/// Adds a call to the group of this thread, or makes one of it alone.
pub fn call(handle: usize, stream: usize, work: Option<Work>) -> i32 {
    if let Some(comm) = find(handle)
        && settings::concerns("slow", comm.rank, comm.groups.load(Ordering::SeqCst))
    {
        std::thread::sleep(SLOW);
        if find(handle).is_none() {
            misuse(INVALID_ARGUMENT);
        }
        stats::add("slow_calls", 1);
    }
    let Some(comm) = find(handle) else {
        return misuse(INVALID_ARGUMENT);
    };
    if comm.state() == IN_PROGRESS {
        return misuse(INVALID_USAGE);
    }
    if comm.state() != SUCCESS {
        return comm.state();
    }
    let Some(work) = work else {
        return misuse(INVALID_ARGUMENT);
    };
    group_start();
    GROUP.with_borrow_mut(|(_, calls)| calls.push((comm, stream, work)));
    group_end()
}

/// The buffers of a call; `None` when they were never taken.
pub struct Buffers {
    pub from: memory::Place,
    pub to: memory::Place,
}

/// What every rank contributes `input` bytes to.
pub enum Kind {
    /// Everybody, or the root alone, gets the reduction.
    Reduce {
        op: i32,
        dtype: i32,
        root: Option<usize>,
    },
    /// Every rank gets its part of the reduction.
    Scatter {
        op: i32,
        dtype: i32,
    },
    Gather,
    Broadcast {
        root: usize,
    },
}

/// Work of a collective call.
pub fn collective(buffers: Buffers, kind: Kind) -> Option<Work> {
    if let Kind::Reduce { op, dtype, .. } | Kind::Scatter { op, dtype } = kind {
        arithmetic::reduce(op, dtype, &[])?;
    }
    let work = move |comm: &Comm| {
        let own = buffers.from.read();
        let len = own.len();
        let mut outputs = Vec::new();
        let collect = |start: usize, inputs: &[Vec<u8>]| match kind {
            Kind::Reduce { op, dtype, .. } | Kind::Scatter { op, dtype } => {
                outputs.push((
                    start,
                    arithmetic::reduce(op, dtype, inputs).unwrap_or_default(),
                ));
            }
            Kind::Gather => {
                let all = inputs.iter().enumerate();
                outputs.extend(all.map(|(rank, input)| (rank * len + start, input.clone())));
            }
            Kind::Broadcast { root } => outputs.push((start, inputs[root].clone())),
        };
        comm.world()?
            .exchange(&own, &|| comm.is_aborted(), collect)?;
        match kind {
            Kind::Reduce {
                root: Some(root), ..
            } if root != comm.rank => {}
            Kind::Scatter { .. } => {
                let all: Vec<u8> = outputs.into_iter().flat_map(|(_, bytes)| bytes).collect();
                let part = len / comm.size;
                buffers
                    .to
                    .write(0, &all[comm.rank * part..(comm.rank + 1) * part]);
            }
            _ => outputs
                .iter()
                .for_each(|(start, bytes)| buffers.to.write(*start, bytes)),
        }
        Ok(())
    };
    Some(Box::new(work))
}

pub fn send(place: memory::Place, to: usize) -> Work {
    Box::new(move |comm| comm.world()?.send(to, &place.read(), &|| comm.is_aborted()))
}

pub fn receive(place: memory::Place, len: usize, from: usize) -> Work {
    Box::new(move |comm| {
        let received = comm.world()?.receive(from, len, &|| comm.is_aborted())?;
        place.write(0, &received);
        Ok(())
    })
}
