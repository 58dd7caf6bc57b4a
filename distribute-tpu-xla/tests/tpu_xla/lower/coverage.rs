//! The coverage page is that of the table, and what is not covered is refused by name.

use std::collections::{BTreeMap, HashMap};

use burn::tensor::{CapturedGraph, DType, Shape, TensorId};
use distribute_core::burn_internals::backend::ops::{InterpolateMode, InterpolateOptions};
use distribute_core::burn_internals::ir::{
    CustomOpIr, GraphIr, InterpolateOpIr, ModuleOperationIr, NumericOperationIr, OperationIr,
    TensorIr, UnaryOpIr,
};
use distribute_tpu_xla::lower::{
    GraphInput, LowerError, LowerOptions, coverage, coverage_markdown, lower,
};

fn tensor(id: u64, shape: &[usize]) -> TensorIr {
    TensorIr::uninit(TensorId::new(id), Shape::from(shape.to_vec()), DType::F32)
}

fn graph(operations: Vec<OperationIr>) -> CapturedGraph {
    CapturedGraph {
        graph: GraphIr::new(operations),
        values: BTreeMap::new(),
    }
}

fn negate(from: u64, to: u64, shape: &[usize]) -> OperationIr {
    let op = UnaryOpIr {
        input: tensor(from, shape),
        out: tensor(to, shape),
    };
    OperationIr::NumericFloat(DType::F32, NumericOperationIr::Neg(op))
}

fn interpolate(from: u64, to: u64) -> OperationIr {
    OperationIr::Module(ModuleOperationIr::Interpolate(InterpolateOpIr {
        x: tensor(from, &[1, 1, 2, 2]),
        output_size: [4, 4],
        options: InterpolateOptions::new(InterpolateMode::Nearest).into(),
        out: tensor(to, &[1, 1, 4, 4]),
    }))
}

#[test]
fn the_page_in_the_docs_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/tpu-coverage.md");
    let page = coverage_markdown();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == page,
        "docs/tpu-coverage.md is not what the table says: run the tests of distribute-tpu-xla \
         once with UPDATE_DOCS=1"
    );
}

#[test]
fn most_of_burn_is_covered() {
    let covered = coverage().iter().filter(|c| c.covered).count();
    assert!(covered >= 200, "{covered}");
    assert_eq!(coverage().iter().filter(|c| !c.covered).count(), 10);
}

#[test]
fn an_operation_without_lowering_is_named_with_where_it_came_from() {
    let graph = graph(vec![negate(1, 2, &[1, 1, 2, 2]), interpolate(2, 3)]);
    let inputs = [GraphInput::new(TensorId::new(1))];
    let outputs = [TensorId::new(3)];
    let mut options = LowerOptions::default();
    let error = lower(&graph, &inputs, &outputs, &options).unwrap_err();
    insta::assert_snapshot!(error, @"operation 1 of the step, Module.Interpolate, cannot run on XLA: it is not covered; docs/tpu-coverage.md lists what is");
    options.names = HashMap::from([(TensorId::new(1), "stem.conv.weight".into())]);
    let error = lower(&graph, &inputs, &outputs, &options).unwrap_err();
    insta::assert_snapshot!(error, @"operation 1 of the step, Module.Interpolate (from what is computed from stem.conv.weight), cannot run on XLA: it is not covered; docs/tpu-coverage.md lists what is");
    options.names.insert(TensorId::new(3), "upsample".into());
    let error = lower(&graph, &inputs, &outputs, &options).unwrap_err();
    insta::assert_snapshot!(error, @"operation 1 of the step, Module.Interpolate (from upsample), cannot run on XLA: it is not covered; docs/tpu-coverage.md lists what is");
}

#[test]
fn what_no_output_needs_is_left_out() {
    let graph = graph(vec![interpolate(1, 3), negate(1, 2, &[1, 1, 2, 2])]);
    let inputs = [GraphInput::new(TensorId::new(1))];
    let lowered = lower(
        &graph,
        &inputs,
        &[TensorId::new(2)],
        &LowerOptions::default(),
    )
    .unwrap();
    assert_eq!(lowered.operations, 1);
    assert!(lowered.program.text.contains("stablehlo.negate"));
}

#[test]
fn boundaries_are_checked() {
    let graph = graph(vec![negate(1, 2, &[3]), negate(2, 4, &[3])]);
    let (one, two, four) = (TensorId::new(1), TensorId::new(2), TensorId::new(4));
    let options = LowerOptions::default();
    let error = |inputs: &[GraphInput], outputs: &[TensorId]| {
        lower(&graph, inputs, outputs, &options)
            .unwrap_err()
            .to_string()
    };
    let input = GraphInput::new(one);
    let text = [
        error(&[], &[four]),
        error(&[input, input], &[four]),
        error(&[input, GraphInput::new(two)], &[four]),
        error(&[GraphInput::donated(one, two)], &[four]),
        error(&[GraphInput::new(TensorId::new(9))], &[four]),
        error(&[input], &[TensorId::new(9)]),
    ];
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn another_crates_custom_operation_is_refused() {
    let op = CustomOpIr::new("someone.else", &[tensor(1, &[2])], &[tensor(2, &[2])]);
    let graph = graph(vec![OperationIr::Custom(op)]);
    let inputs = [GraphInput::new(TensorId::new(1))];
    let error = lower(
        &graph,
        &inputs,
        &[TensorId::new(2)],
        &LowerOptions::default(),
    )
    .unwrap_err();
    assert!(
        matches!(&error, LowerError::Unsupported { operation, .. }
        if operation == "Custom.someone.else"),
        "{error}"
    );
}
