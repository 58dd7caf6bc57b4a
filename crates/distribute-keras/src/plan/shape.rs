//! What every layer makes of the shapes that it receives.

use std::fmt;

use crate::spec::{Merge, Windows};
use crate::{LayerSpec, Padding};

/// The shape of one example between two layers, as Keras prints it (without the batch axis).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// `(features)`.
    Flat(usize),
    /// `(steps, features)`.
    Sequence(usize, usize),
    /// `(height, width, channels)`.
    Image(usize, usize, usize),
}

impl Shape {
    /// The extents, channels last.
    pub fn dims(self) -> Vec<usize> {
        match self {
            Self::Flat(n) => vec![n],
            Self::Sequence(steps, features) => vec![steps, features],
            Self::Image(height, width, channels) => vec![height, width, channels],
        }
    }

    /// The number of values of one example.
    pub fn elements(self) -> usize {
        let dims = self.dims().into_iter();
        dims.fold(1, usize::saturating_mul)
    }

    /// The extent of the last axis.
    pub fn features(self) -> usize {
        match self {
            Self::Flat(n) | Self::Sequence(_, n) | Self::Image(_, _, n) => n,
        }
    }

    /// Height, width and channels of an image.
    pub(crate) fn image(self) -> Option<(usize, usize, usize)> {
        match self {
            Self::Image(height, width, channels) => Some((height, width, channels)),
            _ => None,
        }
    }

    pub(super) fn of(dims: &[usize]) -> Option<Self> {
        match *dims {
            [n] => Some(Self::Flat(n)),
            [steps, features] => Some(Self::Sequence(steps, features)),
            [height, width, channels] => Some(Self::Image(height, width, channels)),
            _ => None,
        }
    }

    /// The same with another last axis.
    fn with_features(self, features: usize) -> Self {
        match self {
            Self::Flat(_) => Self::Flat(features),
            Self::Sequence(steps, _) => Self::Sequence(steps, features),
            Self::Image(height, width, _) => Self::Image(height, width, features),
        }
    }

    /// The position in [`dims`](Self::dims) of an axis as Keras counts them, the batch first.
    fn axis(self, axis: i64) -> Option<usize> {
        let rank = self.dims().len();
        match axis {
            1.. => usize::try_from(axis - 1).ok(),
            _ => usize::try_from(axis.unsigned_abs())
                .ok()
                .filter(|back| *back > 0)
                .and_then(|back| rank.checked_sub(back)),
        }
        .filter(|axis| *axis < rank)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", tuple(&self.dims()))
    }
}

/// A shape in parentheses.
pub(super) fn tuple(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("({})", dims.join(", "))
}

fn needs<T>(what: &str, input: Shape) -> Result<T, String> {
    Err(format!("needs {what} gets {input}"))
}

/// Whether a layer takes images alone.
pub(super) fn wants_image(spec: &LayerSpec) -> bool {
    matches!(
        spec,
        LayerSpec::Conv2D { .. }
            | LayerSpec::DepthwiseConv2D { .. }
            | LayerSpec::SeparableConv2D { .. }
            | LayerSpec::MaxPooling2D { .. }
            | LayerSpec::AveragePooling2D { .. }
            | LayerSpec::GlobalAveragePooling2D { .. }
            | LayerSpec::GlobalMaxPooling2D { .. }
            | LayerSpec::ZeroPadding2D { .. }
            | LayerSpec::Cropping2D { .. }
    )
}

/// What a layer makes of the shapes that it receives, or why it cannot.
pub(super) fn output(spec: &LayerSpec, inputs: &[Shape]) -> Result<Shape, String> {
    let several = match spec {
        LayerSpec::Merge(merge) => return merged(*merge, inputs),
        LayerSpec::MultiHeadAttention { output_shape, .. } => {
            return attention(inputs, *output_shape);
        }
        _ => inputs.len(),
    };
    let &[input] = inputs else {
        return Err(format!("needs one value, gets {several}"));
    };
    match input.image() {
        Some(image) if wants_image(spec) => of_image(spec, image),
        None if wants_image(spec) => needs("images (height, width, channels),", input),
        _ => of_any(spec, input),
    }
}

