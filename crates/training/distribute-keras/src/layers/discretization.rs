//! `Discretization`.

use burn::tensor::TensorData;

use super::flow::each;
use super::*;

/// `keras.layers.Discretization`: the number of the bin that a number is in.
#[derive(Debug, Clone, PartialEq)]
pub struct Discretization {
    /// The numbers at which the next bin begins, in order.
    pub bin_boundaries: Vec<f64>,
    /// The rows that the numbers of bins become; none for the numbers themselves.
    pub rows: Option<OutputMode>,
}

impl KerasLayer for Discretization {
    fn parse(_: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        fields.neutral(&["num_bins", "epsilon"]);
        fields.must_be("sparse", false, "set it to false")?;
        let rows = match fields.get("output_mode").map(Json::as_str) {
            None | Some(Some("int")) => None,
            Some(Some("one_hot")) => Some(OutputMode::OneHot),
            Some(Some("multi_hot")) => Some(OutputMode::MultiHot),
            Some(Some("count")) => Some(OutputMode::Count),
            Some(_) => {
                let remedy = "use int, one_hot, multi_hot or count";
                return Err(fields.refuse("output_mode", remedy));
            }
        };
        let boundaries = fields.get("bin_boundaries").and_then(Json::as_array);
        let numbers: Option<Vec<f64>> =
            boundaries.and_then(|all| all.iter().map(Json::as_f64).collect());
        match numbers {
            Some(bin_boundaries) if bin_boundaries.is_sorted() => Ok(Self {
                bin_boundaries,
                rows,
            }),
            _ => Err(fields.refuse(
                "bin_boundaries",
                "use sorted numbers; `adapt` computes them before the model is saved",
            )),
        }
    }

    fn output_shape(&self, input: Shape) -> Result<Shape, String> {
        match self.encoding() {
            Some(rows) => rows.output_shape(input),
            None => Ok(input),
        }
    }

    fn call_all(&self, inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let x = inputs.into_iter().next()?;
        let bins = Value::of(each!(x.flow, x => self.bins(x)));
        match self.encoding() {
            Some(rows) => rows.call_all(vec![bins], pass),
            None => Some(bins),
        }
    }
}

impl Discretization {
    fn encoding(&self) -> Option<CategoryEncoding> {
        let mode = self.rows?;
        let num_tokens = self.bin_boundaries.len() + 1;
        Some(CategoryEncoding { num_tokens, mode })
    }

    /// How many boundaries are not above a number.
    fn bins<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let x = x.detach();
        let dtype = x.dtype();
        let device = x.device().without_autodiff();
        let zeros = Tensor::zeros(x.dims(), (&device, dtype));
        self.bin_boundaries.iter().fold(zeros, |bins, boundary| {
            // In f32, as the numbers are.
            let data = TensorData::new(vec![*boundary as f32], [1; D]);
            let boundary = Tensor::<D>::from_data(data, &device).cast(dtype);
            let above = x.clone().greater_equal(boundary.expand(x.dims()));
            bins + above.float().cast(dtype)
        })
    }
}
