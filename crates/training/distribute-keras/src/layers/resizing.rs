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
}

impl KerasLayer for Resizing {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        for key in ["pad_to_aspect_ratio", "antialias"] {
            fields.must_be(key, false, "set it to false")?;
        }
        fields.neutral(&["fill_mode", "fill_value"]);
        let interpolation = match fields.get("interpolation").map(Json::as_str) {
            None | Some(Some("bilinear")) => Interpolation::Bilinear,
            Some(Some("nearest")) => Interpolation::Nearest,
            Some(Some("bicubic")) => Interpolation::Bicubic,
            Some(_) => {
                return Err(fields.refuse("interpolation", "use bilinear, nearest or bicubic"));
            }
        };
        Ok(Self {
            size: [count(fields, "height")?, count(fields, "width")?],
            interpolation,
            crop_to_aspect_ratio: fields.flag("crop_to_aspect_ratio", false)?,
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
            for (source, share) in self.shares(centre, from) {
                values[source * to + place] += share as f32;
            }
        }
        Tensor::from_data(TensorData::new(values, [from, to]), device)
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
