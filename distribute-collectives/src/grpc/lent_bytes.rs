//! Bytes of a caller that HTTP/2 may write to the kernel from where they lie.
//!
//! HTTP/2 owns what it sends until the kernel has taken it, and the caller lends its bytes for one
//! call only. So the lending ends with the call: what the kernel has not taken by then is
//! copied, and HTTP/2 goes on with the copy.

use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes on their way out: the caller's for as long as [`lend`] runs, a copy of the rest after it.
#[derive(Debug, Default)]
pub(super) struct LentBytes {
    /// The first byte that was not written.
    next: AtomicPtr<u8>,
    /// Bytes that were not written.
    left: AtomicUsize,
    /// The copy, if one had to be made.
    rest: OnceLock<Vec<u8>>,
}

impl LentBytes {
    pub(super) fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }

    /// What was not written.
    pub(super) fn bytes(&self) -> &[u8] {
        match self.left() {
            0 => &[],
            // SAFETY: `next` points to `left` bytes: the caller's, or of `rest`, which is not
            // changed before `self` is dropped. They are not written meanwhile: the caller has
            // lent them. A slice of the caller's bytes does not outlive `lend`: only the `Buf` of a
            // segment hands it out, to the connection of a lane, which uses it while it is driven;
            // `lend` drives it within its call, and has replaced `next` when it returns.
            left => unsafe { slice::from_raw_parts(self.next.load(Ordering::Relaxed), left) },
        }
    }

    /// Notes that the first bytes were written.
    pub(super) fn advance(&self, bytes: usize) {
        let left = self.bytes();
        let after = left.get(bytes..).unwrap_or_default();
        self.next
            .store(after.as_ptr().cast_mut(), Ordering::Relaxed);
        self.left.store(after.len(), Ordering::Relaxed);
    }

    /// Lets go of the caller's bytes.
    fn end(&self) {
        let rest = self.rest.get_or_init(|| self.bytes().to_vec());
        self.next.store(rest.as_ptr().cast_mut(), Ordering::Relaxed);
    }
}

/// Ends the lending, also when the call panics.
struct Ending(Arc<LentBytes>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Lends `bytes` until `send` returns. `kept` comes from an earlier call and is used again
/// when nothing holds it: no memory is allocated then.
pub(super) fn lend<R>(
    kept: &mut Arc<LentBytes>,
    bytes: &[u8],
    send: impl FnOnce(Arc<LentBytes>) -> R,
) -> R {
    match Arc::get_mut(kept) {
        Some(lent) => *lent = LentBytes::default(),
        None => *kept = Arc::default(),
    }
    kept.next
        .store(ptr::from_ref(bytes).cast_mut().cast(), Ordering::Relaxed);
    kept.left.store(bytes.len(), Ordering::Relaxed);
    let _ending = Ending(kept.clone());
    send(kept.clone())
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn what_is_written_within_the_call_is_the_callers() {
        let (mut kept, bytes) = (Arc::default(), *b"abcdef");
        lend(&mut kept, &bytes, |lent| {
            assert!(ptr::eq(lent.bytes(), &bytes[..]));
            lent.advance(2);
            assert!(ptr::eq(lent.bytes(), &bytes[2..]));
            lent.advance(4);
        });
        assert!(kept.bytes().is_empty() && kept.rest.get().is_some_and(Vec::is_empty));
    }

    #[test]
    fn what_is_not_written_within_the_call_is_copied() {
        let (mut kept, mut bytes) = (Arc::default(), *b"abcdef");
        let first = lend(&mut kept, &bytes, |lent| {
            lent.advance(1);
            lent
        });
        bytes.fill(b'x');
        // The first is held, so the second one is another one.
        let second = lend(&mut kept, &bytes[..3], |lent| lent);
        assert_eq!(
            (first.bytes(), second.bytes()),
            (&b"bcdef"[..], &b"xxx"[..])
        );
        first.advance(4);
        assert_eq!(first.bytes(), b"f");
        first.advance(9);
        assert!(first.bytes().is_empty());
    }

    #[test]
    fn a_panic_ends_the_lending() {
        let (mut kept, mut held) = (Arc::default(), None);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let bytes = vec![7; 3];
            lend(&mut kept, &bytes, |lent| {
                held = Some(lent);
                panic!("while the bytes are lent");
            })
        }));
        assert!(ended.is_err());
        assert_eq!(held.unwrap().bytes(), [7; 3]);
    }

    #[test]
    fn what_is_not_held_is_used_again() {
        let mut kept = Arc::default();
        lend(&mut kept, b"one", |_| {});
        let first = Arc::as_ptr(&kept);
        lend(&mut kept, b"two", |lent| assert_eq!(lent.bytes(), b"two"));
        assert_eq!(first, Arc::as_ptr(&kept));
    }
}
