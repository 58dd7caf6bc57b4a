//! Every lowered operation against burn's flex backend.

mod arithmetic;
mod convolution;
mod coverage;
mod differential;
mod float;
mod harness;
mod integer;
mod layers;
mod moving;
mod pooling;
mod reduction;
mod replicas;
mod steps;
mod target;
mod tpu;
