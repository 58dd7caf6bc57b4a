//! All ranks of a group of processes in one process: for tests of programs and of this crate.

use crate::error::{CollectiveError, Result};
use crate::options::GroupOptions;
use crate::process_group::{ProcessCommunicator, ProcessGroupOptions, ProcessTransport};

/// Makes a group of `world_size` ranks that meet over loopback addresses of this process; rank
/// `i` is at index `i`. Everything is as between processes, connections and shared memory
/// included: for tests of programs that will run on several.
///
/// # Errors
/// What binding or joining returns.
pub fn loopback(
    world_size: usize,
    options: GroupOptions,
    transport: ProcessTransport,
) -> Result<Vec<ProcessCommunicator>> {
    let listen = vec!["127.0.0.1:0"; world_size];
    let bound = (0..world_size)
        .map(|rank| {
            ProcessGroupOptions::new(rank, listen.iter().copied())
                .group(options.clone())
                .transport(transport)
                .bind()
        })
        .collect::<Result<Vec<_>>>()?;
    if bound.is_empty() {
        let what = "a group has at least 1 rank, got world size 0".to_string();
        return Err(CollectiveError::InvalidOption { what });
    }
    let addresses: Vec<String> = bound
        .iter()
        .map(|rank| rank.address().to_string())
        .collect();
    std::thread::scope(|scope| {
        let addresses = &addresses;
        let threads: Vec<_> = bound
            .into_iter()
            .map(|rank| scope.spawn(move || rank.join(addresses.iter().map(String::as_str))))
            .collect();
        let joined = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        joined.collect()
    })
}
