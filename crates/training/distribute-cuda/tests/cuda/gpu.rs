//! Whether the tests have something to run on.

use distribute_cuda::cuda;

/// Whether there is a GPU that burn can use; says why not.
pub fn has_gpu() -> bool {
    match cuda(0).check() {
        Ok(()) => true,
        Err(error) => {
            println!("SKIPPED: {error}");
            false
        }
    }
}
