//! The text that the builder prints, and the errors it gives instead.

use super::*;

fn f32s(dims: &[usize]) -> TensorType {
    TensorType::new(dims, ElementType::F32)
}

#[test]
fn a_small_network_reads_as_written() -> Result<()> {
    let mut b = Builder::new("two-layer net", 2);
    let x = b.input(f32s(&[4, 3]), None);
    let weight = b.input(f32s(&[3, 2]), Some(0));
    let dot = DotDimensions {
        lhs_contracting: vec![1],
        rhs_contracting: vec![0],
        ..DotDimensions::default()
    };
    let y = b.dot_general(&x, &weight, &dot)?;
    let zero = b.splat(y.dims(), ElementType::F32, 0.0);
    let y = b.binary(Binary::Maximum, &y, &zero)?;
    let initial = b.scalar(ElementType::F32, 0.0);
    let sum = b.reduce_with(Binary::Add, &y, &initial, &[0, 1])?;
    let sum = b.all_reduce(Binary::Add, &[sum])?.remove(0);
    let step = b.splat(weight.dims(), ElementType::F32, 0.1);
    let weight = b.binary(Binary::Subtract, &weight, &step)?;
    let program = b.finish(&[weight, sum])?;
    assert_eq!(program.donations, [None, Some(0)]);
    insta::assert_snapshot!(program.text);
    Ok(())
}

#[test]
fn operations_with_attributes_and_regions() -> Result<()> {
    let mut b = Builder::new("attributes", 1);
    let x = b.input(f32s(&[2, 4, 9, 8]), None);
    let kernel = b.input(f32s(&[6, 2, 3, 3]), None);
    let at = b.input(TensorType::new([5], ElementType::I32), None);
    let how = Convolution {
        input: vec![0, 1, 2, 3],
        kernel: vec![1, 0, 2, 3],
        output: vec![0, 1, 2, 3],
        strides: vec![2, 1],
        padding: vec![(1, 0), (-1, 2)],
        lhs_dilation: vec![1, 1],
        rhs_dilation: vec![1, 2],
        feature_groups: 2,
        batch_groups: 1,
    };
    let y = b.convolution(&x, &kernel, &how)?;
    assert_eq!(y.dims(), [2, 6, 4, 5]);
    let mut window = Window::identity(4);
    (window.size, window.strides) = (vec![1, 1, 2, 2], vec![1, 1, 2, 2]);
    let zero = b.scalar(ElementType::F32, 0.0);
    let source = b.splat(&[2, 6, 2, 2], ElementType::F32, 1.0);
    let z = b.select_and_scatter(&y, &source, &zero, &window, larger)?;
    let dims = GatherDimensions {
        offset_dims: vec![0, 2, 3],
        collapsed_slice_dims: vec![1],
        start_index_map: vec![1],
        index_vector_dim: 1,
    };
    let z = b.gather(&z, &at, &dims, &[2, 1, 4, 5])?;
    assert_eq!(z.dims(), [2, 5, 4, 5]);
    let position = b.iota(TensorType::new(z.dims(), ElementType::I64), 3)?;
    let sorted = b.sort(&[&z, &position], 3, |b, args| {
        b.compare_total_order(Comparison::Lt, &args[0], &args[1])
    })?;
    insta::assert_snapshot!(b.finish(&sorted)?.text);
    Ok(())
}

#[test]
fn constants_are_exact() -> Result<()> {
    let mut b = Builder::new("constants", 1);
    let mut values = Vec::new();
    let numbers = [
        0.1,
        -0.0,
        1.0,
        1e-45,
        3.4e38,
        16777217.0,
        f64::NAN,
        f64::NEG_INFINITY,
    ];
    for element in [ElementType::F32, ElementType::F64, ElementType::BF16] {
        values.extend(numbers.map(|number| b.scalar(element, number)));
    }
    values.push(b.scalar(ElementType::I8, -1i64));
    values.push(b.scalar(ElementType::U8, -1i64));
    values.push(b.scalar(ElementType::I1, true));
    let bytes: Vec<u8> = [1.0f32, 2.5, -3.0, 4.0]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    values.push(b.constant(f32s(&[2, 2]), &bytes)?);
    let bytes: Vec<u8> = (0..17u8).collect();
    values.push(b.constant(TensorType::new([17], ElementType::U8), &bytes)?);
    let bits: Vec<u8> = (0..20u8).map(|i| i % 3).collect();
    values.push(b.constant(TensorType::new([20], ElementType::I1), &bits)?);
    values.push(b.constant(TensorType::new([0, 3], ElementType::F32), &[])?);
    // A constant that is there already is not written again.
    assert_eq!(b.scalar(ElementType::I1, true), values[26]);
    insta::assert_snapshot!(b.finish(&values)?.text);
    Ok(())
}

