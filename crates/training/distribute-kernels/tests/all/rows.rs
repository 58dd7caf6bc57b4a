//! Whether a row of a kernel's result has the same bits when the batch has another size, or when
//! the row is at another place of the batch: the table of `docs/same-bits.md`, which this prints
//! (`cargo test -p distribute-kernels --test all rows:: -- --nocapture`).

use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{AvgPool2dConfig, MaxPool2dConfig};
use burn::nn::{LayerNormConfig, LinearConfig};
use burn::tensor::activation::{gelu, log_softmax, relu, sigmoid, softmax, tanh};
use burn::tensor::{Device, Tensor, TensorData};
use distribute_kernels::nn;

const DOCUMENT: &str = include_str!("../../../../../docs/same-bits.md");

/// The rows of the largest batch.
const ROWS: usize = 67;
const SIZES: [usize; 12] = [1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64];

/// What is computed of a batch whose rows have this shape.
struct Kernel {
    name: &'static str,
    row: [usize; 3],
    of: Box<dyn Fn(Tensor<4>) -> Tensor<2>>,
}

impl Kernel {
    fn new<const D: usize>(
        name: &'static str,
        row: [usize; 3],
        of: impl Fn(Tensor<4>) -> Tensor<D> + 'static,
    ) -> Self {
        let of = Box::new(move |batch: Tensor<4>| {
            let rows = batch.dims()[0];
            let result = of(batch);
            let width = result.shape().num_elements() / rows;
            result.reshape([rows, width])
        });
        Self { name, row, of }
    }

    /// The bits of each row of the result, for the rows from `start` on.
    fn rows(&self, start: usize, count: usize) -> Vec<Vec<u32>> {
        let [a, b, c] = self.row;
        let value = |i: usize| ((start * a * b * c + i) as f32 * 12.9898).sin() * 1.7;
        let values: Vec<f32> = (0..count * a * b * c).map(value).collect();
        let data = TensorData::new(values, [count, a, b, c]);
        let result = (self.of)(Tensor::from_data(data, &Device::flex()));
        let bits: Vec<u32> = result.into_data().iter::<f32>().map(f32::to_bits).collect();
        bits.chunks(bits.len() / count)
            .map(<[u32]>::to_vec)
            .collect()
    }

    /// Whether no place, and no size of the batch changes a row.
    fn measured(&self) -> [bool; 2] {
        let whole = self.rows(0, ROWS);
        let [mut by_place, mut by_size] = [true, true];
        for size in SIZES {
            let first = self.rows(0, size);
            by_size &= first == whole[..size];
            for start in [1, 2, 3, ROWS - size] {
                let other = self.rows(start, size);
                let common = size.saturating_sub(start);
                by_place &= other[..common] == first[size - common..];
                by_size &= other == whole[start..start + size];
            }
        }
        [by_place, by_size]
    }
}

fn filled<const D: usize>(shape: [usize; D], seed: f32) -> Tensor<D> {
    let value = |i: usize| ((i as f32 + seed) * 78.233).sin() * 0.3;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), &Device::flex())
}

fn flat(batch: Tensor<4>) -> Tensor<2> {
    let rows = batch.dims()[0];
    let width = batch.shape().num_elements() / rows;
    batch.reshape([rows, width])
}

/// The gradient of a loss, whose own gradient differs from element to element of a row.
fn gradient<const D: usize>(batch: Tensor<4>, of: impl Fn(Tensor<4>) -> Tensor<D>) -> Tensor<4> {
    let batch =
        Tensor::<4>::from_data(batch.into_data(), &Device::flex().autodiff()).require_grad();
    let out = of(batch.clone());
    let rows = batch.dims()[0];
    let width = out.shape().num_elements() / rows;
    let weights = filled([width], 3.0).reshape([1, width]);
    let weights = Tensor::<2>::from_inner(weights);
    let loss = (out.reshape([rows, width]) * weights).sum();
    let gradients = loss.backward();
    batch.grad(&gradients).unwrap()
}

fn conv(channels: [usize; 2]) -> Conv2d {
    let config = Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Same);
    let mut conv = config.init(&Device::flex());
    conv.weight = burn::module::Param::from_tensor(filled([channels[1], channels[0], 3, 3], 1.0));
    conv.bias = Some(burn::module::Param::from_tensor(filled([channels[1]], 2.0)));
    conv
}

fn trained(conv: Conv2d) -> Conv2d {
    use burn::module::Module;
    conv.fork(&Device::flex().autodiff())
}

fn matmuls() -> Vec<Kernel> {
    let matmul = |name, inputs: usize, outputs: usize| {
        Kernel::new(name, [inputs, 1, 1], move |batch| {
            flat(batch).matmul(filled([inputs, outputs], 1.0))
        })
    };
    vec![
        matmul("matmul, 784 to 128", 784, 128),
        matmul("matmul, 128 to 10", 128, 10),
        matmul("matmul, 3 to 1", 3, 1),
        Kernel::new("`Linear`, 64 to 32", [64, 1, 1], |batch| {
            let mut linear = LinearConfig::new(64, 32).init(&Device::flex());
            linear.weight = burn::module::Param::from_tensor(filled([64, 32], 1.0));
            linear.bias = Some(burn::module::Param::from_tensor(filled([32], 2.0)));
            linear.forward(flat(batch))
        }),
        Kernel::new(
            "matmul, 64 to 32, gradient of the input",
            [64, 1, 1],
            |batch| {
                gradient(batch, |batch| {
                    flat(batch).matmul(Tensor::from_inner(filled([64, 32], 1.0)))
                })
            },
        ),
    ]
}

