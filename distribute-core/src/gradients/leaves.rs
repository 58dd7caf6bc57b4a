//! Gradients as what a step returns: one leaf for each parameter that has one.

use burn::tensor::{DType, Shape, TensorData};

use super::{Gradients, Residence};
use crate::nest::{LeafTensor, Tracking};
use crate::trace::{CapturedTensor, Fingerprint, TensorSpec};
use crate::{Error, Leaf, LeafVisitor, Nest, NestPath, Result};

/// One gradient that there is.
pub(crate) struct GradientLeaf<'a> {
    spec: &'a TensorSpec,
    gradient: &'a mut Residence,
}

impl Leaf for GradientLeaf<'_> {
    fn spec(&self) -> TensorSpec {
        self.spec.clone()
    }

    fn data(&self) -> Result<TensorData> {
        self.gradient.host().cloned()
    }

    fn set_data(&mut self, data: TensorData) -> Result<()> {
        *self.gradient = Residence::Host(data);
        Ok(())
    }

    fn tensor(&mut self) -> Option<&mut dyn LeafTensor> {
        Some(self)
    }

    fn take(&mut self) -> Result<TensorData> {
        if let Residence::Captured(_) | Residence::Compiled = self.gradient {
            self.gradient.host()?;
        }
        let nothing = Residence::Host(empty(self.spec.dtype));
        let gradient = std::mem::replace(self.gradient, nothing);
        gradient.into_host()
    }

    fn put(&mut self, data: TensorData) -> Result<()> {
        if data.shape()[..] != self.spec.shape[..] {
            let op = "put a gradient back: it has the shape of its parameter";
            return Err(Error::shape(op, &self.spec.shape, data.shape()));
        }
        if data.dtype() != self.spec.dtype {
            let op = "put a gradient back: it has the type of its parameter";
            return Err(Error::dtype(op, data.dtype()));
        }
        self.set_data(data)
    }
}

impl LeafTensor for GradientLeaf<'_> {
    fn captured(&self) -> Option<CapturedTensor> {
        self.gradient.captured().cloned()
    }

    fn clear(&mut self) {
        *self.gradient = Residence::Host(empty(self.spec.dtype));
    }

    fn bind(&mut self, tensor: CapturedTensor, _: Tracking) {
        *self.gradient = Residence::Captured(tensor);
    }
}

/// One gradient that there is, to be read only.
pub(crate) struct ReadGradient<'a> {
    spec: &'a TensorSpec,
    gradient: &'a Residence,
}

impl Leaf for ReadGradient<'_> {
    fn spec(&self) -> TensorSpec {
        self.spec.clone()
    }

    fn data(&self) -> Result<TensorData> {
        self.gradient.host().cloned()
    }

    fn put(&mut self, _: TensorData) -> Result<()> {
        Err(Error::invalid("a gradient that is only read was changed"))
    }
}

fn empty(dtype: DType) -> TensorData {
    TensorData::from_bytes_vec(Vec::new(), Shape::new([0]), dtype)
}

impl Gradients {
    /// Which parameters have a gradient.
    pub(super) fn present(&self) -> impl Iterator<Item = bool> {
        self.entries.iter().map(|entry| entry.gradient.is_some())
    }

    /// The gradients that there are, with the numbers of their parameters.
    pub(crate) fn leaves(&mut self) -> impl Iterator<Item = (usize, GradientLeaf<'_>)> {
        self.entries.iter_mut().enumerate().filter_map(|entry| {
            let (index, entry) = entry;
            let leaf = GradientLeaf {
                spec: &entry.spec,
                gradient: entry.gradient.as_mut()?,
            };
            Some((index, leaf))
        })
    }

    /// [`leaves`](Self::leaves), to be read only.
    pub(crate) fn leaves_to_read(&self) -> impl Iterator<Item = (usize, ReadGradient<'_>)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(index, entry)| {
            let gradient = entry.gradient.as_ref()?;
            let spec = &entry.spec;
            Some((index, ReadGradient { spec, gradient }))
        })
    }

    /// Which gradients are tensors of a captured step, or on the devices of a compiled one.
    pub(crate) fn compiled(&self) -> impl Iterator<Item = bool> {
        let is_compiled =
            |gradient: &Residence| matches!(gradient, Residence::Captured(_) | Residence::Compiled);
        let entries = self.entries.iter();
        entries.map(move |entry| entry.gradient.as_ref().is_some_and(is_compiled))
    }

    /// Notes which gradients are on the devices of a compiled step.
    pub(crate) fn on_compiled_devices(mut self, compiled: impl Iterator<Item = bool>) -> Self {
        for (entry, is_compiled) in self.entries.iter_mut().zip(compiled) {
            entry.gradient = is_compiled.then_some(Residence::Compiled);
        }
        self
    }
}

/// One leaf for each parameter that has a gradient, in the order of the parameters. A reduction
/// of the whole needs the same ones on every replica; [`Gradients::all_reduce`] does not.
impl Nest for Gradients {
    fn walk(&mut self, path: &NestPath<'_>, visit: LeafVisitor<'_>) -> Result<()> {
        self.refuse_rows("a result of a step, or a reduction over replicas")?;
        let mut leaves = self.leaves();
        leaves.try_for_each(|(index, mut leaf)| visit(&path.item(index), &mut leaf))
    }

    fn fingerprint(&self, key: &mut dyn Fingerprint) {
        let present: Vec<bool> = self.present().collect();
        key.fixed(format_args!("gradients {present:?}"));
    }

    fn skeleton(&self) -> Option<Self> {
        let mut skeleton = self.without_values();
        for (entry, present) in skeleton.entries.iter_mut().zip(self.present()) {
            entry.gradient = present.then(|| Residence::Host(empty(entry.spec.dtype)));
        }
        Some(skeleton)
    }
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, Param};
    use burn::tensor::{Device, Tensor};

    use super::*;
    use crate::gradients::{Collect, Tape};

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
        (&model,)
            .collect(Tape::of(&loss, &[]).unwrap(), false)
            .unwrap()
            .0
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
            assert_eq!(rebuilt.get(index).unwrap(), expected.get(index).unwrap());
        }
        assert!(rebuilt.get(1).unwrap().is_none());
    }

    #[test]
    fn another_shape_or_type_does_not_fit() {
        let mut found = gradients();
        let leaves = found.take_leaves().unwrap();
        let swapped = leaves.iter().rev().cloned().collect();
        let error = found.put_leaves(swapped).unwrap_err();
        assert!(matches!(error.root_cause(), Error::Shape { .. }), "{error}");
        assert!(
            error.to_string().starts_with("`0`: put a gradient back"),
            "{error}"
        );
        let wide = leaves
            .into_iter()
            .map(|leaf| leaf.convert_dtype(DType::F64));
        let error = found.put_leaves(wide.collect()).unwrap_err();
        assert!(matches!(error.root_cause(), Error::DType { .. }), "{error}");
    }
}
