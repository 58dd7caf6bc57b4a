//! Shapes of all layers for one input, checked before a tensor exists.

use std::fmt;

use crate::{Initializer, LayerSpec, ModelError, ModelSpec, Padding};

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
        self.dims().iter().product()
    }

    fn of(dims: &[usize]) -> Option<Self> {
        match *dims {
            [n] => Some(Self::Flat(n)),
            [steps, features] => Some(Self::Sequence(steps, features)),
            [height, width, channels] => Some(Self::Image(height, width, channels)),
            _ => None,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", tuple(&self.dims()))
    }
}

/// A shape in parentheses.
fn tuple(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("({})", dims.join(", "))
}

/// A model for inputs of one shape: what [`Sequential`](crate::Sequential) is built from.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The model's name.
    pub name: String,
    /// The shape of one example.
    pub input: Shape,
    /// The layers with their shapes.
    pub layers: Vec<PlannedLayer>,
}

/// One layer and its shapes.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedLayer {
    /// The layer.
    pub spec: LayerSpec,
    /// The shape of what it receives.
    pub input: Shape,
    /// The shape of what it gives.
    pub output: Shape,
    /// The Keras shapes of its weights and how they start, in Keras' order.
    pub weights: Vec<(Vec<usize>, Initializer)>,
    /// For a `Dense` layer behind a flattened image: that image, whose values arrive in the order
    /// (channels, height, width) where Keras has (height, width, channels). On a `Flatten` layer:
    /// that no `Dense` layer follows, so the values themselves must be reordered.
    pub flattened: Option<(usize, usize, usize)>,
}

impl PlannedLayer {
    /// The number of trainable numbers.
    pub fn parameters(&self) -> usize {
        let product = |shape: &[usize]| {
            let sizes = shape.iter().copied();
            sizes.fold(1, usize::saturating_mul)
        };
        let counts = self.weights.iter().map(|(shape, _)| product(shape));
        counts.fold(0, usize::saturating_add)
    }
}

impl Plan {
    /// The shape of the model's output.
    pub fn output(&self) -> Shape {
        self.layers.last().map_or(self.input, |layer| layer.output)
    }

    /// The number of trainable numbers.
    pub fn parameters(&self) -> usize {
        let counts = self.layers.iter().map(PlannedLayer::parameters);
        counts.fold(0, usize::saturating_add)
    }
}

impl ModelSpec {
    /// Works out every layer's shapes for examples of the shape `features`.
    ///
    /// An image without a channel axis has one channel if the model wants an axis more.
    ///
    /// # Errors
    /// [`ModelError::Input`] if the model names another shape, [`ModelError::Shape`] for the
    /// first layer that does not fit.
    pub fn plan(&self, features: &[usize]) -> Result<Plan, ModelError> {
        let input = self.input(features)?;
        let mut layers: Vec<PlannedLayer> = Vec::with_capacity(self.layers.len());
        let mut shape = input;
        // The Flatten layer whose features are not in Keras' order yet. Layers that treat every
        // feature alike do not mind; one channel or one pixel has the same order either way.
        let mut pending: Option<(usize, (usize, usize, usize))> = None;
        for (index, spec) in self.layers.iter().enumerate() {
            let error = |what| ModelError::Shape {
                model: self.name.clone(),
                index,
                class: spec.class(),
                what,
            };
            let output = output_shape(spec, shape).map_err(error)?;
            if let (LayerSpec::Embedding { .. }, Some((flatten, image))) = (spec, pending) {
                layers[flatten].flattened = Some(image);
                pending = None;
            }
            let takes = matches!(spec, LayerSpec::Dense { .. });
            let taken = if takes { pending.take() } else { None };
            if let (LayerSpec::Flatten, Shape::Image(height, width, channels)) = (spec, shape)
                && channels > 1
                && height * width > 1
            {
                pending = Some((index, (height, width, channels)));
            }
            layers.push(PlannedLayer {
                weights: weights(spec, shape),
                flattened: taken.map(|(_, image)| image),
                spec: spec.clone(),
                input: shape,
                output,
            });
            shape = output;
        }
        if let Some((flatten, image)) = pending {
            layers[flatten].flattened = Some(image);
        }
        Ok(Plan {
            name: self.name.clone(),
            input,
            layers,
        })
    }

