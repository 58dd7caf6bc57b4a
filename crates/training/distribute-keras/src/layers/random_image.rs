//! `RandomFlip`, `RandomTranslation`, `RandomRotation`, `RandomZoom`, `RandomContrast` and
//! `RandomBrightness`: each image is changed by random numbers of its own in training.

use burn::tensor::{Device, Int};
use distribute_core::uniform;
use rand::Rng;

use super::*;

/// Bounds of a random number.
type Bounds = (f64, f64);

/// A layer that changes images at random in training, and nothing in inference.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum RandomImage {
    /// `keras.layers.RandomFlip`: mirrors half of the images.
    Flip {
        /// Whether left and right are exchanged.
        horizontal: bool,
        /// Whether top and bottom are exchanged.
        vertical: bool,
    },
    /// `keras.layers.RandomTranslation`: moves by parts of height and width.
    Translation {
        /// Bounds of the part of the height.
        height: Bounds,
        /// Bounds of the part of the width.
        width: Bounds,
        /// How places between and outside of the image are filled.
        fill: Fill,
    },
    /// `keras.layers.RandomRotation`: turns by parts of a full turn, counter-clockwise.
    Rotation {
        /// Bounds of the part.
        factor: Bounds,
        /// How places between and outside of the image are filled.
        fill: Fill,
    },
    /// `keras.layers.RandomZoom`: shows more or less of the image; positive numbers show more.
    Zoom {
        /// Bounds of the change of the height.
        height: Bounds,
        /// Bounds of the change of the width; nothing for that of the height.
        width: Option<Bounds>,
        /// How places between and outside of the image are filled.
        fill: Fill,
    },
    /// `keras.layers.RandomContrast`: moves values from or to the mean of their channel.
    Contrast {
        /// The most that the factor is below and above 1.
        factor: Bounds,
        /// What values are cut at.
        range: Bounds,
    },
    /// `keras.layers.RandomBrightness`: adds a number.
    Brightness {
        /// Bounds of the number, as parts of the range of values.
        factor: Bounds,
        /// What values are cut at.
        range: Bounds,
    },
}

/// How places between and outside of an image are filled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fill {
    /// Whether a place between four others is their mean, by distance, or the nearest one.
    pub bilinear: bool,
    /// What is outside.
    pub outside: Outside,
}

/// What is outside of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outside {
    /// The mirrored image (`reflect`).
    Reflect,
    /// The same image again (`wrap`).
    Wrap,
    /// The value at the border (`nearest`).
    Nearest,
    /// A number (`constant`).
    Constant(f64),
}

const BOUNDS: &str = "use a number, or a lower and an upper one";

/// A number for both sides of 0, or two bounds.
fn bounds(fields: &mut Fields<'_>, key: &'static str) -> Result<Option<Bounds>, ModelError> {
    let found = match fields.get(key) {
        None => return Ok(None),
        Some(Json::Array(pair)) => match pair.as_slice() {
            [low, high] => low.as_f64().zip(high.as_f64()),
            _ => None,
        },
        Some(number) => number.as_f64().map(|number| (-number.abs(), number.abs())),
    };
    let found = found.filter(|(low, high)| low <= high && low.abs().max(high.abs()) <= 10.0);
    found.map(Some).ok_or_else(|| fields.refuse(key, BOUNDS))
}

fn needed(fields: &mut Fields<'_>, key: &'static str) -> Result<Bounds, ModelError> {
    bounds(fields, key)?.ok_or_else(|| fields.refuse(key, BOUNDS))
}

fn range(fields: &mut Fields<'_>, default: Bounds) -> Result<Bounds, ModelError> {
    let key = "value_range";
    let pair = match fields.get(key) {
        None => return Ok(default),
        Some(pair) => pair.as_array().map(Vec::as_slice),
    };
    let pair = match pair {
        Some([low, high]) => low.as_f64().zip(high.as_f64()),
        _ => None,
    };
    let pair = pair.filter(|(low, high)| low < high);
    pair.ok_or_else(|| fields.refuse(key, "use a lower and an upper number"))
}

