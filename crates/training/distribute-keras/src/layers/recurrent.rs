//! `SimpleRNN`, `LSTM`, `GRU`, and `RNN` of their cells.

use super::cell::{Cell, CellWeights};
use super::recurrence::Reading;
use super::*;
use crate::names::Names;

/// `keras.layers.SimpleRNN`, `LSTM` and `GRU`, and `RNN` of one of their cells or several
/// (`StackedRNNCells`).
#[derive(Debug, Clone, PartialEq)]
pub struct Recurrent {
    /// Keras' name of the class.
    pub class: RecurrentClass,
    /// The cells; each reads what the one before it gives.
    pub cells: Vec<Cell>,
    /// Whether it gives what every step gives, and not the last step alone.
    pub return_sequences: bool,
    /// Whether a call gives the last states too.
    pub return_state: bool,
    /// Whether it reads the steps from the last to the first, and gives them in this order.
    pub go_backwards: bool,
    /// Whether a step that a mask leaves out gives zeros, and not what the step before it gave.
    pub zero_output_for_mask: bool,
}

const CLASSES: [(&str, RecurrentClass); 4] = [
    ("SimpleRNN", RecurrentClass::SimpleRNN),
    ("LSTM", RecurrentClass::LSTM),
    ("GRU", RecurrentClass::GRU),
    ("RNN", RecurrentClass::RNN),
];

/// Keras' attribute with the cell of a layer.
const CELL: &str = "cell";

/// How deep cells may stand in `StackedRNNCells` of `StackedRNNCells`.
const MAX_DEPTH: usize = 8;

impl KerasLayer for Recurrent {
    fn parse(name: &str, fields: &mut Fields<'_>) -> Result<Self, ModelError> {
        let remedy = "set it to False: examples that are shuffled and shared among replicas do not \
                      continue the examples of the batch before";
        fields.must_be("stateful", false, remedy)?;
        fields.must_be(
            "time_major",
            false,
            "set it to False: the batch is the first axis",
        )?;
        // How the same is computed; Keras 2's promise about the length of the inputs.
        fields.neutral(&["unroll", "use_cudnn", "input_length", "input_dim"]);
        let found = CLASSES.iter().find(|(class, _)| *class == name);
        let class = found.map_or(RecurrentClass::RNN, |(_, class)| *class);
        let cells = match class {
            RecurrentClass::RNN => cells(fields, CELL, Within::layer(), 0)?,
            _ => {
                let cell = cell_name(name);
                Cell::parse(name, cell, CELL.to_string(), fields)?
                    .into_iter()
                    .collect()
            }
        };
        Ok(Self {
            class,
            cells,
            return_sequences: fields.flag("return_sequences", false)?,
            return_state: fields.flag("return_state", false)?,
            go_backwards: fields.flag("go_backwards", false)?,
            zero_output_for_mask: fields.flag("zero_output_for_mask", false)?,
        })
    }

    fn class(&self) -> Option<&'static str> {
        let found = CLASSES.iter().find(|(_, class)| *class == self.class);
        found.map(|(name, _)| *name)
    }

    fn inputs(&self) -> &'static [&'static str] {
        &["sequences", "initial_state", "mask"]
    }

    /// A number for every step.
    fn check_mask(&self, inputs: &[Shape], mask: Shape) -> Result<(), String> {
        match inputs.first() {
            Some(Shape::Sequence(steps, _)) if mask == Shape::Flat(*steps) => Ok(()),
            _ => Err(format!(
                "needs a mask with a number for every step, gets {mask}"
            )),
        }
    }

    fn writes_training(&self) -> bool {
        true
    }

    fn outputs(&self) -> usize {
        if self.return_state {
            1 + self.states().len()
        } else {
            1
        }
    }

    fn part_shape(&self, part: usize, inputs: &[Shape]) -> Result<Shape, String> {
        match part.checked_sub(1) {
            None => self.output_shape_of_all(inputs),
            Some(state) => {
                let units = self.states().get(state).copied();
                units
                    .map(Shape::Flat)
                    .ok_or_else(|| "has no such state".to_string())
            }
        }
    }

    fn output_shape_of_all(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let Some((input, states)) = inputs.split_first() else {
            return Err("receives nothing".to_string());
        };
        let (steps, _) = input.needs_sequence()?;
        let wanted: Vec<Shape> = self.states().into_iter().map(Shape::Flat).collect();
        if !states.is_empty() && states != wanted {
            let listed = |shapes: &[Shape]| {
                let shapes: Vec<String> = shapes.iter().map(Shape::to_string).collect();
                shapes.join(", ")
            };
            return Err(format!(
                "needs the initial states {}, gets {}",
                listed(&wanted),
                listed(states)
            ));
        }
        let units = self.cells.last().map_or(1, |cell| cell.units);
        Ok(if self.return_sequences {
            Shape::Sequence(steps, units)
        } else {
            Shape::Flat(units)
        })
    }

    fn weights(&self, inputs: &[Shape]) -> Vec<Option<PlannedWeight>> {
        let mut features = features(inputs);
        let mut all = Vec::new();
        for cell in &self.cells {
            all.extend(cell.weights(features));
            features = cell.units;
        }
        all
    }

    fn sublayer(&self, position: usize, _: &str) -> &str {
        let mut left = position;
        let found = self.cells.iter().find(|cell| {
            let count = cell.weights(1).into_iter().flatten().count();
            let is_here = left < count;
            left = left.saturating_sub(count);
            is_here
        });
        found.map_or(CELL, |cell| &cell.saved_as)
    }

    fn build(&self, weights: &mut Weights<'_>) -> Option<BuiltLayer> {
        let cells = self.cells.iter().map(|cell| cell.build(weights));
        Some(BuiltLayer::Recurrent(RecurrentWeights {
            cells: cells.collect(),
            layer: self.clone(),
        }))
    }

    fn mask(&self, masks: &[Option<usize>], _: usize) -> Result<Option<usize>, String> {
        Ok(first_mask(masks).filter(|_| self.return_sequences))
    }
}

