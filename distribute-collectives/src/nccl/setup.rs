//! How the ranks of a group set NCCL up: together, or not at all.

use std::sync::Arc;

use super::control::ControlGroup;
use super::options::NcclOptions;
use super::raw::{Context, Cuda, Nccl, UniqueId};
use super::thread::{NcclThread, RequestError, WaitLimits};
use super::unavailable::{NcclUnavailable, unavailable};
use super::version::Version;
use crate::communicator::{CommunicatorExt, Description, Gathered};
use crate::error::{CollectiveError, Result};
use crate::header::OperationHeader;
use crate::operation::OperationKind;
use crate::options::Order;

/// What is ready when all ranks are.
pub(super) struct Setup {
    pub(super) thread: NcclThread,
    pub(super) version: Version,
}

/// What one rank has found on its machine.
struct LocalInstallation {
    context: Arc<Context>,
    nccl: Arc<Nccl>,
    uuid: [u8; 16],
}

/// Loads the libraries and connects the ranks.
pub(super) fn set_up(group: &mut impl ControlGroup, options: &NcclOptions) -> Result<Setup> {
    options.check(group.world_size())?;
    check_group(&group.describe(), options)?;
    let found = find(options);
    let words = match &found {
        Ok(found) => [found.nccl.version.code(), options.staging_bytes as u64],
        Err(_) => [0; 2],
    };
    let mut report = words.map(u64::to_le_bytes).concat();
    report.extend(found.as_ref().map_or([0; 16], |found| found.uuid));
    let failed = found.as_ref().err().cloned().map(CollectiveError::from);
    agree_on(group, failed, &report, same_gpu_and_version)?;
    let found = found?;
    let id = spread_id(group, &found.nccl)?;
    let (rank, world_size) = (group.rank(), group.world_size());
    let version = found.nccl.version;
    let thread = NcclThread::start(found.context, found.nccl, options.grace);
    let mut thread = thread.map_err(|error| unavailable(format!("it needs a thread: {error}")));
    let header = OperationHeader::new(OperationKind::Barrier, group.describe().generation, 0);
    let connected = match &mut thread {
        Err(error) => Err(error.to_string()),
        Ok(thread) => {
            let limits = WaitLimits {
                timeout: options.init_timeout,
                health: &|| group.health(&header, None),
            };
            let connected = thread.ask(&limits, move |side| side.connect(&id, rank, world_size));
            connected.map_err(|request_error| match request_error {
                RequestError::TimedOut(elapsed) => {
                    format!("connecting took longer than {elapsed:.1?}")
                }
                request_error => request_error.in_words(),
            })
        }
    };
    agree_on(group, connected.err().map(unavailable), &[], |_| None)?;
    Ok(Setup {
        thread: thread?,
        version,
    })
}

/// Refuses what was asked of the group and NCCL does not do.
fn check_group(group: &Description, options: &NcclOptions) -> Result<()> {
    if group.order != Order::Canonical || options.own_order {
        return Ok(());
    }
    let what = "NCCL does not combine in rank order: use Order::Fast, or another transport";
    Err(CollectiveError::InvalidOption {
        what: what.to_string(),
    })
}

fn find(options: &NcclOptions) -> Result<LocalInstallation, NcclUnavailable> {
    let cuda = Cuda::load(options.cuda_library.as_deref())?;
    let nccl = Nccl::load(options.nccl_library.as_deref())?;
    let uuid = cuda.describe(options.device)?.uuid;
    let context = Context::retain(&cuda, options.device)?;
    Ok(LocalInstallation {
        context,
        nccl,
        uuid,
    })
}

/// Why the ranks with these reports cannot work together.
type ReportCheck = fn(&[&[u8]]) -> Option<String>;

/// All ranks tell each other whether they are ready: `failed` says why this one is not. When one is
/// not, or `check` does not accept their reports, all ranks return the same error.
fn agree_on(
    group: &mut impl ControlGroup,
    failed: Option<CollectiveError>,
    report: &[u8],
    check: ReportCheck,
) -> Result<()> {
    let mut message = vec![u8::from(failed.is_some())];
    match &failed {
        Some(error) => message.extend(serde_json::to_vec(error).unwrap_or_default()),
        None => message.extend(report),
    }
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
        None => Ok(()),
        Some(reason) => Err(unavailable(reason)),
    }
}

/// Refuses different versions, different sizes of the staging memory, and a GPU with two ranks.
fn same_gpu_and_version(reports: &[&[u8]]) -> Option<String> {
    let word = |report: &[u8], index: usize| {
        let bytes = report.get(8 * index..8 * index + 8)?;
        bytes.try_into().ok().map(u64::from_le_bytes)
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
        0 => Some(UniqueId::new(nccl)),
        _ => None,
    };
    let (id, failed) = match made {
        None => (None, None),
        Some(Ok(id)) => (Some(id), None),
        Some(Err(failed)) => (None, Some(unavailable(failed.to_string()))),
    };
    let mut bytes = id.map_or([0; UniqueId::BYTES], |id| *id.bytes());
    agree_on(group, failed, &[], |_| None)?;
    group.broadcast(0, &mut [(&mut bytes[..]).into()])?;
    Ok(UniqueId::from_bytes(bytes))
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
