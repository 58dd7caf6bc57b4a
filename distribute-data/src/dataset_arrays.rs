//! Datasets on top of the readers' arrays.

use burn::tensor::Int;
use distribute_core::{Device, Error, Result, Tensor, TensorData};

use crate::Dataset;
use distribute_readers::Examples;

/// Images and their classes: a batch is `[n, channels, height, width]` in `f32` and `[n]`.
///
/// The readers' images are `[height, width]` or `[height, width, channels]`.
#[derive(Debug, Clone)]
pub struct ImageDataset {
    examples: Examples,
    channels: usize,
    height: usize,
    width: usize,
}

impl ImageDataset {
    /// A dataset of these images.
    ///
    /// # Errors
    /// If the examples are not images with classes as labels.
    pub fn new(examples: Examples) -> Result<Self> {
        expect_classes(&examples)?;
        let (height, width, channels) = match *examples.feature_shape() {
            [height, width] => (height, width, 1),
            [height, width, channels] => (height, width, channels),
            ref other => {
                return Err(Error::invalid(format!(
                    "{}: examples of shape {other:?} are not images; give them the shape \
                     [height, width] or [height, width, channels] with `with_feature_shape`",
                    examples.name()
                )));
            }
        };
        Ok(Self {
            examples,
            channels,
            height,
            width,
        })
    }

    /// The arrays, in host memory.
    pub fn examples(&self) -> &Examples {
        &self.examples
    }

    /// Channels, height and width of an image.
    pub fn image_shape(&self) -> [usize; 3] {
        [self.channels, self.height, self.width]
    }
}

impl Dataset for ImageDataset {
    type Batch = (Tensor<4>, Tensor<1, Int>);

    fn len(&self) -> usize {
        self.examples.len()
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch> {
        let mut values = self.examples.features_f32(indices)?;
        if self.channels > 1 {
            values = channels_first(&values, self.channels, self.height * self.width);
        }
        let shape = [indices.len(), self.channels, self.height, self.width];
        let images = Tensor::from_data(TensorData::new(values, shape), device);
        Ok((images, classes(&self.examples, indices, device)?))
    }
}

/// Copies `[n, pixels, channels]` to `[n, channels, pixels]`.
fn channels_first(values: &[f32], channels: usize, pixels: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(values.len());
    for image in values.chunks_exact(channels * pixels) {
        for channel in 0..channels {
            out.extend(image.iter().skip(channel).step_by(channels));
        }
    }
    out
}

/// Arrays and their classes: a batch is a tensor of rank `D`, `[n, ...]` in `f32`, and `[n]`.
#[derive(Debug, Clone)]
pub struct ArrayDataset<const D: usize> {
    examples: Examples,
}

/// Rows of a table and their classes: a batch is `[n, columns]` in `f32`, and `[n]`.
pub type TabularDataset = ArrayDataset<2>;

impl<const D: usize> ArrayDataset<D> {
    /// A dataset of these arrays. With `D = 2` every example is flattened to a row.
    ///
    /// # Errors
    /// If an example has not `D - 1` dimensions, or the labels are not classes.
    pub fn new(examples: Examples) -> Result<Self> {
        expect_classes(&examples)?;
        let examples = with_rank::<D>(examples)?;
        Ok(Self { examples })
    }

    /// The arrays, in host memory.
    pub fn examples(&self) -> &Examples {
        &self.examples
    }
}

impl<const D: usize> Dataset for ArrayDataset<D> {
    type Batch = (Tensor<D>, Tensor<1, Int>);

    fn len(&self) -> usize {
        self.examples.len()
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch> {
        Ok((
            features(&self.examples, indices, device)?,
            classes(&self.examples, indices, device)?,
        ))
    }
}

/// Arrays and target values (regression, one-hot labels, labels of any shape): a batch is a
/// tensor of rank `D` and one of rank `L`, both `[n, ...]` in `f32`.
#[derive(Debug, Clone)]
pub struct ValueDataset<const D: usize, const L: usize> {
    examples: Examples,
}

impl<const D: usize, const L: usize> ValueDataset<D, L> {
    /// A dataset of these arrays. With `D = 2` every example is flattened to a row.
    ///
    /// # Errors
    /// If an example has not `D - 1` dimensions, or a label has not `L - 1`.
    pub fn new(examples: Examples) -> Result<Self> {
        let examples = with_rank::<D>(examples)?;
        if examples.label_shape().len() + 1 != L {
            return Err(Error::invalid(format!(
                "{}: labels of shape {:?} do not make batches of rank {L}",
                examples.name(),
                examples.label_shape()
            )));
        }
        Ok(Self { examples })
    }

    /// The arrays, in host memory.
    pub fn examples(&self) -> &Examples {
        &self.examples
    }
}

impl<const D: usize, const L: usize> Dataset for ValueDataset<D, L> {
    type Batch = (Tensor<D>, Tensor<L>);

    fn len(&self) -> usize {
        self.examples.len()
    }

    fn batch(&self, indices: &[usize], device: &Device) -> Result<Self::Batch> {
        let labels = self.examples.labels_f32(indices)?;
        let shape = batch_shape(indices, self.examples.label_shape());
        Ok((
            features(&self.examples, indices, device)?,
            Tensor::from_data(TensorData::new(labels, shape), device),
        ))
    }
}

fn with_rank<const D: usize>(examples: Examples) -> Result<Examples> {
    let shape = examples.feature_shape();
    let name = examples.name();
    if examples.is_text() {
        return Err(Error::invalid(format!(
            "{name}: texts; use a `TextDataset`"
        )));
    }
    if D == 2 && shape.len() != 1 {
        let flat = [shape.iter().product()];
        return Ok(examples.with_feature_shape(&flat)?);
    }
    if shape.len() + 1 != D {
        return Err(Error::invalid(format!(
            "{name}: examples of shape {shape:?} do not make batches of rank {D}; change their \
             shape with `with_feature_shape`"
        )));
    }
    Ok(examples)
}

pub(crate) fn expect_classes(examples: &Examples) -> Result<()> {
    if examples.classes().is_some() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{}: the labels are values and not classes; use a `ValueDataset`",
        examples.name()
    )))
}

fn features<const D: usize>(
    examples: &Examples,
    indices: &[usize],
    device: &Device,
) -> Result<Tensor<D>> {
    let values = examples.features_f32(indices)?;
    let shape = batch_shape(indices, examples.feature_shape());
    Ok(Tensor::from_data(TensorData::new(values, shape), device))
}

/// The classes of the examples as `[n]`.
pub(crate) fn classes(
    examples: &Examples,
    indices: &[usize],
    device: &Device,
) -> Result<Tensor<1, Int>> {
    let labels = examples.labels_i64(indices)?;
    let data = TensorData::new(labels, [indices.len()]);
    Ok(Tensor::from_data(data, device))
}

fn batch_shape(indices: &[usize], example: &[usize]) -> Vec<usize> {
    let mut shape = vec![indices.len()];
    shape.extend(example);
    shape
}