/// What layers that take all shapes, or not images, make of one.
fn of_any(spec: &LayerSpec, input: Shape) -> Result<Shape, String> {
    match (spec, input) {
        (LayerSpec::GlobalAveragePooling1D, Shape::Sequence(_, features)) => {
            Ok(Shape::Flat(features))
        }
        (LayerSpec::GlobalAveragePooling1D, _) => needs("a sequence (steps, features),", input),
        (LayerSpec::Flatten, _) => Ok(Shape::Flat(input.elements())),
        (LayerSpec::Dense { units, .. }, _) => Ok(input.with_features(*units)),
        (LayerSpec::Embedding { output_dim, .. }, Shape::Flat(steps)) => {
            Ok(Shape::Sequence(steps, *output_dim))
        }
        (LayerSpec::Embedding { .. }, _) => needs("token numbers (steps),", input),
        (LayerSpec::Reshape { target_shape }, _) => reshaped(input, target_shape),
        (
            LayerSpec::BatchNormalization { axis, .. }
            | LayerSpec::LayerNormalization { axis, .. }
            | LayerSpec::Normalization { axis, .. },
            _,
        ) if input.axis(*axis) != input.dims().len().checked_sub(1) => Err(format!(
            "`axis` = {axis} is not the last one of {input}, -1; other axes are not supported"
        )),
        (
            LayerSpec::Normalization {
                statistics: Some((mean, variance)),
                ..
            },
            _,
        ) => per_feature(input, "mean", mean)
            .and_then(|()| per_feature(input, "variance", variance))
            .map(|()| input),
        (LayerSpec::Rescaling { scale, offset }, _) => per_feature(input, "scale", scale)
            .and_then(|()| per_feature(input, "offset", offset))
            .map(|()| input),
        (LayerSpec::Dropout { shared, .. }, _)
            if !shared.is_empty() && shared.len() != input.dims().len() + 1 =>
        {
            Err(format!(
                "`noise_shape` has {} axes, the batch among them, and {input} has {} without it",
                shared.len(),
                input.dims().len()
            ))
        }
        _ => Ok(input),
    }
}

/// Refuses an option with another number of values than one, or one per feature.
fn per_feature(input: Shape, name: &str, values: &[f64]) -> Result<(), String> {
    match values.len() == 1 || values.len() == input.features() {
        true => Ok(()),
        false => Err(format!(
            "`{name}` has {} values, {input} has {} features",
            values.len(),
            input.features()
        )),
    }
}

fn of_image(
    spec: &LayerSpec,
    (height, width, channels): (usize, usize, usize),
) -> Result<Shape, String> {
    let size = [height, width];
    let image = |[height, width]: [usize; 2], channels| Ok(Shape::Image(height, width, channels));
    match spec {
        LayerSpec::Conv2D {
            filters,
            windows,
            groups,
            ..
        } => {
            if channels % groups != 0 || filters % groups != 0 {
                return Err(format!(
                    "{channels} channels and {filters} filters cannot be split into {groups} groups"
                ));
            }
            image(windows.of(size)?, *filters)
        }
        LayerSpec::DepthwiseConv2D {
            windows,
            depth_multiplier,
            ..
        } => image(
            windows.of(size)?,
            channels.saturating_mul(*depth_multiplier),
        ),
        LayerSpec::SeparableConv2D {
            filters, windows, ..
        } => image(windows.of(size)?, *filters),
        LayerSpec::MaxPooling2D {
            pool_size,
            strides,
            padding,
        }
        | LayerSpec::AveragePooling2D {
            pool_size,
            strides,
            padding,
        } => image(windows_of(size, *pool_size, *strides, *padding)?, channels),
        LayerSpec::GlobalAveragePooling2D { keepdims: true }
        | LayerSpec::GlobalMaxPooling2D { keepdims: true } => image([1, 1], channels),
        LayerSpec::ZeroPadding2D { padding } => image(padded(size, *padding), channels),
        LayerSpec::Cropping2D { cropping } => image(cropped(size, *cropping)?, channels),
        // The pools over whole images.
        _ => Ok(Shape::Flat(channels)),
    }
}

fn padded(size: [usize; 2], padding: [(usize, usize); 2]) -> [usize; 2] {
    [0, 1].map(|i| {
        let (before, after) = padding[i];
        size[i].saturating_add(before).saturating_add(after)
    })
}

fn cropped(size: [usize; 2], cropping: [(usize, usize); 2]) -> Result<[usize; 2], String> {
    let left = |i: usize| {
        let (start, end) = cropping[i];
        let left = size[i].checked_sub(start)?.checked_sub(end)?;
        (left > 0).then_some(left)
    };
    match (left(0), left(1)) {
        (Some(height), Some(width)) => Ok([height, width]),
        _ => Err(format!("`cropping` leaves nothing of {}", tuple(&size))),
    }
}

fn attention(inputs: &[Shape], output_shape: Option<usize>) -> Result<Shape, String> {
    if !(2..=3).contains(&inputs.len()) {
        return Err(format!(
            "needs a query and a value, and a key or none, gets {} values",
            inputs.len()
        ));
    }
    let shapes = attended(inputs);
    match shapes {
        [
            Shape::Sequence(steps, features),
            Shape::Sequence(values, _),
            Shape::Sequence(keys, _),
        ] if values == keys => Ok(Shape::Sequence(steps, output_shape.unwrap_or(features))),
        [query, value, key] => Err(format!(
            "needs sequences (steps, features), as many values as keys, gets {query}, {value} \
             and {key}"
        )),
    }
}

