//! What the replicas compare before they exchange values, so that those that differ get an error
//! instead of each other's values.

use burn::tensor::TensorData;

use super::turns::Waiting;
use crate::nest::different_structure;
use crate::workers::encoding;
use crate::{Error, Result};

/// Compares the shapes of what the replicas pass to a collective call, and a number that says
/// which call it is; `at` says where a leaf is. The communicator itself compares element counts,
/// which `[2, 3]` and `[3, 2]` share. Gradients of a model skip this: their shapes are the shapes
/// of its parameters.
pub(super) fn compare_shapes(
    link: &Waiting<'_>,
    call: u64,
    leaves: &[TensorData],
    at: impl FnOnce(usize, Error) -> Error,
) -> Result<()> {
    let mut mine = vec![call as i64];
    for leaf in leaves {
        mine.push(leaf.rank() as i64);
        mine.extend(leaf.shape().iter().map(|size| *size as i64));
    }
    let all = link.all_gather(&mine)?;
    let expected = &all[0];
    // Every replica compares the same lists, so all of them return the same error.
    let Some(found) = all.iter().find(|shapes| *shapes != expected) else {
        return Ok(());
    };
    if found[0] != expected[0] {
        return Err(Error::invalid(
            "all_reduce_tensor: the replicas' backward passes reached different calls; use \
             the same results in the loss on every replica",
        ));
    }
    let shapes = |flat| encoding::lists(flat).unwrap_or_default();
    let sizes = |shape: &[i64]| shape.iter().map(|size| *size as usize).collect::<Vec<_>>();
    let (expected, found) = (shapes(&expected[1..]), shapes(&found[1..]));
    let mut pairs = expected.iter().zip(&found).enumerate();
    Err(match pairs.find(|(_, (a, b))| a != b) {
        Some((index, (expected, found))) if expected.len() + found.len() > 0 => {
            let op = "all_reduce: the replicas passed different shapes";
            at(index, Error::shape(op, &sizes(expected), &sizes(found)))
        }
        _ => different_structure(),
    })
}

/// Compares which call the replicas make. It goes through the communicator, so a replica that
/// is in a collective operation or has ended its step instead is found at once as well.
pub(super) fn compare(link: &Waiting<'_>, op: &'static str, detail: i64) -> Result<()> {
    let mut mine = vec![detail];
    mine.extend(op.bytes().map(i64::from));
    let all = link.all_gather(&mine)?;
    let name = |call: &[i64]| -> String {
        let letters = call
            .iter()
            .skip(1)
            .filter_map(|byte| u8::try_from(*byte).ok());
        letters.map(char::from).collect()
    };
    let expected = &all[0];
    match all.iter().position(|call| call != expected) {
        Some(replica) => Err(Error::invalid(format!(
            "the replicas made different cross-replica calls: {}({}) on replica 0, {}({}) on \
             replica {replica}; every replica must make the same ones in the same order",
            name(expected),
            expected[0],
            name(&all[replica]),
            all[replica][0],
        ))),
        None => Ok(()),
    }
}
