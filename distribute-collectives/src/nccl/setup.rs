//! How the ranks of a group set NCCL up: together, or not at all.

use std::sync::Arc;

use super::control::ControlGroup;
use super::options::NcclOptions;
use super::raw::{Context, Cuda, Nccl, UniqueId};
use super::thread::{NcclThread, RequestError, ThreadSide};
use super::unavailable::unavailable;
use super::version::Version;
use crate::communicator::{CommunicatorExt, Gathered};
use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;
use crate::operation::OperationKind;

/// What one rank has found on its machine, with the UUID of its GPU.
type Found = (Arc<Context>, Arc<Nccl>, [u8; 16]);

/// Loads the libraries and connects the ranks.
pub(super) fn set_up(
    group: &mut impl ControlGroup,
    options: &NcclOptions,
) -> Result<(NcclThread, Version)> {
    options.check(&group.describe())?;
    let report = |(_, nccl, uuid): &Found| {
        let words = [nccl.version.code(), options.staging_bytes as u64];
        [words.map(u64::to_le_bytes).as_flattened(), &uuid[..]].concat()
    };
    let (context, nccl, _) = agree_on(group, find(options), report, same_gpu_and_version)?;
    let id = spread_id(group, &nccl)?;
    let (rank, world_size, version) = (group.rank(), group.world_size(), nccl.version);
    let thread = NcclThread::start(context, nccl, options.grace);
    let mut thread = thread.map_err(|error| unavailable(format!("it needs a thread: {error}")));
    let header = OperationHeader::new(OperationKind::Barrier, group.describe().generation, 0);
    let connected = match &mut thread {
        Err(error) => Err(error.to_string()),
        Ok(thread) => {
            let health = || group.health(&header, None);
            let connect = move |side: &mut ThreadSide| side.connect(&id, rank, world_size);
            let connected = thread.ask(options.init_timeout, &health, connect);
            connected.map_err(|request_error| match request_error {
                RequestError::TimedOut(elapsed) => {
                    format!("connecting took longer than {elapsed:.1?}")
                }
                request_error => request_error.to_string(),
            })
        }
    };
    let connected = connected.map_err(unavailable);
    agree_on(group, connected, |_| Vec::new(), |_| None)?;
    Ok((thread?, version))
}

fn find(options: &NcclOptions) -> Result<Found> {
    let cuda = Cuda::load(options.cuda_library.as_deref())?;
    let nccl = Nccl::load(options.nccl_library.as_deref())?;
    let uuid = cuda.describe(options.device)?.uuid;
    Ok((Context::retain(&cuda, options.device)?, nccl, uuid))
}

/// All ranks tell each other whether they are ready, which is whether they have `own`. When one is
/// not, or `check` says why the ranks with these reports cannot work together, all ranks return the
/// same error.
fn agree_on<T>(
    group: &mut impl ControlGroup,
    own: Result<T>,
    report: impl FnOnce(&T) -> Vec<u8>,
    check: fn(&[&[u8]]) -> Option<String>,
) -> Result<T> {
    let message = match &own {
        Ok(value) => [vec![0], report(value)].concat(),
        Err(error) => [vec![1], serde_json::to_vec(error).unwrap_or_default()].concat(),
    };
    let all: Gathered<u8> = group.all_gather(&message)?;
    let (mut failures, mut searched) = (Vec::new(), Vec::new());
    for (rank, message) in all.iter().enumerate() {
        if message.first() == Some(&0) {
            continue;
        }
        let (reason, places) = match serde_json::from_slice(message.get(1..).unwrap_or_default()) {
            Ok(CollectiveError::BackendUnavailable {
                reason, searched, ..
            }) => (reason, searched),
            Ok(error) => (error.to_string(), Vec::new()),
            Err(_) => ("it does not say why".to_string(), Vec::new()),
        };
        failures.push(format!("rank {rank}: {reason}"));
        for place in places {
            if !searched.contains(&place) {
                searched.push(place);
            }
        }
    }
    if !failures.is_empty() {
        return Err(CollectiveError::BackendUnavailable {
            backend: "NCCL".to_string(),
            reason: failures.join("; "),
            searched,
        });
    }
    let reports: Vec<&[u8]> = all.iter().map(|message| &message[1..]).collect();
    match check(&reports) {
        None => own,
        Some(reason) => Err(unavailable(reason)),
    }
}

/// Refuses different versions, different sizes of the staging memory, and a GPU with two ranks.
fn same_gpu_and_version(reports: &[&[u8]]) -> Option<String> {
    let word = |report: &[u8], index: usize| {
        let (words, _) = report.as_chunks::<8>();
        words.get(index).map(|word| u64::from_le_bytes(*word))
    };
    for (rank, report) in reports.iter().enumerate() {
        let (first, own) = (word(reports[0], 0)?, word(report, 0)?);
        if first != own {
            let (first, own) = (Version::of_code(first), Version::of_code(own));
            return Some(format!(
                "rank 0 has NCCL {first} and rank {rank} has {own}: install the same"
            ));
        }
        if word(reports[0], 1) != word(report, 1) {
            return Some(format!(
                "rank 0 and rank {rank} have different staging_bytes: give all ranks the same"
            ));
        }
        let same = |other: &&[u8]| other.get(16..) == report.get(16..);
        if let Some(other) = reports[..rank].iter().position(same) {
            return Some(format!(
                "rank {other} and rank {rank} are on one GPU, and NCCL needs one per rank: give \
                 them different ones, or reduce through host memory"
            ));
        }
    }
    None
}

/// Rank 0 makes the id of the communicator, the group carries it to the others.
fn spread_id(group: &mut impl ControlGroup, nccl: &Nccl) -> Result<UniqueId> {
    let made = match group.rank() {
        0 => UniqueId::new(nccl).map_err(|failed| unavailable(failed.to_string())),
        _ => Ok(UniqueId::NONE),
    };
    let mut id = agree_on(group, made, |_| Vec::new(), |_| None)?;
    group.broadcast(0, &mut [(&mut id.0[..]).into()])?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(version: u64, staging: u64, uuid: u8) -> Vec<u8> {
        let mut report = [version, staging].map(u64::to_le_bytes).concat();
        report.extend([uuid; 16]);
        report
    }

    #[test]
    fn ranks_that_cannot_work_together_are_named() {
        let check = |reports: &[Vec<u8>]| {
            let reports: Vec<&[u8]> = reports.iter().map(Vec::as_slice).collect();
            same_gpu_and_version(&reports)
        };
        let version = Version::MIN_NCCL.code();
        assert_eq!(check(&[report(version, 8, 1), report(version, 8, 2)]), None);
        let same = check(&[
            report(version, 8, 1),
            report(version, 8, 2),
            report(version, 8, 1),
        ]);
        assert!(same.is_some_and(|why| why.contains("rank 0 and rank 2 are on one GPU")));
        let versions = check(&[report(version, 8, 1), report(Version::FLOAT8.code(), 8, 2)]);
        assert!(versions.is_some_and(|why| why.contains("rank 1 has 2.24.0")));
        let staging = check(&[report(version, 8, 1), report(version, 9, 2)]);
        assert!(staging.is_some_and(|why| why.contains("staging_bytes")));
    }
}
