//! Gradients as what a step returns: one leaf for each parameter that has one.

use burn::tensor::{DType, Shape, TensorData};

use super::{Gradients, Place};
use crate::trace::{
    CapturedGradients, CapturedTensor, Fingerprint, TensorSpec, TraceError, TracedTensor,
};
use crate::{Error, Leaf, Nest, Result};

/// The place of one gradient: on the host, or a tensor of a captured step.
pub(crate) struct GradientPlace<'a> {
    pub(crate) spec: TensorSpec,
    pub(crate) data: Place<'a>,
    pub(crate) captured: &'a mut Option<CapturedTensor>,
}

impl TracedTensor for GradientPlace<'_> {
    fn spec(&self) -> TensorSpec {
        self.spec.clone()
    }

    fn data(&self) -> Result<TensorData> {
        let missing = || Error::invalid("a gradient that is not on the host");
        self.data.clone().ok_or_else(missing)
    }

    fn set_data(&mut self, data: TensorData) -> Result<()> {
        *self.data = Some(data);
        Ok(())
    }

    fn bind(&mut self, tensor: CapturedTensor) {
        *self.data = None;
        *self.captured = Some(tensor);
    }

    fn captured(&self) -> Option<CapturedTensor> {
        self.captured.clone()
    }
}

fn empty(dtype: DType) -> TensorData {
    TensorData::from_bytes_vec(Vec::new(), Shape::new([0]), dtype)
}

impl Leaf for GradientPlace<'_> {
    fn take(&mut self) -> Result<TensorData> {
        if self.captured.is_some() {
            return Err(TraceError::host_read("a gradient").into());
        }
        let nothing = empty(self.spec.dtype);
        let data = self.data.replace(nothing);
        data.ok_or_else(|| Error::invalid("a gradient that is not on the host"))
    }

    fn put(&mut self, data: TensorData) -> Result<()> {
        if data.shape()[..] != self.spec.shape[..] {
            return Err(Error::Shape {
                op: "put a gradient back: it has the shape of its parameter",
                expected: self.spec.shape.clone(),
                found: data.shape().to_vec(),
            });
        }
        if data.dtype() != self.spec.dtype {
            return Err(Error::DType {
                op: "put a gradient back: it has the type of its parameter",
                dtype: data.dtype().name().to_string(),
            });
        }
        *self.captured = None;
        self.set_data(data)
    }

    fn traced(&mut self) -> Option<&mut dyn TracedTensor> {
        Some(self)
    }
}

impl Gradients {
    /// Which parameters have a gradient.
    fn present(&self) -> impl Iterator<Item = bool> {
        let captured = |index: usize| {
            let found = self.captured.as_ref();
            found.is_some_and(|found| found.tensors.get(index).is_some_and(Option::is_some))
        };
        let entries = self.entries.iter().enumerate();
        entries.map(move |(index, entry)| entry.is_present() || captured(index))
    }
}

/// One leaf for each parameter that has a gradient, in the order of the parameters. A reduction
/// of the whole needs the same ones on every replica; [`Gradients::all_reduce`] does not.
impl Nest for Gradients {
    fn walk(&mut self, visit: &mut dyn FnMut(&mut dyn Leaf) -> Result<()>) -> Result<()> {
        self.refuse_rows("a result of a step, or a reduction over replicas")?;
        self.check()?;
        self.bring_to_host()?;
        let captured = self.captured.take();
        let mut captured = captured.map_or_else(Vec::new, |found| found.tensors);
        captured.resize(self.len(), None);
        let visited = self.places().zip(&mut captured);
        let visited = visited
            .map(|((shape, dtype, data), captured)| GradientPlace {
                spec: TensorSpec { shape, dtype },
                data,
                captured,
            })
            .filter(|place| place.data.is_some() || place.captured.is_some())
            .try_for_each(|mut place| visit(&mut place));
        if captured.iter().any(Option::is_some) {
            self.captured = Some(CapturedGradients { tensors: captured });
        }
        visited
    }

    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        let present: Vec<bool> = self.present().collect();
        key.fixed(format_args!("gradients {present:?}"));
    }

    fn skeleton(&self) -> Option<Self> {
        let mut skeleton = self.without_values();
        for (entry, present) in skeleton.entries.iter_mut().zip(self.present()) {
            entry.data = present.then(|| empty(entry.dtype));
        }
        Some(skeleton)
    }
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, Param};
    use burn::tensor::{Device, Tensor};

    use super::*;

    #[derive(Module, Debug)]
    struct Model {
        used: Param<Tensor<2>>,
        unused: Param<Tensor<1>>,
        bias: Param<Tensor<1>>,
    }

    fn gradients() -> Gradients {
        let device = Device::flex().autodiff();
        let model = Model {
            used: Param::from_tensor(Tensor::ones([2, 3], &device).require_grad()),
            unused: Param::from_tensor(Tensor::ones([4], &device).require_grad()),
            bias: Param::from_tensor(Tensor::ones([3], &device).require_grad()),
        };
        let loss = model.used.val().sum() + model.bias.val().mul_scalar(2.0).sum();
        Gradients::compute(&loss, &model, &[], false).unwrap()
    }

    #[test]
    fn they_are_built_again_from_a_skeleton() {
        let mut found = gradients();
        let mut rebuilt = found.skeleton().unwrap();
        let leaves = found.take_leaves().unwrap();
        assert_eq!(leaves.len(), 2, "one parameter has none");
        rebuilt.put_leaves(leaves).unwrap();
        let expected = gradients();
        assert_eq!(rebuilt.len(), 3);
        for index in 0..3 {
            assert_eq!(rebuilt.get(index), expected.get(index));
        }
        assert!(rebuilt.get(1).is_none());
    }

    #[test]
    fn another_shape_or_type_does_not_fit() {
        let mut found = gradients();
        let leaves = found.take_leaves().unwrap();
        let swapped = leaves.iter().rev().cloned().collect();
        let error = found.put_leaves(swapped).unwrap_err();
        assert!(matches!(error, Error::Shape { .. }), "{error}");
        let wide = leaves
            .into_iter()
            .map(|leaf| leaf.convert_dtype(DType::F64));
        let error = found.put_leaves(wide.collect()).unwrap_err();
        assert!(matches!(error, Error::DType { .. }), "{error}");
    }
}