fn convolutions() -> Vec<Kernel> {
    let (few, many) = ([1, 32], [16, 24]);
    vec![
        Kernel::new("burn's `Conv2d`, 1 to 32", [1, 14, 14], move |batch| {
            conv(few).forward(batch)
        }),
        Kernel::new("burn's `Conv2d`, 16 to 24", [16, 7, 7], move |batch| {
            conv(many).forward(batch)
        }),
        Kernel::new(
            "burn's `Conv2d`, gradient of the input",
            [16, 7, 7],
            move |batch| gradient(batch, |batch| trained(conv(many)).forward(batch)),
        ),
        Kernel::new("our `Conv2d`, 1 to 32", [1, 14, 14], move |batch| {
            nn::Conv2d::from(conv(few)).forward_relu(batch)
        }),
        Kernel::new("our `Conv2d`, 16 to 24", [16, 7, 7], move |batch| {
            nn::Conv2d::from(conv(many)).forward(batch)
        }),
        Kernel::new(
            "our `Conv2d`, gradient of the input",
            [16, 7, 7],
            move |batch| {
                gradient(batch, |batch| {
                    nn::Conv2d::from(trained(conv(many))).forward(batch)
                })
            },
        ),
    ]
}

fn pools() -> Vec<Kernel> {
    let config = || MaxPool2dConfig::new([2, 2]).init();
    vec![
        Kernel::new("burn's `MaxPool2d`", [3, 8, 8], move |batch| {
            config().forward(batch)
        }),
        Kernel::new("our `MaxPool2d`", [3, 8, 8], move |batch| {
            nn::MaxPool2d::from(config()).forward(batch)
        }),
        Kernel::new(
            "our `MaxPool2d`, gradient of the input",
            [3, 8, 8],
            move |batch| gradient(batch, |batch| nn::MaxPool2d::from(config()).forward(batch)),
        ),
        Kernel::new("`AvgPool2d`", [3, 8, 8], |batch| {
            AvgPool2dConfig::new([2, 2]).init().forward(batch)
        }),
    ]
}

fn rest() -> Vec<Kernel> {
    let row = [37, 1, 1];
    vec![
        Kernel::new("softmax", row, |batch| softmax(flat(batch), 1)),
        Kernel::new("log-softmax", row, |batch| log_softmax(flat(batch), 1)),
        Kernel::new("log-softmax, gradient of the input", row, |batch| {
            gradient(batch, |batch| log_softmax(flat(batch), 1))
        }),
        Kernel::new("sum over the features", row, |batch| flat(batch).sum_dim(1)),
        Kernel::new("mean over the features", row, |batch| {
            flat(batch).mean_dim(1)
        }),
        Kernel::new("maximum over the features", row, |batch| {
            flat(batch).max_dim(1)
        }),
        Kernel::new("`LayerNorm`", row, |batch| {
            LayerNormConfig::new(37)
                .init(&Device::flex())
                .forward(flat(batch))
        }),
        Kernel::new("relu, +, *", row, |batch| {
            let x = flat(batch);
            relu(x.clone() * 1.3 + 0.1) * x
        }),
        Kernel::new("sigmoid, tanh, gelu, exp", row, |batch| {
            let x = flat(batch);
            sigmoid(x.clone()) + tanh(x.clone()) + gelu(x.clone()) + x.exp()
        }),
    ]
}

/// What the document says of a kernel: nothing changes a row by its place, or by the batch's size.
fn documented(name: &str) -> Option<[bool; 2]> {
    let line = DOCUMENT
        .lines()
        .find(|line| line.starts_with(&format!("| {name} |")))?;
    let word = |cell: &str| match cell.trim() {
        "equal" => Some(true),
        "differs" => Some(false),
        _ => None,
    };
    let mut cells = line.split('|').skip(2).map(word);
    Some([cells.next()??, cells.next()??])
}

/// A kernel that the table calls equal is equal. One that it calls different may be equal on
/// another processor.
#[test]
fn rows_are_as_the_document_says() {
    let (mut wrong, mut measured_rows) = (Vec::new(), 0);
    let kernels = [matmuls(), convolutions(), pools(), rest()];
    for kernel in kernels.into_iter().flatten() {
        measured_rows += 1;
        let measured = kernel.measured();
        let word = |equal| if equal { "equal" } else { "differs" };
        let row = format!(
            "| {} | {} | {} |",
            kernel.name,
            word(measured[0]),
            word(measured[1])
        );
        println!("{row}");
        let fits = documented(kernel.name).is_some_and(|documented| {
            let mut pairs = documented.into_iter().zip(measured);
            pairs.all(|(documented, measured)| measured || !documented)
        });
        if !fits {
            wrong.push(row);
        }
    }
    assert!(
        wrong.is_empty(),
        "docs/same-bits.md says otherwise: {wrong:#?}"
    );
    let is_of_a_kernel = |line: &&str| line.ends_with("equal |") || line.ends_with("differs |");
    let rows = DOCUMENT.lines().filter(is_of_a_kernel).count();
    assert_eq!(
        rows, measured_rows,
        "the document has rows of other kernels"
    );
}