fn merged(merge: Merge, inputs: &[Shape]) -> Result<Shape, String> {
    let list = || {
        let shapes: Vec<String> = inputs.iter().map(Shape::to_string).collect();
        shapes.join(" and ")
    };
    let (Some(first), true) = (inputs.first(), inputs.len() > 1) else {
        return Err("needs two values or more, gets one".to_string());
    };
    if matches!(merge, Merge::Subtract) && inputs.len() != 2 {
        return Err(format!("needs two values, gets {}", inputs.len()));
    }
    let rank = first.dims().len();
    let along = match merge {
        Merge::Concatenate { axis } => Some(first.axis(axis).ok_or_else(|| {
            format!("`axis` = {axis} is not an axis of {first}; use one from 1 to {rank}, or -1")
        })?),
        _ => None,
    };
    let mut dims = first.dims();
    for input in &inputs[1..] {
        let others = input.dims();
        if others.len() != rank {
            return Err(format!("needs values of one rank, gets {}", list()));
        }
        for (axis, (dim, other)) in dims.iter_mut().zip(others).enumerate() {
            *dim = match along {
                Some(along) if along == axis => dim.saturating_add(other),
                None if *dim == 1 || other == 1 => (*dim).max(other),
                _ if *dim == other => other,
                _ => return Err(format!("needs shapes that fit each other, gets {}", list())),
            };
        }
    }
    Shape::of(&dims).ok_or_else(list)
}

fn reshaped(input: Shape, target: &[Option<usize>]) -> Result<Shape, String> {
    let known = target.iter().flatten().copied();
    let known = known.fold(1, usize::saturating_mul);
    let elements = input.elements();
    let open = target.iter().filter(|extent| extent.is_none()).count();
    let fits = match open {
        0 => known == elements,
        1 => known > 0 && elements.is_multiple_of(known),
        _ => false,
    };
    if !fits {
        return Err(format!(
            "{input} has {elements} values, and `target_shape` other ones"
        ));
    }
    let dims = target
        .iter()
        .map(|extent| extent.unwrap_or(elements / known));
    Shape::of(&dims.collect::<Vec<_>>())
        .ok_or_else(|| "`target_shape` has more than 3 axes, or none".to_string())
}

impl Windows {
    /// Rows and columns that one output sees, from the first to the last.
    pub(crate) fn extent(&self) -> [usize; 2] {
        [0, 1].map(|i| (self.kernel_size[i] - 1).saturating_mul(self.dilation_rate[i]) + 1)
    }

    fn of(&self, size: [usize; 2]) -> Result<[usize; 2], String> {
        windows_of(size, self.extent(), self.strides, self.padding)
    }
}

/// The number of windows along each axis.
fn windows_of(
    input: [usize; 2],
    window: [usize; 2],
    strides: [usize; 2],
    padding: Padding,
) -> Result<[usize; 2], String> {
    let count = |i: usize| match padding {
        Padding::Same => Some(input[i].div_ceil(strides[i])),
        Padding::Valid => Some(input[i].checked_sub(window[i])? / strides[i] + 1),
    };
    match (count(0), count(1)) {
        (Some(rows), Some(columns)) => Ok([rows, columns]),
        _ => Err(format!(
            "a window of {} does not fit into {}; remove a pool or use larger images",
            tuple(&window),
            tuple(&input)
        )),
    }
}

/// The padding before and after each axis (TensorFlow's rule: the odd one goes to the end).
pub(crate) fn pads(
    input: [usize; 2],
    window: [usize; 2],
    strides: [usize; 2],
    padding: Padding,
) -> [(usize, usize); 2] {
    [0, 1].map(|i| match padding {
        Padding::Valid => (0, 0),
        Padding::Same => {
            let count = input[i].div_ceil(strides[i]);
            let total = ((count - 1) * strides[i] + window[i]).saturating_sub(input[i]);
            (total / 2, total - total / 2)
        }
    })
}

/// The axis of a tensor inside of the model, of an axis as Keras counts them: channels are first.
pub(crate) fn tensor_axis(shape: Shape, axis: i64) -> usize {
    match (shape, shape.axis(axis).unwrap_or(0)) {
        (Shape::Image(..), 2) => 1,
        (Shape::Image(..), axis) => axis + 2,
        (_, axis) => axis + 1,
    }
}

/// The query, the value and the key of an attention; the key is the value if there is no other.
pub(super) fn attended(inputs: &[Shape]) -> [Shape; 3] {
    let query = inputs.first().copied().unwrap_or(Shape::Flat(1));
    let value = inputs.get(1).copied().unwrap_or(query);
    [query, value, inputs.get(2).copied().unwrap_or(value)]
}
