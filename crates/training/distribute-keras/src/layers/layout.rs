//! Converts weights from Keras' layout to the layers' layout.

use crate::Weight;

/// (rows, columns, channels, filters) becomes (filters, channels, rows, columns); a window of other
/// axes too.
pub(super) fn filters_first(kernel: Weight) -> Weight {
    let &[ref window @ .., channels, filters] = kernel.shape.as_slice() else {
        return kernel;
    };
    let positions: usize = window.iter().product();
    let mut values = Vec::with_capacity(kernel.values.len());
    for filter in 0..filters {
        for channel in 0..channels {
            for position in 0..positions {
                values.push(kernel.values[(position * channels + channel) * filters + filter]);
            }
        }
    }
    Weight {
        shape: [&[filters, channels], window].concat(),
        values,
    }
}

/// A kernel of a convolution of every channel by itself, (rows, columns, channels, multiplier), as
/// the layout of a convolution with a group per channel: (channels * multiplier, 1, rows, columns).
pub(super) fn depthwise(kernel: Weight) -> Weight {
    let &[rows, columns, channels, multiplier] = kernel.shape.as_slice() else {
        return kernel;
    };
    filters_first(Weight {
        shape: vec![rows, columns, 1, channels * multiplier],
        values: kernel.values,
    })
}

/// The rows of a kernel behind a flattened image, from the order (height, width, channels) to
/// (channels, height, width).
pub(super) fn channels_first_rows(kernel: Weight, image: Option<(usize, usize, usize)>) -> Weight {
    let (Some((height, width, channels)), &[_, outputs]) = (image, kernel.shape.as_slice()) else {
        return kernel;
    };
    let mut values = Vec::with_capacity(kernel.values.len());
    for channel in 0..channels {
        for position in 0..height * width {
            let row = (position * channels + channel) * outputs;
            values.extend_from_slice(&kernel.values[row..row + outputs]);
        }
    }
    Weight {
        shape: kernel.shape,
        values,
    }
}

/// A kernel of an attention as a matrix. Its first `inputs` axes are the rows, the others the
/// columns.
pub(super) fn matrix(kernel: Weight, inputs: usize) -> Weight {
    let (rows, columns) = kernel.shape.split_at(inputs.min(kernel.shape.len()));
    Weight {
        shape: vec![rows.iter().product(), columns.iter().product()],
        values: kernel.values,
    }
}

/// All values in one row.
pub(super) fn row(values: Vec<f32>) -> Weight {
    Weight {
        shape: vec![values.len()],
        values,
    }
}

/// All values in rows of this length.
pub(super) fn rows_of(weight: Weight, length: usize) -> Weight {
    Weight {
        shape: vec![weight.values.len() / length.max(1), length],
        values: weight.values,
    }
}
