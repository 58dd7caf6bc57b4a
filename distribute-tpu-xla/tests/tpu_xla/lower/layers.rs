//! Matrix products, linear layers, embeddings, normalization, attention.

use burn::tensor::DType;
use distribute_core::burn_internals::backend::ops::AttentionModuleOptions;

use crate::check;
use crate::lower::harness::Prim::{Bool, Float, Int};
use crate::lower::harness::{Data, FLOATS};

#[test]
fn products_of_matrices() {
    let mut data = Data::new(71);
    let shapes: [(&[usize], &[usize]); 7] = [
        (&[3, 4], &[4, 5]),
        (&[1, 7], &[7, 1]),
        (&[2, 3, 4], &[2, 4, 5]),
        (&[2, 3, 4], &[1, 4, 5]),
        (&[1, 3, 4], &[6, 4, 5]),
        (&[2, 1, 3, 4], &[1, 5, 4, 2]),
        (&[2, 3, 4, 5], &[2, 3, 5, 6]),
    ];
    for dtype in FLOATS {
        for (left, right) in shapes {
            let a = data.normal(left, dtype);
            let b = data.normal(right, dtype);
            check!(
                format!("matmul {dtype:?} {left:?} {right:?}"),
                [a, b],
                |B, x| [Float(B::float_matmul(x[0].f(), x[1].f()))]
            );
        }
    }
    let a = data.ints(&[2, 3, 4], DType::I32, -9, 9);
    let b = data.ints(&[2, 4, 2], DType::I32, -9, 9);
    check!("int matmul", [a, b], |B, x| [Int(B::int_matmul(
        x[0].i(),
        x[1].i()
    ))]);
    let a = data.normal(&[4, 3, 2], DType::F32);
    let b = data.normal(&[4, 3, 2], DType::F32);
    check!("cross", [a, b], |B, x| [Float(B::float_cross(
        x[0].f(),
        x[1].f(),
        1
    ))]);
}

#[test]
fn linear_layers() {
    let mut data = Data::new(72);
    for dtype in FLOATS {
        for rows in [vec![5], vec![2, 3], vec![2, 3, 4]] {
            let x = data.normal(&[rows.clone(), vec![6]].concat(), dtype);
            let weight = data.normal(&[6, 7], dtype);
            let bias = data.normal(&[7], dtype);
            let gradient = data.normal(&[rows.clone(), vec![7]].concat(), dtype);
            check!(
                format!("linear {dtype:?}"),
                [x, weight, bias, gradient],
                |B, x| [
                    Float(B::linear(x[0].f(), x[1].f(), Some(x[2].f()))),
                    Float(B::linear(x[0].f(), x[1].f(), None)),
                    Float(B::linear_x_backward(x[1].f(), x[3].f())),
                    Float(B::linear_weight_backward(x[0].f(), x[3].f())),
                    Float(B::linear_bias_backward(x[3].f())),
                ]
            );
        }
    }
}

#[test]
fn embeddings() {
    let mut data = Data::new(73);
    for (dtype, index) in [(DType::F32, DType::I64), (DType::BF16, DType::I32)] {
        let weights = data.normal(&[9, 4], dtype);
        let at = data.ints(&[3, 5], index, 0, 9);
        let gradient = data.normal(&[3, 5, 4], dtype);
        check!(
            format!("embedding {dtype:?}"),
            [weights, at, gradient],
            |B, x| [
                Float(B::embedding(x[0].f(), x[1].i())),
                Float(B::embedding_backward(x[0].f(), x[2].f(), x[1].i())),
            ]
        );
    }
}

#[test]
fn normalization() {
    let mut data = Data::new(74);
    for dtype in FLOATS {
        let x = data.normal(&[2, 3, 8], dtype);
        let gamma = data.normal(&[8], dtype);
        let beta = data.normal(&[8], dtype);
        check!(format!("layer norm {dtype:?}"), [x, gamma, beta], |B, x| [
            Float(B::layer_norm(x[0].f(), x[1].f(), Some(x[2].f()), 1e-5)),
            Float(B::layer_norm(x[0].f(), x[1].f(), None, 1e-3)),
        ]);
    }
    for dtype in [DType::F32, DType::F64] {
        let x = data.normal(&[4, 3, 5, 2], dtype);
        let gamma = data.normal(&[3], dtype);
        let beta = data.normal(&[3], dtype);
        let variance = data.floats(&[3], dtype, 0.5, 2.0);
        check!(
            format!("batch norm {dtype:?}"),
            [x, gamma, beta, variance],
            |B, x| [
                Float(B::batch_norm(
                    x[0].f(),
                    x[1].f(),
                    x[2].f(),
                    x[2].f(),
                    x[3].f(),
                    1e-5
                )),
                Float(B::batch_norm_train(x[0].f(), x[1].f(), x[2].f(), 1e-5).output),
            ]
        );
    }
}

#[test]
fn attention() {
    let mut data = Data::new(75);
    for (causal, scale, softcap, queries) in [
        (false, None, None, 5),
        (true, None, None, 5),
        (true, Some(0.3), None, 3),
        (false, None, Some(2.0), 4),
    ] {
        let options = AttentionModuleOptions {
            scale,
            softcap,
            is_causal: causal,
        };
        let query = data.normal(&[2, 3, queries, 4], DType::F32);
        let key = data.normal(&[2, 3, 5, 4], DType::F32);
        let value = data.normal(&[2, 3, 5, 6], DType::F32);
        let mask = data.bools(&[2, 3, queries, 5]);
        let bias = data.normal(&[2, 3, queries, 5], DType::F32);
        check!(
            format!("attention {options:?}"),
            [query, key, value, mask, bias],
            (o: AttentionModuleOptions = options),
            |B, x| [
                Float(B::attention(x[0].f(), x[1].f(), x[2].f(), None, None, o)),
                Float(B::attention(
                    x[0].f(),
                    x[1].f(),
                    x[2].f(),
                    Some(x[3].b()),
                    Some(x[4].f()),
                    o
                )),
                Bool(x[3].b()),
            ]
        );
    }
}