    /// The shape of one example as the first layer sees it.
    fn input(&self, features: &[usize]) -> Result<Shape, ModelError> {
        let mut with_channel = features.to_vec();
        with_channel.push(1);
        let wrong = |expected| ModelError::Input {
            model: self.name.clone(),
            expected,
            found: tuple(features),
        };
        if let Some(declared) = &self.input_shape {
            let fits = |dims: &[usize]| {
                let pairs = declared.iter().zip(dims);
                declared.len() == dims.len()
                    && pairs.clone().all(|(d, x)| d.is_none_or(|d| d == *x))
            };
            let chosen = [features, &with_channel]
                .into_iter()
                .find(|dims| fits(dims));
            let expected = || {
                let dims = declared.iter();
                let dims: Vec<_> = dims
                    .map(|d| d.map_or("any".to_string(), |d| d.to_string()))
                    .collect();
                format!("({})", dims.join(", "))
            };
            return chosen.and_then(Shape::of).ok_or_else(|| wrong(expected()));
        }
        let wants_image = self.layers.iter().find_map(|layer| match layer {
            LayerSpec::Conv2D { .. }
            | LayerSpec::MaxPooling2D { .. }
            | LayerSpec::AveragePooling2D { .. }
            | LayerSpec::GlobalAveragePooling2D => Some(true),
            LayerSpec::Flatten | LayerSpec::Dense { .. } => Some(false),
            _ => None,
        });
        let dims = match features.len() {
            2 if wants_image == Some(true) => &with_channel[..],
            _ => features,
        };
        Shape::of(dims).ok_or_else(|| wrong("1 to 3 axes".to_string()))
    }
}

/// What a layer makes of a shape, or why it cannot.
fn output_shape(spec: &LayerSpec, input: Shape) -> Result<Shape, String> {
    use Shape::{Flat, Image, Sequence};
    let need = |what: &str| Err(format!("needs {what} gets {input}"));
    match (spec, input) {
        (
            LayerSpec::Conv2D {
                filters,
                kernel_size,
                strides,
                padding,
                dilation_rate,
                groups,
                ..
            },
            Image(height, width, channels),
        ) => {
            if channels % groups != 0 || filters % groups != 0 {
                return Err(format!(
                    "{channels} channels and {filters} filters cannot be split into {groups} groups"
                ));
            }
            let window = [0, 1].map(|i| (kernel_size[i] - 1) * dilation_rate[i] + 1);
            let [height, width] = windows([height, width], window, *strides, *padding)?;
            Ok(Image(height, width, *filters))
        }
        (
            LayerSpec::MaxPooling2D {
                pool_size,
                strides,
                padding,
            }
            | LayerSpec::AveragePooling2D {
                pool_size,
                strides,
                padding,
            },
            Image(height, width, channels),
        ) => {
            let [height, width] = windows([height, width], *pool_size, *strides, *padding)?;
            Ok(Image(height, width, channels))
        }
        (LayerSpec::GlobalAveragePooling2D, Image(_, _, channels)) => Ok(Flat(channels)),
        (LayerSpec::GlobalAveragePooling1D, Sequence(_, features)) => Ok(Flat(features)),
        (LayerSpec::GlobalAveragePooling1D, _) => need("a sequence (steps, features),"),
        (LayerSpec::Flatten, shape) => Ok(Flat(shape.elements())),
        (LayerSpec::Dense { units, .. }, Flat(_)) => Ok(Flat(*units)),
        (LayerSpec::Dense { units, .. }, Sequence(steps, _)) => Ok(Sequence(steps, *units)),
        (LayerSpec::Dense { .. }, Image(..)) => {
            need("one axis, put Flatten or GlobalAveragePooling2D before it;")
        }
        (LayerSpec::Embedding { output_dim, .. }, Flat(steps)) => Ok(Sequence(steps, *output_dim)),
        (LayerSpec::Embedding { .. }, _) => need("token numbers (steps),"),
        (
            LayerSpec::Conv2D { .. }
            | LayerSpec::MaxPooling2D { .. }
            | LayerSpec::AveragePooling2D { .. }
            | LayerSpec::GlobalAveragePooling2D,
            _,
        ) => need("images (height, width, channels),"),
        (LayerSpec::Dropout { .. } | LayerSpec::Activation(_), shape) => Ok(shape),
    }
}

/// The number of windows along each axis.
fn windows(
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
pub(crate) fn padding_pairs(
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

/// The Keras shapes of a layer's weights, in the order of `layer.get_weights()`.
fn weights(spec: &LayerSpec, input: Shape) -> Vec<(Vec<usize>, Initializer)> {
    let last = input.dims().last().copied().unwrap_or(1);
    let (kernel, outputs, use_bias, bias_initializer) = match spec {
        LayerSpec::Conv2D {
            filters,
            kernel_size: [rows, columns],
            groups,
            use_bias,
            kernel_initializer,
            bias_initializer,
            ..
        } => (
            (
                vec![*rows, *columns, last / groups, *filters],
                *kernel_initializer,
            ),
            *filters,
            *use_bias,
            *bias_initializer,
        ),
        LayerSpec::Dense {
            units,
            use_bias,
            kernel_initializer,
            bias_initializer,
            ..
        } => (
            (vec![last, *units], *kernel_initializer),
            *units,
            *use_bias,
            *bias_initializer,
        ),
        LayerSpec::Embedding {
            input_dim,
            output_dim,
            embeddings_initializer,
            ..
        } => return vec![(vec![*input_dim, *output_dim], *embeddings_initializer)],
        _ => return Vec::new(),
    };
    let mut weights = vec![kernel];
    if use_bias {
        weights.push((vec![outputs], bias_initializer));
    }
    weights
}
