//! `Resizing`.

use burn::tensor::{Device, TensorData};

use super::*;

/// `keras.layers.Resizing`: images of another size (TensorFlow: `tf.image.resize`).
#[derive(Debug, Clone, PartialEq)]
pub struct Resizing {
    /// Rows and columns of the result.
    pub size: [usize; 2],
    /// How places between others get their values.
    pub interpolation: Interpolation,
    /// Whether the middle of the image with the aspect ratio of the result is taken.
    pub crop_to_aspect_ratio: bool,
    /// Whether a smaller image has the mean of all places, and not of the nearest ones alone.
    pub antialias: bool,
}

/// How places between others get their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interpolation {
    /// From the nearest place.
    Nearest,
    /// From two places of each axis, by distance.
    Bilinear,
    /// From four places of each axis (Keys, 1981).
    Bicubic,
    /// From the places up to 3 away, by a windowed sine (Lanczos).
    Lanczos3,
    /// From the places up to 5 away.
    Lanczos5,
}

impl Interpolation {
    /// The interpolation with this name in Keras and TensorFlow.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "bilinear" => Self::Bilinear,
            "nearest" => Self::Nearest,
            "bicubic" => Self::Bicubic,
            "lanczos3" => Self::Lanczos3,
            "lanczos5" => Self::Lanczos5,
            _ => return None,
        })
    }

    /// How far a place may be away that counts, and how much it counts at a distance.
    fn kernel(self) -> (f64, fn(f64) -> f64) {
        match self {
            Self::Nearest | Self::Bilinear => (1.0, |x| (1.0 - x).max(0.0)),
            Self::Bicubic => (2.0, keys),
            Self::Lanczos3 => (3.0, |x| lanczos(x, 3.0)),
            Self::Lanczos5 => (5.0, |x| lanczos(x, 5.0)),
        }
    }
}

/// The windowed sine of Lanczos.
fn lanczos(distance: f64, radius: f64) -> f64 {
    let x = std::f64::consts::PI * distance;
    if distance < 1e-3 {
        1.0
    } else if distance > radius {
        0.0
    } else {
        radius * x.sin() * (x / radius).sin() / (x * x)
    }
}

impl KerasLayer for Resizing {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        fields.must_be("pad_to_aspect_ratio", false, "set it to false")?;
        fields.neutral(&["fill_mode", "fill_value"]);
        let named = fields.get("interpolation").map(Json::as_str);
        let interpolation = match named.unwrap_or(Some("bilinear")) {
            Some(name) => Interpolation::from_name(name),
            None => None,
        };
        let remedy = "use bilinear, nearest, bicubic, lanczos3 or lanczos5";
        let interpolation = interpolation.ok_or_else(|| fields.refuse("interpolation", remedy))?;
        Ok(Self {
            size: [count(fields, "height")?, count(fields, "width")?],
            interpolation,
            crop_to_aspect_ratio: fields.flag("crop_to_aspect_ratio", false)?,
            antialias: fields.flag("antialias", false)?,
        })
    }

    /// Keras 3 writes the default of these layers; which pass it is says the model.
    fn argument(&self, key: &str, value: &Json, _: &mut Arguments) -> bool {
        (key, value) == ("training", &Json::Bool(true))
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (_, _, channels) = input.needs_image()?;
        Ok(Shape::Image(self.size[0], self.size[1], channels))
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        x.map_image(|x| Flow::Image(self.resized(x)))
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}

impl Resizing {
    pub(super) fn resized(&self, x: Tensor<4>) -> Tensor<4> {
        let x = if self.crop_to_aspect_ratio {
            self.cropped(x)
        } else {
            x
        };
        let [batch, channels, height, width] = x.dims();
        let [rows, columns] = self.size;
        let device = x.device().without_autodiff();
        let dtype = x.dtype();
        let matrix = |from, to| self.matrix(from, to, &device).cast(dtype);
        // Every row of places becomes one of `columns`, then every column one of `rows`.
        let wide = x
            .reshape([batch * channels * height, width])
            .matmul(matrix(width, columns));
        let tall = wide
            .reshape([batch * channels, height, columns])
            .swap_dims(1, 2);
        let tall = tall
            .reshape([batch * channels * columns, height])
            .matmul(matrix(height, rows));
        let tall = tall
            .reshape([batch * channels, columns, rows])
            .swap_dims(1, 2);
        tall.reshape([batch, channels, rows, columns])
    }

