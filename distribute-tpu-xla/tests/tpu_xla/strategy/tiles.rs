//! What the TPU compiler makes of a donated state; the command line's tests use it too.

/// The dimensions of the inputs that are donated, all of f32.
pub fn donated(stablehlo: &str) -> Vec<Vec<usize>> {
    let inputs = stablehlo.split("%arg").skip(1);
    let donated = inputs.filter(|input| {
        let end = input.find(", %").unwrap_or(input.len());
        input[..end].contains("tf.aliasing_output")
    });
    let dims = |input: &str| {
        let (_, rest) = input.split_once("tensor<").unwrap();
        let ty = &rest[..rest.find('>').unwrap()];
        let mut parts: Vec<&str> = ty.split('x').collect();
        assert_eq!(parts.pop(), Some("f32"), "{ty}");
        parts.iter().map(|size| size.parse().unwrap()).collect()
    };
    donated.map(dims).collect()
}

/// What an array of f32 takes on a TPU: it is stored in tiles of up to 8 rows of 128 numbers (with
/// one dimension: of 128 to 1024 numbers), in the order of dimensions that needs the fewest.
pub fn tiled_bytes(dims: &[usize]) -> usize {
    let rows = |n: usize| n.next_multiple_of(n.next_power_of_two().min(8));
    let numbers = match dims {
        [] => 1,
        [n] => n.next_multiple_of(n.next_power_of_two().clamp(128, 1024)),
        _ => {
            let pairs = (0..dims.len()).flat_map(|a| (0..dims.len()).map(move |b| (a, b)));
            let size = |(row, column): (usize, usize)| {
                let others = (0..dims.len()).filter(|d| ![row, column].contains(d));
                let others: usize = others.map(|d| dims[d]).product();
                others * rows(dims[row]) * dims[column].next_multiple_of(128)
            };
            let pairs = pairs.filter(|(row, column)| row != column);
            pairs.map(size).min().unwrap()
        }
    };
    4 * numbers
}
