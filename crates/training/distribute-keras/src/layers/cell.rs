//! The cells of recurrent layers: `SimpleRNNCell`, `LSTMCell` and `GRUCell`.

use super::*;

/// The class of a recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecurrentClass {
    /// `keras.layers.SimpleRNN`.
    SimpleRNN,
    /// `keras.layers.LSTM`.
    LSTM,
    /// `keras.layers.GRU`.
    GRU,
    /// `keras.layers.RNN`.
    RNN,
}

/// What a cell computes in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CellKind {
    /// `keras.layers.SimpleRNNCell`: the activation of the sum of what the input and the state
    /// give.
    Simple,
    /// `keras.layers.LSTMCell` (Hochreiter and Schmidhuber, 1997).
    Lstm,
    /// `keras.layers.GRUCell` (Cho et al., 2014).
    Gru {
        /// Whether the reset gate is applied behind the product with the state, which has a bias of
        /// its own then.
        reset_after: bool,
    },
}

impl CellKind {
    /// The parts of a kernel, each with a column per unit: in an LSTM the input gate, the forget
    /// gate, the candidate and the output gate; in a GRU the update gate, the reset gate and the
    /// candidate.
    pub(super) fn gates(self) -> usize {
        match self {
            Self::Simple => 1,
            Self::Lstm => 4,
            Self::Gru { .. } => 3,
        }
    }

    /// How many states a step hands to the next one.
    pub(super) fn states(self) -> usize {
        match self {
            Self::Lstm => 2,
            Self::Simple | Self::Gru { .. } => 1,
        }
    }
}

/// A cell with its options.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// What it computes.
    pub kind: CellKind,
    /// Its name below the layer, which the paths of its weights begin with.
    pub name: String,
    /// Its group below that of the layer in a file of weights of Keras: `cell`, or
    /// `cell/cells/lstm_cell_1` for the second `LSTMCell` of a `StackedRNNCells`.
    pub saved_as: String,
    /// The length of the state.
    pub units: usize,
    /// Applied to the candidate, and in an LSTM to the state before the output gate.
    pub activation: Activation,
    /// Applied to the gates.
    pub recurrent_activation: Activation,
    /// Whether a bias per gate and unit is added.
    pub use_bias: bool,
    /// Whether the bias of an LSTM's forget gate starts as 1.
    pub unit_forget_bias: bool,
    /// How the kernel on the inputs starts.
    pub kernel_initializer: Initializer,
    /// How the kernel on the state starts.
    pub recurrent_initializer: Initializer,
    /// How the bias starts.
    pub bias_initializer: Initializer,
    /// The loss on the kernel on the inputs.
    pub kernel_regularizer: Option<Regularizer>,
    /// The loss on the kernel on the state.
    pub recurrent_regularizer: Option<Regularizer>,
    /// The loss on the bias.
    pub bias_regularizer: Option<Regularizer>,
    /// The fraction of the inputs that is set to zero in training, the same in all steps.
    pub dropout: f64,
    /// The fraction of the state that is set to zero in training where it is multiplied with the
    /// kernel, the same in all steps and another one for each gate.
    pub recurrent_dropout: f64,
}