    /// The middle of the image with the aspect ratio of the result.
    fn cropped(&self, x: Tensor<4>) -> Tensor<4> {
        let [_, _, height, width] = x.dims();
        let [rows, columns] = self.size.map(|extent| extent as f64);
        let (tall, wide) = (height as f64, width as f64);
        let crop_rows = ((wide * rows / columns) as usize).clamp(1, height);
        let crop_columns = ((tall * columns / rows) as usize).clamp(1, width);
        let top = ((height - crop_rows) as f64 / 2.0) as usize;
        let left = ((width - crop_columns) as f64 / 2.0) as usize;
        x.narrow(2, top, crop_rows).narrow(3, left, crop_columns)
    }

    /// What every new place has of every old one: `[from, to]`.
    fn matrix(&self, from: usize, to: usize, device: &Device) -> Tensor<2> {
        let mut values = vec![0_f32; from * to];
        let scale = from as f64 / to as f64;
        for place in 0..to {
            let centre = (place as f64 + 0.5) * scale;
            let shares = match self.interpolation {
                Interpolation::Lanczos3 | Interpolation::Lanczos5 => self.wide(centre, scale, from),
                Interpolation::Nearest => self.shares(centre, from),
                _ if self.antialias => self.wide(centre, scale, from),
                _ => self.shares(centre, from),
            };
            for (source, share) in shares {
                values[source * to + place] += share as f32;
            }
        }
        Tensor::from_data(TensorData::new(values, [from, to]), device)
    }

    /// The places around a position by the kernel of the interpolation, which is as wide as a new
    /// place if they are fewer (TensorFlow: `ScaleAndTranslate`).
    fn wide(&self, centre: f64, scale: f64, extent: usize) -> Vec<(usize, f64)> {
        let (radius, kernel) = self.interpolation.kernel();
        let width = if self.antialias { scale.max(1.0) } else { 1.0 };
        let first = (centre - radius * width - 0.5).ceil().max(0.0) as usize;
        let last = (centre + radius * width - 0.5).floor().max(0.0) as usize;
        let places = first..=last.min(extent - 1);
        let share = |place: usize| kernel(((place as f64 + 0.5 - centre) / width).abs());
        let shares: Vec<(usize, f64)> = places.map(|place| (place, share(place))).collect();
        let sum: f64 = shares.iter().map(|(_, share)| share).sum();
        let whole = |(place, share)| (place, share / sum);
        shares.into_iter().map(whole).collect()
    }

    /// The places around a position, and how much each counts; places are half a unit wide on
    /// either side.
    fn shares(&self, centre: f64, extent: usize) -> Vec<(usize, f64)> {
        let inside = |place: f64| (place.max(0.0) as usize).min(extent - 1);
        if self.interpolation == Interpolation::Nearest {
            return vec![(inside(centre.floor()), 1.0)];
        }
        let position = centre - 0.5;
        let (first, rest) = (position.floor(), position - position.floor());
        if self.interpolation == Interpolation::Bilinear {
            return vec![(inside(first), 1.0 - rest), (inside(first + 1.0), rest)];
        }
        // TensorFlow looks the shares up in a table of this many places.
        let rest = (rest * TABLE).round_ties_even() / TABLE;
        let shares = (-1..3).map(|step| {
            let step = f64::from(step);
            (first + step, keys((rest - step).abs()))
        });
        // Places outside do not count.
        let there: Vec<(f64, f64)> = shares
            .filter(|(place, _)| (0.0..extent as f64).contains(place))
            .collect();
        let sum: f64 = there.iter().map(|(_, share)| share).sum();
        there
            .into_iter()
            .map(|(place, share)| (inside(place), share / sum))
            .collect()
    }
}

const TABLE: f64 = 1024.0;

/// The cubic function of Keys with the slope -0.5.
fn keys(distance: f64) -> f64 {
    let (x, a) = (distance, -0.5);
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}
