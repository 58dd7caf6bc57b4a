//! What the tests of all kernels use.

use burn::tensor::Tensor;

/// The bits of all elements.
pub fn bits<const D: usize>(tensor: &Tensor<D>) -> Vec<u32> {
    let values = tensor.to_data().try_to_vec::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// Numbers that are reproducible and look random.
pub struct Numbers(pub u64);

impl Numbers {
    /// From 0 to 1, without 1.
    pub fn next(&mut self) -> f32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1_u64 << 24) as f32
    }
}