impl Recurrent {
    /// The lengths of the states, cell by cell.
    pub(crate) fn states(&self) -> Vec<usize> {
        let each = |cell: &Cell| vec![cell.units; cell.kind.states()];
        self.cells.iter().flat_map(each).collect()
    }
}

/// What a cell stands in.
#[derive(Clone)]
struct Within {
    /// What its name begins with.
    prefix: String,
    /// The group in a file of weights, with a `/` behind it for one of several cells.
    group: String,
}

impl Within {
    /// The layer itself.
    fn layer() -> Self {
        Self {
            prefix: String::new(),
            group: CELL.to_string(),
        }
    }

    /// The `StackedRNNCells` of this name and group.
    fn stacked(name: &str, group: &str) -> Self {
        Self {
            prefix: format!("{name}/"),
            group: format!("{group}/cells/"),
        }
    }
}

/// The name of the cell of a layer of this class: `lstm_cell`.
fn cell_name(class: &str) -> String {
    let mut names = Names::default();
    names.next(&format!("{class}Cell"))
}

/// The cell in an option, or the cells of a `StackedRNNCells`.
fn cells(
    fields: &mut Fields<'_>,
    key: &'static str,
    mut within: Within,
    depth: usize,
) -> Result<Vec<Cell>, ModelError> {
    let refuse = |fields: &Fields<'_>| {
        fields.refuse(
            key,
            "use SimpleRNNCell, LSTMCell, GRUCell, or StackedRNNCells of them",
        )
    };
    // A list in a layer is a `StackedRNNCells` without a name.
    if key == CELL && fields.get(key).is_some_and(Json::is_array) {
        within.group = format!("{CELL}/cells/");
    }
    let mut numbers = Names::default();
    let mut all = Vec::new();
    for named in fields.objects(key)?.ok_or_else(|| refuse(fields))? {
        let mut options = named.fields;
        let own = options.get("name").and_then(Json::as_str);
        let own = own.map_or_else(|| cell_class_name(named.class), str::to_string);
        let name = format!("{}{own}", within.prefix);
        let mut group = within.group.clone();
        if group.ends_with('/') {
            group.push_str(&numbers.next(named.class));
        }
        let trainable = common(&mut options)?;
        if !trainable {
            return Err(options.refuse("trainable", "set trainable=False in the layer"));
        }
        match Cell::parse(named.class, name.clone(), group.clone(), &mut options)? {
            Some(cell) if named.class.ends_with("Cell") => all.push(cell),
            None if named.class == "StackedRNNCells" && depth < MAX_DEPTH => {
                options.must_be("reverse_state_order", false, "set it to False")?;
                all.extend(cells(
                    &mut options,
                    "cells",
                    Within::stacked(&name, &group),
                    depth + 1,
                )?);
            }
            _ => return Err(refuse(fields)),
        }
        options.finish()?;
    }
    if all.is_empty() {
        return Err(refuse(fields));
    }
    Ok(all)
}

fn cell_class_name(class: &str) -> String {
    Names::default().next(class)
}

/// The cells with their weights.
#[derive(Module, Debug)]
pub(crate) struct RecurrentWeights {
    cells: Vec<CellWeights>,
    #[module(skip)]
    layer: Recurrent,
}

impl Built for RecurrentWeights {
    fn call_all(
        &self,
        inputs: Vec<Value>,
        pass: &mut Pass<'_, '_>,
    ) -> distribute_core::Result<Option<Value>> {
        Ok(self.read(inputs, pass))
    }

    fn losses(&self) -> Vec<Option<Tensor<1>>> {
        self.cells.iter().flat_map(CellWeights::losses).collect()
    }
}

impl RecurrentWeights {
    /// `inputs` are the sequence, and the initial states or none.
    fn read(&self, mut inputs: Vec<Value>, pass: &mut Pass<'_, '_>) -> Option<Value> {
        let given = inputs.pop_if(|_| pass.arguments.with_mask);
        let mut inputs = inputs.into_iter();
        let Value { flow, mask } = inputs.next()?;
        let mask = match given.map(|mask| mask.flow) {
            Some(Flow::Flat(given)) => Some(given.detach()),
            _ => mask,
        };
        let Flow::Sequence(mut x) = flow else {
            // A plan never puts it on another shape.
            return None;
        };
        let mut given = inputs.filter_map(|state| match state.flow {
            Flow::Flat(state) => Some(state),
            _ => None,
        });
        let mut mask_read = mask.clone();
        if self.layer.go_backwards {
            x = x.flip([1]);
            mask_read = mask_read.map(|mask| mask.flip([1]));
        }
        let mut reading = Reading {
            sequences: true,
            states: self.layer.return_state,
            zero_output: self.layer.zero_output_for_mask,
            mask: mask_read,
        };
        for (index, cell) in self.cells.iter().enumerate() {
            let is_last = index + 1 == self.cells.len();
            reading.sequences = self.layer.return_sequences || !is_last;
            let states = given.by_ref().take(cell.cell.kind.states()).collect();
            let read = cell.read(x, states, &reading, pass);
            x = read.outputs;
            if self.layer.return_state {
                pass.states.extend(read.states);
            }
        }
        Some(if self.layer.return_sequences {
            Value {
                flow: Flow::Sequence(x),
                mask,
            }
        } else {
            Value::of(Flow::Flat(x.squeeze_dim(1)))
        })
    }
}
