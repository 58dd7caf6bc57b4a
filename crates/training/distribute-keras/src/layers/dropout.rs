//! `Dropout` and `SpatialDropout1D` to `SpatialDropout3D`.

use distribute_core::dropout;
use rand::Rng;

use super::flow::each;
use super::*;

/// `keras.layers.Dropout`, and `SpatialDropout1D` to `SpatialDropout3D`.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropout {
    /// The fraction of the inputs that are set to zero in training, in `[0, 1)`.
    pub rate: f64,
    /// Whether the mask is the same along an axis, the batch first (Keras: `noise_shape`).
    /// Empty: along none.
    pub shared: Vec<bool>,
}

impl KerasLayer for Dropout {
    fn parse(class: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        if class != "Dropout" {
            channels_last(fields)?;
        }
        no_seed(fields);
        let shared = match class {
            "Dropout" => shared(fields)?,
            "SpatialDropout1D" => vec![false, true, false],
            "SpatialDropout3D" => vec![false, true, true, true, false],
            _ => vec![false, true, true, false],
        };
        Ok(Self {
            rate: rate(fields, "rate")?,
            shared,
        })
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        let (axes, rank) = (self.shared.len(), input.dims().len());
        if axes == 0 || axes == rank + 1 {
            Ok(input)
        } else {
            Err(format!(
                "`noise_shape` has {axes} axes, the batch among them, and {input} has {rank} \
                 without it"
            ))
        }
    }

    fn call(&self, x: Value, pass: &mut Pass<'_, '_>) -> Value {
        let Value { flow, mask } = x;
        let flow = match pass.training() {
            Some(rng) if self.rate > 0.0 => self.drop_out(flow, rng),
            _ => flow,
        };
        Value { flow, mask }
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks))
    }

    fn changes_nothing(&self, _: Shape, inference: bool) -> bool {
        self.rate == 0.0 || inference
    }

    fn treats_features_alike(&self) -> bool {
        self.shared.is_empty()
    }
}

/// The option `noise_shape`.
fn shared(fields: &mut Fields<'_>) -> Result<Vec<bool>, ModelError> {
    let Some(shape) = fields.get("noise_shape") else {
        return Ok(Vec::new());
    };
    let axes = shape.as_array().into_iter().flatten();
    let shared = axes.map(|axis| match axis {
        Json::Null => Some(false),
        axis => (axis.as_u64() == Some(1)).then_some(true),
    });
    match shared.collect::<Option<Vec<bool>>>() {
        Some(shared) if shared.contains(&true) => Ok(shared),
        Some(shared) if !shared.is_empty() => Ok(Vec::new()),
        _ => Err(fields.refuse(
            "noise_shape",
            "use a list of null, and 1 for an axis along which the mask is the same",
        )),
    }
}

impl Dropout {
    /// With a mask of `rng`; in a compiled step the program draws it.
    fn drop_out(&self, x: Flow, rng: &mut dyn Rng) -> Flow {
        if self.shared.is_empty() {
            return each!(x, x => dropout(x, self.rate, rng));
        }
        // From the order of Keras' axes to the order of the tensor's axes.
        let shared = match (&x, &self.shared[..]) {
            (Flow::Image(_), &[batch, height, width, channels]) => {
                vec![batch, channels, height, width]
            }
            (Flow::Volume(_), &[batch, depth, height, width, channels]) => {
                vec![batch, channels, depth, height, width]
            }
            _ => self.shared.clone(),
        };
        each!(x, x => {
            let mut dims = x.dims();
            for (dim, shared) in dims.iter_mut().zip(shared) {
                if shared {
                    *dim = 1;
                }
            }
            let device = x.device().without_autodiff();
            let ones = Tensor::ones(dims, (&device, x.dtype()));
            x * dropout(ones, self.rate, rng)
        })
    }
}
