//! Nothing: with it cargo reads `[build-dependencies]`.

fn main() {}
