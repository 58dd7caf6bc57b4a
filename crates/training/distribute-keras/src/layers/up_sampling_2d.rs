//! `UpSampling2D`.

use burn::tensor::TensorData;

use super::*;

/// `keras.layers.UpSampling2D`.
#[derive(Debug, Clone, PartialEq)]
pub struct UpSampling2D {
    /// How many rows a row becomes, and how many columns a column.
    pub size: [usize; 2],
    /// Whether places between others get a mean of them (`interpolation="bilinear"`), and not the
    /// value of the nearest.
    pub bilinear: bool,
}

impl KerasLayer for UpSampling2D {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        channels_last(fields)?;
        let size = extents(fields, "size")?.unwrap_or([2, 2]);
        let bilinear = match fields.get("interpolation").map(Json::as_str) {
            None | Some(Some("nearest")) => false,
            Some(Some("bilinear")) => true,
            Some(_) => return Err(fields.refuse("interpolation", "use nearest or bilinear")),
        };
        Ok(Self { size, bilinear })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (height, width, channels) = input.needs_image()?;
        let [rows, columns] = self.size;
        Ok(Shape::Image(
            height.saturating_mul(rows),
            width.saturating_mul(columns),
            channels,
        ))
    }

    fn call(&self, x: Value, _: &mut Pass<'_, '_>) -> Value {
        let [rows, columns] = self.size;
        x.map_image(|x| {
            let x = if self.bilinear {
                let x = along_width(x, columns);
                along_width(x.swap_dims(2, 3), rows).swap_dims(2, 3)
            } else {
                repeated(repeated(x, 2, rows), 3, columns)
            };
            Flow::Image(x)
        })
    }

    fn changes_nothing(&self, _: Shape, _: bool) -> bool {
        self.size == [1, 1]
    }

    fn wants_image(&self) -> Option<bool> {
        Some(true)
    }
}

/// Every place of an axis so many times, one behind the other.
pub(super) fn repeated<const D: usize>(x: Tensor<D>, axis: usize, times: usize) -> Tensor<D> {
    if times == 1 {
        return x;
    }
    let mut dims = x.dims();
    // The axes before it, its places, and the axes behind it.
    let before: usize = dims[..axis].iter().product();
    let behind: usize = dims[axis + 1..].iter().product();
    let places = dims[axis];
    dims[axis] *= times;
    let each = x.reshape([before, places, 1, behind]);
    each.expand([before, places, times, behind]).reshape(dims)
}

/// Between the middles of the places, which are `factor` times as many.
fn along_width(x: Tensor<4>, factor: usize) -> Tensor<4> {
    let [_, _, _, width] = x.dims();
    let columns = width * factor;
    let mut matrix = vec![0.0_f32; width * columns];
    for column in 0..columns {
        // The middle of the new place, counted from the middle of the first one.
        let at = (column as f64 + 0.5) / factor as f64 - 0.5;
        let below = at.floor();
        let share = (at - below) as f32;
        let place = |at: f64| (at.max(0.0) as usize).min(width - 1);
        matrix[place(below) * columns + column] += 1.0 - share;
        matrix[place(below + 1.0) * columns + column] += share;
    }
    let matrix = TensorData::new(matrix, [1, 1, width, columns]);
    let matrix = Tensor::<4>::from_data(matrix, &x.device()).cast(x.dtype());
    x.matmul(matrix)
}
