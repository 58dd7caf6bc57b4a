//! The embedded digits, as items and a batcher.

use burn::tensor::Int;
use distribute::prelude::*;

use crate::harness::{BATCH, Items, integers, rows};

#[derive(Nest, Clone, Debug)]
pub struct Batch {
    /// `[batch, 1, 8, 8]`
    pub images: Tensor<4>,
    pub targets: Tensor<1, Int>,
}

pub type Digit = (Vec<f32>, i64);

fn batch(items: Vec<Digit>, device: &Device) -> Batch {
    let (images, targets): (Vec<_>, Vec<_>) = items.into_iter().unzip();
    Batch {
        images: rows(&images, 64, device).reshape([-1, 1, 8, 8]),
        targets: integers(targets, device),
    }
}

fn loader(digits: impl Dataset<Batch = (Tensor<4>, Tensor<1, Int>)>, count: usize) -> Digits {
    let indices: Vec<usize> = (0..count).collect();
    let (images, labels) = digits.batch(&indices, &Device::flex()).unwrap();
    let images = images.into_data().try_to_vec::<f32>().unwrap();
    let labels = labels.into_data();
    let images = images.chunks(64).map(<[f32]>::to_vec);
    Items::new(images.zip(labels.iter::<i64>()).collect(), batch)
}

pub type Digits = Items<Digit, Batch>;

/// Fifteen batches.
pub fn train() -> Digits {
    let digits = distribute::prelude::Digits::open().unwrap();
    loader(digits.train().unwrap(), 15 * BATCH)
}

/// Four batches.
pub fn test() -> Digits {
    let digits = distribute::prelude::Digits::open().unwrap();
    loader(digits.test().unwrap(), 4 * BATCH)
}
