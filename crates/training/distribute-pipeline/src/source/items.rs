//! Elements that are in memory.

use super::{Source, in_range};
use crate::Result;

/// The elements of a list (TensorFlow: `Dataset.from_tensor_slices`).
///
/// ```
/// use distribute_pipeline::{Source, items};
/// assert_eq!(items(vec!["a", "b"]).get(1)?, "b");
/// # Ok::<(), distribute_pipeline::PipelineError>(())
/// ```
pub fn items<T: Clone + Send + Sync>(items: impl Into<Vec<T>>) -> Items<T> {
    Items {
        items: items.into(),
    }
}

/// [`items`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Items<T> {
    items: Vec<T>,
}

impl<T: Clone + Send + Sync> Source for Items<T> {
    type Item = T;

    fn len(&self) -> u64 {
        self.items.len() as u64
    }

    fn get(&self, index: u64) -> Result<T> {
        in_range("items", index, self.len())?;
        // In range, so it fits.
        Ok(self.items[index as usize].clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract;

    #[test]
    fn keeps_the_contract() {
        contract::check_source(&items(vec!["a", "b", "c"])).unwrap();
    }
}
