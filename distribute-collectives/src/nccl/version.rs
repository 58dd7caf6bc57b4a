//! Versions of the two libraries.

use std::fmt;

/// The version of a library, such as 2.27.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u32,
    /// The second number.
    pub minor: u32,
    /// The third number; 0 for CUDA, which has none.
    pub patch: u32,
}

impl Version {
    /// The oldest NCCL that can be used: before it, aborting from another thread and non-blocking
    /// communicators hang now and then.
    pub const MIN_NCCL: Version = Version::new(2, 19, 0);
    /// The oldest CUDA that the driver must support: NCCL 2.19 is not built for older ones.
    pub const MIN_CUDA: Version = Version::new(11, 0, 0);
    /// The first NCCL with 8-bit floats.
    pub(super) const FLOAT8: Version = Version::new(2, 24, 0);

    const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Version {
            major,
            minor,
            patch,
        }
    }

    /// From what `ncclGetVersion` says: 2804 is 2.8.4, 22703 is 2.27.3.
    pub(super) fn of_nccl(code: i32) -> Self {
        let code = u32::try_from(code).unwrap_or(0);
        let thousand = if code < 10_000 { 1_000 } else { 10_000 };
        Version::new(code / thousand, code % thousand / 100, code % 100)
    }

    /// From what `cuDriverGetVersion` says: 12040 is 12.4.
    pub(super) fn of_cuda(code: i32) -> Self {
        let code = u32::try_from(code).unwrap_or(0);
        Version::new(code / 1_000, code % 1_000 / 10, 0)
    }

    /// One number, for messages between ranks.
    pub(super) fn code(self) -> u64 {
        u64::from(self.major) << 40 | u64::from(self.minor) << 20 | u64::from(self.patch)
    }

    /// The version with this [`code`](Self::code).
    pub(super) fn of_code(code: u64) -> Self {
        let part = |shift: u32| (code >> shift & 0xf_ffff) as u32;
        Version::new(part(40), part(20), part(0))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_libraries_say_them() {
        assert_eq!(Version::of_nccl(2_804), Version::new(2, 8, 4));
        assert_eq!(Version::of_nccl(21_903), Version::new(2, 19, 3));
        assert_eq!(Version::of_nccl(-1), Version::new(0, 0, 0));
        assert_eq!(Version::of_cuda(12_040), Version::new(12, 4, 0));
        assert!(Version::of_cuda(10_020) < Version::MIN_CUDA);
        assert!(Version::of_nccl(2_804) < Version::of_nccl(21_800));
        let version = Version::new(2, 27, 3);
        assert_eq!(Version::of_code(version.code()), version);
        assert_eq!(version.to_string(), "2.27.3");
    }
}
