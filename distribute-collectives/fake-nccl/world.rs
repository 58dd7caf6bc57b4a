//! Where the ranks of a communicator meet: a file that all of them map.
//!
//! Words, then a slot per rank, then a mailbox per ordered pair of ranks. In every step of an
//! exchange each rank fills its slot, says so, reads all slots when all have said so, and says that
//! it has; the slots may then be filled again.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The most ranks.
const RANKS: usize = 8;
const SLOT: usize = 64 << 10;
const MAIL: usize = 16 << 10;
/// Words per rank: whether it is there, its step, and for each pair what was written and read.
const WORDS: usize = 8 * (2 * RANKS + 2 * RANKS * RANKS);
const BYTES: usize = WORDS + RANKS * SLOT + RANKS * RANKS * MAIL;

/// The communicator was aborted.
pub struct Aborted;

pub struct World {
    memory: *mut u8,
    rank: usize,
    size: usize,
}

// SAFETY: the words are atomics; the rest is handed over by them.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl Drop for World {
    fn drop(&mut self) {
        // SAFETY: mapped by `open`, and not used any more.
        let _ = unsafe { rustix::mm::munmap(self.memory.cast(), BYTES) };
    }
}

impl World {
    pub fn open(path: &Path, rank: usize, size: usize) -> Option<World> {
        if size > RANKS {
            return None;
        }
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false);
        let file = file.open(path).ok()?;
        file.set_len(BYTES as u64).ok()?;
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; the file is long enough and
        // it is never shortened.
        let memory = unsafe { mmap(std::ptr::null_mut(), BYTES, protection, flags, &file, 0) };
        Some(World {
            memory: memory.ok()?.cast(),
            rank,
            size,
        })
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(8 * index < WORDS);
        // SAFETY: inside the mapping, aligned, and used as an atomic by everybody.
        unsafe { &*self.memory.add(8 * index).cast::<AtomicU64>() }
    }

    fn arrived(&self, rank: usize) -> &AtomicU64 {
        self.word(rank)
    }

    fn step(&self, rank: usize) -> &AtomicU64 {
        self.word(RANKS + rank)
    }

    fn mail(&self, from: usize, to: usize) -> (&AtomicU64, &AtomicU64) {
        let index = 2 * RANKS + 2 * (from * RANKS + to);
        (self.word(index), self.word(index + 1))
    }

    fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= BYTES - WORDS);
        // SAFETY: inside the mapping; the words say that no rank reads it now.
        unsafe {
            let to = self.memory.add(WORDS + offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= BYTES - WORDS);
        let mut bytes = vec![0; len];
        // SAFETY: inside the mapping; the words say that no rank writes it now.
        unsafe {
            let from = self.memory.add(WORDS + offset);
            std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len);
        }
        bytes
    }

    /// Waits for all ranks.
    pub fn meet(&self, aborted: &dyn Fn() -> bool) -> Result<(), Aborted> {
        self.arrived(self.rank).store(1, Ordering::SeqCst);
        let all = || (0..self.size).all(|rank| self.arrived(rank).load(Ordering::SeqCst) == 1);
        wait(aborted, all)
    }

    /// Gives every rank the same number of bytes of all ranks, piece by piece.
    pub fn exchange(
        &self,
        own: &[u8],
        aborted: &dyn Fn() -> bool,
        mut consume: impl FnMut(usize, &[Vec<u8>]),
    ) -> Result<(), Aborted> {
        for start in (0..own.len()).step_by(SLOT) {
            let piece = &own[start..own.len().min(start + SLOT)];
            let step = self.step(self.rank).load(Ordering::SeqCst);
            self.put(self.rank * SLOT, piece);
            self.advance(step + 1, aborted)?;
            let slots = (0..self.size).map(|rank| self.get(rank * SLOT, piece.len()));
            consume(start, &slots.collect::<Vec<_>>());
            self.advance(step + 2, aborted)?;
        }
        Ok(())
    }

    fn advance(&self, step: u64, aborted: &dyn Fn() -> bool) -> Result<(), Aborted> {
        self.step(self.rank).store(step, Ordering::SeqCst);
        let all = || (0..self.size).all(|rank| self.step(rank).load(Ordering::SeqCst) >= step);
        wait(aborted, all)
    }

    pub fn send(&self, to: usize, bytes: &[u8], aborted: &dyn Fn() -> bool) -> Result<(), Aborted> {
        let (written, read) = self.mail(self.rank, to);
        for piece in bytes.chunks(MAIL) {
            let number = written.load(Ordering::SeqCst);
            wait(aborted, || read.load(Ordering::SeqCst) == number)?;
            self.put(RANKS * SLOT + (self.rank * RANKS + to) * MAIL, piece);
            written.store(number + 1, Ordering::SeqCst);
        }
        Ok(())
    }

    pub fn receive(
        &self,
        from: usize,
        len: usize,
        aborted: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, Aborted> {
        let (written, read) = self.mail(from, self.rank);
        let mut received = Vec::with_capacity(len);
        while received.len() < len {
            let number = read.load(Ordering::SeqCst);
            wait(aborted, || written.load(Ordering::SeqCst) > number)?;
            let piece = (len - received.len()).min(MAIL);
            received.extend(self.get(RANKS * SLOT + (from * RANKS + self.rank) * MAIL, piece));
            read.store(number + 1, Ordering::SeqCst);
        }
        Ok(received)
    }
}

/// Asks again and again, as what is waited for is a word in a file that other processes write.
fn wait(aborted: &dyn Fn() -> bool, ready: impl Fn() -> bool) -> Result<(), Aborted> {
    while !ready() {
        if aborted() {
            return Err(Aborted);
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    Ok(())
}
