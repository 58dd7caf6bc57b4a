//! How the outputs of other workers' batches get to the chief, where burn's metrics read them.

use std::any::{Any, TypeId, type_name};

use burn::tensor::kind::Basic;
use burn::tensor::{Device, Tensor, TensorData};
use burn_train::{
    ClassificationOutput, MultiLabelClassificationOutput, RegressionOutput, SequenceOutput,
};
use distribute_core::{Error, Result};

/// An output of a training step that can travel to the chief, where burn's metrics read it.
///
/// burn's own outputs are, and `()`. One of your own needs this where there are several workers,
/// and [`LearnerStrategy::with_output`](crate::LearnerStrategy::with_output) with its type.
///
/// ```
/// use burn::tensor::{Device, Tensor, TensorData};
/// use distribute_core::{Error, Result};
/// use distribute_learner::GatheredOutput;
///
/// struct Losses(Tensor<1>);
///
/// impl GatheredOutput for Losses {
///     fn into_tensors(self) -> Result<Vec<TensorData>> {
///         Ok(vec![self.0.try_into_data().map_err(Error::internal)?])
///     }
///
///     fn from_tensors(tensors: Vec<TensorData>, device: &Device) -> Result<Self> {
///         let [losses] = <[TensorData; 1]>::try_from(tensors)
///             .map_err(|found| Error::invalid(format!("{} tensors, not 1", found.len())))?;
///         Ok(Self(Tensor::from_data(losses, device)))
///     }
/// }
///
/// let device = Device::flex();
/// let sent = Losses(Tensor::from_data([0.5, 2.0], &device)).into_tensors()?;
/// let received = Losses::from_tensors(sent, &device)?;
/// assert_eq!(received.0.into_data(), TensorData::from([0.5_f32, 2.0]));
/// # Ok::<(), Error>(())
/// ```
pub trait GatheredOutput: Sized + 'static {
    /// Its tensors, on the worker that made it; waits for them.
    ///
    /// # Errors
    /// If a device cannot hand them out.
    fn into_tensors(self) -> Result<Vec<TensorData>>;

    /// The output of these tensors, on the chief; `device` is without autodiff.
    ///
    /// # Errors
    /// If they are not the tensors of such an output.
    fn from_tensors(tensors: Vec<TensorData>, device: &Device) -> Result<Self>;
}

/// The types of outputs that can travel.
#[derive(Debug, Clone)]
pub(crate) struct Outputs(Vec<Codec>);

/// An output of any type.
type AnyOutput = Box<dyn Any>;

/// One type, and how it travels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Codec {
    of: TypeId,
    pack: fn(AnyOutput) -> Result<Vec<TensorData>>,
    unpack: fn(Vec<TensorData>, &Device) -> Result<AnyOutput>,
}

impl Default for Outputs {
    fn default() -> Self {
        Self(vec![
            Codec::of::<()>(),
            Codec::of::<ClassificationOutput>(),
            Codec::of::<MultiLabelClassificationOutput>(),
            Codec::of::<RegressionOutput>(),
            Codec::of::<SequenceOutput>(),
        ])
    }
}

impl Outputs {
    pub(crate) fn add<O: GatheredOutput>(&mut self) {
        self.0.push(Codec::of::<O>());
    }

    /// How outputs of this type travel.
    ///
    /// # Errors
    /// If nothing says how.
    pub(crate) fn find<O: 'static>(&self) -> Result<Codec> {
        let wanted = TypeId::of::<O>();
        let mut known = self.0.iter().filter(|codec| codec.of == wanted);
        known.next().copied().ok_or_else(|| {
            let name = type_name::<O>();
            Error::invalid(format!(
                "the chief's metrics are over the batches of all workers, but the output `{name}` \
                 of a step cannot travel to it: implement `GatheredOutput` for it and name it to \
                 the strategy with `LearnerStrategy::with_output`"
            ))
        })
    }
}

impl Codec {
    fn of<O: GatheredOutput>() -> Self {
        Self {
            of: TypeId::of::<O>(),
            pack: |output| {
                output
                    .downcast::<O>()
                    .map_err(|_| other_type())?
                    .into_tensors()
            },
            unpack: |tensors, device| Ok(Box::new(O::from_tensors(tensors, device)?)),
        }
    }

    /// The tensors of an output.
    pub(crate) fn pack<O: 'static>(&self, output: O) -> Result<Vec<TensorData>> {
        (self.pack)(Box::new(output))
    }

    /// The output with these tensors.
    pub(crate) fn unpack<O: 'static>(
        &self,
        tensors: Vec<TensorData>,
        device: &Device,
    ) -> Result<O> {
        let output = (self.unpack)(tensors, device)?.downcast::<O>();
        output.map(|output| *output).map_err(|_| other_type())
    }
}

fn other_type() -> Error {
    Error::invalid("an output of another type than the model's")
}

fn other_tensors() -> Error {
    Error::invalid(
        "an output arrived without the tensors of its type: run the same program on all workers",
    )
}

fn data<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Result<TensorData> {
    tensor.try_into_data().map_err(Error::internal)
}

fn tensor<const D: usize, K: Basic>(data: TensorData, device: &Device) -> Result<Tensor<D, K>> {
    if data.shape().num_dims() != D {
        return Err(other_tensors());
    }
    let dtype = data.dtype();
    Ok(Tensor::from_data(data, (device, dtype)))
}

/// A field of an output from the tensors that are left.
fn next<const D: usize, K: Basic>(
    tensors: &mut impl Iterator<Item = TensorData>,
    device: &Device,
) -> Result<Tensor<D, K>> {
    tensor(tensors.next().ok_or_else(other_tensors)?, device)
}

impl GatheredOutput for () {
    fn into_tensors(self) -> Result<Vec<TensorData>> {
        Ok(Vec::new())
    }

    fn from_tensors(_: Vec<TensorData>, _: &Device) -> Result<Self> {
        Ok(())
    }
}

/// The same for an output that is made of tensors.
macro_rules! of_tensors {
    ($($output:ident { $($field:ident),+ })+) => {$(
        impl GatheredOutput for $output {
            fn into_tensors(self) -> Result<Vec<TensorData>> {
                Ok(vec![$(data(self.$field)?),+])
            }

            fn from_tensors(tensors: Vec<TensorData>, device: &Device) -> Result<Self> {
                let mut tensors = tensors.into_iter();
                Ok(Self { $($field: next(&mut tensors, device)?),+ })
            }
        }
    )+};
}

of_tensors! {
    ClassificationOutput { loss, output, targets }
    MultiLabelClassificationOutput { loss, output, targets }
    RegressionOutput { loss, output, targets }
}

impl GatheredOutput for SequenceOutput {
    fn into_tensors(self) -> Result<Vec<TensorData>> {
        let mut tensors = vec![data(self.loss)?, data(self.logits)?, data(self.targets)?];
        tensors.extend(self.predictions.map(data).transpose()?);
        Ok(tensors)
    }

    fn from_tensors(tensors: Vec<TensorData>, device: &Device) -> Result<Self> {
        let mut tensors = tensors.into_iter();
        Ok(Self {
            loss: next(&mut tensors, device)?,
            logits: next(&mut tensors, device)?,
            targets: next(&mut tensors, device)?,
            predictions: tensors
                .next()
                .map(|data| tensor(data, device))
                .transpose()?,
        })
    }
}