/// What each wrong operation says.
#[test]
fn errors_name_the_operation_and_the_types() {
    let mut b = Builder::new("errors", 1);
    let x = b.input(f32s(&[2, 3]), None);
    let y = b.input(f32s(&[3, 2]), None);
    let i = b.input(TensorType::new([2, 3], ElementType::I32), None);
    let zero = b.scalar(ElementType::F32, 0.0);
    let window = Window::identity(2);
    let errors = [
        b.binary(Binary::Add, &x, &y).unwrap_err(),
        b.binary(Binary::And, &x, &x).unwrap_err(),
        b.unary(Unary::Sqrt, &i).unwrap_err(),
        b.compare(Comparison::Lt, &x, &i).unwrap_err(),
        b.select(&x, &x, &x).unwrap_err(),
        b.clamp(&i, &x, &x).unwrap_err(),
        b.bitcast_convert(&x, ElementType::I64).unwrap_err(),
        b.reshape(&x, &[7]).unwrap_err(),
        b.broadcast_in_dim(&x, &[2, 4], &[0, 1]).unwrap_err(),
        b.broadcast_to(&x, &[3]).unwrap_err(),
        b.transpose(&x, &[0, 0]).unwrap_err(),
        b.reverse(&x, &[2]).unwrap_err(),
        b.concatenate(&[x.clone(), y.clone()], 0).unwrap_err(),
        b.concatenate(&[], 0).unwrap_err(),
        b.slice(&x, &[0, 2], &[2, 1], &[1, 1]).unwrap_err(),
        b.pad(&x, &zero, &[-3, 0], &[0, 0], &[0, 0]).unwrap_err(),
        b.iota(f32s(&[2]), 1).unwrap_err(),
        b.dot_general(
            &x,
            &x,
            &DotDimensions {
                lhs_contracting: vec![1],
                rhs_contracting: vec![0],
                ..DotDimensions::default()
            },
        )
        .unwrap_err(),
        b.reduce_with(Binary::Add, &x, &zero, &[2]).unwrap_err(),
        b.reduce_with(Binary::Add, &x, &x, &[0]).unwrap_err(),
        b.select_and_scatter(&x, &y, &zero, &window, larger)
            .unwrap_err(),
        b.gather(&x, &i, &GatherDimensions::default(), &[1, 1])
            .unwrap_err(),
        b.scatter(&x, &i, &y, &ScatterDimensions::default(), Update::Assign)
            .unwrap_err(),
        b.all_reduce(Binary::Add, &[x.clone(), i.clone()])
            .unwrap_err(),
        b.threefry2x32([&i, &i], [&i, &i]).unwrap_err(),
        b.constant(f32s(&[2]), &[0; 4]).unwrap_err(),
    ];
    let text: Vec<String> = errors.iter().map(ToString::to_string).collect();
    insta::assert_snapshot!(text.join("\n"));
}

/// Just above or below the middle of two narrow numbers: the way over `f32` would make it the
/// middle, and the middle goes to the even one.
#[test]
fn narrow_constants_are_rounded_once() {
    let power = |exponent: i32| 2_f64.powi(exponent);
    let cases: [(ElementType, Scalar, u16); 9] = [
        (
            ElementType::F16,
            (1.0 + power(-11) + power(-40)).into(),
            0x3c01,
        ),
        (
            ElementType::F16,
            (-1.0 - power(-11) - power(-40)).into(),
            0xbc01,
        ),
        (
            ElementType::F16,
            (1.0 + 3.0 * power(-11) - power(-40)).into(),
            0x3c01,
        ),
        (ElementType::F16, (power(-25) + power(-60)).into(), 0x0001),
        (ElementType::F16, (1.0 + power(-11)).into(), 0x3c00),
        (ElementType::F16, f64::MAX.into(), 0x7c00),
        (
            ElementType::BF16,
            (1.0 + power(-8) + power(-40)).into(),
            0x3f81,
        ),
        (
            ElementType::BF16,
            ((1_i64 << 40) + (1 << 32) + 1).into(),
            0x5381,
        ),
        (ElementType::BF16, f64::NEG_INFINITY.into(), 0xff80),
    ];
    for (element, value, bits) in cases {
        assert_eq!(value.bytes(element), bits.to_le_bytes(), "{value:?}");
    }
}

#[test]
fn donations_must_fit() {
    let build = |first: Option<usize>, second: Option<usize>| {
        let mut b = Builder::new("donations", 1);
        let x = b.input(f32s(&[2]), first);
        let y = b.input(f32s(&[3]), second);
        let z = b.input(f32s(&[2]), Some(0));
        b.finish(&[z, x, y])
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(build(Some(1), Some(2)), Ok(()));
    let errors = [
        build(Some(2), None),
        build(Some(0), None),
        build(None, Some(9)),
    ];
    let text: Vec<String> = errors.into_iter().map(Result::unwrap_err).collect();
    insta::assert_snapshot!(text.join("\n"));
}

#[test]
fn a_body_that_fails_leaves_the_builder_usable() -> Result<()> {
    let mut b = Builder::new("body", 1);
    let x = b.input(f32s(&[2]), None);
    let zero = b.scalar(ElementType::F32, 0.0);
    let failed = b.reduce(&[&x], &[&zero], &[0], |b, acc, next| {
        let other = b.scalar(ElementType::I32, 1i64);
        Ok(vec![
            b.binary(Binary::Add, &acc[0], &next[0])?,
            b.binary(Binary::Add, &acc[0], &other)?,
        ])
    });
    assert!(failed.is_err());
    let sum = b.reduce_with(Binary::Add, &x, &zero, &[0])?;
    let text = b.finish(&[sum])?.text;
    assert_eq!(text.matches("stablehlo.reduce\"").count(), 1, "{text}");
    assert!(!text.contains("i32>"), "{text}");
    Ok(())
}

/// The winner so far stays unless the next one is larger.
fn larger(b: &mut Builder, winner: &Value, next: &Value) -> Result<Value> {
    b.compare(Comparison::Ge, winner, next)
}