fn fill(fields: &mut Fields<'_>) -> Result<Fill, ModelError> {
    channels_last(fields)?;
    let bilinear = match fields.get("interpolation").map(Json::as_str) {
        None | Some(Some("bilinear")) => true,
        Some(Some("nearest")) => false,
        Some(_) => return Err(fields.refuse("interpolation", "use bilinear or nearest")),
    };
    let value = fields.number("fill_value", 0.0)?;
    let outside = match fields.get("fill_mode").map(Json::as_str) {
        None | Some(Some("reflect")) => Outside::Reflect,
        Some(Some("wrap")) => Outside::Wrap,
        Some(Some("nearest")) => Outside::Nearest,
        Some(Some("constant")) => Outside::Constant(value),
        Some(_) => {
            return Err(fields.refuse("fill_mode", "use reflect, wrap, nearest or constant"));
        }
    };
    Ok(Fill { bilinear, outside })
}

impl KerasLayer for RandomImage {
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        no_seed(fields);
        Ok(match class {
            "RandomFlip" => {
                channels_last(fields)?;
                let mode = fields.get("mode").map(Json::as_str);
                let mode = mode.unwrap_or(Some("horizontal_and_vertical"));
                let (horizontal, vertical) = match mode {
                    Some("horizontal") => (true, false),
                    Some("vertical") => (false, true),
                    Some("horizontal_and_vertical") => (true, true),
                    _ => return Err(fields.refuse("mode", "use horizontal or vertical")),
                };
                Self::Flip {
                    horizontal,
                    vertical,
                }
            }
            "RandomTranslation" => Self::Translation {
                height: needed(fields, "height_factor")?,
                width: needed(fields, "width_factor")?,
                fill: fill(fields)?,
            },
            "RandomRotation" => {
                // Keras 3: ranges of other layers of the same family.
                fields.neutral(&["value_range"]);
                Self::Rotation {
                    factor: needed(fields, "factor")?,
                    fill: fill(fields)?,
                }
            }
            "RandomZoom" => Self::Zoom {
                height: needed(fields, "height_factor")?,
                width: bounds(fields, "width_factor")?,
                fill: fill(fields)?,
            },
            "RandomContrast" => {
                channels_last(fields)?;
                let factor = match fields.get("factor").and_then(Json::as_f64) {
                    Some(number) => (number, number),
                    None => needed(fields, "factor")?,
                };
                Self::Contrast {
                    factor,
                    range: range(fields, (0.0, 255.0))?,
                }
            }
            _ => {
                channels_last(fields)?;
                Self::Brightness {
                    factor: needed(fields, "factor")?,
                    range: range(fields, (0.0, 255.0))?,
                }
            }
        })
    }

    fn class(&self) -> Option<&'static str> {
        Some(match self {
            Self::Flip { .. } => "RandomFlip",
            Self::Translation { .. } => "RandomTranslation",
            Self::Rotation { .. } => "RandomRotation",
            Self::Zoom { .. } => "RandomZoom",
            Self::Contrast { .. } => "RandomContrast",
            Self::Brightness { .. } => "RandomBrightness",
        })
    }

    /// Keras 3 writes the default of these layers; which pass it is says the model.
    fn argument(&self, key: &str, value: &Json, _: &mut Arguments) -> bool {
        (key, value) == ("training", &Json::Bool(true))
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        input.needs_image().map(|_| input)
    }

    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        match pass.training() {
            Some(rng) => x.map_image(|x| Flow::Image(self.changed(x, rng))),
            None => x,
        }
    }

    fn changes_nothing(&self, _: Shape, inference: bool) -> bool {
        inference
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}

