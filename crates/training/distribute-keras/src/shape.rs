//! The shape of one example between two layers.

use std::fmt;

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
    /// `(depth, height, width, channels)`.
    Volume(usize, usize, usize, usize),
    /// Any other number of axes: none, or up to 6.
    Other(Extents),
}

/// The most axes that an example may have.
pub const MOST_AXES: usize = 6;

/// The extents of an example with another number of axes than 1 to 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extents {
    axes: usize,
    extents: [usize; MOST_AXES],
}

impl Extents {
    fn of(dims: &[usize]) -> Option<Self> {
        let mut extents = [1; MOST_AXES];
        extents.get_mut(..dims.len())?.copy_from_slice(dims);
        Some(Self {
            axes: dims.len(),
            extents,
        })
    }

    fn dims(&self) -> &[usize] {
        &self.extents[..self.axes]
    }
}

impl Shape {
    /// The extents, channels last.
    pub fn dims(self) -> Vec<usize> {
        match self {
            Self::Flat(n) => vec![n],
            Self::Sequence(steps, features) => vec![steps, features],
            Self::Image(height, width, channels) => vec![height, width, channels],
            Self::Volume(depth, height, width, channels) => vec![depth, height, width, channels],
            Self::Other(extents) => extents.dims().to_vec(),
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
            Self::Flat(n)
            | Self::Sequence(_, n)
            | Self::Image(_, _, n)
            | Self::Volume(_, _, _, n) => n,
            Self::Other(extents) => extents.dims().last().copied().unwrap_or(1),
        }
    }

    /// Height, width and channels of what is channels-first inside: of a volume, the rows of all
    /// its layers.
    pub(crate) fn channels_first(self) -> Option<(usize, usize, usize)> {
        match self {
            Self::Image(height, width, channels) => Some((height, width, channels)),
            Self::Volume(depth, height, width, channels) => {
                Some((depth.saturating_mul(height), width, channels))
            }
            _ => None,
        }
    }

    /// Steps and features, or why a layer of sequences does not take this.
    pub(crate) fn needs_sequence(self) -> Result<(usize, usize), String> {
        match self {
            Self::Sequence(steps, features) => Ok((steps, features)),
            _ => Err(format!("needs a sequence (steps, features), gets {self}")),
        }
    }

    /// Depth, height and width, and the channels, or why a layer of volumes does not take this.
    pub(crate) fn needs_volume(self) -> Result<([usize; 3], usize), String> {
        match self {
            Self::Volume(depth, height, width, channels) => Ok(([depth, height, width], channels)),
            _ => Err(format!(
                "needs volumes (depth, height, width, channels), gets {self}"
            )),
        }
    }

    /// Height, width and channels of an image.
    pub(crate) fn image(self) -> Option<(usize, usize, usize)> {
        match self {
            Self::Image(height, width, channels) => Some((height, width, channels)),
            _ => None,
        }
    }

    /// Height, width and channels, or why a layer of images does not take this.
    pub(crate) fn needs_image(self) -> Result<(usize, usize, usize), String> {
        let why = || format!("needs images (height, width, channels), gets {self}");
        self.image().ok_or_else(why)
    }

    /// The shape of an example with these extents, of which there may be [`MOST_AXES`].
    pub(crate) fn of(dims: &[usize]) -> Option<Self> {
        match *dims {
            [n] => Some(Self::Flat(n)),
            [steps, features] => Some(Self::Sequence(steps, features)),
            [height, width, channels] => Some(Self::Image(height, width, channels)),
            [depth, height, width, channels] => Some(Self::Volume(depth, height, width, channels)),
            _ => Extents::of(dims).map(Self::Other),
        }
    }

    /// The same with another last axis.
    pub(crate) fn with_features(self, features: usize) -> Self {
        match self {
            Self::Flat(_) => Self::Flat(features),
            Self::Sequence(steps, _) => Self::Sequence(steps, features),
            Self::Image(height, width, _) => Self::Image(height, width, features),
            Self::Volume(depth, height, width, _) => Self::Volume(depth, height, width, features),
            Self::Other(mut extents) => {
                if let Some(last) = extents.axes.checked_sub(1) {
                    extents.extents[last] = features;
                }
                Self::Other(extents)
            }
        }
    }

    /// The position in [`dims`](Self::dims) of an axis as Keras counts them, the batch first.
    pub(crate) fn axis(self, axis: i64) -> Option<usize> {
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

    /// The axis of a tensor inside of the model, of an axis as Keras counts them: channels are
    /// first.
    pub(crate) fn tensor_axis(self, axis: i64) -> usize {
        match (self, self.axis(axis).unwrap_or(0)) {
            (Self::Image(..), 2) | (Self::Volume(..), 3) => 1,
            (Self::Image(..) | Self::Volume(..), axis) => axis + 2,
            (_, axis) => axis + 1,
        }
    }

    /// Refuses an axis of features that is not the last one.
    pub(crate) fn needs_last(self, axis: i64) -> Result<(), String> {
        if self.axis(axis) == self.dims().len().checked_sub(1) {
            Ok(())
        } else {
            Err(format!(
                "`axis` = {axis} is not the last one of {self}, -1; other axes are not supported"
            ))
        }
    }

    /// Refuses an option with another number of values than one, or one per feature.
    pub(crate) fn needs_per_feature(self, name: &str, values: &[f64]) -> Result<(), String> {
        if values.len() == 1 || values.len() == self.features() {
            Ok(())
        } else {
            Err(format!(
                "`{name}` has {} values, {self} has {} features",
                values.len(),
                self.features()
            ))
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", tuple(&self.dims()))
    }
}

/// A shape in parentheses.
pub(crate) fn tuple(dims: &[usize]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("({})", dims.join(", "))
}
