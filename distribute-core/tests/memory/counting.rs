//! An allocator that counts, for test programs with a few large tensors.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The bytes that are allocated and not freed.
pub static LIVE: AtomicUsize = AtomicUsize::new(0);
/// The most of them at any time.
pub static PEAK: AtomicUsize = AtomicUsize::new(0);

/// All allocations.
pub static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The size of an allocation that is large.
pub const LARGE_BYTES: usize = 512 << 10;

thread_local! {
    /// The calling thread's large allocations.
    pub static LARGE: Cell<usize> = const { Cell::new(0) };
}

/// One test at a time: they count all of the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocated(size: usize) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let live = LIVE.fetch_add(size, Ordering::Relaxed) + size;
    PEAK.fetch_max(live, Ordering::Relaxed);
    if size >= LARGE_BYTES {
        LARGE.with(|large| large.set(large.get() + 1));
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches only
// integers, one of them thread-local, which needs no allocation and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller keeps GlobalAlloc's contract, which is passed on as it is.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        allocated(size);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