impl RandomImage {
    fn changed(&self, x: Tensor<4>, rng: &mut dyn Rng) -> Tensor<4> {
        let device = x.device().without_autodiff();
        let [batch, _, height, width] = x.dims();
        let mut draw = |(low, high): Bounds| {
            let numbers = uniform([batch, 1], rng, &device);
            numbers.mul_scalar(high - low).add_scalar(low)
        };
        match *self {
            Self::Flip {
                horizontal,
                vertical,
            } => {
                let mut x = x;
                for (axis, flips) in [(3, horizontal), (2, vertical)] {
                    if flips {
                        let is_kept = draw((0.0, 1.0)).lower_elem(0.5).reshape([batch, 1, 1, 1]);
                        let other = x.clone().flip([axis]);
                        x = other.mask_where(is_kept.expand(x.dims()), x);
                    }
                }
                x
            }
            Self::Translation {
                height: rows,
                width: columns,
                fill,
            } => {
                let down = draw(rows).mul_scalar(height as f64);
                let right = draw(columns).mul_scalar(width as f64);
                moved(x, fill, |y, x| (y - down, x - right))
            }
            Self::Rotation { factor, fill } => {
                let angle = draw(factor).mul_scalar(std::f64::consts::TAU);
                let (sin, cos) = (angle.clone().sin(), angle.cos());
                moved(x, fill, |y, x| {
                    let rows = x.clone() * sin.clone() + y.clone() * cos.clone();
                    (rows, x * cos - y * sin)
                })
            }
            Self::Zoom {
                height: rows,
                width: columns,
                fill,
            } => {
                let rows = draw(rows).add_scalar(1.0);
                let columns = match columns {
                    Some(columns) => draw(columns).add_scalar(1.0),
                    None => rows.clone(),
                };
                moved(x, fill, |y, x| (y * rows, x * columns))
            }
            Self::Contrast { factor, range } => {
                let factor = draw((1.0 - factor.0, 1.0 + factor.1)).reshape([batch, 1, 1, 1]);
                let mean = x.clone().mean_dim(3).mean_dim(2);
                let dtype = x.dtype();
                ((x - mean.clone()) * factor.cast(dtype) + mean).clamp(range.0, range.1)
            }
            Self::Brightness { factor, range } => {
                let delta = draw(factor).mul_scalar(range.1 - range.0);
                let delta = delta.reshape([batch, 1, 1, 1]).cast(x.dtype());
                (x + delta).clamp(range.0, range.1)
            }
        }
    }
}

/// `count` numbers around 0, one apart, in a row.
fn centred(count: usize, device: &Device) -> Tensor<2> {
    let numbers = Tensor::<1, Int>::arange(0..count as i64, device).float();
    let middle = (count as f64 - 1.0) / 2.0;
    numbers.sub_scalar(middle).reshape([1, count])
}

/// Images whose places show other places: `place` gives of rows and columns, `[batch, places]` and
/// counted from the middle, those that are shown.
fn moved(
    x: Tensor<4>,
    fill: Fill,
    place: impl FnOnce(Tensor<2>, Tensor<2>) -> (Tensor<2>, Tensor<2>),
) -> Tensor<4> {
    let device = x.device().without_autodiff();
    let [batch, channels, height, width] = x.dims();
    let places = height * width;
    let rows = centred(height, &device).reshape([1, height, 1]);
    let columns = centred(width, &device).reshape([1, 1, width]);
    let whole = [batch, height, width];
    let rows = rows.expand(whole).reshape([batch, places]);
    let columns = columns.expand(whole).reshape([batch, places]);
    let (rows, columns) = place(rows, columns);
    let rows = rows.add_scalar((height as f64 - 1.0) / 2.0);
    let columns = columns.add_scalar((width as f64 - 1.0) / 2.0);
    let (rows, columns) = match fill.outside {
        Outside::Wrap => (wrapped(rows, height), wrapped(columns, width)),
        _ => (rows, columns),
    };
    let source = Source {
        values: x.clone().reshape([batch, channels, places]),
        size: [height, width],
        outside: fill.outside,
    };
    let shown = if fill.bilinear {
        let (top, left) = (rows.clone().floor(), columns.clone().floor());
        let (down, right) = (rows - top.clone(), columns - left.clone());
        let mut sum: Option<Tensor<3>> = None;
        for (lower, more) in [(0.0, false), (1.0, true)] {
            for (later, behind) in [(0.0, false), (1.0, true)] {
                let part = |share: &Tensor<2>, is: bool| {
                    if is {
                        share.clone()
                    } else {
                        share.clone().neg().add_scalar(1.0)
                    }
                };
                let share = part(&down, more) * part(&right, behind);
                let share = share.reshape([batch, 1, places]).cast(x.dtype());
                let at = source.at(
                    top.clone().add_scalar(lower),
                    left.clone().add_scalar(later),
                );
                let one = at * share;
                sum = Some(match sum {
                    Some(sum) => sum + one,
                    None => one,
                });
            }
        }
        sum.unwrap_or_else(|| source.values.clone())
    } else {
        source.at(rows.round(), columns.round())
    };
    shown.reshape([batch, channels, height, width])
}

