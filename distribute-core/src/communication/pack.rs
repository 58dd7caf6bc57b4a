//! TensorFlow's rules for putting many tensors into few buffers.
//!
//! A communicator treats a list of buffers as one operation, so nothing is copied together here:
//! a pack is a run of buffers that travel in one operation.

use std::ops::Range;

use distribute_collectives::{CollectiveError, Result};

/// Cuts a list of tensors into packs by size, in order.
///
/// A new pack starts when there is none yet, or when the current one is already larger than
/// `bytes_per_pack`; so a pack ends just above the limit. With 0 everything is one pack. Element
/// types are not separated. (`cross_device_utils.py::group_by_size`.)
///
/// ```
/// use distribute_core::communication::pack::group_by_size;
///
/// assert_eq!(group_by_size(&[8, 16, 4, 32], 16), [vec![0, 1], vec![2, 3]]);
/// assert_eq!(group_by_size(&[8, 16, 4, 32], 0), [vec![0, 1, 2, 3]]);
/// ```
pub fn group_by_size(sizes_bytes: &[usize], bytes_per_pack: usize) -> Vec<Vec<usize>> {
    if bytes_per_pack == 0 {
        return vec![(0..sizes_bytes.len()).collect()];
    }
    let mut packs: Vec<Vec<usize>> = Vec::new();
    let mut last_pack_bytes = 0;
    for (index, size_bytes) in sizes_bytes.iter().enumerate() {
        match packs.last_mut() {
            Some(pack) if last_pack_bytes <= bytes_per_pack => {
                pack.push(index);
                last_pack_bytes += size_bytes;
            }
            _ => {
                packs.push(vec![index]);
                last_pack_bytes = *size_bytes;
            }
        }
    }
    packs
}

/// The packs of a list of gradients, last gradient first.
///
/// Backpropagation has the last layer's gradients first, so TensorFlow reverses the list before it
/// packs (`cross_device_ops.py::_do_batch_all_reduce_dense`). The ranges are indices into the list
/// as it was given, one pack after the other in the order in which they are reduced.
///
/// ```
/// use distribute_core::communication::pack::reversed_packs;
///
/// assert_eq!(reversed_packs(&[8, 16, 4, 32], 16), [3..4, 1..3, 0..1]);
/// ```
pub fn reversed_packs(sizes_bytes: &[usize], bytes_per_pack: usize) -> Vec<Range<usize>> {
    let reversed: Vec<usize> = sizes_bytes.iter().rev().copied().collect();
    let count = sizes_bytes.len();
    let packs = group_by_size(&reversed, bytes_per_pack);
    let range = |pack: &Vec<usize>| match (pack.first(), pack.last()) {
        (Some(first), Some(last)) => count - 1 - last..count - first,
        _ => 0..0,
    };
    packs.iter().map(range).collect()
}

/// Elements of each pack when `element_count` elements are cut into `num_packs` packs: all but the
/// last have `element_count / num_packs`, the last one takes the rest, so packs may be empty.
/// (`cross_device_ops.py::_ConcatAndSplitPacker`.)
///
/// # Errors
/// [`CollectiveError::InvalidOption`] with TensorFlow's words when `num_packs` is 0.
///
/// ```
/// use distribute_core::communication::pack::concat_and_split;
///
/// assert_eq!(concat_and_split(30, 4)?, [7, 7, 7, 9]);
/// assert_eq!(concat_and_split(2, 3)?, [0, 0, 2]);
/// # Ok::<(), distribute_core::Error>(())
/// ```
pub fn concat_and_split(element_count: usize, num_packs: usize) -> Result<Vec<usize>> {
    if num_packs == 0 {
        let what = "num_packs must be greater than zero.".to_string();
        return Err(CollectiveError::InvalidOption { what });
    }
    let size = element_count / num_packs;
    let mut sizes = vec![size; num_packs];
    sizes[num_packs - 1] = element_count - size * (num_packs - 1);
    Ok(sizes)
}
