//! Operations that are layers too: pools, and images of another size.

use serde_json::Value;

use super::given::{Given, Refusal, wrong};
use crate::layers::{
    AveragePooling1D, AveragePooling2D, Interpolation, MaxPooling1D, MaxPooling2D, Pooling3D,
    Resizing,
};
use crate::{LayerSpec, Padding, Windows};

/// A pool over this number of axes.
pub(super) fn pool(average: bool, axes: usize, given: &mut Given) -> Result<LayerSpec, Refusal> {
    let sizes = extents(given, "pool_size", axes)?;
    let size = sizes.ok_or("no `pool_size` of this operation")?;
    let strides = extents(given, "strides", axes)?.unwrap_or_else(|| size.clone());
    let padding = match given.text("padding")?.map(|text| text.to_lowercase()) {
        None => Padding::Valid,
        Some(valid) if valid == "valid" => Padding::Valid,
        Some(same) if same == "same" => Padding::Same,
        Some(other) => return Err(wrong("padding", &other.into())),
    };
    let plane = |size: [usize; 2], strides: [usize; 2]| -> LayerSpec {
        let (pool_size, padding) = (size, padding);
        if average {
            AveragePooling2D {
                pool_size,
                strides,
                padding,
            }
            .into()
        } else {
            MaxPooling2D {
                pool_size,
                strides,
                padding,
            }
            .into()
        }
    };
    Ok(match (&size[..], &strides[..]) {
        (&[size], &[stride]) => match plane([1, size], [1, stride]) {
            LayerSpec::AveragePooling2D(row) => AveragePooling1D { row }.into(),
            LayerSpec::MaxPooling2D(row) => MaxPooling1D { row }.into(),
            other => other,
        },
        (&[rows, columns], &[down, right]) => plane([rows, columns], [down, right]),
        (&[a, b, c], &[d, e, f]) => Pooling3D {
            average,
            windows: Windows {
                kernel_size: [a, b, c],
                strides: [d, e, f],
                padding,
                dilation_rate: [1; 3],
            },
        }
        .into(),
        _ => return Err(format!("`pool_size` = {size:?} of this operation")),
    })
}

/// A number for each axis, or one for all; TensorFlow may name the batch and the channels too.
fn extents(given: &mut Given, key: &str, axes: usize) -> Result<Option<Vec<usize>>, Refusal> {
    let Some(numbers) = given.integers(key)? else {
        return Ok(None);
    };
    let refuse = || wrong(key, &Value::from(numbers.clone()));
    let own = match &numbers[..] {
        [one] => vec![*one; axes],
        [1, inner @ .., 1] if inner.len() == axes => inner.to_vec(),
        all if all.len() == axes => all.to_vec(),
        _ => return Err(refuse()),
    };
    let sizes = own.into_iter().map(|size| usize::try_from(size).ok());
    let sizes: Option<Vec<usize>> = sizes.map(|size| size.filter(|size| *size > 0)).collect();
    sizes.map(Some).ok_or_else(refuse)
}

/// `keras.ops.image.resize` and `tf.image.resize`.
pub(super) fn resize(given: &mut Given) -> Result<LayerSpec, Refusal> {
    let size = given.integers("size")?.unwrap_or_default();
    let extent = |size: i64| {
        usize::try_from(size)
            .ok()
            .filter(|n| (1..=1 << 16).contains(n))
    };
    let size = match &size[..] {
        &[rows, columns] => extent(rows).zip(extent(columns)),
        _ => None,
    };
    let (rows, columns) = size.ok_or("`size` of this operation")?;
    let name = given.text("interpolation")?;
    let name = name.unwrap_or_else(|| "bilinear".to_string());
    let interpolation = Interpolation::from_name(&name);
    let interpolation =
        interpolation.ok_or_else(|| wrong("interpolation", &name.clone().into()))?;
    // What stands where `pad_to_aspect_ratio` pads.
    given.value("fill_mode")?;
    given.value("fill_value")?;
    Ok(Resizing {
        size: [rows, columns],
        interpolation,
        crop_to_aspect_ratio: given.flag("crop_to_aspect_ratio")?,
        antialias: given.flag("antialias")?,
    }
    .into())
}
