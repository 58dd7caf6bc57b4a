//! `RandomCrop`.

use burn::tensor::{Device, Int};
use distribute_core::uniform;
use rand::Rng;

use super::resizing::Resizing;
use super::*;

/// `keras.layers.RandomCrop`: in training a part of each image at a random place, in inference the
/// whole image in the size of the part: the middle with its aspect ratio, resized. Images that are
/// not larger along both axes are resized in training too.
#[derive(Debug, Clone, PartialEq)]
pub struct RandomCrop {
    /// Rows and columns of the result.
    pub size: [usize; 2],
}

impl KerasLayer for RandomCrop {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        no_seed(fields);
        Ok(Self {
            size: [count(fields, "height")?, count(fields, "width")?],
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

    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        x.map_image(|x| {
            let [_, _, height, width] = x.dims();
            let is_larger = height > self.size[0] && width > self.size[1];
            match pass.training().filter(|_| is_larger) {
                Some(rng) => Flow::Image(self.part(x, rng)),
                None => Flow::Image(self.whole().resized(x)),
            }
        })
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}

impl RandomCrop {
    fn whole(&self) -> Resizing {
        Resizing {
            size: self.size,
            interpolation: Interpolation::Bilinear,
            crop_to_aspect_ratio: true,
            antialias: false,
        }
    }

    /// The part of each image that begins at a row and a column of `rng`, each place as likely.
    fn part(&self, x: Tensor<4>, rng: &mut dyn Rng) -> Tensor<4> {
        let device = x.device().without_autodiff();
        let [batch, channels, height, width] = x.dims();
        let [rows, columns] = self.size;
        let mut begin = |extent: usize, part: usize| {
            let last = (extent - part) as f64;
            let place = uniform([batch], rng, &device).mul_scalar(last + 1.0);
            place.floor().clamp_max(last).int().reshape([batch, 1, 1])
        };
        let (top, left) = (begin(height, rows), begin(width, columns));
        let all = [batch, rows, columns];
        let row = counted(rows, &device).reshape([1, rows, 1]).expand(all);
        let column = counted(columns, &device).reshape([1, 1, columns]);
        let row = row + top.expand(all);
        let places = row.mul_scalar(width as i64) + column.expand(all) + left.expand(all);
        let places = places.reshape([batch, 1, rows * columns]);
        let places = places.expand([batch, channels, rows * columns]);
        let values = x.reshape([batch, channels, height * width]);
        let part = values.gather(2, places);
        part.reshape([batch, channels, rows, columns])
    }
}

fn counted(count: usize, device: &Device) -> Tensor<1, Int> {
    Tensor::arange(0..count as i64, device)
}
