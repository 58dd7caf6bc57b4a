//! Max-pooling of images, with burn's results bit for bit.

mod plane;

use std::sync::Arc;

use burn::tensor::Tensor;
use burn::tensor::module;
use burn::tensor::ops::MaxPoolOptions;
use burn_autodiff::Autodiff;
use burn_autodiff::checkpoint::base::Checkpointer;
use burn_autodiff::checkpoint::strategy::NoCheckpointing;
use burn_autodiff::grads::Gradients;
use burn_autodiff::ops::{Backward, Ops, OpsKind};
use burn_backend::tensor::FloatTensor;
use burn_flex::{Flex, FlexTensor};

use crate::axis::Axis;
use crate::operand::{Operand, elements, tensor_of};

/// The largest value of each window, of images `[batch, channels, height, width]`: what
/// [`burn::tensor::module::max_pool2d`] computes, bit for bit, and so is its gradient.
///
/// Padding never is the maximum; of equal values the first one is, in the order of rows; a NaN
/// always is, and the last one of several. The gradient of an output goes to its maximum. Where
/// windows overlap, an input gets the sum over its windows in the order of rows.
///
/// f32 on burn's CPU backend, rounding sizes down, is computed here. All else is handed to burn.
///
/// # Panics
/// Where burn does: no window fits into the padded image.
#[must_use]
pub fn max_pool2d(x: Tensor<4>, options: MaxPoolOptions<2>) -> Tensor<4> {
    let Some((pool, operand)) = Pool::new(x.dims(), &options).zip(Operand::of(&x)) else {
        return module::max_pool2d(x, options);
    };
    let result = match operand {
        Operand::Plain(plain) => pool.forward(&plain).map(|(output, _)| output.into()),
        Operand::Tracked(tracked) => pool.forward_tracked(tracked).map(Operand::Tracked),
    };
    match result {
        Some(output) => output.into_tensor(),
        None => module::max_pool2d(x, options),
    }
}

/// The shape of a pooling.
#[derive(Debug, Clone, Copy)]
struct Pool {
    batch: usize,
    channels: usize,
    /// Rows, and the positions in a row.
    rows: Axis,
    columns: Axis,
    /// burn writes uneven padding into the image, where it is the first of equal values; even
    /// padding is left out.
    padding_is_written: bool,
}

impl Pool {
    fn new(
        [batch, channels, height, width]: [usize; 4],
        options: &MaxPoolOptions<2>,
    ) -> Option<Self> {
        let axis = |input, i: usize| {
            let (size, stride) = (options.kernel_size[i], options.stride[i]);
            Axis::new(input, size, stride, options.dilation[i], options.padding[i])
        };
        let pool = Self {
            batch,
            channels,
            rows: axis(height, 0)?,
            columns: axis(width, 1)?,
            padding_is_written: options.is_asymmetric(),
        };
        let indexable = i32::try_from(height.checked_mul(width)?).is_ok();
        (indexable && batch * channels > 0 && !options.ceil_mode).then_some(pool)
    }

    fn input_shape(&self) -> [usize; 4] {
        [
            self.batch,
            self.channels,
            self.rows.input,
            self.columns.input,
        ]
    }

    fn output_shape(&self) -> [usize; 4] {
        [
            self.batch,
            self.channels,
            self.rows.output,
            self.columns.output,
        ]
    }

    /// The maxima, and for each its place in its plane of the input; -1 if that is padding.
    fn forward(&self, x: &FlexTensor) -> Option<(FlexTensor, Vec<i32>)> {
        let x = x.to_contiguous();
        let (output, places) = plane::forward(self, elements(&x)?);
        Some((tensor_of(output, self.output_shape()), places))
    }

    fn forward_tracked(
        &self,
        x: FloatTensor<Autodiff<Flex>>,
    ) -> Option<FloatTensor<Autodiff<Flex>>> {
        let (output, places) = self.forward(x.primitive())?;
        let prepared = MaxPool2d
            .prepare::<NoCheckpointing>([x.node()])
            .compute_bound();
        Some(match prepared.stateful() {
            OpsKind::Tracked(prepared) => {
                let state = State {
                    pool: *self,
                    places: Arc::new(places),
                };
                prepared.finish(state, output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(output),
        })
    }
}

#[derive(Debug)]
struct MaxPool2d;

/// The values that the backward pass needs from the forward pass.
#[derive(Debug, Clone)]
struct State {
    pool: Pool,
    places: Arc<Vec<i32>>,
}

impl Backward<Flex, 1> for MaxPool2d {
    type State = State;

    fn backward(self, ops: Ops<State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node).to_contiguous();
        let State { pool, places } = ops.state;
        // The gradient of an f32 tensor is f32.
        if let ([Some(parent)], Some(gradient)) = (ops.parents, elements(&gradient)) {
            let gradient = plane::backward(&pool, gradient, &places);
            grads.register::<Flex>(parent.id, tensor_of(gradient, pool.input_shape()));
        }
    }
}