/// The place inside of an axis that is shown at a place outside, by TensorFlow's rule for `wrap`:
/// between the last place and the first one nothing is interpolated.
fn wrapped(at: Tensor<2>, extent: usize) -> Tensor<2> {
    let (all, last) = (extent as f64, extent as f64 - 1.0);
    if extent < 2 {
        return at.mul_scalar(0.0);
    }
    let below = at
        .clone()
        .neg()
        .div_scalar(last)
        .floor()
        .add_scalar(1.0)
        .mul_scalar(all);
    let above = at.clone().div_scalar(last).floor().mul_scalar(all);
    let (is_below, is_above) = (at.clone().lower_elem(0.0), at.clone().greater_elem(last));
    let moved_up = at.clone() + below;
    let moved_down = at.clone() - above;
    let at = at
        .mask_where(is_below, moved_up)
        .mask_where(is_above, moved_down);
    at.clamp(0.0, last)
}

/// The places of images in one row, `[batch, channels, places]`.
struct Source {
    values: Tensor<3>,
    size: [usize; 2],
    outside: Outside,
}

impl Source {
    /// The values at whole rows and columns, `[batch, places]`.
    fn at(&self, rows: Tensor<2>, columns: Tensor<2>) -> Tensor<3> {
        let [batch, channels, _] = self.values.dims();
        let places = rows.dims()[1];
        let [height, width] = self.size.map(|extent| extent as f64);
        let (row, column) = (
            self.inside(rows.clone(), height),
            self.inside(columns.clone(), width),
        );
        let index = row.mul_scalar(width) + column;
        let index = index
            .int()
            .reshape([batch, 1, places])
            .expand([batch, channels, places]);
        let values = self.values.clone().gather(2, index);
        let Outside::Constant(number) = self.outside else {
            return values;
        };
        let is_out = |at: Tensor<2>, extent: f64| {
            let below = at.clone().lower_elem(0.0).float();
            below + at.greater_elem(extent - 1.0).float()
        };
        let out = is_out(rows, height) + is_out(columns, width);
        let out = out.greater_elem(0.0).reshape([batch, 1, places]);
        values.mask_fill(out.expand([batch, channels, places]), number)
    }

    /// The place inside that is shown at a place.
    fn inside(&self, at: Tensor<2>, extent: f64) -> Tensor<2> {
        let again = |at: Tensor<2>, period: f64| {
            at.clone() - at.div_scalar(period).floor().mul_scalar(period)
        };
        let place = match self.outside {
            Outside::Reflect => {
                let once = again(at, 2.0 * extent);
                let back = once.clone().neg().add_scalar(2.0 * extent - 1.0);
                once.min_pair(back)
            }
            Outside::Wrap | Outside::Nearest | Outside::Constant(_) => at,
        };
        place.clamp(0.0, extent - 1.0)
    }
}