impl Cell {
    /// The cell of a layer or cell of this class; `None` if it is another class.
    pub(super) fn parse(
        class: &str,
        name: String,
        saved_as: String,
        fields: &mut Fields<'_>,
    ) -> Result<Option<Self>, ModelError> {
        let kind = match class.trim_end_matches("Cell") {
            "SimpleRNN" => CellKind::Simple,
            "LSTM" => CellKind::Lstm,
            "GRU" => CellKind::Gru {
                reset_after: fields.flag("reset_after", true)?,
            },
            _ => return Ok(None),
        };
        // In how many products it is computed.
        fields.neutral(&["implementation"]);
        // The seed of the run decides.
        fields.neutral(&["seed"]);
        let unit_forget_bias = kind == CellKind::Lstm && fields.flag("unit_forget_bias", true)?;
        let recurrent_activation = match kind {
            CellKind::Simple => Activation::Linear,
            _ => activation_of(fields, "recurrent_activation", Activation::Sigmoid)?,
        };
        let of_state = Initializer::ORTHOGONAL;
        let dropout = optional_rate(fields, "dropout")?;
        let recurrent_dropout = optional_rate(fields, "recurrent_dropout")?;
        Ok(Some(Self {
            kind,
            name,
            saved_as,
            units: count(fields, "units")?,
            activation: activation_of(fields, "activation", Activation::Tanh)?,
            recurrent_activation,
            use_bias: fields.flag("use_bias", true)?,
            unit_forget_bias,
            kernel_initializer: kernel_initializer(fields, "kernel_initializer")?,
            recurrent_initializer: initializer(fields, "recurrent_initializer", of_state)?,
            bias_initializer: bias_initializer(fields)?,
            kernel_regularizer: regularizer(fields, "kernel_regularizer")?,
            recurrent_regularizer: regularizer(fields, "recurrent_regularizer")?,
            bias_regularizer: regularizer(fields, "bias_regularizer")?,
            dropout,
            recurrent_dropout,
        }))
    }

    /// The weights of the cell for inputs of this many features.
    pub(super) fn weights(&self, features: usize) -> Vec<Option<PlannedWeight>> {
        let columns = self.units.saturating_mul(self.kind.gates());
        let name = |weight: &str| format!("{}/{weight}", self.name);
        let bias_shape = match self.kind {
            CellKind::Gru { reset_after: true } => vec![2, columns],
            _ => vec![columns],
        };
        let bias = self.use_bias.then_some(self.bias_initializer);
        let mut bias = weight(name("bias"), &bias_shape, bias);
        if let Some(bias) = bias.as_mut().filter(|_| self.unit_forget_bias) {
            bias.ones = self.units..self.units.saturating_mul(2);
        }
        let (kernel, of_state) = ([features, columns], [self.units, columns]);
        vec![
            weight(name("kernel"), &kernel, self.kernel_initializer),
            weight(
                name("recurrent_kernel"),
                &of_state,
                self.recurrent_initializer,
            ),
            bias,
        ]
    }

    pub(super) fn build(&self, weights: &mut Weights<'_>) -> CellWeights {
        let (kernel, of_state) = (weights.next(), weights.next());
        CellWeights {
            kernel: weights.trained(kernel),
            recurrent_kernel: weights.trained(of_state),
            bias: self.use_bias.then(|| {
                let bias = layout::rows_of(weights.next(), self.units * self.kind.gates());
                weights.trained(bias)
            }),
            cell: self.clone(),
        }
    }
}

/// The kernels are `[features, gates * units]` and `[units, gates * units]`. The bias is
/// `[1, gates * units]`, and of a GRU that resets behind the product `[2, gates * units]`.
#[derive(Module, Debug)]
pub(crate) struct CellWeights {
    pub(super) kernel: Param<Tensor<2>>,
    pub(super) recurrent_kernel: Param<Tensor<2>>,
    pub(super) bias: Option<Param<Tensor<2>>>,
    #[module(skip)]
    pub(super) cell: Cell,
}

impl CellWeights {
    pub(super) fn losses(&self) -> Vec<Option<Tensor<1>>> {
        let bias = self.bias.as_ref();
        vec![
            penalty(self.cell.kernel_regularizer, &self.kernel),
            penalty(self.cell.recurrent_regularizer, &self.recurrent_kernel),
            bias.and_then(|bias| penalty(self.cell.bias_regularizer, bias)),
        ]
    }

    /// A row of the bias, `[gates * units]`.
    pub(super) fn bias_row(&self, row: usize) -> Option<Tensor<1>> {
        let bias = self.bias.as_ref()?.val();
        (row < bias.dims()[0]).then(|| bias.narrow(0, row, 1).squeeze_dim(0))
    }
}
